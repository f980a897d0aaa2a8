"""Resize: the sizes that scales and policies give, and interpolation to them.

Source: the ONNX operator text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.infer import normal_axes, show_shape
from fuse.ops.interpolate import Axis, Style, interpolate
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints

POLICIES = ("stretch", "not_larger", "not_smaller")
CROP = "tf_crop_and_resize"

LARGEST = 1 << 31
"""No axis is resized to this or beyond."""

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


def _check_policy(policy: str) -> None:
    expect(policy in POLICIES, f"keep_aspect_ratio_policy {quote(policy)} is not one of {', '.join(POLICIES)}")


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
    x: Info,
    roi: Info | None = None,
    scales: Info | None = None,
    sizes: Info | None = None,
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
) -> Info:
    Style(mode, coordinate_transformation_mode, nearest_mode).check()
    _check_policy(keep_aspect_ratio_policy)
    if x.shape is None:
        return tensor(x.dtype)
    which = normal_axes(axes if axes is not None else range(len(x.shape)), len(x.shape))
    dims = list(x.shape)
    given: Sequence[Dim] = [None] * len(which)
    if sizes is not None and _given(sizes):
        _count("sizes", sizes.shape, which)
        if sizes.dims is not None:
            given = _sized([dims[a] for a in which], sizes.dims, keep_aspect_ratio_policy)
    elif scales is not None:
        _count("scales", scales.shape, which)
        if scales.value is not None and scales.value.size == len(which):
            given = [scaled_dim(dims[a], float(s)) for a, s in zip(which, scales.value, strict=True)]
    for axis, dim in zip(which, given, strict=True):
        dims[axis] = dim
    return tensor(x.dtype, dims)


def _sized(dims: Sequence[Dim], wanted: Sequence[Dim], policy: str) -> Sequence[Dim]:
    """The dims that the sizes ``wanted`` give; unknown where a policy needs numbers and there are none."""
    if policy == "stretch":
        return wanted
    numbers = [d for d in (*dims, *wanted) if isinstance(d, int)]
    if len(numbers) < len(dims) + len(wanted):
        return [None] * len(dims)
    return _kept(numbers[: len(dims)], numbers[len(dims) :], policy)[1]


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
    style = Style(
        mode, coordinate_transformation_mode, nearest_mode, bool(antialias), bool(exclude_outside),
        cubic_coeff_a, extrapolation_value,
    )  # fmt: skip
    style.check()
    which = normal_axes(axes if axes is not None else range(x.ndim), x.ndim)
    whole = [x.shape[a] for a in which]
    expect(_given(scales) != _given(sizes), "exactly one of scales and sizes must be given")
    factors, outs = _factors(whole, scales, sizes, keep_aspect_ratio_policy)
    _check_sizes(outs, whole)
    exact = not _given(scales) and keep_aspect_ratio_policy == "stretch"
    crops = coordinate_transformation_mode == CROP
    shown = _shown(roi, len(which)) if crops else [(0.0, 1.0)] * len(which)
    parts = zip(which, whole, outs, factors, shown, strict=True)
    plan = [Axis(a, size, out, scale, exact, *part) for a, size, out, scale, part in parts]
    return interpolate(x, [a for a in plan if crops or a.scale != 1.0 or a.out != a.size], style)


def _factors(
    whole: Ints, scales: Array | None, sizes: Array | None, policy: str
) -> tuple[Sequence[float], Sequence[int]]:
    """Each axis' scale and size, from whichever of ``scales`` and ``sizes`` is given."""
    _check_policy(policy)
    if scales is not None and _given(scales):
        _count("scales", scales.shape, whole)
        factors = [float(s) for s in scales]
        _check_scales(factors, whole)
        return factors, [scaled_size(n, s) for n, s in zip(whole, factors, strict=True)]
    assert sizes is not None
    _count("sizes", sizes.shape, whole)
    outs = [int(s) for s in sizes]
    if policy == "stretch":
        return [o / n if n else 1.0 for o, n in zip(outs, whole, strict=True)], outs
    common, outs = _kept(whole, outs, policy)
    return [common] * len(whole), outs


def _shown(roi: Array | None, axes: int) -> list[tuple[float, float]]:
    """The (start, end) of each axis that cropping shows."""
    expect(roi is not None and roi.size == 2 * axes, f"cropping {axes} axes needs {2 * axes} roi")
    assert roi is not None
    return [(float(start), float(end)) for start, end in roi.reshape(2, -1).T]
