"""The memory plan of a graph: an offset for every value, and what that saves.

Four figures say how much memory the values take, each with one more idea than the one before: every value in memory of
its own (``without_reuse``); freed after its last use, views sharing (``freed``); written in place where that is allowed
(``bound``, which no plan for this order of nodes can undercut); and the arena in which each value has a fixed offset
(``arena``).  Constants are not counted, and neither are graph inputs unless asked: the caller owns them.

A plan holds for an executor that keeps two promises: a value in ``unplanned`` has memory of its own, copied where its
kernel returned a view of the arena, and so has whatever is handed to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fuse.errors import InputError, quote
from fuse.ir.dims import evaluate
from fuse.ir.graph import Graph, Value
from fuse.ir.model import Model
from fuse.ir.types import TensorType, Type
from fuse.ops.infer import describe, infer_graph, infer_model
from fuse.ops.record import Info
from fuse.planner.arena import ALIGN, Span, assign, live_bytes
from fuse.planner.lifetime import Buffer, InPlace, Liveness, analyse, elementwise, size_of


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lies: ``bytes`` at ``offset``, needed from step ``birth`` to step ``death``, both included.

    Values of one ``buffer`` share memory; ``how`` says why: "own" (it opened the buffer), "alias" (a view of an earlier
    value) or "in-place" (written over one).  A ``death`` past the last step marks an output of the graph.
    """

    offset: int
    bytes: int
    buffer: int
    birth: int
    death: int
    how: str


@dataclass(frozen=True, slots=True)
class Peak:
    """The first step at which most bytes are alive: its node, and the values that make them, largest first."""

    step: int
    node: str
    bytes: int
    values: tuple[tuple[Value, int], ...]


@dataclass(frozen=True, slots=True)
class Unplanned:
    """A value without a place in the arena, and why; ``bytes`` where its size is known nevertheless."""

    value: Value
    bytes: int | None
    why: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Figures in bytes, and where each value lies.

    ``steps`` names the node of each step, ``live`` is what is alive at it.  ``inputs`` are the graph inputs' bytes
    (None where unknown).  ``outside`` maps a view of what the caller owns to the input or constant that it shows.
    """

    without_reuse: int
    freed: int
    bound: int
    arena: int
    strategy: str
    align: int
    steps: tuple[str, ...]
    live: tuple[int, ...]
    peak: Peak | None
    slots: Mapping[Value, Slot]
    buffers: tuple[Buffer, ...]
    inputs: Mapping[Value, int | None]
    outside: Mapping[Value, Value]
    unplanned: tuple[Unplanned, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON can hold it; values go by their names."""
        peak = self.peak
        return {
            "without_reuse": self.without_reuse,
            "freed": self.freed,
            "bound": self.bound,
            "arena": self.arena,
            "strategy": self.strategy,
            "align": self.align,
            "peak": None
            if peak is None
            else {
                "step": peak.step,
                "node": peak.node,
                "bytes": peak.bytes,
                "values": [{"name": label(value), "bytes": size} for value, size in peak.values],
            },
            "steps": [{"node": node, "live": live} for node, live in zip(self.steps, self.live, strict=True)],
            "slots": [
                {
                    "name": label(value),
                    "offset": slot.offset,
                    "bytes": slot.bytes,
                    "buffer": slot.buffer,
                    "birth": slot.birth,
                    "death": slot.death,
                    "how": slot.how,
                }
                for value, slot in self.slots.items()
            ],
            "inputs": [{"name": label(value), "bytes": size} for value, size in self.inputs.items()],
            "outside": [{"name": label(value), "of": label(root)} for value, root in self.outside.items()],
            "unplanned": [{"name": label(u.value), "bytes": u.bytes, "why": u.why} for u in self.unplanned],
        }


def label(value: Value) -> str:
    """A value's name, or the node that computes it where it has none."""
    return value.name or (f"result of {describe(value.producer)}" if value.producer is not None else "")


def plan_memory(
    source: Model | Graph,
    sizes: Mapping[str, int] | None = None,
    *,
    count_inputs: bool = False,
    in_place: InPlace = elementwise,
    align: int = ALIGN,
) -> MemoryPlan:
    """Plan the memory of a model's main graph (or of ``source`` itself) for its present order of nodes.

    ``sizes`` says what symbolic dims stand for, as in ``{"n": 8}``.  Values whose size stays unknown are listed with
    the reason, never guessed.  ``count_inputs`` gives graph inputs a place too.  ``in_place(node, index)`` says whether
    the node's output may be written over its input ``index``.  Types are inferred, and written, where they are missing.

    Raises ``InputError`` on a size that is no natural number, and what inference raises on shapes that clash.
    """
    sizes = dict(sizes or {})
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InputError(f"the size of dim {quote(name)} is {quote(size)}, not a natural number")
    model = source if isinstance(source, Model) else Model(source, ir_version=0, opsets={})
    graph = model.graph
    types = _types(model, sizes)
    found = analyse(graph, types, sizes, count_inputs=count_inputs, in_place=in_place, calls=model.functions.keys())
    layout = assign([Span(b.birth, b.death, b.bytes) for b in found.buffers], align)
    steps = tuple(describe(node) for node in found.nodes)
    live = live_bytes([Span(b.birth, b.death, b.bytes) for b in found.buffers], len(steps))
    freed = live_bytes([Span(b.birth, b.death, b.bytes) for b in found.views], len(steps))
    return MemoryPlan(
        without_reuse=sum(found.bytes.values()),
        freed=max(freed, default=0),
        bound=max(live, default=0),
        arena=layout.bytes,
        strategy=layout.strategy,
        align=align,
        steps=steps,
        live=tuple(live),
        peak=_peak(found, live, steps),
        slots=_slots(found, layout.offsets),
        buffers=found.buffers,
        inputs={value: _known(size_of(types[value], sizes)) for value in graph.inputs},
        outside=found.outside,
        unplanned=tuple(Unplanned(v, _known(size_of(types[v], sizes)), why) for v, why in found.unplanned.items()),
    )


def _known(size: int | str) -> int | None:
    return size if isinstance(size, int) else None


def _types(model: Model, sizes: Mapping[str, int]) -> dict[Value, Type | None]:
    """The type of each input and computed value, as sharp as ``sizes`` can make it.

    With the sizes put into the inputs' types, inference finds numbers where symbols left it in doubt (a broadcast of
    two symbols, the size of a Range); those types are for the plan and are not written into the values.
    """
    graph = model.graph
    values = [value for node in graph.nodes for value in node.outputs if value is not None]
    if any(value.type is None for value in values):
        infer_model(model)
    types = {value: value.type for value in (*graph.inputs, *values)}
    vague = [value for value in values if isinstance(size_of(types[value], sizes), str)]
    if sizes and vague:
        facts: dict[Value, Info] = {}
        infer_graph(graph, facts, [Info(_sized(value.type, sizes)) for value in graph.inputs], model.functions)
        types |= {value: facts[value].type for value in vague if value in facts and facts[value].type is not None}
    return types


def _sized(type: Type | None, sizes: Mapping[str, int]) -> Type | None:
    """``type`` with each symbolic dim that ``sizes`` settles as a number."""
    if not isinstance(type, TensorType) or type.shape is None:
        return type
    numbers = [evaluate(dim, sizes) for dim in type.shape]
    return TensorType(type.dtype, tuple(d if n is None else n for d, n in zip(type.shape, numbers, strict=True)))


def _slots(found: Liveness, offsets: tuple[int, ...]) -> dict[Value, Slot]:
    """A slot for each value that has a buffer, in order of birth."""
    home = {value: i for i, buffer in enumerate(found.buffers) for value in buffer.values}
    return {
        value: Slot(offsets[home[value]], size, home[value], *found.lives[value], found.how[value])
        for value, size in found.bytes.items()
    }


def _peak(found: Liveness, live: list[int], steps: tuple[str, ...]) -> Peak | None:
    """Where most bytes are alive; None where no value takes any.  A shared buffer is named after its latest value."""
    most = max(live, default=0)
    if most == 0:
        return None
    step = live.index(most)
    alive = [b for b in found.buffers if b.birth <= step <= b.death and b.bytes]
    alive.sort(key=lambda b: (-b.bytes, b.birth))
    latest = [[v for v in b.values if found.lives[v].birth <= step][-1] for b in alive]
    return Peak(step, steps[step], most, tuple((v, b.bytes) for v, b in zip(latest, alive, strict=True)))
