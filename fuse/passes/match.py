"""The pattern language: a rule's pattern is a Python expression that is also its documentation.

``Clip(Clip(x, LO1, HI1), LO2, HI2)`` matches a Clip of a Clip.  Lower-case names bind values, capitals bind constants
and arrive as arrays, ``*rest`` binds the remaining inputs, ``c := Conv(...)`` binds a node beside its result,
``(Conv | Gemm)(...)`` allows either operator, ``None`` stands for an absent input, ``fuse.ConvAdd`` is an operator of
another domain, and ``Softmax[1]`` the old meaning of one that changed it.  A name used twice must be the same value.
The first two operands of a commutative operator match in either order.  Results inside the pattern have no reader
outside it: the driver sees to that.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fuse.ir.graph import Node, Value
from fuse.ops.record import Trait, has_trait
from fuse.passes.record import EXACTNESS


@dataclass(frozen=True, slots=True)
class Var:
    """Any value; a constant where ``constant``."""

    name: str
    constant: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A node of one of ``ops`` with the given operands; ``rest`` takes the others."""

    ops: frozenset[str]
    operands: tuple[Pattern | None, ...]
    rest: str
    label: str


Pattern = Var | Call


@dataclass(frozen=True, slots=True)
class No:
    """A rule's refusal and its reason."""

    reason: str


def no(reason: str) -> No:
    """What a rule returns when it leaves the place alone."""
    return No(reason)


@dataclass(slots=True)
class Match:
    """What a pattern found: bindings by name, and the nodes matched, the root first."""

    bound: dict[str, Any]
    nodes: list[Node]


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, an exactness, and the function that builds the replacement (see ``rewrite``)."""

    name: str
    pattern: Call
    text: str
    exact: str
    build: Callable[..., Any]
    wanted: tuple[str, ...]
    """The names among the bindings that ``build`` takes."""
    why: str


def rewrite(text: str, *, exact: str) -> Callable[[Callable[..., Any]], Rule]:
    """Make a rule of a function ``f(op, **bindings)``.

    It returns the value that takes the place of the pattern's result, or ``no(reason)``.  Its parameters must be the
    pattern's names (and optionally ``root``, the outermost node); anything else fails here, at import.
    """
    if exact not in EXACTNESS:
        raise ValueError(f"exact is one of {EXACTNESS}, not {exact!r}")
    pattern = parse(text)

    def make(build: Callable[..., Any]) -> Rule:
        wanted = list(inspect.signature(build).parameters)
        names = _names(pattern) | {"root"}
        if not wanted or wanted[0] != "op":
            raise TypeError(f"rule {build.__name__}: the first parameter is 'op'")
        for name in wanted[1:]:
            if name not in names:
                raise TypeError(f"rule {build.__name__}: the pattern {text!r} binds no {name!r}")
        return Rule(build.__name__, pattern, text, exact, build, tuple(wanted[1:]), inspect.getdoc(build) or "")

    return make


def parse(text: str) -> Call:
    """The pattern written as ``text``; ``SyntaxError`` where it is not one."""
    parsed = _parse(ast.parse(text.strip(), mode="eval").body, text)
    if not isinstance(parsed, Call):
        raise SyntaxError(f"a pattern is an operator applied to operands: {text!r}")
    return parsed


def _parse(tree: ast.expr, text: str, label: str = "") -> Pattern | None:
    if isinstance(tree, ast.NamedExpr) and isinstance(tree.value, ast.Call):
        return _parse(tree.value, text, tree.target.id)
    if isinstance(tree, ast.Name):
        return Var(tree.id, tree.id.isupper())
    if isinstance(tree, ast.Constant) and tree.value is None:
        return None
    if isinstance(tree, ast.Call) and not tree.keywords:
        operands = tree.args
        rest = ""
        if operands and isinstance(operands[-1], ast.Starred) and isinstance(operands[-1].value, ast.Name):
            rest = operands[-1].value.id
            operands = operands[:-1]
        return Call(frozenset(_ops(tree.func, text)), tuple(_parse(a, text) for a in operands), rest, label)
    raise SyntaxError(f"cannot read {ast.unparse(tree)!r} in the pattern {text!r}")


def _ops(tree: ast.expr, text: str) -> Iterator[str]:
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.BitOr):
        yield from _ops(tree.left, text)
        yield from _ops(tree.right, text)
    elif isinstance(tree, ast.Name):
        yield tree.id
    elif isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Constant) and type(tree.slice.value) is int:
        yield f"{ast.unparse(tree.value)}-{tree.slice.value}"
    elif isinstance(tree, ast.Attribute):
        domain, _, name = ast.unparse(tree).rpartition(".")
        yield f"{domain}::{name}"
    else:
        raise SyntaxError(f"{ast.unparse(tree)!r} is not an operator in the pattern {text!r}")


def _names(pattern: Pattern | None) -> set[str]:
    if pattern is None:
        return set()
    if isinstance(pattern, Var):
        return {pattern.name}
    found = {n for n in (pattern.rest, pattern.label) if n}
    return found.union(*(_names(p) for p in pattern.operands))


# ---- matching


def match(pattern: Call, node: Node) -> Match | None:
    """What ``pattern`` binds when ``node`` is its root; None where it does not fit."""
    for found in _node(pattern, node, Match({}, [])):
        found.bound["root"] = node
        return found
    return None


def _node(pattern: Call, node: Node, so_far: Match) -> Iterator[Match]:
    if node.op not in pattern.ops or any(a.reference for a in node.attrs.values()):
        return
    count = len(pattern.operands)
    inputs = node.inputs
    if len(inputs) < count:
        inputs = inputs + (None,) * (count - len(inputs))
    if not pattern.rest and any(v is not None for v in inputs[count:]):
        return
    bound = dict(so_far.bound)
    if pattern.rest:
        bound[pattern.rest] = inputs[count:]
    if pattern.label:
        bound[pattern.label] = node
    start = Match(bound, [*so_far.nodes, node])
    yield from _operands(pattern.operands, inputs[:count], start)
    if count >= 2 and has_trait(node, Trait.COMMUTATIVE):
        yield from _operands(pattern.operands, (inputs[1], inputs[0], *inputs[2:count]), start)


def _operands(patterns: tuple[Pattern | None, ...], values: tuple[Value | None, ...], so_far: Match) -> Iterator[Match]:
    if not patterns:
        yield so_far
        return
    for found in _operand(patterns[0], values[0], so_far):
        yield from _operands(patterns[1:], values[1:], found)


def _operand(pattern: Pattern | None, value: Value | None, so_far: Match) -> Iterator[Match]:
    if pattern is None or value is None:
        if pattern is None and value is None:
            yield so_far
        return
    if isinstance(pattern, Var):
        if pattern.constant and not value.is_const:
            return
        if so_far.bound.get(pattern.name, value) is value:
            yield Match({**so_far.bound, pattern.name: value}, so_far.nodes)
        return
    producer = value.producer
    # A node of the graph around stays there: a loop's body would compute it again in every round.
    if producer is not None and value is producer.outputs[0] and producer.graph is so_far.nodes[0].graph:
        yield from _node(pattern, producer, so_far)


def arguments(rule: Rule, found: Match) -> dict[str, Any]:
    """The keyword arguments for the rule's function; constants as arrays."""
    given = {name: found.bound[name] for name in rule.wanted}
    return {n: v.data if isinstance(v, Value) and n.isupper() else v for n, v in given.items()}
