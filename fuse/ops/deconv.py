"""Transposed convolution: every input element adds its multiple of the kernel to the output.

One matrix product gives what each input adds through each kernel position; shifted sums, one for each position, put it
in place on an unpadded canvas, and the padding is what is cut off.
Source: the ONNX operator text of ConvTranspose.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.conv import BAND_BYTES, conv_window
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype
from fuse.ops.matmul import product
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints, Window, ints


def _out_dims(window: Window, dims: Shape, output_padding: Ints | None, output_shape: Ints | None) -> Shape:
    """The output's spatial dims."""
    n = len(window.kernel)
    for name, values in (("output_padding", output_padding), ("output_shape", output_shape)):
        if values is not None:
            expect(len(values) == n, f"{name} has {len(values)} entries but the kernel is {n}-D")
            expect(all(v >= 0 for v in values), f"{name} {list(values)} must not be negative")
    if output_shape is not None:
        return tuple(int(v) for v in output_shape)
    extra = output_padding if output_padding is not None else (0,) * n
    found: list[Dim] = []
    for dim, stride, extent, more, (begin, end) in zip(
        dims, window.strides, window.extents, extra, window.pads, strict=True
    ):
        if dim is None:
            found.append(None)
        elif window.auto.startswith("SAME"):
            found.append(dim * stride)
        else:
            out = (dim - 1) * stride + (extent + int(more) - begin - end)
            if isinstance(out, int):
                whole = out + begin + end
                expect(out >= 0 or dim == 0, f"pads {begin} and {end} cut more than the {whole} outputs there are")
                out = max(out, 0)
            found.append(out)
    return tuple(found)


def _begins(
    window: Window, sizes: Ints, out: Ints, output_padding: tuple[int, ...] | None, output_shape: tuple[int, ...] | None
) -> tuple[int, ...]:
    """How many outputs are cut off at the beginning of each axis."""
    if output_shape is None and not window.auto.startswith("SAME"):
        return tuple(begin for begin, _ in window.pads)
    extra = output_padding if output_padding is not None else (0,) * len(out)
    found = []
    for size, o, stride, extent, more in zip(sizes, out, window.strides, window.extents, extra, strict=True):
        total = max((size - 1) * stride + more + extent - o, 0)
        found.append(total // 2 if window.auto == "SAME_UPPER" else total - total // 2)
    return tuple(found)


def _info(
    x: Info,
    w: Info,
    b: Info | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    dtype = common_dtype(x, w, b)
    bias = None if b is None else b.shape
    ignored = None if output_shape is not None else pads
    window = conv_window(x.shape, w.shape, bias, auto_pad, dilations, group, kernel_shape, ignored, strides, True)
    if x.shape is None:
        return tensor(dtype)
    spatial: Shape = (None,) * (len(x.shape) - 2)
    if window is not None:
        spatial = _out_dims(window, x.shape[2:], output_padding, output_shape)
    channels = None if w.shape is None or w.shape[1] is None else w.shape[1] * group
    return tensor(dtype, (x.shape[0], channels, *spatial))


@operator("ConvTranspose", infer=_info)
def conv_transpose(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Transposed convolution of ``x`` (N, C, spatial...) with ``w`` (C, O/group, kernel...), plus ``b`` (O,).

    The result is a new, writable, C-contiguous array.
    """
    bias = None if b is None else b.shape
    lists = (ints(dilations), group, *(ints(v) for v in (kernel_shape, output_padding, output_shape, pads, strides)))
    window, out, begins = _geometry(x.shape, w.shape, bias, auto_pad, *lists)
    y = _scatter(wide(x), wide(w), window, group, out, begins)
    if b is not None:
        y += b.astype(y.dtype, copy=False).reshape(-1, *(1,) * len(out))
    return narrow(y, x)


@functools.lru_cache(maxsize=1024)
def _geometry(
    x: tuple[int, ...],
    w: tuple[int, ...],
    b: tuple[int, ...] | None,
    auto_pad: str,
    dilations: tuple[int, ...] | None,
    group: int,
    kernel_shape: tuple[int, ...] | None,
    output_padding: tuple[int, ...] | None,
    output_shape: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> tuple[Window, tuple[int, ...], tuple[int, ...]]:
    """The window, the output's spatial sizes, and what is cut off at their beginnings; kept from run to run."""
    ignored = None if output_shape is not None else pads
    window = conv_window(x, w, b, auto_pad, dilations, group, kernel_shape, ignored, strides, True)
    assert window is not None
    out = tuple(d for d in _out_dims(window, x[2:], output_padding, output_shape) if isinstance(d, int))
    return window, out, _begins(window, x[2:], out, output_padding, output_shape)


def _scatter(x: Array, w: Array, window: Window, group: int, out: tuple[int, ...], begins: tuple[int, ...]) -> Array:
    """Multiply a band of input rows with all kernel positions, and add each position's share where it belongs."""
    images, channels, sizes = x.shape[0], x.shape[1], x.shape[2:]
    outputs, taps, inner = w.shape[1] * group, math.prod(window.kernel), math.prod(sizes[1:])
    y = np.zeros((images, outputs, *out), x.dtype)
    if x.size == 0 or y.size == 0:
        return y
    full = [(n - 1) * s + e for n, s, e in zip(sizes, window.strides, window.extents, strict=True)]
    cut: Any = (0, slice(None), *(slice(begin, begin + o) for begin, o in zip(begins, out, strict=True)))
    sizes_needed = (max(f, begin + o) for f, begin, o in zip(full, begins, out, strict=True))
    canvas = np.empty((1, outputs, *sizes_needed), x.dtype)
    landing = window.slide(canvas, sizes)[0]  # (O, kernel..., spatial...)
    weights = w.reshape(group, channels // group, -1).swapaxes(1, 2)
    inputs = x.reshape(images, group, channels // group, -1)
    rows = max(1, BAND_BYTES // (x.dtype.itemsize * outputs * taps * inner))
    for image in range(images):
        canvas.fill(0)
        for row in range(0, sizes[0], rows):
            band = inputs[image, ..., row * inner : (row + rows) * inner]
            shares = product(weights, band).reshape(outputs, *window.kernel, -1, *sizes[1:])
            for tap in itertools.product(*map(range, window.kernel)):
                here: Any = (slice(None), *tap)
                landing[(*here, slice(row, row + rows))] += shares[here]
        y[image] = canvas[cut]
    return y
