"""LinearRegressor and LinearClassifier by formula and against onnxruntime."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import infer, kernel, shape_of, typed
from tests.ops.classical import agree, floats, fuse_says, strings
from tests.ops.oracle import normal

REGRESSOR, CLASSIFIER = "ai.onnx.ml::LinearRegressor", "ai.onnx.ml::LinearClassifier"
X = np.array([[1, 2], [0.5, -1], [-3, 0]], np.float32)


def test_regressor_by_hand():
    y = kernel(REGRESSOR, X, coefficients=(2.0, -1.0, 0.5, 4.0), intercepts=(10.0, -1.0), targets=2)
    assert y.dtype == np.float32
    assert y.tolist() == [[10, 7.5], [12, -4.75], [4, -2.5]]
    assert kernel(REGRESSOR, X[0], coefficients=(2.0, -1.0)).tolist() == [[0]]


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_other_inputs_keep_their_digits(dtype):
    """In float32 the two products would cancel to 0."""
    x = np.array([[1 << 25, (1 << 25) + 1]]).astype(dtype)
    assert kernel(REGRESSOR, x, coefficients=(-1.0, 1.0)).tolist() == [[1.0]]


def test_regressor_transforms_a_single_target_as_well():
    """The text says that the transform is applied; onnxruntime leaves it out for one target."""
    y = kernel(REGRESSOR, X, coefficients=(1.0, 0.0), post_transform="LOGISTIC")
    np.testing.assert_allclose(y[:, 0], [1 / (1 + math.exp(-v)) for v in (1, 0.5, -3)], rtol=1e-7)
    assert kernel(REGRESSOR, X, coefficients=(1.0, 0.0), post_transform="SOFTMAX").tolist() == [[1], [1], [1]]


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_regressor_agrees_with_onnxruntime(transform):
    weights, shift = floats(normal(1, 12)), floats(normal(2, 3))
    for x in (normal(0, 7, 4), normal(0, 4), normal(0, 0, 4)):
        agree("LinearRegressor", [x], ["float"], 1, coefficients=weights, intercepts=shift, targets=3,
              post_transform=transform)  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_classifier_agrees_with_onnxruntime(transform, dtype):
    x = (3 * normal(3, 9, 4)).astype(dtype)
    weights, shift = floats(normal(4, 12)), floats(normal(5, 3))
    agree("LinearClassifier", [x], ["int64", "float"], 1, coefficients=weights, intercepts=shift,
          classlabels_ints=[7, -3, 0], post_transform=transform)  # fmt: skip
    agree("LinearClassifier", [x], ["string", "float"], 1, coefficients=weights, intercepts=shift,
          classlabels_strings=["a", "", "ß"], post_transform=transform)  # fmt: skip


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_one_score_for_two_classes(transform):
    labels, scores = agree("LinearClassifier", [X], ["int64", "float"], 1, coefficients=[1.0, 0.0], intercepts=[0.25],
                           classlabels_ints=[5, 9], post_transform=transform)  # fmt: skip
    assert labels.tolist() == [9, 9, 5]
    if transform == "NONE":
        assert scores.tolist() == [[-0.25, 1.25], [0.25, 0.75], [3.75, -2.75]]


def test_one_score_through_the_other_transforms():
    """onnxruntime gives the scores as they are for SOFTMAX; the text asks for the transform."""
    soft = kernel(CLASSIFIER, X, coefficients=(1.0, 0.0), classlabels_ints=(5, 9), post_transform="SOFTMAX")[1]
    np.testing.assert_allclose(soft[:, 1], [1 / (1 + math.exp(-2 * v)) for v in (1, 0.5, -3)], rtol=2e-7)
    x = np.array([[0.975, 0], [0.5, 0], [2, 0]], np.float32)
    label, normal_ = kernel(CLASSIFIER, x, coefficients=(1.0, 0.0), classlabels_ints=(5, 9), post_transform="PROBIT")
    assert label.tolist() == [9, 9, 9]
    np.testing.assert_allclose(normal_[0], [-1.959964, 1.959964], rtol=1e-6)
    assert normal_[1].tolist() == [0, 0]
    assert np.isnan(normal_[2]).all()


def test_one_label_is_the_positive_class():
    label, scores = kernel(CLASSIFIER, X, coefficients=(1.0, 0.0), classlabels_strings=("yes",))
    assert label.tolist() == ["yes", "yes", "0"]
    assert scores.tolist() == [[1], [0.5], [-3]]


def test_ties_go_to_the_first_class():
    label, _ = fuse_says("LinearClassifier", [X], ["string", "float"], 1, coefficients=[1.0, 0.0] * 3,
                         classlabels_strings=["a", "b", "c"])  # fmt: skip
    assert label.tolist() == ["a", "a", "a"]


def test_coefficients_beyond_are_not_read():
    """onnxruntime's example logreg_iris has twelve coefficients for three classes and takes two features."""
    agree("LinearClassifier", [X], ["int64", "float"], 1, coefficients=floats(normal(6, 12)), intercepts=[0.5, 0.0, -1],
          classlabels_ints=[0, 1, 2], post_transform="LOGISTIC")  # fmt: skip


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"coefficients": (1.0, 2.0, 3.0)}, r"the input \[3, 2\] has 2 features, the model 3"),
        ({"coefficients": (1.0, 2.0), "targets": 3}, "2 coefficients do not divide among 3"),
        ({"coefficients": (1.0, 2.0), "intercepts": (1.0, 2.0)}, "2 intercepts for 1 scores"),
        ({"coefficients": None}, "needs the attribute 'coefficients'"),
    ],
)
def test_regressor_faults(attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(REGRESSOR, X, **attrs)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"coefficients": (1.0, 2.0)}, "either integers or strings"),
        ({"coefficients": (1.0, 2.0) * 3, "classlabels_ints": (1, 2)}, "3 scores for 2 class labels"),
        ({"coefficients": (1.0, 2.0), "classlabels_ints": (1, 2, 3)}, "cannot tell 3 classes apart"),
        ({"coefficients": (1.0,), "classlabels_ints": (1, 2)}, "1 coefficients for 0 scores of 2 features"),
    ],
)
def test_classifier_faults(attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(CLASSIFIER, X, **attrs)


def test_inference():
    (y,) = infer(REGRESSOR, [typed("n", 4)], coefficients=(1.0,) * 8, targets=2)
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, 2]")
    labels, scores = infer(CLASSIFIER, [typed("n", 4, dtype=np.int64)], 2, coefficients=(1.0,) * 12,
                           classlabels_strings=("a", "b", "c"))  # fmt: skip
    assert (labels.dtype, shape_of(labels)) == (object, "[n]")
    assert (scores.dtype, shape_of(scores)) == (np.float32, "[n, 3]")
    with pytest.raises(ShapeError, match="neither"):
        infer(REGRESSOR, [typed(1, 2, 3)], coefficients=(1.0,))
    with pytest.raises(ShapeError, match="unknown post_transform"):
        infer(REGRESSOR, [typed(1, 2)], coefficients=(1.0, 2.0), post_transform="RELU")


def test_strings_are_objects():
    assert strings("a").dtype == object
