"""Comparison: how far one answer lies from another, in every figure that tells rounding from damage.

All arithmetic is done in float64 on the values as they are, where every narrower float is exact; magnitudes that
float64 itself cannot hold saturate at its largest number.  NaN and Inf are compared as a pattern and left out of the
figures.  One NaN is as good as another: ONNX gives its sign and payload no meaning.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fuse.ir.dtypes import FLOATING, INTEGER, STRING, Array, DType
from fuse.ops.maps import column

_MAX = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Difference:
    """What separates ``other`` from ``reference``; of a sequence or map, the worst of its parts.

    ``elements`` were compared and ``differing`` of them are not equal (0.0 and -0.0 are).  ``largest`` is the
    reference's largest finite magnitude, ``max_abs`` and ``rms`` the largest and the root-mean-square absolute error,
    ``max_rel`` is ``max_abs`` over ``largest``, ``max_elementwise`` the largest error over its own reference (where
    that is a normal number).  ``max_ulp`` and ``p99_ulp`` count the floats that lie between, in the narrower of two
    dtypes.  ``argmax`` is the share of rows (last axis) whose largest element stands at the same place.  Complex
    elements are taken as two floats.  A figure that has no meaning (other shapes, strings, no row of two) is None.
    """

    same_dtype: bool = True
    same_shape: bool = True
    same_bits: bool = True
    same_values: bool = True
    same_nonfinite: bool = True
    elements: int = 0
    differing: int = 0
    finite: int = 0
    largest: float | None = None
    max_abs: float | None = None
    rms: float | None = None
    max_rel: float | None = None
    max_elementwise: float | None = None
    max_ulp: int | None = None
    p99_ulp: int | None = None
    argmax: float | None = None


def compare_arrays(reference: Any, other: Any) -> Difference:
    """Compare two answers: tensors of any dtype and shape, sequences, maps, or absent optionals (None)."""
    with np.errstate(all="ignore"):
        parts = [_leaf(a, b) for a, b in _leaves(reference, other)]
    return functools.reduce(_worst, parts) if parts else Difference()


def epsilon(value: Any) -> float:
    """The step from 1 to the next float in the answer's dtype, the widest of its parts; 0.0 where none is a float."""
    leaves = [a for a, _ in _leaves(value, value) if isinstance(a, np.ndarray)]
    return max((float(ml_dtypes.finfo(_part(a.dtype)).eps) for a in leaves if _is_float(a.dtype)), default=0.0)


# ---- structure


def _leaves(reference: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of arrays in two answers, in order; a pair of differing structure comes as (None, None) or one None."""
    stack = [(reference, other)]
    while stack:
        a, b = stack.pop()
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            if set(a) != set(b):
                yield None, _MISSING
            elif a and all(np.isscalar(v) for v in (*a.values(), *b.values())):
                yield column(a.values()), column(b[key] for key in a)
            else:
                stack += [(a[key], b[key]) for key in reversed(list(a))]
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            if len(a) != len(b):
                yield None, _MISSING
            else:
                stack += list(zip(a, b, strict=True))[::-1]
        elif any(x is None or isinstance(x, (Mapping, list, tuple)) for x in (a, b)):
            if a is not None or b is not None:
                yield None, _MISSING
        else:
            yield _as_array(a), _as_array(b)


_MISSING = object()


def _as_array(value: Any) -> Array:
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _worst(a: Difference, b: Difference) -> Difference:
    def most(x: Any, y: Any) -> Any:
        return y if x is None else x if y is None else max(x, y)

    squares = [(d.rms, d.finite) for d in (a, b) if d.rms is not None and d.finite]
    return Difference(
        same_dtype=a.same_dtype and b.same_dtype,
        same_shape=a.same_shape and b.same_shape,
        same_bits=a.same_bits and b.same_bits,
        same_values=a.same_values and b.same_values,
        same_nonfinite=a.same_nonfinite and b.same_nonfinite,
        elements=a.elements + b.elements,
        differing=a.differing + b.differing,
        finite=a.finite + b.finite,
        largest=most(a.largest, b.largest),
        max_abs=most(a.max_abs, b.max_abs),
        rms=_joint_rms(squares) if squares else most(a.rms, b.rms),
        max_rel=most(a.max_rel, b.max_rel),
        max_elementwise=most(a.max_elementwise, b.max_elementwise),
        max_ulp=most(a.max_ulp, b.max_ulp),
        p99_ulp=most(a.p99_ulp, b.p99_ulp),
        argmax=b.argmax if a.argmax is None else a.argmax if b.argmax is None else min(a.argmax, b.argmax),
    )


def _joint_rms(parts: Sequence[tuple[float, int]]) -> float:
    top = max(rms for rms, _ in parts)
    if top == 0:
        return 0.0
    total = sum(n for _, n in parts)
    return top * math.sqrt(sum((rms / top) ** 2 * n for rms, n in parts) / total)


# ---- one pair of arrays


def _leaf(a: Any, b: Any) -> Difference:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return Difference(same_dtype=False, same_shape=False, same_bits=False, same_values=False, differing=1)
    same_dtype = a.dtype == b.dtype
    if a.shape != b.shape:
        count = max(a.size, b.size)
        return Difference(same_dtype, False, False, False, elements=count, differing=count)
    if _is_float(a.dtype) and _is_float(b.dtype):
        return _floats(a, b)
    if STRING in (a.dtype, b.dtype):
        unequal = a.size if not same_dtype else sum(x != y for x, y in zip(a.ravel(), b.ravel(), strict=True))
        same = same_dtype and not unequal
        return Difference(same_dtype, True, same, not unequal, elements=a.size, differing=int(unequal), finite=a.size)
    return _integers(a, b)


def _integers(a: Array, b: Array) -> Difference:
    """Integers and bools, exactly; where one side is another kind of number, as float64."""
    if a.dtype == b.dtype and (a.dtype in INTEGER or a.dtype.kind == "b"):
        wide = np.dtype(np.uint64 if a.dtype == np.uint64 else np.int64)
        x, y = a.astype(wide).ravel(), b.astype(wide).ravel()
        gaps = np.maximum(x, y).view(np.uint64) - np.minimum(x, y).view(np.uint64)  # exact: unsigned wraps around
        unequal, top = int(np.count_nonzero(gaps)), float(gaps.max(initial=0))
    else:
        real = [np.asarray(v.real if v.dtype.kind == "c" else v).astype(np.float64).ravel() for v in (a, b)]
        unequal, top = int(np.count_nonzero(real[0] != real[1])), None
    same_dtype = a.dtype == b.dtype
    return Difference(
        same_dtype=same_dtype,
        same_bits=same_dtype and not unequal,
        same_values=not unequal,
        elements=a.size,
        differing=unequal,
        finite=a.size,
        max_abs=top,
    )


def _is_float(dtype: DType) -> bool:
    return dtype in FLOATING or dtype.kind == "c"


def _part(dtype: DType) -> DType:
    """The float dtype itself; of a complex one, that of its two parts."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _parts(a: Array) -> Array:
    """The elements in one row, complex ones as pairs of floats."""
    flat = np.ascontiguousarray(a).reshape(-1)
    return flat.view(_part(a.dtype)) if a.dtype.kind == "c" else flat


def _floats(a: Array, b: Array) -> Difference:
    if (a.dtype.kind == "c") != (b.dtype.kind == "c"):
        return Difference(False, True, False, False, elements=a.size, differing=a.size)
    p, q = _parts(a), _parts(b)
    x, y = p.astype(np.float64), q.astype(np.float64)
    alike = (x == y) | (np.isnan(x) & np.isnan(y))
    both = np.isfinite(x) & np.isfinite(y)
    signs = bool((np.signbit(x) == np.signbit(y))[~np.isnan(x)].all())
    same_values = bool(alike.all())
    top, rms, relative, elementwise = _errors(x[both], y[both], _part(a.dtype))
    ulps = _ulps(p[both], q[both])
    return Difference(
        same_dtype=a.dtype == b.dtype,
        same_bits=same_values and signs and a.dtype == b.dtype,
        same_values=same_values,
        same_nonfinite=bool(alike[~both].all()),
        elements=a.size,
        differing=int(np.count_nonzero(~alike)),
        finite=int(np.count_nonzero(both)),
        largest=float(np.abs(x[np.isfinite(x)]).max(initial=0.0)),
        max_abs=top,
        rms=rms,
        max_rel=relative,
        max_elementwise=elementwise,
        max_ulp=int(ulps.max(initial=0)),
        p99_ulp=int(np.partition(ulps, _rank99(ulps.size))[_rank99(ulps.size)]) if ulps.size else 0,
        argmax=_argmax_agreement(a, b),
    )


def _rank99(count: int) -> int:
    """The nearest-rank position of the 99th percentile among ``count`` sorted numbers."""
    return -(-99 * count // 100) - 1


def _errors(x: Array, y: Array, dtype: DType) -> tuple[float, float, float, float | None]:
    """Largest absolute error, root mean square, the largest over the largest reference, the largest elementwise one."""
    gaps, scale = np.abs(x - y), 1.0
    if not np.isfinite(gaps).all():  # opposite signs near the end of float64
        gaps, scale = np.abs(x / 2 - y / 2), 0.5
    top = float(gaps.max(initial=0.0))
    largest = float(np.abs(x).max(initial=0.0))
    rms = top * float(np.sqrt(np.mean((gaps / top) ** 2))) if top else 0.0
    relative = 0.0 if not top else _capped(top, largest, scale) if largest else math.inf
    normal = np.abs(x) >= float(ml_dtypes.finfo(dtype).tiny)
    elementwise: float | None = None
    if normal.any():
        elementwise = min(float((gaps[normal] / np.abs(x[normal])).max()) / scale, _MAX)
    return min(top / scale, _MAX), min(rms / scale, _MAX), relative, elementwise


def _capped(top: float, largest: float, scale: float) -> float:
    return float(min(np.float64(top) / np.float64(largest) / scale, _MAX))


def _argmax_agreement(a: Array, b: Array) -> float | None:
    """The share of rows with the same place of the largest element; the first of several, and the first NaN, counts."""
    if a.ndim == 0 or a.shape[-1] < 2 or a.size == 0 or a.dtype.kind == "c":
        return None
    places = [np.argmax(v.astype(np.float64), axis=-1) for v in (a, b)]
    return float(np.mean(places[0] == places[1]))


# ---- units in the last place


def _ulps(p: Array, q: Array) -> Array:
    """For each pair of finite floats how many steps lie between them, as uint64; 0.0 and -0.0 are one place."""
    if p.dtype != q.dtype:
        narrow = max(p.dtype, q.dtype, key=lambda d: float(ml_dtypes.finfo(d).eps))
        p, q = p.astype(narrow), q.astype(narrow)
        both = np.isfinite(p.astype(np.float64)) & np.isfinite(q.astype(np.float64))
        p, q = p[both], q[both]
    if p.dtype.itemsize == 1:
        ladder = _ladder(p.dtype)
        places = [np.searchsorted(ladder, v.astype(np.float64) + 0.0).astype(np.int64) for v in (p, q)]
        return np.abs(places[0] - places[1]).astype(np.uint64)
    bits = p.dtype.itemsize * 8
    raw = [v.view(f"u{p.dtype.itemsize}").astype(np.uint64) for v in (p, q)]
    signs = [r >> np.uint64(bits - 1) for r in raw]
    sizes = [r & np.uint64((1 << (bits - 1)) - 1) for r in raw]
    apart = np.maximum(*sizes) - np.minimum(*sizes)
    return np.asarray(np.where(signs[0] == signs[1], apart, sizes[0] + sizes[1]))  # at most 2^64 - 2^53: no wrap


@functools.cache
def _ladder(dtype: DType) -> Array:
    """Every finite value of a float of one byte, in order."""
    values = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64)
    return np.unique(values[np.isfinite(values)] + 0.0)
