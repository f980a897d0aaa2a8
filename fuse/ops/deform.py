"""DeformConv: a convolution whose kernel positions are moved by offsets, a set of them for each output.

The input is read at every moved position by linear interpolation, zeros beyond its border, into a column buffer; a
matrix product with the weights follows, as in Conv.
Source: the ONNX operator text; Dai and others, Deformable Convolutional Networks, 2017, and its second version, 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import DOUBLE, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.conv import conv_window
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.matmul import product
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.sample import FAR, linear_taps, pixels_of, read
from fuse.ops.window import Ints, Window

BLOCK_BYTES = 1 << 20
"""Column buffers stay below this, and so in the cache."""


def _shape(x: Shape, w: Shape, offset: Shape | None, mask: Shape | None, window: Window, groups: int) -> Shape:
    """The output's shape; ``ShapeError`` where offsets or mask do not fit it."""
    channels, taps = x[1], math.prod(window.kernel)
    expect(groups > 0, f"offset_group {groups} must be positive")
    divides = not isinstance(channels, int) or channels % groups == 0
    expect(divides, f"offset_group {groups} does not divide the {channels} channels")
    spatial, batch = window.out_dims(x[2:]), x[0]
    for given, name, count in ((offset, "offset", groups * taps * len(spatial)), (mask, "mask", groups * taps)):
        if given is not None:
            wanted: tuple[Dim, ...] = (batch, count, *spatial)
            say = f"{name} has shape {show_shape(given)}, expected is {show_shape(wanted)}"
            expect(len(given) == len(wanted), say)
            batch, _, *rest = (same_dim(pair, say) for pair in zip(wanted, given, strict=True))
            spatial = tuple(rest)
    return (batch, w[0], *spatial)


def _info(
    x: Info,
    w: Info,
    offset: Info,
    b: Info | None = None,
    mask: Info | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    dtype = common_dtype(x, w, offset, b, mask)
    bias = None if b is None else b.shape
    window = conv_window(x.shape, w.shape, bias, "NOTSET", dilations, group, kernel_shape, pads, strides)
    if x.shape is None or w.shape is None or window is None:
        return tensor(dtype)
    masks = None if mask is None else mask.shape
    return tensor(dtype, _shape(x.shape, w.shape, offset.shape, masks, window, offset_group))


@operator("DeformConv", infer=_info)
@at_run_time
def deform_conv(
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Convolve ``x`` (N, C, spatial...) with ``w`` (O, C/group, kernel...) and add ``b`` (O,).

    ``offset`` (N, offset_group x taps x r, out...) moves each tap, outermost axis first; ``mask`` (N, offset_group x
    taps, out...) scales what it reads.
    """
    bias = None if b is None else b.shape
    window = conv_window(x.shape, w.shape, bias, "NOTSET", dilations, group, kernel_shape, pads, strides)
    assert window is not None
    masks = None if mask is None else mask.shape
    images, outputs, *out = (
        int(d) for d in _shape(x.shape, w.shape, offset.shape, masks, window, offset_group) if isinstance(d, int)
    )
    taps, rank, area, channels = math.prod(window.kernel), len(out), math.prod(out), x.shape[1]
    source = wide(x)
    y = np.zeros((images, area, group, outputs // group), source.dtype)
    by_group = wide(w).reshape(group, outputs // group, channels // group, taps)
    weights = by_group.transpose(0, 3, 2, 1).reshape(group, -1, outputs // group)
    moved = offset.astype(DOUBLE).reshape(images, offset_group, taps, rank, area) + _starts(window, out)
    scales = None if mask is None else wide(mask).reshape(images, offset_group, taps, area)
    band = max(1, BLOCK_BYTES // (source.dtype.itemsize * max(channels, 1) * taps))
    for image in range(images if x.size and y.size else 0):
        parts = [pixels_of(part, True) for part in np.split(source[image], offset_group)]
        for start in range(0, area, band):
            some = slice(start, start + band)
            columns = _columns(parts, x.shape[2:], moved[image, ..., some])
            if scales is not None:
                columns *= np.moveaxis(scales[image, ..., some], 2, 0).swapaxes(1, 2)[..., None]
            split = np.moveaxis(columns.reshape(-1, taps, group, channels // group), 2, 0)
            y[image, some] = np.moveaxis(product(split.reshape(group, len(columns), -1), weights), 0, 1)
    result = np.ascontiguousarray(y.reshape(images, area, outputs).swapaxes(1, 2)).reshape(images, outputs, *out)
    if b is not None:
        result += b.astype(y.dtype).reshape(-1, *(1,) * rank)
    return narrow(result, x)


def _starts(window: Window, out: Ints) -> Array:
    """Where each tap of each output is before it is moved: (taps, axes, outputs)."""
    rank = len(out)
    found = np.empty((math.prod(window.kernel), rank, math.prod(out)), DOUBLE)
    axes = zip(out, window.kernel, window.strides, window.dilations, window.pads, strict=True)
    for axis, (o, k, stride, spread, (begin, _)) in enumerate(axes):
        place = np.add.outer(np.arange(k) * spread, np.arange(o) * stride - begin)
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = place.shape
        found[:, axis] = np.broadcast_to(place.reshape(shape), (*window.kernel, *out)).reshape(len(found), -1)
    return found


def _columns(parts: Sequence[Array], sizes: Ints, moved: Array) -> Array:
    """The pixels of each offset group read where ``moved`` (offset groups, taps, axes, outputs) says.

    The result is (outputs, taps, offset groups, C / offset groups).
    """
    _, taps, rank, count = moved.shape
    columns = np.empty((count, taps, len(parts), parts[0].shape[1]), parts[0].dtype)
    for number, pixels in enumerate(parts):
        places = (np.clip(moved[number, :, axis].T.reshape(-1), -FAR, FAR) for axis in range(rank))
        axes = [linear_taps(place, size) for place, size in zip(places, sizes, strict=True)]
        columns[:, :, number] = read(pixels, sizes, axes).reshape(count, taps, -1)
    return columns
