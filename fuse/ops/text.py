"""Operators on strings: a tensor of strings is an object array of ``str``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import BOOL, INT64, STRING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, element
from fuse.ops.infer import broadcast_dims, show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.regex import translated

# ---- StringNormalizer

_CASES: dict[str, Callable[[str], str]] = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}


def _words(shape: Shape) -> Dim:
    """The number of words in [C] or [1, C], the two shapes that the operator takes."""
    row = len(shape) == 2 and (shape[0] == 1 or not isinstance(shape[0], int))
    expect(len(shape) == 1 or row, f"the input {show_shape(shape)} is neither [C] nor [1, C]")
    return shape[-1]


def _string_normalizer_info(
    x: Info,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Info:
    expect(case_change_action in _CASES, f"case_change_action {case_change_action!r} is not LOWER, UPPER or NONE")
    if x.shape is None:
        return tensor(STRING)
    count = _words(x.shape)
    left = None if stopwords else max(count, 1) if isinstance(count, int) else None
    return tensor(STRING, (*x.shape[:-1], left))


@operator("StringNormalizer", infer=_string_normalizer_info)
@at_run_time
def string_normalizer(
    x: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: Sequence[str] | None = None,
) -> Array:
    """The words but the stop words, in the case asked for; one empty string where no word is left.

    ``locale`` has no effect: letters change case as Unicode says, the same on every machine.
    """
    expect(case_change_action in _CASES, f"case_change_action {case_change_action!r} is not LOWER, UPPER or NONE")
    _words(x.shape)
    change = _CASES[case_change_action]
    plain = str if is_case_sensitive else str.lower
    stop = {plain(w) for w in stopwords or ()}
    kept = [change(w) for w in x.reshape(-1).tolist() if plain(w) not in stop] or [""]
    out = np.empty(len(kept), dtype=STRING)
    out[:] = kept
    return out.reshape((1,) * (x.ndim - 1) + (-1,))


# ---- StringConcat


def _concat_info(x: Info, y: Info) -> Info:
    return tensor(STRING, broadcast_dims([x.shape, y.shape]))


@operator("StringConcat", infer=_concat_info)
@at_run_time
def string_concat(x: Array, y: Array) -> Array:
    """Each string of ``x`` followed by that of ``y``."""
    return element(np.add(x, y), STRING)


# ---- StringSplit


def _check_split(maxsplit: int | None) -> None:
    expect(maxsplit is None or -1 <= maxsplit < 1 << 31, f"maxsplit {maxsplit} is no number of splits")


def _split_info(x: Info, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Info, Info]:
    _check_split(maxsplit)
    return tensor(STRING, None if x.shape is None else (*x.shape, None)), tensor(INT64, x.shape)


@operator("StringSplit", infer=_split_info)
@at_run_time
def string_split(x: Array, *, delimiter: str | None = None, maxsplit: int | None = None) -> tuple[Array, Array]:
    """The parts of each string in a last axis that empty strings fill up, and how many parts there are.

    Without a delimiter a string is parted at runs of white space, and none is left around it, also behind the last
    split; white space is Unicode's, as for ``str.split`` (to onnxruntime only the blank is).  An empty string has no
    part, as onnxruntime has it; ONNX does not say, and its reference gives it one where there is a delimiter.
    """
    _check_split(maxsplit)
    limit = -1 if maxsplit is None else maxsplit
    words = x.reshape(-1).tolist()
    if delimiter:
        parts = [w.split(delimiter, limit) if w else [] for w in words]
    else:
        parts = [w.strip().split(None, limit) for w in words]
    counts = np.array([len(p) for p in parts], INT64)
    widest = int(counts.max(initial=0))
    out = np.full((len(parts), widest), "", STRING)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return out.reshape(*x.shape, widest), counts.reshape(x.shape)


# ---- RegexFullMatch


def _pattern(pattern: str | None) -> re.Pattern[str]:
    expect(pattern is not None, "the pattern is missing")
    return translated(pattern or "")


def _match_info(x: Info, *, pattern: str | None = None) -> Info:
    _pattern(pattern)
    return tensor(BOOL, x.shape)


@operator("RegexFullMatch", infer=_match_info)
@at_run_time
def regex_full_match(x: Array, *, pattern: str | None = None) -> Array:
    """Whether all of each string matches ``pattern``, which is in RE2's syntax."""
    matches = _pattern(pattern).fullmatch
    return np.array([matches(w) is not None for w in x.reshape(-1).tolist()], BOOL).reshape(x.shape)
