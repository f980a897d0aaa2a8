"""How long each value lives, and which values may share one buffer.

A step is one node of the graph, in order.  A value lives from the step that computes it to the last step that reads
it; reads by subgraphs count at the node that holds them, and what an output slot shows lives on past the last step.

Two rules let values share a buffer.  A *view* (Reshape, Identity) holds its input's elements in the same order: the two
are one buffer, alive as long as either.  An elementwise node may write *in place* over an input of the same dtype and
size that nobody reads afterwards.  What the caller owns (graph inputs, constants) is never written; a view of it needs
no buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fuse.errors import quote
from fuse.ir.dims import evaluate
from fuse.ir.dtypes import STRING, DType
from fuse.ir.graph import Graph, Node, Value
from fuse.ir.types import TensorType, Type
from fuse.ops.record import Trait, has_trait

#: A value of more bytes than this is a mistake in the model or in the given sizes; no machine holds it.
MOST_BYTES = 1 << 46

InPlace = Callable[[Node, int], bool]


class Interval(NamedTuple):
    """The steps of a life: born at ``birth``, last needed at ``death``, both included."""

    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory that ``values`` share one after another, or at once where they are views."""

    values: tuple[Value, ...]
    birth: int
    death: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Liveness:
    """What is known of the values of one graph, each dictionary in order of birth.

    ``nodes`` are the steps; ``lives`` has every input and every value that a node computes.  ``bytes`` has those with
    a buffer, and ``how`` says how they came by it: "own", "alias" (a view) or "in-place".  ``views`` are the buffers
    where only views share, ``buffers`` those with in-place writing too.  ``outside`` maps a view of what the caller
    owns to the input or constant that it shows; ``unplanned`` maps a value without a buffer to the reason.
    """

    nodes: tuple[Node, ...]
    lives: dict[Value, Interval]
    bytes: dict[Value, int]
    how: dict[Value, str]
    views: tuple[Buffer, ...]
    buffers: tuple[Buffer, ...]
    outside: dict[Value, Value]
    unplanned: dict[Value, str]


def elementwise(node: Node, index: int) -> bool:
    """Whether ``node`` may write its output over input ``index``: where its operator is elementwise."""
    return has_trait(node, Trait.ELEMENTWISE)


def size_of(type: Type | None, sizes: Mapping[str, int]) -> int | str:
    """Bytes of a dense tensor whose symbolic dims have ``sizes``; a text that says why where they cannot be known.

    Sub-byte elements take a byte each, as in NumPy.
    """
    if not isinstance(type, TensorType):
        return "its type is unknown" if type is None else f"it is no dense tensor but {type}"
    if type.dtype is None:
        return "its dtype is unknown"
    if type.dtype == STRING:
        return "strings have no fixed size"
    if type.shape is None:
        return "its rank is unknown"
    size = type.dtype.itemsize
    dims = [evaluate(dim, sizes) for dim in type.shape]
    if any(dim is not None and dim < 0 for dim in dims):
        return f"a dim of {quote(type)} is negative with the given sizes"
    if 0 in dims:
        return 0
    for dim in dims:
        if dim is None:
            return f"{quote(type)} has a dim of unknown size"
        size *= dim
    return size if size <= MOST_BYTES else f"{size} bytes are more than any memory holds"


def reads(node: Node) -> Iterator[Value]:
    """Every value that ``node`` reads, also by the nodes and output slots of its subgraphs."""
    for value in node.inputs:
        if value is not None:
            yield value
    for sub in node.subgraphs:
        for graph in sub.walk_graphs():
            for inner in graph.nodes:
                yield from (value for value in inner.inputs if value is not None)
            yield from (slot.value for slot in graph.outputs)


def intervals(graph: Graph) -> dict[Value, Interval]:
    """The life of each graph input and of each value that a node computes, in this order.

    Inputs are born at step 0; a value that nothing reads dies where it is born; what an output slot shows dies at step
    ``len(graph)``, which is past the last one.
    """
    births = dict.fromkeys(graph.inputs, 0)
    deaths: dict[Value, int] = {}
    for step, node in enumerate(graph.nodes):
        deaths.update((value, step) for value in reads(node))
        births.update((value, step) for value in node.outputs if value is not None)
    deaths.update((slot.value, len(graph)) for slot in graph.outputs)
    return {value: Interval(birth, deaths.get(value, birth)) for value, birth in births.items()}


def analyse(
    graph: Graph,
    types: Mapping[Value, Type | None],
    sizes: Mapping[str, int],
    *,
    count_inputs: bool = False,
    in_place: InPlace = elementwise,
    calls: Collection[tuple[str, str]] = (),
) -> Liveness:
    """Lives, sizes and shared buffers of the values of ``graph``; values inside subgraphs are left out.

    ``types`` says what each value is, ``sizes`` what its symbols stand for.  ``count_inputs`` gives graph inputs
    buffers too (never written over).  ``in_place(node, index)`` says whether the operator allows its one output to be
    written over input ``index``.  ``calls`` are the keys of local functions: a call is neither a view nor elementwise.
    """
    sharing = _Sharing(graph, types, sizes)
    nodes = tuple(graph.nodes)
    if count_inputs and nodes:
        for value in graph.inputs:
            sharing.admit(value)
    plain = [(step, node) for step, node in enumerate(nodes) if (node.op, node.overload) not in calls]
    views = {node for _, node in plain if has_trait(node, Trait.VIEW)}
    for node in nodes:
        sharing.add_results(node, is_view=node in views)
    by_views = sharing.buffers()
    for step, node in plain:
        sharing.write_over(node, step, in_place)
    return Liveness(
        nodes,
        sharing.lives,
        sharing.bytes,
        sharing.how,
        by_views,
        sharing.buffers(),
        sharing.outside,
        sharing.unplanned,
    )


class _Sharing:
    """Values gathered by the buffer that they share; ``home`` is the index of a value's buffer."""

    def __init__(self, graph: Graph, types: Mapping[Value, Type | None], sizes: Mapping[str, int]) -> None:
        self.types, self.sizes = types, sizes
        self.owned = frozenset(graph.inputs)
        self.lives = intervals(graph)
        self.bytes: dict[Value, int] = {}
        self.how: dict[Value, str] = {}
        self.outside: dict[Value, Value] = {}
        self.unplanned: dict[Value, str] = {}
        self.home: dict[Value, int] = {}
        self.members: list[list[Value]] = []
        self.deaths: list[int] = []

    def admit(self, value: Value) -> None:
        """Give ``value`` a buffer of its own, or note why it cannot have one."""
        size = size_of(self.types.get(value), self.sizes)
        if isinstance(size, str):
            self.unplanned[value] = size
            return
        self.bytes[value], self.how[value], self.home[value] = size, "own", len(self.members)
        self.members.append([value])
        self.deaths.append(self.lives[value].death)

    def join(self, value: Value, home: int, how: str | None = None) -> None:
        """Put ``value`` into the buffer ``home``."""
        self.home[value], self.how[value] = home, how or self.how[value]
        self.members[home].append(value)
        self.deaths[home] = max(self.deaths[home], self.lives[value].death)

    def add_results(self, node: Node, is_view: bool) -> None:
        """Find a buffer for each output of ``node``, before any in-place writing."""
        controls = bool(node.subgraphs) or has_trait(node, Trait.CONTROL)
        for position, value in enumerate(node.outputs):
            if value is None:
                continue
            source = node.input(0) if is_view and position == 0 else None
            if controls:
                self.unplanned[value] = "it is a result of control flow, made while a subgraph runs"
            elif source is None or not self.show(value, source):
                self.admit(value)

    def show(self, value: Value, source: Value) -> bool:
        """Let ``value`` be a view of ``source``; False where the two do not fit and ``value`` needs its own buffer."""
        if source in self.home:
            size, kind = size_of(self.types.get(value), self.sizes), _dtype(self.types, value)
            if kind is not None and kind != _dtype(self.types, source):
                return False
            if isinstance(size, int) and size != self.bytes[source]:
                return False
            self.bytes[value] = self.bytes[source]  # a view of unknown shape still has its input's bytes
            self.join(value, self.home[source], "alias")
        elif source in self.unplanned and source not in self.owned:
            self.unplanned[value] = f"it is a view of {quote(source.name)}, which has no place either"
        else:
            self.outside[value] = self.outside.get(source, source)
        return True

    def write_over(self, node: Node, step: int, in_place: InPlace) -> None:
        """Let the one output of ``node`` take over the buffer of an input that dies at ``step``, where that is safe.

        All reads of that buffer by this node must be element by element: same dtype, same bytes, allowed by
        ``in_place``.  An input of the output's size is broadcast along no axis.
        """
        results = [value for value in node.outputs if value is not None]
        if len(results) != 1 or self.how.get(results[0]) != "own" or not self.bytes[results[0]]:
            return
        (result,) = results
        readings: dict[int, list[tuple[int, Value]]] = {}
        for index, value in enumerate(node.inputs):
            if value is not None and value in self.home:
                readings.setdefault(self.home[value], []).append((index, value))
        size, kind = self.bytes[result], _dtype(self.types, result)
        for home, reading in readings.items():
            if (
                self.deaths[home] == step
                and self.members[home][0] not in self.owned
                and all(
                    in_place(node, i) and self.bytes[v] == size and _dtype(self.types, v) == kind for i, v in reading
                )
            ):
                old = self.home[result]
                shared, self.members[old] = self.members[old], []
                for value in shared:
                    self.join(value, home, "in-place" if value is result else None)
                return

    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers as they are shared at present, in order of birth."""
        return tuple(
            Buffer(tuple(values), self.lives[values[0]].birth, death, self.bytes[values[0]])
            for values, death in zip(self.members, self.deaths, strict=True)
            if values
        )


def _dtype(types: Mapping[Value, Type | None], value: Value) -> DType | None:
    known = types.get(value)
    return known.dtype if isinstance(known, TensorType) else None
