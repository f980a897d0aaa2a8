"""The bounds that operators share."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Symbolic
from fuse.ops.bounds import at_run_time, clamped, fits, in_range, same_dim, single, whole

N, M = Symbolic.of("n"), Symbolic.of("m")


def test_faults_become_run_errors_with_their_place():
    @at_run_time
    def fails(error):
        raise error

    with pytest.raises(RunError) as caught:
        fails(ShapeError("what", where="where", hint="do"))
    assert (caught.value.what, caught.value.where, caught.value.hint) == ("what", "where", "do")
    for error in (ValueError("v"), IndexError("i"), OverflowError("o"), MemoryError("m")):
        with pytest.raises(RunError, match=str(error)):
            fails(error)
    with pytest.raises(TypeError):  # a symbolic size where a number is needed: inference relies on it
        fails(TypeError("t"))


def test_whole_and_single():
    assert whole(np.array([[2**63 - 1, -1]])) == (2**63 - 1, -1)
    assert whole(np.zeros((0, 3), np.int32)) == ()
    assert single(np.array([[7]], np.int8), "k") == 7
    assert single(np.array(N, dtype=object), "k") is N
    with pytest.raises(ShapeError, match=r"k must be one element, its shape is \[2\]"):
        single(np.zeros(2), "k")
    with pytest.raises(TypeError):
        whole(np.array([N, 1], dtype=object))


def test_in_range_names_the_first_index_outside():
    in_range(np.array([-3, 2]), 3)
    in_range(np.zeros(0, np.int64), 0)
    with pytest.raises(ShapeError, match="index 3 is out of range for size 3"):
        in_range(np.array([[0, 3], [-9, 1]]), 3)


def test_same_dim_prefers_numbers():
    assert same_dim([N, 3, None], "no") == 3
    assert same_dim([None, N], "no") == N
    assert same_dim([None], "no") is None
    with pytest.raises(ShapeError, match="no"):
        same_dim([2, N, 3], "no")


def test_clamped_claims_nothing_of_what_may_be_negative():
    assert clamped(N) == N
    assert clamped(N * M + 2) == N * M + 2
    assert clamped(-4) == 0
    for dim in (N - 1, N - M, (N - 1) // 2, None):
        assert clamped(dim) is None


def test_fits_takes_what_is_unknown_for_any_size():
    fits("x", None, (1, 2))
    fits("x", (N, None, 3), (4, 2, None))
    with pytest.raises(ShapeError, match=r"x is \[n, 2\], not \[\?, 3\]"):
        fits("x", (N, 2), (None, 3))
    with pytest.raises(ShapeError, match=r"x is \[2\], not \[2, \?\]"):
        fits("x", (2,), (2, None))
