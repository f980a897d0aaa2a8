"""GridSample and AffineGrid: an image read at any places, and the places that an affine map gives.

The image goes on for ever beyond its border (as zeros, as the border's pixels, or mirrored) and interpolation is the
same everywhere, as PyTorch and onnxruntime have it.  For each axis ``Taps`` say which pixels a place reads and with
what weights; one gather for each combination of taps, over all channels at once, does the rest.  Positions and weights
are float64, but nearest decides between pixels in the dtype of the grid, in which its ties were made.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
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

BLOCK_BYTES = 1 << 20
"""A gather works on as many places as fill this: 2 M pixels of 3 channels take 55 ms so, 80 at once."""


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
    return Taps(np.clip(pixels, 0, size - 1).astype(INT64), weights, outside)


Maker = Callable[[Array, int, str, bool], Taps]
MODES: dict[str, Maker] = {"linear": linear_taps, "nearest": _nearest_taps, "cubic": _cubic_taps}


# ---- reading


def read(image: Array, axes: Sequence[Taps]) -> Array:
    """``image`` (channels, spatial...) read by one ``Taps`` a spatial axis, outermost first: (channels, places)."""
    channels, sizes = image.shape[0], image.shape[1:]
    flat = image.reshape(channels, -1)
    beyond = flat.shape[1]
    if any(taps.outside is not None for taps in axes):
        flat = np.concatenate([flat, np.broadcast_to(nothing(image.dtype), (channels, 1))], axis=1)
    count = axes[0].pixels.shape[1]
    out = np.empty((channels, count), image.dtype)
    step = max(1, BLOCK_BYTES // (image.dtype.itemsize * max(channels, 1)))
    buffer = np.empty((channels, min(step, count)), image.dtype)
    for start in range(0, count, step):
        target = out[:, start : start + step]
        for number, (places, weight) in enumerate(_terms(axes, sizes, slice(start, start + step), beyond)):
            part = buffer[:, : target.shape[1]] if number else target
            np.take(flat, places, axis=1, out=part, mode="clip")
            if weight is not None:
                part *= weight.astype(part.real.dtype)
            if number:
                target += part
    return out


def _terms(
    axes: Sequence[Taps], sizes: Sequence[int], some: slice, beyond: int
) -> Iterator[tuple[Array, Array | None]]:
    """For each combination of taps: where it reads in the flattened image (``beyond``: outside), and its weight."""
    for chosen in itertools.product(*(range(len(taps.pixels)) for taps in axes)):
        places: Any = 0
        outside: Array | None = None
        weight: Array | None = None
        for tap, taps, size in zip(chosen, axes, sizes, strict=True):
            places = places * size + taps.pixels[tap, some]
            if taps.outside is not None:
                out = taps.outside[tap, some]
                outside = out if outside is None else outside | out
            if taps.weights is not None:
                own = taps.weights[tap, some]
                weight = own if weight is None else weight * own
        yield places if outside is None else np.where(outside, beyond, places), weight


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
    places = wide(grid) if mode == "nearest" else grid.astype(DOUBLE)
    y = np.empty((*shape[:2], math.prod(shape[2:])), summed.dtype)
    for image in range(len(y)):
        y[image] = _read_places(summed[image], places[image], mode, padding_mode, bool(align_corners))
    return (cast_to(y, x.dtype) if whole_numbers else narrow(y, x)).reshape(shape)


def _read_places(image: Array, grid: Array, mode: str, padding: str, corners: bool) -> Array:
    axes, lost = [], np.zeros(math.prod(grid.shape[:-1]), bool)
    for place, size in zip(grid.reshape(-1, grid.shape[-1]).T[::-1], image.shape[1:], strict=True):
        with np.errstate(all="ignore"):
            x = (place + 1) / 2 * (size - 1) if corners else ((place + 1) * size - 1) / 2
            none = ~np.isfinite(x) if padding == "reflection" else np.isnan(x)
            x = np.where(none, 0, np.clip(x, -FAR, FAR) if padding != "reflection" else x)
        axes.append(MODES[mode](x, size, padding, corners))
        lost |= none
    y = read(image, axes)
    if lost.any():
        y[:, lost] = np.nan if y.dtype.kind in "fc" else nothing(y.dtype)
    return y


# ---- AffineGrid


def _check_affine(theta: Shape | None, size: Shape | None) -> int | None:
    """The number of spatial axes, None where neither input tells."""
    count = None
    if theta is not None:
        rows = theta[1] if len(theta) == 3 else 0
        fits = rows in (None, 2, 3) or not isinstance(rows, int)
        fits &= len(theta) == 3 and (theta[2] in (None, 3, 4) or not isinstance(theta[2], int))
        expect(fits, f"theta {show_shape(theta)} is not [N, 2, 3] or [N, 3, 4]")
        count = rows if isinstance(rows, int) else None
    if size is not None:
        expect(len(size) == 1, f"size {show_shape(size)} is not a vector")
        say = f"size has {size[0]} entries, a theta {show_shape(theta)} needs {count and count + 2}"
        entries = same_dim((size[0], None if count is None else count + 2), say)
        expect(not isinstance(entries, int) or entries in (4, 5), f"size has {entries} entries, not 4 or 5")
        count = entries - 2 if isinstance(entries, int) else count
    return count
