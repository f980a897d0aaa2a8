"""Attention: the softmax of scaled products of queries and keys, by which values are averaged.

Here the inputs are checked and brought to four dimensions, and the rules of position (causal, windows, lengths) become
one mask; ``fuse.ops.attend`` does the arithmetic.  The result is rounded once to the dtype of the queries.
Source: the ONNX operator texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import BY_CODE, FLOATING, Array
from fuse.ir.types import Shape
from fuse.ops.attend import Plan, attend
from fuse.ops.bounds import at_run_time, fits, same_dim
from fuse.ops.elementwise import narrow
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the inputs of an attention agree on; ``keys`` counts those of the past too."""

    batch: Dim
    heads: Dim
    kv_heads: Dim
    queries: Dim
    keys: Dim
    size: Dim
    value_size: Dim
    flat: bool

    def outputs(self) -> tuple[Shape, Shape, Shape, Shape]:
        """The shapes of the result, of the present keys and values, and of the scores."""
        flat = (self.batch, self.queries, _times(self.heads, self.value_size))
        return (
            flat if self.flat else (self.batch, self.heads, self.queries, self.value_size),
            (self.batch, self.kv_heads, self.keys, self.size),
            (self.batch, self.kv_heads, self.keys, self.value_size),
            (self.batch, self.heads, self.queries, self.keys),
        )


def _times(a: Dim, b: Dim) -> Dim:
    return None if a is None or b is None else a * b


def _plus(a: Dim, b: Dim) -> Dim:
    return None if a is None or b is None else a + b


def _by_head(name: str, shape: Shape | None, heads: int | None) -> tuple[Dim, Dim, Dim, Dim]:
    """Batch, heads, positions and size of a head of one input, in 3 or 4 dimensions."""
    if shape is None:
        return None, heads, None, None
    if len(shape) == 3:
        expect(heads is not None and heads > 0, f"{name} is {show_shape(shape)} and its number of heads is not given")
        assert heads is not None
        whole = shape[2]
        expect(
            not isinstance(whole, int) or whole % heads == 0, f"{heads} heads do not divide {name} {show_shape(shape)}"
        )
        return shape[0], heads, shape[1], None if whole is None else floordiv(whole, heads)
    expect(len(shape) == 4, f"{name} is {show_shape(shape)}, not 3-D or 4-D")
    batch, own, positions, size = shape
    same_dim((heads, own), f"{name} is {show_shape(shape)} but has {heads} heads")
    return batch, own, positions, size


def _agreed(shapes: dict[str, Shape | None], q_num_heads: int | None, kv_num_heads: int | None) -> Sizes:
    """The sizes that the inputs, by their names in the operator text, have in common; absent ones are left out.

    Raises ``ShapeError`` where they do not fit together.
    """
    q, k, v = (shapes[n] for n in "QKV")
    ranks = {len(s) for s in (q, k, v) if s is not None}
    say = f"Q {show_shape(q)}, K {show_shape(k)} and V {show_shape(v)} do not fit together"
    expect(len(ranks) < 2, say)
    qb, heads, queries, size = _by_head("Q", q, q_num_heads)
    kb, k_heads, keys, k_size = _by_head("K", k, kv_num_heads)
    vb, v_heads, values, value_size = _by_head("V", v, kv_num_heads)
    batch, size, keys = same_dim((qb, kb, vb), say), same_dim((size, k_size), say), same_dim((keys, values), say)
    kv_heads = same_dim((k_heads, v_heads), say)
    if isinstance(heads, int) and isinstance(kv_heads, int):
        expect(kv_heads > 0 and heads % kv_heads == 0, f"{kv_heads} heads of keys do not divide {heads} of queries")
    keys = _plus(keys, _past(shapes, (batch, kv_heads, None, size), (batch, kv_heads, None, value_size)))
    fits("nonpad_kv_seqlen", shapes.get("nonpad_kv_seqlen"), (batch,))
    _check_mask(shapes.get("attn_mask"), (batch, heads, queries, keys))
    return Sizes(batch, heads, kv_heads, queries, keys, size, value_size, ranks == {3})


def _past(shapes: dict[str, Shape | None], key: Shape, value: Shape) -> Dim:
    """The length of the past, 0 where there is none."""
    expect(("past_key" in shapes) == ("past_value" in shapes), "past_key and past_value come together")
    if "past_key" not in shapes:
        return 0
    expect("nonpad_kv_seqlen" not in shapes, "nonpad_kv_seqlen excludes past_key and past_value")
    past_key, past_value = shapes["past_key"], shapes["past_value"]
    fits("past_key", past_key, key)
    fits("past_value", past_value, value)
    lengths = [None if s is None else s[2] for s in (past_key, past_value)]
    return same_dim(lengths, f"past_key is {show_shape(past_key)} but past_value {show_shape(past_value)}")


def _check_mask(mask: Shape | None, scores: Shape) -> None:
    """A mask broadcasts to the scores; it may be short of the last keys, which then take no part."""
    if mask is None:
        return
    message = f"attn_mask {show_shape(mask)} does not broadcast to {show_shape(scores)}"
    expect(0 < len(mask) <= 4, message)
    for have, want in zip(reversed(mask[:-1]), reversed(scores[:-1]), strict=False):
        expect(not isinstance(have, int) or not isinstance(want, int) or have in (1, want), message)
    have, want = mask[-1], scores[-1]
    expect(not isinstance(have, int) or not isinstance(want, int) or have <= want, message)


def _check_attributes(mode: int, left: int, right: int, softmax_precision: int | None) -> None:
    expect(mode in (0, 1, 2, 3), f"qk_matmul_output_mode {mode} is not 0 to 3")
    for name, size in (("left", left), ("right", right)):
        expect(size >= -1, f"{name}_window_size {size} is below -1")
    if softmax_precision is not None:
        expect(BY_CODE.get(softmax_precision) in FLOATING, f"softmax_precision {softmax_precision} is no float dtype")


def _attention_info(
    q: Info,
    k: Info,
    v: Info,
    attn_mask: Info | None = None,
    past_key: Info | None = None,
    past_value: Info | None = None,
    nonpad_kv_seqlen: Info | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    n_outputs: int = 1,
) -> tuple[Info, ...]:
    _check_attributes(qk_matmul_output_mode, left_window_size, right_window_size, softmax_precision)
    inputs = _named(q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    sizes = _agreed({n: i.shape for n, i in inputs.items()}, q_num_heads, kv_num_heads)
    dtypes = (q.dtype, k.dtype, v.dtype, q.dtype)
    if q.shape is None:
        return tuple(tensor(dtype) for dtype in dtypes)
    return tuple(tensor(dtype, shape) for dtype, shape in zip(dtypes, sizes.outputs(), strict=True))


def _named(*inputs: T | None) -> dict[str, T]:
    """The inputs that are there, by their names in the operator text."""
    names = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    return {name: x for name, x in zip(names, inputs, strict=True) if x is not None}


@operator("Attention", infer=_attention_info)
@at_run_time
def attention(
    q: Array,
    k: Array,
    v: Array,
    attn_mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    nonpad_kv_seqlen: Array | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Scaled dot-product attention.  Gives the result, the keys and values with the past before them, and the scores.

    A query that may see no key gives zeros.  The scores are those of the stage that ``qk_matmul_output_mode`` names.
    """
    _check_attributes(qk_matmul_output_mode, left_window_size, right_window_size, softmax_precision)
    inputs = _named(q, k, v, attn_mask, past_key, past_value, nonpad_kv_seqlen)
    sizes = _agreed({n: a.shape for n, a in inputs.items()}, q_num_heads, kv_num_heads)
    by_head = [_split(a, heads) for a, heads in ((q, sizes.heads), (k, sizes.kv_heads), (v, sizes.kv_heads))]
    keys, values = by_head[1:]
    if past_key is not None and past_value is not None:
        keys, values = np.concatenate((past_key, keys), axis=2), np.concatenate((past_value, values), axis=2)
    seen = _window(sizes, past_key, nonpad_kv_seqlen, bool(is_causal), left_window_size, right_window_size)
    plan = Plan(
        factor=1 / np.sqrt(max(by_head[0].shape[3], 1)) if scale is None else scale,
        softcap=softcap,
        precision=None if softmax_precision is None else BY_CODE[softmax_precision],
        mode=qk_matmul_output_mode if n_outputs > 3 else None,
    )
    y, scores = attend(by_head[0], keys, values, attn_mask, seen, plan)
    if sizes.flat:
        y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return (narrow(y, q), keys, values, narrow(scores, q))[:n_outputs]


def _split(x: Array, heads: Dim) -> Array:
    """``x`` as (batch, heads, positions, size)."""
    if x.ndim == 4:
        return x
    assert isinstance(heads, int)
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)


def _window(sizes: Sizes, past: Array | None, lens: Array | None, causal: bool, left: int, right: int) -> Array | None:
    """Which keys each query may see by its position, (1 or batch, 1, queries, keys); None for all of them."""
    queries, keys = sizes.queries, sizes.keys
    assert isinstance(queries, int) and isinstance(keys, int)
    if causal:
        right = 0
    if left < 0 and right < 0 and lens is None:
        return None
    before = 0 if past is None else past.shape[2]
    offset = np.array([before]) if lens is None else lens.astype(np.int64) - queries
    place = offset[:, None, None, None] + np.arange(queries)[:, None]
    key = np.arange(keys)
    seen = np.ones((len(offset), 1, queries, keys), bool)
    if left >= 0:
        seen &= key >= place - left
    if right >= 0:
        seen &= key <= place + right
    if lens is not None:
        outside = lens[(lens < 0) | (lens > keys)]
        expect(not outside.size, f"nonpad_kv_seqlen {outside[:1].tolist()} is not within {keys} keys")
        seen &= key < lens[:, None, None, None]
    return seen
