"""Weights packed in few bits: against their definition in float64, and against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import nbits as module
from tests.ops.cases import infer, shape_of, typed
from tests.ops.oracle import close, normal
from tests.ops.quantised import equal, integers, kernel, onnxruntime_says

SIZES = [(64, 10, 16), (100, 7, 32), (300, 33, 128)]


def unpacked(packed, bits, count):
    """The codes of rows of bytes, one after another from the lowest bit."""
    rows = packed.reshape(len(packed), -1).astype(object)
    count = min(count, rows.shape[1] * 8 // bits)
    return np.array([[row[k * bits // 8] >> (k * bits % 8) & ((1 << bits) - 1) for k in range(count)] for row in rows])


def weights(b, scales, zeros, g_idx, inner, bits, block):
    """The matrix (N, K) in float64."""
    count = -(-inner // block)
    group = np.arange(inner) // block if g_idx is None else g_idx
    if zeros is None:
        origin = np.full((len(b), count), 2 ** (bits - 1))
    else:
        origin = unpacked(zeros, bits, count) if zeros.dtype == np.uint8 else zeros
    q = unpacked(b, bits, count * block)[:, :inner].astype(np.float64)
    return (q - origin.astype(np.float64)[:, group]) * scales.astype(np.float64)[:, group]


def packed(bits, inner, outer, block):
    """Random weights with all that may come with them."""
    rng, count = np.random.default_rng(bits * inner), -(-inner // block)
    b = rng.integers(0, 256, (outer, count, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.1, (outer, count)).astype(np.float32)
    zeros = rng.integers(0, 256, (outer, -(-count * bits // 8))).astype(np.uint8)
    floats = rng.uniform(0, 5, (outer, count)).astype(np.float32)
    g_idx = rng.integers(0, count, inner).astype(np.int32)
    return b, scales, zeros, floats, g_idx, normal(3, outer)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("given", ["nothing", "packed zeros", "float zeros", "groups", "groups and zeros", "bias"])
def test_matmul_nbits_by_the_formula(bits, size, given):
    inner, outer, block = size
    b, scales, zeros, floats, g_idx, bias = packed(bits, *size)
    a = normal(1, 2, 3, inner)
    origin = {"packed zeros": zeros, "groups and zeros": zeros, "float zeros": floats}.get(given)
    groups = g_idx if given.startswith("groups") else None
    addend = bias if given == "bias" else None
    attrs = {"K": inner, "N": outer, "bits": bits, "block_size": block}
    y = kernel("MatMulNBits", a, b, scales, origin, groups, addend, **attrs)
    exact = a.astype(np.float64) @ weights(b, scales, origin, groups, inner, bits, block).T
    close(y, exact + (0 if addend is None else addend), eps=2e-6)
    assert y.dtype == np.float32
    flat = [None if x is None else x.reshape(-1) for x in (scales, origin)]
    equal(kernel("MatMulNBits", a, b, *flat, groups, addend, **attrs), y)


#: onnxruntime has no kernel for float zeros or groups with 8 bits, and for groups with 2 bits a wrong one.
KNOWN = [
    (bits, given)
    for bits in (2, 4, 8)
    for given in ("nothing", "packed zeros", "float zeros", "groups", "bias")
    if bits == 4 or given not in ({2: ("groups",), 8: ("float zeros", "groups")}[bits])
]


@pytest.mark.parametrize(("bits", "given"), KNOWN)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4, 5)], ids=["fed", "packed"])
def test_matmul_nbits_as_onnxruntime_has_it(bits, size, given, constants):
    inner, outer, block = size
    b, scales, zeros, floats, _, bias = packed(bits, *size)
    origin = {"packed zeros": zeros, "float zeros": floats}.get(given)
    inputs = [normal(1, 2, 3, inner), b, scales, origin, None, bias if given == "bias" else None]
    if given == "groups":  # onnxruntime looks up the groups of the first 8 of every block alone, and no packed zeros
        inputs[4] = np.repeat(np.random.default_rng(1).permutation(-(-inner // block)), block)[:inner].astype(np.int32)
    attrs = {"K": inner, "N": outer, "bits": bits, "block_size": block}
    wanted = onnxruntime_says("com.microsoft::MatMulNBits", inputs, constants=constants, **attrs)
    close(kernel("MatMulNBits", *inputs, **attrs), wanted.astype(np.float64), eps=2e-6)


def test_a_lower_accuracy_level_allows_onnxruntime_to_round_the_input():
    b, scales, zeros, *_ = packed(4, 100, 7, 32)
    a, attrs = normal(1, 3, 100), {"K": 100, "N": 7, "bits": 4, "block_size": 32, "accuracy_level": 4}
    y = kernel("MatMulNBits", a, b, scales, zeros, **attrs)
    close(y, a.astype(np.float64) @ weights(b, scales, zeros, None, 100, 4, 32).T, eps=2e-6)
    wanted = onnxruntime_says("com.microsoft::MatMulNBits", [a, b, scales, zeros], constants=(1, 2, 3), **attrs)
    close(y, wanted.astype(np.float64), eps=0.02)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    b, scales, zeros, *_, bias = packed(4, 300, 33, 128)
    a, scales, bias = normal(1, 5, 300).astype(dtype), scales.astype(dtype), bias.astype(dtype)
    y = kernel("MatMulNBits", a, b, scales, zeros, None, bias, K=300, N=33, bits=4, block_size=128)
    assert y.dtype == dtype
    exact = a.astype(np.float64) @ weights(b, scales, zeros, None, 300, 4, 128).T + bias.astype(np.float64)
    step = 2.0 ** -ml_dtypes.finfo(dtype).nmant
    assert (np.abs(y.astype(np.float64) - exact) <= 0.51 * step * np.abs(exact) + 1e-4).all()


def test_bands_of_any_size_give_the_same(monkeypatch):
    b, scales, zeros, *_ = packed(4, 100, 7, 32)
    a, attrs = normal(1, 3, 100), {"K": 100, "N": 7, "bits": 4, "block_size": 32}
    whole = kernel("MatMulNBits", a, b, scales, zeros, **attrs)
    monkeypatch.setattr(module, "BAND", 1)
    close(kernel("MatMulNBits", a, b, scales, zeros, **attrs), whole.astype(np.float64), eps=1e-6)


def test_by_hand():
    b = np.zeros((1, 1, 8), np.uint8)
    b[0, 0, :2] = [0x9A, 0x38]  # codes 10, 9, 8, 3, 0, ...
    a = np.zeros((2, 16), np.float32)
    a[0, :4], a[1, 3] = [1, 10, 100, 1000], 1
    y = kernel("MatMulNBits", a, b, np.array([[0.5]], np.float32), K=16, N=1, block_size=16)
    assert y.tolist() == [[0.5 * (2 + 10 - 5000)], [-2.5]]


def test_an_omitted_projection_gives_the_bias():
    a, empty = normal(1, 2, 64), np.zeros((10, 4, 0), np.uint8)
    scales, bias = np.ones((10, 4), np.float32), normal(2, 10)
    attrs = {"K": 64, "N": 10, "bits": 4, "block_size": 16}
    assert kernel("MatMulNBits", a, empty, scales, **attrs).tolist() == np.zeros((2, 10)).tolist()
    equal(kernel("MatMulNBits", a, empty, scales, None, None, bias, **attrs), np.broadcast_to(bias, (2, 10)))


@pytest.mark.parametrize("shape", [(64,), (0, 64), (2, 0, 64)])
def test_leading_axes(shape):
    b, scales, *_ = packed(4, 64, 10, 16)
    y = kernel("MatMulNBits", normal(1, *shape), b, scales, K=64, N=10, bits=4, block_size=16)
    assert y.shape == (*shape[:-1], 10)
    info = infer("com.microsoft::MatMulNBits", [typed(*shape), typed(10, 4, 8, dtype=np.uint8), typed(10, 4)],
                 K=64, N=10, block_size=16)[0]  # fmt: skip
    assert info.type == typed(*shape[:-1], 10).type


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"K": 63}, "A [2, 64] does not end in 63"),
        ({"block_size": 24}, "block_size 24 is no power of 2 from 16 on"),
        ({"bits": 5}, "bits 5 is not 2, 4 or 8"),
        ({"N": 0}, "K 64 and N 0 must be positive"),
        ({"weight_prepacked": 1}, "the weights are packed for one particular GPU (weight_prepacked)"),
    ],
)
def test_attributes_that_do_not_fit(change, text):
    b, scales, *_ = packed(4, 64, 10, 16)
    attrs = {"K": 64, "N": 10, "bits": 4, "block_size": 16} | change
    with pytest.raises(ShapeError) as caught:
        infer("com.microsoft::MatMulNBits", [typed(2, 64), typed(10, 4, 8), typed(10, 4)], **attrs)
    assert caught.value.what == text
    with pytest.raises(RunError) as failed:
        kernel("MatMulNBits", normal(1, 2, 64), b, scales, **attrs)
    assert failed.value.what == text


@pytest.mark.parametrize(
    ("index", "shape", "text"),
    [
        (1, (10, 4, 7), "B [10, 4, 7] should hold [10, 4, 8]"),
        (2, (10, 3), "the scales [10, 3] should hold [10, 4]"),
        (3, (10, 3), "the zero points [10, 3] should hold [10, 2]"),
        (5, (9,), "the bias is [9] for 10 outputs"),
    ],
)
def test_tensors_that_do_not_fit(index, shape, text):
    b, scales, zeros, _, g_idx, bias = packed(4, 64, 10, 16)
    inputs = [normal(1, 2, 64), b, scales, zeros, g_idx, bias]
    inputs[index] = np.zeros(shape, inputs[index].dtype)
    with pytest.raises(RunError) as caught:
        kernel("MatMulNBits", *inputs, K=64, N=10, bits=4, block_size=16)
    assert caught.value.what == text


def test_groups_that_do_not_exist():
    b, scales, zeros, _, g_idx, _ = packed(4, 64, 10, 16)
    g_idx[5] = 4
    with pytest.raises(RunError, match=r"g_idx names a group beyond the 4: \[4\]"):
        kernel("MatMulNBits", normal(1, 2, 64), b, scales, zeros, g_idx, K=64, N=10, bits=4, block_size=16)
    with pytest.raises(RunError, match="g_idx has 63 entries for 64 inputs"):
        kernel("MatMulNBits", normal(1, 2, 64), b, scales, zeros, g_idx[:63], K=64, N=10, bits=4, block_size=16)


# ---- MatMulBnb4

FP4 = [0, 0.0625 / 12, 2 / 3, 1, 1 / 3, 0.5, 1 / 6, 0.25]


@pytest.mark.parametrize("kind", [0, 1], ids=["FP4", "NF4"])
@pytest.mark.parametrize("size", [(64, 10, 16), (45, 7, 32)], ids=str)
def test_matmul_bnb4(kind, size):
    inner, outer, block = size
    count = inner * outer
    b = integers(1, np.uint8, -(-count // 2))
    absmax = np.random.default_rng(2).random(-(-count // block)).astype(np.float32)
    attrs = {"K": inner, "N": outer, "block_size": block, "quant_type": kind}
    a = normal(3, 4, inner)
    y = kernel("MatMulBnb4", a, b, absmax, **attrs)
    wanted = onnxruntime_says("com.microsoft::MatMulBnb4", [a, b, absmax], constants=(1, 2), **attrs)
    close(y, wanted.astype(np.float64), eps=2e-6)
    plain = np.stack((b >> 4, b & 15), -1).reshape(-1)[:count]
    table = np.array([*FP4, *(-v for v in FP4)]) if kind == 0 else module.BNB4[1].astype(np.float64)
    matrix = (table[plain] * np.repeat(absmax, block)[:count]).reshape(outer, inner)
    close(y, a @ matrix.T, eps=2e-6)
    back = normal(4, 4, outer)
    close(kernel("MatMulBnb4", back, b, absmax, transB=0, **attrs), back @ matrix, eps=2e-6)
    info = infer("com.microsoft::MatMulBnb4", [typed("n", outer), typed(), typed()], transB=0, **attrs)[0]
    assert shape_of(info) == f"[n, {inner}]"


def test_the_normal_floats_are_quantiles():
    """NF4 is symmetric in its ends, ascending, and has an exact 0."""
    table = module.BNB4[1]
    assert table[0] == -1
    assert table[7] == 0
    assert table[15] == 1
    assert (np.diff(table) > 0).all()


# ---- GatherBlockQuantized

GATHER = "com.microsoft::GatherBlockQuantized"
TABLES = {
    "uint8 of 2 bits": (np.uint8, 2),
    "uint8 of 4 bits": (np.uint8, 4),
    "uint8 of 8 bits": (np.uint8, 8),
    "uint4": (ml_dtypes.uint4, 4),
    "int4": (ml_dtypes.int4, 4),
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("indices", [[[1, 5], [19, -1]], [[0]], 3], ids=str)
def test_gather_block_quantized(name, zero_points, indices):
    dtype, bits = TABLES[name]
    width, block = 80, 32
    data = integers(1, dtype, 20, width * bits // 8 if dtype == np.uint8 else width)
    scales = np.random.default_rng(2).random((20, 3)).astype(np.float32)
    zeros = integers(3, dtype, 20, -(-3 * bits // 8) if dtype == np.uint8 else 3) if zero_points else None
    where = np.array(indices, np.int64)
    attrs = {"bits": bits, "block_size": block}
    y = kernel("GatherBlockQuantized", data, where, scales, zeros, **attrs)
    equal(y, onnxruntime_says(GATHER, [data, where, scales, zeros], constants=(0, 2, 3), **attrs))
    if dtype == np.uint8:
        table = weights(data, scales, zeros, None, width, bits, block)
    else:
        origin = 0 if zeros is None else np.repeat(zeros.astype(np.float64), block, 1)[:, :width]
        table = (data.astype(np.float64) - origin) * np.repeat(scales, block, 1)[:, :width]
    close(y, table[where], eps=1e-6)
    infos = [typed(*x.shape, dtype=x.dtype) for x in (data, where, scales)]
    assert infer(GATHER, infos, **attrs)[0].type == typed(*y.shape).type


def test_gather_along_another_axis():
    data, scales = integers(1, ml_dtypes.uint4, 20, 80), np.random.default_rng(2).random((1, 80)).astype(np.float32)
    attrs = {"block_size": 32, "quantize_axis": 0, "gather_axis": 1}
    where = np.array([3, -1, 7], np.int32)
    y = kernel("GatherBlockQuantized", data, where, scales, **attrs)
    equal(y, (data.astype(np.float32) * scales)[:, where])
    equal(y, onnxruntime_says(GATHER, [data, where, scales], constants=(0, 2), **attrs))


def test_an_index_outside_gives_zeros():
    data, scales = integers(1, np.uint8, 20, 40), np.ones((20, 3), np.float32)
    where = np.array([[0, 20], [-21, 19]])
    y = kernel("GatherBlockQuantized", data, where, scales, block_size=32)
    assert (y[0, 1] == 0).all()
    assert (y[1, 0] == 0).all()
    equal(y[0, 0], kernel("GatherBlockQuantized", data, where[0, :1], scales, block_size=32)[0])
    equal(y, onnxruntime_says(GATHER, [data, where, scales], constants=(0, 2), block_size=32))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float4_e2m1fn])
def test_gather_of_small_floats(dtype):
    data = normal(1, 20, 64).astype(dtype)
    where = np.array([1, 0, 19])
    blocks = np.random.default_rng(2).random((20, 2)).astype(np.float32)
    y = kernel("GatherBlockQuantized", data, where, blocks, block_size=32)
    equal(y, (data.astype(np.float32) * np.repeat(blocks, 32, 1))[where])
    whole = np.array([[0.25]], np.float32)  # one scale for the whole table
    y = kernel("GatherBlockQuantized", data, where, whole, block_size=0)
    equal(y, (data.astype(np.float32) * np.float32(0.25))[where])


def test_gather_faults():
    data, scales = np.zeros((20, 40), np.uint8), np.ones((20, 2), np.float32)
    with pytest.raises(RunError, match=r"scales \[1, 2\] do not fit \[1, 80\] in blocks of 32 on axis 1"):
        kernel("GatherBlockQuantized", data, np.array([1]), scales, block_size=32)
    with pytest.raises(RunError, match="gather_axis and quantize_axis are both 1"):
        kernel("GatherBlockQuantized", data, np.array([1]), scales, gather_axis=1)
    with pytest.raises(ShapeError, match="gather_axis 2 is out of range for rank 2"):
        infer(GATHER, [typed(20, 40), typed(1), typed(20, 2)], gather_axis=2)
