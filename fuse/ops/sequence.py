"""Sequences and optionals: lists of tensors, and values that may be absent.

At run time a sequence is a Python list of arrays, which no kernel changes in place.  An optional that holds something
is that thing itself, and an empty one is None, the same as an input that is not given: the two mean the same to every
operator that takes an optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dims import Dim
from fuse.ir.dtypes import BOOL, BY_CODE, FLOAT, INT64, Array
from fuse.ir.types import OptionalType, SequenceType, Shape, TensorType
from fuse.ops.bounds import at_run_time, single, whole
from fuse.ops.infer import common_dtype, merge, normal_axis, show_shape
from fuse.ops.move import chunks, joined
from fuse.ops.record import Info, expect, operator, tensor

# ---- sequences


def _element(sequence: Info) -> TensorType:
    """The type of a sequence's tensors as far as known."""
    if isinstance(sequence.type, SequenceType) and isinstance(sequence.type.element, TensorType):
        return sequence.type.element
    return TensorType()


def _place(position: Array, size: int, last: int) -> int:
    """A position counted from the front; ``last`` is the greatest that is allowed."""
    place = int(single(position, "position"))
    expect(-size <= place <= last, f"position {place} is out of range for a sequence of {size}")
    return place + size if place < 0 else place


def _construct_info(x: Info, *xs: Info) -> Info:
    common_dtype(x, *xs)
    element = x.type
    for other in xs:
        element = merge(element, other.type)
    return Info(SequenceType(element))


@operator("SequenceConstruct", infer=_construct_info)
@at_run_time
def sequence_construct(x: Array, *xs: Array) -> list[Array]:
    for other in xs:
        expect(other.dtype == x.dtype, f"a sequence of {x.dtype} cannot hold {other.dtype}")
    return [x, *xs]


def _empty_info(*, dtype: int | None = None) -> Info:
    return Info(SequenceType(TensorType(FLOAT if dtype is None else BY_CODE[dtype])))


@operator("SequenceEmpty", infer=_empty_info)
def sequence_empty(*, dtype: int | None = None) -> list[Array]:
    """A sequence without elements; their dtype (float where not given) is known to inference alone."""
    return []


def _insert_info(input_sequence: Info, tensor: Info, position: Info | None = None) -> Info:
    element = _element(input_sequence)
    common_dtype(Info(element), tensor)
    return Info(SequenceType(merge(element, tensor.type)))


@operator("SequenceInsert", infer=_insert_info)
@at_run_time
def sequence_insert(input_sequence: list[Array], tensor: Array, position: Array | None = None) -> list[Array]:
    if input_sequence:
        expect(input_sequence[0].dtype == tensor.dtype, f"a sequence of {input_sequence[0].dtype} got a {tensor.dtype}")
    size = len(input_sequence)
    place = size if position is None else _place(position, size, size)
    return [*input_sequence[:place], tensor, *input_sequence[place:]]


@operator("SequenceErase", infer=lambda input_sequence, position=None: Info(input_sequence.type))
@at_run_time
def sequence_erase(input_sequence: list[Array], position: Array | None = None) -> list[Array]:
    size = len(input_sequence)
    expect(size > 0, "cannot erase from an empty sequence")
    place = size - 1 if position is None else _place(position, size, size - 1)
    return [*input_sequence[:place], *input_sequence[place + 1 :]]


@operator("SequenceAt", infer=lambda input_sequence, position: Info(_element(input_sequence)))
@at_run_time
def sequence_at(input_sequence: list[Array], position: Array) -> Array:
    return input_sequence[_place(position, len(input_sequence), len(input_sequence) - 1)]


@operator("SequenceLength", infer=lambda input_sequence: tensor(INT64, ()))
def sequence_length(input_sequence: list[Array]) -> Array:
    return np.array(len(input_sequence), dtype=INT64)


# ---- from tensors and back


def _lengths(size: int, split: Array | None) -> list[int]:
    """The lengths of the pieces: a scalar ``split`` is a step and the last piece may be shorter."""
    if split is None:
        return [1] * size
    if split.ndim:
        pieces: Any = chunks(size, whole(split), split.size)
        return list(pieces)
    step = int(single(split, "split"))
    expect(step > 0, f"split {step} is not positive")
    return [min(step, size - start) for start in range(0, size, step)]


def _split_to_sequence_info(x: Info, split: Info | None = None, *, axis: int = 0, keepdims: int = 1) -> Info:
    if x.shape is None:
        return Info(SequenceType(TensorType(x.dtype)))
    place = normal_axis(axis, len(x.shape))
    rest = (x.shape[:place], x.shape[place + 1 :])
    if split is None and not keepdims:
        return Info(SequenceType(TensorType(x.dtype, (*rest[0], *rest[1]))))
    size, length = x.shape[place], None
    known = split is None or split.value is not None
    if isinstance(size, int) and known:
        pieces = set(_lengths(size, None if split is None else split.value))
        length = pieces.pop() if len(pieces) == 1 else None
    elif split is None:
        length = 1
    return Info(SequenceType(TensorType(x.dtype, (*rest[0], length, *rest[1]))))


@operator("SplitToSequence", infer=_split_to_sequence_info)
@at_run_time
def split_to_sequence(x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1) -> list[Array]:
    """Pieces along ``axis``: of length 1 (and without the axis for ``keepdims=0``) unless ``split`` says otherwise."""
    place = normal_axis(axis, x.ndim)
    before: tuple[Any, ...] = (slice(None),) * place
    if split is None and not keepdims:
        return [x[(*before, i, ...)] for i in range(x.shape[place])]
    pieces, start = [], 0
    for length in _lengths(x.shape[place], split):
        pieces.append(x[(*before, slice(start, start + length))])
        start += length
    return pieces


def _concat_from_sequence_info(input_sequence: Info, *, axis: int, new_axis: int = 0) -> Info:
    element = _element(input_sequence)
    if element.shape is None:
        return Info(element)
    rank = len(element.shape)
    place = _join_axis(axis, rank, new_axis)
    dims: list[Dim] = list(element.shape)
    dims[place : place + (not new_axis)] = [None]
    return tensor(element.dtype, dims)


def _join_axis(axis: int, rank: int, new_axis: int) -> int:
    return normal_axis(axis, rank + 1 if new_axis else rank)


@operator("ConcatFromSequence", infer=_concat_from_sequence_info)
@at_run_time
def concat_from_sequence(input_sequence: list[Array], *, axis: int, new_axis: int = 0) -> Array:
    """The sequence's tensors joined along ``axis``, or stacked along a new one."""
    expect(len(input_sequence) > 0, "cannot concatenate an empty sequence")
    shapes: Sequence[Shape] = [x.shape for x in input_sequence]
    place = _join_axis(axis, len(shapes[0]), new_axis)
    if not new_axis:
        joined(shapes, place)
        return np.concatenate(input_sequence, axis=place)
    same = all(s == shapes[0] for s in shapes)
    expect(same, f"shapes {' and '.join(show_shape(s) for s in shapes)} cannot be stacked")
    return np.stack(input_sequence, axis=place)


# ---- optionals


def _optional_info(x: Info | None = None, *, type: bytes | None = None) -> Info:
    return Info(OptionalType(None if x is None else x.type))  # what ``type`` says is the file's, carried as bytes


@operator("Optional", infer=_optional_info)
def optional(x: Any = None, *, type: bytes | None = None) -> Any:
    """An optional that holds ``x``, or an empty one for elements of ``type``."""
    return x


def _optional_get_element_info(x: Info) -> Info:
    return Info(x.type.element if isinstance(x.type, OptionalType) else x.type)


@operator("OptionalGetElement", infer=_optional_get_element_info)
def optional_get_element(x: Any) -> Any:
    if x is None:
        raise RunError("the optional is empty")
    return x


@operator("OptionalHasElement", infer=lambda x=None: tensor(BOOL, ()))
def optional_has_element(x: Any = None) -> Array:
    """True where the optional holds something; a tensor or a sequence does."""
    return np.array(x is not None, dtype=BOOL)
