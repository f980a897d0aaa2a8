"""Fused operators: a convolution, product or sum with what follows it, in one node.

``fuse::ConvAddRelu`` is Conv, then Add of a residual, then Relu.  Each is an operator here (one kernel that works in
place on the fresh result) and an ONNX model-local function in the file, so that any runtime can run it.  The two are
one definition: a file's function is taken for the operator only if its body is the one written here, and expanded
otherwise.  ``contrib`` holds onnxruntime's own fused operators, which say the same in another spelling.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.ir.copy import copy_graph, inline
from fuse.ir.dtypes import Array
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ops.infer import broadcast
from fuse.ops.record import OPERATORS, Info, Operator, Trait, expect

DOMAIN = "fuse"
VERSION = 1
PREFIX = "activation_"

#: Operators that can take an epilogue, with the names of their inputs in the function.
BASES: dict[str, tuple[str, ...]] = {
    "Conv": ("X", "W", "B"),
    "ConvTranspose": ("X", "W", "B"),
    "Gemm": ("A", "B", "C"),
    "MatMul": ("A", "B"),
    "Add": ("A", "B"),
}

#: Those whose result may have a tensor of the same shape added before the activation.
RESIDUAL = ("Conv",)

#: Activations, with the names of their inputs after the first.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "LeakyRelu": (),
    "Sigmoid": (),
    "Tanh": (),
    "HardSwish": (),
    "HardSigmoid": (),
    "Elu": (),
    "Selu": (),
    "Celu": (),
    "Softplus": (),
    "Softsign": (),
    "ThresholdedRelu": (),
    "Clip": ("min", "max"),
}


@dataclass(frozen=True, slots=True)
class Fused:
    """What a fused operator consists of; ``activation`` is empty where there is none."""

    base: str
    residual: bool
    activation: str

    @property
    def op(self) -> str:
        """The operator's name in the IR."""
        return f"{DOMAIN}::{self.base}{'Add' * self.residual}{self.activation}"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs' names: the base's, the residual, the activation's."""
        return BASES[self.base] + ("Z",) * self.residual + (ACTIVATIONS[self.activation] if self.activation else ())


FUSED: dict[str, Fused] = {}


def in_place(activation: str, y: Array, extra: tuple[Array | None, ...], attrs: dict[str, Any]) -> Array:
    """Apply an activation to a fresh array, over it where that is simple."""
    if activation == "Relu":
        return np.maximum(y, y.dtype.type(0), out=y)
    return np.asarray(OPERATORS[activation].kernel(y, *extra, **attrs))


def split_attrs(attrs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base's attributes and the activation's."""
    own = {n: v for n, v in attrs.items() if not n.startswith(PREFIX)}
    return own, {n.removeprefix(PREFIX): v for n, v in attrs.items() if n.startswith(PREFIX)}


def _run(fused: Fused, *inputs: Array | None, **attrs: Any) -> Array:
    own, after = split_attrs(attrs)
    width = len(BASES[fused.base])
    y = np.asarray(OPERATORS[fused.base].kernel(*inputs[:width], **own))
    if fused.residual:
        residual = inputs[width]
        assert residual is not None
        y = np.add(y, residual, out=y if residual.shape == y.shape else None)
    rest = inputs[width + fused.residual :]
    return in_place(fused.activation, y, rest, after) if fused.activation else y


def _infer(fused: Fused, *inputs: Info | None, **attrs: Any) -> Info:
    own, _ = split_attrs(attrs)
    base = OPERATORS[fused.base].infer
    assert base is not None
    width = len(BASES[fused.base])
    result: Info = base(*inputs[:width], **own)
    if fused.residual:
        expect(len(inputs) > width and inputs[width] is not None, "the residual is missing")
        result = broadcast(result, inputs[width])
    return Info(result.type)


def _register(fused: Fused) -> None:
    base = OPERATORS[fused.base]
    defaults = dict(base.defaults)
    if fused.activation:
        defaults |= {PREFIX + n: v for n, v in OPERATORS[fused.activation].defaults.items()}
    FUSED[fused.op] = fused
    OPERATORS[fused.op] = Operator(
        op=fused.op,
        kernel=functools.partial(_run, fused),
        infer=functools.partial(_infer, fused),
        traits=base.traits & Trait.ELEMENTWISE,
        defaults=defaults,
        required=base.required,
        min_inputs=base.min_inputs,
        max_inputs=len(fused.inputs),
        wants_outputs=False,
    )


def register_all() -> None:
    """Make the records; called once the plain operators have theirs."""
    for base in BASES:
        for activation in ["", *ACTIVATIONS]:
            for residual in (False, True) if base in RESIDUAL else (False,):
                if residual or activation:
                    _register(Fused(base, residual, activation))


# ---- the same as a function in the file


@functools.cache
def definition(op: str) -> Function:
    """The model-local function that says what ``op`` computes, in operators of the default domain."""
    fused, record = FUSED[op], OPERATORS[op]
    graph = Graph(op.removeprefix(f"{DOMAIN}::"))
    given = [graph.add_input(Value(name)) for name in fused.inputs]
    width = len(BASES[fused.base])
    own = {n: v for n, v in record.defaults.items() if not n.startswith(PREFIX)}
    y = step(graph, fused.base, given[:width], {n: Attr(_kind(v), None, reference=n) for n, v in own.items()})
    if fused.residual:
        y = step(graph, "Add", [y, given[width]], {})
    if fused.activation:
        rest = given[width + fused.residual :]
        after = {n.removeprefix(PREFIX): n for n in record.defaults if n.startswith(PREFIX)}
        kinds = {n: _kind(record.defaults[full]) for n, full in after.items()}
        attrs = {n: Attr(kinds[n], None, reference=full) for n, full in after.items()}
        y = step(graph, fused.activation, [y, *rest], attrs)
    y.name = "Y"
    graph.add_output("Y", y)
    return Function(DOMAIN, graph.name, "", graph, tuple(record.defaults))


def step(graph: Graph, op: str, inputs: Sequence[Value | None], attrs: dict[str, Attr]) -> Value:
    """Append a node with one result to ``graph``; returns the result."""
    value = Value(op.lower())
    graph.append(Node(op, inputs, [value], attrs))
    return value


def _kind(default: Any) -> str:
    return {int: "INT", float: "FLOAT", str: "STRING"}.get(type(default), "INTS")


def attach(model: Model) -> None:
    """Give the model the functions of the fused operators that it uses, and take away those that it does not."""
    used = {node.op for graph in model.graphs() for node in graph.walk() if node.op in FUSED}
    for key in [k for k, f in model.functions.items() if f.domain == DOMAIN and k[0] in FUSED and k[0] not in used]:
        del model.functions[key]
    for op in sorted(used):
        template = definition(op)
        opsets = {"": model.opsets[""]}
        model.functions.setdefault(
            (op, ""),
            Function(DOMAIN, template.name, "", copy_graph(template.graph, {}), template.attributes, {}, opsets),
        )
    if used:
        model.opsets.setdefault(DOMAIN, VERSION)
        model.ir_version = max(model.ir_version, 8)
    elif not any(node.domain == DOMAIN for graph in model.graphs() for node in graph.walk()):
        model.opsets.pop(DOMAIN, None)


def restore(model: Model) -> None:
    """After loading: expand every call of a ``fuse`` function whose body is not the one defined here."""
    foreign = {
        key: f
        for key, f in model.functions.items()
        if f.domain == DOMAIN and not (key[0] in FUSED and _alike(f, definition(key[0])))
    }
    while foreign:
        calls = [n for g in model.graphs() for n in g.walk() if (n.op, n.overload) in foreign]
        for node in calls:
            inline(node, foreign[node.op, node.overload])
        if not calls:
            break
    for key in foreign:
        del model.functions[key]


def _alike(a: Function, b: Function) -> bool:
    """True where the two functions have the same interface and the same nodes on the same values."""
    if a.attributes != b.attributes or a.defaults or len(a.graph) != len(b.graph) or a.graph.constants:
        return False
    if len(a.graph.inputs) != len(b.graph.inputs) or len(a.graph.outputs) != len(b.graph.outputs):
        return False
    paired = dict(zip(a.graph.inputs, b.graph.inputs, strict=True))
    for x, y in zip(a.graph.nodes, b.graph.nodes, strict=True):
        same = (
            x.op == y.op
            and [paired.get(v) if v is not None else None for v in x.inputs] == list(y.inputs)
            and len(x.outputs) == len(y.outputs)
            and {n: (t.kind, t.value, t.reference) for n, t in x.attrs.items()}
            == {n: (t.kind, t.value, t.reference) for n, t in y.attrs.items()}
        )
        if not same:
            return False
        paired.update((v, w) for v, w in zip(x.outputs, y.outputs, strict=True) if v is not None and w is not None)
    return [paired.get(s.value) for s in a.graph.outputs] == [s.value for s in b.graph.outputs]
