"""Nearest, linear and cubic interpolation along one axis after another.

For each axis a small table says, for every output position, which inputs it reads and with what weights; applying the
tables is then the same for all modes.  Coordinates of linear and cubic interpolation are computed in float64.  Those of
nearest decide between neighbours: they are exact where sizes were given, and otherwise computed in float32, in which a
scale such as 4/3 was rounded and in which 4 / (4/3) is 3 again, as onnxruntime and PyTorch have it.
Source: the ONNX operator text of Resize.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import STRING, Array
from fuse.ops.cast import cast_to
from fuse.ops.elementwise import wide
from fuse.ops.record import expect

MODES = ("nearest", "linear", "cubic")
NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - x.dtype.type(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + x.dtype.type(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, slots=True)
class Axis:
    """One resized axis: its sizes, the scale between them, and the part ``start .. end`` of it that is shown.

    ``exact`` where the scale is the ratio of the sizes.
    """

    index: int
    size: int
    out: int
    scale: float
    exact: bool
    start: float = 0.0
    end: float = 1.0

    @property
    def length(self) -> float:
        """The output's length before it was rounded down.

        ONNX's own cases put the last input at its end (for ``align_corners`` and cropping); onnxruntime and PyTorch
        put it at the last output, which differs where a scale gives no whole size.
        """
        return self.out if self.exact else self.size * self.scale


@dataclass(frozen=True, slots=True)
class Style:
    """How to interpolate: the attributes of Resize that the tables depend on."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    nearest: str = "round_prefer_floor"
    antialias: bool = False
    exclude_outside: bool = False
    cubic_a: float = -0.75
    extrapolation: float = 0.0

    def check(self) -> None:
        """Raise ``ShapeError`` on a name that ONNX does not know."""
        for name, value, known in (
            ("mode", self.mode, MODES),
            ("coordinate_transformation_mode", self.coordinates, tuple(COORDINATES)),
            ("nearest_mode", self.nearest, tuple(NEAREST)),
        ):
            expect(value in known, f"{name} {quote(value)} is not one of {', '.join(known)}")


# ---- coordinates: where in the input each output position lies


def _unscale(x: Array, axis: Axis) -> Array:
    return x * axis.size / axis.out if axis.exact else x / x.dtype.type(axis.scale)


def _half_pixel(x: Array, axis: Axis) -> Array:
    half = x.dtype.type(0.5)
    return _unscale(x + half, axis) - half


def _half_pixel_symmetric(x: Array, axis: Axis) -> Array:
    number = x.dtype.type
    adjustment = number(1) if axis.exact else number(axis.out) / (number(axis.scale) * number(axis.size))
    offset = number(axis.size / 2) * (1 - adjustment)
    return offset + _unscale(x + number(0.5), axis) - number(0.5)


def _align_corners(x: Array, axis: Axis) -> Array:
    return x * (axis.size - 1) / (axis.length - 1) if axis.length != 1 else np.zeros_like(x)


def _crop_and_resize(x: Array, axis: Axis) -> Array:
    if axis.length == 1:
        return np.full_like(x, 0.5 * (axis.start + axis.end) * (axis.size - 1))
    return axis.start * (axis.size - 1) + x * (axis.end - axis.start) * (axis.size - 1) / (axis.length - 1)


COORDINATES: dict[str, Callable[[Array, Axis], Array]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel": lambda x, axis: _half_pixel(x, axis) if axis.out > 1 else np.zeros_like(x),
    "tf_half_pixel_for_nn": lambda x, axis: _unscale(x + x.dtype.type(0.5), axis),
    "align_corners": _align_corners,
    "asymmetric": _unscale,
    "tf_crop_and_resize": _crop_and_resize,
}


# ---- tables: what each output position reads


@dataclass(frozen=True, slots=True)
class Table:
    """``indices`` and ``weights`` are (out, taps); ``weights`` is None where each position copies one input."""

    indices: Array
    weights: Array | None
    outside: Array | None


def _table(axis: Axis, style: Style) -> Table:
    kind = np.float32 if style.mode == "nearest" and not axis.exact else np.float64
    x = COORDINATES[style.coordinates](np.arange(axis.out, dtype=kind), axis)
    outside = (x < 0) | (x > axis.size - 1) if style.coordinates == "tf_crop_and_resize" else None
    if style.mode == "nearest":
        index = np.clip(NEAREST[style.nearest](x), 0, axis.size - 1).astype(np.int64)
        return Table(index[:, None], None, outside)
    reach, filter_ = (1, _triangle) if style.mode == "linear" else (2, _cubic(style.cubic_a))
    stretch = min(axis.scale, 1.0) if style.antialias else 1.0
    first = math.floor(-reach / stretch) + 1
    places = np.floor(x)[:, None] + np.arange(first, 2 - first)
    weights = filter_((places - x[:, None]) * stretch)
    if style.exclude_outside:
        weights = np.where((places < 0) | (places >= axis.size), 0.0, weights)
    if style.antialias or style.exclude_outside:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return Table(np.clip(places, 0, axis.size - 1).astype(np.int64), weights, outside)


def _triangle(distance: Array) -> Array:
    return np.maximum(1 - np.abs(distance), 0)


def _cubic(a: float) -> Callable[[Array], Array]:
    def convolve(distance: Array) -> Array:
        d = np.abs(distance)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return convolve


# ---- applying them


def interpolate(x: Array, axes: Sequence[Axis], style: Style) -> Array:
    """Resize ``x`` along ``axes``; axes that shrink most go first, so that the others have less to do.

    Weighted averages of integers are rounded and kept in range, as in ONNX's reference.
    """
    style.check()
    y = x if style.mode == "nearest" else _summable(x)
    outside: list[tuple[int, Array]] = []
    for axis in sorted(axes, key=lambda a: (a.out / max(a.size, 1), -a.index)):
        if axis.out == 0 or y.size == 0:
            y = np.zeros((*y.shape[: axis.index], axis.out, *y.shape[axis.index + 1 :]), y.dtype)
            continue
        table = _table(axis, style)
        y = _apply(y, axis.index, table)
        if table.outside is not None and table.outside.any():
            outside.append((axis.index, table.outside))
    for index, mask in outside:
        if not y.flags.owndata or not y.flags.writeable or y is x:
            y = y.copy()
        y[(slice(None),) * index + (mask,)] = style.extrapolation
    if y.dtype == x.dtype:
        return y if y is not x else x.copy()
    return cast_to(np.rint(y), x.dtype) if x.dtype.kind in "iu" else y.astype(x.dtype)


def _summable(x: Array) -> Array:
    """``x`` in a dtype in which weighted averages can be summed."""
    expect(x.dtype != STRING, "strings have no weighted averages")
    return x.astype(np.float64) if x.dtype.kind in "iub" else wide(x)


def _apply(x: Array, axis: int, table: Table) -> Array:
    if table.weights is None:
        return np.take(x, table.indices[:, 0], axis=axis)
    weights = table.weights.astype(x.dtype).reshape(*table.weights.shape, *(1,) * (x.ndim - 1 - axis))
    total: Array | None = None
    for tap in range(table.indices.shape[1]):
        if not table.weights[:, tap].any():
            continue
        part = np.take(x, table.indices[:, tap], axis=axis)
        part *= weights[:, tap]
        total = part if total is None else np.add(total, part, out=total)
    assert total is not None  # the weights of each position sum to 1
    return total
