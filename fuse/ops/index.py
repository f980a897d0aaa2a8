"""Operators that pick elements by position and put them back: slices, gathers, scatters, masks.

Indices are checked against the size they index before use, so that an index out of range is an error and never wraps
around.  Many-dimensional indices are turned into row numbers of a reshaped array first: NumPy then works on one flat
index, which is its fast path, for reductions (``ufunc.at``) above all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import INT64, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, element, in_range, whole
from fuse.ops.infer import common_dtype, normal_axes, normal_axis, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

L = Trait.LAYOUT


# ---- slices


def window(size: int, start: int, end: int, step: int) -> slice:
    """The Python slice for one axis: negative bounds count from the end, then both are clamped as ONNX says.

    ONNX clamps a start before the first element to the first even where the step is negative; Python does not.
    """
    expect(step != 0, "step is 0")
    start, end = start + size * (start < 0), end + size * (end < 0)
    last, low, high = (size, 0, size) if step > 0 else (size - 1, -1, size - 1)
    start, end = min(max(start, 0), last), min(max(end, low), high)
    return slice(start, None if end < 0 else end, step)


def _window_dim(size: Dim, start: Dim, end: Dim, step: int) -> Dim:
    """The length of a window whose size or bounds may be symbolic; None where it depends on a clamp."""
    expect(step != 0, "step is 0")
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*window(size, start, end, step).indices(size)))
    if size is None or start is None or end is None:
        return None
    forward = step > 0 and start == 0 and (end == size or (isinstance(end, int) and end >= (1 << 31) - 1))
    backward = step < 0 and start == -1 and isinstance(end, int) and end <= -((1 << 31) - 1)
    return floordiv(size + (abs(step) - 1), abs(step)) if forward or backward else None


def _slice_axes(axes: Sequence[int] | None, starts: Sequence[object], others: Sequence[object], rank: int) -> list[int]:
    expect(len(others) == len(starts), f"{len(starts)} starts and {len(others)} ends")
    if axes is None:
        axes = range(len(starts))
    expect(len(axes) == len(starts), f"{len(starts)} starts and {len(axes)} axes")
    return list(normal_axes(axes, rank))


def _strides(steps: Sequence[int] | None, count: int) -> Sequence[int]:
    expect(steps is None or len(steps) == count, f"{count} starts and {len(steps or ())} steps")
    return (1,) * count if steps is None else steps


def _slice_info(x: Info, starts: Info, ends: Info, axes: Info | None = None, steps: Info | None = None) -> Info:
    if x.shape is None:
        return tensor(x.dtype)
    if starts.dims is None or ends.dims is None or (axes is not None and axes.ints is None):
        named = range(len(x.shape)) if axes is None or axes.ints is None else normal_axes(axes.ints, len(x.shape))
        return tensor(x.dtype, [None if i in named else d for i, d in enumerate(x.shape)])
    order = _slice_axes(None if axes is None else axes.ints, starts.dims, ends.dims, len(x.shape))
    strides = _strides(None if steps is None else steps.ints, len(order)) if steps is None or steps.ints else None
    dims = list(x.shape)
    for k, axis in enumerate(order):
        step = None if strides is None else strides[k]
        dims[axis] = None if step is None else _window_dim(dims[axis], starts.dims[k], ends.dims[k], step)
    return tensor(x.dtype, dims)


@operator("Slice", infer=_slice_info, traits=L)
@at_run_time
def slice_(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    first, last = whole(starts), whole(ends)
    order = _slice_axes(None if axes is None else whole(axes), first, last, x.ndim)
    strides = _strides(None if steps is None else whole(steps), len(order))
    cut = [slice(None)] * x.ndim
    for axis, start, end, step in zip(order, first, last, strides, strict=True):
        cut[axis] = window(x.shape[axis], start, end, step)
    return x[tuple(cut)]


# ---- gathers


def _gather_info(x: Info, indices: Info, *, axis: int = 0) -> Info:
    if x.shape is None:
        return tensor(x.dtype)
    place = normal_axis(axis, len(x.shape))
    size = x.shape[place]
    if isinstance(size, int) and indices.ints is not None:
        in_range(np.array(indices.ints, dtype=INT64), size)
    if indices.shape is None:
        return tensor(x.dtype)
    return tensor(x.dtype, (*x.shape[:place], *indices.shape, *x.shape[place + 1 :]))


@operator("Gather", infer=_gather_info, traits=L)
@at_run_time
def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    place = normal_axis(axis, x.ndim)
    in_range(indices, x.shape[place])
    return element(np.take(x, indices, axis=place), x.dtype)


def _fits(indices: Shape, data: Shape, axis: int, what: str) -> None:
    """Raise unless ``indices`` has the rank of ``data`` and is nowhere longer, ``axis`` excepted."""
    say = f"{what} of shape {show_shape(indices)} do not fit data of shape {show_shape(data)}"
    expect(len(indices) == len(data), say)
    for i, (count, size) in enumerate(zip(indices, data, strict=True)):
        known = isinstance(count, int) and isinstance(size, int)
        expect(i == axis or not known or count <= size, say)  # type: ignore[operator]


def _gather_elements_info(x: Info, indices: Info, *, axis: int = 0) -> Info:
    if x.shape is not None:
        place = normal_axis(axis, len(x.shape))
        if indices.shape is not None:
            _fits(indices.shape, x.shape, place, "indices")
    return tensor(x.dtype, indices.shape)


@operator("GatherElements", infer=_gather_elements_info, traits=L)
@at_run_time
def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """``out[i, j] = x[indices[i, j], j]`` for axis 0; where the indices are shorter, the rest of ``x`` is not read."""
    place = normal_axis(axis, x.ndim)
    _fits(indices.shape, x.shape, place, "indices")
    in_range(indices, x.shape[place])
    part = x[tuple(slice(None) if i == place else slice(n) for i, n in enumerate(indices.shape))]
    return np.take_along_axis(part, indices.astype(INT64, copy=False), axis=place)


def _rows(indices: Array, sizes: Sequence[int]) -> Array:
    """Index tuples (the last axis of ``indices``) as row numbers of an array whose leading dims are ``sizes``."""
    rows = np.zeros(indices.shape[:-1], dtype=INT64)
    for i, size in enumerate(sizes):
        column = indices[..., i]
        in_range(column, size)
        rows = rows * size + np.where(column < 0, column + size, column)
    return rows


def _gather_nd_dims(x: Shape, indices: Shape, batch_dims: int) -> Shape | None:
    say = (
        f"indices of shape {show_shape(indices)} do not fit data of shape {show_shape(x)} with {batch_dims} batch dims"
    )
    expect(0 <= batch_dims < min(len(x), len(indices)), say)
    for a, b in zip(x[:batch_dims], indices[:batch_dims], strict=True):
        expect(not (isinstance(a, int) and isinstance(b, int)) or a == b, say)
    depth = indices[-1]
    if not isinstance(depth, int):
        return None
    expect(batch_dims + depth <= len(x), say)
    return (*indices[:-1], *x[batch_dims + depth :])


def _gather_nd_info(x: Info, indices: Info, *, batch_dims: int = 0) -> Info:
    if x.shape is None or indices.shape is None:
        return tensor(x.dtype)
    return tensor(x.dtype, _gather_nd_dims(x.shape, indices.shape, batch_dims))


@operator("GatherND", infer=_gather_nd_info, traits=L)
@at_run_time
def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    out: Any = _gather_nd_dims(x.shape, indices.shape, batch_dims)
    ends = batch_dims + indices.shape[-1]
    rows = _rows(indices, x.shape[batch_dims:ends])
    batch = math.prod(x.shape[:batch_dims])
    per_batch = math.prod(x.shape[batch_dims:ends])
    flat = x.reshape(batch * per_batch, *x.shape[ends:])
    offsets = np.arange(batch, dtype=INT64).reshape(*x.shape[:batch_dims], *(1,) * (rows.ndim - batch_dims))
    return element(np.take(flat, rows + offsets * per_batch, axis=0), x.dtype).reshape(out)


# ---- scatters

_REDUCE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _put(flat: Array, places: Array, updates: Array, reduction: str) -> None:
    """Write or reduce ``updates`` into the 1-D ``flat`` at ``places``, in order where one place comes twice."""
    if reduction == "none":
        flat[places] = updates
        return
    expect(reduction in _REDUCE, f"unknown reduction {reduction!r}")
    _REDUCE[reduction].at(flat, places, updates)


def _scatter_info(x: Info, indices: Info, updates: Info, *, axis: int = 0, reduction: str = "none") -> Info:
    expect(reduction == "none" or reduction in _REDUCE, f"unknown reduction {reduction!r}")
    if x.shape is not None:
        place = normal_axis(axis, len(x.shape))
        for given, what in ((indices, "indices"), (updates, "updates")):
            if given.shape is not None:
                _fits(given.shape, x.shape, place, what)
    return tensor(common_dtype(x, updates), x.shape)


@operator("ScatterElements", infer=_scatter_info)
@at_run_time
def scatter_elements(x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none") -> Array:
    """``out[indices[i, j], j] = f(out[...], updates[i, j])`` for axis 0, on a copy of ``x``."""
    place = normal_axis(axis, x.ndim)
    _fits(indices.shape, x.shape, place, "indices")
    say = f"indices of shape {list(indices.shape)} and updates of shape {list(updates.shape)} differ"
    expect(indices.shape == updates.shape, say)
    in_range(indices, x.shape[place])
    out = np.array(x, order="C")
    flat = np.zeros((1,) * x.ndim, dtype=INT64)
    for i, (count, size) in enumerate(zip(indices.shape, x.shape, strict=True)):
        own = np.arange(count, dtype=INT64).reshape([-1 if d == i else 1 for d in range(x.ndim)])
        flat = flat * size + (np.where(indices < 0, indices + size, indices) if i == place else own)
    places = np.broadcast_to(flat, indices.shape).reshape(-1)
    _put(out.reshape(-1), places, updates.reshape(-1), reduction)
    return out


def _scatter_old_info(x: Info, indices: Info, updates: Info, *, axis: int = 0) -> Info:
    return _scatter_info(x, indices, updates, axis=axis)


@operator("Scatter", infer=_scatter_old_info)
def scatter(x: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """ScatterElements without a reduction; removed from ONNX at opset 11."""
    out: Array = scatter_elements(x, indices, updates, axis=axis)
    return out


def _updates_shape(x: Shape, indices: Shape) -> Shape | None:
    expect(len(indices) >= 1, "indices must have at least one dim")
    depth = indices[-1]
    if not isinstance(depth, int):
        return None
    expect(depth <= len(x), f"index tuples of {depth} for data of shape {show_shape(x)}")
    return (*indices[:-1], *x[depth:])


def _scatter_nd_info(x: Info, indices: Info, updates: Info, *, reduction: str = "none") -> Info:
    expect(reduction == "none" or reduction in _REDUCE, f"unknown reduction {reduction!r}")
    if x.shape is not None and indices.shape is not None and updates.shape is not None:
        wanted = _updates_shape(x.shape, indices.shape)
        say = f"updates have shape {show_shape(updates.shape)}, expected is {show_shape(wanted)}"
        expect(wanted is None or len(wanted) == len(updates.shape), say)
        for a, b in zip(wanted or (), updates.shape, strict=False):
            expect(not (isinstance(a, int) and isinstance(b, int)) or a == b, say)
    return tensor(common_dtype(x, updates), x.shape)


@operator("ScatterND", infer=_scatter_nd_info)
@at_run_time
def scatter_nd(x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """``out[indices[i]] = f(out[indices[i]], updates[i])`` on a copy of ``x``, for each index tuple ``indices[i]``."""
    wanted = _updates_shape(x.shape, indices.shape)
    say = f"updates have shape {list(updates.shape)}, expected is {show_shape(wanted)}"
    expect(wanted == updates.shape, say)
    depth = indices.shape[-1]
    rows = _rows(indices, x.shape[:depth]).reshape(-1)
    out = np.array(x, order="C")
    inner = math.prod(x.shape[depth:])
    if reduction == "none":
        out.reshape(math.prod(x.shape[:depth]), inner)[rows] = updates.reshape(rows.size, inner)
        return out
    places = (rows[:, None] * inner + np.arange(inner, dtype=INT64)).reshape(-1)
    _put(out.reshape(-1), places, updates.reshape(-1), reduction)
    return out


# ---- masks and order


def _compress_info(x: Info, condition: Info, *, axis: int | None = None) -> Info:
    taken = None if condition.value is None else int(np.count_nonzero(condition.value))
    if axis is None:
        return tensor(x.dtype, (taken,))
    if x.shape is None:
        return tensor(x.dtype)
    place = normal_axis(axis, len(x.shape))
    return tensor(x.dtype, (*x.shape[:place], taken, *x.shape[place + 1 :]))


@operator("Compress", infer=_compress_info, traits=L)
@at_run_time
def compress(x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """The slices whose condition holds; beyond the condition's end none is taken."""
    expect(condition.ndim == 1, f"condition has shape {list(condition.shape)}, not one dim")
    data = x.reshape(-1) if axis is None else x
    place = normal_axis(axis or 0, data.ndim)
    taken = np.flatnonzero(condition)
    in_range(taken, data.shape[place], "condition true at")
    return np.take(data, taken, axis=place)


def _nonzero_info(x: Info) -> Info:
    return tensor(INT64, (x.rank, None))


@operator("NonZero", infer=_nonzero_info)
def nonzero(x: Array) -> Array:
    """Where the elements differ from zero, as a [rank, count] array; [0, count] for a scalar, unlike NumPy."""
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), dtype=INT64)
    return np.stack(np.nonzero(x)).astype(INT64, copy=False)


def _reverse_sequence_info(x: Info, sequence_lens: Info, *, batch_axis: int = 1, time_axis: int = 0) -> Info:
    expect({batch_axis, time_axis} == {0, 1}, f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1")
    expect(x.rank is None or x.rank >= 2, f"the input {show_shape(x.shape)} has fewer than two dims")
    return Info(x.type)


@operator("ReverseSequence", infer=_reverse_sequence_info, traits=L)
@at_run_time
def reverse_sequence(x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """The first ``sequence_lens[i]`` steps of batch entry i come in reverse, the others stay."""
    _reverse_sequence_info(tensor(x.dtype, x.shape), tensor(INT64), batch_axis=batch_axis, time_axis=time_axis)
    batch, time = x.shape[batch_axis], x.shape[time_axis]
    expect(sequence_lens.shape == (batch,), f"sequence_lens has shape {list(sequence_lens.shape)}, not [{batch}]")
    for length in whole(sequence_lens):
        expect(0 <= length <= time, f"sequence length {length} is outside [0, {time}]")
    steps = np.arange(time, dtype=INT64)[:, None]
    order = np.where(steps < sequence_lens, sequence_lens - 1 - steps, steps).astype(INT64)
    entries = np.arange(batch, dtype=INT64)
    return np.asarray(x[order, entries] if time_axis == 0 else x[entries[:, None], order.T])
