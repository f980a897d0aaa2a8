"""Unique: the different elements of a tensor, or its different slices along one axis.

Slices are compared as rows of integers: every element is replaced by the number of its value among the sorted ones.
Source: the ONNX operator text.
"""

from __future__ import annotations

import numpy as np

from fuse.ir.dims import product
from fuse.ir.dtypes import INT64, Array
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import wide
from fuse.ops.infer import normal_axis
from fuse.ops.record import Info, expect, operator, tensor


def _check(sorted: int) -> None:
    expect(sorted in (0, 1), f"sorted {sorted} is not 0 or 1")


def _info(x: Info, *, axis: int | None = None, sorted: int = 1, n_outputs: int = 1) -> tuple[Info, ...]:
    _check(sorted)
    places = tensor(INT64, (None,))
    if x.shape is None:
        return tensor(x.dtype, (None,) if axis is None else None), places, places, places
    if axis is None:
        return tensor(x.dtype, (None,)), places, tensor(INT64, (product(x.shape),)), places
    place = normal_axis(axis, len(x.shape))
    made = tensor(x.dtype, [None if i == place else dim for i, dim in enumerate(x.shape)])
    return made, places, tensor(INT64, (x.shape[place],)), places


@operator("Unique", infer=_info)
@at_run_time
def unique(x: Array, *, axis: int | None = None, sorted: int = 1, n_outputs: int = 1) -> Array | tuple[Array, ...]:
    """The unique elements (1-D) or slices, where each first was, which of them each one is, and how often it is there.

    In ascending order, slices compared element by element, or in order of appearance.  0.0 and -0.0 are one value, and
    so is every NaN, the greatest; the first of equal ones is shown.  Strings are ordered by code points.
    """
    _check(sorted)
    if n_outputs == 1 and axis is None and sorted and x.dtype.kind in "iub":
        return np.unique(x)
    place = 0 if axis is None else normal_axis(axis, x.ndim)
    data = x.reshape(-1) if axis is None else x
    values = wide(data) if axis is None else _numbered(x, place)
    _, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True)
    if not sorted:
        order = np.argsort(first)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    y = np.take(data, first, axis=place)
    return y if n_outputs == 1 else (y, *(v.reshape(-1).astype(INT64) for v in (first, inverse, counts)))


def _numbered(x: Array, axis: int) -> Array:
    """One key for each slice along ``axis``, ordered as the slices are.

    Elements become the numbers of their values, and the numbers bytes, the highest first, which are compared at once.
    """
    if not x.size:
        return np.zeros(x.shape[axis], INT64)
    _, inverse = np.unique(wide(x), return_inverse=True)
    numbers = np.moveaxis(inverse.reshape(x.shape), axis, 0).reshape(x.shape[axis], -1)
    bytes_ = np.ascontiguousarray(numbers, ">u4" if x.size < 1 << 32 else ">u8")
    return bytes_.view(f"V{bytes_.strides[0]}")[:, 0]
