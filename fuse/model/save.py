"""Save: from the IR to protobuf and to a file, in the model's own operator set, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import EncodeError
from onnx import AttributeProto

from fuse.errors import FuseError, InputError, LimitError, ModelError, UnsupportedError, quote
from fuse.ir.dtypes import CODE
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.types import TensorType
from fuse.limits import DEFAULT, Limits
from fuse.model.datafile import DataWriter, weight
from fuse.model.external import checked
from fuse.model.file import shown, write_all
from fuse.model.names import Names
from fuse.model.nodes import checked_formal
from fuse.model.recipe import Recipe, to_json
from fuse.model.said import Said, form, say
from fuse.model.tensors import RECIPE_KEY, write_tensor, write_type
from fuse.ops import training
from fuse.ops.infer import describe
from fuse.ops.spelling import FROM_ATTRIBUTE, Spelled

_SPARSE = "sparse_initializer"


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
    pass protobuf's 2 GiB.  ``recipes`` stand in for the arrays of their values, as ``strip`` makes them.  Raises
    ``InputError`` for a path that cannot be written, ``UnsupportedError`` for a node that the model's operator set
    cannot say, ``LimitError`` for a model beyond 2 GiB; nothing is written then.
    """
    target, recipes = Path(path), recipes or {}
    held = (
        v for top in model.graphs() for g in top.walk_graphs() for v in (*g.constants, *g.inputs) if v not in recipes
    )
    if (
        external_data is None
        and sum(weight(v) for v in held if v.is_const or v.data is not None) > limits.protobuf_bytes
    ):
        external_data = True
    store = DataWriter(target.name + ".data") if external_data else None
    try:
        data = _encoded(_Saver(model, recipes, store).model(), limits)
        if data is None and external_data is None:  # names, nodes and strings made it too large
            store = DataWriter(target.name + ".data")
            data = _encoded(_Saver(model, recipes, store).model(), limits)
    except FuseError as error:
        raise error.within(model.source) from None
    if data is None:
        hint = None if store is not None else "save the weights as external data"
        raise LimitError("the model is larger than a protobuf file can be", where=shown(target), hint=hint)
    encoded = data
    files = [(target, lambda file: file.write(encoded))]
    try:
        if store is not None and store.size:
            checked(store.name)
            files.insert(0, (target.with_name(store.name), store.write))
        write_all(files)
    except (OSError, ValueError, ModelError) as error:
        what = error.what if isinstance(error, ModelError) else getattr(error, "strerror", None) or str(error)
        raise InputError(what, where=shown(target), hint="nothing was written") from None
    return target


def to_proto(model: Model) -> onnx.ModelProto:
    """The model as a ``ModelProto`` with all weights inside.  Raises ``UnsupportedError`` as ``save`` does."""
    return _Saver(model, {}, None).model()


def _encoded(proto: onnx.ModelProto, limits: Limits) -> bytes | None:
    """The file's bytes; None where there would be too many."""
    try:
        data = proto.SerializeToString()
    except (EncodeError, ValueError):
        return None
    return data if len(data) <= limits.protobuf_bytes else None


class _Saver:
    def __init__(self, model: Model, recipes: Mapping[Value, Recipe], store: DataWriter | None) -> None:
        self.source, self.recipes, self.store = model, recipes, store

    def model(self) -> onnx.ModelProto:
        source = self.source
        proto = onnx.ModelProto(ir_version=source.ir_version)
        if source.ir_version >= 3:
            _import(proto, source.opsets)
        for function in source.functions.values():
            self._function(function, proto.functions.add())
        self._graph(source.graph, proto.graph, None, source.opsets)
        proto.MergeFromString(source.extra)
        kept = [p for p in proto.metadata_props if p.key != "fuse.stripped"]
        if self.recipes or len(kept) < len(proto.metadata_props):
            del proto.metadata_props[:]
            proto.metadata_props.extend(kept)
            if self.recipes:
                proto.metadata_props.add(key="fuse.stripped", value="1")
        return proto

    def _function(self, function: Function, proto: onnx.FunctionProto) -> None:
        proto.name, proto.domain = function.name, function.domain
        if function.overload:
            proto.overload = function.overload
        opsets = {**self.source.opsets, **function.opsets}
        _import(proto, function.opsets)
        proto.attribute.extend(function.attributes)
        graph, said = function.graph, say(function.graph, opsets)
        said.unwritten.update(v for v in graph.constants if v.origin is None and v not in said.read)
        names = Names(graph, None, said.unwritten)
        for name, attr in function.defaults.items():
            self._attribute(name, attr, proto.attribute_proto.add(), names, opsets)
        proto.input.extend(names[v] for v in graph.inputs)
        proto.output.extend(names.slots)
        for value in graph.constants:
            if value not in said.unwritten:  # a function has no initializers
                self._constant(value, proto.node.add(), names)
        self._nodes(said, proto, names, opsets)
        self._bridges(graph, proto, names, opsets)
        proto.value_info.extend(self._value_infos(graph, said, names))
        proto.value_info.extend(onnx.GraphProto.FromString(graph.extra).value_info)
        proto.MergeFromString(function.extra)

    def _graph(self, graph: Graph, proto: onnx.GraphProto, outer: Names | None, opsets: Mapping[str, int]) -> None:
        said = say(graph, opsets)
        names = Names(graph, outer, said.unwritten)
        if graph.name:
            proto.name = graph.name
        for value in graph.inputs:
            if value.data is not None:
                self._initializer(proto, value, names[value])
        stored: list[Value] = []
        for value in graph.constants:
            written_as = form(value)
            if value in said.unwritten:
                continue
            if written_as == _SPARSE and value.origin is not None and value not in self.recipes:
                sparse = proto.sparse_initializer.add()
                sparse.MergeFromString(value.origin.extra)
                sparse.values.name = names[value]
            elif written_as in ("", _SPARSE, FROM_ATTRIBUTE):
                self._initializer(proto, value, names[value])
                stored.append(value)
            else:
                self._constant(value, proto.node.add(), names)
        self._nodes(said, proto, names, opsets)
        legacy = outer is None and self.source.ir_version < 4
        proto.input.extend(
            _info(v.info, names[v], v.type) for v in (_listed(graph, stored) if legacy else graph.inputs)
        )
        self._bridges(graph, proto, names, opsets)
        for slot, name in zip(graph.outputs, names.slots, strict=True):
            proto.output.append(_info(slot.info, name, slot.type or slot.value.type))
        proto.value_info.extend(self._value_infos(graph, said, names))
        proto.MergeFromString(graph.extra)

    @staticmethod
    def _bridges(graph: Graph, proto: Any, names: Names, opsets: Mapping[str, int]) -> None:
        """An Identity for each output whose value has to go by another name."""
        made: set[str] = set()
        for slot, name in zip(graph.outputs, names.slots, strict=True):
            if names[slot.value] != name and name not in made:
                if "" not in opsets:
                    what = f"output {quote(name)} needs an Identity and the model imports no operator set of ONNX's own"
                    raise UnsupportedError(what)
                made.add(name)
                node = proto.node.add(op_type="Identity", input=[names[slot.value]], output=[name])
                node.name = names.label(f"{name}_identity")

    def _value_infos(self, graph: Graph, said: Said, names: Names) -> list[onnx.ValueInfoProto]:
        """The declared types of computed values, and of constants where the input list does not have them."""
        values = [v for node in graph.nodes for v in node.outputs if v is not None and v.info]
        if self.source.ir_version >= 4:
            values += [v for v in graph.constants if v.info and v not in said.unwritten]
        shown = {slot.name for slot in graph.outputs}
        return [_info(v.info, names[v], v.type) for v in values if names[v] not in shown or v.name == names[v]]

    # ---- constants

    def _initializer(self, proto: onnx.GraphProto, value: Value, name: str) -> None:
        tensor = self._tensor(value)
        tensor.name = name
        tensor.MergeFromString(value.extra)
        proto.initializer.append(tensor)

    def _tensor(self, value: Value) -> onnx.TensorProto:
        """A constant's tensor: a recipe, a place in the data file, or the bytes themselves."""
        kind = value.type
        if value in self.recipes:
            assert isinstance(kind, TensorType) and kind.dtype is not None
            tensor = onnx.TensorProto(data_type=CODE[kind.dtype], dims=kind.shape)
            tensor.metadata_props.add(key=RECIPE_KEY, value=to_json(self.recipes[value]))
            return tensor
        if self.store is not None and self.store.takes(value):
            return self.store.tensor(value)
        return write_tensor(value.array)

    def _constant(self, value: Value, node: onnx.NodeProto, names: Names) -> None:
        """Write a constant as a Constant node, in the form that the file had."""
        node.op_type = "Constant"
        node.output.append(names[value])
        origin = value.origin
        attribute = form(value)
        if origin is None or attribute == FROM_ATTRIBUTE:
            attribute = "value"
        else:
            node.MergeFromString(origin.extra)
            if origin.node_name:
                node.name = origin.node_name
        if value in self.recipes:
            attribute = "value"
            del node.attribute[:]
        written = node.attribute[0] if node.attribute else node.attribute.add(name=attribute)
        if attribute == "value":
            written.type = AttributeProto.TENSOR
            tensor = self._tensor(value)
            tensor.MergeFrom(written.t)
            written.t.CopyFrom(tensor)
        elif attribute != "sparse_value":
            plain = value.array.reshape(-1).tolist()
            kind = {"int": "INT", "float": "FLOAT", "string": "STRING"}[attribute.split("_")[1].rstrip("s")]
            many = attribute.endswith("s")
            held = Attr(kind + "S" * many, tuple(plain) if many else plain[0])
            self._attribute(attribute, held, written, names, {})

    # ---- nodes

    def _nodes(self, said: Said, proto: Any, names: Names, opsets: Mapping[str, int]) -> None:
        for node, spelled in said.nodes:
            try:
                self._node(node, spelled, proto.node.add(), names, opsets)
            except FuseError as error:
                raise error.within(describe(node)) from None

    def _node(
        self, node: Node, spelled: Spelled, proto: onnx.NodeProto, names: Names, opsets: Mapping[str, int]
    ) -> None:
        proto.op_type = spelled.op_type
        proto.input.extend(["" if v is None else names[v] for v in spelled.inputs])
        proto.output.extend(["" if v is None else names[v] for v in node.outputs])
        if node.domain:
            proto.domain = node.domain
        if node.name:
            proto.name = node.name
        if node.overload:
            proto.overload = node.overload
        renamed = training.names(node, names.__getitem__) if "derivative" in node.attrs else {}
        for name, attr in spelled.attrs.items():
            said = Attr(attr.kind, renamed[name], extra=attr.extra) if name in renamed else attr
            self._attribute(name, said, proto.attribute.add(), names, opsets)
        if node.extra:
            proto.MergeFromString(node.extra)
        if (node.op, node.overload) not in self.source.functions:
            checked_formal(proto, node.domain, opsets)  # what the loader would refuse is not written

    def _attribute(self, name: str, attr: Attr, proto: AttributeProto, names: Names, opsets: Mapping[str, int]) -> None:
        proto.name, proto.type = name, AttributeProto.AttributeType.Value(attr.kind)
        value = attr.value
        if attr.reference:
            proto.ref_attr_name = attr.reference
        elif attr.kind == "INT":
            proto.i = value
        elif attr.kind == "INTS":
            proto.ints.extend(value)
        elif attr.kind == "FLOAT":
            proto.f = value
        elif attr.kind == "FLOATS":
            proto.floats.extend(value)
        elif attr.kind == "STRING":
            proto.s = value.encode("utf-8", "surrogateescape")
        elif attr.kind == "STRINGS":
            proto.strings.extend(s.encode("utf-8", "surrogateescape") for s in value)
        elif attr.kind == "TENSOR":
            proto.t.CopyFrom(write_tensor(value))
        elif attr.kind == "GRAPH":
            self._graph(value, proto.g, names, opsets)
        elif attr.kind == "GRAPHS":
            for graph in value:
                self._graph(graph, proto.graphs.add(), names, opsets)
        elif isinstance(value, bytes):
            proto.MergeFromString(value)
        else:
            raise ModelError(f"attribute {quote(name)} of kind {attr.kind} cannot be written")
        if attr.extra:
            proto.MergeFromString(attr.extra)


def _import(proto: Any, opsets: Mapping[str, int]) -> None:
    for domain, version in opsets.items():
        entry = proto.opset_import.add(version=version)
        if domain:
            entry.domain = domain


def _listed(graph: Graph, stored: list[Value]) -> list[Value]:
    """Before IR version 4 the input list names the initializers too: in the file's order, then the new ones."""
    there = {*graph.inputs, *stored}
    listed = dict.fromkeys(v for v in graph.listed if v in there)
    return [*listed, *(v for v in [*graph.inputs, *stored] if v not in listed)]


def _info(kept: bytes, name: str, kind: Any) -> onnx.ValueInfoProto:
    """The value's declaration: the file's own where it had one, else what is known."""
    info = onnx.ValueInfoProto()
    if kept:
        info.MergeFromString(kept)
    elif kind is not None:
        info.type.CopyFrom(write_type(kind))
    info.name = name
    return info
