"""StringNormalizer."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, shape_of, typed


@pytest.mark.parametrize("case", node_cases("StringNormalizer"))
def test_onnx_cases(case):
    check_case(case)


def words(*texts, shape=None):
    x = np.array(texts, dtype=object)
    return x if shape is None else x.reshape(shape)


def test_stop_words_with_and_without_case():
    x = words("Monday", "monday", "MONDAY", "tuesday")
    assert kernel("StringNormalizer", x, stopwords=("Monday",), is_case_sensitive=1).tolist() == [
        "monday",
        "MONDAY",
        "tuesday",
    ]
    assert kernel("StringNormalizer", x, stopwords=("mONDAY",)).tolist() == ["tuesday"]
    assert kernel("StringNormalizer", x, stopwords=("a",), case_change_action="UPPER").tolist() == ["MONDAY"] * 3 + [
        "TUESDAY"
    ]
    assert kernel("StringNormalizer", words("Ä", "É"), case_change_action="LOWER").tolist() == ["ä", "é"]
    assert kernel("StringNormalizer", x).tolist() == x.tolist()


def test_nothing_left_is_one_empty_string():
    assert kernel("StringNormalizer", words("a", "b"), stopwords=("A", "B")).tolist() == [""]
    assert kernel("StringNormalizer", words("a", shape=(1, 1)), stopwords=("a",)).tolist() == [[""]]
    assert kernel("StringNormalizer", words(shape=(1, 0))).tolist() == [[""]]
    assert kernel("StringNormalizer", words()).tolist() == [""]


def test_shapes():
    text = np.dtype(object)
    assert kernel("StringNormalizer", words("a", "b", shape=(1, 2))).shape == (1, 2)
    assert shape_of(infer("StringNormalizer", [typed(1, 3, dtype=text)])[0]) == "[1, 3]"
    assert shape_of(infer("StringNormalizer", [typed(0, dtype=text)])[0]) == "[1]"
    assert shape_of(infer("StringNormalizer", [typed(3, dtype=text)], stopwords=("a",))[0]) == "[?]"
    for shape in ((), (2, 3), (1, 1, 1)):
        with pytest.raises(RunError, match="neither"):
            kernel("StringNormalizer", np.full(shape, "a", dtype=object))
        with pytest.raises(ShapeError, match="neither"):
            infer("StringNormalizer", [typed(*shape, dtype=text)])
    with pytest.raises(RunError, match="'TITLE' is not LOWER"):
        kernel("StringNormalizer", words("a"), case_change_action="TITLE")
    with pytest.raises(ShapeError, match="'TITLE' is not LOWER"):
        infer("StringNormalizer", [typed(1, dtype=text)], case_change_action="TITLE")
