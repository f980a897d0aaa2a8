"""Copies: of a model, of a graph, and of a function's body into the place where it is called."""

from __future__ import annotations

from collections.abc import Mapping

from fuse.ir.graph import Attr, Function, Graph, Model, Node, Value

Mapped = dict[Value, Value | None]
Bindings = Mapping[str, Attr]


def copy_model(model: Model) -> Model:
    """A model of its own: the same names and the same (read-only) arrays, no node or value shared."""
    functions = {
        key: Function(
            f.domain, f.name, f.overload, copy_graph(f.graph, {}), f.attributes, f.defaults, f.opsets, f.extra
        )
        for key, f in model.functions.items()
    }
    return Model(
        copy_graph(model.graph, {}), model.ir_version, dict(model.opsets), functions, model.extra, model.source
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
        assert shown is not None
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
    result._data = value._data
    result.info, result.extra, result.origin = value.info, value.extra, value.origin
    return result


def _copy_node(node: Node, mapped: Mapped, bindings: Bindings | None) -> Node:
    outputs: list[Value | None] = []
    for value in node.outputs:
        copied = None if value is None else _copy_value(value)
        if value is not None:
            mapped[value] = copied
        outputs.append(copied)
    attrs: dict[str, Attr] = {}
    for name, attr in node.attrs.items():
        bound = _bound(attr, mapped, bindings)
        if bound is not None:
            attrs[name] = bound
    inputs = [None if v is None else mapped.get(v, v) for v in node.inputs]
    result = Node(node.op, inputs, outputs, attrs, node.name)
    result.overload, result.extra, result.sources = node.overload, node.extra, node.sources
    return result


def _bound(attr: Attr, mapped: Mapped, bindings: Bindings | None) -> Attr | None:
    """The attribute in the copy: a reference resolved (None where the call leaves it out), graphs copied."""
    if attr.reference:
        return attr if bindings is None else bindings.get(attr.reference)
    if attr.kind == "GRAPH":
        return Attr(attr.kind, copy_graph(attr.value, mapped, bindings), implied=attr.implied, extra=attr.extra)
    if attr.kind == "GRAPHS":
        return Attr(attr.kind, tuple(copy_graph(g, mapped, bindings) for g in attr.value), extra=attr.extra)
    return attr


def inline(node: Node, function: Function) -> list[Node]:
    """Put the body of ``function`` in the place of ``node``, which calls it; returns the new nodes."""
    graph = node.graph
    assert graph is not None
    mapped: Mapped = {value: node.input(i) for i, value in enumerate(function.graph.inputs)}
    nodes = copy_body(function.graph, graph, mapped, {**function.defaults, **node.attrs}, before=node)
    for copied in nodes:
        copied.sources = node.sources or copied.sources
    for value, slot in zip(node.outputs, function.graph.outputs, strict=False):
        shown = mapped.get(slot.value)
        if value is None or shown is None:
            continue
        if shown.producer in nodes:
            shown.name, shown.info = value.name, value.info
        value.replace_by(shown)
    graph.remove(node)
    return nodes
