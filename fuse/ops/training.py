"""Gradient: the derivative of one tensor by others, as a graph of ordinary operators.

ONNX's Gradient names tensors of the graph around it.  ``bind`` resolves the names once, while loading: it copies what
lies between them into a graph of its own, continues that with the vector-Jacobian product of each node in reverse
order, and keeps it as the implied attribute ``derivative``.  So nothing is looked up by name later, passes may change
the graph around as they like, and a saved file has the node as it was.  Source: the operator text of
ai.onnx.preview.training; the products are in every textbook on automatic differentiation (reverse mode).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fuse.errors import ModelError, UnsupportedError, quote
from fuse.ir.copy import Mapped, copy_body
from fuse.ir.dtypes import Array
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ops.record import Info, Trait, operator
from fuse.ops.tape import Tape
from fuse.ops.vjp import RULES

GRADIENT = "ai.onnx.preview.training::Gradient"

Infer = Callable[[Graph, Sequence[Info]], list[Info]]
Run = Callable[[Graph, Sequence[Any]], list[Any]]

_UNBOUND = "the tensors it names depend on each other through an operator without a derivative here"


def _gradient_info(
    *inputs: Info, xs: Sequence[str], y: str, zs: Sequence[str] = (), derivative: Graph | None = None,
    run: Infer | None = None,
) -> list[Info]:  # fmt: skip
    if derivative is None or run is None:
        return [Info()] * len(xs)
    return run(derivative, inputs)[: len(xs)]


@operator(GRADIENT, infer=_gradient_info, traits=Trait.CONTROL)
def gradient(
    *inputs: Array, xs: Sequence[str], y: str, zs: Sequence[str] = (), derivative: Graph | None = None, run: Run
) -> tuple[Array, ...]:
    """The derivative of the sum of ``y`` by each of ``xs``, where ``xs`` and ``zs`` have the values of ``inputs``."""
    if derivative is None:
        raise UnsupportedError(_UNBOUND)
    return tuple(run(derivative, inputs)[: len(xs)])


# ---- the derivative of a graph


def bind(node: Node, find: Callable[[str], Value | None]) -> bool:
    """Give the Gradient ``node`` its derivative graph; ``find`` gives the values visible where it stands, by name.

    Outputs of the graph are the derivatives by each of ``xs``, then the named tensors themselves (``xs``, ``zs``,
    ``y``), which keeps them alive for ``names``.  Raises ``ModelError`` where a name is not defined.  Returns False,
    and leaves the node for the kernel to refuse, where an operator on the way has no derivative here.
    """
    xs, zs = ([_found(n, find) for n in (node.attrs[k].value if k in node.attrs else ())] for k in ("xs", "zs"))
    y = _found(node.attrs["y"].value, find)
    if len(node.inputs) != len(xs) + len(zs):
        raise ModelError(f"takes a value for each of xs and zs ({len(xs) + len(zs)}), {len(node.inputs)} given")
    graph = Graph("derivative")
    try:
        results = derive(graph, xs, zs, y)
    except UnsupportedError:
        graph.release()
        return False
    for value, result in zip(xs, results, strict=True):
        graph.add_output(f"d_{value.name}", result)
    for value in (*xs, *zs, y):
        graph.add_output(value.name, value)
    _prune(graph)
    node.attrs["derivative"] = Attr("GRAPH", graph, implied=True)
    graph.parent = node
    return True


def _found(name: str, find: Callable[[str], Value | None]) -> Value:
    value = find(name)
    if value is None:
        raise ModelError(f"tensor {quote(name)} is defined nowhere before it")
    return value


def names(node: Node, name_of: Callable[[Value], str]) -> dict[str, Any]:
    """What the attributes of a bound Gradient must say in a file that calls each value ``name_of(value)``."""
    count = [len(node.attrs[k].value) if k in node.attrs else 0 for k in ("xs", "zs")]
    shown = [name_of(slot.value) for slot in node.attrs["derivative"].value.outputs[count[0] :]]
    found: dict[str, Any] = {"xs": tuple(shown[: count[0]]), "y": shown[-1]}
    return {**found, "zs": tuple(shown[count[0] : -1])} if "zs" in node.attrs else found


def derive(graph: Graph, xs: Sequence[Value], zs: Sequence[Value], y: Value) -> list[Value]:
    """Fill the empty ``graph``, whose inputs stand for ``xs`` and ``zs``, with y's derivatives by ``xs``.

    Raises ``UnsupportedError`` where a node between has no derivative here.
    """
    moved: Mapped = {}
    for value in (*xs, *zs):
        moved[value] = graph.add_input(Value(value.name, value.type))
    for node in _leading_to(y, set(moved)):
        if any(v in moved for v in _reads(node)):
            _copy(node, graph, moved)
    tape, target = Tape(graph), moved.get(y)
    inputs, forward = graph.inputs[: len(xs)], list(graph.nodes)
    active = _dependent(graph, inputs)
    grads: dict[Value, Value] = {} if target is None else {target: tape.full(1.0, target)}
    for node in reversed(forward):
        if not any(v in active for v in node.outputs):
            continue
        g = grads.get(node.out) if node.outputs and node.outputs[0] is not None else None
        if any(v is not None and v in grads for v in node.outputs[1:]):
            raise UnsupportedError(f"no derivative of {node.op} by its further outputs")
        if g is None:
            continue
        rule = RULES.get(node.op)
        if rule is None:
            raise UnsupportedError(f"no derivative of {node.op}")
        for read, part in zip(node.inputs, rule(tape, node, g), strict=False):
            if read is not None and part is not None and read in active:
                grads[read] = tape("Add", grads[read], part) if read in grads else part
    return [grads[x] if x in grads else tape.full(0.0, x) for x in inputs]


def _prune(graph: Graph) -> None:
    """Drop what nothing reads: the parts of inputs that no derivative was asked for."""
    for node in reversed(list(graph.nodes)):
        if not any(v is not None and v.uses for v in node.outputs):
            graph.remove(node)
    for value in [v for v in graph.constants if not v.uses]:
        graph.drop_const(value)


def _leading_to(y: Value, ends: set[Value]) -> list[Node]:
    """The nodes that ``y`` is computed by, in an order of execution, not going beyond ``ends``."""
    order: dict[Node, None] = {}
    stack = [y]
    while stack:
        node = None if stack[-1] in ends else stack[-1].producer
        if node is None or node in order:
            stack.pop()
            continue
        waiting = [v for v in _reads(node) if v not in ends and v.producer is not None and v.producer not in order]
        if waiting:
            stack.extend(waiting)
        else:
            order[node] = None
            stack.pop()
    return list(order)


def _reads(node: Node) -> list[Value]:
    """What a node reads from its graph and from around it, by its subgraphs as well."""
    reads = [v for v in node.inputs if v is not None]
    inside = {graph for sub in node.subgraphs for graph in sub.walk_graphs()}
    for graph in inside:
        inner = [v for n in graph.nodes for v in n.inputs if v is not None]
        for value in (*inner, *(slot.value for slot in graph.outputs)):
            if (value.owner.graph if isinstance(value.owner, Node) else value.owner) not in inside:
                reads.append(value)
    return reads


def _copy(node: Node, graph: Graph, moved: Mapped) -> None:
    """Copy ``node`` to the end of ``graph``; a bound Gradient becomes its derivative, to be derived once more."""
    if node.op == GRADIENT and "derivative" in node.attrs:
        inner: Graph = node.attrs["derivative"].value
        inside = dict(moved)
        for formal, given in zip(inner.inputs, node.inputs, strict=True):
            inside[formal] = given if given is None else moved.get(given, given)
        copy_body(inner, graph, inside)
        for value, slot in zip(node.outputs, inner.outputs, strict=False):
            if value is not None:
                moved[value] = inside.get(slot.value, slot.value)
        return
    if node.subgraphs:
        raise UnsupportedError(f"no derivative of {node.op}")
    inputs = [None if v is None else moved.get(v, v) for v in node.inputs]
    outputs = [None if v is None else Value(v.name, v.type) for v in node.outputs]
    for value, fresh in zip(node.outputs, outputs, strict=True):
        if value is not None:
            moved[value] = fresh
    graph.append(Node(node.op, inputs, outputs, dict(node.attrs), node.name))


def _dependent(graph: Graph, inputs: Sequence[Value]) -> set[Value | None]:
    """The values of ``graph`` that depend on ``inputs``."""
    found: set[Value | None] = set(inputs)
    for node in graph.nodes:
        if any(v in found for v in node.inputs if v is not None):
            found.update(v for v in node.outputs if v is not None)
    return found
