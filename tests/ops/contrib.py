"""One check for onnxruntime's own operators: values, dtypes, inputs that stay as they are, and what is inferred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from fuse.errors import FuseError
from fuse.ir.dtypes import STRING
from fuse.ir.types import TensorType
from fuse.ops import OPERATORS, Info
from tests.ops.cases import fact, holds, infer, shape_of, typed
from tests.ops.oracle import close

DOMAIN = "com.microsoft"


def says(op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, **attrs: Any) -> list[np.ndarray]:
    """What onnxruntime computes with its optimisations off; skips the test where it is not installed.

    An operator with a version in its name is taken from the default domain of the first operator sets.
    """
    ort = pytest.importorskip("onnxruntime")
    op, old, _ = op.partition("-")
    domain, opset = ("", 9) if old else (DOMAIN, 17)
    names = [f"i{k}" if v is not None else "" for k, v in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    given = {n: v for n, v in zip(names, inputs, strict=False) if n and v is not None}
    declared = [helper.make_tensor_value_info(n, code(v), v.shape) for n, v in given.items()]
    results = [f"o{k}" for k in range(outputs)]
    made = [onnx.ValueInfoProto(name=r) for r in results]
    if outputs > 3:  # the scores of an attention, whose type onnxruntime does not infer
        made[3:] = [helper.make_tensor_value_info(r, code(given["i0"]), None) for r in results[3:]]
    node = helper.make_node(op, names, results, domain=domain, **attrs)
    graph = helper.make_graph([node], "one", declared, made)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(model.SerializeToString(), options).run(None, given)


def name_of(op: str) -> str:
    """The operator's name in the IR: of the domain, or with a version of the default one."""
    return op if "-" in op else f"{DOMAIN}::{op}"


def code(array: np.ndarray) -> int:
    """The number of its element type."""
    return onnx.TensorProto.STRING if array.dtype == STRING else helper.np_dtype_to_tensor_dtype(array.dtype)


def run(
    op: str, inputs: Sequence[np.ndarray | None], outputs: int = 1, double: bool = True, **attrs: Any
) -> list[np.ndarray]:
    """The kernel's results; checks that it leaves its inputs alone and that inference says what is true of them.

    ``double`` says that float64 gives about the same: no overflow, no place to round to.
    """
    record = OPERATORS[name_of(op)]
    kept = [None if v is None else v.copy() for v in inputs]
    more = {"n_outputs": outputs} if record.wants_outputs else {}
    with np.errstate(all="ignore"):
        got = record.kernel(*inputs, **attrs, **more)
    results = [np.asarray(r) for r in (got if isinstance(got, tuple) else (got,))][:outputs]
    assert len(results) == outputs
    for before, after in zip(kept, inputs, strict=True):
        assert before is None or after is None or np.array_equal(before, after, equal_nan=before.dtype.kind == "f")
    if double:
        _in_double(record.kernel, inputs, results, attrs | more)
    facts = [v if v is None else fact(v) for v in inputs]
    ranks = [
        v if v is None else typed(*(f"d{k}_{a}" for a in range(v.ndim)), dtype=v.dtype) for k, v in enumerate(inputs)
    ]
    kinds = [v if v is None else Info(TensorType(v.dtype)) for v in inputs]
    some = [[*facts[:k], kinds[k], *facts[k + 1 :]] for k, v in enumerate(inputs) if v is not None]
    for info, result in zip(infer(record.op, facts, outputs, **attrs), results, strict=True):
        assert info.dtype == result.dtype
    for known in (facts, ranks, kinds, [v if v is None else Info() for v in inputs], *some):
        for info, result in zip(infer(record.op, known, outputs, **attrs), results, strict=True):
            holds(info, result)
    return results


def _in_double(
    kernel: Any, inputs: Sequence[np.ndarray | None], results: list[np.ndarray], attrs: dict[str, Any]
) -> None:
    """The kernel works on float64 in place of float32 too, as the interpreter asks of it, and says about the same."""
    wide = [v.astype(np.float64) if v is not None and v.dtype == np.float32 else v for v in inputs]
    with np.errstate(all="ignore"):
        got = kernel(*wide, **attrs)
    for double, single in zip(got if isinstance(got, tuple) else (got,), results, strict=False):
        assert double.dtype == single.dtype or (double.dtype, single.dtype) == (np.float64, np.float32)
        if single.dtype == np.float32:
            bounded = np.abs(single) < 1e30
            close(np.asarray(double)[bounded], single[bounded], 5e-3)


def agree(
    op: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int = 1,
    eps: float = 2e-6,
    exact: bool = True,
    double: bool = True,
    **attrs: Any,
) -> list[np.ndarray]:
    """``run``, and the results are onnxruntime's; ``exact`` asks inference for the full shapes."""
    results = run(op, inputs, outputs, double, **attrs)
    for got, wanted in zip(results, says(op, inputs, outputs, **attrs), strict=True):
        assert got.dtype == wanted.dtype
        close(got, wanted, eps)
    if exact:
        known = infer(name_of(op), [None if v is None else fact(v) for v in inputs], outputs, **attrs)
        assert [i.shape for i in known] == [r.shape for r in results]
    return results


def refuse(op: str, inputs: Sequence[np.ndarray | None], match: str, outputs: int = 1, **attrs: Any) -> None:
    """The kernel raises a typed error that says ``match``."""
    record = OPERATORS[name_of(op)]
    more = {"n_outputs": outputs} if record.wants_outputs else {}
    with pytest.raises(FuseError, match=match):
        record.kernel(*inputs, **attrs, **more)


def both_refuse(op: str, inputs: Sequence[np.ndarray | None], match: str, outputs: int = 1, **attrs: Any) -> None:
    """``refuse``, and onnxruntime refuses too."""
    refuse(op, inputs, match, outputs, **attrs)
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        says(op, inputs, outputs, **attrs)


def shapes(op: str, *inputs: Info | None, outputs: int = 1, **attrs: Any) -> str:
    """The inferred shapes as text."""
    return " ".join(shape_of(i) for i in infer(name_of(op), inputs, outputs, **attrs))
