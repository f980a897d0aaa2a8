"""One spelling inside: each operator version is brought to the newest one, and back to the model's own when saved.

Three things changed between ONNX versions.  Attributes became inputs (``MOVED``); attributes that never mattered to
inference went away (``DROPPED``); and some operators changed their meaning.  The last kind gets a name of its own,
``Softmax-1`` beside ``Softmax``, so that no rule or kernel can take the one for the other.
Source: the operator changelog of the ONNX specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import UnsupportedError
from fuse.ir.dtypes import BY_NAME, CODE, FLOAT, INT64, DType
from fuse.ir.graph import Attr, Graph, Node, Origin, Value

#: Marks a constant that stands for an attribute of the file; written only where something needs it.
FROM_ATTRIBUTE = "spelling"


@dataclass(frozen=True, slots=True)
class Move:
    """``attribute`` (of ``kind``) became input ``index`` at operator set ``since``; ``scalar`` gives a rank-0 tensor."""

    attribute: str
    index: int
    since: int
    kind: str = "INTS"
    scalar: bool = False
    first: int = 1


_AXES_13 = (Move("axes", 1, 13),)
_AXES_18 = (Move("axes", 1, 18),)

MOVED: dict[str, tuple[Move, ...]] = {
    "Reshape": (Move("shape", 1, 5),),
    "Clip": (Move("min", 1, 11, "FLOAT", True), Move("max", 2, 11, "FLOAT", True)),
    "Pad": (
        Move("paddings", 1, 2),
        Move("pads", 1, 11, first=2),
        Move("value", 2, 11, "FLOAT", True),
    ),
    "Slice": (Move("starts", 1, 10), Move("ends", 2, 10), Move("axes", 3, 10)),
    "Squeeze": _AXES_13,
    "Unsqueeze": _AXES_13,
    "ReduceSum": _AXES_13,
    **{f"Reduce{n}": _AXES_18 for n in "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()},
    "Split": (Move("split", 1, 13),),
    "TopK": (Move("k", 1, 10, "INT"),),
    "Upsample": (Move("scales", 1, 9, "FLOATS"),),
    "Dropout": (Move("ratio", 1, 12, "FLOAT", True),),
}

#: Attributes without effect on inference where they have this value (None: whatever value); kept for the file alone.
DROPPED: dict[str, dict[str, Any]] = {
    "BatchNormalization": {"spatial": 1, "is_test": None, "consumed_inputs": None},
    "Dropout": {"is_test": None},
    "Gemm": {"broadcast": None},
    **{n: {"broadcast": 0} for n in "Add Sub Mul Div Pow And Or Xor Equal Greater Less".split()},
}

_BROADCAST = frozenset("Add Sub Mul Div Pow And Or Xor Equal Greater Less".split())


def _meaning(node: Node, opset: int) -> str:
    """The name that says what ``node`` means: its own, or with the version where that means something else."""
    op, attrs = node.op, node.attrs
    if op in ("Softmax", "LogSoftmax", "Hardmax") and opset < 13:
        return f"{op}-1"
    if op in _BROADCAST and opset < 7 and ("broadcast" in attrs and attrs["broadcast"].value == 1):
        return f"{op}-1"
    if op == "PRelu" and opset < 7:
        return "PRelu-1"
    if op == "Tile" and opset < 6:
        return "Tile-1"
    if op == "Upsample" and opset < 7:
        return "Upsample-1"
    if op == "Resize" and opset < 11:
        return "Resize-10"
    if op == "GroupNormalization" and opset < 21:
        return "GroupNormalization-18"
    if op == "Scan" and opset < 9:
        return "Scan-8"
    testing = "is_test" in attrs and attrs["is_test"].value != 0
    if op == "Dropout" and opset < 10 and (len(node.outputs) > 1 or (opset < 7 and not testing)):
        return "Dropout-1"
    if op == "BatchNormalization" and opset < 14:
        spatial = attrs["spatial"].value if "spatial" in attrs else 1
        if len(node.outputs) > 1 or spatial != 1 or (opset < 7 and not testing):
            return "BatchNormalization-1"
    return op


def _implied(node: Node, opset: int) -> dict[str, int]:
    """Attributes that the node's version leaves unsaid and its record inside does not."""
    if node.op == "Concat" and opset < 4:
        return {"axis": 1}
    # From set 7 on there is no is_test: Dropout is in inference, BatchNormalization too where it has one output.
    if opset >= 7 and (node.op == "Dropout-1" or (node.op == "BatchNormalization-1" and len(node.outputs) == 1)):
        return {"is_test": 1}
    return {}


def bring_up(node: Node, opset: int, graph: Graph) -> dict[str, Attr]:
    """Bring ``node`` (already linked to its values, in ``graph``) to the newest spelling.

    Returns the attributes that were dropped because they have no effect, for the caller to keep for the file.
    """
    dropped: dict[str, Attr] = {}
    node.op = _meaning(node, opset)
    if node.op == "Cast" and isinstance(node.attrs["to"].value, str):
        name = node.attrs["to"].value.lower()
        node.attrs["to"] = Attr("INT", CODE[BY_NAME[name]])
    for name, value in DROPPED.get(node.op, {}).items():
        own = node.attrs.get(name)
        if own is not None and (value is None or own.value == value) and opset < 14:
            dropped[name] = node.attrs.pop(name)
    for name, value in _implied(node, opset).items():
        node.attrs.setdefault(name, Attr("INT", value, implied=True))
    for move in MOVED.get(node.op, ()):
        own = node.attrs.get(move.attribute)
        if own is None or opset >= move.since:
            continue
        if own.reference:  # an attribute of the enclosing function: its value is not known here
            node.op = f"{node.op}-{opset}"
            return dropped
        del node.attrs[move.attribute]
        while len(node.inputs) <= move.index:
            node.append_input(None)
        node.rewire(move.index, _constant(graph, own.value, move, _dtype(node, move)))
    return dropped


def _dtype(node: Node, move: Move) -> DType:
    if move.kind in ("INT", "INTS"):
        return INT64
    first = node.input(0)
    like = first is not None and first.dtype is not None and node.op in ("Clip", "Pad")
    return first.dtype if like and first is not None else FLOAT


def _constant(graph: Graph, value: Any, move: Move, dtype: DType) -> Value:
    array = np.asarray(value, dtype=dtype).reshape(() if move.scalar else -1)
    constant = graph.add_const(array)
    constant.origin = Origin(FROM_ATTRIBUTE)
    return constant


@dataclass(frozen=True, slots=True)
class Spelled:
    """A node as the file has it: operator name without domain, inputs, attributes."""

    op_type: str
    inputs: tuple[Value | None, ...]
    attrs: dict[str, Attr]


def spell(node: Node, opset: int) -> Spelled:
    """``node`` in the spelling of operator set ``opset``.

    Raises ``UnsupportedError`` where that version has no way to say it (an input that was still an attribute then).
    """
    name, dash, version = node.op_type.rpartition("-")
    op_type = name if dash and version.isdigit() else node.op_type
    attrs = {key: own for key, own in node.attrs.items() if not own.implied}
    if op_type == "Cast" and opset < 6 and not node.domain:
        attrs["to"] = Attr("STRING", next(n for n, d in BY_NAME.items() if CODE[d] == attrs["to"].value).upper())
    moves = [m for m in MOVED.get(node.op, ()) if m.first <= opset < m.since]
    if not moves:
        return Spelled(op_type, node.inputs, attrs)
    inputs = list(node.inputs)
    for move in moves:
        value = node.input(move.index)
        if move.index < len(inputs):
            inputs[move.index] = None
        if value is None:
            continue
        if not value.is_const:
            hint = f"use operator set {move.since} or newer"
            raise UnsupportedError(f"{op_type} has no input '{move.attribute}' in operator set {opset}", hint=hint)
        attrs[move.attribute] = Attr(move.kind, _plain(value, move.kind))
    while inputs and inputs[-1] is None:
        inputs.pop()
    return Spelled(op_type, tuple(inputs), attrs)


def _plain(value: Value, kind: str) -> Any:
    array = value.array
    if kind in ("INT", "FLOAT"):
        return array.reshape(-1)[0].item() if kind == "INT" else float(array.reshape(-1)[0])
    return tuple(array.reshape(-1).tolist())
