"""Adagrad, Adam and Momentum: onnx's cases, and the texts' formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, shape_of, typed
from tests.ops.oracle import normal

ADAGRAD, ADAM, MOMENTUM = (f"ai.onnx.preview.training::{n}" for n in ("Adagrad", "Adam", "Momentum"))
R, T = np.float32(0.1).reshape(()), np.array(3)
SETTINGS = {"alpha": 0.95, "beta": 0.85, "norm_coefficient": 0.5}


@pytest.mark.parametrize("case", node_cases("Adagrad", "Adam", "Momentum"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def test_there_are_cases():
    assert len(node_cases("Adagrad", "Adam", "Momentum")) == 7


def tensors(count, shape=(2, 3)):
    """Tensor, gradient, and positive states."""
    return [np.abs(normal(k, *shape)) if k > 1 else normal(k, *shape) for k in range(count)]


def close(got, wanted):
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == np.float32
        np.testing.assert_allclose(g, w, rtol=6e-8)  # one rounding


@pytest.mark.parametrize("t", [0, 4])
def test_adagrad(t):
    x, g, h = tensors(3)
    wide_x, wide_g, wide_h = (v.astype(np.float64) for v in (x, g, h))
    got = kernel(ADAGRAD, R, np.array(t), x, g, h, norm_coefficient=0.5, epsilon=1e-3, decay_factor=0.25)
    slope = 0.5 * wide_x + wide_g
    squares = wide_h + slope**2
    close(got, [wide_x - float(R) / (1 + t * 0.25) * slope / (np.sqrt(squares) + 1e-3), squares])


@pytest.mark.parametrize("t", [0, 4])
def test_adam(t):
    x, g, v, h = tensors(4)
    settings = {"alpha": 0.9, "beta": 0.8, "norm_coefficient": 0.5, "norm_coefficient_post": 0.25, "epsilon": 1e-3}
    got = kernel(ADAM, R, np.array(t), x, g, v, h, **settings)
    x, g, v, h = (a.astype(np.float64) for a in (x, g, v, h))
    slope = 0.5 * x + g
    mean, squares = 0.9 * v + (1 - 0.9) * slope, 0.8 * h + (1 - 0.8) * slope**2
    rate = float(R) * (np.sqrt(1 - 0.8**t) / (1 - 0.9**t) if t else 1)
    close(got, [0.75 * (x - rate * mean / (np.sqrt(squares) + 1e-3)), mean, squares])


@pytest.mark.parametrize("t", [0, 4])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum(t, mode):
    x, g, v = tensors(3)
    got = kernel(MOMENTUM, R, np.array(t), x, g, v, mode=mode, **SETTINGS)
    x, g, v = (a.astype(np.float64) for a in (x, g, v))
    slope = 0.5 * x + g
    speed = 0.95 * v + (0.85 if t else 1) * slope
    close(got, [x - float(R) * (speed if mode == "standard" else slope + 0.95 * speed), speed])


def test_several_tensors_of_several_shapes_are_the_single_steps():
    a, b = tensors(4, (2, 3)), tensors(4, (4,))
    mixed = [v for pair in zip(a, b, strict=True) for v in pair]
    got = kernel(ADAM, R, T, *mixed)
    alone = [kernel(ADAM, R, T, *own) for own in (a, b)]
    assert len(got) == 6
    for place, made in enumerate(got):
        assert made.tolist() == alone[place % 2][place // 2].tolist()


def test_doubles_and_scalars():
    out = kernel(ADAGRAD, R.reshape(1), T.reshape(1), *(np.array(v) for v in (1.0, 2.0, 0.0)))
    assert [o.dtype for o in out] == [np.float64, np.float64]
    assert [o.shape for o in out] == [(), ()]


@pytest.mark.parametrize(
    ("op", "count", "attrs", "message"),
    [
        (ADAGRAD, 4, {}, "4 tensors do not make groups of 3"),
        (ADAM, 3, {}, "3 tensors do not make groups of 4"),
        (MOMENTUM, 3, SETTINGS | {"mode": "fast"}, "mode 'fast'"),
    ],
)
def test_faults(op, count, attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(op, R, T, *tensors(count), **attrs)


def test_shapes_and_scalars_must_fit():
    x, g, h = tensors(3)
    with pytest.raises(RunError, match=r"a tensor \[2, 3\] with others \[3\], \[2, 3\]"):
        kernel(ADAGRAD, R, T, x, g[0], h)
    with pytest.raises(RunError, match="the learning rate must be one element"):
        kernel(ADAGRAD, np.ones(2, np.float32), T, x, g, h)


def test_inference():
    scalar, step = typed(), typed(dtype=np.int64)
    a, b = typed("n", 3), typed(4, dtype=np.float64)
    outs = infer(ADAM, [scalar, step, *(a, b) * 4], 6)
    assert [(o.dtype, shape_of(o)) for o in outs] == [(np.float32, "[n, 3]"), (np.float64, "[4]")] * 3
    with pytest.raises(ShapeError, match="groups of 3"):
        infer(MOMENTUM, [scalar, step, a], **SETTINGS, mode="standard")
