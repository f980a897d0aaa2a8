"""The quantised layers of BERT: multi-head self-attention with 8-bit projections, and the 8-bit embedding.

Only the projection to queries, keys and values is quantised; scores, softmax and the weighted sum are real numbers.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

import numpy as np

from fuse.errors import UnsupportedError
from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, in_range, same_dim
from fuse.ops.heads import MASKED, attend, later, mask_to_add, split
from fuse.ops.infer import show_shape
from fuse.ops.qmatmul import by_column, integer_sums, single
from fuse.ops.quant import INT32, reals
from fuse.ops.record import Info, expect, operator, tensor

# ---- QAttention


def _heads(x: Shape | None, w: Shape | None, past: Shape | None, num_heads: int) -> tuple[Shape, Shape]:
    """The shapes of the output and of the present state."""
    expect(num_heads > 0, f"num_heads {num_heads} must be positive")
    for what, shape, rank in (("the input", x, 3), ("the weight", w, 2), ("past", past, 5)):
        expect(shape is None or len(shape) == rank, f"{what} is {show_shape(shape)}, its rank should be {rank}")
    batch, length, width = (None,) * 3 if x is None else x
    rows, columns = (None, None) if w is None else w
    agree = not isinstance(width, int) or not isinstance(rows, int) or width == rows
    expect(agree, f"the input has width {width} but the weight {rows} rows")
    if isinstance(columns, int):
        expect(
            columns % (3 * num_heads) == 0, f"{columns} columns are no queries, keys and values of {num_heads} heads"
        )
    hidden = None if columns is None else floordiv(columns, 3)
    before: Dim = 0
    if past is not None:
        say = f"past {show_shape(past)} does not fit {num_heads} heads of the input {show_shape(x)}"
        same_dim([past[0], 2], say)
        batch = same_dim([past[1], batch], say)
        same_dim([past[2], num_heads], say)
        before = past[3]
    total = None if length is None or before is None else before + length
    size = None if hidden is None else floordiv(hidden, num_heads)
    return (batch, length, hidden), (2, batch, num_heads, total, size)


def _attention_info(
    x: Info,
    weight: Info,
    bias: Info,
    x_scale: Info,
    w_scale: Info,
    mask: Info | None = None,
    x_zero: Info | None = None,
    w_zero: Info | None = None,
    past: Info | None = None,
    *,
    num_heads: int,
    unidirectional: int = 0,
    mask_filter_value: float | None = None,
    scale: float | None = None,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
) -> tuple[Info, Info]:
    output, present = _heads(x.shape, weight.shape, None if past is None else past.shape, num_heads)
    return tensor(bias.dtype, output), tensor(bias.dtype, present)


@operator("com.microsoft::QAttention", infer=_attention_info)
@at_run_time
def qattention(
    x: Array,
    weight: Array,
    bias: Array,
    x_scale: Array,
    w_scale: Array,
    mask: Array | None = None,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    past: Array | None = None,
    *,
    num_heads: int,
    unidirectional: int = 0,
    mask_filter_value: float | None = None,
    scale: float | None = None,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
) -> tuple[Array, Array]:
    """Self-attention of ``x`` (batch, length, width) through ``weight`` (width, 3 * hidden); also the present state.

    ``mask`` may have the shapes that ``fuse.ops.heads.mask_to_add`` knows.
    """
    if do_rotary or past_present_share_buffer:
        raise UnsupportedError("QAttention with do_rotary or past_present_share_buffer has no kernel")
    _heads(x.shape, weight.shape, None if past is None else past.shape, num_heads)
    batch, length, _ = x.shape
    expect(bias.shape == weight.shape[1:], f"the bias is {list(bias.shape)} for {weight.shape[1]} columns")
    sums = integer_sums(x, weight, None if x_zero is None else single(x_zero, "the zero point of the input"), w_zero)
    factor = single(x_scale, "the scale of the input") * by_column(w_scale, weight.shape, "the scale of the weight")
    projected = sums.astype(factor.dtype) * factor + bias
    q, k, v = (split(part, num_heads) for part in np.split(projected, 3, axis=2))
    if past is not None:
        k, v = np.concatenate((past[0], k), axis=2), np.concatenate((past[1], v), axis=2)
    total = k.shape[2]
    value = MASKED if mask_filter_value is None else mask_filter_value
    added = None if mask is None else mask_to_add(mask, batch, length, total, value)
    y, _ = attend(q, k, v, scale, (added,), later(length, total) if unidirectional else None)
    return y, np.stack((k, v))


# ---- QEmbedLayerNormalization


def _embed_info(
    ids: Info,
    segment_ids: Info | None,
    word: Info,
    position: Info,
    segment: Info | None,
    gamma: Info,
    beta: Info,
    mask: Info | None,
    word_scale: Info,
    *others: Info | None,
    epsilon: float = 1e-12,
) -> tuple[Info, Info]:
    expect(ids.rank in (None, 2), f"input_ids is {show_shape(ids.shape)}, not [batch, length]")
    batch, length = (None, None) if ids.shape is None else ids.shape
    hidden = None if word.shape is None else word.shape[-1]
    return tensor(word_scale.dtype, (batch, length, hidden)), tensor(INT32, (batch,))


@operator("com.microsoft::QEmbedLayerNormalization", infer=_embed_info)
@at_run_time
def qembed_layer_normalization(
    ids: Array,
    segment_ids: Array | None,
    word: Array,
    position: Array,
    segment: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None,
    word_scale: Array,
    position_scale: Array,
    segment_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_zero: Array,
    position_zero: Array,
    segment_zero: Array | None,
    gamma_zero: Array,
    beta_zero: Array,
    *,
    epsilon: float = 1e-12,
) -> tuple[Array, Array]:
    """Word, position and segment embeddings added and normalised over the last axis; also how far each mask reaches."""
    expect(ids.ndim == 2, f"input_ids is {list(ids.shape)}, not [batch, length]")
    length = ids.shape[1]
    expect(length <= position.shape[0], f"{length} positions but embeddings for {position.shape[0]}")
    kind = word_scale.dtype
    in_range(ids, word.shape[0], "word")
    y = reals(word[ids], single(word_scale, "a scale"), single(word_zero, "a zero point"), kind)
    y += reals(position[:length], single(position_scale, "a scale"), single(position_zero, "a zero point"), kind)
    if segment_ids is not None and segment is not None and segment_scale is not None and segment_zero is not None:
        in_range(segment_ids, segment.shape[0], "segment")
        y += reals(segment[segment_ids], single(segment_scale, "a scale"), single(segment_zero, "a zero point"), kind)
    y -= y.mean(axis=-1, keepdims=True)
    y /= np.sqrt(np.square(y).mean(axis=-1, keepdims=True) + kind.type(epsilon))
    y *= reals(gamma, single(gamma_scale, "a scale"), single(gamma_zero, "a zero point"), kind)
    y += reals(beta, single(beta_scale, "a scale"), single(beta_zero, "a zero point"), kind)
    return y, _reach(ids, mask)


def _reach(ids: Array, mask: Array | None) -> Array:
    """The position of the first 0 in each row of the mask, its length where there is none; 0 without a mask."""
    if mask is None:
        return np.zeros(ids.shape[0], np.int32)
    zero = mask == 0
    return np.where(zero.any(axis=1), zero.argmax(axis=1), mask.shape[1]).astype(np.int32)
