"""GridSample and AffineGrid: an image read at any places, and the places that an affine map gives.

The image goes on for ever beyond its border (as zeros, as the border's pixels, or mirrored) and interpolation is the
same everywhere, as PyTorch and onnxruntime have it.  For each axis ``Taps`` say which pixels a place reads and with
what weights; one gather for each combination of taps, over all channels at once, does the rest.  Positions and weights
are float64, but nearest decides between pixels in the dtype of the grid, in which its ties were made.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import DOUBLE, INT64, STRING, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim, whole
from fuse.ops.cast import cast_to
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor

PADDINGS = ("zeros", "border", "reflection")

FAR = 2.0**40
"""A place as far from the image as this reads what one infinitely far reads."""

BLOCK_BYTES = 1 << 18
LEAST_PLACES = 1 << 10
"""Places are read a block at a time, so that its tables stay in the cache: so many bytes, but not fewer places."""


# ---- taps: what each place reads along one axis


@dataclass(frozen=True, slots=True)
class Taps:
    """``pixels`` (taps, places), their ``weights`` (None: one tap that copies), and which of them are ``outside``."""

    pixels: Array
    weights: Array | None
    outside: Array | None


def linear_taps(x: Array, size: int, padding: str = "zeros", corners: bool = False) -> Taps:
    """The two pixels around each place of ``x`` (float64, in pixels)."""
    low = np.floor(x)
    share = x - low
    return _extended(low + np.arange(2.0)[:, None], np.stack([1 - share, share]), size, padding, corners)


def _cubic_taps(x: Array, size: int, padding: str, corners: bool) -> Taps:
    """The four pixels around each place, weighted by Keys' convolution with a = -0.75."""
    low = np.floor(x)
    share, a = x - low, -0.75
    far, near = np.stack([share, 1 - share]) + 1, np.stack([share, 1 - share])
    far = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    near = ((a + 2) * near - (a + 3)) * near * near + 1
    weights = np.stack([far[0], near[0], near[1], far[1]])
    return _extended(low + np.arange(-1.0, 3.0)[:, None], weights, size, padding, corners)


def _nearest_taps(x: Array, size: int, padding: str, corners: bool) -> Taps:
    """The one pixel at the rounded place; a tie goes to the even one."""
    return _extended(np.rint(x).astype(DOUBLE)[None], None, size, padding, corners)


def _extended(pixels: Array, weights: Array | None, size: int, padding: str, corners: bool) -> Taps:
    """The pixels of the image that those of its endless extension show; a mirror is the last pixel's centre or edge."""
    outside = None
    if padding == "reflection":
        period = max(2 * size - 2 * corners, 1)
        pixels = np.mod(pixels, period)
        pixels = np.where(pixels < size, pixels, period - 1 + corners - pixels)
    elif padding == "zeros":
        outside = (pixels < 0) | (pixels >= size)
        outside = outside if outside.any() else None
    with np.errstate(invalid="ignore"):  # a NaN reads any pixel, with the weight NaN
        return Taps(np.clip(pixels, 0, size - 1).astype(INT64), weights, outside)


Maker = Callable[[Array, int, str, bool], Taps]
MODES: dict[str, Maker] = {"linear": linear_taps, "nearest": _nearest_taps, "cubic": _cubic_taps}


# ---- reading


def pixels_of(image: Array, zeros: bool) -> Array:
    """``image`` (channels, spatial...) as the (pixels, channels) that ``read`` takes; the last is what is outside."""
    flat = image.reshape(image.shape[0], -1).T
    pixels = np.empty((len(flat) + zeros, len(image)), image.dtype)
    pixels[: len(flat)] = flat
    pixels[len(flat) :] = nothing(image.dtype)
    return pixels


def read(pixels: Array, sizes: Sequence[int], axes: Sequence[Taps]) -> Array:
    """What one ``Taps`` a spatial axis, outermost first, reads in ``pixels`` of an image of ``sizes``.

    The result is (places, channels).  With the channels of a pixel side by side, as here, one place costs one copy.
    """
    beyond, stride = math.prod(sizes), 1
    steps: list[Array] = []
    for taps, size in zip(reversed(axes), reversed(sizes), strict=True):
        own = taps.pixels * stride
        if taps.outside is not None:  # clipped below, so that no other axis brings it back into the image
            np.copyto(own, beyond, where=taps.outside)
        steps.insert(0, own)
        stride *= size
    weights = [None if taps.weights is None else taps.weights.astype(pixels.real.dtype) for taps in axes]
    total: Array | None = None
    for chosen in itertools.product(*(range(len(step)) for step in steps)):
        places = functools.reduce(np.add, (step[tap] for tap, step in zip(chosen, steps, strict=True)))
        part = np.take(pixels, places, axis=0, mode="clip")
        factors = [own[tap] for tap, own in zip(chosen, weights, strict=True) if own is not None]
        if factors:
            part *= functools.reduce(np.multiply, factors)[:, None]
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def nothing(dtype: DType) -> Array:
    """What is outside of an image, as an array of rank 0."""
    return np.full((), "" if dtype == STRING else 0, dtype)


# ---- GridSample


def _sampled(x: Shape | None, grid: Shape | None, mode: str, padding: str) -> Shape | None:
    """The output's shape; ``ShapeError`` where input and grid do not fit each other."""
    expect(mode in MODES, f"mode {quote(mode)} is not one of {', '.join(MODES)}")
    expect(padding in PADDINGS, f"padding_mode {quote(padding)} is not one of {', '.join(PADDINGS)}")
    expect(x is None or len(x) > 2, f"the input {show_shape(x)} has no spatial axis")
    if x is None or grid is None:
        rank = x if x is not None else grid
        return None if rank is None else (rank[0], None if x is None else x[1], *(None,) * (len(rank) - 2))
    fits = len(grid) == len(x) and (not isinstance(grid[-1], int) or grid[-1] == len(x) - 2)
    say = f"a grid {show_shape(grid)} does not fit an input {show_shape(x)}"
    expect(fits, say)
    return (same_dim((x[0], grid[0]), say), x[1], *grid[1:-1])


def _grid_sample_info(
    x: Info, grid: Info, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Info:
    return tensor(x.dtype, _sampled(x.shape, grid.shape, mode, padding_mode))


@operator("GridSample", infer=_grid_sample_info)
@at_run_time
def grid_sample(
    x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """``x`` (N, C, spatial...) at the places of ``grid`` (N, out..., r), each given innermost axis first in [-1, 1].

    -1 and 1 are the centres of the corner pixels with ``align_corners``, their outer edges without.  Integers are
    interpolated in float64 and truncated.  A place that is NaN, or infinitely far among mirrors, gives NaN, and 0 in a
    dtype that has none.
    """
    shape: Any = _sampled(x.shape, grid.shape, mode, padding_mode)
    expect(x.dtype != STRING or mode == "nearest", f"strings have no {mode} interpolation")
    if 0 in shape or 0 in x.shape:
        expect(0 in shape or padding_mode == "zeros", f"an image {show_shape(x.shape)} has no border")
        return np.full(shape, nothing(x.dtype))
    whole_numbers = x.dtype.kind in "iub"
    summed = x.astype(DOUBLE) if whole_numbers and mode != "nearest" else wide(x)
    places = (wide(grid) if mode == "nearest" else grid.astype(DOUBLE)).reshape(shape[0], -1, grid.shape[-1])
    y = np.empty((*shape[:2], places.shape[1]), summed.dtype)
    step = max(LEAST_PLACES, BLOCK_BYTES // (y.itemsize * shape[1]))
    for image, at, target in zip(summed, places, y, strict=True):
        pixels = pixels_of(image, padding_mode == "zeros")
        for start in range(0, len(at), step):
            some = slice(start, start + step)
            target[:, some] = _read_places(pixels, image.shape[1:], at[some], mode, padding_mode, bool(align_corners)).T
    return (cast_to(y, x.dtype) if whole_numbers else narrow(y, x)).reshape(shape)


def _read_places(pixels: Array, sizes: Sequence[int], grid: Array, mode: str, padding: str, corners: bool) -> Array:
    axes, lost = [], np.zeros(len(grid), bool)
    for place, size in zip(grid.T[::-1], sizes, strict=True):
        with np.errstate(all="ignore"):
            x = (place + 1) / 2 * (size - 1) if corners else ((place + 1) * size - 1) / 2
            none = ~np.isfinite(x) if padding == "reflection" else np.isnan(x)
            x = np.where(none, 0, np.clip(x, -FAR, FAR) if padding != "reflection" else x)
        axes.append(MODES[mode](x, size, padding, corners))
        lost |= none
    y = read(pixels, sizes, axes)
    if lost.any():
        y[lost] = np.nan if y.dtype.kind in "fc" else nothing(y.dtype)
    return y


# ---- AffineGrid


def _affine_shape(theta: Shape | None, size: Sequence[Dim]) -> Shape:
    """The grid's shape, from ``size`` (N, C, spatial...)."""
    expect(len(size) in (4, 5), f"size has {len(size)} entries, not 4 or 5")
    rank = len(size) - 2
    expect(not any(isinstance(d, int) and d < 0 for d in size), f"negative size in {show_shape(tuple(size))}")
    if theta is None:
        return (size[0], *size[2:], rank)
    fits = len(theta) == 3 and all(
        d == n or not isinstance(d, int) for d, n in zip(theta[1:], (rank, rank + 1), strict=True)
    )
    say = f"theta {show_shape(theta)} does not fit size {show_shape(tuple(size))}"
    expect(fits, say)
    return (same_dim((theta[0], size[0]), say), *size[2:], rank)


def _affine_info(theta: Info, size: Info, *, align_corners: int = 0) -> Info:
    count = size.shape[0] if size.shape is not None and len(size.shape) == 1 else None
    dims = size.dims if size.dims is not None else (None,) * count if isinstance(count, int) else None
    return tensor(theta.dtype, None if dims is None else _affine_shape(theta.shape, dims))


@operator("AffineGrid", infer=_affine_info)
@at_run_time
def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Where ``theta`` (N, r, r + 1) maps each pixel of an image of ``size`` (N, C, spatial...): (N, spatial..., r).

    Pixels lie in [-1, 1] as GridSample has it.  The only pixel of an axis is at its centre, also with
    ``align_corners``, where ONNX does not say and PyTorch has it so.
    """
    shape: Any = _affine_shape(theta.shape, whole(size))
    rank = len(shape) - 2
    places = np.ones((*shape[1:-1], rank + 1), DOUBLE)
    for axis, length in enumerate(shape[1:-1]):
        steps = 2 * np.arange(length, dtype=DOUBLE) - (length - 1)
        each = steps / max(length - 1 if align_corners else length, 1)
        places[..., rank - 1 - axis] = each.reshape(-1, *(1,) * (rank - 1 - axis))
    mapped = np.matmul(places.reshape(-1, rank + 1), theta.astype(DOUBLE).swapaxes(1, 2))
    return mapped.astype(theta.dtype).reshape(shape)
