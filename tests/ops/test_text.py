"""StringNormalizer, StringConcat and StringSplit."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, shape_of, typed
from tests.ops.oracle import onnxruntime_says

TEXT = np.dtype(object)


@pytest.mark.parametrize("case", node_cases("StringNormalizer", "StringConcat", "StringSplit"))
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


# ---- StringConcat


def test_concatenation_broadcasts():
    x, y = words("a", "é", "", shape=(3, 1)), words("b", "\U0001f600")
    assert kernel("StringConcat", x, y).tolist() == [["ab", "a\U0001f600"], ["éb", "é\U0001f600"], ["b", "\U0001f600"]]
    both = kernel("StringConcat", np.array("a", TEXT), np.array("b", TEXT))
    assert (both.shape, both.dtype, both.item()) == ((), TEXT, "ab")
    assert kernel("StringConcat", np.zeros((0, 2), TEXT), np.array("b", TEXT)).shape == (0, 2)
    assert shape_of(infer("StringConcat", [typed("n", 1, dtype=TEXT), typed(3, dtype=TEXT)])[0]) == "[n, 3]"
    with pytest.raises(ShapeError, match="do not broadcast"):
        infer("StringConcat", [typed(2, dtype=TEXT), typed(3, dtype=TEXT)])
    with pytest.raises(RunError):
        kernel("StringConcat", words("a", "b"), words("a", "b", "c"))


# ---- StringSplit


def split(*texts, **attrs):
    parts, counts = kernel("StringSplit", words(*texts), **attrs)
    assert (parts.dtype, counts.dtype) == (TEXT, np.int64)
    return parts.tolist(), counts.tolist()


def test_split_at_a_delimiter():
    assert split("a,b,,c", ",", "a", delimiter=",") == (
        [["a", "b", "", "c"], ["", "", "", ""], ["a", "", "", ""]],
        [4, 2, 1],
    )
    assert split("a--b---c", delimiter="--") == ([["a", "b", "-c"]], [3])
    assert split("a b", delimiter=" ", maxsplit=0) == ([["a b"]], [1])
    assert split("a,b,c", delimiter=",", maxsplit=1) == ([["a", "b,c"]], [2])
    assert split("a,b,c", delimiter=",", maxsplit=-1) == ([["a", "b", "c"]], [3])
    assert split("", "a", delimiter=",") == ([[""], ["a"]], [0, 1])


def test_split_at_white_space():
    assert split(" a\tb \n c ", "", "  ") == ([["a", "b", "c"], [""] * 3, [""] * 3], [3, 0, 0])
    assert split("  a  b  c  ", delimiter="", maxsplit=1) == ([["a", "b  c"]], [2])
    assert split("  a b ", maxsplit=0) == ([["a b"]], [1])
    assert split("", " ") == ([[], []], [0, 0])


@pytest.mark.parametrize("attrs", [{}, {"maxsplit": 1}, {"delimiter": ","}, {"delimiter": ",", "maxsplit": 2}])
def test_split_as_onnxruntime_does(attrs):
    x = words("", " ", ",", "a", " a  b c ", "a,b,,c,", ",,", "é ,é", shape=(2, 4))
    wanted = onnxruntime_says("StringSplit", [x], outputs=2, opset=20, **attrs)
    for got, expected in zip(kernel("StringSplit", x, **attrs), wanted, strict=True):
        assert got.shape == expected.shape
        assert got.tolist() == expected.tolist()


def test_split_shapes():
    parts, counts = kernel("StringSplit", np.zeros((0, 2), TEXT))
    assert (parts.shape, counts.shape) == ((0, 2, 0), (0, 2))
    parts, counts = kernel("StringSplit", np.array("a b", TEXT))
    assert (parts.tolist(), counts.shape, counts.item()) == (["a", "b"], (), 2)
    found = infer("StringSplit", [typed("n", 2, dtype=TEXT)], outputs=2)
    assert [shape_of(i) for i in found] == ["[n, 2, ?]", "[n, 2]"]
    with pytest.raises(RunError, match="maxsplit -2 is no number of splits"):
        kernel("StringSplit", words("a"), maxsplit=-2)
