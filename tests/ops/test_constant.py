"""Constant inside a function, whose attributes give it its value."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fuse.errors import ShapeError, UnsupportedError
from fuse.model.load import load
from fuse.ops.infer import infer_model
from fuse.runtime.interpret import run
from tests.ops.cases import check_case, infer, kernel, node_cases


@pytest.mark.parametrize("case", node_cases("Constant"))
def test_onnx_cases(case):
    check_case(case)


VALUES = [
    ("value_float", 1.5, np.float32, 1.5),
    ("value_floats", (1.5, -2.0), np.float32, [1.5, -2]),
    ("value_int", 7, np.int64, 7),
    ("value_ints", (7, -1), np.int64, [7, -1]),
    ("value_ints", (), np.int64, []),
    ("value_string", "ab", object, "ab"),
    ("value_strings", ("a", ""), object, ["a", ""]),
]


@pytest.mark.parametrize(("name", "value", "dtype", "wanted"), VALUES)
def test_each_kind(name, value, dtype, wanted):
    got = kernel("Constant", **{name: value})
    assert (got.dtype, got.tolist()) == (np.dtype(dtype), wanted)
    found = infer("Constant", [], **{name: value})[0]
    assert (found.dtype, found.shape) == (np.dtype(dtype), got.shape)
    assert (found.value is not None) == (dtype == np.int64)


def test_a_tensor():
    x = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert kernel("Constant", value=x).tolist() == x.tolist()
    assert infer("Constant", [], value=x)[0].value.tolist() == x.tolist()
    assert infer("Constant", [], value=np.zeros(1000, np.int64))[0].value is None


def test_not_exactly_one_value():
    for given in ({}, {"value_int": 1, "value_float": 1.0}):
        with pytest.raises(ShapeError, match=f"needs exactly one value, {len(given)} given"):
            kernel("Constant", **given)
    with pytest.raises(UnsupportedError, match="sparse"):
        kernel("Constant", sparse_value=b"")


@pytest.mark.parametrize(("kind", "value"), [("value_float", 2.5), ("value_ints", [1, 2, 3])])
def test_a_function_gives_its_attribute(kind, value):
    body = helper.make_node("Constant", [], ["c"])
    body.attribute.append(
        onnx.AttributeProto(
            name=kind,
            ref_attr_name="k",
            type=onnx.AttributeProto.FLOAT if kind == "value_float" else onnx.AttributeProto.INTS,
        )
    )
    identity = helper.make_node("Identity", ["c"], ["out"])
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "Give", [], ["out"], [body, identity], opset[:1], attributes=["k"])
    elem = TensorProto.FLOAT if kind == "value_float" else TensorProto.INT64
    graph = helper.make_graph(
        [helper.make_node("Give", [], ["y"], domain="mine", k=value)],
        "g",
        [],
        [helper.make_tensor_value_info("y", elem, None)],
    )
    model = load(helper.make_model(graph, functions=[function], opset_imports=opset, ir_version=10))
    infer_model(model)
    assert run(model, {})["y"].tolist() == value
