"""Operators of the default domain that ONNX never adopted, or dropped with its experiments, and onnxruntime still runs.

Models for phones and for Windows from the first years of ONNX carry them.
Source: the operator schemas of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.activation import softplus
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import ranked
from fuse.ops.index import slice_
from fuse.ops.infer import show_shape
from fuse.ops.record import OPERATORS, Info, Trait, expect, operator, tensor

E = Trait.ELEMENTWISE


@operator("Affine-1", infer=lambda x, alpha=1.0, beta=0.0: Info(x.type), traits=E)
def affine(x: Array, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
    """``alpha * x + beta``."""
    w = wide(x)
    return narrow(np.asarray(w * w.dtype.type(alpha) + w.dtype.type(beta)), x)


@operator("Scale-1", infer=lambda x, scale=1.0: Info(x.type), traits=E)
def scale(x: Array, *, scale: float = 1.0) -> Array:
    """``scale * x``."""
    return affine(x, alpha=scale)


def _factors(alpha: float | None, beta: float | None) -> tuple[float, float]:
    expect(alpha is not None and beta is not None, "needs alpha and beta")
    assert alpha is not None and beta is not None
    return alpha, beta


def _scaled_info(x: Info, *, alpha: float | None = None, beta: float | None = None) -> Info:
    _factors(alpha, beta)
    return Info(x.type)


@operator("ParametricSoftplus-1", infer=_scaled_info, traits=E)
@at_run_time
def parametric_softplus(x: Array, *, alpha: float | None = None, beta: float | None = None) -> Array:
    """``alpha * log(1 + exp(beta * x))``."""
    outer, inner = _factors(alpha, beta)
    return narrow(affine(softplus(affine(wide(x), alpha=inner)), alpha=outer), x)


@operator("ScaledTanh-1", infer=_scaled_info, traits=E)
@at_run_time
def scaled_tanh(x: Array, *, alpha: float | None = None, beta: float | None = None) -> Array:
    """``alpha * tanh(beta * x)``."""
    outer, inner = _factors(alpha, beta)
    return narrow(affine(np.tanh(affine(wide(x), alpha=inner)), alpha=outer), x)


# ---- images


def _check_scaler(x: Shape | None, bias: Sequence[float] | None) -> None:
    ranked(x, (4,), "the input")
    count = len(bias or ())
    fits = x is None or not isinstance(x[1], int) or x[1] == count
    expect(fits, f"{count} biases for the channels of {show_shape(x)}")


def _scaler_info(x: Info, *, scale: float = 1.0, bias: Sequence[float] | None = None) -> Info:
    _check_scaler(x.shape, bias)
    return Info(x.type)


@operator("ImageScaler-1", infer=_scaler_info)
@at_run_time
def image_scaler(x: Array, *, scale: float = 1.0, bias: Sequence[float] | None = None) -> Array:
    """``scale * x`` plus one ``bias`` a channel, for images (N, C, H, W)."""
    _check_scaler(x.shape, bias)
    w = wide(x)
    return narrow(w * w.dtype.type(scale) + np.asarray(bias, w.dtype)[:, None, None], x)


def _cropped(x: Shape | None, border: Sequence[int] | None, scale: Sequence[int] | None) -> tuple[Any, Shape | None]:
    """The slices of height and width, and the result's shape."""
    ranked(x, (4,), "the input")
    expect(border is not None and len(border) == 4, f"border {border} is not left, top, right, bottom")
    expect(scale is None or len(scale) == 2, f"scale {scale} is not height, width")
    assert border is not None
    left, top, right, bottom = border
    expect(min(border) >= 0, f"border {list(border)} is negative")
    if x is None:
        return None, None
    parts, dims = [], []
    for at, (size, low, high) in enumerate(((x[2], top, bottom), (x[3], left, right))):
        kept = None if size is None else size - (low + high)
        if scale is not None:
            kept = scale[at]
        end = None if kept is None else low + kept
        inside = not isinstance(size, int) or not isinstance(end, int) or low <= end <= size
        expect(inside, f"border {list(border)} and scale {scale} reach beyond {show_shape(x)}")
        parts.append(slice(low, end))
        dims.append(kept)
    return tuple(parts), (*x[:2], *dims)


def _crop_info(x: Info, *, border: Sequence[int] | None = None, scale: Sequence[int] | None = None) -> Info:
    return tensor(x.dtype, _cropped(x.shape, border, scale)[1])


@operator("Crop-1", infer=_crop_info)
@at_run_time
def crop(x: Array, *, border: Sequence[int] | None = None, scale: Sequence[int] | None = None) -> Array:
    """Images (N, C, H, W) without their ``border``, or ``scale`` pixels from its upper left corner on."""
    (rows, columns), _ = _cropped(x.shape, border, scale)
    return x[:, :, rows, columns]


# ---- the first Slice with inputs


def _slice_info(x: Info, starts: Info, ends: Info, axes: Info | None = None) -> Info:
    infer: Any = OPERATORS["Slice"].infer
    return infer(x, starts, ends, axes)


@operator("DynamicSlice-1", infer=_slice_info, traits=Trait.LAYOUT)
def dynamic_slice(x: Array, starts: Array, ends: Array, axes: Array | None = None) -> Array:
    """Slice by steps of 1."""
    return np.asarray(slice_(x, starts, ends, axes))
