"""Numbers and strings read back to the bits they were written from."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse.ir.dtypes import BOOL, BY_NAME, INTEGER, STRING
from fuse.ir.spell import (
    digest,
    label,
    path,
    quoted,
    read_elements,
    read_float,
    spell_elements,
    spell_float,
    unquoted,
    word,
)

quick = settings(max_examples=200, deadline=None, derandomize=True)


@given(st.text(st.characters(exclude_categories=[])))
@quick
def test_strings(text: str) -> None:
    spelled = quoted(text)
    assert spelled.isprintable() and unquoted(spelled) == text


def test_surrogates_that_make_a_pair_stay_two() -> None:
    assert quoted("\ud83d\ude00") == r'"\ud83d\ude00"' and len(unquoted(quoted("\ud83d\ude00"))) == 2
    assert quoted("\U0001f600") == '"\U0001f600"'


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ('a"b\\c', r'"a\"b\\c"'),
        ("a\nb\tc\rd", r'"a\nb\tc\rd"'),
        ("\x00\x1b\x7f", r'"\x00\x1b\x7f"'),
        ("\u202e\u2028\ufeff", r'"\u202e\u2028\ufeff"'),
        ("\u05d0\u0301\U000e0041", r'"\u05d0\u0301\U000e0041"'),
        ("\u540d\xe9", '"\u540d\xe9"'),
    ],
)
def test_what_disturbs_a_line_is_escaped(text: str, spelled: str) -> None:
    assert quoted(text) == spelled


@pytest.mark.parametrize("token", [r'"\q"', r'"\u12"', r'"\U00110000"', r'"\x1G"'])
def test_unknown_escapes_are_refused(token: str) -> None:
    with pytest.raises(ValueError):
        unquoted(token)


def test_names_are_quoted_where_they_must_be() -> None:
    assert [word(w) for w in ("alpha", "ai.onnx.ml", "floor", "_", "", "a::b", "2n")] == [
        "alpha", "ai.onnx.ml", '"floor"', '"_"', '""', '"a::b"', '"2n"',
    ]  # fmt: skip
    assert [path(p) for p in ("Conv", "com.microsoft::Gelu", "a::", "my-domain::Op")] == [
        "Conv", "com.microsoft::Gelu", '"a::"', '"my-domain::Op"',
    ]  # fmt: skip
    assert [label(v) for v in ("12", "/a/b.0/Conv_out", "onnx::Conv_3", "a:b", "a~2", "")] == [
        "12", "/a/b.0/Conv_out", "onnx::Conv_3", '"a:b"', '"a~2"', "",
    ]  # fmt: skip


@given(
    st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]) | st.floats(width=32)
)
@quick
def test_doubles(value: float) -> None:
    assert struct.pack("<d", read_float(spell_float(value))) == struct.pack("<d", value)


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (0.1, "0.1"),
        (float(np.float32(0.1)), "0.1f"),
        (float(np.float32(1e-45)), "1e-45f"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0], "0xfff8000000000001"),
    ],
)
def test_a_double_is_short(value: float, spelled: str) -> None:
    assert spell_float(value) == spelled


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_bit_pattern_of_every_dtype(name: str) -> None:
    dtype, draw = BY_NAME[name], np.random.default_rng(7)
    if dtype == STRING:
        array = np.array(["", "a\n", "\udcff", '"'], dtype=object)
    elif dtype == BOOL:
        array = np.array([True, False])
    elif dtype in INTEGER and name[-1] in "24" and name not in ("uint64", "int64"):
        bits = int(name[-1])
        low = 0 if name[0] == "u" else -(2 ** (bits - 1))
        array = np.arange(low, low + 2**bits).astype(dtype)
    elif dtype.itemsize == 1:
        bits = {"float4e2m1": 4, "float6e2m3": 6, "float6e3m2": 6}.get(name, 8)
        array = np.arange(2**bits, dtype=np.uint8).view(dtype)
    elif dtype.itemsize == 2:
        array = np.arange(2**16, dtype=np.uint16).view(dtype)
    else:
        array = draw.integers(0, 256, 4000 * dtype.itemsize, np.uint8).view(dtype)
        array[:2] = np.array([0, -0.0 if dtype.kind in "fc" else 1]).astype(dtype)
    again = read_elements(spell_elements(array), dtype)
    assert again.dtype == dtype
    assert again.tolist() == array.tolist() if dtype == STRING else again.tobytes() == array.tobytes()


def test_elements_are_short_where_decimals_do() -> None:
    special = np.array([0.1, -0.0, np.nan, np.inf, -np.inf, 3.4028235e38, 1e-45], np.float32)
    assert spell_elements(special) == ["0.1", "-0.0", "nan", "inf", "-inf", "3.4028235e+38", "1e-45"]
    payload = np.array([0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    assert spell_elements(payload) == ["0x7fc00001", "0xffc00000"]
    assert spell_elements(np.array([1 - 2j], np.complex64)) == ["1.0", "-2.0"]
    assert spell_elements(np.array([[255, 0]], np.uint8)) == ["255", "0"]


@pytest.mark.parametrize(
    ("tokens", "name"),
    [(["256"], "uint8"), (["-1"], "uint8"), (["8"], "int4"), (["-9"], "int4"), (["18446744073709551616"], "uint64"),
     (["1.0"], "int8"), (["true"], "float"), (["1"], "bool"),
     (["0x1"], "float"), (["x"], "string"), (["0x12345"], "float16")],
)  # fmt: skip
def test_what_is_no_element_is_refused(tokens: list[str], name: str) -> None:
    with pytest.raises(ValueError):
        read_elements(tokens, BY_NAME[name])


def test_the_digest_tells_dtype_shape_and_bits_apart() -> None:
    arrays = [
        np.zeros(4, np.float32), np.zeros((2, 2), np.float32), np.zeros(4, np.int32), -np.zeros(4, np.float32),
        np.zeros(0, np.float32), np.array(["ab", "c"], object), np.array(["a", "bc"], object),
    ]  # fmt: skip
    assert len({digest(a) for a in arrays}) == len(arrays)
    assert digest(np.arange(6).reshape(2, 3).T) == digest(np.ascontiguousarray(np.arange(6).reshape(2, 3).T))
