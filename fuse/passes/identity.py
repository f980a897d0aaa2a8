"""Identity elimination: nodes whose result is their input, bit for bit (or but for the sign of a zero).

``y = Identity(x); z = Relu(y)`` becomes ``z = Relu(x)``.  A node is a no-op only if it can neither change an element
nor broadcast, cast or reorder it; where that takes a shape, the shape must be known, symbols included.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.graph import Node, Value
from fuse.ops.dropout import dropout_is_identity
from fuse.ops.record import attr
from fuse.passes.build import Builder, static
from fuse.passes.match import No, no, rewrite
from fuse.passes.rewrite import Context, apply

Result = Value | No


def _same(op: Builder, root: Node, x: Value) -> Result:
    """``x`` where the node's result has exactly its type."""
    before, after = op.info(x), op.info(root.out)
    if not static(before) or not static(after):
        return no("a shape is not known")
    return x if before.type == after.type else no("the result has another shape")


@rewrite("Identity(x)", exact="bits")
def identity(op: Builder, x: Value) -> Result:
    """Identity gives its input."""
    return x


@rewrite("(Dropout | Dropout[1])(x, *rest)", exact="bits")
def dropout(op: Builder, x: Value, root: Node) -> Result:
    """Dropout outside training gives its input."""
    return x if dropout_is_identity(root) else no("it may be in training mode")


@rewrite("Cast(x)", exact="bits")
def cast_same(op: Builder, x: Value, root: Node) -> Result:
    """A Cast to the dtype that the input has."""
    before, after = op.info(x).dtype, op.info(root.out).dtype
    if before is None or after is None:
        return no("a dtype is not known")
    return x if before == after else no("it changes the dtype")


@rewrite("(Reshape | Expand | Tile | Squeeze | Unsqueeze | Upsample)(x, *rest)", exact="bits")
def same_shape(op: Builder, x: Value, root: Node) -> Result:
    """Moves that keep the order of elements, to the shape that the input has."""
    return _same(op, root, x)


@rewrite("Flatten(x)", exact="bits")
def flatten(op: Builder, x: Value, root: Node) -> Result:
    """Flatten of a matrix at the axis that keeps it."""
    return _same(op, root, x)


@rewrite("Slice(x, *rest)", exact="bits")
def slice_all(op: Builder, x: Value, root: Node) -> Result:
    """A Slice that starts at the beginning, steps forward by one and drops nothing."""
    steps, starts = root.input(4), root.input(1)
    forward = steps is None or op.info(steps).ints == (1,) * len(op.info(steps).ints or ())
    if not forward or (steps is not None and op.info(steps).ints is None):
        return no("it steps by more than one, or backwards")
    begins = op.info(starts).ints if starts is not None else None
    if begins is None or any(begins):
        return no("it does not start at the beginning")
    return _same(op, root, x)


@rewrite("Pad(x, *rest)", exact="bits")
def pad_nothing(op: Builder, x: Value, root: Node) -> Result:
    """A Pad by nothing on every side."""
    pads = root.input(1)
    amounts = op.info(pads).ints if pads is not None else None
    return x if amounts is not None and not any(amounts) else no("it pads, or its pads are not known")


@rewrite("Transpose(x)", exact="bits")
def transpose_nothing(op: Builder, x: Value, root: Node) -> Result:
    """A Transpose that keeps the axes in order."""
    rank = op.info(x).rank
    perm = attr(root, "perm")
    if perm is None and rank is None:
        return no("the rank is not known")
    order = tuple(perm) if perm is not None else tuple(range(rank or 0))[::-1]
    return x if order == tuple(range(len(order))) else no("it reorders the axes")


@rewrite("(Sum | Max | Min | Mean | Concat)(x)", exact="bits")
def of_one(op: Builder, x: Value) -> Result:
    """A variadic operator with one operand."""
    return x


@rewrite("Split(x, *rest)", exact="bits")
def split_in_one(op: Builder, x: Value, root: Node) -> Result:
    """A Split into one part."""
    return x if len(root.outputs) == 1 else no("it has several parts")


@rewrite("Mul(x, ONE)", exact="bits")
def times_one(op: Builder, x: Value, ONE: Array, root: Node) -> Result:
    """X * 1 where the constant does not widen x."""
    return _neutral(op, x, ONE, 1, root)


@rewrite("(Div | Pow)(x, ONE)", exact="bits")
def by_one(op: Builder, x: Value, ONE: Array, root: Node) -> Result:
    """X / 1 and x ** 1 where the constant does not widen x."""
    return _neutral(op, x, ONE, 1, root)


@rewrite("Sub(x, ZERO)", exact="bits")
def minus_zero(op: Builder, x: Value, ZERO: Array, root: Node) -> Result:
    """X - 0 where the constant does not widen x: -0.0 stays, for it is +0.0 that is taken away."""
    if ZERO.dtype.kind not in "iu" and bool(np.signbit(ZERO.astype(np.float64)).any()):
        return no("-0.0 - (-0.0) is +0.0")
    return _neutral(op, x, ZERO, 0, root)


@rewrite("Add(x, ZERO)", exact="values")
def plus_zero(op: Builder, x: Value, ZERO: Array, root: Node) -> Result:
    """X + 0 where the constant does not widen x; -0.0 becomes +0.0 in the sum and not here."""
    return _neutral(op, x, ZERO, 0, root)


def _neutral(op: Builder, x: Value, constant: Array, number: int, root: Node) -> Result:
    if constant.dtype == object or not bool((constant == number).all()):
        return no("the constant changes the value")
    return _same(op, root, x)


@rewrite("(MaxPool | AveragePool)(x)", exact="bits")
def pool_of_one(op: Builder, x: Value, root: Node) -> Result:
    """A pool whose window is one element wide and moves by one."""
    window: Any = attr(root, "kernel_shape")
    strides, pads = attr(root, "strides"), attr(root, "pads")
    plain = all(k == 1 for k in window) and all(s == 1 for s in strides or ()) and not any(pads or ())
    return _same(op, root, x) if plain else no("the window is wider than one element, or jumps, or pads")


@rewrite("(DepthToSpace | SpaceToDepth)(x)", exact="bits")
def block_of_one(op: Builder, x: Value, root: Node) -> Result:
    """A rearrangement by blocks of one element."""
    return x if attr(root, "blocksize") == 1 else no("the block is larger than one element")


RULES = (
    identity, dropout, cast_same, same_shape, flatten, slice_all, pad_nothing, transpose_nothing, of_one, split_in_one,
    times_one, by_one, minus_zero, plus_zero, pool_of_one, block_of_one,
)  # fmt: skip


def eliminate(context: Context) -> None:
    """Remove every node whose result is its input."""
    apply(RULES, context)
