"""Activations fused into what computes their input: ``Relu(Conv(x, w, b))`` in one node.

Portable: a model-local function such as ``fuse::ConvRelu`` or ``fuse::ConvAddClip``.  onnxruntime: its FusedConv and
FusedGemm, for the activations and dtypes that they take.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fuse.ir.dtypes import FLOAT, FLOATING
from fuse.ir.graph import Attr, Node, Value
from fuse.ops import contrib, fused
from fuse.ops.record import attr
from fuse.passes.build import Builder
from fuse.passes.match import No, no, rewrite
from fuse.passes.rewrite import Context, apply

_ACTIVATIONS = " | ".join(fused.ACTIVATIONS)
_CONTRIB_ACTIVATIONS = " | ".join(contrib.ACTIVATIONS)
_BASES = " | ".join([*fused.BASES, *(f"fuse.{base}Add" for base in fused.RESIDUAL)])


@rewrite(f"({_ACTIVATIONS})(base := ({_BASES})(*xs), *extra)", exact="bits")
def portable(op: Builder, base: Node, xs: tuple[Value | None, ...], extra: tuple[Any, ...], root: Node) -> Value | No:
    """Into the function of both: the base's inputs, then the activation's bounds."""
    if op.info(base.out).dtype not in FLOATING:
        return no("the dtype is not known, or not floating")
    if root.op == "Clip" and op.opset < 11:
        return no("before operator set 11 the bounds of Clip are attributes, which a function cannot pass on")
    residual = base.domain == fused.DOMAIN
    name = base.op_type.removesuffix("Add") if residual else base.op_type
    kind = fused.Fused(name, residual, root.op)
    width = len(fused.BASES[name]) + residual
    inputs = [*xs, *[None] * (width - len(xs)), *extra]
    attrs: dict[str, Attr] = dict(base.attrs)
    attrs |= {fused.PREFIX + n: replace(a, implied=False) for n, a in root.attrs.items()}
    return op.node(kind.op, inputs, attrs)


@rewrite(f"({_CONTRIB_ACTIVATIONS})(base := (Conv | Gemm | com.microsoft.FusedConv)(*xs), *extra)", exact="bits")
def runtime(op: Builder, base: Node, xs: tuple[Value | None, ...], extra: tuple[Any, ...], root: Node) -> Value | No:
    """Into onnxruntime's fused operators, whose parameters are attributes."""
    if op.info(base.out).dtype != FLOAT:
        return no("onnxruntime's fused operators take float32 only")
    if "activation" in base.attrs:
        return no("it has an activation already")
    parameters = _parameters(root, extra)
    if isinstance(parameters, No):
        return parameters
    attrs: dict[str, Any] = {**base.attrs, "activation": root.op}
    if base.op != "Gemm":
        attrs |= {"activation_params": Attr("FLOATS", parameters)} if parameters else {}
        return op.node(contrib.FUSED_CONV, list(xs), attrs)
    if root.op == "Clip":
        return no("onnxruntime's FusedGemm takes no Clip")
    attrs |= dict(zip(("activation_alpha", "activation_beta"), parameters, strict=False))
    return op.node(contrib.FUSED_GEMM, list(xs), attrs)


def _parameters(root: Node, extra: tuple[Value | None, ...]) -> tuple[float, ...] | No:
    if root.op != "Clip":
        return tuple(float(attr(root, name)) for name in contrib.ACTIVATIONS[root.op])
    bounds = [float(np.finfo(np.float32).min), float(np.finfo(np.float32).max)]
    for i, value in enumerate(extra):
        if value is not None:
            if not value.is_const:
                return no("a bound of the Clip is not a constant")
            bounds[i] = float(value.array.reshape(-1)[0])
    return tuple(bounds) if len([v for v in extra if v is not None]) == 2 else no("an open bound would clip infinities")


RULES = {"portable": (portable,), "ort": (runtime,)}


def fuse_activation(context: Context) -> None:
    """Fuse each activation into the layer before it, as the target allows."""
    apply(RULES.get(context.target, ()), context)
