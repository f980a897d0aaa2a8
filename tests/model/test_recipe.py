from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pytest

from fuse.errors import LimitError, ModelError
from fuse.ir.dtypes import BOOL, BY_NAME, DOUBLE, FLOAT, FLOATING, INT64, INTEGER, NAME, STRING, Array
from fuse.limits import Limits
from fuse.model import recipe as module
from fuse.model.recipe import Recipe, check, describe, from_json, materialize, to_json

BELL = Recipe("normal", 7, mean=0.5, std=2.0, low=-3.0, high=4.0)
WORD = 1 << 64


def splitmix(state: int) -> int:
    """One output of the published generator, in plain integers."""
    z = state % WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def word(seed: int, index: int) -> int:
    """What the module documents as the 64 bits of element ``index``."""
    golden = 0x9E3779B97F4A7C15
    return splitmix(splitmix(seed + golden) + (index + 1) * golden)


def digest(array: Array) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


# ---- the bits


def test_the_generator_is_splitmix64() -> None:
    golden = 0x9E3779B97F4A7C15
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]  # published, 1234567
    assert [splitmix(1234567 + (i + 1) * golden) for i in range(4)] == known
    assert module._words(5, 40_000, 3).tolist() == [word(5, i) for i in range(40_000, 40_003)]
    assert module._words(WORD - 1, 0, 2).tolist() == [word(WORD - 1, i) for i in range(2)]


@pytest.mark.parametrize("seed", [0, 1, WORD - 1])
def test_normal_is_the_documented_formula(seed: int) -> None:
    got = materialize(Recipe("normal", seed, mean=3.0, std=0.5, low=-9.0, high=9.0), (50,), DOUBLE)
    for index, value in enumerate(got.tolist()):
        lanes = [(word(seed, index) >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
        assert value == (sum(lanes) - 131070.0) * (1 / math.sqrt(4 * (65536**2 - 1) / 12)) * 0.5 + 3.0


def test_uniform_and_bool_are_the_documented_formulas() -> None:
    words = [word(3, i) for i in range(100)]
    shares = [(w >> 11) * 2.0**-53 for w in words]
    uniform = materialize(Recipe("uniform", 3, low=-1.0, high=3.0), (100,), DOUBLE)
    assert uniform.tolist() == [s * 4.0 - 1.0 for s in shares]
    assert materialize(Recipe("bool", 3, mean=0.25), (100,), BOOL).tolist() == [s < 0.25 for s in shares]
    integers = materialize(Recipe("uniform", 3, low=-5, high=11), (100,), INT64)
    assert integers.tolist() == [w % 17 - 5 for w in words]


PINNED = {
    "float": "74254e7a21823dc70b66109632ab0e8fe8358f66556722a9c86797e6364c05ac",
    "double": "58ea215cc16927ad9598ccdeb19af2a954e8d69cfebbaa3716847a16845a382d",
    "float16": "56a251a7da3afb8b169c7083568124b943c5dcf2feb21af58df4f83abebcd79f",
    "bfloat16": "cb8a756eeede427a1aebb8fea27c4fae848b4ef37b171805e26344ba5ee075ee",
    "float8e4m3fn": "27055648dd8e2da826b9f90fe36941261082a99fb3ec6acce2871d1b1fdb81db",
    "float4e2m1": "a41447c45827ba34acbc1d12173aa663aee6130f7fd28e292aa15959215261c1",
    "complex64": "061db4ef831256a9d6fdabcea796aefe3114482d75d13c59f9f30183d7d3a3df",
    "int64": "d078201a758a1f58841cf5043dba06878036cfbe71824b47b8a0098817b92e4d",
    "int8": "7d0cfaafb4ef4e3874c424bb5ead3eda912183b018177c3d38d802de526380a9",
    "uint64": "25a2787fd17267ece57a57b0edee40d1a285786307581caf3c142af5d936c99d",
    "int4": "c7090e514d3e2a47a1daf5de721caeb356bce77457b68e5ae1a7be4036ccba40",
    "float8e8m0": "72a2c8f3e844528b44f8d537ba0403af18e96f6e43dcff2f0b4da542ce01f069",
    "bool": "9a1b2606ce0e7a13e72aba3ff9d8f41360c2080f3c569dba055a1fd9d0754e0e",
}


@pytest.mark.parametrize("name", PINNED)
def test_bits_never_change(name: str) -> None:
    dtype = BY_NAME[name]
    told = BELL
    if dtype == BOOL:
        told = Recipe("bool", 7, mean=0.3)
    elif dtype in INTEGER or name == "float8e8m0":
        low, high = (0, 1 << 63) if name == "uint64" else (-6, 5) if dtype in INTEGER else (120, 130)
        told = Recipe("uniform", 7, low=low, high=high)
    assert digest(materialize(told, (5, 8191), dtype)) == PINNED[name]


@pytest.mark.parametrize("dtype", [FLOAT, BY_NAME["complex64"], INT64], ids=str)
def test_elements_do_not_depend_on_the_chunk(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Recipe("uniform", 1, low=-100, high=100)
    whole = materialize(told, (3 * module.CHUNK + 5,), dtype)
    assert (materialize(told, (100,), dtype) == whole[:100]).all()
    monkeypatch.setattr(module, "CHUNK", 64)
    assert (materialize(told, whole.shape, dtype) == whole).all()


# ---- statistics


def test_normal_has_its_mean_and_deviation() -> None:
    a = materialize(Recipe("normal", 11, mean=-2.0, std=3.0, low=-100.0, high=100.0), (200_000,), DOUBLE)
    assert abs(a.mean() + 2) < 0.03 and abs(a.std() - 3) < 0.03
    z = (a - a.mean()) / a.std()
    assert abs((z**3).mean()) < 0.02 and abs((z**4).mean() - 2.7) < 0.03  # Irwin-Hall of 4: 3 - 6 / (5 * 4)
    assert abs(np.corrcoef(a[:-1], a[1:])[0, 1]) < 0.01


def test_seeds_give_different_numbers() -> None:
    a, b = (materialize(Recipe("normal", s, std=1.0, low=-9.0, high=9.0), (100_000,), DOUBLE) for s in (0, 1))
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert not (a[1:] == b[:-1]).any() or (a[1:] == b[:-1]).mean() < 0.001


def test_clip_keeps_the_sign() -> None:
    a = materialize(Recipe("normal", 0, mean=1.0, std=1.0, low=0.125, high=9.0), (10_000,), BY_NAME["float16"])
    assert float(a.min()) == 0.125


@pytest.mark.parametrize("name", [n for n in BY_NAME if n != "string"])
def test_describe_and_materialize_agree_on_every_dtype(name: str) -> None:
    dtype = BY_NAME[name]
    lanes = np.array([1, 0, 1, 1, 0, 1], np.int8)
    a = lanes.astype(dtype) if dtype != BY_NAME["float8e8m0"] else (lanes + 1).astype(np.float32).astype(dtype)
    told = from_json(to_json(describe(a, 5)))
    b = materialize(told, (4, 50), dtype)
    assert b.dtype == dtype and b.shape == (4, 50) and b.flags.c_contiguous
    real = b.view(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else b.astype(np.float64)
    assert real.min() >= float(a.min().real) and real.max() <= float(a.max().real)
    assert len(set(real.ravel().tolist())) > 1


def test_describe_floats() -> None:
    told = describe(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32), 9)
    assert told == Recipe("normal", 9, mean=3.0, std=math.sqrt(3.5), low=1.0, high=6.0)


def test_describe_leaves_non_finite_elements_out() -> None:
    told = describe(np.array([math.nan, 1.0, math.inf, 3.0, -math.inf]))
    assert (told.mean, told.std, told.low, told.high) == (2.0, 1.0, 1.0, 3.0)
    assert np.isfinite(materialize(told, (1000,), DOUBLE)).all()
    assert describe(np.array([-math.inf, 0.0, 0.0])) == Recipe("constant", value=(0.0,))
    assert describe(np.array([math.nan, math.inf])) == Recipe("constant", value=(0.0,))


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e-200, 1e300, 1.7e308])
def test_describe_neither_overflows_nor_vanishes(scale: float) -> None:
    told = describe(np.array([-1.0, 1.0, 1.0, -1.0]) * scale)
    assert (told.std, told.low, told.high) == (scale, -scale, scale)
    again = materialize(from_json(to_json(told)), (100,), DOUBLE)
    assert np.isfinite(again).all() and abs(again).max() == scale


def test_describe_large_offset_keeps_the_deviation() -> None:
    a = 1e6 + np.tile([-1.0, 1.0], 40_000)
    assert describe(a).std == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("name", [n for n in BY_NAME if n != "string"])
def test_constants_stay_exact(name: str) -> None:
    a = np.array([1, 1, 1], np.int8).astype(BY_NAME[name])
    told = from_json(to_json(describe(a, 5)))
    assert told.kind == "constant"
    assert materialize(told, (7,), a.dtype).tobytes() == a[:1].tobytes() * 7


@pytest.mark.parametrize(
    "element",
    [
        *(-0.0, 0.1, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, np.float32(1e-45), np.float16(-65504)),
        *(1 - 2j, np.complex64(complex(-0.0, math.inf)), np.int64(-(1 << 63)), np.uint64(WORD - 1)),
    ],
)
def test_extreme_constants_stay_exact(element: Any) -> None:
    a = np.full((2, 3), element)
    again = materialize(from_json(to_json(describe(a))), (2, 3), a.dtype)
    assert again.tobytes() == a.tobytes()


def test_constant_nan_stays_nan() -> None:
    told = from_json(to_json(describe(np.full(3, np.nan, np.float32))))
    assert np.isnan(materialize(told, (3,), FLOAT)).all()


def test_both_zeros_are_not_one_constant() -> None:
    told = describe(np.array([0.0, -0.0]))
    assert (materialize(told, (50,), DOUBLE) == 0).all()


def test_integers_keep_their_range() -> None:
    told = describe(np.array([-3, 5, 0], np.int32), 2)
    assert told == Recipe("uniform", 2, low=-3, high=5)
    assert set(materialize(told, (1000,), np.dtype(np.int32)).tolist()) == set(range(-3, 6))


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int8, np.uint8])
def test_integers_of_the_whole_range(dtype: Any) -> None:
    info = np.iinfo(dtype)
    told = from_json(to_json(describe(np.array([info.min, info.max], dtype))))
    a = materialize(told, (4000,), np.dtype(dtype))
    assert float(a.min()) < 0.95 * info.min + 0.05 * info.max and float(a.max()) > 0.95 * info.max + 0.05 * info.min


def test_bool_keeps_its_share() -> None:
    told = describe(np.array([True, False, False, False]), 1)
    assert told == Recipe("bool", 1, mean=0.25)
    assert abs(materialize(told, (100_000,), BOOL).mean() - 0.25) < 0.01


def test_powers_of_two_stay_in_range() -> None:
    dtype = BY_NAME["float8e8m0"]
    a = materialize(describe(np.array([0.25, 8.0], np.float32).astype(dtype)), (300,), dtype).astype(np.float64)
    assert set(a.tolist()) == {0.25, 0.5, 1.0, 2.0, 4.0, 8.0}


def test_strings_are_not_kept() -> None:
    told = describe(np.array(["secret", "word"], object))
    assert "secret" not in to_json(told)
    assert materialize(from_json(to_json(told)), (2, 2), STRING).tolist() == [["s0", "s1"], ["s2", "s3"]]


@pytest.mark.parametrize("name", NAME.values())
@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_rank_zero(name: str, shape: tuple[int, ...]) -> None:
    dtype = BY_NAME[name]
    a = np.full(shape, "a", object) if dtype == STRING else np.ones(shape, np.int8).astype(dtype)
    b = materialize(from_json(to_json(describe(a))), shape, dtype)
    assert b.shape == shape and b.dtype == dtype
    if dtype != STRING:
        assert b.tobytes() == a.tobytes()


def test_describe_takes_any_layout() -> None:
    a = np.arange(24.0).reshape(4, 6)
    told = describe(a.T[::2, ::-1])
    assert (told.low, told.high, told.mean) == (0.0, 22.0, 11.0)
    assert told == describe(np.ascontiguousarray(a.T[::2, ::-1]))


# ---- the text


def test_json_is_one_short_line() -> None:
    assert to_json(BELL) == '{"kind":"normal","seed":7,"mean":0.5,"std":2.0,"low":-3.0,"high":4.0}'
    assert to_json(Recipe("constant", value=(math.inf, math.nan))) == '{"kind":"constant","value":["inf","nan"]}'


@pytest.mark.parametrize(
    "told",
    [
        BELL,
        Recipe("normal", 3, mean=0.1 + 0.2, std=1e-300, low=-0.0, high=1.7976931348623157e308),
        Recipe("uniform", WORD - 1, low=-(1 << 63), high=(1 << 64) - 1),
        Recipe("bool", 0, mean=1 / 3),
        Recipe("constant", value=(-math.inf, 2)),
        Recipe("text"),
    ],
)
def test_json_reads_back(told: Recipe) -> None:
    assert from_json(to_json(told)) == told


NORMAL = {"kind": "normal", "seed": 1, "mean": 0.0, "std": 1.0, "low": -1.0, "high": 1.0}
UNIFORM = {"kind": "uniform", "seed": 1, "low": 0, "high": 9}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "null",
        "[" * 900,
        "{}",
        '{"kind":"lognormal","seed":1}',
        '{"kind":["normal"]}',
        '{"kind":"text","kind":"text"}',
        '{"kind":"text","seed":' + "1" * 990 + "}",
        json.dumps(NORMAL | {"path": "/etc/passwd"}),
        json.dumps(NORMAL | {"value": [1]}),
        json.dumps({k: v for k, v in NORMAL.items() if k != "std"}),
        json.dumps(NORMAL | {"std": math.nan}),
        json.dumps(NORMAL | {"std": math.inf}),
        json.dumps(NORMAL).replace('"std": 1.0', '"std": 1e999'),
        json.dumps(NORMAL | {"std": -1.0}),
        json.dumps(NORMAL | {"std": "1"}),
        json.dumps(NORMAL | {"std": None}),
        json.dumps(NORMAL | {"std": True}),
        json.dumps(NORMAL | {"mean": 10**300}),
        json.dumps(NORMAL | {"low": 2.0}),
        json.dumps(NORMAL | {"seed": -1}),
        json.dumps(NORMAL | {"seed": WORD}),
        json.dumps(NORMAL | {"seed": 1.0}),
        json.dumps(UNIFORM | {"low": -1e308, "high": 1e308}),
        json.dumps(UNIFORM | {"high": 1 << 64}),
        json.dumps({"kind": "bool", "seed": 0, "mean": 1.5}),
        json.dumps({"kind": "constant", "value": []}),
        json.dumps({"kind": "constant", "value": 1}),
        json.dumps({"kind": "constant", "value": ["one"]}),
        json.dumps({"kind": "constant", "value": [[1]]}),
        json.dumps({"kind": "constant", "value": [1, 2, 3]}),
        json.dumps({"kind": "constant", "value": [1] * 1000}),
    ],
)
def test_json_refuses(text: str) -> None:
    with pytest.raises(ModelError, match="recipe"):
        from_json(text)


def test_messages_are_printable() -> None:
    with pytest.raises(ModelError) as caught:
        from_json(json.dumps(NORMAL | {"\x1b[31m" + "a" * 200: 1}))
    assert str(caught.value).isprintable() and len(str(caught.value)) < 250


# ---- what suits what


@pytest.mark.parametrize(
    ("told", "name"),
    [
        (BELL, "int8"),
        (BELL, "bool"),
        (BELL, "string"),
        (BELL, "float8e8m0"),
        (Recipe("text"), "float"),
        (Recipe("bool", mean=0.5), "float"),
        (Recipe("uniform", low=0, high=1), "bool"),
        (Recipe("uniform", low=0.0, high=1.0), "int8"),
        (Recipe("uniform", low=-129, high=0), "int8"),
        (Recipe("uniform", low=0, high=16), "uint4"),
        (Recipe("uniform", low=-1, high=0), "uint64"),
        (Recipe("uniform", low=0.0, high=1e39), "float"),
        (Recipe("normal", std=1.0, low=-7e4, high=1.0), "float16"),
        (Recipe("normal", std=1.0, low=-1.0, high=449.0), "float8e4m3fn"),
        (Recipe("constant", value=(1.0,)), "int8"),
        (Recipe("constant", value=(256,)), "uint8"),
        (Recipe("constant", value=(2,)), "bool"),
        (Recipe("constant", value=(1e40,)), "float"),
        (Recipe("constant", value=(math.nan,)), "int32"),
        (Recipe("constant", value=(1, 2)), "float"),
        (Recipe("constant", value=(1,)), "string"),
    ],
)
def test_recipes_that_do_not_suit_the_dtype(told: Recipe, name: str) -> None:
    with pytest.raises(ModelError, match="recipe of a stripped tensor"):
        check(told, (2,), BY_NAME[name])
    with pytest.raises(ModelError):
        materialize(told, (2,), BY_NAME[name])


def test_a_small_file_cannot_ask_for_a_large_array() -> None:
    with pytest.raises(LimitError, match="bytes"):
        materialize(BELL, (1 << 40, 1 << 40), FLOAT)
    with pytest.raises(LimitError):
        materialize(Recipe("text"), (1 << 30,), STRING)
    with pytest.raises(LimitError):
        materialize(BELL, (26,), FLOAT, Limits(stripped_bytes=100))
    assert materialize(BELL, (25,), FLOAT, Limits(stripped_bytes=100)).size == 25
    with pytest.raises(ModelError):
        materialize(BELL, (-1, -1), FLOAT)


def test_every_float_dtype_stays_within_its_bounds() -> None:
    for dtype in FLOATING - {BY_NAME["float8e8m0"]}:
        a = materialize(Recipe("normal", 3, std=1.0, low=-0.5, high=0.5), (5000,), dtype).astype(np.float64)
        assert a.min() == -0.5 and a.max() == 0.5
