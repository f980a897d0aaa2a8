"""Products of quantised matrices: the sums are whole numbers and exact, whatever computes them.

A quantised value less its zero point is a whole number below 256, so BLAS in float32 gives the exact sum of as many
products as fit in 24 bits.  Longer sums are made of such parts in int32, where they wrap, as ONNX allows.  They are
scaled in float32, as onnxruntime does.  On processors without VNNI onnxruntime lets pairs of products of uint8 by int8
saturate at 16 bits, which ONNX forbids: there it differs.
Source: the ONNX operator texts, and onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.ir.dtypes import FLOATING, Array, DType
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import wide
from fuse.ops.infer import broadcast_dims
from fuse.ops.matmul import matmul_dims, product
from fuse.ops.quant import INT32, measured, steps, to_floats, to_integers
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor

ROOM = 1 << 24
"""Whole numbers up to this are exact in float32, and so is a sum of them that ends below it."""


# ---- exact sums


def centred(x: Array, zero: Array | None) -> Array:
    """``x - zero`` in float32, exact for integers of 8 and 16 bits."""
    y = x.astype(np.float32)
    return y if zero is None or not zero.any() else np.subtract(y, zero.astype(np.float32))


def reach(dtype: DType, zero: Array | None) -> int:
    """The largest size that ``x - zero`` can have for an ``x`` of the integer ``dtype``."""
    info = np.iinfo(dtype)
    if zero is None or not zero.size:
        return max(int(info.max), -int(info.min))
    return max(int(info.max) - int(zero.min()), int(zero.max()) - int(info.min))


def whole_product(a: Array, b: Array, largest: int) -> Array:
    """``np.matmul(a, b)`` of whole numbers in float32, as int32; no product of two elements exceeds ``largest``."""
    inner = a.shape[-1]
    length = max(1, ROOM // max(largest, 1))
    if inner <= length:
        return np.asarray(np.matmul(a, b)).astype(np.int32)
    columns = b if b.ndim > 1 else b[:, None]
    total: Any = 0
    for start in range(0, inner, length):
        part = slice(start, start + length)
        total += np.matmul(a[..., part], columns[..., part, :]).astype(np.int32)
    return np.asarray(total if b.ndim > 1 else total[..., 0])


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
    return whole_product(centred(a, left), centred(b, right), reach(a.dtype, left) * reach(b.dtype, right))


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
    return product(a.astype(np.int32), b.astype(np.int32))


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
