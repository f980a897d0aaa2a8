"""Inputs: made-up feeds for a model, from nothing but its declared inputs and the use that the graph makes of them.

The same model, seed and count give the same arrays.  The styles divide the work: ``normal`` is what a network sees;
``edges`` mixes exact zeros of both signs, ties, halves, the corners of the usual activations and values ten times as
large; ``large`` saturates; ``positive`` serves graphs of logarithms and roots.  Half of the sets, and the edges first,
have sizes above 1 in every open dim; the others have 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from fuse.errors import UnsupportedError, quote
from fuse.ir.dtypes import FLOATING, INTEGER, STRING, Array, DType
from fuse.ir.graph import Value
from fuse.ir.model import Model
from fuse.ir.types import MapType, OptionalType, SequenceType, TensorType, Type
from fuse.proof.roles import SMALL, Role, find_role
from fuse.proof.sizes import Sizing, choose_sizes

#: Style and sizes of each set in turn; further ones start again with other numbers.
_PLAN = (
    ("normal", "one"),
    ("edges", "many"),
    ("large", "many"),
    ("positive", "one"),
    ("normal", "many"),
    ("edges", "one"),
)
POSITIVE = 4
"""The count of sets that has a positive one among them."""

#: A model with no more nodes, bytes of weights and input elements than these is run on four sets instead of two.
_CHEAP = (2_000, 1 << 22, 1 << 16)

_ZEROS = (0.0, -0.0)
_CORNERS = (0.5, -0.5, 1.0, -1.0, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 6.0, -6.0, 1e-3, -1e-3)
_WORDS = ("", "a", "A", "fuse", "Graph", "two words", "naïve", "日本", " x ", "0")


@dataclass(frozen=True, slots=True)
class InputSet:
    """Feeds by input name, a label for reports, and the numbers that stand for the open dims."""

    label: str
    feeds: dict[str, Any]
    sizes: dict[str, int] = field(default_factory=dict)


def make_inputs(model: Model, *, seed: int = 0, count: int | None = None) -> list[InputSet]:
    """``count`` sets of feeds for ``model`` (None: two, or four where the model is small).

    Inputs that have a default keep it.  Raises ``UnsupportedError`` for an input of a kind that cannot be made up.
    """
    many, one = choose_sizes(model)
    if count is None:
        count = POSITIVE if _is_cheap(model, many) else 2
    fed = [(place, v) for place, v in enumerate(model.graph.inputs) if v.data is None]
    if not fed:
        return [InputSet("no inputs", {})][:count]
    roles = {(v, s): find_role(model, v, sizing.facts) for s, sizing in (("many", many), ("one", one)) for _, v in fed}
    sets: list[InputSet] = []
    for number in range(count):
        style, which = _PLAN[number % len(_PLAN)]
        sizing = many if which == "many" else one
        feeds = {
            v.name: _Maker(np.random.default_rng([seed, number, place]), style, roles[v, which]).value(v, sizing)
            for place, v in fed
        }
        sets.append(InputSet(_label(style, number, sizing), feeds, dict(sizing.sizes)))
    return sets


def _label(style: str, number: int, sizing: Sizing) -> str:
    again = f" {number // len(_PLAN) + 1}" if number >= len(_PLAN) else ""
    sizes = ", ".join(f"{name}={size}" for name, size in list(sizing.sizes.items())[:4])
    return f"{style}{again}" + (f" ({sizes}{', ...' if len(sizing.sizes) > 4 else ''})" if sizes else "")


def _is_cheap(model: Model, sizing: Sizing) -> bool:
    fed = sum(math.prod(shape) for shape in sizing.shapes.values())
    return all(have <= most for have, most in zip((model.node_count(), model.weight_bytes(), fed), _CHEAP, strict=True))


class _Maker:
    """Makes the value of one input in one set."""

    def __init__(self, rng: np.random.Generator, style: str, role: Role) -> None:
        self.rng, self.style, self.role = rng, style, role

    def value(self, value: Value, sizing: Sizing) -> Any:
        """The feed of ``value``: an array, a list of arrays, a dict, or None for an optional left empty."""
        return self._of_type(value.type, sizing.shapes[value], value.name)

    def _of_type(self, kind: Type | None, shape: tuple[int, ...], name: str) -> Any:
        if isinstance(kind, TensorType) and kind.dtype is not None:
            return self.tensor(kind.dtype, shape)
        if isinstance(kind, SequenceType):
            return [self._of_type(kind.element, shape, name) for _ in range(3 if self.style == "edges" else 2)]
        if isinstance(kind, OptionalType):
            return None if self.style == "edges" else self._of_type(kind.element, shape, name)
        if isinstance(kind, MapType):
            keys = [str(w) for w in _WORDS[:SMALL]] if kind.key == STRING else list(range(SMALL))
            return {key: self._of_type(kind.value, (), name).item() for key in keys}
        what = (
            f"input {quote(name)} is {kind if kind is not None else 'of unknown type'}; no value can be made up for it"
        )
        raise UnsupportedError(what, hint="give your own feeds")

    def tensor(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """An array of the style, within the role."""
        if self.role.kind in ("reshape", "expand", "axes", "split"):
            return self._layout(shape).astype(dtype)
        if dtype == STRING:
            return self._strings(shape)
        if dtype.kind == "b":
            return np.asarray(self.rng.integers(0, 2, shape), dtype=dtype)
        if dtype.kind == "c":
            return np.asarray(self._reals(shape) + 1j * self._reals(shape)).astype(dtype)
        if self.role.kind == "unit":
            return np.asarray(self.rng.uniform(self.role.low, self.role.high, shape)).astype(dtype)
        if dtype in INTEGER or self.role.kind == "index":
            return self._integers(dtype, shape).astype(dtype)
        assert dtype in FLOATING
        return _within(self._reals(shape), dtype)

    def _layout(self, shape: tuple[int, ...]) -> Array:
        """Numbers that say how data is laid out, as int64.

        A target shape fits any data: all in one row for a Reshape, no change for an Expand.  Axes differ from each
        other, and parts are as equal as they can be, the last taking the rest.
        """
        role, count = self.role, math.prod(shape)
        if role.kind == "axes":
            width = max(role.high - role.low, count)
            return np.asarray(role.low + self.rng.permutation(width)[:count], dtype=np.int64).reshape(shape)
        if role.kind == "split":
            parts = np.full(count, role.high // max(count, 1), dtype=np.int64)
            parts[-1:] += role.high - parts.sum()
            return parts.reshape(shape)
        target = np.ones(count, dtype=np.int64)
        if role.kind == "reshape":
            target[:1] = -1
        return target.reshape(shape)

    def _strings(self, shape: tuple[int, ...]) -> Array:
        texts = np.empty(shape, dtype=object)
        if self.role.kind == "numeral":
            numbers = self.rng.integers(-9, 100, texts.size)
            texts.reshape(-1)[:] = [str(n) for n in numbers]
        else:
            texts.reshape(-1)[:] = [_WORDS[n] for n in self.rng.integers(0, len(_WORDS), texts.size)]
        return texts

    def _integers(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        """Integers as int64 from the role's range; where free all of a byte's, or small ones of both signs."""
        low, high = self.role.low, self.role.high
        if self.role.kind == "free" and dtype in INTEGER:
            info = ml_dtypes.iinfo(dtype)
            low, high = (int(info.min), int(info.max) + 1) if info.bits <= 8 else (-SMALL * (info.min < 0), SMALL + 1)
            low = 0 if self.style == "positive" else low
        if dtype in INTEGER:
            high = min(high, int(ml_dtypes.iinfo(dtype).max) + 1)
        numbers = self.rng.integers(low, high, shape, dtype=np.int64)
        if self.style == "edges":
            ends = self.rng.choice(np.array([low, high - 1]), shape)
            numbers = np.where(self.rng.random(shape) < 0.25, ends, numbers)
        return np.asarray(numbers)

    def _reals(self, shape: tuple[int, ...]) -> Array:
        if self.style == "positive":
            return np.asarray(self.rng.random(shape))
        numbers = np.asarray(self.rng.standard_normal(shape))
        if self.style == "large":
            return numbers * 30
        if self.style != "edges":
            return numbers
        kind = self.rng.random(shape)
        zeros = self.rng.choice(np.array(_ZEROS), shape)
        corners = self.rng.choice(np.array(_CORNERS), shape)
        numbers = np.where(kind < 0.5, numbers * 10, numbers)
        return np.where(kind < 0.15, zeros, np.where(kind < 0.35, corners, numbers))


def _within(numbers: Array, dtype: DType) -> Array:
    """``numbers`` as ``dtype``, those beyond its largest at its largest: Inf is not among the inputs."""
    top = float(ml_dtypes.finfo(dtype).max)
    return np.asarray(np.clip(numbers, -top, top)).astype(dtype)
