"""Dimensions that may be unknown: integers, symbols, and polynomials over symbols.

A dim is an ``int``, a ``Symbolic``, or ``None`` where nothing is known.  A ``Symbolic`` is a polynomial with integer
coefficients whose atoms are symbol names and floor divisions, kept in a normal form: equal forms are equal dims, as in
``(2*n + 2*m) - 2*m`` and ``2*n``.  The converse holds without floors; with them it holds for what strides and paddings
make, as in ``(n - 1)//2 + 1`` and ``(n + 1)//2``.  Arithmetic between known parts gives an ``int`` back.

A dim that grows past ``PARTS`` is abbreviated by one symbol named after its hash: a model that squares a size thirty
times would otherwise need a billion terms.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import lru_cache
from operator import index
from typing import TypeAlias, Union

from fuse.ir.spell import word

Dim = Union[int, "Symbolic", None]
Known = Union[int, "Symbolic"]

# An atom is a symbol name or ("floor", numerator, denominator); a monomial is a sorted tuple of atoms.
Atom: TypeAlias = "str | tuple[str, Known, Known]"
Monomial = tuple[Atom, ...]

#: The most symbols, numbers and floors in one dim, and the bits of a number in it.
PARTS = 64
BITS = 64


class Symbolic:
    """A polynomial over symbolic dims, immutable and hashable; never a plain number (that is an ``int``)."""

    __slots__ = ("_hash", "_spelled", "parts", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = dict(terms)
        self.parts = sum(1 + sum(map(_parts, monomial)) for monomial in self.terms)
        self._hash = hash(frozenset(self.terms.items()))
        self._spelled = ""

    @staticmethod
    def of(name: str) -> Symbolic:
        """The dim called ``name``."""
        return Symbolic({(name,): 1})

    @property
    def name(self) -> str | None:
        """The symbol's name where the dim is one bare symbol, else None."""
        if len(self.terms) == 1:
            ((monomial, factor),) = self.terms.items()
            if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], str):
                return monomial[0]
        return None

    def __add__(self, other: Known) -> Known:
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return _normal(terms)

    def __mul__(self, other: Known) -> Known:
        right = _terms(other)
        if not isinstance(other, Symbolic):
            return _normal({m: f * right[()] for m, f in self.terms.items()})
        if len(self.terms) * len(right) > 4 * PARTS:
            return _abbreviated("*".join(sorted(f"({d})" for d in (self, other))))
        terms: dict[Monomial, int] = {}
        for a, x in self.terms.items():
            for b, y in right.items():
                monomial = tuple(sorted(a + b, key=_order))
                terms[monomial] = terms.get(monomial, 0) + x * y
        return _normal(terms)

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Known:
        return self * -1

    def __sub__(self, other: Known) -> Known:
        return self + other * -1

    def __rsub__(self, other: Known) -> Known:
        return self * -1 + other

    def __floordiv__(self, other: Known) -> Known:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Known) -> Known:
        return floordiv(other, self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbolic) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Symbolic], tuple[dict[Monomial, int]]]:
        return Symbolic, (self.terms,)  # the cached hash is another one in another process

    def __str__(self) -> str:
        """The dim as ``fuse.ir.parse.parse_dim`` reads it: names that are no plain words are quoted and escaped."""
        if not self._spelled:
            for monomial in sorted(self.terms, key=_rank):
                number = self.terms[monomial]
                sign = " + " if number > 0 else " - "
                size = [str(abs(number))] if abs(number) != 1 or not monomial else []
                self._spelled += sign if self._spelled else sign.strip(" +")
                self._spelled += "*".join(size + [_spelled(atom) for atom in monomial])
        return self._spelled

    __repr__ = __str__


def spell(dim: Dim) -> str:
    """A dim as text, ``?`` where nothing is known."""
    return "?" if dim is None else str(dim)


@lru_cache(4096)
def _spelled(atom: Atom) -> str:
    return word(atom) if isinstance(atom, str) else f"floor(({atom[1]})/({atom[2]}))"


def _order(atom: Atom) -> tuple[bool, str]:
    """Where an atom stands among others: symbols by name, then floors; no two atoms stand at one place."""
    return not isinstance(atom, str), _spelled(atom)


def _rank(monomial: Monomial) -> tuple[int, list[tuple[bool, str]]]:
    """Higher degrees first, then by atoms: an order that multiplication keeps, as division needs."""
    return -len(monomial), [_order(a) for a in monomial]


def _parts(atom: Atom) -> int:
    return 1 if isinstance(atom, str) else sum(d.parts if isinstance(d, Symbolic) else 1 for d in atom[1:])


def _terms(dim: Known) -> Mapping[Monomial, int]:
    return dim.terms if isinstance(dim, Symbolic) else {(): index(dim)}


def _normal(terms: Mapping[Monomial, int]) -> Known:
    kept = {m: f for m, f in terms.items() if f}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    dim = Symbolic(kept)
    if dim.parts > PARTS or any(f.bit_length() > BITS for f in kept.values()):
        return _abbreviated(str(dim))
    return dim


def _abbreviated(text: str) -> Symbolic:
    coded = text.encode("utf-8", "surrogatepass")
    return Symbolic.of(f"dim_{hashlib.blake2b(coded, digest_size=8).hexdigest()}")


def _floor(a: Known, b: Known) -> Known:
    if any(isinstance(d, int) and d.bit_length() > BITS for d in (a, b)):
        return _abbreviated(f"({a})/({b})")
    return _normal({(("floor", a, b),): 1})


def floordiv(a: Known, b: Known) -> Known:
    """``a // b``: exact where ``b`` is a factor of ``a``, a floor atom otherwise.  ``ZeroDivisionError`` where b is 0.

    A symbolic ``b`` counts as nonzero, so that it cancels: where it is 0 the division itself would fail.
    """
    a, b = (d if isinstance(d, Symbolic) else index(d) for d in (a, b))
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    return _divide(a, b)


@lru_cache(4096)  # the layers of a network halve the same few sizes again and again
def _divide(a: Known, b: Known) -> Known:
    if isinstance(b, int):
        return _floor_by(a, b) if b > 0 else _floor_by(a * -1, -b)
    exact = _exact(a, b)
    return _floor(a, b) if exact is None else exact


def _floor_by(a: Known, b: int) -> Known:
    """Floor by a positive number: coefficients below ``b`` in lowest terms, and a floor of a floor as one."""
    whole = _normal({m: f // b for m, f in _terms(a).items()})
    rest = {m: f % b for m, f in _terms(a).items() if m and f % b}
    constant = _terms(a).get((), 0) % b
    common = math.gcd(b, *rest.values())
    if not rest:
        return whole
    rest = {m: f // common for m, f in rest.items()} | {(): constant // common}
    b //= common
    for monomial in sorted(rest, key=_rank):
        atom = monomial[0] if len(monomial) == 1 else ""
        if not isinstance(atom, str) and isinstance(atom[2], int) and rest[monomial] == 1:
            others = _normal({m: f for m, f in rest.items() if m != monomial})
            return whole + floordiv(atom[1] + others * atom[2], atom[2] * b)
    return whole + _floor(_normal(rest), b)


def _exact(a: Known, b: Symbolic) -> Known | None:
    """The quotient where ``a`` is a multiple of ``b`` with integer coefficients, by long division; None elsewhere."""
    divisor = b.terms
    lead = min(divisor, key=_rank)
    rest = {m: f for m, f in _terms(a).items() if f}
    quotient: dict[Monomial, int] = {}
    while rest:
        top = min(rest, key=_rank)
        left = list(top)
        if rest[top] % divisor[lead] or any(left.count(x) < lead.count(x) for x in lead) or len(quotient) > PARTS:
            return None
        for x in lead:
            left.remove(x)
        factor = quotient[tuple(left)] = rest[top] // divisor[lead]
        for m, f in divisor.items():
            monomial = tuple(sorted((*m, *left), key=_order))
            rest[monomial] = rest.get(monomial, 0) - f * factor
            if not rest[monomial]:
                del rest[monomial]
    return _normal(quotient)


def evaluate(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """The number that ``dim`` stands for once its symbols have ``sizes``; None where a symbol has none."""
    if dim is None or isinstance(dim, int):
        return dim
    total = 0
    for monomial, factor in dim.terms.items():
        product = factor
        for atom in monomial:
            if isinstance(atom, str):
                size = sizes.get(atom)
            else:
                above, below = evaluate(atom[1], sizes), evaluate(atom[2], sizes)
                size = above // below if above is not None and below else None
            if size is None:
                return None
            product *= size
        total += product
    return total


def product(dims: tuple[Dim, ...]) -> Dim:
    """The product of all dims: 0 where one is 0, None where one is unknown."""
    if any(isinstance(d, int) and d == 0 for d in dims):
        return 0
    total: Known = 1
    for dim in dims:
        if dim is None:
            return None
        total = total * dim
    return total
