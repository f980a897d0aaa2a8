"""RoiAlign and MaxRoiPool: fixed-size features of regions of an image.

RoiAlign samples each cell of a region on a grid, by bilinear interpolation.  The mean of the samples is linear in the
rows and in the columns of the image, so each region is two small matrix products with what the grid touches.  The
maximum, which ONNX takes over the four weighted pixels of every sample, is a gather; so is the mean over an image with
infinities or NaN, which a product with a zero weight would spread.
Source: the ONNX operator texts and R-CNN's (He and others, Mask R-CNN, 2017).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import DOUBLE, INT64, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints

REGIONS = 64
"""Regions whose tables are made at once, which bounds their memory."""

MOST_SAMPLES = 1 << 14
"""No cell is sampled more often than this along one axis: regions are far smaller than 16,384 pixels a cell."""


def _check_regions(x: Shape | None, rois: Shape | None, columns: int) -> Dim:
    """The number of regions, after the ranks are checked."""
    expect(x is None or len(x) == 4, f"the input {show_shape(x)} is not [batch, channels, height, width]")
    if rois is None:
        return None
    fits = len(rois) == 2 and (rois[1] == columns or not isinstance(rois[1], int))
    expect(fits, f"rois {show_shape(rois)} are not [regions, {columns}]")
    return rois[0]


def _check_numbers(rois: Array, images: Array, batch: int) -> None:
    """Regions must be finite, and their images exist."""
    if not np.isfinite(rois).all():
        raise RunError(f"roi {int(np.argmin(np.isfinite(rois).all(axis=1)))} is not finite")
    outside = images[(images < 0) | (images >= batch)]
    if outside.size:
        raise RunError(f"batch index {int(outside[0])} is out of range for {batch} images")


# ---- RoiAlign


def _check_align(mode: str, coordinates: str, output: Ints, sampling_ratio: int) -> None:
    expect(mode in ("avg", "max"), f"mode {quote(mode)} is not avg or max")
    known = ("half_pixel", "output_half_pixel")
    expect(
        coordinates in known, f"coordinate_transformation_mode {quote(coordinates)} is not one of {', '.join(known)}"
    )
    expect(min(output) > 0, f"output {output[0]} x {output[1]} must be positive")
    expect(sampling_ratio >= 0, f"sampling_ratio {sampling_ratio} is negative")


def _align_info(
    x: Info,
    rois: Info,
    batch_indices: Info,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Info:
    _check_align(mode.lower(), coordinate_transformation_mode, (output_height, output_width), sampling_ratio)
    count = _check_regions(x.shape, rois.shape, 4)
    if batch_indices.shape is not None:
        expect(len(batch_indices.shape) == 1, f"batch_indices {show_shape(batch_indices.shape)} are not a vector")
        count = same_dim((count, batch_indices.shape[0]), f"{count} rois but {batch_indices.shape[0]} batch indices")
    channels = None if x.shape is None else x.shape[1]
    return tensor(common_dtype(x, rois), (count, channels, output_height, output_width))


@operator("RoiAlign", infer=_align_info)
@at_run_time
def roi_align(
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Array:
    """Pool ``x`` (N, C, H, W) over ``rois`` (R, 4), each x1, y1, x2, y2, into (R, C, output_height, output_width).

    How often a region of unknown size is sampled, and whether a sample is outside, is decided in the dtype of the rois
    as elsewhere; positions and weights are float64.  A sample more than one pixel outside the image counts as 0, and a
    region without samples gives 0.
    """
    mode = mode.lower()
    output = (output_height, output_width)
    _check_align(mode, coordinate_transformation_mode, output, sampling_ratio)
    _check_regions(x.shape, rois.shape, 4)
    say = f"{len(rois)} rois but batch indices of shape {list(batch_indices.shape)}"
    expect(batch_indices.shape == (len(rois),), say)
    _check_numbers(rois, batch_indices, x.shape[0])
    w, places = wide(x), wide(rois)
    number = places.dtype.type
    half_pixel = coordinate_transformation_mode == "half_pixel"
    ends = places * number(spatial_scale) - number(0.5 if half_pixel else 0.0)
    starts, sizes = ends[:, 1::-1], ends[:, :1:-1] - ends[:, 1::-1]  # rows before columns
    if not half_pixel:
        sizes = np.maximum(sizes, number(1))
    y = np.zeros((len(rois), x.shape[1], *output), w.dtype)
    pool = _weighted_sum if mode == "avg" and bool(np.isfinite(w).all()) else _gathered
    for low in range(0, len(y) if x.size else 0, REGIONS):
        some = slice(low, low + REGIONS)
        rows, columns = (
            _samples(starts[some, k], sizes[some, k], output[k], sampling_ratio, x.shape[2 + k]) for k in range(2)
        )
        pool(w, batch_indices[some], rows, columns, mode, y[some])
    return narrow(y, x)


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of some regions along one axis, in a row: region by region, cell by cell.

    A sample reads ``low`` and ``high`` with weights ``1 - share`` and ``share``, and nothing where not ``inside``.
    """

    size: int
    cells: int
    grid: Array
    region: Array
    cell: Array
    low: Array
    high: Array
    share: Array
    inside: Array

    def matrices(self) -> Array:
        """What each cell takes from each pixel for its mean, (regions, cells, size)."""
        row = (self.region * self.cells + self.cell) * self.size
        each = self.inside / np.maximum(self.grid, 1)[self.region]
        length = self.grid.size * self.cells * self.size
        total = np.bincount(row + self.low, each * (1 - self.share), length)
        total += np.bincount(row + self.high, each * self.share, length)
        return total.reshape(self.grid.size, self.cells, self.size)

    def taps(self, region: int) -> tuple[Array, Array, Array]:
        """What the cells of one region read: pixels, weights, and whether they count; (cells, 2 x samples) each."""
        own = slice(*np.searchsorted(self.region, (region, region + 1)))
        shape = (self.cells, -1)
        share = self.share[own]
        return (
            np.stack([self.low[own], self.high[own]], -1).reshape(shape),
            np.stack([1 - share, share], -1).reshape(shape),
            np.repeat(self.inside[own], 2).reshape(shape),
        )


def _samples(start: Array, length: Array, cells: int, sampling_ratio: int, size: int) -> _Samples:
    wanted = np.ceil(length / length.dtype.type(cells)) if sampling_ratio == 0 else np.full(start.shape, sampling_ratio)
    expect(not (wanted > MOST_SAMPLES).any(), f"a roi of {length.max():g} pixels is too large to be sampled")
    grid = np.maximum(wanted, 0).astype(INT64)
    region = np.repeat(np.arange(grid.size), grid * cells)
    cell, step = np.divmod(np.arange(region.size) - (np.cumsum(grid * cells) - grid * cells)[region], grid[region])
    about = _places(start[region], length[region], cells, cell, step, grid[region], start.dtype)
    inside = (about >= -1) & (about <= size)
    x = np.clip(_places(start[region], length[region], cells, cell, step, grid[region], DOUBLE), 0, size - 1)
    low = x.astype(INT64)
    return _Samples(size, cells, grid, region, cell, low, np.minimum(low + 1, size - 1), x - low, inside)


def _places(start: Array, length: Array, cells: int, cell: Array, step: Array, grid: Array, dtype: DType) -> Array:
    """Where the samples are, in the arithmetic of ``dtype``."""
    start, length, cell, step, grid = (v.astype(dtype) for v in (start, length, cell, step, grid))
    each = length / dtype.type(cells)
    return start + cell * each + (step + dtype.type(0.5)) * each / grid


def _weighted_sum(x: Array, which: Array, rows: _Samples, columns: _Samples, mode: str, y: Array) -> None:
    """Means by matrix products, into ``y`` (regions, channels, cells, cells)."""
    down, across = rows.matrices().astype(x.dtype), columns.matrices().astype(x.dtype)
    for region, image in enumerate(which):
        high, wide_ = _touched(down[region]), _touched(across[region])
        part = x[image][:, high][:, :, wide_]
        if part.size:
            lines = np.matmul(down[region][:, high], part)
            y[region] = (lines.reshape(-1, lines.shape[2]) @ across[region][:, wide_].T).reshape(y.shape[1:])


def _touched(weights: Array) -> Any:
    """The pixels with a weight: as a slice, or by number where most of those between them have none."""
    used = np.flatnonzero(weights.any(axis=0))
    if not used.size:
        return slice(0)
    dense = slice(int(used[0]), int(used[-1]) + 1)
    return dense if dense.stop - dense.start <= 2 * used.size else used


def _gathered(x: Array, which: Array, rows: _Samples, columns: _Samples, mode: str, y: Array) -> None:
    """Means, or maxima of single weighted pixels, into ``y`` (regions, channels, cells, cells)."""
    for region, image in enumerate(which):
        count = int(rows.grid[region] * columns.grid[region])
        if count == 0:
            continue
        across, across_weights, across_inside = columns.taps(region)
        left, right = int(across.min()), int(across.max()) + 1
        for cell, (down, weights, inside) in enumerate(zip(*rows.taps(region), strict=True)):
            lines = np.moveaxis(x[image][:, down, left:right], 0, -1)
            pixels = np.ascontiguousarray(lines)[:, across - left]  # (row taps, cells, column taps, channels)
            factors = (weights[:, None, None] * across_weights).astype(x.dtype)[..., None]
            counts = (inside[:, None, None] & across_inside)[..., None]
            with np.errstate(invalid="ignore"):
                pixels = np.where(counts, pixels * factors, x.dtype.type(0))
            found = pixels.max(axis=(0, 2)) if mode == "max" else pixels.sum(axis=(0, 2)) / count
            y[region, :, cell] = found.T


# ---- MaxRoiPool


def _pool_info(x: Info, rois: Info, *, pooled_shape: Ints, spatial_scale: float = 1.0) -> Info:
    count = _check_regions(x.shape, rois.shape, 5)
    expect(len(pooled_shape) == 2 and min(pooled_shape) > 0, f"pooled_shape {list(pooled_shape)} is not two sizes")
    return tensor(common_dtype(x, rois), (count, None if x.shape is None else x.shape[1], *pooled_shape))


@operator("MaxRoiPool", infer=_pool_info)
@at_run_time
def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Ints, spatial_scale: float = 1.0) -> Array:
    """Maxima of ``x`` (N, C, H, W) in the cells of ``rois`` (R, 5), each image, x1, y1, x2, y2 with both ends inside.

    Corners are rounded to pixels, halves away from 0, and cells to whole pixels, outwards; a cell outside the image
    gives 0.
    """
    _pool_info(tensor(x.dtype, x.shape), tensor(x.dtype, rois.shape), pooled_shape=pooled_shape)
    places = wide(rois)
    _check_numbers(places, places[:, 0], x.shape[0])
    scaled = places[:, 1:] * places.dtype.type(spatial_scale)
    corners = np.copysign(np.floor(np.abs(scaled) + places.dtype.type(0.5)), scaled)
    y = np.zeros((len(rois), x.shape[1], *pooled_shape), x.dtype)
    rows, columns = (_cells(corners[:, k::2], pooled_shape[1 - k], x.shape[3 - k]) for k in (1, 0))
    for region, image in enumerate(places[:, 0].astype(INT64)):
        down, across = rows[region], columns[region]
        part = x[image, :, down.min() : down.max(), across.min() : across.max()]
        lines = _maxima(np.ascontiguousarray(np.moveaxis(part, 0, -1)), 0, down - down.min())
        y[region] = np.moveaxis(_maxima(lines, 1, across - across.min()), -1, 0)
    return y


def _maxima(x: Array, axis: int, cells: Array) -> Array:
    """The maximum over each of ``cells`` along ``axis``, 0 where the cell is empty."""
    y = np.zeros((*x.shape[:axis], len(cells), *x.shape[axis + 1 :]), x.dtype)
    lead: Any = (slice(None),) * axis
    for number, (low, high) in enumerate(cells):
        if low < high:
            np.max(x[(*lead, slice(low, high))], axis=axis, out=y[(*lead, number)])
    return y


def _cells(ends: Array, cells: int, size: int) -> Array:
    """The pixels from and to which each cell of each region reaches, (regions, cells, 2)."""
    number = ends.dtype.type
    each = (np.maximum(ends[:, 1] - ends[:, 0] + number(1), number(1)) / number(cells))[:, None]
    step = np.arange(cells, dtype=ends.dtype)
    reach = np.stack([np.floor(step * each), np.ceil((step + number(1)) * each)], axis=-1)
    return np.clip(reach + ends[:, :1, None], 0, size).astype(INT64)
