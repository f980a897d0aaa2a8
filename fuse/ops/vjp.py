"""Vector-Jacobian products: what each operator adds to the gradients of its inputs.

A rule gets the gradient ``g`` of the node's output and writes, with ordinary operators and those of
``fuse.ops.tape``, what that makes of the gradient of each input: None where there is none to speak of (indices,
shapes, steps).  Inputs that were broadcast get the sum over the axes along which they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fuse.errors import UnsupportedError
from fuse.ir.dtypes import BY_CODE, FLOATING
from fuse.ir.graph import Node, Value
from fuse.ops.record import attr
from fuse.ops.tape import Tape

# ---- rules

Parts = Sequence[Value | None]
Rule = Callable[[Tape, Node, Value], Parts]

RULES: dict[str, Rule] = {}
"""The rule of each operator that has one."""


def _rule(*ops: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def _in(node: Node, index: int = 0) -> Value:
    value = node.input(index)
    assert value is not None
    return value


# arithmetic


@_rule("Add", "Sum")
def _add(t: Tape, node: Node, g: Value) -> Parts:
    return [t.fit(g, v) for v in node.inputs if v is not None]


@_rule("Mean")
def _mean(t: Tape, node: Node, g: Value) -> Parts:
    return _add(t, node, t("Mul", g, t.scalar(1 / len(node.inputs), g)))


@_rule("Sub")
def _sub(t: Tape, node: Node, g: Value) -> Parts:
    return t.fit(g, _in(node)), t.fit(t("Neg", g), _in(node, 1))


@_rule("Mul")
def _mul(t: Tape, node: Node, g: Value) -> Parts:
    a, b = _in(node), _in(node, 1)
    return t.fit(t("Mul", g, b), a), t.fit(t("Mul", g, a), b)


@_rule("Div")
def _div(t: Tape, node: Node, g: Value) -> Parts:
    a, b = _in(node), _in(node, 1)
    part = t("Div", g, b)
    return t.fit(part, a), t.fit(t("Neg", t("Mul", part, node.out)), b)


@_rule("Pow")
def _pow(t: Tape, node: Node, g: Value) -> Parts:
    """By the base ``b a^(b-1)``; by the exponent ``y log a``, 0 where the base is not positive."""
    a, b = _in(node), _in(node, 1)
    by_base = t("Mul", t.cast(b, a), t("Pow", a, t("Sub", b, t.scalar(1, b))))
    one = t.scalar(1, a)
    log = t("Log", t("Where", t("Greater", a, t.scalar(0, a)), a, one))
    return t.fit(t("Mul", g, by_base), a), t.fit(t("Mul", g, t("Mul", node.out, log)), b)


@_rule("Where")
def _where(t: Tape, node: Node, g: Value) -> Parts:
    zero = t.scalar(0, g)
    condition = _in(node)
    return (
        None,
        t.fit(t("Where", condition, g, zero), _in(node, 1)),
        t.fit(t("Where", condition, zero, g), _in(node, 2)),
    )


@_rule("Max", "Min")
def _extreme(t: Tape, node: Node, g: Value) -> Parts:
    """Equal inputs share the gradient."""
    one, zero = t.scalar(1, g), t.scalar(0, g)
    hits = [t("Where", t("Equal", v, node.out), one, zero) for v in node.inputs if v is not None]
    share = t("Div", g, t("Sum", *hits))
    return [t.fit(t("Mul", share, hit), v) for hit, v in zip(hits, node.inputs, strict=True) if v is not None]


@_rule("Identity", "fuse::CastLike")
def _same(t: Tape, node: Node, g: Value) -> Parts:
    return [t.cast(g, _in(node))]


@_rule("Cast")
def _cast(t: Tape, node: Node, g: Value) -> Parts:
    """Steps between integers have no slope."""
    return _same(t, node, g) if BY_CODE[attr(node, "to")] in FLOATING else [None]


@_rule("Dropout")
def _dropout(t: Tape, node: Node, g: Value) -> Parts:
    if node.input(2) is not None:
        raise UnsupportedError("no derivative of Dropout in training mode")
    return [g]


@_rule("Floor", "Ceil", "Round", "Sign", "Shape", "Size", "fuse::ScalarLike")
def _flat(t: Tape, node: Node, g: Value) -> Parts:
    return [None]


# functions of one variable: the derivative from x and y


def _unary(op: str) -> Callable[[Callable[[Tape, Node, Value, Value], Value]], None]:
    def register(slope: Callable[[Tape, Node, Value, Value], Value]) -> None:
        RULES[op] = lambda t, node, g: [t("Mul", g, slope(t, node, _in(node), node.out))]

    return register


_unary("Neg")(lambda t, node, x, y: t.scalar(-1, x))
_unary("Abs")(lambda t, node, x, y: t("Sign", x))
_unary("Exp")(lambda t, node, x, y: y)
_unary("Log")(lambda t, node, x, y: t("Reciprocal", x))
_unary("Sqrt")(lambda t, node, x, y: t("Div", t.scalar(0.5, x), y))
_unary("Reciprocal")(lambda t, node, x, y: t("Neg", t("Mul", y, y)))
_unary("Sin")(lambda t, node, x, y: t("Cos", x))
_unary("Cos")(lambda t, node, x, y: t("Neg", t("Sin", x)))
_unary("Tan")(lambda t, node, x, y: t("Add", t.scalar(1, x), t("Mul", y, y)))
_unary("Tanh")(lambda t, node, x, y: t("Sub", t.scalar(1, x), t("Mul", y, y)))
_unary("Sigmoid")(lambda t, node, x, y: t("Mul", y, t("Sub", t.scalar(1, x), y)))
_unary("Softplus")(lambda t, node, x, y: t("Sigmoid", x))


@_unary("Erf")
def _erf(t: Tape, node: Node, x: Value, y: Value) -> Value:
    return t("Mul", t.scalar(2 / math.sqrt(math.pi), x), t("Exp", t("Neg", t("Mul", x, x))))


@_unary("Softsign")
def _softsign(t: Tape, node: Node, x: Value, y: Value) -> Value:
    root = t("Sub", t.scalar(1, x), t("Abs", y))  # 1 - |x| / (1 + |x|) is 1 / (1 + |x|)
    return t("Mul", root, root)


def _where_positive(t: Tape, x: Value, then: Value, otherwise: Value) -> Value:
    return t("Where", t("Greater", x, t.scalar(0, x)), then, otherwise)


@_rule("Relu")
def _relu(t: Tape, node: Node, g: Value) -> Parts:
    return [_where_positive(t, _in(node), g, t.scalar(0, g))]


@_rule("LeakyRelu")
def _leaky_relu(t: Tape, node: Node, g: Value) -> Parts:
    return [_where_positive(t, _in(node), g, t("Mul", g, t.scalar(attr(node, "alpha"), g)))]


@_rule("Elu")
def _elu(t: Tape, node: Node, g: Value) -> Parts:
    slope = t("Add", node.out, t.scalar(attr(node, "alpha"), g))
    return [_where_positive(t, _in(node), g, t("Mul", g, slope))]


@_rule("Clip")
def _clip(t: Tape, node: Node, g: Value) -> Parts:
    return [t("Where", t("Equal", _in(node), node.out), g, t.scalar(0, g))]


# products


@_rule("MatMul")
def _matmul(t: Tape, node: Node, g: Value) -> Parts:
    a, b = _in(node), _in(node, 1)
    by_a = t("MatMul", g, t("fuse::SwapLast", b))
    return t.fit(by_a, a), t.fit(t("MatMul", t("fuse::SwapLast", a), g), b)


@_rule("Gemm")
def _gemm(t: Tape, node: Node, g: Value) -> Parts:
    a, b, c = _in(node), _in(node, 1), node.input(2)
    alpha, ta, tb = attr(node, "alpha"), attr(node, "transA"), attr(node, "transB")
    by_a = (b, g, tb, 1) if ta else (g, b, 0, 1 - tb)
    by_b = (g, a, 1, ta) if tb else (a, g, 1 - ta, 0)
    parts = [t("Gemm", left, right, alpha=alpha, transA=x, transB=y) for left, right, x, y in (by_a, by_b)]
    return parts if c is None else [*parts, t.fit(t("Mul", g, t.scalar(attr(node, "beta"), g)), c)]


# reductions: g and y with the reduced axes back, so that they broadcast against x


def _kept(t: Tape, node: Node, value: Value) -> Value:
    axes = node.input(1)
    return value if attr(node, "keepdims") or axes is None else t("Unsqueeze", value, axes)


def _reduced(t: Tape, node: Node, op: str, x: Value) -> Value:
    return t(op, x, node.input(1), keepdims=1, noop_with_empty_axes=attr(node, "noop_with_empty_axes"))


def _reduction(op: str) -> Callable[[Callable[[Tape, Node, Value, Value], Value | None]], None]:
    def register(slope: Callable[[Tape, Node, Value, Value], Value | None]) -> None:
        def rule(t: Tape, node: Node, g: Value) -> Parts:
            x = _in(node)
            wide, factor = _kept(t, node, g), slope(t, node, x, _kept(t, node, node.out))
            return [t("Expand", wide if factor is None else t("Mul", wide, factor), t("Shape", x))]

        RULES[op] = rule

    return register


_reduction("ReduceSum")(lambda t, node, x, y: None)
_reduction("ReduceMean")(lambda t, node, x, y: t("Reciprocal", _reduced(t, node, "ReduceSum", t.full(1, x))))
_reduction("ReduceSumSquare")(lambda t, node, x, y: t("Mul", t.scalar(2, x), x))
_reduction("ReduceL1")(lambda t, node, x, y: t("Sign", x))
_reduction("ReduceL2")(lambda t, node, x, y: t("Div", x, y))
_reduction("ReduceLogSum")(lambda t, node, x, y: t("Exp", t("Neg", y)))
_reduction("ReduceLogSumExp")(lambda t, node, x, y: t("Exp", t("Sub", x, y)))


def _reduced_extreme(t: Tape, node: Node, x: Value, y: Value) -> Value:
    """Equal elements share the gradient."""
    hits = t("Where", t("Equal", x, y), t.scalar(1, x), t.scalar(0, x))
    return t("Div", hits, _reduced(t, node, "ReduceSum", hits))


_reduction("ReduceMax")(_reduced_extreme)
_reduction("ReduceMin")(_reduced_extreme)


@_rule("Softmax")
def _softmax(t: Tape, node: Node, g: Value) -> Parts:
    part = t("Mul", g, node.out)
    return [t("Sub", part, t("Mul", node.out, t("ReduceSum", part, t.ints(attr(node, "axis")))))]


@_rule("LogSoftmax")
def _log_softmax(t: Tape, node: Node, g: Value) -> Parts:
    return [t("Sub", g, t("Mul", t("Exp", node.out), t("ReduceSum", g, t.ints(attr(node, "axis")))))]


# moves


@_rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(t: Tape, node: Node, g: Value) -> Parts:
    return [t("Reshape", g, t("Shape", _in(node)), allowzero=1), None]


@_rule("Transpose")
def _transpose(t: Tape, node: Node, g: Value) -> Parts:
    perm = attr(node, "perm")
    return [t("Transpose", g, perm=None if perm is None else tuple(int(i) for i in np.argsort(perm)))]


@_rule("Expand")
def _expand(t: Tape, node: Node, g: Value) -> Parts:
    return t.fit(g, _in(node)), None


@_rule("Concat")
def _concat(t: Tape, node: Node, g: Value) -> Parts:
    axis = attr(node, "axis")
    sizes = [t("Gather", t("Shape", v), t.ints(axis)) for v in node.inputs]
    return t.many(len(sizes), "Split", g, t("Concat", *sizes, axis=0), axis=axis)


@_rule("Gather")
def _gather(t: Tape, node: Node, g: Value) -> Parts:
    if attr(node, "axis") != 0:
        raise UnsupportedError("no derivative of Gather along another axis than 0")
    rows = t("Unsqueeze", _in(node, 1), t.ints(-1))
    return t("ScatterND", t.full(0, _in(node)), rows, g, reduction="add"), None


@_rule("fuse::SumTo")
def _sum_to(t: Tape, node: Node, g: Value) -> Parts:
    return t("Expand", t.cast(g, _in(node)), t("Shape", _in(node))), None


@_rule("fuse::SwapLast")
def _swap_last(t: Tape, node: Node, g: Value) -> Parts:
    return [t("fuse::SwapLast", g)]
