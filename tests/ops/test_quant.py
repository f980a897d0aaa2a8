"""QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: every target, every granularity, every edge."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dtypes import BY_NAME, CODE, NAME
from fuse.ops.quant import TARGETS, dequantize_linear, dynamic_quantize_linear, measured, quantize_linear
from tests.ops.cases import check_case, infer, node_cases, shape_of, typed
from tests.ops.oracle import normal
from tests.ops.quantised import equal, integers, kernel, nearest, one, onnxruntime_says, scales

INTEGERS = ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2"]
FLOATS = ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"]


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"])
def test_there_are_cases(op):
    assert len(node_cases(op)) >= 3


@pytest.mark.parametrize("case", node_cases("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def test_the_targets():
    assert {NAME[d] for d in TARGETS} == {*INTEGERS, *FLOATS, "float4e2m1", "float6e2m3", "float6e3m2"}


# ---- QuantizeLinear


def test_halves_go_to_the_even_step_before_the_zero_point_is_added():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49, -0.0], np.float32)
    assert quantize_linear(x, one(1), one(0, np.int8)).tolist() == [0, 2, 2, 0, -2, -2, 0, 0]
    assert quantize_linear(x, one(1), one(3, np.int8)).tolist() == [3, 5, 5, 3, 1, 1, 3, 3]


@pytest.mark.parametrize("name", INTEGERS)
def test_what_lies_outside_saturates(name):
    dtype = BY_NAME[name]
    info = ml_dtypes.iinfo(dtype)
    x = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, info.max + 0.4, info.min - 0.4, 0], np.float32)
    ends = [info.max, info.min, info.min, info.max, info.min, info.max, info.min]
    for zero in (0, 1):
        y = kernel("QuantizeLinear", x, one(1), one(zero, dtype))
        assert y.dtype == dtype
        assert y.astype(int).tolist() == [*ends[:6], min(info.min + zero, info.max), zero]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("zero", [0, 1])
def test_integers_by_the_formula(name, zero):
    dtype = BY_NAME[name]
    step = 2.0**-3  # quotients are exact, and every eighth is a tie
    reach = min(int(ml_dtypes.iinfo(dtype).max), 300) + 3
    x = np.arange(-reach * 2, reach * 2, dtype=np.float32).reshape(2, -1) * np.float32(step / 2)
    equal(quantize_linear(x, one(step), one(zero, dtype)), nearest(x.astype(np.float64) / step, dtype, zero))


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize(
    ("shape", "parameters", "attrs"),
    [
        ((3, 5, 7), (), {}),
        ((3, 5, 7), (1,), {}),
        ((3, 5, 7), (5,), {}),
        ((3, 5, 7), (3,), {"axis": 0}),
        ((3, 5, 7), (7,), {"axis": -1}),
        ((6,), (6,), {"axis": 0}),
        ((4, 6, 5), (4, 3, 5), {"axis": 1, "block_size": 2}),
        ((4, 7, 5), (4, 2, 5), {"axis": 1, "block_size": 4}),
        ((4, 5), (4, 2), {"axis": -1, "block_size": 3}),
    ],
)
def test_both_ways_as_onnxruntime_has_it(name, shape, parameters, attrs):
    dtype = BY_NAME[name]
    x, scale, zero = normal(1, *shape) * 2, scales(2, *parameters), integers(3, dtype, *parameters)
    y = quantize_linear(x, scale, zero, **attrs)
    packed = name.endswith("int4")
    wanted = onnxruntime_says("QuantizeLinear", [x, scale, zero], cast=CODE[BY_NAME["int32"]] if packed else 0, **attrs)
    equal(y.astype(np.int32) if packed else y, wanted)
    back = dequantize_linear(y, scale, zero, **attrs)
    equal(back, onnxruntime_says("DequantizeLinear", [y, scale, zero], **attrs))


def test_half_precision_divides_in_half_precision():
    x, scale = np.array([2500.5, 2049, 30000, 2.5005, -7], np.float16), one(0.3, np.float16)
    with np.errstate(over="ignore"):
        quotients = (x.astype(np.float64) / float(scale)).astype(np.float16)
    assert quotients.tolist() == [8328, 6824, np.inf, 8.328125, -23.328125]
    assert kernel("QuantizeLinear", x, scale, one(0, np.int16)).tolist() == [8328, 6824, 32767, 8, -23]
    # float32 gives 8332, 6826 and 32767, and so does onnxruntime, which ignores what ONNX says of the scale's type
    assert kernel("QuantizeLinear", x, scale, one(0, np.int16), precision=1).tolist() == [8332, 6826, 32767, 8, -23]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_the_division_is_rounded_to_the_scale_s_precision(dtype):
    x, scale = (normal(1, 2000) * 3).astype(dtype), one(0.0437, dtype)
    quotient = (x.astype(np.float64) / float(scale)).astype(dtype).astype(np.float64)
    equal(quantize_linear(x, scale, one(3, np.int8)), nearest(quotient, np.int8, 3))
    mixed = quantize_linear(x.astype(np.float32), scale, one(3, np.int8))
    equal(mixed, nearest(quotient, np.int8, 3))
    fine = quantize_linear(x, scale, one(3, np.int8), precision=CODE[BY_NAME["float"]])
    equal(fine, nearest((x.astype(np.float32) / scale.astype(np.float32)).astype(np.float64), np.int8, 3))


def test_half_precision_is_within_one_step_of_onnxruntime():
    x, scale = (normal(1, 5000)).astype(np.float16), one(0.02, np.float16)
    wanted = onnxruntime_says("QuantizeLinear", [x, scale, one(-3, np.int8)])
    apart = np.abs(quantize_linear(x, scale, one(-3, np.int8)).astype(int) - wanted.astype(int))
    assert apart.max() == 1
    assert (apart > 0).mean() < 0.03
    equal(quantize_linear(x, scale, one(-3, np.int8), precision=1), wanted)


def test_integers_divide_exactly():
    x = np.array([2**31 - 1, -(2**31), 7, -7, 5, 2**24 + 1], np.int32)
    exact = quantize_linear(x, one(2, np.int32), output_dtype=CODE[BY_NAME["int16"]])
    assert exact.tolist() == [32767, -32768, 4, -4, 2, 32767]
    halves = np.array([2**25 + 1, 2**25, 3 * 2**25 - 1], np.int32)
    assert quantize_linear(halves, one(2**26, np.int32)).tolist() == [1, 0, 1]
    by_float = quantize_linear(x, one(2, np.float32), output_dtype=CODE[BY_NAME["int16"]])
    assert by_float.tolist() == [32767, -32768, 4, -4, 2, 32767]
    assert quantize_linear(np.array([3, 5, 2**24 + 3], np.int32), one(2**24 + 2)).tolist() == [0, 0, 1]


def test_a_scale_that_is_a_power_of_two():
    scale = np.array([0.5, 2.0**-30, 4], ml_dtypes.float8_e8m0fnu)
    x = np.array([[1.25, 2.0**-24, 6], [-0.75, -(2.0**-24), 10]], np.float16)
    y = quantize_linear(x, scale, output_dtype=CODE[BY_NAME["int8"]])
    assert y.tolist() == [[2, 64, 2], [-2, -64, 2]]
    back = dequantize_linear(y, scale, output_dtype=CODE[BY_NAME["float"]])
    assert back.tolist() == [[1, 2.0**-24, 8], [-1, -(2.0**-24), 8]]
    with pytest.raises(ShapeError, match="scales of float8e8m0 need an output_dtype"):
        infer("DequantizeLinear", [typed(2, 3, dtype=np.int8), typed(3, dtype=scale.dtype)])


EDGES = [np.nan, np.inf, -np.inf, 1e9, -1e9, 464, 463.9, 470, -0.0, 1e-12, 240, 247, 248, 249, 57344, 61439, 61440, 7e4]


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", ["float8e4m3fn", "float8e4m3fnuz", "float8e5m2fnuz"])
def test_small_floats_as_onnxruntime_has_them(name, saturate):
    dtype = BY_NAME[name]
    x = np.concatenate((np.array(EDGES), normal(1, 500, dtype=np.float64) * 30)).astype(np.float32)
    for scale in (one(1), one(0.37)):
        y = kernel("QuantizeLinear", x, scale, one(0, dtype), saturate=saturate)
        assert y.dtype == dtype
        wanted = onnxruntime_says("QuantizeLinear", [x, scale, one(0, dtype)], cast=1, saturate=saturate)
        equal(y.astype(np.float32), wanted)
        assert np.signbit(y.astype(np.float32)).tolist() == np.signbit(wanted).tolist()
        back = dequantize_linear(y, scale)
        equal(back, onnxruntime_says("DequantizeLinear", [y, scale]))


def test_float8e5m2_by_the_table_of_cast():
    x = np.array([np.nan, np.inf, -np.inf, 1e9, 61439, 61440, -7e4, -0.0], np.float32)
    dtype = BY_NAME["float8e5m2"]
    wanted = {1: [np.nan, 57344, -57344, 57344, 57344, 57344, -57344, -0.0]}
    wanted[0] = [np.nan, np.inf, -np.inf, np.inf, 57344, np.inf, -np.inf, -0.0]
    for saturate in (0, 1):
        y = kernel("QuantizeLinear", x, one(1), one(0, dtype), saturate=saturate).astype(np.float32)
        np.testing.assert_array_equal(y, wanted[saturate])
        assert np.signbit(y[-1])


@pytest.mark.parametrize(
    ("name", "largest", "wanted"),
    [
        ("float4e2m1", 6, [0.5, -1.5, 2, 4, 6, -6, 6, 0]),
        ("float6e2m3", 7.5, [0.5, -1.25, 2.5, 5, 7.5, -7.5, 7.5, 0]),
        ("float6e3m2", 28, [0.5, -1.25, 2.5, 5, 28, -28, 28, 0]),
    ],
)
@pytest.mark.parametrize("saturate", [0, 1])
def test_the_smallest_floats_saturate_always(name, largest, wanted, saturate):
    x = np.array([0.5, -1.25, 2.5, 5, np.inf, -1e9, 1e9, 0], np.float32)
    if name == "float4e2m1":  # ties go to the even mantissa
        wanted = [0.5, -1.0, 2, 4, 6, -6, 6, 0]
    y = kernel("QuantizeLinear", x * 3, one(3), output_dtype=CODE[BY_NAME[name]], saturate=saturate)
    assert y.astype(np.float32).tolist() == wanted
    assert float(ml_dtypes.finfo(BY_NAME[name]).max) == largest


def test_a_zero_point_of_small_floats_is_added():
    for name in ("float8e4m3fn", "float4e2m1"):
        zero = one(2, BY_NAME[name])
        y = quantize_linear(np.array([1, -2, 4], np.float32), one(1), zero)
        assert y.astype(np.float32).tolist() == [3, 0, 6]
        assert dequantize_linear(y, one(0.5), zero).tolist() == [0.5, -1, 2]


def test_without_a_zero_point():
    x = np.array([-1, 0.4, 300], np.float32)
    assert quantize_linear(x, one(1)).tolist() == [0, 0, 255]
    assert quantize_linear(x, one(1), output_dtype=CODE[BY_NAME["int4"]]).astype(int).tolist() == [-1, 0, 7]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3)])
def test_empty_and_rank_0(shape):
    x = np.full(shape, -1.6, np.float32)
    y = quantize_linear(x, one(0.5), one(1, np.int8))
    equal(y, np.full(shape, -2, np.int8))
    equal(dequantize_linear(y, one(0.5), one(1, np.int8)), np.full(shape, -1.5, np.float32))


def test_float64_is_computed_in_float64():
    x = np.array([0.5 + 2.0**-40, 0.5 - 2.0**-40])
    assert quantize_linear(x, one(1), one(0, np.int8), precision=1).tolist() == [1, 0]
    scale = one(1 + 2.0**-40, np.float64)
    equal(dequantize_linear(one(3, np.int8), scale, output_dtype=1), np.asarray(3 * (1 + 2.0**-40)))


def test_the_input_is_kept():
    x, q = normal(1, 50), integers(2, np.uint8, 50)
    kept = x.copy(), q.copy()
    quantize_linear(x, one(0.1), one(3, np.uint8))
    dequantize_linear(q, one(0.1), one(3, np.uint8))
    dynamic_quantize_linear(x)
    assert np.array_equal(x, kept[0])
    assert np.array_equal(q, kept[1])


# ---- DequantizeLinear


@pytest.mark.parametrize("name", [*INTEGERS, "float8e4m3fn", "float4e2m1", "float6e3m2"])
@pytest.mark.parametrize("to", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_type_by_the_formula(name, to):
    dtype = BY_NAME[name]
    x = integers(1, dtype, 200) if name in INTEGERS else normal(1, 200).astype(dtype)
    scale, zero = one(0.0371, to), one(1, dtype)
    exact = (x.astype(np.float64) - 1) * float(scale)
    y = dequantize_linear(x, scale, zero)
    equal(y, exact.astype(np.float32).astype(to))


def test_int32_is_rounded_to_float32_first():
    x = np.array([2**31 - 1, -(2**31), 2**24 + 1, -5], np.int32)
    equal(dequantize_linear(x, one(0.3)), onnxruntime_says("DequantizeLinear", [x, one(0.3)]))
    assert dequantize_linear(x, one(1), one(-(2**31), np.int32)).tolist() == [2.0**32, 0, 2.0**31 + 2.0**24, 2.0**31]
    assert dequantize_linear(x, one(2), one(2**31 - 4, np.int32)).tolist()[0] == 6


def test_output_dtype_says_in_what_is_multiplied():
    x, scale = integers(1, np.uint16, 300), one(0.7, np.float16)
    wide = dequantize_linear(x, scale, output_dtype=CODE[BY_NAME["float"]])
    equal(wide, x.astype(np.float32) * scale.astype(np.float32))
    narrow = dequantize_linear(x, one(0.7), output_dtype=CODE[BY_NAME["float16"]])
    equal(narrow, (x.astype(np.float32) * np.float32(0.7)).astype(np.float16))


def test_a_difference_beyond_half_precision_is_not_infinite():
    x = np.array([65535, 0], np.uint16)
    wanted = onnxruntime_says("DequantizeLinear", [x, one(0.3, np.float16), one(1, np.uint16)])
    equal(dequantize_linear(x, one(0.3, np.float16), one(1, np.uint16)), wanted)


@pytest.mark.parametrize("seed", range(20))
def test_steps_survive_the_way_back(seed):
    codes, scale = np.arange(256, dtype=np.uint8), scales(seed)
    zero = integers(seed, np.uint8)
    equal(quantize_linear(dequantize_linear(codes, scale, zero), scale, zero), codes)


# ---- DynamicQuantizeLinear


@pytest.mark.parametrize(
    "x",
    [
        [0, 0, 0],
        [],
        [1, 2, 0.5],
        [-1, -3],
        [-0.0, 5],
        [np.nan, 1, 2],
        [np.inf, 1],
        [-np.inf, 1, 2],
        [1e-30, -1e-30],
        [3e38, -3e37],
    ],
)
def test_dynamic_edges_as_onnxruntime_has_them(x):
    given = np.array(x, np.float32)
    got = kernel("DynamicQuantizeLinear", given)
    for mine, wanted in zip(got, onnxruntime_says("DynamicQuantizeLinear", [given], 3), strict=True):
        equal(mine, wanted)


@pytest.mark.parametrize("seed", range(10))
def test_dynamic_as_onnxruntime_has_it(seed):
    x = normal(seed, 3, 50) * 10.0 ** (seed - 5) + (seed % 3 - 1)
    x = x.astype(np.float32)
    for mine, wanted in zip(dynamic_quantize_linear(x), onnxruntime_says("DynamicQuantizeLinear", [x], 3), strict=True):
        equal(mine, wanted)


def test_dynamic_by_hand():
    y, scale, zero = dynamic_quantize_linear(np.array([-1, 0, 1.55, 0.05], np.float32))
    assert scale == np.float32(2.55) / np.float32(255)
    assert zero == 100
    assert y.tolist() == [0, 100, 255, 105]
    assert measured(np.zeros(3, np.float32)) == (1, 0)


# ---- onnxruntime's domain


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16])
def test_the_contrib_forms(axis, dtype):
    shape = () if axis is None else ((3,), (4,))[axis]
    x, scale, zero = normal(1, 3, 4), scales(2, *shape), integers(3, dtype, *shape)
    attrs = {} if axis is None else {"axis": axis}
    y = kernel("com.microsoft::QuantizeLinear", x, scale, zero, **attrs)
    equal(y, onnxruntime_says("com.microsoft::QuantizeLinear", [x, scale, zero], **attrs))
    back = kernel("com.microsoft::DequantizeLinear", y, scale, zero, **attrs)
    equal(back, onnxruntime_says("com.microsoft::DequantizeLinear", [y, scale, zero], **attrs))
    assert (
        infer("com.microsoft::QuantizeLinear", [typed(3, 4), typed(*shape), typed(*shape, dtype=dtype)], **attrs)[
            0
        ].type
        == typed(3, 4, dtype=dtype).type
    )


# ---- inference and faults


@pytest.mark.parametrize(
    ("inputs", "attrs", "dtype", "shape"),
    [
        ([typed("n", 4), typed()], {}, "uint8", "[n, 4]"),
        ([typed("n", 4), typed(), typed(dtype=np.int8)], {}, "int8", "[n, 4]"),
        ([typed("n", 4), typed(4)], {"output_dtype": 22}, "int4", "[n, 4]"),
        ([typed("n", 40), typed("n", 3)], {"block_size": 16, "output_dtype": 17}, "float8e4m3fn", "[n, 40]"),
        ([typed("n", "k"), typed("c")], {"axis": 0}, "uint8", "[n, k]"),
    ],
)
def test_inference_of_quantize(inputs, attrs, dtype, shape):
    info = infer("QuantizeLinear", inputs, **attrs)[0]
    assert info.dtype == BY_NAME[dtype]
    assert shape_of(info) == shape


def test_inference_of_dequantize():
    codes = typed("n", 4, dtype=np.int8)
    assert infer("DequantizeLinear", [codes, typed(dtype=np.float16)])[0].type == typed("n", 4, dtype=np.float16).type
    assert infer("DequantizeLinear", [codes, typed(dtype=np.float16)], output_dtype=1)[0].dtype == np.float32
    infos = infer("DynamicQuantizeLinear", [typed("n", 4)], 3)
    assert [i.type for i in infos] == [typed("n", 4, dtype=np.uint8).type, typed().type, typed(dtype=np.uint8).type]


@pytest.mark.parametrize(
    ("x", "scale", "zero", "attrs", "text"),
    [
        ((3, 5), (3,), None, {}, "3 scales for axis 1 of [3, 5]"),
        ((3, 5), (5,), (1,), {}, "the scale is [5] and the zero point [1]"),
        ((3, 5), (3,), None, {"axis": 2}, "axis 2 is out of range for rank 2"),
        ((3,), (3,), None, {}, "axis 1 is out of range for rank 1"),
        ((3, 5), (3, 2), None, {}, "scales [3, 2] need a block_size, it is 0"),
        ((3, 5), (3, 2), None, {"block_size": -3}, "scales [3, 2] need a block_size, it is -3"),
        ((3, 5), (3, 2), None, {"block_size": 2}, "scales [3, 2] do not fit [3, 5] in blocks of 2 on axis 1"),
        ((3, 5), (2, 2), None, {"block_size": 3}, "scales [2, 2] do not fit [3, 5] in blocks of 3 on axis 1"),
        ((3, 5), (2,), None, {"block_size": 3}, "blocks need scales of the input's rank 2, they are [2]"),
        ((3, 5), (), None, {"output_dtype": 3, "zero": np.uint8}, "output_dtype is int8 and the zero point uint8"),
        ((3, 5), (), None, {"output_dtype": 1}, "nothing is quantised to float"),
        ((3, 5), (), None, {"output_dtype": 99}, "output_dtype 99 is no dtype"),
        ((3, 5), (), None, {"precision": 3}, "precision int8 is no floating type"),
        ((3, 5), (), None, {"zero": np.int32}, "nothing is quantised to int32"),
    ],
)
def test_faults_are_refused_alike_by_inference_and_kernel(x, scale, zero, attrs, text):
    attrs = dict(attrs)
    kind = attrs.pop("zero", None)
    zero = scale if kind else zero
    infos = [typed(*x), typed(*scale), None if zero is None else typed(*zero, dtype=kind or np.int8)]
    with pytest.raises(ShapeError) as caught:
        infer("QuantizeLinear", infos, **attrs)
    assert caught.value.what == text
    arrays = [
        np.ones(x, np.float32),
        np.ones(scale, np.float32),
        None if zero is None else np.ones(zero, kind or np.int8),
    ]
    with pytest.raises(RunError) as failed:
        quantize_linear(*arrays, **attrs)
    assert failed.value.what == text


def test_a_zero_point_of_another_type_is_refused():
    with pytest.raises(ShapeError, match="the input is int8 and its zero point uint8"):
        infer("DequantizeLinear", [typed(3, dtype=np.int8), typed(), typed(dtype=np.uint8)])
