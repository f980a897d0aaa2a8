"""The interface: two models that claim to be one must take and give the same names, order, dtypes and dims."""

from __future__ import annotations

from collections.abc import Sequence

from fuse.errors import InputError, quote
from fuse.ir.model import Model
from fuse.ir.types import OptionalType, SequenceType, SparseType, TensorType, Type


def compare_interfaces(raw: Model, other: Model) -> list[str]:
    """What ``other`` takes or gives that differs from ``raw``, a sentence each; empty where nothing does.

    What ``raw`` leaves undeclared (a rank, a dim) ``other`` may declare.  Raises ``InputError`` where the inputs have
    other names: then the two are not the same model, and no feed fits both.
    """
    ours, theirs = (sorted(v.name for v in m.graph.inputs) for m in (raw, other))
    if ours != theirs:
        only = [f"{quote(n)} only in {m.source}" for n, m in _unshared(ours, theirs, raw, other)]
        hint = "two models are compared on the same feeds, so their inputs must have the same names"
        raise InputError(f"the models take different inputs: {', '.join(only[:4])}", hint=hint)
    inputs = [(v.name, v.type) for v in raw.graph.inputs], [(v.name, v.type) for v in other.graph.inputs]
    outputs = [
        [(slot.name, slot.type if slot.type is not None else slot.value.type) for slot in m.graph.outputs]
        for m in (raw, other)
    ]
    declared = [(slot.name, slot.type) for slot in raw.graph.outputs]
    found = _order("inputs", inputs[0], inputs[1]) or _types("input", inputs[0], inputs[1])
    found += _order("outputs", outputs[0], outputs[1]) or _types("output", declared, outputs[1])
    for a, b in zip(raw.graph.inputs, other.graph.inputs, strict=True):
        if a.name == b.name and (a.data is None) != (b.data is None):
            found.append(f"input {quote(a.name)} {'gained' if a.data is None else 'lost'} its default")
    return found


def _unshared(ours: Sequence[str], theirs: Sequence[str], raw: Model, other: Model) -> list[tuple[str, Model]]:
    return [(n, raw) for n in ours if n not in theirs] + [(n, other) for n in theirs if n not in ours]


Declared = Sequence[tuple[str, Type | None]]


def _order(what: str, ours: Declared, theirs: Declared) -> list[str]:
    names = [[name for name, _ in side] for side in (ours, theirs)]
    if names[0] == names[1]:
        return []
    shown = [", ".join(quote(n) for n in side[:6]) + (", ..." if len(side) > 6 else "") for side in names]
    return [f"the {what} are {shown[1] or 'none'}, they were {shown[0]}"]


def _types(what: str, ours: Declared, theirs: Declared) -> list[str]:
    pairs = zip(ours, theirs, strict=True)
    return [f"{what} {quote(n)} is {b}, it was {a}" for (n, a), (_, b) in pairs if not _keeps(a, b)]


def _keeps(ours: Type | None, theirs: Type | None) -> bool:
    """True where ``theirs`` says all that ``ours`` says."""
    while isinstance(ours, (SequenceType, OptionalType)):
        if type(ours) is not type(theirs):
            return False
        ours, theirs = ours.element, theirs.element
    if ours is None:
        return True
    if not isinstance(ours, (TensorType, SparseType)):
        return ours == theirs
    if not isinstance(theirs, type(ours)) or (ours.dtype is not None and ours.dtype != theirs.dtype):
        return False
    if ours.shape is None:
        return True
    dims = zip(ours.shape, theirs.shape or (), strict=False)
    return theirs.shape is not None and len(ours.shape) == len(theirs.shape) and all(a in (None, b) for a, b in dims)
