"""The error function and the normal distribution, over whole arrays.

NumPy has neither.  Around 0 the error function is x times a rational function of x squared; beyond, one minus a tail,
which is ``exp(-x ** 2)`` times a slow function of x.  The coefficients are minimax fits (Remez's exchange, and
Chebyshev interpolation, in 60 digits); the comments give the largest relative error of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fuse.ir.dtypes import Array

BLOCK = 16384
"""Elements that are worked on at a time: what a formula needs of them in float64 stays in the cache."""

Rational = tuple[Sequence[float], Sequence[float]]

# erf(x) / x - 1 as a function of x ** 2 up to 1: 2.2e-18 of erf
_CORE: Rational = (
    (0.12837916709551256, -0.3171605714953041, -0.04794892282647204, -0.008754916621463939, -0.00048625953610761995,
     -2.029739940926224e-05),
    (1.0, 0.45930986211075164, 0.09325282767655325, 0.010582210731971612, 0.00068121552576428, 2.029739940926224e-05),
)  # fmt: skip

# (1 + 2 * x) * exp(x ** 2) * erfc(x) as a function of (x - 3) / (x + 3) for all x from 0 on: 6.8e-18
_TAIL = (
    1.2530080582697296, -0.13562110612458117, -0.0475622943534492, 0.1296451587027594, -0.11927366341538638,
    0.0683080273440099, -0.02377051491717134, 0.0025293918156939696, 0.0018886903449991718, -0.0007798322696543306,
    -0.00010515971958448065, 0.0001250993424583729, 4.949196649968345e-06, -2.0100542268525612e-05,
    -7.308281468783614e-07, 3.472370944977168e-06, 3.5576086684080595e-07, -6.166011460398726e-07,
    -1.4047654315428462e-07, 1.0183620603842736e-07, 4.1064013667940355e-08, -1.3312919661038687e-08,
    -8.217595058711455e-09, 9.862533510345587e-10, 8.393734858690877e-10,
)  # fmt: skip

# For results in float32: erf(x) / x as a function of x ** 2 up to 15.5, where it rounds to 1: 2.3e-9
_SINGLE: Rational = (
    (1.12837917, 0.1925377572, 0.05561028341, 0.004200054335, 0.0004066186064, 6.620679041e-06),
    (1.0, 0.5039655677, 0.1172712688, 0.01622708685, 0.001409789464, 7.133965837e-05, 2.508321208e-07),
)

# For results in float32: exp(x ** 2) * erfc(x) from 0 to 10.3, where erfc is 0: 6.0e-9
_SINGLE_TAIL: Rational = (
    (1.00000000596, 1.24006232491, 0.733336086658, 0.230045038951, 0.032970200712),
    (1.0, 2.36844209142, 2.40582714886, 1.3286019212, 0.407769822115, 0.0584374881578),
)


def in_blocks(x: Array, formula: Callable[[Array], Array], dtype: type = np.float64) -> Array:
    """``formula`` of ``x`` in ``dtype``, block by block, rounded once to the dtype of ``x``.

    ``formula`` takes a vector that it may overwrite and gives one of the same length.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    y = np.empty(flat.shape, x.dtype)
    for start in range(0, flat.size, BLOCK):
        part = slice(start, start + BLOCK)
        y[part] = formula(flat[part].astype(dtype))
    return y.reshape(x.shape)


def erf(x: Array) -> Array:
    """The error function in the dtype of ``x``: to an ULP of float64, to half a one of anything narrower."""
    return in_blocks(x, _erf if x.dtype == np.float64 else _erf_single)


def normal_cdf(x: Array, single: bool) -> Array:
    """The standard normal distribution of ``x`` (a vector of float64), its lower tail to full relative accuracy.

    ``single`` asks for no more than a float32 holds of it, which is twice as fast.
    """
    size = np.abs(x)
    scaled = size * np.sqrt(0.5)
    if single:
        tail = np.exp(size * size * -0.5)
        tail *= _rational(_SINGLE_TAIL, np.minimum(scaled, 11))
    else:
        tail = _decay(size, 0.5)
        tail *= _scaled_tail(scaled)
    tail *= 0.5
    y = 1 - 2 * tail  # a choice by sign, as a product: twice as fast as one by a mask
    y *= x >= 0
    y += tail
    return y


def _erf_single(x: Array) -> Array:
    np.clip(x, -3.93, 3.93, out=x)
    y = _rational(_SINGLE, x * x)
    y *= x
    return y


def _erf(x: Array) -> Array:
    size = np.abs(x)
    far = size >= 1
    square = np.minimum(size, 1)
    square *= square
    y = _rational(_CORE, square)
    y *= x
    y += x
    beyond = np.minimum(size[far], 6)
    y[far] = np.copysign(1 - np.exp(-beyond * beyond) * _scaled_tail(beyond), x[far])
    return y


def _scaled_tail(x: Array) -> Array:
    """``exp(x * x) * erfc(x)`` for ``x`` from 0 on."""
    x = np.minimum(x, 1e3)
    y = polynomial(_TAIL, (x - 3) / (x + 3))
    y /= 1 + 2 * x
    return y


def _decay(x: Array, factor: float) -> Array:
    """``exp(-factor * x * x)`` to an ULP, for ``factor`` a power of two.

    The square of the first 24 bits of ``x`` is exact; what it leaves out is so small that three terms of the
    exponential series give it.  A rounded square would cost 700 ULP where the result is near 1e-300.
    """
    x = np.minimum(x, 64)
    high = x.astype(np.float32).astype(np.float64)
    rest = (x - high) * (x + high) * factor
    y = np.exp(high * high * -factor)
    y -= y * rest * (1 - rest * (1 - rest / 3) / 2)
    return y


def polynomial(coefficients: Sequence[float], x: Array) -> Array:
    """Horner's rule, in place on a fresh array of the dtype of ``x``; the constant coefficient comes first."""
    y = x * coefficients[-1]
    for factor in coefficients[-2:0:-1]:
        y += factor
        y *= x
    y += coefficients[0]
    return y


def _rational(coefficients: Rational, x: Array) -> Array:
    y = polynomial(coefficients[0], x)
    y /= polynomial(coefficients[1], x)
    return y
