"""onnxruntime's fused operators: FusedConv and FusedGemm of the domain ``com.microsoft``.

They are what the ``ort`` target writes and what onnxruntime's own offline optimizer leaves in files; ``expansion`` says
each in standard operators, so that such a file can become one for any runtime.
Source: onnxruntime's operator documentation (docs/ContribOperators.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.ir.dtypes import FLOAT, Array
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ops.fused import in_place, step
from fuse.ops.record import OPERATORS, Info, operator

DOMAIN = "com.microsoft"
FUSED_CONV = f"{DOMAIN}::FusedConv"
FUSED_GEMM = f"{DOMAIN}::FusedGemm"

#: Activations that onnxruntime's fused operators take, with the order of their parameters.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "LeakyRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def _activate(y: Array, activation: str, parameters: tuple[float, ...]) -> Array:
    if not activation:
        return y
    if activation == "Clip":
        bounds = tuple(np.asarray(p, y.dtype) for p in parameters)
        return in_place("Clip", y, bounds, {})
    return in_place(activation, y, (), dict(zip(ACTIVATIONS[activation], parameters, strict=False)))


def _contrib_conv_info(x: Info, w: Info, b: Info | None = None, z: Info | None = None, **attrs: Any) -> Info:
    own = {n: v for n, v in attrs.items() if not n.startswith("activation")}
    result: Info = OPERATORS["Conv"].infer(x, w, b, **own)  # type: ignore[misc]
    return result


@operator(FUSED_CONV, infer=_contrib_conv_info)
def fused_conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    z: Array | None = None,
    *,
    activation: str = "",
    activation_params: tuple[float, ...] = (),
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Array:
    """Onnxruntime's FusedConv: Conv, plus ``z`` where given, then the activation."""
    geometry = {
        "auto_pad": auto_pad, "dilations": dilations, "group": group, "kernel_shape": kernel_shape,
        "pads": pads, "strides": strides,
    }  # fmt: skip
    y = np.asarray(OPERATORS["Conv"].kernel(x, w, b, **geometry))
    if z is not None:
        np.add(y, z, out=y)
    return _activate(y, activation, activation_params)


def _contrib_gemm_info(a: Info, b: Info, c: Info | None = None, **attrs: Any) -> Info:
    own = {n: v for n, v in attrs.items() if not n.startswith("activation")}
    result: Info = OPERATORS["Gemm"].infer(a, b, c, **own)  # type: ignore[misc]
    return result


@operator(FUSED_GEMM, infer=_contrib_gemm_info)
def fused_gemm(
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    activation: str = "",
    activation_alpha: float = 0.0,
    activation_beta: float = 0.0,
    activation_gamma: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Onnxruntime's FusedGemm: Gemm, then the activation."""
    y = np.asarray(OPERATORS["Gemm"].kernel(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB))
    return _activate(y, activation, (activation_alpha, activation_beta)[: len(ACTIVATIONS.get(activation, ()))])


# ---- the same in standard operators


def expansion(node: Node) -> Function | None:
    """What a FusedConv or FusedGemm computes, as a function of standard operators; None for an unknown activation."""
    conv = node.op == FUSED_CONV
    activation = node.attrs["activation"].value if "activation" in node.attrs else ""
    if activation and activation not in ACTIVATIONS:
        return None
    graph = Graph(node.op_type)
    given = [graph.add_input(Value(name)) for name in ("X", "W", "B", "Z")[: len(node.inputs)]]
    own = {name: a for name, a in node.attrs.items() if not name.startswith("activation")}
    present: list[Value | None] = [v if node.input(i) is not None else None for i, v in enumerate(given[:3])]
    y = step(graph, "Conv" if conv else "Gemm", present, own)
    if conv and node.input(3) is not None:
        y = step(graph, "Add", [y, given[3]], {})
    if activation == "Clip":
        bounds = [graph.add_const(np.asarray(p, FLOAT)) for p in _parameters(node)]
        y = step(graph, "Clip", [y, *bounds], {})
    elif activation:
        named = zip(ACTIVATIONS[activation], _parameters(node), strict=False)
        y = step(graph, activation, [y], {name: Attr("FLOAT", value) for name, value in named})
    graph.add_output("Y", y)
    return Function(DOMAIN, node.op_type, "", graph)


def _parameters(node: Node) -> tuple[float, ...]:
    if node.op == FUSED_CONV:
        return tuple(node.attrs["activation_params"].value) if "activation_params" in node.attrs else ()
    names = ("activation_alpha", "activation_beta")
    return tuple(node.attrs[n].value for n in names if n in node.attrs)


def attach(model: Model) -> None:
    """Import the domain where the model uses it."""
    if any(node.domain == DOMAIN for graph in model.graphs() for node in graph.walk()):
        model.opsets.setdefault(DOMAIN, 1)
