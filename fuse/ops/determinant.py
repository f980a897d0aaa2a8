"""Det: determinants of a batch of square matrices, by elimination with row exchanges.

``numpy.linalg.det`` returns the exponential of a sum of logarithms, which loses digits of large and small determinants.
Here the pivots are multiplied as mantissas and exponents, so that nothing overflows on the way.
Source: the ONNX operator text.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.infer import show_shape
from fuse.ops.record import expect, operator, tensor

D = TypeVar("D", bound=Dim)


def _batch(shape: tuple[D, ...]) -> tuple[D, ...]:
    message = f"takes square matrices, the input is {show_shape(shape)}"
    expect(len(shape) >= 2, message)
    same_dim(shape[-2:], message)
    return shape[:-2]


@operator("Det", infer=lambda x: tensor(x.dtype, None if x.shape is None else _batch(x.shape)))
@at_run_time
def det(x: Array) -> Array:
    """The determinant of each matrix in the last two axes, computed in float64; 1 for an empty one."""
    lead = _batch(x.shape)
    n = x.shape[-1]
    a = x.astype(np.float64).reshape(math.prod(lead), n, n)
    every = np.arange(len(a))
    mantissa, exponent = np.ones(len(a)), np.zeros(len(a), np.int64)
    for k in range(n):
        size = np.abs(a[:, k:, k])
        row = k + np.argmax(size, axis=1)
        mantissa = np.where(row == k, mantissa, -mantissa)
        a[every, row], a[:, k] = a[:, k].copy(), a[every, row]
        pivot = a[:, k, k]
        mantissa, shift = np.frexp(mantissa * pivot)
        exponent += shift
        below = a[:, k + 1 :, k] / np.where(pivot == 0, 1, pivot)[:, None]
        a[:, k + 1 :, k + 1 :] -= below[:, :, None] * a[:, k, None, k + 1 :]
    return np.ldexp(mantissa, np.clip(exponent, -4096, 4096)).astype(x.dtype).reshape(lead)
