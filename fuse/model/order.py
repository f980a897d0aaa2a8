"""Execution order: nodes that a file lists out of order are sorted, and a cycle is shown."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from fuse.errors import ModelError, quote


def in_order(nodes: list[Any], given: set[str], outer: Container[str]) -> tuple[list[Any], bool]:
    """The nodes so that each follows what it reads, stable where it may be, and whether any had to move.

    ``given`` are the names defined before the first node, ``outer`` those visible around the graph.  A name that no
    node makes is left for the caller to refuse.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    reads = [
        sorted({maker[n] for n in read_names(node) if n in maker and n not in given}) for node in nodes
    ]
    if all(source < i for i, sources in enumerate(reads) for source in sources):
        return nodes, False
    missing = [len(sources) for sources in reads]
    readers: list[list[int]] = [[] for _ in nodes]
    for i, sources in enumerate(reads):
        for source in sources:
            readers[source].append(i)
    # A heap of indices would keep the file's order best; a stack of ready nodes in file order is linear and stable too.
    ready = [i for i, count in enumerate(missing) if count == 0]
    ready.reverse()
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
    return [nodes[i] for i in order], True


def read_names(node: Any) -> Iterator[str]:
    """Every name that a node reads, the captures of its subgraphs included."""
    yield from (n for n in node.input if n)
    bodies = [a.g for a in node.attribute if a.HasField("g")] + [g for a in node.attribute for g in a.graphs]
    while bodies:
        body = bodies.pop()
        # Names that the body itself defines cannot be those of the graph around it: shadowing is refused elsewhere.
        for inner in body.node:
            yield from (n for n in inner.input if n)
            bodies += [a.g for a in inner.attribute if a.HasField("g")]
            bodies += [g for a in inner.attribute for g in a.graphs]
        yield from (o.name for o in body.output)


def _cycle(nodes: list[Any], reads: list[list[int]], sorted_: set[int]) -> str:
    at = next(i for i in range(len(nodes)) if i not in sorted_)
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = next(s for s in reads[at] if s not in sorted_)
    loop = path[seen[at] :][::-1]
    shown = [quote(nodes[i].name or next(iter(nodes[i].output), "")) for i in loop[:8]]
    return " -> ".join([*shown, *(["..."] if len(loop) > 8 else []), shown[0]])
