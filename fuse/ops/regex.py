r"""RE2's regular expressions for Python's ``re``: the same strings match as a whole, and what RE2 refuses is refused.

A pattern is read by RE2's grammar and written out again with every choice made explicit: flags stand around the single
character that they change, classes are lists of code points (``\d`` is ``0-9``), ``$`` is the end of the text.  Neither
captures nor greediness matter for a match of the whole string or for the longest one, so both are dropped.

Three things stay different.  Python's matcher tries alternatives one after another: it needs exponential time for
patterns such as ``(a*)*b`` where RE2 needs linear.  Unicode's categories and case pairs are those of the running
Python.  And ``\C`` and the names of scripts (``\p{Greek}``) raise ``UnsupportedError``.
Source: the syntax page of RE2.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from fuse.errors import ShapeError, UnsupportedError, quote

Ranges = tuple[tuple[int, int], ...]

LAST = 0x10FFFF
MOST_REPEATS = 1000
"""RE2's bound on the numbers in braces."""

PERL = {"d": "0-9", "s": "\t\n\f\r ", "w": "0-9A-Z_a-z"}
POSIX = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": "\x00-\x7f", "blank": "\t ", "cntrl": "\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": "!-/:-@[-`{-~", "space": "\t-\r ",
    "upper": "A-Z", "word": "0-9A-Z_a-z", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
CONTROL = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
EMPTY = {
    "A": r"(?:\A)",
    "z": r"(?:\Z)",
    "b": r"(?a:\b)",
    "B": r"(?a:(?<=\w)(?=\w)|(?<!\w)(?!\w))",  # Python's own has none in an empty text before 3.14
}


@dataclass(frozen=True, slots=True)
class Translation:
    """A compiled Python pattern, which matches where RE2's does, and what is known of it.

    ``context`` tells whether it looks at what surrounds a match, ``choices`` how often a match may go on in more ways
    than one: a repetition counts once, as it tries the most first, a ``|`` twice, as its first branch may be shorter.
    """

    python: re.Pattern[str]
    context: bool
    choices: int


def translated(pattern: str) -> re.Pattern[str]:
    """The compiled Python pattern that ``fullmatch``es what RE2's ``FullMatch`` does; ``ShapeError`` on a fault."""
    return translation(pattern).python


@functools.lru_cache(maxsize=256)
def translation(pattern: str) -> Translation:
    """What ``translated`` gives, and what is known of it."""
    reader = _Reader(pattern)
    try:
        return Translation(re.compile(reader.read()), reader.context, reader.choices)
    except (re.error, OverflowError, RecursionError) as error:
        raise ShapeError(f"pattern {quote(pattern)} cannot be compiled: {error}") from None


class _Reader:
    """A pattern read from the front; ``flags`` are those of RE2 that hold at ``at``."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at, self.flags = pattern, 0, frozenset[str]()
        self.repeats = 1
        self.context, self.choices = False, 0

    def fail(self, what: str, found: str | None = None) -> ShapeError:
        """The error that says ``what`` is wrong with the part ``found``."""
        which = "" if found is None else f" {quote(found)}"
        return ShapeError(f"pattern {quote(self.pattern)} is not RE2's: {what}{which}")

    def take(self, text: str) -> bool:
        """Whether ``text`` comes next, which is then passed."""
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def match(self, syntax: str) -> re.Match[str] | None:
        """What matches ``syntax`` here, which is then passed."""
        found = re.compile(syntax, re.ASCII | re.DOTALL).match(self.pattern, self.at)
        self.at = self.at if found is None else found.end()
        return found

    def next(self, expected: str) -> str:
        if self.at == len(self.pattern):
            raise self.fail(f"{expected} is missing")
        self.at += 1
        return self.pattern[self.at - 1]

    # -- sequences

    def read(self) -> str:
        """The whole pattern, group by group; no depth of nesting is a depth of calls here."""
        out: list[str] = []
        open_groups: list[frozenset[str]] = []
        weights, last = [1], 1  # how often the most repeated atom of each open group can come, and the last item
        repeatable = False
        while self.at < len(self.pattern):
            if self.take("|"):
                self.choices += 2
                out.append("|")
                repeatable = False
            elif self.take("("):
                outer = self.flags
                if self.group():
                    open_groups.append(outer)
                    weights.append(1)
                    out.append("(?:")
                last, repeatable = 1, False
            elif self.take(")"):
                if not open_groups:
                    raise self.fail("unexpected )")
                self.flags = open_groups.pop()
                out.append(")")
                last, repeatable = weights.pop(), True
            elif (repeat := self.repeat()) is not None:
                if not repeatable:
                    raise self.fail("nothing to repeat before", repeat)
                self.choices += 1
                out.append(repeat)
                last, repeatable = last * self.repeats, False
                if last > MOST_REPEATS:
                    raise self.fail(f"repetitions of {last} in all")
            else:
                out.append(self.atom())
                last, repeatable = 1, True
            weights[-1] = max(weights[-1], last)
        if open_groups:
            raise self.fail(") is missing")
        return "".join(out)

    def group(self) -> bool:
        """The start of a group behind its ``(``; False for flags that hold for the rest of the group around them."""
        start = self.at - 1
        if not self.take("?"):
            return True
        if self.match(r"P?<\w+>") is not None:
            return True
        flags = self.match(r"([imsU]*)(?:-([imsU]+))?([:)])")
        if flags is None or (flags[0] == ")"):
            raise self.fail("unknown group", self.pattern[start : start + 4])
        self.flags = (self.flags | set(flags[1])) - set(flags[2] or "")
        return flags[3] == ":"

    def repeat(self) -> str | None:
        """A repetition; None where none comes next, which a brace without numbers is not."""
        found = self.match(r"([*+?]|\{(\d+)(,?)(\d*)\})\??")
        if found is None:
            return None
        low = int(found[2] or 0)
        high = int(found[4] or low)
        if not low <= high <= MOST_REPEATS:
            raise self.fail("a repetition of", found[1])
        self.repeats = max(high, 1)
        return found[1]

    # -- atoms

    def atom(self) -> str:
        """One character, class or assertion, with its flags around it."""
        char = self.next("an atom")
        if char == "[":
            return self.cased(self.bracket())
        if char == ".":
            return "(?s:.)" if "s" in self.flags else r"[^\n]"
        if char in "^$":
            self.context = True
            return f"(?m:{char})" if "m" in self.flags else EMPTY["A" if char == "^" else "z"]
        return self.escape() if char == "\\" else self.cased(re.escape(char))

    def cased(self, atom: str) -> str:
        return f"(?i:{atom})" if "i" in self.flags else atom

    def escape(self) -> str:
        """What follows a backslash outside of a class."""
        if self.take("Q"):
            text = self.match(r".*?(?=\\E|\Z)")
            self.take("\\E")
            return "".join(self.cased(re.escape(c)) for c in (text[0] if text else ""))
        if self.take("C"):
            raise UnsupportedError("a pattern cannot match single bytes here", hint=r"write . for \C")
        ranges = self.named_class()
        if ranges is not None:
            return self.cased(_written(ranges))
        for letter, assertion in EMPTY.items():
            if self.take(letter):
                self.context = True
                return assertion
        return self.cased(re.escape(self.character()))

    def character(self) -> str:
        """The character that an escape stands for."""
        if (octal := self.match(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")) is not None:
            return chr(int(octal[0], 8))
        if (code := self.match(r"x(?:\{([0-9A-Fa-f]{1,8})\}|([0-9A-Fa-f]{2}))")) is not None:
            number = int(code[1] or code[2], 16)
            if number > LAST:
                raise self.fail("no character has the number", code[0])
            return chr(number)
        char = self.next("what a backslash escapes")
        if char in CONTROL:
            return CONTROL[char]
        if char.isascii() and not char.isalnum():
            return char
        raise self.fail("unknown escape of", char)

    # -- classes

    def named_class(self) -> Ranges | None:
        r"""The characters of ``\d``, ``\pL``, ``\p{^Lu}`` and their like, behind the backslash; None for others."""
        if (perl := self.match("[dDsSwW]")) is not None:
            ranges = _spelled(PERL[perl[0].lower()])
            return ranges if perl[0].islower() else _others(ranges)
        found = self.match(r"([pP])(?:\{(\^?)(\w*)\}|(.))")
        if found is None:
            return None
        ranges = self.category(found[3] or found[4] or "")
        return _others(ranges) if (found[1] == "P") != (found[2] == "^") else ranges

    def category(self, name: str) -> Ranges:
        if name == "Any":
            return ((0, LAST),)
        ranges = [r for category, own in _categories().items() if category.startswith(name) for r in own]
        if name[:1] in "CLMNPSZ" and name and ranges:
            return tuple(sorted(ranges))
        if len(name) < 3:
            raise self.fail("unknown category", name)
        raise UnsupportedError(f"the characters of script {quote(name)} are not known here")

    def bracket(self) -> str:
        """A class behind its ``[``."""
        negated, found = self.take("^"), list[tuple[int, int]]()
        first = True
        while first or not self.take("]"):
            first = False
            if (posix := self.match(r"\[:(\^?)(.*?):\]")) is not None:
                if posix[2] not in POSIX:
                    raise self.fail("unknown class", posix[0])
                ranges = _spelled(POSIX[posix[2]])
                found += _others(ranges) if posix[1] else ranges
                continue
            start = self.at
            named = self.named_class() if self.take("\\") else None
            if named is not None:
                found += named
                continue
            self.at = start
            low = high = self.member()
            if self.match(r"-(?!\])") is not None:
                high = self.member()
                if high < low:
                    raise self.fail("an empty range", self.pattern[start : self.at])
            found.append((low, high))
        return _written(found, negated)

    def member(self) -> int:
        char = self.next("]")
        return ord(self.character() if char == "\\" else char)


# ---- sets of characters


def _spelled(text: str) -> Ranges:
    """The ranges of ``a-z_``: a dash between two characters makes them a range."""
    found = re.findall(r"(.)-(.)|(.)", text, re.DOTALL)
    return tuple((ord(low or one), ord(high or one)) for low, high, one in found)


def _others(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All characters that are in none of ``ranges``."""
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    return (*found, (start, LAST)) if start <= LAST else tuple(found)


def _written(ranges: Iterable[tuple[int, int]], negated: bool = False) -> str:
    """A class in Python's syntax."""
    inside = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
    if not inside:
        return "(?s:.)" if negated else "(?!)"
    return f"[{'^' if negated else ''}{inside}]"


@functools.cache
def _categories() -> dict[str, Ranges]:
    """The characters of each general category; one walk over all of them takes a tenth of a second."""
    found: dict[str, list[tuple[int, int]]] = {}
    for category, run in itertools.groupby(range(LAST + 1), lambda code: unicodedata.category(chr(code))):
        codes = list(run)
        if category != "Cn":  # unassigned: not among RE2's
            found.setdefault(category, []).append((codes[0], codes[-1]))
    return {category: tuple(ranges) for category, ranges in found.items()}
