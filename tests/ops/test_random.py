"""Random operators: moments, ranges, dtypes, seeds."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dtypes import CODE
from fuse.ops import OPERATORS, Trait
from tests.ops.cases import infer, kernel, shape_of, typed

BF16 = np.dtype(ml_dtypes.bfloat16)
SHAPE = (200, 100)


def test_normal_has_the_moments_asked_for():
    x = kernel("RandomNormal", shape=SHAPE, mean=3.0, scale=2.0, seed=1.0)
    assert x.dtype == np.float32
    assert abs(x.mean() - 3) < 0.05
    assert abs(x.std() - 2) < 0.05
    like = kernel("RandomNormalLike", np.zeros(SHAPE, np.float64), mean=-1.0, scale=0.5, seed=2.0)
    assert like.dtype == np.float64
    assert abs(like.mean() + 1) < 0.02


def test_uniform_stays_within_its_bounds():
    x = kernel("RandomUniform", shape=SHAPE, low=-2.0, high=3.0, seed=1.0)
    assert x.min() >= -2
    assert x.max() <= 3
    assert abs(x.mean() - 0.5) < 0.05
    assert x.max() - x.min() > 4.9
    like = kernel("RandomUniformLike", np.zeros(SHAPE, np.float16), dtype=CODE[BF16], seed=2.0)
    assert like.dtype == BF16


def test_seeds():
    def draw(seed):
        return kernel("RandomUniform", shape=(4,), seed=seed).tolist()

    assert draw(0.1) == draw(0.1)
    assert len({tuple(draw(s)) for s in (0.0, 0.1, 0.2, 1.0, -1.0)}) == 5
    assert draw(None) != draw(None)


def test_bernoulli():
    p = np.linspace(0, 1, 5, dtype=np.float32).repeat(4000).reshape(5, 4000)
    x = kernel("Bernoulli", p, dtype=9, seed=3.0)
    assert x.dtype == np.bool_
    rates = x.mean(axis=1)
    assert rates[0] == 0
    assert rates[4] == 1
    assert np.abs(rates - p[:, 0]).max() < 0.05
    assert kernel("Bernoulli", p).dtype == np.float32
    for wrong in (-0.1, 1.5, np.nan):
        with pytest.raises(RunError, match="outside"):
            kernel("Bernoulli", np.array([0.5, wrong]))


def test_multinomial_draws_by_weight():
    logits = np.log(np.array([[0.1, 0.0, 0.6, 0.3], [1e-3, 1.0, 0.0, 0.0]], np.float64) + 1e-300) + 500
    x = kernel("Multinomial", logits, sample_size=20000, seed=4.0)
    assert x.dtype == np.int32
    rates = [np.bincount(row, minlength=4) / 20000 for row in x]
    np.testing.assert_allclose(rates[0], [0.1, 0, 0.6, 0.3], atol=0.02)
    assert rates[1][1] > 0.99
    one = kernel("Multinomial", np.array([[-np.inf, 0, -np.inf]], np.float32), sample_size=50, dtype=7)
    assert set(one.ravel().tolist()) == {1}
    assert one.dtype == np.int64
    assert kernel("Multinomial", np.zeros((0, 3)), sample_size=2).shape == (0, 2)


def test_multinomial_faults():
    for x in (np.full((1, 2), -np.inf), np.full((1, 2), np.nan), np.zeros((1, 0)), np.zeros(3)):
        with pytest.raises(RunError):
            kernel("Multinomial", x)
    with pytest.raises(ShapeError, match="sample_size"):
        infer("Multinomial", [typed(1, 2)], sample_size=-1)


def test_inference_and_traits():
    assert str(infer("RandomNormal", [], shape=(2, 3), dtype=11)[0].type) == "double[2, 3]"
    assert str(infer("RandomUniformLike", [typed("n")], dtype=10)[0].type) == "float16[n]"
    assert str(infer("Bernoulli", [typed("n")])[0].type) == "float[n]"
    assert shape_of(infer("Multinomial", [typed("n", 5)], sample_size=3)[0]) == "[n, 3]"
    with pytest.raises(ShapeError, match="negative"):
        infer("RandomNormal", [], shape=(-1,))
    with pytest.raises(RunError, match="negative"):
        kernel("RandomUniform", shape=(-1,))
    for op in ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"):
        assert OPERATORS[op].has(Trait.RANDOM)
