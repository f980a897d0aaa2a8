"""Softmax, its logarithm, and the one-hot maximum, along one axis or, in the old form, over all axes from one on.

A row of minus infinities gives NaN, as onnxruntime and ONNX's reference have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import normal_axis
from fuse.ops.record import Info, operator


def _info(x: Info, *, axis: int = -1) -> Info:
    if x.rank is not None:
        normal_axis(axis, x.rank)
    return Info(x.type)


def _info_1(x: Info, *, axis: int = 1) -> Info:
    return _info(x, axis=axis)


def _shifted(x: Array, axis: int) -> Array:
    """``x`` minus its maximum along ``axis``: a fresh array whose exponential cannot overflow."""
    w = wide(x)
    return np.asarray(np.subtract(w, np.max(w, axis=axis, keepdims=True, initial=-np.inf)))


@operator("Softmax", infer=_info)
def softmax(x: Array, *, axis: int = -1) -> Array:
    """``exp(x)`` over its sum along ``axis``."""
    axis = normal_axis(axis, x.ndim)
    y = _shifted(x, axis)
    np.exp(y, out=y)
    y /= np.sum(y, axis=axis, keepdims=True)
    return narrow(y, x)


@operator("LogSoftmax", infer=_info)
def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """The logarithm of ``softmax``, without passing through it."""
    axis = normal_axis(axis, x.ndim)
    y = _shifted(x, axis)
    y -= np.log(np.sum(np.exp(y), axis=axis, keepdims=True))
    return narrow(y, x)


@operator("Hardmax", infer=_info)
def hardmax(x: Array, *, axis: int = -1) -> Array:
    """1 at the first maximum along ``axis``, 0 elsewhere; a NaN counts as the maximum."""
    axis = normal_axis(axis, x.ndim)
    y = np.zeros(x.shape, x.dtype)
    if x.size:
        np.put_along_axis(y, np.argmax(wide(x), axis=axis, keepdims=True), x.dtype.type(1), axis=axis)
    return y


def _flattening(op: str, kernel: Callable[..., Array]) -> None:
    """Register the meaning of operator sets 1 to 12: the axes from ``axis`` on count as one."""

    def flat(x: Array, *, axis: int = 1) -> Array:
        at = normal_axis(axis, x.ndim)
        return kernel(x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:])), axis=-1).reshape(x.shape)

    operator(f"{op}-1", infer=_info_1)(flat)


_flattening("Softmax", softmax)
_flattening("LogSoftmax", log_softmax)
_flattening("Hardmax", hardmax)
