"""Constant, where it is still a node: in the body of a function whose attributes give it its value.

Every other Constant becomes a constant of the graph while the model is loaded.
Source: the ONNX operator text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import UnsupportedError
from fuse.ir.dtypes import FLOAT, INT64, STRING, Array
from fuse.ops.infer import CARRIED
from fuse.ops.record import Info, expect, operator, tensor

DTYPES = {
    "value_float": FLOAT,
    "value_floats": FLOAT,
    "value_int": INT64,
    "value_ints": INT64,
    "value_string": STRING,
    "value_strings": STRING,
}


def _only(given: dict[str, Any]) -> Array:
    present = {name: value for name, value in given.items() if value is not None}
    expect(len(present) == 1, f"needs exactly one value, {len(present)} given")
    ((name, value),) = present.items()
    if name == "value":
        return np.asarray(value)
    if name == "sparse_value":
        raise UnsupportedError("a sparse constant that a function's attribute gives has no kernel")
    array = np.empty((len(value),) if name.endswith("s") else (), DTYPES[name])
    array[...] = value
    return array


def _constant_info(**given: Any) -> Info:
    try:
        array = _only(given)
    except UnsupportedError:
        return Info()
    small = array.dtype.kind in "iub" and array.size <= CARRIED
    return tensor(array.dtype, array.shape, array if small else None)


@operator("Constant", infer=_constant_info)
def constant(
    *,
    sparse_value: Any = None,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    """The one value that is given."""
    return _only(
        {
            "sparse_value": sparse_value,
            "value": value,
            "value_float": value_float,
            "value_floats": value_floats,
            "value_int": value_int,
            "value_ints": value_ints,
            "value_string": value_string,
            "value_strings": value_strings,
        }
    )
