"""Pooling against the definition, window by window, and against onnxruntime."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.pool import average_pool, global_average_pool, global_lp_pool, global_max_pool, lp_pool, max_pool
from tests.ops.cases import check_case, infer, kernel, known, node_cases, same, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says

NAN, INF = np.nan, np.inf
ROUNDED = "test_averagepool_2d_ceil_last_window_starts_on_pad"  # its answers have four digits; see below


@pytest.mark.parametrize(
    "case",
    node_cases("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "MaxUnpool"),
)
def test_onnx_cases(case):
    if case.name != ROUNDED:
        check_case(case, exact=True)


def test_average_of_a_window_that_ends_in_its_padding():
    x = np.array([[[[0.8580, 0.0786], [0.2692, 0.1537]]]], np.float32)
    y = average_pool(x, kernel_shape=[3, 3], strides=[3, 3], pads=[1] * 4, ceil_mode=1, count_include_pad=1)
    close(y, np.array([[[[(0.8580 + 0.0786 + 0.2692 + 0.1537) / 9]]]]))


def windows(x, kernel, strides=None, dilations=None, pads=None, ceil_mode=0):
    """For each output: its place, the elements that its window holds of ``x``, and how many positions of padding."""
    n = len(kernel)
    strides, dilations, pads = strides or [1] * n, dilations or [1] * n, pads or [0] * 2 * n
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    starts = []
    for size, e, t, p, q in zip(x.shape[2:], extents, strides, pads[:n], pads[n:], strict=True):
        places = range(-p, size, t)
        starts.append([s for s in places if s + e <= size + q or (ceil_mode and s - t + e < size + q)])
    shape = (*x.shape[:2], *map(len, starts))
    found = []
    for place in itertools.product(*map(range, shape)):
        elements, padding = [], 0
        for tap in itertools.product(*map(range, kernel)):
            at = [s[i] + t * d for s, i, t, d in zip(starts, place[2:], tap, dilations, strict=True)]
            inside = [0 <= a < size for a, size in zip(at, x.shape[2:], strict=True)]
            framed = [-p <= a < s + q for a, s, p, q in zip(at, x.shape[2:], pads[:n], pads[n:], strict=True)]
            if all(inside):
                elements.append((place[:2] + tuple(at), x[place[:2] + tuple(at)]))
            elif all(framed):
                padding += 1
        found.append((place, elements, padding))
    return shape, found


def plans():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 4))
        k, s, d = rng.integers(1, 4, n), rng.integers(1, 4, n), rng.integers(1, 3, n)
        pads = np.minimum(rng.integers(0, 3, 2 * n), np.tile((k - 1) // 2 if seed % 2 else k - 1, 2))
        sizes = np.maximum((k - 1) * d + 1 - pads[:n] - pads[n:], 1) + rng.integers(0, 5, n)
        attrs = {"strides": s.tolist(), "dilations": d.tolist(), "pads": pads.tolist(), "ceil_mode": seed % 3 % 2}
        x = rng.standard_normal((*rng.integers(1, 3, 2), *sizes)).astype(np.float32).round(1)
        yield pytest.param(x, k.tolist(), attrs, id=str(seed))


@pytest.mark.parametrize(("x", "k", "attrs"), list(plans()))
def test_random_pools(x, k, attrs):
    shape, found = windows(x, k, **attrs)
    largest, places = np.full(shape, -INF), np.full(shape, -1)
    mean, padded_mean, norm = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    for place, elements, padding in found:
        numbers = [float(v) for _, v in elements]
        if elements:
            largest[place] = max(numbers)
            places[place] = np.ravel_multi_index(elements[int(np.argmax(numbers))][0], x.shape)
            mean[place] = sum(numbers) / len(numbers)
        padded_mean[place] = sum(numbers) / max(len(numbers) + padding, 1)
        norm[place] = sum(abs(v) ** 3 for v in numbers) ** (1 / 3)
    y, index = max_pool(x, kernel_shape=k, n_outputs=2, **attrs)
    assert y.tolist() == largest.astype(np.float32).tolist()
    assert index.tolist() == places.tolist()
    assert max_pool(x, kernel_shape=k, **attrs).tolist() == y.tolist()
    close(average_pool(x, kernel_shape=k, **attrs), mean)
    close(average_pool(x, kernel_shape=k, count_include_pad=1, **attrs), padded_mean)
    close(lp_pool(x, kernel_shape=k, p=3, **attrs), norm)
    for op in ("MaxPool", "AveragePool", "LpPool"):
        assert infer(op, [typed(*x.shape)], kernel_shape=k, **attrs)[0].shape == shape


@pytest.mark.parametrize("auto", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("ceil", [0, 1])
def test_auto_pad_as_onnxruntime_has_it(auto, ceil):
    # With VALID, ONNX's text lets ceil_mode have no effect; its shape inference and onnxruntime round up, as here.
    x = normal(3, 1, 2, 6, 7)
    attrs = {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": auto, "ceil_mode": ceil}
    same(max_pool(x, **attrs), onnxruntime_says("MaxPool", [x], **attrs))
    for counted in (0, 1):
        wanted = onnxruntime_says("AveragePool", [x], count_include_pad=counted, **attrs)
        same(average_pool(x, count_include_pad=counted, **attrs), wanted)


@pytest.mark.parametrize("counted", [0, 1])
def test_average_counts_as_onnxruntime_does(counted):
    x = normal(4, 2, 2, 5, 6)
    attrs = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 2], "ceil_mode": 1}
    same(
        average_pool(x, count_include_pad=counted, **attrs),
        onnxruntime_says("AveragePool", [x], count_include_pad=counted, **attrs),
    )


def test_places_by_hand():
    x = np.array([[[[1, 5, 2], [5, 0, 3]], [[-4, -7, -9], [-8, -6, -5]]]], np.float32)
    y, places = max_pool(x, kernel_shape=[2, 2], n_outputs=2)
    assert y.tolist() == [[[[5, 5]], [[-4, -5]]]]
    assert places.tolist() == [[[[1, 1]], [[6, 11]]]]  # of the two fives, the first in row-major order
    _, places = max_pool(x, kernel_shape=[2, 2], storage_order=1, n_outputs=2)
    assert places.tolist() == [[[[2, 2]], [[6, 11]]]]
    assert places.dtype == np.int64


@pytest.mark.parametrize("order", [0, 1])
def test_places_as_onnxruntime_has_them(order):
    x = np.random.default_rng(0).permutation(2 * 3 * 4 * 5 * 3).astype(np.float32).reshape(2, 3, 4, 5, 3)
    attrs = {"kernel_shape": [2, 3, 2], "strides": [1, 2, 1], "pads": [1, 1, 0, 0, 1, 1], "storage_order": order}
    for got, wanted in zip(
        max_pool(x, n_outputs=2, **attrs), onnxruntime_says("MaxPool", [x], 2, **attrs), strict=True
    ):
        same(got, wanted)


def test_extremes_in_a_maximum():
    x = np.array([[[-INF, -INF, NAN, 1, 2, INF, -0.0]]], np.float32)
    y, places = max_pool(x, kernel_shape=[2], pads=[1, 1], n_outputs=2)
    assert str(y.tolist()) == "[[[-inf, -inf, nan, nan, 2.0, inf, inf, -0.0]]]"
    assert places.tolist() == [[[0, 0, 2, 2, 4, 5, 5, 6]]]  # a minus infinity wins over padding, NaN over numbers
    assert str(max_pool(x, kernel_shape=[2], pads=[1, 1]).tolist()) == str(y.tolist())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float16, ml_dtypes.bfloat16, np.float64])
def test_maximum_in_every_dtype(dtype):
    lowest = -128 if dtype == np.int8 else 0
    x = np.array([[[lowest, lowest, 7, 3]]]).astype(dtype)
    for n_outputs in (1, 2):
        got = max_pool(x, kernel_shape=[2], pads=[1, 1], n_outputs=n_outputs)
        y = got[0] if n_outputs == 2 else got
        assert y.dtype == dtype
        assert y.astype(int).tolist() == [[[lowest, lowest, 7, 7, 3]]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_means_of_half_precision_are_summed_in_float32(dtype):
    x = np.full((1, 1, 3000), 3, dtype)
    for y in (average_pool(x, kernel_shape=[3000]), global_average_pool(x)):
        assert y.dtype == dtype
        assert y.astype(float).tolist() == [[[3.0]]]
    wanted = np.array(3 * 3000**0.5).astype(dtype)
    assert lp_pool(x, kernel_shape=[3000])[0, 0, 0] == wanted == global_lp_pool(x)[0, 0, 0]


def test_a_window_of_padding_alone_has_mean_zero():
    # One input, dilation 2: both positions of the window are padding.  onnxruntime gives 0 as well.
    x = np.array([[[5]]], np.float32)
    assert average_pool(x, kernel_shape=[2], dilations=[2], pads=[1, 1]).tolist() == [[[0]]]
    assert max_pool(x, kernel_shape=[2], dilations=[2], pads=[1, 1]).tolist() == [[[-INF]]]
    assert max_pool(x, kernel_shape=[2], dilations=[2], pads=[1, 1], n_outputs=2)[1].tolist() == [[[-1]]]


def test_results_are_fresh():
    x = normal(0, 1, 2, 4)
    for y in (max_pool(x, kernel_shape=[1]), average_pool(x, kernel_shape=[1]), lp_pool(x, kernel_shape=[1])):
        assert not np.shares_memory(x, y)


@pytest.mark.parametrize("shape", [(0, 2, 4, 4), (2, 0, 4, 4), (1, 1, 0, 4)])
def test_zero_sizes(shape):
    x = np.zeros(shape, np.float32)
    wanted = (*shape[:2], *(max(s - 1, 0) for s in shape[2:]))
    for y in (
        max_pool(x, kernel_shape=[2, 2]),
        *max_pool(x, kernel_shape=[2, 2], n_outputs=2),
        average_pool(x, kernel_shape=[2, 2]),
        lp_pool(x, kernel_shape=[2, 2]),
    ):
        assert y.shape == wanted


# ---- over all of a channel


def test_global_pools():
    x = np.array([[[[1, -2], [3, 6]], [[-1, -1], [-1, -5]]]], np.float32)
    assert global_average_pool(x).tolist() == [[[[2]], [[-2]]]]
    assert global_max_pool(x).tolist() == [[[[6]], [[-1]]]]
    close(global_lp_pool(x), np.array([[[[50**0.5]], [[28**0.5]]]]))
    assert global_lp_pool(x, p=1).tolist() == [[[[12]], [[8]]]]
    close(global_lp_pool(x, p=3), np.array([[[[252 ** (1 / 3)]], [[128 ** (1 / 3)]]]]))


def test_global_pools_of_odd_inputs():
    assert global_average_pool(np.ones((2, 3), np.float32)).tolist() == np.ones((2, 3)).tolist()
    assert global_max_pool(np.zeros((1, 1, 0), np.float32)).tolist() == [[[-INF]]]
    assert np.isnan(global_max_pool(np.array([[[1, NAN]]], np.float32))).all()
    assert global_average_pool(np.zeros((0, 3, 4), np.float32)).shape == (0, 3, 1)
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        assert shape_of(infer(op, [typed("n", 3, "h", "w")])[0]) == "[n, 3, 1, 1]"
        for check in (lambda op=op: infer(op, [typed(3)]), lambda op=op: kernel(op, np.ones(3, np.float32))):
            with pytest.raises(ShapeError, match="needs batch and channel, its rank is 1"):
                check()


# ---- MaxUnpool


def test_unpool_undoes_a_pool():
    x = normal(5, 2, 3, 6, 4)
    y, places = max_pool(x, kernel_shape=[2, 2], strides=[2, 2], n_outputs=2)
    back = kernel("MaxUnpool", y, places, kernel_shape=[2, 2], strides=[2, 2])
    assert back.shape == x.shape
    assert (back[back != 0] == x[back != 0]).all()
    assert (back != 0).sum() == y.size
    assert max_pool(np.where(back == 0, -INF, back), kernel_shape=[2, 2], strides=[2, 2]).tolist() == y.tolist()


def test_unpool_checks_its_places():
    x = np.ones((1, 1, 1), np.float32)
    for place in (2, -1):
        with pytest.raises(RunError, match=f"place {place} is outside the 2 elements"):
            kernel("MaxUnpool", x, np.full((1, 1, 1), place), kernel_shape=[2])
    with pytest.raises(ShapeError, match=r"1\] elements but \[1, 1, 2\] places"):
        kernel("MaxUnpool", x, np.zeros((1, 1, 2), np.int64), kernel_shape=[2])
    with pytest.raises(ShapeError, match="pads 2 and 1 leave an axis of -1"):
        kernel("MaxUnpool", x, np.zeros((1, 1, 1), np.int64), kernel_shape=[2], pads=[2, 1])
    with pytest.raises(ShapeError, match=r"output_shape \[1, 1, 1\] is smaller than \[1, 1, 2\]"):
        kernel("MaxUnpool", x, np.zeros((1, 1, 1), np.int64), np.array([1, 1, 1]), kernel_shape=[2])


# ---- inference


@pytest.mark.parametrize(
    ("op", "x", "attrs", "wanted"),
    [
        ("MaxPool", typed("n", 8, "h"), {"kernel_shape": (2,), "strides": (2,)}, "[n, 8, floor((h)/(2))]"),
        ("MaxPool", typed("n", 8, "h"), {"kernel_shape": (3,), "pads": (1, 1)}, "[n, 8, h]"),
        ("AveragePool", typed(1, 8, None), {"kernel_shape": (2,)}, "[1, 8, ?]"),
        ("LpPool", typed(1, 8, 9), {"kernel_shape": (2,), "strides": (2,), "ceil_mode": 1}, "[1, 8, 5]"),
        ("MaxUnpool", typed("n", 8, "h"), {"kernel_shape": (2,), "strides": (2,)}, "[n, 8, 2*h]"),
    ],
)
def test_inferred_shapes(op, x, attrs, wanted):
    inputs = [x, typed(*x.shape, dtype=np.int64)] if op == "MaxUnpool" else [x]
    assert shape_of(infer(op, inputs, **attrs)[0]) == wanted


def test_inferred_unpool_of_a_given_shape():
    inputs = [typed(1, 1, 2), typed(1, 1, 2, dtype=np.int64), known(1, 1, "m")]
    assert shape_of(infer("MaxUnpool", inputs, kernel_shape=(2,))[0]) == "[1, 1, m]"


def test_inferred_places():
    assert infer("MaxPool", [typed(1, 2, 5)], outputs=2, kernel_shape=(2,))[1] == typed(1, 2, 4, dtype=np.int64)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("attrs", "text"),
    [
        ({"kernel_shape": (2,)}, "kernel is 1-D but the input is 4-D"),
        ({"kernel_shape": (2, 2), "strides": (0, 1)}, "strides [0, 1] must be positive"),
        ({"kernel_shape": (2, 2), "pads": (0, 0, 0, -1)}, "pads [0, 0, 0, -1] must not be negative"),
        ({"kernel_shape": (9, 2)}, "the window spans 9 positions but the padded input has 4"),
        ({"kernel_shape": (2**40, 2), "auto_pad": "SAME_UPPER"}, f"kernel_shape [{2**40}, 2] is beyond any tensor"),
        ({"kernel_shape": (2, 2), "auto_pad": "same"}, "auto_pad 'same' is not one of"),
    ],
)
def test_faults_are_refused_alike_by_inference_and_kernel(op, attrs, text):
    for check in (lambda: infer(op, [typed(1, 1, 4, 4)], **attrs), lambda: kernel(op, np.ones((1, 1, 4, 4)), **attrs)):
        with pytest.raises(ShapeError) as caught:
            check()
        assert caught.value.what.startswith(text)
