"""Copies: of a model, of a graph, and of a function's body into the place where it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuse.errors import ModelError, quote
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model

Mapped = dict[Value, Value | None]
Bindings = Mapping[str, Attr]


def copy_model(model: Model) -> Model:
    """A model of its own: the same names and the same (read-only) arrays, and nothing that can change is shared."""
    functions = {key: copy_function(function) for key, function in model.functions.items()}
    return Model(
        copy_graph(model.graph, {}), model.ir_version, dict(model.opsets), functions, model.extra, model.source
    )


def copy_function(function: Function) -> Function:
    """A function of its own."""
    return replace(
        function,
        graph=copy_graph(function.graph, {}),
        defaults={name: _copy_attr(attr, {}, None) for name, attr in function.defaults.items()},
        opsets=dict(function.opsets),
    )


def copy_graph(graph: Graph, mapped: Mapped, bindings: Bindings | None = None) -> Graph:
    """A copy of ``graph``.  Values from around it are looked up in ``mapped`` and kept where they are not there.

    ``bindings`` are the attributes of the function call that references are resolved with.
    """
    result = Graph(graph.name)
    result.extra = graph.extra
    for value in graph.inputs:
        mapped[value] = result.add_input(_copy_value(value))
    copy_body(graph, result, mapped, bindings)
    for slot in graph.outputs:
        shown = mapped.get(slot.value, slot.value)
        assert shown is not None, "an input that the function call leaves out"
        result.add_output(slot.name, shown, slot.type).info = slot.info
    result.listed = [copied for v in graph.listed if (copied := mapped.get(v)) is not None]
    return result


def copy_body(
    source: Graph, target: Graph, mapped: Mapped, bindings: Bindings | None = None, before: Node | None = None
) -> list[Node]:
    """Copy the constants and nodes of ``source`` into ``target``, in front of ``before``; returns the new nodes."""
    for value in source.constants:
        mapped[value] = constant = _copy_value(value)
        constant.owner = target
        target.constants[constant] = None
    return [target.insert(_copy_node(node, mapped, bindings), before) for node in source.nodes]


def _copy_value(value: Value) -> Value:
    result = Value(value.name, value.type)
    result._data, result.info, result.extra = value._data, value.info, value.extra
    result.origin = None if value.origin is None else replace(value.origin)
    return result


def _copy_node(node: Node, mapped: Mapped, bindings: Bindings | None) -> Node:
    attrs: dict[str, Attr] = {}
    for name, attr in node.attrs.items():
        if not attr.reference or bindings is None:
            attrs[name] = _copy_attr(attr, mapped, bindings)
        elif attr.reference in bindings:  # the caller's own; one that it leaves out is left out here too
            attrs[name] = _copy_attr(bindings[attr.reference], {}, None)
    inputs = [None if v is None else mapped.get(v, v) for v in node.inputs]
    outputs = [None if v is None else _copy_value(v) for v in node.outputs]
    mapped.update((v, w) for v, w in zip(node.outputs, outputs, strict=True) if v is not None)
    result = Node(node.op, inputs, outputs, attrs, node.name)
    result.overload, result.extra, result.sources = node.overload, node.extra, node.sources
    return result


def _copy_attr(attr: Attr, mapped: Mapped, bindings: Bindings | None) -> Attr:
    value = attr.value
    if attr.kind == "GRAPH" and not attr.reference:
        value = copy_graph(value, mapped, bindings)
    elif attr.kind == "GRAPHS" and not attr.reference:
        value = tuple(copy_graph(graph, mapped, bindings) for graph in value)
    return replace(attr, value=value)


def inline(node: Node, function: Function) -> list[Node]:
    """Put the body of ``function`` in the place of ``node``, which calls it; returns the new nodes.

    Raises ``ModelError`` where the body hands on an input that the call leaves out; the graph is unchanged then.
    """
    graph, body = node.graph, function.graph
    assert graph is not None
    mapped: Mapped = {value: node.input(i) for i, value in enumerate(body.inputs)}
    pairs = [(v, slot) for v, slot in zip(node.outputs, body.outputs, strict=False) if v is not None and v.uses]
    if None in mapped.values():
        inner = [slot for graph in body.walk_graphs() if graph is not body for slot in graph.outputs]
        for slot in (*inner, *(slot for _, slot in pairs)):
            if mapped.get(slot.value, slot.value) is None:
                raise ModelError(f"output {quote(slot.name)} is an input of the function that the call leaves out")
    nodes = copy_body(body, graph, mapped, {**function.defaults, **node.attrs}, before=node)
    made = set(nodes)
    for copied in nodes:
        copied.sources = node.sources or copied.sources
    for value, slot in pairs:
        shown = mapped[slot.value]
        assert shown is not None
        if shown.producer in made:
            shown.name, shown.info = value.name, value.info
        value.replace_by(shown)
    graph.remove(node)
    return nodes
