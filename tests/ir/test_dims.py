"""Symbolic dims agree with plain integers at every size, and equal dims have equal forms."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import reduce
from operator import add, floordiv, mul, sub
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fuse.errors import ModelError
from fuse.ir.dims import BITS, PARTS, Dim, Known, Symbolic, evaluate, product, spell
from fuse.ir.dims import floordiv as divide
from fuse.ir.parse import parse_dim

n, m, k = (Symbolic.of(name) for name in "nmk")
quick = settings(max_examples=300, deadline=None, derandomize=True)

leaves = st.sampled_from([n, m, k]) | st.integers(-6, 6)
Tree = tuple[Any, ...] | int | Symbolic


def combined(*steps: object) -> st.SearchStrategy[Tree]:
    return st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(steps), inner, inner), max_leaves=6)


trees, polynomials = combined(add, sub, mul, floordiv), combined(add, sub, mul)
sizes = st.fixed_dictionaries({name: st.integers(1, 40) for name in "nmk"})


def symbolic(tree: Tree) -> Known:
    if not isinstance(tree, tuple):
        return tree
    step, left, right = tree
    return step(symbolic(left), symbolic(right))


def number(tree: Tree, at: dict[str, int]) -> int:
    if isinstance(tree, Symbolic):
        return at[str(tree.name)]
    if not isinstance(tree, tuple):
        return tree
    step, left, right = tree
    return step(number(left, at), number(right, at))


def built(tree: Tree) -> Known:
    """The tree's dim; trees that divide by a plain 0 are no dims."""
    try:
        return symbolic(tree)
    except ZeroDivisionError:
        assume(False)
        raise


@given(trees, st.lists(sizes, min_size=4, max_size=4))
@quick
def test_arithmetic_agrees_with_evaluation(tree: Tree, points: list[dict[str, int]]) -> None:
    dim = built(tree)
    for at in points:
        try:
            expected = number(tree, at)
        except ZeroDivisionError:
            continue
        found = evaluate(dim, at)
        assert found == expected or (found is None and "dim_" in str(dim))


@given(trees)
@quick
def test_a_dim_is_never_a_hidden_number(tree: Tree) -> None:
    dim = built(tree)
    assert isinstance(dim, int) or any(dim.terms)
    assert isinstance(dim, int) or all(dim.terms.values())


@given(trees)
@quick
def test_dims_print_and_parse(tree: Tree) -> None:
    dim = built(tree)
    assert parse_dim(spell(dim)) == dim


@given(trees, trees, trees, st.integers(1, 9), st.integers(1, 9))
@settings(quick, max_examples=100)
def test_equal_dims_have_equal_forms(x: Tree, y: Tree, z: Tree, p: int, q: int) -> None:
    a, b, c = built(x), built(y), built(z)
    whole = [a + b, b + c, a * b, b * c, a * c, a * b * c, a * (b + c), a * b + a * c, a * p + c, (a * p + c) * q]
    assume(not any("dim_" in str(d) for d in whole))
    assert a + b == b + a and a * b == b * a
    assert (a + b) + c == a + (b + c) and (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert (a + b) - b == a and a - a == 0
    assert hash(a * b) == hash(b * a) and str(a * b) == str(b * a)
    assert divide(a * p, p) == a
    assert divide(a * p + c, p) == a + divide(c, p)
    assert divide(a * (p * q), p) == a * q
    assert divide(-1 * a, -p) == divide(a, p)


@given(polynomials, polynomials, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
@settings(quick, max_examples=100)
def test_equal_floors_of_floors_have_equal_forms(x: Tree, y: Tree, p: int, q: int, r: int) -> None:
    a, b = symbolic(x), symbolic(y)
    whole = [a + b * p, (a + b * p) * q, divide(divide(a, p) + b, q)]
    assume(not any("dim_" in str(d) for d in whole))
    assert divide(divide(a, p), q) == divide(a, p * q)
    assert divide(divide(a, p) + b, q) == divide(a + b * p, p * q)
    assert divide(a * r + r - 1, r * p) == divide(a, p)
    assert divide(divide(divide(a, p) + b, q) + 1, r) == divide(a + b * p + p * q, p * q * r)


@pytest.mark.parametrize(
    ("dim", "form"),
    [
        ((2 * n + 2 * m) - 2 * m, "2*n"),
        (n - 1, "n - 1"),
        (3 - n, "-n + 3"),
        (-1 * n, "-n"),
        (m * n + n + 2, "m*n + n + 2"),
        ((n - 1) // 2 + 1, "floor((n + 1)/(2))"),
        ((3 * n) // 2, "n + floor((n)/(2))"),
        ((2 * n + 5) // 4, "floor((n)/(2)) + 1"),
        (((n + 1) // 2 + 1) // 2, "floor((n + 3)/(4))"),
        ((n * m + n * k) // (m + k), "n"),
        ((n * n - m * m) // (n + m), "-m + n"),
        ((n + 1) // m, "floor((n + 1)/(m))"),
        (5 // n, "floor((5)/(n))"),
        (0 // n, "0"),
        (n // n, "1"),
        (n // 1, "n"),
        (n - n, "0"),
    ],
)
def test_forms(dim: Known, form: str) -> None:
    assert str(dim) == form


def test_what_strides_make_of_one_size_is_one_dim() -> None:
    """Stride 2 by kernel 3 with padding 1, and by rounding up, for every n."""
    assert (n + 2 * 1 - 3) // 2 + 1 == (n + 1) // 2
    assert (n * 2 + 2 - 2) // 2 == n


def test_names() -> None:
    assert n.name == "n"
    assert all(d.name is None for d in (n + 1, 2 * n, n * m, n // 2) if isinstance(d, Symbolic))


def test_symbols_with_the_looks_of_expressions_stay_apart() -> None:
    odd = Symbolic.of("n + 1")
    assert odd != n + 1 and str(odd) == '"n + 1"' and odd.name == "n + 1"
    assert (odd // 2) * ((n + 1) // 2) == ((n + 1) // 2) * (odd // 2)
    for name in ("floor", "_", "a b", '"', "n\n", "\u202e", "batch-size", "2"):
        assert parse_dim(spell(Symbolic.of(name))) == Symbolic.of(name)


def test_evaluate() -> None:
    assert evaluate(2 * n + m // 3, {"n": 5, "m": 7}) == 12
    assert evaluate(n + m, {"n": 5}) is None
    assert evaluate(n // m, {"n": 5, "m": 0}) is None
    assert evaluate((-1 * n) // 2, {"n": 5}) == -3
    assert evaluate(None, {}) is None and evaluate(4, {}) == 4


def test_product() -> None:
    assert product(()) == 1
    assert product((2, n, 3)) == 6 * n
    assert product((2, None)) is None
    assert product((None, n, 0)) == 0


def test_division_by_zero_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        divide(n, 0)
    with pytest.raises(ZeroDivisionError):
        divide(3, 0)


@pytest.mark.parametrize("other", [0.5, None, "n", [1]])
def test_only_integers_mix_with_dims(other: object) -> None:
    for step in (add, sub, mul, floordiv):
        with pytest.raises(TypeError):
            step(n, other)
        with pytest.raises(TypeError):
            step(other, n)


def test_a_dim_that_grows_without_bound_is_abbreviated() -> None:
    squared: Dim = n + m + 1
    for _ in range(64):
        squared = squared * squared  # type: ignore[operator]
    assert isinstance(squared, Symbolic) and squared.parts <= PARTS and len(str(squared)) < 100
    assert evaluate(squared, {"n": 1, "m": 1}) is None
    doubled = reduce(add, [n] * 1000)
    assert doubled == 1000 * n
    many = reduce(add, [Symbolic.of(f"s{i}") for i in range(200)])
    assert isinstance(many, Symbolic) and many.parts <= PARTS
    grown: Known = n
    for _ in range(100):
        grown = grown * 1000
    assert all(f.bit_length() <= BITS for f in _terms(grown).values())
    halved: Known = n
    for _ in range(5000):
        halved = (halved + 1) // 2
    assert len(str(halved)) < 200
    deep: Known = n
    for index in range(500):
        deep = (deep + 1) // Symbolic.of(f"d{index}")
    assert isinstance(deep, Symbolic) and deep.parts <= PARTS


def _terms(dim: Known) -> Mapping[Any, int]:
    assert isinstance(dim, Symbolic)
    return dim.terms


def test_abbreviations_are_the_same_for_the_same_dim_alone() -> None:
    symbols = [Symbolic.of(f"s{i}") for i in range(40)]
    total, again, other = sum(symbols), sum(symbols), sum(symbols[1:])
    assert total == again and total != other
    assert pickle.loads(pickle.dumps(total)) == total


@pytest.mark.parametrize(
    ("source", "dim"),
    [
        ("?", None),
        ("7", 7),
        ("-7", -7),
        (" 2 * n - m*3 ", 2 * n - 3 * m),
        ("(n + 1)*(n - 1)", n * n - 1),
        ("floor((n + 1)/(2))", (n + 1) // 2),
        ("floor(n/m)", n // m),
        ('"a b" + 1', Symbolic.of("a b") + 1),
        ("--n", n),
        ("floor(7/2)", 3),
    ],
)
def test_dims_parse(source: str, dim: Dim) -> None:
    assert parse_dim(source) == dim


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", "dim:1:1: expected a dim, found the end"),
        ("n +", "dim:1:4: expected a dim, found the end"),
        ("n m", "dim:1:3: expected the end, found 'm'"),
        ("n / 2", "dim:1:3: expected the end, found '/'"),
        ("floor(n)", "dim:1:8: expected '/', found ')'"),
        ("floor((n)/(0))", "dim:1:11: division by zero"),
        ("1.5", "dim:1:1: expected an integer, found '1.5'"),
        ("(" * 60 + "n", "dim:1:52: a dim nests deeper than 50 parentheses"),
    ],
)
def test_what_is_no_dim_is_refused(source: str, error: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_dim(source)
    assert str(caught.value) == error
