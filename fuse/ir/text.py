"""A model as text that people read and ``fuse.ir.parse`` reads back to an equal model.

    model {
      ir_version 8
      opset 17
    }
    graph "main" {
      input %x: float[n, 3]
      const %w: float[3, 2] = [1.0, 0.5, -0.0, nan, inf, 2.0]
      const %big: float[512, 512] = <1f0c92ab>
      %y: float[n, 2] = Gemm(%x, %w, _) {alpha = 0.1f} "fc"
      return "logits" = %y
    }

A value is a percent sign and its name.  Values of one name, or of none, are told apart by a number behind a tilde:
``%x``, ``%x~2``, ``%~1``.  A large constant is a placeholder with a hash, filled from a mapping when the text is read.
What fuse only carries for the file (metadata, doc strings, declared types) is left out unless asked for, and counted.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from itertools import count
from math import prod

from fuse.ir.dims import spell
from fuse.ir.dtypes import Array, name_of
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.spell import digest, label, path, quoted, spell_elements, spell_float, word
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type

#: Lines, and in their place the lines of an inner graph: flattened with a stack, so that nesting costs no recursion.
Lines = Iterator["str | Lines"]
Subject = Model | Graph | Function

#: No constant is written out where that takes more characters: sixteen strings may be sixteen books.
INLINE_TEXT = 2000


def text(subject: Subject, *, carried: bool = False, inline: int = 16, hashes: bool = True) -> str:
    """``subject`` as text.  ``carried`` adds the bytes that fuse only carries, in base64.

    Constants of up to ``inline`` elements are written out, larger ones as placeholders; without ``hashes`` no large
    constant is loaded from its file.
    """
    return _Printer(carried, inline, hashes).print(subject)


def split(subject: Subject, *, carried: bool = True, inline: int = 16) -> tuple[str, dict[str, Array]]:
    """The text, and by their placeholders' names the large constants that it leaves out."""
    printer = _Printer(carried, inline, hashes=True)
    return printer.print(subject), printer.constants


def excerpt(node: Node, around: int = 2) -> str:
    """The node with ``around`` neighbours on each side, one line each; nothing is loaded, broken graphs are fine."""
    before, after = node, node
    for _ in range(around):
        before, after = before._prev or before, after._next or after
    printer, lines = _Printer(False, 0, hashes=False), []
    for _ in range(2 * around + 1):
        line = printer.line(before)
        lines.append(f"{'>' if before is node else ' '} {line if len(line) <= 160 else line[:157] + '...'}")
        if before is after or before._next is None:
            break
        before = before._next
    return "\n".join(lines)


def spell_type(type: Type | None) -> str:
    """A type as ``fuse.ir.parse`` reads it: ``float[1, n]``, ``seq(int64[...])``, ``?`` where nothing is known."""
    around = ""
    while isinstance(type, SequenceType | OptionalType | MapType):
        if isinstance(type, MapType):
            around, type = f"{around}map({name_of(type.key)}, ", type.value
        else:
            around, type = f"{around}{'seq' if isinstance(type, SequenceType) else 'optional'}(", type.element
    if type is None:
        inner = "?"
    else:
        element = "?" if type.dtype is None else name_of(type.dtype)
        inner = f"{element}[{'...' if type.shape is None else ', '.join(map(spell, type.shape))}]"
        if isinstance(type, SparseType):
            inner = f"sparse({inner})"
    return around + inner + ")" * around.count("(")


def numbered(name: str, number: int) -> str:
    """What tells the values of one name, or of none, apart: a number behind a tilde, from the second on."""
    return f"{name}~{number}" if number > 1 or not name else name


class _Names:
    """The values' numbers among those of one name, in the order in which they are first seen."""

    def __init__(self) -> None:
        self.numbers: dict[Value, int] = {}
        self.counts: dict[str, int] = {}

    def number(self, value: Value) -> int:
        if value not in self.numbers:
            self.numbers[value] = self.counts[value.name] = self.counts.get(value.name, 0) + 1
        return self.numbers[value]

    def of(self, value: Value | None) -> str:
        """The value as printed."""
        return "_" if value is None else f"%{numbered(label(value.name), self.number(value))}"

    def key(self, value: Value | None) -> str:
        """What the value's array is called in a mapping of constants."""
        return "" if value is None else numbered(value.name, self.number(value))


class _Printer:
    def __init__(self, carried: bool, inline: int, hashes: bool) -> None:
        self.carried, self.inline, self.hashes = carried, inline, hashes
        self.names = _Names()
        self.constants: dict[str, Array] = {}
        self.left_out = 0

    # -- what surrounds graphs

    def print(self, subject: Subject) -> str:
        if isinstance(subject, Model):
            lines = self.model(subject)
        elif isinstance(subject, Function):
            lines = self.function(subject)
        else:
            lines = self.graph("", subject, "")
        printed = "\n".join(_flat(lines)) + "\n"
        if self.left_out:
            printed += f"# carried for the file alone and left out: {self.left_out} fields\n"
        return printed

    def model(self, model: Model) -> Lines:
        yield f"model{self.kept(extra=model.extra)} {{"
        yield f"  ir_version {model.ir_version}"
        yield from _opsets(model.opsets)
        yield "}"
        yield self.graph("", model.graph, "")
        for function in model.functions.values():
            self.names = _Names()
            yield self.function(function)

    def function(self, function: Function) -> Lines:
        domain = "".join(f"{word(function.domain)}::" for _ in [0] if function.domain)
        overload = f":{word(function.overload)}" if function.overload else ""
        body = f" {quoted(function.graph.name)}" if function.graph.name else ""
        kept = self.kept(extra=function.extra, body=function.graph.extra)
        yield f"function {domain}{word(function.name)}{overload}{body}{kept} {{"
        yield from _opsets(function.opsets)
        for name in function.attributes:
            yield f"  attribute {word(name)}"
        for name, attr in function.defaults.items():
            yield self.attr(f"  attribute {word(name)} = ", "", attr, name, "  ")
        yield from self.body(function.graph, "  ")
        yield "}"

    # -- graphs

    def graph(self, before: str, graph: Graph, margin: str, after: str = "") -> Lines:
        name = f" {quoted(graph.name)}" if graph.name else ""
        yield f"{before}graph{name}{self.kept(extra=graph.extra)} {{"
        yield from self.body(graph, margin + "  ")
        yield f"{margin}}}{after}"

    def body(self, graph: Graph, margin: str) -> Lines:
        for value in graph.inputs:
            yield f"{margin}input {self.define(value)}{self.data(value) if value._data is not None else ''}"
        for value in graph.constants:
            yield f"{margin}const {self.define(value)}{self.data(value)}"
        for node in graph.nodes:
            yield from self.node(node, margin)
        for slot in graph.outputs:
            type = "" if slot.type is None else f": {spell_type(slot.type)}"
            kept = self.kept(info=slot.info)
            yield f"{margin}return {quoted(slot.name)}{type}{kept} = {self.names.of(slot.value)}"

    def node(self, node: Node, margin: str) -> Lines:
        call, end = self.call(node), self.end(node)
        if not node.subgraphs:
            attrs = [_only(self.item("", name, attr, self.owner(node))) for name, attr in node.attrs.items()]
            yield f"{margin}{call}{_braces(attrs)}{end}"
            return
        yield f"{margin}{call} {{"
        for name, attr in node.attrs.items():
            yield self.item(margin + "  ", name, attr, self.owner(node), ",")
        yield f"{margin}}}{end}"

    def line(self, node: Node) -> str:
        """The node on one line, inner graphs left out."""
        call = self.call(node)
        attrs = [
            f"{word(name)} = graph {{...}}"
            if attr.kind in ("GRAPH", "GRAPHS") and not attr.reference
            else _only(self.item("", name, attr, ""))
            for name, attr in node.attrs.items()
        ]
        return call + _braces(attrs) + self.end(node)

    def call(self, node: Node) -> str:
        outputs = ", ".join("_" if v is None else self.define(v) for v in node.outputs) or "()"
        overload = f":{word(node.overload)}" if node.overload else ""
        return f"{outputs} = {path(node.op)}{overload}({', '.join(map(self.names.of, node.inputs))})"

    def end(self, node: Node) -> str:
        name = f" {quoted(node.name)}" if node.name else ""
        sources = f" from {', '.join(map(quoted, node.sources))}" if node.sources else ""
        return name + sources + self.kept(extra=node.extra)

    def owner(self, node: Node) -> str:
        return self.names.key(next((v for v in node.outputs if v is not None), None))

    def define(self, value: Value) -> str:
        type = "" if value.type is None else f": {spell_type(value.type)}"
        origin: tuple[str | bytes, ...] = ()
        if value.origin is not None:
            origin = (value.origin.attribute, value.origin.node_name, value.origin.extra)
        return f"{self.names.of(value)}{type}{self.kept(info=value.info, extra=value.extra, origin=origin)}"

    # -- attributes and constants

    def item(self, margin: str, name: str, attr: Attr, owner: str, after: str = "") -> Lines:
        """``name = value``, in parentheses where it is implied."""
        opened, closed = ("(", ")") if attr.implied else ("", "")
        return self.attr(f"{margin}{opened}{word(name)} = ", closed + after, attr, f"{owner}.{name}", margin)

    def attr(self, before: str, after: str, attr: Attr, key: str, margin: str) -> Lines:
        """The value between ``before`` and ``after``: one line, or several where graphs are inside."""
        after = self.kept(extra=attr.extra) + after
        if attr.reference or attr.kind not in ("GRAPH", "GRAPHS"):
            yield f"{before}{self.spelled(attr, key)}{after}"
        elif attr.kind == "GRAPH":
            yield self.graph(before, attr.value, margin, after)
        elif not attr.value:
            yield f"{before}GRAPHS []{after}"
        else:
            yield f"{before}GRAPHS ["
            for graph in attr.value:
                yield self.graph(margin + "  ", graph, margin + "  ", ",")
            yield f"{margin}]{after}"

    def spelled(self, attr: Attr, key: str) -> str:
        if attr.reference:
            return f"{attr.kind} @{word(attr.reference)}"
        if attr.kind in _SCALARS:
            return _SCALARS[attr.kind](attr.value)
        if attr.kind in _LISTS:
            items = ", ".join(map(_LISTS[attr.kind], attr.value))
            return f"[{items}]" if items else f"{attr.kind} []"
        if attr.kind == "TENSOR":
            type = TensorType(attr.value.dtype, attr.value.shape)
            return f"{spell_type(type)} {self.tensor(type, lambda: attr.value, key, named=True)}"
        return f"{attr.kind} {_base64(attr.value)}"

    def data(self, value: Value) -> str:
        if value._data is None:
            return " = <>"
        type = value.type
        if not (callable(value._data) and isinstance(type, TensorType) and type.dtype is not None and _sized(type)):
            type = TensorType(value.array.dtype, value.array.shape)
        assert isinstance(type, TensorType)
        own = "" if type == value.type else f"{spell_type(type)} "
        return f" = {own}{self.tensor(type, lambda: value.array, self.names.key(value))}"

    def tensor(self, type: TensorType, array: Callable[[], Array], key: str, named: bool = False) -> str:
        assert type.shape is not None
        size = prod(d for d in type.shape if isinstance(d, int))
        if size <= self.inline:
            items = ", ".join(spell_elements(array()))
            if len(items) <= INLINE_TEXT:
                return items if not type.shape and array().dtype.kind != "c" else f"[{items}]"
        if not self.hashes:
            return "<>"
        unique = next(k for n in count(1) if (k := key if n == 1 else f"{key}~{n}") not in self.constants)
        self.constants[unique] = array()
        return f"<{f'{quoted(unique)} ' if named or unique != key else ''}{digest(array())}>"

    def kept(self, **fields: bytes | tuple[str | bytes, ...]) -> str:
        """What is carried for the file alone, as ``!{extra = "base64"}``; counted where it is left out."""
        present = {name: value for name, value in fields.items() if value}
        if not self.carried:
            self.left_out += len(present)
        if not present or not self.carried:
            return ""
        return " !" + _braces([f"{name} = {_carried(value)}" for name, value in present.items()]).strip()


def _flat(lines: Lines) -> Iterator[str]:
    stack = [lines]
    while stack:
        line = next(stack[-1], None)
        if line is None:
            stack.pop()
        elif isinstance(line, str):
            yield line
        else:
            stack.append(line)


def _only(lines: Lines) -> str:
    (line,) = _flat(lines)
    return line


def _braces(items: list[str]) -> str:
    return f" {{{', '.join(items)}}}" if items else ""


def _opsets(opsets: dict[str, int]) -> Iterator[str]:
    return (f"  opset {f'{word(domain)} ' if domain else ''}{version}" for domain, version in opsets.items())


def _sized(type: TensorType) -> bool:
    return type.shape is not None and all(isinstance(d, int) for d in type.shape)


def _base64(data: bytes) -> str:
    return f'"{b64encode(data).decode()}"'


def _carried(value: bytes | tuple[str | bytes, ...]) -> str:
    if isinstance(value, bytes):
        return _base64(value)
    return f"[{', '.join(quoted(v) if isinstance(v, str) else _base64(v) for v in value)}]"


_SCALARS: dict[str, Callable[..., str]] = {"INT": lambda x: str(int(x)), "FLOAT": spell_float, "STRING": quoted}
_LISTS: dict[str, Callable[..., str]] = {f"{kind}S": spelled for kind, spelled in _SCALARS.items()}
