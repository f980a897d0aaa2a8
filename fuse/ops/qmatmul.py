"""Products of quantised matrices: the sums are whole numbers and exact, whatever computes them.

A quantised value less its zero point is a whole number below 256, so BLAS in floating point gives the exact sum as long
as no partial sum can leave the 24 bits of float32 or the 53 of float64: ``carrier`` chooses, by how large the sums of
this very matrix can become.  Sums then wrap to 32 bits, as ONNX allows, and are scaled in float32, as onnxruntime does.
On processors without VNNI onnxruntime itself lets pairs of products saturate at 16 bits (uint8 by int8); it differs
there, not fuse.
Source: the ONNX operator texts, and onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import numpy as np

from fuse.ir.dtypes import DOUBLE, FLOAT, FLOATING, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import wide
from fuse.ops.infer import broadcast_dims
from fuse.ops.matmul import matmul_dims
from fuse.ops.quant import INT32, measured, steps, to_floats, to_integers
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor

ROOM = 0.99 * 2**24
"""Sums that are estimated below this are exact in float32; the estimate itself rounds by far less than the rest."""


# ---- exact sums


def centred(x: Array, zero: Array | None) -> Array:
    """``x - zero`` in float32, exact for integers of 8 and 16 bits."""
    y = x.astype(np.float32)
    return y if zero is None or not zero.any() else np.subtract(y, zero.astype(np.float32))


def carrier(length: int, a: Array, b: Array, axis: int | tuple[int, ...]) -> DType:
    """The float dtype in which sums of ``length`` products of elements of ``a`` and ``b`` are exact.

    ``axis`` is where ``b`` is summed over.  Its own sums bound the products far tighter than its largest element does:
    a 3x3 kernel over 256 channels seldom needs more than float32.
    """
    largest = _largest(a)
    if length * largest * _largest(b) < ROOM or not b.size:
        return FLOAT
    return FLOAT if largest * float(np.abs(b).sum(axis=axis).max()) < ROOM else DOUBLE


def _largest(x: Array) -> float:
    return float(max(x.max(), -x.min())) if x.size else 0.0


def to_int32(y: Array) -> Array:
    """Whole numbers in floating point as int32, wrapped where they need more."""
    if y.dtype == FLOAT or _largest(y) < 2**31:
        return y.astype(np.int32)
    return y.astype(np.int64).astype(np.int32)


def whole_product(a: Array, b: Array) -> Array:
    """``np.matmul(a, b)`` of whole numbers in float32, as int32."""
    kind = carrier(a.shape[-1], a, b, -2 if b.ndim > 1 else 0)
    return to_int32(np.asarray(np.matmul(a.astype(kind, copy=False), b.astype(kind, copy=False))))


# ---- parameters by row and by column


def by_row(p: Array, a: tuple[int, ...], what: str) -> Array:
    """A parameter of the left matrix: one, one a row, or of the matrix's rank with a last axis of 1."""
    if p.size == 1:
        return p.reshape(())
    if p.ndim == 1 and len(a) > 1 and p.size == a[-2]:
        return p.reshape(-1, 1)
    fits = p.ndim > 1 and p.shape[-1] == 1 and p.ndim <= len(a) and broadcast_dims([p.shape, a]) == a
    expect(fits, f"{what} {list(p.shape)} is neither one nor one a row of {list(a)}")
    return p


def by_column(p: Array, b: tuple[int, ...], what: str) -> Array:
    """A parameter of the right matrix: one, one a column, or of the matrix's rank with a row axis of 1."""
    if p.size == 1:
        return p.reshape(())
    fits = len(b) > 1 and p.shape[-1] == b[-1] and (p.ndim == 1 or (p.shape[-2] == 1 and p.ndim <= len(b)))
    expect(
        fits and broadcast_dims([p.shape, b]) == b,
        f"{what} {list(p.shape)} is neither one nor one a column of {list(b)}",
    )
    return p


def single(p: Array, what: str) -> Array:
    """The one element of a parameter, of rank 0."""
    expect(p.size == 1, f"{what} must be one element, its shape is {list(p.shape)}")
    return p.reshape(())


def integer_sums(a: Array, b: Array, a_zero: Array | None, b_zero: Array | None) -> Array:
    """``(a - a_zero) @ (b - b_zero)`` in int32."""
    matmul_dims(a.shape, b.shape)
    left = None if a_zero is None else by_row(a_zero, a.shape, "the zero point of A")
    right = None if b_zero is None else by_column(b_zero, b.shape, "the zero point of B")
    return whole_product(centred(a, left), centred(b, right))


def rescaled(sums: Array, factor: Array, zero: Array, dtype: DType) -> Array:
    """``sums * factor``, computed in the factor's dtype and quantised to ``dtype``."""
    q = np.multiply(sums, factor, out=np.empty(sums.shape, factor.dtype), casting="unsafe", dtype=factor.dtype)
    return to_integers(q, zero, dtype)


# ---- MatMulInteger


def _matmul_integer_info(a: Info, b: Info, a_zero: Info | None = None, b_zero: Info | None = None) -> Info:
    return tensor(INT32, matmul_dims(a.shape, b.shape))


@operator("MatMulInteger", infer=_matmul_integer_info)
@at_run_time
def matmul_integer(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    """``(a - a_zero) @ (b - b_zero)`` in int32."""
    return integer_sums(a, b, a_zero, b_zero)


@operator("com.microsoft::MatMulInteger16", infer=_matmul_integer_info)
@at_run_time
def matmul_integer_16(a: Array, b: Array) -> Array:
    """``a @ b`` of 16-bit integers in int32, wrapped where a sum needs more."""
    matmul_dims(a.shape, b.shape)
    return to_int32(np.asarray(np.matmul(a.astype(np.float64), b.astype(np.float64))))


# ---- QLinearMatMul


def _qlinear_matmul_info(
    a: Info, a_scale: Info, a_zero: Info, b: Info, b_scale: Info, b_zero: Info, y_scale: Info, y_zero: Info
) -> Info:
    return tensor(y_zero.dtype, matmul_dims(a.shape, b.shape))


@operator("QLinearMatMul", infer=_qlinear_matmul_info)
@at_run_time
def qlinear_matmul(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    """The product of the quantised ``a`` and ``b``, quantised as ``y_scale`` and ``y_zero`` say.

    8-bit floats are multiplied and summed in float32 and saturate.
    """
    matmul_dims(a.shape, b.shape)
    left, right = by_row(wide(a_scale), a.shape, "the scale of A"), by_column(wide(b_scale), b.shape, "the scale of B")
    factor = np.asarray(left * right / single(wide(y_scale), "the scale of Y"))
    zero = single(y_zero, "the zero point of Y")
    if y_zero.dtype not in FLOATING:
        return rescaled(integer_sums(a, b, a_zero, b_zero), factor, zero, y_zero.dtype)
    origins = by_row(a_zero, a.shape, "the zero point of A"), by_column(b_zero, b.shape, "the zero point of B")
    sums = np.matmul(*(x.astype(np.float32) - z.astype(np.float32) for x, z in zip((a, b), origins, strict=True)))
    return to_floats(np.asarray(sums * factor), zero, y_zero.dtype, True)


# ---- onnxruntime's own


def _to_float_info(
    a: Info,
    b: Info,
    a_scale: Info,
    b_scale: Info,
    a_zero: Info | None = None,
    b_zero: Info | None = None,
    bias: Info | None = None,
) -> Info:
    return tensor(b_scale.dtype, matmul_dims(a.shape, b.shape))


@operator("com.microsoft::MatMulIntegerToFloat", infer=_to_float_info)
@at_run_time
def matmul_integer_to_float(
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """The product of the quantised ``a`` and ``b`` in the scales' dtype, plus ``bias`` (a value a column)."""
    sums = integer_sums(a, b, a_zero, b_zero)
    left, right = by_row(wide(a_scale), a.shape, "the scale of A"), by_column(wide(b_scale), b.shape, "the scale of B")
    y = np.asarray(sums.astype(right.dtype) * (left * right))
    if bias is not None:
        y += wide(bias)
    return y.astype(b_scale.dtype, copy=False)


def _dynamic_matmul_info(a: Info, b: Info, b_scale: Info, b_zero: Info | None = None, bias: Info | None = None) -> Info:
    return tensor(b_scale.dtype, matmul_dims(a.shape, b.shape))


@operator("com.microsoft::DynamicQuantizeMatMul", infer=_dynamic_matmul_info)
@at_run_time
def dynamic_quantize_matmul(
    a: Array, b: Array, b_scale: Array, b_zero: Array | None = None, bias: Array | None = None
) -> Array:
    """``a`` quantised to uint8 by its range, times the quantised ``b``, plus ``bias``."""
    scale, zero = measured(a)
    return np.asarray(matmul_integer_to_float(steps(a, scale, zero, zero.dtype), b, scale, b_scale, zero, b_zero, bias))


def _qgemm_info(
    a: Info,
    a_scale: Info,
    a_zero: Info,
    b: Info,
    b_scale: Info,
    b_zero: Info,
    c: Info | None = None,
    y_scale: Info | None = None,
    y_zero: Info | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Info:
    given = [None if x is None else tensor(None, x.shape) for x in (a, b, c)]
    shape = OPERATORS["Gemm"].infer(*given, transA=transA, transB=transB).shape  # type: ignore[misc]
    return tensor(a_scale.dtype if y_zero is None else y_zero.dtype, shape)


@operator("com.microsoft::QGemm", infer=_qgemm_info)
@at_run_time
def qgemm(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """``alpha * A' @ B' + C``; ``c`` holds int32 steps of ``alpha * a_scale * b_scale``.  Float without ``y_scale``."""
    given = [None if x is None else tensor(None, x.shape) for x in (a, b, c)]
    OPERATORS["Gemm"].infer(*given, transA=transA, transB=transB)  # type: ignore[misc]
    left, right = a.T if transA else a, b.T if transB else b
    sums = integer_sums(left, right, single(a_zero, "the zero point of A"), b_zero)
    if c is not None:
        sums += c
    factor = (
        a_scale.dtype.type(alpha)
        * single(a_scale, "the scale of A")
        * by_column(b_scale, right.shape, "the scale of B")
    )
    if y_scale is None or y_zero is None:
        return np.asarray(sums.astype(a_scale.dtype) * factor)
    factor = np.asarray(factor / single(y_scale, "the scale of Y"))
    return rescaled(sums, factor, single(y_zero, "the zero point of Y"), y_zero.dtype)
