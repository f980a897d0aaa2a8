"""Resizing: nearest, linear and cubic interpolation along one axis after another.

For each axis a small table says, for every output position, which inputs it reads and with what weights; applying the
tables is then the same for all modes.  Coordinates of linear and cubic interpolation are computed in float64.  Those of
nearest decide between neighbours: they are exact where sizes were given, and otherwise computed in float32, in which a
scale such as 4/3 was rounded and in which 4 / (4/3) is 3 again, as onnxruntime and PyTorch have it.
Source: the ONNX operator texts of Resize and Upsample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import FLOATING, Array
from fuse.ir.types import Shape
from fuse.ops.elementwise import wide
from fuse.ops.infer import normal_axes, show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints

MODES = ("nearest", "linear", "cubic")
NEAREST: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - x.dtype.type(0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + x.dtype.type(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
POLICIES = ("stretch", "not_larger", "not_smaller")
LARGEST = 1 << 31
"""No axis is resized to this or beyond."""


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


def _interpolate(x: Array, axes: Sequence[Axis], style: Style) -> Array:
    """Resize ``x`` along ``axes``; axes that shrink most go first, so that the others have less to do.

    Weighted averages of integers are rounded and kept in range, as in ONNX's reference.
    """
    style.check()
    copies = style.mode == "nearest"
    y = x if copies else wide(x) if x.dtype in FLOATING else x.astype(np.float64)
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
    if x.dtype.kind in "iu":
        limits = np.iinfo(x.dtype)
        y = np.clip(np.rint(y), limits.min, limits.max)
    return y.astype(x.dtype)


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


# ---- sizes


def scaled_size(size: int, scale: float) -> int:
    """``floor(size * scale)`` with the product rounded to float32, in which ONNX keeps scales: 0.7 times 10 is 7."""
    return math.floor(float(np.float32(size) * np.float32(scale)))


def scaled_dim(dim: Dim, scale: float) -> Dim:
    """``scaled_size`` of a dim that may be symbolic: None where the scale is no simple fraction."""
    if dim is None or not (math.isfinite(scale) and scale > 0):
        return None
    if isinstance(dim, int):
        return scaled_size(dim, scale)
    above, below = float(np.float32(scale)).as_integer_ratio()
    return floordiv(dim * above, below) if below <= 1024 else None


def _check_scales(scales: Sequence[float], sizes: Ints) -> None:
    for scale, size in zip(scales, sizes, strict=True):
        if not (math.isfinite(scale) and scale > 0):
            raise RunError(f"scale {scale:g} is not a positive number")
        if size * scale >= LARGEST:
            raise RunError(f"scale {scale:g} makes an axis of {size} too large")


def _check_sizes(outs: Ints, sizes: Ints) -> None:
    for out, size in zip(outs, sizes, strict=True):
        if not 0 <= out < LARGEST:
            raise RunError(f"an axis cannot be resized to {out}")
        if size == 0 and out:
            raise RunError(f"an empty axis cannot be resized to {out}")


def _kept(sizes: Ints, wanted: Ints, policy: str) -> tuple[float, list[int]]:
    """The common scale that keeps the aspect ratio, and the sizes it gives, halves rounded up."""
    ratios = [w / s for w, s in zip(wanted, sizes, strict=True) if s]
    scale = (min if policy == "not_larger" else max)(ratios, default=1.0)
    return scale, [math.floor(scale * s + 0.5) for s in sizes]


# ---- Resize


def _given(x: Info | Array | None) -> bool:
    """True for an input that is there and not an empty tensor, which older models write for an absent one."""
    return x is not None and tuple(x.shape or (1,)) != (0,)


def _count(name: str, shape: Shape | None, axes: Ints, times: int = 1) -> None:
    if shape is None:
        return
    known = len(shape) == 1 and isinstance(shape[0], int)
    expect(len(shape) == 1, f"{name} must be a vector, it is {show_shape(shape)}")
    expect(not known or shape[0] == times * len(axes), f"{name} has {shape[0]} entries for {len(axes)} axes")


def _resize_info(
    x: Info, roi: Info | None = None, scales: Info | None = None, sizes: Info | None = None, **attrs: Any
) -> Info:
    axes, policy = attrs.get("axes"), attrs.get("keep_aspect_ratio_policy", "stretch")
    if x.shape is None:
        return tensor(x.dtype)
    which = normal_axes(axes if axes is not None else range(len(x.shape)), len(x.shape))
    dims: list[Dim] = list(x.shape)
    given: Sequence[Dim] = [None] * len(which)
    if sizes is not None and _given(sizes):
        _count("sizes", sizes.shape, which)
        given = sizes.dims if sizes.dims is not None else given
        if policy != "stretch":
            numbers = [(d, dims[a]) for d, a in zip(given, which, strict=True)]
            known = [(d, s) for d, s in numbers if isinstance(d, int) and isinstance(s, int)]
            whole = len(known) == len(numbers)
            given = _kept([s for _, s in known], [d for d, _ in known], policy)[1] if whole else [None] * len(which)
    elif scales is not None:
        _count("scales", scales.shape, which)
        if scales.value is not None and scales.value.size == len(which):
            given = [scaled_dim(dims[a], float(s)) for a, s in zip(which, scales.value, strict=True)]
    for axis, dim in zip(which, given, strict=True):
        dims[axis] = dim
    return tensor(x.dtype, dims)


@operator("Resize", infer=_resize_info)
def resize(
    x: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Resize ``axes`` of ``x`` by ``scales`` or to ``sizes``; ``roi`` (starts, then ends) only matters for cropping."""
    which = normal_axes(axes if axes is not None else range(x.ndim), x.ndim)
    whole = [x.shape[a] for a in which]
    expect(_given(scales) != _given(sizes), "exactly one of scales and sizes must be given")
    if scales is not None and _given(scales):
        _count("scales", scales.shape, which)
        factors = [float(s) for s in scales]
        _check_scales(factors, whole)
        outs = [scaled_size(n, s) for n, s in zip(whole, factors, strict=True)]
    else:
        assert sizes is not None
        _count("sizes", sizes.shape, which)
        outs = [int(s) for s in sizes]
        factors = [o / n if n else 1.0 for o, n in zip(outs, whole, strict=True)]
        expect(keep_aspect_ratio_policy in POLICIES, f"policy {quote(keep_aspect_ratio_policy)} is unknown")
        if keep_aspect_ratio_policy != "stretch":
            common, outs = _kept(whole, outs, keep_aspect_ratio_policy)
            factors = [common] * len(which)
    _check_sizes(outs, whole)
    exact = not _given(scales) and keep_aspect_ratio_policy == "stretch"
    shown = [(0.0, 1.0)] * len(which)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        expect(roi is not None and roi.size == 2 * len(which), f"cropping {len(which)} axes needs {2 * len(which)} roi")
        assert roi is not None
        shown = [(float(a), float(b)) for a, b in roi.reshape(2, -1).T]
    plan = [Axis(a, n, o, s, exact, *part) for a, n, o, s, part in zip(which, whole, outs, factors, shown, strict=True)]
    crops = coordinate_transformation_mode == "tf_crop_and_resize"
    style = Style(
        mode, coordinate_transformation_mode, nearest_mode, bool(antialias), bool(exclude_outside),
        cubic_coeff_a, extrapolation_value,
    )  # fmt: skip
    return _interpolate(x, [a for a in plan if crops or a.scale != 1.0 or a.out != a.size], style)
