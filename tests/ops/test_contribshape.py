"""Operators of com.microsoft that fill, move and choose elements, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import infer, kernel, known, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import normal

X = normal(1, 2, 3, 4)
MS = "com.microsoft"


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 0, 1, -1, 9, -9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_trilu(dtype, k, upper):
    x = (X * 10).astype(dtype)
    y = agree("Trilu", [x] if k is None else [x, np.array(k)], upper=upper)[0]
    assert y.tolist() == (np.triu if upper else np.tril)(x, k or 0).tolist()


def test_trilu_of_one_element_and_empty():
    agree("Trilu", [X, ints(1)])
    agree("Trilu", [X[:, :, :0]])
    refuse("Trilu", [X[0, 0]], "fewer than two dims")


# ---- ExpandDims, UnfoldTensor


@pytest.mark.parametrize("axis", [0, 2, 3, -1, -4])
def test_expand_dims(axis):
    y = agree("ExpandDims", [X, np.array(axis, np.int32)])[0]
    assert y.shape == np.expand_dims(X, axis).shape


def test_expand_dims_faults():
    for axis in (4, -5):
        both_refuse("ExpandDims", [X, np.array(axis, np.int32)], f"axis {axis} is out of range for rank 4")
    refuse("ExpandDims", [X, np.array([1], np.int32)], "not a scalar")


def test_expand_dims_carries_sizes():
    axis = typed(dtype=np.int32)
    assert shapes("ExpandDims", typed("n", 3), axis) == "[?, ?, ?]"
    value = known("n", 3)
    fixed = type(axis)(axis.type, np.array(0, np.int32))
    result = infer(f"{MS}::ExpandDims", [value, fixed])[0]
    assert str(result.type) == "int64[1, 2]"
    assert [str(d) for d in result.value.flat] == ["n", "3"]


@pytest.mark.parametrize(("size", "dim", "step"), [(3, -1, 2), (2, 1, 1), (1, 0, 3), (4, 2, 1), (2, -3, 1)])
def test_unfold(size, dim, step):
    agree("UnfoldTensor", [X], size=size, dim=dim, step=step)
    agree("UnfoldTensor", [X.astype(np.int64)], size=size, dim=dim, step=step)


def test_unfold_values_and_faults():
    y = agree("UnfoldTensor", [np.arange(7, dtype=np.float32)], size=3, step=2)[0]
    assert y.tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert y.flags.c_contiguous
    both_refuse("UnfoldTensor", [X], "size 4 is not within an axis of 3", size=4, dim=1)
    both_refuse("UnfoldTensor", [X], "size 0", size=0)
    both_refuse("UnfoldTensor", [X], "step 0 must be positive", size=1, step=0)
    assert shapes("UnfoldTensor", typed("n", 8), size=3, step=2, dim=0) == "[floor((n + 1)/(2)) - 1, 8, 3]"
    assert shapes("UnfoldTensor", typed("n", 8), size=3, step=2) == "[n, 3, 3]"


# ---- Range, Pad


@pytest.mark.parametrize("bounds", [(0, 5), (0, 5, 2), (5, 0, -2), (0, 5, -1), (0, 0), (1, 8, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.int16])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_range(bounds, dtype, shape):
    agree("Range", [np.full(shape, b, dtype) for b in bounds], exact=False)


def test_range_faults_and_sizes():
    both_refuse("Range", [np.array(v, np.float32) for v in (1, 2, 0)], "delta is 0")
    both_refuse("Range", [np.zeros(2, np.float32), np.array(1, np.float32)], "a bound of a range must be one element")
    assert shapes("Range", known(0), known("n")) == "[n]"
    assert shapes("Range", known(2), known(7)) == "[5]"
    assert shapes("Range", typed(), typed()) == "[?]"


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 1), (0, 1, 0, 0), (0, 0, 0, 0)])
def test_pad(mode, pads):
    x = normal(2, 3, 4)
    y = agree("Pad", [x, ints(*pads)], mode=mode)[0]
    row = agree("Pad", [x, ints(*pads)[None], np.array([7], np.float32)], mode=mode)[0]
    assert (y.tolist() == row.tolist()) == (mode != "constant" or not any(pads))
    if mode == "constant":
        agree("Pad", [x, ints(1, -1, 0, -1), np.array(7, np.float32)])


def test_pad_faults_and_sizes():
    refuse("Pad", [X, ints(1, 1)], "2 pads for 3 axes")
    refuse("Pad", [X, np.ones((2, 3), np.int64)], "pads is")
    assert shapes("Pad", typed("n", 3), known(1, 0, 0, 2)) == "[n + 1, 5]"
    assert shapes("Pad", typed("n", 3), typed(1, 4, dtype=np.int64)) == "[?, ?]"


# ---- GatherND, Unique, TorchEmbedding


def test_gather_nd():
    x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    for indices in ([[0, 1], [1, 0]], [[[0, 1]], [[1, -1]]], [[1, 1, 0]], [[0], [1]]):
        agree("GatherND", [x, np.array(indices, np.int32)])
        agree("GatherND", [x.astype(np.int64), np.array(indices, np.int64)])
    both_refuse("GatherND", [x, ints(2)[None]], "index 2 is out of range for size 2")


@pytest.mark.parametrize(
    "values", [[2, 1, 1, 3, 4, 3], [], [5], [0.0, -0.0, 1.0, 0.0], [np.nan, 1, np.nan, 1, -np.inf]]
)
def test_unique(values):
    """onnxruntime takes each NaN for an element of its own, as fuse does."""
    x = np.array(values, np.float32)
    got = agree("Unique", [x], 3, exact=False)
    assert str(got[0][got[1]].tolist()).replace("-0.0", "0.0") == str(x.tolist()).replace("-0.0", "0.0")
    assert got[2].sum() == len(values)


def test_unique_of_other_dtypes():
    y, place, count = run("Unique", [np.array([7, 3, 7], np.int64)], 3)
    assert (y.tolist(), place.tolist(), count.tolist()) == ([7, 3], [0, 1, 0], [2, 1])
    both_refuse("Unique", [np.ones((1, 2), np.float32)], "rank should be 1", 3)


def test_torch_embedding():
    """By its formula: onnxruntime has no kernel for the CPU."""
    table, ids = normal(3, 5, 4), np.array([[0, 4], [2, 2]])
    assert run("TorchEmbedding", [table, ids, np.array(2)])[0].tolist() == table[ids].tolist()
    for wrong in (-1, 5):
        with pytest.raises(RunError, match=f"index {wrong} is"):
            kernel(f"{MS}::TorchEmbedding", table, ids * 0 + wrong)
    assert shapes("TorchEmbedding", typed(5, 4), typed("b", "s", dtype=np.int64)) == "[b, s, 4]"


def test_inferred_faults():
    with pytest.raises(ShapeError, match="axis is"):
        infer(f"{MS}::ExpandDims", [typed(2), typed(1, dtype=np.int32)])
    with pytest.raises(ShapeError, match="rank should be 1"):
        infer(f"{MS}::Unique", [typed(2, 3)], 3)
