"""Where each buffer lies: offsets in one arena such that no two buffers that live at the same time overlap.

Buffers are placed one after the other, each into a gap that its living neighbours leave, so all depends on the order.
Several orders are tried, with the lowest gap and with the tightest one; then the best is improved by moving a buffer
that ends too high to an earlier place in its order, again and again.  Nothing can be lower than the most bytes alive at
one step, and the search ends where that bound is reached.  The problem is NP-hard ("dynamic storage allocation"), so
the search is bounded: by counted work, never by a clock, so that equal input gives equal offsets.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

#: Offsets are multiples of this many bytes: a cache line, and the widest vector register there is.
ALIGN = 64

#: What the search may spend in all, and for each buffer.  A unit is about 0.1 microseconds.
WORK = 8_000_000
WORK_EACH = 40_000

#: Placing one buffer costs about as much as looking at this many neighbours.
_STEP_WORK = 200

#: How far back a buffer that ends too high is moved, at most: near moves keep most of the packing, far ones leave ruts.
_MOVES = (4, 16, 64)

#: An offset beyond every arena: the mark of a buffer that has no place yet.
_FAR = 1 << 62


class Span(NamedTuple):
    """A buffer as the arena sees it: alive from step ``birth`` to step ``death``, both included."""

    birth: int
    death: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """An arena of ``bytes`` with an offset for each buffer; ``bound`` is the most bytes alive at one step."""

    offsets: tuple[int, ...]
    bytes: int
    bound: int
    strategy: str


def live_bytes(spans: Sequence[Span], steps: int) -> list[int]:
    """Bytes alive at each of the steps ``0 .. steps - 1``."""
    change = [0] * (steps + 1)
    for birth, death, size in spans:
        change[min(birth, steps)] += size
        change[min(death + 1, steps)] -= size
    return list(accumulate(change[:steps]))


def assign(spans: Sequence[Span], align: int = ALIGN, work: int | None = None) -> Layout:
    """Offsets for ``spans``: multiples of ``align``; buffers of no bytes get offset 0.

    The first strategy always runs to its end; ``work`` bounds what the others and the improvement spend (by default
    up to about a second, less for few buffers).
    """
    work = min(WORK, WORK_EACH * len(spans)) if work is None else work
    bound = max(live_bytes(spans, max((s.death for s in spans), default=-1) + 1), default=0)
    # In order of birth, so that those born during a life are one range.  Units of ``align`` bytes keep offsets aligned.
    ids = sorted((i for i, s in enumerate(spans) if s.bytes), key=lambda i: (spans[i].birth, -spans[i].bytes, i))
    offsets = [0] * len(spans)
    if not ids:
        return Layout(tuple(offsets), 0, bound, "empty")
    blocks = Blocks([Span(spans[i].birth, spans[i].death, -(-spans[i].bytes // align)) for i in ids])
    starts, strategy = _search(blocks, work)
    for i, start in zip(ids, starts.tolist(), strict=True):
        offsets[i] = start * align
    return Layout(tuple(offsets), max(offsets[i] + spans[i].bytes for i in ids), bound, strategy)


class Blocks:
    """Buffers in order of birth, which of them live together, and where they lie so far.

    Every ``stride`` blocks the set alive at that birth is kept.  The neighbours of a block are then found among the
    last such set and the range born since: near their true number, without a scan of all blocks.
    """

    stride = 64

    def __init__(self, spans: Sequence[Span]) -> None:
        self.births: Ints
        self.deaths: Ints
        self.sizes: Ints
        self.births, self.deaths, self.sizes = np.array(spans, dtype=np.int64).T.copy()
        self.count = len(spans)
        self.live = live_bytes(spans, int(self.deaths.max()) + 1)
        self.starts = np.full(self.count, _FAR)
        self.ends = np.zeros(self.count, dtype=np.int64)
        self.spent = 0
        self._ids = np.arange(self.count)
        self._born_by_death = np.searchsorted(self.births, self.deaths, side="right").tolist()
        self._alive: list[Ints] = []
        alive = self._ids[:0]
        for start in range(0, self.count, self.stride):
            alive = alive[self.deaths[alive] >= self.births[start]]
            self._alive.append(alive)
            alive = np.concatenate((alive, self._ids[start : start + self.stride]))

    def neighbours(self, i: int) -> Ints:
        """The blocks that live at some step of block ``i``'s life, itself included."""
        start = i - i % self.stride
        near: Ints = np.concatenate((self._alive[i // self.stride], self._ids[start : self._born_by_death[i]]))
        together: Ints = near[self.deaths[near] >= self.births[i]]
        return together

    def place(self, order: Sequence[int], limit: int, tightest: bool = False, since: int = 0) -> int | None:
        """Place ``order[since:]`` anew; the position of the first block that would end above ``limit``, if any.

        Each block goes into the lowest gap that holds it, or into the ``tightest``.
        """
        self.starts[order[since:]] = _FAR
        for position in range(since, len(order)):
            i = order[position]
            near = self.neighbours(i)
            near = near[self.starts[near] < _FAR]
            near = near[np.argsort(self.starts[near], kind="stable")]
            size, at = int(self.sizes[i]), 0
            self.spent += _STEP_WORK + len(near)
            if len(near):
                floor = np.concatenate(([0], np.maximum.accumulate(self.ends[near])))
                room = np.concatenate((self.starts[near], [_FAR])) - floor
                fits = np.flatnonzero(room >= size)  # the last gap is the open end: it always fits
                at = int(floor[fits[np.argmin(room[fits])] if tightest else fits[0]])
            if at + size > limit:
                return position
            self.starts[i], self.ends[i] = at, at + size
        return None

    def crowding(self) -> list[int]:
        """For each block the most units alive at one step of its life, by a table of maxima over powers of two."""
        levels = [np.array(self.live)]
        while 2 ** len(levels) <= len(self.live):
            half = 2 ** (len(levels) - 1)
            levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
        result = []
        for birth, death in zip(self.births.tolist(), self.deaths.tolist(), strict=True):
            level = (death - birth + 1).bit_length() - 1
            result.append(int(max(levels[level][birth], levels[level][death + 1 - 2**level])))
        return result


def _orders(blocks: Blocks) -> Iterator[tuple[str, list[int]]]:
    """The orders of placement, each with its name, the most useful first."""
    size, life = blocks.sizes.tolist(), (blocks.deaths - blocks.births + 1).tolist()
    ids = range(blocks.count)
    yield "by size", sorted(ids, key=lambda i: (-size[i], -life[i], i))
    crowd = blocks.crowding()
    yield "by crowding", sorted(ids, key=lambda i: (-crowd[i], -size[i], i))
    yield "by lifetime", sorted(ids, key=lambda i: (-life[i], -size[i], i))
    yield "by area", sorted(ids, key=lambda i: (-size[i] * life[i], i))
    yield "by birth", list(ids)


def _search(blocks: Blocks, work: int) -> tuple[Ints, str]:
    """The offsets (in units) of the best strategy within ``work``, and its name."""
    bound = max(blocks.live)
    starts, height, order, name = blocks.starts, _FAR - 1, [0], ""
    for label, candidate in _orders(blocks):
        for tightest in (False, True):
            if height == bound or (name and blocks.spent > work):
                return starts, name
            if blocks.place(candidate, height - 1, tightest) is None:
                starts, height, order = blocks.starts.copy(), int(blocks.ends.max()), candidate
                name = f"{label}, {'tightest' if tightest else 'lowest'} gap"
    better = _improve(blocks, order, height, work)
    return (starts, name) if better is None else (better, f"{name}, improved")


def _improve(blocks: Blocks, order: list[int], height: int, work: int) -> Ints | None:
    """Offsets below ``height``; None where none are found.

    The first block that does not fit under the best height goes some places back in the order, so that it chooses
    before its neighbours do; what lies in front of that place stays, and only the rest is placed anew.
    """
    chance, bound = random.Random(0), max(blocks.live)
    order, since, best = order[:], 0, None
    while height > bound and blocks.spent < work:
        position = blocks.place(order, height - 1, since=since)
        if position is None:
            best, height = blocks.starts.copy(), int(blocks.ends.max())
            since = next(p for p, i in enumerate(order) if blocks.ends[i] == height)
        else:
            since = max(0, position - 1 - chance.randrange(chance.choice(_MOVES)))
            order.insert(since, order.pop(position))
    return best
