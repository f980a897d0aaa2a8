"""Convolution against a direct sum in float64, by every algorithm, and the shapes and faults of inference."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ops import conv as module
from fuse.ops.conv import conv
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says


@pytest.mark.parametrize("case", node_cases("Conv"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def direct(x, w, b=None, strides=None, dilations=None, pads=None, group=1):
    """The definition: for each output, the sum over channels and kernel positions, in float64 (exact for objects)."""
    n = x.ndim - 2
    strides, dilations, pads = strides or (1,) * n, dilations or (1,) * n, pads or (0,) * 2 * n
    kind = object if x.dtype.kind in "iu" else np.float64
    padded = np.pad(x.astype(kind), [(0, 0), (0, 0), *zip(pads[:n], pads[n:], strict=True)])
    extents = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    out = [(s - e) // t + 1 for s, e, t in zip(padded.shape[2:], extents, strides, strict=True)]
    y = np.zeros((x.shape[0], w.shape[0], *out), kind)
    width, per = w.shape[1], w.shape[0] // group
    for place in itertools.product(*map(range, y.shape)):
        image, channel, *at = place
        first = channel // per * width
        where = [slice(a * t, a * t + e, d) for a, t, e, d in zip(at, strides, extents, dilations, strict=True)]
        y[place] = (padded[(image, slice(first, first + width), *where)] * w[channel].astype(kind)).sum()
    return y if b is None else y + b.astype(kind).reshape(-1, *(1,) * n)


@pytest.mark.parametrize("seed", range(120))
def test_random_convolutions(seed):
    rng = np.random.default_rng(seed)
    n, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    width, per = (1, int(rng.integers(1, 3))) if seed % 3 == 0 else rng.integers(1, 4, 2)
    kernel, strides, dilations = rng.integers(1, 4, n), rng.integers(1, 4, n), rng.integers(1, 3, n)
    pads = rng.integers(0, 3, 2 * n)
    least = np.maximum((kernel - 1) * dilations + 1 - pads[:n] - pads[n:], 1)
    sizes = least + rng.integers(0, 5, n)
    x = rng.standard_normal((int(rng.integers(1, 4)), width * group, *sizes)).astype(np.float32)
    w = rng.standard_normal((per * group, width, *kernel)).astype(np.float32)
    b = rng.standard_normal(per * group).astype(np.float32) if seed % 2 else None
    lists = {"strides": strides.tolist(), "dilations": dilations.tolist(), "pads": pads.tolist()}
    y = conv(x, w, b, group=group, **lists)
    assert y.flags.c_contiguous
    assert y.flags.writeable
    assert not np.shares_memory(y, x)
    close(y, direct(x, w, b, group=group, **lists))


PLANS = {
    "pointwise": ((1, 6, 5, 7), (4, 6, 1, 1), {}),
    "pointwise in groups": ((2, 6, 12, 12), (4, 3, 1, 1), {"group": 2}),
    "pointwise with padding": ((1, 3, 4, 4), (2, 3, 1, 1), {"pads": [1, 0, 0, 1]}),
    "pointwise with stride": ((1, 3, 5, 4), (2, 3, 1, 1), {"strides": [2, 2]}),
    "depthwise": ((2, 6, 7, 5), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    "depthwise, more outputs": ((1, 3, 9, 8), (6, 1, 3, 2), {"group": 3, "strides": [2, 3], "dilations": [2, 1]}),
    "depthwise, one axis": ((2, 4, 11), (4, 1, 3), {"group": 4, "strides": [2], "pads": [2, 0]}),
    "depthwise, stride beyond the kernel": ((1, 2, 9, 9), (2, 1, 2, 2), {"group": 2, "strides": [4, 3]}),
    "columns": ((1, 3, 9, 9), (4, 3, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
    "columns of joined images": ((5, 4, 4, 4), (3, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
    "columns in groups": ((3, 6, 6, 6), (4, 3, 3, 3), {"group": 2}),
    "columns of one output": ((2, 3, 4, 4), (5, 3, 4, 4), {}),
    "volume": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 1], "pads": [1, 0, 0, 0, 1, 1]}),
}


@pytest.mark.parametrize("tight", [False, True], ids=["whole", "in bands"])
@pytest.mark.parametrize("plan", PLANS)
def test_each_algorithm(plan, tight, monkeypatch):
    if tight:  # bands of one row, blocks of one channel
        monkeypatch.setattr(module, "BAND_BYTES", 1)
        monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    shape, weights, attrs = PLANS[plan]
    x, w, b = normal(1, *shape), normal(2, *weights), normal(3, weights[0])
    kept = x.copy(), w.copy(), b.copy()
    close(conv(x, w, b, **attrs), direct(x, w, b, **attrs))
    close(conv(x, w, **attrs), direct(x, w, **attrs))
    transposed = np.ascontiguousarray(x.swapaxes(-1, 1)).swapaxes(-1, 1)
    close(conv(transposed, w, b, **attrs), direct(x, w, b, **attrs))
    assert all(np.array_equal(a, k) for a, k in zip((x, w, b), kept, strict=True))


def test_hand_computed():
    x = np.array([[[1, -2, 3, 0, 5]]], np.float32)
    w = np.array([[[1, 0, -1]]], np.float32)
    assert conv(x, w, np.array([0.5], np.float32), pads=[1, 1]).tolist() == [[[2.5, -1.5, -1.5, -1.5, 0.5]]]


@pytest.mark.parametrize("auto", ["VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("strides", [[1, 1], [2, 3]])
def test_auto_pad_as_onnxruntime_has_it(auto, strides):
    x, w = normal(1, 2, 3, 7, 8), normal(2, 4, 3, 2, 3)
    wanted = onnxruntime_says("Conv", [x, w], auto_pad=auto, strides=strides)
    close(conv(x, w, auto_pad=auto, strides=strides), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("group", [1, 2])
def test_half_precision_is_rounded_once(dtype, group):
    x, w, b = (
        normal(1, 1, 2 * 64, 4, 4, dtype=dtype),
        normal(2, 4, 128 // group, 3, 3, dtype=dtype),
        normal(3, 4, dtype=dtype),
    )
    y = conv(x, w, b, group=group)
    assert y.dtype == dtype
    wanted = direct(x, w, b, group=group)
    spacing = np.abs(np.spacing(y)) if dtype == np.float16 else np.abs(y.astype(np.float64)) * 2.0**-7
    assert (np.abs(y.astype(np.float64) - wanted) <= 0.51 * spacing.astype(np.float64) + 1e-4).all()
    ones = np.ones((1, 3000, 1), dtype)  # a sum in half precision would stop at 2048, or at 256
    assert float(conv(ones, ones).reshape(())) == float(np.array(3000, dtype))


def test_integers_are_exact():
    x = np.array([[[2**62, 3, -5, 2**40]]], np.int64)
    w = np.array([[[3, 7]]], np.int64)
    wanted = [(int(v) + 2**63) % 2**64 - 2**63 for v in direct(x, w).reshape(-1)]
    assert conv(x, w).reshape(-1).tolist() == wanted
    small = np.random.default_rng(0).integers(-128, 128, (2, 5, 6, 6)).astype(np.int32)
    weights = np.random.default_rng(1).integers(-128, 128, (3, 5, 3, 3)).astype(np.int32)
    assert conv(small, weights).tolist() == direct(small, weights).tolist()
    assert conv(small, weights[:, :1].repeat(5, 0)[:5], group=5).dtype == np.int32


def test_float64_is_computed_in_float64():
    x, w = normal(1, 1, 8, 6, 6, dtype=np.float64), normal(2, 4, 8, 3, 3, dtype=np.float64)
    close(conv(x, w), direct(x, w), eps=1e-14)


def test_nan_and_infinity_stay_where_they_are_seen():
    x = np.zeros((1, 1, 5, 5), np.float32)
    x[0, 0, 2, 2] = np.nan
    x[0, 0, 0, 0] = np.inf
    y = conv(x, np.ones((1, 1, 2, 2), np.float32))[0, 0]
    assert np.isnan(y).tolist() == [[1 <= r <= 2 and 1 <= c <= 2 for c in range(4)] for r in range(4)]
    assert np.isposinf(y).sum() == 1


@pytest.mark.parametrize(
    ("shape", "weights", "attrs", "wanted"),
    [
        ((0, 3, 8, 8), (4, 3, 3, 3), {}, (0, 4, 6, 6)),
        ((0, 4, 8, 8), (4, 1, 3, 3), {"group": 4}, (0, 4, 6, 6)),
        ((0, 3, 8, 8), (4, 3, 1, 1), {}, (0, 4, 8, 8)),
        ((2, 3, 0, 8), (4, 3, 3, 3), {}, (2, 4, 0, 6)),
        ((2, 3, 8, 8), (0, 3, 3, 3), {}, (2, 0, 6, 6)),
        ((1, 0, 4, 4), (2, 0, 3, 3), {}, (1, 2, 2, 2)),
        ((1, 1, 0), (2, 1, 1), {"pads": [1, 1]}, (1, 2, 2)),
    ],
)
def test_zero_sizes(shape, weights, attrs, wanted):
    bias = np.arange(weights[0], dtype=np.float32)
    y = conv(np.ones(shape, np.float32), np.ones(weights, np.float32), bias, **attrs)
    assert y.shape == wanted
    assert y.tolist() == np.broadcast_to(bias.reshape(-1, *(1,) * (len(wanted) - 2)), wanted).tolist()


# ---- inference


@pytest.mark.parametrize(
    ("x", "w", "attrs", "wanted"),
    [
        (typed("n", 3, 224, 224), typed(64, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}, "[n, 64, 112, 112]"),
        (typed("n", 3, "h", "w"), typed(8, 3, 3, 3), {"pads": (1, 1, 1, 1)}, "[n, 8, h, w]"),
        (typed(1, 3, "h"), typed(8, 3, 3), {"strides": (2,)}, "[1, 8, floor((h + 1)/(2)) - 1]"),
        (typed(1, 3, "h"), typed(8, 3, 3), {"strides": (2,), "auto_pad": "SAME_UPPER"}, "[1, 8, floor((h + 1)/(2))]"),
        (typed(1, None, 8), typed(None, 3, 3), {}, "[1, ?, 6]"),
        (typed(1, 3, 8), typed(8, 3, "k"), {}, "[1, 8, ?]"),
        (typed(1, 3, 8), typed(8, 3, "k"), {"kernel_shape": (3,)}, "[1, 8, 6]"),
    ],
)
def test_inferred_shapes(x, w, attrs, wanted):
    assert shape_of(infer("Conv", [x, w], **attrs)[0]) == wanted


def test_unknown_ranks():
    nothing = typed()
    unknown = type(nothing)(None)
    assert shape_of(infer("Conv", [unknown, typed(8, 3, 3, 3)])[0]) == "[?, 8, ?, ?]"
    assert shape_of(infer("Conv", [unknown, unknown])[0]) == "[...]"
    assert shape_of(infer("Conv", [typed(1, 3, 5, 5), unknown])[0]) == "[1, ?, ?, ?]"


@pytest.mark.parametrize(
    ("x", "w", "b", "attrs", "text"),
    [
        ((1, 3, 4, 5, 6), (2, 3, 3, 3), None, {}, "kernel is 2-D but the input is 5-D"),
        ((1, 3, 4), (2, 3), None, {}, "the weights [2, 3] have no spatial axis"),
        ((1, 4, 5, 5), (2, 3, 3, 3), None, {}, "the input has 4 channels but the weights take 3 (3 x group 1)"),
        ((1, 4, 5, 5), (3, 2, 3, 3), None, {"group": 2}, "group 2 does not divide the 3 output channels"),
        ((1, 3, 5, 5), (2, 3, 3, 3), None, {"group": 0}, "group 0 must be positive"),
        ((1, 3, 5, 5), (2, 3, 3, 3), (3,), {}, "the bias is [3] for 2 output channels"),
        ((1, 3, 5, 5), (2, 3, 3, 3), (2, 1), {}, "the bias is [2, 1] for 2 output channels"),
        ((1, 3, 5, 5), (2, 3, 3, 3), None, {"strides": (0, 1)}, "strides [0, 1] must be positive"),
        ((1, 3, 5, 5), (2, 3, 3, 3), None, {"dilations": (0, 1)}, "dilations [0, 1] must be positive"),
        ((1, 3, 5, 5), (2, 3, 3, 3), None, {"pads": (-1, 0, 0, 0)}, "pads [-1, 0, 0, 0] must not be negative"),
        (
            (1, 3, 5, 5),
            (2, 3, 3, 3),
            None,
            {"kernel_shape": (3, 2)},
            "kernel_shape [3, 2] but the weights are [2, 3, 3, 3]",
        ),
        ((1, 3, 5, 5), (2, 3, 3, 3), None, {"kernel_shape": (3,)}, "kernel is 1-D but the input is 4-D"),
        ((1, 3, 2, 5), (2, 3, 3, 3), None, {}, "the window spans 3 positions but the padded input has 2"),
        (
            (1, 3, 5, 5),
            (2, 3, 3, 3),
            None,
            {"auto_pad": "SAME_LOWER", "pads": (1, 1, 1, 1)},
            "auto_pad SAME_LOWER and explicit pads [1, 1, 1, 1] exclude each other",
        ),
    ],
)
def test_faults_are_refused_alike_by_inference_and_kernel(x, w, b, attrs, text):
    with pytest.raises(ShapeError) as caught:
        infer("Conv", [typed(*x), typed(*w), None if b is None else typed(*b)], **attrs)
    assert caught.value.what == text
    arrays = [np.zeros(s, np.float32) for s in (x, w, b) if s is not None]
    with pytest.raises(ShapeError) as caught:
        conv(*arrays, **attrs)
    assert caught.value.what == text


def test_dtypes_must_agree():
    with pytest.raises(ShapeError, match="different dtypes: float, double"):
        infer("Conv", [typed(1, 1, 3), typed(1, 1, 3, dtype=np.float64)])
