"""Rotary position embeddings of the domain ``com.microsoft``, which find the form of a head from their tables.

The turning itself is that of the standard operator.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops import rotary
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import narrow
from fuse.ops.heads import agreed, join, ranked, split
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, expect, operator, tensor


def turned(x: Array, places: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """A fresh array of ``x`` (batch, heads, length, size), each row turned by its place (batch, length).

    ``cos`` and ``sin`` (most, half) are tables by place; the first ``2 * half`` elements of a head are turned.
    """
    outside = places[(places < 0) | (places >= len(cos))]
    expect(not outside.size, f"position {outside[:1].tolist()} is outside the {len(cos)} rows of the cosines")
    return rotary.rotary_embedding(
        x, cos, sin, places, interleaved=int(interleaved), rotary_embedding_dim=2 * cos.shape[1]
    )


def check_tables(cos: Shape | None, sin: Shape | None) -> None:
    """Raise ``ShapeError`` unless cosines and sines are tables of one shape."""
    for what, shape in (("the cosines", cos), ("the sines", sin)):
        ranked(shape, (2,), what)
    for a, b in zip(cos or (), sin or (), strict=False):
        agreed("the shapes of cosines and sines", a, b)


def _rotary_info(
    x: Info,
    position_ids: Info,
    cos_cache: Info,
    sin_cache: Info,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Info:
    ranked(x.shape, (3, 4), "the input")
    ranked(position_ids.shape, (0, 1, 2), "position_ids")
    check_tables(cos_cache.shape, sin_cache.shape)
    expect(rotary_embedding_dim == 0 or num_heads > 0, "rotary_embedding_dim needs num_heads")
    return tensor(common_dtype(x, cos_cache, sin_cache), x.shape)


@operator("com.microsoft::RotaryEmbedding", infer=_rotary_info)
@at_run_time
def rotary_embedding(
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    """``x`` (batch, length, width) or (batch, heads, length, size) turned by ``position_ids``.

    These are (batch, length), or the one place of the first row.  A head has twice the width of the tables, unless
    ``rotary_embedding_dim`` tells how much of it is turned.  ``scale`` has no effect, as in onnxruntime.
    """
    ranked(x.shape, (3, 4), "the input")
    check_tables(cos_cache.shape, sin_cache.shape)
    expect(rotary_embedding_dim == 0 or num_heads > 0, "rotary_embedding_dim needs num_heads")
    width = 2 * cos_cache.shape[1]
    fits = rotary_embedding_dim in (0, width)
    expect(fits, f"rotary_embedding_dim is {rotary_embedding_dim}, the cosines turn {width}")
    if x.ndim == 4:
        by_head = x
    else:
        heads = num_heads or x.shape[2] // max(width, 1)
        whole = heads > 0 and x.shape[2] % heads == 0
        expect(whole, f"the width {x.shape[2]} cannot be split into {heads} heads")
        by_head = split(x, heads)
    whole = rotary_embedding_dim > 0 or by_head.shape[3] == width
    expect(whole, f"a head has {by_head.shape[3]} elements, the cosines turn {width}")
    batch, _, length, _ = by_head.shape
    y = turned(by_head, _places(position_ids, batch, length), cos_cache, sin_cache, bool(interleaved))
    return y if x.ndim == 4 else join(y)


def _places(position_ids: Array, batch: int, length: int) -> Array:
    if position_ids.ndim < 2 and position_ids.size == 1:
        return np.broadcast_to(position_ids.reshape(()) + np.arange(length), (batch, length))
    fits = position_ids.shape == (batch, length)
    expect(fits, f"position_ids is {show_shape(position_ids.shape)} for batch {batch} and length {length}")
    return position_ids


# ---- by angles


def _gemma_info(emb: Info, q: Info, q_rot: Info, k: Info, k_rot: Info) -> tuple[Info, Info]:
    return tensor(common_dtype(q, q_rot), q.shape), tensor(common_dtype(k, k_rot), k.shape)


@operator("com.microsoft::GemmaRotaryEmbedding", infer=_gemma_info)
@at_run_time
def gemma_rotary_embedding(emb: Array, q: Array, q_rot: Array, k: Array, k_rot: Array) -> tuple[Array, Array]:
    """``q * cos + q_rot * sin``, and the same of ``k``, for angles ``emb`` (batch, length, size)."""
    ranked(emb.shape, (3,), "emb")
    cos, sin = (narrow(f(emb)[:, None], q) for f in (np.cos, np.sin))
    return q * cos + q_rot * sin, k * cos + k_rot * sin
