"""Load: from a file, bytes or a ModelProto to the IR, strictly.

What is wrong is refused with its place; what is merely unknown (operators of foreign domains, fields of other
versions, metadata) is carried: every IR object keeps, as ``extra``, the protobuf message it came from with the
understood fields cleared, and the saver merges it back.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import onnx

from fuse.errors import FuseError, InputError, ModelError, UnsupportedError, quote
from fuse.ir.graph import Graph, Node, Origin, Value
from fuse.ir.model import Function, Model
from fuse.ir.types import TensorType, Type
from fuse.limits import DEFAULT, Limits
from fuse.model.calls import Key, check_calls, key_of
from fuse.model.external import DataFiles
from fuse.model.file import parse, read_file, shown
from fuse.model.nodes import STANDARD, AttributeReader, checked_formal, newest_opset, node_rest
from fuse.model.order import in_order
from fuse.model.rest import rest_of
from fuse.model.scope import Scope, check_name, text
from fuse.model.tensors import read_tensor, read_type, tensor_rest
from fuse.ops import training
from fuse.ops.fused import restore
from fuse.ops.spelling import bring_up

Opsets = dict[str, int]
Parameters = frozenset[str] | None

_MODEL = frozenset({"graph", "ir_version", "opset_import", "functions"})
_GRAPH = frozenset({"node", "name", "initializer", "sparse_initializer", "input", "output", "value_info"})
_FUNCTION = frozenset({
    "name", "domain", "overload", "input", "output", "node", "attribute", "attribute_proto", "opset_import",
    "value_info",
})  # fmt: skip


def load(source: Any, *, data_dir: str | os.PathLike[str] | None = None, limits: Limits = DEFAULT) -> Model:
    """The model in ``source``: a path, the bytes of a file, or a ``ModelProto`` (a ``Model`` passes through).

    External data is looked for in ``data_dir``, where given, then beside the model.  Raises ``InputError`` for a path
    that cannot be read, ``ModelError``, ``UnsupportedError`` and ``LimitError`` for what is in it; nothing else.
    """
    if isinstance(source, Model):
        return source
    name, directory = "model", None
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        name, directory = shown(path.name), path.parent
        source = read_file(path)
    if isinstance(source, (bytes, bytearray, memoryview)):
        source = parse(bytes(source), name)
    if not isinstance(source, onnx.ModelProto):
        raise InputError(f"a model is a path, bytes or a ModelProto, not {type(source).__name__}")
    files = DataFiles(directory, Path(data_dir) if data_dir is not None else None, limits)
    try:
        model = _Loader(source, files, limits).model(source)
    except FuseError as error:
        raise error.within(name) from None
    model.source = name
    return model


class _Loader:
    """Converts one model.  It does not hold on to the proto, whose weights would then be in memory twice."""

    def __init__(self, proto: onnx.ModelProto, files: DataFiles, limits: Limits) -> None:
        self.files, self.limits, self.ir_version = files, limits, proto.ir_version
        self.opsets = _opsets(proto.opset_import)
        if not proto.opset_import and proto.ir_version < 3:
            self.opsets = {"": 1}  # what files meant before they could say it
        self.arity = {key_of(f): (len(f.input), len(f.output)) for f in proto.functions}
        self.called = {key[0] for key in self.arity}

    def model(self, proto: onnx.ModelProto) -> Model:
        newest = onnx.IR_VERSION
        if not 1 <= proto.ir_version <= newest:
            hint = f"this installation of onnx knows IR versions 1 to {newest}"
            raise UnsupportedError(f"IR version {proto.ir_version} is not supported", hint=hint)
        if not self.opsets:
            raise ModelError("the model imports no operator set", hint="opset_import is empty")
        if len(self.arity) < len(proto.functions):
            raise ModelError("two functions have the same domain, name and overload")
        check_calls({key_of(f): f for f in proto.functions}, proto.graph.node, self.limits)
        model = Model(Graph(), proto.ir_version, dict(self.opsets))
        for function in proto.functions:
            converted = self._function(function)
            model.functions[converted.key] = converted
        if not proto.graph.node and not proto.graph.output:
            raise ModelError("the graph is empty")
        body = _Body(self, self.opsets, None)
        model.graph = body.graph(proto.graph, Scope(self.limits), legacy=proto.ir_version < 4)
        if not model.graph.outputs:
            raise ModelError("the graph has no outputs")
        model.extra = rest_of(proto, _MODEL)
        restore(model)
        return model

    def _function(self, proto: onnx.FunctionProto) -> Function:
        name, domain = text(proto.name, "function"), text(proto.domain, "domain")
        try:
            if not name or domain in ("", "ai.onnx"):
                raise ModelError("a local function needs a name and a domain of its own")
            own = _opsets(proto.opset_import)
            names = [text(n, "attribute") for n in (*proto.attribute, *(a.name for a in proto.attribute_proto))]
            if len(set(names)) < len(names):
                raise ModelError("two attributes have the same name")
            body = _Body(self, {**self.opsets, **own}, frozenset(names))
            graph = body.function(proto)
            defaults = {
                a.name: body.attributes.read(a, Scope(self.limits), body.opsets, None) for a in proto.attribute_proto
            }
        except FuseError as error:
            raise error.within(f"function {quote(key_of(proto)[0])}") from None
        overload = text(proto.overload, "overload")
        rest = rest_of(proto, _FUNCTION)
        return Function(domain, name, overload, graph, tuple(proto.attribute), defaults, own, rest)


def _opsets(imports: Any) -> Opsets:
    opsets: Opsets = {}
    for entry in imports:
        domain = "" if entry.domain == "ai.onnx" else text(entry.domain, "domain")
        if opsets.get(domain, entry.version) != entry.version:
            what = f"operator set of domain {quote(domain or 'ai.onnx')} is imported twice, in different versions"
            raise ModelError(what)
        if domain in STANDARD and not 1 <= entry.version <= newest_opset(domain):
            what = f"operator set {entry.version} of domain {quote(domain or 'ai.onnx')} is not supported"
            raise UnsupportedError(what, hint=f"operator sets 1 to {newest_opset(domain)} are known here")
        opsets[domain] = entry.version
    return opsets


class _Body:
    """Converts what shares operator sets: the main graph with the graphs in it, or one function's body."""

    def __init__(self, loader: _Loader, opsets: Opsets, parameters: Parameters) -> None:
        self.loader, self.limits, self.opsets, self.parameters = loader, loader.limits, opsets, parameters
        self.attributes = AttributeReader(loader.files, loader.limits, self._inner)

    def function(self, proto: onnx.FunctionProto) -> Graph:
        graph, scope = Graph(proto.name), Scope(self.limits)
        for name in proto.input:
            graph.add_input(scope.define(name, Value(name), "function input"))
        self._nodes(proto.node, graph, scope)
        _declare(proto.value_info, scope, graph)
        for name in proto.output:
            graph.add_output(name, scope.need(name, "function output"))
        return graph

    def graph(self, proto: onnx.GraphProto, scope: Scope, legacy: bool = False) -> Graph:
        """The IR of a graph.  ``legacy`` lists every initializer as an input, which makes it no input for that."""
        graph = Graph(text(proto.name, "graph"))
        stored = {t.name for t in proto.initializer} if legacy else ()
        for info in proto.input:
            if info.name not in stored:
                value = Value(info.name, _claimed(info))
                value.info = info.SerializeToString()
                graph.add_input(scope.define(info.name, value, "graph input"))
        listed = {info.name: info for info in proto.input} if legacy else {}
        if legacy and len(listed) < len(proto.input):
            raise ModelError("two graph inputs have the same name")
        for tensor in proto.initializer:
            self._initializer(tensor, graph, scope, listed.get(tensor.name))
        for sparse in proto.sparse_initializer:
            self._sparse(sparse, graph, scope)
        graph.listed = [scope.need(name, "graph input") for name in listed]
        self._nodes(proto.node, graph, scope)
        for info in proto.output:
            if not info.name:
                raise ModelError("a graph output has no name")
            slot = graph.add_output(info.name, scope.need(info.name, "graph output"), _claimed(info))
            slot.info = info.SerializeToString()
        _declare(proto.value_info, scope, graph)
        graph.extra += rest_of(proto, _GRAPH)
        return graph

    def _inner(self, proto: onnx.GraphProto, outer: Scope, opsets: Opsets) -> Graph:
        return self.graph(proto, Scope(self.limits, outer))

    def _initializer(self, tensor: Any, graph: Graph, scope: Scope, listed: Any) -> None:
        name = tensor.name
        default = scope.own.get(name)
        try:
            kind, data = read_tensor(tensor, self.loader.files, self.limits)
            declared = default.type if default is not None else _claimed(listed) if listed is not None else None
            if not _agree(declared, kind):
                raise ModelError(f"is {kind} and declared as {declared}")
        except FuseError as error:
            raise error.within(f"initializer {quote(name)}") from None
        if default is not None and not default.is_const and default.data is None:
            default.set_data(data)
            value = default
        else:
            value = graph.add_const(data, name, kind)
            scope.define(name, value, "initializer")
            value.info = listed.SerializeToString() if listed is not None else b""
        value.extra = tensor_rest(tensor, named=True)

    def _sparse(self, proto: onnx.SparseTensorProto, graph: Graph, scope: Scope) -> None:
        kept = onnx.SparseTensorProto()
        kept.CopyFrom(proto)
        name = kept.values.name
        try:
            value = graph.add_const(self.attributes.dense(kept), name)
            self.attributes.fetch(kept.values)
            self.attributes.fetch(kept.indices)
        except FuseError as error:
            raise error.within(f"sparse initializer {quote(name)}") from None
        scope.define(name, value, "sparse initializer")
        value.origin = Origin("sparse_initializer", extra=kept.SerializeToString())

    # ---- nodes

    def _nodes(self, protos: Any, graph: Graph, scope: Scope) -> None:
        nodes = list(protos)
        ordered = in_order(nodes, scope)
        if ordered is not nodes:
            warnings.warn("nodes were out of order and have been sorted", stacklevel=2)
        for proto in ordered:
            try:
                self._node(proto, graph, scope)
            except FuseError as error:
                label = proto.name or next(iter(proto.output), "")
                raise error.within(f"node {quote(label)} ({quote(proto.op_type)[1:-1]})") from None

    def _node(self, proto: onnx.NodeProto, graph: Graph, scope: Scope) -> None:
        op_type, domain = text(proto.op_type, "operator"), text(proto.domain, "domain")
        domain = "" if domain == "ai.onnx" else domain
        op = f"{domain}::{op_type}" if domain else op_type
        check_name(proto.name, "node name", self.limits)
        formal = None
        if domain and op in self.loader.called:
            self._check_call((op, proto.overload), proto)
        else:
            formal = checked_formal(proto, domain, self.opsets)
        if op == "Constant" and not any(a.ref_attr_name for a in proto.attribute):
            scope.define(proto.output[0], self.attributes.constant(proto, graph, scope, formal), "value")
            return
        read = self.attributes.read
        attrs = {a.name: read(a, scope, self.opsets, self.parameters, formal) for a in proto.attribute}
        if len(attrs) < len(proto.attribute):
            raise ModelError("an attribute is given twice")
        inputs = [scope.need(name, "input") if name else None for name in proto.input]
        outputs = [Value(name) if name else None for name in proto.output]
        for value in outputs:
            if value is not None:
                scope.define(value.name, value, "value")
        node = Node(op, inputs, outputs, attrs, proto.name)
        node.overload = text(proto.overload, "overload")
        node.sources = (proto.name or next(filter(None, proto.output), ""),)
        node.extra = node_rest(proto)
        graph.append(node)
        if not domain:
            self._respell(proto, node, graph)
        if op == training.GRADIENT:
            training.bind(node, scope.find)

    def _respell(self, proto: onnx.NodeProto, node: Node, graph: Graph) -> None:
        """Bring the node to the newest spelling; attributes that mean nothing any more are carried."""
        dropped = bring_up(node, self.opsets[""], graph)
        if dropped:
            left = onnx.NodeProto()
            left.attribute.extend(a for a in proto.attribute if a.name in dropped)
            node.extra += left.SerializeToString()

    def _check_call(self, key: Key, proto: onnx.NodeProto) -> None:
        arity = self.loader.arity.get(key)
        if arity is None:
            raise ModelError(f"calls overload {quote(key[1])} of a function that has no such overload")
        for have, most, what in zip((len(proto.input), len(proto.output)), arity, ("inputs", "outputs"), strict=True):
            if have > most:
                raise ModelError(f"the function takes {most} {what}, {have} given")


def _agree(declared: Type | None, kind: TensorType) -> bool:
    """Whether an initializer is what the input of its name is declared to be."""
    if declared is None:
        return True
    if not isinstance(declared, TensorType) or (declared.dtype is not None and declared.dtype != kind.dtype):
        return False
    if declared.shape is None or kind.shape is None:
        return True
    pairs = zip(declared.shape, kind.shape, strict=False)
    return len(declared.shape) == len(kind.shape) and all(not isinstance(d, int) or d == n for d, n in pairs)


def _declare(infos: Any, scope: Scope, graph: Graph) -> None:
    """Keep the declared types of computed values: claims, carried for the file and believed by nobody."""
    left = onnx.GraphProto()
    for info in infos:
        value = scope.own.get(info.name)
        _claimed(info)
        if value is None or value.info or (value.owner is graph and not value.is_const):
            left.value_info.append(info)
        else:
            value.info = info.SerializeToString()
    graph.extra += left.SerializeToString()


def _claimed(info: onnx.ValueInfoProto) -> Type | None:
    try:
        return read_type(info.type)
    except FuseError as error:
        raise error.within(f"declared type of {quote(info.name)}") from None
