"""Normalisation: shift and scale by statistics that are given, or of the input itself.

Half precision is carried in float32 and rounded once.  Where statistics are given, the whole is one multiplication and
one addition a element, with factors computed in float64.  Where they are the input's own, the mean is subtracted first
and the variance is that of what remains, because a mean of squares minus a square of means cancels.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import math

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import BY_CODE, Array
from fuse.ir.types import Shape
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, normal_axes, normal_axis, show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints


def _vector(name: str, shape: Shape | None, size: Dim, what: str = "channels") -> None:
    """Raise ``ShapeError`` unless ``shape`` can be that of one number for each of ``size`` channels (or groups)."""
    if shape is None:
        return
    known = isinstance(size, int) and len(shape) == 1 and isinstance(shape[0], int)
    expect(len(shape) == 1 and (not known or shape[0] == size), f"{name} is {show_shape(shape)} for {size} {what}")


def _channels(x: Shape) -> Dim:
    expect(len(x) > 0, "the input is a scalar")
    return x[1] if len(x) > 1 else 1


def per_channel(v: Array, rank: int) -> Array:
    """``v`` (C,) shaped to broadcast along axis 1 of a tensor of ``rank``."""
    return v.reshape(-1, *(1,) * max(rank - 2, 0))


# ---- BatchNormalization


def _batch_info(
    x: Info,
    scale: Info,
    b: Info,
    input_mean: Info,
    input_var: Info,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> tuple[Info, ...]:
    if x.shape is not None:
        _check_batch(x.shape, scale.shape, b.shape, input_mean.shape, input_var.shape)
    return Info(x.type), Info(input_mean.type), Info(input_var.type)


def _check_batch(x: Shape, *vectors: Shape | None) -> None:
    for name, shape in zip(("scale", "B", "mean", "var"), vectors, strict=True):
        _vector(name, shape, _channels(x))


@operator("BatchNormalization", infer=_batch_info)
def batch_normalization(
    x: Array,
    scale: Array,
    b: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """Normalise each channel of ``x`` (N, C, ...) by the given statistics, or in training by those of the batch.

    Further outputs are the running mean and variance: the given ones, in training moved towards the batch's.
    """
    _check_batch(x.shape, scale.shape, b.shape, input_mean.shape, input_var.shape)
    if not training_mode:
        y = by_statistics(x, scale, b, input_mean, input_var, epsilon)
        return y if n_outputs == 1 else (y, input_mean, input_var)
    mean, var = batch_statistics(x)
    y = by_statistics(x, scale, b, mean, var, epsilon)
    moved = (moving(input_mean, mean, momentum), moving(input_var, var, momentum))
    return y if n_outputs == 1 else (y, *moved)


def by_statistics(x: Array, scale: Array, b: Array, mean: Array, var: Array, epsilon: float) -> Array:
    """``(x - mean) / sqrt(var + epsilon) * scale + b`` with one number a channel, on a fresh array."""
    factor = scale.astype(np.float64) / np.sqrt(var.astype(np.float64) + epsilon)
    offset = b.astype(np.float64) - mean.astype(np.float64) * factor
    w = wide(x)
    y: Array = np.multiply(w, per_channel(factor.astype(w.dtype), x.ndim))
    y += per_channel(offset.astype(w.dtype), x.ndim)
    return narrow(y, x)


def batch_statistics(x: Array) -> tuple[Array, Array]:
    """Mean and (population) variance of each channel, in float64."""
    axes = (0, *range(2, x.ndim))
    v = wide(x).astype(np.float64)
    return np.mean(v, axis=axes).reshape(-1), np.var(v, axis=axes).reshape(-1)


def moving(old: Array, new: Array, momentum: float) -> Array:
    """The running statistic after one more batch, in the dtype of ``old``."""
    return np.asarray(old.astype(np.float64) * momentum + new * (1 - momentum)).astype(old.dtype)


# ---- by the statistics of the input itself


def standardise(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """A fresh array of ``x`` with mean 0 and variance 1 over ``axes``, the mean, and 1 / deviation."""
    mean = np.mean(x, axis=axes, keepdims=True)
    y: Array = np.subtract(x, mean)
    var = np.mean(np.square(y), axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(var + x.dtype.type(epsilon))
    y *= inverse
    return y, mean, inverse


def _scaled(y: Array, scale: Array, b: Array | None) -> Array:
    y *= scale.astype(y.dtype, copy=False)
    if b is not None:
        y += b.astype(y.dtype, copy=False)
    return y


def _instance_info(x: Info, scale: Info, b: Info, *, epsilon: float = 1e-5) -> Info:
    if x.shape is not None:
        _vector("scale", scale.shape, _channels(x.shape))
        _vector("B", b.shape, _channels(x.shape))
    return tensor(common_dtype(x, scale, b), x.shape)


@operator("InstanceNormalization", infer=_instance_info)
def instance_normalization(x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5) -> Array:
    """Standardise each channel of each image of ``x`` (N, C, ...)."""
    _vector("scale", scale.shape, _channels(x.shape))
    _vector("B", b.shape, _channels(x.shape))
    y, _, _ = standardise(wide(x), tuple(range(2, x.ndim)), epsilon)
    return narrow(_scaled(y, per_channel(scale, x.ndim), per_channel(b, x.ndim)), x)


def _group_info(
    x: Info, scale: Info, bias: Info, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Info:
    if x.shape is not None:
        _check_groups(x.shape, num_groups)
        _vector("scale", scale.shape, _channels(x.shape))
        _vector("bias", bias.shape, _channels(x.shape))
    return tensor(common_dtype(x, scale, bias), x.shape)


def _check_groups(x: Shape, num_groups: int) -> None:
    expect(len(x) >= 2, f"the input needs batch and channel, its rank is {len(x)}")
    expect(num_groups > 0, f"num_groups {num_groups} must be positive")
    expect(not isinstance(x[1], int) or x[1] % num_groups == 0, f"{num_groups} groups do not divide {x[1]} channels")


@operator("GroupNormalization", infer=_group_info)
def group_normalization(
    x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Standardise each group of channels of each image of ``x`` (N, C, ...); ``scale`` and ``bias`` are (C,)."""
    _check_groups(x.shape, num_groups)
    _vector("scale", scale.shape, x.shape[1])
    _vector("bias", bias.shape, x.shape[1])
    y = _by_groups(x, num_groups, epsilon, stash_type).reshape(x.shape)
    return narrow(_scaled(y, per_channel(scale, x.ndim), per_channel(bias, x.ndim)), x)


def _by_groups(x: Array, num_groups: int, epsilon: float, stash_type: int = 1) -> Array:
    grouped = _stashed(x, stash_type)
    grouped = grouped.reshape(x.shape[0], num_groups, x.shape[1] // num_groups, math.prod(x.shape[2:]))
    return standardise(grouped, (2, 3), epsilon)[0]


def _group18_info(x: Info, scale: Info, bias: Info, *, num_groups: int, epsilon: float = 1e-5) -> Info:
    if x.shape is not None:
        _check_groups(x.shape, num_groups)
    _vector("scale", scale.shape, num_groups, "groups")
    _vector("bias", bias.shape, num_groups, "groups")
    return tensor(common_dtype(x, scale, bias), x.shape)


@operator("GroupNormalization-18", infer=_group18_info)
def group_normalization_18(x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5) -> Array:
    """GroupNormalization as in operator sets 18 to 20: ``scale`` and ``bias`` hold one number a group."""
    _check_groups(x.shape, num_groups)
    _vector("scale", scale.shape, num_groups, "groups")
    _vector("bias", bias.shape, num_groups, "groups")
    y = _scaled(_by_groups(x, num_groups, epsilon), scale.reshape(-1, 1, 1), bias.reshape(-1, 1, 1))
    return narrow(y.reshape(x.shape), x)


def _stashed(x: Array, stash_type: int) -> Array:
    """``x`` in the precision of the first stage: that of ``stash_type`` where it is the wider one."""
    w, stash = wide(x), wide(np.empty(0, BY_CODE[stash_type])).dtype
    return w if w.dtype.itemsize >= stash.itemsize else w.astype(stash)


def _fits(name: str, shape: Shape | None, x: Shape) -> None:
    """Raise ``ShapeError`` where ``shape`` does not broadcast to ``x`` as it is."""
    if shape is None:
        return
    ends = zip(reversed(shape), reversed(x), strict=False)
    clash = any(isinstance(s, int) and isinstance(d, int) and s not in (1, d) for s, d in ends)
    fits = len(shape) <= len(x) and not clash
    expect(fits, f"{name} {show_shape(shape)} does not broadcast to {show_shape(x)}")


def _stat_dims(x: Shape, axis: int) -> Shape:
    first = normal_axis(axis, len(x))
    return (*x[:first], *(1,) * (len(x) - first))


def _layer_info(
    x: Info,
    scale: Info,
    b: Info | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> tuple[Info, Info, Info]:
    dtype, shape = common_dtype(x, scale, b), x.shape
    stats = tensor(BY_CODE.get(stash_type), None if shape is None else _stat_dims(shape, axis))
    if shape is not None:
        _fits("Scale", scale.shape, shape)
        _fits("B", None if b is None else b.shape, shape)
    return tensor(dtype, shape), stats, stats


@operator("LayerNormalization", infer=_layer_info)
def layer_normalization(
    x: Array,
    scale: Array,
    b: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """Standardise ``x`` over the axes from ``axis`` on; further outputs are the mean and 1 / deviation."""
    axes = tuple(range(normal_axis(axis, x.ndim), x.ndim))
    _fits("Scale", scale.shape, x.shape)
    _fits("B", None if b is None else b.shape, x.shape)
    y, mean, inverse = standardise(_stashed(x, stash_type), axes, epsilon)
    y = _scaled(y, scale, b).astype(x.dtype, copy=False)
    stats = BY_CODE[stash_type]
    return y if n_outputs == 1 else (y, mean.astype(stats), inverse.astype(stats))


def _rms_info(x: Info, scale: Info, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Info:
    if x.shape is not None:
        normal_axis(axis, len(x.shape))
        _fits("scale", scale.shape, x.shape)
    return tensor(scale.dtype, x.shape)


@operator("RMSNormalization", infer=_rms_info)
def rms_normalization(x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Array:
    """``x`` over its root mean square along the axes from ``axis`` on, times ``scale``, in the dtype of ``scale``."""
    axes = tuple(range(normal_axis(axis, x.ndim), x.ndim))
    _fits("scale", scale.shape, x.shape)
    w = _stashed(x, stash_type)
    mean = np.mean(np.square(w), axis=axes, keepdims=True)
    y: Array = w * (1 / np.sqrt(mean + w.dtype.type(epsilon)))
    return _scaled(y, scale, None).astype(scale.dtype, copy=False)


def _lp_info(x: Info, *, axis: int = -1, p: int = 2) -> Info:
    if x.shape is not None:
        normal_axis(axis, len(x.shape))
    expect(p in (1, 2), f"p is {p}, not 1 or 2")
    return Info(x.type)


@operator("LpNormalization", infer=_lp_info)
def lp_normalization(x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """``x`` over its 1- or 2-norm along ``axis``; zeros stay zeros."""
    normal_axis(axis, x.ndim)
    expect(p in (1, 2), f"p is {p}, not 1 or 2")
    w = wide(x)
    norm = np.sum(np.abs(w) if p == 1 else np.square(w), axis=axis, keepdims=True)
    if p == 2:
        norm = np.sqrt(norm)
    return narrow(w / np.where(norm == 0, w.dtype.type(1), norm), x)


def _mean_variance_info(x: Info, *, axes: Ints = (0, 2, 3)) -> Info:
    if x.shape is not None:
        normal_axes(axes, len(x.shape))
    return Info(x.type)


@operator("MeanVarianceNormalization", infer=_mean_variance_info)
def mean_variance_normalization(x: Array, *, axes: Ints = (0, 2, 3)) -> Array:
    """``(x - mean) / (deviation + 1e-9)`` over ``axes``: ONNX adds its constant to the deviation, not the variance."""
    over, w = normal_axes(axes, x.ndim), wide(x)
    y: Array = np.subtract(w, np.mean(w, axis=over, keepdims=True))
    y /= np.sqrt(np.mean(np.square(y), axis=over, keepdims=True)) + w.dtype.type(1e-9)
    return narrow(y, x)


def _lrn_info(x: Info, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Info:
    _check_lrn(x.shape, size)
    return Info(x.type)


def _check_lrn(x: Shape | None, size: int) -> None:
    expect(size > 0, f"size {size} must be positive")
    expect(x is None or len(x) >= 2, f"the input needs batch and channel, its shape is {show_shape(x)}")


@operator("LRN", infer=_lrn_info)
def lrn(x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    """``x / (bias + alpha / size * s) ** beta`` where ``s`` sums the squares of ``size`` neighbouring channels."""
    _check_lrn(x.shape, size)
    w, channels = wide(x), x.shape[1]
    squares = np.square(w)
    total = np.zeros_like(squares)
    for shift in range(max(-((size - 1) // 2), 1 - channels), min(math.ceil((size - 1) / 2), channels - 1) + 1):
        kept = channels - abs(shift)
        total[:, max(-shift, 0) :][:, :kept] += squares[:, max(shift, 0) :][:, :kept]
    total *= w.dtype.type(alpha / size)
    total += w.dtype.type(bias)
    if beta == 0.75:  # the one value in use; two square roots are ten times faster than a power
        root = np.sqrt(total)
        return narrow(w / (root * np.sqrt(root)), x)
    return narrow(w / np.power(total, w.dtype.type(beta)), x)
