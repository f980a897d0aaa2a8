"""Names: any text will do, each is defined once, and none hides another."""

from __future__ import annotations

import onnx
import pytest
from onnx import GraphProto, ModelProto

from fuse.errors import LimitError, ModelError
from fuse.limits import DEFAULT
from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import (
    BOOL,
    CONDITION,
    bare,
    branches,
    checked,
    const,
    graph,
    info,
    model,
    node,
    raw,
    refused,
    same,
)


@pytest.mark.parametrize("what", ["input", "node", "operator", "domain", "attribute", "graph", "symbol", "value"])
def test_names_that_are_no_text(what: str) -> None:
    names = {name: name[:1] * 3 for name in ("node", "operator", "domain", "attribute", "graph", "symbol", "value")}
    nodes = [
        node(names["operator"], ["x"], [names["value"]], name=names["node"], domain=names["domain"], aaa=1),
        node("Relu", [names["value"]], ["y"]),
    ]
    body = graph(nodes, ["x", info("iii", [names["symbol"]])], ["y"], name=names["graph"])
    proto = model(body, domains=[names["domain"]])
    load(proto)
    refused(raw(proto, {**names, "input": "iii"}[what], b"\xff\xfe\xfd"), "model: .*is not UTF-8 text")


def test_long_names() -> None:
    long = "n" * (DEFAULT.name_bytes + 1)
    line = r"model: .* 'n+\.\.\.' has more than 65,536 bytes"
    refused(model(graph([node("Relu", [long], ["y"])], [long])), line, LimitError)
    refused(model(graph([node("Relu", ["x"], [long])], ["x"], [long])), line, LimitError)
    refused(model([node("Relu", ["x"], ["y"], name=long)]), line, LimitError)
    refused(model(graph([node("Add", ["x", long], ["y"])], initializers=[const(long)])), line, LimitError)
    refused(model(graph([node("Relu", ["é" * 40_000], ["y"])], ["é" * 40_000])), ".*65,536 bytes", LimitError)
    assert checked(model(graph([node("Relu", [long[:-1]], ["y"])], [long[:-1]])))


@pytest.mark.parametrize(
    "name",
    [
        "a\0b", "a\nb", "\u202egnp.exe", "\x1b[31mred", "'); __import__('os').system('id') #", "__class__", "lambda",
        "../../x", "{0.__class__}", "%s", "$(id)", "<script>", " ", "v", "v_1", "é" * 100, "\ud7ff",
    ],
)  # fmt: skip
def test_any_name_is_fine_and_is_kept(name: str) -> None:
    body = graph(
        [node("Relu", [name], ["t"], name=name), node("Neg", ["t"], [f"{name}!"])], [name], [f"{name}!"], name=name
    )
    proto = model(body)
    assert same(to_proto(checked(proto)), proto)
    broken = model(graph([node("Relu", [name], ["y"]), node("Relu", ["nothing"], [name + "2"], name=name)], [name]))
    with pytest.raises(ModelError) as caught:
        load(broken)
    assert all(c.isprintable() for c in str(caught.value))


def test_siblings_may_use_the_same_names_and_a_later_value_one_of_an_inner_graph() -> None:
    """Neither hides anything: an inner name is visible inside only, a later value is not visible yet."""
    same = graph([node("Neg", ["x"], ["t"]), node("Abs", ["t"], ["u"])], [], ["u"])
    nodes = [
        node("If", ["c"], ["i"], then_branch=same, else_branch=same),
        node("If", ["c"], ["j"], then_branch=same, else_branch=same),
        node("Add", ["i", "j"], ["t"]),
        node("Neg", ["t"], ["y"]),
    ]
    result = checked(model(graph(nodes, CONDITION)))
    onnx.checker.check_model(to_proto(result))
    assert len([n for n in result.graph.walk() if n.op == "Neg"]) == 5


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (graph([node("Relu", ["nothing"], ["y"])]), "node 'y' .Relu.: input 'nothing' is defined nowhere"),
        (graph([node("Relu", ["x"], ["z"])]), "graph output 'y' is defined nowhere"),
        (graph([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]), "node 'y' .Neg.: value 'y' is defined twice"),
        (graph([node("Split", ["x"], ["y", "y"], num_outputs=2)]), ".*: value 'y' is defined twice"),
        (graph([node("Relu", ["y"], ["y"])], ["y"]), "node 'y' .Relu.: value 'y' is defined twice"),
        (graph([node("Add", ["x", "x2"], ["x2"])], ["x"], ["x2"]), "nodes form a cycle: 'x2' -> 'x2'"),
        (graph([node("Relu", ["x"], ["w"])], ["x"], ["w"], [const("w")]), ".*: value 'w' is defined twice"),
        (graph([node("Constant", [], ["x"], value_int=1), node("Neg", ["x"], ["y"])]),
         ".*: value 'x' is defined twice"),
        (graph([node("Add", ["x", "w"], ["y"])], initializers=[const("w")] * 2), "initializer 'w' is defined twice"),
        (graph([node("Relu", ["x"], ["y"])], ["x", "x"]), "graph input 'x' is defined twice"),
        (graph([node("Neg", ["w"], ["y"])], ["w"], ["y"], [const("w")] * 2), "initializer 'w' is defined twice"),
        (graph([node("Relu", ["x"], ["y"])], ["x", ""]), "graph input has no name"),
        (graph([node("Relu", ["x"], ["y"])], ["x"], ["y", ""]), "a graph output has no name"),
        (graph([node("Relu", ["x"], ["y"])], initializers=[const("")]), "initializer has no name"),
        (graph([node("Relu", ["x"], ["y"])], ["x"], []), "the graph has no outputs"),
        (graph([], [], []), "the graph is empty"),
        (graph([node("If", ["c"], ["y"], **branches(node("Neg", ["x"], ["x"]), out="x"))], CONDITION),
         "node 'y' .If.: node 'x' .Neg.: value 'x' is defined twice"),
        (graph([node("If", ["c"], ["y"], **branches(node("Neg", ["x"], ["t"]), out="u"))], CONDITION),
         "node 'y' .If.: graph output 'u' is defined nowhere"),
        (graph([node("If", ["c"], ["y"], **branches(node("Neg", ["x"], ["t"]), inputs=["x"]))], CONDITION),
         "node 'y' .If.: graph input 'x' is defined twice"),
        (graph([node("If", ["c"], ["y"], **branches(node("Neg", ["y"], ["t"])))], CONDITION),
         "nodes form a cycle: 'y' -> 'y'"),
    ],
)  # fmt: skip
def test_names_that_are_missing_or_taken(body: GraphProto, line: str) -> None:
    refused(model(body), f"model: {line}")


def test_an_inner_graph_cannot_be_seen_from_outside() -> None:
    nodes = [node("If", ["c"], ["i"], **branches(node("Neg", ["x"], ["t"]))), node("Relu", ["t"], ["y"])]
    refused(model(graph(nodes, CONDITION)), "model: node 'y' .Relu.: input 't' is defined nowhere")


def nested(depth: int) -> ModelProto:
    """``depth`` Ifs in each other, made in place: protobuf copies no message that it could not read."""
    proto = bare(0, ("x",), ("y",))
    proto.graph.input.append(info("c", [], BOOL))
    body = proto.graph
    for level in range(depth):
        made = body.node.add(op_type="If", input=["c"], output=[body.output[0].name])
        for name in ("else_branch", "then_branch"):
            inner = made.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g
            inner.output.add(name=f"{name}_{level}")
            if name == "else_branch":
                inner.node.add(op_type="Neg", input=["x"], output=[inner.output[0].name])
        body = inner
    body.node.add(op_type="Identity", input=["x"], output=[body.output[0].name])
    return proto


def test_depth_of_subgraphs() -> None:
    """Protobuf reads 33 graphs in each other; a proto made in memory may be deeper and is refused all the same."""
    assert checked(nested(32).SerializeToString()).node_count() == 32 * 2 + 1
    refused(nested(33).SerializeToString(), "model: is cut short, nested too deep, or not an ONNX model")
    refused(nested(33), "model: (node '.*' .If.: )+subgraphs stand more than 32 deep in each other", LimitError)
    refused(nested(300), "model: .*more than 32 deep.*", LimitError)
