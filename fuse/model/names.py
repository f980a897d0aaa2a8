"""Names for saving: every value gets one, the interface keeps its own, and no name hides another."""

from __future__ import annotations

from collections.abc import Container, Iterable

from fuse.errors import LawError, quote
from fuse.ir.graph import Graph, Value


class Names:
    """The names of one graph's values but for ``unwritten`` ones, in front of those of the graphs around it.

    A value keeps the name that it wishes for where nothing in the same graph or around it has that name; the others are
    numbered.  The main graph and a function own the names of their inputs and output slots; those of a subgraph go by
    position and may change.
    """

    def __init__(self, graph: Graph, outer: Names | None = None, unwritten: Container[Value] = ()) -> None:
        self._outer = outer
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._count: dict[str, int] = outer._count if outer is not None else {}
        for value in graph.inputs:
            self._names[value] = self._fixed(value.name, "input")
        self.slots = self._name_slots(graph)
        self._name_rest(value for value in _defined(graph) if value not in unwritten)

    def __getitem__(self, value: Value) -> str:
        scope: Names | None = self
        while scope is not None:
            name = scope._names.get(value)
            if name is not None:
                return name
            scope = scope._outer
        raise KeyError(value)

    def label(self, wish: str) -> str:
        """A name that no value has."""
        return self._claim(wish)

    def _name_slots(self, graph: Graph) -> list[str]:
        """The names of the output slots; a value of this graph goes by that of the first slot that shows it.

        A second slot on it, a slot on an input or on a value from outside get an Identity when they are written.
        """
        names: list[str] = []
        given: dict[tuple[str, Value], str] = {}
        for slot in graph.outputs:
            name = given.get((slot.name, slot.value))
            if name is None:
                name = slot.name
                if self._known(slot.value) != name:
                    name = self._fixed(name, "output")
                if slot.value not in self._names and _owns(graph, slot.value):
                    self._names[slot.value] = name
                given[slot.name, slot.value] = name
            names.append(name)
        return names

    def _name_rest(self, values: Iterable[Value]) -> None:
        """First all who can have their own name, then those who cannot or have none: a number must not take a name."""
        left: list[Value] = []
        for value in values:
            if value in self._names:
                continue
            if value.name and not self._is_taken(value.name):
                self._names[value] = self._claim(value.name)
            else:
                left.append(value)
        for value in left:
            self._names[value] = self._claim(value.name)

    def _known(self, value: Value) -> str | None:
        try:
            return self[value]
        except KeyError:
            return None

    def _fixed(self, wish: str, what: str) -> str:
        name = self._claim(wish)
        if name != wish and self._outer is None:
            raise LawError(f"{what} {quote(wish)} must keep its name, which another value of the interface has")
        return name

    def _claim(self, wish: str) -> str:
        name = wish = wish or "v"
        while self._is_taken(name):
            self._count[wish] = self._count.get(wish, 0) + 1
            name = f"{wish}_{self._count[wish]}"
        self._taken.add(name)
        return name

    def _is_taken(self, name: str) -> bool:
        scope: Names | None = self
        while scope is not None:
            if name in scope._taken:
                return True
            scope = scope._outer
        return False


def _defined(graph: Graph) -> Iterable[Value]:
    yield from graph.constants
    for node in graph.nodes:
        yield from (value for value in node.outputs if value is not None)


def _owns(graph: Graph, value: Value) -> bool:
    return value.owner is graph or (value.producer is not None and value.producer.graph is graph)
