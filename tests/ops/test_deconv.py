"""Transposed convolution against a direct sum in float64 and against onnxruntime."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ops import deconv as module
from fuse.ops.deconv import conv_transpose
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says


@pytest.mark.parametrize("case", node_cases("ConvTranspose"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def direct(x, w, b=None, strides=None, dilations=None, pads=None, output_padding=None, group=1):
    """The definition: each input element adds its multiple of the kernel; then the padding is cut off."""
    n = x.ndim - 2
    strides, dilations, pads = strides or (1,) * n, dilations or (1,) * n, pads or (0,) * 2 * n
    more = output_padding or (0,) * n
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    full = [(s - 1) * t + e + m for s, t, e, m in zip(x.shape[2:], strides, extents, more, strict=True)]
    y = np.zeros((x.shape[0], w.shape[1] * group, *full))
    for place in itertools.product(*map(range, x.shape)):
        image, channel, *at = place
        first = channel // (x.shape[1] // group) * w.shape[1]
        where = [slice(a * t, a * t + e, d) for a, t, e, d in zip(at, strides, extents, dilations, strict=True)]
        y[(image, slice(first, first + w.shape[1]), *where)] += float(x[place]) * w[channel].astype(np.float64)
    y = y[(slice(None), slice(None), *(slice(p, f - q) for p, q, f in zip(pads[:n], pads[n:], full, strict=True)))]
    return y if b is None else y + b.astype(np.float64).reshape(-1, *(1,) * n)


@pytest.mark.parametrize("seed", range(80))
def test_random_transposed_convolutions(seed, monkeypatch):
    if seed % 4 == 0:
        monkeypatch.setattr(module, "BAND_BYTES", 1)
    rng = np.random.default_rng(seed)
    n, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    width, per = rng.integers(1, 4, 2)
    kernel, strides, dilations = rng.integers(1, 4, n), rng.integers(1, 4, n), rng.integers(1, 3, n)
    sizes, more = rng.integers(1, 5, n), np.minimum(rng.integers(0, 3, n), np.maximum(strides, dilations) - 1)
    pads = np.minimum(rng.integers(0, 2, 2 * n), np.tile(((kernel - 1) * dilations + (sizes - 1) * strides) // 2, 2))
    x = rng.standard_normal((int(rng.integers(1, 3)), width * group, *sizes)).astype(np.float32)
    w = rng.standard_normal((width * group, per, *kernel)).astype(np.float32)
    b = rng.standard_normal(per * group).astype(np.float32) if seed % 2 else None
    lists = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": more}
    attrs = {name: values.tolist() for name, values in lists.items()}
    y = conv_transpose(x, w, b, group=group, **attrs)
    assert y.flags.c_contiguous
    assert y.flags.writeable
    close(y, direct(x, w, b, group=group, **attrs))
    assert infer("ConvTranspose", [typed(*x.shape), typed(*w.shape)], group=group, **attrs)[0].shape == y.shape


def test_hand_computed():
    x = np.array([[[1, -2]]], np.float32)
    w = np.array([[[1, 2, 3]]], np.float32)
    assert conv_transpose(x, w, strides=[2]).tolist() == [[[1, 2, 1, -4, -6]]]
    assert conv_transpose(x, w, strides=[2], pads=[1, 1], output_padding=[1]).tolist() == [[[2, 1, -4, -6]]]
    assert conv_transpose(x, w, strides=[2], output_padding=[1]).tolist() == [[[1, 2, 1, -4, -6, 0]]]
    assert conv_transpose(x, w, strides=[2], output_shape=[4]).tolist() == [[[2, 1, -4, -6]]]
    assert conv_transpose(x, w, strides=[2], output_shape=[4], auto_pad="SAME_UPPER").tolist() == [[[1, 2, 1, -4]]]
    assert conv_transpose(x, w, strides=[2], output_shape=[7]).tolist() == [[[1, 2, 1, -4, -6, 0, 0]]]


@pytest.mark.parametrize("auto", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("attrs", [{}, {"output_shape": [8, 7]}, {"output_padding": [1, 0]}])
def test_padding_as_onnxruntime_has_it(auto, attrs):
    x, w = normal(1, 2, 4, 4, 3), normal(2, 4, 3, 3, 4)
    attrs = {"auto_pad": auto, "strides": [2, 2], "group": 2, **attrs}
    close(conv_transpose(x, w, **attrs), onnxruntime_says("ConvTranspose", [x, w], **attrs).astype(np.float64))


def test_same_keeps_size_times_stride_where_the_kernel_is_smaller_than_the_stride():
    # ONNX: output = input * stride.  onnxruntime gives 4 outputs here.
    x, w = np.ones((1, 1, 2), np.float32), np.full((1, 1, 1), 5, np.float32)
    assert conv_transpose(x, w, strides=[3], auto_pad="SAME_UPPER").tolist() == [[[5, 0, 0, 5, 0, 0]]]


def test_half_precision_is_summed_in_float32():
    ones = np.ones((3000, 1, 1), np.float16)
    assert conv_transpose(ones.reshape(1, 3000, 1), ones).tolist() == [[[3000]]]


@pytest.mark.parametrize(
    ("shape", "weights", "wanted"),
    [((0, 2, 3), (2, 4, 3), (0, 4, 5)), ((1, 0, 3), (0, 4, 3), (1, 4, 5)), ((1, 2, 0), (2, 4, 1), (1, 4, 0))],
)
def test_zero_sizes(shape, weights, wanted):
    y = conv_transpose(np.ones(shape, np.float32), np.ones(weights, np.float32), np.ones(4, np.float32))
    assert y.tolist() == np.ones(wanted).tolist()


@pytest.mark.parametrize(
    ("x", "w", "attrs", "wanted"),
    [
        (typed("n", 8, "h"), typed(8, 4, 2), {"strides": (2,)}, "[n, 4, 2*h]"),
        (typed("n", 8, "h"), typed(8, 4, 4), {"strides": (2,), "pads": (1, 1)}, "[n, 4, 2*h]"),
        (typed("n", 8, "h"), typed(8, 2, 3), {"group": 2, "output_shape": (9,)}, "[n, 4, 9]"),
        (typed(1, 8, "h"), typed(8, 4, 5), {"strides": (3,), "auto_pad": "SAME_LOWER"}, "[1, 4, 3*h]"),
        (typed(1, 8, None), typed(8, 4, "k"), {}, "[1, 4, ?]"),
    ],
)
def test_inferred_shapes(x, w, attrs, wanted):
    assert shape_of(infer("ConvTranspose", [x, w], **attrs)[0]) == wanted


@pytest.mark.parametrize(
    ("x", "w", "attrs", "text"),
    [
        ((1, 3, 4), (2, 3, 3), {}, "the input has 3 channels but the weights take 2"),
        ((1, 3, 4), (3, 3, 3), {"group": 2}, "group 2 does not divide the 3 input channels"),
        ((1, 3, 4, 4), (3, 3, 3), {}, "kernel is 1-D but the input is 4-D"),
        ((1, 3, 4), (3, 3, 3), {"output_padding": (-1,)}, "output_padding [-1] must not be negative"),
        ((1, 3, 4), (3, 3, 3), {"output_shape": (4, 4)}, "output_shape has 2 entries but the kernel is 1-D"),
        ((1, 3, 1), (3, 3, 3), {"pads": (2, 2)}, "pads 2 and 2 cut more than the 3 outputs there are"),
    ],
)
def test_faults_are_refused_alike_by_inference_and_kernel(x, w, attrs, text):
    with pytest.raises(ShapeError) as caught:
        infer("ConvTranspose", [typed(*x), typed(*w)], **attrs)
    assert caught.value.what == text
    with pytest.raises(ShapeError) as caught:
        conv_transpose(np.zeros(x, np.float32), np.zeros(w, np.float32), **attrs)
    assert caught.value.what == text
