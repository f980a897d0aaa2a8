"""Changes of dtype: rounding, saturation, the small formats, strings, and bits that stay."""

from __future__ import annotations

import itertools
import math
import re

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dtypes import BY_CODE, BY_NAME, CODE, FLOATING, INTEGER, NAME, STRING
from tests.ops.cases import check_case, infer, kernel, known, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

INF, NAN = np.inf, np.nan
BF16 = ml_dtypes.bfloat16
F8 = [BY_NAME[f"float8{n}"] for n in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")]
NUMBERS = sorted((FLOATING | INTEGER | {np.dtype(bool)}) - {BY_NAME["float8e8m0"]}, key=str)


def width(dtype):
    """Bits of an element, by ONNX's name."""
    return {"bool": 8, "float": 32, "double": 64}.get(NAME[dtype]) or int(re.search(r"\d+", NAME[dtype])[0])


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases("Cast", "CastLike", "BitCast"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def cast(x, to, **attrs):
    return kernel("Cast", np.asarray(x), to=CODE[np.dtype(to)], **attrs)


def shown(x):
    return str(x.astype(np.float64).tolist())


# ---- 8-bit floats


@pytest.mark.parametrize("dtype", F8, ids=str)
@pytest.mark.parametrize("source", [np.float16, BF16, np.float32, np.float64])
def test_the_tables_of_the_text(dtype, source):
    top = float(ml_dtypes.finfo(dtype).max)
    x = np.array([0, NAN, INF, -INF, 60000, -60000]).astype(source)
    assert shown(cast(x, dtype)) == str([0.0, NAN, top, -top, min(60000, top), -min(60000, top)])
    over = INF if dtype == BY_NAME["float8e5m2"] else NAN
    inf, minus = (INF, -INF) if dtype == BY_NAME["float8e5m2"] else (NAN, NAN)
    wanted = [0.0, NAN, inf, minus, over, -over]
    if top > 50000:  # 60000 rounds to 57344, the largest number
        wanted[4:] = [top, -top]
    assert shown(cast(x, dtype, saturate=0)) == str(wanted)
    signed = math.copysign(1, float(cast(np.array([-0.0]).astype(source), dtype)[0]))
    assert signed == (1 if "fnuz" in str(dtype) else -1)


@pytest.mark.parametrize("dtype", F8, ids=str)
def test_every_8_bit_float_survives(dtype):
    every = np.arange(256, dtype=np.uint8).view(dtype)
    for wider in (np.float16, BF16, np.float32, np.float64):
        back = cast(cast(every, wider), dtype, saturate=0)
        assert shown(back) == shown(every)


@pytest.mark.parametrize("dtype", F8, ids=str)
@pytest.mark.parametrize("source", [np.float32, np.float64])
def test_rounding_to_nearest_even(dtype, source):
    every = np.sort(np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64))
    every = np.unique(every[np.isfinite(every)])
    low, high = every[:-1], every[1:]
    middle = (low + high) / 2
    even = np.where(low.astype(dtype).view(np.uint8) % 2 == 0, low, high)
    assert cast(middle.astype(source), dtype).astype(float).tolist() == even.tolist()
    for side, wanted in ((INF, high), (-INF, low)):
        beside = np.nextafter(middle.astype(source), source(side))
        assert cast(beside, dtype).astype(float).tolist() == wanted.tolist()


@pytest.mark.parametrize("dtype", F8, ids=str)
def test_integers_saturate(dtype):
    top = float(ml_dtypes.finfo(dtype).max)
    got = cast(np.array([10**6, -(10**6), 3, 2**62]), dtype)
    assert got.astype(float).tolist() == [top, -top, 3, top]
    assert cast(np.array([True, False]), dtype).astype(float).tolist() == [1, 0]


# ---- float8e8m0

E8M0 = BY_NAME["float8e8m0"]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("up", [1, 2, 2, 2, 4, 0.25, 2**-126]),
        ("down", [1, 1, 1, 1, 2, 0.125, 2**-127]),
        ("nearest", [1, 1, 2, 2, 4, 0.25, 2**-126]),
    ],
)
@pytest.mark.parametrize("saturate", [0, 1])
def test_rounding_to_a_power_of_two(mode, wanted, saturate):
    x = np.array([1, 1.25, 1.5, 1.75, 3, 0.2, 1.5 * 2**-127])
    for source in (np.float32, np.float64):
        got = cast(x.astype(source), E8M0, round_mode=mode, saturate=saturate)
        if source == np.float64:
            assert got.astype(np.float64).tolist() == wanted
        else:
            assert got[:-1].astype(np.float64).tolist() == wanted[:-1]


def test_what_no_power_of_two_holds():
    x = np.array([0, NAN, INF, 2.0**127 * 1.5, 2.0**-128, 2.0**127, 2.0**-127])
    low, top = 2.0**-127, 2.0**127
    assert shown(cast(x, E8M0)) == str([low, NAN, top, top, low, top, low])
    assert shown(cast(x, E8M0, round_mode="nearest", saturate=0)) == str([NAN, NAN, NAN, NAN, NAN, top, low])
    assert shown(cast(np.array([-1.0, -INF]), E8M0)) == "[nan, nan]"


def test_every_power_of_two_survives():
    every = np.arange(255, dtype=np.uint8).view(E8M0)
    for mode in ("up", "down", "nearest"):
        assert cast(cast(every, np.float64), E8M0, round_mode=mode, saturate=0).view(np.uint8).tolist() == [*range(255)]


def test_an_unknown_rounding():
    with pytest.raises(RunError, match="round_mode 'out'"):
        cast(np.ones(1), E8M0, round_mode="out")
    with pytest.raises(ShapeError, match="round_mode 'out'"):
        infer("Cast", [typed(1)], to=CODE[E8M0], round_mode="out")


# ---- integers


@pytest.mark.parametrize("dtype", sorted(INTEGER, key=str), ids=str)
@pytest.mark.parametrize("source", [np.int64, np.int16, np.uint8])
def test_integers_drop_their_higher_bits(dtype, source):
    x = np.array([0, 1, 7, 100, 200, 255, *([-1, -7, -200, 32767] if np.dtype(source).itemsize > 1 else [])], source)
    low = int(ml_dtypes.iinfo(dtype).min)
    assert [int(v) for v in cast(x, dtype)] == [(int(v) - low) % 2 ** width(dtype) + low for v in x]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
@pytest.mark.parametrize("source", [np.float32, np.float64, BF16])
def test_floats_truncate_and_saturate(dtype, source):
    info = np.iinfo(dtype)
    x = np.array([0.75, -0.75, 1.5, 100.5, NAN, INF, -INF, 1e30, -1e30]).astype(source)
    wanted = [0, 0, 1, int(float(x[3])), 0, info.max, info.min, info.max, info.min]
    got = cast(x, dtype)
    assert (got.dtype, got.tolist()) == (np.dtype(dtype), wanted)
    assert cast(x[:4], dtype).tolist() == wanted[:4]


def test_the_last_numbers_that_an_integer_holds():
    edge = np.array([2147483520, -2147483648, 2147483648], np.float32)
    assert cast(edge, np.int32).tolist() == [2147483520, -2147483648, 2147483647]
    assert cast(np.array([2147483647.5, -2147483648.5]), np.int32).tolist() == [2147483647, -2147483648]
    assert cast(np.array([2.0**63, -(2.0**63)]), np.int64).tolist() == [2**63 - 1, -(2**63)]
    assert cast(np.array([255.9, 256, -0.9]), np.uint8).tolist() == [255, 255, 0]


# ---- everything to everything


def values(dtype):
    if dtype.kind == "b":
        return np.array([True, False])
    return np.array([0, 1, *([] if str(dtype).startswith("uint") else [-1])]).astype(dtype)


@pytest.mark.parametrize(("source", "target"), [*itertools.product(NUMBERS, NUMBERS)], ids=str)
def test_small_numbers_go_everywhere(source, target):
    x = values(source)
    got = cast(x, target)
    assert (got.dtype, got.shape) == (target, x.shape)
    wanted = [float(v) for v in x]
    if target.kind == "b":
        wanted = [float(v != 0) for v in x]
    elif str(target).startswith("uint") and x.size == 3:
        got, wanted = got[:2], wanted[:2]
    assert [float(v) for v in got] == wanted


@pytest.mark.parametrize("source", [np.float16, np.float32, np.float64, BF16, *F8])
def test_to_bool(source):
    x = np.array([0, -0.0, 1, -2, 0.25, NAN]).astype(source)
    assert cast(x, bool).tolist() == [False, False, True, True, True, True]


def test_bfloat16_is_rounded_once():
    rng, wide = np.random.default_rng(1), []
    for bits in (9, 16, 24, 33, 53):
        wide += [int(v) for v in rng.integers(2 ** (bits - 1), 2**bits, 200)]
    wide += [2**k + 2 ** (k - 8) + d for k in range(30, 52) for d in (-1, 0, 1)]  # around halves

    def nearest(v):
        step = 2 ** max(v.bit_length() - 8, 0)
        down = v // step
        rest = 2 * (v - down * step)
        return (down + (rest > step or (rest == step and down % 2))) * step

    for source in (np.int64, np.float64):
        assert [int(v) for v in cast(np.array(wide, source), BF16)] == [nearest(v) for v in wide]


def test_overflow_to_an_infinity():
    x = np.array([70000, -70000, 65519, 65520], np.float32)
    assert cast(x, np.float16).tolist() == [INF, -INF, 65504, INF]
    assert cast(np.array([1e39, -1e39]), np.float32).tolist() == [INF, -INF]


def test_the_same_dtype_is_the_same_array():
    x = normal(1, 3)
    assert cast(x, np.float32) is x


# ---- strings


def texts(*values):
    x = np.empty(len(values), object)
    x[:] = values
    return x


def test_numbers_from_strings():
    x = texts("3.14", "1000", "1e-5", "1E8", "+INF", "inf", "-INF", "NaN", " -0.0 ")
    wanted = "[3.14, 1000.0, 1e-05, 100000000.0, inf, inf, -inf, nan, -0.0]"
    assert str(cast(x, np.float64).tolist()) == wanted
    assert cast(x[:2], np.float16).tolist() == [3.140625, 1000]
    assert cast(texts("9007199254740993", "-7", "100.5", "1e3"), np.int64).tolist() == [9007199254740993, -7, 100, 1000]
    assert cast(texts("18446744073709551615"), np.uint64).tolist() == [2**64 - 1]
    assert cast(texts("0", "1", "0.5"), bool).tolist() == [False, True, True]
    assert cast(texts("1000", "nan"), F8[0]).astype(float).tolist()[0] == 448
    assert [int(v) for v in cast(texts("7", "-8"), BY_NAME["int4"])] == [7, -8]


@pytest.mark.parametrize(("text", "to"), [("Hello", np.float32), ("", np.int32), ("inf", np.int64), ("300", np.int8)])
def test_what_is_not_a_number(text, to):
    with pytest.raises(RunError):
        cast(texts(text), to)


def test_strings_from_numbers():
    assert cast(np.array([314.15926, 0.1, 3, -0.0, 1e-7, 1e20], np.float32), STRING).tolist() == [
        *("314.15927", "0.1", "3", "-0", "0.0000001", "100000000000000000000")
    ]
    assert cast(np.array([0.1, 1 / 3]), STRING).tolist() == ["0.1", "0.3333333333333333"]
    assert cast(np.array([NAN, INF, -INF], np.float32), STRING).tolist() == ["NaN", "INF", "-INF"]
    assert cast(np.array([True, False]), STRING).tolist() == ["1", "0"]
    assert cast(np.array([-(2**63), 5]), STRING).tolist() == [str(-(2**63)), "5"]
    assert cast(np.array([1.5, -2]).astype(BF16), STRING).tolist() == ["1.5", "-2"]
    assert cast(np.array([7, -8]).astype(BY_NAME["int4"]), STRING).tolist() == ["7", "-8"]
    assert cast(np.array(2.5), STRING).shape == ()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, BF16])
def test_strings_read_back(dtype):
    x = (normal(1, 200, dtype=np.float64) * np.exp(normal(2, 200, dtype=np.float64) * 3)).astype(dtype)
    assert cast(cast(x, STRING), dtype).tolist() == x.tolist()


# ---- CastLike, BitCast


def test_cast_like():
    got = kernel("CastLike", np.array([1e6, -3], np.float32), np.zeros(0, F8[0]))
    assert (got.dtype, got.astype(float).tolist()) == (F8[0], [448, -3])
    assert np.isnan(kernel("CastLike", np.array([1e6]), np.zeros(0, F8[0]), saturate=0).astype(float)).all()
    found = infer("CastLike", [typed("n"), typed(3, dtype=np.int32)])[0]
    assert (shape_of(found), found.dtype) == ("[n]", np.dtype(np.int32))


@pytest.mark.parametrize(("source", "target"), [*itertools.product(BY_CODE.values(), BY_CODE.values())], ids=str)
def test_bits_stay(source, target):
    if STRING in (source, target) or width(source) != width(target):
        with pytest.raises(RunError, match="bits"):
            kernel("BitCast", np.zeros(2, source), to=CODE[target])
        with pytest.raises(ShapeError, match="bits"):
            infer("BitCast", [typed(2, dtype=source)], to=CODE[target])
        return
    bits = width(source)
    x = np.random.default_rng(1).bytes(8 * source.itemsize) if bits > 8 else bytes(range(2**bits))
    x = np.frombuffer(x, source)[: 2 if bool in (source, target) else None]
    got = kernel("BitCast", x, to=CODE[target])
    assert (got.dtype, got.shape) == (target, x.shape)
    mask = 2 ** min(bits, 8) - 1
    assert (got.view(np.uint8) & mask).tolist() == (x.view(np.uint8) & mask).tolist()
    assert infer("BitCast", [typed("n", dtype=source)], to=CODE[target])[0].dtype == target


def test_bits_of_known_numbers():
    assert kernel("BitCast", np.array([1, -2], np.float32), to=CODE[np.dtype(np.int32)]).tolist() == [
        0x3F800000,
        -(2**30),
    ]
    assert [
        int(v) for v in kernel("BitCast", np.array([-1, 7]).astype(BY_NAME["int4"]), to=CODE[BY_NAME["uint4"]])
    ] == [15, 7]
    assert kernel("BitCast", np.array(1.0, np.float32), to=CODE[np.dtype(np.int32)]).shape == ()
    assert kernel("BitCast", normal(1, 3, 4).T, to=CODE[np.dtype(np.int32)]).shape == (4, 3)


# ---- inference


def test_inferred():
    found = infer("Cast", [typed("n", 3)], to=CODE[np.dtype(np.int32)])[0]
    assert (shape_of(found), found.dtype) == ("[n, 3]", np.dtype(np.int32))
    assert infer("Cast", [known(1, 300)], to=CODE[np.dtype(np.int8)])[0].value.tolist() == [1, 44]
    assert infer("Cast", [known("n", 2)], to=7)[0].value is not None
    assert infer("Cast", [known("n", 2)], to=6)[0].value is None
    assert infer("Cast", [known(3)], to=1)[0].value is None
    for op in ("Cast", "BitCast"):
        with pytest.raises(ShapeError, match="no dtype 99"):
            infer(op, [typed(3)], to=99)


@pytest.mark.parametrize("to", [np.float16, np.float64, np.int32, np.uint8, bool])
def test_onnxruntime(to):
    x = np.abs(normal(1, 30)) * 50
    same(cast(x, to), onnxruntime_says("Cast", [x], to=CODE[np.dtype(to)]))
