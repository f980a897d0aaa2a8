"""Second opinions on one operator: onnxruntime without its optimisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper


def onnxruntime_says(
    op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, opset: int = 17, **attrs: Any
) -> Any:
    """What onnxruntime computes (skips the test where it is not installed); a list where there are several outputs."""
    ort = pytest.importorskip("onnxruntime")
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)]
    while not names[-1]:
        names.pop()
    given = {n: v for n, v in zip(names, inputs, strict=False) if v is not None}
    declared = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in given.items()
    ]
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(op, names, results, **attrs)
    graph = helper.make_graph([node], "one", declared, [onnx.ValueInfoProto(name=r) for r in results])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    got = ort.InferenceSession(model.SerializeToString(), options).run(None, given)
    return got if outputs > 1 else got[0]


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Standard normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got: np.ndarray, wanted: np.ndarray, eps: float = 1e-5) -> None:
    """Equal up to ``eps`` of each element and of the largest one; NaN and infinities at the same places."""
    assert got.shape == wanted.shape
    finite = np.abs(wanted[np.isfinite(wanted.astype(np.float64))].astype(np.float64))
    atol = eps * max(1.0, finite.max(initial=0))
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=eps, atol=atol)


def ulps(got: np.ndarray, wanted: np.ndarray, dtype: Any) -> np.ndarray:
    """How far ``got`` is from the float64 numbers ``wanted``, in units of the last place that ``dtype`` has there."""
    unit = np.spacing(np.abs(wanted.astype(dtype))).astype(np.float64)
    assert np.isfinite(got.astype(np.float64)).all()
    return np.abs(got.astype(np.float64) - wanted) / unit
