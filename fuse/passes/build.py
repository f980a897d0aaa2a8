"""What a rule builds with: new nodes and constants, their types inferred at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ops.infer import infer_node, known
from fuse.ops.record import Info

Operand = "Value | Array | None"


def as_attr(value: Any) -> Attr:
    """A Python value as an attribute."""
    if isinstance(value, Attr):
        return value
    if isinstance(value, (bool, int, np.integer)):
        return Attr("INT", int(value))
    if isinstance(value, (float, np.floating)):
        return Attr("FLOAT", float(value))
    if isinstance(value, str):
        return Attr("STRING", value)
    if isinstance(value, np.ndarray):
        return Attr("TENSOR", value)
    items = tuple(value)
    if all(isinstance(v, (int, np.integer)) for v in items):
        return Attr("INTS", tuple(int(v) for v in items))
    if all(isinstance(v, str) for v in items):
        return Attr("STRINGS", items)
    return Attr("FLOATS", tuple(float(v) for v in items))


class Builder:
    """Makes nodes for one rewrite in ``graph``, of operator set ``opset``; they are put in place if the rule succeeds.

    ``op.Conv(x, w, None, strides=(2, 2))`` makes a node and returns its first output; arrays become constants, ``None``
    an absent input.  Operators of other domains go through ``op.node("fuse::ConvRelu", [...], {...})``.
    """

    def __init__(self, graph: Graph, facts: dict[Value, Info], opset: int) -> None:
        self.graph, self.facts, self.opset = graph, facts, opset
        self.nodes: list[Node] = []
        self.constants: list[Value] = []

    def const(self, array: Array, name: str = "") -> Value:
        """A new constant, named after the one it takes the place of where ``name`` is given."""
        value = self.graph.add_const(np.ascontiguousarray(array).reshape(np.shape(array)), name)
        self.constants.append(value)
        return value

    def node(self, op: str, inputs: list[Any], attrs: Mapping[str, Any] | None = None, outputs: int = 1) -> Value:
        """A new node; returns its first output.  Trailing absent inputs are dropped."""
        operands = [self.const(v) if isinstance(v, np.ndarray) else v for v in inputs]
        while operands and operands[-1] is None:
            operands.pop()
        made: list[Value | None] = [Value() for _ in range(outputs)]
        node = Node(op, operands, made, {n: as_attr(v) for n, v in (attrs or {}).items() if v is not None})
        self.nodes.append(node)
        infos = infer_node(node, [known(v, self.facts) for v in node.inputs])
        for value, info in zip(node.outputs, infos, strict=True):
            assert value is not None
            value.type = info.type
            self.facts[value] = info
        return node.out

    def __getattr__(self, op: str) -> Any:
        if op.startswith("_"):
            raise AttributeError(op)
        return lambda *inputs, **attrs: self.node(op, list(inputs), attrs)

    def shape(self, value: Value) -> tuple[Any, ...] | None:
        """The value's shape as far as known."""
        info = known(value, self.facts)
        return info.shape if info is not None else None

    def info(self, value: Value) -> Info:
        """All that is known of a value."""
        return known(value, self.facts) or Info()

    def undo(self) -> None:
        """Take back everything that was made."""
        for node in self.nodes:
            for index in range(len(node.inputs)):
                node.rewire(index, None)
        for value in self.constants:
            self.graph.drop_const(value)


def static(info: Info) -> bool:
    """True where dtype and every dim are known, symbols counting as known."""
    return info.dtype is not None and info.shape is not None and all(d is not None for d in info.shape)
