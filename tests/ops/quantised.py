"""What the tests of quantised operators share: data of every integer type, and onnxruntime on ``com.microsoft``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from fuse.ir.dtypes import CODE, PACKED_BITS
from fuse.ir.types import TensorType
from fuse.model.load import load
from fuse.model.tensors import write_tensor
from fuse.ops import OPERATORS
from fuse.ops.infer import infer_model
from fuse.runtime.interpret import Interpreter
from tests.ops.cases import holds

DOMAIN = "com.microsoft"


def kernel(op: str, *inputs: Any, **attrs: Any) -> Any:
    """fuse's answer, of ``com.microsoft`` where ONNX has no such operator or ``op`` names the domain."""
    record = OPERATORS.get(op) or OPERATORS[f"{DOMAIN}::{op}"]
    with np.errstate(all="ignore"):
        return record.kernel(*inputs, **attrs)


def model_of(
    op: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int = 1,
    opset: int = 21,
    constants: Sequence[int] = (),
    cast: int = 0,
    more: dict[str, Any] | None = None,
    **attrs: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, and the feeds for it.

    Inputs named in ``constants``, and those of types that onnxruntime's Python interface does not take, are
    initializers.  ``cast`` is a dtype code that the first output is cast to, for the same reason.  ``more`` are further
    attributes.
    """
    domain, _, name = op.rpartition("::")
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)]
    while not names[-1]:
        names.pop()
    given = {n: np.asarray(v) for n, v in zip(names, inputs, strict=False) if v is not None}
    fixed = {n for n, v in given.items() if int(n[1:]) in constants or v.dtype in PACKED_BITS or v.dtype.kind == "V"}
    results = [f"o{k}" for k in range(outputs)]
    nodes = [helper.make_node(name, names, results, domain=domain, **attrs, **(more or {}))]
    if cast:
        nodes.append(helper.make_node("Cast", ["o0"], ["plain"], to=cast))
        results[0] = "plain"
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info(n, CODE[v.dtype], v.shape) for n, v in given.items() if n not in fixed],
        [onnx.ValueInfoProto(name=r) for r in results],
        [write_tensor(v, n) for n, v in given.items() if n in fixed],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10 if opset < 23 else 11)
    return model, {n: v for n, v in given.items() if n not in fixed}


def onnxruntime_says(op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, **options: Any) -> Any:
    """What onnxruntime computes on one thread without optimisations; skips the test where it is not installed.

    Takes what ``model_of`` takes; gives a list where there are several outputs.
    """
    ort = pytest.importorskip("onnxruntime")
    model, feeds = model_of(op, inputs, outputs, **options)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads, settings.log_severity_level = 1, 4
    got = ort.InferenceSession(model.SerializeToString(), settings).run(None, feeds)
    return got if outputs > 1 else got[0]


def interpreted(op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, **options: Any) -> Any:
    """The same through fuse's loader, inference and interpreter, whose claims are held against the values."""
    proto, feeds = model_of(op, inputs, outputs, **options)
    model = load(proto)
    facts = infer_model(model)
    got = Interpreter(model).run(feeds)
    for slot in model.graph.outputs:
        holds(facts[slot.value], got[slot.name])
        kind = facts[slot.value].type
        assert isinstance(kind, TensorType)
        assert kind.dtype == got[slot.name].dtype
        assert kind.shape == got[slot.name].shape
    results = [got[slot.name] for slot in model.graph.outputs]
    return results if outputs > 1 else results[0]


def integers(seed: int, dtype: Any, *shape: int, small: bool = False) -> np.ndarray:
    """Whole numbers over the whole range of ``dtype``, or over its middle half: ``small`` ones cannot saturate."""
    info = ml_dtypes.iinfo(dtype)
    low, high = (info.min // 2, info.max // 2) if small else (info.min, info.max)
    return np.asarray(np.random.default_rng(seed).integers(low, high + 1, shape)).astype(np.int32).astype(dtype)


def one(value: float, dtype: Any = np.float32) -> np.ndarray:
    """A scale or zero point."""
    return np.array(value, dtype)


def scales(seed: int, *shape: int) -> np.ndarray:
    """Positive float32 numbers about 0.02."""
    return np.asarray(np.random.default_rng(seed).uniform(0.004, 0.05, shape)).astype(np.float32)


def equal(got: np.ndarray, wanted: np.ndarray) -> None:
    """The same dtype, shape and bits of value."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    np.testing.assert_array_equal(got, wanted)


def nearest(exact: np.ndarray, dtype: Any, zero: int = 0) -> np.ndarray:
    """Numbers in float64 rounded half to even, plus ``zero``, saturated."""
    info = ml_dtypes.iinfo(dtype)
    return np.clip(np.rint(exact) + zero, info.min, info.max).astype(np.int32).astype(dtype)


def on_the_edge(got: np.ndarray, wanted: np.ndarray, exact: np.ndarray, width: float = 1e-4) -> None:
    """Equal, but for one step where ``exact`` lies half-way between two, up to ``width``."""
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    apart = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
    assert apart.max(initial=0) <= 1
    fraction = np.abs(exact - np.floor(exact) - 0.5)
    assert (fraction[apart > 0] < width).all()
