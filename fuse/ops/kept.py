"""What is made of attributes once and kept: a large model's lists take longer to read than one row takes to run.

Attributes are immutable and stay the same objects as long as their node lives, so that identity is a sound key, and
one that costs nothing however long the lists are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dtypes import DOUBLE, Array

#: So many things of a kind are kept; the ones not used for longest make room.
KEPT = 32


class Same:
    """Objects as a key that equals only the very same objects; it keeps them alive, so that none takes their place."""

    __slots__ = ("parts",)

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.parts)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and list(map(id, self.parts)) == list(map(id, other.parts))


def doubles(values: Sequence[float]) -> Array:
    """An attribute of floats as a read-only array in float64."""
    return _doubles(Same(values))


@functools.lru_cache(4 * KEPT)
def _doubles(only: Same) -> Array:
    array = np.array(only.parts[0], dtype=DOUBLE)
    array.flags.writeable = False
    return array
