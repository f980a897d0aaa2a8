"""Scan: a graph run for each element along an axis, with states carried from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.graph import Graph
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.control import Infer, Run, settle, stacked, stacked_info
from fuse.ops.infer import normal_axis, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

C = Trait.CONTROL

# ---- Scan since opset 9


def _entries(given: Sequence[int] | None, count: int, what: str) -> Sequence[int]:
    """One number for each of ``count`` scan inputs or outputs, 0 where none is given."""
    expect(given is None or len(given) == count, f"{what} has {len(given or ())} entries, needed are {count}")
    return (0,) * count if given is None else given


def _check_scan(body: Graph, inputs: int, num_scan_inputs: int) -> tuple[int, int]:
    """The number of states and of scan outputs."""
    states = inputs - num_scan_inputs
    expect(num_scan_inputs >= 1 and states >= 0, f"num_scan_inputs is {num_scan_inputs} and there are {inputs} inputs")
    fits = len(body.inputs) == inputs and len(body.outputs) >= states
    expect(fits, f"{inputs} inputs do not fit a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs")
    return states, len(body.outputs) - states


def _scan_info(
    first: Info,
    *others: Info,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    run: Infer | None = None,
) -> list[Info]:
    inputs = (first, *others)
    states, scans = _check_scan(body, len(inputs), num_scan_inputs)
    axes = _entries(scan_input_axes, num_scan_inputs, "scan_input_axes")
    lengths: list[Dim] = []
    elements = []
    for x, axis in zip(inputs[states:], axes, strict=True):
        if x.shape is None:
            elements.append(tensor(x.dtype))
            continue
        place = normal_axis(axis, len(x.shape), "scan input axis")
        lengths.append(x.shape[place])
        elements.append(tensor(x.dtype, (*x.shape[:place], *x.shape[place + 1 :])))
    trips = same_dim(lengths, f"scan inputs have different lengths: {show_shape(tuple(lengths))}")
    if run is None:
        return [Info()] * len(body.outputs)
    carried, pieces = settle(body, [], [Info(i.type) for i in inputs[:states]], elements, run)
    places = _entries(scan_output_axes, scans, "scan_output_axes")
    return [*carried, *(stacked_info(p, trips, a) for p, a in zip(pieces, places, strict=True))]


@operator("Scan", infer=_scan_info, traits=C)
@at_run_time
def scan(
    first: Any,
    *others: Any,
    body: Graph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    run: Run,
) -> tuple[Any, ...]:
    """Runs the body for each element along the scan inputs' axes, in opset 9's form (no batch axis)."""
    inputs = (first, *others)
    states, scans = _check_scan(body, len(inputs), num_scan_inputs)
    axes = _entries(scan_input_axes, num_scan_inputs, "scan_input_axes")
    backward = _entries(scan_input_directions, num_scan_inputs, "scan_input_directions")
    sequences = []
    for x, axis, reverse in zip(inputs[states:], axes, backward, strict=True):
        rows = np.moveaxis(x, normal_axis(axis, x.ndim, "scan input axis"), 0)
        sequences.append(rows[::-1] if reverse else rows)
    lengths = [len(s) for s in sequences]
    expect(len(set(lengths)) == 1, f"scan inputs have different lengths: {lengths}")
    carried = list(inputs[:states])
    outputs: list[list[Array]] = [[] for _ in range(scans)]
    for i in range(lengths[0]):
        results = run(body, [*carried, *(s[i, ...] for s in sequences)])
        carried = list(results[:states])
        for pieces, piece in zip(outputs, results[states:], strict=True):
            pieces.append(piece)
    places = _entries(scan_output_axes, scans, "scan_output_axes")
    prepended = _entries(scan_output_directions, scans, "scan_output_directions")
    outs = [
        stacked(pieces[::-1] if flip else pieces, slot, axis)
        for pieces, slot, axis, flip in zip(outputs, body.outputs[states:], places, prepended, strict=True)
    ]
    return (*carried, *outs)


# ---- Scan before opset 9: a batch axis in front, and a length for each entry


def _rest(info: Info, axes: int) -> Info:
    """The type without its first ``axes`` dims."""
    return tensor(info.dtype, None if info.shape is None or len(info.shape) < axes else info.shape[axes:])


def _scan_8_info(
    sequence_lens: Info | None = None,
    *inputs: Info,
    body: Graph,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    run: Infer | None = None,
) -> list[Info]:
    states, _ = _check_scan(body, len(inputs), num_scan_inputs)
    if run is None:
        return [Info()] * len(body.outputs)
    elements = [_rest(i, 2) for i in inputs[states:]]
    carried, pieces = settle(body, [], [_rest(i, 1) for i in inputs[:states]], elements, run)
    batch, length = (inputs[-1].shape or (None, None))[:2]
    return [*(stacked_info(c, batch) for c in carried),
            *(stacked_info(stacked_info(p, length), batch) for p in pieces)]  # fmt: skip


@operator("Scan-8", infer=_scan_8_info, traits=C)
@at_run_time
def scan_8(
    sequence_lens: Array | None = None,
    *inputs: Any,
    body: Graph,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
    run: Run,
) -> tuple[Any, ...]:
    """Scan each entry of the batch over its own length; scan outputs are zero beyond it."""
    states, _ = _check_scan(body, len(inputs), num_scan_inputs)
    expect(all(x.ndim > (i >= states) for i, x in enumerate(inputs)), "an input has no batch or no sequence axis")
    batch, length = inputs[-1].shape[:2]
    expect(all(len(x) == batch for x in inputs), f"batches of different sizes: {[len(x) for x in inputs]}")
    lengths = [length] * batch if sequence_lens is None else sequence_lens.reshape(-1).tolist()
    fits = len(lengths) == batch and all(0 <= n <= length for n in lengths)
    expect(fits, f"sequence_lens {lengths} do not fit {batch} sequences of {length}")
    entries: list[list[Array]] = [[] for _ in body.outputs]
    for b, n in enumerate(lengths):
        arguments = [x[b, ...] if i < states else x[b, :n] for i, x in enumerate(inputs)]
        results = scan(
            *arguments, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions, run=run
        )
        for i, (column, result) in enumerate(zip(entries, results, strict=True)):
            rest = [(0, length - n if i >= states and axis == 0 else 0) for axis in range(result.ndim)]
            column.append(np.pad(result, rest))
    return tuple(stacked(column, slot) for column, slot in zip(entries, body.outputs, strict=True))
