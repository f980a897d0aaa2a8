"""Activations: elementwise functions of one tensor that networks put behind their layers.

Formulas run block by block in the cache.  Those whose steps would lose accuracy in float32 (the exponential of a
rounded product, say) run in float64, which costs little beside the exponential.  A choice between two branches is
written without a mask where it can be, because NumPy's masks cost more than a multiplication.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import FLOATING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.elementwise import narrow, wide
from fuse.ops.erf import in_blocks, normal_cdf, polynomial
from fuse.ops.infer import common_dtype, same_as_first, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

E = Trait.ELEMENTWISE


# ---- piecewise linear


@operator("Relu", infer=same_as_first, traits=E)
def relu(x: Array) -> Array:
    """max(x, 0): NaN stays NaN."""
    return np.maximum(x, x.dtype.type(0))


@operator("LeakyRelu", infer=same_as_first, traits=E)
def leaky_relu(x: Array, *, alpha: float = 0.01) -> Array:
    w = wide(x)
    scaled = w * w.dtype.type(alpha)
    if alpha == 0:  # 0 * inf must not reach the positive side
        return narrow(np.where(w < 0, scaled, w), x)
    return narrow(np.maximum(w, scaled) if alpha <= 1 else np.minimum(w, scaled), x)


def _slope_fits(x: Shape | None, slope: Shape | None) -> None:
    if x is None or slope is None:
        return
    ends = zip(reversed(slope), reversed(x), strict=False)
    clash = any(isinstance(s, int) and isinstance(d, int) and s not in (1, d) for s, d in ends)
    fits = len(slope) <= len(x) and not clash
    expect(fits, f"slope {show_shape(slope)} does not broadcast to {show_shape(x)}")


def _prelu_info(x: Info, slope: Info) -> Info:
    _slope_fits(x.shape, slope.shape)
    return tensor(common_dtype(x, slope), x.shape)


@operator("PRelu", infer=_prelu_info, traits=E)
@at_run_time
def prelu(x: Array, slope: Array) -> Array:
    _slope_fits(x.shape, slope.shape)
    return np.where(x < 0, x * slope, x)


@operator("ThresholdedRelu", infer=same_as_first, traits=E)
def thresholded_relu(x: Array, *, alpha: float = 1.0) -> Array:
    w = wide(x)
    return np.where(w > w.dtype.type(alpha), x, x.dtype.type(0))


@operator("Shrink", infer=same_as_first, traits=E)
def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    bias_, lambd_ = np.asarray(bias).astype(x.dtype), np.asarray(lambd).astype(x.dtype)
    return np.where(x < -lambd_, x + bias_, np.where(x > lambd_, x - bias_, x.dtype.type(0)))


@operator("Clip", infer=lambda x, low=None, high=None: Info(x.type), traits=E)
def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """min(max(x, low), high): the upper bound wins where the two cross; NaN stays NaN."""
    if low is not None:
        x = np.maximum(x, low.reshape(()).astype(x.dtype))
    return np.minimum(x, high.reshape(()).astype(x.dtype)) if high is not None else x


@operator("HardSigmoid", infer=same_as_first, traits=E)
def hard_sigmoid(x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """clip(alpha * x + beta, 0, 1)."""
    return in_blocks(x, lambda w: np.clip(w * alpha + beta, 0, 1))


@operator("HardSwish", infer=same_as_first, traits=E)
def hard_swish(x: Array) -> Array:
    """``x * clip(x / 6 + 1/2, 0, 1)``; the sum is exact where it cancels."""
    w = wide(x)
    return narrow(w * (np.clip(w + w.dtype.type(3), 0, 6) / w.dtype.type(6)), x)


# ---- exponential


def logistic(w: Array) -> Array:
    """1 / (1 + exp(-w)) on a fresh array, to 4 ULP in the dtype of ``w`` (float32 or float64)."""
    y: Array = np.negative(w, out=np.empty_like(w))
    np.exp(y, out=y)
    y += 1
    np.reciprocal(y, out=y)
    edge = -80 if w.dtype == np.float32 else -700
    if w.size and bool(w.min() < edge):  # exp(-w) overflows before the result is 0
        np.copyto(y, np.exp(w), where=w < edge)
    return y


@operator("Sigmoid", infer=same_as_first, traits=E)
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return narrow(logistic(wide(x)), x)


def _expm1(w: Array) -> Array:
    """``exp(w) - 1`` for ``w`` up to 0, to 4 ULP; in float32 without NumPy's function, which is five times slower."""
    if w.dtype == np.float64:
        return np.expm1(w)
    y = np.tanh(w / 2)
    y *= np.exp(w) + 1
    return y


def _working(x: Array) -> type:
    """The dtype that half precision and float32 share, or float64."""
    return np.float64 if x.dtype == np.float64 else np.float32


@operator("Elu", infer=same_as_first, traits=E)
def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """``x``, and ``alpha * (exp(x) - 1)`` below 0."""
    return in_blocks(x, lambda w: np.maximum(w, 0) + alpha * _expm1(np.minimum(w, 0)), _working(x))


@operator("Celu", infer=same_as_first, traits=E)
def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """``max(0, x) + min(0, alpha * (exp(x / alpha) - 1))``."""
    if alpha > 0:
        return in_blocks(x, lambda w: np.maximum(w, 0) + alpha * _expm1(np.minimum(w, 0) / alpha), _working(x))
    return in_blocks(x, lambda w: np.maximum(w, 0) + np.minimum(alpha * np.expm1(np.minimum(w, 0) / alpha), 0))


@operator("Selu", infer=same_as_first, traits=E)
def selu(x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875) -> Array:
    """``gamma * x``, and ``gamma * alpha * (exp(x) - 1)`` below 0."""
    return in_blocks(x, lambda w: gamma * (np.maximum(w, 0) + alpha * _expm1(np.minimum(w, 0))), _working(x))


# log((1 + s) / (1 - s)) / s as a function of s ** 2 up to 1/9, for results in float64 (1.2e-18) and float32 (4.0e-9)
_LOGARITHM = (
    2.0, 0.6666666666666613, 0.400000000001903, 0.28571428544927635, 0.2222222411165581, 0.18181739790825902,
    0.15386635405788943, 0.13300102957239943, 0.12112246709762564, 0.08315689574657423, 0.17060060016850334,
)  # fmt: skip
_LOGARITHM_SINGLE = (
    2.0000000079192284,
    0.6666631471232358,
    0.40024909530341324,
    0.27960607586142483,
    0.28178332630931335,
)


def _softplus(w: Array) -> Array:
    """``log(1 + d) = log((1 + s) / (1 - s))`` with ``s = d / (2 + d)``, whose series has positive terms alone."""
    s = np.exp(-np.abs(w))
    s /= s + 2
    y = polynomial(_LOGARITHM if w.dtype == np.float64 else _LOGARITHM_SINGLE, s * s)
    y *= s
    y += np.maximum(w, 0)
    return y


@operator("Softplus", infer=same_as_first, traits=E)
def softplus(x: Array) -> Array:
    """``log(1 + exp(x))`` as ``max(x, 0) + log(1 + exp(-|x|))``, which neither overflows nor cancels."""
    return in_blocks(x, _softplus, _working(x))


@operator("Softsign", infer=same_as_first, traits=E)
def softsign(x: Array) -> Array:
    w = wide(x)
    return narrow(w / (1 + np.abs(w)), x)


def _mish(w: Array) -> Array:
    n = np.exp(np.minimum(w, 40))
    n *= n + 2
    return w * (n / (n + 2))


@operator("Mish", infer=same_as_first, traits=E)
def mish(x: Array) -> Array:
    """``x * tanh(log(1 + exp(x)))``, which is ``x * p / (p + 2)`` with ``p = n * (n + 2)`` and ``n = exp(x)``."""
    return in_blocks(x, _mish)


def _swish(x: Array, alpha: float) -> Array:
    """Swish on a fresh array, half precision as float32.

    Float32 itself is enough where nothing is rounded before the exponential and that does not overflow.
    """
    w = wide(x)
    if alpha != 1 or (w.size and not w.min() > -80):
        return in_blocks(w, lambda v: _gated(v, v * alpha))
    y = logistic(w)
    y *= w
    return y


def _gated(x: Array, gate: Array) -> Array:
    """``x / (1 + exp(-gate))``, the exponential in two factors, so that it is 0 only where the result is."""
    half = np.exp(np.minimum(gate, 0) / 2)
    return x * half / (1 + np.exp(-np.abs(gate))) * half


@operator("Swish", infer=same_as_first, traits=E)
def swish(x: Array, *, alpha: float = 1.0) -> Array:
    """``x / (1 + exp(-alpha * x))``."""
    return narrow(_swish(x, alpha), x)


def _swiglu_dims(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None:
        return a if b is None else b
    differ = f"A is {show_shape(a)} but B is {show_shape(b)}"
    expect(len(a) == len(b), differ)
    return tuple(same_dim(pair, differ) for pair in zip(a, b, strict=True))


def _swiglu_info(a: Info, b: Info, *, alpha: float = 1.0) -> Info:
    return tensor(common_dtype(a, b), _swiglu_dims(a.shape, b.shape))


@operator("SwiGLU", infer=_swiglu_info, traits=E)
@at_run_time
def swiglu(a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """Swish of ``a``, times ``b`` of the same shape."""
    _swiglu_dims(a.shape, b.shape)
    y = _swish(a, alpha)
    y *= wide(b)
    return narrow(y, a)


# ---- Gelu


def _gelu_info(x: Info, *, approximate: str = "none") -> Info:
    expect(approximate in ("none", "tanh"), f"approximate {quote(approximate)} is not none or tanh")
    return Info(x.type)


def _gelu_tanh(w: Array) -> Array:
    """``w / 2 * (1 + tanh(u))`` as ``w / (1 + exp(-2 * u))``, ``u = sqrt(2 / pi) * (w + 0.044715 * w ** 3)``."""
    y = w * w
    y *= 0.044715
    y += 1
    y *= w
    y *= -2 * np.sqrt(2 / np.pi)
    np.exp(y, out=y)
    y += 1
    return np.divide(w, y, out=y)


@operator("Gelu", infer=_gelu_info, traits=E)
@at_run_time
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """``x`` times the normal distribution of ``x``, which keeps its relative accuracy down to the smallest numbers."""
    expect(approximate in ("none", "tanh"), f"approximate {quote(approximate)} is not none or tanh")
    if approximate == "tanh":
        return in_blocks(x, _gelu_tanh)
    single = x.dtype in FLOATING and x.dtype != np.float64
    return in_blocks(x, lambda w: w * normal_cdf(w, single))
