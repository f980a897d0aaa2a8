"""Execution order: nodes that a file lists out of order are sorted, and a cycle is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import AttributeProto

from fuse.errors import ModelError, quote
from fuse.model.scope import Scope

#: Attribute types that may hold graphs; files of the first IR version leave the type out.
_HOLDS_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.UNDEFINED)


def in_order(nodes: list[Any], scope: Scope) -> list[Any]:
    """The nodes so that each follows what it reads; the list itself where it is so already.

    ``scope`` knows what is defined before the first node and around the graph.  A name that no node makes is left for
    the caller to refuse.  Raises ``ModelError`` for a cycle.
    """
    made: set[str] = set()
    for node in nodes:
        if any(name not in made and scope.find(name) is None for name in read_names(node)):
            return _sorted(nodes, scope)
        made.update(node.output)
    return nodes


def _sorted(nodes: list[Any], scope: Scope) -> list[Any]:
    maker: dict[str, int] = {}
    for i, node in enumerate(nodes):
        for name in node.output:
            if name and maker.setdefault(name, i) != i:
                raise ModelError(f"value {quote(name)} is defined twice")
    reads = [
        sorted({maker[n] for n in read_names(node) if n in maker and scope.find(n) is None}) for node in nodes
    ]  # fmt: skip
    missing = [len(sources) for sources in reads]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, sources in enumerate(reads):
        for source in sources:
            readers[source].append(i)
    # A stack, so that a node comes soon after what it reads; turned over, so that the file's order decides elsewhere.
    ready = [i for i, count in enumerate(missing) if count == 0][::-1]
    order: list[int] = []
    while ready:
        i = ready.pop()
        order.append(i)
        for reader in reversed(readers[i]):
            missing[reader] -= 1
            if missing[reader] == 0:
                ready.append(reader)
    if len(order) < len(nodes):
        raise ModelError(f"nodes form a cycle: {_cycle(nodes, reads, set(order))}")
    return nodes if order == list(range(len(nodes))) else [nodes[i] for i in order]


def subgraphs(node: Any) -> list[Any]:
    """The graphs among a node's attributes."""
    found: list[Any] = []
    for attribute in node.attribute:
        if attribute.type in _HOLDS_GRAPHS:
            found.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    return found


def read_names(node: Any) -> Iterator[str]:
    """Every name that a node reads from the graph it stands in: its inputs, and what its subgraphs capture."""
    yield from filter(None, node.input)
    bodies: list[tuple[Any, frozenset[str]]] = [(body, frozenset()) for body in subgraphs(node)]
    while bodies:
        body, hidden = bodies.pop()
        inside = hidden.union(
            (i.name for i in body.input),
            (t.name for t in body.initializer),
            (t.values.name for t in body.sparse_initializer),
            (name for inner in body.node for name in inner.output),
        )
        for inner in body.node:
            yield from (name for name in inner.input if name and name not in inside)
            bodies += [(deeper, inside) for deeper in subgraphs(inner)]
        yield from (o.name for o in body.output if o.name not in inside)


def _cycle(nodes: list[Any], reads: list[list[int]], placed: set[int]) -> str:
    at = next(i for i in range(len(nodes)) if i not in placed)
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(s for s in reads[at] if s not in placed)
    loop = path[seen[at] :][::-1]
    names = [quote(nodes[i].name or next(iter(nodes[i].output), "")) for i in loop[:8]]
    return " -> ".join([*names, *(["..."] if len(loop) > 8 else []), names[0]])
