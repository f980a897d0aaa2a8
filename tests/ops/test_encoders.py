"""LabelEncoder in all versions, CategoryMapper and OneHotEncoder."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.encoders import places
from tests.ops.cases import check_case, infer, ints, kernel, node_cases, shape_of, typed
from tests.ops.classical import agree, strings

LABEL, CATEGORY, ONE_HOT = (f"ai.onnx.ml::{n}" for n in ("LabelEncoder", "CategoryMapper", "OneHotEncoder"))
NAN = float("nan")
WORDS = strings("a", "z", "b", "")


@pytest.mark.parametrize("case", node_cases("LabelEncoder"))
def test_onnx_cases(case):
    check_case(case)


def test_there_are_cases():
    assert len(node_cases("LabelEncoder")) == 4


def test_places():
    keys = np.array([5, -3, 7, -3])
    assert places(keys, np.array([[-3, 5], [6, 7]])).tolist() == [[3, 0], [-1, 2]]
    assert places(keys, np.array([-4, 8])).tolist() == [-1, -1]
    assert places(np.array([NAN, 0.0, NAN]), np.array([NAN, -0.0, np.inf, -np.inf])).tolist() == [2, 1, -1, -1]
    assert places(np.array([], np.int64), np.array([1])).tolist() == [-1]
    assert places(strings("x", "y", "x"), strings("x", "", "y")).tolist() == [2, -1, 1]
    assert places(keys, np.array(7)).tolist() == 2


# ---- LabelEncoder


def test_version_1_agrees_with_onnxruntime():
    agree("LabelEncoder", [WORDS], ["int64"], 1, classes_strings=["a", "b", "c"], default_int64=-5)
    agree("LabelEncoder", [ints(1, 9, -1, 0)], ["string"], 1, classes_strings=["a", "b"], default_string="none")
    agree("LabelEncoder", [ints(1, 5).reshape(1, 2)], ["string"], 1, classes_strings=["a", "b"])


@pytest.mark.parametrize("version", [2, 4])
def test_mappings_agree_with_onnxruntime(version):
    """But for NaN in version 2, which the text finds by its bits and onnxruntime never."""
    odd = NAN if version == 4 else np.inf
    reals = np.array([[odd, 0, -0.0], [1, 2.5, -np.inf]], np.float32)
    for x, keys in (
        (reals, {"keys_floats": [2.5, 0.0, odd]}),
        (ints(3, -4, 0, 99), {"keys_int64s": [-4, 99, 1 << 40]}),
        (WORDS, {"keys_strings": ["b", "", "c"]}),
    ):
        agree("LabelEncoder", [x], ["int64"], version, **keys, values_int64s=[1, 2, 1 << 50])
        agree("LabelEncoder", [x], ["float"], version, **keys, values_floats=[0.5, NAN, -1.0], default_float=7.0)
        agree("LabelEncoder", [x], ["string"], version, **keys, values_strings=["A", "", "C"], default_string="?")
        agree("LabelEncoder", [x], ["string"], version, **keys, values_strings=["A", "", "C"])


def test_tensors_agree_with_onnxruntime():
    reals = {"keys_tensor": np.array([1.0, NAN]), "values_tensor": np.array([2.5, -0.0])}
    agree("LabelEncoder", [np.array([1, NAN, 3, 0])], ["double"], 4, **reals, default_tensor=np.array([9.0]))
    agree("LabelEncoder", [np.array([1, NAN, 3, 0])], ["double"], 4, **reals)
    words = {"keys_tensor": strings("a", "b"), "values_tensor": np.array([7, 8], np.int16)}
    agree("LabelEncoder", [WORDS], ["int16"], 4, **words)
    agree("LabelEncoder", [WORDS], ["int16"], 4, **words, default_tensor=np.array([3], np.int16))


def test_defaults_by_the_text():
    assert kernel(LABEL, ints(5), keys_int64s=(1,), values_int64s=(2,)).tolist() == [-1]
    assert kernel(LABEL, ints(5), keys_int64s=(1,), values_strings=("x",)).tolist() == ["_Unused"]
    zero = kernel(LABEL, ints(5), keys_int64s=(1,), values_floats=(2.0,))
    assert zero.tolist() == [0]
    assert np.signbit(zero[0])
    short = kernel(LABEL, np.array([5, 1], np.int16), keys_tensor=np.array([1], np.int16),
                   values_tensor=np.array([9], np.int32))  # fmt: skip
    assert (short.dtype, short.tolist()) == (np.int32, [-1, 9])


def test_the_last_of_equal_keys_counts():
    """Version 4 says so; onnxruntime takes the first."""
    assert kernel(LABEL, ints(1, 2), keys_int64s=(1, 2, 1), values_int64s=(10, 20, 30)).tolist() == [30, 20]
    assert kernel(LABEL, strings("k"), keys_strings=("k", "k"), values_int64s=(10, 20)).tolist() == [20]


def test_nan_is_a_key():
    x = np.array([NAN, -NAN, 1], np.float32)
    assert kernel(LABEL, x, keys_floats=(NAN, 1.0), values_int64s=(7, 8)).tolist() == [7, 7, 8]


def test_scalars_and_empty_tensors():
    out = kernel(LABEL, np.array(1), keys_int64s=(1,), values_strings=("x",))
    assert (out.shape, out.tolist()) == ((), "x")
    assert kernel(LABEL, np.zeros((0, 2), np.int64), keys_int64s=(1,), values_floats=(1.0,)).shape == (0, 2)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"values_int64s": (1,)}, "needs one attribute of keys, none given"),
        ({"keys_int64s": (1,), "keys_floats": (1.0,), "values_int64s": (1,)}, "keys_floats, keys_int64s given"),
        ({"keys_int64s": (1, 2), "values_int64s": (1,)}, "2 keys for 1 values"),
        ({"keys_strings": ("a",), "values_int64s": (1,)}, "the input is int64, the keys are string"),
        (
            {"keys_int64s": (1,), "values_int64s": (1,), "default_tensor": np.zeros(1, np.float32)},
            "the input is float, the values are int64",
        ),
        (
            {"keys_int64s": (1,), "values_int64s": (1,), "default_tensor": np.zeros(2, np.int64)},
            "default_tensor must be one element",
        ),
    ],
)
def test_label_faults(attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(LABEL, ints(1), **attrs)


# ---- CategoryMapper


def test_category_mapper_agrees_with_onnxruntime():
    table = {"cats_int64s": [3, 4, -1], "cats_strings": ["a", "", "b"]}
    agree("CategoryMapper", [WORDS], ["int64"], 1, **table, default_int64=-5)
    agree("CategoryMapper", [ints(3, 9, -1).reshape(3, 1)], ["string"], 1, **table, default_string="none")
    agree("CategoryMapper", [ints(3, 9)], ["string"], 1, **table)
    with pytest.raises(RunError, match="2 integers for 1 strings"):
        kernel(CATEGORY, WORDS, cats_int64s=(1, 2), cats_strings=("a",))
    with pytest.raises(RunError, match="neither of strings nor of int64"):
        kernel(CATEGORY, np.zeros(1, np.float32), cats_int64s=(1,), cats_strings=("a",))


# ---- OneHotEncoder


def test_one_hot_agrees_with_onnxruntime():
    agree("OneHotEncoder", [WORDS], ["float"], 1, cats_strings=["a", "b", ""])
    agree("OneHotEncoder", [ints(3, 1, 7).reshape(3, 1)], ["float"], 1, cats_int64s=[1, 3, 1 << 40])
    for dtype in (np.float32, np.float64):
        x = np.array([[1.7, -1.2], [2, 0.5]], dtype)
        agree("OneHotEncoder", [x], ["float"], 1, cats_int64s=[-1, 1, 0])


def test_one_hot_by_hand():
    assert kernel(ONE_HOT, np.array(4), cats_int64s=tuple(range(8))).tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    odd = np.array([NAN, np.inf, -np.inf, 1e30, -0.9], np.float32)
    assert kernel(ONE_HOT, odd, cats_int64s=(0, -(1 << 63), (1 << 63) - 1)).tolist() == [[0, 0, 0]] * 4 + [[1, 0, 0]]
    assert kernel(ONE_HOT, np.array([1, 2], np.int32), cats_int64s=(2,)).tolist() == [[0], [1]]


def test_one_hot_faults():
    with pytest.raises(RunError, match="category 'z' is unknown"):
        kernel(ONE_HOT, WORDS, cats_strings=("a", "b", ""), zeros=0)
    assert kernel(ONE_HOT, WORDS[[0]], cats_strings=("a",), zeros=0).tolist() == [[1]]
    with pytest.raises(RunError, match="the input is string, the categories are integers"):
        kernel(ONE_HOT, WORDS, cats_int64s=(1,))
    with pytest.raises(ShapeError, match="either integers or strings"):
        infer(ONE_HOT, [typed(2)])


# ---- inference


def test_inference():
    (y,) = infer(LABEL, [typed("n", 2, dtype=object)], keys_strings=("a",), values_floats=(1.0,))
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, 2]")
    (y,) = infer(LABEL, [typed("n", dtype=object)], classes_strings=("a",))
    assert (y.dtype, shape_of(y)) == (np.int64, "[n]")
    (y,) = infer(CATEGORY, [typed("n", dtype=np.int64)], cats_int64s=(1,), cats_strings=("a",))
    assert (y.dtype, shape_of(y)) == (object, "[n]")
    (y,) = infer(ONE_HOT, [typed("n", 2, dtype=np.float64)], cats_int64s=(1, 2, 3))
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, 2, 3]")
    with pytest.raises(ShapeError, match="the input is int64, the keys are string"):
        infer(LABEL, [typed("n", dtype=np.int64)], keys_strings=("a",), values_floats=(1.0,))
