"""Linear quantisation: real numbers as integers, a scale and a zero point, for a tensor, an axis, or blocks of one.

``steps`` and ``reals`` are the two formulas that every quantised operator is made of, ``spread`` says which scale
belongs to which element.  Rounding is to the nearest step, halves to the even one, and the zero point is added after
it; what lies outside the target saturates.  A NaN becomes the lowest integer, as in onnxruntime; ONNX does not say.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import BY_CODE, BY_NAME, DOUBLE, FLOAT, FLOATING, INTEGER, Array, DType, name_of
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.cast import POWER_OF_TWO, cast_to
from fuse.ops.elementwise import wide
from fuse.ops.infer import normal_axis, show_shape
from fuse.ops.record import Info, expect, operator, tensor

UINT8 = BY_NAME["uint8"]
INT32 = BY_NAME["int32"]
TARGETS = frozenset(d for d in INTEGER if d.itemsize <= 2) | frozenset(
    d for d in FLOATING if d.itemsize == 1 and d != POWER_OF_TWO
)
"""What can be quantised to: integers of up to 16 bits and floats of up to 8."""

RANGES = {d: (int(ml_dtypes.iinfo(d).min), int(ml_dtypes.iinfo(d).max)) for d in TARGETS & INTEGER}
"""The least and the largest integer of each."""


# ---- the two formulas


def to_integers(q: Array, zero: Array | None, dtype: DType) -> Array:
    """``q`` (float32 or float64, overwritten) rounded half to even, plus ``zero``, as saturated ``dtype``."""
    low, high = RANGES[dtype]
    np.rint(q, out=q)
    if zero is not None and zero.any():
        q += zero.astype(q.dtype)
    q.clip(low, high, out=q)
    if q.size and np.isnan(q.max()):
        np.copyto(q, low, where=np.isnan(q))
    return q.astype(dtype) if dtype.kind in "iu" else q.astype(np.int8).astype(dtype)


def to_floats(q: Array, zero: Array | None, dtype: DType, saturate: bool) -> Array:
    """``q`` plus ``zero`` in the 4, 6 or 8-bit float ``dtype``; NaN and infinities by the table of Cast."""
    if zero is not None and zero.astype(np.float32).any():  # not for a plain 0, which would turn -0.0 into 0.0
        q = q + zero.astype(q.dtype)
    return cast_to(q, dtype, saturate)


def steps(x: Array, scale: Array, zero: Array | None, dtype: DType, saturate: bool = True) -> Array:
    """``x / scale`` in the dtype of ``x``, quantised to ``dtype``; ``scale`` and ``zero`` broadcast to ``x``.

    The quotient of half precision is that of float32 rounded once more, which is the same number and much faster.
    """
    kind, carrier = x.dtype, FLOAT if x.dtype.itemsize < 4 else x.dtype
    q = np.divide(wide(x), wide(scale.astype(kind)), out=np.empty(x.shape, carrier))
    if kind != carrier:
        q = q.astype(kind).astype(carrier)
    return to_integers(q, zero, dtype) if dtype in INTEGER else to_floats(q, zero, dtype, saturate)


def reals(x: Array, scale: Array, zero: Array | None, dtype: DType) -> Array:
    """``(x - zero) * scale``, multiplied in float32 (float64 where ``scale`` is) and rounded once to ``dtype``.

    A new array; ``scale`` and ``zero`` broadcast to ``x``.
    """
    kind = DOUBLE if scale.dtype == DOUBLE else FLOAT
    if zero is None or not zero.astype(np.float32).any():
        y = x.astype(kind)
    else:
        y = x.astype(DOUBLE if x.dtype == INT32 else kind)  # a difference of two int32 needs 33 bits
        np.subtract(y, zero.astype(y.dtype), out=y)
        y = y.astype(kind, copy=False)
    np.multiply(y, scale.astype(kind), out=y)
    return y if kind == DOUBLE else y.astype(dtype, copy=False)


# ---- granularity


def granularity(x: Shape | None, scale: Shape | None, axis: int, block: int) -> int | None:
    """The axis along which scales differ; None for one scale, or where a shape is not known."""
    if x is None or scale is None or _is_single(scale):
        return None
    known = all(isinstance(d, int) for d in scale)
    if len(scale) == 1 and not block:
        if not known:  # it may turn out to be a single one
            return None
        place = normal_axis(axis, len(x))
        expect(_agree(x[place], scale[0]), f"{scale[0]} scales for axis {place} of {show_shape(x)}")
        return place
    expect(block > 0, f"scales {show_shape(scale)} need a block_size, it is {block}")
    expect(len(x) == len(scale), f"blocks need scales of the input's rank {len(x)}, they are {show_shape(scale)}")
    place = normal_axis(axis, len(x))
    for at, (size, count) in enumerate(zip(x, scale, strict=True)):
        wanted = size if at != place or size is None else floordiv(size + (block - 1), block)
        fits = _agree(wanted, count)
        expect(fits, f"scales {show_shape(scale)} do not fit {show_shape(x)} in blocks of {block} on axis {place}")
    return place


def _is_single(shape: Shape) -> bool:
    return not shape or (len(shape) == 1 and shape[0] == 1)


def _agree(a: Dim, b: Dim) -> bool:
    return not isinstance(a, int) or not isinstance(b, int) or a == b


def check_zero(scale: Shape | None, zero: Shape | None) -> None:
    """Raise ``ShapeError`` where a scale and its zero point cannot have one shape."""
    if scale is None or zero is None or (_is_single(scale) and _is_single(zero)):
        return
    same = len(scale) == len(zero) and all(map(_agree, scale, zero))
    expect(same, f"the scale is {show_shape(scale)} and the zero point {show_shape(zero)}")


def spread(p: Array, shape: tuple[int, ...], axis: int | None, block: int = 0) -> Array:
    """The parameter ``p`` as an array that broadcasts to ``shape``; ``axis`` comes from ``granularity``."""
    if axis is None:
        return p.reshape(())
    if p.ndim == 1 and not block:
        return p.reshape(-1, *(1,) * (len(shape) - axis - 1))
    every = np.repeat(p, block, axis=axis)
    return every[(slice(None),) * axis + (slice(shape[axis]),)]


# ---- QuantizeLinear, DequantizeLinear


def _target(zero: DType | None, output_dtype: int) -> DType:
    """The dtype that is quantised to: the zero point's, else the attribute's, else uint8."""
    named = _named(output_dtype, "output_dtype")
    if zero is not None and named is not None:
        expect(zero == named, f"output_dtype is {name_of(named)} and the zero point {name_of(zero)}")
    target = zero or named or UINT8
    expect(target in TARGETS, f"nothing is quantised to {name_of(target)}")
    return target


def _named(code: int, what: str) -> DType | None:
    """The dtype that an attribute names; None where it is 0."""
    expect(not code or code in BY_CODE, f"{what} {code} is no dtype")
    return BY_CODE[code] if code else None


def _quantize_info(
    x: Info,
    scale: Info,
    zero: Info | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Info:
    granularity(x.shape, scale.shape, axis, block_size)
    if x.dtype is not None and scale.dtype is not None:
        _division(x.dtype, scale.dtype, precision)
    if zero is None:
        return tensor(_target(None, output_dtype), x.shape)
    check_zero(scale.shape, zero.shape)
    return tensor(_target(zero.dtype, output_dtype) if zero.dtype or output_dtype else None, x.shape)


def _division(x: DType, scale: DType, precision: int) -> DType:
    """The dtype of ``x / scale``: as ``precision`` says, else the scale's.

    Float64 is no type of these operators: it means that the graph is computed in it throughout, and stays.  There is no
    arithmetic in a bare exponent, which divides in float32, nor in integers, which float64 divides and rounds right.
    """
    if x == DOUBLE or scale == DOUBLE:
        return DOUBLE
    named = _named(precision, "precision")
    if named is not None:
        expect(named in FLOATING, f"precision {name_of(named)} is no floating type")
        return named
    if scale == POWER_OF_TWO:
        return FLOAT
    return scale if scale in FLOATING else x if x in FLOATING else DOUBLE


@operator("QuantizeLinear", infer=_quantize_info)
@at_run_time
def quantize_linear(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Array:
    """Steps of ``scale`` nearest to ``x``, counted from ``zero``.

    The division is rounded to the scale's precision first, as ONNX asks: with float16 scales a step may differ from
    onnxruntime's, which divides in float32.
    """
    place = granularity(x.shape, scale.shape, axis, block_size)
    check_zero(scale.shape, None if zero is None else zero.shape)
    dtype = _target(None if zero is None else zero.dtype, output_dtype)
    kind = _division(x.dtype, scale.dtype, precision)
    scale = spread(scale, x.shape, place, block_size)
    origin = None if zero is None else spread(zero, x.shape, place, block_size)
    return steps(x.astype(kind, copy=False), scale, origin, dtype, bool(saturate))


def _dequantize_info(
    x: Info, scale: Info, zero: Info | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Info:
    granularity(x.shape, scale.shape, axis, block_size)
    if zero is not None:
        check_zero(scale.shape, zero.shape)
        agree = zero.dtype is None or x.dtype is None or zero.dtype == x.dtype
        expect(agree, f"the input is {_name(x)} and its zero point {_name(zero)}")
    return tensor(_real_type(scale.dtype, output_dtype), x.shape)


def _real_type(scale: DType | None, output_dtype: int) -> DType | None:
    """The dtype that is dequantised to: the attribute's, else the scale's."""
    if output_dtype:
        return _named(output_dtype, "output_dtype")
    expect(scale != POWER_OF_TWO, f"scales of {name_of(POWER_OF_TWO)} need an output_dtype")
    return scale


def _name(info: Info) -> str:
    return "?" if info.dtype is None else name_of(info.dtype)


@operator("DequantizeLinear", infer=_dequantize_info)
@at_run_time
def dequantize_linear(
    x: Array, scale: Array, zero: Array | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Array:
    """``(x - zero) * scale`` in ``output_dtype`` or the scale's dtype."""
    place = granularity(x.shape, scale.shape, axis, block_size)
    check_zero(scale.shape, None if zero is None else zero.shape)
    dtype = _real_type(scale.dtype, output_dtype) or scale.dtype
    origin = None if zero is None else spread(zero, x.shape, place, block_size)
    return reals(x, spread(scale, x.shape, place, block_size), origin, dtype)


# ---- DynamicQuantizeLinear


def measured(x: Array) -> tuple[Array, Array]:
    """The uint8 scale and zero point that cover ``x`` and 0; NaNs are left out, as in onnxruntime.

    Where there is nothing but zeros the scale is 1: ONNX's formula would divide by zero.
    """
    low = np.fmin.reduce(x, axis=None, initial=0)
    high = np.fmax.reduce(x, axis=None, initial=0)
    scale = np.asarray((high - low) / x.dtype.type(255) if low != high else x.dtype.type(1))
    return scale, np.asarray(np.rint(np.fmin(255, -low / scale)), UINT8)


def _dynamic_info(x: Info) -> tuple[Info, Info, Info]:
    return tensor(UINT8, x.shape), tensor(FLOAT, ()), tensor(UINT8, ())


@operator("DynamicQuantizeLinear", infer=_dynamic_info)
def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """``x`` in uint8, with the scale and the zero point that its range gives."""
    scale, zero = measured(x)
    return steps(x, scale, zero, UINT8), scale, zero


# ---- the same under onnxruntime's domain


def _contrib_quantize_info(x: Info, scale: Info, zero: Info | None = None, *, axis: int | None = None) -> Info:
    return _quantize_info(x, scale, zero, axis=1 if axis is None else axis)


@operator("com.microsoft::QuantizeLinear", infer=_contrib_quantize_info)
def contrib_quantize_linear(x: Array, scale: Array, zero: Array | None = None, *, axis: int | None = None) -> Array:
    """QuantizeLinear from before ONNX had 16 and 4-bit integers."""
    return np.asarray(quantize_linear(x, scale, zero, axis=1 if axis is None else axis))


def _contrib_dequantize_info(x: Info, scale: Info, zero: Info | None = None, *, axis: int | None = None) -> Info:
    return _dequantize_info(x, scale, zero, axis=1 if axis is None else axis)


@operator("com.microsoft::DequantizeLinear", infer=_contrib_dequantize_info)
def contrib_dequantize_linear(x: Array, scale: Array, zero: Array | None = None, *, axis: int | None = None) -> Array:
    """DequantizeLinear from before ONNX had 16 and 4-bit integers."""
    return np.asarray(dequantize_linear(x, scale, zero, axis=1 if axis is None else axis))
