"""Operators that make tensors of sizes, constants and patterns: Shape, Range, Pad and their like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dims import Dim, product
from fuse.ir.dtypes import BY_CODE, FLOAT, FLOATING, INT64, STRING, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, clamped, single, whole
from fuse.ops.infer import CARRIED, common_dtype, normal_axes, show_shape
from fuse.ops.record import Info, Trait, expect, operator, sizes, tensor

# ---- sizes


def _shape_info(x: Info, *, start: int = 0, end: int | None = None) -> Info:
    return tensor(INT64, (None,)) if x.shape is None else sizes(x.shape[start:end])


@operator("Shape", infer=_shape_info)
def shape(x: Array, *, start: int = 0, end: int | None = None) -> Array:
    """The sizes of axes ``start`` to ``end``, both counted and clamped as Python slices are."""
    return np.array(x.shape[start:end], dtype=INT64)


def _size_info(x: Info) -> Info:
    count = None if x.shape is None else product(x.shape)
    if count is None:
        return tensor(INT64, ())
    return tensor(INT64, (), np.asarray(count, dtype=INT64 if isinstance(count, int) else object))


@operator("Size", infer=_size_info)
def size(x: Array) -> Array:
    return np.array(x.size, dtype=INT64)


# ---- constants


def _checked_sizes(dims: Sequence[Dim]) -> Shape:
    expect(not any(isinstance(d, int) and d < 0 for d in dims), f"negative size in {show_shape(tuple(dims))}")
    return tuple(dims)


def _fill(value: Array | None) -> Array:
    """The element that ConstantOfShape repeats, float 0 where none is given."""
    if value is None:
        return np.zeros((), dtype=FLOAT)
    expect(value.size == 1, f"value must hold one element, its shape is {list(value.shape)}")
    return value.reshape(())


def _constant_of_shape_info(input: Info, *, value: Array | None = None) -> Info:
    fill = _fill(value)
    if input.dims is None:
        count = input.shape[0] if input.shape is not None and len(input.shape) == 1 else None
        return tensor(fill.dtype, (None,) * count if isinstance(count, int) else None)
    dims = _checked_sizes(input.dims)
    count = product(dims)
    small = fill.dtype.kind in "iub" and input.ints is not None and isinstance(count, int) and count <= CARRIED
    return tensor(fill.dtype, dims, np.full(input.ints or (), fill, dtype=fill.dtype) if small else None)


@operator("ConstantOfShape", infer=_constant_of_shape_info)
@at_run_time
def constant_of_shape(input: Array, *, value: Array | None = None) -> Array:
    fill = _fill(value)
    dims: Any = _checked_sizes(whole(input))
    return np.full(dims, fill, dtype=fill.dtype)


def _range_count(start: Any, limit: Any, delta: Any) -> int:
    """``max(ceil((limit - start) / delta), 0)``, exact for integers, in float64 for floats."""
    expect(delta != 0, "delta is 0")
    if isinstance(delta, int):
        return max(-int((start - limit) // delta), 0)
    count = float((limit - start) / delta)
    expect(math.isfinite(count), f"a range from {start} to {limit} by {delta} has no length")
    return max(math.ceil(count), 0)


def _range_info(start: Info, limit: Info, delta: Info, *, stash_type: int = 1) -> Info:
    dtype = common_dtype(start, limit, delta)
    values = [i.value for i in (start, limit, delta) if i.value is not None]
    if len(values) < 3:
        return tensor(dtype, (None,))
    first, last, step = (single(v, "a bound of a range") for v in values)
    if all(isinstance(v, int) for v in (first, last, step)):
        return tensor(dtype, (_range_count(first, last, step),))
    return tensor(dtype, (clamped(last - first) if step == 1 else None,))


@operator("Range", infer=_range_info, traits=Trait.SIZES)
@at_run_time
def range_(start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """``start + i * delta`` below ``limit``; half precision is computed in ``stash_type`` and rounded once."""
    dtype = start.dtype
    first, last, step = (single(i, "a bound of a range") for i in (start, limit, delta))
    count = _range_count(first, last, step)
    work: DType = BY_CODE[stash_type] if dtype in FLOATING and dtype.itemsize < 4 else dtype
    if dtype.kind in "iu":
        return np.asarray(first + np.arange(count, dtype=INT64) * step, dtype=dtype)
    return np.asarray(work.type(first) + np.arange(count).astype(work) * work.type(step), dtype=dtype)


def _eye_like_info(input: Info, *, dtype: int | None = None, k: int = 0) -> Info:
    expect(input.rank in (None, 2), f"the input {show_shape(input.shape)} is not a matrix")
    return tensor(input.dtype if dtype is None else BY_CODE[dtype], input.shape or (None, None))


@operator("EyeLike", infer=_eye_like_info)
@at_run_time
def eye_like(input: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Ones where column minus row is ``k``, zeros elsewhere, in the input's shape."""
    expect(input.ndim == 2, f"the input {show_shape(input.shape)} is not a matrix")
    rows, columns = input.shape
    made = np.eye(rows, columns, k=min(max(k, -rows), columns), dtype=bool)
    return made.astype(input.dtype if dtype is None else BY_CODE[dtype])


# ---- patterns over data


def _one_hot_axis(axis: int, rank: int) -> int:
    expect(-rank - 1 <= axis <= rank, f"axis {axis} is out of range for indices of rank {rank}")
    return axis + rank + 1 if axis < 0 else axis


def _one_hot_info(indices: Info, depth: Info, values: Info, *, axis: int = -1) -> Info:
    if indices.shape is None:
        return tensor(values.dtype)
    place = _one_hot_axis(axis, len(indices.shape))
    count: Dim = depth.dims[0] if depth.dims is not None and len(depth.dims) == 1 else None
    expect(not isinstance(count, int) or count >= 0, f"depth {count} is negative")
    return tensor(values.dtype, (*indices.shape[:place], count, *indices.shape[place:]))


@operator("OneHot", infer=_one_hot_info)
@at_run_time
def one_hot(indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """``values[1]`` where the new axis' position is the index, ``values[0]`` elsewhere.

    Indices from -depth on count from the end; those outside [-depth, depth) give ``values[0]`` alone.
    """
    place = _one_hot_axis(axis, indices.ndim)
    count = int(single(depth, "depth"))
    expect(count >= 0, f"depth {count} is negative")
    expect(values.shape == (2,), f"values has shape {list(values.shape)}, not [2]")
    with np.errstate(invalid="ignore"):
        hot = np.expand_dims(indices.astype(INT64), place)
    hot = np.where(hot < 0, hot + count, hot)
    steps = np.arange(count, dtype=INT64).reshape([-1 if i == place else 1 for i in range(hot.ndim)])
    out = np.full(np.broadcast_shapes(hot.shape, steps.shape), values[0], dtype=values.dtype)
    out[hot == steps] = values[1]
    return out


def _zero(dtype: DType) -> Array:
    """What fills a tensor by default: 0, False, or the empty string."""
    return np.array("" if dtype == STRING else 0, dtype=dtype)


def _trilu_info(x: Info, k: Info | None = None, *, upper: int = 1) -> Info:
    expect(x.rank is None or x.rank >= 2, f"the input {show_shape(x.shape)} has fewer than two dims")
    return Info(x.type)


@operator("Trilu", infer=_trilu_info)
@at_run_time
def trilu(x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """The elements on and above (``upper=1``) or on and below the ``k``-th diagonal of each matrix, zeros elsewhere."""
    expect(x.ndim >= 2, f"the input {show_shape(x.shape)} has fewer than two dims")
    rows, columns = x.shape[-2:]
    diagonal = 0 if k is None else min(max(int(single(k, "k")), -rows), columns)
    kept = np.tri(rows, columns, diagonal - 1 if upper else diagonal, dtype=bool)
    return np.where(~kept if upper else kept, x, _zero(x.dtype))


# ---- padding

_MODES = ("constant", "reflect", "edge", "wrap")


def _pairs(pads: Sequence[Any], axes: Sequence[int] | None, rank: int) -> list[tuple[Any, Any]]:
    """What is added before and after each axis of the data, 0 where ``axes`` does not name it."""
    named = tuple(range(rank)) if axes is None else normal_axes(axes, rank)
    expect(len(pads) == 2 * len(named), f"{len(pads)} pads for {len(named)} axes")
    pairs: list[tuple[Any, Any]] = [(0, 0)] * rank
    for i, axis in enumerate(named):
        pairs[axis] = (pads[i], pads[i + len(named)])
    return pairs


def _padded(x: Shape, pairs: Sequence[tuple[Any, Any]]) -> list[Dim]:
    dims = [None if d is None else d + low + high for d, (low, high) in zip(x, pairs, strict=True)]
    fits = not any(isinstance(d, int) and d < 0 for d in dims)
    expect(fits, f"pads {[list(p) for p in pairs]} take more from shape {show_shape(x)} than there is")
    return dims


def _pad_info(
    x: Info, pads: Info, constant_value: Info | None = None, axes: Info | None = None, *, mode: str = "constant"
) -> Info:
    expect(mode in _MODES, f"unknown mode {mode!r}")
    if x.shape is None:
        return tensor(x.dtype)
    if pads.dims is None or (axes is not None and axes.ints is None):
        return tensor(x.dtype, (None,) * len(x.shape))
    return tensor(x.dtype, _padded(x.shape, _pairs(pads.dims, None if axes is None else axes.ints, len(x.shape))))


@operator("Pad", infer=_pad_info)
@at_run_time
def pad(
    x: Array, pads: Array, constant_value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Array:
    """Elements added around the data, or taken away where a pad is negative; taken away first, then added."""
    expect(mode in _MODES, f"unknown mode {mode!r}")
    pairs = _pairs(whole(pads), None if axes is None else whole(axes), x.ndim)
    out: Any = _padded(x.shape, pairs)
    if mode != "constant":
        for axis, (low, high) in enumerate(pairs):
            if low or high:
                x = np.take(x, _source(x.shape[axis], low, high, mode), axis=axis)
        return x
    fill = _zero(x.dtype) if constant_value is None else constant_value
    expect(fill.size == 1, f"constant_value must be one element, its shape is {list(fill.shape)}")
    y = np.full(out, fill.reshape(()), dtype=x.dtype)
    target, source = [], []
    for size, (low, high) in zip(x.shape, pairs, strict=True):
        first, last = max(-low, 0), max(size + min(high, 0), 0)
        source.append(slice(first, max(last, first)))
        target.append(slice(first + low, max(last, first) + low))
    y[tuple(target)] = x[tuple(source)]
    return y


def _source(size: int, low: int, high: int, mode: str) -> Array:
    """For each place along a padded axis, where its element comes from in the unpadded one."""
    first, last = max(-low, 0), size + min(high, 0)
    count = last - first
    if count <= 0:
        raise RunError(f"mode {mode} has nothing to repeat in an axis of size {max(count, 0)}")
    place = np.arange(-max(low, 0), count + max(high, 0), dtype=INT64)
    if mode == "edge":
        place = np.clip(place, 0, count - 1)
    elif mode == "wrap":
        place = place % count
    else:
        period = max(2 * (count - 1), 1)
        place = place % period
        place = np.minimum(place, period - place) if count > 1 else np.zeros_like(place)
    return place + first
