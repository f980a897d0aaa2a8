"""Matrix products against exact and float64 ones."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ops.matmul import einsum, gemm, matmul, product
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says

NAN = np.nan


@pytest.mark.parametrize("case", node_cases("MatMul", "Gemm", "Einsum"))
def test_onnx_cases(case):
    check_case(case, exact=True)


# ---- the product itself


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_are_exact_and_wrap(dtype):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(info.min, info.max, s, dtype=dtype, endpoint=True) for s in ((2, 5, 7), (7, 3)))
    a[0, 0], b[:, 0] = info.max, info.max
    wanted = a.astype(object) @ b.astype(object)
    mask = (1 << info.bits) - 1
    wrapped = [
        (int(v) & mask) - ((1 << info.bits) if info.min and (int(v) & mask) > info.max else 0) for v in wanted.flat
    ]
    got = product(a, b)
    assert got.dtype == dtype
    assert got.reshape(-1).tolist() == wrapped
    into = np.empty(got.shape, dtype)
    assert product(a, b, out=into) is into
    assert into.tolist() == got.tolist()


def test_integers_just_past_float64():
    a, b = np.array([[2**53 + 1]], np.int64), np.array([[1]], np.int64)
    assert product(a, b).tolist() == [[2**53 + 1]]
    assert product(np.full((1, 2), 2**26, np.int64), np.full((2, 1), 2**26 + 1, np.int64)).tolist() == [[2**53 + 2**27]]


# ---- MatMul


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ((2, 3), (3, 4), (2, 4)),
        ((3,), (3,), ()),
        ((3,), (3, 4), (4,)),
        ((2, 3), (3,), (2,)),
        ((3,), (5, 3, 4), (5, 4)),
        ((5, 2, 3), (3,), (5, 2)),
        ((5, 1, 2, 3), (6, 3, 4), (5, 6, 2, 4)),
        ((0, 3), (3, 4), (0, 4)),
        ((2, 0), (0, 4), (2, 4)),
        ((0, 2, 3), (1, 3, 4), (0, 2, 4)),
    ],
)
def test_matmul_ranks(a, b, wanted):
    x, y = normal(1, *a), normal(2, *b)
    got = matmul(x, y)
    assert isinstance(got, np.ndarray)
    close(got, np.matmul(x.astype(np.float64), y.astype(np.float64)))
    assert got.shape == wanted == infer("MatMul", [typed(*a), typed(*b)])[0].shape


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_summed_in_float32_and_rounded_once(dtype):
    ones = np.ones((1, 3000), dtype)
    got = matmul(ones, ones.T)
    assert got.dtype == dtype
    assert float(got[0, 0]) == float(np.array(3000).astype(dtype))
    a, b = normal(1, 8, 64, dtype=dtype), normal(2, 64, 8, dtype=dtype)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.mean(matmul(a, b) == wanted.astype(dtype)) > 0.95
    assert matmul(ones[0], ones[0]).dtype == dtype


def test_matmul_of_symbols():
    assert shape_of(infer("MatMul", [typed("n", "s", 8), typed(8, "k")])[0]) == "[n, s, k]"
    assert shape_of(infer("MatMul", [typed("n", "s", "d"), typed("n", "d", "t")])[0]) == "[n, s, t]"
    assert shape_of(infer("MatMul", [typed(1, 3, 8), typed("n", 8, 2)])[0]) == "[n, 3, 2]"
    unknown = type(typed())(None)
    assert shape_of(infer("MatMul", [unknown, typed(8, 2)])[0]) == "[...]"


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ((2, 3), (4, 5), "inner sizes differ: [2, 3] by [4, 5] multiplies 3 with 4"),
        ((3,), (4,), "inner sizes differ: [3] by [4] multiplies 3 with 4"),
        ((), (3, 4), "takes no rank-0 tensor"),
        ((2, 5, 3), (3, 3, 4), "shapes [2] and [3] do not broadcast"),
    ],
)
def test_matmul_faults(a, b, text):
    for check in (lambda: infer("MatMul", [typed(*a), typed(*b)]), lambda: matmul(np.ones(a), np.ones(b))):
        with pytest.raises(ShapeError) as caught:
            check()
        assert caught.value.what == text


# ---- Gemm


@pytest.mark.parametrize("c", [None, (), (1,), (4,), (1, 4), (3, 1), (3, 4)])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, -2.0), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("transposed", [0, 1])
def test_gemm(c, alpha, beta, transposed):
    a, b = normal(1, *((5, 3) if transposed else (3, 5))), normal(2, *((4, 5) if transposed else (5, 4)))
    addend = None if c is None else np.asarray(normal(3, *c))
    got = gemm(a, b, addend, alpha=alpha, beta=beta, transA=transposed, transB=transposed)
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    wanted = alpha * (a64.T @ b64.T if transposed else a64 @ b64)
    if addend is not None:
        wanted = wanted + beta * addend.astype(np.float64)
    close(got, wanted)
    shapes = [typed(*a.shape), typed(*b.shape), None if c is None else typed(*c)]
    assert infer("Gemm", shapes, transA=transposed, transB=transposed)[0].shape == got.shape


def test_gemm_leaves_its_inputs_alone_and_ignores_c_where_beta_is_0():
    a, b, c = np.ones((2, 2), np.float32), np.ones((2, 2), np.float32), np.full(2, NAN, np.float32)
    assert gemm(a, b, c, beta=0.0).tolist() == [[2, 2], [2, 2]]
    assert onnxruntime_says("Gemm", [a, b, c], beta=0.0).tolist() == [[2, 2], [2, 2]]
    gemm(a, b, a, alpha=3.0)
    assert a.tolist() == [[1, 1], [1, 1]]


def test_gemm_of_integers_and_halves():
    a = np.array([[2**31 - 1, 1]], np.int32)
    assert gemm(a, a, np.array([5], np.int32), transB=1).tolist() == [
        [((2**31 - 1) ** 2 + 1 + 5 + 2**31) % 2**32 - 2**31]
    ]
    assert gemm(a[:, 1:], a[:, 1:], np.array([-4], np.int32), alpha=2.0, beta=-1.0).tolist() == [[6]]
    assert gemm(a[:, 1:], a[:, 1:], np.array([-4], np.int32), alpha=0.5, beta=0.5).tolist() == [[-1]]
    half = np.full((1, 3000), 1, np.float16)
    assert gemm(half, half, np.array([0.5], np.float16), transB=1).tolist() == [[3000]]


@pytest.mark.parametrize(
    ("shapes", "attrs", "text"),
    [
        (((2, 3), (4, 5)), {}, "inner sizes differ: 3 of A and 4 of B"),
        (((2, 3), (3, 4)), {"transA": 1}, "inner sizes differ: 2 of A and 3 of B"),
        (((2, 3, 1), (3, 4)), {}, "A must be a matrix, it is [2, 3, 1]"),
        (((2, 3), (3,)), {}, "B must be a matrix, it is [3]"),
        (((2, 3), (3, 4), (2,)), {}, "C [2] does not broadcast to [2, 4]"),
        (((1, 3), (3, 4), (2, 4)), {}, "C [2, 4] does not broadcast to [1, 4]"),
        (((1, 3), (3, 4), (1, 1, 4)), {}, "C must broadcast to a matrix, it is [1, 1, 4]"),
    ],
)
def test_gemm_faults(shapes, attrs, text):
    arrays = [np.ones(s, np.float32) for s in shapes]
    for check in (lambda: infer("Gemm", [typed(*s) for s in shapes], **attrs), lambda: gemm(*arrays, **attrs)):
        with pytest.raises(ShapeError) as caught:
            check()
        assert caught.value.what == text


def test_gemm_of_symbols():
    assert shape_of(infer("Gemm", [typed("n", 8), typed(16, 8), typed(16)], transB=1)[0]) == "[n, 16]"


# ---- Einsum


@pytest.mark.parametrize(
    ("equation", "shapes", "wanted"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], (2, 4)),
        ("ij , jk", [(2, 3), (3, 4)], (2, 4)),
        ("ij->ji", [(2, 3)], (3, 2)),
        ("ij", [(2, 3)], (2, 3)),
        ("ba", [(2, 3)], (3, 2)),
        ("ii->i", [(3, 3)], (3,)),
        ("ii", [(3, 3)], ()),
        ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)], (5, 2, 4)),
        ("...ij,...jk", [(5, 1, 2, 3), (6, 3, 4)], (5, 6, 2, 4)),
        ("i...->...", [(4, 2, 3)], (2, 3)),
        ("i,j,k->kji", [(2,), (3,), (4,)], (4, 3, 2)),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)], (2, 3, 4, 6)),
        (",i->i", [(), (3,)], (3,)),
        ("ij,ij->", [(2, 3), (1, 3)], ()),
        ("ij,jk->ik", [(0, 3), (3, 4)], (0, 4)),
    ],
)
def test_einsum(equation, shapes, wanted):
    xs = [np.asarray(normal(k, *s)) for k, s in enumerate(shapes)]
    got = einsum(*xs, equation=equation)
    assert got.flags.c_contiguous
    assert got.shape == wanted == infer("Einsum", [typed(*s) for s in shapes], equation=equation)[0].shape
    close(got, np.asarray(np.einsum(equation.replace(" ", ""), *(x.astype(np.float64) for x in xs))))


def test_einsum_dtypes():
    ones = np.ones(3000, np.float16)
    assert einsum(ones, ones, equation="i,i->").tolist() == 3000
    assert einsum(ones, ones, equation="i,i->").dtype == np.float16
    big = np.array([2**53 + 1, 2], np.int64)
    assert einsum(big, equation="i->").tolist() == 2**53 + 3


def test_einsum_of_symbols():
    assert shape_of(infer("Einsum", [typed("b", "s", 8), typed(8, "k")], equation="bsd,dk->bsk")[0]) == "[b, s, k]"
    assert shape_of(infer("Einsum", [typed("n", 2, 3)], equation="...ij->...ji")[0]) == "[n, 3, 2]"
    unknown = type(typed())(None)
    assert shape_of(infer("Einsum", [unknown, typed(3, 4)], equation="ij,jk->ik")[0]) == "[?, 4]"
    assert shape_of(infer("Einsum", [unknown], equation="...i->...")[0]) == "[...]"


@pytest.mark.parametrize(
    ("equation", "shapes", "text"),
    [
        ("ij,jk->ik", [(2, 3)], "has 2 terms for 1 inputs"),
        ("ij->i", [(2,)], "term 'ij' does not fit rank 1"),
        ("...ij->i", [(2,)], "term '...ij' does not fit rank 1"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "j is both 3 and 4"),
        ("ij->ix", [(2, 3)], "x"),
        ("i1->i", [(2, 3)], "has a term 'i1' that is not made of letters"),
    ],
)
def test_einsum_faults(equation, shapes, text):
    arrays = [np.ones(s, np.float32) for s in shapes]
    for check in (
        lambda: infer("Einsum", [typed(*s) for s in shapes], equation=equation),
        lambda: einsum(*arrays, equation=equation),
    ):
        with pytest.raises(ShapeError, match="equation") as caught:
            check()
        assert text in caught.value.what
