"""Offsets: no two buffers that live together overlap, and the arena is near the least that it can be."""

import random
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse.planner.arena import ALIGN, Blocks, Layout, Span, assign, live_bytes

FIXED = settings(derandomize=True, deadline=None, max_examples=150)


def prove(spans: list[Span], layout: Layout, align: int = ALIGN) -> None:
    """Every pair by brute force: together in time means apart in space."""
    assert len(layout.offsets) == len(spans)
    for i, a in enumerate(spans):
        assert layout.offsets[i] >= 0 and layout.offsets[i] % align == 0
        assert layout.offsets[i] + a.bytes <= layout.bytes
        for j in range(i):
            b = spans[j]
            if a.bytes and b.bytes and a.birth <= b.death and b.birth <= a.death:
                apart = (
                    layout.offsets[i] >= layout.offsets[j] + b.bytes or layout.offsets[j] >= layout.offsets[i] + a.bytes
                )
                assert apart, (a, b)
    steps = range(max((s.death for s in spans), default=-1) + 1)
    assert layout.bound == max((sum(s.bytes for s in spans if s.birth <= t <= s.death) for t in steps), default=0)
    assert layout.bytes >= layout.bound


def chain(count: int, seed: int) -> list[Span]:
    """A net of ``count`` layers, some of them read again up to 20 layers later."""
    rng = random.Random(seed)
    sizes = [64 * rng.choice([1, 2, 3, 8, 32]) for _ in range(count)]
    skips = [rng.randrange(20) if rng.random() < 0.3 else 0 for _ in range(count)]
    return [Span(i, min(count, i + 1 + skip), size) for i, (size, skip) in enumerate(zip(sizes, skips, strict=True))]


def scattered(count: int, seed: int, steps: int, longest: int) -> list[Span]:
    rng = random.Random(seed)
    births = [rng.randrange(steps) for _ in range(count)]
    return [Span(b, b + rng.randrange(longest), rng.randint(0, 3000)) for b in births]


def test_nothing_to_place():
    assert assign([]) == Layout((), 0, 0, "empty")
    assert assign([Span(0, 3, 0), Span(1, 1, 0)]) == Layout((0, 0), 0, 0, "empty")


def test_one_buffer():
    layout = assign([Span(2, 5, 100)])
    assert (layout.offsets, layout.bytes, layout.bound) == ((0,), 100, 100)


def test_buffers_that_touch_in_a_step_do_not_share():
    assert sorted(assign([Span(0, 1, 64), Span(1, 2, 64)]).offsets) == [0, 64]
    assert assign([Span(0, 1, 64), Span(2, 3, 64)]).offsets == (0, 0)


def test_alignment_counts():
    layout = assign([Span(0, 0, 1), Span(0, 0, 1), Span(0, 0, 1)])
    assert sorted(layout.offsets) == [0, 64, 128]
    assert (layout.bytes, layout.bound) == (129, 3)
    assert sorted(assign([Span(0, 0, 3), Span(0, 0, 3)], align=4).offsets) == [0, 4]
    assert assign([Span(0, 0, 3), Span(0, 0, 3)], align=1).bytes == 6


def test_a_buffer_without_bytes_takes_no_place_between_others():
    layout = assign([Span(0, 9, 64), Span(0, 9, 0), Span(0, 9, 64)])
    assert layout.offsets[1] == 0 and layout.bytes == 128


def test_live_bytes_by_hand():
    spans = [Span(0, 2, 1), Span(1, 1, 10), Span(2, 9, 100), Span(7, 8, 1000)]
    assert live_bytes(spans, 4) == [1, 11, 101, 100]
    assert live_bytes(spans, 0) == []
    assert live_bytes([], 3) == [0, 0, 0]


def test_order_of_birth_alone_would_waste():
    # By birth, b lands above a, and c is too large for the hole that a leaves below b: 4 units instead of 3.
    a, b, c = Span(0, 1, 64), Span(1, 2, 64), Span(2, 3, 128)
    layout = assign([a, b, c])
    prove([a, b, c], layout)
    assert layout.bytes == layout.bound == 192


def lowest(spans: list[Span]) -> int:
    """The least arena there is: some order of bottom-up placement reaches it, so all orders are tried."""
    best = sum(s.bytes for s in spans)
    for order in permutations(range(len(spans))):
        placed: list[tuple[int, int]] = []
        for i in order:
            taken = sorted(
                (at, at + spans[j].bytes)
                for j, at in placed
                if spans[i].birth <= spans[j].death and spans[j].birth <= spans[i].death
            )
            at = 0
            for low, high in taken:
                if at + spans[i].bytes <= low:
                    break
                at = max(at, high)
            placed.append((i, at))
        best = min(best, max(at + spans[i].bytes for i, at in placed))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_six_buffers_lie_as_low_as_can_be(seed):
    rng = random.Random(seed)
    births = [rng.randrange(8) for _ in range(6)]
    spans = [Span(b, b + rng.randrange(5), 64 * rng.randint(1, 9)) for b in births]
    layout = assign(spans)
    prove(spans, layout)
    assert layout.bytes == lowest(spans)


@FIXED
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 400)), max_size=40))
def test_any_buffers(drawn):
    spans = [Span(birth, birth + life, size) for birth, life, size in drawn]
    layout = assign(spans, work=100_000)
    prove(spans, layout)
    assert assign(spans, work=100_000) == layout


@pytest.mark.parametrize(("steps", "longest"), [(400, 8), (400, 120), (40, 40), (1, 1), (5000, 3000)])
def test_many_buffers(steps, longest):
    spans = scattered(500, steps + longest, steps, longest)  # far more than one stride of the neighbour index
    layout = assign(spans, work=500_000)
    prove(spans, layout)
    assert layout.bytes <= 1.15 * layout.bound


@pytest.mark.parametrize(("steps", "longest"), [(200, 9), (300, 300), (1, 1)])
def test_neighbours_and_crowding_by_brute_force(steps, longest):
    spans = sorted(s for s in scattered(250, steps, steps, longest) if s.bytes)
    blocks = Blocks(spans)
    crowding = blocks.crowding()
    for i, a in enumerate(spans):
        together = [j for j, b in enumerate(spans) if a.birth <= b.death and b.birth <= a.death]
        assert sorted(blocks.neighbours(i).tolist()) == together
        alive = [sum(b.bytes for b in spans if b.birth <= t <= b.death) for t in range(a.birth, a.death + 1)]
        assert crowding[i] == max(alive)


def test_nested_lives():
    spans = [Span(i, 400 - i, 64 * (1 + i % 7)) for i in range(200)]
    layout = assign(spans)
    prove(spans, layout)
    assert layout.bytes == layout.bound


def test_no_budget_still_gives_a_valid_arena():
    spans = scattered(120, 3, 100, 20)
    layout = assign(spans, work=0)
    prove(spans, layout)
    assert layout.strategy == "by size, lowest gap"


def test_the_search_pays():
    spans = scattered(100, 1, 60, 12)
    quick, thorough = assign(spans, work=0), assign(spans)
    prove(spans, thorough)
    assert thorough.strategy.endswith("improved")
    assert thorough.bytes < quick.bytes and thorough.bytes <= 1.03 * thorough.bound


def test_ten_thousand_layers_reach_the_bound():
    spans = chain(10_000, 5)
    layout = assign(spans)
    assert layout.bytes == layout.bound
    by_step: dict[int, list[int]] = {}
    for i, span in enumerate(spans):
        for step in range(span.birth, span.death + 1):
            by_step.setdefault(step, []).append(i)
    for alive in by_step.values():
        ends = sorted((layout.offsets[i], layout.offsets[i] + spans[i].bytes) for i in alive)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
