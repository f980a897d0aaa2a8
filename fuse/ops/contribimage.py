"""Operators of the domain ``com.microsoft`` on images: sampling, cropping, and transposed convolution.

Source: onnxruntime's docs/ContribOperators.md; TensorFlow's text of CropAndResize.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, fits, in_range, whole
from fuse.ops.deconv import conv_transpose
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import agreed, ranked
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor
from fuse.ops.sample import grid_sample
from fuse.ops.window import Ints

#: The interpolations, by their older names.
MODES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


def _check_mode(mode: str, rank: int | None) -> None:
    expect(mode in MODES, f"mode {quote(mode)} is not one of {', '.join(MODES)}")
    expect(rank in (None, 4), f"the input needs 4 axes, it has {rank}")


def _sample_info(
    x: Info, grid: Info, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Info:
    _check_mode(mode, x.rank)
    infer: Any = OPERATORS["GridSample"].infer
    return infer(x, grid, align_corners=align_corners, mode=MODES[mode], padding_mode=padding_mode)


@operator("com.microsoft::GridSample", infer=_sample_info)
@at_run_time
def sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Array:
    """GridSample of images (N, C, H, W)."""
    _check_mode(mode, x.ndim)
    return np.asarray(grid_sample(x, grid, align_corners=align_corners, mode=MODES[mode], padding_mode=padding_mode))


# ---- ConvTransposeWithDynamicPads


def _pads_fit(x: Shape | None, pads: Shape | None) -> None:
    if x is not None:
        expect(len(x) > 2, f"the input needs batch, channel and a spatial axis, its rank is {len(x)}")
        fits("Pads", pads, (2 * (len(x) - 2),))


def _deconv_info(x: Info, w: Info, pads: Info | None = None, b: Info | None = None, **attrs: Any) -> Info:
    _pads_fit(x.shape, None if pads is None else pads.shape)
    infer: Any = OPERATORS["ConvTranspose"].infer
    known = None if pads is None else pads.ints
    made: Info = infer(x, w, b, pads=known, **attrs)
    if pads is None or known is not None or made.shape is None:
        return made
    return tensor(made.dtype, (*made.shape[:2], *(None,) * (len(made.shape) - 2)))


@operator("com.microsoft::ConvTransposeWithDynamicPads", infer=_deconv_info)
@at_run_time
def conv_transpose_with_dynamic_pads(
    x: Array,
    w: Array,
    pads: Array | None = None,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """ConvTranspose whose pads are an input."""
    _pads_fit(x.shape, None if pads is None else pads.shape)
    return np.asarray(
        conv_transpose(
            x, w, b, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape,
            output_padding=output_padding, pads=None if pads is None else whole(pads), strides=strides,
        )
    )  # fmt: skip


# ---- CropAndResize


def _crops_shape(x: Shape | None, rois: Shape | None, images: Shape | None, crop: tuple[Dim, ...]) -> Shape:
    ranked(x, (4,), "the input")
    ranked(rois, (2,), "rois")
    ranked(images, (1,), "batch_indices")
    expect(len(crop) == 2 and all(not isinstance(c, int) or c > 0 for c in crop), f"a crop of size {list(crop)}")
    agreed("the width of rois and 4", None if rois is None else rois[1], 4)
    number = agreed(
        "the numbers of rois and batch_indices",
        None if rois is None else rois[0],
        None if images is None else images[0],
    )
    return (number, None if x is None else x[1], *crop)


def _crop_info(
    x: Info,
    rois: Info,
    batch_indices: Info,
    crop_size: Info,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Info:
    expect(mode in ("bilinear", "nearest"), f"mode {quote(mode)} is not bilinear or nearest")
    crop = (None, None) if crop_size.dims is None else crop_size.dims
    return tensor(x.dtype, _crops_shape(x.shape, rois.shape, batch_indices.shape, crop))


@operator("com.microsoft::CropAndResize", infer=_crop_info)
@at_run_time
def crop_and_resize(
    x: Array,
    rois: Array,
    batch_indices: Array,
    crop_size: Array,
    *,
    extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Array:
    """Each box [y1, x1, y2, x2] of ``rois``, in units of the image from 0 to 1, resized corner to corner.

    What lies outside the image is ``extrapolation_value``.
    """
    expect(mode in ("bilinear", "nearest"), f"mode {quote(mode)} is not bilinear or nearest")
    size = whole(crop_size)
    _crops_shape(x.shape, rois.shape, batch_indices.shape, size)
    expect(not (batch_indices < 0).any(), f"batch index {int(batch_indices.min(initial=0))} is negative")
    in_range(batch_indices, len(x), "batch index")
    w = wide(x)
    boxes = wide(rois)
    rows = _places(boxes[:, 0], boxes[:, 2], x.shape[2], size[0])
    columns = _places(boxes[:, 1], boxes[:, 3], x.shape[3], size[1])
    image = batch_indices[:, None, None]
    outside = ~(_inside(rows, x.shape[2])[:, :, None] & _inside(columns, x.shape[3])[:, None, :])
    y = np.zeros((*outside.shape, x.shape[1]), w.dtype)
    for row, row_weight in _taps(rows, x.shape[2], mode):
        for column, column_weight in _taps(columns, x.shape[3], mode):
            weight = row_weight[:, :, None] * column_weight[:, None, :]
            y += w[image, :, row[:, :, None], column[:, None, :]] * weight[..., None].astype(w.dtype, copy=False)
    y[outside] = extrapolation_value
    return narrow(np.ascontiguousarray(np.moveaxis(y, -1, 1)), x)


def _places(low: Array, high: Array, size: int, count: int) -> Array:
    """Where the pixels of a crop lie along an axis, (rois, count)."""
    reach = low.dtype.type(size - 1)
    if count == 1:
        return ((low + high) * reach / 2)[:, None]
    step = (high - low) * reach / low.dtype.type(count - 1)
    return np.asarray((low * reach)[:, None] + np.arange(count, dtype=low.dtype) * step[:, None])


def _inside(places: Array, size: int) -> Array:
    return (places >= 0) & (places <= size - 1)


def _taps(places: Array, size: int, mode: str) -> list[tuple[Array, Array]]:
    """The pixels read along an axis, with their weights; places outside read the border, and are replaced after."""
    bound = np.where(_inside(places, size), places, 0)
    if mode == "nearest":
        return [(np.minimum(np.floor(bound + 0.5), size - 1).astype(np.int64), np.ones_like(places))]
    first = np.floor(bound)
    share = bound - first
    second = np.minimum(first + 1, size - 1)
    return [(first.astype(np.int64), 1 - share), (second.astype(np.int64), share)]
