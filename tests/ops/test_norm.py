"""Normalisations against their formulas in float64 and against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says

BF16 = ml_dtypes.bfloat16
HALVES = [np.float16, BF16]


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize(
    "case",
    node_cases(
        "BatchNormalization",
        "InstanceNormalization",
        "GroupNormalization",
        "LayerNormalization",
        "RMSNormalization",
        "LpNormalization",
        "MeanVarianceNormalization",
        "LRN",
    ),
)
def test_onnx_cases(case):
    check_case(case, exact=True)


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def column(v, rank):
    return v.reshape(-1, *(1,) * (rank - 2))


def nearly_rounded(got, wanted):
    """Half precision that was carried in float32 and rounded once: nearly always the nearest number."""
    assert np.mean(got == wanted.astype(got.dtype)) > 0.97
    close(got, wanted, eps=2.0**-7)


# ---- BatchNormalization


def parameters(channels, dtype=np.float32):
    s, b, m, v = (normal(k, channels) for k in range(4))
    return [a.astype(dtype) for a in (s, b, m, np.abs(v) + 0.1)]


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (1, 5, 4, 6), (2, 5, 2, 3, 2), (0, 5, 3), (4, 0, 3)])
@pytest.mark.parametrize("epsilon", [1e-5, 0.3])
def test_batch_normalization(shape, epsilon):
    x, given = normal(9, *shape) * 3 + 1, parameters(shape[1])
    kept = x.copy()
    y = kernel("BatchNormalization", x, *given, epsilon=epsilon)
    x64, s, b, m, v = wide(x, *given)
    rank = len(shape)
    wanted = (x64 - column(m, rank)) / np.sqrt(column(v, rank) + epsilon) * column(s, rank) + column(b, rank)
    close(y, wanted, eps=2e-6)
    assert x.tolist() == kept.tolist()
    assert y.flags.writeable
    assert not np.shares_memory(y, x)


def test_batch_normalization_of_a_vector_has_one_channel():
    x = np.array([1, 2, 3], np.float32)
    one = [np.array([v], np.float32) for v in (2, 10, 1, 4)]
    close(kernel("BatchNormalization", x, *one, epsilon=0.0), np.array([10, 11, 12]))


def test_batch_normalization_of_mixed_dtypes():
    x = normal(1, 2, 3, 4, dtype=np.float16)
    given = parameters(3)
    x64, s, b, m, v = wide(x, *given)
    y = kernel("BatchNormalization", x, *given)
    assert y.dtype == np.float16
    nearly_rounded(y, (x64 - column(m, 3)) / np.sqrt(column(v, 3) + 1e-5) * column(s, 3) + column(b, 3))


def test_batch_normalization_in_training():
    x, given = normal(9, 4, 3, 5) + 2, parameters(3)
    y, mean, var = kernel("BatchNormalization", x, *given, momentum=0.75, training_mode=1, n_outputs=3)
    x64, s, b, m, v = wide(x, *given)
    own_mean, own_var = x64.mean((0, 2)), x64.var((0, 2))
    close(y, (x64 - column(own_mean, 3)) / np.sqrt(column(own_var, 3) + 1e-5) * column(s, 3) + column(b, 3), eps=3e-6)
    close(mean, 0.75 * m + 0.25 * own_mean, eps=1e-6)
    close(var, 0.75 * v + 0.25 * own_var, eps=1e-6)
    wanted = onnxruntime_says("BatchNormalization", [x, *given], 3, opset=15, momentum=0.75, training_mode=1)
    for got, other in zip((y, mean, var), wanted, strict=True):
        same(got, other, atol=1e-5)


def test_batch_normalization_in_inference_passes_its_statistics_on():
    x, given = normal(9, 4, 3, 5), parameters(3)
    y, mean, var = kernel("BatchNormalization", x, *given, n_outputs=3)
    assert (mean.tolist(), var.tolist()) == (given[2].tolist(), given[3].tolist())
    assert y.tolist() == kernel("BatchNormalization", x, *given).tolist()


def test_extremes_of_batch_normalization():
    x = np.array([[[np.nan, np.inf, -np.inf, 3e38, 1e-45]]], np.float32)
    one = [np.array([v], np.float32) for v in (1, 0, 0, 1)]
    y = kernel("BatchNormalization", x, *one, epsilon=0.0)
    assert str(y.tolist()) == str(x.tolist())
    negative = kernel("BatchNormalization", x[..., 4:], *one[:3], np.array([-1], np.float32), epsilon=0.0)
    assert np.isnan(negative).all()


# ---- by the input's own statistics


def standard(x, axes, epsilon):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("shift", [0, 1000])
@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 3, 4, 5), (2, 3, 2, 2, 3), (0, 3, 4)])
def test_instance_normalization(shape, shift):
    x, s, b = normal(1, *shape) + np.float32(shift), normal(2, 3), normal(3, 3)
    y = kernel("InstanceNormalization", x, s, b, epsilon=1e-3)
    x64, s64, b64 = wide(x, s, b)
    axes, rank = tuple(range(2, len(shape))), len(shape)
    close(y, standard(x64, axes, 1e-3) * column(s64, rank) + column(b64, rank), eps=1e-4 if shift else 3e-6)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization(groups):
    x, s, b = normal(1, 2, 6, 3, 4) * 2 + 1, normal(2, 6), normal(3, 6)
    y = kernel("GroupNormalization", x, s, b, num_groups=groups)
    x64, s64, b64 = wide(x, s, b)
    grouped = standard(x64.reshape(2, groups, -1), 2, 1e-5).reshape(x.shape)
    close(y, grouped * column(s64, 4) + column(b64, 4), eps=3e-6)
    same(y, onnxruntime_says("GroupNormalization", [x, s, b], opset=21, num_groups=groups), atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_normalization_before_21_scales_by_group(groups):
    x, s, b = normal(1, 2, 6, 3, 4), normal(2, groups), normal(3, groups)
    y = kernel("GroupNormalization-18", x, s, b, num_groups=groups)
    grouped = standard(x.astype(np.float64).reshape(2, groups, -1), 2, 1e-5)
    close(y, (grouped * s.reshape(-1, 1) + b.reshape(-1, 1)).reshape(x.shape), eps=3e-6)
    same(y, onnxruntime_says("GroupNormalization", [x, s, b], opset=18, num_groups=groups), atol=1e-5)


def test_groups_of_an_empty_batch():
    x, c = np.zeros((0, 4, 3), np.float32), np.ones(4, np.float32)
    assert kernel("GroupNormalization", x, c, c, num_groups=2).shape == x.shape
    assert kernel("GroupNormalization-18", x, c[:2], c[:2], num_groups=2).shape == x.shape


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_layer_normalization(axis):
    x = normal(1, 3, 4, 5) * 3 - 7
    over = tuple(range(axis % 3, 3))
    scale, bias = normal(2, *x.shape[axis % 3 :]), normal(3, *x.shape[axis % 3 :])
    y, mean, inverse = kernel("LayerNormalization", x, scale, bias, axis=axis, n_outputs=3)
    x64, s64, b64 = wide(x, scale, bias)
    close(y, standard(x64, over, 1e-5) * s64 + b64, eps=5e-6)
    close(mean, x64.mean(over, keepdims=True), eps=1e-6)
    close(inverse, 1 / np.sqrt(x64.var(over, keepdims=True) + 1e-5), eps=3e-6)
    assert [i.shape for i in infer("LayerNormalization", [typed(3, 4, 5), typed(*scale.shape)], 3, axis=axis)] == [
        a.shape for a in (y, mean, inverse)
    ]


def test_layer_normalization_does_not_cancel():
    x = np.float32(10_000) + np.arange(8, dtype=np.float32).reshape(1, 8)
    y = kernel("LayerNormalization", x, np.ones(8, np.float32))
    close(y, standard(x.astype(np.float64), 1, 1e-5), eps=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_layer_normalization_of_half_precision(dtype):
    x, scale, bias = (normal(k, *s, dtype=dtype) for k, s in enumerate([(6, 40), (40,), (40,)]))
    y, mean, inverse = kernel("LayerNormalization", x, scale, bias, n_outputs=3)
    assert (y.dtype, mean.dtype, inverse.dtype) == (dtype, np.float32, np.float32)
    x64, s64, b64 = wide(x, scale, bias)
    nearly_rounded(y, standard(x64, 1, 1e-5) * s64 + b64)


def test_layer_normalization_of_doubles_is_not_rounded_to_stash_type():
    x = normal(1, 2, 9, dtype=np.float64)
    y = kernel("LayerNormalization", x, np.ones(9), n_outputs=1)
    close(y, standard(x, 1, float(np.float32(1e-5))), eps=1e-9)


@pytest.mark.parametrize("scale", [(), (1,), (4,), (3, 1), (3, 4), (1, 3, 1)])
def test_layer_normalization_broadcasts_its_scale(scale):
    x, s = normal(1, 2, 3, 4), np.asarray(normal(2, *scale))
    wanted = standard(x.astype(np.float64), 2, 1e-5) * s.astype(np.float64)
    close(kernel("LayerNormalization", x, s), wanted, eps=3e-6)


@pytest.mark.parametrize("dtype", [np.float32, *HALVES])
def test_rms_normalization(dtype):
    x, scale = normal(1, 3, 4, 50, dtype=dtype), normal(2, 50, dtype=dtype)
    x64, s64 = wide(x, scale)
    wanted = x64 / np.sqrt(np.mean(x64**2, axis=-1, keepdims=True) + 1e-5) * s64
    y = kernel("RMSNormalization", x, scale)
    assert y.dtype == dtype
    close(y, wanted, eps=2e-6) if dtype == np.float32 else nearly_rounded(y, wanted)


def test_rms_normalization_has_the_dtype_of_its_scale():
    y = kernel("RMSNormalization", np.full((2, 4), 3, np.float16), np.ones(4, np.float32), axis=0)
    assert y.dtype == np.float32
    close(y, np.full((2, 4), 3 / np.sqrt(9 + 1e-5)), eps=1e-6)
    inputs = [typed(2, 4, dtype=np.float16), typed(4)]
    assert infer("RMSNormalization", inputs)[0] == typed(2, 4)


# ---- the others


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_lp_normalization(p, axis):
    x = normal(1, 3, 4, 5)
    x[:, 0], x[0] = 0, 0
    norm = np.linalg.norm(x.astype(np.float64), ord=p, axis=axis, keepdims=True)
    y = kernel("LpNormalization", x, axis=axis, p=p)
    close(y, np.divide(x, norm, out=np.zeros(x.shape), where=norm != 0), eps=1e-6)
    same(y, onnxruntime_says("LpNormalization", [x], axis=axis, p=p))


@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (-1, -2)])
def test_mean_variance_normalization(axes):
    x = normal(1, 2, 3, 4, 5) * 2 + 5
    x64 = x.astype(np.float64)
    wanted = (x64 - x64.mean(axes, keepdims=True)) / (x64.std(axes, keepdims=True) + 1e-9)
    close(kernel("MeanVarianceNormalization", x, axes=axes), wanted, eps=3e-6)


def test_mean_variance_normalization_of_a_constant_is_zero():
    assert not kernel("MeanVarianceNormalization", np.full((1, 2, 3, 3), 5, np.float32)).any()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, 2**40 + 1])
@pytest.mark.parametrize("beta", [0.75, 0.5])
def test_lrn(size, beta):
    x = normal(1, 2, 6, 3) * 3
    x64, wanted = x.astype(np.float64), np.empty(x.shape)
    for c in range(6):
        low, high = max(0, c - (size - 1) // 2), min(5, c + size // 2)
        squares = (x64[:, low : high + 1] ** 2).sum(1)
        wanted[:, c] = x64[:, c] / (1.5 + 0.5 / size * squares) ** beta
    close(kernel("LRN", x, size=size, alpha=0.5, beta=beta, bias=1.5), wanted, eps=1e-6)


def test_lrn_as_onnxruntime_has_it():
    x = normal(2, 2, 7, 3, 2)
    same(kernel("LRN", x, size=5, alpha=0.2), onnxruntime_says("LRN", [x], size=5, alpha=0.2))
    assert kernel("LRN", np.ones((0, 3, 2), np.float32), size=3).shape == (0, 3, 2)


# ---- inference and faults


def test_inferred():
    c = typed(3)
    assert shape_of(infer("BatchNormalization", [typed("n", 3, "h"), c, c, c, c])[0]) == "[n, 3, h]"
    assert infer("BatchNormalization", [typed("n", 3), c, c, c, c], 3, training_mode=1)[1:] == [c, c]
    assert shape_of(infer("GroupNormalization", [typed("n", "c"), c, c], num_groups=3)[0]) == "[n, c]"
    half = [typed("n", 3, dtype=np.float16), typed(3, dtype=np.float16)]
    assert infer("LayerNormalization", half, 3)[1:] == [typed("n", 1)] * 2


C, W = (3,), (4,)


@pytest.mark.parametrize(
    ("op", "shapes", "attrs", "text"),
    [
        ("BatchNormalization", [(2, 3, 5), C, C, W, C], {}, "mean is [4] for 3 channels"),
        ("BatchNormalization", [(2, 3, 5), (3, 1), C, C, C], {}, "scale is [3, 1] for 3 channels"),
        ("BatchNormalization", [(), C, C, C, C], {}, "the input is a scalar"),
        ("InstanceNormalization", [(2, 3, 5), C, W], {}, "B is [4] for 3 channels"),
        ("GroupNormalization", [(2, 3, 5), C, C], {"num_groups": 2}, "2 groups do not divide 3 channels"),
        ("GroupNormalization", [(2, 3, 5), C, C], {"num_groups": 0}, "num_groups 0 must be positive"),
        ("GroupNormalization", [(2, 4, 5), W, (2,)], {"num_groups": 2}, "bias is [2] for 4 channels"),
        ("GroupNormalization-18", [(2, 4, 5), W, W], {"num_groups": 2}, "scale is [4] for 2 groups"),
        ("LayerNormalization", [(2, 3), W], {}, "Scale [4] does not broadcast to [2, 3]"),
        ("LayerNormalization", [(1, 3), (2, 3)], {}, "Scale [2, 3] does not broadcast to [1, 3]"),
        ("LayerNormalization", [(2, 3), C, (1, 1, 3)], {}, "B [1, 1, 3] does not broadcast to [2, 3]"),
        ("LayerNormalization", [(2, 3), C], {"axis": 2}, "axis 2 is out of range for rank 2"),
        ("RMSNormalization", [(2, 3), C], {"axis": -3}, "axis -3 is out of range for rank 2"),
        ("RMSNormalization", [(1, 3), (2, 3)], {}, "scale [2, 3] does not broadcast to [1, 3]"),
        ("LpNormalization", [(2, 3)], {"axis": 2}, "axis 2 is out of range for rank 2"),
        ("LpNormalization", [(2, 3)], {"p": 3}, "p is 3, not 1 or 2"),
        ("MeanVarianceNormalization", [(2, 3)], {}, "axis 2 is out of range for rank 2"),
        ("LRN", [(2, 3)], {"size": 0}, "size 0 must be positive"),
        ("LRN", [(2,)], {"size": 3}, "the input needs batch and channel, its shape is [2]"),
    ],
)
def test_faults_are_refused_alike_by_inference_and_kernel(op, shapes, attrs, text):
    arrays = [np.ones(s, np.float32) for s in shapes]
    for check in (lambda: infer(op, [typed(*s) for s in shapes], **attrs), lambda: kernel(op, *arrays, **attrs)):
        with pytest.raises(ShapeError) as caught:
            check()
        assert caught.value.what == text
