"""Encoders: values looked up in a table of keys, and what they are mapped to.

Numbers are found by binary search for all elements at once, strings in a dictionary.  A key that comes twice counts
with its last place, as the text of LabelEncoder 4 says (onnxruntime takes the first there); NaN finds NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dtypes import DOUBLE, FLOAT, FLOATING, INT64, STRING, Array, DType, name_of
from fuse.ops.bounds import at_run_time, single
from fuse.ops.record import Info, expect, operator, tensor


def strings(values: Sequence[str]) -> Array:
    """A tensor of strings [len(values)]."""
    out = np.empty(len(values), dtype=STRING)
    out[:] = values
    return out


def places(keys: Array, x: Array) -> Array:
    """Where each element of ``x`` stands among ``keys`` [K], -1 for nowhere; both are numbers or both are strings."""
    if keys.dtype == STRING:
        table = {key: i for i, key in enumerate(keys.tolist())}
        flat = np.fromiter((table.get(v, -1) for v in x.reshape(-1).tolist()), dtype=np.intp, count=x.size)
        return flat.reshape(x.shape)
    if not keys.size:
        return np.full(x.shape, -1, dtype=np.intp)
    order = np.argsort(keys, kind="stable")
    found = order[np.maximum(np.searchsorted(keys, x, side="right", sorter=order) - 1, 0)]
    same = keys[found] == x
    if keys.dtype in FLOATING:
        same |= np.isnan(keys[found]) & np.isnan(x)
    return np.asarray(np.where(same, found, -1))


def _mapped(x: Array, keys: Array, values: Array, default: Any) -> Array:
    """The value of each element's key, ``default`` where it has none."""
    at = places(keys, x)
    out = np.empty(len(values) + 1, dtype=values.dtype)
    out[:-1], out[-1] = values, default
    return out[at.reshape(-1)].reshape(x.shape)


def _expect_dtype(x: DType | None, wanted: DType, what: str) -> None:
    expect(x is None or x == wanted, f"the input is {x and name_of(x)}, {what} are {name_of(wanted)}")


# ---- LabelEncoder


def _list(named: str, attrs: Mapping[str, Any]) -> Array:
    """The keys or the values, of which exactly one attribute must be given."""
    given = {name: v for name, v in attrs.items() if name.startswith(named) and v is not None}
    expect(len(given) == 1, f"needs one attribute of {named}, {', '.join(given) or 'none'} given")
    ((name, values),) = given.items()
    if isinstance(values, np.ndarray):
        return values.reshape(-1)
    return strings(values) if name.endswith("strings") else np.array(values, INT64 if "int64s" in name else FLOAT)


def _either_way(x: Info, **attrs: Any) -> Info:
    """From strings to integers or back."""
    expect(x.dtype is None or x.dtype in (STRING, INT64), "the input is neither of strings nor of int64")
    return tensor(None if x.dtype is None else INT64 if x.dtype == STRING else STRING, x.shape)


def _pairs(kind: DType | None, texts: Array, numbers: Array) -> tuple[Array, Array]:
    """Keys and values of a mapping that runs either way, for an input of ``kind``."""
    expect(len(numbers) == len(texts), f"{len(numbers)} integers for {len(texts)} strings")
    return (texts, numbers) if kind == STRING else (numbers, texts)


def _label_encoder_info(x: Info, **attrs: Any) -> Info:
    if attrs.get("classes_strings") is not None:
        return _either_way(x)
    return tensor(_keys_and_values(x.dtype, attrs)[1].dtype, x.shape)


def _keys_and_values(kind: DType | None, attrs: Mapping[str, Any]) -> tuple[Array, Array]:
    """The two lists of version 2 and later, for an input of ``kind``."""
    keys, values = _list("keys", attrs), _list("values", attrs)
    expect(len(keys) == len(values), f"{len(keys)} keys for {len(values)} values")
    _expect_dtype(kind, keys.dtype, "the keys")
    return keys, values


@operator("ai.onnx.ml::LabelEncoder", infer=_label_encoder_info)
@at_run_time
def label_encoder(
    x: Array,
    *,
    classes_strings: Sequence[str] | None = None,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Sequence[float] | None = None,
    keys_int64s: Sequence[int] | None = None,
    keys_strings: Sequence[str] | None = None,
    keys_tensor: Array | None = None,
    values_floats: Sequence[float] | None = None,
    values_int64s: Sequence[int] | None = None,
    values_strings: Sequence[str] | None = None,
    values_tensor: Array | None = None,
) -> Array:
    """The value beside each element's key; the default of the values' kind for an element that is no key.

    Version 1 has ``classes_strings`` alone, and maps strings to their places in it and places to the strings.
    """
    if classes_strings is not None:
        _either_way(tensor(x.dtype, x.shape))
        keys, values = _pairs(x.dtype, strings(classes_strings), np.arange(len(classes_strings), dtype=INT64))
    else:
        lists = {"keys_floats": keys_floats, "keys_int64s": keys_int64s, "keys_strings": keys_strings,
                 "keys_tensor": keys_tensor, "values_floats": values_floats, "values_int64s": values_int64s,
                 "values_strings": values_strings, "values_tensor": values_tensor}  # fmt: skip
        keys, values = _keys_and_values(x.dtype, lists)
    default: Any = default_float if values.dtype in FLOATING else default_int64
    if values.dtype == STRING:
        default = default_string
    if default_tensor is not None:
        _expect_dtype(default_tensor.dtype, values.dtype, "the values")
        default = single(default_tensor, "default_tensor")
    return _mapped(x, keys, values, default)


# ---- CategoryMapper


@operator("ai.onnx.ml::CategoryMapper", infer=_either_way)
@at_run_time
def category_mapper(
    x: Array,
    *,
    cats_int64s: Sequence[int] | None = None,
    cats_strings: Sequence[str] | None = None,
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    """Strings to the integers beside them, integers to the strings."""
    _either_way(tensor(x.dtype, x.shape))
    keys, values = _pairs(x.dtype, strings(cats_strings or ()), np.array(cats_int64s or (), dtype=INT64))
    return _mapped(x, keys, values, default_int64 if x.dtype == STRING else default_string)


# ---- OneHotEncoder


def _one_hot_info(
    x: Info, *, cats_int64s: Sequence[int] | None = None, cats_strings: Sequence[str] | None = None, zeros: int = 1
) -> Info:
    expect(bool(cats_int64s) != bool(cats_strings), "needs categories, either integers or strings")
    if x.dtype is not None:
        say = f"the input is {name_of(x.dtype)}, the categories are {'strings' if cats_strings else 'integers'}"
        expect((x.dtype == STRING) == bool(cats_strings), say)
    return tensor(FLOAT, None if x.shape is None else (*x.shape, len(cats_int64s or cats_strings or ())))


@operator("ai.onnx.ml::OneHotEncoder", infer=_one_hot_info)
@at_run_time
def one_hot_encoder(
    x: Array, *, cats_int64s: Sequence[int] | None = None, cats_strings: Sequence[str] | None = None, zeros: int = 1
) -> Array:
    """A last axis with 1 at the place of the element's category; floats are cut to integers first.

    An unknown category is all zeros, or an error where ``zeros`` is 0.
    """
    _one_hot_info(tensor(x.dtype, x.shape), cats_int64s=cats_int64s, cats_strings=cats_strings)
    keys = strings(cats_strings) if cats_strings else np.array(cats_int64s, dtype=INT64)
    whole = x
    if x.dtype in FLOATING:  # compared as floats: NaN and Inf are no integers
        keys, whole = keys.astype(DOUBLE), np.trunc(x.astype(DOUBLE))
    at = places(keys, whole)
    unknown = np.flatnonzero(at < 0)
    if unknown.size and not zeros:
        raise RunError(f"category {quote(x.reshape(-1)[unknown[0]])} is unknown")
    return (at[..., None] == np.arange(len(keys))).astype(FLOAT)
