"""Nodes and attributes: from protobuf to the IR, held against the operator's schema."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs

from fuse.errors import ModelError, UnsupportedError, quote
from fuse.ir.dtypes import STRING
from fuse.ir.graph import Attr, Graph, Origin, Value
from fuse.limits import Limits
from fuse.model.external import DataFiles
from fuse.model.rest import rest_of
from fuse.model.tensors import densify, read_tensor

_KINDS: dict[int, str] = {number: name for name, number in AttributeProto.AttributeType.items()}
_OPAQUE = {"SPARSE_TENSOR", "SPARSE_TENSORS", "TENSORS", "TYPE_PROTO", "TYPE_PROTOS"}
_FIELD = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "SPARSE_TENSOR": "sparse_tensor",
    "TYPE_PROTO": "tp", "FLOATS": "floats", "INTS": "ints", "STRINGS": "strings", "TENSORS": "tensors",
    "GRAPHS": "graphs", "SPARSE_TENSORS": "sparse_tensors", "TYPE_PROTOS": "type_protos",
}  # fmt: skip

Subgraph = Callable[[onnx.GraphProto, Mapping[str, Value], dict[str, int]], Graph]

#: Domains whose operators are defined by the onnx package, and so can be held against a schema.
STANDARD = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"})


@functools.cache
def schema_of(op_type: str, opset: int, domain: str) -> Any:
    """The operator's schema at ``opset``; None where that version does not have it."""
    try:
        return defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None


def checked_schema(proto: Any, domain: str, opsets: Mapping[str, int]) -> Any:
    """The node's schema, its inputs, outputs and required attributes held against it; None for foreign domains."""
    if domain not in STANDARD:
        return None
    opset = opsets.get(domain)
    if opset is None:
        raise ModelError(f"the model imports no operator set of domain {quote(domain)}")
    schema = schema_of(proto.op_type, opset, domain)
    if schema is None or (schema.deprecated and schema.since_version <= opset):
        return _unknown(proto, domain, opset)
    _check_count(len(proto.input), schema.min_input, schema.max_input, "inputs")
    _check_count(len(proto.output), schema.min_output, schema.max_output, "outputs")
    for index, name in enumerate(proto.input):
        single = index < len(schema.inputs) and schema.inputs[index].option == defs.OpSchema.FormalParameterOption.Single
        if not name and single:
            raise ModelError(f"input {index} ({schema.inputs[index].name}) is required and missing")
    given = {a.name for a in proto.attribute}
    for name, formal in schema.attributes.items():
        if formal.required and name not in given:
            raise ModelError(f"attribute {quote(name)} is required and missing")
    return schema


def _unknown(proto: Any, domain: str, opset: int) -> Any:
    newest = schema_of(proto.op_type, 1 << 30, domain)
    if newest is None:
        hint = "a custom operator needs a domain of its own"
        raise UnsupportedError(f"there is no operator {quote(proto.op_type)} in domain {quote(domain or 'ai.onnx')}", hint=hint)
    raise UnsupportedError(
        f"operator {quote(proto.op_type)} is not part of operator set {opset}",
        hint=f"it {'was removed' if newest.deprecated else 'came'} with operator set {newest.since_version}",
    )


def _check_count(have: int, low: int, high: int, what: str) -> None:
    if not low <= have <= high:
        span = f"{low}" if low == high else f"{low} to {high}" if high < 1 << 30 else f"at least {low}"
        raise ModelError(f"takes {span} {what}, {have} given")


class AttributeReader:
    """Turns attributes into the IR's; ``subgraph`` converts the graphs among them."""

    def __init__(self, files: DataFiles, limits: Limits, subgraph: Subgraph) -> None:
        self.files, self.limits, self.subgraph = files, limits, subgraph

    def read(
        self,
        proto: onnx.AttributeProto,
        graph: Graph,
        scope: Mapping[str, Value],
        opsets: dict[str, int],
        schema: Any = None,
    ) -> Attr:
        """The attribute ``proto`` of a node in ``graph``, checked against ``schema`` where there is one."""
        kind = _KINDS.get(proto.type, "")
        if proto.type == 0:  # before IR version 2 the type was implied by the field that is set
            kind = next((k for k, field in _FIELD.items() if _filled(proto, field)), "")
        if kind not in _FIELD:
            raise ModelError(f"attribute {quote(proto.name)} has no known type")
        if schema is not None:
            formal = schema.attributes.get(proto.name)
            if formal is None:
                raise ModelError(f"has no attribute {quote(proto.name)} in this operator set")
            if formal.type.value != AttributeProto.AttributeType.Value(kind):
                raise ModelError(f"attribute {quote(proto.name)} is of type {kind}, {formal.type.name} is needed")
        attr = Attr(kind, None, reference=proto.ref_attr_name)
        attr.extra = rest_of(proto, "name", "type", "ref_attr_name", _FIELD[kind])
        if not proto.ref_attr_name:
            attr.value = self._value(proto, kind, scope, opsets, attr)
        return attr

    def _value(
        self, proto: onnx.AttributeProto, kind: str, scope: Mapping[str, Value], opsets: dict[str, int], attr: Attr
    ) -> Any:
        raw = getattr(proto, _FIELD[kind])
        if kind == "STRING":
            return raw.decode("utf-8", "surrogateescape")
        if kind == "STRINGS":
            return tuple(s.decode("utf-8", "surrogateescape") for s in raw)
        if kind in ("INTS", "FLOATS"):
            return tuple(raw)
        if kind == "TENSOR":
            _, data = read_tensor(raw, self.files, self.limits)
            keep = onnx.AttributeProto()
            keep.MergeFromString(attr.extra)
            keep.t.MergeFromString(rest_of(raw, *_TENSOR_DATA))
            attr.extra = keep.SerializeToString()
            array = data() if callable(data) else data
            array.flags.writeable = False
            return array
        if kind == "GRAPH":
            return self.subgraph(raw, scope, opsets)
        if kind == "GRAPHS":
            return tuple(self.subgraph(g, scope, opsets) for g in raw)
        if kind in _OPAQUE:
            whole = onnx.AttributeProto(type=proto.type)
            (getattr(whole, _FIELD[kind]).extend if kind.endswith("S") else getattr(whole, _FIELD[kind]).CopyFrom)(raw)
            return bytes(whole.SerializeToString())
        return raw

    def constant(self, proto: onnx.NodeProto, graph: Graph, attrs: Mapping[str, Attr]) -> Value:
        """The constant that a Constant node stands for."""
        given = [(n, a) for n, a in attrs.items() if n.startswith(("value", "sparse_value"))]
        if len(given) != 1:
            raise ModelError(f"needs exactly one value, {len(given)} given")
        ((name, attr),) = given
        array: Any
        if name == "value":
            array = attr.value
        elif name == "sparse_value":
            array = densify(onnx.AttributeProto.FromString(attr.value).sparse_tensor, self.files, self.limits)
        elif name in ("value_string", "value_strings"):
            array = np.empty(() if name == "value_string" else len(attr.value), dtype=STRING)
            array[...] = attr.value
        else:
            array = np.array(attr.value, np.float32 if "float" in name else np.int64)
        value = graph.add_const(array, proto.output[0])
        keep = onnx.NodeProto()
        keep.MergeFromString(rest_of(proto, "input", "output", "name", "op_type", "attribute"))
        if name == "sparse_value" or attr.extra:
            kept = keep.attribute.add(name=name)
            kept.MergeFromString(attr.value if name == "sparse_value" else attr.extra)
        value.origin = Origin(name, proto.name, keep.SerializeToString())
        return value


_TENSOR_DATA = (
    "dims", "data_type", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data",
    "raw_data", "external_data", "data_location",
)  # fmt: skip


def _filled(proto: onnx.AttributeProto, field: str) -> bool:
    value = getattr(proto, field)
    return bool(len(value)) if hasattr(value, "extend") else proto.HasField(field)
