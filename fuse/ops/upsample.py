"""The ancestors of Resize: Upsample, and Resize as it was in operator set 10.

All of them map an output position to ``position / scale`` and take the weighted mean of its neighbours (linear), or one
of them (nearest): the lower where an axis grows and the upper where it shrinks.  ONNX did not say which; this is what
onnxruntime does.
"""

from __future__ import annotations

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.resize import resize, scaled_dim

MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}


def _check_mode(mode: str) -> None:
    expect(mode in MODES, f"mode {quote(mode)} is not one of nearest, linear")


def _scaled(x: Array, scales: Array, mode: str) -> Array:
    _check_mode(mode)
    expect(scales.shape == (x.ndim,), f"scales are {show_shape(scales.shape)} for an input of rank {x.ndim}")
    for shrinks, nearest in ((False, "floor"), (True, "ceil")):
        axes = [axis for axis, scale in enumerate(scales) if (scale < 1) == shrinks]
        if axes:
            x = resize(
                x, None, scales[axes], axes=axes,
                coordinate_transformation_mode="asymmetric", mode=MODES[mode], nearest_mode=nearest,
            )  # fmt: skip
    return x


def _info(x: Info, scales: Info, *, mode: str = "nearest") -> Info:
    _check_mode(mode)
    if x.shape is None:
        return tensor(x.dtype)
    shape: Shape = (None,) * len(x.shape)
    if scales.shape is not None and all(isinstance(d, int) for d in scales.shape):
        fits = scales.shape == (len(x.shape),)
        expect(fits, f"scales are {show_shape(scales.shape)} for an input of rank {len(x.shape)}")
    if scales.value is not None and scales.value.size == len(x.shape):
        shape = tuple(scaled_dim(d, float(s)) for d, s in zip(x.shape, scales.value, strict=True))
    return tensor(x.dtype, shape)


@operator("Upsample", "Resize-10", infer=_info)
def upsample(x: Array, scales: Array, *, mode: str = "nearest") -> Array:
    """Resize every axis of ``x`` by its scale."""
    return _scaled(x, scales, mode)


def _info_1(x: Info, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Info:
    _check_mode(mode)
    if x.shape is None:
        return tensor(x.dtype)
    expect(len(x.shape) == 4, f"the input is {len(x.shape)}-D, not 4-D")
    height, width = scaled_dim(x.shape[2], height_scale), scaled_dim(x.shape[3], width_scale)
    return tensor(x.dtype, (*x.shape[:2], height, width))


@operator("Upsample-1", infer=_info_1)
def upsample_1(x: Array, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Array:
    """Resize height and width of ``x`` (N, C, H, W)."""
    expect(x.ndim == 4, f"the input is {x.ndim}-D, not 4-D")
    return _scaled(x, np.array([1, 1, height_scale, width_scale], np.float32), mode)
