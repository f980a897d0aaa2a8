"""Tokenizer against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, typed
from tests.ops.contrib import both_refuse, run, says

OP = "Tokenizer"
PLAIN = {"mark": 0, "mincharnum": 1, "pad_value": "#"}


def words(texts, **attrs):
    """What both make of the texts."""
    x, attrs = np.array(texts, dtype=object), PLAIN | attrs
    got, wanted = run(OP, [x], **attrs)[0], says(OP, [x], **attrs)[0]
    assert got.shape == wanted.shape
    assert got.tolist() == wanted.tolist()
    return got.tolist()


def test_the_examples_of_the_operator():
    got = words(["Hello World", "I love computer science !"], separators=[" "])
    assert got == [["Hello", "World", "#", "#", "#"], ["I", "love", "computer", "science", "!"]]
    assert words(["Hello", "World"], separators=[" "], mark=1) == [["\x02", w, "\x03"] for w in ("Hello", "World")]
    assert words(["ab c"], separators=[""]) == [["a", "b", " ", "c"]]


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize(
    ("texts", "separators"),
    [
        (["a b  cc ddd", "x"], [" "]),
        (["a,b;c d", ""], [",", ";", " "]),
        (["a;,b,;c"], [",;", ";"]),
        (["a--b-c", "a---b"], ["-", "--"]),
        (["a--b-c", "a---b"], ["--", "-"]),
        (["aab"], ["aa", "ab"]),
        (["xaabx"], ["b", "aab"]),
        (["a1b22c"], ["[0-9]+"]),
        (["a1b22c"], ["[0-9]*"]),
        (["a.b"], ["."]),
        (["a.b"], [r"\."]),
        (["a b"], [" ", ""]),
        ([" ", "  "], [" "]),
        ([["a b", "c"], ["d e f", ""]], [" "]),
        ([["", ""]], [" "]),
        (["aébc", "日本"], [""]),
        ([""], [""]),
        (["aXb"], ["(?i)x"]),
        (["a\xa0b\x0bc d"], [r"\s"]),
        (["aab ab"], ["^a"]),
    ],
)
def test_separators(texts, separators, mark):
    words(texts, separators=separators, mark=mark)


@pytest.mark.parametrize("shortest", [1, 2, 3])
@pytest.mark.parametrize(
    "expression", ["[a-zA-Z0-9_]+", r"\w+", r"\b\w\w+\b", "a|ab|abc", "a*(ab)*", "x*", "(a)(b)?", "a+?", ".."]
)
def test_expressions(expression, shortest):
    words(["the cat's 12 x", "été déjà", "aab abc ab", "x\ny aa", ""], tokenexp=expression, mincharnum=shortest)


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_short_words_are_left_out(shortest):
    words(["a b  cc ddd", "a bb c", ""], separators=[" "], mincharnum=shortest)


def test_characters():
    assert words(["x\ny é"], tokenexp=".") == [["x", "\n", "y", " ", "é"]]


@pytest.mark.parametrize(("shape", "wanted"), [((0,), (0,)), ((2, 0), (2, 0)), ((0, 3), (0, 0))])
def test_empty_inputs(shape, wanted):
    x, attrs = np.empty(shape, dtype=object), PLAIN | {"separators": [" "]}
    assert run(OP, [x], **attrs)[0].shape == wanted
    assert says(OP, [x], **attrs)[0].shape == wanted


def test_faults():
    x = np.array(["a"], dtype=object)
    both_refuse(OP, [x], "needs separators or tokenexp", **PLAIN)
    both_refuse(OP, [x], "needs separators or tokenexp", **PLAIN, tokenexp="")
    both_refuse(OP, [x], "mincharnum 0 must be positive", **PLAIN | {"mincharnum": 0}, separators=[" "])
    both_refuse(OP, [x], "leaves no single character", **PLAIN | {"mincharnum": 2}, separators=[""])
    both_refuse(OP, [x], "leaves no single character", **PLAIN | {"mincharnum": 2}, tokenexp=".")
    both_refuse(OP, [x[None, None]], "neither", **PLAIN, separators=[" "])
    both_refuse(OP, [x], "is not RE2's", **PLAIN, separators=["("])


def test_inferred():
    attrs = PLAIN | {"separators": (" ",)}
    known = infer("com.microsoft::Tokenizer", [typed(2, 3, dtype=object)], **attrs)[0]
    assert str(known.type) == "string[2, 3, ?]"
    open_ended = infer("com.microsoft::Tokenizer", [typed("n", dtype=object)], **attrs)[0]
    assert str(open_ended.type) == "string[...]"
    with pytest.raises(ShapeError, match="neither"):
        infer("com.microsoft::Tokenizer", [typed(1, 2, 3, dtype=object)], **attrs)
