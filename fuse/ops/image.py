"""Col2Im, CenterCropPad and ImageDecoder: images put together, framed, and read from files.

Source: the ONNX operator texts.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError, UnsupportedError, quote
from fuse.ir.dims import Dim, floordiv, product
from fuse.ir.dtypes import BY_NAME, STRING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, whole
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import normal_axes, show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints, Window, make_window

# ---- Col2Im


def _folded(x: Shape | None, image: Sequence[Dim], block: Ints, window: Window) -> Shape:
    """The output's shape; ``ShapeError`` where the columns are not those of the image."""
    expect(len(image) == len(block), f"the image has {len(image)} axes and the block {len(block)}")
    expect(not any(isinstance(d, int) and d < 0 for d in image), f"negative size in {show_shape(tuple(image))}")
    if x is None:
        return (None, None, *image)
    expect(len(x) == 3, f"the input {show_shape(x)} is not [batch, channels x block, blocks]")
    taps = math.prod(block)
    whole_channels = not isinstance(x[1], int) or x[1] % taps == 0
    expect(whole_channels, f"{x[1]} rows are no whole number of channels for a block of {taps}")
    blocks = product(window.out_dims(image))
    fits = not (isinstance(blocks, int) and isinstance(x[2], int)) or blocks == x[2]
    expect(fits, f"{x[2]} blocks are given, the image {show_shape(tuple(image))} has {blocks}")
    return (x[0], None if x[1] is None else floordiv(x[1], taps), *image)


def _col2im_info(
    x: Info,
    image_shape: Info,
    block_shape: Info,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    dims, block = image_shape.dims, block_shape.ints
    if dims is not None and block is not None:
        window = make_window(None, block, strides, dilations, pads)
        return tensor(x.dtype, _folded(x.shape, dims, block, window))
    counts = [i.shape[0] for i in (image_shape, block_shape) if i.shape is not None and len(i.shape) == 1]
    rank = next((n for n in counts if isinstance(n, int)), None)
    spatial = dims if dims is not None else None if rank is None else (None,) * rank
    return tensor(x.dtype, None if spatial is None else (None if x.shape is None else x.shape[0], None, *spatial))


@operator("Col2Im", infer=_col2im_info)
@at_run_time
def col2im(
    x: Array,
    image_shape: Array,
    block_shape: Array,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Each column of ``x`` (N, C x block, blocks) is added to the image where its block lies.

    The blocks lie in rows from the first corner on, as those of a convolution; what falls into the padding is dropped.
    """
    expect(x.dtype != STRING, "strings have no sum")
    image, block = whole(image_shape), whole(block_shape)
    window = make_window(None, block, strides, dilations, pads)
    shape: Any = _folded(x.shape, image, block, window)
    blocks = tuple(d for d in window.out_dims(image) if isinstance(d, int))
    columns = wide(x).reshape(*shape[:2], *block, *blocks)
    padded = [begin + size + end for (begin, end), size in zip(window.pads, image, strict=True)]
    canvas = np.zeros((*shape[:2], *padded), columns.dtype)
    landing = window.slide(canvas, blocks)
    for tap in window.taps() if columns.size else ():
        here: Any = (slice(None), slice(None), *tap)
        landing[here] += columns[here]
    inside = (slice(begin, begin + size) for (begin, _), size in zip(window.pads, image, strict=True))
    return narrow(np.ascontiguousarray(canvas[(slice(None), slice(None), *inside)]), x)


# ---- CenterCropPad


def _framed(x: Shape, axes: Ints | None, target: Sequence[Dim]) -> tuple[Shape, tuple[int, ...]]:
    """The output's shape, and the axes that ``target`` speaks of."""
    which = normal_axes(range(len(x)) if axes is None else axes, len(x))
    expect(len(which) == len(target), f"{len(target)} sizes for {len(which)} axes")
    expect(not any(isinstance(d, int) and d < 0 for d in target), f"negative size in {show_shape(tuple(target))}")
    new = dict(zip(which, target, strict=True))
    return tuple(new.get(axis, dim) for axis, dim in enumerate(x)), which


def _center_info(x: Info, shape: Info, *, axes: Ints | None = None) -> Info:
    if x.shape is None:
        return tensor(x.dtype)
    if shape.dims is not None:
        return tensor(x.dtype, _framed(x.shape, axes, shape.dims)[0])
    which = normal_axes(range(len(x.shape)) if axes is None else axes, len(x.shape))
    return tensor(x.dtype, [None if axis in which else dim for axis, dim in enumerate(x.shape)])


@operator("CenterCropPad", infer=_center_info)
@at_run_time
def center_crop_pad(x: Array, shape: Array, *, axes: Ints | None = None) -> Array:
    """The middle of ``x``, or ``x`` in the middle of zeros; of an odd difference the larger half is at the end."""
    sizes: Any = _framed(x.shape, axes, whole(shape))[0]
    y = np.full(sizes, "" if x.dtype == STRING else 0, x.dtype)
    source, target = [], []
    for old, new in zip(x.shape, sizes, strict=True):
        common, cut, pad = min(old, new), max(old - new, 0) // 2, max(new - old, 0) // 2
        source.append(slice(cut, cut + common))
        target.append(slice(pad, pad + common))
    y[tuple(target)] = x[tuple(source)]
    return y


# ---- ImageDecoder

FORMATS = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
"""What ONNX lists, in Pillow's words; no other decoder is let near the data."""

COLOURS = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def _check_format(pixel_format: str) -> None:
    expect(pixel_format in COLOURS, f"pixel_format {quote(pixel_format)} is not one of {', '.join(COLOURS)}")


def _decoder_info(encoded: Info, *, pixel_format: str = "RGB") -> Info:
    _check_format(pixel_format)
    expect(encoded.rank in (None, 1), f"the encoded stream {show_shape(encoded.shape)} is not a vector")
    return tensor(BY_NAME["uint8"], (None, None, 1 if pixel_format == "Grayscale" else 3))


@operator("ImageDecoder", infer=_decoder_info)
@at_run_time
def image_decoder(encoded: Array, *, pixel_format: str = "RGB") -> Array:
    """The image in the bytes of ``encoded``, as uint8 (height, width, channels); an empty one where it cannot be read.

    16-bit grey keeps its upper byte, and transparency is dropped.  Needs Pillow.
    """
    _check_format(pixel_format)
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(encoded.tobytes()), formats=FORMATS) as image:
            if image.mode.startswith("I;16"):
                pixels = np.asarray(image) >> 8
                image = pillow.fromarray(pixels.astype(np.uint8))
            decoded = np.array(image.convert(COLOURS[pixel_format]))
    except pillow.DecompressionBombError as error:
        raise RunError(str(error)) from None
    except Exception:  # ONNX wants no error, whatever is wrong with the bytes
        decoded = np.zeros((0, 0) if pixel_format == "Grayscale" else (0, 0, 3), np.uint8)
    if pixel_format == "Grayscale":
        return decoded[..., None]
    return decoded if pixel_format == "RGB" else np.ascontiguousarray(decoded[..., ::-1])


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise UnsupportedError("ImageDecoder needs Pillow, which is not installed", hint="pip install pillow") from None
