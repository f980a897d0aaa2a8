"""The longest of the leftmost matches of RE2's regular expressions, and what is refused.

The expectations were taken from RE2 itself, through onnxruntime's Tokenizer, which one test asks again.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuse.errors import ShapeError, UnsupportedError
from fuse.ops.pattern import compiled
from tests.ops.contrib import run, says


@pytest.mark.parametrize(
    ("source", "text", "wanted"),
    [
        ("a|ab", "xab", "ab"),
        ("foo|foobar", "foobar", "foobar"),
        ("a*(ab)*", "aab", "aab"),
        ("(a?)(ab)?", "ab", "ab"),
        ("a+?", "aaa", "aaa"),
        (r"\w+\b|foo ", "foo bar", "foo "),
        (r"\b\w\w+\b", "a bc def", "bc"),
        ("[a-z]{2,3}", "abcd", "abc"),
        ("x*", "abc", ""),
        (r"\w+", "éab", "ab"),
        (r"\d+", "٣4", "4"),
        (r"[\d\s]+", "a1 2\t3", "1 2\t3"),
        (r"\S+", "\x0b", "\x0b"),
        (r"\D", "1\n", "\n"),
        (r"\W", "é", "é"),
        ("(?i)é", "É", "É"),
        ("(?i:a)b", "Ab", "Ab"),
        ("(?P<n>a)(?<m>b)", "ab", "ab"),
        (r"\Qa.b\E+", "a.bb", "a.bb"),
        (r"\x41\x{e9}\101\0", "AéA\0", "AéA\0"),
        ("[[:alpha:]_]+", "1a_b", "a_b"),
        ("[^[:digit:]]+", "12ab", "ab"),
        ("[]a]+", "x]a", "]a"),
        ("[a&&b]+", "a&b", "a&b"),
        (r"[\]\-x]+", "]-x", "]-x"),
        (r"\pL+", "1é日", "é日"),
        (r"\p{Nd}+", "a٣4", "٣4"),
        (r"\PL", "a1", "1"),
        (r"[\p{Lu}1]+", "aÉ1", "É1"),
        ("(?m)^b$", "a\nb\nc", "b"),
        ("a.c", "a\nc abc", "abc"),
        ("(?s)a.c", "a\nc", "a\nc"),
        ("a(?i)b|bc", "xaBc", "aB"),
        ("(?i)a|ab$", "cAB", "AB"),
        (r"[\S]+", " a\x0b ", "a\x0b"),
        (r"[\PL]+", "a1-b", "1-"),
        ("[[:^alpha:]]+", "a1-b", "1-"),
        ("b|(?m:b$)|b\n", "ab\nc", "b\n"),
        (r"a\B|a\Bb|c", "abc", "ab"),
        ("a{,2}", "aa{a{,2}", "a{,2}"),
    ],
)
def test_the_longest_of_the_leftmost(source, text, wanted):
    found = compiled(source).search(text)
    assert found is not None
    assert text[slice(*found)] == wanted


@pytest.mark.parametrize(("source", "text"), [("a$", "a\n"), (r"a\z", "a\n"), ("^b", "ab"), ("b", ""), (r"\Bb", "b")])
def test_no_match(source, text):
    assert compiled(source).search(text) is None


def test_search_goes_on_from_a_place_and_sees_what_is_before():
    assert compiled("^a").search("aa", 1) is None
    assert compiled(r"\bb").search("ab b", 1) == (3, 4)
    assert compiled("a").search("a", 1) is None


@pytest.mark.parametrize(
    "source", ["(", "[a", "a**", "a*+", r"(a)\1", "a(?=b)", "(?<!a)b", "(?#x)", r"\y", "[b-a]", r"\x{", "(?>a)"]
)
def test_what_is_no_expression(source):
    with pytest.raises(ShapeError, match="is not RE2's"):
        compiled(source)


@pytest.mark.parametrize("source", [r"\p{Greek}", r"\C"])
def test_what_has_no_counterpart(source):
    with pytest.raises(UnsupportedError):
        compiled(source)


def test_against_re2():
    """All expressions of a few pieces, on all texts of a few letters, through onnxruntime's Tokenizer."""
    pieces = ["a", "b", "ab", "a*", "(b|ab)", "[ab]?", "a+?", "(ab)*", r"\b"]
    texts = np.array(["".join(t) for n in range(5) for t in itertools.product("ab ", repeat=n)], dtype=object)
    attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#"}
    joined = ["".join(p) for p in itertools.product(pieces, repeat=2)]
    flagged = ["a(?i)B|ab ", "(?m)a$|ab", r"[\S]+?|a ", r"(a|\Ba)+", "a(?U:b+)a?", "[[:^alpha:]]|a", "a{,2}|b"]
    for source in [*joined, *("|".join(p) for p in itertools.combinations(pieces, 2)), *flagged]:
        given = attrs | {"tokenexp": source}
        assert run("Tokenizer", [texts], **given)[0].tolist() == says("Tokenizer", [texts], **given)[0].tolist(), source
