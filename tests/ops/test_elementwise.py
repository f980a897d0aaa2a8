"""Elementwise operators: exact arithmetic, functions to a few ULP, bits, comparison, and what must be refused."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import OPERATORS
from tests.ops.cases import check_case, infer, ints, kernel, known, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says, ulps

INF, NAN = np.inf, np.nan
BF16 = ml_dtypes.bfloat16
HALVES = [np.float16, BF16]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FUNCTIONS = {
    "Exp": math.exp,
    "Log": math.log,
    "Sqrt": math.sqrt,
    "Sin": math.sin,
    "Cos": math.cos,
    "Tan": math.tan,
    "Asin": math.asin,
    "Acos": math.acos,
    "Atan": math.atan,
    "Sinh": math.sinh,
    "Cosh": math.cosh,
    "Tanh": math.tanh,
    "Asinh": math.asinh,
    "Acosh": math.acosh,
    "Atanh": math.atanh,
    "Erf": math.erf,
    "Reciprocal": lambda v: 1 / v,
}
HOME = [op for op, record in OPERATORS.items() if record.kernel.__module__ == "fuse.ops.elementwise"]
MODULE = sorted({*HOME, "Max", "Min", "Neg", "Abs"})


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases(*MODULE))
def test_onnx_cases(case):
    check_case(case, exact=True)


# ---- arithmetic


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates(dtype):
    info = np.iinfo(dtype)
    a = np.array([7, 8, 1, info.max, info.max, info.min, info.min, 0, 100], dtype)
    b = np.array([2, 3, 2, 1, info.max, info.max, 2, 5, 7], dtype)
    wanted = [int(x) // int(y) if x >= 0 else -(-int(x) // int(y)) for x, y in zip(a, b, strict=True)]
    assert kernel("Div", a, b).tolist() == wanted
    if info.min < 0:
        assert kernel("Div", np.array([-7, 7, -7, -8], dtype), np.array([2, -2, -2, 3], dtype)).tolist() == [
            -3,
            -3,
            3,
            -2,
        ]
        with pytest.raises(RunError, match="overflows"):
            kernel("Div", np.array([1, info.min], dtype), np.array([1, -1], dtype))


@pytest.mark.parametrize("op", ["Div", "Mod"])
def test_integer_division_by_zero(op):
    with pytest.raises(RunError, match="division by zero"):
        kernel(op, ints(1, 2), ints(1, 0))


def test_float_division_by_zero():
    x = np.array([1, -1, 0, NAN], np.float32)
    assert str(kernel("Div", x, np.zeros(4, np.float32)).tolist()) == "[inf, -inf, nan, nan]"
    assert str(kernel("Reciprocal", np.array([0, -0.0, INF], np.float32)).tolist()) == "[inf, -inf, 0.0]"


def test_integers_wrap():
    assert kernel("Add", np.array([127], np.int8), np.array([1], np.int8)).tolist() == [-128]
    assert kernel("Mul", np.array([200], np.uint8), np.array([2], np.uint8)).tolist() == [144]
    assert kernel("Neg", np.array([-128, 5], np.int8)).tolist() == [-128, -5]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fmod", [0, 1])
def test_integer_mod(dtype, fmod):
    info = np.iinfo(dtype)
    pairs = [(7, 3), (info.max, 2), (info.min, 3), (0, 5), (5, info.max)]
    pairs += [(-7, 3), (7, -3), (-7, -3), (info.min, -1), (info.min + 1, info.max)] if info.min < 0 else []
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))
    wanted = [int(math.fmod(x, y)) if fmod and abs(x) < 2**53 else x % y for x, y in pairs]
    if fmod:
        wanted = [abs(x) % abs(y) * (1 if x >= 0 else -1) for x, y in pairs]
    assert kernel("Mod", a, b, fmod=fmod).tolist() == wanted


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BF16])
def test_float_mod_at_the_special_values_of_the_text(dtype):
    def mod(a, b, fmod):
        return str(kernel("Mod", np.array(a, dtype), np.array(b, dtype), fmod=fmod).astype(np.float64).tolist())

    a = [0.0, -0.0, 0.0, -0.0, INF, -INF, 1, 1, -1, 1, -1, NAN, 1, 5.5, -5.5, 5.5]
    b = [3.0, 3.0, -3.0, -3.0, 2, INF, 0, INF, INF, -INF, -INF, 1, NAN, 2, 2, -2]
    floor = [0.0, 0.0, -0.0, -0.0, NAN, NAN, NAN, 1.0, INF, -INF, -1.0, NAN, NAN, 1.5, 0.5, -0.5]
    assert mod(a, b, 0) == str(floor)
    trunc = [0.0, -0.0, 0.0, -0.0, NAN, NAN, NAN, 1.0, -1.0, 1.0, -1.0, NAN, NAN, 1.5, -1.5, 1.5]
    assert mod(a, b, 1) == str(trunc)


def test_pow():
    assert kernel("Pow", ints(2, 3, -2, 0), ints(10, 0, 3, 0)).tolist() == [1024, 1, -8, 1]
    assert kernel("Pow", ints(1, -1, -1, 2, -3), ints(-2, -3, -4, -1, -1)).tolist() == [1, -1, 1, 0, 0]
    with pytest.raises(RunError, match="zero to a negative"):
        kernel("Pow", ints(0), ints(-1))
    got = kernel("Pow", ints(2, 9, 10), np.array([0.5, 0.5, -1], np.float32))
    assert (got.dtype, got.tolist()) == (np.dtype(np.int64), [1, 3, 0])


@pytest.mark.parametrize("exponent", [2, 2.0, 3.0, 0.5, -1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_pow_of_floats(exponent, dtype):
    x = np.abs(normal(1, 50)).astype(dtype) + dtype(0.1)
    got = kernel("Pow", x, np.array(exponent, np.int64 if exponent == 2 else dtype))
    assert got.dtype == dtype
    assert ulps(got, x.astype(np.float64) ** exponent, dtype).max() <= 1.01


def test_pow_takes_its_shape_from_both():
    x = normal(1, 3)
    assert kernel("Pow", x, np.array([[2.0]], np.float32)).shape == (1, 3)
    assert kernel("Pow", x, np.full((2, 1), 2, np.float32)).shape == (2, 3)
    assert shape_of(infer("Pow", [typed(3), typed("n", 1, dtype=np.int32)])[0]) == "[n, 3]"


def test_a_large_odd_exponent_of_another_dtype_keeps_its_parity():
    got = kernel("Pow", np.array([-1, -1], np.float32), np.array([16777217, 16777216]))
    assert got.tolist() == [-1, 1]


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_half_precision_are_rounded_once(dtype):
    one, tiny = np.array([1], dtype), np.array([0.0009 if dtype == np.float16 else 0.0035], dtype)
    total = 1 + 3 * float(tiny[0])
    assert kernel("Sum", one, tiny, tiny, tiny).tolist() == np.array([total]).astype(dtype).tolist()
    assert kernel("Sum", one, tiny, tiny, tiny).tolist() != one.tolist()
    assert kernel("Mean", np.array([60000], np.float16), np.array([60000], np.float16)).tolist() == [60000]


def test_extremes_carry_nan():
    a, b = np.array([1, NAN, 3, -INF], np.float32), np.array([2, 1, NAN, INF], np.float32)
    assert str(kernel("Max", a, b).tolist()) == "[2.0, nan, nan, inf]"
    assert str(kernel("Min", a, b).tolist()) == "[1.0, nan, nan, -inf]"
    assert kernel("Max", ints(1, 5), ints(3), ints(4, 4)).tolist() == [4, 5]


@pytest.mark.parametrize("op", ["Max", "Min", "Sum", "Mean"])
def test_variadic_operators_of_one_input(op):
    x = normal(1, 3)
    assert kernel(op, x).tolist() == x.tolist()


# ---- functions


@pytest.mark.parametrize("op", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "limit"), [(np.float32, 4), (np.float64, 4), (np.float16, 0.51)])
def test_functions(op, dtype, limit):
    """NumPy promises 4 ULP, and gives 2.4 or less here."""
    rng, top = np.random.default_rng(3), math.log(np.finfo(dtype).max)
    x = np.concatenate([rng.standard_normal(500) * 3, rng.uniform(-1, 1, 500), np.exp(rng.uniform(-9, 9, 500))])
    x = np.concatenate([x, -x[-200:], rng.uniform(-top, top, 200) * 0.97])
    if op in ("Exp", "Sinh", "Cosh"):
        x = x[np.abs(x) < 0.98 * top]
    if op in ("Asin", "Acos", "Atanh"):
        x = x[np.abs(x) < 0.999]
    if op in ("Log", "Sqrt", "Acosh"):
        x = np.abs(x) + (1.001 if op == "Acosh" else 1e-3)
    x = x.astype(dtype)
    wanted = np.array([FUNCTIONS[op](v) for v in x.tolist()])
    kept = np.abs(wanted) < float(np.finfo(dtype).max)
    assert kept.mean() > 0.9
    assert ulps(kernel(op, x)[kept], wanted[kept], dtype).max() <= limit


SPECIAL = {
    "Exp": (["inf", "-inf", "nan", "0", "1000"], "[inf, 0.0, nan, 1.0, inf]"),
    "Log": (["inf", "-1", "nan", "0", "1"], "[inf, nan, nan, -inf, 0.0]"),
    "Sqrt": (["inf", "-1", "nan", "-0.0", "4"], "[inf, nan, nan, -0.0, 2.0]"),
    "Sin": (["inf", "-inf", "nan", "-0.0"], "[nan, nan, nan, -0.0]"),
    "Acos": (["2", "-2", "nan", "1"], "[nan, nan, nan, 0.0]"),
    "Acosh": (["0.5", "inf", "nan", "1"], "[nan, inf, nan, 0.0]"),
    "Atanh": (["1", "-1", "nan", "2", "-0.0"], "[inf, -inf, nan, nan, -0.0]"),
    "Tanh": (["inf", "-inf", "nan", "-0.0"], "[1.0, -1.0, nan, -0.0]"),
    "Sign": (["inf", "-3", "nan", "0"], "[1.0, -1.0, nan, 0.0]"),
    "Round": (["0.5", "1.5", "2.5", "-0.5", "-1.5", "nan"], "[0.0, 2.0, 2.0, -0.0, -2.0, nan]"),
    "Floor": (["-0.5", "0.5", "inf", "-0.0"], "[-1.0, 0.0, inf, -0.0]"),
    "Ceil": (["-0.5", "0.5", "-inf", "0.1"], "[-0.0, 1.0, -inf, 1.0]"),
}


@pytest.mark.parametrize("op", SPECIAL)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, BF16])
def test_special_values(op, dtype):
    x, wanted = SPECIAL[op]
    assert str(kernel(op, np.array(x, np.float64).astype(dtype)).astype(np.float64).tolist()) == wanted


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
def test_functions_of_scalars_and_of_nothing(op):
    assert kernel(op, np.array(1.0, np.float32)).shape == ()
    assert kernel(op, np.ones((0, 3), np.float32)).shape == (0, 3)


# ---- bits


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_bit_shift(dtype, direction):
    info, width = np.iinfo(dtype), np.iinfo(dtype).bits
    x = np.array([info.min, info.max, 0, 1, 5, info.max - 3], dtype)
    if info.min < 0:
        x = np.append(x, np.array([-1, -5, -100], dtype))
    for amount in [0, 1, 3, width - 1, width, width + 1, 100, *([-1, -100] if info.min < 0 else [])]:
        got = kernel("BitShift", x, np.array(amount, dtype), direction=direction)
        assert got.dtype == dtype
        for v, result in zip(x.tolist(), got.tolist(), strict=True):
            if not 0 <= amount < width:
                assert result == (-1 if direction == "RIGHT" and v < 0 else 0)
            elif direction == "RIGHT":
                assert result == v >> amount
            else:
                assert result % 2**width == (v << amount) % 2**width


def test_bit_shift_broadcasts():
    got = kernel("BitShift", np.array([[1], [2]], np.uint8), np.array([0, 1, 9], np.uint8), direction="LEFT")
    assert got.tolist() == [[1, 2, 0], [2, 4, 0]]
    assert kernel("BitShift", np.array(8, np.uint8), np.array(2, np.uint8), direction="RIGHT").shape == ()


def test_a_shift_to_nowhere():
    for check in (
        lambda: infer("BitShift", [typed(1, dtype=np.uint8)] * 2, direction="UP"),
        lambda: kernel("BitShift", np.array([1], np.uint8), np.array([1], np.uint8), direction="UP"),
    ):
        with pytest.raises((ShapeError, RunError), match="direction 'UP'"):
            check()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bitwise(dtype):
    info = np.iinfo(dtype)
    a, b = np.array([info.max, info.min, 0, 85], dtype), np.array([1, info.max, info.max, 51], dtype)
    for op, step in (
        ("BitwiseAnd", lambda p, q: p & q),
        ("BitwiseOr", lambda p, q: p | q),
        ("BitwiseXor", lambda p, q: p ^ q),
    ):
        assert kernel(op, a, b).tolist() == [step(p, q) for p, q in zip(a.tolist(), b.tolist(), strict=True)]
    assert kernel("BitwiseNot", a).tolist() == [info.max + info.min - v for v in a.tolist()]


# ---- comparison, logic, choice


def test_comparison_with_nan():
    a, b = np.array([NAN, 1, INF, -0.0], np.float32), np.array([NAN, NAN, INF, 0.0], np.float32)
    assert kernel("Equal", a, b).tolist() == [False, False, True, True]
    assert kernel("GreaterOrEqual", a, b).tolist() == [False, False, True, True]
    assert kernel("Less", a, b).tolist() == [False] * 4


def test_equality_of_strings_and_bools():
    assert kernel("Equal", np.array(["a", "b"], object), np.array(["a", "c"], object)).tolist() == [True, False]
    assert kernel("Equal", np.array([True, False]), np.array([True])).tolist() == [True, False]


@pytest.mark.parametrize(("negative", "positive"), [(1, 1), (0, 1), (1, 0), (0, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BF16, ml_dtypes.float8_e5m2])
def test_is_inf(negative, positive, dtype):
    x = np.array([INF, -INF, NAN, 0, 3]).astype(dtype)
    got = kernel("IsInf", x, detect_negative=negative, detect_positive=positive)
    assert got.tolist() == [bool(positive), bool(negative), False, False, False]
    assert kernel("IsNaN", x).tolist() == [False, False, True, False, False]


def test_where_keeps_dtype_and_broadcasts():
    got = kernel("Where", np.array([[True], [False]]), np.array(["a"], object), np.array(["b", "c"], object))
    assert got.tolist() == [["a", "a"], ["b", "c"]]
    low = kernel("Where", np.array([True, False]), np.array([1], np.int8), np.array([-1], np.int8))
    assert (low.dtype, low.tolist()) == (np.dtype(np.int8), [1, -1])


@pytest.mark.parametrize("op", ["Add", "Div", "Mod", "Pow", "Max", "Greater"])
def test_onnxruntime(op):
    a, b = normal(1, 3, 1, 5) * 4, np.abs(normal(2, 4, 1)) + 0.5
    a = np.abs(a) if op == "Pow" else a
    attrs = {"fmod": 1} if op == "Mod" else {}
    same(kernel(op, a, b, **attrs), onnxruntime_says(op, [a, b], **attrs), rtol=3e-7)


# ---- inference


def test_inferred():
    assert shape_of(infer("Add", [typed("n", 1), typed(3)])[0]) == "[n, 3]"
    assert infer("Equal", [typed("n"), typed("n")])[0].dtype == bool
    with pytest.raises(ShapeError, match="do not broadcast"):
        infer("Max", [typed(2), typed(3)])
    with pytest.raises(ShapeError, match="different dtypes"):
        infer("BitwiseAnd", [typed(2, dtype=np.int32), typed(2, dtype=np.int64)])


def test_known_numbers_are_computed():
    assert infer("Max", [known(1, 5), known(3, 3)])[0].value.tolist() == [3, 5]
    assert infer("Mod", [known(7, -7), known(3, 3)])[0].value.tolist() == [1, 2]
    assert infer("Less", [known(1, 5), known(3, 3)])[0].value.tolist() == [True, False]
    assert infer("BitShift", [known(1), known(3)], direction="LEFT")[0].value.tolist() == [8]
    assert infer("Div", [known(1), known(0)])[0].value is None


def test_nothing_is_concluded_from_a_symbol():
    assert infer("Equal", [known("n", 2), known(1, 2)])[0].value is None
    assert infer("Max", [known("n"), known(1)])[0].value is None
    assert str(infer("Add", [known("n", 2), known(1, 2)])[0].value.tolist()) == "[n + 1, 4]"
