"""GroupQueryAttention of the domain ``com.microsoft``: several heads of queries share one head of keys and values.

Every sequence of a batch has a length of its own.  What was attended to before lies in a cache, to which the new keys
and values are added; where the cache holds only a window, the oldest positions leave it.  Rows behind the end of a
sequence are unspecified: here they are 0 in a cache, and something finite in the output.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import UnsupportedError
from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.attend import Plan, attend
from fuse.ops.bounds import at_run_time, clamped, single
from fuse.ops.contribrotary import check_tables, turned
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import added, agreed, check_bias, divided, given, join, ranked, split
from fuse.ops.infer import common_dtype
from fuse.ops.record import Info, expect, operator, tensor


def _form(query: Shape | None, key: Shape | None, value: Shape | None, heads: int, kv_heads: int) -> tuple[Dim, ...]:
    """Batch, length, and size of a head."""
    for what, shape in (("the query", query), ("the key", key), ("the value", value)):
        ranked(shape, (3,), what)
    expect(kv_heads > 0 and heads % kv_heads == 0, f"{heads} heads cannot share {kv_heads} heads of keys")
    expect((key is None) == (value is None), "key and value go together")
    if query is None:
        return None, None, None
    if key is None or value is None:
        return query[0], query[1], divided(query[2], heads + 2 * kv_heads, "the packed query")
    size = divided(query[2], heads, "the query")
    for what, shape in (("key", key), ("value", value)):
        agreed(f"the batches of query and {what}", query[0], shape[0])
        agreed(f"the lengths of query and {what}", query[1], shape[1])
        agreed(f"the sizes of a head of query and {what}", size, divided(shape[2], kv_heads, f"the {what}"))
    return query[0], query[1], size


def _check_past(past: Shape | None, batch: Dim, kv_heads: int, size: Dim) -> Dim:
    """The length of a cache."""
    ranked(past, (4,), "the past")
    if past is None:
        return 0
    agreed("the batches of query and past", batch, past[0])
    agreed("kv_num_heads and the heads of the past", kv_heads, past[1])
    agreed("the sizes of a head of query and past", size, past[3])
    return past[2]


def _shape(x: Any) -> Any:
    return None if x is None else x.shape


def _size(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _info(
    query: Info,
    key: Info | None,
    value: Info | None,
    past_key: Info | None,
    past_value: Info | None,
    seqlens_k: Info,
    total_sequence_length: Info,
    cos_cache: Info | None = None,
    sin_cache: Info | None = None,
    position_ids: Info | None = None,
    attention_bias: Info | None = None,
    *others: Info | None,
    num_heads: int,
    kv_num_heads: int,
    sliding_window_cache: int = 0,
    **attrs: Any,
) -> list[Info]:
    keys = given(key, 3), given(value, 3)
    batch, length, size = _form(given(query, 3), *keys, num_heads, kv_num_heads)
    expect((past_key is None) == (past_value is None), "past_key and past_value go together")
    pasts = (_check_past(given(p, 4), batch, kv_num_heads, size) for p in (past_key, past_value))
    before = agreed("the lengths of past_key and past_value", *pasts)
    totals = total_sequence_length.dims
    total = totals[0] if totals is not None and len(totals) == 1 else None
    check_bias(_shape(attention_bias), batch, num_heads, length, total)
    check_tables(_shape(cos_cache), _shape(sin_cache))
    grown = None if before is None or total is None else clamped(total - before)
    state = (batch, kv_num_heads, before if sliding_window_cache else added(before, grown), size)
    cache = query.dtype if past_key is None else past_key.dtype
    width = None if size is None else size * num_heads
    return [
        tensor(common_dtype(query, key, value), (batch, length, width)),
        tensor(cache, state),
        tensor(cache, state),
        tensor(query.dtype, (batch, num_heads, length, total)),
    ]


@dataclass(frozen=True, slots=True)
class _Lengths:
    """How many positions each sequence has, all (batch,): before this step, new ones, and after it."""

    before: Array
    new: Array
    total: Array

    def kept(self, total: Array, room: int, window: int) -> Array:
        """How many of ``total`` positions a cache of ``room`` keeps; all, where ``window`` is 0."""
        if not window:
            return total
        step = room - window + 1
        return np.where(total <= room, total, total + (room - total) // step * step)


def _lengths(seqlens_k: Array, query_seqlens: Array | None, batch: int, length: int, most: int, past: bool) -> _Lengths:
    total = seqlens_k.reshape(-1).astype(np.int64) + 1
    expect(len(total) == batch, f"seqlens_k is {list(seqlens_k.shape)} for a batch of {batch}")
    sound = bool(((total >= 1) & (total <= most)).all())
    expect(sound, f"lengths {total.tolist()} are outside 1 to total_sequence_length {most}")
    new = np.minimum(length, total)
    if query_seqlens is not None:
        new = query_seqlens.reshape(-1).astype(np.int64)
        fits = len(new) == batch and bool(((new >= 0) & (new <= np.minimum(length, total))).all())
        expect(fits, f"query_seqlens {new.tolist()} do not fit length {length} and lengths {total.tolist()}")
    elif length > 1 and length != most:
        expect(batch == 1, f"{length} new positions behind a past need a batch of 1 or query_seqlens, not {batch}")
        expect(bool((total >= length).all()), f"{length} new positions make a sequence of {total.tolist()}")
    elif length == most:
        new = total  # a first prompt: what is behind the end of a sequence is padding
    before = total - new
    expect(past or not before.any(), f"{int(before.max(initial=0))} positions lie in the past, which is absent")
    return _Lengths(before, new, total)


def _cached(past: Array | None, new: Array, lengths: _Lengths, room: int, window: int) -> tuple[Array, Array, Array]:
    """Keys or values to attend to (batch, heads, rows, size), the place of each row (batch, rows), and the state.

    A place is -1 where the row holds nothing.
    """
    batch, heads, _, size = new.shape
    old = lengths.kept(lengths.before, room, window)
    rows = int((old + lengths.new).max(initial=0))
    keys, places = np.zeros((batch, heads, rows, size), new.dtype), np.full((batch, rows), -1)
    state = np.zeros((batch, heads, room, size), new.dtype if past is None else past.dtype)
    after = lengths.kept(lengths.total, room, window)
    fits = bool((after <= room).all()) and (past is None or bool((old <= past.shape[2]).all()))
    expect(fits, f"lengths {lengths.total.tolist()} do not fit a cache of {room}")
    for b in range(batch):
        first, count, end = int(old[b]), int(lengths.new[b]), int(old[b] + lengths.new[b])
        if past is not None:
            keys[b, :, :first] = past[b, :, :first]
        keys[b, :, first:end] = new[b, :, :count]
        places[b, :end] = np.arange(end) + int(lengths.before[b]) - first
        state[b, :, : int(after[b])] = keys[b, :, end - int(after[b]) : end]
    return keys, places, state


def _seen(places: Array, own: Array, causal: bool, window: int) -> Array:
    """Which keys a query sees by its place, (batch, 1, length, rows)."""
    key, query = places[:, None, None], own[:, None, :, None]
    seen = np.broadcast_to(key >= 0, (len(own), 1, own.shape[1], places.shape[1]))
    if causal:
        seen = seen & (key <= query)
    return seen & (key > query - window) if window > 0 else seen


def _rms(x: Array, weight: Array, epsilon: float) -> Array:
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(mean + x.dtype.type(epsilon)) * wide(weight)


@operator("com.microsoft::GroupQueryAttention", infer=_info)
@at_run_time
def group_query_attention(
    query: Array,
    key: Array | None,
    value: Array | None,
    past_key: Array | None,
    past_value: Array | None,
    seqlens_k: Array,
    total_sequence_length: Array,
    cos_cache: Array | None = None,
    sin_cache: Array | None = None,
    position_ids: Array | None = None,
    attention_bias: Array | None = None,
    head_sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    q_norm_weight: Array | None = None,
    k_norm_weight: Array | None = None,
    query_seqlens: Array | None = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    k_norm_epsilon: float | None = None,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int | None = None,
    local_window_size: int = -1,
    q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float | None = None,
    sliding_window_cache: int = 0,
    smooth_softmax: int = -1,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Output (batch, length, width), present keys and values, and with ``qk_output`` the scores or the weights.

    ``query`` may hold the keys and values behind it.  Sequence b has ``seqlens_k[b] + 1`` positions after this step.
    """
    if k_quant_type != "NONE" or v_quant_type != "NONE":
        raise UnsupportedError("GroupQueryAttention with a quantised cache has no kernel")
    _form(query.shape, _shape(key), _shape(value), num_heads, kv_num_heads)
    batch, length, _ = query.shape
    q, k, v = _heads(query, key, value, num_heads, kv_num_heads)
    most = int(single(total_sequence_length, "total_sequence_length"))
    expect((past_key is None) == (past_value is None), "past_key and past_value go together")
    pasts = [_check_past(_shape(p), batch, kv_num_heads, q.shape[3]) for p in (past_key, past_value)]
    old = _size(agreed("the lengths of past_key and past_value", *pasts))
    lengths = _lengths(seqlens_k, query_seqlens, batch, length, most, past_key is not None)
    own = lengths.before[:, None] + np.arange(length)
    if q_norm_weight is not None and k_norm_weight is not None:
        q = _rms(q, q_norm_weight, q_norm_epsilon or qk_norm_epsilon)
        k = _rms(k, k_norm_weight, k_norm_epsilon or qk_norm_epsilon)
    if do_rotary:
        at = _positions(position_ids, own, lengths, length == most and query_seqlens is None)
        q, k = (_turned(t, at, cos_cache, sin_cache, rotary_interleaved) for t in (q, k))
    window = local_window_size if sliding_window_cache else 0
    room = old if window else max(most, old)
    if sliding_window_cache:
        expect(0 < window <= room, f"a cache of {room} cannot hold a window of {window}")
        expect(not qk_output, "qk_output has no agreed meaning where a cache holds only a window")
    keys, places, present_key = _cached(past_key, narrow(k, query), lengths, room, window)
    values, _, present_value = _cached(past_value, narrow(v, query), lengths, room, window)
    if attention_bias is not None:
        check_bias(attention_bias.shape, batch, num_heads, length, most)
    bias = None if attention_bias is None else _columns(attention_bias, places)
    seen = _seen(places, own, bool(causal), local_window_size)
    sink = np.zeros(1, query.dtype) if head_sink is None and smooth_softmax > 0 else head_sink
    factor = scale or 1 / math.sqrt(max(q.shape[3], 1))
    plan = Plan(factor, max(softcap, 0.0), mode={1: 2, 2: 3}.get(qk_output) if n_outputs > 3 else None)
    y, scores = _attended(q, keys, values, bias, seen, sink, plan)
    made = [narrow(join(y), query), present_key, present_value]
    if plan.mode is not None:
        made.append(narrow(_placed(np.where(seen, scores, 0), places, most), query))
    return tuple(made)


def _attended(
    q: Array, k: Array, v: Array, bias: Array | None, seen: Array, sink: Array | None, plan: Plan
) -> tuple[Array, Array]:
    """The core's result and scores.  A sink is a further key whose score is given and whose value is 0."""
    if sink is None:
        return attend(q, k, v, bias, seen, plan)
    k, v = (np.pad(t, ((0, 0), (0, 0), (0, 1), (0, 0))) for t in (k, v))
    seen = np.pad(seen, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=True)
    score = wide(sink).reshape(1, -1, 1, 1)
    if bias is None:
        bias = np.zeros((1, score.shape[1], 1, k.shape[2] - 1), score.dtype)
    shape = np.broadcast_shapes(score.shape, (*bias.shape[:3], 1))
    bias = np.concatenate((np.broadcast_to(bias, (*shape[:3], bias.shape[3])), np.broadcast_to(score, shape)), axis=3)
    y, scores = attend(q, k, v, bias, seen, plan)
    return y, scores[..., :-1]


def _turned(x: Array, places: Array, cos: Array | None, sin: Array | None, interleaved: int) -> Array:
    expect(cos is not None and sin is not None, "do_rotary needs cosines and sines")
    assert cos is not None and sin is not None
    check_tables(cos.shape, sin.shape)
    return turned(x, places, cos, sin, bool(interleaved))


def _heads(query: Array, key: Array | None, value: Array | None, heads: int, kv_heads: int) -> list[Array]:
    """Queries, keys and values by heads."""
    if key is None or value is None:
        packed = split(wide(query), heads + 2 * kv_heads)
        return np.split(packed, [heads, heads + kv_heads], axis=1)
    return [split(wide(query), heads), split(wide(key), kv_heads), split(wide(value), kv_heads)]


def _positions(ids: Array | None, own: Array, lengths: _Lengths, prompt: bool) -> Array:
    """Where the new positions count from the beginning: as ``ids`` say, of which a first prompt reads one element."""
    if ids is None:
        return np.minimum(own, lengths.total[:, None] - 1)
    expect(ids.shape == own.shape, f"position_ids is {list(ids.shape)}, not {list(own.shape)}")
    if prompt and ids.size:
        return np.broadcast_to(ids[0, 0] + np.arange(own.shape[1]), own.shape)
    return ids


def _columns(bias: Array, places: Array) -> Array:
    """The columns of an attention bias that belong to the rows of a cache."""
    batch, rows = places.shape
    own = np.broadcast_to(bias, (batch, *bias.shape[1:]))
    chosen = np.broadcast_to(np.maximum(places, 0)[:, None, None], (batch, *bias.shape[1:3], rows))
    return np.take_along_axis(own, chosen, axis=3)


def _placed(scores: Array, places: Array, most: int) -> Array:
    """Scores by the place of their key, 0 where there is none: (batch, heads, length, most)."""
    y = np.zeros((*scores.shape[:3], most), scores.dtype)
    for b, row in enumerate(places):
        y[b, :, :, row[row >= 0]] = scores[b][:, :, row >= 0].transpose(2, 0, 1)
    return y
