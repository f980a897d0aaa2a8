"""Operators that pick and put elements by position: slices, gathers, scatters, masks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Symbolic, evaluate
from tests.ops.cases import check_case, fact, infer, ints, kernel, known, node_cases, same, shape_of, typed

MAX, MIN = 2**63 - 1, -(2**63)
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "case",
    node_cases(
        "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "Scatter", "ScatterND", "ReverseSequence"
    ),
)
def test_onnx_cases(case):
    check_case(case, exact=True)


@pytest.mark.parametrize("case", node_cases("Compress", "NonZero"))
def test_onnx_cases_of_unknown_counts(case):
    check_case(case)


# ---- Slice


def by_the_text(size, start, end, step):
    """ONNX's words, one after another."""
    start, end = (v + size if v < 0 else v for v in (start, end))
    start = min(max(start, 0), size if step > 0 else size - 1)
    end = min(max(end, 0), size) if step > 0 else min(max(end, -1), size - 1)
    return list(range(start, end, step)) if size else []


@pytest.mark.parametrize("size", [0, 1, 4])
def test_slice_bounds(size):
    bounds = (MIN, MIN + 1, -6, -5, -4, -1, 0, 1, 3, 4, 5, MAX - 1, MAX)
    x = np.arange(size)
    for start, end, step in itertools.product(bounds, bounds, (1, 2, 3, -1, -2, MAX, MIN)):
        wanted = by_the_text(size, start, end, step)
        args = ints(start), ints(end), ints(0), ints(step)
        assert kernel("Slice", x, *args).tolist() == wanted, (start, end, step)
        assert infer("Slice", [typed(size), *map(fact, args)])[0].shape == (len(wanted),), (start, end, step)


def test_slice_axes_in_any_order():
    got = kernel("Slice", X, ints(-1, 1), ints(MIN, MAX), ints(-1, 1), ints(-2, 1))
    assert got.tolist() == X[:, 1:, ::-2].tolist()
    assert np.shares_memory(got, X)
    assert kernel("Slice", X, ints(1), ints(2)).tolist() == X[1:2].tolist()
    small = np.array([1, 2], np.int32)
    assert kernel("Slice", X, small, small + 1, small).tolist() == X[:, 1:2, 2:3].tolist()


@pytest.mark.parametrize(
    ("start", "end", "axes", "steps", "says"),
    [
        ((0,), (2,), (0,), (0,), "step is 0"), ((0,), (2,), (3,), None, "out of range"),
        ((0, 0), (1, 1), (0, -3), None, "twice"), ((0,), (1, 2), None, None, "1 starts and 2 ends"),
        ((0,), (1,), (0, 1), None, "1 starts and 2 axes"), ((0,), (1,), None, (1, 1), "1 starts and 2 steps"),
        ((0,) * 4, (1,) * 4, None, None, "out of range"),
    ],
)  # fmt: skip
def test_slice_faults(start, end, axes, steps, says):
    given = [None if v is None else ints(*v) for v in (start, end, axes, steps)]
    with pytest.raises(RunError, match=says):
        kernel("Slice", X, *given)
    with pytest.raises(ShapeError, match=says):
        infer("Slice", [typed(2, 3, 4), *(None if v is None else fact(v) for v in given)])


def test_slice_of_symbolic_sizes_claims_only_what_always_holds():
    def dim(start, end, step=1):
        return infer("Slice", [typed("n"), known(start), known(end), known(0), known(step)])[0].shape[0]

    assert dim(0, MAX) == Symbolic.of("n")
    assert dim(0, "n") == Symbolic.of("n")
    assert dim(-1, MIN, -1) == Symbolic.of("n")
    assert [evaluate(dim(0, MAX, 3), {"n": n}) for n in (0, 1, 3, 4, 7)] == [0, 1, 1, 2, 3]
    assert dim(1, MAX) is None  # n - 1 would be wrong for n = 0
    assert dim(0, 5) is None
    assert dim(0, "m") is None
    partly = infer("Slice", [typed(2, "n"), typed(1, dtype=np.int64), known(1), known(0)])[0]
    assert shape_of(partly) == "[?, n]"
    assert shape_of(infer("Slice", [typed(2, "n"), known(1), known(2), typed(1, dtype=np.int64)])[0]) == "[?, ?]"
    assert shape_of(infer("Slice", [typed(2, "n"), known(0), known(1), known(0), typed(1, dtype=np.int64)])[0]) == (
        "[?, n]"
    )


# ---- gathers


def test_gather():
    index = ints(2, -1, 0).reshape(3, 1)
    assert kernel("Gather", X, index, axis=1).tolist() == X[:, [2, 2, 0]].reshape(2, 3, 1, 4).tolist()
    scalar = kernel("Gather", ints(5, 6), np.array(-2))
    assert isinstance(scalar, np.ndarray)
    assert scalar.shape == ()
    assert scalar == 5
    words = np.array(["a", "b"], dtype=object)
    assert kernel("Gather", words, np.array(1)).shape == ()
    assert kernel("Gather", np.zeros((0, 2)), ints(), axis=0).shape == (0, 2)
    assert shape_of(infer("Gather", [typed("v", 8), typed("n", 3, dtype=np.int64)])[0]) == "[n, 3, 8]"


@pytest.mark.parametrize("index", [3, -4, MAX, MIN])
def test_indices_out_of_range_are_named(index):
    say = f"index {index} is out of range for size 3"
    x = np.zeros((3, 2))
    wrong = np.array([[0, index]])
    with pytest.raises(RunError, match=say):
        kernel("Gather", x, wrong)
    with pytest.raises(RunError, match=say):
        kernel("GatherElements", x, wrong)
    with pytest.raises(RunError, match=say):
        kernel("GatherND", x, ints(index))
    with pytest.raises(RunError, match=say):
        kernel("ScatterElements", x, wrong, np.ones((1, 2)))
    with pytest.raises(RunError, match=say):
        kernel("ScatterND", x, ints(index), np.ones(2))
    with pytest.raises(ShapeError, match=say):
        infer("Gather", [typed(3, 2), known(0, index)])


def test_gather_from_an_empty_axis():
    with pytest.raises(RunError, match="index 0 is out of range for size 0"):
        kernel("Gather", np.zeros((0, 2)), ints(0))
    with pytest.raises(RunError, match="axis 0 is out of range for rank 0"):
        kernel("Gather", np.zeros(()), ints(0))


def test_gather_elements_reads_only_as_far_as_the_indices():
    x = np.arange(12).reshape(3, 4)
    index = ints(2, -3, 1, 0).reshape(2, 2)
    assert kernel("GatherElements", x, index).tolist() == [[8, 1], [4, 1]]
    assert kernel("GatherElements", x, ints(3).reshape(1, 1), axis=1).tolist() == [[3]]
    for shape in ((1, 5), (1,), (1, 1, 1)):
        with pytest.raises(RunError, match="do not fit data of shape"):
            kernel("GatherElements", x, np.zeros(shape, np.int64))
        with pytest.raises(ShapeError, match="do not fit data of shape"):
            infer("GatherElements", [typed(3, 4), typed(*shape, dtype=np.int64)])


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_gather_nd_against_a_loop(batch):
    rng = np.random.default_rng(7 + batch)
    x = rng.integers(0, 100, (2, 3, 4, 5))
    for depth in range(5 - batch):
        sizes = x.shape[batch : batch + depth]
        lead = (*x.shape[:batch], 6)
        index = np.zeros((*lead, depth), np.int64)
        for i, size in enumerate(sizes):
            index[..., i] = rng.integers(-size, size, lead)
        wanted = np.array([x[(*at[:batch], *index[at])] for at in np.ndindex(lead)]).reshape(
            *lead, *x.shape[batch + depth :]
        )
        same(kernel("GatherND", x, index, batch_dims=batch), wanted)
        assert infer("GatherND", [fact(x), fact(index)], batch_dims=batch)[0].shape == wanted.shape


def test_gather_nd_faults():
    for shape, batch in (((2, 5), 0), ((3, 1), 1), ((2, 1), 2), ((), 0)):
        with pytest.raises(RunError, match="do not fit data of shape"):
            kernel("GatherND", X, np.zeros(shape, np.int64), batch_dims=batch)
        with pytest.raises(ShapeError, match="do not fit data of shape"):
            infer("GatherND", [typed(2, 3, 4), typed(*shape, dtype=np.int64)], batch_dims=batch)
    assert shape_of(infer("GatherND", [typed("a", 3), typed("n", 1, dtype=np.int64)])[0]) == "[n, 3]"


# ---- scatters

REDUCE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@pytest.mark.parametrize("reduction", ["none", *REDUCE])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.float16])
def test_scatter_elements_against_a_loop(reduction, dtype):
    rng = np.random.default_rng(3)
    x = rng.integers(-5, 6, (3, 5, 2)).astype(dtype)
    index = np.argsort(rng.random((2, 5, 2)), axis=1)[:, :4] if reduction == "none" else rng.integers(-5, 5, (2, 4, 2))
    updates = rng.integers(-3, 4, index.shape).astype(dtype)
    wanted = x.copy()
    for at in np.ndindex(index.shape):
        to = (at[0], index[at], at[2])
        wanted[to] = updates[at] if reduction == "none" else REDUCE[reduction](wanted[to], updates[at])
    before = x.copy()
    same(kernel("ScatterElements", x, index, updates, axis=-2, reduction=reduction), wanted)
    same(x, before)


@pytest.mark.parametrize("reduction", ["none", *REDUCE])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_scatter_nd_against_a_loop(reduction, depth):
    rng = np.random.default_rng(4)
    x = rng.integers(-5, 6, (3, 4, 2)).astype(np.float32)
    count = 1 if depth == 0 else 3
    index = np.stack([rng.permutation(s)[:count] if s >= count else rng.integers(-s, s, count) for s in x.shape[:depth]]
                     , axis=-1) if depth else np.zeros((1, 0), np.int64)  # fmt: skip
    updates = rng.integers(-3, 4, (count, *x.shape[depth:])).astype(np.float32)
    wanted = x.copy()
    for i in range(count):
        to = tuple(index[i])
        wanted[to] = updates[i] if reduction == "none" else REDUCE[reduction](wanted[to], updates[i])
    same(kernel("ScatterND", x, index, updates, reduction=reduction), wanted)


def test_scatter_adds_where_one_place_comes_twice():
    zeros = np.zeros(3, np.float32)
    ones = np.ones(4, np.float32)
    assert kernel("ScatterElements", zeros, ints(1, 1, -2, 0), ones, reduction="add").tolist() == [1, 3, 0]
    twice = ints(1, 1, -2, 0).reshape(4, 1)
    assert kernel("ScatterND", zeros, twice, ones, reduction="add").tolist() == [1, 3, 0]
    words = np.array(["a", "b", "c"], dtype=object)
    assert kernel("ScatterElements", words, ints(2), np.array(["z"], dtype=object)).tolist() == ["a", "b", "z"]
    assert kernel("ScatterElements", zeros, ints(), zeros[:0]).tolist() == [0, 0, 0]


def test_scatter_keeps_nan_and_extremes():
    x = np.array([1, np.nan, -np.inf], np.float32)
    up = np.array([np.nan, 2, 3], np.float32)
    with np.errstate(invalid="ignore"):
        got = kernel("ScatterElements", x, ints(0, 1, 2), up, reduction="max")
    same(got, np.array([np.nan, np.nan, 3], np.float32))


@pytest.mark.parametrize(
    ("op", "shapes", "says"),
    [
        ("ScatterElements", ((3, 2), (1, 3), (1, 3)), "do not fit"),
        ("ScatterElements", ((3, 2), (2,), (2,)), "do not fit"),
        ("ScatterND", ((3, 2), (1, 1), (2,)), "expected is"),
        ("ScatterND", ((3, 2), (1, 3), (1,)), "index tuples of 3"),
        ("ScatterND", ((3, 2), (1, 1), (1, 3)), "expected is"),
    ],
)
def test_scatter_faults(op, shapes, says):
    x, index, updates = (np.zeros(s) for s in shapes)
    with pytest.raises(RunError, match=says):
        kernel(op, x, index.astype(np.int64), updates)
    with pytest.raises(ShapeError, match=says):
        infer(op, [fact(x), typed(*shapes[1], dtype=np.int64), fact(updates)])
    with pytest.raises(ShapeError, match="unknown reduction 'sub'"):
        infer(op, [fact(x), typed(1, 1, dtype=np.int64), typed(1, 2, dtype=x.dtype)], reduction="sub")


# ---- masks and order


def test_compress():
    mask = np.array([False, True])
    assert kernel("Compress", X, mask, axis=-1).tolist() == X[..., 1:2].tolist()
    assert kernel("Compress", X, mask).tolist() == [1.0]
    assert infer("Compress", [typed(2, "n"), fact(mask)], axis=1)[0].shape == (2, 1)
    assert shape_of(infer("Compress", [typed(2, "n"), typed("n", dtype=bool)], axis=0)[0]) == "[?, n]"
    with pytest.raises(RunError, match="condition true at 5 is out of range for size 4"):
        kernel("Compress", X, np.arange(6) == 5, axis=2)
    assert kernel("Compress", X, np.arange(6) < 2, axis=2).shape == (2, 3, 2)


def test_nonzero_of_scalars_and_empty_tensors():
    assert kernel("NonZero", np.float32(3).reshape(())).shape == (0, 1)
    assert kernel("NonZero", np.float32(0).reshape(())).shape == (0, 0)
    assert kernel("NonZero", np.zeros((2, 0))).shape == (2, 0)
    assert kernel("NonZero", np.array([[-0.0, np.nan], [1, 0]])).tolist() == [[0, 1], [1, 0]]
    assert shape_of(infer("NonZero", [typed("n", 3)])[0]) == "[2, ?]"


@pytest.mark.parametrize("time_axis", [0, 1])
def test_reverse_sequence(time_axis):
    x = np.arange(24).reshape(4, 3, 2) if time_axis == 0 else np.arange(24).reshape(3, 4, 2)
    got = kernel("ReverseSequence", x, ints(0, 4, 3), time_axis=time_axis, batch_axis=1 - time_axis)
    rows = np.moveaxis(x, 1 - time_axis, 0)
    wanted = np.stack([np.concatenate([r[:n][::-1], r[n:]]) for r, n in zip(rows, (0, 4, 3), strict=True)])
    assert got.tolist() == np.moveaxis(wanted, 0, 1 - time_axis).tolist()


def test_reverse_sequence_faults():
    x = np.zeros((4, 3))
    for lengths, says in (((1, 2), "not \\[3\\]"), ((5, 1, 1), "sequence length 5"), ((1, -1, 1), "length -1")):
        with pytest.raises(RunError, match=says):
            kernel("ReverseSequence", x, ints(*lengths))
    with pytest.raises(ShapeError, match="must be 0 and 1"):
        infer("ReverseSequence", [typed(4, 3), known(1, 1, 1)], time_axis=1)
