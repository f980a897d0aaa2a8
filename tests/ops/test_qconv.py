"""Quantised convolution against whole sums and against onnxruntime; channels last against channels first."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import qconv as module
from fuse.ops.conv import conv
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import close, normal
from tests.ops.quantised import equal, integers, kernel, nearest, one, onnxruntime_says, scales
from tests.ops.test_conv import direct


def test_there_are_cases():
    assert len(node_cases("ConvInteger")) == 2
    assert len(node_cases("QLinearConv")) == 1


@pytest.mark.parametrize("case", node_cases("ConvInteger", "QLinearConv"))
def test_onnx_cases(case):
    check_case(case, exact=True)


PLANS = {
    "plain": ((2, 6, 9, 8), (4, 6, 3, 3), {"pads": [1, 1, 1, 1]}),
    "depthwise": ((1, 6, 9, 8), (6, 1, 3, 3), {"group": 6, "strides": [2, 2], "pads": [1, 0, 1, 2]}),
    "pointwise in groups": ((2, 8, 5, 5), (6, 4, 1, 1), {"group": 2}),
    "one axis": ((1, 3, 11), (4, 3, 4), {"dilations": [2]}),
    "volume": ((1, 3, 5, 6, 4), (2, 3, 2, 2, 2), {"auto_pad": "SAME_UPPER"}),
    "long sums": ((1, 64, 6, 6), (8, 64, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
}
TYPES = [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)]


def name(types):
    return f"{types[0].__name__} by {types[1].__name__}"


# ---- exact sums


def exact(x, w, x_zero=0, w_zero=0, **attrs):
    """The definition in Python's integers, wrapped to 32 bits."""
    whole = direct(x.astype(np.int64) - x_zero, w.astype(np.int64) - w_zero, **attrs)
    return np.asarray((whole + 2**31) % 2**32 - 2**31).astype(np.int32)


@pytest.mark.parametrize("types", [*TYPES, (np.int8, np.uint8)], ids=name)
@pytest.mark.parametrize("plan", ["plain", "depthwise", "pointwise in groups", "one axis"])
def test_sums_are_exact_over_the_whole_range(types, plan):
    shape, weights, attrs = PLANS[plan]
    x, w = integers(1, types[0], *shape), integers(2, types[1], *weights)
    equal(kernel("ConvInteger", x, w, **attrs), exact(x, w, **attrs))
    x_zero, w_zero = integers(3, types[0]), integers(4, types[1], weights[0])
    got = kernel("ConvInteger", x, w, x_zero, w_zero, **attrs)
    w_origin = w_zero.astype(np.int64).reshape(-1, *(1,) * (len(weights) - 1))
    equal(got, exact(x, w, int(x_zero), w_origin, **attrs))


@pytest.mark.parametrize("parts", [1, 2, 3, 0])
@pytest.mark.parametrize("plan", ["plain", "depthwise", "pointwise in groups"])
def test_every_way_to_add_gives_the_same_sums(parts, plan, monkeypatch):
    monkeypatch.setattr(module, "_parts", lambda weights, largest: parts)
    shape, weights, attrs = PLANS[plan]
    x, w = integers(1, np.uint8, *shape), integers(2, np.int8, *weights)
    equal(kernel("ConvInteger", x, w, one(7, np.uint8), **attrs), exact(x, w, 7, **attrs))


@pytest.mark.parametrize("channels", [1, 29, 300, 1200])
def test_the_largest_sums(channels):
    x, w = np.full((1, channels, 3, 3), 255, np.uint8), np.full((2, channels, 3, 3), 255, np.uint8)
    wanted = (channels * 9 * 255 * 255 + 2**31) % 2**32 - 2**31
    assert kernel("ConvInteger", x, w).reshape(-1).tolist() == [wanted] * 2
    assert kernel("ConvInteger", x, w, one(255, np.uint8)).reshape(-1).tolist() == [0] * 2


def test_parts_are_as_few_as_float32_holds():
    few = np.ones((4, 64, 3, 3), np.float32)
    assert module._parts(few, 255) == 1
    assert module._parts(few * 127, 255) == 2
    assert module._parts(np.full((1, 1, 300), 255, np.float32), 255) == 0
    assert module._parts(np.zeros((0, 3, 1, 1), np.float32), 255) == 1


def test_padding_is_the_zero_point():
    x, w = np.full((1, 1, 2), 9, np.uint8), np.ones((1, 1, 3), np.int8)
    assert kernel("ConvInteger", x, w, one(9, np.uint8), pads=[1, 1]).tolist() == [[[0, 0]]]
    assert kernel("ConvInteger", x, w, one(5, np.uint8), pads=[1, 1]).tolist() == [[[8, 8]]]


@pytest.mark.parametrize("types", [*TYPES, (np.int8, np.uint8)], ids=name)
@pytest.mark.parametrize("plan", PLANS)
def test_conv_integer_as_onnxruntime_has_it(types, plan):
    shape, weights, attrs = PLANS[plan]
    inputs = [
        integers(1, types[0], *shape), integers(2, types[1], *weights, small=True), integers(3, types[0]),
        integers(4, types[1], small=True),
    ]  # fmt: skip
    equal(kernel("ConvInteger", *inputs, **attrs), onnxruntime_says("ConvInteger", inputs, **attrs))


# ---- QLinearConv


def quantised_inputs(types, shape, weights, channels, bias):
    per = (weights[0],) if channels else ()
    w_zero = integers(4, types[1], *per, small=True) if types[1] == np.uint8 else np.zeros(per, types[1])
    inputs = [
        integers(1, types[0], *shape), scales(2), integers(3, types[0]), integers(5, types[1], *weights, small=True),
        scales(6, *per), w_zero, one(0.06 * math.prod(weights[1:]) ** 0.5), one(3, types[0]),
    ]  # fmt: skip
    return [*inputs, integers(7, np.int16, weights[0]).astype(np.int32)] if bias else inputs


@pytest.mark.parametrize("types", TYPES, ids=name)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("channels", [False, True], ids=["one scale", "a scale a channel"])
def test_qlinear_conv_as_onnxruntime_has_it(types, plan, channels):
    shape, weights, attrs = PLANS[plan]
    inputs = quantised_inputs(types, shape, weights, channels, channels)
    seen = []
    for y_scale in (0.002, 0.06, 0.3, 2):
        inputs[6] = one(y_scale * math.prod(weights[1:]) ** 0.5)
        seen.append(kernel("QLinearConv", *inputs, **attrs))
        equal(seen[-1], onnxruntime_says("QLinearConv", inputs, **attrs))
    assert len(np.unique(seen)) > 20
    assert np.isin(seen[0], (np.iinfo(types[0]).min, np.iinfo(types[0]).max)).mean() > 0.5


@pytest.mark.parametrize("types", TYPES, ids=name)
@pytest.mark.parametrize("plan", PLANS)
def test_channels_last_as_onnxruntime_has_it(types, plan):
    shape, weights, attrs = PLANS[plan]
    inputs = quantised_inputs(types, shape, weights, True, True)
    y = kernel("com.microsoft::QLinearConv", *inputs, **attrs)
    equal(y, kernel("QLinearConv", *inputs, **attrs))
    inputs[0] = np.ascontiguousarray(np.moveaxis(inputs[0], 1, -1))
    turned = kernel("com.microsoft::QLinearConv", *inputs, channels_last=1, **attrs)
    equal(turned, np.moveaxis(y, 1, -1))
    assert turned.flags.c_contiguous
    equal(turned, onnxruntime_says("com.microsoft::QLinearConv", inputs, channels_last=1, **attrs))


def test_qlinear_conv_by_hand():
    x, w = np.array([[[3, 7, 1]]], np.uint8), np.array([[[2]], [[-1]]], np.int8)
    inputs = [x, one(0.5), one(1, np.uint8), w, np.array([1, 2], np.float32), np.array([0, 1], np.int8)]
    inputs += [one(1), one(10, np.uint8), np.array([1, 0], np.int32)]
    # sums [2*(2, 6, 0) + 1, -2*(2, 6, 0)], by 0.5 and 1: [2.5, 6.5, 0.5] and [-4, -12, 0]
    assert kernel("QLinearConv", *inputs).tolist() == [[[12, 16, 10], [6, 0, 10]]]


def test_the_sums_are_scaled_in_float32():
    shape, weights, attrs = PLANS["plain"]
    inputs = quantised_inputs((np.uint8, np.int8), shape, weights, True, True)
    whole = exact(inputs[0], inputs[3], int(inputs[2]), **attrs) + inputs[8].reshape(-1, 1, 1)
    factor = (inputs[1] * inputs[4] / inputs[6]).reshape(-1, 1, 1)
    wanted = nearest(whole.astype(np.float32) * factor, np.uint8, 3)
    equal(kernel("QLinearConv", *inputs, **attrs), wanted)


# ---- channels last in floating point


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nhwc_conv_is_conv_with_its_axes_turned(plan, dtype):
    shape, weights, attrs = PLANS[plan]
    x, w, b = normal(1, *shape, dtype=dtype), normal(2, *weights, dtype=dtype), normal(3, weights[0], dtype=dtype)
    wanted = conv(x, w, b, **attrs)
    turned = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    equal(kernel("NhwcConv", turned, np.moveaxis(w, 1, -1), b, **attrs), np.moveaxis(wanted, 1, -1))
    z = normal(4, *wanted.shape, dtype=dtype)
    y = kernel("NhwcFusedConv", turned, w, b, np.moveaxis(z, 1, -1), activation="Relu", **attrs)
    assert y.flags.c_contiguous
    close(
        y, np.moveaxis(np.maximum(wanted.astype(np.float64) + z, 0), 1, -1), eps=2e-3 if dtype == np.float16 else 1e-6
    )
    clipped = kernel("NhwcFusedConv", turned, w, activation="Clip", activation_params=(-1.0, 2.0), **attrs)
    close(clipped, np.moveaxis(np.clip(conv(x, w, **attrs), -1, 2), 1, -1), eps=1e-6)


# ---- inference and faults


def test_inference():
    x, w = typed("n", 3, "h", "w", dtype=np.uint8), typed(8, 3, 3, 3, dtype=np.int8)
    scale, zero = typed(), typed(dtype=np.int8)
    info = infer("ConvInteger", [x, w], pads=(1, 1, 1, 1))[0]
    assert info.dtype == np.int32
    assert shape_of(info) == "[n, 8, h, w]"
    inputs = [x, scale, zero, w, scale, zero, scale, zero]
    info = infer("QLinearConv", inputs, strides=(2, 2), auto_pad="VALID")[0]
    assert info.dtype == np.int8
    assert shape_of(info) == "[n, 8, floor((h + 1)/(2)) - 1, floor((w + 1)/(2)) - 1]"
    inputs[0] = typed("n", "h", "w", 3, dtype=np.uint8)
    info = infer("com.microsoft::QLinearConv", inputs, channels_last=1, pads=(1, 1, 1, 1))[0]
    assert shape_of(info) == "[n, h, w, 8]"
    floats = [typed("n", "h", "w", 3), typed(8, 3, 3, 3)]
    assert shape_of(infer("com.microsoft::NhwcFusedConv", floats, activation="Relu")[0]) == "[n, h - 2, w - 2, 8]"
    floats[1] = typed(8, 5, 5, 3)
    assert shape_of(infer("com.microsoft::NhwcConv", floats)[0]) == "[n, h - 4, w - 4, 8]"


@pytest.mark.parametrize(
    ("x", "w", "attrs", "text"),
    [
        ((1, 6, 5, 5), (2, 4, 3, 3), {}, "the input has 6 channels but the weights take 4 (4 x group 1)"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"group": 2}, "group 2 does not divide the 3 output channels"),
        ((1, 3, 2, 5), (2, 3, 3, 3), {}, "the window spans 3 positions but the padded input has 2"),
    ],
)
def test_faults_are_those_of_conv(x, w, attrs, text, monkeypatch):
    with pytest.raises(ShapeError) as caught:
        infer("ConvInteger", [typed(*x, dtype=np.uint8), typed(*w, dtype=np.int8)], **attrs)
    assert caught.value.what == text
    for parts in (1, 2, 0):
        monkeypatch.setattr(module, "_parts", lambda weights, largest, n=parts: n)
        with pytest.raises(RunError) as failed:
            kernel("ConvInteger", np.zeros(x, np.uint8), np.zeros(w, np.int8), **attrs)
        assert failed.value.what == text


def test_parameters_that_do_not_fit():
    x, w = np.zeros((1, 2, 3), np.uint8), np.zeros((4, 2, 1), np.int8)
    with pytest.raises(
        RunError, match=r"the zero point of w \[2\] is neither one nor one an output channel of \[4, 2, 1\]"
    ):
        kernel("ConvInteger", x, w, one(0, np.uint8), np.zeros(2, np.int8))
    with pytest.raises(RunError, match=r"the zero point of x must be one element, its shape is \[2\]"):
        kernel("ConvInteger", x, w, np.zeros(2, np.uint8))
    zero = one(0, np.uint8)
    with pytest.raises(RunError, match=r"the bias is \[3\] for 4 output channels"):
        kernel("QLinearConv", x, one(1), zero, w, one(1), one(0, np.int8), one(1), zero, np.zeros(3, np.int32))


@pytest.mark.parametrize(("x", "w"), [((0, 2, 4), (3, 2, 2)), ((1, 2, 4), (0, 2, 2)), ((1, 0, 4), (3, 0, 2))])
def test_empty(x, w):
    got = kernel("ConvInteger", np.ones(x, np.uint8), np.ones(w, np.int8))
    equal(got, np.zeros((x[0], w[0], 3), np.int32))
