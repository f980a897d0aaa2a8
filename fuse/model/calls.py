"""Calls: which local function calls which, and how large and how deep the model is with all of them expanded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx

from fuse.errors import LimitError, ModelError, quote
from fuse.limits import Limits
from fuse.model.order import subgraphs

Key = tuple[str, str]


def key_of(proto: Any) -> Key:
    """What a function and the nodes that call it have in common: the qualified name and the overload."""
    name = proto.name if isinstance(proto, onnx.FunctionProto) else proto.op_type
    return (f"{proto.domain}::{name}" if proto.domain else name), proto.overload


@dataclass(slots=True)
class _Body:
    """A function or the main graph: its calls, each with how deep in subgraphs it stands."""

    nodes: int = 0
    depth: int = 0
    calls: list[tuple[Key, int]] = field(default_factory=list)
    expanded: int = 0
    expanded_depth: int = 0


def check_calls(functions: Mapping[Key, Any], nodes: Any, limits: Limits) -> None:
    """Refuse functions that call themselves, and models that are too large or too deep with all calls expanded.

    ``nodes`` are those of the main graph.  Linear in the nodes as they stand; nothing is expanded.
    """
    if not functions:
        return
    bodies = {key: _survey(function.node, functions) for key, function in functions.items()}
    done: set[Key] = set()
    for root in bodies:
        path = {root: iter(bodies[root].calls)} if root not in done else {}
        while path:
            caller = next(reversed(path))
            callee, _ = next(path[caller], (None, 0))
            if callee is None:
                del path[caller]
                _add_up(bodies[caller], bodies)
                done.add(caller)
            elif callee in path:
                loop = [*list(path)[list(path).index(callee) :], callee]
                raise ModelError(f"functions call themselves: {' -> '.join(quote(key[0]) for key in loop)}")
            elif callee not in done:
                path[callee] = iter(bodies[callee].calls)
    main = _survey(nodes, functions)
    _add_up(main, bodies)
    for body in (*bodies.values(), main):
        if body.calls and body.expanded > limits.inlined_nodes:
            raise LimitError(f"local functions expand to more than {limits.inlined_nodes:,} nodes")
        if body.calls and body.expanded_depth > limits.nesting:
            raise LimitError(f"local functions expand to subgraphs more than {limits.nesting} deep in each other")


def _add_up(body: _Body, bodies: Mapping[Key, _Body]) -> None:
    body.expanded = body.nodes + sum(bodies[key].expanded for key, _ in body.calls)
    depths = (depth + bodies[key].expanded_depth for key, depth in body.calls)
    body.expanded_depth = max(body.depth, *depths) if body.calls else body.depth


def _survey(nodes: Any, functions: Mapping[Key, Any]) -> _Body:
    body = _Body()
    for node, depth in _walk(nodes):
        body.nodes += 1
        body.depth = max(body.depth, depth)
        if node.domain and (key := key_of(node)) in functions:
            body.calls.append((key, depth))
    return body


def _walk(nodes: Any) -> Iterator[tuple[Any, int]]:
    """Every node, in subgraphs too, with the number of subgraphs that it stands in."""
    stack = [(nodes, 0)]
    while stack:
        inner, depth = stack.pop()
        for node in inner:
            yield node, depth
            stack.extend((graph.node, depth + 1) for graph in subgraphs(node))
