r"""Regular expressions in RE2's syntax, run by Python's engine: the longest of the leftmost matches, or a full match.

The two languages differ in details that change results: classes like ``\w`` are ASCII in RE2, ``$`` is the end of the
text alone, and what looks around, refers back or does not give back is not RE2.  Python's engine takes exponential
time for some expressions.
Source: the syntax page of RE2.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from dataclasses import dataclass

from fuse.errors import ShapeError, UnsupportedError, quote

_SPACE = r"\t\n\f\r "
_ESCAPED = {
    "d": "0-9", "s": _SPACE, "w": "0-9A-Za-z_", "a": r"\x07", "f": r"\x0c", "n": r"\n", "r": r"\r", "t": r"\t",
    "v": r"\x0b",
}  # fmt: skip
_POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~",
    "space": r"\x0b" + _SPACE,
    "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled expression; ``context`` where it looks at what surrounds a match, ``choices`` how it may vary."""

    python: re.Pattern[str]
    context: bool
    choices: int

    def full(self, text: str) -> bool:
        """True where the whole of ``text`` matches."""
        return self.python.fullmatch(text) is not None

    def search(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first match at or behind ``start`` begins and ends, the longest one there; None for no match."""
        found = self.python.search(text, start)
        if found is None:
            return None
        begin, end = found.span()
        if self.choices > 1:  # the first match in Python's order need not be the longest
            longer = (e for e in range(len(text), end, -1) if self._ends(text, begin, e))
            end = next(longer, end)
        return begin, end

    def _ends(self, text: str, begin: int, end: int) -> bool:
        if not self.context:
            return self.python.fullmatch(text, begin, end) is not None
        rest = f"(?:{self.python.pattern})(?=[\\s\\S]{{{len(text) - end}}}\\Z)"
        return re.compile(rest).match(text, begin) is not None


@functools.lru_cache(256)
def compiled(source: str) -> Pattern:
    """The expression ``source``; ``ShapeError`` where it is none, ``UnsupportedError`` for what Python cannot say."""
    reader = _Reader(source)
    translated = reader.all()
    try:
        return Pattern(re.compile(translated), reader.context, reader.choices)
    except (re.error, OverflowError, RecursionError) as error:
        raise ShapeError(f"{quote(source)} is no regular expression: {error}") from None


class _Reader:
    """Turns an expression into Python's spelling, from left to right."""

    def __init__(self, source: str) -> None:
        self.source, self.place = source, 0
        self.context, self.choices = False, 0
        self.lines = re.match(r"\(\?[is]*m", source) is not None

    def all(self) -> str:
        parts = []
        while self.place < len(self.source):
            parts.append(self.one())
        return "".join(parts)

    def wrong(self, what: str) -> ShapeError:
        return ShapeError(f"{quote(self.source)} is no regular expression: {what}")

    def take(self, count: int = 1) -> str:
        taken = self.source[self.place : self.place + count]
        if len(taken) < count:
            raise self.wrong("it ends too early")
        self.place += count
        return taken

    def one(self) -> str:
        c = self.take()
        if c == "\\":
            return self.escape()
        if c == "[":
            return self.bracket()
        if c == "(":
            return self.group()
        if c in "^$":
            self.context = True
            return c if self.lines or c == "^" else r"\Z"
        if c in "*+?{":
            self.choices += 1
            if c != "{" and self.source[self.place : self.place + 1] in ("*", "+"):
                raise self.wrong(f"{c}{self.source[self.place]} repeats a repetition")
        self.choices += 2 * (c == "|")
        return c

    def group(self) -> str:
        if not self.source.startswith("?", self.place):
            return "("
        named = re.compile(r"\?P?<([A-Za-z_]\w*)>").match(self.source, self.place)
        if named is not None:
            self.place = named.end()
            return f"(?P<{named[1]}>"
        flags = re.compile(r"\?([ims]*(?:-[ims]+)?)([:)])").match(self.source, self.place)
        if flags is None:
            raise self.wrong(f"({self.source[self.place : self.place + 3]} opens no group of RE2")
        if flags[2] == ")" and (self.place > 1 or "-" in flags[1]):
            raise UnsupportedError(f"{quote(self.source)} changes flags in the middle")
        self.place = flags.end()
        return f"({flags[0]}"

    def escape(self) -> str:
        c = self.take()
        if c in "bB":
            self.context = True
            return rf"(?a:\{c})"
        if c in "Az":
            self.context = True
            return r"\A" if c == "A" else r"\Z"
        if c == "Q":
            end = self.source.find("\\E", self.place)
            end = len(self.source) if end < 0 else end
            literal = self.source[self.place : end]
            self.place = min(end + 2, len(self.source))
            return re.escape(literal)
        if c in "DSW":
            return f"[^{_ESCAPED[c.lower()]}]"
        if c == "P":
            return f"[^{self.category()}]"
        return f"[{self.member(c)}]"

    def member(self, c: str) -> str:
        """What stands behind a backslash, as part of a class."""
        if c in _ESCAPED:
            return _ESCAPED[c]
        if c == "p":
            return self.category()
        if c == "x":
            digits = re.compile(r"\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2})").match(self.source, self.place)
            if digits is None or int(digits[1] or digits[2], 16) > sys.maxunicode:
                raise self.wrong("\\x names no character")
            self.place = digits.end()
            return re.escape(chr(int(digits[1] or digits[2], 16)))
        octal = re.compile("0[0-7]{0,2}|[1-7][0-7]{1,2}").match(self.source, self.place - 1)
        if octal is not None:
            self.place = octal.end()
            return re.escape(chr(int(octal[0], 8)))
        if c.isascii() and c.isalnum():
            raise self.wrong(f"\\{c} is not in RE2")
        return re.escape(c)

    def category(self) -> str:
        name = self.take()
        if name == "{":
            end = self.source.find("}", self.place)
            name = self.take(max(end - self.place, 0))
            self.take()
        return _of_category(name)

    def bracket(self) -> str:
        out, first = ["["], True
        if self.source.startswith("^", self.place):
            out.append(self.take())
        while first or not self.source.startswith("]", self.place):
            first = False
            c = self.take()
            named = re.compile(r":(\^?)([a-z]+):\]").match(self.source, self.place) if c == "[" else None
            if named is not None:
                if named[1] or named[2] not in _POSIX:
                    raise UnsupportedError(f"{quote(self.source)}: class [{named[0]} has no counterpart in Python")
                self.place = named.end()
                out.append(_POSIX[named[2]])
            elif c == "\\":
                out.append(self.in_class())
            else:
                out.append(c if c == "-" else re.escape(c))
        return "".join(out) + self.take()

    def in_class(self) -> str:
        c = self.take()
        if c in "DW":
            return rf"\{c}" if c == "D" else r"\W"
        if c in "SP":
            raise UnsupportedError(f"{quote(self.source)}: \\{c} in a class has no counterpart in Python")
        return self.member(c)


@functools.lru_cache(64)
def _of_category(name: str) -> str:
    """All characters of a general category of Unicode (``L``, ``Nd``, ...), as the inside of a class."""
    runs: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(name):
            if runs and runs[-1][1] == code - 1:
                runs[-1][1] = code
            else:
                runs.append([code, code])
    if not runs or not re.fullmatch("[A-Z][a-z]?", name):
        raise UnsupportedError(f"the character class {quote(name)} is not supported")
    return "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in runs)
