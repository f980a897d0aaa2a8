"""The activation functions of recurrent layers, chosen by name and applied in place.

A list of names is shared by all gates of a layer; the parameters of those that have any are taken from two lists in
the order of the names, so that ``Tanh`` takes none and ``Affine`` one of each.
Source: the ONNX operator texts of RNN, GRU and LSTM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import Array
from fuse.ops.record import expect

Function = Callable[[Array], Array]
"""Takes an array that it may overwrite, and gives the result."""


def _sigmoid(x: Array) -> Array:
    """0 where it is below the smallest normal number."""
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1
    return np.reciprocal(x, out=x)


def _affine(x: Array, alpha: float, beta: float) -> Array:
    x *= alpha
    x += beta
    return x


def _scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    x *= beta
    np.tanh(x, out=x)
    x *= alpha
    return x


def _softsign(x: Array) -> Array:
    x /= 1 + np.abs(x)
    return x


_FUNCTIONS: dict[str, tuple[Callable[..., Array], float | None, float | None]] = {
    "Affine": (_affine, 1.0, 0.0),
    "Elu": (lambda x, alpha: np.where(x >= 0, x, np.expm1(np.minimum(x, 0)) * x.dtype.type(alpha)), 1.0, None),
    "HardSigmoid": (lambda x, alpha, beta: np.clip(_affine(x, alpha, beta), 0, 1, out=x), 0.2, 0.5),
    "LeakyRelu": (lambda x, alpha: np.where(x >= 0, x, x * x.dtype.type(alpha)), 0.01, None),
    "Relu": (lambda x: np.maximum(x, 0, out=x), None, None),
    "ScaledTanh": (_scaled_tanh, 1.0, 1.0),
    "Sigmoid": (_sigmoid, None, None),
    "Softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), None, None),
    "Softsign": (_softsign, None, None),
    "Tanh": (lambda x: np.tanh(x, out=x), None, None),
    "ThresholdedRelu": (lambda x, alpha: np.where(x >= alpha, x, x.dtype.type(0)), 1.0, None),
}
"""Each activation with the defaults of its alpha and beta; None where it has no such parameter."""

_BY_LOWER = {name.lower(): name for name in _FUNCTIONS}


def chosen(
    names: Sequence[str], alphas: Sequence[float] | None, betas: Sequence[float] | None, count: int
) -> list[Function]:
    """The functions called by the first ``count`` of ``names``.  Case does not matter."""
    expect(len(names) >= count, f"{len(names)} activations, {count} are needed")
    rest = iter(alphas or ()), iter(betas or ())
    functions = []
    for name in names[:count]:
        expect(name.lower() in _BY_LOWER, f"there is no activation {quote(name)}")
        function, *defaults = _FUNCTIONS[_BY_LOWER[name.lower()]]
        given = [next(r, default) for r, default in zip(rest, defaults, strict=True) if default is not None]
        functions.append(functools.partial(_called, function, given) if given else function)
    return functions


def _called(function: Callable[..., Array], parameters: Sequence[float], x: Array) -> Array:
    return function(x, *parameters)


def clipped(function: Function, limit: float | None) -> Function:
    """``function`` of its argument held within ``[-limit, limit]``."""
    if limit is None:
        return function
    return lambda x: function(np.clip(x, -limit, limit, out=x))
