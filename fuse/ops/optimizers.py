"""One step of training: Adagrad, Adam and Momentum, each for any number of tensors.

Inputs are the learning rate, the count of updates, then all tensors, all gradients, and all of each state in turn;
outputs the new tensors and states in the same order.  A step is computed in float64 and rounded once, so that small
updates of large values are not lost in between.  Source: the operator texts of ai.onnx.preview.training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuse.ir.dtypes import DOUBLE, Array
from fuse.ops.bounds import at_run_time, single
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator

Step = Callable[..., tuple[Array, ...]]


def _groups(count: int, states: int) -> int:
    """How many tensors are optimised, of ``count`` inputs: each has itself, a gradient and ``states`` more."""
    width = 2 + states
    expect(count > 0 and count % width == 0, f"{count} tensors do not make groups of {width}")
    return count // width


def _infer(states: int) -> Callable[..., list[Info]]:
    def infer(r: Info, t: Info, first: Info, *others: Info, **attrs: object) -> list[Info]:
        inputs = (first, *others)
        size = _groups(len(inputs), states)
        return [Info(i.type) for i in (*inputs[:size], *inputs[2 * size :])]

    return infer


def _stepped(states: int, r: Array, t: Array, inputs: Sequence[Array], step: Step) -> tuple[Array, ...]:
    """``step(rate, updates, x, g, *states)`` for each tensor; it returns x and the states anew."""
    size = _groups(len(inputs), states)
    rate, updates = float(single(r, "the learning rate")), int(single(t, "the update count"))
    columns: list[tuple[Array, ...]] = []
    for i in range(size):
        own = inputs[i::size]
        say = f"a tensor {show_shape(own[0].shape)} with others {', '.join(show_shape(o.shape) for o in own[1:])}"
        expect(all(o.shape == own[0].shape for o in own), say)
        made = step(rate, updates, *(o.astype(DOUBLE) for o in own))
        kept = (own[0], *own[2:])
        columns.append(tuple(np.asarray(m).astype(k.dtype) for m, k in zip(made, kept, strict=True)))
    return tuple(column[k] for k in range(1 + states) for column in columns)


@operator("ai.onnx.preview.training::Adagrad", infer=_infer(1))
@at_run_time
def adagrad(
    r: Array,
    t: Array,
    first: Array,
    *others: Array,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Array, ...]:
    """``h += g * g; x -= r / (1 + t * decay) * g / (sqrt(h) + epsilon)``, with ``norm_coefficient * x`` in ``g``."""

    def step(rate: float, updates: int, x: Array, g: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        h = h + g * g
        return x - rate / (1 + updates * decay_factor) * g / (np.sqrt(h) + epsilon), h

    return _stepped(1, r, t, (first, *others), step)


@operator("ai.onnx.preview.training::Adam", infer=_infer(2))
@at_run_time
def adam(
    r: Array,
    t: Array,
    first: Array,
    *others: Array,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Array, ...]:
    """Averages ``v`` of the gradient and ``h`` of its square; ``x -= rate * v / (sqrt(h) + epsilon)``.

    The rate makes up for averages that started from zero, where ``t`` is above zero.
    """

    def step(rate: float, updates: int, x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        if updates > 0:
            rate = rate * np.sqrt(1 - np.float64(beta) ** updates) / (1 - np.float64(alpha) ** updates)
        return (1 - norm_coefficient_post) * (x - rate * v / (np.sqrt(h) + epsilon)), v, h

    return _stepped(2, r, t, (first, *others), step)


@operator("ai.onnx.preview.training::Momentum", infer=_infer(1))
@at_run_time
def momentum(
    r: Array, t: Array, first: Array, *others: Array, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Array, ...]:
    """``v = alpha * v + beta * g; x -= r * v``, or ``x -= r * (g + alpha * v)`` for Nesterov's; the first beta is 1."""
    expect(mode in ("standard", "nesterov"), f"mode {mode!r} is neither standard nor nesterov")

    def step(rate: float, updates: int, x: Array, g: Array, v: Array) -> tuple[Array, ...]:
        g = norm_coefficient * x + g
        v = alpha * v + (beta if updates > 0 else 1.0) * g
        return x - rate * (v if mode == "standard" else g + alpha * v), v

    return _stepped(1, r, t, (first, *others), step)
