"""Local functions: kept as they are, and refused where they call themselves or would explode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx
import pytest
from onnx import ModelProto, helper

from fuse.errors import LimitError
from fuse.limits import DEFAULT
from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import CONDITION, checked, const, function, graph, info, model, node, refused, same


def call(name: str, source: str, target: str, **attrs: Any) -> onnx.NodeProto:
    return node(name, [source], [target], domain="own", **attrs)


def test_functions_with_all_that_they_may_have() -> None:
    body = [
        node("Constant", [], ["k"], value=const("", [1.0, 2.0]), name="const"),
        node("Elu", ["a"], ["e"], name="elu"),
        node("Add", ["e", "k"], ["b"]),
    ]
    f = function("f", body, attributes=["alpha"])
    f.node[1].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    f.attribute_proto.append(helper.make_attribute("beta", 2.0))
    f.value_info.extend([info("e", ["n"]), info("a", ["n"]), info("elsewhere")])
    f.doc_string, f.overload = "doc", "other"
    f.metadata_props.add(key="k", value="v")
    proto = model([call("f", "x", "y", alpha=0.5)], functions=[f], domains=["own"])
    proto.graph.node[0].overload = "other"
    result = checked(proto)
    ((key, converted),) = result.functions.items()
    assert key == ("own::f", "other") == converted.key and converted.defaults["beta"].value == 2.0
    written = to_proto(result)
    assert sorted(i.name for i in written.functions[0].value_info) == ["a", "e", "elsewhere"]
    for proto_ in (proto, written):
        del proto_.functions[0].value_info[:]
    assert same(written, proto)


@pytest.mark.parametrize(
    ("functions", "line"),
    [
        ([function("f", [call("f", "a", "b")])], "functions call themselves: 'own::f' -> 'own::f'"),
        ([function("f", [call("g", "a", "b")]), function("g", [call("f", "a", "b")])],
         "functions call themselves: 'own::f' -> 'own::g' -> 'own::f'"),
        ([function("f", [node("If", ["a"], ["b"], then_branch=graph([call("f", "a", "t")], [], ["t"]),
                              else_branch=graph([node("Neg", ["a"], ["e"])], [], ["e"]))])],
         "functions call themselves: 'own::f' -> 'own::f'"),
        ([function("f", [node("Neg", ["a"], ["b"])]), function("unused", [call("unused", "a", "b")])],
         "functions call themselves: 'own::unused' -> 'own::unused'"),
        ([function("f", [node("Neg", ["a"], ["b"])])] * 2, "two functions have the same domain, name and overload"),
        ([function("f", [node("Neg", ["nothing"], ["b"])])],
         "function 'own::f': node 'b' .Neg.: input 'nothing' is defined nowhere"),
        ([function("f", [node("Neg", ["a"], ["z"])])], "function 'own::f': function output 'b' is defined nowhere"),
        ([function("f", [node("Neg", ["a"], ["b"])], ["a", "a"])],
         "function 'own::f': function input 'a' is defined twice"),
        ([function("f", [node("Neg", ["a"], ["b"])], ["a", ""])], "function 'own::f': function input has no name"),
        ([function("f", [node("Neg", ["a"], ["b"])], attributes=["n", "n"])],
         "function 'own::f': two attributes have the same name"),
        ([helper.make_function("", "f", ["a"], ["b"], [node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 18)])],
         "function 'f': a local function needs a name and a domain of its own"),
    ],
)  # fmt: skip
def test_functions_that_make_no_sense(functions: list[Any], line: str) -> None:
    refused(model([call("f", "x", "y")], functions=functions, domains=["own"]), f"model: {line}")


def test_calls_that_do_not_fit() -> None:
    f = function("f", [node("Neg", ["a"], ["b"])])
    two = node("f", ["x", "x"], ["y"], domain="own")
    refused(
        model([two], functions=[f], domains=["own"]), r"model: node 'y' \(f\): the function takes 1 inputs, 2 given"
    )
    two = node("f", ["x"], ["y", "z"], domain="own")
    refused(
        model([two], functions=[f], domains=["own"]), r"model: node 'y' \(f\): the function takes 1 outputs, 2 given"
    )
    other = call("f", "x", "y")
    other.overload = "x"
    line = r"model: node 'y' \(f\): calls overload 'x' of a function that has no such overload"
    refused(model([other], functions=[f], domains=["own"]), line)
    reference = function("f", [node("Elu", ["a"], ["b"])])
    reference.node[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="none")
    line = ".*attribute 'alpha' stands for 'none', the function has none of that name"
    refused(model([call("f", "x", "y")], functions=[reference], domains=["own"]), line)
    checked(model([node("f", [], ["y"], domain="own")], functions=[f], domains=["own"]))


def test_a_function_goes_before_the_operator_of_its_name() -> None:
    f = helper.make_function("ai.onnx.ml", "Scaler", ["a", "z"], ["b"], [node("Add", ["a", "z"], ["b"])],
                             [helper.make_opsetid("", 18)])  # fmt: skip
    proto = model([node("Scaler", ["x", "x"], ["y"], domain="ai.onnx.ml")], functions=[f], domains=["ai.onnx.ml"])
    assert same(to_proto(checked(proto)), proto)


def doubling(count: int) -> ModelProto:
    functions = [function("f0", [node("Neg", ["a"], ["b"])])]
    for i in range(1, count):
        functions.append(function(f"f{i}", [call(f"f{i - 1}", "a", "m"), call(f"f{i - 1}", "m", "b")]))
    return model([call(f"f{count - 1}", "x", "y")], functions=functions, domains=["own"])


def test_functions_that_explode() -> None:
    """24 functions, each calling the one before twice: 2**24 nodes.  The count is made, the nodes are not."""
    checked(doubling(12))
    refused(doubling(25), "model: local functions expand to more than 1,000,000 nodes", LimitError)
    refused(doubling(3000), "model: local functions expand to more than 1,000,000 nodes", LimitError)
    unused = doubling(25)
    unused.graph.node[0].op_type = "f0"
    refused(unused, "model: local functions expand to .*", LimitError)
    body = [node("Neg", ["a"], [f"b{i}"]) for i in range(50)] + [node("Neg", ["a"], ["b"])]
    calls = [call("f", "x", f"y{i}") for i in range(50)]
    wide = model(calls, functions=[function("f", body)], domains=["own"])
    wide.graph.output[0].name = "y0"
    checked(wide, limits=replace(DEFAULT, inlined_nodes=2600))
    refused(
        wide,
        "model: local functions expand to more than 2,599 nodes",
        LimitError,
        limits=replace(DEFAULT, inlined_nodes=2599),
    )


def test_functions_that_nest_too_deep_when_expanded() -> None:
    def around(name: str, inner: onnx.NodeProto) -> Any:
        other = graph([node("Neg", ["a"], ["e"])], [], ["e"])
        return function(
            name, [node("If", ["c"], ["b"], then_branch=graph([inner], [], ["t"]), else_branch=other)], ["a", "c"]
        )

    functions = [around("f0", node("Neg", ["a"], ["t"]))]
    functions += [around(f"f{i}", node(f"f{i - 1}", ["a", "c"], ["t"], domain="own")) for i in range(1, 33)]

    def deep(count: int) -> ModelProto:
        body = graph([node(f"f{count - 1}", ["x", "c"], ["y"], domain="own")], CONDITION)
        return model(body, functions=functions[:count], domains=["own"])

    checked(deep(32))
    refused(deep(33), "model: local functions expand to subgraphs more than 32 deep in each other", LimitError)


def test_long_chains_of_functions_do_not_recurse() -> None:
    functions = [function("f0", [node("Neg", ["a"], ["b"])])]
    functions += [function(f"f{i}", [call(f"f{i - 1}", "a", "b")]) for i in range(1, 3000)]
    result = load(model([call("f2999", "x", "y")], functions=functions[::-1], domains=["own"]))
    assert len(result.functions) == 3000
