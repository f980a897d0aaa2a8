"""RE2's regular expressions in Python's words."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from fuse.errors import FuseError, RunError, ShapeError, UnsupportedError
from fuse.ops.regex import translated
from tests.ops.cases import check_case, infer, kernel, node_cases, typed
from tests.ops.oracle import onnxruntime_says

TEXT = np.dtype(object)


@pytest.mark.parametrize("case", node_cases("RegexFullMatch"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def matching(pattern, *texts):
    """Which of ``texts`` match as a whole."""
    found = kernel("RegexFullMatch", np.array(texts, TEXT), pattern=pattern)
    assert found.dtype == bool
    return [t for t, hit in zip(texts, found.tolist(), strict=True) if hit]


@pytest.mark.parametrize(
    ("pattern", "texts", "wanted"),
    [
        (r"\d+", ["12", "١٢", ""], ["12"]),
        (r"\w\W", ["a-", "é-", "-a", "_\n"], ["a-", "_\n"]),
        (r"[\d\D]", ["5", "\n", ""], ["5", "\n"]),
        (r"\s", [" ", "\t", "\v", "\xa0"], [" ", "\t"]),
        (r"[[:space:]]", [" ", "\v"], [" ", "\v"]),
        (r"[[:^alpha:]_b]", ["5", "b", "_", "a", "é"], ["5", "b", "_", "é"]),
        (r"\pL\p{Lu}\P{L}\p{^Lu}", ["aÀ5b", "éZ-ß", "aa5b", "aÀab"], ["aÀ5b", "éZ-ß"]),
        (r"[\PL]", ["5", "a"], ["5"]),
        ("a$", ["a", "a\n"], ["a"]),
        ("(?m)a$\\n^b", ["a\nb", "ab"], ["a\nb"]),
        ("a$\\n^b", ["a\nb"], []),
        (r"\Aa\z", ["a", "a\n"], ["a"]),
        (".", ["a", "\U0001f600", "\n", ""], ["a", "\U0001f600"]),
        ("(?s).", ["\n"], ["\n"]),
        ("(?s:.).", ["\na", "\n\n"], ["\na"]),
        ("(?i)é[a-c]", ["ÉB", "éb", "ÉD"], ["ÉB", "éb"]),
        ("a(?i)b|c", ["aB", "C", "Ab", "ab"], ["aB", "C", "ab"]),
        ("a(?:(?i)b)c", ["aBc", "aBC", "Abc"], ["aBc"]),
        ("(?i)a(?-i)b", ["Ab", "AB"], ["Ab"]),
        ("(?i)[^a]", ["A", "B"], ["B"]),
        ("(?U)a+?", ["aa"], ["aa"]),
        (r"(?P<n>a)(?<m>b)", ["ab"], ["ab"]),
        (r"\Qa.b\E+", ["a.b", "a.bb", "axb"], ["a.b", "a.bb"]),
        (r"\x41\x{1F600}\101\07", ["A\U0001f600A\x07"], ["A\U0001f600A\x07"]),
        (r"\a\f\n\r\t\v\.\_", ["\a\f\n\r\t\v._"], ["\a\f\n\r\t\v._"]),
        ("a{,2}{", ["a{,2}{", "aa{"], ["a{,2}{"]),
        ("a{0,2}b{2,}c{1}", ["bbc", "aabbbc", "aaabbc", "bc"], ["bbc", "aabbbc"]),
        ("[]a][^]a][a-][-a][--/]", ["]b-a.", "]]-a.", "abaa-"], ["]b-a.", "abaa-"]),
        ("[a&&b[]", ["&", "[", "c"], ["&", "["]),
        (r"[^\x00-\x{10FFFF}]*", ["", "a"], [""]),
        (r"\ba\b.\Bb?", ["a b", "a-", "a--"], ["a-"]),
        (r"\B", ["", "a"], [""]),
        ("^*a^*$*", ["a"], ["a"]),
        ("", ["", "a"], [""]),
        ("a|", ["a", "", "b"], ["a", ""]),
        ("#a /&~ ", ["#a /&~ "], ["#a /&~ "]),
    ],
)
def test_what_matches(pattern, texts, wanted):
    assert matching(pattern, *texts) == wanted


def test_every_perl_and_posix_class_has_its_characters():
    ascii_ = [chr(c) for c in range(128)]
    for name, test in {
        "alnum": str.isalnum, "alpha": str.isalpha, "digit": str.isdigit, "lower": str.islower, "upper": str.isupper,
        "punct": lambda c: c.isprintable() and not c.isalnum() and c != " ", "print": str.isprintable,
        "graph": lambda c: c.isprintable() and c != " ", "cntrl": lambda c: not c.isprintable(),
        "blank": lambda c: c in " \t", "space": lambda c: c in " \t\n\r\v\f", "ascii": lambda c: True,
        "word": lambda c: c.isalnum() or c == "_", "xdigit": lambda c: c in "0123456789abcdefABCDEF",
    }.items():  # fmt: skip
        assert matching(f"[[:{name}:]]", *ascii_, "é") == list(filter(test, ascii_))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a**", "nothing to repeat before"),
        ("a++", "nothing to repeat before"),
        ("a+?+", "nothing to repeat before"),
        ("*a", "nothing to repeat before"),
        ("(*a)", "nothing to repeat before"),
        ("a|+", "nothing to repeat before"),
        ("a{2}{3}", "nothing to repeat before"),
        ("{2}", "nothing to repeat before"),
        ("a{1001}", "a repetition of '{1001}'"),
        ("a{3,2}", "a repetition of '{3,2}'"),
        ("(a{50}b){30}", "repetitions of 1500 in all"),
        ("(", ") is missing"),
        ("a)", "unexpected )"),
        ("[a", "] is missing"),
        ("[]", "] is missing"),
        ("[b-a]", "an empty range 'b-a'"),
        (r"[a-\d]", "unknown escape of 'd'"),
        ("[[:foo:]]", "unknown class '[:foo:]'"),
        ("(?=a)", "unknown group '(?=a'"),
        ("(?<!a)", "unknown group '(?<!'"),
        ("(?P=n)", "unknown group '(?P='"),
        ("(?)", "unknown group '(?)'"),
        ("(?i-)", "unknown group '(?i-'"),
        ("(?>a)", "unknown group '(?>a'"),
        ("(?#a)", "unknown group '(?#a'"),
        ("(?a)b", "unknown group '(?a)'"),
        (r"(a)\1", "unknown escape of '1'"),
        (r"\8", "unknown escape of '8'"),
        (r"\Z", "unknown escape of 'Z'"),
        (r"\é", "unknown escape of 'é'"),
        (r"\x{110000}", "no character has the number 'x{110000}'"),
        (r"\pX", "unknown category 'X'"),
        (r"\p{}", "unknown category ''"),
        ("\\", "what a backslash escapes is missing"),
    ],
)
def test_what_re2_refuses(pattern, text):
    with pytest.raises(ShapeError) as caught:
        translated(pattern)
    assert text in caught.value.what
    with pytest.raises(RunError):
        kernel("RegexFullMatch", np.array(["a"], TEXT), pattern=pattern)
    with pytest.raises(ShapeError):
        infer("RegexFullMatch", [typed(3, dtype=TEXT)], pattern=pattern)


def test_what_is_not_supported():
    for pattern in (r"\C", r"\p{Greek}", r"[\p{Latin}]"):
        with pytest.raises(UnsupportedError):
            translated(pattern)


def test_shapes_and_a_missing_pattern():
    assert kernel("RegexFullMatch", np.zeros((0, 2), TEXT), pattern="a").shape == (0, 2)
    scalar = kernel("RegexFullMatch", np.array("a", TEXT), pattern="a")
    assert (scalar.shape, scalar.dtype, scalar.tolist()) == ((), bool, True)
    assert infer("RegexFullMatch", [typed("n", 2, dtype=TEXT)], pattern="a")[0].shape == typed("n", 2).shape
    with pytest.raises(RunError, match="the pattern is missing"):
        kernel("RegexFullMatch", np.zeros(1, TEXT))


def test_deep_and_long_patterns_end():
    assert matching("(" * 60 + "a" + ")*" * 60, "aaa", "b") == ["aaa"]
    with pytest.raises(ShapeError, match="cannot be compiled"):
        translated("(" * 20000 + "a" + ")" * 20000)
    assert isinstance(translated("a" * 20000), re.Pattern)


# ---- against RE2 itself, inside onnxruntime

ATOMS = [
    "a", "b", "A", "é", "É", ".", "^", "$", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"\pL", r"\PL", r"\p{Lu}", r"\b",
    r"\B", r"\A", r"\z", "[ab]", "[^a]", "[a-c]", "[[:alpha:]]", "[^[:digit:]x]", r"[\w-]", r"[\D]", "[]a]", "[a-]",
    r"\Qa.\E", r"\x41", r"\101", r"\n", "-", "1", " ", "{", "}", "]", "{,2}", r"\_", r"\Z", r"\8", "[z-a]", "(?i:b)",
    "(?is-m:a)", "(?P<n>b)", r"[^\W]", "[a&&b]", "[[a]",
]  # fmt: skip
FLAGS = ["(?i)", "(?s)", "(?m)", "(?-i)", "(?U)"]
REPEATS = ["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "??", "{2}?", "**", "{1001}", "{0}"]
TEXTS = [
    "", "a", "b", "ab", "aa", "A", "AB", "é", "É", "a1", "1", "12", "_", " ", "\n", "a\n", "a\nb", "a.", "a b", "-",
    "{", "}", "]", "a{2}", "\t", "aab", "abab", "bb", "\x7f", "中", "aé", "b\n\na", "&", "z8",
]  # fmt: skip


def random_pattern(draw, depth=0):
    out = ""
    for _ in range(draw.randint(0, 4)):
        if depth < 3 and draw.random() < 0.2:
            atom = f"({draw.choice(['', '?:'])}{random_pattern(draw, depth + 1)})"
        else:
            atom = draw.choice(ATOMS)
        out += draw.choice(FLAGS) if draw.random() < 0.06 else atom + draw.choice(REPEATS)
        out += "|" if draw.random() < 0.12 else ""
    return out


@pytest.mark.parametrize("seed", range(4))
def test_random_patterns_as_re2_has_them(seed, capfd):
    pytest.importorskip("onnxruntime")
    draw, texts = random.Random(seed), np.array(TEXTS, TEXT)
    agreed = 0
    for _ in range(60):
        pattern = random_pattern(draw)
        try:
            wanted = onnxruntime_says("RegexFullMatch", [texts], opset=20, pattern=pattern).tolist()
        except Exception:
            wanted = None
        try:
            got = kernel("RegexFullMatch", texts, pattern=pattern).tolist()
        except FuseError:
            got = None
        assert got == wanted, pattern
        agreed += wanted is not None
    assert agreed > 20
    capfd.readouterr()  # RE2 complains of each pattern that it refuses
