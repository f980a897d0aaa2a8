"""Load: from a file, bytes or a ModelProto to the IR, strictly.

What is wrong is refused with its place; what is merely unknown (operators of foreign domains, fields of other
versions, metadata) is carried: every IR object keeps, as ``extra``, the protobuf message it came from with the
understood fields cleared, and the saver merges it back.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import defs

from fuse.errors import FuseError, InputError, LimitError, ModelError, UnsupportedError, quote
from fuse.ir.graph import Function, Graph, Model, Node, Origin, Value
from fuse.limits import DEFAULT, Limits
from fuse.model.external import DataFiles
from fuse.model.nodes import AttributeReader, checked_schema
from fuse.model.order import in_order
from fuse.model.rest import rest_of
from fuse.model.tensors import densify, read_tensor, read_type
from fuse.ops.fused import restore
from fuse.ops.spelling import bring_up

def load(source: Any, *, data_dir: str | os.PathLike[str] | None = None, limits: Limits = DEFAULT) -> Model:
    """The model in ``source``: a path, the bytes of a file, or a ``ModelProto`` (a ``Model`` passes through).

    ``data_dir`` is where external data lies when it is not the model's own directory.  Raises ``InputError`` for a path
    that cannot be read, ``ModelError`` and ``UnsupportedError`` for what is in it; nothing else.
    """
    if isinstance(source, Model):
        return source
    name, directory = "model", None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name, directory = path.name, path.parent
        source = read_file(path, limits)
    if isinstance(source, (bytes, bytearray, memoryview)):
        proto = parse(bytes(source), name)
    elif isinstance(source, onnx.ModelProto):
        proto = source
    else:
        raise InputError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}")
    files = DataFiles(Path(data_dir) if data_dir is not None else directory)
    try:
        model = _Loader(proto, files, limits).model()
    except FuseError as error:
        raise error.within(name) from None
    model.source = name
    return model


def read_file(path: Path, limits: Limits = DEFAULT) -> bytes:
    """The bytes of a regular file of at most 2 GiB."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError("is not a regular file", where=str(path), hint="give the path of an .onnx file")
        if status.st_size > (1 << 31) - 1:
            hint = "a protobuf file ends at 2 GiB: save the weights as external data"
            raise InputError(f"has {status.st_size:,} bytes", where=str(path), hint=hint)
        return path.read_bytes()
    except FileNotFoundError:
        hint = "check the path; `fuse show` without a model lists the embedded ones"
        raise InputError("no such file", where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        raise InputError(getattr(error, "strerror", None) or str(error), where=quote(path)[1:-1]) from None


def parse(data: bytes, name: str) -> onnx.ModelProto:
    """The ModelProto in ``data``, or a ``ModelError`` that says what is there instead."""
    hint = "give a file that an ONNX exporter wrote; a broken download is the usual cause"
    if not data:
        raise ModelError("the file is empty", where=name, hint=hint)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RecursionError, ValueError) as error:
        what = "is text, not an ONNX model" if _is_text(data) else "is not an ONNX model, or is cut short"
        raise ModelError(f"{what} ({type(error).__name__})", where=name, hint=hint) from None
    if not proto.HasField("graph") or not proto.HasField("ir_version"):
        raise ModelError("is not an ONNX model: it holds no graph or no IR version", where=name, hint=hint)
    return proto


def _is_text(data: bytes) -> bool:
    head = data[:1024]
    return b"\0" not in head and sum(c < 9 or 13 < c < 32 for c in head) == 0


Scope = dict[str, Value]


class _Loader:
    def __init__(self, proto: onnx.ModelProto, files: DataFiles, limits: Limits) -> None:
        self.proto, self.files, self.limits = proto, files, limits
        self.opsets = self._opsets(proto.opset_import)
        self.attributes = AttributeReader(files, limits, self.subgraph)
        self.functions = {self._key(f): f for f in proto.functions}

    def model(self) -> Model:
        proto = self.proto
        if not 1 <= proto.ir_version <= onnx.IR_VERSION:
            hint = f"this installation of onnx knows IR versions 1 to {onnx.IR_VERSION}"
            raise UnsupportedError(f"IR version {proto.ir_version} is not supported", hint=hint)
        if "" not in self.opsets and any(n.domain in ("", "ai.onnx") for n in proto.graph.node):
            raise ModelError("the model imports no operator set", hint="opset_import is empty or lacks ai.onnx")
        if len(self.functions) < len(proto.functions):
            raise ModelError("two functions have the same domain, name and overload")
        self._check_calls()
        model = Model(Graph(), proto.ir_version, dict(self.opsets))
        for key, function in self.functions.items():
            try:
                model.functions[key] = self._function(function)
            except FuseError as error:
                raise error.within(f"function {quote(key[0])}") from None
        if not proto.graph.node and not proto.graph.output:
            raise ModelError("the graph is empty")
        model.graph = self._graph(proto.graph, {}, self.opsets, main=True)
        if not model.graph.outputs:
            raise ModelError("the graph has no outputs")
        model.extra = rest_of(proto, "graph", "ir_version", "opset_import", "functions")
        restore(model)
        return model

    # ---- versions

    def _opsets(self, imports: Any) -> dict[str, int]:
        opsets: dict[str, int] = {}
        for entry in imports:
            domain = "" if entry.domain == "ai.onnx" else entry.domain
            if opsets.get(domain, entry.version) != entry.version:
                raise ModelError(f"operator set of domain {quote(entry.domain)} is imported twice, in different versions")
            newest = defs.onnx_opset_version()
            if domain == "" and not 1 <= entry.version <= newest:
                hint = f"operator sets 1 to {newest} are known here"
                raise UnsupportedError(f"operator set {entry.version} is not supported", hint=hint)
            opsets[domain] = entry.version
        return opsets

    # ---- functions

    @staticmethod
    def _key(proto: Any) -> tuple[str, str]:
        name = proto.name if isinstance(proto, onnx.FunctionProto) else proto.op_type
        return (f"{proto.domain}::{name}" if proto.domain else name), proto.overload

    def _check_calls(self) -> None:
        """Refuse functions that call themselves, and models whose calls multiply beyond the budget."""
        calls = {key: list(self._called(f.node)) for key, f in self.functions.items()}
        cost: dict[tuple[str, str], int] = {}
        state: dict[tuple[str, str], int] = {}
        for root in calls:
            stack = [root]
            while stack:
                key = stack[-1]
                if state.get(key) is None:
                    state[key] = 1
                    for inner in calls[key]:
                        if state.get(inner) == 1:
                            raise ModelError(f"function {quote(inner[0])} calls itself")
                        if state.get(inner) is None:
                            stack.append(inner)
                else:
                    stack.pop()
                    if state[key] == 1:
                        state[key] = 2
                        cost[key] = min(1 + sum(cost[c] for c in calls[key]), 1 << 62)
        total = sum(cost[c] for c in self._called(self.proto.graph.node))
        if total > self.limits.inlined_calls:
            raise LimitError(f"local functions expand to more than {self.limits.inlined_calls:,} calls")

    def _called(self, nodes: Any) -> Any:
        stack = [nodes]
        while stack:
            for node in stack.pop():
                if node.domain and self._key(node) in self.functions:
                    yield self._key(node)
                for attribute in node.attribute:
                    stack.extend([attribute.g.node] if attribute.HasField("g") else [])
                    stack.extend(g.node for g in attribute.graphs)

    def _function(self, proto: onnx.FunctionProto) -> Function:
        if not proto.name or not proto.domain or proto.domain == "ai.onnx":
            raise ModelError("a local function needs a name and a domain of its own")
        opsets = {**self.opsets, **self._opsets(proto.opset_import)}
        graph = Graph(proto.name)
        scope: Scope = {}
        for name in proto.input:
            scope[_fresh(name, scope, "function input")] = graph.add_input(Value(name))
        self._infos(proto.value_info, self._nodes(proto.node, graph, scope, {}, opsets), graph)
        for name in proto.output:
            graph.add_output(name, _visible(name, scope, {}, "function output"))
        defaults = {a.name: self.attributes.read(a, graph, scope, opsets) for a in proto.attribute_proto}
        rest = rest_of(
            proto, "name", "domain", "overload", "input", "output", "node", "attribute", "attribute_proto",
            "opset_import", "value_info",
        )  # fmt: skip
        own = self._opsets(proto.opset_import)
        return Function(
            proto.domain, proto.name, proto.overload, graph, tuple(proto.attribute), defaults, own, extra=rest
        )

    # ---- graphs

    def subgraph(self, proto: onnx.GraphProto, outer: Mapping[str, Value], opsets: dict[str, int]) -> Graph:
        """The IR of a subgraph; ``outer`` holds every value visible around it."""
        return self._graph(proto, outer, opsets, main=False)

    def _graph(self, proto: onnx.GraphProto, outer: Mapping[str, Value], opsets: dict[str, int], main: bool) -> Graph:
        graph = Graph(proto.name)
        scope: Scope = {}
        declared = {info.name: info for info in proto.input}
        if len(declared) < len(proto.input):
            raise ModelError("two graph inputs have the same name")
        stored = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
        legacy = main and self.proto.ir_version < 4
        for info in proto.input:
            if legacy and info.name in stored:
                continue  # before IR version 4 every initializer had to be listed as an input
            value = graph.add_input(self._value(info))
            scope[_fresh(info.name, outer, "graph input")] = value
        for tensor in proto.initializer:
            self._initializer(tensor, graph, scope, outer, declared)
        for sparse in proto.sparse_initializer:
            name = _fresh(sparse.values.name, scope, "sparse initializer")
            scope[name] = graph.add_const(densify(sparse, self.files, self.limits), name)
            scope[name].origin = Origin("sparse_initializer", extra=sparse.SerializeToString())
        if legacy:
            graph.listed = [scope[info.name] for info in proto.input]
        made = self._nodes(proto.node, graph, scope, outer, opsets)
        for info in proto.output:
            if not info.name:
                raise ModelError("a graph output has no name")
            value = _visible(info.name, scope, outer, "graph output")
            slot = graph.add_output(info.name, value, _claimed(info))
            slot.info = info.SerializeToString()
        self._infos(proto.value_info, made, graph)
        left = rest_of(proto, "node", "name", "initializer", "sparse_initializer", "input", "output", "value_info")
        graph.extra = left + graph.extra
        return graph

    def _value(self, info: onnx.ValueInfoProto) -> Value:
        if not info.name:
            raise ModelError("a graph input has no name")
        self._check_name(info.name)
        value = Value(info.name, _claimed(info))
        value.info = info.SerializeToString()
        return value

    def _initializer(
        self, tensor: Any, graph: Graph, scope: Scope, outer: Mapping[str, Value], declared: dict[str, Any]
    ) -> None:
        name = tensor.name
        self._check_name(name)
        if not name:
            raise ModelError("an initializer has no name")
        existing = scope.get(name)
        try:
            kind, data = read_tensor(tensor, self.files, self.limits)
        except FuseError as error:
            raise error.within(f"initializer {quote(name)}") from None
        if existing is not None and existing in graph.inputs and existing.data is None:
            value = existing
            value.set_data(data)
        else:
            value = graph.add_const(data, name, kind)
            scope[_fresh(name, _Chain(scope, outer), "initializer")] = value
            if name in declared:
                value.info = declared[name].SerializeToString()
        value.extra = _tensor_rest(tensor)

    def _check_name(self, name: str) -> None:
        if len(name) > self.limits.name_bytes:
            raise LimitError(f"a name has {len(name):,} characters, more than {self.limits.name_bytes:,}")

    # ---- nodes

    def _nodes(
        self, protos: Any, graph: Graph, scope: Scope, outer: Mapping[str, Value], opsets: dict[str, int]
    ) -> Scope:
        """Convert the nodes into ``graph``; returns every value by name, for the value infos."""
        ordered, moved = in_order(list(protos), set(scope), outer)
        if moved:
            warnings.warn("nodes were out of order and have been sorted", stacklevel=2)
        for proto in ordered:
            label = proto.name or next(iter(proto.output), "")
            try:
                self._node(proto, graph, scope, outer, opsets)
            except FuseError as error:
                raise error.within(f"node {quote(label)} ({quote(proto.op_type)[1:-1]})") from None
        return scope

    def _node(
        self, proto: Any, graph: Graph, scope: Scope, outer: Mapping[str, Value], opsets: dict[str, int]
    ) -> None:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        schema = None
        key = self._key(proto)
        if not (domain and key in self.functions):
            schema = checked_schema(proto, domain, opsets)
        self._check_name(proto.name)
        visible = _Chain(scope, outer)
        attrs = {a.name: self.attributes.read(a, graph, visible, opsets, schema) for a in proto.attribute}
        if len(attrs) < len(proto.attribute):
            raise ModelError("an attribute is given twice")
        if proto.op_type == "Constant" and not domain and not _refers(proto):
            value = self.attributes.constant(proto, graph, attrs)
            scope[_fresh(proto.output[0], _Chain(scope, outer), "value")] = value
            return
        inputs = [None if not name else _visible(name, scope, outer, "input") for name in proto.input]
        outputs: list[Value | None] = []
        for name in proto.output:
            self._check_name(name)
            if not name:
                outputs.append(None)
                continue
            value = Value(name)
            scope[_fresh(name, visible, "value")] = value
            outputs.append(value)
        node = Node(f"{domain}::{proto.op_type}" if domain else proto.op_type, inputs, outputs, attrs, proto.name)
        node.overload = proto.overload
        node.sources = (proto.name or next((n for n in proto.output if n), ""),)
        graph.append(node)
        left = onnx.NodeProto()
        left.MergeFromString(
            rest_of(proto, "input", "output", "name", "op_type", "domain", "overload", "attribute")
        )
        if schema is not None and not domain:
            dropped = bring_up(node, opsets[""], graph)
            left.attribute.extend(a for a in proto.attribute if a.name in dropped)
        if proto.domain == "ai.onnx":
            left.domain = proto.domain
        node.extra = left.SerializeToString()

    def _infos(self, infos: Any, scope: Scope, graph: Graph) -> None:
        """Keep the declared types of computed values: claims, carried for the file and believed by nobody."""
        left = onnx.GraphProto()
        for info in infos:
            value = scope.get(info.name)
            _claimed(info)
            if value is None or value.info or value.owner is graph and value in graph.inputs:
                left.value_info.append(info)
            else:
                value.info = info.SerializeToString()
        graph.extra += left.SerializeToString()


class _Chain(Mapping[str, Value]):
    """A scope in front of the scopes around it."""

    def __init__(self, inner: Mapping[str, Value], outer: Mapping[str, Value]) -> None:
        self.inner, self.outer = inner, outer

    def __getitem__(self, name: str) -> Value:
        found = self.inner.get(name)
        return found if found is not None else self.outer[name]

    def __contains__(self, name: object) -> bool:
        return name in self.inner or name in self.outer

    def __iter__(self) -> Any:
        yield from self.inner
        yield from self.outer

    def __len__(self) -> int:
        return len(self.inner) + len(self.outer)


def _claimed(info: onnx.ValueInfoProto) -> Any:
    try:
        return read_type(info.type)
    except FuseError as error:
        raise error.within(f"declared type of {quote(info.name)}") from None


def _fresh(name: str, taken: Any, what: str) -> str:
    if name in taken:
        raise ModelError(f"{what} {quote(name)} is defined twice")
    return name


def _visible(name: str, scope: Mapping[str, Value], outer: Mapping[str, Value], what: str) -> Value:
    value = scope.get(name)
    if value is None:
        value = outer.get(name)
    if value is None:
        raise ModelError(f"{what} {quote(name)} is defined nowhere")
    return value


def _refers(proto: onnx.NodeProto) -> bool:
    return any(a.ref_attr_name for a in proto.attribute)


def _tensor_rest(tensor: onnx.TensorProto) -> bytes:
    """The tensor's documentation and metadata, without copying its data."""
    left = onnx.TensorProto(doc_string=tensor.doc_string) if tensor.HasField("doc_string") else onnx.TensorProto()
    left.metadata_props.extend(p for p in tensor.metadata_props if p.key != "fuse.recipe")
    return bytes(left.SerializeToString())


