"""The reader of the text that ``fuse.ir.text`` writes: models, graphs, functions, types and dims.

Line ends and indentation mean nothing, and ``#`` starts a comment.  Every error is a ``ModelError`` whose place is the
line and the column.  What nests (graphs in nodes in graphs) is read by generators that a loop drives, so that depth is
no recursion.  What is read is not held against the laws of the IR: that is ``fuse.ir.check``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from math import prod
from typing import Any

from fuse.errors import quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import BY_NAME, Array, name_of
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.spell import LABEL, digest, read_elements, unquoted
from fuse.ir.text import numbered, spell_type
from fuse.ir.tokens import STRING, Tokens
from fuse.ir.types import TensorType, Type

_VALUE = re.compile(rf"%({STRING}|{LABEL})?(?:~([0-9]+))?")
_HOLE = re.compile(rf"<({STRING})? ?([0-9a-f]*)>")

Step = Generator[Any, Any, Any]
Key = tuple[str, int]
Constants = Mapping[str, Array]


def parse(text: str, constants: Constants | None = None, source: str = "text") -> Model:
    """The model that ``text`` spells.  ``constants`` holds by name the arrays that the text has placeholders for.

    Raises ``ModelError`` at ``source:line:column``.
    """
    model: Model = _Parser(text, constants, source).whole(_Parser.model)
    return model


def parse_graph(text: str, constants: Constants | None = None, source: str = "text") -> Graph:
    """The graph that ``text`` spells; as ``parse``."""
    graph: Graph = _Parser(text, constants, source).whole(_Parser.graph)
    return graph


def parse_function(text: str, constants: Constants | None = None, source: str = "text") -> Function:
    """The function that ``text`` spells; as ``parse``."""
    function: Function = _Parser(text, constants, source).whole(_Parser.function)
    return function


def parse_type(text: str, source: str = "type") -> Type | None:
    """The type that ``text`` spells, as in ``seq(float[1, n])``; None for ``?``."""
    tokens = Tokens(text, source)
    return tokens.finish(tokens.type())


def parse_dim(text: str, source: str = "dim") -> Dim:
    """The dim that ``text`` spells, as in ``2*n - 1`` or ``floor((n)/(2))``; None for ``?``."""
    tokens = Tokens(text, source)
    return tokens.finish(tokens.dim())


class _Parser(Tokens):
    def __init__(self, text: str, constants: Constants | None, source: str) -> None:
        super().__init__(text, source)
        self.constants = constants or {}
        self.scope: dict[Key, Value] = {}

    def whole(self, start: Callable[[_Parser], Step]) -> Any:
        """Drive the generators: each yields an inner one and is sent what that returns."""
        stack, result = [start(self)], None
        while stack:
            try:
                inner = stack[-1].send(result)
            except StopIteration as stop:
                result = stop.value
                stack.pop()
            else:
                stack.append(inner)
                result = None
        return self.finish(result)

    # -- models, functions, graphs

    def model(self) -> Step:
        self.expect("model")
        extra = self.kept().get("extra", b"")
        self.expect("{")
        version, opsets = 0, dict[str, int]()
        while not self.accept("}"):
            if self.accept("ir_version"):
                version = self.integer()
            else:
                self.opset(opsets)
        graph = yield self.graph()
        model = Model(graph, version, opsets, extra=extra, source=self.source)
        while self.kind != "end":
            start = self.at
            function = yield self.function()
            if function.key in model.functions:
                self.fail(f"function {quote(function.key[0])} is defined twice", start)
            model.functions[function.key] = function
        return model

    def opset(self, opsets: dict[str, int]) -> None:
        self.expect("opset")
        domain = "" if self.kind == "number" else self.word("a domain or a version")
        opsets[domain] = self.integer()

    def function(self) -> Step:
        self.expect("function")
        domain, name = "", self.word("the function's name")
        if self.accept("::"):
            domain, name = name, self.word("the function's name")
        overload = self.word("an overload") if self.accept(":") else ""
        body = Graph(self.string() if self.kind == "string" else "")
        kept = self.kept()
        body.extra = kept.get("body", b"")
        function = Function(domain, name, overload, body, extra=kept.get("extra", b""))
        self.expect("{")
        while self.next in ("opset", "attribute"):
            if self.accept("attribute"):
                name = self.word("an attribute's name")
                if self.accept("="):
                    function.defaults[name] = yield self.attr()
                else:
                    function.attributes += (name,)
            else:
                self.opset(function.opsets)
        self.scope = {}
        yield self.body(body)
        return function

    def graph(self) -> Step:
        self.expect("graph")
        graph = Graph(self.string() if self.kind == "string" else "")
        graph.extra = self.kept().get("extra", b"")
        self.expect("{")
        yield self.body(graph)
        return graph

    def body(self, graph: Graph) -> Step:
        """Statements up to the closing brace, with which their names go out of scope."""
        names: list[Key] = []
        while not self.accept("}"):
            if self.accept("input"):
                key, value = self.definition(names)
                graph.add_input(value)
                if self.accept("="):
                    value.set_data(self.data(key, value.type))
            elif self.accept("const"):
                key, value = self.definition(names)
                self.expect("=")
                value.set_data(self.data(key, value.type))
                value.owner = graph
                graph.constants[value] = None
            elif self.accept("return"):
                name = self.string("the output's name in quotes")
                type = self.type() if self.accept(":") else None
                info = self.kept().get("info", b"")
                self.expect("=")
                graph.add_output(name, self.use(), type).info = info
            else:
                yield self.node(graph, names)
        for key in names:
            del self.scope[key]

    def node(self, graph: Graph, names: list[Key]) -> Step:
        start = self.at
        outputs: list[tuple[Key, Value] | None] = []
        if self.accept("("):
            self.expect(")")
        else:
            outputs.append(self.target())
            while self.accept(","):
                outputs.append(self.target())
        self.expect("=")
        op = self.word("an operator")
        while self.accept("::"):
            op += "::" + self.take("word", "an operator")
        overload = self.word("an overload") if self.accept(":") else ""
        self.expect("(")
        inputs: list[Value | None] = []
        while not self.accept(")"):
            inputs.append(None if self.accept("_") else self.use())
            if self.next != ")":
                self.expect(",")
        attrs = (yield self.attrs()) if self.accept("{") else {}
        node = Node(op, inputs, [o[1] if o else None for o in outputs], attrs)
        node.name = self.string() if self.kind == "string" else ""
        if self.accept("from"):
            sources = [self.string()]
            while self.accept(","):
                sources.append(self.string())
            node.sources = tuple(sources)
        node.overload, node.extra = overload, self.kept().get("extra", b"")
        graph.append(node)
        for output in outputs:
            if output is not None:
                self.register(*output, names, start)

    # -- values

    def key(self) -> Key:
        match = _VALUE.fullmatch(self.take("value", "a value, as in %x"))
        assert match is not None
        name = match[1] or ""
        return self.guard(lambda: (unquoted(name) if name[:1] == '"' else name, int(match[2] or 1)))

    def use(self) -> Value:
        start, key = self.at, self.key()
        if key not in self.scope:
            self.fail(f"{quote(self.tokens[start][1])} is not defined here", start)
        return self.scope[key]

    def target(self) -> tuple[Key, Value] | None:
        """What a statement defines: the value's key and the value, not yet in scope; None for ``_``."""
        if self.accept("_"):
            return None
        key = self.key()
        value = Value(key[0], self.type() if self.accept(":") else None)
        kept = self.kept()
        value.info, value.extra = kept.get("info", b""), kept.get("extra", b"")
        value.origin = kept.get("origin")
        return key, value

    def register(self, key: Key, value: Value, names: list[Key], at: int) -> None:
        if key in self.scope:
            self.fail(f"{quote(self.tokens[at][1])} is defined twice", at)
        self.scope[key] = value
        names.append(key)

    def definition(self, names: list[Key]) -> tuple[Key, Value]:
        start, target = self.at, self.target()
        if target is None:
            self.fail("expected a value", start)
        self.register(*target, names, start)
        return target

    # -- attributes and constants

    def attrs(self) -> Step:
        attrs: dict[str, Attr] = {}
        while not self.accept("}"):
            implied = self.accept("(")
            start, name = self.at, self.word("an attribute's name")
            if name in attrs:
                self.fail(f"attribute {quote(name)} is given twice", start)
            self.expect("=")
            attrs[name] = yield self.attr()
            if implied:
                attrs[name].implied = True
                self.expect(")")
            if self.next != "}":
                self.expect(",")
        return attrs

    def attr(self) -> Step:
        """An attribute's value; its kind is read from how it is spelled, or stands in front of it."""
        if self.kind == "word" and self.next.isupper() and self.next not in BY_NAME:
            attr = yield self.named_kind()
        elif self.next == "graph":
            attr = Attr("GRAPH", (yield self.graph()))
        elif self.next == "?" or self.next in BY_NAME:
            type = self.tensor_type()
            attr = Attr("TENSOR", self.tensor(type, ""))
        elif self.accept("["):
            kinds, items = set[str](), []
            while not self.accept("]"):
                start, (kind, item) = self.at, self.scalar()
                kinds.add(kind)
                items.append(item)
                if len(kinds) > 1:
                    self.fail("a list has elements of one kind", start)
                if self.next != "]":
                    self.expect(",")
            if not kinds:
                self.fail("an empty list needs its kind, as in INTS []", self.at - 1)
            attr = Attr(f"{kinds.pop()}S", tuple(items))
        else:
            attr = Attr(*self.scalar())
        attr.extra = self.kept().get("extra", b"")
        return attr

    def named_kind(self) -> Step:
        """``FLOAT @reference``, ``INTS []``, ``GRAPHS [graph {...}]``, or an opaque kind's bytes."""
        kind = self.take("word", "a kind")
        if self.accept("@"):
            return Attr(kind, None, reference=self.word("an attribute's name"))
        if not self.accept("["):
            return Attr(kind, self.base64())
        graphs = []
        while not self.accept("]"):
            graphs.append((yield self.graph()))
            if self.next != "]":
                self.expect(",")
        return Attr(kind, tuple(graphs))

    def data(self, key: Key, type: Type | None) -> Array:
        """A constant's array, of the value's own type unless another is spelled."""
        own = self.next == "?" or self.next in BY_NAME
        return self.tensor(self.tensor_type() if own else type, numbered(*key))

    def tensor(self, type: Type | None, key: str) -> Array:
        """An array of ``type``: its elements, or a placeholder for the constant called ``key``."""
        if not isinstance(type, TensorType) or type.dtype is None or type.shape is None:
            self.fail(f"a constant needs a tensor type with a dtype and a shape, not {quote(spell_type(type))}")
        shape = tuple(d for d in type.shape if isinstance(d, int))
        if len(shape) < len(type.shape):
            self.fail(f"a constant needs sizes that are numbers, not {quote(spell_type(type))}")
        if self.kind == "hole":
            return self.hole(type, key)
        start, tokens = self.at, list[str]()
        if self.accept("["):
            while not self.accept("]"):
                tokens.append(self.element())
                if self.next != "]":
                    self.expect(",")
        else:
            tokens.append(self.element())
        count = prod(shape) * (2 if type.dtype.kind == "c" else 1)
        if len(tokens) != count:
            self.fail(f"{quote(spell_type(type))} has {count} numbers, {len(tokens)} are given", start)
        dtype = type.dtype
        return self.guard(lambda: read_elements(tokens, dtype)).reshape(shape)

    def hole(self, type: TensorType, key: str) -> Array:
        match = _HOLE.fullmatch(self.take("hole", "a placeholder"))
        assert match is not None
        name = self.guard(lambda: unquoted(match[1])) if match[1] else key
        if name not in self.constants:
            self.fail(
                f"constant {quote(name)} is not given", self.at - 1, hint="pass its array in the mapping of constants"
            )
        array = self.constants[name]
        if array.dtype != type.dtype or array.shape != type.shape:
            found = f"{name_of(array.dtype)}{list(array.shape)}"
            self.fail(f"constant {quote(name)} is {found}, not {quote(spell_type(type))}", self.at - 1)
        if match[2] and digest(array) != match[2]:
            self.fail(f"constant {quote(name)} has other elements: {digest(array)}, not {match[2]}", self.at - 1)
        return array
