"""Linear models: a product with the coefficients, an intercept, and a post transform.

Scores are computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuse.ir.dtypes import DOUBLE, FLOAT, Array
from fuse.ops.bounds import at_run_time
from fuse.ops.kept import doubles
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.scores import (
    batch_of,
    binary_labels,
    check_transform,
    classifier_info,
    labels_of,
    rows_of,
    transformed,
    two_scores,
    vector,
)


def _scores(rows: Array, weights: Array, intercepts: Sequence[float] | None) -> Array:
    """``rows`` [N, F] times ``weights`` [K, F] plus the intercepts: [N, K] in float64."""
    say = f"{len(intercepts or ())} intercepts for {len(weights)} scores"
    expect(not intercepts or len(intercepts) == len(weights), say)
    product = rows.astype(DOUBLE, copy=False) @ weights.T
    return product + doubles(intercepts) if intercepts else product


# ---- LinearRegressor


def _regressor_info(
    x: Info,
    *,
    coefficients: Sequence[float] | None = None,
    intercepts: Sequence[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Info:
    check_transform(post_transform)
    return tensor(FLOAT, (batch_of(x), targets))


@operator("ai.onnx.ml::LinearRegressor", infer=_regressor_info)
@at_run_time
def linear_regressor(
    x: Array,
    *,
    coefficients: Sequence[float] | None = None,
    intercepts: Sequence[float] | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Array:
    """[N, targets]: the coefficients of each target follow each other."""
    weights = vector(coefficients, "coefficients")
    expect(targets > 0 and weights.size % targets == 0, f"{weights.size} coefficients do not divide among {targets}")
    table = weights.reshape(targets, -1)
    return transformed(_scores(rows_of(x, table.shape[1]), table, intercepts), post_transform).astype(FLOAT)


# ---- LinearClassifier


def _classifier_info(
    x: Info,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> list[Info]:
    check_transform(post_transform)
    return classifier_info(x, classlabels_strings, len(labels_of(classlabels_ints, classlabels_strings)))


@operator("ai.onnx.ml::LinearClassifier", infer=_classifier_info)
@at_run_time
def linear_classifier(
    x: Array,
    *,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float],
    intercepts: Sequence[float] | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    """The label of the greatest score (the first of several), and the scores after the transform.

    One row of coefficients is the positive class of two, which wins where its score is above zero.  ``multi_class``
    says how the model was trained and changes nothing.  Coefficients beyond those that the intercepts and the features
    ask for are not read, as in onnxruntime, whose own example has such.
    """
    labels = labels_of(classlabels_ints, classlabels_strings)
    rows, weights = rows_of(x), vector(coefficients, "coefficients")
    features = rows.shape[1]
    count = len(intercepts) if intercepts else weights.size // max(features, 1)
    say = f"{weights.size} coefficients for {count} scores of {features} features"
    expect(count > 0 and weights.size >= count * features, say)
    scores = _scores(rows, weights[: count * features].reshape(count, features), intercepts)
    if scores.shape[1] == 1:
        chosen = binary_labels(labels)[(scores[:, 0] > 0).astype(np.intp)]
        if len(labels) == 2:
            scores = two_scores(scores[:, 0], post_transform, probability=True)
    else:
        expect(scores.shape[1] == len(labels), f"{scores.shape[1]} scores for {len(labels)} class labels")
        chosen = labels[np.argmax(scores, axis=1)]
    return chosen, transformed(scores, post_transform).astype(FLOAT)
