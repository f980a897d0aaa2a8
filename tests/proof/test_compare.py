"""Figures of a comparison against values worked out by hand."""

from __future__ import annotations

import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from fuse.proof.compare import Difference, compare_arrays, epsilon

BFLOAT = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.float16, BFLOAT, np.float32, np.float64]
MAX64 = float(np.finfo(np.float64).max)


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_equal_arrays():
    d = compare_arrays(f32(1, -2, 0), f32(1, -2, 0))
    assert d == Difference(
        elements=3, finite=3, largest=2.0, max_abs=0.0, rms=0.0, max_rel=0.0, max_elementwise=0.0, max_ulp=0, p99_ulp=0,
        argmax=1.0,
    )  # fmt: skip


def test_figures_by_hand():
    d = compare_arrays(f32(4, 1, -2), f32(4, 1.5, -2.25))
    assert (d.max_abs, d.largest, d.max_rel) == (0.5, 4.0, 0.125)
    assert d.max_elementwise == 0.5  # 0.5 / 1, not 0.25 / 2
    assert d.rms == pytest.approx(math.sqrt((0.25 + 0.0625) / 3))
    assert (d.elements, d.differing, d.argmax) == (3, 2, 1.0)
    assert d.max_ulp == 1 << 22  # half of the way from 1 to 2, which are 2^23 steps apart
    assert not d.same_bits and not d.same_values and d.same_nonfinite


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_step_is_one_ulp_everywhere(dtype):
    info = ml_dtypes.finfo(dtype)
    tiny, top = float(info.tiny), float(info.max)
    for value in (1.0, -1.0, 2.0, tiny, -tiny, top / 2):
        a = np.array([value], dtype=dtype)
        b = (a.view(f"u{a.itemsize}") + np.ones(1, f"u{a.itemsize}")).view(a.dtype)
        assert compare_arrays(a, b).max_ulp == 1
        assert compare_arrays(b, a).max_ulp == 1


def test_ulps_across_zero():
    least = np.float32(1e-45)  # the smallest subnormal
    assert compare_arrays(f32(least), f32(-least)).max_ulp == 2
    assert compare_arrays(f32(0.0), f32(-0.0)).max_ulp == 0
    assert compare_arrays(f32(-0.0), f32(least)).max_ulp == 1
    assert compare_arrays(f32(1), f32(-1)).max_ulp == 2 * 0x3F800000
    assert compare_arrays(np.array([MAX64]), np.array([-MAX64])).max_ulp == 2 * 0x7FEFFFFFFFFFFFFF


def test_ulps_in_every_binade_count_the_floats_between():
    a, b = np.float16(0.75), np.float16(3.0)
    between = [v for v in np.arange(1 << 15, dtype=np.uint16).view(np.float16) if a < v <= b]
    assert compare_arrays(np.array([a]), np.array([b])).max_ulp == len(between)


@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn", "float6_e3m2fn"]
)
def test_ulps_of_small_floats(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    ladder = np.unique(values[np.isfinite(values)] + 0.0)
    a, b = (np.array([ladder[i]]).astype(dtype) for i in (3, 8))
    assert compare_arrays(a, b).max_ulp == 5


def test_p99_is_the_nearest_rank():
    a = np.ones(200, np.float32)
    b = a.copy()
    b[:3] = np.nextafter(np.float32(1), np.float32(2))
    assert compare_arrays(a, b).p99_ulp == 1  # 198 of 200 is rank 99 %; the three that differ begin at rank 197
    b[2] = 1
    assert (compare_arrays(a, b).p99_ulp, compare_arrays(a, b).max_ulp) == (0, 1)


def test_signed_zeros_are_equal_values_and_other_bits():
    d = compare_arrays(f32(0.0, 1), f32(-0.0, 1))
    assert d.same_values and not d.same_bits and d.differing == 0 and d.max_abs == 0.0


def test_nan_and_inf_are_a_pattern():
    a = f32(math.nan, math.inf, -math.inf, 1)
    same = compare_arrays(a, a.copy())
    assert same.same_nonfinite and same.same_bits and same.finite == 1 and same.largest == 1.0
    for place, value in ((0, 0.0), (1, -math.inf), (1, math.nan), (2, 5.0), (3, math.inf)):
        b = a.copy()
        b[place] = value
        d = compare_arrays(a, b)
        assert not d.same_nonfinite and not d.same_values and d.differing == 1
        assert d.max_abs == 0.0  # only what is finite on both sides is measured
    other = np.array([0xFFC00001], np.uint32).view(np.float32)
    assert compare_arrays(f32(math.nan), other).same_bits


def test_extremes_do_not_overflow():
    d = compare_arrays(np.array([MAX64, 1.0]), np.array([-MAX64, 1.0]))
    assert d.max_abs == MAX64  # the true 2 * MAX64 is no float
    assert d.max_rel == 2.0 and d.max_elementwise == 2.0
    assert math.isfinite(d.rms)
    d = compare_arrays(np.array([1e200, 0.0]), np.array([0.0, 1e-200]))
    assert d.rms == pytest.approx(1e200 / math.sqrt(2))
    least = 5e-324
    d = compare_arrays(np.array([least]), np.array([3 * least]))
    assert (d.max_abs, d.max_ulp, d.max_elementwise) == (2 * least, 2, None)  # no relative error of a subnormal
    tiny = float(np.finfo(np.float64).tiny)
    assert compare_arrays(np.array([tiny]), np.array([MAX64])).max_elementwise == MAX64


def test_all_zero_reference():
    d = compare_arrays(f32(0, 0), f32(0, 1e-3))
    assert d.max_rel == math.inf and d.max_elementwise is None
    assert compare_arrays(f32(0, 0), f32(0, -0.0)).max_rel == 0.0


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
@pytest.mark.parametrize("dtype", [*FLOATS, np.int64, np.bool_, np.complex64, object])
def test_empty(shape, dtype):
    d = compare_arrays(np.empty(shape, dtype), np.empty(shape, dtype))
    assert d.same_bits and d.same_values and d.elements == 0 and d.finite == 0 and d.argmax is None
    assert d.max_ulp in (0, None)


def test_rank_zero():
    d = compare_arrays(np.array(2.0, np.float32), np.array(2.5, np.float32))
    assert (d.max_abs, d.max_rel, d.elements, d.argmax) == (0.5, 0.25, 1, None)
    assert compare_arrays(np.float32(2), np.float32(2)).same_bits


def test_dtype_and_shape():
    d = compare_arrays(f32(1, 2), np.array([1, 2.5]))
    assert not d.same_dtype and d.same_shape and d.max_abs == 0.5 and not d.same_bits
    assert compare_arrays(f32(1), np.array([1.0])).same_values
    d = compare_arrays(np.zeros((2, 3)), np.zeros((3, 2)))
    assert d.same_dtype and not d.same_shape and not d.same_values and d.max_abs is None and d.differing == 6
    assert not compare_arrays(np.zeros((1, 2)), np.zeros(2)).same_shape
    d = compare_arrays(f32(1, 2), np.array([1, 3]))
    assert not d.same_dtype and d.differing == 1 and d.max_ulp is None
    assert compare_arrays(np.array(["1"], object), np.array([1])).differing == 1


def test_ulps_against_a_wider_reference_count_in_the_narrower():
    exact = np.array([1 + 2.4 * 2.0**-23])
    assert compare_arrays(exact, f32(1 + 3 * 2.0**-23)).max_ulp == 1  # 2.4 rounds to 2
    d = compare_arrays(np.array([1e300]), f32(math.inf))
    assert not d.same_nonfinite and d.max_ulp == 0 and d.finite == 0


def test_argmax_by_rows():
    a, b = f32(1, 2, 5, 4).reshape(2, 2), f32(1, 2, 4, 5).reshape(2, 2)
    assert compare_arrays(a, b).argmax == 0.5
    assert compare_arrays(f32(1), f32(2)).argmax is None
    assert compare_arrays(f32(3, 3), f32(3, 3)).argmax == 1.0
    half = np.array([1, 3, 2], BFLOAT)
    assert compare_arrays(half, half[::-1].copy()).argmax == 1.0


def test_integers():
    d = compare_arrays(np.array([1, 2, 3]), np.array([1, 5, 3]))
    assert (d.differing, d.max_abs, d.max_ulp, d.same_bits) == (1, 3.0, None, False)
    ends = np.iinfo(np.int64)
    d = compare_arrays(np.array([ends.min]), np.array([ends.max]))
    assert d.max_abs == 2.0**64 and d.differing == 1
    d = compare_arrays(np.array([2**64 - 1, 0], np.uint64), np.array([2**64 - 2, 0], np.uint64))
    assert (d.differing, d.max_abs) == (1, 1.0)
    d = compare_arrays(np.array([200], np.uint8), np.array([100], np.uint8))
    assert d.max_abs == 100.0
    small = np.array([1, -2], ml_dtypes.int4)
    assert compare_arrays(small, small[::-1].copy()).differing == 2
    assert compare_arrays(np.array([True, False]), np.array([True, True])).differing == 1


def test_strings():
    a = np.array(["x", "", "naïve"], object)
    assert compare_arrays(a, a.copy()).same_bits
    d = compare_arrays(a, np.array(["x", " ", "naïve"], object))
    assert d.differing == 1 and not d.same_values
    assert compare_arrays(np.array(["x"]), np.array(["x"], object)).same_bits


def test_complex():
    a, b = np.array([1 + 2j, 3], np.complex64), np.array([1 + 2.5j, 3], np.complex64)
    d = compare_arrays(a, b)
    assert (d.max_abs, d.largest, d.elements, d.argmax) == (0.5, 3.0, 2, None)
    assert compare_arrays(a, a.copy()).same_bits
    assert not compare_arrays(a, f32(1, 3)).same_dtype


def test_sequences_and_maps():
    a = [f32(1, 2), f32(8)]
    assert compare_arrays(a, [f32(1, 2), f32(8)]).same_bits
    d = compare_arrays(a, [f32(1, 2.5), f32(8)])
    assert (d.max_abs, d.elements, d.differing, d.largest) == (0.5, 3, 1, 8.0)
    assert d.rms == pytest.approx(0.5 / math.sqrt(3))
    assert not compare_arrays(a, a[:1]).same_shape
    assert not compare_arrays(a, a[0]).same_shape
    assert compare_arrays([], []).same_bits
    scores = {"cat": 0.25, "dog": 0.75}
    assert compare_arrays([scores], [{"dog": 0.75, "cat": 0.25}]).same_bits
    assert compare_arrays([scores], [{"cat": 0.25, "dog": 0.5}]).max_abs == 0.25
    assert not compare_arrays([scores], [{"cat": 0.25}]).same_shape
    assert not compare_arrays({1: f32(1)}, {1: f32(2)}).same_values


def test_optionals():
    assert compare_arrays(None, None).same_bits
    assert not compare_arrays(None, f32(1)).same_shape
    assert not compare_arrays(f32(1), None).same_dtype
    assert not compare_arrays([None, f32(1)], [f32(1), f32(1)]).same_values


def test_sequences_of_several_dtypes_keep_the_worst():
    a = [np.array([1, 2]), f32(1), np.array(["a"], object)]
    d = compare_arrays(a, [np.array([1, 2]), f32(1), np.array(["b"], object)])
    assert d.same_dtype and not d.same_values and d.differing == 1 and d.max_ulp == 0


def test_epsilon():
    assert epsilon(f32(1)) == 2.0**-23
    assert epsilon(np.array([1], BFLOAT)) == 2.0**-7
    assert epsilon([f32(1), np.array([1], np.float16)]) == 2.0**-10
    assert epsilon(np.array([1])) == 0.0 and epsilon(np.array(["a"], object)) == 0.0 and epsilon(None) == 0.0
    assert epsilon(np.array([1j], np.complex128)) == 2.0**-52
