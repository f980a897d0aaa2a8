r"""The longest of the leftmost matches of a regular expression in RE2's syntax, found by Python's engine.

Python's engine knows where the leftmost match begins, but takes the first of its alternatives that matches there, not
the longest.  So every longer end is tried, from the end of the text, unless the expression leaves no choice.
``fuse.ops.regex`` translates the syntax.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuse.ops.regex import Translation, translation


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled expression, to be searched for."""

    translation: Translation

    def search(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Where the first match at or behind ``start`` begins and ends, the longest one there; None for no match."""
        found = self.translation.python.search(text, start)
        if found is None:
            return None
        begin, end = found.span()
        if self.translation.choices > 1:  # the first match in Python's order need not be the longest
            longer = (e for e in range(len(text), end, -1) if self._ends(text, begin, e))
            end = next(longer, end)
        return begin, end

    def _ends(self, text: str, begin: int, end: int) -> bool:
        python = self.translation.python
        if not self.translation.context:
            return python.fullmatch(text, begin, end) is not None
        rest = f"(?:{python.pattern})(?=[\\s\\S]{{{len(text) - end}}}\\Z)"  # sees behind ``end``, unlike ``fullmatch``
        return re.compile(rest).match(text, begin) is not None


def compiled(source: str) -> Pattern:
    """The expression ``source``; ``ShapeError`` where it is none, ``UnsupportedError`` for what Python cannot say."""
    return Pattern(translation(source))
