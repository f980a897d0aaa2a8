"""The tree operators: onnx's cases, a walk node by node, onnxruntime, and formulas where onnxruntime goes astray."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.model.load import load
from fuse.runtime.interpret import Interpreter
from tests.ops.cases import check_case, infer, kernel, node_cases, shape_of, typed
from tests.ops.classical import agree, fuse_says, one_node
from tests.ops.groves import Grove, inputs

ENSEMBLE, REGRESSOR, CLASSIFIER = (f"ai.onnx.ml::TreeEnsemble{n}" for n in ("", "Regressor", "Classifier"))
TRANSFORMS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
BOTH_SIDES = np.array([[-1], [1]], np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def stump(left, right, kind="class", mode="BRANCH_LEQ", **more):
    """One test, ``x <= 0``, with the given votes on either side."""
    votes = [(node, target, weight) for node, own in ((1, left), (2, right)) for target, weight in own]
    return {
        "nodes_treeids": (0,) * 3, "nodes_nodeids": (0, 1, 2), "nodes_modes": (mode, "LEAF", "LEAF"),
        "nodes_featureids": (0,) * 3, "nodes_values": (0.0,) * 3, "nodes_truenodeids": (1, 0, 0),
        "nodes_falsenodeids": (2, 0, 0), f"{kind}_treeids": (0,) * len(votes),
        f"{kind}_nodeids": tuple(v[0] for v in votes), f"{kind}_ids": tuple(v[1] for v in votes),
        f"{kind}_weights": tuple(float(np.float32(v[2])) for v in votes),
    } | more  # fmt: skip


# ---- TreeEnsemble


@pytest.mark.parametrize("case", node_cases("TreeEnsemble"))
def test_onnx_cases(case):
    check_case(case)


def test_there_are_cases():
    assert len(node_cases("TreeEnsemble")) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("aggregate", range(4))
def test_ensemble_by_walk(dtype, aggregate):
    grove = Grove(aggregate, 6, 4, modes=range(7), targets=3)
    x = inputs(aggregate, 60, dtype=dtype)
    wanted = grove.walk(x, ["AVERAGE", "SUM", "MIN", "MAX"][aggregate])
    attrs = grove.split(dtype)
    spelled = "float" if dtype == np.float32 else "double"
    (y,) = fuse_says("TreeEnsemble", [x], [spelled], 5, aggregate_function=aggregate, **attrs)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=1e-6, atol=1e-6)


def test_ensemble_in_half_precision():
    grove = Grove(1, 4, 3, targets=2, splits=[-1.0, 0.0, 0.5, 2.0])
    x = inputs(1, 40, dtype=np.float16)
    y = kernel(ENSEMBLE, x, **grove.split(np.float16))
    assert y.dtype == np.float16
    np.testing.assert_allclose(y, grove.walk(x), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("modes", [[0], [0, 1, 2, 3], [0, 4, 6]])
@pytest.mark.parametrize("aggregate", range(4))
def test_ensemble_agrees_with_onnxruntime(modes, aggregate):
    """Members and values are whole numbers: onnxruntime cuts others to whole ones before it looks them up."""
    grove = Grove(aggregate, 12, 5, modes=modes, splits=[-2.0, 0.0, 1.0, 3.0, 40.0], targets=2)
    x = np.random.default_rng(0).choice([-3.0, -2, 0, 1, 2, 3, 40, np.nan], size=(80, 3)).astype(np.float32)
    agree("TreeEnsemble", [x], ["float"], 5, aggregate_function=aggregate, **grove.split())


@pytest.mark.parametrize("number", range(5))
def test_ensemble_numbers_its_transforms_as_the_text_does(number):
    """1 is SOFTMAX and 2 is LOGISTIC; onnxruntime takes them the other way round."""
    grove = Grove(0, 0, 0, targets=2)
    grove.trees = [(0, 0, 0.0, frozenset(), 0, [(0, 0.25)], [(1, 0.75)]), [(0, 0.5)]]
    y = kernel(ENSEMBLE, BOTH_SIDES, post_transform=number, **grove.split())
    raw = np.array([[0.75, 0], [0.5, 0.75]])
    wanted = {
        "NONE": raw,
        "SOFTMAX": np.exp(raw) / np.exp(raw).sum(1, keepdims=True),
        "LOGISTIC": sigmoid(raw),
        "SOFTMAX_ZERO": [[1, 0], [1 / (1 + math.exp(0.25)), 1 / (1 + math.exp(-0.25))]],
        "PROBIT": [[0.6744897501960817, -np.inf], [0, 0.6744897501960817]],
    }[TRANSFORMS[number]]
    np.testing.assert_allclose(y, wanted, rtol=1e-7)


def test_a_single_target_is_transformed_as_well():
    """onnxruntime leaves the transform out where there is one target, but for PROBIT."""
    grove = Grove(0, 0, 0, targets=1)
    grove.trees = [(0, 0, 0.0, frozenset(), 0, [(0, -3.0)], [(0, 0.75)])]
    y = kernel(ENSEMBLE, BOTH_SIDES, post_transform=2, **grove.split())
    np.testing.assert_allclose(y[:, 0], sigmoid([-3, 0.75]), rtol=1e-7)
    y = kernel(REGRESSOR, BOTH_SIDES, n_targets=1, post_transform="LOGISTIC", **grove.listed())
    np.testing.assert_allclose(y[:, 0], sigmoid([-3, 0.75]), rtol=1e-7)


# ---- TreeEnsembleRegressor


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor_agrees_with_onnxruntime(version, aggregate, targets):
    grove = Grove(targets, 9, 5, modes=range(5), targets=targets, votes=targets)
    base = [0.5, -0.25, 4.0][:targets]
    attrs = grove.listed() | {"n_targets": targets, "aggregate_function": aggregate, "base_values": base}
    for x in (inputs(7, 90), inputs(8, 1), inputs(9, 0)):
        agree("TreeEnsembleRegressor", [x], ["float"], version, **attrs)


def test_regressor_of_doubles_agrees_with_onnxruntime():
    grove = Grove(4, 9, 5, modes=range(5), targets=2)
    attrs = grove.listed()
    for name in ("nodes_values", "target_weights"):
        attrs[f"{name}_as_tensor"] = np.array(attrs.pop(name), np.float64) + 1e-12
    attrs["base_values_as_tensor"] = np.array([1e-3, 2.0])
    agree("TreeEnsembleRegressor", [inputs(4, 90, dtype=np.float64)], ["float"], 3, n_targets=2, **attrs)


def test_doubles_are_compared_as_doubles():
    split = 1 + 1e-12
    attrs = stump([(0, 1.0)], [(0, 2.0)], "target", nodes_values=None, nodes_values_as_tensor=np.array([split, 0, 0]))
    x = np.array([[split], [np.nextafter(split, 2)]])
    assert kernel(REGRESSOR, x, n_targets=1, **attrs).tolist() == [[1], [2]]
    assert kernel(REGRESSOR, np.array([[1.0], [1 + 2.0**-23]], np.float32), n_targets=1, **attrs).tolist() == [[1], [2]]


def test_a_target_without_a_vote_has_its_base_value():
    """onnxruntime gives 0 for it where a row has no vote for one target of several."""
    attrs = stump([(0, 1.0)], [(2, 2.0)], "target", base_values=(10.0, 20.0, 30.0), n_targets=3)
    assert kernel(REGRESSOR, BOTH_SIDES, **attrs).tolist() == [[11, 20, 30], [10, 20, 32]]
    assert kernel(REGRESSOR, BOTH_SIDES, **attrs, aggregate_function="MIN").tolist() == [[11, 20, 30], [10, 20, 32]]


def test_missing_values_follow_their_track_whatever_the_test():
    """The text sends NaN by the track alone; onnxruntime takes it for unequal under BRANCH_NEQ."""
    x = np.array([[np.nan]], np.float32)
    for mode in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ"):
        for track, wanted in ((None, 2), ((0, 0, 0), 2), ((1, 0, 0), 1)):
            attrs = stump([(0, 1.0)], [(0, 2.0)], "target", f"BRANCH_{mode}", nodes_missing_value_tracks_true=track)
            assert kernel(REGRESSOR, x, n_targets=1, **attrs).tolist() == [[wanted]]


def test_a_tensor_of_one_dim_is_one_row():
    attrs = stump([(0, 1.0)], [(0, 2.0)], "target", n_targets=1)
    assert kernel(REGRESSOR, BOTH_SIDES[1], **attrs).tolist() == [[2]]


def test_the_number_of_targets_may_be_left_to_the_votes():
    attrs = stump([(0, 1.0)], [(1, 2.0)], "target")
    assert kernel(REGRESSOR, BOTH_SIDES, **attrs).tolist() == [[1, 0], [0, 2]]
    assert kernel(REGRESSOR, BOTH_SIDES, n_targets=3, **attrs).tolist() == [[1, 0, 0], [0, 2, 0]]


# ---- TreeEnsembleClassifier


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("votes", [1, 4])
def test_classifier_agrees_with_onnxruntime(transform, positive, votes):
    grove = Grove(votes, 15, 4, modes=range(5), targets=4, votes=votes, positive=positive)
    attrs = grove.listed("class") | {"post_transform": transform}
    for x in (inputs(1, 70), inputs(2, 9, dtype=np.float64), inputs(3, 0)):
        agree("TreeEnsembleClassifier", [x], ["int64", "float"], 3, classlabels_int64s=[4, -7, 0, 1 << 40], **attrs)
    agree("TreeEnsembleClassifier", [inputs(4, 9)], ["string", "float"], 1, classlabels_strings=["a", "", "ß", "d"],
          **attrs)  # fmt: skip


def test_integers_agree_with_onnxruntime():
    grove = Grove(2, 15, 4, modes=range(5), targets=3, splits=[-1.0, 0.5, 2.0])
    for dtype in (np.int64, np.int32):
        x = np.random.default_rng(1).integers(-3, 4, (50, 3)).astype(dtype)
        agree(
            "TreeEnsembleClassifier", [x], ["int64", "float"], 3, classlabels_int64s=[1, 2, 3], **grove.listed("class")
        )


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("base", [None, [0.25]])
@pytest.mark.parametrize("left", [-0.3, 0.6])
def test_two_classes_on_one_vote_agree_with_onnxruntime(transform, base, left):
    attrs = stump([(0, left)], [(0, 0.7)], post_transform=transform, base_values=base)
    agree("TreeEnsembleClassifier", [BOTH_SIDES], ["int64", "float"], 3, classlabels_int64s=[5, 7], **attrs)


@pytest.mark.parametrize(("left", "transform"), [(0.3, "NONE"), (-0.3, "NONE"), (-0.3, "LOGISTIC"), (-0.3, "SOFTMAX")])
def test_votes_for_the_second_class_alone_agree_with_onnxruntime(left, transform):
    attrs = stump([(1, left)], [(1, 0.7)], post_transform=transform, classlabels_int64s=[5, 7])
    label, _ = agree("TreeEnsembleClassifier", [BOTH_SIDES], ["int64", "float"], 3, **attrs)
    assert label.tolist() == [5, 7]


def test_two_classes_on_one_vote_by_formula():
    """A probability wins above 1/2, a distance above 0; the other score is what is left of 1, or the opposite."""
    attrs = stump([(0, 0.25)], [(0, 0.625)], classlabels_int64s=(5, 7))
    label, score = kernel(CLASSIFIER, BOTH_SIDES, **attrs)
    assert label.tolist() == [5, 7]
    assert score.tolist() == [[0.75, 0.25], [0.375, 0.625]]
    label, score = kernel(CLASSIFIER, BOTH_SIDES, **stump([(0, -0.25)], [(0, 0.375)], classlabels_strings=("n", "y")))
    assert label.tolist() == ["n", "y"]
    assert score.tolist() == [[0.25, -0.25], [-0.375, 0.375]]


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX"])
def test_a_transform_makes_the_top_class_that_of_the_greatest_score(transform):
    """Log-odds above zero mean the second class, though all weights are positive; onnxruntime asks for 1/2 here."""
    label, score = kernel(CLASSIFIER, BOTH_SIDES, **stump([(0, 0.25)], [(0, 0.75)]), classlabels_int64s=(5, 7),
                          post_transform=transform)  # fmt: skip
    assert label.tolist() == [7, 7]
    odds = np.array([0.25, 0.75]) * (1 if transform == "LOGISTIC" else 2)
    np.testing.assert_allclose(score, np.stack([sigmoid(-odds), sigmoid(odds)], 1), rtol=2e-7)


def test_two_classes_with_votes_for_both():
    """The top class is that of the greatest score; onnxruntime answers 1 wherever the second score is positive."""
    attrs = stump([(0, 0.25), (1, 0.75)], [(0, 0.625), (1, 0.375)], classlabels_int64s=(5, 7))
    label, score = kernel(CLASSIFIER, BOTH_SIDES, **attrs)
    assert label.tolist() == [7, 5]
    assert score.tolist() == [[0.25, 0.75], [0.625, 0.375]]
    label, score = kernel(CLASSIFIER, BOTH_SIDES, **attrs, base_values=(0.5, -0.25))
    assert label.tolist() == [5, 5]
    assert score.tolist() == [[0.75, 0.5], [1.125, 0.125]]


def test_one_class_label():
    label, score = kernel(CLASSIFIER, BOTH_SIDES, **stump([(0, -0.25)], [(0, 0.75)]), classlabels_int64s=(1,))
    assert label.tolist() == [0, 1]
    assert score.tolist() == [[-0.25], [0.75]]


def test_a_class_without_votes_does_not_win_over_negative_scores():
    attrs = stump([(0, -0.25)], [(0, -0.5), (1, -0.375)], classlabels_int64s=(4, 5, 6))
    label, score = agree("TreeEnsembleClassifier", [BOTH_SIDES], ["int64", "float"], 3, **attrs)
    assert label.tolist() == [4, 5]
    assert score.tolist() == [[-0.25, 0, 0], [-0.5, -0.375, 0]]
    label, _ = agree(
        "TreeEnsembleClassifier", [BOTH_SIDES], ["int64", "float"], 3, **attrs, base_values=[0.0, 0.0, 0.125]
    )
    assert label.tolist() == [6, 6]


def test_a_sum_of_tenths_is_decided_at_the_models_precision():
    """Five of ten votes are one half in float32, which is not above one half; in float64 they would be."""
    attrs = {name: value * 10 for name, value in stump([(0, 0.1)], [(0, 0.1)]).items()}
    attrs |= {
        "nodes_treeids": tuple(np.repeat(range(10), 3).tolist()),
        "class_treeids": tuple(np.repeat(range(10), 2).tolist()),
    }
    attrs["class_weights"] = (*([float(np.float32(0.1))] * 10), *([0.0] * 10))
    label, score = agree(
        "TreeEnsembleClassifier", [BOTH_SIDES], ["int64", "float"], 3, classlabels_int64s=[5, 7], **attrs
    )
    assert score.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert label.tolist() == [5, 5]


# ---- size


def test_a_large_ensemble_by_walk():
    grove = Grove(12, 60, 9, features=9, targets=10, votes=10, modes=[0], positive=True)
    x = inputs(12, 64, 9)
    (labels, scores) = fuse_says("TreeEnsembleClassifier", [x], ["int64", "float"], 3,
                                 classlabels_int64s=list(range(10)), **grove.listed("class"))  # fmt: skip
    wanted = grove.walk(x)
    np.testing.assert_allclose(scores, wanted.astype(np.float32), rtol=1.2e-7)
    assert labels.tolist() == np.argmax(wanted.astype(np.float32), 1).tolist()


# ---- faults, inference, the float64 run


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        (REGRESSOR, stump([(0, 1.0)], [(3, 1.0)], "target", n_targets=2), "votes are for 0 to 3 of 2 targets"),
        (REGRESSOR, stump([(0, 1.0)], [(0, 1.0)], "target", base_values=(1.0, 2.0)), "2 base values for 1 targets"),
        (REGRESSOR, stump([], [], "target"), "0 targets"),
        (REGRESSOR, stump([(0, 1.0)], [], "target", aggregate_function="MEAN"), "unknown aggregate_function 'MEAN'"),
        (REGRESSOR, stump([(0, 1.0)], [], "target", nodes_featureids=(1, 0, 0)), "has 1 features, the trees read 2"),
        (CLASSIFIER, stump([(0, 1.0)], [(2, 1.0)], classlabels_int64s=(1, 2)), "votes are for 0 to 2 of 2"),
        (CLASSIFIER, stump([(0, 1.0)], [(1, 1.0)]), "either integers or strings"),
        (CLASSIFIER, stump([(0, 1.0)], [], classlabels_int64s=(1,), post_transform="X"), "unknown post_transform 'X'"),
        (ENSEMBLE, {**Grove(0, 1, 1).split(), "aggregate_function": 4}, "unknown aggregate_function 4"),
        (ENSEMBLE, {**Grove(0, 1, 1).split(), "post_transform": -1}, "unknown post_transform -1"),
    ],
)  # fmt: skip
def test_faults(op, attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(op, BOTH_SIDES, **attrs)


def test_faults_name_the_node():
    proto = one_node("TreeEnsembleRegressor", [np.zeros((1, 1), np.float32)], ["float"], 3, n_targets=1,
                     **stump([(0, 1.0)], [(0, 1.0)], "target", nodes_featureids=(5, 0, 0)))  # fmt: skip
    with pytest.raises(RunError, match=r"node 'o0' \(ai.onnx.ml::TreeEnsembleRegressor\): the input has 1 features"):
        Interpreter(load(proto)).run({"i0": np.zeros((1, 1), np.float32)})


def test_inference():
    (y,) = infer(ENSEMBLE, [typed("n", 3, dtype=np.float64)], **Grove(0, 2, 2, targets=5).split())
    assert (y.dtype, shape_of(y)) == (np.float64, "[n, 5]")
    (y,) = infer(REGRESSOR, [typed("n", 3, dtype=np.int64)], n_targets=4, target_ids=(0,))
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, 4]")
    (y,) = infer(REGRESSOR, [typed(3)], target_ids=(0, 2))
    assert shape_of(y) == "[1, 3]"
    labels, scores = infer(CLASSIFIER, [typed("n", 3)], 2, classlabels_strings=("a", "b", "c"))
    assert (labels.dtype, shape_of(labels)) == (object, "[n]")
    assert (scores.dtype, shape_of(scores)) == (np.float32, "[n, 3]")
    with pytest.raises(ShapeError, match="neither"):
        infer(REGRESSOR, [typed(1, 2, 3)], n_targets=1)


def test_the_float64_run_takes_the_same_way():
    grove = Grove(6, 20, 5, modes=range(6), targets=2)
    model = load(one_node("TreeEnsembleRegressor", [inputs(6, 40)], ["float"], 3, n_targets=2, **grove.listed()))
    feeds = {"i0": inputs(6, 40)}
    plain, wide = (Interpreter(model, precision=p).run(feeds)["o0"] for p in (None, "double"))
    assert wide.dtype == np.float64
    np.testing.assert_allclose(plain, wide, rtol=1e-7)
