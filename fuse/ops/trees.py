"""Tree ensembles: TreeEnsemble, and the older regressor and classifier with nodes and votes in parallel lists.

Scores are sums in float64, rounded to float32 once where thresholds and inputs are float32; then come ``base_values``,
the class labels and the post transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.ir.dtypes import DOUBLE, FLOAT, Array
from fuse.ops.bounds import at_run_time
from fuse.ops.forest import AGGREGATES, Forest
from fuse.ops.kept import Same
from fuse.ops.plant import listed_forest, split_forest
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.scores import (
    TRANSFORMS,
    batch_of,
    binary_labels,
    check_transform,
    classifier_info,
    labels_of,
    rows_of,
    transformed,
    two_scores,
)

Ints = Sequence[int] | None
Floats = Sequence[float] | None
Words = Sequence[str] | None


def _run(forest: Forest, x: Array, targets: int, aggregate: str, base: Any = None) -> tuple[Array, Array]:
    """The scores [N, targets] with base values added, at the precision of the model, and their counts of votes."""
    rows = rows_of(x)
    say = f"the input has {rows.shape[1]} features, the trees read {forest.features}"
    expect(rows.shape[1] >= forest.features, say)
    low, high = forest.votes.span
    expect(low >= 0 and high < targets, f"votes are for {low} to {high} of {targets} targets")
    score, count = forest.scores(rows, targets, aggregate)
    if base is not None:
        expect(len(base) == targets, f"{len(base)} base values for {targets} targets")
        score = score + np.asarray(base, dtype=DOUBLE)
    return (score.astype(FLOAT).astype(DOUBLE) if forest.dtype == FLOAT else score), count


def _target_count(named: int | None, ids: Ints) -> int:
    count = named if named is not None else max(ids or (), default=-1) + 1
    expect(count > 0, f"{count} targets")
    return count


# ---- TreeEnsemble


def _ensemble_info(
    x: Info, *, aggregate_function: int = 1, post_transform: int = 0, n_targets: int | None = None, **rest: Any
) -> Info:
    expect(0 <= aggregate_function < len(AGGREGATES), f"unknown aggregate_function {aggregate_function}")
    expect(0 <= post_transform < len(TRANSFORMS), f"unknown post_transform {post_transform}")
    return tensor(x.dtype, (batch_of(x), _target_count(n_targets, rest.get("leaf_targetids"))))


@operator("ai.onnx.ml::TreeEnsemble", infer=_ensemble_info)
@at_run_time
def tree_ensemble(
    x: Array,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Ints = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Array:
    """[N, n_targets] in the dtype of ``x`` [N, F]: the leaf of each tree has a weight for one target."""
    expect(0 <= aggregate_function < len(AGGREGATES), f"unknown aggregate_function {aggregate_function}")
    expect(0 <= post_transform < len(TRANSFORMS), f"unknown post_transform {post_transform}")
    lists = Same(
        nodes_modes, nodes_featureids, nodes_splits, nodes_falsenodeids, nodes_falseleafs, nodes_truenodeids,
        nodes_trueleafs, nodes_missing_value_tracks_true, membership_values, leaf_targetids, leaf_weights, tree_roots,
    )  # fmt: skip
    targets = _target_count(n_targets, leaf_targetids)
    score, _ = _run(split_forest(lists, x.dtype), x, targets, AGGREGATES[aggregate_function])
    return transformed(score, TRANSFORMS[post_transform]).astype(x.dtype)


# ---- TreeEnsembleRegressor


def _regressor_info(
    x: Info, *, aggregate_function: str = "SUM", post_transform: str = "NONE", n_targets: int | None = None, **rest: Any
) -> Info:
    expect(aggregate_function in AGGREGATES, f"unknown aggregate_function {aggregate_function!r}")
    check_transform(post_transform)
    return tensor(FLOAT, (batch_of(x), _target_count(n_targets, rest.get("target_ids"))))


@operator("ai.onnx.ml::TreeEnsembleRegressor", infer=_regressor_info)
@at_run_time
def tree_ensemble_regressor(
    x: Array,
    *,
    aggregate_function: str = "SUM",
    base_values: Floats = None,
    base_values_as_tensor: Array | None = None,
    n_targets: int | None = None,
    nodes_falsenodeids: Ints = None,
    nodes_featureids: Ints = None,
    nodes_hitrates: Floats = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints = None,
    nodes_modes: Words = None,
    nodes_nodeids: Ints = None,
    nodes_treeids: Ints = None,
    nodes_truenodeids: Ints = None,
    nodes_values: Floats = None,
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: Ints = None,
    target_nodeids: Ints = None,
    target_treeids: Ints = None,
    target_weights: Floats = None,
    target_weights_as_tensor: Array | None = None,
) -> Array:
    """[N, n_targets] in float32: the votes of all leaves brought together, plus the base values, transformed.

    A target for which no leaf votes has its base value.
    """
    expect(aggregate_function in AGGREGATES, f"unknown aggregate_function {aggregate_function!r}")
    check_transform(post_transform)
    nodes = Same(
        nodes_treeids, nodes_nodeids, nodes_modes, nodes_featureids, _either(nodes_values_as_tensor, nodes_values),
        nodes_falsenodeids, nodes_truenodeids, nodes_missing_value_tracks_true,
    )  # fmt: skip
    votes = Same(target_treeids, target_nodeids, target_ids, _either(target_weights_as_tensor, target_weights))
    targets = _target_count(n_targets, target_ids)
    base = _either(base_values_as_tensor, base_values)
    score, _ = _run(listed_forest(nodes, votes, x.dtype), x, targets, aggregate_function, base)
    return transformed(score, post_transform).astype(FLOAT)


def _either(tensor: Array | None, values: Floats) -> Any:
    """Numbers come as a tensor (of doubles) or as a list of floats; None where neither has any."""
    return tensor if tensor is not None else values or None


# ---- TreeEnsembleClassifier


def _classifier_info(
    x: Info, *, classlabels_int64s: Ints = None, classlabels_strings: Words = None, post_transform: str = "NONE",
    **rest: Any,
) -> list[Info]:  # fmt: skip
    check_transform(post_transform)
    return classifier_info(x, classlabels_strings, len(labels_of(classlabels_int64s, classlabels_strings)))


@operator("ai.onnx.ml::TreeEnsembleClassifier", infer=_classifier_info)
@at_run_time
def tree_ensemble_classifier(
    x: Array,
    *,
    base_values: Floats = None,
    base_values_as_tensor: Array | None = None,
    class_ids: Ints = None,
    class_nodeids: Ints = None,
    class_treeids: Ints = None,
    class_weights: Floats = None,
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Ints = None,
    classlabels_strings: Words = None,
    nodes_falsenodeids: Ints = None,
    nodes_featureids: Ints = None,
    nodes_hitrates: Floats = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints = None,
    nodes_modes: Words = None,
    nodes_nodeids: Ints = None,
    nodes_treeids: Ints = None,
    nodes_truenodeids: Ints = None,
    nodes_values: Floats = None,
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    """The label [N] and the scores [N, E] of each row, see ``_decided``."""
    check_transform(post_transform)
    labels = labels_of(classlabels_int64s, classlabels_strings)
    nodes = Same(
        nodes_treeids, nodes_nodeids, nodes_modes, nodes_featureids, _either(nodes_values_as_tensor, nodes_values),
        nodes_falsenodeids, nodes_truenodeids, nodes_missing_value_tracks_true,
    )  # fmt: skip
    votes = Same(class_treeids, class_nodeids, class_ids, _either(class_weights_as_tensor, class_weights))
    forest = listed_forest(nodes, votes, x.dtype)
    base = _either(base_values_as_tensor, base_values)
    chosen, scores = _decided(forest, x, labels, base, post_transform)
    return chosen, transformed(scores, post_transform).astype(FLOAT)


def _decided(forest: Forest, x: Array, labels: Array, base: Any, transform: str) -> tuple[Array, Array]:
    """The label of each row and its scores before the transform.

    The greatest score wins, the first of several; a class without a vote and a base value takes no part.  As converters
    write binary models and onnxruntime reads them, votes that are all for class 0 of two are for the second label: its
    score is a probability, which wins above 1/2, where no weight is negative and no transform makes it one.
    onnxruntime gives other labels than those of the model where both of two classes, or a single one, have votes.
    """
    (low, high), positive = forest.votes.span, forest.votes.positive
    probability = positive and transform in ("NONE", "PROBIT")
    if len(labels) <= 2 and low == high:
        second = low > 0
        given = base if second or base is None else base[-1:]
        score, _ = _run(forest, x, len(labels) if second else 1, "SUM", given)
        chosen = binary_labels(labels)[(score[:, -1] > (0.5 if probability else 0)).astype(np.intp)]
        return chosen, score if second or len(labels) == 1 else two_scores(score[:, 0], transform, positive)
    score, count = _run(forest, x, len(labels), "SUM", base)
    running = score if positive or base is not None else np.where(count > 0, score, -np.inf)
    return labels[np.argmax(running, axis=1)], score
