"""Activations of com.microsoft, alone and after a bias, against onnxruntime and against formulas in float64."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import close, normal

HALF = np.float16
SPREAD = np.array([-88, -40, -12, -6, -5, -3, -1, -1e-3, -0.0, 0, 1e-30, 1e-3, 1, 3, 5, 12, 40, 1e30, 3e38], np.float32)
X, BIAS = normal(1, 2, 3, 8) * 3, normal(2, 8)


def gelu(x):
    """By the complementary error function of the standard library, accurate in the tail."""
    return np.array([v / 2 * math.erfc(-v / math.sqrt(2)) for v in x.astype(np.float64).flat]).reshape(x.shape)


def tanh_gelu(x):
    w = x.astype(np.float64)
    return w / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (w + 0.044715 * w**3)))


def swish(x, alpha=1.0):
    w = x.astype(np.float64)
    return w / (1 + np.exp(-alpha * w))


def ulps(got, wanted):
    """The largest distance in units of float32's last place of the wanted number."""
    with np.errstate(over="ignore"):
        unit = np.spacing(np.maximum(np.abs(wanted), np.finfo(np.float32).tiny).astype(np.float32))
    return np.max(np.abs(got.astype(np.float64) - wanted) / unit)


@pytest.mark.parametrize(
    ("op", "wanted", "attrs"),
    [
        ("Gelu", gelu, {}),
        ("FastGelu", tanh_gelu, {}),
        ("QuickGelu", lambda x: swish(x, float(np.float32(1.702))), {}),
        ("QuickGelu", lambda x: swish(x, 0.5), {"alpha": 0.5}),
        ("ScaledSiLU", swish, {}),
    ],
)
def test_accuracy(op, wanted, attrs):
    x = np.concatenate((SPREAD, normal(3, 4000) * 4))
    y = run(op, [x], **attrs)[0]
    with np.errstate(all="ignore"):
        truth = wanted(x)
    assert ulps(y, truth) <= 4
    assert math.copysign(1, y[8]) == -1
    agree(op, [X], eps=2e-6, **attrs)


@pytest.mark.parametrize("op", ["Gelu", "FastGelu", "QuickGelu", "ScaledSiLU"])
def test_extremes(op):
    """Minus infinity times 0 is no number, in onnxruntime too."""
    y = agree(op, [np.array([-np.inf, np.inf, np.nan, 3e38, -3e38, 0, -0.0], np.float32)])[0]
    assert str(y[:4].tolist()) == f"[nan, inf, nan, {float(np.float32(3e38))}]"
    assert run(op, [np.zeros((0, 3), np.float32)])[0].shape == (0, 3)
    assert run(op, [np.array(0, np.float32)])[0].shape == ()


@pytest.mark.parametrize("dtype", [HALF, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("op", "wanted"),
    [("Gelu", gelu), ("FastGelu", tanh_gelu), ("QuickGelu", lambda x: swish(x, float(np.float32(1.702))))],
)
def test_half_precision(op, wanted, dtype):
    x = X.astype(dtype)
    y = run(op, [x])[0]
    assert y.dtype == dtype
    assert np.mean(y == wanted(x).astype(dtype)) > 0.99


def test_double_precision():
    x = X.astype(np.float64)
    close(run("Gelu", [x])[0], gelu(x), eps=1e-14)
    close(run("BiasGelu", [x, BIAS.astype(np.float64)])[0], gelu(x + BIAS.astype(np.float64)), eps=1e-14)


def test_a_scale_that_is_an_input():
    agree("ScaledSiLU", [X, np.array(0.7, np.float32)], alpha=9.0)
    agree("ScaledSiLU", [X.astype(HALF), np.array(0.7, np.float32)], eps=1e-9)
    agree("ScaledSiLU", [X.astype(HALF)], eps=1e-9, alpha=1.3)


# ---- after a bias


def test_bias_gelu():
    close(agree("BiasGelu", [X, BIAS])[0], gelu(X + BIAS))
    close(agree("FastGelu", [X, BIAS])[0], tanh_gelu(X + BIAS))
    agree("BiasGelu", [X[:0], BIAS])
    for op in ("BiasGelu", "FastGelu"):
        both_refuse(op, [X, BIAS[:1]], r"the bias is \[1\], not \[8\]")
        both_refuse(op, [X, X], r"the bias is")


def test_the_sum_with_a_bias_is_not_rounded_to_half_precision():
    x, bias = np.full((1, 8), 2048, HALF), np.ones(8, HALF)
    two = run("BiasAdd", [x[None], bias, np.ones((1, 1, 8), HALF)])[0]
    assert two.tolist() == np.full((1, 1, 8), 2050, HALF).tolist()


def test_bias_add():
    skip = normal(3, 2, 3, 8)
    close(run("BiasAdd", [X, BIAS, skip])[0], X.astype(np.float64) + BIAS + skip, eps=1e-7)
    refuse("BiasAdd", [X, BIAS, skip[:1]], "the skip is")
    refuse("BiasAdd", [X, BIAS[:1], skip], "the bias is")


def test_bias_split_gelu():
    """By its formula, as all below: onnxruntime has no kernel for the CPU."""
    total = X.astype(np.float64) + BIAS
    close(run("BiasSplitGelu", [X, BIAS])[0], total[..., :4] * gelu(total[..., 4:]))
    refuse("BiasSplitGelu", [X[..., :7], BIAS[:7]], "has no two halves")


def test_gemm_fast_gelu():
    w, bias = normal(4, 8, 5) / 4, normal(5, 5)
    close(run("GemmFastGelu", [X, w, bias])[0], tanh_gelu(X.astype(np.float64) @ w + bias))
    close(run("GemmFastGelu", [X, w])[0], tanh_gelu(X.astype(np.float64) @ w))


@pytest.mark.parametrize("shape", [(2, 1, 4, 5), (1, 1, 4, 5), (2, 3, 4, 5), (4, 5), (5,)])
@pytest.mark.parametrize("axis", [3, 2, 1, -1])
def test_bias_softmax(shape, axis):
    x, bias = normal(6, 2, 3, 4, 5) * 4, normal(7, *shape)
    total = (x.astype(np.float64) + bias).reshape(int(np.prod(x.shape[:axis])), -1)
    e = np.exp(total - total.max(1, keepdims=True))
    y = run("BiasSoftmax", [x, bias], axis=axis, is_inner_broadcast=1)[0]
    close(y, (e / e.sum(1, keepdims=True)).reshape(x.shape))


def test_bias_softmax_of_rows_that_are_masked():
    x = np.array([[1, 2, 3], [1, 2, 3]], np.float32)
    bias = np.array([[0, -np.inf, 0], [-np.inf] * 3], np.float32)
    y = run("BiasSoftmax", [x, bias], axis=1, is_inner_broadcast=0)[0]
    assert y[0, 1] == 0
    assert np.isnan(y[1]).all()
    refuse("BiasSoftmax", [x, np.zeros((3, 3), np.float32)], "broadcast", axis=1, is_inner_broadcast=0)
    refuse("BiasSoftmax", [x, np.zeros((1, 2, 3), np.float32)], "does not broadcast", axis=1, is_inner_broadcast=0)


def test_bias_dropout():
    residual, ratio = normal(3, 2, 3, 8), np.array(0.4, np.float32)
    y, mask = run("BiasDropout", [X, BIAS, residual, ratio], 2)
    close(y, X.astype(np.float64) + BIAS + residual, eps=1e-6)
    assert mask.dtype == bool
    assert mask.all()
    close(run("BiasDropout", [X, X])[0], 2 * X.astype(np.float64), eps=1e-7)


def test_bias_dropout_in_training():
    x, zero = np.ones((50, 200), np.float32), np.zeros(200, np.float32)
    y, mask = run("BiasDropout", [x, zero, x, np.array(0.4, np.float32), np.array(True)], 2, seed=7)
    assert np.unique(y).tolist() == [1, np.float32(1 + np.float32(1 / 0.6))]
    assert ((y > 1) == mask).all()
    assert abs(mask.mean() - 0.6) < 0.02


def test_inferred():
    x, bias = typed("b", "s", 8), typed(8)
    assert shapes("BiasGelu", x, bias) == "[b, s, 8]"
    assert shapes("BiasSplitGelu", x, bias) == "[b, s, 4]"
    assert shapes("GemmFastGelu", x, typed(8, 5)) == "[b, s, 5]"
    assert shapes("BiasDropout", x, bias, outputs=2) == "[b, s, 8] [b, s, 8]"
    for op in ("BiasGelu", "FastGelu", "BiasSplitGelu"):
        with pytest.raises(ShapeError, match="the bias is"):
            infer(f"com.microsoft::{op}", [x, typed(4)])
