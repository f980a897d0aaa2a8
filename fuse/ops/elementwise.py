"""Elementwise operators: arithmetic, functions, bits, comparison, logic, choice.

Kernels compute in the dtype of their input; NumPy rounds each float16 result once, and ``ml_dtypes`` does the same for
bfloat16 and the 8-bit floats.  Where a formula takes several steps, half precision is carried in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dtypes import FLOATING, Array
from fuse.ops.bounds import at_run_time
from fuse.ops.erf import erf
from fuse.ops.infer import broadcast, broadcast_dims, common_dtype, compare, same_as_first
from fuse.ops.record import Info, Trait, expect, operator, tensor

E = Trait.ELEMENTWISE
C = Trait.ELEMENTWISE | Trait.COMMUTATIVE
S = Trait.ELEMENTWISE | Trait.SIZES


def wide(x: Array) -> Array:
    """Half precision (and narrower) as float32, to carry a formula of several steps; wider dtypes unchanged."""
    return x.astype(np.float32) if x.dtype in FLOATING and x.dtype.itemsize < 4 else x


def narrow(y: Array, like: Array) -> Array:
    """``y`` rounded to the dtype of ``like``."""
    return y if y.dtype == like.dtype else y.astype(like.dtype)


# ---- arithmetic


@operator("Add", infer=broadcast, traits=C | Trait.SIZES)
def add(a: Array, b: Array) -> Array:
    return np.add(a, b)


@operator("Sub", infer=broadcast, traits=S)
def sub(a: Array, b: Array) -> Array:
    return np.subtract(a, b)


@operator("Mul", infer=broadcast, traits=C | Trait.SIZES)
def mul(a: Array, b: Array) -> Array:
    return np.multiply(a, b)


def _no_zero(b: Array) -> None:
    if b.dtype.kind in "iu" and not b.all():
        raise RunError("integer division by zero")


@operator("Div", infer=broadcast, traits=S)
def div(a: Array, b: Array) -> Array:
    """True division for floats; integers are truncated towards zero, as in C."""
    if a.dtype == object or b.dtype == object:
        return np.floor_divide(a, b)  # sizes, never negative
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    _no_zero(b)
    if a.dtype.kind == "i" and bool(((a == np.iinfo(a.dtype).min) & (b == -1)).any()):
        raise RunError(f"integer division overflows: {np.iinfo(a.dtype).min} / -1")
    quotient = np.floor_divide(a, b)
    remainder = a - quotient * b
    return np.add(quotient, (remainder != 0) & ((a < 0) != (b < 0)), dtype=a.dtype, casting="unsafe")


@operator("Mod", infer=broadcast, traits=S)
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The sign of the divisor (Python's) for ``fmod=0``, of the dividend (C's) for ``fmod=1``."""
    _no_zero(b)
    step = np.fmod if fmod else np.mod
    return narrow(step(wide(a), wide(b)), a)


def _pow_info(a: Info, b: Info) -> Info:
    return tensor(a.dtype, broadcast_dims([a.shape, b.shape]))


@operator("Pow", infer=_pow_info, traits=E)
def pow(a: Array, b: Array) -> Array:
    """The result has the base's dtype; an integer base with a negative exponent truncates towards zero.

    Dtypes that differ meet in float64, half precision in float32.
    """
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        return _integer_pow(a, b)
    if b.size == 1 and b.ndim <= a.ndim and a.dtype.kind == "f" and b.reshape(-1)[0] == 2:
        return np.square(a)  # what nearly every model asks for
    if a.dtype == b.dtype:
        return narrow(np.power(wide(a), wide(b)), a)
    y = np.power(a.astype(np.float64), b.astype(np.float64))
    return (np.trunc(y) if a.dtype.kind in "iu" else y).astype(a.dtype)


def _integer_pow(a: Array, b: Array) -> Array:
    safe = np.power(a, np.maximum(b, 0).astype(a.dtype))
    if b.dtype.kind == "u" or not (b < 0).any():
        return safe
    if bool(((a == 0) & (b < 0)).any()):
        raise RunError("zero to a negative integer power")
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, inverse, safe).astype(a.dtype)


def _folded(step: Any) -> Any:
    def kernel(first: Array, *others: Array) -> Array:
        result = first
        for x in others:
            result = step(result, x)
        return result

    return kernel


operator("Max", infer=broadcast, traits=S)(_folded(np.maximum))
operator("Min", infer=broadcast, traits=S)(_folded(np.minimum))


@operator("Sum", infer=broadcast, traits=C)
def sum(first: Array, *others: Array) -> Array:
    return narrow(_folded(np.add)(*map(wide, (first, *others))), first)


@operator("Mean", infer=broadcast, traits=E)
def mean(first: Array, *others: Array) -> Array:
    total = _folded(np.add)(*map(wide, (first, *others)))
    return narrow(total / np.asarray(1 + len(others), dtype=total.dtype), first)


# ---- functions

operator("Neg", infer=same_as_first, traits=S)(lambda x: np.negative(x))
operator("Abs", infer=same_as_first, traits=S)(lambda x: np.abs(x))
operator("Sign", infer=same_as_first, traits=E)(lambda x: np.sign(x))
operator("Reciprocal", infer=same_as_first, traits=E)(lambda x: np.divide(np.ones((), x.dtype), x))
operator("Floor", infer=same_as_first, traits=E)(lambda x: np.floor(x))
operator("Ceil", infer=same_as_first, traits=E)(lambda x: np.ceil(x))
operator("Round", infer=same_as_first, traits=E)(lambda x: np.rint(x))
operator("Sqrt", infer=same_as_first, traits=E)(lambda x: np.sqrt(x))
operator("Exp", infer=same_as_first, traits=E)(lambda x: np.exp(x))
operator("Log", infer=same_as_first, traits=E)(lambda x: np.log(x))
operator("Sin", infer=same_as_first, traits=E)(lambda x: np.sin(x))
operator("Cos", infer=same_as_first, traits=E)(lambda x: np.cos(x))
operator("Tan", infer=same_as_first, traits=E)(lambda x: np.tan(x))
operator("Asin", infer=same_as_first, traits=E)(lambda x: np.arcsin(x))
operator("Acos", infer=same_as_first, traits=E)(lambda x: np.arccos(x))
operator("Atan", infer=same_as_first, traits=E)(lambda x: np.arctan(x))
operator("Sinh", infer=same_as_first, traits=E)(lambda x: np.sinh(x))
operator("Cosh", infer=same_as_first, traits=E)(lambda x: np.cosh(x))
operator("Tanh", infer=same_as_first, traits=E)(lambda x: np.tanh(x))
operator("Asinh", infer=same_as_first, traits=E)(lambda x: np.arcsinh(x))
operator("Acosh", infer=same_as_first, traits=E)(lambda x: np.arccosh(x))
operator("Atanh", infer=same_as_first, traits=E)(lambda x: np.arctanh(x))


@operator("Erf", infer=same_as_first, traits=E)
def error_function(x: Array) -> Array:
    """The error function; an integer gives its truncated value."""
    return erf(x)


# ---- bits

operator("BitwiseAnd", infer=broadcast, traits=C)(lambda a, b: np.bitwise_and(a, b))
operator("BitwiseOr", infer=broadcast, traits=C)(lambda a, b: np.bitwise_or(a, b))
operator("BitwiseXor", infer=broadcast, traits=C)(lambda a, b: np.bitwise_xor(a, b))
operator("BitwiseNot", infer=same_as_first, traits=E)(lambda x: np.bitwise_not(x))


def _bit_shift_info(x: Info, y: Info, *, direction: str) -> Info:
    expect(direction in ("LEFT", "RIGHT"), f"direction {quote(direction)} is not LEFT or RIGHT")
    return broadcast(x, y)


@operator("BitShift", infer=_bit_shift_info, traits=E)
@at_run_time
def bit_shift(x: Array, y: Array, *, direction: str) -> Array:
    """Bits moved by ``y`` places, sign bits after a signed number; all are gone where ``y`` is not within its width."""
    expect(direction in ("LEFT", "RIGHT"), f"direction {quote(direction)} is not LEFT or RIGHT")
    width = 8 * x.dtype.itemsize
    outside = (y < 0) | (y >= width)
    if direction == "LEFT":
        return np.where(outside, x.dtype.type(0), np.left_shift(x, np.where(outside, y.dtype.type(0), y)))
    gone = np.right_shift(np.right_shift(x, x.dtype.type(width - 1)), x.dtype.type(1))
    return np.where(outside, gone, np.right_shift(x, np.where(outside, y.dtype.type(0), y)))


# ---- comparison, logic, choice

operator("Equal", infer=compare, traits=C)(lambda a, b: np.asarray(np.equal(a, b), dtype=bool))
operator("Greater", infer=compare, traits=E)(lambda a, b: np.greater(a, b))
operator("GreaterOrEqual", infer=compare, traits=E)(lambda a, b: np.greater_equal(a, b))
operator("Less", infer=compare, traits=E)(lambda a, b: np.less(a, b))
operator("LessOrEqual", infer=compare, traits=E)(lambda a, b: np.less_equal(a, b))
operator("And", infer=compare, traits=C)(lambda a, b: np.logical_and(a, b))
operator("Or", infer=compare, traits=C)(lambda a, b: np.logical_or(a, b))
operator("Xor", infer=compare, traits=C)(lambda a, b: np.logical_xor(a, b))
operator("Not", infer=compare, traits=E)(lambda x: np.logical_not(x))
operator("IsNaN", infer=compare, traits=E)(lambda x: np.isnan(x))


@operator("IsInf", infer=compare, traits=E)
def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    return np.isinf(x) & (((x < 0) & bool(detect_negative)) | ((x > 0) & bool(detect_positive)))


def _where_info(condition: Info, a: Info, b: Info) -> Info:
    return tensor(common_dtype(a, b), broadcast_dims([condition.shape, a.shape, b.shape]))


@operator("Where", infer=_where_info, traits=S)
def where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)
