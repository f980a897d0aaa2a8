"""Tokenizer of the domain ``com.microsoft``: strings cut into words, at separators or by what a word looks like.

Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuse.ir.dtypes import STRING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.infer import show_shape
from fuse.ops.pattern import Pattern, compiled
from fuse.ops.record import Info, expect, operator, tensor

START, END = "\x02", "\x03"
"""What stands before and behind the words of a string where they are marked."""


def _check(x: Shape | None, mincharnum: int, separators: Sequence[str] | None, tokenexp: str | None) -> None:
    expect(x is None or len(x) in (1, 2), f"the input {show_shape(x)} is neither [C] nor [N, C]")
    expect(mincharnum > 0, f"mincharnum {mincharnum} must be positive")
    expect(bool(separators) or bool(tokenexp), "needs separators or tokenexp")
    characters = list(separators or ()) == [""] or (not separators and tokenexp == ".")
    expect(mincharnum == 1 or not characters, f"mincharnum {mincharnum} leaves no single character")


def _info(
    x: Info,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] | None = None,
    tokenexp: str | None = None,
) -> Info:
    _check(x.shape, mincharnum, separators, tokenexp)
    sure = x.shape is not None and all(isinstance(d, int) and d > 0 for d in x.shape)  # an empty input keeps its rank
    return tensor(STRING, (*x.shape, None) if sure and x.shape is not None else None)


@operator("com.microsoft::Tokenizer", infer=_info)
@at_run_time
def tokenizer(
    x: Array,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] | None = None,
    tokenexp: str | None = None,
) -> Array:
    """The words of each string of ``x`` along a new last axis, filled up with ``pad_value``.

    ``separators`` and ``tokenexp`` are regular expressions in RE2's syntax, of which the longest match counts; words of
    fewer than ``mincharnum`` characters are left out.  One empty separator, or ``.`` for a word, gives the characters.
    An input [N, C] without strings gives [N, 0], one without axis N stays as it is.
    """
    _check(x.shape, mincharnum, separators, tokenexp)
    if not x.size:
        return x if x.ndim == 1 else x.reshape(len(x), 0)
    texts = x.reshape(-1).tolist()
    if separators:
        rows = _split(texts, separators, mincharnum)
    else:
        rows = [list(t) for t in texts] if tokenexp == "." else [_words(t, str(tokenexp), mincharnum) for t in texts]
    most = max(len(row) for row in rows)
    if most and mark:
        rows, most = [[START, *row, END] for row in rows], most + 2
    y = np.full((len(rows), most), pad_value, dtype=STRING)
    for index, row in enumerate(rows):
        y[index, : len(row)] = row
    return y.reshape(*x.shape, most)


def _split(texts: list[str], separators: Sequence[str], shortest: int) -> list[list[str]]:
    """The pieces of each text: cut at all matches of the first separator, those at the second one, and so on."""
    if list(separators) == [""]:
        return [list(t) for t in texts]
    patterns = [compiled(s) for s in separators]
    rows = [[t] for t in texts]
    for pattern in patterns:
        rows = [[piece for text in row for piece in _pieces(text, pattern, shortest)] for row in rows]
    return rows


def _pieces(text: str, pattern: Pattern, shortest: int) -> list[str]:
    pieces, start = [], 0
    while start < len(text):
        found = pattern.search(text, start)
        if found is None:
            break
        begin, end = found
        pieces.append(text[start:begin])
        start = end if end > begin else begin + 1  # an empty match swallows a character
    pieces.append(text[start:])
    return [p for p in pieces if len(p) >= shortest]


def _words(text: str, expression: str, shortest: int) -> list[str]:
    """The matches of ``expression``; behind one that is too short, the search goes on at its second character."""
    pattern, words, start = compiled(expression), [], 0
    while start < len(text):
        found = pattern.search(text, start)
        if found is None:
            break
        begin, end = found
        if end - begin >= shortest:
            words.append(text[begin:end])
            start = end
        else:
            start = begin + 1
    return words
