"""Chance: which outputs depend on numbers that are drawn anew in each run, and so prove nothing by being different."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fuse.ir.graph import Graph, Node, Value
from fuse.ir.model import Model
from fuse.ops.record import Trait, has_trait


@dataclass(frozen=True, slots=True)
class Chance:
    """Names of outputs: those that differ from run to run, and those that differ between runtimes (seeded ones too)."""

    unseeded: frozenset[str]
    drawn: frozenset[str]


def random_outputs(model: Model) -> Chance:
    """The outputs of ``model`` that random operators reach, through subgraphs and functions too."""
    return Chance(_reached(model, seeded=False), _reached(model, seeded=True))


def _reached(model: Model, seeded: bool) -> frozenset[str]:
    """The outputs behind a random operator; one with a seed counts where ``seeded`` is asked for."""
    calls = _drawing_functions(model, seeded)
    tainted: set[Value] = set()
    for node in model.graph.nodes:
        if any(_draws(n, seeded) or (n.op, n.overload) in calls or _reads(n, tainted) for n in _with_inner(node)):
            tainted.update(v for v in node.outputs if v is not None)
    return frozenset(slot.name for slot in model.graph.outputs if slot.value in tainted)


def _with_inner(node: Node) -> Iterable[Node]:
    yield node
    for graph in node.subgraphs if node.attrs else ():
        yield from graph.walk()


def _reads(node: Node, tainted: set[Value]) -> bool:
    if any(v in tainted for v in node.inputs):
        return True
    return any(slot.value in tainted for graph in _graphs(node) for slot in graph.outputs)


def _graphs(node: Node) -> list[Graph]:
    return node.subgraphs if node.attrs else []


def _drawing_functions(model: Model, seeded: bool) -> set[tuple[str, str]]:
    """The functions whose bodies draw, themselves or through functions that they call."""
    callers: dict[tuple[str, str], list[tuple[str, str]]] = {}
    drawing: set[tuple[str, str]] = set()
    for key, function in model.functions.items():
        for node in function.graph.walk():
            if _draws(node, seeded):
                drawing.add(key)
            elif (node.op, node.overload) in model.functions:
                callers.setdefault((node.op, node.overload), []).append(key)
    stack = list(drawing)
    while stack:
        fresh = [k for k in callers.get(stack.pop(), ()) if k not in drawing]
        drawing.update(fresh)
        stack += fresh
    return drawing


def _draws(node: Node, seeded: bool) -> bool:
    if node.op == "Dropout":
        mode = node.input(2)
        training = mode is not None and not (mode.is_const and not mode.array.any())
        return training and (seeded or "seed" not in node.attrs)
    return has_trait(node, Trait.RANDOM) and (seeded or "seed" not in node.attrs)
