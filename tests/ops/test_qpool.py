"""Means and maxima of 8-bit images: by their definition in float64, and bit for bit as onnxruntime has them."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.pool import average_pool, max_pool
from tests.ops.cases import infer, shape_of, typed
from tests.ops.quantised import equal, integers, kernel, nearest, on_the_edge, one, onnxruntime_says, scales

KINDS = [np.uint8, np.int8]
WINDOWS = {
    "one axis": ((2, 3, 40), {"kernel_shape": [4], "strides": [3]}),
    "plain": ((2, 5, 9, 8), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "padded": ((2, 5, 9, 8), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
    "padding counts": ((2, 5, 9, 8), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    "same": ((2, 5, 9, 8), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "ceil": ((2, 5, 8, 8), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "volume": ((1, 2, 4, 5, 6), {"kernel_shape": [2, 3, 2]}),
}


def parameters(seed, dtype, same):
    """Scales and zero points of input and output; with equal scales most means lie between two steps or on one."""
    scale = scales(seed)
    return [scale, integers(seed, dtype), scale if same else scales(seed + 1), integers(seed + 2, dtype)]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("seed", range(4))
def test_average_pool(name, seed, dtype):
    shape, attrs = WINDOWS[name]
    x = integers(seed, dtype, *shape)
    inputs = [x, *parameters(seed, dtype, seed % 2)]
    got = kernel("QLinearAveragePool", *inputs, **attrs)
    equal(got, onnxruntime_says("com.microsoft::QLinearAveragePool", inputs, **attrs))
    numbers = (x.astype(np.float64) - int(inputs[2])) * float(inputs[1])
    exact = average_pool(numbers, **attrs) / float(inputs[3]) + int(inputs[4])
    on_the_edge(got, nearest(exact, dtype), exact)
    infos = [typed(*i.shape, dtype=i.dtype) for i in inputs]
    assert infer("com.microsoft::QLinearAveragePool", infos, **attrs)[0].type == typed(*got.shape, dtype=dtype).type


@pytest.mark.parametrize("name", [n for n in WINDOWS if n != "one axis"])
def test_average_pool_with_channels_last(name):
    shape, attrs = WINDOWS[name]
    inputs = [integers(1, np.uint8, *shape), *parameters(2, np.uint8, False)]
    wanted = np.moveaxis(kernel("QLinearAveragePool", *inputs, **attrs), 1, -1)
    inputs[0] = np.ascontiguousarray(np.moveaxis(inputs[0], 1, -1))
    got = kernel("QLinearAveragePool", *inputs, channels_last=1, **attrs)
    equal(got, wanted)
    assert got.flags.c_contiguous
    equal(got, onnxruntime_says("com.microsoft::QLinearAveragePool", inputs, channels_last=1, **attrs))
    infos = [typed(*i.shape, dtype=i.dtype) for i in inputs]
    info = infer("com.microsoft::QLinearAveragePool", infos, channels_last=1, **attrs)[0]
    assert info.type == typed(*got.shape, dtype=np.uint8).type


def test_what_hangs_over_the_end_is_never_counted():
    """As in AveragePool; onnxruntime divides by the whole window here."""
    x, zero = np.full((1, 1, 4), 10, np.uint8), one(0, np.uint8)
    attrs = {"kernel_shape": [3], "strides": [3], "ceil_mode": 1, "count_include_pad": 1}
    assert kernel("QLinearAveragePool", x, one(1), zero, one(1), zero, **attrs).tolist() == [[[10, 10]]]
    assert average_pool(x.astype(np.float32), **attrs).tolist() == [[[10, 10]]]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(2, 5, 7, 7), (1, 3, 40), (3, 9, 2, 3, 4), (1, 1, 300, 300)])
def test_global_average_pool(shape, seed, dtype):
    x = integers(seed, dtype, *shape)
    inputs = [x, *parameters(seed, dtype, seed % 2)]
    got = kernel("QLinearGlobalAveragePool", *inputs)
    equal(got, onnxruntime_says("com.microsoft::QLinearGlobalAveragePool", inputs))
    mean = x.astype(np.float64).mean(axis=tuple(range(2, x.ndim)), keepdims=True) - int(inputs[2])
    exact = mean * float(inputs[1]) / float(inputs[3])
    on_the_edge(got, nearest(exact, dtype, int(inputs[4])), exact)
    inputs[0] = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    equal(kernel("QLinearGlobalAveragePool", *inputs, channels_last=1), np.moveaxis(got, 1, -1))
    infos = [typed(*i.shape, dtype=i.dtype) for i in inputs]
    info = infer("com.microsoft::QLinearGlobalAveragePool", infos, channels_last=1)[0]
    assert info.type == typed(*np.moveaxis(got, 1, -1).shape, dtype=dtype).type


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[1], [-1, 0], []])
def test_reduce_mean(axes, keepdims):
    x, (scale, zero, y_scale, y_zero) = integers(1, np.uint8, 3, 8, 10), parameters(2, np.uint8, False)
    got = kernel("QLinearReduceMean", x, scale, zero, y_scale, y_zero, axes=axes, keepdims=keepdims)
    exact = np.mean(x.astype(np.float64), axis=tuple(axes) or None, keepdims=bool(keepdims)) - int(zero)
    exact = np.asarray(exact * float(scale) / float(y_scale))
    on_the_edge(got, nearest(exact, np.uint8, int(y_zero)), exact)
    infos = [typed(3, 8, 10, dtype=np.uint8), typed(), None, typed()]
    info = infer("com.microsoft::QLinearReduceMean", infos, axes=tuple(axes), keepdims=keepdims)[0]
    assert info.type == typed(*got.shape, dtype=np.uint8).type


@pytest.mark.parametrize("dtype", [*KINDS, np.float32])
@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 2]},
        {"kernel_shape": [2, 2], "dilations": [2, 2], "ceil_mode": 1, "strides": [3, 2]},
        {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"},
    ],
)
def test_nhwc_max_pool(attrs, dtype):
    x = integers(1, np.int8, 2, 9, 8, 5).astype(dtype)
    got = kernel("NhwcMaxPool", x, **attrs)
    equal(got, np.moveaxis(max_pool(np.moveaxis(x, -1, 1), **attrs), 1, -1))
    assert got.flags.c_contiguous
    if dtype != np.float32:
        equal(got, onnxruntime_says("com.microsoft::NhwcMaxPool", [x], **attrs))
    info = infer("com.microsoft::NhwcMaxPool", [typed(2, 9, 8, 5, dtype=dtype)], **attrs)[0]
    assert info.type == typed(*got.shape, dtype=dtype).type


def test_symbolic_sizes():
    x, scale = typed("n", "h", "w", 5, dtype=np.uint8), typed()
    assert shape_of(infer("com.microsoft::NhwcMaxPool", [x], kernel_shape=(2, 2))[0]) == "[n, h - 1, w - 1, 5]"
    info = infer("com.microsoft::QLinearAveragePool", [x, scale, None, scale], kernel_shape=(2, 2), channels_last=1)[0]
    assert shape_of(info) == "[n, h - 1, w - 1, 5]"


def test_faults():
    x, scale = typed(1, 2, 3, dtype=np.uint8), typed()
    with pytest.raises(ShapeError, match="kernel is 2-D but the input is 3-D"):
        infer("com.microsoft::QLinearAveragePool", [x, scale, None, scale], kernel_shape=(2, 2))
    with pytest.raises(RunError, match="kernel is 2-D but the input is 3-D"):
        kernel("QLinearAveragePool", np.zeros((1, 2, 3), np.uint8), one(1), None, one(1), kernel_shape=[2, 2])
    with pytest.raises(RunError, match="axis 3 is out of range for rank 3"):
        kernel("QLinearReduceMean", np.zeros((1, 2, 3), np.uint8), one(1), None, one(1), axes=[3], keepdims=1)
