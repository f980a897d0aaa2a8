"""Feeds: what the caller passes, held against what the model declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.errors import InputError, quote
from fuse.ir.dtypes import STRING, Array, name_of
from fuse.ir.graph import Value
from fuse.ir.model import Model
from fuse.ir.types import MapType, TensorType
from fuse.ops.infer import show_shape


def checked_feeds(model: Model, feeds: Mapping[str, Any]) -> list[Any]:
    """The values of the graph's inputs, in order, defaults filled in.

    Raises ``InputError`` for a name that is no input, an input without a value, a dtype or shape that differs from the
    declared one, and a symbolic dim that gets two sizes.
    """
    inputs = model.graph.inputs
    names = [v.name for v in inputs]
    where = model.source
    for name in feeds:
        if name not in names:
            hint = f"inputs are {', '.join(quote(n) for n in names[:20]) or 'none'}"
            raise InputError(f"there is no input {quote(name)}", where=where, hint=hint)
    bound: dict[str, tuple[int, str]] = {}
    result: list[Any] = []
    for value in inputs:
        if value.name in feeds:
            given = _as_value(value, feeds[value.name], where)
            if isinstance(given, np.ndarray) and isinstance(value.type, TensorType):
                _check(value, given, value.type, bound, where)
            result.append(given)
        elif value.data is not None:
            result.append(value.data)
        else:
            raise InputError(f"input {quote(value.name)} has no value", where=where, hint=f"it is {value.type}")
    return result


def _as_value(value: Value, given: Any, where: str) -> Any:
    if isinstance(value.type, MapType):
        return _as_map(value.name, value.type, given, where)
    if not isinstance(value.type, TensorType):
        return given
    array = np.asarray(given)
    if array.dtype.kind in "US":
        array = array.astype(object)
    if array.dtype == object and value.dtype is not None and value.dtype != STRING:
        raise InputError(f"input {quote(value.name)} is not a tensor of numbers", where=where)
    return array


def _as_map(name: str, kind: MapType, given: Any, where: str) -> dict[Any, Any]:
    """A dict with keys of the declared type and its values as NumPy's numbers of theirs."""
    label = f"input {quote(name)}"
    if not isinstance(given, Mapping):
        raise InputError(f"{label} is a {type(given).__name__}, the model wants {kind}", where=where)
    allowed = str if kind.key == STRING else (int, np.integer)
    for key in given:
        if not isinstance(key, allowed):
            raise InputError(f"{label} has the key {quote(key)}, the model wants {kind}", where=where)
    dtype = kind.value.dtype if isinstance(kind.value, TensorType) else None
    if dtype is None or dtype == STRING:
        return dict(given)
    try:
        numbers = {key: dtype.type(value) for key, value in given.items()}
    except (OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{label} does not hold numbers of type {name_of(dtype)}: {error}", where=where) from None
    if dtype.kind == "i" and any(number != given[key] for key, number in numbers.items()):
        raise InputError(f"{label} does not hold whole numbers, the model wants {kind}", where=where)
    return numbers


def _check(value: Value, given: Array, kind: TensorType, bound: dict[str, tuple[int, str]], where: str) -> None:
    label = f"input {quote(value.name)}"
    if kind.dtype is not None and given.dtype != kind.dtype:
        hint = "convert it with numpy's astype"
        raise InputError(
            f"{label} is {name_of(given.dtype)}, the model wants {name_of(kind.dtype)}", where=where, hint=hint
        )
    if kind.shape is None:
        return
    fits = len(kind.shape) == given.ndim and all(
        not isinstance(d, int) or d == size for d, size in zip(kind.shape, given.shape, strict=False)
    )
    if not fits:
        have, want = show_shape(given.shape), show_shape(kind.shape)
        raise InputError(f"{label} has shape {have}, the model wants {want}", where=where)
    for dim, size in zip(kind.shape, given.shape, strict=True):
        symbol = None if dim is None or isinstance(dim, int) else dim.name
        if symbol is None:
            continue
        first, other = bound.setdefault(symbol, (size, value.name))
        if first != size:
            what = f"dim {quote(symbol)} is {first} in input {quote(other)} and {size} in {label}"
            raise InputError(what, where=where)
