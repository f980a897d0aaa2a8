"""Types print as people write them, and the text that the parser reads gives the same type back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from fuse.ir.dims import Symbolic
from fuse.ir.dtypes import FLOAT, INT64, STRING
from fuse.ir.parse import parse_type
from fuse.ir.text import spell_type
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type
from tests.ir.graphs import types


@given(types)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_type_prints_and_parses(type: Type | None) -> None:
    assert parse_type(spell_type(type)) == type


@pytest.mark.parametrize(
    ("type", "printed"),
    [
        (TensorType(FLOAT, (1, Symbolic.of("n"), None)), "float[1, n, ?]"),
        (TensorType(FLOAT, ()), "float[]"),
        (TensorType(FLOAT), "float[...]"),
        (TensorType(), "?[...]"),
        (SparseType(INT64, (3,)), "sparse(int64[3])"),
        (SequenceType(TensorType(STRING, (2,))), "seq(string[2])"),
        (OptionalType(), "optional(?)"),
        (MapType(STRING, SequenceType(MapType(INT64))), "map(string, seq(map(int64, ?)))"),
    ],
)
def test_types_print(type: Type, printed: str) -> None:
    assert str(type) == spell_type(type) == printed
    assert parse_type(printed) == type
    assert hash(parse_type(printed)) == hash(type)


def test_symbols_of_a_hostile_model_do_no_harm() -> None:
    type = TensorType(FLOAT, (Symbolic.of("batch size"), Symbolic.of("\x1b[2J") + 1))
    assert str(type) == spell_type(type) == r'float["batch size", "\x1b[2J" + 1]'


def test_nesting_is_no_recursion_when_printed() -> None:
    type: Type | None = None
    for _ in range(5000):
        type = SequenceType(type)
    assert spell_type(type) == "seq(" * 5000 + "?" + ")" * 5000
