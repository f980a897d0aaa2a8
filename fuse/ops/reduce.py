"""Reductions: sums, norms, extremes and their places along axes, running sums, and the largest k.

Half precision is accumulated in float32 and rounded once.  Over an empty set a reduction gives its neutral element as
the ONNX text says: 0 for sums and norms, 1 for products, minus infinity (or the least integer) for a maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import FLOATING, INT64, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, element, single, whole
from fuse.ops.elementwise import wide
from fuse.ops.infer import normal_axes, normal_axis, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

# ---- axes


def reduced_axes(rank: int, axes: Sequence[int] | None, noop: int) -> tuple[int, ...]:
    """The axes to reduce: all of them where none is named, unless ``noop`` says none.

    A scalar may be reduced along "axis 0", as NumPy and onnxruntime have it.
    """
    if not axes:
        return () if noop else tuple(range(rank))
    if rank == 0 and all(a in (0, -1) for a in axes):
        return ()
    return normal_axes(axes, rank)


def _kept(shape: Shape, axes: Sequence[int], keepdims: int) -> tuple[Dim, ...]:
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _reduce_info(x: Info, axes: Info | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Info:
    if x.shape is None:
        return tensor(x.dtype)
    if axes is None or axes.ints is not None:
        named = reduced_axes(len(x.shape), None if axes is None else axes.ints, noop_with_empty_axes)
        return tensor(x.dtype, _kept(x.shape, named, keepdims))
    if keepdims:
        return tensor(x.dtype, (None,) * len(x.shape))
    count = axes.shape[0] if axes.shape is not None and len(axes.shape) == 1 else None
    known = isinstance(count, int) and 0 < count <= len(x.shape)
    return tensor(x.dtype, (None,) * (len(x.shape) - count) if known else None)  # type: ignore[operator]


Step = Callable[[Array, tuple[int, ...], bool], Any]


def _reduction(op: str, traits: Trait = Trait.NONE) -> Callable[[Step], Step]:
    """Register ``step(x, axes, keepdims)`` as a reduction: it gets half precision as float32 and is rounded after."""

    def register(step: Step) -> Step:
        @operator(op, infer=_reduce_info, traits=traits)
        @at_run_time
        def kernel(x: Array, axes: Array | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Array:
            named = reduced_axes(x.ndim, None if axes is None else whole(axes), noop_with_empty_axes)
            with np.errstate(all="ignore"):
                y = element(step(wide(x), named, bool(keepdims)), x.dtype)
                return y if y.dtype == x.dtype else y.astype(x.dtype)

        return step

    return register


def _fold(ufunc: Any, x: Array, axes: tuple[int, ...], keepdims: bool, **options: Any) -> Any:
    return ufunc.reduce(x, axis=axes, keepdims=keepdims, **options)


# ---- sums, products, norms


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _fold(np.add, x, axes, keepdims, dtype=x.dtype)


_reduction("ReduceSum", Trait.SIZES)(_sum)


@_reduction("ReduceProd", Trait.SIZES)
def _prod(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _fold(np.multiply, x, axes, keepdims, dtype=x.dtype)


@_reduction("ReduceMean")
def _mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    """Integers are summed in 64 bits and the quotient is truncated; the mean of nothing is NaN (integers: 0)."""
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    if x.dtype.kind not in "iu":
        return _sum(x, axes, keepdims) / x.dtype.type(count)
    total = np.asarray(_fold(np.add, x, axes, keepdims))
    return np.sign(total) * (abs(total) // max(count, 1))


@_reduction("ReduceL1")
def _l1(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _sum(np.abs(x), axes, keepdims)


@_reduction("ReduceSumSquare")
def _sum_square(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return _sum(np.square(x), axes, keepdims)


@_reduction("ReduceL2")
def _l2(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.sqrt(_sum_square(x, axes, keepdims))


@_reduction("ReduceLogSum")
def _log_sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    return np.log(_sum(x, axes, keepdims))


@_reduction("ReduceLogSumExp")
def _log_sum_exp(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The log of the sum of exponentials, with the largest element taken out first so that none overflows."""
    top = np.asarray(_max(x, axes, True))
    top = np.where(np.isfinite(top), top, x.dtype.type(0))
    total = np.log(_sum(np.exp(x - top), axes, True)) + top
    return total if keepdims else np.squeeze(total, axis=axes)


# ---- extremes


def _bound(dtype: DType, sign: int) -> Any:
    """The least (``sign`` -1) or greatest (+1) value of ``dtype``, an infinity where it has one."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if sign < 0 else np.iinfo(dtype).max
    return sign > 0 if dtype.kind == "b" else sign * np.inf


def _extreme(ufunc: np.ufunc, sign: int) -> Step:
    def step(x: Array, axes: tuple[int, ...], keepdims: bool) -> Any:
        empty = any(x.shape[a] == 0 for a in axes)
        if empty and x.dtype != object:
            return _fold(ufunc, x, axes, keepdims, initial=_bound(x.dtype, sign))
        return _fold(ufunc, x, axes, keepdims)

    return step


_max = _reduction("ReduceMax", Trait.SIZES)(_extreme(np.maximum, -1))
_min = _reduction("ReduceMin", Trait.SIZES)(_extreme(np.minimum, +1))


def _arg_info(x: Info, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Info:
    if x.shape is None:
        return tensor(INT64)
    return tensor(INT64, _kept(x.shape, reduced_axes(len(x.shape), (axis,), 0), keepdims))


def _arg(find: Callable[..., Any]) -> Callable[..., Array]:
    @at_run_time
    def kernel(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        """The first (or last) place of the extreme; a NaN counts as one, as in NumPy."""
        if not reduced_axes(x.ndim, (axis,), 0):
            return np.zeros((), dtype=INT64)
        place = normal_axis(axis, x.ndim)
        expect(x.shape[place] > 0, f"axis {place} of shape {show_shape(x.shape)} is empty")
        data = wide(x)
        if select_last_index:
            found = x.shape[place] - 1 - np.asarray(find(np.flip(data, place), axis=place, keepdims=bool(keepdims)))
        else:
            found = find(data, axis=place, keepdims=bool(keepdims))
        return np.asarray(found, dtype=INT64)

    return kernel


operator("ArgMax", infer=_arg_info)(_arg(np.argmax))
operator("ArgMin", infer=_arg_info)(_arg(np.argmin))


# ---- running sums and products


def _running_info(x: Info, axis: Info, *, exclusive: int = 0, reverse: int = 0) -> Info:
    if x.shape is not None and axis.ints is not None and len(axis.ints) == 1:
        normal_axis(axis.ints[0], len(x.shape))
    return Info(x.type)


def _running(ufunc: np.ufunc, neutral: int) -> Callable[..., Array]:
    @at_run_time
    def kernel(x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        place = normal_axis(int(single(axis, "axis")), x.ndim)
        data = wide(np.flip(x, place) if reverse else x)
        with np.errstate(all="ignore"):
            y = ufunc.accumulate(data, axis=place, dtype=data.dtype)
        if exclusive:
            start = np.full_like(y[(slice(None),) * place + (slice(0, 1),)], neutral)
            y = np.concatenate((start, y[(slice(None),) * place + (slice(0, -1),)]), axis=place)
        y = np.flip(y, place) if reverse else y
        return y if y.dtype == x.dtype else y.astype(x.dtype)

    return kernel


operator("CumSum", infer=_running_info, traits=Trait.SIZES)(_running(np.add, 0))
operator("CumProd", infer=_running_info, traits=Trait.SIZES)(_running(np.multiply, 1))


# ---- the largest k


def _top_k_count(size: Dim, k: Dim) -> Dim:
    known = isinstance(size, int) and isinstance(k, int)
    expect(not isinstance(k, int) or k >= 0, f"k is {k}")
    expect(not known or k <= size, f"k is {k} but the axis has {size} elements")  # type: ignore[operator]
    return k


def _top_k_info(x: Info, k: Info, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Info, Info]:
    if x.shape is None:
        return tensor(x.dtype), tensor(INT64)
    place = normal_axis(axis, len(x.shape))
    count = _top_k_count(x.shape[place], k.dims[0] if k.dims is not None and len(k.dims) == 1 else None)
    dims = (*x.shape[:place], count, *x.shape[place + 1 :])
    return tensor(x.dtype, dims), tensor(INT64, dims)


@operator("TopK", infer=_top_k_info)
@at_run_time
def top_k(x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The ``k`` largest (or smallest) and their places, in order; of equal elements the one that comes first wins."""
    place = normal_axis(axis, x.ndim)
    count: Any = _top_k_count(x.shape[place], int(single(k, "k")))
    rows = np.moveaxis(x, place, -1)
    order = np.moveaxis(_leading(wide(rows), count, bool(largest)), -1, place)
    return np.take_along_axis(x, order, axis=place), order


def _leading(x: Array, k: int, largest: bool) -> Array:
    """Indices of the first ``k`` along the last axis; a short list out of a long one is cut out before it is sorted."""
    size = x.shape[-1]
    clean = x.dtype not in FLOATING or not np.isnan(x).any()
    if not (0 < k <= size // 8 and size >= 256 and clean):
        return _sorted(x, largest)[..., :k]
    limit = np.partition(x, size - k if largest else k - 1, axis=-1)[..., size - k if largest else k - 1, None]
    inside, equal = (x > limit if largest else x < limit), x == limit
    spare = k - np.count_nonzero(inside, axis=-1, keepdims=True)
    inside |= equal & (np.cumsum(equal, axis=-1) <= spare)
    kept = np.nonzero(inside)[-1].reshape(*x.shape[:-1], k)
    order = _sorted(np.take_along_axis(x, kept, axis=-1), largest)
    return np.take_along_axis(kept, order, axis=-1)


def _sorted(x: Array, largest: bool) -> Array:
    """A stable order along the last axis; descending is the ascending order of the reversed row, read backwards."""
    if not largest:
        return np.argsort(x, axis=-1, kind="stable")
    order = np.argsort(x[..., ::-1], axis=-1, kind="stable")
    return np.asarray(x.shape[-1] - 1 - order[..., ::-1])
