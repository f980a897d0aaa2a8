"""The small words of the textual form: tokens with their places, and the numbers, dims and types made of them."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from fuse.errors import ModelError, quote
from fuse.ir.dims import Dim, Known, Symbolic, floordiv
from fuse.ir.dtypes import BY_NAME, DType
from fuse.ir.graph import Origin
from fuse.ir.spell import LABEL, WORD, read_float, unquoted
from fuse.ir.types import MapType, OptionalType, SequenceType, Shape, SparseType, TensorType, Type

STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""(?:[ \t\r\n]++|\#[^\n]*+)*+
    (?:(?P<string>{STRING})
    |(?P<value>%(?:{STRING}|{LABEL})?(?:~[0-9]+)?)
    |(?P<hole><(?:{STRING}[ ]?)?[0-9a-f]*>)
    |(?P<number>0x[0-9a-f]+|[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?f?)
    |(?P<word>{WORD})
    |(?P<mark>\.\.\.|::|[][(){{}},:=+*/@?!-])
    |(?P<end>\Z))""",
    re.VERBOSE,
)
_GAP = re.compile(r"(?:[ \t\r\n]++|#[^\n]*+)*+")
_NESTED = 50

T = TypeVar("T")


class Tokens:
    """Text as tokens, read from the front.  Every fault is a ``ModelError`` at ``source:line:column``."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source = text, source
        self.tokens: list[tuple[str, str, int]] = []
        self.at = 0
        place, kind = 0, ""
        while kind != "end":
            match = _TOKEN.match(text, place)
            if match is None:
                self._unreadable(place)
            kind = match.lastgroup or ""
            self.tokens.append((kind, match[kind], match.start(kind)))
            place = match.end()

    def _unreadable(self, place: int) -> NoReturn:
        gap = _GAP.match(self.text, place)
        assert gap is not None
        place = gap.end()
        self.tokens.append(("", "", place))
        self.fail(f"unexpected character {quote(self.text[place])}", len(self.tokens) - 1)

    def fail(self, what: str, at: int | None = None, hint: str | None = None) -> NoReturn:
        """Raise a ``ModelError`` at token ``at``, the next one where that is None."""
        place = self.tokens[self.at if at is None else at][2]
        line = self.text.count("\n", 0, place) + 1
        column = place - self.text.rfind("\n", 0, place)
        raise ModelError(what, where=f"{self.source}:{line}:{column}", hint=hint)

    def missing(self, what: str) -> NoReturn:
        """Raise the error that says what was expected in the place of the next token."""
        kind, found, _ = self.tokens[self.at]
        self.fail(f"expected {what}, found {'the end' if kind == 'end' else quote(found)}")

    @property
    def kind(self) -> str:
        """The next token's kind."""
        return self.tokens[self.at][0]

    @property
    def next(self) -> str:
        """The next token's text; a string keeps its quotes, so that it never passes for a word or a mark."""
        return self.tokens[self.at][1]

    def take(self, kind: str, what: str) -> str:
        """The next token, which must be of ``kind``."""
        if self.kind != kind:
            self.missing(what)
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, token: str) -> bool:
        """True, and one token further, where ``token`` comes next."""
        if self.tokens[self.at][1] != token:
            return False
        self.at += 1
        return True

    def expect(self, token: str) -> None:
        """One token further; ``token`` must come next."""
        if not self.accept(token):
            self.missing(f"'{token}'")

    def guard(self, read: Callable[[], T]) -> T:
        """What ``read`` returns; a ``ValueError`` from it becomes an error at the token just taken."""
        try:
            return read()
        except ValueError as error:
            self.fail(str(error), self.at - 1)

    def finish(self, result: T) -> T:
        """``result``, where nothing follows."""
        if self.kind != "end":
            self.missing("the end")
        return result

    # -- strings and integers

    def string(self, what: str = "a string in quotes") -> str:
        """A string in quotes."""
        token = self.take("string", what)
        return self.guard(lambda: unquoted(token))

    def word(self, what: str) -> str:
        """A bare word, or a string in its place."""
        return self.string() if self.kind == "string" else self.take("word", what)

    def integer(self) -> int:
        """A decimal integer with its sign."""
        sign = -1 if self.accept("-") else 1
        if not self.next.isdigit():
            self.missing("an integer")
        token = self.take("number", "an integer")
        return self.guard(lambda: sign * int(token))

    def base64(self) -> bytes:
        """Bytes as base64 in quotes."""
        token = self.take("string", "base64 in quotes")
        return self.guard(lambda: b64decode(token[1:-1], validate=True))

    # -- numbers, and the fields that are only carried

    def scalar(self) -> tuple[str, Any]:
        """The kind and the value of an INT, a FLOAT or a STRING."""
        if self.kind == "string":
            return "STRING", self.string()
        token = self.number()
        if token.lstrip("-").isdigit():
            return "INT", self.guard(lambda: int(token))
        return "FLOAT", self.guard(lambda: read_float(token))

    def number(self) -> str:
        """A number's token with its sign."""
        sign = "-" if self.accept("-") else ""
        if self.next in ("inf", "nan"):
            return sign + self.take("word", "a number")
        return sign + self.take("number", "a value")

    def element(self) -> str:
        """An element of an array, as its token with its sign."""
        if self.kind == "string" or self.next in ("true", "false"):
            self.at += 1
            return self.tokens[self.at - 1][1]
        return self.number()

    def kept(self) -> dict[str, Any]:
        """What is carried for the file alone: ``!{extra = "base64"}``; nothing where it does not stand there."""
        fields: dict[str, Any] = {}
        if not self.accept("!"):
            return fields
        self.expect("{")
        while not self.accept("}"):
            name = self.word("a field")
            self.expect("=")
            fields[name] = self.origin() if self.accept("[") else self.base64()
            if self.next != "}":
                self.expect(",")
        return fields

    def origin(self) -> Origin:
        """How a file spelled a constant: the rest of a list of three strings."""
        attribute = self.string()
        self.expect(",")
        node = self.string()
        self.expect(",")
        extra = self.base64()
        self.expect("]")
        return Origin(attribute, node, extra)

    # -- dims

    def dim(self) -> Dim:
        """``?`` or a sum."""
        if self.kind == "number" and self.tokens[self.at + 1][1] in (",", "]"):
            return self.integer()
        return None if self.accept("?") else self.sum(0)

    def sum(self, depth: int) -> Known:
        """Terms with ``+`` and ``-`` between them."""
        total = self.term(depth)
        while self.next in ("+", "-"):
            sign = 1 if self.accept("+") else -int(self.accept("-"))
            total = total + sign * self.term(depth)
        return total

    def term(self, depth: int) -> Known:
        """Factors with ``*`` between them."""
        total = self.factor(depth)
        while self.accept("*"):
            total = total * self.factor(depth)
        return total

    def factor(self, depth: int) -> Known:
        """A number, a symbol, ``floor(a/b)``, a sum in parentheses, or one of these behind a minus."""
        if depth > _NESTED:
            self.fail(f"a dim nests deeper than {_NESTED} parentheses")
        if self.accept("-"):
            return -1 * self.factor(depth + 1)
        if self.accept("("):
            inner = self.sum(depth + 1)
            self.expect(")")
            return inner
        if self.kind == "number":
            return self.integer()
        if self.accept("floor"):
            self.expect("(")
            above = self.factor(depth + 1)
            self.expect("/")
            start, below = self.at, self.factor(depth + 1)
            self.expect(")")
            if below == 0:
                self.fail("division by zero", start)
            return floordiv(above, below)
        return Symbolic.of(self.word("a dim"))

    # -- types

    def type(self) -> Type | None:
        """A type, None for ``?``."""
        wraps: list[Callable[[Type | None], Type]] = []
        while self.next in ("seq", "optional", "map"):
            name = self.take("word", "a type")
            self.expect("(")
            if name == "map":
                key = self.dtype()
                self.expect(",")
                wraps.append(lambda value, key=key: MapType(key, value))  # type: ignore[misc]
            else:
                wraps.append(SequenceType if name == "seq" else OptionalType)
        if len(wraps) > _NESTED:
            self.fail(f"a type nests deeper than {_NESTED}")
        type = self.tensor_type()
        for wrap in reversed(wraps):
            self.expect(")")
            type = wrap(type)
        return type

    def tensor_type(self) -> Type | None:
        """A tensor's type, a sparse one's, or None for ``?``."""
        if self.accept("sparse"):
            self.expect("(")
            dense = self.tensor_type()
            if not isinstance(dense, TensorType):
                self.missing("a tensor's type")
            self.expect(")")
            return SparseType(dense.dtype, dense.shape)
        if self.accept("?"):
            return TensorType(None, self.shape()) if self.next == "[" else None
        return TensorType(self.dtype(), self.shape())

    def dtype(self) -> DType:
        """An element type by ONNX's name."""
        if self.next not in BY_NAME:
            self.missing("a type")
        return BY_NAME[self.take("word", "a type")]

    def shape(self) -> Shape | None:
        """Dims in brackets, None for ``[...]``."""
        self.expect("[")
        if self.accept("..."):
            self.expect("]")
            return None
        dims: list[Dim] = []
        while not self.accept("]"):
            dims.append(self.dim())
            if self.next != "]":
                self.expect(",")
        return tuple(dims)
