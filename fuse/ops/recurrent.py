"""The walk of a recurrent layer over time, whatever its cell.

The input side of all steps is one matrix product; what is left for each step is one product with the hidden states of
the whole batch.  Sequences of different lengths are sorted by length, so that the ones still running are the first
rows; a reversed direction reads each sequence backwards from its own end.  Half precision is carried in float32 from
the first step to the last.
Source: the ONNX operator texts of RNN, GRU and LSTM.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import fits, same_dim
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, expect, tensor

Step = Callable[..., tuple[Array, ...]]
"""Takes the input's share of the gates at one step, and the states; gives the new states.  Rows are sequences."""

RANKS = {"X": 3, "W": 3, "R": 3, "B": 2, "sequence_lens": 1, "initial_h": 3, "initial_c": 3, "P": 2}

DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""For each direction whether it runs backwards."""

PROJECTED = 1 << 22
"""The most numbers of the input's product with its weights that are held at a time."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What all inputs of a layer agree on."""

    steps: Dim
    batch: Dim
    hidden: Dim
    backwards: tuple[bool, ...]
    layout: int

    def outputs(self) -> tuple[Shape, Shape]:
        """The shapes of all hidden states, and of the last ones."""
        count = len(self.backwards)
        if self.layout:
            return (self.batch, self.steps, count, self.hidden), (self.batch, count, self.hidden)
        return (self.steps, count, self.batch, self.hidden), (count, self.batch, self.hidden)


def agreed(gates: int, shapes: dict[str, Shape | None], direction: str, hidden_size: int | None, layout: int) -> Layer:
    """What the shapes of the inputs, by their names in the operator text, have in common.

    Raises ``ShapeError`` where they do not fit together.
    """
    expect(direction in DIRECTIONS, f"direction {quote(direction)} is not one of {', '.join(DIRECTIONS)}")
    expect(layout in (0, 1), f"layout {layout} is not 0 or 1")
    for name, shape in shapes.items():
        expect(shape is None or len(shape) == RANKS[name], f"{name} is {show_shape(shape)}, not {RANKS[name]}-D")
    x, r = shapes["X"] or (None,) * 3, shapes["R"] or (None,) * 3
    steps, batch = (x[1], x[0]) if layout else (x[0], x[1])
    count = len(DIRECTIONS[direction])
    hidden = same_dim((hidden_size, r[2]), f"hidden_size is {hidden_size} but R is {show_shape(r)}")
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    rows = None if hidden is None else hidden * gates
    wanted: dict[str, Shape] = {
        "X": x,
        "W": (count, rows, x[2]),
        "R": (count, rows, hidden),
        "B": (count, None if rows is None else rows * 2),
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (count, None if hidden is None else hidden * 3),
    }
    for name, shape in shapes.items():
        fits(name, shape, wanted[name])
    return Layer(steps, batch, hidden, DIRECTIONS[direction], layout)


def infer_layer(
    gates: int, inputs: dict[str, Info | None], direction: str, hidden_size: int | None, layout: int
) -> tuple[Info, ...]:
    """The types of the outputs: all hidden states, the last ones, and (for a layer that has any) the last cells."""
    shapes = {name: info.shape for name, info in inputs.items() if info is not None}
    dtype = common_dtype(*(info for name, info in inputs.items() if name != "sequence_lens"))
    every, last = agreed(gates, shapes, direction, hidden_size, layout).outputs()
    return tensor(dtype, every), tensor(dtype, last), tensor(dtype, last)


# ---- the walk over time


def _lengths(lens: Array | None, steps: int, batch: int) -> Array:
    """The lengths of the sequences; ``ShapeError`` where one is not within the tensor."""
    if lens is None:
        return np.full(batch, steps)
    outside = lens[(lens < 0) | (lens > steps)]
    expect(not outside.size, f"sequence length {outside[:1].tolist()} is not within {steps} steps")
    return lens.astype(np.int64)


def _mirrored(x: Array, lens: Array) -> Array:
    """``x`` (steps, batch, ...) with each sequence backwards within its length, and its padding where it was."""
    if bool((lens == x.shape[0]).all()):
        return x[::-1]
    step = np.arange(x.shape[0])[:, None]
    source = np.where(step < lens, lens - 1 - step, step)
    return np.take_along_axis(x, source[:, :, None], axis=0)


def _walk(x: Array, w: Array, bias: Array, lens: Array, states: list[Array], step: Step) -> Array:
    """Run ``step`` over ``x`` (steps, batch, inputs), whose sequences are sorted by falling length.

    ``states`` are overwritten by the last ones of each sequence; all first states are returned, zeros in the padding.
    """
    steps, batch, width = x.shape
    y = np.zeros((steps, batch, states[0].shape[1]), x.dtype)
    running = (lens[:, None] > np.arange(steps)).sum(axis=0).tolist()
    chunk = max(1, PROJECTED // max(1, batch * w.shape[0]))
    for start in range(0, steps, chunk):
        part = x[start : start + chunk]
        projected = (part.reshape(len(part) * batch, width) @ w.T).reshape(len(part), batch, len(w))
        projected += bias
        for t, row in enumerate(projected, start):
            n = running[t]
            if n:
                for state, new in zip(states, step(row[:n], *(s[:n] for s in states)), strict=True):
                    state[:n] = new
                y[t, :n] = states[0][:n]
    return y


def run_layer(
    gates: int,
    inputs: dict[str, Array | None],
    direction: str,
    hidden_size: int | None,
    layout: int,
    cell: Callable[[int, Array, Array], tuple[Step, Array]],
    n_outputs: int,
) -> tuple[Array, ...]:
    """Every direction of a layer.

    ``cell(d, r, b)`` makes the step of direction ``d`` from its recurrent weights and its biases (those of the input's
    side, then those of the recurrent one), and says which constant to add to the input's product.
    """
    given = {name: a for name, a in inputs.items() if a is not None}
    layer = agreed(gates, {name: a.shape for name, a in given.items()}, direction, hidden_size, layout)
    x, hidden = wide(given["X"]), given["R"].shape[2]
    x = x.swapaxes(0, 1) if layout else x
    steps, batch = x.shape[:2]
    lens = _lengths(given.get("sequence_lens"), steps, batch)
    level = bool((lens == steps).all())
    sorting = np.argsort(-lens, kind="stable")
    order: Any = slice(None) if level else sorting
    back: Any = slice(None) if level else np.argsort(sorting)
    every, lasts = [], []
    for d, backwards in enumerate(layer.backwards):
        states = [_first(given.get(n), d, layout, (batch, hidden), x)[order] for n in inputs if n.startswith("initial")]
        b = wide(given["B"][d]) if "B" in given else np.zeros(2 * gates * hidden, x.dtype)
        step, bias = cell(d, wide(given["R"][d]), b)
        read = _mirrored(x, lens) if backwards else x
        y = _walk(read[:, order], wide(given["W"][d]), bias, lens[order], states, step)[:, back]
        every.append(_mirrored(y, lens) if backwards else y)
        lasts.append([s[back] for s in states])
    y, ends = np.stack(every, axis=1), [np.stack(s) for s in zip(*lasts, strict=True)]
    if layout:
        y, ends = y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in ends]
    return tuple(narrow(v, given["X"]) for v in (y, *ends))[:n_outputs]


def _first(initial: Array | None, d: int, layout: int, shape: tuple[int, int], like: Array) -> Array:
    """A fresh array of the states before the first step, zeros where none are given."""
    if initial is None:
        return np.zeros(shape, like.dtype)
    return np.array(initial[:, d] if layout else initial[d], like.dtype)
