"""One record an operator: what it means, and what passes may assume of it.

``@operator("Relu", infer=same_as_first, traits=ELEMENTWISE)`` in front of a kernel makes the record.  The kernel's
signature is the schema: inputs are positional (absent optional ones arrive as None), attributes are keyword-only with
ONNX's defaults.  The inference function has the same signature over ``Info`` in place of arrays.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import ShapeError
from fuse.ir.dims import Dim
from fuse.ir.dtypes import INT64, Array, DType
from fuse.ir.graph import Node
from fuse.ir.types import Shape, TensorType, Type


class Trait(enum.Flag):
    """What a pass may rely on."""

    NONE = 0
    ELEMENTWISE = enum.auto()
    """Each output element depends on the broadcast elements of the inputs at the same place alone."""
    COMMUTATIVE = enum.auto()
    """The first two inputs may be swapped and the bits stay."""
    RANDOM = enum.auto()
    """Two runs may differ: never folded, merged or duplicated."""
    VIEW = enum.auto()
    """The first output holds the first input's elements in the same order: an alias in memory."""
    LAYOUT = enum.auto()
    """Moves elements and computes nothing: valid on symbolic sizes and on any dtype."""
    CONTROL = enum.auto()
    """Runs subgraphs: the kernel takes ``run``, called as ``run(graph, arguments) -> results``."""
    SIZES = enum.auto()
    """Integer arithmetic of which shapes are computed: valid on symbolic sizes through their operators."""


@dataclass(frozen=True, slots=True)
class Info:
    """What inference knows of one value: its type, and its elements where they are known.

    ``value`` is an array of the tensor's dtype, or an object array of dims for a small integer tensor of which some
    elements are symbolic.
    """

    type: Type | None = None
    value: Array | None = None

    @property
    def dtype(self) -> DType | None:
        """The tensor's dtype; None where unknown or not a tensor."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> Shape | None:
        """The tensor's shape; None where unknown or not a tensor."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def rank(self) -> int | None:
        """The tensor's rank; None where unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def dims(self) -> tuple[Dim, ...] | None:
        """The elements of a known 1-D (or rank-0) integer tensor as dims; None where the value is unknown."""
        if self.value is None:
            return None
        return tuple(d if not isinstance(d, np.integer) else int(d) for d in self.value.reshape(-1))

    @property
    def ints(self) -> tuple[int, ...] | None:
        """The elements as plain integers; None where the value, or one of the elements, is not a number."""
        dims = self.dims
        if dims is None or not all(isinstance(d, int) for d in dims):
            return None
        return tuple(int(d) for d in dims)  # type: ignore[arg-type]


def tensor(dtype: DType | None, shape: Sequence[Dim] | None = None, value: Array | None = None) -> Info:
    """An ``Info`` of a tensor."""
    return Info(TensorType(dtype, None if shape is None else tuple(shape)), value)


def sizes(dims: Sequence[Dim]) -> Info:
    """An ``Info`` of a 1-D int64 tensor whose elements are ``dims``; the value is left out where one is unknown."""
    known: Array | None = None
    if all(isinstance(d, int) for d in dims):
        known = np.array(dims, dtype=np.int64)
    elif all(d is not None for d in dims):
        known = np.empty(len(dims), dtype=object)
        known[:] = dims
    return tensor(INT64, (len(dims),), known)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator's meaning.  ``defaults`` holds the attributes that may be absent; ``required`` those that may not.

    ``optional`` holds the places of inputs below ``min_inputs`` that may be absent all the same.
    """

    op: str
    kernel: Callable[..., Any]
    infer: Callable[..., Any] | None
    traits: Trait
    defaults: Mapping[str, Any]
    required: frozenset[str]
    min_inputs: int
    max_inputs: int | None
    wants_outputs: bool
    optional: frozenset[int] = frozenset()

    def has(self, trait: Trait) -> bool:
        """True where every flag of ``trait`` is set."""
        return trait in self.traits


OPERATORS: dict[str, Operator] = {}


def operator(
    *ops: str, infer: Callable[..., Any] | None = None, traits: Trait = Trait.NONE
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated kernel under each name of ``ops``.

    A kernel returns its output, or a tuple where there are several.  It takes ``n_outputs`` (how many the node has)
    by declaring that keyword, and ``run`` where the operator is a control-flow one.  An input that may be absent has
    the default None; where an input that may not be follows it, the annotation ``Array | None`` says so instead.
    """

    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        low, high, defaults, required, optional = 0, 0, {}, set(), set()
        variadic = wants_outputs = False
        for p in inspect.signature(kernel).parameters.values():
            if p.kind is p.VAR_POSITIONAL:
                variadic = True
            elif p.kind is p.POSITIONAL_OR_KEYWORD:
                if p.default is p.empty:
                    low += 1
                    if str(p.annotation).endswith("| None"):
                        optional.add(high)
                high += 1
            elif p.name == "n_outputs":
                wants_outputs = True
            elif p.name != "run":
                if p.default is p.empty:
                    required.add(p.name)
                else:
                    defaults[p.name] = p.default
        for op in ops:
            assert op not in OPERATORS, op
            most = None if variadic else high
            OPERATORS[op] = Operator(
                op, kernel, infer, traits, defaults, frozenset(required), low, most, wants_outputs, frozenset(optional)
            )
        return kernel

    return register


def lookup(op: str) -> Operator | None:
    """The record of ``op`` (ONNX's name, ``domain::Name`` outside the default domain); None where there is none."""
    return OPERATORS.get(op)


def has_trait(node: Node, trait: Trait) -> bool:
    """True where the node's operator is known and has ``trait``."""
    record = OPERATORS.get(node.op)
    return record is not None and trait in record.traits


def attr(node: Node, name: str) -> Any:
    """The attribute's value: the node's own, else the operator's default."""
    own = node.attrs.get(name)
    if own is not None:
        return own.value
    return OPERATORS[node.op].defaults[name]


def expect(condition: bool, what: str) -> None:
    """Raise ``ShapeError(what)`` unless ``condition`` holds.  The caller adds which node it was."""
    if not condition:
        raise ShapeError(what)
