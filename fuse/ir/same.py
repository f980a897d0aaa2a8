"""Structural equality: whether two models, graphs or functions are the same but for the identity of their objects.

Names, order, types, attributes and constants are compared to the bit; where a thing stands in memory is not, nor is the
file a model came from.  The answer is where the two first differ, because "not equal" is of little use in a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from fuse.errors import quote
from fuse.ir.dtypes import STRING, Array
from fuse.ir.graph import Attr, Graph, Node, Output, Value
from fuse.ir.model import Function, Model
from fuse.ir.spell import spell_float

Difference = tuple[str, object, object]


def same(a: Model | Graph | Function, b: Model | Graph | Function, *, carried: bool = True) -> bool:
    """True where ``difference`` finds none."""
    return difference(a, b, carried=carried) is None


def difference(a: Model | Graph | Function, b: Model | Graph | Function, *, carried: bool = True) -> str | None:
    """Where ``a`` and ``b`` first differ, as text; None where they are the same.

    ``carried`` compares also what fuse only carries for the file.  Constants are loaded.
    """
    for where, left, right in _Pairs(carried).subjects(a, b):
        if left != right:
            return f"{where}: {quote(left)} against {quote(right)}"
    return None


class _Pairs:
    """Walks both sides at once and yields what has to be equal; values are told apart by the order of definition."""

    def __init__(self, carried: bool) -> None:
        self.carried = carried
        self.numbers: tuple[dict[Value, int], dict[Value, int]] = ({}, {})

    def subjects(self, a: Any, b: Any) -> Iterator[Difference]:
        yield "kind", type(a).__name__, type(b).__name__
        if isinstance(a, Graph):
            yield from self.graphs("graph", a, b)
        elif isinstance(a, Function):
            yield from self.functions("function", a, b)
        else:
            yield "ir_version", a.ir_version, b.ir_version
            yield "opsets", a.opsets, b.opsets
            yield from self.extras("model", a, b)
            yield "functions", list(a.functions), list(b.functions)
            yield from self.graphs("graph", a.graph, b.graph)
            for key, function in a.functions.items():
                yield from self.functions(f"function {quote(key[0])}", function, b.functions[key])

    def functions(self, where: str, a: Function, b: Function) -> Iterator[Difference]:
        yield where, a.key, b.key
        yield f"{where}: domain", a.domain, b.domain
        yield f"{where}: attributes", a.attributes, b.attributes
        yield f"{where}: opsets", a.opsets, b.opsets
        yield from self.extras(where, a, b)
        inner: list[tuple[str, Graph, Graph]] = []
        yield from self.attrs(where, a.defaults, b.defaults, inner)
        for deeper, left, right in inner:
            yield from self.graphs(deeper, left, right)
        yield from self.graphs(where, a.graph, b.graph)

    def graphs(self, where: str, a: Graph, b: Graph) -> Iterator[Difference]:
        """Both graphs, and with a stack in place of recursion the graphs inside them."""
        stack = [(where, a, b)]
        while stack:
            where, a, b = stack.pop()
            yield f"{where}: name", a.name, b.name
            yield from self.extras(where, a, b)
            for title, left, right in (("input", a.inputs, b.inputs), ("constant", [*a.constants], [*b.constants])):
                yield f"{where}: number of {title}s", len(left), len(right)
                for index, (x, y) in enumerate(zip(left, right, strict=True)):
                    yield from self.values(f"{where}: {title} {index}", x, y)
            yield f"{where}: number of nodes", len(a), len(b)
            for index, (m, n) in enumerate(zip(a.nodes, b.nodes, strict=True)):
                yield from self.nodes(f"{where}: node {index} {quote(m.name)}", m, n, stack)
            yield f"{where}: number of outputs", len(a.outputs), len(b.outputs)
            for index, (s, t) in enumerate(zip(a.outputs, b.outputs, strict=True)):
                yield from self.slots(f"{where}: output {index}", s, t)

    def nodes(self, where: str, a: Node, b: Node, inner: list[tuple[str, Graph, Graph]]) -> Iterator[Difference]:
        yield f"{where}: operator", (a.op, a.overload), (b.op, b.overload)
        yield f"{where}: name", a.name, b.name
        yield f"{where}: sources", a.sources, b.sources
        yield from self.extras(where, a, b)
        yield f"{where}: inputs", self.read(a.inputs, 0), self.read(b.inputs, 1)
        yield f"{where}: number of outputs", len(a.outputs), len(b.outputs)
        for index, (x, y) in enumerate(zip(a.outputs, b.outputs, strict=True)):
            yield f"{where}: output {index} is there", x is not None, y is not None
            if x is not None and y is not None:
                yield from self.values(f"{where}: output {index}", x, y)
        yield from self.attrs(where, a.attrs, b.attrs, inner)

    def values(self, where: str, a: Value, b: Value) -> Iterator[Difference]:
        """Two definitions: from here on each of the two values is known by one number."""
        for numbers, value in zip(self.numbers, (a, b), strict=True):
            numbers[value] = len(numbers)
        yield f"{where}: name", a.name, b.name
        yield f"{where}: type", a.type, b.type
        yield f"{where}: data", _content(a.data), _content(b.data)
        if self.carried:
            yield f"{where}: origin", a.origin, b.origin
            yield f"{where}: declared type", a.info, b.info
        yield from self.extras(where, a, b)

    def read(self, values: Sequence[Value | None], side: int) -> list[object]:
        """Which values are read; one from outside stands for itself."""
        return [value and self.numbers[side].get(value, value) for value in values]

    def slots(self, where: str, a: Output, b: Output) -> Iterator[Difference]:
        yield f"{where}: name", a.name, b.name
        yield f"{where}: type", a.type, b.type
        yield f"{where}: value", self.read([a.value], 0), self.read([b.value], 1)
        if self.carried:
            yield f"{where}: declared type", a.info, b.info

    def attrs(
        self, where: str, a: Mapping[str, Attr], b: Mapping[str, Attr], inner: list[tuple[str, Graph, Graph]]
    ) -> Iterator[Difference]:
        yield f"{where}: attributes", sorted(a), sorted(b)
        for name, left in a.items():
            here, right = f"{where}: attribute {quote(name)}", b[name]
            for field in ("kind", "reference", "implied"):
                yield f"{here}: {field}", getattr(left, field), getattr(right, field)
            yield from self.extras(here, left, right)
            if left.reference:
                continue
            if left.kind not in ("GRAPH", "GRAPHS"):
                yield here, _spelled(left), _spelled(right)
                continue
            graphs = [(x.value,) if x.kind == "GRAPH" else tuple(x.value) for x in (left, right)]
            yield f"{here}: number of graphs", len(graphs[0]), len(graphs[1])
            inner.extend((f"{here}: graph", x, y) for x, y in zip_longest(*graphs))

    def extras(self, where: str, a: Any, b: Any) -> Iterator[Difference]:
        if self.carried:
            yield f"{where}: carried bytes", a.extra, b.extra


def _spelled(attr: Attr) -> object:
    """The attribute's value in a form where == asks for the same bits."""
    if attr.kind == "TENSOR":
        return _content(attr.value)
    if attr.kind == "FLOAT":
        return spell_float(attr.value)
    if attr.kind == "FLOATS":
        return [spell_float(x) for x in attr.value]
    return list(attr.value) if attr.kind in ("INTS", "STRINGS") else attr.value


def _content(array: Array | None) -> object:
    if array is None:
        return None
    return array.dtype, array.shape, array.tolist() if array.dtype == STRING else array.tobytes()
