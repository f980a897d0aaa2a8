"""Copies share nothing that can change, and a function's body takes the place of a call."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from fuse.errors import ModelError
from fuse.ir.check import check
from fuse.ir.copy import copy_function, copy_graph, copy_model, inline
from fuse.ir.dtypes import FLOAT, INT64
from fuse.ir.graph import Attr, Graph, Node, Origin, Value
from fuse.ir.model import Function, Model
from fuse.ir.same import difference
from fuse.ir.types import TensorType

SHAPE = TensorType(FLOAT, (2,))


def body(*inputs: str) -> tuple[Graph, dict[str, Value]]:
    """A graph with these inputs."""
    graph = Graph("g")
    return graph, {name: graph.add_input(Value(name, SHAPE)) for name in inputs}


def add(graph: Graph, op: str, inputs: list[Value | None], name: str = "", **attrs: Attr) -> Value:
    """Append a node; its output, called ``name``."""
    value = Value(name or op.lower())
    graph.append(Node(op, inputs, [value], attrs, name=f"node of {value.name}"))
    return value


def rich() -> Model:
    """A model with a function and with captures two graphs deep."""
    graph, at = body("x", "c")
    weight = graph.add_const(np.float32([1, 2]), "w")
    weight.origin, weight.extra = Origin("value", "const", b"\x32\x01a"), b"\x42\x01a"
    relu = add(graph, "Relu", [at["x"]], "r")
    inner = Graph("inner")
    total = add(inner, "Add", [relu, weight], "t")
    deep = Graph("deep")
    own = deep.add_const(np.float32([3, 4]), "k")
    product = add(deep, "Mul", [total, own], "p")
    deep.add_output("p", add(deep, "Sub", [product, relu], "s"))
    plain = Graph("plain")
    plain.add_output("q", total)
    branch = Node(
        "If", [at["c"]], [Value("i")], {"then_branch": Attr("GRAPH", deep), "else_branch": Attr("GRAPH", plain)}
    )
    inner.append(branch)
    inner.add_output("i", branch.out)
    other = Graph("other")
    other.add_output("e", relu)
    outer = graph.append(
        Node("If", [at["c"]], [Value("o")], {"then_branch": Attr("GRAPH", inner), "else_branch": Attr("GRAPH", other)})
    )
    both = graph.append(
        Node("own::both", [outer.out], [Value("b")], {"bodies": Attr("GRAPHS", (Graph("1"), Graph("2")))})
    )
    for sub in both.subgraphs:
        sub.add_output("a", add(sub, "Neg", [relu]))
    call = graph.append(Node("own::f", [both.out, weight], [Value("y")], {"alpha": Attr("FLOAT", 0.5)}, "call"))
    call.sources, call.extra = ("first", "second"), b"\x32\x01d"
    graph.add_output("y", call.out, SHAPE)
    graph.add_output("w", weight)
    graph.listed = [at["x"], weight]

    inside, of = body("a", "b")
    elu = add(inside, "Elu", [of["a"]], alpha=Attr("FLOAT", None, reference="alpha"))
    inside.add_output("sum", add(inside, "Add", [elu, of["b"]]))
    default = Graph("default")
    default.add_output("d", default.add_const(np.float32([5, 6]), "d"))
    defaults = {"beta": Attr("FLOAT", 2.0), "graph": Attr("GRAPH", default)}
    function = Function("own", "f", "", inside, ("alpha",), defaults, {"": 18})
    return Model(graph, 8, {"": 18, "own": 1}, {function.key: function}, b"\x12\x01p", "rich")


def reachable(thing: Any) -> Iterator[Any]:
    """Every object of the IR, and every container, that can be reached from a model."""
    seen: dict[int, Any] = {}
    stack = [thing]
    while stack:
        current = stack.pop()
        if id(current) in seen or isinstance(current, (str, bytes, int, float, np.ndarray, type(None))):
            continue
        seen[id(current)] = current
        yield current
        if isinstance(current, dict):
            stack += [*current.keys(), *current.values()]
        elif isinstance(current, (list, tuple)):
            stack += current
        elif isinstance(current, (Value, Node)):
            stack += [getattr(current, name) for name in type(current).__slots__]
        elif isinstance(current, Graph):
            stack += vars(current).values()
        elif is_dataclass(current):
            stack += [getattr(current, field.name) for field in fields(current)]


MUTABLE = (Value, Node, Graph, Attr, Origin, Function, Model, dict, list)


def test_a_model_s_copy_is_the_same_and_shares_nothing_that_can_change() -> None:
    model = rich()
    check(model)
    copy = copy_model(model)
    check(copy)
    assert difference(copy, model) is None and copy.source == "rich"
    mine = {id(thing) for thing in reachable(model) if isinstance(thing, MUTABLE)}
    theirs = [thing for thing in reachable(copy) if isinstance(thing, MUTABLE)]
    assert len(theirs) == len(mine) > 100
    assert not [thing for thing in theirs if id(thing) in mine]


def test_arrays_are_shared() -> None:
    """They are read-only; a weight is in memory once, and one still in its file stays there."""
    model = rich()
    lazy = model.graph.add_const(lambda: np.zeros(3, np.float32), "lazy", TensorType(FLOAT, (3,)))
    copy = copy_model(model)
    pairs = dict(zip(model.graph.constants, copy.graph.constants, strict=True))
    assert all(a._data is b._data for a, b in pairs.items())
    assert callable(lazy._data) and callable(pairs[lazy]._data)
    assert pairs[lazy].array.tolist() == [0, 0, 0]


def test_changing_the_copy_leaves_the_model() -> None:
    model, reference = rich(), rich()
    copy = copy_model(model)
    for graph in [g for top in copy.graphs() for g in top.walk_graphs()]:
        graph.name, graph.extra = "changed", b"changed"
        for node in graph.nodes:
            node.name, node.overload = "changed", "changed"
            for attr in node.attrs.values():
                attr.implied = True
            node.attrs["new"] = Attr("INT", 1)
        for value in graph.constants:
            value.name, value.info = "changed", b"changed"
            if value.origin is not None:
                value.origin.node_name = "changed"
    copy.opsets["new"] = 1
    for function in copy.functions.values():
        function.opsets["new"] = 1
        function.defaults["beta"].value = 3.0
        function.defaults["new"] = Attr("INT", 1)
    assert difference(model, reference) is None


def test_a_graph_s_copy_keeps_what_it_captures_or_takes_what_is_mapped() -> None:
    model = rich()
    branch = next(n for n in model.graph.nodes if n.op == "If")
    inner = branch.attrs["then_branch"].value
    relu = next(iter(model.graph.nodes)).out
    before = len(relu.uses)
    other = Value("other")
    kept, moved = copy_graph(inner, {}), copy_graph(inner, {relu: other})
    assert next(iter(kept.nodes)).inputs[0] is relu and next(iter(moved.nodes)).inputs[0] is other
    assert len(relu.uses) == before + 2, "in the copy and two graphs deep in it"
    assert {user.op for user, _ in other.uses} == {"Add", "Sub"}
    kept.release()
    assert len(relu.uses) == before


def test_a_function_s_copy() -> None:
    function = rich().functions["own::f", ""]
    copy = copy_function(function)
    assert difference(copy, function) is None and copy.graph is not function.graph
    assert copy.defaults["graph"].value is not function.defaults["graph"].value


# ---- inlining


def calling(function: Function, inputs: list[Value | None] | None = None, **attrs: Attr) -> tuple[Model, Node]:
    """A model that calls ``function`` on its first inputs, and the node that does."""
    graph, at = body("x", "z")
    given = [at["x"]] if inputs is None else inputs
    call = Node("own::f", given, [Value(f"y{i}") for i in range(len(function.graph.outputs))], attrs, "call")
    graph.append(call)
    for value in call.outputs:
        assert value is not None
        graph.add_output(value.name, value)
    return Model(graph, 8, {"": 18, "own": 1}, {("own::f", ""): function}), call


def ops(graph: Graph) -> list[tuple[str, list[str | None], list[str]]]:
    return [(n.op, [v and v.name for v in n.inputs], [v.name for v in n.outputs if v]) for n in graph.nodes]


def test_a_call_becomes_the_body() -> None:
    inside, at = body("a")
    k = inside.add_const(np.float32([1, 2]), "k")
    inside.add_output("r", add(inside, "Add", [add(inside, "Neg", [at["a"]], "n"), k], "m"))
    function = Function("own", "f", "", inside)
    model, call = calling(function)
    before = copy_function(function)
    made = inline(call, function)
    check(model)
    assert ops(model.graph) == [("Neg", ["x"], ["n"]), ("Add", ["n", "k"], ["y0"])]
    assert made == list(model.graph.nodes) and call.graph is None
    assert model.graph.outputs[0].value is made[-1].out
    assert difference(function, before) is None, "the function is as it was"


def test_what_comes_from_where_is_kept() -> None:
    inside, at = body("a")
    inside.add_output("r", add(inside, "Neg", [at["a"]]))
    next(iter(inside.nodes)).sources = ("inside",)
    model, call = calling(Function("own", "f", "", inside))
    call.sources = ("exported call",)
    assert [n.sources for n in inline(call, model.functions["own::f", ""])] == [("exported call",)]
    model, call = calling(Function("own", "f", "", inside))
    assert [n.sources for n in inline(call, model.functions["own::f", ""])] == [("inside",)]


def test_attributes_are_resolved_where_they_are_referenced() -> None:
    """By the call, else by the function's default, else the inner operator's own default holds: nothing is written."""
    inside, at = body("a")
    value = at["a"]
    for name in ("alpha", "beta", "gamma"):
        value = add(inside, "Elu", [value], alpha=Attr("FLOAT", None, reference=name))
    deep = Graph("deep")
    deep.add_output("d", add(deep, "Elu", [value], alpha=Attr("FLOAT", None, reference="alpha")))
    inside.append(Node("own::op", [], [Value("o")], {"body": Attr("GRAPH", deep)}))
    inside.add_output("r", list(inside.nodes)[-1].out)
    function = Function("own", "f", "", inside, ("alpha", "gamma"), {"beta": Attr("FLOAT", 2.0)})
    model, call = calling(function, alpha=Attr("FLOAT", 0.5))
    inline(call, function)
    check(model)
    found = [node.attrs.get("alpha") for node in model.graph.walk() if node.op == "Elu"]
    assert [attr and attr.value for attr in found] == [0.5, 2.0, None, 0.5]
    assert not any(attr.reference for node in model.graph.walk() for attr in node.attrs.values())
    assert found[0] is not found[3]


def test_a_reference_that_the_caller_passes_on() -> None:
    """Inside another function the call's own attribute may be a reference, and stays one."""
    inside, at = body("a")
    inside.add_output("r", add(inside, "Elu", [at["a"]], alpha=Attr("FLOAT", None, reference="alpha")))
    function = Function("own", "f", "", inside, ("alpha",))
    outer, of = body("p")
    call = outer.append(Node("own::f", [of["p"]], [Value("q")], {"alpha": Attr("FLOAT", None, reference="slope")}))
    outer.add_output("q", call.out)
    (made,) = inline(call, function)
    assert made.attrs["alpha"].reference == "slope"


def test_a_graph_given_as_an_attribute() -> None:
    """It reads the caller's values; the function may use it twice, and the call goes away with its own."""
    inside, at = body("a")
    for _ in range(2):
        inside.append(Node("own::map", [at["a"]], [Value("m")], {"body": Attr("GRAPH", None, reference="g")}))
    first, second = inside.nodes
    inside.add_output("r", add(inside, "Add", [first.out, second.out]))
    function = Function("own", "f", "", inside, ("g",))
    given = Graph("given")
    model, call = calling(function, g=Attr("GRAPH", given))
    z = model.graph.inputs[1]
    given.add_output("o", add(given, "Neg", [z]))
    made = inline(call, function)
    check(model)
    graphs = [node.attrs["body"].value for node in made if node.op == "own::map"]
    assert len({id(g) for g in [*graphs, given]}) == 3
    assert [next(iter(g.nodes)).inputs[0] for g in graphs] == [z, z]
    assert len(z.uses) == 2, "the graph of the call no longer reads it"


def test_absent_optional_inputs_stay_absent() -> None:
    """Left out at the end, or empty in the middle; inside a graph of the body too."""
    inside, at = body("a", "low", "high")
    value = add(inside, "Clip", [at["a"], at["low"], at["high"]])
    deep = Graph("deep")
    deep.add_output("d", add(deep, "Clip", [value, at["high"], at["low"]]))
    inside.append(Node("own::op", [at["low"]], [Value("o")], {"body": Attr("GRAPH", deep)}))
    inside.add_output("r", list(inside.nodes)[-1].out)
    function = Function("own", "f", "", inside)
    model, call = calling(function)
    inline(call, function)
    check(model)
    clips = [node for node in model.graph.walk() if node.op == "Clip"]
    assert [node.inputs[1:] for node in clips] == [(None, None), (None, None)]
    graph, given = body("x", "h")
    call = graph.append(Node("own::f", [given["x"], None, given["h"]], [Value("y")]))
    graph.add_output("y", call.out)
    inline(call, function)
    clips = [node for node in graph.walk() if node.op == "Clip"]
    assert [[v and v.name for v in node.inputs[1:]] for node in clips] == [[None, "h"], ["h", None]]


def test_an_output_that_is_an_input() -> None:
    inside, at = body("a", "b")
    inside.add_output("p", at["a"])
    inside.add_output("q", add(inside, "Neg", [at["a"]]))
    inside.add_output("r", at["b"])
    function = Function("own", "f", "", inside)
    graph, given = body("x", "z")
    call = graph.append(Node("own::f", [given["x"], given["z"]], [Value("p"), Value("q"), None]))
    add(graph, "Abs", [call.outputs[0]])
    graph.add_output("p", call.out)
    graph.add_output("q", call.outputs[1])  # type: ignore[arg-type]
    inline(call, function)
    check(graph)
    assert [slot.value.name for slot in graph.outputs] == ["x", "q"] and [s.name for s in graph.outputs] == ["p", "q"]
    assert [n.op for n in graph.nodes] == ["Neg", "Abs"] and list(graph.nodes)[1].inputs[0] is given["x"]


def test_an_output_that_is_an_absent_input() -> None:
    """Refused with the graph unchanged where somebody reads it, and no matter where nobody does."""
    inside, at = body("a", "b")
    inside.add_output("p", add(inside, "Neg", [at["a"]]))
    inside.add_output("q", at["b"])
    function = Function("own", "f", "", inside)
    model, call = calling(function)
    reference = copy_model(model)
    with pytest.raises(ModelError, match="output 'q' is an input of the function that the call leaves out"):
        inline(call, function)
    assert difference(model, reference) is None
    model.graph.drop_output(1)
    inline(call, function)
    assert [n.op for n in model.graph.nodes] == ["Neg"]
    deep = Graph("deep")
    deep.add_output("d", at["b"])
    inside.append(Node("own::op", [], [Value("o")], {"body": Attr("GRAPH", deep)}))
    model, call = calling(function)
    model.graph.drop_output(1)
    reference = copy_model(model)
    with pytest.raises(ModelError, match="output 'd' is an input of the function that the call leaves out"):
        inline(call, function)
    assert difference(model, reference) is None


def test_two_outputs_on_one_value_and_outputs_nobody_asks_for() -> None:
    inside, at = body("a")
    neg = add(inside, "Neg", [at["a"]])
    inside.add_output("p", neg)
    inside.add_output("q", neg)
    inside.add_output("r", add(inside, "Abs", [neg]))
    function = Function("own", "f", "", inside)
    graph, given = body("x")
    call = graph.append(Node("own::f", [given["x"]], [Value("p"), Value("q")]))
    for value in call.outputs:
        assert value is not None
        graph.add_output(value.name, value)
    inline(call, function)
    check(graph)
    assert graph.outputs[0].value is graph.outputs[1].value


def test_functions_in_functions() -> None:
    """Each call in its place and in order; two calls of one function share no node and no constant."""
    inside, at = body("a")
    k = inside.add_const(np.float32([1, 2]), "k")
    inside.add_output("r", add(inside, "Add", [at["a"], k]))
    inner = Function("own", "inner", "", inside)
    outside, of = body("p")
    value = of["p"]
    for _ in range(2):
        value = outside.append(Node("own::inner", [value], [Value("t")])).out
        value = add(outside, "Relu", [value])
    outside.add_output("q", value)
    function = Function("own", "f", "", outside)
    model, call = calling(function)
    frontier = inline(call, function)
    while calls := [n for n in frontier if n.op == "own::inner"]:
        frontier = [made for node in calls for made in inline(node, inner)]
    model.functions.clear()
    check(model)
    assert [n.op for n in model.graph.nodes] == ["Add", "Relu", "Add", "Relu"]
    assert len(model.graph.constants) == 2
    first, _, second, _ = model.graph.nodes
    assert first.inputs[1] is not second.inputs[1] and first.inputs[1].data is second.inputs[1].data  # type: ignore[union-attr]


def test_a_call_in_a_branch_is_expanded_there() -> None:
    inside, at = body("a")
    inside.add_output("r", add(inside, "Neg", [at["a"]]))
    function = Function("own", "f", "", inside)
    graph, given = body("x")
    branch = Graph("branch")
    call = branch.append(Node("own::f", [given["x"]], [Value("t")]))
    branch.add_output("t", call.out)
    holder = graph.append(Node("own::op", [], [Value("y", TensorType(INT64))], {"body": Attr("GRAPH", branch)}))
    graph.add_output("y", holder.out)
    inline(call, function)
    check(graph)
    assert [n.op for n in branch.nodes] == ["Neg"] and branch.outputs[0].name == "t"
    assert next(iter(branch.nodes)).inputs[0] is given["x"]
