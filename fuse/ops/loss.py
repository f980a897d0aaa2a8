"""Losses of classification: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

Scores are (N, C, d1, ..., dk), labels (N, d1, ..., dk).  A label equal to ``ignore_index`` counts for nothing, in the
mean's divisor neither; any other must be a class.  Sums are taken in float64 and rounded once.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import numpy as np

from fuse.errors import RunError, quote
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.softmax import log_softmax


def _loss_dims(scores: Shape | None, labels: Shape | None, weight: Shape | None, reduction: str) -> Shape | None:
    """The shape of the loss; raises ``ShapeError`` where the inputs do not fit together."""
    expect(reduction in ("none", "mean", "sum"), f"reduction {quote(reduction)} is not none, mean or sum")
    if scores is not None:
        expect(len(scores) >= 2, f"the input needs batch and class, its shape is {show_shape(scores)}")
        if weight is not None:
            wrong = f"weight is {show_shape(weight)} for {scores[1]} classes"
            expect(len(weight) == 1, wrong)
            same_dim((weight[0], scores[1]), wrong)
    places = None if scores is None else (scores[0], *scores[2:])
    if places is not None and labels is not None:
        wrong = f"labels are {show_shape(labels)}, the input {show_shape(scores)} needs {show_shape(places)}"
        expect(len(labels) == len(places), wrong)
        places = tuple(same_dim(pair, wrong) for pair in zip(places, labels, strict=True))
    return () if reduction != "none" else places if places is not None else labels


def _loss(logs: Array, labels: Array, weight: Array | None, ignore_index: int | None, reduction: str) -> Array:
    """The loss of log-probabilities, in the dtype of ``logs``."""
    _loss_dims(logs.shape, labels.shape, None if weight is None else weight.shape, reduction)
    counted = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    outside = counted & ((labels < 0) | (labels >= logs.shape[1]))
    if outside.any():
        raise RunError(f"label {int(labels[outside][0])} is outside the {logs.shape[1]} classes")
    index = np.where(counted, labels, 0).astype(np.int64)
    picked = np.take_along_axis(logs, index[:, None], axis=1)[:, 0]
    own = 1.0 if weight is None else weight.astype(np.float64)[index]
    factor = np.where(counted, own, 0)
    loss = np.where(counted, -picked.astype(np.float64), 0) * factor
    if reduction == "none":
        return loss.astype(logs.dtype)
    total = loss.sum()
    return np.asarray(total / factor.sum() if reduction == "mean" else total).astype(logs.dtype)


def _nll_info(
    x: Info, target: Info, weight: Info | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Info:
    shape = _loss_dims(x.shape, target.shape, None if weight is None else weight.shape, reduction)
    return tensor(common_dtype(x, weight), shape)


@operator("NegativeLogLikelihoodLoss", infer=_nll_info)
@at_run_time
def negative_log_likelihood_loss(
    x: Array, target: Array, weight: Array | None = None, *, ignore_index: int | None = None, reduction: str = "mean"
) -> Array:
    """Minus the log-probability of each label's class, times the weight of the class; the mean is by weight."""
    return _loss(x, target, weight, ignore_index, reduction)


def _cross_entropy_info(
    scores: Info,
    labels: Info,
    weights: Info | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    n_outputs: int = 1,
) -> tuple[Info, Info]:
    return _nll_info(scores, labels, weights, ignore_index=ignore_index, reduction=reduction), Info(scores.type)


@operator("SoftmaxCrossEntropyLoss", infer=_cross_entropy_info)
@at_run_time
def softmax_cross_entropy_loss(
    scores: Array,
    labels: Array,
    weights: Array | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """The negative log-likelihood loss of the scores' log-softmax over the classes, which is the second output."""
    _loss_dims(scores.shape, labels.shape, None if weights is None else weights.shape, reduction)
    logs = log_softmax(wide(scores), axis=1)
    loss = narrow(_loss(logs, labels, weights, ignore_index, reduction), scores)
    return loss if n_outputs == 1 else (loss, narrow(logs, scores))
