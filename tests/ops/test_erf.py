"""The error function and the normal distribution against the C library's, in units of the last place."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from fuse.ops.erf import BLOCK, erf, in_blocks, normal_cdf
from tests.ops.oracle import ulps

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # infinities on the branch that is not taken

RNG = np.random.default_rng(0)
POINTS = np.concatenate(
    [
        RNG.standard_normal(20000) * 2,
        RNG.uniform(-7, 7, 20000),
        np.exp(RNG.uniform(-700, 2, 4000)),
        -np.exp(RNG.uniform(-80, 2, 4000)),
        np.linspace(0.999, 1.001, 2001),  # where the formula changes
        np.linspace(3.8, 4.0, 2001),  # where float32 reaches 1
        np.linspace(5.8, 6.1, 2001),  # where float64 does
    ]
)


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 1.01), (np.float32, 0.55), (np.float16, 0.51)])
def test_erf(dtype, limit):
    x = POINTS.astype(dtype)
    wanted = np.array([math.erf(v) for v in x.tolist()])
    assert ulps(erf(x), wanted, dtype).max() <= limit


def test_erf_of_bfloat16_is_rounded_once():
    x = POINTS.astype(ml_dtypes.bfloat16)
    wanted = np.array([math.erf(v) for v in x.astype(float).tolist()]).astype(ml_dtypes.bfloat16)
    assert erf(x).tolist() == wanted.tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_erf_at_the_ends(dtype):
    info = np.finfo(dtype)
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.smallest_subnormal], dtype)
    y = erf(x)
    assert str(y[:7].tolist()) == "[0.0, -0.0, 1.0, -1.0, nan, 1.0, -1.0]"
    assert y[7] == info.smallest_subnormal
    assert np.abs(erf(np.linspace(-10, 10, 100001).astype(dtype))).max() == 1


def test_erf_never_falls():
    for dtype in (np.float32, np.float64):
        assert (np.diff(erf(np.sort(POINTS).astype(dtype))) >= 0).all()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4), (BLOCK + 1,), (3, BLOCK)])
def test_shapes(shape):
    x = RNG.standard_normal(shape)
    y = erf(np.asarray(x))
    assert y.shape == shape
    assert np.ravel(y).tolist() == [float(erf(np.array(v))) for v in np.ravel(x)[:50]] + np.ravel(y)[50:].tolist()


def test_a_transposed_input_keeps_its_places():
    x = RNG.standard_normal((30, 40)).T
    assert erf(x).tolist() == erf(np.ascontiguousarray(x)).tolist()


def test_blocks_leave_the_input_as_it_is():
    x = np.arange(5.0)
    y = in_blocks(x, lambda v: np.negative(v, out=v))
    assert (x.tolist(), y.tolist()) == ([0, 1, 2, 3, 4], [0, -1, -2, -3, -4])


# The normal distribution to 20 digits, from a computation in 40.
DISTRIBUTION = {
    -1: 0.15865525393145705141,
    -5: 2.8665157187919391167e-7,
    -10: 7.619853024160526066e-24,
    -12.5: 3.7325642988777133772e-36,
    -20: 2.7536241186062336951e-89,
    -30: 4.9067139271481870595e-198,
    -37.5: 4.6053530095819548438e-308,
}


def test_the_normal_distribution():
    x = np.concatenate([RNG.standard_normal(5000), RNG.uniform(-6, 6, 5000), np.linspace(-26, -6, 500)])
    root = math.sqrt(2)
    near = x[np.abs(x) < 1]  # farther out the rounded quotient costs the oracle more than this
    wanted = np.array([math.erfc(-v / root) / 2 for v in near.tolist()])
    assert ulps(normal_cdf(near, False), wanted, np.float64).max() <= 6
    wide = np.array([math.erfc(-v / root) / 2 for v in x[x > -12].tolist()])
    assert ulps(normal_cdf(x[x > -12], True).astype(np.float32), wide, np.float32).max() <= 0.6


def test_the_far_tail_of_the_normal_distribution():
    assert normal_cdf(np.array([np.inf, -np.inf, 0, -0.0, 1e300, -1e300, 40, -40]), False).tolist() == [
        *(1, 0, 0.5, 0.5, 1, 0, 1, 0)
    ]
    got = normal_cdf(np.array(list(DISTRIBUTION), float), False)
    assert ulps(got, np.array(list(DISTRIBUTION.values())), np.float64).max() <= 6
