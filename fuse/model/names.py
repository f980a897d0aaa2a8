"""Names for saving: every value gets one, the interface keeps its own, and no two meet in one scope."""

from __future__ import annotations

from fuse.ir.graph import Graph, Value


class Names:
    """The names of one graph's values, in front of those of the graphs around it."""

    def __init__(self, outer: Names | None = None) -> None:
        self._outer = outer
        self._names: dict[Value, str] = {}
        self._taken: set[str] = set()
        self._count: dict[str, int] = {}

    def inner(self) -> Names:
        """A scope inside this one."""
        return Names(self)

    def __getitem__(self, value: Value) -> str:
        scope: Names | None = self
        while scope is not None:
            if value in scope._names:
                return scope._names[value]
            scope = scope._outer
        raise KeyError(value)

    def get(self, value: Value) -> str | None:
        """The value's name in this scope alone; None where it has none."""
        return self._names.get(value)

    def fix_interface(self, graph: Graph) -> None:
        """Inputs keep their names; a value in an output slot takes the slot's name where it can.

        An input cannot, nor can a value that already shows under another output's name: those get an Identity.
        """
        for value in graph.inputs:
            self._fix(value, value.name)
        self._taken.update(slot.name for slot in graph.outputs)
        for slot in graph.outputs:
            if slot.value not in self._names and self._owns(graph, slot.value):
                self._names[slot.value] = slot.name

    def assign(self, graph: Graph) -> None:
        """Name all other values of ``graph``: their own name where it is free, a numbered one otherwise."""
        for value in graph.constants:
            self._assign(value)
        for node in graph.nodes:
            for value in node.outputs:
                if value is not None:
                    self._assign(value)

    def label(self, wish: str) -> str:
        """A name that nothing else has."""
        return self._free(wish)

    @staticmethod
    def _owns(graph: Graph, value: Value) -> bool:
        return value in graph.constants or (value.producer is not None and value.producer.graph is graph)

    def _fix(self, value: Value, name: str) -> None:
        self._names[value] = name
        self._taken.add(name)

    def _assign(self, value: Value) -> None:
        if value not in self._names:
            self._names[value] = self._free(value.name or "v")

    def _free(self, wish: str) -> str:
        name = wish
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
