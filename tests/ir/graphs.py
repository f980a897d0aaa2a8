"""Random valid models for tests: every kind of type, attribute and constant, nested graphs, hostile names."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from fuse.ir.dims import Dim, Symbolic
from fuse.ir.dtypes import BOOL, BY_NAME, INTEGER, STRING, Array, DType
from fuse.ir.graph import Attr, Graph, Node, Origin, Value
from fuse.ir.model import Function, Model
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type

HOSTILE = (
    "",
    "x",
    "x~2",
    "%x",
    "_",
    "floor",
    "input",
    "a b",
    'quo"te',
    "back\\slash",
    "new\nline",
    "\x00\x1b[31mred",
    "\u202eevil",
    "\u05d0\u05d1",
    "\u540d\u524d",
    "e\u0301",
    "\udc80\udcff",
    "onnx::Conv_1",
    "/layer1/conv.0/Conv_output_0",
    "}",
    "# no comment",
)
names = st.sampled_from(HOSTILE) | st.text(max_size=5)
dtypes = st.sampled_from(sorted(BY_NAME)).map(BY_NAME.__getitem__)
carried = st.just(b"") | st.binary(max_size=4)


@st.composite
def dims(draw: st.DrawFn) -> Dim:
    """A number, a symbol, an expression of them, or nothing known."""
    symbol = Symbolic.of(draw(names.filter(bool)))
    number = draw(st.integers(0, 9))
    made: list[Dim] = [
        None,
        number,
        symbol,
        symbol * number - 3,
        (symbol * symbol + number) // 4,
        symbol // (symbol + 1),
    ]
    return draw(st.sampled_from(made))


shapes = st.none() | st.lists(dims(), max_size=3).map(tuple)
dense = st.builds(TensorType, st.none() | dtypes, shapes)
types: st.SearchStrategy[Type | None] = st.recursive(
    st.none() | dense | st.builds(SparseType, st.none() | dtypes, shapes),
    lambda inner: (
        st.builds(SequenceType, inner)
        | st.builds(OptionalType, inner)
        | st.builds(MapType, st.sampled_from([STRING, BY_NAME["int64"]]), inner)
    ),
    max_leaves=3,
)


def elements(dtype: DType, size: int, draw: st.DrawFn) -> Array:
    """Any bit pattern of the dtype, NaN payloads included."""
    if dtype == STRING:
        flat = np.empty(size, dtype=object)
        flat[:] = draw(st.lists(names, min_size=size, max_size=size))
        return flat
    raw = np.frombuffer(draw(st.binary(min_size=size * dtype.itemsize, max_size=size * dtype.itemsize)), np.uint8)
    if dtype == BOOL:
        return (raw & 1).astype(bool)
    if dtype.name in ("int4", "uint4", "int2", "uint2"):
        bits = int(dtype.name[-1])
        low = -(1 << (bits - 1)) if dtype in INTEGER and dtype.name[0] == "i" else 0
        return ((raw & ((1 << bits) - 1)).astype(np.int64) + low).astype(dtype)
    narrow = {"float4_e2m1fn": 0x0F, "float6_e2m3fn": 0x3F, "float6_e3m2fn": 0x3F}.get(dtype.name, 0xFF)
    return (raw & np.uint8(narrow)).view(dtype)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """An array of any dtype with at most eight elements; rank 0 and size 0 included."""
    shape = draw(st.sampled_from([(), (0,), (1,), (3,), (2, 0), (2, 3), (2, 1, 4)]))
    return elements(draw(dtypes), int(np.prod(shape)), draw).reshape(shape)


floats = st.floats(width=64) | st.floats(width=32) | st.sampled_from([-0.0, 0.1, float(np.float32(0.1)), 1e-45])
scalars: dict[str, st.SearchStrategy[Any]] = {"INT": st.integers(-(2**63), 2**63 - 1), "FLOAT": floats, "STRING": names}


@st.composite
def attributes(draw: st.DrawFn) -> Attr:
    """An attribute of any kind but graphs and references."""
    plain = st.sampled_from(sorted(scalars)).flatmap(lambda k: st.builds(Attr, st.just(k), scalars[k]))
    lists = st.sampled_from(sorted(scalars)).flatmap(
        lambda k: st.builds(Attr, st.just(f"{k}S"), st.lists(scalars[k], max_size=3).map(tuple))
    )
    tensors = st.builds(Attr, st.just("TENSOR"), arrays())
    opaque = st.sampled_from(["SPARSE_TENSOR", "TYPE_PROTO", "TENSORS", "TYPE_PROTOS", "SPARSE_TENSORS"])
    attr = draw(plain | lists | tensors | st.builds(Attr, opaque, st.binary(max_size=5)))
    attr.implied, attr.extra = draw(st.booleans()), draw(carried)
    return attr


@st.composite
def values(draw: st.DrawFn) -> Value:
    """A value with a name and a type that says little."""
    value = Value(draw(names), draw(types))
    value.info, value.extra = draw(carried), draw(carried)
    return value


def fill(graph: Graph, visible: list[Value], draw: st.DrawFn, depth: int, functions: list[Function]) -> Graph:
    """Give ``graph`` inputs, constants, nodes with inner graphs, and outputs, out of what is visible."""
    visible = list(visible)
    for _ in range(draw(st.integers(0, 2))):
        visible.append(graph.add_input(draw(values())))
        if draw(st.integers(0, 3)) == 0:
            array = draw(arrays())
            visible[-1].type = draw(st.sampled_from([None, TensorType(array.dtype, (None,) * array.ndim)]))
            visible[-1].set_data(array)
    for _ in range(draw(st.integers(0, 2))):
        constant = graph.add_const(draw(arrays()), draw(names))
        constant.origin = draw(st.none() | st.builds(Origin, names, names, carried))
        visible.append(constant)
    for _ in range(draw(st.integers(0, 3))):
        graph.append(_node(visible, draw, depth, functions))
    taken = draw(st.lists(names.filter(bool), max_size=2, unique=True)) if visible else []
    for name in taken:
        slot = graph.add_output(name, draw(st.sampled_from(visible)), draw(types))
        slot.info = draw(carried)
    graph.extra = draw(carried)
    return graph


def _node(visible: list[Value], draw: st.DrawFn, depth: int, functions: list[Function]) -> Node:
    inputs: list[Value | None] = draw(st.lists(st.sampled_from([None, *visible]), max_size=3))
    outputs: list[Value | None] = draw(st.lists(st.none() | values(), max_size=3))
    attrs = draw(st.dictionaries(names.filter(bool), attributes(), max_size=2))
    op, overload = draw(st.sampled_from(["Relu", "com.microsoft::FusedConv", "a b::c\n", "_"])), draw(names)
    callees = [f for f in functions if len(f.graph.inputs) >= len(inputs) and len(f.graph.outputs) >= len(outputs)]
    if callees and draw(st.booleans()):
        op, overload = draw(st.sampled_from(callees)).key
    if depth and draw(st.booleans()):
        attrs["body"] = Attr("GRAPH", fill(Graph(draw(names)), visible, draw, depth - 1, functions))
    if depth and draw(st.integers(0, 3)) == 0:
        count = draw(st.integers(0, 2))
        bodies = tuple(fill(Graph(draw(names)), visible, draw, depth - 1, functions) for _ in range(count))
        attrs["bodies"] = Attr("GRAPHS", bodies)
    node = Node(op, inputs, outputs, attrs, draw(names))
    node.overload, node.extra = overload, draw(carried)
    node.sources = tuple(draw(st.lists(names, max_size=2)))
    visible.extend(v for v in outputs if v is not None)
    return node


@st.composite
def models(draw: st.DrawFn) -> Model:
    """A model that keeps every law, with functions that call the ones before them."""
    functions: list[Function] = []
    for number in range(draw(st.integers(0, 2))):
        function = Function("lo cal", f"f{number}", draw(names), Graph(draw(names)), extra=draw(carried))
        fill(function.graph, [], draw, 1, functions)
        function.attributes = tuple(draw(st.lists(names, max_size=2, unique=True)))
        function.defaults = draw(st.dictionaries(names, attributes(), max_size=1))
        for default in function.defaults.values():
            default.implied = False
        function.opsets = {"": 17}
        for node in function.graph.nodes:
            node.attrs["standin"] = Attr(draw(st.sampled_from(["INT", "FLOATS", "GRAPH"])), None, reference="al pha")
        functions.append(function)
    graph = fill(Graph(draw(names)), [], draw, 2, functions)
    opsets = {"": 17, **draw(st.dictionaries(names, st.integers(1, 30), max_size=1))}
    return Model(graph, draw(st.integers(3, 13)), opsets, {f.key: f for f in functions}, draw(carried))
