"""Maps: made of rows of scores, and turned into tensors.

At run time a map is a Python dict of strings or integers to numbers (or strings), as in onnxruntime's interface.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dtypes import DOUBLE, FLOAT, INT64, STRING, Array, DType
from fuse.ir.types import MapType, SequenceType, TensorType
from fuse.ops.bounds import at_run_time
from fuse.ops.encoders import strings
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor


def column(values: Iterable[Any]) -> Array:
    """The keys or the values of a map as a tensor [len]; Python's floats stand for float32, which ONNX's maps hold."""
    items = list(values)
    if any(isinstance(v, str) for v in items):
        return strings(items)
    array = np.array(items, dtype=None if items else FLOAT)
    exact = any(isinstance(v, np.ndarray | np.generic) and v.dtype == DOUBLE for v in items)
    return array.astype(FLOAT) if array.dtype == DOUBLE and not exact else array


# ---- ZipMap


def _keys(ints: Sequence[int] | None, words: Sequence[str] | None) -> Sequence[Any]:
    expect(bool(ints) != bool(words), "needs keys, either integers or strings")
    return ints or words or ()


def _zip_map_info(
    x: Info, *, classlabels_int64s: Sequence[int] | None = None, classlabels_strings: Sequence[str] | None = None
) -> Info:
    keys = _keys(classlabels_int64s, classlabels_strings)
    if x.shape is not None:
        expect(len(x.shape) in (1, 2), f"the input {show_shape(x.shape)} is neither [N, C] nor [C]")
        columns = x.shape[-1]
        expect(not isinstance(columns, int) or columns == len(keys), f"{columns} columns for {len(keys)} keys")
    key = STRING if classlabels_strings else INT64
    return Info(SequenceType(MapType(key, TensorType(FLOAT))))


@operator("ai.onnx.ml::ZipMap", infer=_zip_map_info)
@at_run_time
def zip_map(
    x: Array, *, classlabels_int64s: Sequence[int] | None = None, classlabels_strings: Sequence[str] | None = None
) -> list[dict[Any, float]]:
    """A map for each row, from the keys to the row's elements."""
    _zip_map_info(tensor(x.dtype, x.shape), classlabels_int64s=classlabels_int64s,
                  classlabels_strings=classlabels_strings)  # fmt: skip
    keys = _keys(classlabels_int64s, classlabels_strings)
    return [dict(zip(keys, row, strict=True)) for row in x.reshape(-1, len(keys)).tolist()]


# ---- CastMap

_CASTS: dict[str, DType] = {"TO_FLOAT": FLOAT, "TO_STRING": STRING, "TO_INT64": INT64}


def _cast_map_info(x: Info, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Info:
    expect(cast_to in _CASTS, f"cast_to {cast_to!r} is not TO_FLOAT, TO_STRING or TO_INT64")
    expect(map_form in ("DENSE", "SPARSE"), f"map_form {map_form!r} is neither DENSE nor SPARSE")
    expect(map_form == "DENSE" or max_map > 0, f"max_map {max_map} is not positive")
    return tensor(_CASTS[cast_to], (1, max_map if map_form == "SPARSE" else None))


@operator("ai.onnx.ml::CastMap", infer=_cast_map_info)
@at_run_time
def cast_map(x: Mapping[int, Any], *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """One row of the map's values: in the order of their keys, or (``SPARSE``) each at the place that its key says.

    Floats become strings with six digits behind the point, and a place without a key "0.f", as in onnxruntime.
    """
    dtype = _cast_map_info(Info(), cast_to=cast_to, map_form=map_form, max_map=max_map).dtype
    assert dtype is not None
    pairs = sorted(_items(x))
    values = [_cast(value, dtype) for _, value in pairs]
    if map_form == "DENSE":
        return _row(values, dtype)
    for key, _ in pairs:
        expect(0 <= key < max_map, f"key {key} is outside of 0 to {max_map - 1}")
    row: list[Any] = ["0.f" if dtype == STRING else 0] * max_map
    for (key, _), value in zip(pairs, values, strict=True):
        row[key] = value
    return _row(row, dtype)


def _items(x: Any) -> list[tuple[Any, Any]]:
    expect(isinstance(x, Mapping), f"the input is a {type(x).__name__}, not a map")
    return [(key, value.item() if isinstance(value, np.ndarray | np.generic) else value) for key, value in x.items()]


def _row(values: Sequence[Any], dtype: DType) -> Array:
    return (strings(values) if dtype == STRING else np.array(values, dtype=dtype)).reshape(1, -1)


def _cast(value: Any, dtype: DType) -> Any:
    if dtype == STRING:
        return value if isinstance(value, str) else f"{value:.6f}" if isinstance(value, float) else str(value)
    try:
        return float(value) if dtype == FLOAT else int(float(value)) if isinstance(value, str) else int(value)
    except (OverflowError, ValueError):
        raise RunError(f"{quote(value)} is not a number of type {'float' if dtype == FLOAT else 'int64'}") from None


# ---- DictVectorizer


def _dict_vectorizer_info(
    x: Info, *, int64_vocabulary: Sequence[int] | None = None, string_vocabulary: Sequence[str] | None = None
) -> Info:
    expect(bool(int64_vocabulary) != bool(string_vocabulary), "needs a vocabulary, either of integers or of strings")
    value = x.type.value if isinstance(x.type, MapType) else None
    dtype = value.dtype if isinstance(value, TensorType) else None
    return tensor(dtype, (1, len(int64_vocabulary or string_vocabulary or ())))


@operator("ai.onnx.ml::DictVectorizer", infer=_dict_vectorizer_info)
@at_run_time
def dict_vectorizer(
    x: Mapping[Any, Any],
    *,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> Array:
    """The map's values at the places of their keys in the vocabulary, zero (or an empty string) for absent ones.

    The result is one row [1, V], as converters and onnxruntime have it; keys that are not in the vocabulary are left
    out.
    """
    _dict_vectorizer_info(Info(), int64_vocabulary=int64_vocabulary, string_vocabulary=string_vocabulary)
    found, dtype = dict(_items(x)), column(x.values()).dtype
    absent: Any = "" if dtype == STRING else 0
    return _row([found.get(key, absent) for key in int64_vocabulary or string_vocabulary or ()], dtype)
