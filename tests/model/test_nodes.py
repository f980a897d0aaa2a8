"""Nodes are held against the operator's schema, attributes against the kind they say they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from fuse.errors import FuseError, ModelError, UnsupportedError
from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import checked, const, graph, info, model, node, refused, same


@pytest.mark.parametrize(
    ("bad", "line", "kind"),
    [
        (node("Rellu", ["x"], ["y"]), "there is no operator 'Rellu' in domain 'ai.onnx'", UnsupportedError),
        (node("Scaler2", ["x"], ["y"], domain="ai.onnx.ml"), "there is no operator 'Scaler2' in domain 'ai.onnx.ml'",
         UnsupportedError),
        (node("Upsample", ["x", "x"], ["y"]), "operator 'Upsample' is not part of operator set 18", UnsupportedError),
        (node("Gelu", ["x"], ["y"]), "operator 'Gelu' is not part of operator set 18", UnsupportedError),
        (node("Relu", ["x"], ["y"], alpha=1.0), "has no attribute 'alpha' in operator set 18", ModelError),
        (node("LeakyRelu", ["x"], ["y"], alpha=1), "attribute 'alpha' is of type INT, FLOAT is needed", ModelError),
        (node("Concat", ["x"], ["y"]), "attribute 'axis' is required and missing", ModelError),
        (node("Relu", [], ["y"]), "takes 1 inputs, 0 given", ModelError),
        (node("Relu", ["x", "x"], ["y"]), "takes 1 inputs, 2 given", ModelError),
        (node("Clip", ["x"] * 4, ["y"]), "takes 1 to 3 inputs, 4 given", ModelError),
        (node("Sum", [], ["y"]), "takes at least 1 inputs, 0 given", ModelError),
        (node("Relu", [""], ["y"]), "input 0 is required and missing", ModelError),
        (node("Conv", ["x", ""], ["y"]), "input 1 is required and missing", ModelError),
        (node("Relu", ["x"], ["y", "z"]), "takes 1 outputs, 2 given", ModelError),
        (node("Relu", ["x"], []), "takes 1 outputs, 0 given", ModelError),
        (node("Dropout", ["x"], ["", "y"]), "output 0 is required and missing", ModelError),
    ],
)  # fmt: skip
def test_nodes_that_break_their_schema(bad: onnx.NodeProto, line: str, kind: type[FuseError]) -> None:
    proto = model([bad], domains=["ai.onnx.ml"])
    refused(proto, rf"model: node '\w*' \({bad.op_type}\): {line}", kind)


def test_the_hint_says_when_an_operator_came_or_went() -> None:
    for bad, hint in ((node("Upsample", ["x", "x"], ["y"]), "it was removed with operator set 10"),
                      (node("Gelu", ["x"], ["y"]), "it came with operator set 20")):  # fmt: skip
        with pytest.raises(UnsupportedError) as caught:
            load(model([bad]))
        assert caught.value.hint == hint


def test_foreign_operators_are_carried() -> None:
    """Whatever they have: any attribute, any number of inputs, even a version in the name."""
    nodes = [
        node("Op-2", ["x", "", "x"], ["t", ""], domain="own", a=1, b=[1.0], c="s", d=const("d")),
        node("Neg", ["t"], ["y"]),
    ]
    proto = model(nodes, domains=["own"])
    assert same(to_proto(checked(proto)), proto)
    unlisted = model(nodes)
    assert same(to_proto(checked(unlisted)), unlisted)


def attributes(**changes: Callable[[Any], None]) -> ModelProto:
    proto = model([node("Elu", ["x"], ["y"], alpha=2.0, name="n")])
    for change in changes.values():
        change(proto.graph.node[0].attribute)
    return proto


def test_attributes_that_contradict_themselves() -> None:
    place = r"model: node 'n' \(Elu\): "
    twice = attributes(a=lambda a: a.add(name="alpha", type=onnx.AttributeProto.FLOAT, f=1.0))
    refused(twice, place + "an attribute is given twice")
    refused(attributes(a=lambda a: setattr(a[0], "i", 1)), place + "attribute 'alpha' has more than one value")
    refused(
        attributes(a=lambda a: a[0].ClearField("f"), b=lambda a: setattr(a[0], "i", 1)), place + ".*more than one value"
    )
    refused(attributes(a=lambda a: setattr(a[0], "ref_attr_name", "beta")), place + ".*more than one value")
    reference = attributes(a=lambda a: a[0].ClearField("f"), b=lambda a: setattr(a[0], "ref_attr_name", "beta"))
    refused(reference, place + "attribute 'alpha' stands for 'beta', the main graph has none")
    refused(
        attributes(a=lambda a: (a[0].ClearField("f"), a[0].ClearField("type"))),
        place + "attribute 'alpha' has no known type",
    )
    without = attributes(a=lambda a: a[0].ClearField("type"))  # as in IR version 1
    assert next(iter(checked(without).graph.nodes)).attrs["alpha"].value == 2.0
    absent = attributes(a=lambda a: a[0].ClearField("f"))  # a writer of proto3 leaves a zero out
    assert next(iter(checked(absent).graph.nodes)).attrs["alpha"].value == 0.0


def test_constant_nodes() -> None:
    forms = {
        "value": const("inner", [1.0, 2.0]), "value_float": 1.5, "value_floats": [1.5, 2.5], "value_int": 3,
        "value_ints": [3, 4], "value_string": "s", "value_strings": ["s", "t"],
    }  # fmt: skip
    for name, value in forms.items():
        proto = model([node("Constant", [], ["k"], name="n", **{name: value}), node("Identity", ["k"], ["y"])])
        result = checked(proto)
        (constant,) = result.graph.constants
        assert constant.name == "k"
        assert constant.array.tolist() == ([1.0, 2.0] if name == "value" else value)
        assert same(to_proto(result), proto), name
    values = numpy_helper.from_array(np.array([7.0], np.float32), "values")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [3])
    proto = model([node("Constant", [], ["k"], sparse_value=sparse), node("Identity", ["k"], ["y"])])
    result = checked(proto)
    assert next(iter(result.graph.constants)).array.tolist() == [0.0, 7.0, 0.0]
    assert same(to_proto(result), proto)
    place = r"model: node 'k' \(Constant\): "
    refused(model([node("Constant", [], ["k"])]), place + "needs exactly one value, 0 given")
    refused(
        model([node("Constant", [], ["k"], value_int=1, value_float=1.0)]), place + "needs exactly one value, 2 given"
    )
    refused(model([node("Constant", [], [""], value_int=1)]), ".*output 0 is required and missing")
    refused(model([node("Constant", [], ["k"], value_int=1)], opset=11), place + "has no attribute 'value_int' in .*")
    wrong = model([node("Constant", [], ["k"], value=const("t"))])
    wrong.graph.node[0].attribute[0].type = onnx.AttributeProto.INT
    refused(wrong, place + "attribute 'value' is of type INT, TENSOR is needed")


def test_optional_inputs_and_outputs() -> None:
    """Absent is absent, wherever it stands, and never a value called ''."""
    nodes = [
        node("Clip", ["x", "", ""], ["a"]),
        node("Clip", ["a", "", "m"], ["b"]),
        node("LSTM", ["q", "w", "r", "", "", "", ""], ["", "h", ""], hidden_size=1, name="lstm"),
    ]
    weights = [const("m", 1.0), const("w", np.zeros((1, 4, 1))), const("r", np.zeros((1, 4, 1)))]
    proto = model(graph(nodes, ["x", info("q", [1, 1, 1])], ["b", "h"], weights))
    result = checked(proto)
    first, second, lstm = result.graph.nodes
    assert first.inputs[1:] == (None, None) and second.inputs[1] is None and second.input(2) is not None
    assert lstm.outputs[0] is None and lstm.outputs[2] is None and lstm.inputs[3:] == (None,) * 4
    assert same(to_proto(result), proto)
