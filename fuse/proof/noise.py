"""Noise: the raw graph with each weight moved by one unit in the last place, to see how far that moves the answers."""

from __future__ import annotations

import functools

import numpy as np

from fuse.ir.copy import copy_model
from fuse.ir.dtypes import FLOATING, Array
from fuse.ir.graph import Value
from fuse.ir.model import Model


def nudged(model: Model, seed: int) -> Model:
    """A copy of ``model`` whose float weights are one unit in the last place up or down, at random.

    Left alone are single elements (exponents, bounds, epsilons: a power of 2.0000002 has no answer for a negative
    base), zeros, floats of one byte, and elements that would leave the finite numbers.
    """
    result = copy_model(model)
    count = 0
    for top in result.graphs():
        for graph in top.walk_graphs():
            for value in [*graph.constants, *graph.inputs]:
                if value.dtype in FLOATING and value.dtype.itemsize > 1 and _has_many(value):
                    count += 1
                    value.set_data(functools.partial(_nudge, value.array, seed * 1_000_003 + count))
    return result


def _has_many(value: Value) -> bool:
    return (value.is_const or value.data is not None) and value.array.size > 1


def _nudge(array: Array, seed: int) -> Array:
    """``array`` with the magnitude of each nonzero finite element one step up or down, where the step stays finite."""
    whole = np.dtype(f"u{array.dtype.itemsize}")
    bits = np.ascontiguousarray(array).reshape(-1).view(whole)
    up = np.random.default_rng(seed).integers(0, 2, bits.size, dtype=np.uint8).astype(bool)
    moved = np.where(up, bits + whole.type(1), bits - whole.type(1)).astype(whole)
    flat = np.ascontiguousarray(array).reshape(-1)
    result = moved.view(array.dtype)
    with np.errstate(all="ignore"):
        keep = (flat == 0) | ~np.isfinite(flat) | ~np.isfinite(result)
    return np.where(keep, flat, result).astype(array.dtype).reshape(array.shape)
