"""Unique."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.unique import unique
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import onnxruntime_says

F = np.float32


@pytest.mark.parametrize("case", node_cases("Unique"))
def test_onnx_cases(case):
    check_case(case)


def everything(x, **attrs):
    return [y.tolist() for y in unique(np.asarray(x), n_outputs=4, **attrs)]


@pytest.mark.parametrize("seed", range(24))
def test_slices_as_onnxruntime_has_them(seed):
    rng = np.random.default_rng(seed)
    rank = 1 + seed % 3
    x = rng.integers(-1, 2, rng.integers(1, 6, rank)).astype([F, np.int64, np.int8, np.float64][seed % 4])
    attrs = {"sorted": seed // 3 % 2} | ({"axis": int(rng.integers(-rank, rank))} if seed % 5 else {})
    wanted = onnxruntime_says("Unique", [x], outputs=4, **attrs)
    for got, expected in zip(unique(x, n_outputs=4, **attrs), wanted, strict=True):
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert got.tolist() == expected.tolist()


def test_order_of_appearance():
    assert everything([2, 1, 1, 3, 4, 3], sorted=0) == [[2, 1, 3, 4], [0, 1, 3, 4], [0, 1, 1, 2, 3, 2], [1, 2, 2, 1]]
    assert everything([2, 1, 1, 3, 4, 3]) == [[1, 2, 3, 4], [1, 0, 3, 4], [1, 0, 0, 2, 3, 2], [2, 1, 2, 1]]
    rows = [[3, 1], [0, 5], [3, 1], [3, 0]]
    assert everything(rows, axis=0, sorted=0) == [[[3, 1], [0, 5], [3, 0]], [0, 1, 3], [0, 1, 0, 2], [2, 1, 1]]
    assert everything(rows, axis=0) == [[[0, 5], [3, 0], [3, 1]], [1, 3, 0], [2, 0, 2, 1], [1, 1, 2]]


def test_zeros_and_nan_are_one_value_each():
    x = np.array([np.nan, 1, -0.0, np.nan, 0.0, -np.inf], F)
    y, first, inverse, counts = everything(x)
    assert str(y) == "[-inf, -0.0, 1.0, nan]"
    assert (first, inverse, counts) == ([5, 2, 1, 0], [3, 2, 1, 3, 1, 0], [1, 2, 1, 2])
    assert str(everything(x, sorted=0)[0]) == "[nan, 1.0, -0.0, -inf]"
    rows = np.array([[np.nan, 0.0], [np.nan, -0.0], [1, 2]], F)
    assert everything(rows, axis=0)[1:] == [[2, 0], [1, 1, 0], [1, 2]]


def test_dtypes():
    words = np.array(["b", "a", "é", "Z", "b", ""], object)
    assert everything(words) == [["", "Z", "a", "b", "é"], [5, 3, 1, 0, 2], [3, 2, 4, 1, 3, 0], [1, 1, 1, 2, 1]]
    pairs = np.array([["b", "a"], ["", "z"], ["b", "a"]], object)
    assert everything(pairs, axis=0) == [[["", "z"], ["b", "a"]], [1, 0], [1, 0, 1], [1, 2]]
    assert everything([True, False, True]) == [[False, True], [1, 0], [1, 0, 1], [1, 2]]
    assert everything([1j, 1, 1j])[0] == [1j, 1]
    halves = np.array([2, -1, 2], ml_dtypes.bfloat16)
    assert unique(halves).dtype == halves.dtype
    assert unique(halves).tolist() == [-1, 2]
    extremes = np.array([2**64 - 1, 0, 2**63], np.uint64)
    assert unique(extremes).tolist() == [0, 2**63, 2**64 - 1]
    wide = np.array([[-(2**63), 1], [2**63 - 1, 0]], np.int64)
    assert everything(wide, axis=0)[1] == [0, 1]


def test_empty_and_scalar():
    assert everything(np.zeros(0, F)) == [[], [], [], []]
    assert everything(np.array(3.0)) == [[3], [0], [0], [1]]
    assert [np.shape(y) for y in unique(np.zeros((0, 2), F), axis=0, n_outputs=4)] == [(0, 2), (0,), (0,), (0,)]
    assert [np.shape(y) for y in unique(np.zeros((0, 2), F), axis=1, n_outputs=4)] == [(0, 1), (1,), (2,), (1,)]


def test_inferred_and_faults():
    x = typed("n", 3)
    assert [shape_of(i) for i in infer("Unique", [x], outputs=4)] == ["[?]", "[?]", "[3*n]", "[?]"]
    assert [shape_of(i) for i in infer("Unique", [x], outputs=4, axis=-1)] == ["[n, ?]", "[?]", "[3]", "[?]"]
    assert infer("Unique", [x], outputs=2)[1].dtype == np.int64
    for attrs, text in (({"axis": 2}, "axis 2 is out of range"), ({"sorted": 2}, "sorted 2 is not 0 or 1")):
        with pytest.raises(RunError, match=text):
            unique(np.zeros((2, 3), F), **attrs)
        with pytest.raises(ShapeError, match=text):
            infer("Unique", [x], **attrs)
