"""Products of quantised matrices: exact sums by every path, scaled and rounded as onnxruntime does it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import qmatmul as module
from fuse.ops.quant import measured, steps
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import close, normal
from tests.ops.quantised import equal, integers, kernel, nearest, one, onnxruntime_says, scales

TYPES = [(a, b) for a in (np.uint8, np.int8) for b in (np.uint8, np.int8)]


def test_there_are_cases():
    assert len(node_cases("QLinearMatMul")) == 8
    assert len(node_cases("MatMulInteger")) == 1


@pytest.mark.parametrize("case", node_cases("MatMulInteger", "QLinearMatMul"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def sums(a, b, a_zero=0, b_zero=0):
    """The product in Python's integers, wrapped to 32 bits."""
    exact = np.matmul(a.astype(object) - a_zero, b.astype(object) - b_zero)
    return np.asarray((exact + 2**31) % 2**32 - 2**31).astype(np.int32)


# ---- exact sums


@pytest.mark.parametrize("types", TYPES, ids=lambda t: f"{t[0].__name__} by {t[1].__name__}")
@pytest.mark.parametrize("inner", [1, 257, 258, 259, 1000])
def test_sums_are_exact(types, inner):
    a, b = integers(1, types[0], 3, inner), integers(2, types[1], inner, 4)
    equal(kernel("MatMulInteger", a, b), sums(a, b))
    a_zero, b_zero = integers(3, types[0]), integers(4, types[1], 4)
    equal(kernel("MatMulInteger", a, b, a_zero, b_zero), sums(a, b, int(a_zero), b_zero.astype(object)))


@pytest.mark.parametrize("inner", [258, 259, 401, 515, 517, 1031])
def test_the_largest_sums_are_exact(inner):
    """Odd numbers beyond 2^24, which float32 does not have."""
    wanted = inner * 255 * 255
    most = np.full((1, inner), 255, np.uint8)
    assert kernel("MatMulInteger", most, most.T).tolist() == [[wanted]]
    ends = np.full((1, inner), 127, np.int8)
    assert kernel("MatMulInteger", ends, ends.T, one(-128, np.int8), one(-128, np.int8)).tolist() == [[wanted]]
    assert kernel("MatMulInteger", most, most.T * 0, None, one(255, np.uint8)).tolist() == [[-wanted]]


def test_the_largest_sums_wrap_to_32_bits():
    a, b = np.full((1, 40000), 255, np.uint8), np.full((40000, 1), 255, np.uint8)
    wanted = (40000 * 255 * 255 + 2**31) % 2**32 - 2**31
    assert kernel("MatMulInteger", a, b).tolist() == [[wanted]]
    assert kernel("MatMulInteger", a, b, one(255, np.uint8), one(0, np.uint8)).tolist() == [[0]]


@pytest.mark.parametrize(
    ("a", "b", "a_zero", "b_zero"),
    [
        ((4, 5), (5, 3), (4,), (3,)),
        ((4, 5), (5, 3), (4, 1), (1, 3)),
        ((2, 4, 5), (2, 5, 3), (2, 4, 1), (2, 1, 3)),
        ((2, 4, 5), (5, 3), (4,), (3,)),
        ((2, 1, 4, 5), (6, 5, 3), (1,), (6, 1, 3)),
        ((5,), (5, 3), (), (3,)),
        ((4, 5), (5,), (4,), ()),
        ((5,), (5,), (), (1,)),
        ((0, 5), (5, 3), (), ()),
        ((4, 0), (0, 3), (), ()),
    ],
)
def test_zero_points_by_row_and_by_column(a, b, a_zero, b_zero):
    x, y, zx, zy = (integers(k, np.uint8, *s) for k, s in enumerate((a, b, a_zero, b_zero)))
    left = zx.astype(object).reshape(-1, 1) if zx.ndim == 1 and zx.size > 1 else zx.astype(object)
    if x.ndim == 1 or y.ndim == 1:
        left = left.reshape(-1)[0] if x.ndim == 1 else left
    got = kernel("MatMulInteger", x, y, zx, zy)
    equal(got, sums(x, y, left, zy.astype(object)))
    shape = infer("MatMulInteger", [typed(*s, dtype=np.uint8) for s in (a, b, a_zero, b_zero)])[0]
    assert shape.type == typed(*got.shape, dtype=np.int32).type


def saturating(a, b, a_zero):
    """What onnxruntime computes of uint8 by int8 on x86 without VNNI: pairs of products saturate at 16 bits."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    if a.shape[-1] % 2:
        a, b = np.pad(a, [(0, 0), (0, 1)]), np.pad(b, [(0, 1), (0, 0)])
    pairs = a[:, 0::2, None] * b[0::2] + a[:, 1::2, None] * b[1::2]
    return np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1) - a_zero * b.sum(axis=0)


@pytest.mark.parametrize("types", TYPES, ids=lambda t: f"{t[0].__name__} by {t[1].__name__}")
@pytest.mark.parametrize("inner", [5, 300, 1200])
@pytest.mark.parametrize("constants", [(), (1, 2, 3)], ids=["fed", "packed"])
def test_as_onnxruntime_has_it(types, inner, constants):
    a, b = integers(1, types[0], 7, inner), integers(2, types[1], inner, 9, small=True)
    a_zero, b_zero = integers(3, types[0]), integers(4, types[1], 9, small=True)
    wanted = onnxruntime_says("MatMulInteger", [a, b, a_zero, b_zero], constants=constants)
    equal(kernel("MatMulInteger", a, b, a_zero, b_zero), wanted)


def test_where_onnxruntime_saturates_fuse_does_not():
    a, b, zero = np.full((2, 6), 255, np.uint8), np.full((6, 3), 127, np.int8), one(100, np.uint8)
    exact = sums(a, b, 100)
    equal(kernel("MatMulInteger", a, b, zero), exact)
    assert (exact == 6 * 155 * 127).all()
    short = saturating(a, b, 100)
    assert (short == 3 * 32767 - 100 * 6 * 127).all()
    wanted = onnxruntime_says("MatMulInteger", [a, b, zero])
    assert (wanted == exact).all() or (wanted == short).all()


# ---- quantised results


def rescaled(whole, factor, dtype, zero):
    """The answer from exact sums, in float32 as onnxruntime has it."""
    return nearest(np.asarray(whole.astype(np.float32) * factor), dtype, zero)


@pytest.mark.parametrize("types", [t for t in TYPES if t != (np.int8, np.uint8)], ids=str)
@pytest.mark.parametrize("inner", [5, 300])
@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "a scale a column"])
def test_qlinear_matmul_as_onnxruntime_has_it(types, inner, columns):
    a, b = integers(1, types[0], 2, 7, inner), integers(2, types[1], inner, 9, small=True)
    shape = (9,) if columns else ()
    inputs = [
        a, scales(3), integers(4, types[0]), b, scales(5, *shape), integers(6, types[1], *shape, small=True),
        one(1), one(100, types[0]),
    ]  # fmt: skip
    seen = []
    for y_scale in (0.002, 0.05, 0.3, 1, 2, 5, 15):
        inputs[6] = one(y_scale * inner**0.5)
        seen.append(kernel("QLinearMatMul", *inputs))
        equal(seen[-1], onnxruntime_says("QLinearMatMul", inputs))
    assert len(np.unique(seen)) > 20
    assert np.isin(seen[0], (np.iinfo(types[0]).min, np.iinfo(types[0]).max)).mean() > 0.5


def test_qlinear_matmul_by_hand():
    a, b = np.array([[1, 2], [3, 250]], np.uint8), np.array([[10, -10], [20, 127]], np.int8)
    inputs = [a, one(0.5), one(2, np.uint8), b, one(0.25), one(0, np.int8), one(0.25), one(1, np.int8)]
    # sums [[-10, 10], [4970, 31486]]; halves of them, to the even step, plus 1
    assert kernel("QLinearMatMul", *inputs).tolist() == [[-4, 6], [127, 127]]
    inputs[6] = one(0.5)  # quarters: -2.5 and 2.5
    assert kernel("QLinearMatMul", *inputs).tolist() == [[-1, 3], [127, 127]]


def test_scales_by_row():
    a, b = integers(1, np.int8, 4, 6), integers(2, np.int8, 6, 3)
    rows, columns = scales(3, 4), scales(4, 3)
    inputs = [a, rows, integers(5, np.int8, 4), b, columns, integers(6, np.int8, 3), one(0.8), one(-5, np.int8)]
    whole = sums(a, b, inputs[2].astype(object)[:, None], inputs[5].astype(object))
    wanted = rescaled(whole, rows[:, None] * columns / np.float32(0.8), np.int8, -5)
    equal(kernel("QLinearMatMul", *inputs), wanted)
    inputs[1], inputs[2] = rows[:, None], inputs[2][:, None]
    equal(kernel("QLinearMatMul", *inputs), wanted)


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_qlinear_matmul_of_8_bit_floats(dtype):
    a, b = normal(1, 3, 20).astype(dtype), normal(2, 20, 4).astype(dtype)
    zero = one(0, dtype)
    y = kernel("QLinearMatMul", a, one(0.5), zero, b, one(2), zero, one(0.01), zero)
    exact = a.astype(np.float64) @ b.astype(np.float64) / np.float64(np.float32(0.01))
    largest = float(ml_dtypes.finfo(dtype).max)
    wanted = np.clip(exact, -largest, largest).astype(np.float32).astype(dtype)
    assert y.dtype == dtype
    np.testing.assert_allclose(
        y.astype(np.float64), wanted.astype(np.float64), rtol=2.0 ** -(2 if "e5" in dtype.__name__ else 3)
    )
    assert (y == wanted).mean() > 0.9
    assert infer("QLinearMatMul", [typed(*s, dtype=d) for s, d in (
        ((3, 20), dtype), ((), np.float32), ((), dtype), ((20, 4), dtype), ((), np.float32), ((), dtype),
        ((), np.float32), ((), dtype))])[0].type == typed(3, 4, dtype=dtype).type  # fmt: skip


# ---- onnxruntime's own


@pytest.mark.parametrize("types", [t for t in TYPES if t != (np.int8, np.uint8)], ids=str)
@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "a scale a column"])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_integer_to_float(types, columns, bias):
    shape = (9,) if columns else ()
    inputs = [
        integers(1, types[0], 7, 300), integers(2, types[1], 300, 9, small=True), scales(3), scales(4, *shape),
        integers(5, types[0]), integers(6, types[1], *shape, small=True), normal(7, 9) if bias else None,
    ]  # fmt: skip
    equal(kernel("MatMulIntegerToFloat", *inputs), onnxruntime_says("com.microsoft::MatMulIntegerToFloat", inputs))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "a scale a column"])
def test_dynamic_quantize_matmul(dtype, columns):
    shape = (9,) if columns else ()
    inputs = [
        normal(1, 2, 7, 30), integers(2, dtype, 30, 9, small=True), scales(3, *shape),
        integers(4, dtype, *shape, small=True), normal(5, 9),
    ]  # fmt: skip
    y = kernel("DynamicQuantizeMatMul", *inputs)
    equal(y, onnxruntime_says("com.microsoft::DynamicQuantizeMatMul", inputs))
    scale, zero = measured(inputs[0])
    codes = steps(inputs[0], scale, zero, zero.dtype)
    exact = (codes.astype(np.float64) - int(zero)) @ (inputs[1].astype(np.float64) - inputs[3].astype(np.float64))
    close(y, exact * float(scale) * inputs[2].astype(np.float64) + inputs[4])


@pytest.mark.parametrize("types", [t for t in TYPES if t != (np.int8, np.uint8)], ids=str)
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (9,), (7, 1), (7, 9), ()])
def test_qgemm(types, turned, c):
    a, b = integers(1, types[0], 7, 40), integers(2, types[1], 40, 9, small=True)
    a, b = (np.ascontiguousarray(x.T) if t else x for x, t in zip((a, b), turned, strict=True))
    shape = (9,) if len(c or ()) == 2 else ()
    addend = None if c is None else np.asarray(np.random.default_rng(3).integers(-9000, 9000, c)).astype(np.int32)
    inputs = [
        a,
        scales(4),
        integers(5, types[0]),
        b,
        scales(6, *shape),
        integers(7, types[1], *shape, small=True),
        addend,
    ]
    attrs = {"alpha": 0.37 if len(shape) else 1.0, "transA": turned[0], "transB": turned[1]}
    y = kernel("QGemm", *inputs, **attrs)
    equal(y, onnxruntime_says("com.microsoft::QGemm", inputs, **attrs))
    inputs += [one(0.3), one(5, types[0])]
    equal(kernel("QGemm", *inputs, **attrs), onnxruntime_says("com.microsoft::QGemm", inputs, **attrs))


def test_matmul_integer_16():
    a, b = integers(1, np.int16, 3, 50), integers(2, np.int16, 50, 4)
    equal(kernel("MatMulInteger16", a, b), sums(a, b))
    small = a // 64, b // 64
    equal(kernel("MatMulInteger16", *small), onnxruntime_says("com.microsoft::MatMulInteger16", small))
    most = np.full((1, 9), 65535, np.uint16)
    equal(kernel("MatMulInteger16", most, most.T), sums(most, most.T))


# ---- parts, inference, faults


def test_parts_of_any_length_give_the_same_sums(monkeypatch):
    a, b = integers(1, np.uint8, 2, 3, 37), integers(2, np.int8, 2, 37, 4)
    whole = kernel("MatMulInteger", a, b)
    for room in (1, 40000, 400000):
        monkeypatch.setattr(module, "ROOM", room)
        equal(kernel("MatMulInteger", a, b), whole)
        equal(kernel("MatMulInteger", a[0, 0], b[0, :, 0]), whole[0, 0, 0])
        equal(kernel("MatMulInteger", a, b[0, :, 0]), np.matmul(a.astype(np.int32), b[0, :, 0].astype(np.int32)))


def test_inputs_are_kept():
    a, b = integers(1, np.uint8, 3, 4), integers(2, np.int8, 4, 5)
    c = np.zeros(5, np.int32)
    kept = [x.copy() for x in (a, b, c)]
    kernel("QGemm", a, one(0.1), one(3, np.uint8), b, one(0.1), one(4, np.int8), c)
    assert all(np.array_equal(x, k) for x, k in zip((a, b, c), kept, strict=True))


def test_inference():
    codes, scale = typed("n", 4, dtype=np.uint8), typed()
    b = typed(4, 6, dtype=np.int8)
    zero = typed(dtype=np.uint8)
    wanted = typed("n", 6)
    assert infer("com.microsoft::MatMulIntegerToFloat", [codes, b, scale, scale, zero])[0].type == wanted.type
    assert infer("com.microsoft::DynamicQuantizeMatMul", [typed("n", 4), b, scale])[0].type == wanted.type
    gemm = [codes, scale, zero, b, scale, typed(dtype=np.int8)]
    assert infer("com.microsoft::QGemm", gemm)[0].type == wanted.type
    signed = infer("com.microsoft::QGemm", [*gemm, None, scale, typed(dtype=np.int8)])[0]
    assert signed.type == typed("n", 6, dtype=np.int8).type
    assert shape_of(infer("com.microsoft::QGemm", [*gemm[:3], typed(6, 4), *gemm[4:]], transB=1)[0]) == "[n, 6]"
    assert (
        infer("QLinearMatMul", [codes, scale, zero, b, scale, zero, scale, zero])[0].type
        == typed("n", 6, dtype=np.uint8).type
    )


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((3, 4), (5, 2)), "inner sizes differ: [3, 4] by [5, 2] multiplies 4 with 5"),
        (((3, 4), ()), "takes no rank-0 tensor"),
    ],
)
def test_shapes_that_do_not_multiply(shapes, text):
    with pytest.raises(ShapeError) as caught:
        infer("MatMulInteger", [typed(*s, dtype=np.uint8) for s in shapes])
    assert caught.value.what == text
    with pytest.raises(RunError) as failed:
        kernel("MatMulInteger", *(np.zeros(s, np.uint8) for s in shapes))
    assert failed.value.what == text


@pytest.mark.parametrize(
    ("a_zero", "b_zero", "text"),
    [
        ((2,), (), "the zero point of A [2] is neither one nor one a row of [3, 4]"),
        ((3, 4), (), "the zero point of A [3, 4] is neither one nor one a row of [3, 4]"),
        ((), (4,), "the zero point of B [4] is neither one nor one a column of [4, 2]"),
        ((), (4, 2), "the zero point of B [4, 2] is neither one nor one a column of [4, 2]"),
    ],
)
def test_parameters_that_do_not_fit(a_zero, b_zero, text):
    with pytest.raises(RunError) as caught:
        kernel("MatMulInteger", *(np.zeros(s, np.uint8) for s in ((3, 4), (4, 2), a_zero, b_zero)))
    assert caught.value.what == text


def test_an_output_scale_is_one():
    zero = one(0, np.uint8)
    with pytest.raises(RunError, match=r"the scale of Y must be one element, its shape is \[3\]"):
        kernel("QLinearMatMul", np.zeros((3, 4), np.uint8), one(1), zero, np.zeros((4, 2), np.uint8), one(1), zero,
               np.ones(3, np.float32), zero)  # fmt: skip
