"""What a graph says in its own operator set, and which of its constants nobody needs to write then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fuse.errors import FuseError
from fuse.ir.graph import Graph, Node, Value
from fuse.ops.infer import describe
from fuse.ops.spelling import FROM_ATTRIBUTE, Spelled, spell


@dataclass(slots=True)
class Said:
    """A graph's nodes as they are spelled, the values that are read, and the constants that became attributes again."""

    nodes: list[tuple[Node, Spelled]]
    read: set[Value]
    unwritten: set[Value]


def say(graph: Graph, opsets: Mapping[str, int]) -> Said:
    """Spell every node of ``graph``, those of inner graphs excluded.  Errors carry the node."""
    nodes = []
    for node in graph.nodes:
        try:
            nodes.append((node, spell(node, opsets.get("", 0))))
        except FuseError as error:
            raise error.within(describe(node)) from None
    read = {value for _, spelled in nodes for value in spelled.inputs if value is not None}
    read.update(slot.value for slot in graph.outputs)
    for inner in (g for node, _ in nodes if node.attrs for sub in node.subgraphs for g in sub.walk_graphs()):
        read.update(slot.value for slot in inner.outputs)
        read.update(value for node in inner.nodes for value in node.inputs if value is not None)
    unwritten = {v for v in graph.constants if v not in read and form(v) == FROM_ATTRIBUTE}
    return Said(nodes, read, unwritten)


def form(value: Value) -> str:
    """How the file spelled a constant: an attribute's name, empty for an initializer."""
    return value.origin.attribute if value.origin is not None else ""
