"""onnxruntime's operators on 8-bit tensors: by their definition in float64, and as onnxruntime has them."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import qpoint as module
from tests.ops.cases import infer, shape_of, typed
from tests.ops.quantised import equal, integers, kernel, nearest, on_the_edge, one, onnxruntime_says, scales

KINDS = [np.uint8, np.int8]
SHAPES = [((40, 100), (40, 100)), ((40, 100), (100,)), ((3, 1, 7), (5, 1)), ((), (4,)), ((2, 0), (1,))]


def real(x, scale, zero):
    """The numbers that ``x`` stands for, in float64."""
    return float(scale) * (x.astype(np.float64) - float(zero))


# ---- of two tensors


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("op", "combine"), [("QLinearAdd", np.add), ("QLinearMul", np.multiply)])
def test_binary(op, combine, seed, dtype):
    for shapes in SHAPES:
        a, b = integers(seed, dtype, *shapes[0]), integers(seed + 50, dtype, *shapes[1])
        sa, sb, sc = (scales(seed + k) for k in range(3))
        if seed % 3 == 0:  # many sums lie half-way between two steps
            sa, sb, sc = one(2.0**-5), one(2.0**-6), one(2.0**-4)
        za, zb, zc = (integers(seed + 9 * k, dtype) for k in range(3))
        inputs = [a, sa, za, b, sb, zb, sc, zc]
        got = kernel(op, *inputs)
        exact = combine(real(a, sa, za), real(b, sb, zb)) / float(sc) + int(zc)
        on_the_edge(got, nearest(exact, dtype), exact)
        on_the_edge(got, onnxruntime_says(f"com.microsoft::{op}", inputs), exact)
        info = infer(f"com.microsoft::{op}", [typed(*i.shape, dtype=i.dtype) for i in inputs])[0]
        assert info.type == typed(*got.shape, dtype=dtype).type


def test_a_half_goes_to_the_step_that_is_even_with_the_zero_point():
    a, b, zero = np.array([1, 3, 5], np.uint8), np.zeros(3, np.uint8), one(0, np.uint8)
    for last in (0, 1):
        inputs = [a, one(0.5), zero, b, one(0.5), zero, one(1), one(last, np.uint8)]
        assert kernel("QLinearAdd", *inputs).tolist() == [[0, 2, 2], [2, 2, 4]][last]
        assert onnxruntime_says("com.microsoft::QLinearAdd", inputs).tolist() == [[0, 2, 2], [2, 2, 4]][last]


def test_absent_zero_points_are_0():
    a, b = integers(1, np.int8, 30), integers(2, np.int8, 30)
    zero = one(0, np.int8)
    for op in ("QLinearAdd", "QLinearMul"):
        given = kernel(op, a, one(0.1), zero, b, one(0.2), zero, one(0.3), zero)
        equal(kernel(op, a, one(0.1), None, b, one(0.2), None, one(0.3)), given)
    info = infer("com.microsoft::QLinearAdd", [typed("n", dtype=np.int8), typed(), None] * 2 + [typed()])[0]
    assert info.type == typed("n", dtype=np.int8).type
    with pytest.raises(ShapeError, match="input 3 is required and missing"):
        infer("com.microsoft::QLinearAdd", [typed(3, dtype=np.int8), typed(), None, None, typed(), None, typed()])


def test_mul_integer():
    a, b = integers(1, np.int8, 5, 1), integers(2, np.int8, 7)
    wanted = (a.astype(np.int32) + 128) * (b.astype(np.int32) - 127)
    equal(kernel("MulInteger", a, one(-128, np.int8), b, one(127, np.int8)), wanted)
    equal(kernel("MulInteger", a, None, b), a.astype(np.int32) * b)
    info = infer("com.microsoft::MulInteger", [typed(5, 1, dtype=np.int8), None, typed(7, dtype=np.int8)])[0]
    assert info.type == typed(5, 7, dtype=np.int32).type


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_where(dtype, seed):
    condition = np.random.default_rng(seed).random((40, 1, 30)) > 0.5
    x, y = integers(1, dtype, 20, 30), integers(2, dtype, 40, 20, 1)
    sx, sy, sz = (scales(seed + k) for k in range(3))
    if seed == 0:
        sx = sz
    zx, zy, zz = (integers(seed + 9 * k, dtype) for k in range(3))
    inputs = [condition, x, sx, zx, y, sy, zy, sz, zz]
    got = kernel("QLinearWhere", *inputs)
    exact = np.where(condition, real(x, sx, zx), real(y, sy, zy)) / float(sz)
    on_the_edge(got, nearest(exact, dtype, int(zz)), exact)
    equal(got, onnxruntime_says("com.microsoft::QLinearWhere", inputs))
    info = infer("com.microsoft::QLinearWhere", [typed(*i.shape, dtype=i.dtype) for i in inputs])[0]
    assert info.type == typed(40, 20, 30, dtype=dtype).type


# ---- of any number


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(dtype, axis):
    shapes = [(4, 500), (1, 500), (7, 500)] if axis == 0 else [(40, 5), (40, 100), (40, 0)]
    scale, zero = scales(1), integers(2, dtype)
    inputs = [scale, zero]
    for k, shape in enumerate(shapes):
        same = k == 1  # the steps of the output: copied as they are
        inputs += [
            integers(k, dtype, *shape),
            scale if same else scales(k + 5),
            zero if same else integers(k + 9, dtype),
        ]
    got = kernel("QLinearConcat", *inputs, axis=axis)
    exact = [real(*inputs[k : k + 3]) / float(scale) for k in (2, 5, 8)]
    wanted = np.concatenate([nearest(e, dtype, int(zero)) for e in exact], axis)
    on_the_edge(got, wanted, np.concatenate(exact, axis))
    equal(got, onnxruntime_says("com.microsoft::QLinearConcat", inputs, axis=axis))
    infos = [typed(*i.shape, dtype=i.dtype) for i in inputs]
    assert infer("com.microsoft::QLinearConcat", infos, axis=axis)[0].type == typed(*got.shape, dtype=dtype).type


def test_concat_of_incomplete_triples():
    inputs = [typed(), typed(dtype=np.uint8), typed(2, dtype=np.uint8), typed()]
    with pytest.raises(ShapeError, match="takes a tensor, a scale and a zero point each; there are 2"):
        infer("com.microsoft::QLinearConcat", inputs, axis=0)


# ---- of one


UNARY = {
    "QLinearSigmoid": (lambda r: 1 / (1 + np.exp(-r)), {}),
    "QLinearLeakyRelu": (lambda r: np.where(r < 0, r * float(np.float32(0.3)), r), {"alpha": 0.3}),
}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("seed", range(4))
def test_unary(op, seed, dtype):
    function, attrs = UNARY[op]
    y_scale = one(1 / 256) if op == "QLinearSigmoid" else scales(seed + 1)
    inputs = [None, scales(seed), integers(seed + 2, dtype), y_scale, integers(seed + 3, dtype)]
    for shape in ((), (0, 3), (5, 7), (40, 50)):
        inputs[0] = integers(seed, dtype, *shape)
        got = kernel(op, *inputs, **attrs)
        exact = np.asarray(function(real(inputs[0], inputs[1], inputs[2])) / float(y_scale))
        on_the_edge(got, nearest(exact, dtype, int(inputs[4])), exact)
        on_the_edge(got, onnxruntime_says(f"com.microsoft::{op}", inputs, **attrs), exact)


@pytest.mark.parametrize("op", UNARY)
def test_the_table_gives_the_same_answers(op, monkeypatch):
    inputs = [integers(1, np.int8, 256), scales(2), one(3, np.int8), one(0.01), None]
    computed = kernel(op, *inputs)
    monkeypatch.setattr(module, "TABLE", 0)
    equal(kernel(op, *inputs), computed)
    equal(kernel(op, inputs[0][::-1].reshape(16, 16).T, *inputs[1:]), computed[::-1].reshape(16, 16).T)


def softmax(r, axis):
    e = np.exp(r - r.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def runtime_softmax(inputs, version, axis):
    """The operator's attribute ``opset`` has the name of a parameter of ``onnxruntime_says``."""
    return onnxruntime_says("com.microsoft::QLinearSoftmax", inputs, axis=axis, more={"opset": version})


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("seed", range(3))
def test_softmax(axis, seed, dtype):
    x, scale, zero = integers(seed, dtype, 6, 5, 40), scales(seed), integers(seed + 1, dtype)
    inputs = [x, scale, zero, one(1 / 256), one(np.iinfo(dtype).min, dtype)]
    exact = softmax(real(x, scale, zero), axis) * 256
    got = kernel("QLinearSoftmax", *inputs, opset=13, axis=axis)
    on_the_edge(got, nearest(exact, dtype, int(inputs[4])), exact)
    on_the_edge(got, runtime_softmax(inputs, 13, axis), exact)
    old = kernel("QLinearSoftmax", *inputs, opset=12, axis=axis)
    at = axis % 3
    flat = real(x, scale, zero).reshape(int(np.prod(x.shape[:at])), -1)
    exact = softmax(flat, 1).reshape(x.shape) * 256
    on_the_edge(old, nearest(exact, dtype, int(inputs[4])), exact)
    on_the_edge(old, runtime_softmax(inputs, 12, axis), exact)


def test_where_onnxruntime_rounds_one_over_the_scale_down():
    """Its answers are those of the next whole number of steps in 1, where there is no whole one."""
    x, scale, zero = integers(1, np.uint8, 8, 3), one(0.01), one(7, np.uint8)
    inputs = [x, scale, zero, one(1 / 200.9), one(0, np.uint8)]
    probabilities = softmax(real(x, scale, zero), -1)
    exact = probabilities / float(inputs[3])
    got, theirs = kernel("QLinearSoftmax", *inputs, opset=13), runtime_softmax(inputs, 13, -1)
    on_the_edge(got, nearest(exact, np.uint8), exact)
    on_the_edge(theirs, nearest(probabilities * 200, np.uint8), probabilities * 200)
    assert (got != theirs).any()


def test_softmax_saturates():
    x, zero = np.array([[-128, 127]], np.int8), one(0, np.int8)
    assert kernel("QLinearSoftmax", x, one(1), zero, one(1 / 256), one(-128, np.int8), opset=13).tolist() == [
        [-128, 127]
    ]
    assert kernel("QLinearSoftmax", x, one(1), zero, one(1 / 256), zero, opset=13).tolist() == [[0, 127]]


# ---- faults


def test_parameters_are_single():
    x, zero = np.zeros(3, np.uint8), one(0, np.uint8)
    with pytest.raises(RunError, match=r"a scale must be one element, its shape is \[2\]"):
        kernel("QLinearSigmoid", x, np.ones(2, np.float32), zero, one(1), zero)
    with pytest.raises(RunError, match=r"a zero point must be one element, its shape is \[3\]"):
        kernel("QLinearAdd", x, one(1), x, x, one(1), zero, one(1), zero)


def test_types_must_agree():
    u, s = typed(3, dtype=np.uint8), typed(3, dtype=np.int8)
    with pytest.raises(ShapeError, match="different dtypes: uint8, int8"):
        infer("com.microsoft::QLinearAdd", [u, typed(), None, s, typed(), None, typed()])
    with pytest.raises(ShapeError, match="different dtypes: uint8, int8"):
        infer("com.microsoft::QLinearSigmoid", [u, typed(), None, typed(), typed(dtype=np.int8)])


def test_unknown_shapes():
    unknown = type(typed())(None)
    assert shape_of(infer("com.microsoft::QLinearSoftmax", [unknown] * 5, opset=13)[0]) == "[...]"
    assert shape_of(infer("com.microsoft::QLinearAdd", [unknown] * 8)[0]) == "[...]"
