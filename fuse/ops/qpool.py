"""Means and maxima of 8-bit images, as onnxruntime's quantised files have them.

A mean often lies half-way between two steps.  A window is therefore summed tap by tap in float32, in the order that
onnxruntime's kernels have; over whole channels the sum of the steps is exact and scaled once.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.infer import common_dtype, normal_axes
from fuse.ops.pool import max_pool
from fuse.ops.qconv import first, last, shape_first, shape_last
from fuse.ops.qmatmul import single
from fuse.ops.qpoint import real, settled
from fuse.ops.quant import to_integers
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor
from fuse.ops.window import Ints, Window, make_window, pad

# ---- windows


def _average_info(
    x: Info,
    x_scale: Info,
    x_zero: Info | None,
    y_scale: Info,
    y_zero: Info | None = None,
    *,
    kernel_shape: Ints,
    channels_last: int = 0,
    count_include_pad: int = 0,
    **window: Any,
) -> Info:
    image = shape_first(x.shape) if channels_last else x.shape
    attrs = {"kernel_shape": kernel_shape, "count_include_pad": count_include_pad, **window}
    pooled: Info = OPERATORS["AveragePool"].infer(tensor(x.dtype, image), **attrs)  # type: ignore[misc]
    return tensor(common_dtype(x, x_zero, y_zero), shape_last(pooled.shape) if channels_last else pooled.shape)


@operator("com.microsoft::QLinearAveragePool", infer=_average_info)
@at_run_time
def qlinear_average_pool(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """AveragePool.  The windows are summed tap by tap: means often lie half-way between two steps, and it is the order
    of the sum that decides which of them float32 arrives at.
    """
    image = first(x) if channels_last else x
    window = make_window(image.ndim, kernel_shape, strides, None, pads, auto_pad, ceil_mode)
    out = tuple(d for d in window.out_dims(image.shape[2:]) if isinstance(d, int))
    sums = _tap_sums(real(image, x_scale, x_zero), window, out)
    ones = np.ones((1, 1, *image.shape[2:]), sums.dtype)
    if count_include_pad:
        counts = _tap_sums(pad(ones, window.padding(image.shape[2:]), 1), _bare(window), out)
    else:
        counts = _tap_sums(ones, window, out)
    y = settled(sums / np.maximum(counts, 1), y_scale, y_zero, x)
    return last(y) if channels_last else y


def _bare(window: Window) -> Window:
    """The window without its padding, for an image that is padded already."""
    return make_window(None, window.kernel, window.strides, window.dilations, None, "NOTSET", int(window.ceil))


def _tap_sums(x: Array, window: Window, out: tuple[int, ...]) -> Array:
    """What each window holds, in the order of its taps."""
    seen = window.slide(pad(x, window.frame(x.shape[2:], out), 0), out)
    total = np.zeros((*x.shape[:2], *out), x.dtype)
    for tap in window.taps():
        place: Any = (slice(None), slice(None), *tap)
        total += seen[place]
    return total


# ---- over whole axes


def _global_info(x: Info, x_scale: Info, x_zero: Info, y_scale: Info, y_zero: Info, *, channels_last: int = 0) -> Info:
    image = shape_first(x.shape) if channels_last else x.shape
    pooled = None if image is None else (*image[:2], *(1,) * (len(image) - 2))
    return tensor(common_dtype(x, x_zero, y_zero), shape_last(pooled) if channels_last else pooled)


@operator("com.microsoft::QLinearGlobalAveragePool", infer=_global_info)
@at_run_time
def qlinear_global_average_pool(
    x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array, *, channels_last: int = 0
) -> Array:
    """The mean of each channel, from the exact sum of its steps."""
    expect(x.ndim >= 2, f"the input needs batch and channel, its rank is {x.ndim}")
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    return _mean(x, x_scale, x_zero, y_scale, y_zero, axes, True)


def _mean(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None,
    axes: tuple[int, ...],
    keepdims: bool,
) -> Array:
    count = math.prod(x.shape[a] for a in axes)
    origin = 0 if x_zero is None else int(single(x_zero, "the zero point of x"))
    sums = np.asarray(np.sum(x, axis=axes, dtype=np.int64, keepdims=keepdims)) - origin * count
    scale = single(x_scale, "the scale of x")
    factor = np.asarray(scale / (single(y_scale, "the scale of y") * scale.dtype.type(count)))
    q = np.asarray(sums.astype(factor.dtype) * factor)
    zero = None if y_zero is None else single(y_zero, "the zero point of y")
    return to_integers(q, zero, x.dtype if y_zero is None else y_zero.dtype)


def _reduced(shape: Shape, axes: Sequence[int], keepdims: int) -> tuple[tuple[int, ...], Shape]:
    gone = normal_axes(axes, len(shape)) if axes else tuple(range(len(shape)))
    kept = tuple(1 if i in gone else d for i, d in enumerate(shape) if keepdims or i not in gone)
    return gone, kept


def _reduce_mean_info(
    x: Info,
    x_scale: Info,
    x_zero: Info | None,
    y_scale: Info,
    y_zero: Info | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Info:
    return tensor(common_dtype(x, x_zero, y_zero), None if x.shape is None else _reduced(x.shape, axes, keepdims)[1])


@operator("com.microsoft::QLinearReduceMean", infer=_reduce_mean_info)
@at_run_time
def qlinear_reduce_mean(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    axes: Sequence[int],
    keepdims: int,
) -> Array:
    """The mean over ``axes`` (all where none is named), from the exact sum of the steps."""
    return _mean(x, x_scale, x_zero, y_scale, y_zero, _reduced(x.shape, axes, keepdims)[0], bool(keepdims))


# ---- maxima


def _nhwc_max_pool_info(x: Info, **window: Any) -> Info:
    pooled = OPERATORS["MaxPool"].infer(tensor(x.dtype, shape_first(x.shape)), **window)[0]  # type: ignore[misc]
    return tensor(x.dtype, shape_last(pooled.shape))


@operator("com.microsoft::NhwcMaxPool", infer=_nhwc_max_pool_info)
@at_run_time
def nhwc_max_pool(
    x: Array,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """MaxPool of ``x`` (N, spatial..., C), quantised or not: the order of steps is that of the numbers."""
    window = {
        "kernel_shape": kernel_shape, "auto_pad": auto_pad, "ceil_mode": ceil_mode, "dilations": dilations,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    return last(np.asarray(max_pool(first(x), **window)))
