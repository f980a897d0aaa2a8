"""onnxruntime's operators on 8-bit tensors: each is the real operator between a dequantisation and a quantisation.

A function of one 8-bit value has 256 answers, which are computed once and looked up.  The arithmetic is float32, as the
operators' texts have it, so an answer that lies on the edge between two steps (within rounding of float32) may fall to
either; onnxruntime, whose kernels fuse these steps, takes the other one in about one case of 10^5.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuse.ir.dtypes import BOOL, Array
from fuse.ops.bounds import at_run_time
from fuse.ops.infer import broadcast_dims, common_dtype, normal_axis
from fuse.ops.move import joined
from fuse.ops.qmatmul import centred, single
from fuse.ops.quant import INT32, reals, steps, to_integers
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor
from fuse.ops.softmax import softmax

TABLE = 512
"""Smaller tensors are computed as they are; from here on a table of 256 answers is cheaper."""


def real(x: Array, scale: Array, zero: Array | None) -> Array:
    """What the quantised ``x`` stands for, in the scale's dtype."""
    origin = None if zero is None else single(zero, "a zero point")
    return reals(x, single(scale, "a scale"), origin, scale.dtype)


def quantised(y: Array, scale: Array, zero: Array | None, like: Array) -> Array:
    """``y`` in the dtype of ``zero``, or where that is absent of ``like``."""
    step, origin = single(scale, "a scale"), None if zero is None else single(zero, "a zero point")
    return steps(y, step, origin, like.dtype if zero is None else zero.dtype)


def settled(y: Array, scale: Array, zero: Array | None, like: Array) -> Array:
    """``quantised``, but rounded after the zero point is added: halves go to the even step.  Overwrites ``y``."""
    y /= single(scale, "a scale")
    if zero is not None:
        y += single(zero, "a zero point").astype(y.dtype)
    return to_integers(y, None, like.dtype if zero is None else zero.dtype)


def looked_up(x: Array, answers: Callable[[Array], Array]) -> Array:
    """``answers(x)`` for an elementwise function of 8-bit values."""
    if x.size < TABLE or x.dtype.itemsize != 1:
        return answers(x)
    table = answers(np.arange(256, dtype=np.uint8).view(x.dtype))
    return np.take(table, x.view(np.uint8))


def _one_type(x: Info, *others: Info | None) -> Info:
    common_dtype(x, *others)
    return tensor(x.dtype, x.shape)


# ---- of two tensors


def _binary_info(
    a: Info,
    a_scale: Info,
    a_zero: Info | None,
    b: Info,
    b_scale: Info,
    b_zero: Info | None,
    c_scale: Info,
    c_zero: Info | None = None,
) -> Info:
    return tensor(common_dtype(a, a_zero, b, b_zero, c_zero), broadcast_dims([a.shape, b.shape]))


def _binary(op: str, combine: Callable[[Array, Array], Array]) -> None:
    @operator(f"com.microsoft::{op}", infer=_binary_info)
    @at_run_time
    def kernel(
        a: Array,
        a_scale: Array,
        a_zero: Array | None,
        b: Array,
        b_scale: Array,
        b_zero: Array | None,
        c_scale: Array,
        c_zero: Array | None = None,
    ) -> Array:
        y = np.asarray(combine(real(a, a_scale, a_zero), real(b, b_scale, b_zero)))
        return settled(y, c_scale, c_zero, a)


_binary("QLinearAdd", np.add)
_binary("QLinearMul", np.multiply)


def _mul_integer_info(a: Info, a_zero: Info | None, b: Info, b_zero: Info | None = None) -> Info:
    common_dtype(a, a_zero, b, b_zero)
    return tensor(INT32, broadcast_dims([a.shape, b.shape]))


@operator("com.microsoft::MulInteger", infer=_mul_integer_info)
@at_run_time
def mul_integer(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None = None) -> Array:
    """``(a - a_zero) * (b - b_zero)`` in int32."""
    left = centred(a, None if a_zero is None else single(a_zero, "the zero point of A"))
    right = centred(b, None if b_zero is None else single(b_zero, "the zero point of B"))
    return np.asarray(left * right).astype(np.int32)


def _where_info(
    condition: Info,
    x: Info,
    x_scale: Info,
    x_zero: Info,
    y: Info,
    y_scale: Info,
    y_zero: Info,
    z_scale: Info,
    z_zero: Info,
) -> Info:
    expect(condition.dtype is None or condition.dtype == BOOL, "the condition must be bool")
    return tensor(common_dtype(x, x_zero, y, y_zero, z_zero), broadcast_dims([condition.shape, x.shape, y.shape]))


@operator("com.microsoft::QLinearWhere", infer=_where_info)
@at_run_time
def qlinear_where(
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    y: Array,
    y_scale: Array,
    y_zero: Array,
    z_scale: Array,
    z_zero: Array,
) -> Array:
    """``x`` where the condition holds, else ``y``, both in the steps of ``z``."""
    chosen = np.where(
        condition, _moved(x, x_scale, x_zero, z_scale, z_zero), _moved(y, y_scale, y_zero, z_scale, z_zero)
    )
    return np.asarray(chosen, z_zero.dtype)


def _moved(x: Array, scale: Array, zero: Array, new_scale: Array, new_zero: Array) -> Array:
    """``x`` in other steps; the same array where they are not others."""
    if (
        zero.dtype == new_zero.dtype
        and single(scale, "a scale") == new_scale
        and single(zero, "a zero point") == new_zero
    ):
        return x
    return looked_up(x, lambda v: quantised(real(v, scale, zero), new_scale, new_zero, v))


# ---- of any number of tensors


def _triples(given: Sequence[Any]) -> list[tuple[Any, Any, Any]]:
    expect(
        bool(given) and len(given) % 3 == 0, f"takes a tensor, a scale and a zero point each; there are {len(given)}"
    )
    return list(zip(given[::3], given[1::3], given[2::3], strict=True))


def _concat_info(y_scale: Info, y_zero: Info, *given: Info, axis: int) -> Info:
    triples = _triples(given)
    common_dtype(y_zero, *(x for x, _, _ in triples))
    return tensor(y_zero.dtype, joined([x.shape for x, _, _ in triples], axis))


@operator("com.microsoft::QLinearConcat", infer=_concat_info)
@at_run_time
def qlinear_concat(y_scale: Array, y_zero: Array, *given: Array, axis: int) -> Array:
    """The tensors one after another along ``axis``, all in the steps of the output."""
    triples = _triples(given)
    joined([x.shape for x, _, _ in triples], axis)
    return np.concatenate([_moved(x, scale, zero, y_scale, y_zero) for x, scale, zero in triples], axis=axis)


# ---- of one tensor


def _unary_info(
    x: Info, x_scale: Info, x_zero: Info | None, y_scale: Info, y_zero: Info | None = None, **_: Any
) -> Info:
    return _one_type(x, x_zero, y_zero)


@operator("com.microsoft::QLinearSigmoid", infer=_unary_info)
@at_run_time
def qlinear_sigmoid(
    x: Array, x_scale: Array, x_zero: Array | None, y_scale: Array, y_zero: Array | None = None
) -> Array:
    return looked_up(x, lambda v: quantised(OPERATORS["Sigmoid"].kernel(real(v, x_scale, x_zero)), y_scale, y_zero, v))


@operator("com.microsoft::QLinearLeakyRelu", infer=_unary_info)
@at_run_time
def qlinear_leaky_relu(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    def answers(v: Array) -> Array:
        r = real(v, x_scale, x_zero)
        return quantised(np.where(r < 0, r * r.dtype.type(alpha), r), y_scale, y_zero, v)

    return looked_up(x, answers)


def _softmax_info(
    x: Info,
    x_scale: Info,
    x_zero: Info | None,
    y_scale: Info,
    y_zero: Info,
    *,
    opset: int,
    axis: int = -1,
) -> Info:
    if x.rank:
        normal_axis(axis, x.rank)
    return _one_type(x, x_zero, y_zero)


@operator("com.microsoft::QLinearSoftmax", infer=_softmax_info)
@at_run_time
def qlinear_softmax(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    y_scale: Array,
    y_zero: Array,
    *,
    opset: int,
    axis: int = -1,
) -> Array:
    """Softmax along ``axis``; under operator set 12 and below, over all axes from ``axis`` on.

    onnxruntime rounds ``1 / y_scale`` down to a whole number, so that its answers are one step lower where it is not.
    """
    place = normal_axis(axis, x.ndim)
    shape = x.shape if opset >= 13 else (math.prod(x.shape[:place]), math.prod(x.shape[place:]))
    probabilities = softmax(real(x, x_scale, None).reshape(shape), axis=place if opset >= 13 else -1)
    return quantised(probabilities.reshape(x.shape), y_scale, y_zero, x)
