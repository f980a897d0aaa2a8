"""MultiHeadAttention and its decoding form of the domain ``com.microsoft``: queries, keys and values come projected.

They come side by side, packed into one tensor, or, for keys and values that a decoder attends to across, by heads.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, single
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import (
    MASKED,
    added,
    agreed,
    attend,
    check_bias,
    divided,
    given,
    grown,
    later,
    mask_to_add,
    ranked,
    split,
)
from fuse.ops.infer import common_dtype
from fuse.ops.record import Info, expect, operator, tensor


def _form(query: Shape | None, key: Shape | None, value: Shape | None, heads: int, packs: bool) -> tuple[Dim, ...]:
    """Batch, length of the queries and of the keys, size of a head of queries and of values.

    ``packs`` tells whether a query (batch, length, width) without a key holds all three.
    """
    ranked(query, (3, 5), "the query")
    ranked(key, (3, 4, 5), "the key")
    ranked(value, (3, 4), "the value")
    expect(heads > 0, f"num_heads {heads} must be positive")
    if query is None:
        return (None,) * 5
    batch, length = query[:2]
    if len(query) == 5:
        expect(key is None and value is None, "a packed query goes with no key and no value")
        agreed("the heads of the packed query and num_heads", query[2], heads)
        agreed("the fourth axis of the packed query and 3", query[3], 3)
        return batch, length, length, query[4], query[4]
    if key is None:
        expect(packs and value is None, "a query (batch, length, width) needs a key and a value")
        size = divided(query[2], 3 * heads, "the packed query")
        return batch, length, length, size, size
    size = divided(query[2], heads, "the query")
    batch = agreed("the batches of query and key", batch, key[0])
    if len(key) == 5:
        expect(value is None, "a packed key goes with no value")
        agreed("the heads of the packed key and num_heads", key[2], heads)
        agreed("the fourth axis of the packed key and 2", key[3], 2)
        return batch, length, key[1], agreed("the sizes of a head of query and key", size, key[4]), size
    expect(value is not None and len(value) == len(key), "key and value need the same rank")
    assert value is not None
    batch = agreed("the batches of query and value", batch, value[0])
    if len(key) == 4:
        agreed("the heads of key, value and num_heads", key[1], value[1], heads)
        size = agreed("the sizes of a head of query and key", size, key[3])
        return batch, length, agreed("the lengths of key and value", key[2], value[2]), size, value[3]
    agreed("the widths of query and key", query[2], key[2])
    return (
        batch,
        length,
        agreed("the lengths of key and value", key[1], value[1]),
        size,
        divided(value[2], heads, "the value"),
    )


def _known_form(query: Info, key: Info | None, value: Info | None, heads: int, packs: bool) -> tuple[Dim, ...]:
    """The same where shapes may be unknown."""
    if all(i is None or i.shape is not None for i in (query, key, value)):
        return _form(query.shape, _shape(key), _shape(value), heads, packs)
    batch, length = (None, None) if query.shape is None else query.shape[:2]
    return batch, length, None, None, None


def _shapes(
    form: tuple[Dim, ...],
    heads: int,
    past_key: Shape | None,
    past_value: Shape | None,
    bias: Shape | None,
    fixed: bool,
    filled: Dim = None,
) -> tuple[Shape, Shape, Shape, Shape]:
    """Output, present key, present value and scores.

    With ``fixed``, the present keeps the shape of the past, of which ``filled`` positions are filled.
    """
    batch, length, new, size, v_size = form
    expect((past_key is None) == (past_value is None), "past_key and past_value go together")
    for what, past, own in (("past_key", past_key, size), ("past_value", past_value, v_size)):
        ranked(past, (4,), what)
        if past is not None:
            agreed(f"the batches of query and {what}", batch, past[0])
            agreed(f"num_heads and the heads of {what}", heads, past[1])
            agreed(f"the sizes of a head of the query and of {what}", own, past[3])
    before: Dim = 0
    if past_key is not None and past_value is not None:
        before = agreed("the lengths of past_key and past_value", past_key[2], past_value[2])
    fixed = fixed and past_key is not None
    total = added(filled if fixed else before, new)
    state = before if fixed else total
    check_bias(bias, batch, heads, length, total)
    width = None if v_size is None else v_size * heads
    return (
        (batch, length, width),
        (batch, heads, state, size),
        (batch, heads, state, v_size),
        (batch, heads, length, total),
    )


def _number(x: Info | None) -> Dim:
    """The one element of a tensor, where it is known."""
    return None if x is None or x.dims is None or len(x.dims) != 1 else x.dims[0]


def _parts(query: Array, key: Array | None, value: Array | None, bias: Array | None, heads: int) -> list[Array]:
    """Queries, keys and values by heads, with their part of the bias added; keys by heads take none."""
    if query.ndim == 5:
        flat = [query[:, :, :, i].reshape(*query.shape[:2], -1) for i in range(3)]
    elif key is None:
        flat = np.split(query, 3, axis=2)
    elif key.ndim == 5:
        flat = [query, *(key[:, :, :, i].reshape(*key.shape[:2], -1) for i in range(2))]
    else:
        assert value is not None
        flat = [query, key, value]
    flat = [wide(part) for part in flat]
    if bias is not None:
        widths = [p.shape[2] if p.ndim == 3 else p.shape[1] * p.shape[3] for p in flat]
        expect(bias.shape == (sum(widths),), f"the bias is {list(bias.shape)} for widths {widths}")
        own = np.split(wide(bias), np.cumsum(widths[:2]))
        flat = [p + b if p.ndim == 3 else p for p, b in zip(flat, own, strict=True)]
    return [split(p, heads) if p.ndim == 3 else p for p in flat]


def _shape(x: Any) -> Any:
    return None if x is None else x.shape


# ---- MultiHeadAttention


def _multi_head_info(
    query: Info,
    key: Info | None = None,
    value: Info | None = None,
    bias: Info | None = None,
    key_padding_mask: Info | None = None,
    attention_bias: Info | None = None,
    past_key: Info | None = None,
    past_value: Info | None = None,
    past_sequence_length: Info | None = None,
    cache_indirection: Info | None = None,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> list[Info]:
    form = _known_form(query, key, value, num_heads, False)
    fixed = past_sequence_length is not None
    pasts = given(past_key, 4), given(past_value, 4)
    shapes = _shapes(form, num_heads, *pasts, _shape(attention_bias), fixed, _number(past_sequence_length))
    dtype = common_dtype(query, key, value, bias, attention_bias, past_key, past_value)
    return [tensor(dtype, s) for s in shapes]


@operator("com.microsoft::MultiHeadAttention", infer=_multi_head_info)
@at_run_time
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """The weighted values (batch, length, width), the present keys and values, and the scores before the softmax.

    ``query`` is (batch, length, width) or packed (batch, length, heads, 3, size); ``key`` likewise, or packed (batch,
    length, heads, 2, size), or by heads (batch, heads, length, size), and ``value`` as the key.  With
    ``past_sequence_length`` the past has room for more positions than are filled, and the present keeps its shape;
    ``cache_indirection`` says from which beam each of them comes.
    """
    form = _form(query.shape, _shape(key), _shape(value), num_heads, False)
    fixed = past_sequence_length is not None
    _shapes(form, num_heads, _shape(past_key), _shape(past_value), _shape(attention_bias), fixed)
    q, k, v = _parts(query, key, value, bias, num_heads)
    filled = None if past_sequence_length is None else int(single(past_sequence_length, "past_sequence_length"))
    (k, keys), (v, values) = grown(past_key, k, filled), grown(past_value, v, filled)
    if cache_indirection is not None and past_key is not None:
        expect(form[2] == 1, f"cache_indirection goes with one new position, there are {form[2]}")
        k, v = (_of_beams(t, cache_indirection, cache_indirection.shape[1]) for t in (k, v))
    (batch, _, length, _), total = q.shape, k.shape[2]
    blocked = None
    if unidirectional and length > 1:
        same = isinstance(form[2], int) and form[2] == length
        expect(same, f"unidirectional attention of {length} queries to {form[2]} keys has no agreed meaning")
        blocked = later(length, total)
    low = MASKED if mask_filter_value is None else mask_filter_value
    mask = None if key_padding_mask is None else mask_to_add(key_padding_mask, batch, length, total, low)
    y, scores = attend(q, k, v, scale, (attention_bias, mask), blocked, keep=n_outputs > 3)
    made = (y, keys, values) if scores is None else (y, keys, values, scores)
    return tuple(narrow(m, query) for m in made)


# ---- one step of a decoder


def _decoder_info(
    query: Info,
    key: Info | None = None,
    value: Info | None = None,
    mask_index: Info | None = None,
    attention_bias: Info | None = None,
    past_key: Info | None = None,
    past_value: Info | None = None,
    past_sequence_length: Info | None = None,
    beam_width: Info | None = None,
    cache_indirection: Info | None = None,
    bias: Info | None = None,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    n_outputs: int = 1,
) -> list[Info]:
    form = _known_form(query, key, value, num_heads, True)
    fixed, filled = bool(past_present_share_buffer), _number(past_sequence_length)
    pasts = given(past_key, 4), given(past_value, 4)
    shapes = _shapes(form, num_heads, *pasts, _shape(attention_bias), fixed, filled)
    dtype = common_dtype(query, key, value, past_key, past_value, bias)
    return [tensor(dtype, s) for s in shapes]


@operator("com.microsoft::DecoderMaskedMultiHeadAttention", infer=_decoder_info)
@at_run_time
def decoder_masked_multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    mask_index: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    beam_width: Array | None = None,
    cache_indirection: Array | None = None,
    bias: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    output_qk: int = 0,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """MultiHeadAttention of one query a sequence, whose keys may lie in other beams: ``cache_indirection`` says where.

    The state is (batch, heads, length, size), as onnxruntime's CPU kernel keeps it; its CUDA kernel reorders the keys.
    """
    form = _form(query.shape, _shape(key), _shape(value), num_heads, True)
    _shapes(form, num_heads, _shape(past_key), _shape(past_value), None, bool(past_present_share_buffer))
    expect(query.shape[1] == 1, f"decoding takes one query a sequence, there are {query.shape[1]}")
    q, k, v = _parts(query, key, value, bias, num_heads)
    filled = None
    if past_present_share_buffer and past_key is not None:
        expect(past_sequence_length is not None, "a shared buffer needs past_sequence_length")
        filled = int(single(np.asarray(past_sequence_length), "past_sequence_length"))
    (k, keys), (v, values) = grown(past_key, k, filled), grown(past_value, v, filled)
    beams = 1 if beam_width is None else int(single(beam_width, "beam_width"))
    expect(beams == 1 or cache_indirection is not None, f"{beams} beams need cache_indirection")
    if cache_indirection is not None and past_key is not None:
        k, v = (_of_beams(t, cache_indirection, beams) for t in (k, v))
    (batch, _, length, _), total = q.shape, k.shape[2]
    low = MASKED if mask_filter_value is None else mask_filter_value
    check_bias(_shape(attention_bias), batch, num_heads, length, total)
    mask = None if mask_index is None else mask_to_add(mask_index, batch, length, total, low)
    y, scores = attend(q, k, v, scale, (attention_bias, mask), keep=n_outputs > 3)
    made = (y, keys, values) if scores is None else (y, keys, values, scores)
    return tuple(narrow(m, query) for m in made)


def _of_beams(x: Array, indirection: Array, beams: int) -> Array:
    """For each sequence, the positions of the past from the beam that they come from; the newest is its own."""
    batch, total = x.shape[0], x.shape[2]
    ranked(indirection.shape, (3,), "cache_indirection")
    fits = beams > 0 and indirection.shape[0] * indirection.shape[1] == batch
    fits = fits and indirection.shape[1] == beams and indirection.shape[2] >= total - 1
    expect(fits, f"cache_indirection {list(indirection.shape)} for {batch} sequences in beams of {beams}")
    source = indirection.reshape(batch, -1)[:, : total - 1]
    expect(bool(((source >= 0) & (source < beams)).all()), f"cache_indirection names a beam outside 0 to {beams - 1}")
    place = np.arange(batch)[:, None] // beams * beams + source
    place = np.concatenate((place, np.arange(batch)[:, None]), axis=1)
    return x.transpose(0, 2, 1, 3)[place, np.arange(total)].transpose(0, 2, 1, 3)
