"""The session and its feeds: onnxruntime's interface, and one typed line for every wrong feed."""

from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info

import fuse
from fuse.errors import InputError, ModelError
from fuse.runtime.threads import blas_thread_count, blas_threads
from tests.models import I64, model, node, rand


def pair():
    return model(
        [node("Add", ["x", "z"], ["y"]), node("Add", ["y", "k"], ["w"])],
        {"x": ["n", 3], "z": ["n", 3], "k": [3]}, {"w": ["n", 3]}, {"k": rand(3)},
    )  # fmt: skip


def test_inputs_outputs_and_defaults():
    session = fuse.InferenceSession(pair())
    assert [(a.name, a.type, a.shape) for a in session.get_inputs()] == [
        ("x", "tensor(float)", ["n", 3]),
        ("z", "tensor(float)", ["n", 3]),
    ]
    assert [a.name for a in session.get_overridable_initializers()] == ["k"]
    assert [(a.name, a.shape) for a in session.get_outputs()] == [("w", ["n", 3])]


def test_runs_like_onnxruntime():
    ort = pytest.importorskip("onnxruntime")
    data = pair().SerializeToString()
    ours, theirs = fuse.InferenceSession(data), ort.InferenceSession(data, providers=["CPUExecutionProvider"])
    for feed in ({"x": rand(2, 3), "z": rand(2, 3)}, {"x": rand(1, 3), "z": rand(1, 3), "k": rand(3, seed=4)}):
        assert ours.run(None, feed)[0].tobytes() == theirs.run(None, feed)[0].tobytes()
        assert ours.run(["w"], feed)[0].tobytes() == theirs.run(["w"], feed)[0].tobytes()
    mine, their = ours.get_inputs()[0], theirs.get_inputs()[0]
    assert (mine.name, mine.type, mine.shape) == (their.name, their.type, their.shape)


X = rand(2, 3)
WRONG = {
    "unknown name": ({"x": X, "z": X, "q": X}, "there is no input 'q'", "inputs are 'x', 'z', 'k'"),
    "missing": ({"x": X}, "input 'z' has no value", "it is float"),
    "dtype": ({"x": X.astype(np.float64), "z": X}, "input 'x' is double, the model wants float", "astype"),
    "shape": ({"x": rand(2, 4), "z": X}, r"input 'x' has shape \[2, 4\], the model wants \[n, 3\]", None),
    "rank": ({"x": rand(3), "z": X}, r"input 'x' has shape \[3\]", None),
    "one symbol, two sizes": ({"x": X, "z": rand(4, 3)}, "dim 'n' is 2 in input 'x' and 4 in input 'z'", None),
    "objects": ({"x": np.array([[object()]]), "z": X}, "not a tensor of numbers", None),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_feeds_get_one_line(case):
    feed, message, hint = WRONG[case]
    with pytest.raises(InputError, match=message) as caught:
        fuse.InferenceSession(pair()).run(None, feed)
    assert (caught.value.hint is None) if hint is None else hint in str(caught.value.hint)


def test_python_numbers_and_lists_are_taken_where_the_dtype_fits():
    session = fuse.InferenceSession(model([node("Neg", ["x"], ["y"])], {"x": (I64, [2])}, {"y": (I64, [2])}))
    assert session.run(None, {"x": [1, -2]})[0].tolist() == [-1, 2]


def test_what_cannot_be_a_model():
    with pytest.raises(InputError, match="not int"):
        fuse.InferenceSession(3)
    with pytest.raises(ModelError):
        fuse.InferenceSession(b"nonsense")
    with pytest.raises(InputError, match="no such file"):
        fuse.InferenceSession("nowhere.onnx")
    with pytest.raises(InputError, match="threads"):
        fuse.InferenceSession("mlp", threads=0)


def test_threads_hold_for_the_block_and_no_longer():
    before = blas_thread_count()
    with blas_threads(1):
        assert blas_thread_count() == 1
        assert all(i["num_threads"] == 1 for i in threadpool_info() if i["user_api"] == "blas")
    assert blas_thread_count() == before
    with blas_threads(None):
        assert blas_thread_count() == before


def test_one_and_two_threads_give_equal_answers():
    feed = {"input": rand(2, 4)}
    answers = [fuse.InferenceSession("mlp", threads=n).run(None, feed)[0].tobytes() for n in (1, 2)]
    assert answers[0] == answers[1]
