"""Reductions against float64 formulas, over empty sets, in half precision; running sums; the largest k."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Symbolic
from tests.ops.cases import check_case, fact, infer, ints, kernel, known, node_cases, same, shape_of, typed

BF16 = np.dtype(ml_dtypes.bfloat16)
NAMES = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")

FORMULAS = {
    "Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min, "Prod": np.prod,
    "L1": lambda x, **k: np.sum(np.abs(x), **k), "L2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "LogSum": lambda x, **k: np.log(np.sum(x, **k)), "LogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
    "SumSquare": lambda x, **k: np.sum(x * x, **k),
}  # fmt: skip


@pytest.mark.parametrize("case", node_cases(*(f"Reduce{n}" for n in NAMES)))
def test_onnx_cases(case):
    check_case(case, exact=True)


@pytest.mark.parametrize("case", node_cases("ArgMax", "ArgMin", "CumSum", "CumProd", "TopK"))
def test_onnx_cases_of_places_and_running_sums(case):
    check_case(case, exact=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BF16])
@pytest.mark.parametrize("axes", [None, (0,), (-1, 0), (1,), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_against_the_formula(name, dtype, axes, keepdims):
    x = np.random.default_rng(5).uniform(-2, 3, (3, 4, 5))
    x = (np.abs(x) if name == "LogSum" else x).astype(dtype)
    exact = FORMULAS[name](x.astype(np.float64), axis=axes, keepdims=bool(keepdims))
    got = kernel(f"Reduce{name}", x, None if axes is None else ints(*axes), keepdims=keepdims)
    assert got.dtype == dtype
    rtol = {2: 5e-3 if dtype == BF16 else 1e-3, 4: 1e-5, 8: 1e-12}[x.dtype.itemsize]
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=rtol, atol=rtol)
    info = infer(f"Reduce{name}", [fact(x), None if axes is None else known(*axes)], keepdims=keepdims)[0]
    assert info.shape == got.shape


def test_no_axes_means_all_or_none():
    x = np.array([[1, -2], [3, 4]], np.float32)
    for axes in (None, ints()):
        assert kernel("ReduceSum", x, axes, keepdims=0).tolist() == 6
        same(kernel("ReduceSum", x, axes, noop_with_empty_axes=1), x)
        same(kernel("ReduceSumSquare", x, axes, noop_with_empty_axes=1), x * x)
        same(kernel("ReduceL1", x, axes, noop_with_empty_axes=1), np.abs(x))
        same(kernel("ReduceLogSumExp", x, axes, noop_with_empty_axes=1, keepdims=0), x)
    assert infer("ReduceSum", [typed("n", 2)], noop_with_empty_axes=1)[0].shape == typed("n", 2).shape


@pytest.mark.parametrize(
    ("name", "dtype", "wanted"),
    [
        ("Sum", np.float32, 0), ("Prod", np.float16, 1), ("Prod", np.int32, 1), ("L1", np.float32, 0),
        ("L2", np.int64, 0), ("SumSquare", np.float64, 0), ("LogSum", np.float32, -np.inf),
        ("LogSumExp", np.float32, -np.inf), ("LogSumExp", BF16, -np.inf), ("Max", np.float32, -np.inf),
        ("Max", np.int8, -128), ("Max", np.uint8, 0), ("Max", np.bool_, False), ("Min", np.float16, np.inf),
        ("Min", np.int64, 2**63 - 1), ("Min", np.bool_, True), ("Min", np.uint64, 2**64 - 1), ("Max", BF16, -np.inf),
    ],
)  # fmt: skip
def test_of_an_empty_set(name, dtype, wanted):
    got = kernel(f"Reduce{name}", np.zeros((2, 0, 3), dtype), ints(1))
    assert got.shape == (2, 1, 3)
    assert got.dtype == dtype
    assert (got == np.array(wanted).astype(dtype)).all()


def test_the_mean_of_nothing_is_not_a_number():
    assert np.isnan(kernel("ReduceMean", np.zeros((2, 0), np.float32), ints(1))).all()
    assert kernel("ReduceMean", np.zeros((2, 0), np.int32), ints(1)).tolist() == [[0], [0]]
    assert kernel("ReduceMax", np.zeros((0, 2), np.float32), ints(1)).shape == (0, 1)


def test_of_scalars():
    x = np.array(-3.0, np.float32)
    for name in NAMES:
        got = kernel(f"Reduce{name}", x if name != "LogSum" else -x, keepdims=0)
        assert isinstance(got, np.ndarray)
        assert got.shape == ()
    assert kernel("ReduceL1", x, ints(0)).tolist() == 3
    assert infer("ReduceL1", [fact(x), known(-1)])[0].shape == ()


def test_half_precision_is_accumulated_in_float32():
    ones = np.ones(5000, np.float16)
    assert kernel("ReduceSum", ones).tolist() == [5000]
    assert kernel("ReduceSum", ones.astype(BF16)).astype(np.float32).tolist() == [4992]  # nearest bfloat16 of 5000
    assert kernel("ReduceMean", np.full(5000, 60000, np.float16)).tolist() == [60000]
    assert kernel("ReduceL2", np.full(4, 300, np.float16)).tolist() == [600]
    assert kernel("CumSum", ones, np.array(0))[-1] == 5000


def test_log_sum_exp_neither_overflows_nor_cancels():
    x = np.array([[1000, 1001], [-1000, -1001], [np.inf, 0], [-np.inf, -np.inf], [np.nan, 0]], np.float32)
    got = kernel("ReduceLogSumExp", x, ints(1), keepdims=0)
    near = 1 + np.log1p(np.exp(-1))
    same(got, np.array([1000 + near, -1001 + near, np.inf, -np.inf, np.nan], np.float32))


def test_extremes_let_nan_through():
    x = np.array([[np.nan, 1], [-0.0, np.inf]], np.float32)
    same(kernel("ReduceMax", x, ints(1), keepdims=0), np.array([np.nan, np.inf], np.float32))
    same(kernel("ReduceMin", x, ints(1), keepdims=0), np.array([np.nan, -0.0], np.float32))
    assert kernel("ReduceMax", np.array([True, False])).tolist() == [True]
    assert kernel("ReduceMin", np.array([True, False])).tolist() == [False]


def test_integers_keep_their_dtype():
    x = np.array([[-3, -4, 0], [3, 4, 0]], np.int32)
    assert kernel("ReduceMean", x, ints(1), keepdims=0).tolist() == [-2, 2]  # truncated, as in C
    assert kernel("ReduceL2", x, ints(1), keepdims=0).tolist() == [5, 5]
    assert kernel("ReduceSum", np.array([2**31 - 1, 1], np.int32)).tolist() == [-(2**31)]
    assert kernel("ReduceMean", np.array([2**63, 2**62], np.uint64)).tolist() == [(2**63 + 2**62) // 2]


@pytest.mark.parametrize("axes", [(2,), (-3,), (0, -2), (2**63 - 1,)])
def test_faults_in_axes(axes):
    with pytest.raises(RunError, match=r"out of range for rank 2|name one axis twice"):
        kernel("ReduceSum", np.ones((2, 3)), ints(*axes))
    with pytest.raises(ShapeError, match=r"out of range for rank 2|name one axis twice"):
        infer("ReduceSum", [typed(2, 3), known(*axes)])


def test_inference_with_unknown_axes():
    axes = typed(2, dtype=np.int64)
    assert shape_of(infer("ReduceSum", [typed("n", 2, 3), axes])[0]) == "[?, ?, ?]"
    assert shape_of(infer("ReduceSum", [typed("n", 2, 3), axes], keepdims=0)[0]) == "[?]"
    assert shape_of(infer("ReduceSum", [typed("n", 2, 3), typed(None, dtype=np.int64)], keepdims=0)[0]) == "[...]"
    assert shape_of(infer("ReduceSum", [typed("n", 2, 3), typed(0, dtype=np.int64)], keepdims=0)[0]) == "[...]"
    assert shape_of(infer("ReduceSum", [typed("n", 2, 3), known(0, -1)])[0]) == "[1, 2, 1]"


def test_products_and_sums_of_symbolic_sizes():
    shape = known("n", "m", 3)
    assert [str(d) for d in infer("ReduceProd", [shape], keepdims=0)[0].dims] == ["3*m*n"]
    assert infer("ReduceSum", [shape])[0].dims == (Symbolic.of("n") + Symbolic.of("m") + 3,)
    assert infer("ReduceMax", [shape])[0].value is None
    assert infer("ReduceMax", [known(2, 5)], keepdims=0)[0].ints == (5,)
    assert [str(d) for d in infer("CumProd", [shape, known(0)])[0].dims] == ["n", "m*n", "3*m*n"]


# ---- places of extremes


def test_arg_of_ties_and_signs():
    x = np.array([[2, 2, 1], [-1, -1, -1]], np.float32)
    assert kernel("ArgMax", x, axis=1).tolist() == [[0], [0]]
    assert kernel("ArgMax", x, axis=1, select_last_index=1, keepdims=0).tolist() == [1, 2]
    assert kernel("ArgMin", x, axis=-1, select_last_index=1).tolist() == [[2], [2]]
    assert kernel("ArgMin", x.astype(BF16), axis=0, keepdims=0).tolist() == [1, 1, 1]
    assert kernel("ArgMax", np.array([-128, 127, 127], np.int8)).tolist() == [1]
    assert kernel("ArgMax", np.array(3.0)).tolist() == 0
    info = infer("ArgMax", [typed("n", 3)], axis=1, keepdims=0)[0]
    assert str(info.type) == "int64[n]"


def test_arg_faults():
    with pytest.raises(RunError, match=r"axis 1 of shape \[2, 0\] is empty"):
        kernel("ArgMax", np.zeros((2, 0)), axis=1)
    assert kernel("ArgMax", np.zeros((2, 0)), axis=0).shape == (1, 0)
    with pytest.raises(RunError, match="axis"):
        kernel("ArgMin", np.zeros((2, 3)), axis=2)
    with pytest.raises(ShapeError, match="axis"):
        infer("ArgMin", [typed(2, 3)], axis=-3)


# ---- running sums


@pytest.mark.parametrize(("op", "step", "start"), [("CumSum", np.add, 0), ("CumProd", np.multiply, 1)])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums_against_a_loop(op, step, start, exclusive, reverse):
    x = np.random.default_rng(8).integers(-3, 4, (2, 4, 3)).astype(np.int32)
    wanted = np.empty_like(x)
    for i, k in np.ndindex(2, 3):
        total = start
        for j in range(4)[:: -1 if reverse else 1]:
            before, total = total, step(total, x[i, j, k])
            wanted[i, j, k] = before if exclusive else total
    same(kernel(op, x, np.array(-2, np.int32), exclusive=exclusive, reverse=reverse), wanted)


def test_running_sums_of_little():
    empty = np.zeros((0, 2), np.float32)
    for exclusive in (0, 1):
        same(kernel("CumSum", empty, np.array(0), exclusive=exclusive), empty)
        same(kernel("CumSum", np.array([5]), ints(0), exclusive=exclusive), ints(0 if exclusive else 5))
    with pytest.raises(RunError, match="axis 2 is out of range"):
        kernel("CumSum", empty, np.array(2))
    with pytest.raises(ShapeError, match="axis 2 is out of range"):
        infer("CumSum", [typed(2, 3), known(2)])


# ---- TopK


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16, np.int64, np.uint8, np.int8])
@pytest.mark.parametrize(("size", "k"), [(7, 3), (7, 7), (7, 0), (1000, 5), (1000, 100), (1, 1)])
def test_top_k_prefers_the_first_of_equals(largest, dtype, size, k):
    rng = np.random.default_rng(9)
    x = rng.integers(0, 20, (3, size)).astype(dtype)  # many ties
    values, places = kernel("TopK", x, ints(k), largest=largest)
    assert places.dtype == np.int64
    for row, value, place in zip(x.tolist(), values.tolist(), places.tolist(), strict=True):
        wanted = sorted(range(size), key=lambda i: (-row[i] if largest else row[i], i))[:k]
        assert place == wanted
        assert value == [row[i] for i in wanted]
    assert values.dtype == dtype


def test_top_k_along_another_axis():
    x = np.random.default_rng(2).standard_normal((400, 2, 3)).astype(np.float32)
    values, places = kernel("TopK", x, ints(4), axis=0)
    order = np.argsort(-x, axis=0, kind="stable")[:4]
    assert places.tolist() == order.tolist()
    same(values, np.take_along_axis(x, order, axis=0))


def test_top_k_of_infinities_and_extremes():
    x = np.array([np.inf, -np.inf, 0, -0.0, 3] + [-1] * 400, np.float32)
    values, places = kernel("TopK", x, ints(4))
    assert values.tolist() == [np.inf, 3, 0, 0]
    assert places.tolist() == [0, 4, 2, 3]
    assert kernel("TopK", x, ints(2), largest=0)[1].tolist() == [1, 5]
    low = np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, 0])
    assert kernel("TopK", low, ints(3))[1].tolist() == [1, 2, 0]
    nan = np.array([1, np.nan, 2] * 200, np.float32)
    assert np.isnan(kernel("TopK", nan, ints(2))[0]).all()
    assert kernel("TopK", nan, ints(3), largest=0)[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("k", [4, -1, 2**62])
def test_top_k_faults(k):
    say = f"k is {k}"
    with pytest.raises(RunError, match=say):
        kernel("TopK", np.zeros((2, 3)), ints(k))
    with pytest.raises(ShapeError, match=say):
        infer("TopK", [typed(2, 3), known(k)], 2)
    with pytest.raises(RunError, match="axis 0 is out of range for rank 0"):
        kernel("TopK", np.zeros(()), ints(1), axis=0)


def test_top_k_infers_known_and_symbolic_k():
    assert [str(i.type) for i in infer("TopK", [typed("n", 3), known(2)], 2)] == ["float[n, 2]", "int64[n, 2]"]
    assert shape_of(infer("TopK", [typed(5, 3), known("k")], 2, axis=0)[1]) == "[k, 3]"
    assert shape_of(infer("TopK", [typed(5, 3), typed(1, dtype=np.int64)], 2, axis=0)[0]) == "[?, 3]"
