"""Save: from the IR to protobuf and to a file, in the model's own operator set, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from fuse.errors import InputError, ModelError, quote
from fuse.ir.dtypes import CODE, STRING
from fuse.ir.graph import Attr, Function, Graph, Model, Node, Value
from fuse.ir.types import TensorType
from fuse.limits import DEFAULT, Limits
from fuse.model.names import Names
from fuse.model.recipe import Recipe, to_json
from fuse.model.tensors import RECIPE_KEY, pack, stored_bytes, write_tensor, write_type
from fuse.ops.spelling import FROM_ATTRIBUTE, spell

#: Tensors smaller than this stay in the model file even when the weights go beside it.
_INLINE_BYTES = 1024
#: Offsets in a data file are multiples of this, so that a memory map gives aligned arrays.
_ALIGNMENT = 64


def save(
    model: Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    recipes: Mapping[Value, Recipe] | None = None,
    limits: Limits = DEFAULT,
) -> Path:
    """Write ``model`` to ``path``, atomically: a reader sees the old file or the new one.

    Weights go into ``<name>.data`` beside it with ``external_data=True``, or by themselves (None) where the file would
    pass protobuf's 2 GiB.  ``recipes`` stand in for the arrays of their values, as ``strip`` makes them.
    """
    target = Path(path)
    total = sum(_bytes(v) for graph in model.graphs() for g in graph.walk_graphs() for v in g.constants)
    if external_data is None:
        external_data = not recipes and total > limits.protobuf_bytes
    store = _DataFile(target.name + ".data") if external_data else None
    proto = _Saver(model, recipes or {}, store).model()
    try:
        if store is not None and store.size:
            _replace(target.with_name(store.name), store.write)
        data = proto.SerializeToString()
        _replace(target, lambda handle: handle.write(data))
    except OSError as error:
        raise InputError(error.strerror or str(error), where=quote(target)[1:-1], hint="nothing was written") from None
    return target


def to_proto(model: Model) -> onnx.ModelProto:
    """The model as a ``ModelProto`` with all weights inside."""
    return _Saver(model, {}, None).model()


def _bytes(value: Value) -> int:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype is None or kind.shape is None or kind.dtype == STRING:
        return 0
    count = 1
    for dim in kind.shape:
        count *= dim if isinstance(dim, int) else 0
    return stored_bytes(kind.dtype, count)


def _replace(target: Path, write: Any) -> None:
    """Write beside ``target``, flush to disk, then take its place."""
    target = target.resolve() if target.is_symlink() else target
    handle, name = tempfile.mkstemp(prefix=".fuse-", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class _DataFile:
    """Collects the weights that go beside the model, and writes them one after the other."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self.parts: list[tuple[int, Value]] = []

    def add(self, value: Value, proto: onnx.TensorProto, length: int) -> None:
        offset = -(-self.size // _ALIGNMENT) * _ALIGNMENT
        self.parts.append((offset, value))
        self.size = offset + length
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, text in (("location", self.name), ("offset", str(offset)), ("length", str(length))):
            proto.external_data.add(key=key, value=text)

    def write(self, file: Any) -> None:
        for offset, value in self.parts:
            file.write(b"\0" * (offset - file.tell()))
            file.write(pack(value.array))


class _Saver:
    def __init__(self, model: Model, recipes: Mapping[Value, Recipe], store: _DataFile | None) -> None:
        self.source, self.recipes, self.store = model, recipes, store

    def model(self) -> onnx.ModelProto:
        source = self.source
        proto = onnx.ModelProto(ir_version=source.ir_version)
        for domain, version in source.opsets.items():
            _import(proto, domain, version)
        proto.functions.extend(self._function(f) for f in source.functions.values())
        self._graph(source.graph, proto.graph, Names(), source.opsets, main=True)
        proto.MergeFromString(source.extra)
        kept = [p for p in proto.metadata_props if p.key != "fuse.stripped"]
        if self.recipes or len(kept) < len(proto.metadata_props):
            del proto.metadata_props[:]
            proto.metadata_props.extend(kept)
            if self.recipes:
                proto.metadata_props.add(key="fuse.stripped", value="1")
        return proto

    def _function(self, function: Function) -> onnx.FunctionProto:
        proto = onnx.FunctionProto(name=function.name, domain=function.domain)
        if function.overload:
            proto.overload = function.overload
        opsets = {**self.source.opsets, **function.opsets}
        for domain, version in function.opsets.items():
            _import(proto, domain, version)
        proto.attribute.extend(function.attributes)
        graph, names = function.graph, Names()
        names.fix_interface(graph)
        names.assign(graph)
        for name, attr in function.defaults.items():
            proto.attribute_proto.append(self._attribute(name, attr, names, opsets))
        proto.input.extend(names[v] for v in graph.inputs)
        proto.output.extend(slot.name for slot in graph.outputs)
        self._nodes(graph, proto, names, opsets, inline=True)
        self._bridges(graph, proto, names)
        self._value_infos(graph, proto, names)
        proto.MergeFromString(function.extra)
        _merge_infos(proto, graph)
        return proto

    # ---- graphs

    def _graph(self, graph: Graph, proto: onnx.GraphProto, names: Names, opsets: dict[str, int], main: bool) -> None:
        names.fix_interface(graph)
        names.assign(graph)
        if graph.name:
            proto.name = graph.name
        for value in graph.inputs:
            if value.data is not None:
                self._initializer(proto, value, names[value])
        used = self._nodes(graph, proto, names, opsets, inline=False)
        stored: list[Value] = []
        for value in graph.constants:
            if value.origin is not None and value.origin.attribute != "sparse_initializer" and value not in used:
                continue  # written as a Constant node, or as the attribute that it stands for
            if value.origin is not None and value.origin.attribute == "sparse_initializer":
                sparse = proto.sparse_initializer.add()
                sparse.MergeFromString(value.origin.extra)
                sparse.values.name = names[value]
                continue
            self._initializer(proto, value, names[value])
            stored.append(value)
        listed = self._listed(graph, stored) if main and self.source.ir_version < 4 else graph.inputs
        proto.input.extend(_info(v.info, names[v], v.type) for v in listed)
        self._bridges(graph, proto, names)
        for slot in graph.outputs:
            proto.output.append(_info(slot.info, slot.name, slot.type or slot.value.type))
        self._value_infos(graph, proto, names)
        proto.MergeFromString(graph.extra)

    @staticmethod
    def _listed(graph: Graph, stored: list[Value]) -> list[Value]:
        """Before IR version 4 the input list names the initializers too: in the file's order, then the new ones."""
        there = {*graph.inputs, *stored}
        listed = dict.fromkeys(v for v in graph.listed if v in there)
        return [*listed, *(v for v in [*graph.inputs, *stored] if v not in listed)]

    @staticmethod
    def _bridges(graph: Graph, proto: Any, names: Names) -> None:
        """An Identity for each output whose value has to go by another name."""
        for slot in graph.outputs:
            if names[slot.value] != slot.name:
                node = proto.node.add(op_type="Identity", input=[names[slot.value]], output=[slot.name])
                node.name = names.label(f"{slot.name}_identity")

    def _value_infos(self, graph: Graph, proto: Any, names: Names) -> None:
        shown = {slot.name for slot in graph.outputs}
        for node in graph.nodes:
            for value in node.outputs:
                if value is None or not value.info:
                    continue
                info = _info(value.info, names[value], value.type)
                if names[value] not in shown or value.name == names[value]:
                    proto.value_info.append(info)
        for value in graph.constants:
            if value.info and names.get(value) and self.source.ir_version >= 4:
                proto.value_info.append(_info(value.info, names[value], value.type))

    def _initializer(self, proto: onnx.GraphProto, value: Value, name: str) -> None:
        recipe = self.recipes.get(value)
        kind = value.type
        if recipe is not None and isinstance(kind, TensorType) and kind.dtype is not None:
            tensor = onnx.TensorProto(name=name, data_type=CODE[kind.dtype], dims=kind.shape)
            tensor.metadata_props.add(key=RECIPE_KEY, value=to_json(recipe))
        elif self.store is not None and _bytes(value) >= _INLINE_BYTES and isinstance(kind, TensorType):
            assert kind.dtype is not None
            tensor = onnx.TensorProto(name=name, data_type=CODE[kind.dtype], dims=kind.shape)
            self.store.add(value, tensor, _bytes(value))
        else:
            tensor = write_tensor(value.array, name)
        tensor.MergeFromString(value.extra)
        proto.initializer.append(tensor)

    # ---- nodes

    def _nodes(self, graph: Graph, proto: Any, names: Names, opsets: dict[str, int], inline: bool) -> set[Value]:
        """Write the nodes, Constant nodes first; returns the attribute constants that some node reads as a tensor.

        ``inline`` makes every constant a Constant node: a function body has no initializers.
        """
        spelled = [(node, spell(node, opsets[""] if not node.domain else 0)) for node in graph.nodes]
        read = {v for _, s in spelled for v in s.inputs if v is not None} | self._captured(graph)
        read.update(slot.value for slot in graph.outputs)
        needed: set[Value] = set()
        for value in graph.constants:
            origin = value.origin
            if origin is None or origin.attribute == FROM_ATTRIBUTE:
                if inline and value in read:
                    proto.node.append(self._constant(value, names))
                elif origin is not None and value in read:
                    needed.add(value)
            elif origin.attribute != "sparse_initializer":
                proto.node.append(self._constant(value, names))
        for node, said in spelled:
            proto.node.append(self._node(node, said.op_type, said.inputs, said.attrs, names, opsets))
        return needed

    @staticmethod
    def _captured(graph: Graph) -> set[Value]:
        inner = [g for node in graph.nodes if node.attrs for sub in node.subgraphs for g in sub.walk_graphs()]
        return {v for v in graph.constants if any(u.graph in inner if isinstance(u, Node) else u in inner for u in v.readers)} if inner else set()

    def _constant(self, value: Value, names: Names) -> onnx.NodeProto:
        node = onnx.NodeProto(op_type="Constant", output=[names[value]])
        origin, array = value.origin, value.array
        attribute = origin.attribute if origin is not None and origin.attribute != FROM_ATTRIBUTE else "value"
        if origin is not None:
            node.MergeFromString(origin.extra)
            if origin.node_name:
                node.name = origin.node_name
        written = node.attribute[0] if node.attribute else node.attribute.add(name=attribute)
        if attribute == "value":
            written.type = AttributeProto.TENSOR
            kept = onnx.TensorProto.FromString(written.t.SerializeToString())
            written.t.CopyFrom(write_tensor(array))
            written.t.MergeFrom(kept)
        elif attribute != "sparse_value":
            plain = array.reshape(-1).tolist()
            kind = {"int": "INT", "float": "FLOAT", "string": "STRING"}[attribute.split("_")[1].rstrip("s")]
            many = attribute.endswith("s")
            held = Attr(kind + "S" * many, tuple(plain) if many else plain[0])
            written.MergeFrom(self._attribute(attribute, held, names, {}))
        return node

    def _node(
        self, node: Node, op_type: str, inputs: Any, attrs: dict[str, Attr], names: Names, opsets: dict[str, int]
    ) -> onnx.NodeProto:
        proto = onnx.NodeProto(op_type=op_type)
        proto.input.extend("" if v is None else names[v] for v in inputs)
        proto.output.extend("" if v is None else names[v] for v in node.outputs)
        if node.domain:
            proto.domain = node.domain
        if node.name:
            proto.name = node.name
        if node.overload:
            proto.overload = node.overload
        for name, attr in attrs.items():
            proto.attribute.append(self._attribute(name, attr, names, opsets))
        proto.MergeFromString(node.extra)
        return proto

    def _attribute(self, name: str, attr: Attr, names: Names, opsets: dict[str, int]) -> AttributeProto:
        proto = AttributeProto(name=name, type=AttributeProto.AttributeType.Value(attr.kind))
        value = attr.value
        if attr.reference:
            proto.ref_attr_name = attr.reference
        elif attr.kind == "FLOAT":
            proto.f = value
        elif attr.kind == "INT":
            proto.i = value
        elif attr.kind == "STRING":
            proto.s = value.encode("utf-8", "surrogateescape")
        elif attr.kind in ("FLOATS", "INTS"):
            (proto.floats if attr.kind == "FLOATS" else proto.ints).extend(value)
        elif attr.kind == "STRINGS":
            proto.strings.extend(s.encode("utf-8", "surrogateescape") for s in value)
        elif attr.kind == "TENSOR":
            proto.t.CopyFrom(write_tensor(value))
        elif attr.kind == "GRAPH":
            self._graph(value, proto.g, names.inner(), opsets, main=False)
        elif attr.kind == "GRAPHS":
            for graph in value:
                self._graph(graph, proto.graphs.add(), names.inner(), opsets, main=False)
        elif isinstance(value, bytes):
            proto.MergeFromString(value)
        else:
            raise ModelError(f"attribute {quote(name)} of kind {attr.kind} cannot be written")
        proto.MergeFromString(attr.extra)
        return proto


def _import(proto: Any, domain: str, version: int) -> None:
    entry = proto.opset_import.add(version=version)
    if domain:
        entry.domain = domain


def _info(kept: bytes, name: str, kind: Any) -> onnx.ValueInfoProto:
    """The value's declaration: the file's own where it had one, else what is known."""
    info = onnx.ValueInfoProto()
    if kept:
        info.MergeFromString(kept)
    elif kind is not None:
        info.type.CopyFrom(write_type(kind))
    info.name = name
    return info


def _merge_infos(proto: onnx.FunctionProto, graph: Graph) -> None:
    left = onnx.GraphProto.FromString(graph.extra)
    proto.value_info.extend(left.value_info)


