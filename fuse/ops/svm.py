"""Support vector machines, as libsvm stores them: kernels with the support vectors, then a vote between classes.

Everything is computed in float64 and rounded to float32 once.  Sources: the operators of ai.onnx.ml, whose text leaves
the layout of the coefficients to libsvm (Chang and Lin, 2011), and for the probabilities of several classes Wu, Lin and
Weng, "Probability estimates for multi-class classification by pairwise coupling" (2004), second method.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import DOUBLE, FLOAT, Array
from fuse.ops.activation import sigmoid
from fuse.ops.bounds import at_run_time
from fuse.ops.kept import doubles
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.scores import (
    batch_of,
    check_transform,
    classifier_info,
    labels_of,
    rows_of,
    transformed,
    two_scores,
    vector,
)

KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")

#: So many kernel values are held at once.
_BLOCK = 1 << 22

#: Pairwise probabilities stay this far from 0 and 1, as in libsvm.
_MARGIN = 1e-7


def _kernel(rows: Array, vectors: Array, kind: str, params: Sequence[float] | None) -> Array:
    """The kernel of each row with each support vector: [N, V]; ``params`` are gamma, coef0 and degree."""
    expect(kind in KERNELS, f"unknown kernel_type {kind!r}")
    expect(not params or len(params) == 3, f"kernel_params are gamma, coef0 and degree; {len(params or ())} are given")
    gamma, coef0, degree = params or (0.0, 0.0, 0.0)
    if kind == "RBF":
        return np.asarray(np.exp(-gamma * _distances(rows, vectors)))
    product = rows @ vectors.T
    if kind == "LINEAR":
        return product
    product = gamma * product + coef0
    return np.asarray(np.power(product, degree) if kind == "POLY" else np.tanh(product))


def _distances(rows: Array, vectors: Array) -> Array:
    """The squared distance of each row to each vector, by one product.

    Squares that nearly cancel would cost digits where the data lies far from the origin, so both are centred first.
    """
    centre = vectors.mean(axis=0)
    rows, vectors = rows - centre, vectors - centre
    squares = (rows * rows).sum(axis=1)[:, None] + (vectors * vectors).sum(axis=1) - 2 * (rows @ vectors.T)
    squares[np.isinf(rows).any(axis=1) & ~np.isnan(rows).any(axis=1)] = np.inf
    return np.maximum(squares, 0)


def _vectors(values: Sequence[float] | None, count: int) -> Array:
    flat = vector(values, "support_vectors")
    expect(flat.size % count == 0, f"{flat.size} numbers do not divide into {count} support vectors")
    return flat.reshape(count, -1)


def _blocks(rows: Array, width: int) -> list[Array]:
    """The rows in pieces for each of which ``width`` numbers a row fit into a block."""
    step = max(_BLOCK // max(width, 1), 1)
    return [rows[i : i + step] for i in range(0, max(len(rows), 1), step)]


# ---- SVMRegressor


def _regressor_info(
    x: Info,
    *,
    coefficients: Sequence[float] | None = None,
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
) -> Info:
    check_transform(post_transform)
    return tensor(FLOAT, (batch_of(x), 1))


@operator("ai.onnx.ml::SVMRegressor", infer=_regressor_info)
@at_run_time
def svm_regressor(
    x: Array,
    *,
    coefficients: Sequence[float] | None = None,
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
) -> Array:
    """[N, 1]: kernels times coefficients plus rho; for ``one_class`` 1 for an inlier (above zero) and -1 for others.

    Without support vectors the model is linear and the coefficients are those of the features.
    """
    check_transform(post_transform)
    weights, offset = vector(coefficients, "coefficients"), vector(rho, "rho")[0]
    if n_supports > 0:
        vectors = _vectors(support_vectors, n_supports)
        expect(weights.size == n_supports, f"{weights.size} coefficients for {n_supports} support vectors")
        rows = rows_of(x, vectors.shape[1]).astype(DOUBLE)
        parts = [_kernel(block, vectors, kernel_type, kernel_params) @ weights for block in _blocks(rows, n_supports)]
        score = np.concatenate(parts) + offset
    else:
        score = rows_of(x, weights.size).astype(DOUBLE) @ weights + offset
    if one_class:
        return np.where(score > 0, 1, -1).astype(FLOAT)[:, None]
    return transformed(score[:, None], post_transform).astype(FLOAT)


# ---- SVMClassifier


def _columns(classes: int, vectors: bool, probable: bool) -> int:
    """How many scores a row has: one a class, or one a pair of classes where neither probabilities are given."""
    return classes * (classes - 1) // 2 if vectors and not probable and classes > 2 else classes


def _classifier_info(
    x: Info,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float] | None = None,
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] | None = None,
    prob_b: Sequence[float] | None = None,
    rho: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
    vectors_per_class: Sequence[int] | None = None,
) -> list[Info]:
    check_transform(post_transform)
    classes = len(labels_of(classlabels_ints, classlabels_strings))
    columns: Dim = _columns(classes, bool(sum(vectors_per_class or ())), bool(prob_a))
    return classifier_info(x, classlabels_strings, columns)


@operator("ai.onnx.ml::SVMClassifier", infer=_classifier_info)
@at_run_time
def svm_classifier(
    x: Array,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float] | None = None,
    kernel_params: Sequence[float] | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] | None = None,
    prob_b: Sequence[float] | None = None,
    rho: Sequence[float] | None = None,
    support_vectors: Sequence[float] | None = None,
    vectors_per_class: Sequence[int] | None = None,
) -> tuple[Array, Array]:
    """The class with most votes of the pairwise decisions (the first of several), and the scores.

    The scores are probabilities [N, classes] where ``prob_a`` is given, else the decisions [N, pairs], those of two
    classes as ``-s, s``.  Without support vectors the model is linear, with one score a class, the greatest of which
    wins.
    """
    check_transform(post_transform)
    labels = labels_of(classlabels_ints, classlabels_strings)
    weights, offset = vector(coefficients, "coefficients"), vector(rho, "rho")
    classes, counts = len(labels), list(vectors_per_class or ())
    if sum(counts) == 0:
        expect(weights.size % classes == 0, f"{weights.size} coefficients do not divide among {classes} classes")
        table = weights.reshape(classes, -1)
        scores = rows_of(x, table.shape[1]).astype(DOUBLE) @ table.T + offset[0]
        return labels[np.argmax(scores, axis=1)], transformed(scores, post_transform).astype(FLOAT)
    expect(len(counts) == classes > 1, f"{len(counts)} counts of support vectors for {classes} class labels")
    vectors = _vectors(support_vectors, sum(counts))
    table = _first(weights, (classes - 1) * len(vectors), "coefficients").reshape(classes - 1, -1)
    rows, pairs = rows_of(x, vectors.shape[1]).astype(DOUBLE), classes * (classes - 1) // 2
    kernels = (_kernel(block, vectors, kernel_type, kernel_params) for block in _blocks(rows, len(vectors)))
    decisions = np.concatenate([_decisions(kernel, table, counts) for kernel in kernels])
    decisions = decisions + _first(offset, pairs, "rho")
    if prob_a:
        a, b = _first(doubles(prob_a), pairs, "prob_a"), _first(vector(prob_b, "prob_b"), pairs, "prob_b")
        scores = _coupled(np.clip(sigmoid(-(decisions * a + b)), _MARGIN, 1 - _MARGIN), classes)
    else:
        scores = decisions if classes > 2 else two_scores(decisions[:, 0], post_transform, probability=False)
    return labels[np.argmax(_votes(decisions, classes), axis=1)], transformed(scores, post_transform).astype(FLOAT)


def _first(values: Array, count: int, what: str) -> Array:
    """The first ``count`` numbers of an attribute, which must have as many; more are not read, as in onnxruntime."""
    expect(values.size >= count, f"{values.size} numbers in {what!r}, the model needs {count}")
    return values[:count]


def _decisions(kernel: Array, table: Array, counts: Sequence[int]) -> Array:
    """The decision between each pair of classes, without rho: [N, pairs], above zero for the first of the pair.

    ``table`` [classes - 1, V] holds for a support vector of class i its coefficient against class j in row j, one row
    less where j lies behind i.
    """
    ends = np.cumsum([0, *counts])
    parts = np.stack([kernel[:, a:b] @ table[:, a:b].T for a, b in pairwise(ends.tolist())])
    i, j = np.triu_indices(len(counts), 1)
    return (parts[i, :, j - 1] + parts[j, :, i]).T


def _votes(decisions: Array, classes: int) -> Array:
    """How many of its pairs each class wins: [N, classes]."""
    i, j = np.triu_indices(classes, 1)
    unit = np.eye(classes, dtype=FLOAT)
    first = (decisions > 0).astype(FLOAT)
    return first @ unit[i] + (1 - first) @ unit[j]


def _coupled(chances: Array, classes: int) -> Array:
    """Class probabilities [N, classes] from those of the first of each pair [N, pairs], by pairwise coupling.

    Each row is iterated until its own error is small, as libsvm does, so that what a row gets does not depend on the
    rows beside it.
    """
    i, j = np.triu_indices(classes, 1)
    r = np.zeros((len(chances), classes, classes))
    r[:, i, j], r[:, j, i] = chances, 1 - chances
    q = -np.swapaxes(r, 1, 2) * r
    diagonal = np.arange(classes)
    q[:, diagonal, diagonal] = (r * r).sum(axis=1)
    p = np.full((len(chances), classes), 1 / classes)
    active = np.arange(len(chances))
    for _ in range(max(100, classes)):
        qp = np.einsum("nij,nj->ni", q[active], p[active])
        pqp = (p[active] * qp).sum(axis=1)
        open_ = np.abs(qp - pqp[:, None]).max(axis=1) >= 0.005 / classes
        active, qp, pqp = active[open_], qp[open_], pqp[open_]
        if not active.size:
            break
        p[active] = _sweep(q[active], p[active], qp, pqp)
    return p


def _sweep(q: Array, p: Array, qp: Array, pqp: Array) -> Array:
    """One pass of the coupling over all classes, for all rows at once."""
    for t in range(p.shape[1]):
        own = q[:, t, t]
        diff = (pqp - qp[:, t]) / own
        pqp = (pqp + diff * (diff * own + 2 * qp[:, t])) / (1 + diff) ** 2
        p[:, t] += diff
        qp = (qp + diff[:, None] * q[:, t]) / (1 + diff)[:, None]
        p /= (1 + diff)[:, None]
    return p
