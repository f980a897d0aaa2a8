"""Activations of the domain ``com.microsoft``, and what is fused with the addition of a bias.

The formulas are those of the standard operators.  Half precision is carried in float32 through the whole of a fused
operator, bias included, and rounded once.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuse.ir.dims import floordiv
from fuse.ir.dtypes import BOOL, Array
from fuse.ir.types import Shape
from fuse.ops.activation import gelu, logistic, swish
from fuse.ops.bounds import at_run_time, fits, same_dim, single
from fuse.ops.dropout import dropout
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import broadcast_dims, common_dtype, normal_axis, same_as_first, show_shape
from fuse.ops.matmul import matmul_dims, product
from fuse.ops.record import Info, Trait, expect, operator, tensor
from fuse.ops.softmax import softmax

E = Trait.ELEMENTWISE
SIGMOID_SLOPE = float(np.float32(1.702))
"""QuickGelu's factor in the exponent."""


def _vector_fits(x: Shape | None, bias: Shape | None) -> None:
    """Raise ``ShapeError`` unless ``bias`` is a vector as long as the last axis of ``x``."""
    if x is not None and bias is not None:
        expect(len(x) > 0, "the input is a scalar")
        fits("the bias", bias, x[-1:])


def _bias_info(x: Info, bias: Info | None = None) -> Info:
    _vector_fits(x.shape, None if bias is None else bias.shape)
    return tensor(common_dtype(x, bias), x.shape)


# ---- of one tensor


@operator("com.microsoft::Gelu", infer=same_as_first, traits=E)
def plain_gelu(x: Array) -> Array:
    """The Gelu of the standard, without approximation."""
    return np.asarray(gelu(x))


@operator("com.microsoft::QuickGelu", infer=lambda x, alpha=0.0: Info(x.type), traits=E)
def quick_gelu(x: Array, *, alpha: float = SIGMOID_SLOPE) -> Array:
    """``x / (1 + exp(-alpha * x))``."""
    return np.asarray(swish(x, alpha=alpha))


def _scaled_info(x: Info, scale: Info | None = None, *, alpha: float = 1.0) -> Info:
    return Info(x.type)


@operator("com.microsoft::ScaledSiLU", infer=_scaled_info)
@at_run_time
def scaled_silu(x: Array, scale: Array | None = None, *, alpha: float = 1.0) -> Array:
    """``z * sigmoid(z)`` with ``z`` the scaled input; every step is rounded to the dtype of ``x``."""
    factor = alpha if scale is None else float(single(scale, "the scale"))
    w = wide(x)
    z = narrow(np.asarray(w * w.dtype.type(factor)), x)
    return np.multiply(z, narrow(logistic(wide(z)), x))


# ---- after a bias


@operator("com.microsoft::BiasGelu", infer=lambda x, bias: _bias_info(x, bias))
@at_run_time
def bias_gelu(x: Array, bias: Array) -> Array:
    """Gelu of ``x`` plus a vector ``bias`` as long as its last axis."""
    _vector_fits(x.shape, bias.shape)
    return narrow(np.asarray(gelu(wide(x) + wide(bias))), x)


@operator("com.microsoft::FastGelu", infer=_bias_info)
@at_run_time
def fast_gelu(x: Array, bias: Array | None = None) -> Array:
    """Gelu by the hyperbolic tangent, of ``x`` plus ``bias`` where given."""
    _vector_fits(x.shape, None if bias is None else bias.shape)
    w = wide(x) if bias is None else wide(x) + wide(bias)
    return narrow(np.asarray(gelu(w, approximate="tanh")), x)


def _product_info(x: Info, w: Info, bias: Info | None = None) -> Info:
    shape = matmul_dims(x.shape, w.shape)
    _vector_fits(shape, None if bias is None else bias.shape)
    return tensor(common_dtype(x, w, bias), shape)


@operator("com.microsoft::GemmFastGelu", infer=_product_info)
@at_run_time
def gemm_fast_gelu(x: Array, w: Array, bias: Array | None = None) -> Array:
    """FastGelu of the product of ``x`` and ``w``."""
    matmul_dims(x.shape, w.shape)
    return narrow(fast_gelu(product(wide(x), wide(w)), None if bias is None else wide(bias)), x)


def _half(x: Shape | None) -> Shape | None:
    if x is None:
        return None
    whole = not isinstance(x[-1], int) or x[-1] % 2 == 0
    expect(whole, f"the last axis of {show_shape(x)} has no two halves")
    return (*x[:-1], None if x[-1] is None else floordiv(x[-1], 2))


def _split_info(x: Info, bias: Info) -> Info:
    _vector_fits(x.shape, bias.shape)
    return tensor(common_dtype(x, bias), _half(x.shape))


@operator("com.microsoft::BiasSplitGelu", infer=_split_info)
@at_run_time
def bias_split_gelu(x: Array, bias: Array) -> Array:
    """With the bias added: the left half of the last axis times the Gelu of the right one."""
    _vector_fits(x.shape, bias.shape)
    _half(x.shape)
    left, right = np.split(np.asarray(wide(x) + wide(bias)), 2, axis=-1)
    return narrow(left * gelu(right), x)


def _bias_add_info(x: Info, bias: Info, skip: Info) -> Info:
    _vector_fits(x.shape, bias.shape)
    if x.shape is not None:
        fits("the skip", skip.shape, x.shape)
    return tensor(common_dtype(x, bias, skip), x.shape)


@operator("com.microsoft::BiasAdd", infer=_bias_add_info)
@at_run_time
def bias_add(x: Array, bias: Array, skip: Array) -> Array:
    """``x + bias + skip``."""
    _vector_fits(x.shape, bias.shape)
    fits("the skip", skip.shape, x.shape)
    return narrow(np.asarray(wide(x) + wide(bias) + wide(skip)), x)


# ---- softmax and dropout


def _broadcasts(x: Shape | None, bias: Shape | None) -> None:
    if x is not None and bias is not None:
        wanted = broadcast_dims([x, bias])
        say = f"the bias {show_shape(bias)} does not broadcast to {show_shape(x)}"
        expect(wanted is not None and len(wanted) == len(x), say)
        for pair in zip(x, wanted or (), strict=True):
            same_dim(pair, say)


def _softmax_info(x: Info, bias: Info, *, is_inner_broadcast: int, axis: int = 1) -> Info:
    _broadcasts(x.shape, bias.shape)
    if x.shape is not None:
        normal_axis(axis, len(x.shape))
    return tensor(common_dtype(x, bias), x.shape)


@operator("com.microsoft::BiasSoftmax", infer=_softmax_info)
@at_run_time
def bias_softmax(x: Array, bias: Array, *, is_inner_broadcast: int, axis: int = 1) -> Array:
    """Softmax of ``x + bias`` over all axes from ``axis`` on, which count as one.

    ``is_inner_broadcast`` tells a kernel in which of its axes the bias is repeated; here its shape does.
    """
    _broadcasts(x.shape, bias.shape)
    at = normal_axis(axis, x.ndim)
    total = np.asarray(wide(x) + wide(bias)).reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:]))
    return narrow(softmax(total).reshape(x.shape), x)


def _dropout_info(
    x: Info,
    bias: Info,
    residual: Info | None = None,
    ratio: Info | None = None,
    training_mode: Info | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> tuple[Info, Info]:
    _broadcasts(x.shape, bias.shape)
    if x.shape is not None and residual is not None:
        fits("the residual", residual.shape, x.shape)
    return tensor(common_dtype(x, bias, residual), x.shape), tensor(BOOL, x.shape)


@operator("com.microsoft::BiasDropout", infer=_dropout_info, traits=Trait.RANDOM)
@at_run_time
def bias_dropout(
    x: Array,
    bias: Array,
    residual: Array | None = None,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
) -> tuple[Array, Array]:
    """Dropout of ``x + bias``, plus ``residual`` where given; and the mask, which is True where nothing is dropped."""
    _broadcasts(x.shape, bias.shape)
    dropped: Any = dropout(np.asarray(wide(x) + wide(bias)), ratio, training_mode, seed=seed, n_outputs=2)
    y, mask = dropped
    if residual is not None:
        fits("the residual", residual.shape, x.shape)
        y = y + wide(residual)
    return narrow(y, x), mask
