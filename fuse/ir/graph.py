"""The graph: values, the nodes that produce them, and every place that reads them.

A ``Value`` is produced once (by a node, as a graph input, or as a constant) and knows each of its uses: node inputs,
inside subgraphs too, and output slots.  A ``Graph`` names its results through output slots, so replacing a value can
never rename the model's interface.  Names are labels; nothing here looks anything up by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ir.types import TensorType, Type

User = Union["Node", "Graph"]


class Value:
    """One value.  ``type`` is what is known of it; ``info`` is how the file declared it, kept for the file alone."""

    __slots__ = ("_data", "extra", "info", "name", "origin", "owner", "slots", "type", "uses")

    def __init__(self, name: str = "", type: Type | None = None) -> None:
        self.name = name
        self.type = type
        self.owner: Node | Graph | None = None
        self.uses: dict[tuple[User, int], None] = {}
        self.slots = 0  # how many of the uses are output slots: a value may have a million readers
        self._data: Array | Callable[[], Array] | None = None
        self.info: bytes = b""
        self.extra: bytes = b""
        self.origin: Origin | None = None

    @property
    def producer(self) -> Node | None:
        """The node that computes the value; None for inputs and constants."""
        return self.owner if isinstance(self.owner, Node) else None

    @property
    def is_const(self) -> bool:
        """True for a constant; False for an input, even one with a default."""
        return self._data is not None and isinstance(self.owner, Graph) and self in self.owner.constants

    @property
    def data(self) -> Array | None:
        """The constant's (or the input's default) array, read-only; None where there is none.  Loads on demand."""
        if callable(self._data):
            self._data = _frozen(self._data())
        return self._data

    @property
    def array(self) -> Array:
        """The array of a value that must have one."""
        data = self.data
        if data is None:
            raise ValueError(f"value {self.name!r} has no data")
        return data

    def set_data(self, data: Array | Callable[[], Array] | None) -> None:
        """Give the value its array, or a function that loads it."""
        self._data = data if data is None or callable(data) else _frozen(data)

    @property
    def readers(self) -> list[User]:
        """Who reads the value, once for each use, in the order the uses were made."""
        return [user for user, _ in self.uses]

    @property
    def is_output(self) -> bool:
        """True where an output slot of a graph (or of a subgraph) holds the value."""
        return self.slots > 0

    @property
    def only_reader(self) -> Node | None:
        """The one node that reads the value, once; None where there are more uses, or none, or an output slot."""
        if len(self.uses) != 1:
            return None
        ((user, _),) = self.uses
        return user if isinstance(user, Node) else None

    def replace_by(self, other: Value) -> None:
        """Let every use of this value read ``other``."""
        for user, index in list(self.uses):
            user.rewire(index, other)

    @property
    def shape(self) -> tuple[Any, ...] | None:
        """The tensor's shape as far as known; None for other kinds and for unknown ranks."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def dtype(self) -> Any:
        """The tensor's dtype as far as known; None for other kinds."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor of known dtype and fixed dims, 0 otherwise; loads nothing."""
        if not isinstance(self.type, TensorType) or self.type.dtype is None or self.type.shape is None:
            return 0
        fixed = [d for d in self.type.shape if isinstance(d, int)]
        return math.prod(fixed) * self.type.dtype.itemsize if len(fixed) == len(self.type.shape) else 0

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


def _frozen(array: Array) -> Array:
    array = np.asarray(array)  # NumPy's functions return a scalar, not an array, where the rank is 0
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


@dataclass(slots=True)
class Origin:
    """How a file spelled a constant when not as an initializer: the attribute of a Constant node, and its label."""

    attribute: str
    node_name: str = ""
    extra: bytes = b""


@dataclass(slots=True)
class Attr:
    """An attribute: ``kind`` is ONNX's name (INT, FLOATS, TENSOR, GRAPH, ...); lists are tuples, tensors are arrays.

    ``reference`` names the attribute of the enclosing function that it stands for.  ``implied`` marks a default of an
    older operator version, written inside so that no rule needs to know, and left out of the file.
    """

    kind: str
    value: Any
    reference: str = ""
    implied: bool = False
    extra: bytes = b""


class Node:
    """One operation: ``op`` is ONNX's name, ``domain::Name`` outside the default domain.  Absent slots are None."""

    __slots__ = ("_inputs", "_next", "_prev", "attrs", "extra", "graph", "name", "op", "outputs", "overload", "sources")

    def __init__(
        self,
        op: str,
        inputs: Sequence[Value | None] = (),
        outputs: Sequence[Value | None] = (),
        attrs: dict[str, Attr] | None = None,
        name: str = "",
    ) -> None:
        self.op, self.name = op, name
        self.attrs: dict[str, Attr] = attrs if attrs is not None else {}
        self.overload = ""
        self.extra: bytes = b""
        self.sources: tuple[str, ...] = ()
        self.graph: Graph | None = None
        self._prev: Node | None = None
        self._next: Node | None = None
        self._inputs: list[Value | None] = []
        self.outputs: list[Value | None] = list(outputs)
        for value in self.outputs:
            if value is not None:
                value.owner = self
        for value in inputs:
            self.append_input(value)
        for sub in self.subgraphs:
            sub.parent = self

    @property
    def inputs(self) -> tuple[Value | None, ...]:
        """The values read, None where an optional one is absent."""
        return tuple(self._inputs)

    @property
    def out(self) -> Value:
        """The first output."""
        value = self.outputs[0]
        assert value is not None
        return value

    def input(self, index: int) -> Value | None:
        """Input ``index``; None where absent or beyond the end."""
        return self._inputs[index] if index < len(self._inputs) else None

    def append_input(self, value: Value | None) -> None:
        """Add one more input at the end."""
        self._inputs.append(value)
        if value is not None:
            value.uses[self, len(self._inputs) - 1] = None

    def rewire(self, index: int, value: Value | None) -> None:
        """Let input ``index`` read ``value``."""
        old = self._inputs[index]
        if old is not None:
            del old.uses[self, index]
        self._inputs[index] = value
        if value is not None:
            value.uses[self, index] = None

    def trim_inputs(self, count: int) -> None:
        """Keep the first ``count`` inputs."""
        while len(self._inputs) > count:
            self.rewire(len(self._inputs) - 1, None)
            self._inputs.pop()

    @property
    def subgraphs(self) -> list[Graph]:
        """The graphs among the attributes."""
        found: list[Graph] = []
        for attr in self.attrs.values():
            if attr.reference:
                continue
            if attr.kind == "GRAPH":
                found.append(attr.value)
            elif attr.kind == "GRAPHS":
                found.extend(attr.value)
        return found

    @property
    def domain(self) -> str:
        """The operator's domain, empty for ONNX's own."""
        return self.op.rpartition("::")[0]

    @property
    def op_type(self) -> str:
        """The operator's name without its domain."""
        return self.op.rpartition("::")[2]

    def __repr__(self) -> str:
        return f"<Node {self.name!r} {self.op}>"


@dataclass(slots=True, eq=False)
class Output:
    """A result slot: a name that stays, and the value that it shows at present."""

    name: str
    value: Value
    type: Type | None = None
    info: bytes = b""


class Graph:
    """Inputs, constants, nodes in execution order, output slots.  A subgraph's ``parent`` is the node that holds it."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Output] = []
        self.constants: dict[Value, None] = {}
        self.listed: list[Value] = []  # IR version 3 and older: inputs and constants as the file's input list has them
        self.parent: Node | None = None
        self.extra: bytes = b""
        self._first: Node | None = None
        self._last: Node | None = None
        self._count = 0

    # -- values

    def add_input(self, value: Value) -> Value:
        """Append a graph input."""
        value.owner = self
        self.inputs.append(value)
        return value

    def add_const(self, data: Array | Callable[[], Array], name: str = "", type: Type | None = None) -> Value:
        """A new constant; a function instead of an array loads it on demand and then needs ``type``."""
        value = Value(name, type if type is not None or callable(data) else TensorType(data.dtype, data.shape))
        value.owner = self
        value.set_data(data)
        self.constants[value] = None
        return value

    def drop_const(self, value: Value) -> None:
        """Forget an unused constant."""
        assert not value.uses
        del self.constants[value]
        value.owner = None

    def add_output(self, name: str, value: Value, type: Type | None = None) -> Output:
        """Append an output slot."""
        slot = Output(name, value, type)
        self.outputs.append(slot)
        self._hold(len(self.outputs) - 1, value)
        return slot

    def drop_output(self, index: int) -> None:
        """Remove output slot ``index``; those behind it move up."""
        later = [slot.value for slot in self.outputs[index:]]
        for place, value in enumerate(later, index):
            self._let_go(place, value)
        del self.outputs[index]
        for place, value in enumerate(later[1:], index):
            self._hold(place, value)

    def rewire(self, index: int, value: Value) -> None:
        """Let output slot ``index`` show ``value``; its name stays."""
        slot = self.outputs[index]
        self._let_go(index, slot.value)
        slot.value = value
        self._hold(index, value)

    def _hold(self, index: int, value: Value) -> None:
        value.uses[self, index] = None
        value.slots += 1

    def _let_go(self, index: int, value: Value) -> None:
        del value.uses[self, index]
        value.slots -= 1

    # -- nodes

    @property
    def nodes(self) -> Iterator[Node]:
        """The nodes in execution order; any of them may be removed, and nodes inserted, while iterating.

        What is inserted behind the node just yielded comes next; what takes the place of a removed node does not come.
        """
        node = self._first
        while node is not None:
            following = node._next
            yield node
            node = node._next if node.graph is self or node.graph is None else following
            while node is not None and node.graph is not self:  # a removed node still knows what stood behind it
                assert node.graph is None, f"{node} was moved to another graph while this one is walked"
                node = node._next

    def __len__(self) -> int:
        return self._count

    def append(self, node: Node) -> Node:
        """Put ``node`` at the end."""
        return self.insert(node, before=None)

    def insert(self, node: Node, before: Node | None) -> Node:
        """Put ``node`` in front of ``before``, at the end where that is None."""
        assert node.graph is None and (before is None or before.graph is self)
        node.graph = self
        node._next = before
        node._prev = before._prev if before is not None else self._last
        if node._prev is None:
            self._first = node
        else:
            node._prev._next = node
        if before is None:
            self._last = node
        else:
            before._prev = node
        self._count += 1
        return node

    def unlink(self, node: Node) -> Node:
        """Take ``node`` out of the order and keep its edges, to be inserted elsewhere.

        It keeps its pointer to the next node too, by which a walk under way finds back into the order.
        """
        assert node.graph is self
        if node._prev is None:
            self._first = node._next
        else:
            node._prev._next = node._next
        if node._next is None:
            self._last = node._prev
        else:
            node._next._prev = node._prev
        node.graph = node._prev = None
        self._count -= 1
        return node

    def remove(self, node: Node) -> None:
        """Delete ``node``, whose outputs nothing reads, and all that its subgraphs read."""
        assert not any(v is not None and v.uses for v in node.outputs), f"{node} is still read"
        self.unlink(node)
        for sub in node.subgraphs:
            sub.release()
        for index in range(len(node._inputs)):
            node.rewire(index, None)

    def release(self) -> None:
        """Give up every use that this graph and its subgraphs make, before they are thrown away."""
        for graph in self.walk_graphs():
            for index, slot in enumerate(graph.outputs):
                if (graph, index) in slot.value.uses:
                    graph._let_go(index, slot.value)
            for node in graph.nodes:
                for index in range(len(node._inputs)):
                    node.rewire(index, None)

    # -- walks, none of which recurses

    def walk_graphs(self) -> Iterator[Graph]:
        """The graph and all graphs inside it, outer ones first."""
        stack = [self]
        while stack:
            graph = stack.pop()
            yield graph
            stack.extend(sub for node in graph.nodes if node.attrs for sub in node.subgraphs)

    def walk(self) -> Iterator[Node]:
        """Every node of this graph and of the graphs inside it."""
        for graph in self.walk_graphs():
            yield from graph.nodes

    def enclosing(self) -> Iterator[Graph]:
        """The graph, then the graphs around it, innermost first."""
        graph: Graph | None = self
        while graph is not None:
            yield graph
            graph = graph.parent.graph if graph.parent is not None else None
