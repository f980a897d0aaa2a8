"""When a difference is rounding: each rule on figures chosen to meet it alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.proof.compare import Difference, compare_arrays
from fuse.proof.tolerance import FACTOR, ULPS, error_ratio, why_moved

EPS = 2.0**-23


def off(max_abs: float, rms: float | None = None) -> Difference:
    """A difference of floats whose largest reference is 1."""
    return Difference(
        same_bits=not max_abs, same_values=not max_abs, elements=100, finite=100, differing=int(max_abs > 0),
        largest=1.0, max_abs=max_abs, rms=max_abs / 10 if rms is None else rms, max_rel=max_abs,
        max_ulp=int(max_abs / EPS),
    )  # fmt: skip


def test_a_few_epsilons_of_the_largest_value_need_no_yardstick():
    assert why_moved(off(ULPS * EPS), None, None, EPS) == ""
    assert why_moved(off(1.01 * ULPS * EPS), None, None, EPS).startswith("differs by 4.8e-07")
    assert why_moved(off(1.01 * ULPS * EPS), None, None, 2 * EPS) == ""  # a coarser dtype


def test_as_close_to_float64_as_the_raw_graph():
    assert why_moved(off(1e-4), off(1e-4), off(FACTOR * 1e-4), EPS) == ""
    text = why_moved(off(1e-4), off(1e-4), off(1.6e-4), EPS)
    assert "its error against float64 is 0.00016, the raw graph's 0.0001 (1.6 x)" in text
    assert why_moved(off(1e-4), off(1e-4), off(1.6e-4), EPS, factor=2.0) == ""


def test_a_fault_of_all_elements_does_not_hide_behind_one_that_was_far_off():
    raw_error, other_error = off(1.0, rms=0.1), off(0.9, rms=0.9)
    assert why_moved(off(1.0), raw_error, other_error, EPS)
    assert why_moved(off(1.0), raw_error, off(0.9, rms=0.1), EPS) == ""


def test_noise_is_asked_for_only_where_it_decides():
    calls = []

    def noise():
        calls.append(1)
        return [off(2e-4), off(5e-4)]

    assert why_moved(off(EPS), off(0.0), off(EPS), EPS, noise=noise) == "" and not calls
    assert why_moved(off(1e-4), off(1e-4), off(1e-4), EPS, noise=noise) == "" and not calls
    assert why_moved(off(1e-3), off(1e-4), off(7e-4), EPS, noise=noise) == "" and calls == [1]
    assert why_moved(off(1e-3), off(1e-4), off(8e-4), EPS, noise=noise)
    assert why_moved(off(1e-3), None, None, EPS, noise=lambda: [off(9e-4)]) == ""
    assert (
        why_moved(off(1e-3), None, None, EPS, noise=lambda: [off(1e-4)])
        == "differs by 0.001, 0.001 of its largest value"
    )


@pytest.mark.parametrize("exact", ["close", "values", "bits"])
def test_patterns_dtypes_shapes_and_integers_are_never_tolerated(exact):
    one = np.ones(3, np.float32)
    nan = np.array([1, np.nan, 1], np.float32)
    for a, b in ((one, nan), (one, one.astype(np.float64)), (one, one.reshape(3, 1)), (one > 0, one < 0)):
        for x, y in ((a, b), (b, a)):
            assert why_moved(compare_arrays(x, y), None, None, 1e9, exact=exact)
    assert why_moved(compare_arrays(np.array([1, 2]), np.array([1, 3])), None, None, 0.0, exact=exact).startswith(
        "differs in 1 of 2 elements"
    )


def test_exact_labels():
    zeros = compare_arrays(np.array([0.0]), np.array([-0.0]))
    assert why_moved(zeros, None, None, EPS, exact="values") == ""
    assert "the sign of zero" in why_moved(zeros, None, None, EPS, exact="bits")
    step = compare_arrays(np.array([1.0]), np.nextafter([1.0], 2))
    assert why_moved(step, None, None, 2.0**-52, exact="close") == ""
    assert "differs in 1 of 1 elements, and only exact" in why_moved(step, None, None, 2.0**-52, exact="values")
    assert "at most by 1 ULP" in why_moved(step, None, None, 2.0**-52, exact="bits")


def test_error_ratio():
    assert error_ratio(off(2e-4), off(1e-4)) == 0.5
    assert error_ratio(off(0.0), off(0.0)) == 1.0
    assert error_ratio(off(0.0), off(1e-9)) == math.inf
    assert error_ratio(None, off(1e-9)) is None
