"""Nodes and attributes: from protobuf to the IR, held against the operator's schema."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, defs

from fuse.errors import LimitError, ModelError, UnsupportedError, quote
from fuse.ir.dtypes import STRING, Array
from fuse.ir.graph import Attr, Graph, Origin, Value
from fuse.ir.types import TensorType
from fuse.limits import Limits
from fuse.model.external import DataFiles
from fuse.model.rest import rest_of
from fuse.model.scope import Scope, text
from fuse.model.tensors import densify, read_tensor, tensor_rest, write_tensor
from fuse.ops.spelling import unlisted

_KINDS: dict[int, str] = {number: name for name, number in AttributeProto.AttributeType.items()}
_FIELD = {
    "FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "SPARSE_TENSOR": "sparse_tensor",
    "TYPE_PROTO": "tp", "FLOATS": "floats", "INTS": "ints", "STRINGS": "strings", "TENSORS": "tensors",
    "GRAPHS": "graphs", "SPARSE_TENSORS": "sparse_tensors", "TYPE_PROTOS": "type_protos",
}  # fmt: skip
_HOLDERS = frozenset(_FIELD.values())
_UNDERSTOOD = frozenset({"name", "type", "ref_attr_name", *_HOLDERS})
_NODE = frozenset({"input", "output", "name", "op_type", "domain", "overload", "attribute"})

Subgraph = Callable[[onnx.GraphProto, Scope, dict[str, int]], Graph]

#: Domains whose operators are defined by the onnx package, and so can be held against a schema.
STANDARD = frozenset({"", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"})


# ---- operators


@dataclass(frozen=True, slots=True)
class Formal:
    """What one version of an operator allows: counts, which inputs and outputs must be there, attributes by kind."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    single: tuple[int, ...]
    made: tuple[int, ...]
    kinds: Mapping[str, str]
    required: tuple[str, ...]


@functools.cache
def formal_of(op_type: str, opset: int, domain: str) -> Formal | None:
    """The operator at ``opset``; None where that version does not have it."""
    try:
        schema = defs.get_schema(op_type, opset, domain)
    except defs.SchemaError:
        return None
    if schema.deprecated and any(not s.deprecated for s in _versions(op_type, domain) if s.since_version < opset):
        return None  # GroupNormalization was born deprecated, and is used all the same
    single = defs.OpSchema.FormalParameterOption.Single
    return Formal(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(i for i, p in enumerate(schema.inputs) if p.option == single),
        tuple(i for i, p in enumerate(schema.outputs) if p.option == single),
        {name: a.type.name for name, a in schema.attributes.items()},
        tuple(name for name, a in schema.attributes.items() if a.required),
    )


def _versions(op_type: str, domain: str) -> list[Any]:
    return [s for s in defs.get_all_schemas_with_history() if s.name == op_type and s.domain == domain]


@functools.cache
def newest_opset(domain: str) -> int:
    """The newest operator set of a standard domain that the installed onnx defines."""
    if domain == "":
        return defs.onnx_opset_version()
    return max(schema.since_version for schema in defs.get_all_schemas_with_history() if schema.domain == domain)


def checked_formal(proto: onnx.NodeProto, domain: str, opsets: Mapping[str, int]) -> Formal | None:
    """The node's operator, its inputs, outputs and attributes' names held against it; None for foreign domains."""
    if domain not in STANDARD:
        return None
    opset = opsets.get(domain)
    if opset is None:
        raise ModelError(f"the model imports no operator set of domain {quote(domain or 'ai.onnx')}")
    op_type = text(proto.op_type, "operator")
    formal = formal_of(op_type, opset, domain)
    if formal is None:
        if not domain and unlisted(op_type, opset):
            return None
        raise _unknown(op_type, domain, opset)
    _check_places(proto.input, formal.inputs, formal.single, "input")
    _check_places(proto.output, formal.outputs, formal.made, "output")
    given = [a.name for a in proto.attribute]
    for name in given:
        if name not in formal.kinds:
            raise ModelError(f"has no attribute {quote(name)} in operator set {opset}")
    for name in formal.required:
        if name not in given:
            raise ModelError(f"attribute {quote(name)} is required and missing")
    return formal


def _unknown(op_type: str, domain: str, opset: int) -> UnsupportedError:
    versions = _versions(op_type, domain)
    if not versions:
        what = f"there is no operator {quote(op_type)} in domain {quote(domain or 'ai.onnx')}"
        return UnsupportedError(what, hint="a custom operator needs a domain of its own")
    removed = [s.since_version for s in versions if s.deprecated and s.since_version <= opset]
    when = f"was removed with operator set {max(removed)}" if removed else (
        f"came with operator set {min(s.since_version for s in versions)}"
    )  # fmt: skip
    return UnsupportedError(f"operator {quote(op_type)} is not part of operator set {opset}", hint=f"it {when}")


def _check_places(names: Any, span: tuple[int, int], needed: tuple[int, ...], what: str) -> None:
    low, high = span
    if not low <= len(names) <= high:
        allowed = f"{low}" if low == high else f"{low} to {high}" if high < 1 << 30 else f"at least {low}"
        raise ModelError(f"takes {allowed} {what}s, {len(names)} given")
    for index in needed:
        if index < len(names) and not names[index]:
            raise ModelError(f"{what} {index} is required and missing")


# ---- attributes


class AttributeReader:
    """Turns attributes into the IR's; ``subgraph`` converts the graphs among them."""

    def __init__(self, files: DataFiles, limits: Limits, subgraph: Subgraph) -> None:
        self.files, self.limits, self.subgraph = files, limits, subgraph
        self._dense = 0

    def read(
        self,
        proto: onnx.AttributeProto,
        scope: Scope,
        opsets: dict[str, int],
        parameters: frozenset[str] | None,
        formal: Formal | None = None,
    ) -> Attr:
        """The attribute ``proto``, held against the operator's ``formal`` where that is known.

        ``parameters`` are the attributes of the function around, which a reference may name; None in the main graph.
        """
        kind = _kind(proto, parameters, formal)
        attr = Attr(kind, None, proto.ref_attr_name, extra=rest_of(proto, _UNDERSTOOD))
        if not proto.ref_attr_name:
            attr.value = self._value(proto, kind, scope, opsets, attr)
        return attr

    def _value(self, proto: onnx.AttributeProto, kind: str, scope: Scope, opsets: dict[str, int], attr: Attr) -> Any:
        raw = getattr(proto, _FIELD[kind])
        if kind in ("INTS", "FLOATS"):
            return tuple(raw)
        if kind == "STRING":
            return raw.decode("utf-8", "surrogateescape")
        if kind == "STRINGS":
            return tuple(s.decode("utf-8", "surrogateescape") for s in raw)
        if kind == "TENSOR":
            _, data = read_tensor(raw, self.files, self.limits)
            attr.extra += _carried(raw)
            array = data() if callable(data) else data
            array.flags.writeable = False
            return array
        if kind == "GRAPH":
            return self.subgraph(raw, scope, opsets)
        if kind == "GRAPHS":
            return tuple(self.subgraph(g, scope, opsets) for g in raw)
        if kind in ("TENSORS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"):
            return self._opaque(proto, kind, raw)
        return raw

    def _opaque(self, proto: onnx.AttributeProto, kind: str, raw: Any) -> bytes:
        """The bytes of a value that is only carried; tensors in it are checked, and fetched from external data."""
        whole = AttributeProto(type=proto.type)
        many = kind.endswith("S")
        (getattr(whole, _FIELD[kind]).extend if many else getattr(whole, _FIELD[kind]).CopyFrom)(raw)
        tensors = [*whole.tensors]
        for sparse in (*whole.sparse_tensors, *([whole.sparse_tensor] if kind == "SPARSE_TENSOR" else [])):
            tensors += [sparse.values, sparse.indices]
        for tensor in tensors:
            self.fetch(tensor)
        return bytes(whole.SerializeToString())

    def fetch(self, tensor: onnx.TensorProto) -> None:
        """Check a tensor that is only carried, and put its bytes into the message where they lie in a file."""
        _, data = read_tensor(tensor, self.files, self.limits)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.raw_data = write_tensor(data() if callable(data) else data).raw_data

    def dense(self, sparse: onnx.SparseTensorProto) -> Array:
        """The dense array of a sparse tensor; all of a model's together keep to ``limits.dense_bytes``."""
        array = densify(sparse, self.files, self.limits)
        self._dense += array.nbytes
        if self._dense > self.limits.dense_bytes:
            raise LimitError(f"the sparse tensors have more than {self.limits.dense_bytes:,} bytes when made dense")
        return array

    def constant(self, proto: onnx.NodeProto, graph: Graph, scope: Scope, formal: Formal | None) -> Value:
        """The constant that a Constant node (one without references) stands for."""
        if len(proto.attribute) != 1:
            raise ModelError(f"needs exactly one value, {len(proto.attribute)} given")
        held = proto.attribute[0]
        attr = Attr(_kind(held, None, formal), None, extra=rest_of(held, _UNDERSTOOD))
        kind: TensorType | None = None
        data: Any
        if attr.kind == "TENSOR":
            kind, data = read_tensor(held.t, self.files, self.limits)
            attr.extra += _carried(held.t)
        else:
            attr.value = self._value(held, attr.kind, scope, {}, attr)
            data = self._plain(held.name, attr.value)
        kept = onnx.NodeProto()
        kept.MergeFromString(node_rest(proto))
        carried = attr.value if held.name == "sparse_value" else attr.extra
        if carried:
            kept.attribute.add(name=held.name).MergeFromString(carried)
        value = graph.add_const(data, proto.output[0], kind)
        value.origin = Origin(held.name, proto.name, kept.SerializeToString())
        return value

    def _plain(self, name: str, value: Any) -> Array:
        """The array that an attribute other than ``value`` of a Constant node means."""
        if name == "sparse_value":
            return self.dense(AttributeProto.FromString(value).sparse_tensor)
        if name in ("value_string", "value_strings"):
            array = np.empty(() if name == "value_string" else len(value), STRING)
            array[...] = value
            return array
        return np.array(value, np.float32 if "float" in name else np.int64)


def _kind(proto: onnx.AttributeProto, parameters: frozenset[str] | None, formal: Formal | None) -> str:
    """Which kind of attribute it is: the one it says, the one that is needed, and no other one beside it."""
    filled = {field.name for field, _ in proto.ListFields()} & _HOLDERS
    kind = _KINDS.get(proto.type, "")
    if proto.type == 0:  # before IR version 2 the type was implied by the field that is set
        kind = next((k for k, field in _FIELD.items() if field in filled), "")
    name = text(proto.name, "attribute")
    if kind not in _FIELD:
        raise ModelError(f"attribute {quote(name)} has no known type")
    if formal is not None and formal.kinds[name] != kind:
        raise ModelError(f"attribute {quote(name)} is of type {kind}, {formal.kinds[name]} is needed")
    reference = proto.ref_attr_name
    if not filled <= {_FIELD[kind]} or (reference and filled):
        raise ModelError(f"attribute {quote(name)} has more than one value")
    if reference and (parameters is None or reference not in parameters):
        place = "the main graph has none" if parameters is None else "the function has none of that name"
        raise ModelError(f"attribute {quote(name)} stands for {quote(reference)}, {place}")
    return kind


def node_rest(proto: onnx.NodeProto) -> bytes:
    """What fuse only carries of a node."""
    return rest_of(proto, _NODE)


def _carried(tensor: onnx.TensorProto) -> bytes:
    """What is only carried of an attribute's tensor, as bytes of the attribute."""
    rest = tensor_rest(tensor, named=False)
    return AttributeProto(t=onnx.TensorProto.FromString(rest)).SerializeToString() if rest else b""
