"""Softmax and its kin: values, extremes, and the old flattening forms."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, same, typed
from tests.ops.oracle import close, normal, onnxruntime_says

INF, NAN = np.inf, np.nan


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases("Softmax", "LogSoftmax", "Hardmax"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def exact(x, axis):
    e = np.exp(x.astype(np.float64) - x.astype(np.float64).max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_values_along_each_axis(axis):
    x = normal(1, 3, 4, 5) * 20
    close(kernel("Softmax", x, axis=axis), exact(x, axis), eps=1e-6)
    close(kernel("LogSoftmax", x, axis=axis), np.log(exact(x, axis)), eps=1e-6)
    assert kernel("Hardmax", x, axis=axis).argmax(axis).tolist() == x.argmax(axis).tolist()
    assert kernel("Hardmax", x, axis=axis).sum() == x.size / x.shape[axis]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    x = (normal(2, 2, 300) * 4).astype(dtype)
    for op, wanted in (("Softmax", exact(x, -1)), ("LogSoftmax", np.log(exact(x, -1)))):
        y = kernel(op, x)
        assert y.dtype == dtype
        assert np.mean(y == wanted.astype(dtype)) > 0.99


def test_extremes():
    x = np.array([[-INF, -INF], [1, INF], [NAN, 1], [3e38, -3e38], [-INF, 0]], np.float32)
    assert str(kernel("Softmax", x).tolist()) == "[[nan, nan], [nan, nan], [nan, nan], [1.0, 0.0], [0.0, 1.0]]"
    same(kernel("Softmax", x), onnxruntime_says("Softmax", [x], axis=-1))
    assert str(kernel("LogSoftmax", x[4:]).tolist()) == "[[-inf, 0.0]]"
    far = kernel("LogSoftmax", np.array([[1e4, -1e4]], np.float32))
    assert far.tolist() == [[0, -20000]]
    assert kernel("Hardmax", np.array([[2, 2, 1], [NAN, 5, 1]], np.float32)).tolist() == [[1, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_inputs_are_kept_and_empty_ones_pass(op):
    x = normal(3, 2, 3)
    kept = x.copy()
    assert not np.shares_memory(kernel(op, x), x)
    assert x.tolist() == kept.tolist()
    for shape in ((0, 3), (3, 0), (2, 0, 3)):
        assert kernel(op, np.ones(shape, np.float32)).shape == shape
        assert kernel(f"{op}-1", np.ones(shape, np.float32)).shape == shape


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_the_old_form_flattens(op, axis):
    x = normal(4, 2, 3, 4)
    got = kernel(f"{op}-1", x, axis=axis)
    flat = x.reshape(int(np.prod(x.shape[:axis])), -1)
    assert got.tolist() == kernel(op, flat, axis=1).reshape(x.shape).tolist()
    same(got, onnxruntime_says(op, [x], opset=11, axis=axis))


def test_the_old_default_is_axis_1():
    x = normal(5, 2, 3, 4)
    assert kernel("Softmax-1", x).sum(axis=(1, 2)).tolist() == pytest.approx([1, 1])
    assert kernel("Softmax", x).sum(axis=2).reshape(-1).tolist() == pytest.approx([1] * 6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax", "Softmax-1", "LogSoftmax-1", "Hardmax-1"])
@pytest.mark.parametrize("axis", [3, -4, 2**63 - 1])
def test_an_axis_out_of_range(op, axis):
    for check in (lambda: infer(op, [typed(2, 3, 4)], axis=axis), lambda: kernel(op, np.ones((2, 3, 4)), axis=axis)):
        with pytest.raises(ShapeError, match=f"axis {axis} is out of range for rank 3"):
            check()


def test_inferred():
    assert infer("Softmax", [typed("n", 3)], axis=1)[0] == typed("n", 3)
    assert infer("Softmax-1", [typed("n", 3)])[0] == typed("n", 3)
