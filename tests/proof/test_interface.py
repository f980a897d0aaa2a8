"""Interfaces: every way in which two models may take or give something else."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fuse.errors import InputError
from fuse.model.load import load
from fuse.proof.interface import compare_interfaces
from tests.models import F32, I64, model, node

BASE = {"x": ["n", 4], "z": ["n", 4]}


def build(inputs=None, outputs=None, order=("x", "z"), **options):
    inputs = BASE | (inputs or {})
    nodes = [node("Cast", ["x"], ["a"], to=F32), node("Cast", ["z"], ["b"], to=F32)]
    outputs = outputs if outputs is not None else {"a": ["n", 4], "b": ["n", 4]}
    return load(model(nodes, {n: inputs[n] for n in order}, outputs, **options))


def test_the_same_interface():
    assert compare_interfaces(build(), build()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"order": ("z", "x")}, "the inputs are 'z', 'x', they were 'x', 'z'"),
        ({"inputs": {"x": (F32 + 9, ["n", 4])}}, "input 'x' is float16[n, 4], it was float[n, 4]"),
        ({"inputs": {"x": ["n", 5]}}, "input 'x' is float[n, 5], it was float[n, 4]"),
        ({"inputs": {"x": ["m", 4]}}, "input 'x' is float[m, 4], it was float[n, 4]"),
        ({"inputs": {"x": [None, 4]}}, "input 'x' is float[?, 4], it was float[n, 4]"),
        ({"inputs": {"x": ["n", 4, 1]}}, "input 'x' is float[n, 4, 1], it was float[n, 4]"),
        ({"consts": {"x": np.zeros((2, 4), np.float32)}}, "input 'x' gained its default"),
        ({"outputs": {"b": ["n", 4], "a": ["n", 4]}}, "the outputs are 'b', 'a', they were 'a', 'b'"),
        ({"outputs": {"a": ["n", 4]}}, "the outputs are 'a', they were 'a', 'b'"),
        ({"outputs": {"a": ["n", 4], "b": (I64, ["n", 4])}}, "output 'b' is int64[n, 4], it was float[n, 4]"),
        ({"outputs": {"a": ["n", 4], "b": [1, 4]}}, "output 'b' is float[1, 4], it was float[n, 4]"),
    ],
)
def test_what_differs_is_said(change, sentence):
    assert compare_interfaces(build(), build(**change)) == [sentence]


def test_a_lost_default():
    with_default = build(consts={"x": np.zeros((2, 4), np.float32)})
    assert compare_interfaces(with_default, build()) == ["input 'x' lost its default"]


def test_what_was_left_open_may_be_declared():
    raw, other = build(), build()
    raw.graph.outputs[0].type = None
    assert compare_interfaces(raw, other) == []
    assert compare_interfaces(other, raw) == ["output 'a' is None, it was float[n, 4]"]
    assert compare_interfaces(build(outputs={"a": [None, 4], "b": ["n", 4]}), build()) == []


def test_other_inputs_are_another_model():
    other = load(model([node("Relu", ["q"], ["a"])], {"q": ["n", 4]}, ["a"]))
    other.source = "other.onnx"
    with pytest.raises(InputError, match=r"'x' only in model, 'z' only in model, 'q' only in other\.onnx") as caught:
        compare_interfaces(build(), other)
    assert caught.value.hint is not None


def sequence(dims, optional=False):
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, dims))
    kind = helper.make_optional_type_proto(kind) if optional else kind
    values = [helper.make_value_info(n, kind) for n in ("x", "y")]
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_sequences_and_optionals():
    assert compare_interfaces(sequence(["n", 2]), sequence(["n", 2])) == []
    assert len(compare_interfaces(sequence(["n", 2]), sequence(["n", 3]))) == 2
    assert len(compare_interfaces(sequence(["n", 2]), sequence(["n", 2], optional=True))) == 2
