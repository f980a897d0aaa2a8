"""Activations against their formulas in float64, in units of the last place, and at the ends of their range."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import OPERATORS
from fuse.ops.erf import BLOCK
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says, ulps

INF, NAN = np.inf, np.nan
BF16 = ml_dtypes.bfloat16
MODULE = sorted(op for op, record in OPERATORS.items() if record.kernel.__module__ == "fuse.ops.activation")
UNARY = [op for op in MODULE if op not in ("PRelu", "SwiGLU")]


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases(*MODULE))
def test_onnx_cases(case):
    check_case(case, exact=True)


def swish(x, alpha=1.0):
    return x / (1 + math.exp(-alpha * x)) if alpha * x > -700 else 0.0


def gelu_tanh(x):
    return swish(x, 2 * math.sqrt(2 / math.pi) * (1 + 0.044715 * x * x))


def gelu(x):
    return x * math.erfc(-x / math.sqrt(2)) / 2


FORMULAS = [
    ("Relu", {}, lambda x: max(x, 0.0)),
    ("LeakyRelu", {}, lambda x: x if x >= 0 else 0.01 * x),
    ("LeakyRelu", {"alpha": 1.5}, lambda x: x if x >= 0 else 1.5 * x),
    ("LeakyRelu", {"alpha": -0.25}, lambda x: x if x >= 0 else -0.25 * x),
    ("LeakyRelu", {"alpha": 0.0}, lambda x: max(x, 0.0)),
    ("ThresholdedRelu", {"alpha": 0.75}, lambda x: x if x > 0.75 else 0.0),
    ("Shrink", {"bias": 0.5, "lambd": 1.5}, lambda x: x + 0.5 if x < -1.5 else x - 0.5 if x > 1.5 else 0.0),
    ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, lambda x: min(max(0.25 * x + 0.5, 0.0), 1.0)),
    ("HardSwish", {}, lambda x: x * min(max(x + 3, 0.0), 6.0) / 6),
    ("Sigmoid", {}, lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0),
    ("Elu", {}, lambda x: x if x >= 0 else math.expm1(x)),
    ("Elu", {"alpha": 2.5}, lambda x: x if x >= 0 else 2.5 * math.expm1(x)),
    ("Celu", {}, lambda x: x if x >= 0 else math.expm1(x)),
    ("Celu", {"alpha": 0.5}, lambda x: x if x >= 0 else 0.5 * math.expm1(2 * x)),
    ("Celu", {"alpha": -0.5}, lambda x: max(x, 0.0) + min(-0.5 * math.expm1(min(-2 * x, 700)), 0.0)),
    ("Selu", {"alpha": 2.0, "gamma": 1.5}, lambda x: 1.5 * x if x > 0 else 3 * math.expm1(x)),
    ("Softplus", {}, lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x)))),
    ("Softsign", {}, lambda x: x / (1 + abs(x))),
    ("Mish", {}, lambda x: x * math.tanh(max(x, 0.0) + math.log1p(math.exp(-abs(x))))),
    ("Swish", {}, swish),
    ("Swish", {"alpha": 1.75}, lambda x: swish(x, 1.75)),
    ("Gelu", {}, gelu),
    ("Gelu", {"approximate": "tanh"}, gelu_tanh),
]


def points(dtype):
    """Ordinary numbers, tiny and huge ones, and those where formulas change."""
    rng, top = np.random.default_rng(5), math.log(float(np.finfo(dtype).max))
    drawn = [rng.standard_normal(3000) * 3, np.exp(rng.uniform(-top, 8, 500)), -np.exp(rng.uniform(-top, 4, 500))]
    edges = np.array([0, -0.0, 3, -3, 6, -6, 0.75, 1.5, -1.5, -2.9999, -79.9, -80.1, -87.5, -88.8, -95, -102])
    return np.concatenate([*drawn, rng.uniform(-1.02 * min(top, 110), 110, 1000), edges]).astype(dtype)


@pytest.mark.parametrize(("op", "attrs", "formula"), FORMULAS)
@pytest.mark.parametrize(("dtype", "limit"), [(np.float32, 4), (np.float16, 0.52)])
def test_formulas(op, attrs, formula, dtype, limit):
    x = points(dtype)
    wanted = np.array([formula(v) for v in x.tolist()])
    kept = np.abs(wanted) < float(np.finfo(dtype).max)
    assert kept.mean() > 0.95
    assert ulps(kernel(op, x, **attrs)[kept], wanted[kept], dtype).max() <= limit


@pytest.mark.parametrize(("op", "attrs", "formula"), FORMULAS)
def test_formulas_in_float64(op, attrs, formula):
    x = points(np.float64)
    x = x[np.abs(x) < (1.5 if op == "Gelu" else 5)]  # beyond, the oracle's own exponent is rounded
    wanted = np.array([formula(v) for v in x.tolist()])
    got = kernel(op, x, **attrs)
    if op == "HardSigmoid":  # a sum that cancels
        same(got, wanted, rtol=0, atol=2.3e-16)
    else:
        assert ulps(got, wanted, np.float64).max() <= 8


@pytest.mark.parametrize(("op", "attrs", "formula"), FORMULAS)
def test_bfloat16_is_rounded_once(op, attrs, formula):
    x = points(np.float32).astype(BF16)
    wanted = np.array([formula(v) for v in x.astype(float).tolist()]).astype(BF16)
    got = kernel(op, x, **attrs)
    assert got.dtype == BF16
    assert np.mean(got == wanted) > 0.996  # float32 may fall on the half between two that float64 does not meet
    step = np.abs(got.view(np.int16).astype(int) - wanted.view(np.int16))[got != wanted]
    assert step.max(initial=0) <= 1


ENDS = {
    "Relu": "[inf, 0.0, nan]",
    "LeakyRelu": "[inf, -inf, nan]",
    "ThresholdedRelu": "[inf, 0.0, nan]",
    "HardSigmoid": "[1.0, 0.0, nan]",
    "HardSwish": "[inf, nan, nan]",  # minus infinity times 0, as the text has it
    "Sigmoid": "[1.0, 0.0, nan]",
    "Elu": "[inf, -1.0, nan]",
    "Celu": "[inf, -1.0, nan]",
    "Softplus": "[inf, 0.0, nan]",
    "Clip": "[inf, -inf, nan]",
    "Mish": "[inf, nan, nan]",
    "Swish": "[inf, nan, nan]",
    "Gelu": "[inf, nan, nan]",
}


@pytest.mark.parametrize("op", ENDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BF16])
def test_infinities_and_nan(op, dtype):
    x = np.array([INF, -INF, NAN]).astype(dtype)
    got = kernel(op, x).astype(np.float64)
    wanted = ENDS[op] if op != "ThresholdedRelu" else "[inf, 0.0, 0.0]"
    assert str(got.tolist()).replace("-0.0", "0.0") == wanted


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_largest_numbers_do_not_overflow(dtype):
    top = float(np.finfo(dtype).max)
    x = np.array([top, -top], dtype)
    for op in ("HardSwish", "Swish", "Mish", "Gelu", "Elu", "Celu", "Softplus"):
        assert kernel(op, x)[0] == top, op
        assert kernel(op, x)[1] in (0, -1), op
    assert kernel("Gelu", x, approximate="tanh").tolist() == [top, 0]


@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1, 3), (2 * BLOCK + 5,)])
def test_shapes(op, shape):
    x = normal(1, *shape) if shape else np.array(-1.5, np.float32)
    kept = x.copy()
    y = kernel(op, x)
    assert (np.shape(y), y.dtype) == (shape, x.dtype)
    assert x.tolist() == kept.tolist()
    assert np.ravel(y)[-3:].tolist() == np.ravel(kernel(op, np.ravel(x)[-3:])).tolist()


@pytest.mark.parametrize("op", UNARY)
def test_a_transposed_input_keeps_its_places(op):
    x = normal(1, 30, 40).T
    assert kernel(op, x).tolist() == kernel(op, np.ascontiguousarray(x)).tolist()


# ---- those with more inputs


def test_prelu():
    x = np.array([[-2, 3, -0.5], [INF, -INF, NAN]], np.float32)
    slope = np.array([0.5, 2, INF], np.float32)
    assert str(kernel("PRelu", x, slope).tolist()) == "[[-1.0, 3.0, -inf], [inf, -inf, nan]]"
    assert kernel("PRelu", np.array([-3, 4], np.int32), np.array([2], np.int32)).tolist() == [-6, 4]


@pytest.mark.parametrize(("slope", "fits"), [((3,), True), ((2, 1), True), ((2,), False), ((1, 2, 3), False)])
def test_a_slope_broadcasts_one_way(slope, fits):
    x = normal(1, 2, 3)
    if fits:
        assert kernel("PRelu", x, np.ones(slope, np.float32)).tolist() == x.tolist()
        assert shape_of(infer("PRelu", [typed(2, 3), typed(*slope)])[0]) == "[2, 3]"
        return
    with pytest.raises(RunError, match="slope"):
        kernel("PRelu", x, np.ones(slope, np.float32))
    with pytest.raises(ShapeError, match="slope"):
        infer("PRelu", [typed(2, 3), typed(*slope)])


def test_clip():
    x = np.array([-5, 0, 5, NAN], np.float32)
    low, high = np.array(-1, np.float32), np.array(2, np.float32)
    assert str(kernel("Clip", x, low, high).tolist()) == "[-1.0, 0.0, 2.0, nan]"
    assert str(kernel("Clip", x, None, high).tolist()) == "[-5.0, 0.0, 2.0, nan]"
    assert str(kernel("Clip", x, high, low).tolist()) == "[-1.0, -1.0, -1.0, nan]"
    assert kernel("Clip", np.array([1, 9], np.uint8), None, np.array(3, np.uint8)).tolist() == [1, 3]


@pytest.mark.parametrize(("dtype", "eps"), [(np.float32, 1e-6), (np.float64, 1e-14), (np.float16, 2e-3), (BF16, 2e-2)])
@pytest.mark.parametrize("alpha", [1.0, 1.75])
def test_swiglu(dtype, eps, alpha):
    a, b = (normal(1, 5, 300) * 4).astype(dtype), normal(2, 5, 300).astype(dtype)
    got = kernel("SwiGLU", a, b, alpha=alpha)
    assert got.dtype == dtype
    a, b = a.astype(np.float64), b.astype(np.float64)
    same(got.astype(np.float64), a / (1 + np.exp(-alpha * a)) * b, rtol=eps, atol=6e-8 if dtype == np.float16 else 0)


def test_swiglu_does_not_broadcast():
    with pytest.raises(RunError, match=r"A is \[2, 3\] but B is \[3\]"):
        kernel("SwiGLU", normal(1, 2, 3), normal(2, 3))
    with pytest.raises(ShapeError, match=r"A is \[2, 3\] but B is \[2, 1\]"):
        infer("SwiGLU", [typed(2, 3), typed(2, 1)])
    assert shape_of(infer("SwiGLU", [typed("n", 3), typed(2, None)])[0]) == "[2, 3]"


def test_an_unknown_approximation():
    with pytest.raises(RunError, match="approximate 'fast'"):
        kernel("Gelu", normal(1, 3), approximate="fast")
    with pytest.raises(ShapeError, match="approximate 'fast'"):
        infer("Gelu", [typed(3)], approximate="fast")


@pytest.mark.parametrize("op", sorted({op for op, _, _ in FORMULAS} - {"Mish", "Swish"}))
def test_onnxruntime(op):
    x = normal(1, 4, 50) * 4
    same(kernel(op, x), onnxruntime_says(op, [x], opset=20), rtol=1e-5, atol=3e-7)
