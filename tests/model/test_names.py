"""Names for saving: the interface keeps its own, no name hides another, and nothing is renamed without need."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from fuse.errors import LawError, UnsupportedError
from fuse.ir.check import check
from fuse.ir.copy import inline
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Model
from fuse.model.load import load
from fuse.model.names import Names
from fuse.model.save import to_proto
from fuse.runtime.interpret import run
from tests.model.protos import BOOL, CONDITION, branches, const, function, graph, info, model, node, same

X = np.array([1.0, -2.0], np.float32)


def saved(subject: Model) -> onnx.ModelProto:
    """The model as written: it passes onnx's checker, and a reader gets the same answers."""
    check(subject)
    proto = to_proto(subject)
    onnx.checker.check_model(proto)
    feeds = {v.name: np.array(True) if v.dtype == bool else X for v in subject.graph.inputs if v.data is None}
    want, got = run(subject, feeds), run(load(proto), feeds)
    assert list(got) == list(want) and all(np.array_equal(got[name], want[name]) for name in want)
    return proto


def spelled(proto: onnx.ModelProto) -> list[str]:
    return [f"{n.op_type}({', '.join(n.input)}) -> {', '.join(n.output)}" for n in proto.graph.node]


def test_two_slots_on_one_value() -> None:
    """The value goes by the first slot's name; the other gets an Identity, and both outputs stay."""
    subject = load(model(graph([node("Relu", ["x"], ["a"]), node("Identity", ["a"], ["b"])], ["x"], ["a", "b"])))
    _, copy = subject.graph.nodes
    copy.out.replace_by(copy.inputs[0])
    subject.graph.remove(copy)
    assert spelled(saved(subject)) == ["Relu(x) -> a", "Identity(a) -> b"]


def test_a_slot_on_an_input_and_on_a_constant() -> None:
    nodes = [node("Identity", ["x"], ["a"]), node("Identity", ["w"], ["b"])]
    subject = load(model(graph(nodes, ["x"], ["a", "b"], [const("w")])))
    for copy in list(subject.graph.nodes):
        copy.out.replace_by(copy.inputs[0])
        subject.graph.remove(copy)
    proto = saved(subject)
    assert spelled(proto) == ["Identity(x) -> a"] and [t.name for t in proto.graph.initializer] == ["b"]


def test_one_output_listed_twice_gets_one_identity() -> None:
    subject = load(model(graph([node("Identity", ["x"], ["a"])], ["x"], ["a", "a"])))
    (copy,) = subject.graph.nodes
    copy.out.replace_by(subject.graph.inputs[0])
    subject.graph.remove(copy)
    proto = saved(subject)
    assert spelled(proto) == ["Identity(x) -> a"] and [o.name for o in proto.graph.output] == ["a", "a"]


def test_a_value_under_a_slot_is_renamed_everywhere() -> None:
    """Constants too; its old name is free for another value, which does not get it by accident."""
    nodes = [node("Add", ["x", "w"], ["inner"]), node("Neg", ["inner"], ["n"]), node("Identity", ["inner"], ["y"])]
    subject = load(model(graph(nodes, ["x"], ["y", "n"], [const("w")])))
    last = list(subject.graph.nodes)[-1]
    last.out.replace_by(last.inputs[0])
    subject.graph.remove(last)
    assert spelled(saved(subject)) == ["Add(x, w) -> y", "Neg(y) -> n"]


def test_names_that_meet_are_numbered_and_the_first_keeps_its_own() -> None:
    subject = load(model([node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["a_1"]), node("Abs", ["a_1"], ["y"])]))
    relu, neg, absolute = subject.graph.nodes
    fresh = Node("Exp", [relu.out], [Value("a")])
    subject.graph.insert(fresh, neg)
    neg.rewire(0, fresh.out)
    assert spelled(saved(subject)) == ["Relu(x) -> a", "Exp(a) -> a_2", "Neg(a_2) -> a_1", "Abs(a_1) -> y"]
    assert absolute.out.name == "y"


def test_values_without_a_name() -> None:
    subject = load(model([node("Relu", ["x"], ["v"]), node("Neg", ["v"], ["y"])]))
    neg = list(subject.graph.nodes)[-1]
    for _ in range(3):
        added = subject.graph.insert(Node("Abs", [neg.inputs[0]], [Value()]), neg)
        neg.rewire(0, added.out)
    neg.append_input(None)
    neg.trim_inputs(1)
    assert spelled(saved(subject))[1:] == ["Abs(v) -> v_1", "Abs(v_1) -> v_2", "Abs(v_2) -> v_3", "Neg(v_3) -> y"]


def test_what_becomes_an_attribute_takes_no_name() -> None:
    """The bounds of Clip-6 are constants inside, and attributes in the file: 'v' stays the name of another value."""
    nodes = [node("Clip", ["x"], ["c"], min=0.0, max=1.0), node("Neg", ["c"], ["v"]), node("Abs", ["v"], ["y"])]
    proto = model(nodes, opset=10)
    assert same(to_proto(load(proto)), proto)
    then = branches(node("Neg", ["c"], ["v"]), out="v")
    proto = model(graph([nodes[0], node("If", ["b"], ["y"], **then)], ["x", info("b", [], BOOL)]), opset=10)
    assert same(to_proto(load(proto)), proto)


def test_an_inner_name_gives_way_to_one_from_around() -> None:
    """Passes move values: an inner value may wish for the name of one that it reads from outside."""
    then = branches(node("Neg", ["a"], ["n"]), node("Add", ["n", "a"], ["t"]))
    subject = load(model(graph([node("Relu", ["x"], ["a"]), node("If", ["c"], ["y"], **then)], CONDITION)))
    branch = list(subject.graph.nodes)[1].subgraphs[1]
    neg = next(iter(branch.nodes))
    assert neg.op == "Neg"
    neg.out.name = "a"
    inner = next(a.g for n in saved(subject).graph.node for a in n.attribute if a.name == "then_branch")
    assert [f"{n.op_type}({', '.join(n.input)}) -> {n.output[0]}" for n in inner.node] == [
        "Neg(a) -> a_1", "Add(a_1, a) -> t",
    ]  # fmt: skip


def test_an_inner_slot_gives_way_too() -> None:
    """Its name goes by position; the value under it must not hide what another node of the branch reads."""
    then = branches(node("Neg", ["a"], ["n"]), node("Add", ["n", "a"], ["t"]))
    subject = load(model(graph([node("Relu", ["x"], ["a"]), node("If", ["c"], ["y"], **then)], CONDITION)))
    branch = list(subject.graph.nodes)[1].subgraphs[1]
    branch.outputs[0].name = "a"
    inner = next(a.g for n in saved(subject).graph.node for a in n.attribute if a.name == "then_branch")
    assert [o.name for o in inner.output] == ["a_1"] and inner.node[1].output == ["a_1"]


def test_an_inner_slot_on_a_value_from_around() -> None:
    """Under its own name it needs nothing; under another one, or twice, an Identity."""
    then = branches(out="a")
    proto = model(graph([node("Relu", ["x"], ["a"]), node("If", ["c"], ["y"], **then)], CONDITION))
    subject = load(proto)
    assert same(to_proto(subject), proto)
    branch = list(subject.graph.nodes)[1].subgraphs[1]
    branch.outputs[0].name = "b"
    inner = next(a.g for n in saved(subject).graph.node for a in n.attribute if a.name == "then_branch")
    assert [f"{n.op_type}({n.input[0]}) -> {n.output[0]}" for n in inner.node] == ["Identity(a) -> b"]


def test_an_inlined_body_does_not_hide_the_caller_s_values() -> None:
    """Function bodies have names of their own: those of their inner graphs' inputs may be the caller's."""
    loop_body = graph(
        [node("Identity", ["k"], ["k_out"]), node("Add", ["state", "a"], ["next"])],
        [info("i", [], onnx.TensorProto.INT64), info("k", [], BOOL), info("state")],
        [info("k_out", [], BOOL), info("next")],
    )
    constants = [node("Constant", [], [n], value_int=v) for n, v in (("count", 3),)]
    constants.append(node("Constant", [], ["go"], value=const("", True, bool)))
    f = function("f", [*constants, node("Loop", ["count", "go", "a"], ["b"], body=loop_body)])
    nodes = [node("Relu", ["x"], ["state"]), node("f", ["state"], ["i"], domain="own"), node("Neg", ["i"], ["y"])]
    subject = load(model(nodes, functions=[f], domains=["own"]))
    want = run(subject, {"x": X})["y"]
    assert want.tolist() == [-4.0, 0.0]
    inline(next(n for n in subject.graph.nodes if n.domain), next(iter(subject.functions.values())))
    subject.functions.clear()
    proto = saved(subject)
    assert np.array_equal(run(load(proto), {"x": X})["y"], want)
    body = next(a.g for n in proto.graph.node if n.op_type == "Loop" for a in n.attribute)
    outer = {name for n in proto.graph.node for name in n.output}
    assert not outer & {i.name for i in body.input}


def test_siblings_keep_equal_names() -> None:
    nodes = [
        node("If", ["c"], ["i"], **branches(node("Neg", ["x"], ["t"]))),
        node("If", ["c"], ["j"], **branches(node("Abs", ["x"], ["t"]))),
        node("Add", ["i", "j"], ["y"]),
    ]
    proto = model(graph(nodes, CONDITION))
    assert same(to_proto(load(proto)), proto)


def test_an_interface_that_cannot_keep_its_names_is_fuse_s_fault() -> None:
    subject = load(model(graph([node("Neg", ["x"], ["n"])], ["x"], ["x", "n"])))
    neg = next(iter(subject.graph.nodes))
    subject.graph.rewire(0, neg.out)
    with pytest.raises(LawError, match="output 'x' must keep its name, which another value of the interface has"):
        to_proto(subject)


def test_a_model_of_foreign_operators_has_no_identity() -> None:
    nodes = [node("op", ["x"], ["a"], domain="own"), node("op", ["x"], ["b"], domain="own")]
    subject = load(model(graph(nodes, ["x"], ["a", "b"]), opset=None, domains=["own"]))
    first, second = subject.graph.nodes
    second.out.replace_by(first.out)
    subject.graph.remove(second)
    with pytest.raises(UnsupportedError, match="output 'b' needs an Identity and the model imports no operator set of"):
        to_proto(subject)


def test_labels_and_the_same_slot_twice() -> None:
    inner = Graph("g")
    x = inner.add_input(Value("x"))
    y = inner.append(Node("Relu", [x], [Value("r")], {"a": Attr("INT", 1)})).out
    for name in ("y", "y", "x"):
        inner.add_output(name, x if name == "x" else y)
    names = Names(inner)
    assert names.slots == ["y", "y", "x"] and names[y] == "y" and names[x] == "x"
    assert names.label("y") == "y_1" and names.label("y") == "y_2" and names.label("new") == "new"
    with pytest.raises(KeyError):
        names[Value("stranger")]
