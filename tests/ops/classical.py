"""Operators of ai.onnx.ml as models of one node: on fuse from file to answer, and on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fuse.model.load import load
from fuse.ops.infer import infer_model
from fuse.runtime.interpret import run
from tests.ops.cases import holds

ML = "ai.onnx.ml"
_CODES = {"float": 1, "double": 11, "int64": 7, "int32": 6, "string": 8, "float16": 10, "int16": 5}
_PLAIN = {int: 7, float: 1, str: 8}


def one_node(
    op: str, inputs: Sequence[Any], outputs: Sequence[Any], version: int = 4, domain: str = ML, **attrs: Any
) -> onnx.ModelProto:
    """A model of one node; arrays among the attributes become tensors, dicts among the inputs maps."""
    given = {n: numpy_helper.from_array(v, n) if isinstance(v, np.ndarray) else v for n, v in attrs.items()}
    names = [f"i{k}" for k in range(len(inputs))]
    results = [f"o{k}" for k in range(len(outputs))]
    node = helper.make_node(op, names, results, domain=domain, **{n: v for n, v in given.items() if v is not None})
    declared = [_declared(name, value) for name, value in zip(names, inputs, strict=True)]
    made = [
        helper.make_tensor_value_info(n, _CODES[o], None) if isinstance(o, str) else helper.make_value_info(n, o)
        for n, o in zip(results, outputs, strict=True)
    ]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(domain, version)]
    return helper.make_model(helper.make_graph([node], "one", declared, made), opset_imports=imports, ir_version=10)


def _declared(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, Mapping):
        key, element = next(iter(value.items()))
        plain = helper.make_tensor_type_proto(_PLAIN[type(element)], None)
        return helper.make_value_info(name, helper.make_map_type_proto(_PLAIN[type(key)], plain))
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def fuse_says(op: str, inputs: Sequence[Any], outputs: Sequence[Any], version: int = 4, **attrs: Any) -> list[Any]:
    """The node's results by way of loader, inference (which must be true of them) and interpreter."""
    model = load(one_node(op, inputs, outputs, version, **attrs))
    facts = infer_model(model)
    got = run(model, {f"i{k}": value for k, value in enumerate(inputs)})
    for slot in model.graph.outputs:
        holds(facts[slot.value], got[slot.name])
    return list(got.values())


def onnxruntime_says(
    op: str, inputs: Sequence[Any], outputs: Sequence[Any], version: int = 4, **attrs: Any
) -> list[Any]:
    """What onnxruntime answers; skips the test where it is not installed."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = ort.InferenceSession(one_node(op, inputs, outputs, version, **attrs).SerializeToString(), options)
    return session.run(None, {f"i{k}": value for k, value in enumerate(inputs)})


def agree(
    op: str, inputs: Sequence[Any], outputs: Sequence[Any], version: int = 4, eps: float = 2e-6, **attrs: Any
) -> list[Any]:
    """What fuse answers, after a look whether onnxruntime says the same, floats up to ``eps`` of the largest."""
    got = fuse_says(op, inputs, outputs, version, **attrs)
    for mine, theirs in zip(got, onnxruntime_says(op, inputs, outputs, version, **attrs), strict=True):
        if not isinstance(mine, np.ndarray):
            assert mine == theirs
            continue
        theirs = np.asarray(theirs)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        if mine.dtype.kind != "f":
            assert mine.tolist() == theirs.tolist()
            continue
        top = np.abs(theirs[np.isfinite(theirs)]).max(initial=0)
        np.testing.assert_allclose(mine, theirs, rtol=eps, atol=eps * float(top))
    return got


def floats(values: Any) -> list[float]:
    """Numbers as an attribute of float32 holds them."""
    return [float(v) for v in np.asarray(values, np.float32).reshape(-1)]


def strings(*values: str) -> np.ndarray:
    """A 1-D tensor of strings."""
    return np.array(values, dtype=object)
