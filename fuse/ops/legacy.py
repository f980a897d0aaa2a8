"""Old meanings that no newer spelling expresses: broadcasting with ``axis``, and BatchNormalization before set 14.

Their names carry the operator set in which the meaning began, ``Add-1`` beside ``Add``.
Source: the changelog of the ONNX operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuse.ir.dims import product
from fuse.ir.dtypes import BOOL, Array, DType
from fuse.ir.types import Shape
from fuse.ops.infer import common_dtype, normal_axis, show_shape
from fuse.ops.norm import batch_statistics, by_statistics, moving, per_channel
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor

# ---- broadcasting before operator set 7


def _aligned(a: Shape, b: Shape, axis: int | None, broadcast: int) -> Any:
    """The shape in which ``b`` broadcasts against ``a`` by NumPy's rule: ones behind the axes that it covers."""
    if not broadcast:
        same = len(a) == len(b) and all(_equal(m, n) for m, n in zip(a, b, strict=True))
        expect(same, f"shapes {show_shape(a)} and {show_shape(b)} differ and broadcast is 0")
        return b
    first = len(a) - len(b) if axis is None else normal_axis(axis, len(a))
    covered = a[first : first + len(b)] if first >= 0 else ()
    fits = len(covered) == len(b) and all(n == 1 or _equal(m, n) for m, n in zip(covered, b, strict=True))
    expect(fits, f"shape {show_shape(b)} does not fit {show_shape(a)} from axis {first}")
    return (*b, *(1,) * (len(a) - first - len(b)))


def _equal(a: Any, b: Any) -> bool:
    return not isinstance(a, int) or not isinstance(b, int) or a == b


def _broadcast_info(a: Info, b: Info, axis: int | None, broadcast: int) -> Info:
    dtype = common_dtype(a, b)
    if a.shape is not None and b.shape is not None:
        _aligned(a.shape, b.shape, axis, broadcast)
    return tensor(dtype, a.shape)


def _arithmetic(op: str) -> None:
    kernel: Callable[..., Array] = OPERATORS[op].kernel

    def infer(a: Info, b: Info, *, axis: int | None = None, broadcast: int = 0, consumed_inputs: Any = None) -> Info:
        return _broadcast_info(a, b, axis, broadcast)

    def run(a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0, consumed_inputs: Any = None) -> Array:
        return kernel(a, b.reshape(_aligned(a.shape, b.shape, axis, broadcast)))

    operator(f"{op}-1", infer=infer)(run)


def _other(op: str, dtype: DType | None) -> None:
    """Pow, logic and comparison, without ``consumed_inputs``; ``dtype`` is the result's, None for the input's."""
    kernel: Callable[..., Array] = OPERATORS[op].kernel

    def infer(a: Info, b: Info, *, axis: int | None = None, broadcast: int = 0) -> Info:
        info = _broadcast_info(a, b, axis, broadcast)
        return tensor(dtype, info.shape) if dtype is not None else info

    def run(a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0) -> Array:
        return kernel(a, b.reshape(_aligned(a.shape, b.shape, axis, broadcast)))

    operator(f"{op}-1", infer=infer)(run)


for _op in ("Add", "Sub", "Mul", "Div"):
    _arithmetic(_op)
_other("Pow", None)
for _op in ("And", "Or", "Xor", "Equal", "Greater", "Less"):
    _other(_op, BOOL)


# ---- PRelu before operator set 7


def _slope(x: Shape, slope: Shape) -> None:
    size = product(slope)
    channels = x[1] if len(x) > 1 else 1
    expect(size == 1 or _equal(size, channels), f"slope {show_shape(slope)} for {channels} channels")


def _prelu_info(x: Info, slope: Info, *, consumed_inputs: Any = None) -> Info:
    if x.shape is not None and slope.shape is not None:
        _slope(x.shape, slope.shape)
    return tensor(common_dtype(x, slope), x.shape)


@operator("PRelu-1", infer=_prelu_info)
def prelu_1(x: Array, slope: Array, *, consumed_inputs: Any = None) -> Array:
    """One slope, or one for each channel (axis 1)."""
    _slope(x.shape, slope.shape)
    factor = slope.reshape(()) if slope.size == 1 else per_channel(slope.reshape(-1), x.ndim)
    return np.where(x < 0, x * factor, x)


# ---- BatchNormalization before operator set 14


def _batch_info(
    x: Info,
    scale: Info,
    b: Info,
    mean: Info,
    var: Info,
    *,
    consumed_inputs: Any = None,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
) -> tuple[Info, ...]:
    if x.shape is not None:
        for name, info in (("scale", scale), ("B", b), ("mean", mean), ("var", var)):
            if info.shape is not None:
                _check_parameter(name, info.shape, x.shape, spatial)
    return Info(x.type), Info(mean.type), Info(var.type), Info(mean.type), Info(var.type)


def _check_parameter(name: str, shape: Shape, x: Shape, spatial: int) -> None:
    wanted = x[1:2] if spatial else x[1:]
    fits = len(shape) == len(wanted) and all(_equal(m, n) for m, n in zip(shape, wanted, strict=True))
    expect(fits, f"{name} is {show_shape(shape)}, the input {show_shape(x)} needs {show_shape(wanted)}")


@operator("BatchNormalization-1", infer=_batch_info)
def batch_normalization_1(
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    consumed_inputs: Any = None,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """BatchNormalization of operator sets 1 to 13; ``is_test`` 0 is training, by the statistics of the batch.

    With ``spatial`` 0 each activation has statistics of its own, of shape (C, D1, ...).  The five outputs are the
    result, the running mean and variance, and the batch's own.
    """
    for name, value in (("scale", scale), ("B", b), ("mean", mean), ("var", var)):
        _check_parameter(name, value.shape, x.shape, spatial)
    flat = x if spatial else x.reshape(x.shape[0], math.prod(x.shape[1:]))
    scale, b = scale.reshape(-1), b.reshape(-1)
    if is_test:
        y = by_statistics(flat, scale, b, mean.reshape(-1), var.reshape(-1), epsilon).reshape(x.shape)
        return y if n_outputs == 1 else (y, mean, var, mean, var)
    own_mean, own_var = batch_statistics(flat)
    y = by_statistics(flat, scale, b, own_mean, own_var, epsilon).reshape(x.shape)
    if n_outputs == 1:
        return y
    own_mean, own_var = own_mean.reshape(mean.shape), own_var.reshape(var.shape)
    moved = (moving(mean, own_mean, momentum), moving(var, own_var, momentum))
    return (y, *moved, own_mean.astype(mean.dtype), own_var.astype(var.dtype))
