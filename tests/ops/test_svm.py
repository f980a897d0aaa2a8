"""Support vector machines against loops over the formulas, and against onnxruntime."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import svm
from tests.ops.cases import infer, kernel, shape_of, typed
from tests.ops.classical import agree, floats
from tests.ops.oracle import normal

REGRESSOR, CLASSIFIER = "ai.onnx.ml::SVMRegressor", "ai.onnx.ml::SVMClassifier"
KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]


def dot(kind, a, b, gamma, coef0, degree):
    """One kernel value."""
    if kind == "RBF":
        return math.exp(-gamma * sum((p - q) ** 2 for p, q in zip(a, b, strict=True)))
    product = sum(p * q for p, q in zip(a, b, strict=True))
    if kind == "LINEAR":
        return product
    return (gamma * product + coef0) ** degree if kind == "POLY" else math.tanh(gamma * product + coef0)


def machine(classes, features=3, seed=0, probable=False, **more):
    """A random classifier's attributes."""
    rng = np.random.default_rng(seed)
    counts = [int(c) for c in rng.integers(1, 5, classes)]
    size, pairs = sum(counts), classes * (classes - 1) // 2
    attrs = {
        "coefficients": tuple(floats(rng.normal(size=(classes - 1) * size))),
        "support_vectors": tuple(floats(rng.normal(size=size * features))),
        "rho": tuple(floats(rng.normal(size=pairs))),
        "vectors_per_class": tuple(counts),
        "kernel_params": (0.5, 0.25, 3.0),
        "classlabels_ints": tuple(range(10, 10 + classes)),
    }
    if probable:
        attrs |= {"prob_a": tuple(floats(-rng.uniform(0.5, 2, pairs))), "prob_b": tuple(floats(rng.normal(size=pairs)))}
    return attrs | more


def decisions_by_loops(x, attrs, kind):
    """The pairwise decisions, written as libsvm does it, one row and one pair at a time."""
    counts, classes = attrs["vectors_per_class"], len(attrs["vectors_per_class"])
    vectors = np.array(attrs["support_vectors"]).reshape(sum(counts), -1)
    table = np.array(attrs["coefficients"]).reshape(classes - 1, -1)
    starts = np.cumsum([0, *counts])
    out = []
    for row in x.tolist():
        k = [dot(kind, row, v, *attrs["kernel_params"]) for v in vectors.tolist()]
        scores = []
        for i in range(classes):
            for j in range(i + 1, classes):
                total = attrs["rho"][len(scores)]
                total += sum(table[j - 1, v] * k[v] for v in range(starts[i], starts[i + 1]))
                total += sum(table[i, v] * k[v] for v in range(starts[j], starts[j + 1]))
                scores.append(total)
        out.append(scores)
    return np.array(out)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("classes", [3, 4])
def test_decisions_by_loops(kind, classes):
    attrs, x = machine(classes, kernel_type=kind), normal(1, 6, 3)
    labels, scores = kernel(CLASSIFIER, x, **attrs)
    wanted = decisions_by_loops(x, attrs, kind)
    np.testing.assert_allclose(scores, wanted, rtol=2e-7, atol=2e-7)
    votes = np.zeros((6, classes), int)
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    for n, row in enumerate(wanted):
        for s, (i, j) in zip(row, pairs, strict=True):
            votes[n, i if s > 0 else j] += 1
    assert labels.tolist() == [10 + int(np.argmax(v)) for v in votes]


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("probable", [False, True])
def test_classifier_agrees_with_onnxruntime(kind, classes, probable):
    attrs = machine(classes, seed=classes, probable=probable, kernel_type=kind)
    for x in (
        normal(2, 8, 3),
        normal(2, 3),
        normal(2, 5, 3).astype(np.float64),
        (3 * normal(2, 5, 3)).astype(np.int64),
    ):
        agree("SVMClassifier", [x], ["int64", "float"], 1, eps=2e-5, **attrs)


@pytest.mark.parametrize("transform", ["LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_classifier_transforms_agree_with_onnxruntime(transform):
    attrs = machine(3, seed=9, probable=True, kernel_type="RBF", post_transform=transform)
    agree("SVMClassifier", [normal(3, 7, 3)], ["int64", "float"], 1, eps=1e-5, **attrs)
    del attrs["prob_a"], attrs["prob_b"]
    agree("SVMClassifier", [normal(3, 7, 3)], ["int64", "float"], 1, eps=1e-5, **attrs)


def test_two_classes_give_both_signs():
    attrs = machine(2, kernel_type="LINEAR", classlabels_ints=None, classlabels_strings=("no", "yes"))
    x = normal(4, 5, 3)
    wanted = decisions_by_loops(x, attrs, "LINEAR")[:, 0]
    labels, scores = kernel(CLASSIFIER, x, **attrs)
    np.testing.assert_allclose(scores, np.stack([-wanted, wanted], 1), rtol=2e-7, atol=2e-7)
    assert labels.tolist() == ["no" if s > 0 else "yes" for s in wanted]
    logistic = kernel(CLASSIFIER, x, **attrs, post_transform="LOGISTIC")[1]
    np.testing.assert_allclose(logistic[:, 1], 1 / (1 + np.exp(-wanted)), rtol=3e-7)


def test_coupled_probabilities_of_two_classes_are_the_pair_itself():
    attrs = machine(2, probable=True, kernel_type="RBF")
    x = normal(5, 20, 3)
    s = decisions_by_loops(x, attrs, "RBF")[:, 0]
    p = 1 / (1 + np.exp(attrs["prob_a"][0] * s + attrs["prob_b"][0]))
    np.testing.assert_allclose(kernel(CLASSIFIER, x, **attrs)[1], np.stack([p, 1 - p], 1), atol=0.005)


def test_consistent_pairs_give_back_their_probabilities():
    """Pairs r = p_i / (p_i + p_j) are what the coupling is the inverse of."""
    p = np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.97, 0.01, 0.01, 0.01]])
    i, j = np.triu_indices(4, 1)
    got = svm._coupled(p[:, i] / (p[:, i] + p[:, j]), 4)
    np.testing.assert_allclose(got, p, atol=0.002)
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)


def test_a_row_does_not_depend_on_its_neighbours():
    attrs = machine(5, probable=True, kernel_type="RBF")
    x = normal(6, 30, 3)
    together = kernel(CLASSIFIER, x, **attrs)[1]
    alone = np.concatenate([kernel(CLASSIFIER, row, **attrs)[1] for row in x])
    np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_linear_mode_is_the_greatest_score():
    coefficients, x = (1.0, 0.0, 0.0, 1.0, -1.0, -1.0), np.array([[2, 1], [-1, 3], [-5, -5]], np.float32)
    labels, scores = agree("SVMClassifier", [x], ["int64", "float"], 1, coefficients=coefficients, rho=[0.5],
                           kernel_params=[0.0, 0.0, 0.0], classlabels_ints=[3, 4, 5])  # fmt: skip
    assert labels.tolist() == [3, 4, 5]
    assert scores.tolist() == [[2.5, 1.5, -2.5], [-0.5, 3.5, -1.5], [-4.5, -4.5, 10.5]]


def test_linear_mode_of_two_classes():
    """onnxruntime gives the second label wherever a score is positive; the text asks for the top class."""
    x = np.array([[2, 1], [1, 2]], np.float32)
    labels, _ = kernel(CLASSIFIER, x, coefficients=(1.0, 0.0, 0.0, 1.0), rho=(0.0,), classlabels_ints=(3, 4))
    assert labels.tolist() == [3, 4]


# ---- regressor


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_regressor_agrees_with_onnxruntime(kind, one_class):
    attrs = {"coefficients": floats(normal(7, 4)), "support_vectors": floats(normal(8, 12)), "rho": [0.125]}
    attrs |= {"n_supports": 4, "kernel_type": kind, "kernel_params": [0.5, 0.25, 2.0], "one_class": one_class}
    for x in (normal(9, 9, 3), normal(9, 3), normal(9, 0, 3)):
        agree("SVMRegressor", [x], ["float"], 1, eps=5e-6, **attrs)


def test_regressor_by_loops():
    attrs = {"coefficients": (1.0, -2.0), "support_vectors": (1.0, 2.0, 3.0, -1.0), "rho": (0.5,), "n_supports": 2}
    x = np.array([[1, 1], [0, 2]], np.float32)
    for kind in KERNELS:
        y = kernel(REGRESSOR, x, **attrs, kernel_type=kind, kernel_params=(0.5, 1.0, 3.0))
        wanted = [[dot(kind, r, (1, 2), 0.5, 1, 3) - 2 * dot(kind, r, (3, -1), 0.5, 1, 3) + 0.5] for r in x.tolist()]
        np.testing.assert_allclose(y, wanted, rtol=1e-7)
    linear = kernel(REGRESSOR, x, coefficients=(1.0, -2.0), rho=(0.5,))
    assert linear.tolist() == [[-0.5], [-3.5]]
    assert kernel(REGRESSOR, x, coefficients=(1.0, -2.0), rho=(0.5,), one_class=1).tolist() == [[-1], [-1]]
    logistic = kernel(REGRESSOR, x, coefficients=(1.0, -2.0), rho=(0.5,), post_transform="LOGISTIC")
    np.testing.assert_allclose(logistic[:, 0], [1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(3.5))], rtol=1e-7)


def test_distances_far_from_the_origin_keep_their_digits():
    far = np.float32(1e5)
    x = np.array([[far, far + np.float32(1 / 64)]], np.float32)
    y = kernel(REGRESSOR, x, coefficients=(1.0,), support_vectors=(float(far), float(far)), rho=(0.0,), n_supports=1,
               kernel_type="RBF", kernel_params=(4096.0, 0.0, 0.0))  # fmt: skip
    assert y[0, 0] == pytest.approx(math.exp(-1), rel=1e-6)


def test_infinite_and_missing_inputs():
    attrs = {"coefficients": (1.0, 1.0), "support_vectors": (0.0, 0.0, 1.0, 1.0), "rho": (0.25,), "n_supports": 2}
    x = np.array([[np.inf, 0], [np.nan, np.inf], [0, -np.inf]], np.float32)
    y = kernel(REGRESSOR, x, **attrs, kernel_type="RBF", kernel_params=(1.0, 0.0, 0.0))
    assert y[[0, 2], 0].tolist() == [0.25, 0.25]
    assert np.isnan(y[1, 0])


def test_blocks_change_nothing(monkeypatch):
    attrs, x = machine(3, kernel_type="RBF"), normal(10, 23, 3)
    whole = kernel(CLASSIFIER, x, **attrs)[1]
    monkeypatch.setattr(svm, "_BLOCK", 40)
    np.testing.assert_allclose(kernel(CLASSIFIER, x, **attrs)[1], whole, rtol=1e-6)


# ---- faults and inference


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel_type": "COSINE"}, "unknown kernel_type 'COSINE'"),
        ({"kernel_params": (1.0,), "kernel_type": "RBF"}, "gamma, coef0 and degree; 1 are given"),
        ({"rho": (1.0, 2.0)}, "2 numbers in 'rho', the model needs 3"),
        ({"rho": None}, "needs the attribute 'rho'"),
        ({"coefficients": (1.0,)}, "1 numbers in 'coefficients', the model needs"),
        ({"classlabels_ints": (1, 2)}, "3 counts of support vectors for 2 class labels"),
        ({"prob_a": (1.0, 1.0, 1.0)}, "needs the attribute 'prob_b'"),
        ({"support_vectors": (1.0,)}, "1 numbers do not divide into"),
    ],
)
def test_classifier_faults(change, message):
    with pytest.raises(RunError, match=message):
        kernel(CLASSIFIER, normal(0, 2, 3), **machine(3) | change)


def test_features_must_fit():
    with pytest.raises(RunError, match=r"\[2, 4\] has 4 features, the model 3"):
        kernel(CLASSIFIER, normal(0, 2, 4), **machine(3))
    with pytest.raises(RunError, match="2 coefficients for 3 support vectors"):
        kernel(REGRESSOR, normal(0, 2, 1), coefficients=(1.0, 1.0), support_vectors=(1.0, 2.0, 3.0), rho=(0.0,),
               n_supports=3)  # fmt: skip


@pytest.mark.parametrize(
    ("classes", "probable", "wanted"), [(2, False, "[n, 2]"), (4, False, "[n, 6]"), (4, True, "[n, 4]")]
)
def test_inference(classes, probable, wanted):
    labels, scores = infer(CLASSIFIER, [typed("n", 3)], 2, **machine(classes, probable=probable))
    assert (labels.dtype, shape_of(labels)) == (np.int64, "[n]")
    assert (scores.dtype, shape_of(scores)) == (np.float32, wanted)
    got = kernel(CLASSIFIER, normal(0, 5, 3), **machine(classes, probable=probable))[1]
    assert got.shape == (5, int(wanted[-2]))


def test_inference_of_the_others():
    (y,) = infer(REGRESSOR, [typed("n", 3)], coefficients=(1.0,), rho=(0.0,))
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, 1]")
    _, scores = infer(CLASSIFIER, [typed("n", 2)], 2, coefficients=(1.0,) * 10, rho=(0.0,), classlabels_ints=(1,) * 5)
    assert shape_of(scores) == "[n, 5]"
    with pytest.raises(ShapeError, match="either integers or strings"):
        infer(CLASSIFIER, [typed("n", 2)], 2, coefficients=(1.0,), rho=(0.0,))
