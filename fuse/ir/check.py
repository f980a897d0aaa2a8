"""The laws of the IR, one function each, held after every pass.

A law reads a ``Survey`` (every graph and its nodes, gathered once) and raises ``LawError``, which names the law and
shows the node with its neighbours.  The laws about order and nesting come first, because the others walk by them.  All
of it is linear in nodes and edges, recurses on nothing, and loads no constant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import NoneType
from typing import NoReturn

import numpy as np

from fuse.errors import LawError, quote
from fuse.ir.dims import Symbolic
from fuse.ir.dtypes import CODE, Array, name_of
from fuse.ir.graph import Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.text import excerpt, spell_type
from fuse.ir.types import MapType, OptionalType, SequenceType, TensorType


@dataclass(eq=False)
class Survey:
    """What the laws are held against: ``roots`` (the main graph, then function bodies) and all that is inside them."""

    roots: list[Graph]
    main: Graph | None = None
    functions: dict[tuple[str, str], Function] = field(default_factory=dict)
    held: list[tuple[Graph, Node | None]] = field(default_factory=list)
    """Each graph with the node that holds it, None for a root; a graph held twice is here twice."""
    nodes: dict[Graph, list[Node]] = field(default_factory=dict)
    root: dict[Graph, Graph] = field(default_factory=dict)
    """The root that a graph is inside of."""


def survey(subject: Model | Graph) -> Survey:
    """Gather the graphs and nodes of a model, or of a graph and what is around it; broken links are no danger."""
    if isinstance(subject, Model):
        found = Survey(list(subject.graphs()), subject.graph, subject.functions)
    else:
        found = Survey([list(subject.enclosing())[-1]])
    stack: list[tuple[Graph, Node | None, Graph]] = [(root, None, root) for root in reversed(found.roots)]
    while stack:
        graph, holder, root = stack.pop()
        found.held.append((graph, holder))
        if graph in found.nodes:
            continue
        found.root[graph] = root
        nodes: list[Node] = []
        node = graph._first
        while node is not None and len(nodes) <= len(graph):
            nodes.append(node)
            node = node._next
        found.nodes[graph] = nodes
        stack.extend((sub, node, root) for node in nodes if node.attrs for sub in node.subgraphs)
    return found


def check(subject: Model | Graph) -> None:
    """Hold ``subject`` against every law.  Raises ``LawError``: which law, what breaks it, and the nodes around."""
    found = survey(subject)
    for law in LAWS:
        law(found)


def _broken(law: str, what: str, node: Node | None = None) -> NoReturn:
    raise LawError(what if node is None else f"{what}\n{excerpt(node)}", where=f"law '{law}'")


def _named(node: Node) -> str:
    label = node.name or next((v.name for v in node.outputs if v is not None), "")
    return f"node {quote(label)} ({quote(node.op)[1:-1]})"


def _definitions(s: Survey) -> Iterator[tuple[Value, Node | Graph]]:
    """Each value with what defines it: the graph for its inputs and constants, the node for its outputs."""
    for graph, nodes in s.nodes.items():
        for value in graph.inputs:
            yield value, graph
        for value in graph.constants:
            yield value, graph
        for node in nodes:
            for output in node.outputs:
                if output is not None:
                    yield output, node


# ---- the laws


def order(s: Survey) -> None:
    """The nodes of a graph are one chain, linked both ways, as long as the graph says, and each knows its graph."""
    for graph, nodes in s.nodes.items():
        before = None
        for node in nodes:
            if node.graph is not graph:
                _broken("order", f"{_named(node)} stands in graph {quote(graph.name)} and does not know it", node)
            if node._prev is not before:
                _broken("order", f"{_named(node)} is not linked to the node in front of it", node)
            before = node
        if len(nodes) != len(graph) or graph._last is not before:
            _broken("order", f"graph {quote(graph.name)} counts {len(graph)} nodes and has {len(nodes)}", before)


def nesting(s: Survey) -> None:
    """A graph is held once, and its ``parent`` is the node that holds it; the outermost graphs have none."""
    seen: set[Graph] = set()
    for graph, holder in s.held:
        if graph in seen:
            _broken("nesting", f"graph {quote(graph.name)} is held twice", holder)
        if graph.parent is not holder:
            _broken("nesting", f"the parent of graph {quote(graph.name)} is not what holds it", holder or graph.parent)
        seen.add(graph)


def inputs(s: Survey) -> None:
    """An input is no constant, not even one with a default."""
    for graph in s.nodes:
        for value in graph.inputs:
            if value in graph.constants:
                _broken("inputs", f"input {quote(value.name)} of graph {quote(graph.name)} is a constant too")


def producers(s: Survey) -> None:
    """Every value is produced once, and its ``owner`` is what produces it."""
    seen: set[Value] = set()
    for value, producer in _definitions(s):
        node = producer if isinstance(producer, Node) else None
        if value.owner is not producer:
            _broken("producers", f"the owner of {quote(value.name)} is not what produces it", node)
        if value in seen:
            _broken("producers", f"{quote(value.name)} is produced twice", node)
        seen.add(value)


def uses(s: Survey) -> None:
    """A value's uses are exactly the node inputs and the output slots that read it."""
    read = 0
    slots: Counter[Value] = Counter()
    for graph, nodes in s.nodes.items():
        for node in nodes:
            for index, value in enumerate(node._inputs):
                if value is not None:
                    read += 1
                    if (node, index) not in value.uses:
                        _broken("uses", f"{_named(node)} reads {quote(value.name)}, which does not know it", node)
        for index, slot in enumerate(graph.outputs):
            slots[slot.value] += 1
            if (graph, index) not in slot.value.uses:
                _broken("uses", f"output {quote(slot.name)} shows {quote(slot.value.name)}, which does not know it")
    recorded = 0
    for value, _ in _definitions(s):
        recorded += len(value.uses)
        if value.slots != slots[value]:
            _broken("uses", f"{quote(value.name)} counts {value.slots} output slots and is in {slots[value]}")
    if recorded != read + slots.total():
        _dangling(s)


def _dangling(s: Survey) -> None:
    """Find the use that nobody makes: the slow half of the law, once the numbers differ."""
    for value, _ in _definitions(s):
        for user, index in value.uses:
            if isinstance(user, Graph):
                made = user in s.nodes and index < len(user.outputs) and user.outputs[index].value is value
            else:
                made = user.graph in s.nodes and user.input(index) is value
            if not made:
                who = _named(user) if isinstance(user, Node) else f"graph {quote(user.name)}"
                node = user if isinstance(user, Node) else value.producer
                _broken("uses", f"{quote(value.name)} believes to be read at {index} by {who}, which does not", node)


def closed(s: Survey) -> None:
    """The body of a function reads nothing from outside of it."""
    for graph, nodes in s.nodes.items() if len(s.roots) > 1 else ():
        root = s.root[graph]
        for value, node in _reads(graph, nodes):
            home = value.owner if isinstance(value.owner, Graph) else value.owner.graph if value.owner else None
            if home in s.root and s.root[home] is not root:
                what = f"{quote(value.name)} is read in one function or graph and belongs to another"
                _broken("closed", what, node)


def _reads(graph: Graph, nodes: Iterable[Node]) -> Iterator[tuple[Value, Node | None]]:
    for node in nodes:
        for value in node._inputs:
            if value is not None:
                yield value, node
    for slot in graph.outputs:
        yield slot.value, None


def scope(s: Survey) -> None:
    """A value is read where it is visible, in its own graph or one inside it, and after it is produced: no cycles."""
    for root in s.roots:
        defined: set[Value] = set()
        stack = [_scope(root, s, defined)]
        while stack:
            inner = next(stack[-1], None)
            if inner is None:
                stack.pop()
            else:
                stack.append(_scope(inner, s, defined))


def _scope(graph: Graph, s: Survey, defined: set[Value]) -> Iterator[Graph]:
    """One graph; yields each inner graph where it stands, to be walked before its node's outputs are defined."""
    own: list[Value] = [*graph.inputs, *graph.constants]
    defined.update(own)
    for node in s.nodes[graph]:
        for value in node._inputs:
            if value is not None and value not in defined:
                _broken("scope", f"{_named(node)} reads {quote(value.name)} {_absence(value, graph)}", node)
        if node.attrs:
            yield from node.subgraphs
        for output in node.outputs:
            if output is not None:
                defined.add(output)
                own.append(output)
    for slot in graph.outputs:
        if slot.value not in defined:
            what = f"output {quote(slot.name)} shows {quote(slot.value.name)} {_absence(slot.value, graph)}"
            _broken("scope", what, slot.value.producer or graph.parent)
    defined.difference_update(own)


def _absence(value: Value, graph: Graph) -> str:
    owner = value.owner
    if owner is None:
        return "which nothing produces"
    home = owner if isinstance(owner, Graph) else owner.graph
    if home is None:
        return "whose producer was removed"
    if home not in graph.enclosing():
        return "which belongs to a graph that is not around it"
    return "which its graph has dropped" if isinstance(owner, Graph) else "before it is produced"


def slots(s: Survey) -> None:
    """Output slots of one name show one value, as a file may list it twice; those of the main graph have names."""
    for graph in s.nodes:
        shown: dict[str, Value] = {}
        for slot in graph.outputs:
            if shown.setdefault(slot.name, slot.value) is not slot.value:
                _broken("slots", f"graph {quote(graph.name)} has two outputs called {quote(slot.name)}", graph.parent)
            if not slot.name and graph is s.roots[0]:
                _broken("slots", "an output of the main graph has no name", slot.value.producer)


def constants(s: Survey) -> None:
    """A constant is a read-only array of exactly its value's type; one still in its file has a type that says all."""
    for graph in s.nodes:
        for value in graph.constants:
            data, type = value._data, value.type
            if data is None:
                _constant(value, "has no data")
            if not isinstance(type, TensorType) or type.dtype is None or type.shape is None:
                _constant(value, "has a type that does not say its dtype and shape")
            if not all(isinstance(d, int) for d in type.shape):
                _constant(value, "has a shape that is no list of numbers")
            if not callable(data):
                _array(value, data)
                if type.dtype != data.dtype or type.shape != data.shape:
                    _constant(value, f"holds {name_of(data.dtype)}{list(data.shape)}")
        for value in graph.inputs:
            data, type = value._data, value.type
            if data is not None and not callable(data):
                _array(value, data)
                if isinstance(type, TensorType) and not _fits(data, type):
                    _constant(value, f"has a default of {name_of(data.dtype)}{list(data.shape)}")


def _array(value: Value, data: object) -> None:
    if not isinstance(data, np.ndarray) or data.dtype not in CODE:
        _constant(value, "holds what is no array of an ONNX dtype")
    if data.flags.writeable:
        _constant(value, "holds an array that may be written")


def _fits(data: Array, type: TensorType) -> bool:
    if type.dtype is not None and type.dtype != data.dtype:
        return False
    if type.shape is None:
        return True
    sizes = zip(type.shape, data.shape, strict=False)
    return len(type.shape) == data.ndim and all(d == n for d, n in sizes if isinstance(d, int))


def _constant(value: Value, what: str) -> NoReturn:
    reader = next((user for user, _ in value.uses if isinstance(user, Node)), None)
    _broken("constants", f"{quote(value.name)}: {spell_type(value.type)} {what}", reader)


def types(s: Survey) -> None:
    """A type's dtype is one of ONNX's, and its dims are plain integers, symbolic ones, or unknown."""
    for value, producer in _definitions(s):
        type = value.type
        while isinstance(type, SequenceType | OptionalType | MapType):
            type = type.value if isinstance(type, MapType) else type.element
        if type is None:
            continue
        if (type.dtype is not None and type.dtype not in CODE) or not _DIMS.issuperset(map(_kind, type.shape or ())):
            node = producer if isinstance(producer, Node) else None
            _broken("types", f"{quote(value.name)} has a type that is none: {quote(repr(type))}", node)


_DIMS: frozenset[object] = frozenset({int, Symbolic, NoneType})
_kind = type


def references(s: Survey) -> None:
    """Only inside functions does an attribute stand for the function's own."""
    for graph, nodes in s.nodes.items():
        if s.root[graph] is not s.main:
            continue
        for node in nodes:
            for name, attr in node.attrs.items():
                if attr.reference:
                    _broken("references", f"attribute {quote(name)} of {_named(node)} stands for a function's", node)


def calls(s: Survey) -> None:
    """A call finds its function, with no more inputs and outputs than that has; a function is filed under its key."""
    overloads: dict[str, set[str]] = {}
    for key, function in s.functions.items():
        overloads.setdefault(key[0], set()).add(key[1])
        if function.key != key:
            _broken("calls", f"function {quote(function.key)} is filed under {quote(key)}")
    for nodes in s.nodes.values() if overloads else ():
        for node in nodes:
            if node.op not in overloads:
                continue
            if node.overload not in overloads[node.op]:
                _broken("calls", f"{_named(node)} calls overload {quote(node.overload)}, which does not exist", node)
            body = s.functions[node.op, node.overload].graph
            if len(node._inputs) > len(body.inputs) or len(node.outputs) > len(body.outputs):
                _broken("calls", f"{_named(node)} has more inputs or outputs than the function it calls", node)


def recursion(s: Survey) -> None:
    """No function calls itself, not through others and not through inner graphs."""
    keys = {function.graph: key for key, function in s.functions.items()}
    called: dict[tuple[str, str], dict[tuple[str, str], None]] = {key: {} for key in s.functions}
    for graph, nodes in s.nodes.items():
        caller = keys.get(s.root[graph])
        if caller is not None:
            called[caller].update((key, None) for n in nodes if (key := (n.op, n.overload)) in called)
    done: set[tuple[str, str]] = set()
    for start in called:
        path = {start: iter(called[start])} if start not in done else {}
        while path:
            caller = next(reversed(path))
            callee = next(path[caller], None)
            if callee is None:
                done.add(caller)
                del path[caller]
            elif callee in path:
                cycle = [*list(path)[list(path).index(callee) :], callee]
                _broken(
                    "recursion", f"functions call each other in a circle: {' -> '.join(quote(k[0]) for k in cycle)}"
                )
            elif callee not in done:
                path[callee] = iter(called[callee])


LAWS: tuple[Callable[[Survey], None], ...] = (
    order,
    nesting,
    inputs,
    producers,
    uses,
    closed,
    scope,
    slots,
    constants,
    types,
    references,
    calls,
    recursion,
)
