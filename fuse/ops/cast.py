"""Changes of dtype: Cast, CastLike and BitCast.

NumPy and ``ml_dtypes`` round to nearest even and overflow to an infinity (or to NaN in a format that has none).  What
is added here is what ONNX says differently: saturation to 8-bit floats, the powers of two of float8e8m0, and strings.
What ONNX leaves open: a float beyond the range of an integer of 8 bits or more gives the nearest one and NaN gives 0;
beyond the range of a smaller one it gives 0, which is what ONNX's own cases assert.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dtypes import BOOL, BY_CODE, BY_NAME, FLOATING, INT64, INTEGER, PACKED_BITS, STRING, Array, DType, name_of
from fuse.ops.bounds import at_run_time
from fuse.ops.record import Info, Trait, expect, operator, tensor

POWER_OF_TWO = BY_NAME["float8e8m0"]
SATURATING = frozenset(BY_NAME[f"float8{n}"] for n in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))


def _known(x: Info, dtype: DType) -> Array | None:
    """The value after a cast to ``dtype``, where that is certain: symbolic sizes stay sizes in int64 alone."""
    if x.value is None or dtype not in (INTEGER | {BOOL}):
        return None
    if x.value.dtype == object:
        return x.value if dtype == INT64 else None
    return cast_to(x.value, dtype)


def _checked_mode(round_mode: str) -> None:
    expect(round_mode in ("up", "down", "nearest"), f"round_mode {quote(round_mode)} is not up, down or nearest")


def _cast_info(x: Info, *, to: int, saturate: int = 1, round_mode: str = "up") -> Info:
    _checked_mode(round_mode)
    expect(to in BY_CODE, f"there is no dtype {to}")
    return tensor(BY_CODE[to], x.shape, _known(x, BY_CODE[to]))


@operator("Cast", infer=_cast_info, traits=Trait.ELEMENTWISE)
@at_run_time
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """``x`` in the dtype of code ``to``."""
    _checked_mode(round_mode)
    expect(to in BY_CODE, f"there is no dtype {to}")
    return cast_to(x, BY_CODE[to], bool(saturate), round_mode)


def _cast_like_info(x: Info, like: Info, *, saturate: int = 1, round_mode: str = "up") -> Info:
    _checked_mode(round_mode)
    return tensor(like.dtype, x.shape, None if like.dtype is None else _known(x, like.dtype))


@operator("CastLike", infer=_cast_like_info)
@at_run_time
def cast_like(x: Array, like: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """``x`` in the dtype of ``like``."""
    _checked_mode(round_mode)
    return cast_to(x, like.dtype, bool(saturate), round_mode)


def cast_to(x: Array, dtype: DType, saturate: bool = True, round_mode: str = "up") -> Array:
    """``x`` as ``dtype`` by ONNX's rules; ``x`` itself where it has that dtype."""
    if x.dtype == dtype:
        return x
    if x.dtype == STRING:
        return _parsed(x, dtype, saturate, round_mode)
    if dtype == STRING:
        return _spelled(x)
    if dtype == POWER_OF_TWO:
        return _to_power_of_two(x, saturate, round_mode)
    if dtype in SATURATING and saturate:
        limit = float(ml_dtypes.finfo(dtype).max)
        return np.clip(x.astype(np.float32) if x.dtype != np.float64 else x, -limit, limit).astype(dtype)
    if dtype.kind in "iu" and x.dtype in FLOATING:
        return _to_integer(x, dtype)
    return x.astype(dtype)


def _to_integer(x: Array, dtype: DType) -> Array:
    """Truncated towards zero, held within the range of ``dtype``."""
    info = np.iinfo(dtype)
    w = x if x.dtype.kind == "f" and x.dtype != np.float16 else x.astype(np.float32)
    low, high = (float(w.min()), float(w.max())) if w.size else (0.0, 0.0)
    if low > info.min - 1 and high < info.max:  # False where one is NaN, and where info.max is rounded up
        return w.astype(dtype)
    if not np.isnan(low) and dtype.itemsize <= 2:  # both bounds are numbers of ``w``
        return np.clip(w, info.min, info.max).astype(dtype)
    y = np.trunc(w.astype(np.float64))
    below, above = y <= float(info.min), y >= float(info.max)
    safe = np.where(below | above | np.isnan(y), 0, y).astype(dtype)
    return np.where(below, dtype.type(info.min), np.where(above, dtype.type(info.max), safe)).astype(dtype)


def _to_power_of_two(x: Array, saturate: bool, round_mode: str) -> Array:
    """To float8e8m0, which holds 2**-127 to 2**127 and NaN: no zero, no sign.

    A value outside saturates (0 to the least) or becomes NaN; a negative one, for which ONNX says nothing, is NaN.
    """
    w = x.astype(np.float64)
    mantissa, exponent = np.frexp(w)  # w = mantissa * 2 ** exponent, 1/2 <= mantissa < 1
    above = {"up": mantissa > 0.5, "nearest": mantissa >= 0.75, "down": False}[round_mode]
    power = np.where(w == 0, -127, exponent - 1 + above)
    power = np.where(np.isposinf(w), 127, np.clip(power, -127, 127))
    wrong = np.isnan(w) | (w < 0)
    if not saturate:
        wrong |= (w < 2.0**-127) | (w > 2.0**127)
    return np.where(wrong, 255, power + 127).astype(np.uint8).view(POWER_OF_TWO)


# ---- strings


def _parsed(x: Array, dtype: DType, saturate: bool, round_mode: str) -> Array:
    """Numbers from their plain or scientific spelling; whole ones exactly, others by way of float64."""
    if dtype in INTEGER:
        return np.array([_whole(v) for v in x.reshape(-1).tolist()], dtype=object).astype(dtype).reshape(x.shape)
    numbers = np.array([_number(v) for v in x.reshape(-1).tolist()], dtype=np.float64).reshape(x.shape)
    return numbers if dtype == np.float64 else cast_to(numbers, dtype, saturate, round_mode)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RunError(f"{quote(text)} is not a number") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return int(_number(text))
    except (OverflowError, ValueError):
        raise RunError(f"{quote(text)} is not an integer") from None


def _spelled(x: Array) -> Array:
    """Each number in plain notation, a float with the fewest digits that read back as the same; a bool is 0 or 1."""
    texts = np.empty(x.shape, dtype=STRING)
    if x.dtype in FLOATING:
        elements = x if x.dtype.kind == "f" else x.astype(np.float32)
        texts.reshape(-1)[:] = [_float_text(v) for v in elements.reshape(-1)]
    else:
        texts.reshape(-1)[:] = [str(int(v)) for v in x.reshape(-1)]
    return texts


def _float_text(v: Any) -> str:
    if not np.isfinite(v):
        return "NaN" if np.isnan(v) else "INF" if v > 0 else "-INF"
    return np.format_float_positional(v, trim="-")


# ---- the same bits


def _bits(dtype: DType) -> int:
    return PACKED_BITS.get(dtype, 8 * dtype.itemsize)


def _check_bits(source: DType, target: DType) -> None:
    expect(STRING not in (source, target), "strings have no bits")
    same = _bits(source) == _bits(target)
    expect(same, f"{name_of(source)} has {_bits(source)} bits, {name_of(target)} has {_bits(target)}")


def _bit_cast_info(x: Info, *, to: int) -> Info:
    expect(to in BY_CODE, f"there is no dtype {to}")
    if x.dtype is not None:
        _check_bits(x.dtype, BY_CODE[to])
    return tensor(BY_CODE[to], x.shape)


@operator("BitCast", infer=_bit_cast_info, traits=Trait.ELEMENTWISE)
@at_run_time
def bit_cast(x: Array, *, to: int) -> Array:
    """The bits of ``x`` read as the dtype of code ``to``, which has as many."""
    expect(to in BY_CODE, f"there is no dtype {to}")
    dtype = BY_CODE[to]
    _check_bits(x.dtype, dtype)
    if dtype in PACKED_BITS:  # one byte an element in memory, the unused bits 0
        return (x.view(np.uint8) & np.uint8((1 << PACKED_BITS[dtype]) - 1)).view(dtype)
    return x.view(dtype)
