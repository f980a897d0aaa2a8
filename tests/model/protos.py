"""ModelProtos for the tests of loading and saving, and what makes two of them the same.

Two models count as the same if they are equal as bytes once what has several spellings has one (``normal``): tensor
data as raw bytes; Constant nodes first, since fuse writes them so; attributes, initializers, sparse initializers, value
infos and operator set imports sorted; empty strings, the default data location and the alias ``ai.onnx`` left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

from fuse.errors import FuseError, ModelError
from fuse.ir.check import check
from fuse.ir.model import Model
from fuse.model.load import load
from fuse.model.save import to_proto

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node = helper.make_node

_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data", "raw_data")


def info(name: str, dims: Any = (2,), dtype: int = F32) -> onnx.ValueInfoProto:
    """A declared tensor."""
    return helper.make_tensor_value_info(name, dtype, dims)


def const(name: str, value: Any = (1.0, 2.0), dtype: Any = np.float32) -> TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def graph(
    nodes: list[onnx.NodeProto],
    inputs: Any = ("x",),
    outputs: Any = ("y",),
    initializers: Any = (),
    name: str = "g",
) -> GraphProto:
    """A graph; inputs and outputs are names of float[2], or declarations."""
    declared = [[info(v) if isinstance(v, str) else v for v in values] for values in (inputs, outputs)]
    return helper.make_graph(nodes, name, *declared, list(initializers))


def model(
    body: GraphProto | list[onnx.NodeProto],
    *,
    opset: int | None = 18,
    ir_version: int = 8,
    functions: Any = (),
    domains: Any = (),
) -> ModelProto:
    """A model around a graph, or around nodes from ``x`` to ``y``."""
    body = graph(body) if isinstance(body, list) else body
    imports = [] if opset is None else [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1) for domain in domains]
    made = helper.make_model(body, opset_imports=imports, functions=list(functions), ir_version=ir_version)
    if not imports:
        del made.opset_import[:]  # onnx puts in the newest one
    return made


def function(name: str, nodes: list[onnx.NodeProto], inputs: Any = ("a",), outputs: Any = ("b",), **more: Any) -> Any:
    """A local function of the domain ``own``."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, list(inputs), list(outputs), nodes, opsets, **more)


def bare(count: int, inputs: tuple[str, ...] = ("v0",), outputs: tuple[str, ...] = ()) -> ModelProto:
    """A model of ``count`` empty nodes, made in place: quick, and without explicit empty strings."""
    proto = ModelProto(ir_version=8, opset_import=[onnx.OperatorSetIdProto(version=18)], graph=GraphProto(name="g"))
    proto.graph.input.extend(info(name) for name in inputs)
    proto.graph.output.extend(info(name) for name in outputs)
    for _ in range(count):
        proto.graph.node.add()
    return proto


# ---- sameness


def same(a: ModelProto, b: ModelProto) -> bool:
    """Whether two models say the same, field by field."""
    return normal(a) == normal(b)


def normal(proto: ModelProto) -> bytes:
    """The model in the one spelling that ``same`` compares."""
    result = ModelProto()
    result.CopyFrom(proto)
    _normalise(result)
    return result.SerializeToString(deterministic=True)


def _normalise(message: Any) -> None:
    if isinstance(message, TensorProto):
        _normalise_tensor(message)
    if isinstance(message, (onnx.NodeProto, onnx.OperatorSetIdProto)) and message.domain == "ai.onnx":
        message.ClearField("domain")
    for field, value in message.ListFields():
        if isinstance(value, str) and not value:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in value if hasattr(value, "extend") else [value]:
                _normalise(inner)
    if isinstance(message, onnx.NodeProto):
        _sort(message.attribute, lambda a: a.name)
    if isinstance(message, (ModelProto, onnx.FunctionProto)):
        _sort(message.opset_import, lambda o: o.domain)
    if isinstance(message, (GraphProto, onnx.FunctionProto)):
        _sort(message.node, lambda n: n.op_type != "Constant")
        _sort(message.value_info, lambda i: i.name)
    if isinstance(message, GraphProto):
        _sort(message.initializer, lambda t: t.name)
        _sort(message.sparse_initializer, lambda s: s.values.name)


def _normalise_tensor(tensor: TensorProto) -> None:
    assert tensor.data_location == TensorProto.DEFAULT, "external data is compared elsewhere"
    tensor.ClearField("data_location")
    if not any(f.name in _DATA_FIELDS for f, _ in tensor.ListFields()):
        return
    array = numpy_helper.to_array(tensor)
    for name in _DATA_FIELDS:
        tensor.ClearField(name)
    tensor.raw_data = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


def _sort(entries: Any, key: Any) -> None:
    keys = [key(entry) for entry in entries]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    if order != list(range(len(keys))):
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
        del entries[:]
        entries.extend(copies[i] for i in order)


# ---- questions


def checked(proto: Any, **options: Any) -> Model:
    """The loaded model, which keeps the laws of the IR and can be written and loaded again."""
    result = load(proto, **options)
    check(result)
    check(load(to_proto(result)))
    return result


def refused(proto: Any, line: str, kind: type[FuseError] = ModelError, **options: Any) -> None:
    """Loading raises ``kind``; its first line matches all of ``line``."""
    with pytest.raises(kind) as caught:
        load(proto, **options)
    first = str(caught.value).split("\n")[0]
    assert re.fullmatch(line, first), first


# ---- models that several tests use


RELU = model([node("Relu", ["x"], ["y"], name="n")])


def rich() -> ModelProto:
    """A small model with one of everything that the loader reads."""
    then = graph([node("Add", ["x", "w"], ["t"])], [], ["t"])
    other = graph([node("own_op", ["x"], ["e"], domain="own", alpha=[1, 2])], [], ["e"])
    nodes = [
        node("Constant", [], ["k"], value=const("", [1.0, 2.0])),
        node("If", ["c"], ["i"], then_branch=then, else_branch=other, name="if"),
        node("f", ["i"], ["j"], domain="own", beta=2.0),
        node("Clip", ["j", "", "m"], ["y"]),
    ]
    f = function("f", [node("Elu", ["a"], ["b"])], attributes=["beta"])
    f.node[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="beta")
    body = graph(nodes, ["x", info("c", [], BOOL)], ["y"], [const("w"), const("m", 3.0)])
    body.value_info.append(info("i", ["n"]))
    proto = model(body, functions=[f], domains=["own"])
    proto.metadata_props.add(key="a", value="b")
    return proto


def raw(proto: ModelProto, old: str, new: bytes) -> bytes:
    """The model with a text replaced by bytes of the same length."""
    assert len(old) == len(new)
    return proto.SerializeToString().replace(old.encode(), new)


def branches(*inner: onnx.NodeProto, out: str = "t", inputs: Any = ()) -> dict[str, Any]:
    other = graph([node("Neg", ["x"], ["other"])], [], ["other"])
    return {"then_branch": graph(list(inner), list(inputs), [out]), "else_branch": other}


CONDITION = ["x", info("c", [], BOOL)]


def chain(count: int) -> ModelProto:
    proto = bare(count, ("v0",), (f"v{count}",))
    for i, made in enumerate(proto.graph.node):
        made.op_type = ("Relu", "Identity", "Neg")[i % 3]
        made.input.append(f"v{i}")
        made.output.append(f"v{i + 1}")
    return proto


# ---- files

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def outside(name: str = "w", shape: Any = (3, 4), code: int = TensorProto.FLOAT, **entries: Any) -> TensorProto:
    """A tensor with its data in a file; ``entries`` are the pairs, those of None left out."""
    proto = TensorProto(name=name, data_type=code, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        if value is not None:
            proto.external_data.add(key=key, value=str(value))
    return proto


def holding(*tensors: TensorProto) -> ModelProto:
    """A model that hands the tensors on as outputs."""
    names = [t.name for t in tensors]
    return model(graph([node("Identity", ["x"], ["y"])], ["x"], ["y", *names], list(tensors)))


def put(folder: Path, proto: ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def constants(model: Model) -> dict[str, np.ndarray]:
    return {v.name: v.array for top in model.graphs() for g in top.walk_graphs() for v in g.constants}
