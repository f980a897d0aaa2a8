"""Dead code: nodes whose results nothing reads, constants that nothing reads, functions that nothing calls."""

from __future__ import annotations

import time

from fuse.ir.graph import Graph, Node
from fuse.ops import contrib, fused
from fuse.ops.record import lookup
from fuse.passes.record import note
from fuse.passes.rewrite import Context


def eliminate_dead(context: Context) -> None:
    """Remove what no output depends on.  Nodes of unknown operators stay: they may do more than compute."""
    for graph in context.graphs():
        for inner in list(graph.walk_graphs())[::-1]:
            _graph(inner, context)
    _functions(context)
    fused.attach(context.model)
    contrib.attach(context.model)


def _graph(graph: Graph, context: Context) -> None:
    started = time.perf_counter()
    pending = list(graph.nodes)  # popped from the end, so readers come before what they read
    removed: list[Node] = []
    while pending and not context.journal.exhausted:
        node = pending.pop()
        if node.graph is None or any(v is not None and v.uses for v in node.outputs) or not _pure(node, context):
            continue
        producers = [v.producer for v in node.inputs if v is not None and v.producer is not None]
        graph.remove(node)
        removed.append(node)
        pending += [p for p in producers if p.graph is graph]
    unused = [v for v in graph.constants if not v.uses]
    freed = sum(v.nbytes for v in unused)
    for value in unused:
        graph.drop_const(value)
    if removed or unused:
        context.journal.add("dead", "bits", map(note, removed), (), -freed, started)


def _pure(node: Node, context: Context) -> bool:
    return lookup(node.op) is not None or not node.domain or (node.op, node.overload) in context.model.functions


def _functions(context: Context) -> None:
    model = context.model
    called: set[tuple[str, str]] = set()
    frontier = [model.graph]
    while frontier:
        for node in frontier.pop().walk():
            key = (node.op, node.overload)
            if key in model.functions and key not in called:
                called.add(key)
                frontier.append(model.functions[key].graph)
    for key in [k for k in model.functions if k not in called]:
        del model.functions[key]
