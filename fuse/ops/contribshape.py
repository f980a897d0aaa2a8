"""Operators of the domain ``com.microsoft`` that fill, move and choose elements: often what became a standard later.

Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import INT64, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, in_range, single
from fuse.ops.fill import pad, range_, trilu
from fuse.ops.heads import ranked
from fuse.ops.index import gather_nd
from fuse.ops.infer import normal_axis, show_shape
from fuse.ops.record import OPERATORS, Info, Trait, expect, operator, tensor

L = Trait.LAYOUT
V = Trait.VIEW | Trait.LAYOUT


def _standard(op: str, *inputs: Info | None, **attrs: Any) -> Any:
    """What inference says of the standard operator."""
    infer = OPERATORS[op].infer
    assert infer is not None
    return infer(*inputs, **attrs)


operator("com.microsoft::Trilu", infer=OPERATORS["Trilu"].infer)(trilu)


@operator("com.microsoft::GatherND", infer=lambda x, indices: _standard("GatherND", x, indices), traits=L)
def gather(x: Array, indices: Array) -> Array:
    """GatherND without batch axes."""
    return np.asarray(gather_nd(x, indices))


# ---- Range, Pad


def _one() -> Array:
    return np.ones(1, INT64)


def _range_info(start: Info, limit: Info, delta: Info | None = None) -> Info:
    step = tensor(start.dtype, (1,), _one().astype(start.dtype)) if delta is None and start.dtype is not None else delta
    return tensor(start.dtype, (None,)) if step is None else _standard("Range", start, limit, step)


@operator("com.microsoft::Range", infer=_range_info)
def count(start: Array, limit: Array, delta: Array | None = None) -> Array:
    """Range, by steps of 1 where no ``delta`` is given."""
    return np.asarray(range_(start, limit, _one().astype(start.dtype) if delta is None else delta))


def _pads_of(pads: Shape | None) -> None:
    row = pads is None or len(pads) == 1 or (len(pads) == 2 and (pads[0] == 1 or not isinstance(pads[0], int)))
    expect(row, f"pads is {show_shape(pads)}, not [2 * rank] or [1, 2 * rank]")


def _pad_info(x: Info, pads: Info, value: Info | None = None, *, mode: str = "constant") -> Info:
    _pads_of(pads.shape)
    flat = None if pads.value is None else pads.value.reshape(-1)
    length = None if flat is None else len(flat)
    return _standard("Pad", x, tensor(pads.dtype, (length,), flat), value, mode=mode)


@operator("com.microsoft::Pad", infer=_pad_info)
@at_run_time
def padded(x: Array, pads: Array, value: Array | None = None, *, mode: str = "constant") -> Array:
    """Pad of all axes; ``pads`` may be a matrix of one row."""
    _pads_of(pads.shape)
    return np.asarray(pad(x, pads.reshape(-1), value, mode=mode))


# ---- ExpandDims, UnfoldTensor


def _expanded(x: Shape, axis: int) -> Shape:
    place = normal_axis(axis, len(x) + 1)
    return (*x[:place], 1, *x[place:])


def _expand_info(x: Info, axis: Info) -> Info:
    expect(axis.rank in (None, 0), f"axis is {show_shape(axis.shape)}, not a scalar")
    if x.shape is None:
        return tensor(x.dtype)
    return tensor(x.dtype, (None,) * (len(x.shape) + 1) if axis.ints is None else _expanded(x.shape, axis.ints[0]))


@operator("com.microsoft::ExpandDims", infer=_expand_info, traits=V)
@at_run_time
def expand_dims(x: Array, axis: Array) -> Array:
    """A new axis of size 1 at ``axis``, a scalar."""
    expect(axis.ndim == 0, f"axis is {show_shape(axis.shape)}, not a scalar")
    shape: Any = _expanded(x.shape, int(single(axis, "axis")))
    return x.reshape(shape)


def _unfolded(x: Shape, dim: int, size: int, step: int) -> Shape:
    place = normal_axis(dim, len(x), "dim")
    have = x[place]
    expect(step > 0, f"step {step} must be positive")
    expect(size > 0 and (not isinstance(have, int) or size <= have), f"size {size} is not within an axis of {have}")
    windows: Dim = None if have is None else floordiv(have - size, step) + 1
    return (*x[:place], windows, *x[place + 1 :], size)


def _unfold_info(x: Info, *, size: int, dim: int = -1, step: int = 1) -> Info:
    return tensor(x.dtype, None if x.shape is None else _unfolded(x.shape, dim, size, step))


@operator("com.microsoft::UnfoldTensor", infer=_unfold_info, traits=L)
@at_run_time
def unfold_tensor(x: Array, *, size: int, dim: int = -1, step: int = 1) -> Array:
    """All slices of ``size`` elements along ``dim``, ``step`` apart, whose elements become the last axis."""
    _unfolded(x.shape, dim, size, step)
    place = normal_axis(dim, x.ndim)
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis=place)
    some: Any = (slice(None),) * place + (slice(None, None, step),)
    return np.ascontiguousarray(windows[some])


# ---- Unique, TorchEmbedding


def _unique_info(x: Info) -> tuple[Info, Info, Info]:
    ranked(x.shape, (1,), "the input")
    length: Sequence[Dim] = (None,) if x.shape is None else x.shape
    return tensor(x.dtype, (None,)), tensor(INT64, length), tensor(INT64, (None,))


@operator("com.microsoft::Unique", infer=_unique_info)
@at_run_time
def unique(x: Array) -> tuple[Array, Array, Array]:
    """The different elements of a vector in the order of their first places, where each stands among them, and counts.

    Every NaN is an element of its own; the zeros of both signs are one.
    """
    ranked(x.shape, (1,), "the input")
    _, first, place, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False)
    order = np.argsort(first, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return x[first[order]], rank[place.reshape(-1)].astype(INT64), counts[order].astype(INT64)


def _embedding_info(
    weight: Info, indices: Info, padding_idx: Info | None = None, scale_grad_by_freq: Info | None = None
) -> Info:
    ranked(weight.shape, (2,), "the weight")
    width = None if weight.shape is None else weight.shape[1]
    return tensor(weight.dtype, None if indices.shape is None else (*indices.shape, width))


@operator("com.microsoft::TorchEmbedding", infer=_embedding_info)
@at_run_time
def torch_embedding(
    weight: Array, indices: Array, padding_idx: Array | None = None, scale_grad_by_freq: Array | None = None
) -> Array:
    """The rows of ``weight`` that ``indices`` name; the other inputs matter to training alone."""
    ranked(weight.shape, (2,), "the weight")
    expect(not (indices < 0).any(), f"index {int(indices.min(initial=0))} is negative")
    in_range(indices, len(weight))
    return np.asarray(weight[indices])
