"""Products, inverses and distances of com.microsoft against onnxruntime and float64."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import infer, kernel, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, says, shapes
from tests.ops.oracle import close, normal

OP = "FusedMatMul"
A, B = normal(1, 2, 3, 4), normal(2, 2, 4, 5)


def turned(x):
    return np.ascontiguousarray(x.swapaxes(-1, -2))


@pytest.mark.parametrize("alpha", [1.0, 0.3, -2.0, 0.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale(alpha, dtype):
    y = agree(OP, [A.astype(dtype), B.astype(dtype)], alpha=alpha)[0]
    scale = np.float64(np.float32(alpha))
    close(y, A.astype(np.float64) @ B * scale, eps=1e-6)


def test_transposed_factors():
    y = agree(OP, [A, B])[0].tolist()
    assert agree(OP, [turned(A), B], transA=1)[0].tolist() == y
    assert agree(OP, [A, turned(B)], transB=1)[0].tolist() == y
    assert agree(OP, [turned(A), turned(B)], transA=1, transB=1)[0].tolist() == y


def test_transposed_batches():
    """The first axis moves before the last one, and then the last two are swapped where that is asked for."""
    y = agree(OP, [A, B])[0].tolist()
    first = np.ascontiguousarray(np.moveaxis(A, -2, 0))
    assert agree(OP, [first, B], transBatchA=1)[0].tolist() == y
    assert agree(OP, [A, np.ascontiguousarray(np.moveaxis(B, -2, 0))], transBatchB=1)[0].tolist() == y
    both = np.ascontiguousarray(np.moveaxis(A, -1, 0))
    assert agree(OP, [both, B], transBatchA=1, transA=1)[0].tolist() == y
    a, b = normal(3, 3, 2, 7, 4), normal(4, 5, 2, 7, 4)
    agree(OP, [a, b], transBatchA=1, transBatchB=1, transB=1)
    both_refuse(OP, [A[0], B[0]], "ranks are 2 and 2", transBatchA=1)
    both_refuse(OP, [A, B[0]], "ranks are 3 and 2", transBatchA=1)


def test_vectors_stay_as_they_are():
    v = normal(5, 4)
    agree(OP, [v, B], transA=1)
    agree(OP, [v, turned(B)], transB=1)
    agree(OP, [A, v], transB=1)
    agree(OP, [v, v], transA=1, transB=1)


def test_a_transposed_factor_with_a_vector():
    """onnxruntime leaves the transposition out here, against the operator's text."""
    v = normal(5, 4)
    close(run(OP, [turned(A), v], transA=1)[0], A.astype(np.float64) @ v)
    assert says(OP, [turned(A), v], transA=1)[0].tolist() != run(OP, [A, v])[0].tolist()


@pytest.mark.parametrize(("a", "b"), [((2, 3, 0), (0, 5)), ((0, 3, 4), (4, 5)), ((3, 4), (2, 4, 0))])
def test_empty(a, b):
    agree(OP, [np.ones(a, np.float32), np.ones(b, np.float32)], alpha=2.0)


def test_half_precision_is_summed_in_float32():
    a, b = np.full((1, 4096), 1, np.float16), np.full((4096, 1), 1, np.float16)
    assert run(OP, [a, b], alpha=0.5)[0].tolist() == [[2048]]


def test_the_old_name():
    agree("TransposeMatMul", [turned(A[0]), B[0]], transA=1, alpha=2.0)
    agree("TransposeMatMul", [A, B])


@pytest.mark.parametrize(
    ("activation", "attrs", "formula"),
    [
        ("Relu", {}, lambda y: np.maximum(y, 0)),
        ("Tanh", {}, np.tanh),
        ("LeakyRelu", {"activation_alpha": 0.2}, lambda y: np.where(y < 0, 0.2 * y, y)),
        ("LeakyRelu", {}, lambda y: np.where(y < 0, 0.01 * y, y)),
        ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}, lambda y: np.clip(0.3 * y + 0.4, 0, 1)),
        ("Softmax", {"activation_axis": 1}, lambda y: np.exp(y) / np.exp(y).sum(1, keepdims=True)),
        ("Softmax", {}, lambda y: np.exp(y) / np.exp(y).sum(2, keepdims=True)),
    ],
)
def test_activations(activation, attrs, formula):
    """By formulas: onnxruntime has no kernel for the CPU."""
    y = run("FusedMatMulActivation", [turned(A), B], activation=activation, alpha=0.5, transA=1, **attrs)[0]
    close(y, formula(A.astype(np.float64) @ B * 0.5))
    refuse("FusedMatMulActivation", [A, B], "activation 'Sin' is not one of", activation="Sin")


def test_inferred():
    assert shapes(OP, typed("b", "k", "m"), typed("n", "k"), transA=1, transB=1) == "[b, m, n]"
    assert shapes(OP, typed("m", "b", "k"), typed("b", "k", "n"), transBatchA=1) == "[b, m, n]"
    with pytest.raises(ShapeError, match="inner sizes differ"):
        infer("com.microsoft::FusedMatMul", [typed(3, 4), typed(4, 5)], transA=1)
    both_refuse(OP, [A, B], "inner sizes differ", transA=1)


# ---- Inverse


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_inverse(dtype):
    x = normal(6, 3, 4, 4).astype(dtype)
    y = agree("Inverse", [x], eps=1e-4 if dtype == np.float32 else 1e-11)[0]
    close(y, np.linalg.inv(x.astype(np.float64)), eps=1e-7)
    agree("Inverse", [x[:0]])
    agree("Inverse", [np.zeros((2, 0, 0), dtype)])


def test_inverse_of_half_precision():
    x = np.array([[2, 0], [1, 4]], np.float16)
    assert agree("Inverse", [x])[0].tolist() == [[0.5, 0], [-0.125, 0.25]]


def test_no_inverse():
    """onnxruntime answers with infinities."""
    with pytest.raises(RunError, match="singular"):
        kernel("com.microsoft::Inverse", np.ones((3, 2, 2), np.float32))
    both_refuse("Inverse", [normal(6, 2, 3)], "takes square matrices")
    both_refuse("Inverse", [normal(6, 3)], "takes square matrices")


# ---- CDist


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances(metric, dtype):
    a, b = normal(7, 3, 4).astype(dtype), normal(8, 5, 4).astype(dtype)
    y = agree("CDist", [a, b], metric=metric)[0]
    squares = ((a[:, None].astype(np.float64) - b) ** 2).sum(-1)
    close(y, squares if metric == "sqeuclidean" else np.sqrt(squares), eps=1e-7)
    agree("CDist", [a[:0], b], metric=metric)


def test_distances_far_from_zero():
    """onnxruntime multiplies out, and says that equal rows are 0.7 apart here."""
    a = normal(7, 3, 4) + 1000
    y = run("CDist", [a, a], metric="euclidean")[0]
    assert np.diag(y).tolist() == [0, 0, 0]
    wanted = np.sqrt(((a[:, None].astype(np.float64) - a) ** 2).sum(-1))
    close(y, wanted, eps=1e-7)


def test_distances_to_infinity():
    a, b = np.array([[np.inf, 1]], np.float32), np.array([[np.inf, 1], [0, 0], [np.nan, 0]], np.float32)
    assert str(run("CDist", [a, b])[0].tolist()) == "[[nan, inf, nan]]"


def test_many_distances():
    a, b = normal(7, 700, 64), normal(8, 90, 64)
    close(run("CDist", [a, b])[0], ((a[:, None].astype(np.float64) - b) ** 2).sum(-1), eps=1e-7)


def test_faults_of_distances():
    both_refuse("CDist", [A[0], B[0]], "different lengths")
    both_refuse("CDist", [A, B[0]], "not a matrix")
    both_refuse("CDist", [A[0], A[0]], "metric 'cosine' is not one of", metric="cosine")
    assert shapes("CDist", typed("n", 4), typed("m", 4)) == "[n, m]"
