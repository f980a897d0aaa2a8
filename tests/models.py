"""Small models for tests, built with onnx's own helpers, and the questions that every rewrite must answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from fuse.ir.check import check
from fuse.ir.model import Model
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.passes.pipeline import run_pipeline
from fuse.passes.record import Journal
from fuse.runtime.interpret import run

F32 = TensorProto.FLOAT
I64 = TensorProto.INT64
BOOL = TensorProto.BOOL
node = helper.make_node
info = helper.make_tensor_value_info


def const(name: str, array: Any) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(array), name)


def rand(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    """Standard normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any] | Sequence[str],
    consts: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    ir_version: int = 8,
    dtype: int = F32,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A ModelProto: ``inputs`` maps names to dims, or to (element type, dims); so may ``outputs``."""
    declared = [_declared(n, d, dtype) for n, d in inputs.items()]
    named = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs)
    results = [_declared(n, d, dtype) for n, d in named.items()]
    graph = helper.make_graph(list(nodes), "g", declared, results, [const(n, a) for n, a in (consts or {}).items()])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    result = helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir_version)
    if any(not o.type.tensor_type.HasField("shape") for o in result.graph.output):
        inferred = onnx.shape_inference.infer_shapes(result, data_prop=True).graph.output
        for mine, theirs in zip(result.graph.output, inferred, strict=True):
            mine.CopyFrom(theirs)
    return result


def _declared(name: str, dims: Any, dtype: int) -> onnx.ValueInfoProto:
    if isinstance(dims, tuple) and len(dims) == 2 and isinstance(dims[1], (list, type(None))):
        return info(name, dims[0], dims[1])
    return info(name, dtype, dims)


def ops(graph_model: Model) -> list[str]:
    """The operators of the main graph, in order."""
    return [n.op for n in graph_model.graph.nodes]


def optimized(proto: Any, **options: Any) -> tuple[Model, Journal]:
    """The model after the pipeline, having passed the laws of the IR and onnx's own checker as a file."""
    result, journal = run_pipeline(load(proto), **options)
    check(result)
    written = to_proto(result)
    if options.get("target") != "ort":
        onnx.checker.check_model(written, full_check=True)
    check(load(written))
    return result, journal


def same_answers(
    proto: Any, feeds: Sequence[Mapping[str, Any]], *, exact: bool = False, tolerance: float = 2e-6, **options: Any
) -> tuple[Model, Journal]:
    """Optimise and hold every output against the raw model's: names, dtypes, shapes, NaNs and values.

    ``exact`` wants equal bits; otherwise values agree within ``tolerance`` of the largest finite one.
    """
    raw = load(proto)
    result, journal = optimized(proto, **options)
    reloaded = load(to_proto(result))
    for feed in feeds:
        want = run(raw, feed)
        for candidate in (result, reloaded):
            got = run(candidate, feed)
            assert list(got) == list(want)
            for name, expected in want.items():
                assert_same(got[name], expected, exact, tolerance)
    return result, journal


def assert_same(got: Any, want: Any, exact: bool, tolerance: float = 2e-6) -> None:
    """Assert that two arrays agree: dtype and shape always; bits, or values within the tolerance."""
    assert got.dtype == want.dtype and got.shape == want.shape
    if exact or want.dtype.kind not in "fV":
        if want.dtype == object:
            assert got.tolist() == want.tolist()
        else:
            assert got.tobytes() == want.tobytes()
        return
    wide, base = got.astype(np.float64), want.astype(np.float64)
    assert np.array_equal(np.isnan(wide), np.isnan(base))
    finite = np.isfinite(base)
    assert np.array_equal(wide[~finite & ~np.isnan(base)], base[~finite & ~np.isnan(base)])
    scale = float(np.abs(base[finite]).max(initial=0.0))
    assert float(np.abs(wide[finite] - base[finite]).max(initial=0.0)) <= tolerance * max(scale, 1e-30)
