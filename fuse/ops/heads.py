"""Attention heads: tensors split into heads, masks as numbers to add, and the state that a decoder hands on.

What the attention operators of ``com.microsoft`` share; the product itself is that of ``fuse.ops.attend``.  Heads are
an axis of their own, (batch, heads, length, size).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.attend import Plan
from fuse.ops.attend import attend as by_plan
from fuse.ops.bounds import same_dim
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect

MASKED = -10000.0
"""What is added to the score of a position that a mask excludes, where no value is given."""


# ---- shapes


def ranked(shape: Shape | None, ranks: Sequence[int], what: str) -> None:
    """Raise ``ShapeError`` unless ``shape`` is unknown or has one of ``ranks``."""
    wanted = " or ".join(str(r) for r in ranks)
    expect(shape is None or len(shape) in ranks, f"{what} is {show_shape(shape)}, its rank should be {wanted}")


def given(info: Info | None, rank: int) -> Shape | None:
    """The shape of an input that has ``rank``: None where it is absent, unknown dims where nothing more is known."""
    return None if info is None else (None,) * rank if info.shape is None else info.shape


def agreed(what: str, *dims: Dim) -> Dim:
    """The one dim that all of ``dims`` are; ``ShapeError`` where two numbers differ."""
    return same_dim(dims, f"{what} differ: {', '.join(str(d) for d in dims if isinstance(d, int))}")


def divided(width: Dim, heads: int, what: str) -> Dim:
    """The size of one of ``heads`` heads of ``width``."""
    expect(heads > 0, f"the number of heads {heads} must be positive")
    whole = not isinstance(width, int) or width % heads == 0
    expect(whole, f"{what} of width {width} cannot be split into {heads} heads")
    return None if width is None else floordiv(width, heads)


def added(a: Dim, b: Dim) -> Dim:
    """``a + b``, unknown where one of them is."""
    return None if a is None or b is None else a + b


def split(x: Array, heads: int) -> Array:
    """(batch, length, heads * size) as (batch, heads, length, size)."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def join(x: Array) -> Array:
    """(batch, heads, length, size) as (batch, length, heads * size)."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


# ---- masks


def mask_to_add(mask: Array, batch: int, length: int, total: int, value: float) -> Array | None:
    """What ``mask`` adds to the scores, in float64 and shaped to broadcast to (batch, heads, length, total).

    Shapes: (batch,) or (3 * batch + 2,) how many positions are seen; (2 * batch,) ends and then starts; (batch, total)
    and (batch, length, total) 1 for what is seen; (batch, 1, most, most) the same for all lengths up to ``most``;
    (batch, 1) and (1, 1) say nothing, unless ``total`` is 1.
    """
    seen = _seen(mask, batch, length, total)
    return None if seen is None else np.where(seen, 0.0, value)


def _seen(mask: Array, batch: int, length: int, total: int) -> Array | None:
    shape, places = mask.shape, np.arange(total)
    if mask.ndim == 1 and len(mask) in (batch, 2 * batch, 3 * batch + 2):
        ends = mask[:batch]
        expect(not (ends < 0).any(), f"mask_index ends a sequence at {int(ends.min(initial=0))}")
        seen = places < ends[:, None]
        if len(mask) == 2 * batch:
            seen &= places >= mask[batch:, None]
        return seen[:, None, None]
    if shape == (batch, total):
        return (mask > 0)[:, None, None]
    if mask.ndim == 2 and shape[1] == 1 and shape[0] in (1, batch):
        return None
    if shape == (batch, length, total):
        return (mask > 0)[:, None]
    large = mask.ndim == 4 and shape[:2] == (batch, 1) and shape[2] == shape[3] >= total
    expect(large, f"a mask of shape {list(shape)} does not fit batch {batch}, length {length} and total {total}")
    return mask[:, :, total - length : total, :total] > 0


def later(length: int, total: int) -> Array:
    """Where a position of the last ``length`` of ``total`` would look at one behind itself: (length, total)."""
    return np.arange(total) > np.arange(length)[:, None] + (total - length)


def check_bias(bias: Shape | None, batch: Dim, heads: Dim, length: Dim, total: Dim) -> None:
    """Raise ``ShapeError`` unless an attention bias can be (batch or 1, heads or 1, length, total)."""
    ranked(bias, (4,), "attention_bias")
    for have, need, whole in zip(bias or (), (batch, heads, length, total), (0, 0, 1, 1), strict=False):
        both = isinstance(have, int) and isinstance(need, int)
        fits = not both or have == need or (have == 1 and not whole)
        expect(fits, f"attention_bias {show_shape(bias)} does not fit {show_shape((batch, heads, length, total))}")


# ---- the product


def attend(
    q: Array,
    k: Array,
    v: Array,
    scale: float | None = None,
    add: Sequence[Array | None] = (),
    blocked: Array | None = None,
    keep: bool = False,
) -> tuple[Array, Array | None]:
    """Softmax of the scores plus all of ``add``, times the values, (batch, length, heads * size); with ``keep`` also
    those scores, the lowest number where ``blocked``.

    ``scale`` None or 0 is one over the square root of a head's size.  A row of minus infinities gives NaN.
    """
    extra = [a for a in add if a is not None]
    mask = sum(extra[1:], extra[0]) if extra else None
    plan = Plan(scale or 1 / math.sqrt(max(q.shape[-1], 1)), mode=2 if keep else None)
    y, scores = by_plan(q, k, v, mask, None if blocked is None else ~blocked, plan)
    if mask is not None:
        void = np.isneginf(mask)
        nothing = (void if blocked is None else void | blocked).all(axis=-1, keepdims=True)
        if void.any() and nothing.any():
            y = np.where(nothing, np.nan, y).astype(y.dtype)
    if blocked is not None and keep:
        np.copyto(scores, np.finfo(scores.dtype).min, where=blocked)
    return join(y), scores if keep else None


# ---- the past


def grown(past: Array | None, new: Array, filled: int | None = None) -> tuple[Array, Array]:
    """Keys or values (batch, heads, length, size) behind those of the past, and the state to hand on.

    ``filled`` tells how many positions of a past are filled that has room for more: the state keeps its shape then.
    """
    if past is None:
        return new, new
    if filled is None:
        whole = np.concatenate((past.astype(new.dtype, copy=False), new), axis=2)
        return whole, whole
    end = filled + new.shape[2]
    fits = 0 <= filled <= end <= past.shape[2]
    expect(fits, f"{filled} past positions and {new.shape[2]} new ones exceed a buffer of {past.shape[2]}")
    state = past.astype(new.dtype)
    state[:, :, filled:end] = new
    return state[:, :, :end], state
