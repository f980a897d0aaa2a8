"""What there is to say of a value that a run made: its type, its range, its first elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import BOOL, DOUBLE, FLOATING, INTEGER, STRING, Array, name_of
from fuse.ops.maps import column

#: Elements shown of each tensor.
FIRST = 5


def value_facts(value: Any) -> dict[str, Any]:
    """The facts for JSON.

    A tensor has ``type``, ``dtype``, ``shape`` and ``first``; one of numbers also ``min``, ``max`` and ``mean`` of its
    finite elements (None where there are none) and, where it is of floats, ``nan`` and ``inf``, which count the others.
    A sequence has ``elements``; a map has what there is to say of its values.
    """
    if value is None:
        return {"type": "optional, absent"}
    if isinstance(value, list):
        return {"type": f"sequence of {len(value)}", "elements": [value_facts(element) for element in value]}
    if isinstance(value, Mapping):
        keys, values = value_facts(column(value.keys())), value_facts(column(value.values()))
        return values | {"type": f"map of {len(value)}, {keys['dtype']} to {values['dtype']}"}
    array = np.asarray(value)
    spelled = "string" if array.dtype == STRING else name_of(array.dtype)
    facts: dict[str, Any] = {
        "type": f"{spelled}[{', '.join(map(str, array.shape))}]",
        "dtype": spelled,
        "shape": list(array.shape),
    }
    if array.dtype in FLOATING or array.dtype in INTEGER or array.dtype == BOOL:
        facts |= _range(array)
    return facts | {"first": _first(array)}


def _range(array: Array) -> dict[str, Any]:
    if array.dtype not in FLOATING:
        if not array.size:
            return {"min": None, "max": None, "mean": None}
        whole = array.astype(np.int64 if array.dtype.itemsize < 8 else array.dtype)
        return {"min": int(whole.min()), "max": int(whole.max()), "mean": float(whole.mean(dtype=DOUBLE))}
    wide = array.astype(DOUBLE)
    nan = np.isnan(wide)
    finite = wide[np.isfinite(wide)]
    counts = {"nan": int(nan.sum()), "inf": int(wide.size - finite.size - nan.sum())}
    if not finite.size:
        return {"min": None, "max": None, "mean": None, **counts}
    with np.errstate(over="ignore"):
        return {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean()), **counts}


def _first(array: Array) -> list[Any]:
    head = array.reshape(-1)[:FIRST]
    if array.dtype in FLOATING:
        return [float(x) for x in head]
    if array.dtype in INTEGER:
        return [int(x) for x in head]
    return [x if isinstance(x, str) else bool(x) if array.dtype == BOOL else str(x) for x in head]


def shown(facts: dict[str, Any]) -> tuple[str, str, str, str, str]:
    """Type, minimum, maximum, mean and first elements as text for a table."""
    low, high, mean = (_number(facts.get(key)) for key in ("min", "max", "mean"))
    first = ", ".join(quote(x, 20) if isinstance(x, str) else _number(x) for x in facts.get("first", ()))
    if len(facts.get("first", ())) < int(np.prod(facts.get("shape", (0,)))):
        first += ", ..."
    odd = [f"{facts[key]} {word}" for key, word in (("nan", "NaN"), ("inf", "infinite")) if facts.get(key)]
    return facts["type"], low, high, mean, "; ".join([first, *odd])


def _number(x: Any) -> str:
    return "" if x is None else str(x) if isinstance(x, int | bool) else f"{x:.6g}"
