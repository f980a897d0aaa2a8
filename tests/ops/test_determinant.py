"""Det against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says


@pytest.mark.parametrize("case", node_cases("Det"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def exact(matrix):
    """The determinant without rounding."""
    a, result = [[Fraction(float(v)) for v in row] for row in matrix], Fraction(1)
    for k in range(len(a)):
        row = next((i for i in range(k, len(a)) if a[i][k]), None)
        if row is None:
            return Fraction(0)
        if row != k:
            a[k], a[row], result = a[row], a[k], -result
        result *= a[k][k]
        for i in range(k + 1, len(a)):
            factor = a[i][k] / a[k][k]
            a[i] = [p - factor * q for p, q in zip(a[i], a[k], strict=True)]
    return result


@pytest.mark.parametrize("size", [1, 2, 3, 6, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rounded_once(size, dtype):
    x = normal(size, 20, size, size).astype(dtype)
    got = kernel("Det", x)
    assert got.dtype == dtype
    assert got.tolist() == [float(np.array(float(exact(m))).astype(dtype)) for m in x]


@pytest.mark.parametrize("size", [2, 4, 8])
def test_float64(size):
    x = normal(size, 20, size, size, dtype=np.float64)
    bound = np.prod(np.linalg.norm(x, axis=2), axis=1)  # Hadamard's: what rounding is measured by
    wanted = np.array([float(exact(m)) for m in x])
    assert (np.abs(kernel("Det", x) - wanted) <= 4e-16 * bound).all()


def test_small_cases():
    assert kernel("Det", np.array([[1, 2], [3, 4]], np.float64)) == -2
    assert kernel("Det", np.array([[0, 1], [1, 0]], np.float64)) == -1
    assert kernel("Det", np.array([[1, 2], [2, 4]], np.float64)) == 0
    assert kernel("Det", np.eye(5)[[2, 0, 1, 4, 3]]) == -1  # a cycle of three and an exchange
    assert kernel("Det", np.array([[7]], np.float64)) == 7


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_overflow_on_the_way():
    x = np.diag([1e200, 1e200, 1e-200, 1e-200, 3.0])
    assert kernel("Det", x) == pytest.approx(3, rel=1e-15)
    assert kernel("Det", np.diag([1e200, 1e200])) == np.inf
    assert kernel("Det", np.eye(400) * 0.25) == 0.25**400
    assert kernel("Det", np.eye(1200) * 0.5) == 0


def test_nan_and_infinity():
    with np.errstate(all="ignore"):
        assert np.isnan(kernel("Det", np.array([[np.nan, 1], [1, 2]])))
        assert kernel("Det", np.array([[np.inf, 0], [0, 2]])) == np.inf


@pytest.mark.parametrize(("shape", "wanted"), [((0, 3, 3), []), ((2, 0, 0), [1, 1]), ((0, 0), 1)])
def test_empty(shape, wanted):
    assert kernel("Det", np.zeros(shape, np.float32)).tolist() == wanted


def test_batches_and_the_input_stay():
    x = normal(1, 2, 3, 4, 4)
    kept = x.copy()
    same(kernel("Det", x), np.linalg.det(x.astype(np.float64)).astype(np.float32))
    assert x.tolist() == kept.tolist()
    same(kernel("Det", x), onnxruntime_says("Det", [x]), rtol=1e-4)


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 3, 2)])
def test_what_is_not_square(shape):
    with pytest.raises(RunError, match="square"):
        kernel("Det", np.zeros(shape, np.float32))
    with pytest.raises(ShapeError, match="square"):
        infer("Det", [typed(*shape)])


def test_inferred():
    assert shape_of(infer("Det", [typed("n", 3, 3)])[0]) == "[n]"
    assert shape_of(infer("Det", [typed(3, None)])[0]) == "[]"
