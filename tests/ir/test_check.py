"""Each law, broken on purpose, is named with the node at fault; valid graphs pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from fuse.errors import LawError
from fuse.ir.check import LAWS, check
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.parse import parse
from fuse.ir.types import TensorType
from tests.ir.graphs import models

SOURCE = """
model { ir_version 8  opset 17  opset local 1 }
graph "main" {
  input %x: float[2, n]
  input %k: int64[1] = [1]
  const %w: float[2] = [1.0, 2.0]
  %a: float[2, n] = Relu(%x) "first"
  %c: bool[] = Any(%a) "any"
  %y: float[2, n] = If(%c) {
    then_branch = graph "then" { const %t: float[] = 1.0  %i = Add(%a, %t) "inner"  return "r" = %i },
    else_branch = graph "else" { %j = Neg(%x) "other"  return "r" = %j }
  } "choice"
  %z = local::Twice(%y, %w) "call"
  return "y" = %y
  return "z" = %z
}
function local::Twice { opset 17  input %p  input %q  %s = Add(%p, %q) "sum"  return "s" = %s }
function local::Outer {
  attribute alpha
  input %p
  %u = local::Twice(%p) {b = FLOAT @alpha} "deep"
  return "u" = %u
}
"""


class Parts:
    """The sample model with its nodes and values by name."""

    def __init__(self) -> None:
        self.model = parse(SOURCE)
        self.graph = self.model.graph
        graphs = [g for top in self.model.graphs() for g in top.walk_graphs()]
        self.nodes = {n.name: n for g in graphs for n in g.nodes}
        self.values = {v.name: v for g in graphs for v in [*g.inputs, *g.constants]}
        self.values |= {n.out.name: n.out for n in self.nodes.values()}
        self.then, self.other = self.nodes["choice"].subgraphs

    def function(self, name: str) -> Function:
        return self.model.functions[f"local::{name}", ""]


BREAKS: list[tuple[str, str, Callable[[Parts], object]]] = []


def breaks(law: str, says: str) -> Callable[[Callable[[Parts], object]], Callable[[Parts], object]]:
    """Register a way to break ``law``; the error has to say ``says``."""

    def register(change: Callable[[Parts], object]) -> Callable[[Parts], object]:
        BREAKS.append((law, says, change))
        return change

    return register


@breaks("order", "node 'any' (Any) stands in graph 'main' and does not know it")
def _(p: Parts) -> None:
    p.nodes["any"].graph = None


@breaks("order", "node 'choice' (If) is not linked to the node in front of it")
def _(p: Parts) -> None:
    p.nodes["choice"]._prev = p.nodes["first"]


@breaks("order", "graph 'main' counts 5 nodes and has 4")
def _(p: Parts) -> None:
    p.graph._count += 1


@breaks("order", "node 'first' (Relu) is not linked to the node in front of it")
def _(p: Parts) -> None:
    p.nodes["call"]._next = p.nodes["first"]


@breaks("order", "graph 'main' counts 4 nodes and has 4")
def _(p: Parts) -> None:
    p.graph._last = p.nodes["any"]


@breaks("nesting", "the parent of graph 'then' is not what holds it")
def _(p: Parts) -> None:
    p.then.parent = None


@breaks("nesting", "graph 'then' is held twice")
def _(p: Parts) -> None:
    p.nodes["choice"].attrs["else_branch"] = Attr("GRAPH", p.then)


@breaks("nesting", "graph 'then' is held twice")
def _(p: Parts) -> None:
    p.nodes["inner"].attrs["body"] = Attr("GRAPH", p.then)
    p.then.parent = p.nodes["choice"]


@breaks("nesting", "the parent of graph 'main' is not what holds it")
def _(p: Parts) -> None:
    p.graph.parent = p.nodes["sum"]


@breaks("nesting", "the parent of graph 'fresh' is not what holds it")
def _(p: Parts) -> None:
    p.nodes["call"].attrs["body"] = Attr("GRAPH", Graph("fresh"))


@breaks("inputs", "input 'x' of graph 'main' is a constant too")
def _(p: Parts) -> None:
    p.graph.constants[p.values["x"]] = None


@breaks("producers", "the owner of 'a' is not what produces it")
def _(p: Parts) -> None:
    p.values["a"].owner = p.nodes["any"]


@breaks("producers", "the owner of 'w' is not what produces it")
def _(p: Parts) -> None:
    p.values["w"].owner = None


@breaks("producers", "'a' is produced twice")
def _(p: Parts) -> None:
    p.nodes["first"].outputs.append(p.values["a"])


@breaks("producers", "the owner of 'y' is not what produces it")
def _(p: Parts) -> None:
    p.graph.append(Node("Copy", [], [p.values["y"]], name="thief"))


@breaks("producers", "'x' is produced twice")
def _(p: Parts) -> None:
    p.graph.add_input(p.values["x"])


@breaks("uses", "node 'any' (Any) reads 'a', which does not know it")
def _(p: Parts) -> None:
    del p.values["a"].uses[p.nodes["any"], 0]


@breaks("uses", "output 'y' shows 'y', which does not know it")
def _(p: Parts) -> None:
    del p.values["y"].uses[p.graph, 0]


@breaks("uses", "'x' believes to be read at 1 by node 'first' (Relu), which does not")
def _(p: Parts) -> None:
    p.values["x"].uses[p.nodes["first"], 1] = None


@breaks("uses", "node 'first' (Relu) reads 'w', which does not know it")
def _(p: Parts) -> None:
    p.nodes["first"]._inputs[0] = p.values["w"]


@breaks("uses", "'w' believes to be read at 1 by node 'call' (local::Twice), which does not")
def _(p: Parts) -> None:
    p.graph.drop_output(1)
    p.graph.unlink(p.nodes["call"])


@breaks("uses", "'z' counts 1 output slots and is in 0")
def _(p: Parts) -> None:
    p.graph.outputs.pop()


@breaks("uses", "'a' counts 1 output slots and is in 0")
def _(p: Parts) -> None:
    p.values["a"].slots += 1


@breaks("uses", "'a' believes to be read at 0 by node 'inner' (Add), which does not")
def _(p: Parts) -> None:
    del p.nodes["choice"].attrs["then_branch"]


@breaks("closed", "'w' is read in one function or graph and belongs to another")
def _(p: Parts) -> None:
    p.nodes["sum"].rewire(1, p.values["w"])


@breaks("closed", "'s' is read in one function or graph and belongs to another")
def _(p: Parts) -> None:
    p.function("Outer").graph.rewire(0, p.values["s"])


@breaks("closed", "'s' is read in one function or graph and belongs to another")
def _(p: Parts) -> None:
    p.nodes["inner"].rewire(0, p.values["s"])


@breaks("scope", "node 'first' (Relu) reads 'y' before it is produced")
def _(p: Parts) -> None:
    p.nodes["first"].rewire(0, p.values["y"])


@breaks("scope", "node 'any' (Any) reads 'c' before it is produced")
def _(p: Parts) -> None:
    p.nodes["any"].rewire(0, p.values["c"])


@breaks("scope", "node 'inner' (Add) reads 'z' before it is produced")
def _(p: Parts) -> None:
    p.nodes["inner"].rewire(0, p.values["z"])


@breaks("scope", "node 'inner' (Add) reads 'y' before it is produced")
def _(p: Parts) -> None:
    p.nodes["inner"].rewire(0, p.values["y"])


@breaks("scope", "node 'other' (Neg) reads 'i' which belongs to a graph that is not around it")
def _(p: Parts) -> None:
    p.nodes["other"].rewire(0, p.values["i"])


@breaks("scope", "node 'call' (local::Twice) reads 't' which belongs to a graph that is not around it")
def _(p: Parts) -> None:
    p.nodes["call"].rewire(1, p.values["t"])


@breaks("scope", "output 'z' shows 'j' which belongs to a graph that is not around it")
def _(p: Parts) -> None:
    p.graph.rewire(1, p.values["j"])


@breaks("scope", "output 'r' shows 'y' before it is produced")
def _(p: Parts) -> None:
    p.then.rewire(0, p.values["y"])


@breaks("scope", "node 'any' (Any) reads 'a' whose producer was removed")
def _(p: Parts) -> None:
    p.nodes["first"].rewire(0, None)
    p.graph.unlink(p.nodes["first"])


@breaks("scope", "node 'call' (local::Twice) reads 'w' which its graph has dropped")
def _(p: Parts) -> None:
    del p.graph.constants[p.values["w"]]


@breaks("scope", "node 'call' (local::Twice) reads 'lost' which nothing produces")
def _(p: Parts) -> None:
    p.nodes["call"].rewire(1, Value("lost"))


@breaks("scope", "node 'choice' (If) reads 'c' before it is produced")
def _(p: Parts) -> None:
    p.graph.insert(p.graph.unlink(p.nodes["any"]), None)


@breaks("slots", "graph 'main' has two outputs called 'y'")
def _(p: Parts) -> None:
    p.graph.outputs[1].name = "y"


@breaks("slots", "graph 'else' has two outputs called 'r'")
def _(p: Parts) -> None:
    p.other.add_output("r", p.values["x"])


@breaks("slots", "an output of the main graph has no name")
def _(p: Parts) -> None:
    p.graph.outputs[0].name = ""


@breaks("constants", "'w': float[2] has no data")
def _(p: Parts) -> None:
    p.values["w"]._data = None


@breaks("constants", "'w': float[2] holds an array that may be written")
def _(p: Parts) -> None:
    p.values["w"]._data = np.zeros(2, np.float32)


@breaks("constants", "'w': float[2] holds double[2]")
def _(p: Parts) -> None:
    p.values["w"].set_data(np.zeros(2))


@breaks("constants", "'w': float[2] holds float[2, 1]")
def _(p: Parts) -> None:
    p.values["w"].set_data(np.zeros((2, 1), np.float32))


@breaks("constants", "'w': float[2] holds what is no array of an ONNX dtype")
def _(p: Parts) -> None:
    p.values["w"].set_data(np.array(["a", "b"]))


@breaks("constants", "'w': ? has a type that does not say its dtype and shape")
def _(p: Parts) -> None:
    p.values["w"].type = None


@breaks("constants", "'w': float[?] has a shape that is no list of numbers")
def _(p: Parts) -> None:
    p.values["w"].type = TensorType(np.dtype(np.float32), (None,))
    p.values["w"].set_data(lambda: np.zeros(2, np.float32))


@breaks("constants", "'t': float[] holds float[1]")
def _(p: Parts) -> None:
    p.values["t"].set_data(np.zeros(1, np.float32))


@breaks("constants", "'k': int64[1] has a default of int64[2]")
def _(p: Parts) -> None:
    p.values["k"].set_data(np.zeros(2, np.int64))


@breaks("constants", "'k': int64[1] has a default of int32[1]")
def _(p: Parts) -> None:
    p.values["k"].set_data(np.zeros(1, np.int32))


@breaks("types", "'a' has a type that is none")
def _(p: Parts) -> None:
    p.values["a"].type = TensorType(np.dtype(np.float32), (np.int64(2), 3))  # type: ignore[arg-type]


@breaks("types", "'i' has a type that is none")
def _(p: Parts) -> None:
    p.values["i"].type = TensorType(np.dtype("<U3"), ())


@breaks("references", "attribute 'alpha' of node 'any' (Any) stands for a function's")
def _(p: Parts) -> None:
    p.nodes["any"].attrs["alpha"] = Attr("FLOAT", None, reference="beta")


@breaks("references", "attribute 'alpha' of node 'inner' (Add) stands for a function's")
def _(p: Parts) -> None:
    p.nodes["inner"].attrs["alpha"] = Attr("GRAPH", None, reference="beta")


@breaks("calls", "node 'call' (local::Twice) calls overload 'v2', which does not exist")
def _(p: Parts) -> None:
    p.nodes["call"].overload = "v2"


@breaks("calls", "node 'call' (local::Twice) has more inputs or outputs than the function it calls")
def _(p: Parts) -> None:
    p.nodes["call"].append_input(p.values["x"])


@breaks("calls", "node 'deep' (local::Twice) has more inputs or outputs than the function it calls")
def _(p: Parts) -> None:
    second = Value("v")
    second.owner = p.nodes["deep"]
    p.nodes["deep"].outputs.append(second)


@breaks("calls", "is filed under")
def _(p: Parts) -> None:
    p.function("Outer").name = "Renamed"


@breaks("recursion", "'local::Twice' -> 'local::Twice'")
def _(p: Parts) -> None:
    p.nodes["sum"].op = "local::Twice"


@breaks("recursion", "'local::Twice' -> 'local::Outer' -> 'local::Twice'")
def _(p: Parts) -> None:
    p.nodes["sum"].trim_inputs(1)
    p.nodes["sum"].op = "local::Outer"


@breaks("recursion", "'local::Twice' -> 'local::Outer' -> 'local::Twice'")
def _(p: Parts) -> None:
    body = Graph("body")
    body.append(Node("local::Outer"))
    p.function("Twice").graph.append(Node("Loop", attrs={"body": Attr("GRAPH", body)}))


@pytest.mark.parametrize(("law", "says", "change"), BREAKS, ids=[f"{law}-{i}" for i, (law, *_) in enumerate(BREAKS)])
def test_a_broken_law_is_named(law: str, says: str, change: Callable[[Parts], object]) -> None:
    parts = Parts()
    check(parts.model)
    change(parts)
    with pytest.raises(LawError) as caught:
        check(parts.model)
    assert caught.value.where == f"law '{law}'"
    assert says in caught.value.what


def test_every_law_is_broken_by_some_test() -> None:
    assert {law for law, *_ in BREAKS} == {law.__name__ for law in LAWS}
    assert all(law.__doc__ for law in LAWS)


@given(models())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_valid_models_pass(model: Model) -> None:
    check(model)
    for graph in model.graphs():
        for inner in graph.walk_graphs():
            check(inner)


def test_errors_show_the_nodes_around() -> None:
    parts = Parts()
    parts.nodes["choice"].rewire(0, parts.values["z"])
    with pytest.raises(LawError) as caught:
        check(parts.graph)
    assert str(caught.value) == (
        "law 'scope': node 'choice' (If) reads 'z' before it is produced\n"
        '  %a: float[2, n] = Relu(%x) "first"\n'
        '  %c: bool[] = Any(%a) "any"\n'
        '> %y: float[2, n] = If(%z) {then_branch = graph {...}, else_branch = graph {...}} "choice"\n'
        '  %z = local::Twice(%y, %w) "call"'
    )


def test_a_subgraph_is_checked_with_what_is_around_it() -> None:
    parts = Parts()
    check(parts.then)
    parts.nodes["any"].rewire(0, parts.values["c"])
    with pytest.raises(LawError, match="law 'scope'"):
        check(parts.then)


def test_lazy_constants_are_not_loaded() -> None:
    def load() -> np.ndarray:
        raise AssertionError("loaded")

    graph = Graph()
    graph.add_const(load, "w", TensorType(np.dtype(np.float32), (1 << 40,)))
    graph.add_input(Value("x")).set_data(load)
    check(graph)


def test_operators_that_no_function_explains_are_none_of_its_business() -> None:
    parts = Parts()
    parts.nodes["any"].op = "local::Elsewhere"
    parts.nodes["any"].overload = "v3"
    check(parts.model)


def test_a_value_may_have_many_readers_and_a_node_many_inputs() -> None:
    graph = Graph()
    x = graph.add_input(Value("x"))
    graph.append(Node("Sum", [x] * 20_000, [Value("y")]))
    for _ in range(20_000):
        graph.append(Node("Relu", [x], [Value("z")]))
    assert not x.is_output
    check(graph)


def test_a_long_chain_of_functions_is_no_recursion() -> None:
    model = parse(
        "model {} graph {}"
        + "".join(f"function f::g{i} {{ () = f::g{i + 1}() () = f::g{i + 1}() }} " for i in range(2000))
        + "function f::g2000 {}"
    )
    check(model)
    next(iter(model.functions["f::g1999", ""].graph.nodes)).op = "f::g5"
    with pytest.raises(LawError, match="in a circle"):
        check(model)
