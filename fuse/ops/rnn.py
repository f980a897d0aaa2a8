"""Recurrent layers: RNN, GRU and LSTM.

Each operator is a cell, which makes the next states of a batch from the input's share of its gates and the states
before; ``fuse.ops.recurrent`` walks it over time.  The texts of the oldest versions leave out the transposition of the
recurrent weights, which all versions mean.
Source: the ONNX operator texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuse.ir.dtypes import Array
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import wide
from fuse.ops.gates import Function, chosen, clipped
from fuse.ops.record import Info, operator
from fuse.ops.recurrent import DIRECTIONS, Step, infer_layer, run_layer

Floats = Sequence[float]


# ---- RNN


def _rnn_info(
    x: Info,
    w: Info,
    r: Info,
    b: Info | None = None,
    sequence_lens: Info | None = None,
    initial_h: Info | None = None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    n_outputs: int = 1,
) -> tuple[Info, ...]:
    inputs = {"X": x, "W": w, "R": r, "B": b, "sequence_lens": sequence_lens, "initial_h": initial_h}
    found = infer_layer(1, inputs, direction, hidden_size, layout)
    chosen(activations, activation_alpha, activation_beta, len(DIRECTIONS[direction]))
    return found


@operator("RNN", infer=_rnn_info)
@at_run_time
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """``h = f(x @ W.T + h @ R.T + b)``.  Gives all hidden states and the last ones."""
    inputs = {"X": x, "W": w, "R": r, "B": b, "sequence_lens": sequence_lens, "initial_h": initial_h}
    functions = chosen(activations, activation_alpha, activation_beta, len(DIRECTIONS.get(direction, ())))

    def cell(d: int, r: Array, b: Array) -> tuple[Step, Array]:
        f = clipped(functions[d], clip)

        def step(gates: Array, h: Array) -> tuple[Array, ...]:
            return (f(np.add(h @ r.T, gates)),)

        return step, b.reshape(2, -1).sum(axis=0)

    return run_layer(1, inputs, direction, hidden_size, layout, cell, n_outputs)


# ---- GRU


def _gru_info(
    x: Info,
    w: Info,
    r: Info,
    b: Info | None = None,
    sequence_lens: Info | None = None,
    initial_h: Info | None = None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    n_outputs: int = 1,
) -> tuple[Info, ...]:
    inputs = {"X": x, "W": w, "R": r, "B": b, "sequence_lens": sequence_lens, "initial_h": initial_h}
    found = infer_layer(3, inputs, direction, hidden_size, layout)
    count = len(DIRECTIONS[direction])
    chosen(activations or ("Sigmoid", "Tanh") * count, activation_alpha, activation_beta, 2 * count)
    return found


@operator("GRU", infer=_gru_info)
@at_run_time
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Gates update and reset, then ``h = (1 - update) * new + update * h``.  Gives all hidden states and the last ones.

    The reset gate multiplies the hidden state, or with ``linear_before_reset`` its product with the weights.
    """
    inputs = {"X": x, "W": w, "R": r, "B": b, "sequence_lens": sequence_lens, "initial_h": initial_h}
    count = len(DIRECTIONS.get(direction, ()))
    names = activations or ("Sigmoid", "Tanh") * count
    functions = chosen(names, activation_alpha, activation_beta, 2 * count)

    def cell(d: int, r: Array, b: Array) -> tuple[Step, Array]:
        f, g = (clipped(function, clip) for function in functions[2 * d : 2 * d + 2])
        return _linear_gru(r, b, f, g) if linear_before_reset else _plain_gru(r, b, f, g)

    return run_layer(3, inputs, direction, hidden_size, layout, cell, n_outputs)


def _plain_gru(r: Array, b: Array, f: Function, g: Function) -> tuple[Step, Array]:
    hidden = r.shape[1]
    gated, new = r[: 2 * hidden].T, r[2 * hidden :].T

    def step(gates: Array, h: Array) -> tuple[Array, ...]:
        both = f(np.add(h @ gated, gates[:, : 2 * hidden]))
        update, reset = both[:, :hidden], both[:, hidden:]
        fresh = g(np.add((reset * h) @ new, gates[:, 2 * hidden :]))
        return ((1 - update) * fresh + update * h,)

    return step, b.reshape(2, -1).sum(axis=0)


def _linear_gru(r: Array, b: Array, f: Function, g: Function) -> tuple[Step, Array]:
    hidden = r.shape[1]
    inner = b[5 * hidden :]  # inside what the reset gate multiplies
    bias = b[: 3 * hidden].copy()
    bias[: 2 * hidden] += b[3 * hidden : 5 * hidden]

    def step(gates: Array, h: Array) -> tuple[Array, ...]:
        product = h @ r.T
        both = f(np.add(product[:, : 2 * hidden], gates[:, : 2 * hidden]))
        update, reset = both[:, :hidden], both[:, hidden:]
        fresh = g(np.add(reset * (product[:, 2 * hidden :] + inner), gates[:, 2 * hidden :]))
        return ((1 - update) * fresh + update * h,)

    return step, bias


# ---- LSTM


def _lstm_info(
    x: Info,
    w: Info,
    r: Info,
    b: Info | None = None,
    sequence_lens: Info | None = None,
    initial_h: Info | None = None,
    initial_c: Info | None = None,
    p: Info | None = None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    n_outputs: int = 1,
) -> tuple[Info, ...]:
    inputs = {
        "X": x, "W": w, "R": r, "B": b, "sequence_lens": sequence_lens, "initial_h": initial_h, "initial_c": initial_c,
        "P": p,
    }  # fmt: skip
    found = infer_layer(4, inputs, direction, hidden_size, layout)
    count = len(DIRECTIONS[direction])
    chosen(activations or ("Sigmoid", "Tanh", "Tanh") * count, activation_alpha, activation_beta, 3 * count)
    return found


@operator("LSTM", infer=_lstm_info)
@at_run_time
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """Gates input, output, forget and cell; ``c = forget * c + input * new`` and ``h = output * tanh(c)``.

    ``p`` holds peepholes, weights by which the first three gates see the cell's state.  ``clip`` bounds the sums that
    the four gates are functions of and not the cell's state, as onnxruntime.  Gives all
    hidden states, the last ones, and the last cells.
    """
    inputs = {
        "X": x, "W": w, "R": r, "B": b, "sequence_lens": sequence_lens, "initial_h": initial_h, "initial_c": initial_c,
        "P": p,
    }  # fmt: skip
    count = len(DIRECTIONS.get(direction, ()))
    names = activations or ("Sigmoid", "Tanh", "Tanh") * count
    functions = chosen(names, activation_alpha, activation_beta, 3 * count)

    def cell(d: int, r: Array, b: Array) -> tuple[Step, Array]:
        f, g, h = functions[3 * d : 3 * d + 3]
        peepholes = None if p is None else wide(p[d]).reshape(3, -1)
        step = _lstm_step(r, peepholes, bool(input_forget), clipped(f, clip), clipped(g, clip), h)
        return step, b.reshape(2, -1).sum(axis=0)

    return run_layer(4, inputs, direction, hidden_size, layout, cell, n_outputs)


def _lstm_step(r: Array, peepholes: Array | None, coupled: bool, f: Function, g: Function, last: Function) -> Step:
    n = r.shape[1]

    def step(gates: Array, h: Array, c: Array) -> tuple[Array, ...]:
        gates = np.add(h @ r.T, gates)
        if peepholes is None:
            sides = f(gates[:, : 3 * n])
            enter, leave, forget = sides[:, :n], sides[:, n : 2 * n], sides[:, 2 * n :]
        else:
            enter = f(gates[:, :n] + peepholes[0] * c)
            forget = f(gates[:, 2 * n : 3 * n] + peepholes[2] * c)
        if coupled:
            forget = 1 - enter
        c = forget * c + enter * g(gates[:, 3 * n :])
        if peepholes is not None:
            leave = f(gates[:, n : 2 * n] + peepholes[1] * c)
        return leave * last(c.copy()), c

    return step
