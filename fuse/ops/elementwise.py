"""Elementwise operators: arithmetic, comparison, logic, rounding, activations.

Kernels compute in the dtype of their input; NumPy rounds each float16 result once, and ``ml_dtypes`` does the same for
bfloat16 and the 8-bit floats.  Where a formula takes several steps, half precision is carried in float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dtypes import BY_CODE, FLOATING, STRING, Array, DType
from fuse.ops.infer import broadcast, broadcast_dims, common_dtype, compare, same_as_first
from fuse.ops.record import Info, Trait, operator, tensor

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


@operator("Mod", infer=broadcast, traits=E)
def mod(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The sign of the divisor (Python's) for ``fmod=0``, of the dividend (C's) for ``fmod=1``."""
    _no_zero(b)
    return np.fmod(a, b) if fmod else np.mod(a, b)


def _pow_info(a: Info, b: Info) -> Info:
    return tensor(a.dtype, broadcast_dims([a.shape, b.shape]))


@operator("Pow", infer=_pow_info, traits=E)
def pow(a: Array, b: Array) -> Array:
    """The result has the base's dtype; an integer base with a negative exponent truncates towards zero."""
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        safe = np.power(a, np.maximum(b, 0).astype(a.dtype))
        if b.dtype.kind == "u" or not (b < 0).any():
            return safe
        inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
        if bool(((a == 0) & (b < 0)).any()):
            raise RunError("zero to a negative integer power")
        return np.where(b < 0, inverse, safe).astype(a.dtype)
    if a.dtype in FLOATING and a.dtype.itemsize < 4:
        return np.power(wide(a), b.astype(np.float32)).astype(a.dtype)
    if a.dtype.kind in "iu":
        return np.trunc(np.power(a.astype(np.float64), b.astype(np.float64))).astype(a.dtype)
    return np.power(a, b.astype(a.dtype))


def _variadic(step: Any) -> Any:
    def kernel(first: Array, *others: Array) -> Array:
        result = first
        for x in others:
            result = step(result, x)
        return result

    return kernel


operator("Sum", infer=broadcast, traits=C)(_variadic(np.add))
operator("Max", infer=broadcast, traits=E)(_variadic(np.maximum))
operator("Min", infer=broadcast, traits=E)(_variadic(np.minimum))


@operator("Mean", infer=broadcast, traits=E)
def mean(first: Array, *others: Array) -> Array:
    total = _variadic(np.add)(*(wide(x) for x in (first, *others)))
    return narrow(total / np.asarray(1 + len(others), dtype=total.dtype), first)


operator("Neg", infer=same_as_first, traits=S)(lambda x: np.negative(x))
operator("Abs", infer=same_as_first, traits=E)(lambda x: np.abs(x))
operator("Sqrt", infer=same_as_first, traits=E)(lambda x: np.sqrt(x))
operator("Exp", infer=same_as_first, traits=E)(lambda x: np.exp(x))
operator("Log", infer=same_as_first, traits=E)(lambda x: np.log(x))
operator("Reciprocal", infer=same_as_first, traits=E)(lambda x: np.divide(np.ones((), x.dtype), x))
operator("Floor", infer=same_as_first, traits=E)(lambda x: np.floor(x))
operator("Ceil", infer=same_as_first, traits=E)(lambda x: np.ceil(x))
operator("Round", infer=same_as_first, traits=E)(lambda x: np.rint(x))
operator("Sin", infer=same_as_first, traits=E)(lambda x: np.sin(x))
operator("Cos", infer=same_as_first, traits=E)(lambda x: np.cos(x))
operator("Tan", infer=same_as_first, traits=E)(lambda x: np.tan(x))


@operator("Sign", infer=same_as_first, traits=E)
def sign(x: Array) -> Array:
    return np.sign(x)


@operator("Erf", infer=same_as_first, traits=E)
def erf(x: Array) -> Array:
    """NumPy has no erf; the C library's is exact to an ULP of float64, element by element."""
    flat = np.fromiter((math.erf(v) for v in np.ravel(x).tolist()), dtype=np.float64, count=x.size)
    return flat.reshape(x.shape).astype(x.dtype)


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


def _cast_info(x: Info, *, to: int, saturate: int = 1, round_mode: str = "up") -> Info:
    return tensor(BY_CODE[to], x.shape, x.value if x.value is not None and BY_CODE[to] == np.int64 else None)


@operator("Cast", infer=_cast_info, traits=E)
def cast(x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """Float to integer truncates; out-of-range and NaN are implementation-defined in ONNX and saturate (NaN to 0) here."""
    return cast_to(x, BY_CODE[to], bool(saturate))


def cast_to(x: Array, dtype: DType, saturate: bool = True) -> Array:
    """``x`` as ``dtype`` by ONNX's rules, strings both ways included."""
    if x.dtype == dtype:
        return x
    if x.dtype == STRING:
        flat = [float(v) if dtype.kind not in "iu" else int(float(v)) for v in x.ravel()]
        return np.array(flat, dtype=np.float64 if dtype.kind not in "iu" else np.int64).reshape(x.shape).astype(dtype)
    if dtype == STRING:
        texts = np.empty(x.shape, dtype=object)
        texts.reshape(-1)[:] = [_text(v) for v in x.ravel()]
        return texts
    if dtype.kind in "iu" and x.dtype in FLOATING and x.dtype.kind == "f":
        return _float_to_int(x, dtype)
    return x.astype(dtype)


def _text(v: Any) -> str:
    return str(v.item()) if isinstance(v, np.generic) and v.dtype.kind in "biu" else f"{v:.9g}"


def _float_to_int(x: Array, dtype: DType) -> Array:
    info = np.iinfo(dtype)
    if np.isfinite(x).all() and (x.size == 0 or (float(x.min()) > info.min and float(x.max()) < info.max)):
        return x.astype(dtype)
    y = np.trunc(x.astype(np.float64))
    low, high = y <= float(info.min), y >= float(info.max)
    safe = np.where(low | high | np.isnan(y), 0, y).astype(dtype)
    return np.where(low, dtype.type(info.min), np.where(high, dtype.type(info.max), safe)).astype(dtype)


# ---- activations


@operator("Relu", infer=same_as_first, traits=E)
def relu(x: Array) -> Array:
    """max(x, 0): NaN stays NaN."""
    return np.maximum(x, x.dtype.type(0))


@operator("LeakyRelu", infer=same_as_first, traits=E)
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    return np.where(x < 0, x * x.dtype.type(alpha), x)


def _prelu_info(x: Info, slope: Info) -> Info:
    return Info(x.type)


@operator("PRelu", infer=_prelu_info, traits=E)
def prelu(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


@operator("Clip", infer=lambda x, low=None, high=None: Info(x.type), traits=E)
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """min(max(x, low), high): the upper bound wins where the two cross; NaN stays NaN."""
    if low is not None:
        x = np.maximum(x, low.reshape(()).astype(x.dtype))
    return np.minimum(x, high.reshape(()).astype(x.dtype)) if high is not None else x


@operator("Sigmoid", infer=same_as_first, traits=E)
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) by the branch that cannot overflow, so that both tails keep their relative accuracy."""
    w = wide(x)
    decay = np.exp(-np.abs(w))
    return narrow(np.where(w >= 0, 1, decay) / (1 + decay), x)


operator("Tanh", infer=same_as_first, traits=E)(lambda x: np.tanh(x))


@operator("HardSigmoid", infer=same_as_first, traits=E)
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    w = wide(x)
    return narrow(np.clip(w * w.dtype.type(alpha) + w.dtype.type(beta), 0, 1), x)


@operator("HardSwish", infer=same_as_first, traits=E)
def hard_swish(x: Array) -> Array:
    """x * clip(x / 6 + 1/2, 0, 1)."""
    w = wide(x)
    return narrow(w * np.clip(w * w.dtype.type(1 / 6) + w.dtype.type(0.5), 0, 1), x)


@operator("Elu", infer=same_as_first, traits=E)
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    w = wide(x)
    return narrow(np.where(w < 0, w.dtype.type(alpha) * np.expm1(np.minimum(w, 0)), w), x)


@operator("Celu", infer=same_as_first, traits=E)
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    w, a = wide(x), wide(x).dtype.type(alpha)
    return narrow(np.maximum(w, 0) + np.minimum(a * np.expm1(np.minimum(w, 0) / a), 0), x)


@operator("Selu", infer=same_as_first, traits=E)
def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    w = wide(x)
    a, g = w.dtype.type(alpha), w.dtype.type(gamma)
    return narrow(g * np.where(w > 0, w, a * np.expm1(np.minimum(w, 0))), x)


@operator("Softplus", infer=same_as_first, traits=E)
def softplus(x: Array) -> Array:
    """log(1 + exp(x)) as max(x, 0) + log1p(exp(-|x|)), which neither overflows nor cancels."""
    w = wide(x)
    return narrow(np.maximum(w, 0) + np.log1p(np.exp(-np.abs(w))), x)


@operator("Softsign", infer=same_as_first, traits=E)
def softsign(x: Array) -> Array:
    w = wide(x)
    return narrow(w / (1 + np.abs(w)), x)


@operator("ThresholdedRelu", infer=same_as_first, traits=E)
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    return np.where(x > x.dtype.type(alpha), x, x.dtype.type(0))


@operator("Shrink", infer=same_as_first, traits=E)
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    bias_, lambd_ = np.asarray(bias).astype(x.dtype), np.asarray(lambd).astype(x.dtype)
    return np.where(x < -lambd_, x + bias_, np.where(x > lambd_, x - bias_, x.dtype.type(0)))
