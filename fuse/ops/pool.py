"""Pooling: the maximum, mean or norm of what a window sees, and the way back from a maximum's place.

Maximum and sum over a box are maxima and sums along one axis after another, so the work grows with the sum of the
kernel's sizes and not with their product.  Padding is the lowest value for a maximum, zero for a sum.  A NaN in the
window makes the result NaN, also for the maximum (ONNX does not say; onnxruntime's answer depends on its code path).
Source: the ONNX operator texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dims import Dim
from fuse.ir.dtypes import INT64, Array
from fuse.ir.types import Shape
from fuse.ops.elementwise import narrow, wide
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints, Window, make_window, pad

# ---- what the windowed operators share


def _window(x: Shape | None, kernel: Ints, *rest: Any) -> Window:
    return make_window(None if x is None else len(x), kernel, *rest)


def _out_shape(x: Shape | None, window: Window) -> Shape | None:
    return None if x is None else (*x[:2], *window.out_dims(x[2:]))


def _out_sizes(x: Array, window: Window) -> tuple[int, ...]:
    return tuple(d for d in window.out_dims(x.shape[2:]) if isinstance(d, int))


def _reduce(x: Array, window: Window, out: Sequence[int], fill: Any, step: Callable[..., Array]) -> Array:
    """``step`` folded over each window of ``x`` padded with ``fill``, one axis after the other, on a fresh array."""
    y = pad(x, window.frame(x.shape[2:], out), fill)
    for axis, (size, stride, spread) in enumerate(zip(out, window.strides, window.dilations, strict=True)):
        lead = (slice(None),) * (2 + axis)
        starts = [tap * spread for tap in range(window.kernel[axis])]
        runs: list[Any] = [(*lead, slice(at, at + max((size - 1) * stride + 1, 0), stride)) for at in starts]
        result = step(y[runs[0]], y[runs[1]]) if len(runs) > 1 else y[runs[0]]
        for run in runs[2:]:
            step(result, y[run], out=result)
        y = result
    return np.array(y) if y.base is not None else y


def _counts(window: Window, sizes: Ints, out: Sequence[int], with_padding: bool) -> Array:
    """How many positions of the input (and of its padding) each window holds, shaped like the output's spatial axes.

    What a last window of ``ceil_mode`` covers beyond the end padding is never counted.
    """
    total = np.ones((), np.float64)
    axes = zip(sizes, out, window.kernel, window.strides, window.dilations, window.padding(sizes), strict=True)
    for size, o, taps, stride, spread, (begin, end) in axes:
        places = np.arange(o)[:, None] * stride + np.arange(taps) * spread - begin
        low, high = (-begin, size + end) if with_padding else (0, size)
        total = np.multiply.outer(total, ((places >= low) & (places < high)).sum(axis=1))
    return total


def _lowest(x: Array) -> Any:
    return np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf


# ---- MaxPool


def _max_pool_info(
    x: Info,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    n_outputs: int = 1,
) -> tuple[Info, Info]:
    shape = _out_shape(x.shape, _window(x.shape, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode))
    return tensor(x.dtype, shape), tensor(INT64, shape)


@operator("MaxPool", infer=_max_pool_info)
def max_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    n_outputs: int = 1,
) -> Array | tuple[Array, Array]:
    """Maxima of ``x`` (N, C, spatial...) and, if asked, their places in the flattened ``x``.

    With ``storage_order`` 1 the spatial axes count column by column in a place.
    """
    window = _window(x.shape, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    out = _out_sizes(x, window)
    if n_outputs == 1:
        return narrow(_reduce(wide(x), window, out, _lowest(wide(x)), np.maximum), x)
    return _max_with_places(x, window, out, storage_order)


def _max_with_places(x: Array, window: Window, out: tuple[int, ...], storage_order: int) -> tuple[Array, Array]:
    """The first of equal maxima in row-major order wins, and the first NaN wins over every number."""
    w, sizes = wide(x), x.shape[2:]
    frame = window.frame(sizes, out)
    shape = (*x.shape[:2], *out)
    seen = window.slide(pad(w, frame, _lowest(w)), out)
    inside = window.slide(pad(np.ones((1, 1, *sizes), bool), frame, False), out)
    best, which = np.full(shape, _lowest(w), w.dtype), np.full(shape, -1)
    for number, tap in enumerate(window.taps()):
        at: Any = (slice(None), slice(None), *tap)
        value = seen[at]
        better = (value > best) | (which < 0) | (np.isnan(value) & ~np.isnan(best))
        better &= inside[at]
        np.copyto(best, value, where=better)
        np.copyto(which, number, where=better)
    places = np.zeros(shape, np.int64)
    step = 1
    taps = np.unravel_index(np.maximum(which, 0), window.kernel)
    for axis in range(len(out)) if storage_order else reversed(range(len(out))):
        start = (np.arange(out[axis]) * window.strides[axis] - frame[axis][0]).reshape(
            -1, *(1,) * (len(out) - 1 - axis)
        )
        places += (start + taps[axis] * window.dilations[axis]) * step
        step *= sizes[axis]
    places += (np.arange(x.shape[0] * x.shape[1]) * math.prod(sizes)).reshape(*x.shape[:2], *(1,) * len(out))
    return narrow(best, x), np.where(which < 0, -1, places)


# ---- AveragePool, LpPool


def _average_pool_info(
    x: Info,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    return tensor(
        x.dtype, _out_shape(x.shape, _window(x.shape, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode))
    )


@operator("AveragePool", infer=_average_pool_info)
def average_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Means of what the windows see of ``x``, or of ``x`` and its padding with ``count_include_pad``.

    A window that holds padding alone gives 0.
    """
    window = _window(x.shape, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    out = _out_sizes(x, window)
    y = _reduce(wide(x), window, out, 0, np.add)
    y /= np.maximum(_counts(window, x.shape[2:], out, bool(count_include_pad)), 1).astype(y.dtype)
    return narrow(y, x)


def _lp_pool_info(
    x: Info,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    return tensor(
        x.dtype, _out_shape(x.shape, _window(x.shape, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode))
    )


@operator("LpPool", infer=_lp_pool_info)
def lp_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """The p-norm of what each window sees."""
    window = _window(x.shape, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    y = _reduce(_powers(wide(x), p), window, _out_sizes(x, window), 0, np.add)
    return narrow(_root(y, p), x)


def _powers(x: Array, p: float) -> Array:
    """|x| to the p."""
    if p == 2:
        return np.square(x)
    size = np.abs(x)
    return size if p == 1 else np.power(size, x.dtype.type(p))


def _root(y: Array, p: float) -> Array:
    if p == 2:
        return np.sqrt(y)
    return y if p == 1 else np.power(y, y.dtype.type(1 / p))


# ---- over all of a channel


def _global_info(x: Info, **_: Any) -> Info:
    expect(x.shape is None or len(x.shape) >= 2, f"the input needs batch and channel, its rank is {x.rank}")
    return tensor(x.dtype, None if x.shape is None else (*x.shape[:2], *(1,) * (len(x.shape) - 2)))


def _spatial(x: Array) -> tuple[int, ...]:
    expect(x.ndim >= 2, f"the input needs batch and channel, its rank is {x.ndim}")
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool", infer=_global_info)
def global_average_pool(x: Array) -> Array:
    """The mean of each channel."""
    return narrow(np.asarray(np.mean(wide(x), axis=_spatial(x), keepdims=True)), x)


@operator("GlobalMaxPool", infer=_global_info)
def global_max_pool(x: Array) -> Array:
    """The maximum of each channel; -inf where it is empty."""
    return np.asarray(np.max(x, axis=_spatial(x), keepdims=True, initial=_lowest(x)))


@operator("GlobalLpPool", infer=lambda x, *, p=2: _global_info(x))
def global_lp_pool(x: Array, *, p: int = 2) -> Array:
    """The p-norm of each channel."""
    return narrow(_root(np.asarray(np.sum(_powers(wide(x), p), axis=_spatial(x), keepdims=True)), p), x)


# ---- MaxUnpool


def _unpooled_dims(x: Shape, window: Window) -> Shape:
    """The input shape of the MaxPool that is undone, at its smallest."""
    found: list[Dim] = []
    for dim, stride, extent, (begin, end) in zip(x[2:], window.strides, window.extents, window.pads, strict=True):
        size = None if dim is None else (dim - 1) * stride + (extent - begin - end)
        expect(not isinstance(size, int) or size >= 0, f"pads {begin} and {end} leave an axis of {size}")
        found.append(size)
    return (*x[:2], *found)


def _max_unpool_info(
    x: Info,
    places: Info,
    output_shape: Info | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    window = _window(x.shape, kernel_shape, strides, None, pads)
    if output_shape is not None:
        return tensor(
            x.dtype, output_shape.dims if output_shape.dims is not None else (None,) * (len(kernel_shape) + 2)
        )
    return tensor(x.dtype, None if x.shape is None else _unpooled_dims(x.shape, window))


@operator("MaxUnpool", infer=_max_unpool_info)
def max_unpool(
    x: Array,
    places: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Each element of ``x`` at its place, zeros elsewhere.

    Places count in the smallest shape that pools to ``x``; a larger ``output_shape`` only adds zeros behind.  That is
    what ONNX's own test case asserts; onnxruntime counts in ``output_shape`` instead.
    """
    expect(x.shape == places.shape, f"{list(x.shape)} elements but {list(places.shape)} places")
    window = _window(x.shape, kernel_shape, strides, None, pads)
    shape = tuple(d for d in _unpooled_dims(x.shape, window) if isinstance(d, int))
    small = np.zeros(math.prod(shape), x.dtype)
    outside = places[(places < 0) | (places >= small.size)]
    if outside.size:
        raise RunError(f"place {int(outside.flat[0])} is outside the {small.size} elements of the output")
    small[places.reshape(-1)] = x.reshape(-1)
    if output_shape is None:
        return small.reshape(shape)
    target = tuple(int(d) for d in output_shape)
    fits = len(target) == len(shape) and all(t >= s for t, s in zip(target, shape, strict=True))
    expect(fits, f"output_shape {list(target)} is smaller than {list(shape)}")
    y = np.zeros(target, x.dtype)
    y[tuple(slice(s) for s in shape)] = small.reshape(shape)
    return y
