"""DynamicQuantizeLSTM: an LSTM with 8-bit weights that quantises its input once and its hidden state at every step.

Both are quantised by the range of the whole batch.  onnxruntime does the same with one thread; with more it cuts a
batch into as many parts and takes each part's own range, so that its answers depend on the machine.
Source: onnxruntime's docs/ContribOperators.md; the equations are those of LSTM in the ONNX operator text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.gates import Function, chosen, clipped
from fuse.ops.infer import show_shape
from fuse.ops.qmatmul import centred, reach, whole_product
from fuse.ops.quant import measured, steps
from fuse.ops.record import Info, expect, operator, tensor


def _directions(direction: str) -> int:
    expect(direction in ("forward", "reverse", "bidirectional"), f"there is no direction {quote(direction)}")
    return 2 if direction == "bidirectional" else 1


def _dims(x: Shape | None, w: Shape | None, r: Shape | None, direction: str, hidden_size: int | None) -> Shape:
    """(length, batch, hidden size); ``ShapeError`` where input and weights do not fit."""
    count = _directions(direction)
    for what, shape in (("X", x), ("W", w), ("R", r)):
        expect(shape is None or len(shape) == 3, f"{what} is {show_shape(shape)}, its rank should be 3")
    length, batch, width = (None,) * 3 if x is None else x
    hidden: Dim = hidden_size
    if r is not None:
        say = f"R {show_shape(r)} does not fit {count} directions of hidden size {hidden_size}"
        hidden = same_dim([hidden, r[1]], say)
        same_dim([r[0], count], say)
        same_dim([r[2], None if hidden is None else 4 * hidden], say)
    if w is not None:
        say = f"W {show_shape(w)} does not fit {count} directions, inputs of {width} and hidden size {hidden}"
        same_dim([w[0], count], say)
        same_dim([w[1], width], say)
        same_dim([w[2], None if hidden is None else 4 * hidden], say)
    return length, batch, hidden


def _lstm_info(
    x: Info,
    w: Info,
    r: Info,
    *others: Info | None,
    direction: str = "forward",
    hidden_size: int | None = None,
    **_: Any,
) -> tuple[Info, Info, Info]:
    length, batch, hidden = _dims(x.shape, w.shape, r.shape, direction, hidden_size)
    count = _directions(direction)
    state = tensor(x.dtype, (count, batch, hidden))
    return tensor(x.dtype, (length, count, batch, hidden)), state, state


@operator("com.microsoft::DynamicQuantizeLSTM", infer=_lstm_info)
@at_run_time
def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero: Array,
    r_scale: Array,
    r_zero: Array,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Array, Array, Array]:
    """All hidden states (length, directions, batch, hidden), the last ones, and the last cell states.

    ``x`` is (length, batch, inputs), ``w`` (directions, inputs, 4 * hidden), ``r`` (directions, hidden, 4 * hidden);
    the gates stand in the order input, output, forget, cell.
    """
    length, batch, hidden = (int(d) for d in _dims(x.shape, w.shape, r.shape, direction, hidden_size))  # type: ignore[arg-type]
    count = _directions(direction)
    names = activations or ("Sigmoid", "Tanh", "Tanh") * count
    functions = [clipped(f, clip) for f in chosen(names, activation_alpha, activation_beta, 3 * count)]
    ends = np.full(batch, length) if lengths is None else lengths
    fits = ends.shape == (batch,) and bool(((ends >= 0) & (ends <= length)).all())
    expect(fits, f"sequence_lens {ends.tolist()} do not fit {batch} sequences of {length}")
    bias = np.zeros((count, 8 * hidden), x.dtype) if b is None else _sized(b, (count, 8 * hidden), "B")
    zeros = np.zeros((count, batch, hidden), x.dtype)
    h = zeros if initial_h is None else _sized(initial_h, zeros.shape, "initial_h")
    c = zeros if initial_c is None else _sized(initial_c, zeros.shape, "initial_c")
    peepholes = None if p is None else _sized(p, (count, 3 * hidden), "P")
    results = []
    for k in range(count):
        layer = _Layer(
            _Weights(w[k], _one(w_scale, k, 4 * hidden, "W_scale"), _one(w_zero, k, 4 * hidden, "W_zero_point")),
            _Weights(r[k], _one(r_scale, k, 4 * hidden, "R_scale"), _one(r_zero, k, 4 * hidden, "R_zero_point")),
            bias[k, : 4 * hidden] + bias[k, 4 * hidden :],
            None if peepholes is None else peepholes[k].reshape(3, hidden),
            functions[3 * k : 3 * k + 3],
            bool(input_forget),
        )
        backwards = direction == "reverse" or k == 1
        order = _reversal(ends, length) if backwards else None
        y, last_h, last_c = layer.run(x if order is None else _reordered(x, order), ends, h[k], c[k])
        results.append((y if order is None else _reordered(y, order), last_h, last_c))
    ys, hs, cs = zip(*results, strict=True)
    return np.stack(ys, axis=1), np.stack(hs), np.stack(cs)


def _sized(x: Array, shape: tuple[int, ...], what: str) -> Array:
    expect(x.shape == shape, f"{what} is {list(x.shape)}, it should be {list(shape)}")
    return x


def _one(p: Array, direction: int, columns: int, what: str) -> Array:
    """The parameter of one direction: a single one, or one a column."""
    fits = direction < len(p) and (p.ndim == 1 or p.shape[1:] == (columns,))
    expect(fits, f"{what} {list(p.shape)} is neither one nor {columns} a direction")
    return np.asarray(p[direction])


def _reversal(ends: Array, length: int) -> Array:
    """For each sequence the steps from its last to its first; the padding behind stays where it is."""
    at = np.arange(length)[:, None]
    return np.where(at < ends, ends - 1 - at, at)


def _reordered(x: Array, order: Array) -> Array:
    return np.take_along_axis(x, order[:, :, None], axis=0)


@dataclass(slots=True)
class _Weights:
    """A quantised matrix: ``times`` multiplies with it what is quantised on the spot."""

    matrix: Array
    scale: Array
    zero: Array
    largest: int = 0

    def __post_init__(self) -> None:
        self.largest = reach(self.matrix.dtype, self.zero)
        self.matrix = centred(self.matrix, self.zero)

    def times(self, x: Array) -> Array:
        scale, zero = measured(x)
        codes = centred(steps(x, scale, zero, zero.dtype), zero)
        return np.asarray(whole_product(codes, self.matrix, 255 * self.largest).astype(x.dtype) * (scale * self.scale))


@dataclass(frozen=True, slots=True)
class _Layer:
    """One direction of the LSTM."""

    inputs: _Weights
    recurrence: _Weights
    bias: Array
    peepholes: Array | None
    functions: Sequence[Function]
    input_forget: bool

    def run(self, x: Array, ends: Array, h: Array, c: Array) -> tuple[Array, Array, Array]:
        """All hidden states (zero behind each sequence's end), and the states at the ends (zero for no steps)."""
        length, batch = x.shape[:2]
        steps_ = int(ends.max(initial=0))
        projected = self.inputs.times(x[:steps_].reshape(-1, x.shape[2])).reshape(steps_, batch, 4 * h.shape[1])
        projected += self.bias
        y = np.zeros((length, *h.shape), x.dtype)
        last_h, last_c = np.zeros_like(h), np.zeros_like(c)
        for t in range(steps_):
            running, ending = np.less(t, ends)[:, None], np.equal(t + 1, ends)[:, None]
            h, c = self.step(projected[t], h, c)
            y[t] = h = np.where(running, h, h.dtype.type(0))
            np.copyto(last_h, h, where=ending)
            np.copyto(last_c, c, where=ending)
        return y, last_h, last_c

    def step(self, projected: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """The next hidden and cell state."""
        f, g, after = self.functions
        gates = projected + self.recurrence.times(h)
        size = c.shape[-1]
        i, o, forget, cell = (gates[:, k * size : (k + 1) * size] for k in range(4))
        pi, po, pf = (0, 0, 0) if self.peepholes is None else self.peepholes
        i = f(i + pi * c)
        forget = 1 - i if self.input_forget else f(forget + pf * c)
        c = forget * c + i * g(cell)
        return f(o + po * c) * after(c.copy()), c
