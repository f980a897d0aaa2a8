"""Operators on strings: a tensor of strings is an object array of ``str``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import STRING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor

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
