"""One spelling inside: each operator version is brought to the newest one, and back to the model's own when saved.

Five things changed between ONNX versions.  Attributes became inputs (``MOVED``); attributes without an effect went away
(``DROPPED``); an attribute got another type or other words (``REWORDED``); a default became another one (``IMPLIED``);
and some operators changed their meaning (``CHANGED``).  The last kind gets a name of its own, ``Softmax-1`` beside
``Softmax``, so that no rule or kernel can take the one for the other.
Source: the operator changelog of the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import ModelError, UnsupportedError, quote
from fuse.ir.dtypes import BY_CODE, BY_NAME, CODE, FLOAT, INT64, NAME, DType
from fuse.ir.graph import Attr, Graph, Node, Origin, Value

#: Marks a constant that stands for an attribute of the file; written only where something needs it.
FROM_ATTRIBUTE = "spelling"


# ---- what changed


@dataclass(frozen=True, slots=True)
class Move:
    """``attribute`` (of ``kind``) became input ``index`` at operator set ``since``; ``scalar`` gives a rank-0 tensor.

    It was there from operator set ``first`` on; before ``either`` the file could give it as an input too.
    """

    attribute: str
    index: int
    since: int
    kind: str = "INTS"
    scalar: bool = False
    first: int = 1
    either: int = 1


_AXES_13 = (Move("axes", 1, 13),)
_AXES_18 = (Move("axes", 1, 18),)

MOVED: dict[str, tuple[Move, ...]] = {
    "Clip": (Move("min", 1, 11, "FLOAT", True), Move("max", 2, 11, "FLOAT", True)),
    "Dropout": (Move("ratio", 1, 12, "FLOAT", True),),
    "Pad": (
        Move("paddings", 1, 2),
        Move("pads", 1, 11, first=2),
        Move("value", 2, 11, "FLOAT", True),
    ),
    **{f"Reduce{n}": _AXES_18 for n in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")},
    "ReduceSum": _AXES_13,
    "Reshape": (Move("shape", 1, 5),),
    "Slice": (Move("starts", 1, 10), Move("ends", 2, 10), Move("axes", 3, 10)),
    "Split": (Move("split", 1, 13, either=2),),
    "Squeeze": _AXES_13,
    "TopK": (Move("k", 1, 10, "INT"),),
    "Unsqueeze": _AXES_13,
    "Upsample": (Move("scales", 1, 9, "FLOATS", first=7),),
}

_BROADCAST = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
_ANY = object()

#: Attributes without effect on inference where they have this value; kept for the file alone.  Where an operator has
#: several, the value of the first decides for all.
DROPPED: dict[str, dict[str, Any]] = {
    **{op: {"broadcast": 0, "axis": _ANY} for op in _BROADCAST},
    "BatchNormalization": {"spatial": 1, "is_test": _ANY},
    "Dropout": {"is_test": _ANY},
    "GRU": {"output_sequence": _ANY},
    "Gemm": {"broadcast": _ANY},
    "LSTM": {"output_sequence": _ANY},
    "RNN": {"output_sequence": _ANY},
}

#: A hint of the first operator set about memory, on some thirty operators.
DROPPED_EVERYWHERE = "consumed_inputs"


@dataclass(frozen=True, slots=True)
class Default:
    """From operator set ``since`` and before ``before``, an absent ``attribute`` meant ``value``."""

    attribute: str
    kind: str
    value: Any
    before: int
    since: int = 1


IMPLIED: dict[str, tuple[Default, ...]] = {
    # Between the two is neither is_test nor training_mode: it is a test, but where statistics of a batch are asked for.
    "BatchNormalization-1": (Default("is_test", "INT", 1, 14, since=7),),
    "Concat": (Default("axis", "INT", 1, 4),),
    "Dropout-1": (Default("is_test", "INT", 1, 10, since=7),),
    "RoiAlign": (Default("coordinate_transformation_mode", "STRING", "output_half_pixel", 16),),
    "Selu": (
        Default("alpha", "FLOAT", float(np.float32(1.6732)), 6),
        Default("gamma", "FLOAT", float(np.float32(1.0507)), 6),
    ),
}


@dataclass(frozen=True, slots=True)
class Wording:
    """Before operator set ``before``, ``attribute`` was of kind ``old`` (``new`` now) and had other values.

    ``up`` turns an old value into the new one, ``down`` turns it back; None leaves the attribute as it is.
    """

    attribute: str
    before: int
    old: str
    new: str
    up: Callable[[Any], Any]
    down: Callable[[Any], Any]


def _type_number(name: str) -> int:
    dtype = BY_NAME.get(name.lower())
    if dtype is None or name != name.upper():
        raise ModelError(f"{quote(name)} is not an element type")
    return CODE[dtype]


def _whole(p: float) -> int | None:
    return int(p) if float(p).is_integer() else None


_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_POWER = Wording("p", 2, "FLOAT", "INT", _whole, float)

REWORDED: dict[str, Wording] = {
    "Cast": Wording("to", 6, "STRING", "INT", _type_number, lambda to: NAME[BY_CODE[to]].upper()),
    "GlobalLpPool": _POWER,
    "GridSample": Wording("mode", 20, "STRING", "STRING", _GRID_MODES.get, {v: k for k, v in _GRID_MODES.items()}.get),
    "LpPool": _POWER,
}


@dataclass(frozen=True, slots=True)
class Change:
    """Before operator set ``before`` the operator meant what is called ``name`` here, always or ``when`` that holds."""

    name: str
    before: int
    when: Callable[[Node, int], bool] | None = None


def _given(node: Node, name: str, default: int) -> int:
    own = node.attrs.get(name)
    return default if own is None else own.value


def _broadcasts(node: Node, opset: int) -> bool:
    return _given(node, "broadcast", 0) == 1


def _asks(node: Node) -> bool:
    return any(value is not None for value in node.outputs[1:])


def _trains(node: Node, opset: int) -> bool:
    """A mask or statistics are asked for, or nobody said that it is a test."""
    return _asks(node) or (opset < 7 and not _given(node, "is_test", 0))


def _learns(node: Node, opset: int) -> bool:
    return _trains(node, opset) or _given(node, "spatial", 1) != 1


CHANGED: dict[str, Change] = {
    **{op: Change(f"{op}-1", 7, _broadcasts) for op in _BROADCAST},
    "BatchNormalization": Change("BatchNormalization-1", 14, _learns),
    "DFT": Change("DFT-17", 20),
    "Dropout": Change("Dropout-1", 10, _trains),
    "GroupNormalization": Change("GroupNormalization-18", 21),
    "Hardmax": Change("Hardmax-1", 13),
    "LogSoftmax": Change("LogSoftmax-1", 13),
    "PRelu": Change("PRelu-1", 7),
    "Resize": Change("Resize-10", 11),
    "Scan": Change("Scan-8", 9),
    "Softmax": Change("Softmax-1", 13),
    "Tile": Change("Tile-1", 6),
    "Upsample": Change("Upsample-1", 7),
}

_ALWAYS = 1 << 30

#: What onnxruntime's tools write into the default domain although ONNX has no such operator there, or had none before
#: the operator set named.  Inside they are ``LayerNormalization-1`` and the like.
UNLISTED: dict[str, int] = {
    "Affine": 10,
    "Crop": 10,
    "DynamicSlice": 10,
    "ImageScaler": 10,
    "LayerNormalization": 17,
    "ParametricSoftplus": 10,
    "Scale": 10,
    "ScaledTanh": 10,
    "SimplifiedLayerNormalization": _ALWAYS,
}


def unlisted(op: str, opset: int) -> bool:
    """Whether ``op`` of the default domain is onnxruntime's and not ONNX's in operator set ``opset``."""
    return opset < UNLISTED.get(op, 0)


# ---- up


def bring_up(node: Node, opset: int, graph: Graph) -> dict[str, Attr]:
    """Bring ``node`` (already linked to its values, in ``graph``) to the newest spelling.

    Returns the attributes that were dropped because they have no effect, for the caller to keep for the file.  A node
    of a function that gives one of the attributes concerned as a reference keeps its old form, under a name with the
    operator set: ``Clip-6``.  So does one that says a thing twice.
    """
    dropped: dict[str, Attr] = {}
    if unlisted(node.op, opset):
        node.op = f"{node.op}-1"
        return dropped
    if not node.attrs and node.op not in CHANGED and node.op not in IMPLIED:
        return dropped
    if any(own.reference and _concerns(node.op, name, opset) for name, own in node.attrs.items()) or _twice(
        node, opset
    ):
        node.op = f"{node.op}-{opset}"
        return dropped
    change = CHANGED.get(node.op)
    if change is not None and opset < change.before and (change.when is None or change.when(node, opset)):
        node.op = change.name
    for name in _without_effect(node):
        dropped[name] = node.attrs.pop(name)
    for default in IMPLIED.get(node.op, ()):
        learns = node.op == "BatchNormalization-1" and _asks(node)
        if default.since <= opset < default.before and default.attribute not in node.attrs and not learns:
            node.attrs[default.attribute] = Attr(default.kind, default.value, implied=True)
    wording = REWORDED.get(node.op)
    if wording is not None and opset < wording.before:
        _reword(node.attrs, wording.attribute, wording.up, wording.new)
    for move in MOVED.get(node.op, ()):
        own = node.attrs.get(move.attribute)
        if own is not None and opset < move.since:
            del node.attrs[move.attribute]
            while len(node.inputs) <= move.index:
                node.append_input(None)
            node.rewire(move.index, _constant(graph, own.value, move, node.input(0)))
    return dropped


def _concerns(op: str, attribute: str, opset: int) -> bool:
    """Whether the older spelling or meaning of ``op`` hangs on the value of ``attribute``."""
    wording, change = REWORDED.get(op), CHANGED.get(op)
    return (
        any(m.attribute == attribute and opset < m.since for m in MOVED.get(op, ()))
        or (wording is not None and wording.attribute == attribute and opset < wording.before)
        or (change is not None and change.when is not None and attribute in ("broadcast", "is_test", "spatial"))
    )


def _twice(node: Node, opset: int) -> bool:
    """Whether something is given both as an attribute and as an input, which the first operator set let happen."""
    return any(
        opset < m.either and m.attribute in node.attrs and node.input(m.index) is not None
        for m in MOVED.get(node.op, ())
    )


def _without_effect(node: Node) -> list[str]:
    found = [DROPPED_EVERYWHERE] if DROPPED_EVERYWHERE in node.attrs else []
    for name, value in DROPPED.get(node.op, {}).items():
        own = node.attrs.get(name)
        if own is not None and value is not _ANY and own.value != value:
            break
        found += [name] if own is not None else []
    return found


def _reword(attrs: dict[str, Attr], name: str, turn: Callable[[Any], Any], kind: str) -> None:
    own = attrs.get(name)
    if own is not None and not own.reference:
        value = turn(own.value)
        if value is not None:
            attrs[name] = Attr(kind, value, extra=own.extra)


def _constant(graph: Graph, value: Any, move: Move, data: Value | None) -> Value:
    """The constant for an attribute; a bound or a fill value has the data's dtype where that can say it exactly."""
    dtype: DType = FLOAT if move.kind.startswith("FLOAT") else INT64
    array = np.asarray(value, dtype).reshape(() if move.scalar else -1)
    if move.scalar and move.attribute != "ratio" and data is not None and data.dtype is not None:
        with np.errstate(all="ignore"):
            like = array.astype(data.dtype)
        array = like if like.astype(dtype).tobytes() == array.tobytes() else array
    constant = graph.add_const(array)
    constant.origin = Origin(FROM_ATTRIBUTE)
    return constant


# ---- down


@dataclass(frozen=True, slots=True)
class Spelled:
    """A node as the file has it: operator name without domain, inputs, attributes."""

    op_type: str
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Attr]


def spell(node: Node, opset: int) -> Spelled:
    """``node`` in the spelling of operator set ``opset``; a node of a foreign domain is what it is.

    Raises ``UnsupportedError`` where that version has no way to say it: an input that was still an attribute then and
    is no constant, or an operator whose meaning was another one.
    """
    attrs = node.attrs
    if any(own.implied for own in attrs.values()):
        attrs = {name: own for name, own in attrs.items() if not own.implied}
    if node.domain:
        return Spelled(node.op_type, node.inputs, attrs)
    op = _plain_name(node, opset)
    wording = REWORDED.get(op)
    if wording is not None and opset < wording.before:
        attrs = dict(attrs)
        _reword(attrs, wording.attribute, wording.down, wording.old)
    moves = [m for m in MOVED.get(node.op, ()) if m.first <= opset < m.since]
    if not moves:
        return Spelled(op, node.inputs, attrs)
    attrs, inputs = dict(attrs), list(node.inputs)
    for move in moves:
        value = node.input(move.index)
        if value is None or (opset < move.either and not _from_attribute(value)):
            continue
        inputs[move.index] = None
        if not value.is_const:
            hint = f"use operator set {move.since} or newer"
            raise UnsupportedError(f"{op} has no input '{move.attribute}' in operator set {opset}", hint=hint)
        attrs[move.attribute] = Attr(move.kind, _plain(value, move))
    while inputs and inputs[-1] is None:
        inputs.pop()
    return Spelled(op, tuple(inputs), attrs)


def _plain_name(node: Node, opset: int) -> str:
    """The operator's name without the version, which must be one that ``opset`` understands so."""
    op, _, version = node.op.partition("-")
    change = CHANGED.get(op)
    if version == "1" and unlisted(op, opset):
        return op
    if version:
        renamed = change is not None and change.name == node.op
        fits = opset < change.before if renamed and change is not None else version == str(opset)
    else:
        fits = change is None or change.when is not None or opset >= change.before
    if not fits:
        raise UnsupportedError(f"operator {quote(node.op)} has another meaning in operator set {opset}")
    return op


def _from_attribute(value: Value) -> bool:
    return value.origin is not None and value.origin.attribute == FROM_ATTRIBUTE


def _plain(value: Value, move: Move) -> Any:
    """The attribute that says the same as a constant; floats are single precision there."""
    flat = value.array.reshape(-1)
    what = f"attribute '{move.attribute}'"
    if not move.kind.endswith("S") and flat.size != 1:
        raise UnsupportedError(f"{what} is one number, the input has {flat.size}")
    if move.kind.startswith("FLOAT"):
        with np.errstate(over="ignore"):
            single, exact = flat.astype(np.float32), flat.astype(np.float64)
        if not ((single.astype(np.float64) == exact) | np.isnan(exact)).all():
            raise UnsupportedError(f"{what} is in single precision, which the input's value does not fit")
        flat = single
    return tuple(flat.tolist()) if move.kind.endswith("S") else flat[0].item()
