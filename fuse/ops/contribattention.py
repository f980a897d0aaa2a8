"""Attention of the domain ``com.microsoft``: the projection to queries, keys and values, and self-attention over them.

Its packed form takes the tokens of a batch one behind the other, without padding.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from fuse.errors import UnsupportedError
from fuse.ir.dims import Dim, floordiv
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
    later,
    mask_to_add,
    ranked,
    split,
)
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.matmul import product
from fuse.ops.record import Info, expect, operator, tensor


def _widths(columns: Dim, sizes: Sequence[int] | None) -> tuple[Dim, Dim]:
    """The widths of queries (and keys) and of values, which the columns of the weight hold one beside the other."""
    if sizes is None:
        expect(not isinstance(columns, int) or columns % 3 == 0, f"{columns} columns are no queries, keys and values")
        third = None if columns is None else floordiv(columns, 3)
        return third, third
    fits = len(sizes) == 3 and sizes[0] == sizes[1] and all(s > 0 for s in sizes)
    expect(fits, f"qkv_hidden_sizes {list(sizes)} are not two equal widths and a third one")
    expect(not isinstance(columns, int) or columns == sum(sizes), f"{columns} columns for widths {list(sizes)}")
    return sizes[0], sizes[2]


def _shapes(
    shapes: Sequence[Shape | None], num_heads: int, sizes: Sequence[int] | None, shared: int
) -> tuple[Shape, Shape]:
    """The shapes of output and present state, after all checks that those of the inputs allow.

    ``shapes`` are those of input, weight, bias, past and attention bias.
    """
    x, weights, bias, past, attention_bias = shapes
    for what, shape, rank in zip(("the input", "the weight", "the bias", "past"), shapes, (3, 2, 1, 5), strict=False):
        ranked(shape, (rank,), what)
    batch, length, width = (None,) * 3 if x is None else x
    rows, columns = (None, None) if weights is None else weights
    agreed("the width of the input and the rows of the weight", width, rows)
    columns = agreed("the columns of the weight and the length of the bias", columns, None if bias is None else bias[0])
    hidden, v_hidden = _widths(columns, sizes)
    size = divided(hidden, num_heads, "the queries")
    v_size = divided(v_hidden, num_heads, "the values")
    before: Dim = 0
    if past is not None:
        say = f"past {show_shape(past)} does not fit {num_heads} heads of the input {show_shape(x)}"
        pairs = ((past[0], 2), (past[1], batch), (past[2], num_heads), (past[4], size), (past[4], v_size))
        fits = all(not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in pairs)
        expect(fits, say)
        before = past[3]
    total = before if shared and past is not None else added(before, length)
    check_bias(attention_bias, batch, num_heads, length, None if shared else total)
    return (batch, length, v_hidden), (2, batch, num_heads, total, v_size)


def _attention_info(
    x: Info,
    weights: Info,
    bias: Info | None = None,
    mask_index: Info | None = None,
    past: Info | None = None,
    attention_bias: Info | None = None,
    past_sequence_length: Info | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float | None = None,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> tuple[Info, Info]:
    shapes = [given(i, r) for i, r in zip((x, weights, bias, past, attention_bias), (3, 2, 1, 5, 4), strict=True)]
    output, present = _shapes(shapes, num_heads, qkv_hidden_sizes, past_present_share_buffer)
    dtype = common_dtype(x, weights, bias, past, attention_bias)
    return tensor(dtype, output), tensor(dtype, present)


@operator("com.microsoft::Attention", infer=_attention_info)
@at_run_time
def attention(
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    mask_filter_value: float | None = None,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: Sequence[int] | None = None,
    rotary_embedding_dim: int | None = None,
    scale: float | None = None,
    unidirectional: int = 0,
    n_outputs: int = 1,
) -> Array | tuple[Array, Array]:
    """Self-attention of ``x`` (batch, length, width) through ``weights`` (width, columns); also the present state.

    The state (2, batch, heads, total, size) holds keys and values.  With ``past_present_share_buffer`` it has room for
    more positions than the ``past_sequence_length`` that are filled, and keeps its shape.
    """
    if do_rotary:
        raise UnsupportedError("Attention with do_rotary has no kernel: it takes no tables of cosines and sines")
    shapes = [None if i is None else i.shape for i in (x, weights, bias, past, attention_bias)]
    _shapes(shapes, num_heads, qkv_hidden_sizes, past_present_share_buffer)
    (batch, length, _), hidden = x.shape, (qkv_hidden_sizes or (weights.shape[1] // 3,))[0]
    projected = product(wide(x), wide(weights))
    if bias is not None:
        projected += bias.astype(projected.dtype, copy=False)
    q, k, v = (split(part, num_heads) for part in np.split(projected, [hidden, 2 * hidden], axis=2))
    filled = past.shape[3] if past is not None else 0
    if past is not None:
        if past_present_share_buffer:
            expect(past_sequence_length is not None, "a shared buffer needs past_sequence_length")
            filled = int(single(np.asarray(past_sequence_length), "past_sequence_length"))
            fits = 0 <= filled <= past.shape[3] - length
            expect(fits, f"{filled} past positions and {length} new ones do not fit a buffer of {past.shape[3]}")
        k = np.concatenate((past[0, :, :, :filled].astype(k.dtype, copy=False), k), axis=2)
        v = np.concatenate((past[1, :, :, :filled].astype(v.dtype, copy=False), v), axis=2)
    total = filled + length
    value = MASKED if mask_filter_value is None else mask_filter_value
    mask = None if mask_index is None else mask_to_add(mask_index, batch, length, total, value)
    y, _ = attend(q, k, v, scale, (attention_bias, mask), later(length, total) if unidirectional else None)
    if n_outputs == 1:
        return narrow(y, x)
    expect(k.shape == v.shape, "there is no present state of keys and values of different sizes")
    return narrow(y, x), narrow(_state(past if past_present_share_buffer else None, k, v), x)


def _state(buffer: Array | None, k: Array, v: Array) -> Array:
    """Keys and values stacked, in a copy of ``buffer`` where there is one."""
    if buffer is None:
        return np.stack((k, v))
    present = buffer.astype(k.dtype)
    present[:, :, :, : k.shape[2]] = (k, v)
    return present


# ---- without padding


def _packed_shape(x: Shape | None, weights: Shape | None, sizes: Sequence[int] | None, num_heads: int) -> Shape:
    ranked(x, (2,), "the input")
    ranked(weights, (2,), "the weight")
    hidden, v_hidden = _widths(None if weights is None else weights[1], sizes)
    divided(hidden, num_heads, "the queries")
    divided(v_hidden, num_heads, "the values")
    return (None if x is None else x[0], v_hidden)


def _packed_info(
    x: Info,
    weights: Info,
    bias: Info,
    token_offset: Info,
    cumulative_sequence_length: Info,
    attention_bias: Info | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float | None = None,
) -> Info:
    return tensor(common_dtype(x, weights, bias), _packed_shape(x.shape, weights.shape, qkv_hidden_sizes, num_heads))


@operator("com.microsoft::PackedAttention", infer=_packed_info)
@at_run_time
def packed_attention(
    x: Array,
    weights: Array,
    bias: Array,
    token_offset: Array,
    cumulative_sequence_length: Array,
    attention_bias: Array | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] | None = None,
    scale: float | None = None,
) -> Array:
    """Attention of each sequence of ``x`` (tokens, width) to itself; ``token_offset`` is (batch, longest)."""
    _packed_shape(x.shape, weights.shape, qkv_hidden_sizes, num_heads)
    hidden = (qkv_hidden_sizes or (weights.shape[1] // 3,))[0]
    projected = product(wide(x), wide(weights)) + wide(bias)
    q, k, v = np.split(projected, [hidden, 2 * hidden], axis=1)
    return narrow(by_sequence(q, k, v, cumulative_sequence_length, attention_bias, num_heads, scale), x)


def by_sequence(
    q: Array, k: Array, v: Array, bounds: Array, bias: Array | None, num_heads: int, scale: float | None
) -> Array:
    """Attention of each run of tokens (tokens, width) between two neighbours of ``bounds`` (batch + 1) to itself."""
    ends = [int(b) for b in bounds]
    sound = ends[:1] == [0] and ends[-1] == len(q) and all(a <= b for a, b in itertools.pairwise(ends))
    expect(sound, f"cumulative_sequence_length {ends} does not divide {len(q)} tokens")
    y = np.zeros((len(q), v.shape[1]), q.dtype)
    for index, (low, high) in enumerate(itertools.pairwise(ends)):
        parts = [split(t[None, low:high], num_heads) for t in (q, k, v)]
        own = None if bias is None else bias[index if len(bias) > 1 else slice(0, 1)][..., : high - low, : high - low]
        y[low:high] = attend(parts[0], parts[1], parts[2], scale, (own,))[0][0]
    return y


def _packed_heads_shape(query: Shape | None, value: Shape | None, num_heads: int) -> Shape:
    ranked(query, (2, 4), "the query")
    if query is None:
        return (None, None)
    if len(query) == 4:
        agreed("the heads of the query and num_heads", query[1], num_heads)
        agreed("the third axis of a packed query and 3", query[2], 3)
        return (query[0], None if query[3] is None else query[3] * num_heads)
    divided(query[1], num_heads, "the queries")
    return (query[0], query[1] if value is None else value[1])


def _packed_heads_info(
    query: Info,
    key: Info | None,
    value: Info | None,
    bias: Info | None,
    token_offset: Info,
    cumulative_sequence_length: Info,
    attention_bias: Info | None = None,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    scale: float | None = None,
) -> Info:
    shape = _packed_heads_shape(query.shape, None if value is None else value.shape, num_heads)
    return tensor(common_dtype(query, key, value, bias), shape)


@operator("com.microsoft::PackedMultiHeadAttention", infer=_packed_heads_info)
@at_run_time
def packed_multi_head_attention(
    query: Array,
    key: Array | None,
    value: Array | None,
    bias: Array | None,
    token_offset: Array,
    cumulative_sequence_length: Array,
    attention_bias: Array | None = None,
    *,
    num_heads: int,
    mask_filter_value: float | None = None,
    scale: float | None = None,
) -> Array:
    """The same from queries, keys and values (tokens, width), or from one packed (tokens, heads, 3, size)."""
    _packed_heads_shape(query.shape, None if value is None else value.shape, num_heads)
    if query.ndim == 4:
        parts = [wide(query[:, :, i].reshape(len(query), -1)) for i in range(3)]
    else:
        expect(key is not None and value is not None, "a query (tokens, width) needs a key and a value")
        parts = [wide(t) for t in (query, key, value) if t is not None]
    if bias is not None:
        cuts = np.split(wide(bias), np.cumsum([p.shape[1] for p in parts[:2]]))
        parts = [p + b for p, b in zip(parts, cuts, strict=True)]
    y = by_sequence(parts[0], parts[1], parts[2], cumulative_sequence_length, attention_bias, num_heads, scale)
    return narrow(y, query)
