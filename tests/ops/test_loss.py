"""Losses of classification against a loop over samples in float64, and against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

NLL, SCE = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases(NLL, SCE))
def test_onnx_cases(case):
    check_case(case, exact=True)


def by_sample(logs, labels, weight, ignored, reduction):
    """The text's loops."""
    loss, weights = np.zeros(labels.shape), np.zeros(labels.shape)
    for place in np.ndindex(labels.shape):
        c = int(labels[place])
        if ignored is None or c != ignored:
            weights[place] = 1 if weight is None else weight[c]
            loss[place] = -float(logs[(place[0], c, *place[1:])]) * weights[place]
    if reduction == "none":
        return loss
    return loss.sum() / weights.sum() if reduction == "mean" else loss.sum()


def log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


SHAPES = [(4, 3), (4, 3, 5), (2, 3, 4, 2), (2, 5, 1, 2, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -1, 255])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_values(shape, reduction, weighted, ignored, index):
    x, rng = normal(1, *shape) * 5, np.random.default_rng(7)
    labels = rng.integers(0, shape[1], (shape[0], *shape[2:])).astype(index)
    if ignored is not None:
        labels.reshape(-1)[::3] = ignored
    weight = np.abs(normal(2, shape[1])) + 0.1 if weighted else None
    attrs = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
    got = kernel(NLL, x, labels, weight, **attrs)
    same(got, by_sample(x, labels, weight, ignored, reduction).astype(np.float32), rtol=3e-7)
    loss, logs = kernel(SCE, x, labels, weight, n_outputs=2, **attrs)
    same(loss, by_sample(log_softmax(x), labels, weight, ignored, reduction).astype(np.float32), rtol=1e-6)
    same(logs, log_softmax(x).astype(np.float32), rtol=1e-6)
    assert kernel(SCE, x, labels, weight, **attrs).tolist() == loss.tolist()


@pytest.mark.parametrize("op", [NLL, SCE])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_onnxruntime(op, weighted, reduction):
    x, labels = normal(1, 3, 4, 5), np.random.default_rng(7).integers(0, 4, (3, 5))
    labels[0, :2] = 9
    given = [x, labels, np.abs(normal(2, 4)) if weighted else None]
    attrs = {"reduction": reduction, "ignore_index": 9}
    same(kernel(op, *given, **attrs), onnxruntime_says(op, given, opset=13, **attrs), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_dtypes_are_rounded_once(dtype):
    x, labels = (normal(1, 50, 7) * 3).astype(dtype), np.arange(50) % 7
    logs = log_softmax(x)
    loss = kernel(SCE, x, labels, reduction="none")
    wanted = by_sample(logs, labels, None, None, "none").astype(dtype)
    assert loss.dtype == dtype
    assert np.mean(loss == wanted) > (0.98 if dtype != np.float64 else 0.5)
    same(loss, wanted, rtol=1e-15)
    assert kernel(NLL, x, labels, reduction="none").tolist() == [-float(x[i, c]) for i, c in enumerate(labels)]


def test_a_mean_of_many_samples_keeps_its_digits():
    x, labels = np.full((200000, 2), -0.1, np.float32), np.zeros(200000, np.int64)
    assert float(kernel(NLL, x, labels)) == float(np.float32(0.1))
    assert float(kernel(NLL, x, labels, reduction="sum")) == float(np.float32(200000 * float(np.float32(0.1))))


def test_extremes():
    x = np.array([[1e4, -1e4], [-np.inf, 0], [np.nan, 0]], np.float32)
    loss = kernel(SCE, x, np.array([1, 0, 0]), reduction="none")
    assert str(loss.tolist()) == "[20000.0, inf, nan]"
    assert kernel(SCE, x, np.array([0, 1, 9]), reduction="none", ignore_index=9).tolist() == [0, 0, 0]
    assert np.isnan(kernel(NLL, x[:2], np.array([9, 9]), ignore_index=9))  # the mean of nothing
    assert kernel(NLL, x[:2], np.array([9, 9]), ignore_index=9, reduction="sum") == 0


def test_what_is_ignored_is_not_read():
    x = np.array([[np.inf, np.nan], [-1, -2]], np.float32)
    weight = np.array([np.nan, 3], np.float32)
    assert kernel(NLL, x, np.array([0, 1]), weight, ignore_index=0) == 2


@pytest.mark.parametrize("op", [NLL, SCE])
@pytest.mark.parametrize("label", [3, -1, 2**40])
def test_a_label_out_of_range(op, label):
    with pytest.raises(RunError, match=f"label {label} is outside the 3 classes"):
        kernel(op, normal(1, 2, 3), np.array([0, label]), ignore_index=7)


@pytest.mark.parametrize("op", [NLL, SCE])
@pytest.mark.parametrize(
    ("x", "labels", "weight", "message"),
    [
        ((3,), (3,), None, "needs batch and class"),
        ((2, 3), (3,), None, r"labels are \[3\].* needs \[2\]"),
        ((2, 3, 4), (2,), None, r"needs \[2, 4\]"),
        ((2, 3), (2,), (2,), r"weight is \[2\] for 3 classes"),
        ((2, 3), (2,), (3, 1), r"weight is \[3, 1\] for 3 classes"),
    ],
)
def test_what_does_not_fit(op, x, labels, weight, message):
    given = [
        np.zeros(x, np.float32),
        np.zeros(labels, np.int64),
        None if weight is None else np.ones(weight, np.float32),
    ]
    with pytest.raises(RunError, match=message):
        kernel(op, *given)
    with pytest.raises(ShapeError, match=message):
        infer(op, [None if v is None else typed(*v.shape, dtype=v.dtype) for v in given])


def test_an_unknown_reduction():
    with pytest.raises(ShapeError, match="reduction 'max'"):
        infer(NLL, [typed(2, 3), typed(2, dtype=np.int64)], reduction="max")


def test_inferred():
    labels = typed("n", 5, dtype=np.int64)
    assert shape_of(infer(NLL, [typed("n", 3, 5), labels], reduction="none")[0]) == "[n, 5]"
    loss, logs = infer(SCE, [typed(None, 3, None), labels], 2, reduction="none")
    assert (shape_of(loss), shape_of(logs)) == ("[n, 5]", "[?, 3, ?]")
    assert shape_of(infer(SCE, [typed("n", 3, 5), labels])[0]) == "[]"
