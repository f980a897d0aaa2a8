"""Random tensors, drawn by a NumPy generator that ``seed`` starts, or the machine's entropy where none is given.

A seed gives the same numbers on every run and every machine; they are not the numbers of another runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dtypes import BY_CODE, Array, DType
from fuse.ops.bounds import at_run_time
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

R = Trait.RANDOM


def generator(seed: float | None) -> np.random.Generator:
    """A generator started by the bits of ``seed`` as float32, so that 0.1 and 0.2 differ."""
    return np.random.default_rng(None if seed is None else int(np.float32(seed).view(np.uint32)))


def _normal(shape: Sequence[int], dtype: DType, seed: float | None, mean: float, scale: float) -> Array:
    return np.asarray(generator(seed).normal(mean, scale, tuple(shape))).astype(dtype)


def _uniform(shape: Sequence[int], dtype: DType, seed: float | None, low: float, high: float) -> Array:
    return np.asarray(generator(seed).uniform(low, high, tuple(shape))).astype(dtype)


def _new_info(*, shape: Sequence[int], dtype: int = 1, **attrs: Any) -> Info:
    expect(all(d >= 0 for d in shape), f"negative size in {show_shape(tuple(shape))}")
    return tensor(BY_CODE[dtype], shape)


def _like_info(x: Info, *, dtype: int | None = None, **attrs: Any) -> Info:
    return tensor(x.dtype if dtype is None else BY_CODE[dtype], x.shape)


def _dtype(x: Array, dtype: int | None) -> DType:
    return x.dtype if dtype is None else BY_CODE[dtype]


@operator("RandomNormal", infer=_new_info, traits=R)
@at_run_time
def random_normal(
    *, shape: Sequence[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    return _normal(shape, BY_CODE[dtype], seed, mean, scale)


@operator("RandomUniform", infer=_new_info, traits=R)
@at_run_time
def random_uniform(
    *, shape: Sequence[int], dtype: int = 1, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Array:
    return _uniform(shape, BY_CODE[dtype], seed, low, high)


@operator("RandomNormalLike", infer=_like_info, traits=R)
@at_run_time
def random_normal_like(
    x: Array, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Array:
    return _normal(x.shape, _dtype(x, dtype), seed, mean, scale)


@operator("RandomUniformLike", infer=_like_info, traits=R)
@at_run_time
def random_uniform_like(
    x: Array, *, dtype: int | None = None, high: float = 1.0, low: float = 0.0, seed: float | None = None
) -> Array:
    return _uniform(x.shape, _dtype(x, dtype), seed, low, high)


@operator("Bernoulli", infer=_like_info, traits=R)
def bernoulli(x: Array, *, dtype: int | None = None, seed: float | None = None) -> Array:
    """1 with the probability that ``x`` gives, 0 otherwise."""
    wide = x.astype(np.float64)
    if not ((wide >= 0) & (wide <= 1)).all():
        raise RunError("a probability is outside [0, 1]")
    return np.asarray(generator(seed).random(x.shape) < wide).astype(_dtype(x, dtype))


def _multinomial_info(x: Info, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Info:
    expect(x.rank in (None, 2), f"the input {show_shape(x.shape)} is not [batch, classes]")
    expect(sample_size >= 0, f"sample_size {sample_size} is negative")
    return tensor(BY_CODE[dtype], (None if x.shape is None else x.shape[0], sample_size))


@operator("Multinomial", infer=_multinomial_info, traits=R)
@at_run_time
def multinomial(x: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Array:
    """Classes drawn with replacement; each row of ``x`` holds unnormalised log-probabilities."""
    _multinomial_info(tensor(x.dtype, x.shape), dtype=dtype, sample_size=sample_size)
    rows, classes = x.shape
    expect(classes > 0 or rows * sample_size == 0, "there is no class to draw from")
    draws = generator(seed).random((rows, sample_size))
    out = np.empty((rows, sample_size), dtype=BY_CODE[dtype])
    for i, logits in enumerate(x.astype(np.float64)):
        if classes == 0:
            break
        with np.errstate(invalid="ignore"):
            weights = np.cumsum(np.exp(logits - logits.max()))
        if not weights[-1] > 0:
            raise RunError(f"row {i} holds no class that can be drawn")
        last = np.searchsorted(weights, weights[-1])  # of the classes that have any weight
        out[i] = np.searchsorted(weights, draws[i] * weights[-1], side="right").clip(max=last)
    return out
