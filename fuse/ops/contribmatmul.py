"""Matrices in the domain ``com.microsoft``: products with transposed factors and an activation, inverses, distances.

Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.matmul import matmul_dims, product
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor

#: What may follow a product; its parameters are called ``activation_alpha`` and so on.
ACTIVATIONS = (
    "Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "LogSoftmax", "Relu", "Selu", "Sigmoid", "Softmax",
    "Softplus", "Softsign", "Tanh", "ThresholdedRelu",
)  # fmt: skip


def _order(rank: int, batch: int, last: int) -> list[int]:
    """The axes of a factor as the product takes them: the first one before the last, then the last two swapped."""
    axes = list(range(rank))
    if batch:
        axes = [*axes[1:-1], 0, axes[-1]]
    if last and rank > 1:
        axes[-2:] = axes[:-3:-1]
    return axes


def _turned_shape(shape: Shape | None, batch: int, last: int) -> Shape | None:
    return None if shape is None else tuple(shape[a] for a in _order(len(shape), batch, last))


def _check_ranks(a: Shape | None, b: Shape | None, batch: int) -> None:
    if batch and a is not None and b is not None:
        expect(len(a) == len(b) >= 3, f"a batch is transposed, and the ranks are {len(a)} and {len(b)}")


def _fused_info(
    a: Info,
    b: Info,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Info:
    _check_ranks(a.shape, b.shape, transBatchA or transBatchB)
    left, right = _turned_shape(a.shape, transBatchA, transA), _turned_shape(b.shape, transBatchB, transB)
    return tensor(common_dtype(a, b), matmul_dims(left, right))


@operator("com.microsoft::FusedMatMul", infer=_fused_info)
@at_run_time
def fused_matmul(
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """``alpha`` times the product of the factors, each with its last axes swapped where its ``trans`` is 1.

    ``transBatch`` moves the first axis before the last, ahead of that.  Vectors stay as they are.
    """
    _check_ranks(a.shape, b.shape, transBatchA or transBatchB)
    left = wide(a).transpose(_order(a.ndim, transBatchA, transA))
    right = wide(b).transpose(_order(b.ndim, transBatchB, transB))
    matmul_dims(left.shape, right.shape)
    y = np.asarray(product(left, right))
    if alpha != 1.0:
        y *= y.dtype.type(alpha)
    return narrow(y, a)


def _transposed_info(a: Info, b: Info, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Info:
    return _fused_info(a, b, transA=transA, transB=transB)


@operator("com.microsoft::TransposeMatMul", infer=_transposed_info)
def transpose_matmul(a: Array, b: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Array:
    """FusedMatMul under its old name."""
    return fused_matmul(a, b, alpha=alpha, transA=transA, transB=transB)


def _activated_info(
    a: Info,
    b: Info,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attrs: Any,
) -> Info:
    expect(activation in ACTIVATIONS, f"activation {quote(activation)} is not one of {', '.join(ACTIVATIONS)}")
    return _fused_info(a, b, **attrs)


@operator("com.microsoft::FusedMatMulActivation", infer=_activated_info)
@at_run_time
def fused_matmul_activation(
    a: Array,
    b: Array,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """FusedMatMul, then the activation with its own parameters; those that are absent have its defaults."""
    expect(activation in ACTIVATIONS, f"activation {quote(activation)} is not one of {', '.join(ACTIVATIONS)}")
    y = fused_matmul(
        wide(a), wide(b), alpha=alpha, transA=transA, transB=transB, transBatchA=transBatchA, transBatchB=transBatchB
    )
    record = OPERATORS[activation]
    given = {
        "alpha": activation_alpha, "axis": activation_axis, "beta": activation_beta, "gamma": activation_gamma,
    }  # fmt: skip
    own = {name: value for name, value in given.items() if value is not None and name in record.defaults}
    return narrow(np.asarray(record.kernel(y, **own)), a)


# ---- Inverse


def _square(x: Shape | None) -> None:
    if x is not None:
        expect(len(x) >= 2, f"takes square matrices, the input is {show_shape(x)}")
        same_dim(x[-2:], f"takes square matrices, the input is {show_shape(x)}")


def _inverse_info(x: Info) -> Info:
    _square(x.shape)
    return Info(x.type)


@operator("com.microsoft::Inverse", infer=_inverse_info)
@at_run_time
def inverse(x: Array) -> Array:
    """The inverse of each matrix in the last two axes, computed in float64; ``RunError`` for a singular one."""
    _square(x.shape)
    try:
        return np.linalg.inv(x.astype(np.float64)).astype(x.dtype)
    except np.linalg.LinAlgError:
        raise RunError("a matrix is singular and has no inverse") from None


# ---- CDist

METRICS = ("sqeuclidean", "euclidean")
BLOCK = 1 << 18
"""About how many differences are held at a time."""
NEAR = 1e-5
"""A square below this share of the rows' own squares has lost digits where it was multiplied out."""


def _distances(a: Shape | None, b: Shape | None, metric: str) -> Shape:
    expect(metric in METRICS, f"metric {quote(metric)} is not one of {', '.join(METRICS)}")
    for what, shape in (("A", a), ("B", b)):
        expect(shape is None or len(shape) == 2, f"{what} is {show_shape(shape)}, not a matrix")
    if a is not None and b is not None:
        same_dim((a[1], b[1]), f"rows of A {show_shape(a)} and B {show_shape(b)} have different lengths")
    return (None if a is None else a[0], None if b is None else b[0])


def _cdist_info(a: Info, b: Info, *, metric: str = "sqeuclidean") -> Info:
    return tensor(common_dtype(a, b), _distances(a.shape, b.shape, metric))


@operator("com.microsoft::CDist", infer=_cdist_info)
@at_run_time
def cdist(a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """The distance of each row of ``a`` to each row of ``b``, computed in float64: equal rows are at 0."""
    _distances(a.shape, b.shape, metric)
    left, right = a.astype(np.float64), b.astype(np.float64)
    squares = _squares(left, right, multiplied=a.dtype != np.float64)
    return (np.sqrt(squares) if metric == "euclidean" else squares).astype(a.dtype)


def _squares(a: Array, b: Array, multiplied: bool) -> Array:
    """Squared distances; ``multiplied`` out where that leaves all the digits of a float32, else from differences."""
    if not multiplied:
        near = np.ones((len(a), len(b)), bool)
        y = np.empty(near.shape)
    else:
        sizes = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1)
        y = sizes - 2 * (a @ b.T)
        near = ~(y > NEAR * sizes)  # what is no number too
    rows, columns = np.nonzero(near)
    step = max(1, BLOCK // max(a.shape[1], 1))
    for start in range(0, len(rows), step):
        some = slice(start, start + step)
        difference = a[rows[some]] - b[columns[some]]
        y[rows[some], columns[some]] = np.einsum("ij,ij->i", difference, difference)
    return y
