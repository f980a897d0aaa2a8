"""Old meanings: broadcasting by ``axis``, PRelu by channel, BatchNormalization with five outputs."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, kernel, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Pow")
LOGIC = ("And", "Or", "Xor")
COMPARISON = ("Equal", "Greater", "Less")


def operands(op, *shapes):
    if op in LOGIC:
        return [normal(k, *s) > 0 for k, s in enumerate(shapes)]
    if op in COMPARISON:
        return [np.round(normal(k, *s)).astype(np.int32) for k, s in enumerate(shapes)]
    return [np.abs(normal(k, *s)) + np.float32(0.5) for k, s in enumerate(shapes)]


@pytest.mark.parametrize("op", ARITHMETIC + LOGIC + COMPARISON)
@pytest.mark.parametrize(
    ("b", "axis", "aligned"),
    [
        ((), None, (1, 1, 1, 1)),
        ((5,), None, (1, 1, 1, 5)),
        ((4, 5), None, (1, 1, 4, 5)),
        ((3, 4), 1, (1, 3, 4, 1)),
        ((2,), 0, (2, 1, 1, 1)),
        ((3,), -3, (1, 3, 1, 1)),
        ((1, 1), 2, (1, 1, 1, 1)),
        ((2, 3, 4, 5), None, (2, 3, 4, 5)),
    ],
)
def test_broadcasting_by_axis(op, b, axis, aligned):
    x, y = operands(op, (2, 3, 4, 5), b)
    attrs = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    got = kernel(f"{op}-1", x, np.asarray(y), **attrs)
    wanted = kernel(op, x, np.asarray(y).reshape(aligned))
    assert got.tolist() == wanted.tolist()
    assert got.dtype == (np.float32 if op in ARITHMETIC else bool)
    given = [typed(*x.shape, dtype=x.dtype), typed(*b, dtype=x.dtype)]
    assert infer(f"{op}-1", given, **attrs)[0] == typed(2, 3, 4, 5, dtype=got.dtype)


def test_broadcasting_by_hand():
    a, b = np.zeros((2, 2), np.float32), np.array([1, 2], np.float32)
    assert kernel("Add-1", a, b, broadcast=1, axis=0).tolist() == [[1, 1], [2, 2]]
    assert kernel("Add-1", a, b, broadcast=1).tolist() == [[1, 2], [1, 2]]
    assert kernel("Sub-1", a, b, broadcast=1, axis=0, consumed_inputs=(0, 0)).tolist() == [[-1, -1], [-2, -2]]


@pytest.mark.parametrize(
    ("a", "b", "attrs", "text"),
    [
        ((2, 3), (3,), {}, "shapes [2, 3] and [3] differ and broadcast is 0"),
        ((2, 3), (2,), {"broadcast": 1}, "shape [2] does not fit [2, 3] from axis 1"),
        ((2, 3), (3, 2), {"broadcast": 1, "axis": 1}, "shape [3, 2] does not fit [2, 3] from axis 1"),
        ((3,), (2, 3), {"broadcast": 1}, "shape [2, 3] does not fit [3] from axis -1"),
        ((1, 3), (2, 3), {"broadcast": 1}, "shape [2, 3] does not fit [1, 3] from axis 0"),
        ((2, 3), (3,), {"broadcast": 1, "axis": 2}, "axis 2 is out of range for rank 2"),
    ],
)
@pytest.mark.parametrize("op", ["Add-1", "Pow-1", "Less-1"])
def test_broadcasting_faults(op, a, b, attrs, text):
    for check in (
        lambda: infer(op, [typed(*a), typed(*b)], **attrs),
        lambda: kernel(op, np.ones(a, np.float32), np.ones(b, np.float32), **attrs),
    ):
        with pytest.raises(ShapeError) as caught:
            check()
        assert caught.value.what == text


def test_broadcasting_of_symbols():
    given = [typed("n", "c", "h"), typed("c")]
    assert shape_of(infer("Mul-1", given, broadcast=1, axis=1)[0]) == "[n, c, h]"


# ---- PRelu


def test_prelu_by_channel():
    x = np.array([[[-1, 2], [-3, 4], [-5, -6]]], np.float32)
    slope = np.array([2, 0.5, -1], np.float32)
    assert kernel("PRelu-1", x, slope).tolist() == [[[-2, 2], [-1.5, 4], [5, 6]]]
    assert kernel("PRelu-1", x, slope[:1]).tolist() == [[[-2, 2], [-6, 4], [-10, -12]]]
    square = np.full((3, 3), -1, np.float32)  # where axis 1 and the last axis could be taken for one another
    assert kernel("PRelu-1", square.reshape(1, 3, 3), slope).tolist() == [[[-2] * 3, [-0.5] * 3, [1] * 3]]
    assert infer("PRelu-1", [typed("n", 3, 2), typed(3)])[0] == typed("n", 3, 2)
    for check in (
        lambda: kernel("PRelu-1", x, np.ones(2, np.float32)),
        lambda: infer("PRelu-1", [typed(1, 3, 2), typed(2)]),
    ):
        with pytest.raises(ShapeError, match=r"slope \[2\] for 3 channels"):
            check()


# ---- BatchNormalization


def parameters(*shape):
    s, b, m, v = (normal(k, *shape) for k in range(4))
    return s, b, m, np.abs(v) + np.float32(0.1)


def test_batch_normalization_in_inference():
    x, given = normal(9, 2, 3, 4), parameters(3)
    y = kernel("BatchNormalization-1", x, *given, is_test=1)
    assert y.tolist() == kernel("BatchNormalization", x, *given).tolist()
    close(y, onnxruntime_says("BatchNormalization", [x, *given], opset=9).astype(np.float64))
    five = kernel("BatchNormalization-1", x, *given, is_test=1, n_outputs=5)
    assert five[0].tolist() == y.tolist()
    assert [v.tolist() for v in five[1:]] == [given[2].tolist(), given[3].tolist()] * 2


def test_batch_normalization_of_each_activation():
    x, given = normal(9, 5, 3, 2, 2) * 2, parameters(3, 2, 2)
    s, b, m, v = (p.astype(np.float64) for p in given)
    y = kernel("BatchNormalization-1", x, *given, is_test=1, spatial=0)
    close(y, (x - m) / np.sqrt(v + 1e-5) * s + b, eps=2e-6)
    y, mean, var, own_mean, own_var = kernel("BatchNormalization-1", x, *given, spatial=0, momentum=0.5, n_outputs=5)
    x64 = x.astype(np.float64)
    close(y, (x64 - x64.mean(0)) / np.sqrt(x64.var(0) + 1e-5) * s + b, eps=5e-6)
    close(own_mean, x64.mean(0))
    close(own_var, x64.var(0))
    close(mean, (m + x64.mean(0)) / 2)
    close(var, (v + x64.var(0)) / 2)


def test_batch_normalization_in_training():
    x, given = normal(9, 4, 3, 5) + 1, parameters(3)
    y, mean, var, own_mean, own_var = kernel("BatchNormalization-1", x, *given, momentum=0.9, n_outputs=5)
    newest = kernel("BatchNormalization", x, *given, momentum=0.9, training_mode=1, n_outputs=3)
    assert [a.tolist() for a in (y, mean, var)] == [a.tolist() for a in newest]
    close(own_mean, x.astype(np.float64).mean((0, 2)))
    close(own_var, x.astype(np.float64).var((0, 2)))
    assert kernel("BatchNormalization-1", x, *given).tolist() == y.tolist()


@pytest.mark.parametrize("spatial", [0, 1])
def test_batch_normalization_of_an_empty_batch(spatial):
    given = parameters(3) if spatial else parameters(3, 2)
    y = kernel("BatchNormalization-1", np.zeros((0, 3, 2), np.float32), *given, is_test=1, spatial=spatial)
    assert y.shape == (0, 3, 2)


def test_inferred_batch_normalization():
    given = [typed("n", 3, 2, 2), *[typed(3, 2, 2)] * 4]
    assert infer("BatchNormalization-1", given, 5, spatial=0) == [given[0], *given[1:]]


@pytest.mark.parametrize(("spatial", "wanted"), [(1, "[3]"), (0, "[3, 2]")])
def test_batch_normalization_faults(spatial, wanted):
    for check in (
        lambda: infer("BatchNormalization-1", [typed(1, 3, 2), *[typed(4)] * 4], spatial=spatial),
        lambda: kernel("BatchNormalization-1", np.ones((1, 3, 2)), *[np.ones(4)] * 4, spatial=spatial),
    ):
        with pytest.raises(ShapeError) as caught:
            check()
        assert caught.value.what == f"scale is [4], the input [1, 3, 2] needs {wanted}"
