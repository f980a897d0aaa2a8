"""Matrix products: MatMul, Gemm, Einsum, and the exact product that the convolutions share.

Floats of 32 and 64 bits go to BLAS.  Half precision is multiplied and summed in float32 and rounded once.  Integers
are exact (modulo the width of their type): through float64 where no partial sum can leave its 53 bits, which is many
times faster than NumPy's integer loop, and by that loop otherwise.
"""

from __future__ import annotations

import numpy as np

from fuse.errors import ShapeError, quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import broadcast_dims, common_dtype, show_shape
from fuse.ops.record import Info, expect, operator, tensor

EXACT = 1 << 53
"""Integers below this are exact in float64."""


def product(a: Array, b: Array, out: Array | None = None) -> Array:
    """``np.matmul(a, b)`` in the arithmetic of this module, into ``out`` where given (of the result's dtype)."""
    if a.dtype.kind not in "iu":
        result: Array = np.matmul(a, b, out=out)
        return result
    if a.shape[-1] * _largest(a) * _largest(b) < EXACT:
        exact = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
    else:
        exact = np.matmul(a, b)
    if out is None:
        out = np.empty(exact.shape, a.dtype)
    np.copyto(out, exact, casting="unsafe")
    return out


def _largest(a: Array) -> int:
    return max(abs(int(a.min())), abs(int(a.max()))) if a.size else 0


# ---- MatMul


def matmul_dims(a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of ``a @ b`` by NumPy's rank rules; None where a rank is unknown, ``ShapeError`` where sizes clash."""
    if a is None or b is None:
        return None
    expect(bool(a) and bool(b), "takes no rank-0 tensor")
    rows, columns = (a[-2:-1] if len(a) > 1 else ()), b[-1:] if len(b) > 1 else ()
    inner, other = a[-1], b[-2] if len(b) > 1 else b[-1]
    expect(
        not isinstance(inner, int) or not isinstance(other, int) or inner == other,
        f"inner sizes differ: {show_shape(a)} by {show_shape(b)} multiplies {inner} with {other}",
    )
    lead = broadcast_dims([a[:-2], b[:-2]])
    assert lead is not None
    return (*lead, *rows, *columns)


def _matmul_info(a: Info, b: Info) -> Info:
    return tensor(common_dtype(a, b), matmul_dims(a.shape, b.shape))


@operator("MatMul", infer=_matmul_info)
def matmul(a: Array, b: Array) -> Array:
    """Matrices in the last two axes, the others broadcast; a vector is a row on the left and a column on the right."""
    matmul_dims(a.shape, b.shape)
    return np.asarray(narrow(product(wide(a), wide(b)), a))


# ---- Gemm


def _gemm_dims(a: Shape | None, b: Shape | None, c: Shape | None, transA: int, transB: int) -> tuple[Dim, Dim]:
    for name, shape in (("A", a), ("B", b)):
        expect(shape is None or len(shape) == 2, f"{name} must be a matrix, it is {show_shape(shape)}")
    m, k = (None, None) if a is None else (a[1], a[0]) if transA else (a[0], a[1])
    other, n = (None, None) if b is None else (b[1], b[0]) if transB else (b[0], b[1])
    if isinstance(k, int) and isinstance(other, int):
        expect(k == other, f"inner sizes differ: {k} of A and {other} of B")
    if c is not None:
        expect(len(c) <= 2, f"C must broadcast to a matrix, it is {show_shape(c)}")
        for size, limit in zip(reversed(c), (n, m), strict=False):
            known = isinstance(size, int) and isinstance(limit, int)
            expect(not known or size in (1, limit), f"C {show_shape(c)} does not broadcast to {show_shape((m, n))}")
    return m, n


def _gemm_info(
    a: Info, b: Info, c: Info | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> Info:
    dims = _gemm_dims(a.shape, b.shape, None if c is None else c.shape, transA, transB)
    return tensor(common_dtype(a, b, c), dims)


@operator("Gemm", infer=_gemm_info)
def gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """``alpha * A' @ B' + beta * C`` on a fresh array; factors of 1 cost nothing, and ``C`` is then added in place."""
    _gemm_dims(a.shape, b.shape, None if c is None else c.shape, transA, transB)
    y = product(wide(a.T if transA else a), wide(b.T if transB else b))
    if y.dtype.kind in "iu":
        return _gemm_integers(y, c, alpha, beta)
    if alpha != 1.0:
        y *= y.dtype.type(alpha)
    if c is not None and beta != 0.0:
        addend = c.astype(y.dtype, copy=False)
        y += addend if beta == 1.0 else addend * y.dtype.type(beta)
    return narrow(y, a)


def _gemm_integers(y: Array, c: Array | None, alpha: float, beta: float) -> Array:
    """Whole factors stay exact; others are applied in float64 and truncated towards zero."""
    dtype = y.dtype
    if float(alpha).is_integer() and float(beta).is_integer():
        with np.errstate(over="ignore"):
            scaled: Array = y * np.int64(alpha).astype(dtype)
            return scaled if c is None else scaled + c * np.int64(beta).astype(dtype)
    total = y.astype(np.float64) * alpha
    if c is not None:
        total += c.astype(np.float64) * beta
    return np.trunc(total).astype(np.int64).astype(dtype)


# ---- Einsum


def _einsum_terms(equation: str, count: int) -> tuple[list[str], str]:
    """The inputs' terms and the output's, spaces removed; the output of a classical equation is written out."""
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    expect(len(terms) == count, f"equation {quote(equation)} has {len(terms)} terms for {count} inputs")
    for term in [*terms, right]:
        letters = term.replace("...", "", 1)
        sound = not letters or (letters.isascii() and letters.isalpha())
        expect(sound, f"equation {quote(equation)} has a term {quote(term)} that is not made of letters")
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = ("..." if "..." in left else "") + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return terms, right


def _einsum_sizes(equation: str, terms: list[str], shapes: list[Shape | None]) -> tuple[dict[str, Dim], Shape | None]:
    """The size of each letter, and the broadcast shape that the ellipses stand for (None where unknown)."""
    sizes: dict[str, Dim] = {}
    hidden: list[Shape | None] = [()]
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None:
            hidden.append(None if "..." in term else ())
            continue
        before, dots, after = term.partition("...")
        spare = len(shape) - len(before) - len(after)
        fits = spare >= 0 if dots else spare == 0
        expect(fits, f"equation {quote(equation)}: term {quote(term)} does not fit rank {len(shape)}")
        hidden.append(shape[len(before) : len(before) + spare])
        for letter, size in (
            *zip(before, shape, strict=False),
            *zip(after, shape[len(shape) - len(after) :], strict=True),
        ):
            known = sizes.get(letter)
            if isinstance(known, int) and isinstance(size, int) and 1 not in (known, size):
                expect(known == size, f"equation {quote(equation)}: {letter} is both {known} and {size}")
            if letter not in sizes or known is None or (isinstance(known, int) and known == 1):
                sizes[letter] = size
    return sizes, broadcast_dims(hidden)


def _einsum_info(first: Info, *more: Info, equation: str) -> Info:
    xs = (first, *more)
    terms, right = _einsum_terms(equation, len(xs))
    sizes, hidden = _einsum_sizes(equation, terms, [x.shape for x in xs])
    unknown = [c for c in right if c != "." and not any(c in t for t in terms)]
    expect(not unknown, f"equation {quote(equation)}: {''.join(unknown)} is not in an input")
    dtype = common_dtype(*xs)
    if "..." in right and hidden is None:
        return tensor(dtype)
    before, dots, after = right.partition("...")
    middle: Shape = hidden if dots and hidden is not None else ()
    return tensor(dtype, (*(sizes.get(c) for c in before), *middle, *(sizes.get(c) for c in after)))


@operator("Einsum", infer=_einsum_info)
def einsum(first: Array, *more: Array, equation: str) -> Array:
    """NumPy's einsum with the contraction order chosen by cost; half precision is summed in float32."""
    xs = (first, *more)
    terms, right = _einsum_terms(equation, len(xs))
    _einsum_sizes(equation, terms, [x.shape for x in xs])
    try:
        y = np.einsum(f"{','.join(terms)}->{right}", *(wide(x) for x in xs), optimize=len(xs) > 1)
    except ValueError as error:
        raise ShapeError(f"equation {quote(equation)}: {error}") from None
    return np.array(y, dtype=xs[0].dtype, order="C")
