"""What the classical models of ai.onnx.ml share: their inputs as rows, their class labels, and their post transforms.

A model with one score for two classes needs a second one, and ONNX does not say how it comes about.  Here, as in
onnxruntime, it is ``1 - s`` for a score that is a probability and ``-s`` for one that is a distance.  The transform
is then applied to both, as the operator's text asks; onnxruntime leaves it out for a single score, the logistic
function of a classifier excepted.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import DOUBLE, FLOAT, INT64, STRING, Array, DType
from fuse.ops.activation import sigmoid
from fuse.ops.infer import show_shape
from fuse.ops.kept import doubles
from fuse.ops.record import Info, expect, tensor
from fuse.ops.softmax import softmax

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""The post transforms, in the order in which TreeEnsemble numbers them."""

#: Scores no larger than this count as zero for SOFTMAX_ZERO, as in onnxruntime.
_ZERO = 1e-7


# ---- inputs


def batch_of(x: Info) -> Dim:
    """The number of rows of an input [N, F]; a tensor [F] is one row."""
    if x.shape is None:
        return None
    expect(len(x.shape) in (1, 2), f"the input {show_shape(x.shape)} is neither [N, F] nor [F]")
    return x.shape[0] if len(x.shape) == 2 else 1


def rows_of(x: Array, features: int | None = None) -> Array:
    """The input as rows [N, F]; ``ShapeError`` where that is not possible or F differs from ``features``."""
    expect(x.ndim in (1, 2), f"the input {show_shape(x.shape)} is neither [N, F] nor [F]")
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    say = f"the input {show_shape(x.shape)} has {rows.shape[1]} features, the model {features}"
    expect(features is None or rows.shape[1] == features, say)
    return rows


def vector(values: Sequence[float] | None, what: str) -> Array:
    """An attribute of floats in float64; ``ShapeError`` where it is absent or empty."""
    expect(bool(values), f"needs the attribute {what!r}")
    return doubles(values or ())


# ---- labels


def labels_of(ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    """The class labels [E], int64 or string."""
    expect(bool(ints) != bool(strings), "needs class labels, either integers or strings")
    if not strings:
        return np.array(ints, dtype=INT64)
    named = np.empty(len(strings), dtype=STRING)
    named[:] = strings
    return named


def binary_labels(labels: Array) -> Array:
    """The labels of a negative and of a positive score; where the model names but one, that is the positive one."""
    expect(len(labels) <= 2, f"one score cannot tell {len(labels)} classes apart")
    if len(labels) == 2:
        return labels
    both = np.array([0, 0], dtype=INT64) if labels.dtype == INT64 else np.array(["0", "0"], dtype=STRING)
    both[1] = labels[0]
    return both


def label_dtype(strings: Sequence[str] | None) -> DType:
    """The dtype of the labels."""
    return STRING if strings else INT64


def classifier_info(x: Info, strings: Sequence[str] | None, columns: Dim) -> list[Info]:
    """Labels [N] and scores [N, columns] in float32."""
    return [tensor(label_dtype(strings), (batch_of(x),)), tensor(FLOAT, (batch_of(x), columns))]


# ---- transforms


def check_transform(name: str) -> None:
    """Raise ``ShapeError`` unless ONNX knows the transform."""
    expect(name in TRANSFORMS, f"unknown post_transform {name!r}")


def two_scores(score: Array, transform: str, probability: bool) -> Array:
    """The scores [N, 2] of the negative and the positive class, before the transform, from ``score`` [N]."""
    kept = transform == "PROBIT" or (probability and transform == "NONE")
    return np.stack([1 - score if kept else -score, score], axis=1)


def transformed(scores: Array, transform: str) -> Array:
    """``scores`` [N, E] in float64 after the post transform, each row of its own."""
    check_transform(transform)
    if transform == "NONE" or not scores.size:
        return scores
    if transform == "LOGISTIC":
        return np.asarray(sigmoid(scores))
    if transform == "SOFTMAX":
        return np.asarray(softmax(scores))
    return _softmax_zero(scores) if transform == "SOFTMAX_ZERO" else probit(scores)


def _softmax_zero(scores: Array) -> Array:
    """Softmax over the scores of a row that are not zero; the others stay zero."""
    zero = np.abs(scores) <= _ZERO
    top = np.max(scores, axis=1, keepdims=True, where=~zero, initial=-np.inf)
    parts = np.where(zero, 0, np.exp(scores - np.where(np.isfinite(top), top, 0)))
    total = parts.sum(axis=1, keepdims=True)
    return parts / np.where(zero.all(axis=1, keepdims=True), 1, total)


def probit(p: Array) -> Array:
    """The inverse of the normal distribution function, to float64's accuracy: NaN outside [0, 1], infinite at its ends.

    onnxruntime approximates it, with an error of up to 0.4 per cent.
    """
    quantile = statistics.NormalDist().inv_cdf
    flat = np.asarray(p, dtype=DOUBLE).reshape(-1)
    out = np.where(flat == 0, -np.inf, np.where(flat == 1, np.inf, np.nan))
    inside = np.flatnonzero((flat > 0) & (flat < 1))
    out[inside] = [quantile(v) for v in flat[inside].tolist()]
    return out.reshape(p.shape)
