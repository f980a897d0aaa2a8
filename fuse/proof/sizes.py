"""Sizes: numbers for the dims that a model leaves open, found by asking shape inference which ones fit.

Two sets are wanted: sizes above 1, different ones for different symbols, so that swapped axes show; and 1 wherever that
goes, where broadcasting begins and ends.  Exporters often give two names to one size, and a network may need a minimum
of pixels, so candidates are tried in turn: distinct sizes, equal ones, then larger images.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fuse.errors import FuseError
from fuse.ir.dims import Symbolic, evaluate
from fuse.ir.dtypes import FLOATING
from fuse.ir.graph import Value
from fuse.ir.model import Model
from fuse.ir.types import OptionalType, SequenceType, Shape, TensorType, Type
from fuse.ops.infer import CARRIED, infer_graph
from fuse.ops.record import Info

#: Ranks to try where a model does not even say the rank.
_RANKS = (2, 1, 3, 4, 0)
#: The least size above 1: the first with which some float input has ENOUGH elements to show every kind of number.
_LEAST = (3, 9, 27, 81)
_ENOUGH = 64
#: Sizes to try behind the first dim, for networks that shrink their input.
_LARGER = (8, 16, 32, 64, 128, 224)
#: No input that is made up has more elements.
_MOST = 1 << 24

Shapes = Mapping[Value, Shape]
Numbers = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Sizing:
    """Numbers for the open dims by name, the inputs' shapes with them, and what inference then knows of every value."""

    sizes: Numbers
    shapes: Mapping[Value, tuple[int, ...]]
    facts: Mapping[Value, Info]


def tensor_of(kind: Type | None) -> TensorType | None:
    """The tensor inside a type: itself, or the element of a sequence or an optional; None for other kinds."""
    while isinstance(kind, (SequenceType, OptionalType)):
        kind = kind.element
    return kind if isinstance(kind, TensorType) else None


def choose_sizes(model: Model) -> tuple[Sizing, Sizing]:
    """A sizing with sizes above 1 and one with size 1 where the graph allows it; the same twice where nothing is open.

    Where inference refuses every candidate the first ones stand: the run will say what is wrong.
    """
    fed = [v for v in model.graph.inputs if v.data is None]
    tensors = [tensor_of(v.type) for v in fed]
    ranks = _RANKS if any(t is not None and t.shape is None for t in tensors) else _RANKS[:1]
    for rank in ranks:
        shapes = {v: _shape(place, t, rank) for place, (v, t) in enumerate(zip(fed, tensors, strict=True))}
        many = _first_fit(model, shapes, _above_one(shapes))
        if many is not None and not many.sizes:
            return many, many
        one = _first_fit(model, shapes, _ones(shapes, many.sizes if many is not None else {}))
        found = [s for s in (many, one) if s is not None]
        if found:
            return found[0], found[-1]
    shapes = {v: _shape(place, t, ranks[0]) for place, (v, t) in enumerate(zip(fed, tensors, strict=True))}
    above, ones = next(_above_one(shapes)), next(_ones(shapes, {}))
    return Sizing(above, _numbers(shapes, above), {}), Sizing(ones, _numbers(shapes, ones), {})


def _shape(place: int, tensor: TensorType | None, rank: int) -> Shape:
    """The dims of input number ``place``; each that has no name gets one of its own."""
    if tensor is None:
        return ()
    dims: Shape = (None,) * rank if tensor.shape is None else tensor.shape
    return tuple(Symbolic.of(f"input {place} axis {axis}") if d is None else d for axis, d in enumerate(dims))


def _names(shapes: Iterable[Shape]) -> list[str]:
    """The symbols in some shapes, in order of appearance."""
    found: dict[str, None] = {}
    stack = [dim for shape in shapes for dim in shape][::-1]
    while stack:
        dim = stack.pop()
        for atom in (a for monomial in dim.terms for a in monomial) if isinstance(dim, Symbolic) else ():
            if isinstance(atom, str):
                found[atom] = None
            else:
                stack += atom[1:]
    return list(found)


def _above_one(shapes: Shapes) -> Iterator[dict[str, int]]:
    """Candidates for sizes above 1: all distinct, all equal, then larger ones behind the first dim or 1 in it."""
    names = _names(shapes.values())
    leading = set(_names(shape[:1] for shape in shapes.values()))
    for least in _LEAST:
        distinct = {name: least + place % 7 for place, name in enumerate(names)}
        elements = [math.prod(s) for v, s in _numbers(shapes, distinct).items() if v.dtype in FLOATING]
        if max(elements, default=_ENOUGH) >= _ENOUGH:
            break
    yield distinct
    if names:
        yield {name: _LEAST[0] + place % 7 for place, name in enumerate(names)}
        yield dict.fromkeys(names, _LEAST[0])
    if leading and len(leading) < len(names):
        for first in (2, 1):
            for size in (_LEAST[0], *_LARGER):
                yield {name: first if name in leading else size for name in names}


def _ones(shapes: Shapes, many: Numbers) -> Iterator[dict[str, int]]:
    """Candidates for size 1: everywhere, or only in the first dims and ``many`` behind them."""
    names = _names(shapes.values())
    yield dict.fromkeys(names, 1)
    leading = set(_names(shape[:1] for shape in shapes.values()))
    yield {name: 1 if name in leading else many.get(name, 1) for name in names}


def _numbers(shapes: Shapes, sizes: Numbers) -> dict[Value, tuple[int, ...]]:
    return {v: tuple(max(evaluate(d, sizes) or 0, 0) for d in shape) for v, shape in shapes.items()}


def _first_fit(model: Model, shapes: Shapes, candidates: Iterable[Numbers]) -> Sizing | None:
    for sizes in candidates:
        numbers = _numbers(shapes, sizes)
        if any(math.prod(shape) > _MOST for shape in numbers.values()) and sizes:
            continue
        facts: dict[Value, Info] = {}
        try:
            infer_graph(model.graph, facts, [_info(v, numbers) for v in model.graph.inputs], model.functions)
        except FuseError:
            continue
        return Sizing(sizes, numbers, facts)
    return None


def _info(value: Value, shapes: Mapping[Value, tuple[int, ...]]) -> Info:
    """What inference is told of an input: its shape with numbers, and a default's elements where they may be sizes."""
    if isinstance(value.type, TensorType) and value in shapes:
        return Info(TensorType(value.type.dtype, shapes[value]))
    data = value.data
    sizes = data is not None and data.dtype.kind in "iub" and data.size <= CARRIED
    return Info(value.type, data if sizes else None)
