"""Control flow: If, Loop and SequenceMap (and Scan, next door) run the graphs among their attributes.

Kernels take ``run(graph, arguments) -> results``; what a graph reads from around it is the interpreter's business.
Inference takes the same over ``Info``.  Of a value carried from one iteration to the next is known what holds both for
what goes in and for what comes out: a loop's body is inferred again until that no longer changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Dim
from fuse.ir.dtypes import BOOL, INT64, Array
from fuse.ir.graph import Graph, Output
from fuse.ir.types import SequenceType, TensorType
from fuse.ops.bounds import at_run_time, clamped, single
from fuse.ops.infer import merge, normal_axis, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

C = Trait.CONTROL
Run = Callable[[Graph, Sequence[Any]], list[Any]]
Infer = Callable[[Graph, Sequence[Info]], list[Info]]

#: After so many turns carried types lose all but their dtype, which no iteration may change.
PATIENCE = 2
#: A loop inside this many graphs starts with dtypes alone, and so takes one turn: turns multiply with the nesting.
NESTING = 4


def tried(run: Infer, body: Graph, given: Sequence[Info]) -> list[Info]:
    """What ``body`` returns; nothing is known where it cannot run, as it may be one that never runs."""
    try:
        return run(body, given)
    except ShapeError:
        return [Info()] * len(body.outputs)


def _meet(a: Info, b: Info) -> Info:
    """The most that holds for both."""
    same = a.value is not None and b.value is not None and np.array_equal(a.value, b.value)
    return Info(merge(a.type, b.type), a.value if same else None)


# ---- If


def _if_info(cond: Info, *, then_branch: Graph, else_branch: Graph, run: Infer | None = None) -> list[Info]:
    """The branch taken where the condition is known; else what holds for both.

    Exporters guard operators by the shapes they need: a branch that cannot fit is never taken, where the other can.
    """
    count = len(then_branch.outputs)
    say = f"then_branch has {count} outputs and else_branch {len(else_branch.outputs)}"
    expect(count == len(else_branch.outputs), say)
    if run is None:
        return [Info()] * count
    if cond.value is not None:
        return run(then_branch if bool(single(cond.value, "cond")) else else_branch, [])
    found: list[list[Info]] = []
    fault: ShapeError | None = None
    for branch in (then_branch, else_branch):
        try:
            found.append(run(branch, []))
        except ShapeError as error:
            fault = error
    if not found and fault is not None:
        raise fault
    return [_meet(a, b) for a, b in zip(found[0], found[-1], strict=True)]


@operator("If", infer=_if_info, traits=C)
@at_run_time
def if_(cond: Array, *, then_branch: Graph, else_branch: Graph, run: Run) -> tuple[Any, ...]:
    return tuple(run(then_branch if bool(single(cond, "cond")) else else_branch, []))


# ---- what loops share


def settle(
    body: Graph, before: Sequence[Info], carried: Sequence[Info], after: Sequence[Info], run: Infer
) -> tuple[list[Info], list[Info]]:
    """What holds in every iteration for the carried values, and what the body returns after them.

    The body takes ``before``, the carried values and ``after``, and returns the carried values first.
    """
    count, turn = len(carried), 0
    now = list(carried)
    if sum(1 for _ in body.enclosing()) > NESTING:
        now, turn = [_dtype_only(i) for i in now], PATIENCE
    while True:
        outs = tried(run, body, [*before, *now, *after])
        met = [_carried(a, b) for a, b in zip(now, outs, strict=False)]
        if all(a.type == b.type and (a.value is None) == (b.value is None) for a, b in zip(met, now, strict=True)):
            return met, outs[count:]
        turn += 1
        now = met if turn < PATIENCE else [_dtype_only(i) if turn == PATIENCE else Info() for i in met]


def _dtype_only(info: Info) -> Info:
    return Info() if info.dtype is None else tensor(info.dtype)


def _carried(given: Info, returned: Info) -> Info:
    known = given.dtype is not None and returned.dtype is not None
    say = f"a carried value changes its dtype: {given.type} becomes {returned.type}"
    expect(not known or given.dtype == returned.dtype, say)
    return _meet(given, returned)


def stacked_info(piece: Info, trips: Dim, axis: int = 0) -> Info:
    """What is known of a scan output: the pieces with the number of trips as a new axis."""
    if piece.shape is None:
        return tensor(piece.dtype)
    place = normal_axis(axis, len(piece.shape) + 1, "scan output axis")
    return tensor(piece.dtype, (*piece.shape[:place], trips, *piece.shape[place:]))


def stacked(pieces: list[Array], slot: Output, axis: int = 0) -> Array:
    """The scan output that ``pieces`` make; where there is none its dtype and rank are the body's, unknown dims 0."""
    if pieces:
        shape = pieces[0].shape
        for piece in pieces:
            say = f"a scan output changes its shape from {show_shape(shape)} to {show_shape(piece.shape)}"
            expect(piece.shape == shape, say)
        return np.stack(pieces, axis=normal_axis(axis, len(shape) + 1, "scan output axis"))
    known = [t for t in (slot.value.type, slot.type) if isinstance(t, TensorType) and t.dtype is not None]
    if not known:
        raise RunError("no iteration ran, and what type a scan output would have is not known")
    dims = next((t.shape for t in known if t.shape is not None), ())
    place = normal_axis(axis, len(dims) + 1, "scan output axis")
    sizes = [d if isinstance(d, int) else 0 for d in dims]
    return np.zeros((*sizes[:place], 0, *sizes[place:]), dtype=known[0].dtype)


# ---- Loop


def _check_loop(body: Graph, count: int) -> int:
    """The number of scan outputs of a loop that carries ``count`` values."""
    say = f"{count} carried values need a body of {count + 2} inputs and at least {count + 1} outputs"
    fits = len(body.inputs) == count + 2 and len(body.outputs) > count
    expect(fits, f"{say}; it has {len(body.inputs)} and {len(body.outputs)}")
    return len(body.outputs) - 1 - count


def _loop_info(
    m: Info | None = None, cond: Info | None = None, *initial: Info | None, body: Graph, run: Infer | None = None
) -> list[Info]:
    scans = _check_loop(body, len(initial))
    if run is None:
        return [Info()] * (len(initial) + scans)
    entry = tensor(BOOL, (), np.array(True) if cond is None else cond.value)
    start = [Info() if i is None else Info(i.type) for i in initial]
    (going, *carried), pieces = settle(body, [tensor(INT64, ())], [entry, *start], [], run)
    trips: Dim = None
    if m is not None and m.dims is not None and going.value is not None:
        trips = clamped(m.dims[0]) if bool(single(going.value, "cond")) else 0
    return [*carried, *(stacked_info(p, trips) for p in pieces)]


@operator("Loop", infer=_loop_info, traits=C)
@at_run_time
def loop(m: Array | None = None, cond: Array | None = None, *initial: Any, body: Graph, run: Run) -> tuple[Any, ...]:
    """Runs while the condition holds, at most ``m`` times; returns the carried values and the stacked scan outputs.

    The condition that the body returns counts in every mode, as in onnxruntime: ONNX's table has it ignored where
    ``cond`` is absent, which without ``m`` would be a loop that never ends.
    """
    count = len(initial)
    scans: list[list[Array]] = [[] for _ in range(_check_loop(body, count))]
    trips = None if m is None else int(single(m, "the trip count"))
    going = cond is None or bool(single(cond, "cond"))
    carried, i = list(initial), 0
    while going and (trips is None or i < trips):
        results = run(body, [np.array(i, dtype=INT64), np.array(going), *carried])
        going = bool(single(results[0], "the condition that the body returns"))
        carried = list(results[1 : 1 + count])
        for pieces, piece in zip(scans, results[1 + count :], strict=True):
            pieces.append(piece)
        i += 1
    return (*carried, *(stacked(p, s) for p, s in zip(scans, body.outputs[1 + count :], strict=True)))


# ---- SequenceMap


def _sequence_map_info(input_sequence: Info, *additional: Info, body: Graph, run: Infer | None = None) -> list[Info]:
    if run is None:
        return [Info()] * len(body.outputs)
    given = [Info(i.type.element) if isinstance(i.type, SequenceType) else Info(i.type)
             for i in (input_sequence, *additional)]  # fmt: skip
    return [Info(SequenceType(out.type)) for out in tried(run, body, given)]


@operator("SequenceMap", infer=_sequence_map_info, traits=C)
@at_run_time
def sequence_map(input_sequence: list[Array], *additional: Any, body: Graph, run: Run) -> tuple[Any, ...]:
    """The body over the elements of the sequences given, tensors among the inputs the same each time."""
    inputs = (input_sequence, *additional)
    lengths = {len(x) for x in inputs if isinstance(x, list)}
    expect(len(lengths) == 1, f"sequences of different lengths: {sorted(lengths)}")
    columns: list[list[Any]] = [[] for _ in body.outputs]
    for i in range(len(input_sequence)):
        results = run(body, [x[i] if isinstance(x, list) else x for x in inputs])
        for column, result in zip(columns, results, strict=True):
            column.append(result)
    return tuple(columns)
