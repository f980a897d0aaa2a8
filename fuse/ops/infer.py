"""Inference: what can be said of a node's outputs from what is known of its inputs.

Each operator brings its own inference function; this module supplies what they share (broadcasting, pass-through),
carries known sizes through the integer arithmetic of which shapes are made, and walks a whole graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fuse.errors import FuseError, ShapeError, quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import BOOL, DType, name_of
from fuse.ir.graph import Graph, Node, Value
from fuse.ir.model import Model
from fuse.ir.types import OptionalType, SequenceType, Shape, TensorType, Type
from fuse.ops.record import Info, Operator, Trait, expect, lookup, tensor

#: Known elements are carried for integer tensors up to this size: shapes, axes, pads.
CARRIED = 256


# ---- what inference functions share


def same_as_first(x: Info, *_: Info | None, **attrs: Any) -> Info:
    """The output has the first input's type."""
    return Info(x.type)


def broadcast_dims(shapes: Sequence[Shape | None]) -> Shape | None:
    """ONNX's multidirectional broadcasting; None where a rank is unknown, ``ShapeError`` where sizes clash."""
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    rank = max((len(s) for s in known), default=0)
    columns = [[s[axis - rank + len(s)] for s in known if axis - rank + len(s) >= 0] for axis in range(rank)]
    return tuple(_broadcast_dim(column, known) for column in columns)


def _broadcast_dim(column: Sequence[Dim], shapes: Sequence[Shape]) -> Dim:
    wide = {d for d in column if not (isinstance(d, int) and d == 1)}
    numbers = {d for d in wide if isinstance(d, int)}
    if len(numbers) > 1:
        raise ShapeError(f"shapes {' and '.join(show_shape(s) for s in shapes)} do not broadcast")
    if numbers:
        return numbers.pop()
    return 1 if not wide else wide.pop() if len(wide) == 1 else None


def show_shape(shape: Shape | None) -> str:
    """A shape for people, as in ``[1, n, 3]``."""
    return "[...]" if shape is None else f"[{', '.join('?' if d is None else str(d) for d in shape)}]"


def common_dtype(*infos: Info | None) -> DType | None:
    """The dtype that all given inputs share; ``ShapeError`` where two known ones differ."""
    known = [i.dtype for i in infos if i is not None and i.dtype is not None]
    if any(d != known[0] for d in known):
        raise ShapeError(f"inputs have different dtypes: {', '.join(name_of(d) for d in known)}")
    return known[0] if known else None


def broadcast(*infos: Info | None, **attrs: Any) -> Info:
    """Elementwise over inputs of one dtype: the output has that dtype and the broadcast shape."""
    present = [i for i in infos if i is not None]
    return tensor(common_dtype(*present), broadcast_dims([i.shape for i in present]))


def compare(*infos: Info, **attrs: Any) -> Info:
    """Elementwise over inputs of one dtype with a bool result."""
    common_dtype(*infos)
    return tensor(BOOL, broadcast_dims([i.shape for i in infos]))


def normal_axis(axis: int, rank: int, what: str = "axis") -> int:
    """``axis`` counted from the front; ``ShapeError`` where it lies outside ``[-rank, rank)``."""
    expect(-rank <= axis < rank, f"{what} {axis} is out of range for rank {rank}")
    return axis + rank if axis < 0 else axis


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """All axes counted from the front; ``ShapeError`` on one out of range or named twice."""
    result = tuple(normal_axis(int(a), rank) for a in axes)
    expect(len(set(result)) == len(result), f"axes {list(axes)} name one axis twice")
    return result


# ---- one node


def infer_node(
    node: Node, inputs: Sequence[Info | None], run: Callable[[Graph, Sequence[Info]], list[Info]] | None = None
) -> list[Info]:
    """What is known of each output of ``node``.  Raises ``ShapeError`` where the inputs cannot fit the operator."""
    unknown = [Info() for _ in node.outputs]
    record = lookup(node.op)
    if record is None or record.infer is None or any(a.reference for a in node.attrs.values()):
        return unknown
    check_arity(record, inputs)
    keywords = {name: own.value for name, own in node.attrs.items()}
    if record.wants_outputs:
        keywords["n_outputs"] = len(node.outputs)
    if Trait.CONTROL in record.traits:
        keywords["run"] = run
    padded = list(inputs) + [None] * (record.min_inputs - len(inputs))
    result = record.infer(*padded, **keywords)
    infos = [result] if isinstance(result, Info) else list(result)
    infos = (infos + unknown)[: len(node.outputs)]
    infos[0] = _carry(record, inputs, keywords, infos[0])
    return infos


def check_arity(record: Operator, inputs: Sequence[object]) -> None:
    """Raise ``ShapeError`` unless the operator takes that many inputs and has all it requires."""
    expect(
        record.max_inputs is None or len(inputs) <= record.max_inputs,
        f"takes at most {record.max_inputs} inputs, {len(inputs)} given",
    )
    for index in range(record.min_inputs):
        there = index < len(inputs) and (inputs[index] is not None or index in record.optional)
        expect(there, f"input {index} is required and missing")


def _carry(record: Operator, inputs: Sequence[Info | None], keywords: Mapping[str, Any], out: Info) -> Info:
    """Run the kernel itself on known sizes, and keep the result beside the type.

    Symbolic sizes go through operators that say so alone: a symbol, for one, equals no number that it may stand for.
    """
    symbolic = bool(record.traits & (Trait.LAYOUT | Trait.SIZES))
    if out.value is not None or not (symbolic or Trait.ELEMENTWISE in record.traits):
        return out
    if any(i is not None and (i.value is None or i.value.size > CARRIED) for i in inputs):
        return out
    if out.dtype is None or out.dtype.kind not in "iub":
        return out
    if out.shape is not None and math.prod(d if isinstance(d, int) else 1 for d in out.shape) > CARRIED:
        return out
    values = [None if i is None else i.value for i in inputs]
    if not symbolic and any(v is not None and v.dtype == object for v in values):
        return out
    try:
        with np.errstate(all="ignore"):
            result = record.kernel(*values, **keywords)
    except (ArithmeticError, TypeError, ValueError, IndexError, FuseError):
        return out
    first = result[0] if isinstance(result, tuple) else result
    if not isinstance(first, np.ndarray):  # of rank 0 NumPy hands out the bare element
        first = np.asarray(first, dtype=first.dtype if isinstance(first, np.generic) else object)
    if first.size > CARRIED:
        return out
    if first.dtype == object and all(isinstance(d, (int, np.integer)) for d in first.flat):
        try:
            first = first.astype(out.dtype)
        except OverflowError:  # sizes are unbounded here, the tensor's integers are not
            return out
    return Info(TensorType(out.dtype, first.shape), first)


# ---- a graph


def known(value: Value | None, facts: Mapping[Value, Info]) -> Info | None:
    """What is known of a node's input: None where it is absent."""
    if value is None:
        return None
    if value in facts:
        return facts[value]
    if value.is_const and value.dtype is not None and value.dtype.kind in "iubf":
        small = value.nbytes <= CARRIED * value.dtype.itemsize
        return Info(value.type, value.data if small else None)
    return Info(value.type)


def infer_graph(
    graph: Graph,
    facts: dict[Value, Info],
    arguments: Sequence[Info] | None = None,
    functions: Mapping[tuple[str, str], Any] | None = None,
) -> list[Info]:
    """Walk ``graph`` in order, filling ``facts``; returns what is known of its outputs.

    ``arguments`` are what is known of the inputs (the declared types otherwise).  Errors carry the node they rose at.
    """
    for position, given in enumerate(graph.inputs):
        facts[given] = Info(given.type) if arguments is None or position >= len(arguments) else arguments[position]

    def run(body: Graph, given: Sequence[Info]) -> list[Info]:
        try:
            return infer_graph(body, facts, given, functions)
        except ShapeError:  # what that means the operator decides: the body may be one that never runs
            for made in (v for node in body.walk() for v in node.outputs if v is not None):
                facts.pop(made, None)
            raise

    for node in graph.nodes:
        inputs = [known(v, facts) for v in node.inputs]
        function = functions.get((node.op, node.overload)) if functions and node.domain else None
        try:
            if function is None or lookup(node.op) is not None:
                outputs = infer_node(node, inputs, run)
            else:  # a body's facts hold for one call only: they are thrown away
                outputs = infer_graph(function.graph, {}, [i or Info() for i in inputs], functions)
        except FuseError as error:
            raise error.within(describe(node)) from None
        for value, info in zip(node.outputs, outputs, strict=False):
            if value is not None:
                facts[value] = info
    return [known(slot.value, facts) or Info() for slot in graph.outputs]


def infer_model(model: Model) -> dict[Value, Info]:
    """Infer the whole model, write the types into its values, and return all that is known."""
    facts: dict[Value, Info] = {}
    infer_graph(model.graph, facts, functions=model.functions)
    for graph in model.graph.walk_graphs():
        for node in graph.nodes:
            for value in node.outputs:
                if value is not None and value in facts:
                    value.type = facts[value].type
    return facts


def describe(node: Node) -> str:
    """How messages name a node: its name (or its first output's) and its operator."""
    label = node.name or next((v.name for v in node.outputs if v is not None), "")
    return f"node {quote(label)} ({quote(node.op)[1:-1]})"


def merge(a: Type | None, b: Type | None) -> Type | None:
    """The most that holds for both: dims, ranks and dtypes that differ become unknown."""
    if a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        dtype = a.dtype if a.dtype == b.dtype else None
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(dtype)
        return TensorType(dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(merge(a.element, b.element))
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(merge(a.element, b.element))
    return None
