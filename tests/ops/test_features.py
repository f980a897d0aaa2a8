"""Scaler, Normalizer, Binarizer, Imputer, FeatureVectorizer and ArrayFeatureExtractor."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, ints, kernel, node_cases, shape_of, typed
from tests.ops.classical import agree, floats, fuse_says
from tests.ops.oracle import normal

SCALER, NORMALIZER, BINARIZER, IMPUTER, VECTORIZER, EXTRACTOR = (
    f"ai.onnx.ml::{n}"
    for n in ("Scaler", "Normalizer", "Binarizer", "Imputer", "FeatureVectorizer", "ArrayFeatureExtractor")
)
NAN, INF = np.nan, np.inf
X = np.array([[-3, 1, 2], [0, 0, 0], [-1, -4, -2]], np.float32)


@pytest.mark.parametrize("case", node_cases("ArrayFeatureExtractor", "Binarizer"))
def test_onnx_cases(case):
    check_case(case)


def test_there_are_cases():
    assert len(node_cases("ArrayFeatureExtractor", "Binarizer")) == 2


# ---- Scaler


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
@pytest.mark.parametrize("count", [1, 3])
def test_scaler_agrees_with_onnxruntime(dtype, count):
    attrs = {"offset": floats(normal(1, count)), "scale": floats(normal(2, count))}
    for x in (3 * normal(0, 5, 3), 3 * normal(0, 3), normal(0, 0, 3)):
        agree("Scaler", [x.astype(dtype)], ["float"], 1, **attrs)


def test_scaler_by_hand():
    y = kernel(SCALER, X, offset=(1.0, 0.0, 2.0), scale=(2.0, -1.0, 0.5))
    assert y.dtype == np.float32
    assert y.tolist() == [[-8, -1, 0], [-2, 0, -1], [-4, 4, -2]]
    assert kernel(SCALER, X, offset=(1.0,)).tolist() == (X - 1).tolist()
    assert kernel(SCALER, X, scale=(2.0,)).tolist() == (X * 2).tolist()
    assert kernel(SCALER, np.array(3), offset=(1.0,), scale=(2.0,)).tolist() == 4
    cube = np.arange(12).reshape(2, 2, 3)
    assert kernel(SCALER, cube, offset=(0.0, 1.0, 2.0), scale=(1.0,)).tolist() == (cube - [0, 1, 2]).tolist()


def test_scaler_rounds_once():
    x = np.array([[(1 << 40) + 1]])
    assert kernel(SCALER, x, offset=(float(1 << 40),), scale=(3.0,)).tolist() == [[3]]


# ---- Normalizer


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_normalizer_agrees_with_onnxruntime(norm, dtype):
    for x in (3 * normal(0, 5, 3), X, X[0], normal(0, 0, 3)):
        agree("Normalizer", [x.astype(dtype)], ["float"], 1, norm=norm)


def test_normalizer_by_hand():
    assert kernel(NORMALIZER, X).tolist() == [[-1.5, 0.5, 1], [0, 0, 0], [1, 4, 2]]
    assert kernel(NORMALIZER, X[[0, 1]], norm="L1").tolist() == [
        [-0.5, float(np.float32(1 / 6)), float(np.float32(1 / 3))],
        [0, 0, 0],
    ]
    assert kernel(NORMALIZER, np.array([[3, -4]]), norm="L2").tolist() == [
        [float(np.float32(0.6)), float(np.float32(-0.8))]
    ]


def test_normalizer_at_the_ends():
    """The squares of these would be 0 and infinite in float32."""
    x = np.array([[3e-30, -4e-30], [3e30, 4e30]], np.float32)
    np.testing.assert_allclose(kernel(NORMALIZER, x, norm="L2"), [[0.6, -0.8], [0.6, 0.8]], rtol=1e-7)
    odd = kernel(NORMALIZER, np.array([[1, NAN, 4]], np.float32))
    assert odd[0, [0, 2]].tolist() == [0.25, 1]
    assert np.isnan(odd[0, 1])
    assert np.isnan(kernel(NORMALIZER, np.array([[NAN, NAN]], np.float32))).all()
    assert kernel(NORMALIZER, np.zeros((2, 0), np.float32), norm="MAX").shape == (2, 0)
    with pytest.raises(RunError, match="neither"):
        kernel(NORMALIZER, np.zeros((1, 1, 1), np.float32))
    with pytest.raises(ShapeError, match="norm 'L3'"):
        infer(NORMALIZER, [typed(2, 3)], norm="L3")


# ---- Binarizer


def test_binarizer():
    x = np.array([-1, 0.5, np.nextafter(np.float32(0.5), 1), NAN, INF, -INF], np.float32)
    assert kernel(BINARIZER, x, threshold=0.5).tolist() == [0, 0, 1, 0, 1, 0]
    for dtype in (np.float64, np.int64, np.int32):
        y = kernel(BINARIZER, np.array([0, 1, 2]).astype(dtype), threshold=0.5)
        assert y.dtype == dtype
        assert y.tolist() == [0, 1, 1]
    agree("Binarizer", [X], ["float"], 1, threshold=0.5)


# ---- Imputer


def test_imputer_agrees_with_onnxruntime():
    x = np.array([[1, NAN, 3], [NAN, 5, NAN]], np.float32)
    for values in ([7.0], [7.0, 8.0, 9.0]):
        agree("Imputer", [x], ["float"], 1, imputed_value_floats=values, replaced_value_float=NAN)
        agree("Imputer", [x], ["float"], 1, imputed_value_floats=values, replaced_value_float=3.0)
        agree("Imputer", [x[0]], ["float"], 1, imputed_value_floats=values, replaced_value_float=NAN)
    whole = np.array([[1, 2], [0, 1]])
    agree("Imputer", [whole], ["int64"], 1, imputed_value_int64s=[7, 1 << 40], replaced_value_int64=1)


def test_imputer_by_hand():
    x = np.array([[0.0, -0.0, 0.1]])
    assert kernel(IMPUTER, x, imputed_value_floats=(5.0,)).tolist() == [[5, 5, 0.1]]
    cube = np.zeros((2, 1, 2), np.int32)
    y = kernel(IMPUTER, cube, imputed_value_int64s=(7, 8))
    assert y.dtype == np.int32
    assert y.tolist() == [[[7, 8]], [[7, 8]]]
    tenth = np.array([[0.1]], np.float32)
    assert kernel(IMPUTER, tenth, imputed_value_floats=(2.0,), replaced_value_float=float(tenth[0, 0])).tolist() == [
        [2]
    ]
    assert kernel(IMPUTER, np.array(0), imputed_value_int64s=(3,)).tolist() == 3


@pytest.mark.parametrize(
    ("x", "attrs", "message"),
    [
        (X, {"imputed_value_floats": (1.0, 2.0)}, r"2 numbers in 'imputed_value' for an input \[3, 3\]"),
        (X, {"imputed_value_int64s": (1,)}, "needs the attribute 'imputed_value_floats'"),
        (X.astype(np.int32), {"imputed_value_int64s": (1 << 40,)}, r"\[1099511627776\] do not fit into int32"),
    ],
)
def test_imputer_faults(x, attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(IMPUTER, x, **attrs)


# ---- FeatureVectorizer


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_vectorizer_agrees_with_onnxruntime(dtype):
    parts = [X.astype(dtype), X[:, :1].astype(dtype)]
    for widths in ([3, 1], [2, 3]):
        agree("FeatureVectorizer", parts, ["float"], 1, inputdimensions=widths)
    agree("FeatureVectorizer", [X[0], X[1, :1]], ["float"], 1, inputdimensions=[3, 1])


def test_vectorizer_by_hand():
    assert kernel(VECTORIZER, ints(1, 2), ints(3)).tolist() == [[1, 2, 3]]
    assert kernel(VECTORIZER, X, X[:, :1]).tolist() == np.hstack([X, X[:, :1]]).tolist()
    with pytest.raises(RunError, match="have different rows"):
        kernel(VECTORIZER, X, X[:2])
    with pytest.raises(RunError, match="1 input dimensions for 2 inputs"):
        kernel(VECTORIZER, X, X, inputdimensions=(3,))


# ---- ArrayFeatureExtractor


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_extractor_agrees_with_onnxruntime(dtype):
    for y in (ints(0, 2, 0), ints(1).reshape(1, 1), ints(2, 1).reshape(2, 1), np.array(1)):
        agree(
            "ArrayFeatureExtractor",
            [X.astype(dtype), y],
            [{np.float32: "float", np.float64: "double"}.get(dtype, np.dtype(dtype).name)],
            1,
        )
    agree(
        "ArrayFeatureExtractor",
        [X[0].astype(dtype), ints(2, 0)],
        [{np.float32: "float", np.float64: "double"}.get(dtype, np.dtype(dtype).name)],
        1,
    )


def test_extractor_by_hand():
    words = np.array([["a", "b"], ["c", "d"]], dtype=object)
    assert kernel(EXTRACTOR, words, ints(1)).tolist() == [["b"], ["d"]]
    assert kernel(EXTRACTOR, np.arange(8).reshape(2, 2, 2), ints(1, 1, 0)).tolist() == [
        [[1, 1, 0], [3, 3, 2]],
        [[5, 5, 4], [7, 7, 6]],
    ]
    assert kernel(EXTRACTOR, X, ints()).shape == (3, 0)
    for wrong in (ints(0, 3), ints(-1)):
        with pytest.raises(RunError, match=f"index {wrong[-1]} is out of range for size 3"):
            kernel(EXTRACTOR, X, wrong)


# ---- inference


def test_inference():
    (y,) = infer(SCALER, [typed("n", 3, dtype=np.int64)], offset=(1.0,))
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, 3]")
    with pytest.raises(ShapeError, match=r"2 numbers in 'scale' for an input \[n, 3\]"):
        infer(SCALER, [typed("n", 3)], scale=(1.0, 2.0))
    (y,) = infer(BINARIZER, [typed("n", 3, dtype=np.int64)])
    assert (y.dtype, shape_of(y)) == (np.int64, "[n, 3]")
    (y,) = infer(IMPUTER, [typed("n", "f", dtype=np.int64)], imputed_value_int64s=(1, 2))
    assert (y.dtype, shape_of(y)) == (np.int64, "[n, f]")
    (y,) = infer(VECTORIZER, [typed("n", 3), typed("n", "f")])
    assert (y.dtype, shape_of(y)) == (np.float32, "[n, f + 3]")
    (y,) = infer(VECTORIZER, [typed("n", 3), typed(4, "f")], inputdimensions=(3, 5))
    assert shape_of(y) == "[4, 8]"
    (y,) = infer(EXTRACTOR, [typed("n", 3), typed(1, "k", dtype=np.int64)])
    assert shape_of(y) == "[n, k]"
    (y,) = infer(EXTRACTOR, [typed(3), typed(2, 2, dtype=np.int64)])
    assert shape_of(y) == "[1, 4]"


def test_a_pipeline_of_one_node_each():
    (y,) = fuse_says("Scaler", [X], ["float"], 1, offset=[1.0], scale=[2.0])
    assert y.tolist() == ((X - 1) * 2).tolist()
