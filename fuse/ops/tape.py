"""What derivative graphs are written with: a tape, and the few operators that ONNX lacks for it.

Shapes and dtypes need not be known while a derivative is written, so these operators take them from a tensor at hand.
They stay inside: a derivative graph is never saved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.ir.dtypes import INT64, Array
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ops.bounds import at_run_time
from fuse.ops.record import Info, expect, operator, tensor

# ---- operators


@operator("fuse::SumTo", infer=lambda g, like: Info(like.type))
@at_run_time
def sum_to(g: Array, like: Array) -> Array:
    """``g`` in the shape and dtype of ``like``, summed over the axes along which ``like`` was broadcast."""
    extra = g.ndim - like.ndim
    stretched = tuple(i + extra for i, d in enumerate(like.shape) if d == 1 and g.shape[i + extra] != 1)
    total = g.sum(axis=(*range(extra), *stretched), dtype=g.dtype) if extra or stretched else g
    return np.asarray(total).reshape(like.shape).astype(like.dtype, copy=False)


@operator("fuse::ScalarLike", infer=lambda x, value=0.0: tensor(x.dtype, ()))
def scalar_like(x: Array, *, value: float = 0.0) -> Array:
    """A scalar of the dtype of ``x``."""
    return np.asarray(value).astype(x.dtype)


@operator("fuse::CastLike", infer=lambda x, like: tensor(like.dtype, x.shape))
def cast_like(x: Array, like: Array) -> Array:
    """``x`` in the dtype of ``like``."""
    return x.astype(like.dtype, copy=False)


def _swap_last_info(x: Info) -> Info:
    return tensor(x.dtype, None if x.shape is None or len(x.shape) < 2 else (*x.shape[:-2], x.shape[-1], x.shape[-2]))


@operator("fuse::SwapLast", infer=_swap_last_info)
@at_run_time
def swap_last(x: Array) -> Array:
    """``x`` with its last two axes exchanged."""
    expect(x.ndim >= 2, "the derivative of a product with a vector (a tensor of one dim) is not known here")
    return np.swapaxes(x, -1, -2)


# ---- the writer


class Tape:
    """Writes nodes at the end of ``graph``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __call__(self, op: str, *inputs: Value | None, **attrs: Any) -> Value:
        """One more node; returns its output."""
        return self.many(1, op, *inputs, **attrs)[0]

    def many(self, count: int, op: str, *inputs: Value | None, **attrs: Any) -> list[Value]:
        """One more node with ``count`` outputs."""
        outputs = [Value(f"d{len(self.graph)}.{i}") for i in range(count)]
        kinds = {int: "INT", float: "FLOAT", str: "STRING"}
        given = {n: Attr(kinds.get(type(v), "INTS"), v) for n, v in attrs.items() if v is not None}
        self.graph.append(Node(op, inputs, outputs, given))
        return outputs

    def ints(self, *numbers: int) -> Value:
        """A constant 1-D int64 tensor."""
        return self.graph.add_const(np.array(numbers, dtype=INT64), f"c{len(self.graph.constants)}")

    def scalar(self, value: float, like: Value) -> Value:
        """A number in the dtype of ``like``."""
        return self("fuse::ScalarLike", like, value=float(value))

    def full(self, value: float, like: Value) -> Value:
        """A tensor in the dtype and shape of ``like``."""
        return self("Expand", self.scalar(value, like), self("Shape", like))

    def fit(self, g: Value | None, like: Value) -> Value | None:
        """``g`` summed to the shape of ``like``."""
        return None if g is None else self("fuse::SumTo", g, like)

    def cast(self, value: Value, like: Value) -> Value:
        """``value`` in the dtype of ``like``."""
        return self("fuse::CastLike", value, like)
