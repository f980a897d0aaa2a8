"""Scaled dot-product attention over tensors (batch, heads, positions, size): the arithmetic of Attention.

Half precision is carried in float32.  Where there are fewer heads of keys than of queries, the queries that share one
are stacked as rows of one matrix, so that no key is copied.  Heads are worked on in groups small enough that their
scores stay near the cache; keys behind the last one that any of its queries sees are left out.  The product of a query
with a key that it may not see has no effect, whatever it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fuse.ir.dtypes import BOOL, Array, DType
from fuse.ops.elementwise import wide

GROUP = 1 << 18
"""About how many scores are worked on at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How scores are made: their factor and cap, the dtype of the softmax, and the stage to keep (None for none)."""

    factor: float
    softcap: float = 0.0
    precision: DType | None = None
    mode: int | None = None


def attend(q: Array, k: Array, v: Array, mask: Array | None, seen: Array | None, plan: Plan) -> tuple[Array, Array]:
    """The result (batch, heads, queries, size), and the scores of the stage that is kept (empty without one).

    All inputs are 4-D; ``mask`` broadcasts to the scores, bools or numbers to add, ``seen`` too.
    """
    batch, heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    share = heads // max(kv_heads, 1)
    w = wide(q)
    rows = np.multiply(w, w.dtype.type(plan.factor), order="C").reshape(batch, kv_heads, share, queries, size)
    columns, values = wide(k).swapaxes(2, 3), wide(v)
    shape = (batch, heads, queries, keys)
    bias, hidden = _combined(mask, seen, shape, w.dtype)
    ends = np.full(queries, keys) if plan.mode is not None else _ends(hidden, queries, keys)
    y = np.empty((batch, heads, queries, v.shape[3]), w.dtype)
    kept = np.empty(shape if plan.mode is not None else (0,), w.dtype)
    for some, few, part in _groups(batch, kv_heads, share, queries, keys):
        here = (some, slice(few.start * share, few.stop * share), part)
        end = int(ends[part].max(initial=0))
        lead, count = y[here].shape[:2], part.stop - part.start
        stacked = (lead[0], few.stop - few.start, share * count)
        scores = rows[some, few, :, part].reshape(*stacked, size) @ columns[some, few, :, :end]
        weights, total = _weights(
            scores.reshape(*lead, count, end),
            None if bias is None else bias[here][..., :end],
            None if hidden is None else hidden[here][..., :end],
            plan,
            kept[here] if plan.mode is not None else None,
        )
        result = (weights.reshape(*stacked, end) @ values[some, few, :end]).reshape(y[here].shape)
        np.divide(result, total, out=y[here])
    return y, kept


def _groups(batch: int, heads: int, share: int, queries: int, keys: int) -> Iterator[tuple[slice, slice, slice]]:
    """Slices of the batch, of the heads and of the queries that cover all, with about ``GROUP`` scores each."""
    per_query = max(share * keys, 1)
    count = min(max(1, GROUP // per_query), max(queries, 1))
    few = min(max(1, GROUP // (per_query * count)), max(heads, 1)) if count >= queries else 1
    some = max(1, GROUP // (per_query * count * few)) if count >= queries and few >= heads else 1
    for b in range(0, batch, some):
        for h in range(0, heads, few):
            for i in range(0, queries, count):
                yield (
                    slice(b, min(b + some, batch)),
                    slice(h, min(h + few, heads)),
                    slice(i, min(i + count, queries)),
                )


def _ends(hidden: Array | None, queries: int, keys: int) -> Array:
    """For each query the number of keys up to the last one that it sees anywhere in the batch."""
    if hidden is None or not keys:
        return np.full(queries, keys)
    once = hidden[tuple(slice(None if stride else 1) for stride in hidden.strides)]  # what is repeated, once
    seen: Array = np.logical_not(np.all(once, axis=(0, 1)))
    last = np.where(seen.any(axis=1), keys - np.argmax(seen[:, ::-1], axis=1), 0)
    return np.broadcast_to(last, queries)


def _combined(
    mask: Array | None, seen: Array | None, shape: tuple[int, ...], dtype: DType
) -> tuple[Array | None, Array | None]:
    """What to add to the scores, and which of them do not count, as views of their ``shape``; None for nothing."""
    bias = None
    if mask is not None:
        short = [(0, 0)] * (mask.ndim - 1) + [(0, shape[-1] - mask.shape[-1])]
        if mask.dtype != BOOL:
            bias = np.pad(mask.astype(dtype), short, constant_values=-np.inf)
            mask = ~np.isneginf(bias)
            bias = np.broadcast_to(bias, shape)
        else:
            mask = np.pad(mask, short)
        seen = mask if seen is None else seen & mask
    return bias, None if seen is None or bool(seen.all()) else np.broadcast_to(~seen, shape)


def _weights(
    scores: Array, bias: Array | None, hidden: Array | None, plan: Plan, keep: Array | None
) -> tuple[Array, Array]:
    """Weights in place of ``scores``, and what to divide their average by; zeros where no score counts."""
    dtype = scores.dtype
    _stage(0, scores, plan, keep)
    if plan.softcap:
        scores /= dtype.type(plan.softcap)
        np.tanh(scores, out=scores)
        scores *= dtype.type(plan.softcap)
    _stage(1, scores, plan, keep)
    if bias is not None:
        scores += bias
    if hidden is not None:
        np.copyto(scores, -np.inf, where=hidden)
    _stage(2, scores, plan, keep)
    if plan.precision is not None:
        scores = wide(scores.astype(plan.precision))
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    scores -= np.where(np.isneginf(top), 0, top)
    np.exp(scores, out=scores)
    total = np.sum(scores, axis=-1, keepdims=True)
    total[total == 0] = 1
    if plan.precision is None and plan.mode != 3:
        return scores, total
    scores /= total
    if plan.precision is not None:
        scores = scores.astype(plan.precision).astype(dtype)
    _stage(3, scores, plan, keep)
    return scores, np.ones((), dtype)


def _stage(number: int, scores: Array, plan: Plan, keep: Array | None) -> None:
    if keep is not None and plan.mode == number:
        np.copyto(keep, scores)
