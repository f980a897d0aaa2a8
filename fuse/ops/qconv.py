"""Convolution of quantised images, and onnxruntime's convolutions whose channels come last.

Convolution runs on whole numbers in floating point (see ``fuse.ops.qmatmul``), so that the sums are exact and the
algorithms are those of Conv.  Padding is the zero point, which stands for 0.  Channels-last operators turn the axes,
compute, and turn them back.
Source: the ONNX operator texts, and onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.types import Shape, TensorType
from fuse.ops.bounds import at_run_time
from fuse.ops.conv import conv
from fuse.ops.elementwise import wide
from fuse.ops.qmatmul import ROOM, centred, reach, rescaled, single
from fuse.ops.quant import INT32
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor
from fuse.ops.window import Ints

# ---- channels last


def first(x: Array) -> Array:
    """(N, spatial..., C) as (N, C, spatial...)."""
    return np.moveaxis(x, -1, 1)


def last(x: Array) -> Array:
    """(N, C, spatial...) as (N, spatial..., C), laid out so."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def shape_first(shape: Shape | None) -> Shape | None:
    """What ``first`` does to a shape."""
    expect(shape is None or len(shape) >= 2, "the input needs a batch and channels")
    return None if shape is None else (shape[0], shape[-1], *shape[1:-1])


def shape_last(shape: Shape | None) -> Shape | None:
    """What ``last`` does to a shape."""
    return None if shape is None else (shape[0], *shape[2:], shape[1])


# ---- exact convolution


def integer_conv(x: Array, w: Array, x_zero: Array | None, w_zero: Array | None, **geometry: Any) -> Array:
    """Conv of ``x - x_zero`` with ``w - w_zero`` in int32; ``w_zero`` may be one an output channel."""
    origin = None if x_zero is None else single(x_zero, "the zero point of x")
    pixels = centred(x, origin)
    weights = centred(w, None if w_zero is None else by_output(w_zero, w, "the zero point of w"))
    parts = _parts(weights, reach(x.dtype, origin))
    if parts == 1:
        return conv(pixels, weights, **geometry).astype(np.int32)
    if not parts or x.shape[1] != w.shape[1]:  # groups, or channels that Conv refuses
        return conv(pixels.astype(np.float64), weights.astype(np.float64), **geometry).astype(np.int64).astype(np.int32)
    total, step = None, -(-w.shape[1] // parts)
    for start in range(0, w.shape[1], step):
        some = slice(start, start + step)
        sums = conv(np.ascontiguousarray(pixels[:, some]), np.ascontiguousarray(weights[:, some]), **geometry)
        total = sums.astype(np.int32) if total is None else total + sums.astype(np.int32)
    return np.asarray(total)


def _parts(weights: Array, largest: int) -> int:
    """In how many parts the input channels must be taken for sums that float32 holds; 0 where one channel is too much.

    The weights' own sums bound the results far tighter than their number does: 64 channels under a 3x3 kernel seldom
    need a second part.
    """
    sizes = np.abs(weights).sum(axis=tuple(range(2, weights.ndim)), dtype=np.float64)
    channels, parts = sizes.shape[1], 1
    while parts <= channels:
        starts = np.arange(0, channels, -(-channels // parts))
        if sizes.size == 0 or np.add.reduceat(sizes, starts, axis=1).max() * largest <= ROOM:
            return parts
        parts *= 2
    return 0


def by_output(p: Array, w: Array, what: str) -> Array:
    """A parameter of the weights, one or one an output channel, broadcast to (O, C/group, kernel...)."""
    if p.size == 1:
        return p.reshape(())
    expect(
        p.shape == w.shape[:1], f"{what} {list(p.shape)} is neither one nor one an output channel of {list(w.shape)}"
    )
    return p.reshape(-1, *(1,) * (w.ndim - 1))


def _conv_shape(x: Shape | None, w: Info, b: Info | None, geometry: dict[str, Any]) -> Shape | None:
    bias = None if b is None else tensor(None, b.shape)
    result: Info = OPERATORS["Conv"].infer(tensor(None, x), tensor(None, w.shape), bias, **geometry)  # type: ignore[misc]
    return result.shape


# ---- ConvInteger


def _conv_integer_info(
    x: Info, w: Info, x_zero: Info | None = None, w_zero: Info | None = None, **geometry: Any
) -> Info:
    return tensor(INT32, _conv_shape(x.shape, w, None, geometry))


@operator("ConvInteger", infer=_conv_integer_info)
@at_run_time
def conv_integer(
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Conv of ``x - x_zero`` (N, C, spatial...) with ``w - w_zero`` (O, C/group, kernel...), in int32."""
    geometry = {
        "auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    return integer_conv(x, w, x_zero, w_zero, **geometry)


# ---- QLinearConv


def _qlinear_conv_info(
    x: Info,
    x_scale: Info,
    x_zero: Info,
    w: Info,
    w_scale: Info,
    w_zero: Info,
    y_scale: Info,
    y_zero: Info,
    b: Info | None = None,
    *,
    channels_last: int = 0,
    **geometry: Any,
) -> Info:
    shape = _conv_shape(shape_first(x.shape) if channels_last else x.shape, w, b, geometry)
    return tensor(y_zero.dtype, shape_last(shape) if channels_last else shape)


@operator("QLinearConv", infer=_qlinear_conv_info)
@at_run_time
def qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Conv of quantised images; ``b`` holds int32 steps of ``x_scale * w_scale``.

    Weights may have one scale and zero point, or one an output channel.
    """
    geometry = {
        "auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    sums = integer_conv(x, w, x_zero, w_zero, **geometry)
    if b is not None:
        expect(b.shape == w.shape[:1], f"the bias is {list(b.shape)} for {w.shape[0]} output channels")
        sums += b.reshape(-1, *(1,) * (w.ndim - 2))
    scales = by_output(wide(w_scale), w, "the scale of w")
    factor = single(x_scale, "the scale of x") * (scales[..., 0] if scales.ndim else scales)
    factor = np.asarray(factor / single(y_scale, "the scale of y"))
    return rescaled(sums, factor, single(y_zero, "the zero point of y"), y_zero.dtype)


@operator("com.microsoft::QLinearConv", infer=_qlinear_conv_info)
@at_run_time
def contrib_qlinear_conv(
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    channels_last: int = 0,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """QLinearConv of images (N, C, spatial...) or, with ``channels_last``, (N, spatial..., C)."""
    geometry = {
        "auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    image = first(x) if channels_last else x
    y = qlinear_conv(image, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, b, **geometry)
    return last(y) if channels_last else np.asarray(y)


# ---- channels last in floating point


def _nhwc_info(x: Info, w: Info, b: Info | None = None, **geometry: Any) -> Info:
    turned = Info(TensorType(w.dtype, shape_first(w.shape)))
    return tensor(x.dtype, shape_last(_conv_shape(shape_first(x.shape), turned, b, geometry)))


def _nhwc_conv_info(x: Info, w: Info, b: Info | None = None, z: Info | None = None, **attrs: Any) -> Info:
    geometry = {name: value for name, value in attrs.items() if not name.startswith("activation")}
    return tensor(x.dtype, shape_last(_conv_shape(shape_first(x.shape), w, b, geometry)))


@operator("com.microsoft::NhwcConv", infer=_nhwc_info)
@at_run_time
def nhwc_conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Conv of ``x`` (N, spatial..., C) with ``w`` (O, kernel..., C/group): onnxruntime's tool turns both."""
    geometry = {
        "auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    return last(conv(first(x), first(w), b, **geometry))


@operator("com.microsoft::NhwcFusedConv", infer=_nhwc_conv_info)
@at_run_time
def nhwc_fused_conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """FusedConv of ``x`` and ``z`` (N, spatial..., C)."""
    attrs = {
        "activation": activation, "activation_params": activation_params, "auto_pad": auto_pad,
        "dilations": dilations, "group": group, "kernel_shape": kernel_shape, "pads": pads, "strides": strides,
    }  # fmt: skip
    fused = OPERATORS["com.microsoft::FusedConv"].kernel
    return last(np.asarray(fused(first(x), w, b, None if z is None else first(z), **attrs)))
