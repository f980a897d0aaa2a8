"""FlexAttention: scaled dot-product attention with two places where the model puts in a graph of its own.

``score_mod`` changes the scores before the softmax (masks, biases, caps) and ``prob_mod`` the probabilities after it.
Source: the operator text of ai.onnx.preview.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import BY_CODE, DOUBLE, FLOAT, FLOATING, Array, DType
from fuse.ir.graph import Graph
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor
from fuse.ops.softmax import softmax

Run = Callable[[Graph, Sequence[Any]], list[Any]]


def _precision(dtype: DType, named: int | None) -> DType:
    """The dtype of scores and probabilities: double for double, else float32, unless named."""
    if named is None:
        return DOUBLE if dtype == DOUBLE else FLOAT
    chosen = BY_CODE.get(named)
    expect(chosen in FLOATING, f"softmax_precision {named} is no floating type")
    assert chosen is not None
    return chosen


def _dims(q: Shape | None, k: Shape | None, v: Shape | None) -> list[Dim]:
    """Batch, heads of queries and of keys, lengths of both, and the size of a value; None for what is unknown."""
    shapes = [s if s is not None else (None,) * 4 for s in (q, k, v)]
    say = f"Q {show_shape(q)}, K {show_shape(k)} and V {show_shape(v)} do not fit together"
    expect(all(len(s) == 4 for s in shapes), f"{say}: each needs four dims")
    (b, heads, length, size), (b_k, groups, reach, size_k), (b_v, groups_v, reach_v, size_v) = shapes
    same_dim((size, size_k), say)
    groups = same_dim((groups, groups_v), say)
    whole = not isinstance(heads, int) or not isinstance(groups, int) or (groups > 0 and heads % groups == 0)
    expect(whole, f"{say}: {heads} query heads do not divide among {groups}")
    return [same_dim((b, b_k, b_v), say), heads, groups, length, same_dim((reach, reach_v), say), size_v]


def _info(
    q: Info,
    k: Info,
    v: Info,
    *,
    prob_mod: Graph | None = None,
    scale: float | None = None,
    score_mod: Graph | None = None,
    softmax_precision: int | None = None,
    run: Callable[[Graph, Sequence[Info]], list[Info]] | None = None,
) -> Info:
    dtype = common_dtype(q, k, v)
    batch, heads, _, length, reach, size = _dims(q.shape, k.shape, v.shape)
    table = (batch, heads, length, reach)
    for graph in (score_mod, prob_mod):
        if graph is not None and run is not None:
            run(graph, [tensor(None if dtype is None else _precision(dtype, softmax_precision), table)])
    return tensor(dtype, (batch, heads, length, size))


@operator("ai.onnx.preview::FlexAttention", infer=_info, traits=Trait.CONTROL)
@at_run_time
def flex_attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    prob_mod: Graph | None = None,
    scale: float | None = None,
    score_mod: Graph | None = None,
    softmax_precision: int | None = None,
    run: Run,
) -> Array:
    """``prob_mod(softmax(score_mod(q @ k.T * scale))) @ v``: [B, Hq, L, size of a value] in the dtype of ``v``.

    Fewer heads of keys than of queries serve each a group of neighbouring queries' heads.  Products are computed in
    the precision of the softmax, in float32 where that is narrower.
    """
    dims: Any = _dims(q.shape, k.shape, v.shape)
    batch, heads, groups, length, reach, size = dims
    dtype = _precision(q.dtype, softmax_precision)
    wide = dtype if dtype.itemsize >= 4 else FLOAT
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    grouped = q.astype(wide).reshape(batch, groups, heads // groups * length, q.shape[-1])
    scores = (grouped @ k.astype(wide).swapaxes(-1, -2) * wide.type(factor)).reshape(batch, heads, length, reach)
    scores = _modified(score_mod, scores.astype(dtype, copy=False), run)
    probs = _modified(prob_mod, np.asarray(softmax(scores)), run)
    out = probs.astype(wide, copy=False).reshape(batch, groups, heads // groups * length, reach) @ v.astype(wide)
    return out.reshape(batch, heads, length, size).astype(v.dtype)


def _modified(graph: Graph | None, x: Array, run: Run) -> Array:
    if graph is None:
        return x
    (out,) = run(graph, [x])
    expect(out.shape == x.shape, f"a modifier turns {show_shape(x.shape)} into {show_shape(out.shape)}")
    return out
