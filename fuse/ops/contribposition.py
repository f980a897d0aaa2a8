"""Positions in the domain ``com.microsoft``: biases by distance, and batches with their padding taken out.

Source: onnxruntime's docs/ContribOperators.md; the paper of T5 (https://arxiv.org/abs/1910.10683) for the buckets.
"""

from __future__ import annotations

import math

import numpy as np

from fuse.errors import RunError
from fuse.ir.dims import Dim
from fuse.ir.dtypes import BY_NAME, Array
from fuse.ir.types import Shape
from fuse.ops.activation import logistic
from fuse.ops.bounds import at_run_time, fits, in_range, single
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import agreed, divided, ranked, split
from fuse.ops.infer import common_dtype
from fuse.ops.record import Info, expect, operator, tensor

INT32 = BY_NAME["int32"]


# ---- RelativePositionBias


def _bias_info(
    bias_table: Info, query_length: Info, key_length: Info, *, max_distance: int, is_bidirectional: int = 0
) -> Info:
    ranked(bias_table.shape, (2,), "bias_table")
    lengths: list[Dim] = [None if i.dims is None else i.dims[0] for i in (query_length, key_length)]
    length = agreed("query_length and key_length", *lengths)
    heads = None if bias_table.shape is None else bias_table.shape[1]
    return tensor(bias_table.dtype, (1, heads, length, length))


@operator("com.microsoft::RelativePositionBias", infer=_bias_info)
@at_run_time
def relative_position_bias(
    bias_table: Array, query_length: Array, key_length: Array, *, max_distance: int, is_bidirectional: int = 0
) -> Array:
    """What each head adds to a score by the distance from query to key: (1, heads, length, length).

    ``bias_table`` says (buckets, heads), but its elements lie head by head.
    """
    ranked(bias_table.shape, (2,), "bias_table")
    length = int(single(query_length, "query_length"))
    agreed("query_length and key_length", length, int(single(key_length, "key_length")))
    expect(length >= 0, f"the length {length} is negative")
    buckets, heads = bias_table.shape
    place = np.arange(length)
    bucket = _bucket(place - place[:, None], buckets, max_distance, bool(is_bidirectional))
    return bias_table.reshape(heads, buckets)[:, bucket][None]


def _bucket(distance: Array, buckets: int, most: int, both: bool) -> Array:
    """One bucket for each of the small distances, ever wider ones up to ``most``, and the last one for the rest."""
    half = buckets // 2 if both else buckets
    size = np.abs(distance) if both else np.maximum(-distance, 0)
    exact = half // 2
    if exact < 1 or most <= exact:
        raise RunError(f"{buckets} buckets and max_distance {most} leave no room for buckets that grow")
    kind = np.float32
    grown = np.log(np.maximum(size, 1).astype(kind) / kind(exact)) / kind(math.log(most / exact)) * kind(half - exact)
    bucket = np.where(size < exact, size, np.minimum(exact + grown.astype(np.int64), half - 1))
    return bucket + half * (both & (distance > 0))


# ---- GatedRelativePositionBias


def _gated_shape(query: Shape | None, rel_pos: Shape | None, offset: Shape | None, num_heads: int) -> Shape:
    ranked(query, (3,) if offset is None else (2,), "query_layer")
    ranked(rel_pos, (4,), "rel_pos")
    divided(None if query is None else query[-1], num_heads, "query_layer")
    batch, length = (None, None) if query is None else query[:2]
    if offset is not None:
        ranked(offset, (2,), "token_offset")
        batch, length = offset
    if rel_pos is not None:
        length = agreed("the lengths of query_layer and rel_pos", length, *rel_pos[2:])
    return (batch, num_heads, length, length)


def _gated_info(
    query_layer: Info,
    query_bias: Info,
    rel_pos: Info,
    weight: Info,
    bias: Info,
    eco_a: Info,
    token_offset: Info | None = None,
    *,
    num_heads: int,
) -> Info:
    offset = None if token_offset is None else token_offset.shape
    if token_offset is not None and offset is None:
        return tensor(query_layer.dtype)
    shape = _gated_shape(query_layer.shape, rel_pos.shape, offset, num_heads)
    return tensor(common_dtype(query_layer, query_bias, rel_pos, weight, bias, eco_a), shape)


@operator("com.microsoft::GatedRelativePositionBias", infer=_gated_info)
@at_run_time
def gated_relative_position_bias(
    query_layer: Array,
    query_bias: Array,
    rel_pos: Array,
    weight: Array,
    bias: Array,
    eco_a: Array,
    token_offset: Array | None = None,
    *,
    num_heads: int,
) -> Array:
    """``rel_pos`` (1, heads, length, length) times a gate of each query and head.

    The gate comes from two sums over halves of the query's projection by ``weight`` (size, D).  Queries are (batch,
    length, width), or tokens (tokens, width) that ``token_offset`` places in a batch.
    """
    offset = None if token_offset is None else token_offset.shape
    _gated_shape(query_layer.shape, rel_pos.shape, offset, num_heads)
    q = wide(query_layer) if token_offset is None else _restored(wide(query_layer), token_offset)
    projected = split(q + wide(query_bias), num_heads) @ wide(weight) + wide(bias)
    halves = projected.reshape(*projected.shape[:3], 2, projected.shape[3] // 2).sum(axis=-1)
    gate_u, gate_r = logistic(halves[..., :1]), logistic(halves[..., 1:])
    gate = gate_u * (gate_r * wide(eco_a) - 1) + 2
    return narrow(gate * wide(rel_pos), query_layer)


# ---- padding


def _remove_info(x: Info, sequence_token_count: Info) -> list[Info]:
    ranked(x.shape, (3,), "the input")
    batch, length, width = (None, None, None) if x.shape is None else x.shape
    fits("sequence_token_count", sequence_token_count.shape, (batch,))
    bounds = None if batch is None else batch + 1
    return [
        tensor(x.dtype, (None, width)),
        tensor(INT32, (batch, length)),
        tensor(INT32, (bounds,)),
        tensor(INT32, (1,)),
    ]


@operator("com.microsoft::RemovePadding", infer=_remove_info)
@at_run_time
def remove_padding(x: Array, sequence_token_count: Array) -> tuple[Array, Array, Array, Array]:
    """The tokens of ``x`` (batch, length, width) that are no padding, one behind the other (tokens, width).

    Further outputs: where each token stood among all (batch, length), those of the padding last; where each sequence
    begins and the last one ends; and the greatest length.
    """
    ranked(x.shape, (3,), "the input")
    batch, length, width = x.shape
    fits("sequence_token_count", sequence_token_count.shape, (batch,))
    sound = bool(((sequence_token_count >= 0) & (sequence_token_count <= length)).all())
    expect(sound, f"sequence_token_count {sequence_token_count.tolist()} is not within the length {length}")
    padding = (np.arange(length) >= sequence_token_count[:, None]).reshape(-1)
    order = np.argsort(padding, kind="stable").astype(INT32)
    kept = order[: batch * length - int(padding.sum())]
    bounds = np.concatenate(([0], np.cumsum(sequence_token_count))).astype(INT32)
    most = np.array([sequence_token_count.max(initial=0)], INT32)
    return x.reshape(batch * length, width)[kept], order.reshape(batch, length), bounds, most


def _restore_info(x: Info, token_offset: Info) -> Info:
    ranked(x.shape, (2,), "the input")
    ranked(token_offset.shape, (2,), "token_offset")
    width = None if x.shape is None else x.shape[1]
    return tensor(x.dtype, (*(token_offset.shape or (None, None)), width))


@operator("com.microsoft::RestorePadding", infer=_restore_info)
@at_run_time
def restore_padding(x: Array, token_offset: Array) -> Array:
    """Tokens (tokens, width) at their places in (batch, length, width), zeros elsewhere."""
    ranked(x.shape, (2,), "the input")
    ranked(token_offset.shape, (2,), "token_offset")
    return _restored(x, token_offset)


def _restored(x: Array, token_offset: Array) -> Array:
    places = token_offset.reshape(-1)[: len(x)]
    expect(len(places) == len(x), f"{len(x)} tokens do not fit a batch of {list(token_offset.shape)}")
    expect(not (places < 0).any(), f"token_offset {int(places.min(initial=0))} is negative")
    in_range(places, token_offset.size, "token_offset")
    y = np.zeros((token_offset.size, x.shape[1]), x.dtype)
    y[places] = x
    return y.reshape(*token_offset.shape, x.shape[1])
