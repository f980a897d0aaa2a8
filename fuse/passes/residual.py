"""Residual sums: ``Conv(x, w, b) + z`` in one node, where ``z`` has exactly the convolution's shape.

Portable: a ``fuse::ConvAdd`` function.  onnxruntime: the fourth input of its FusedConv, for float32.
"""

from __future__ import annotations

from fuse.ir.dtypes import FLOAT, FLOATING
from fuse.ir.graph import Node, Value
from fuse.ops import contrib
from fuse.passes.build import Builder, static
from fuse.passes.match import No, no, rewrite
from fuse.passes.rewrite import Context, apply


def _fits(op: Builder, conv: Node, z: Value) -> str:
    """Why ``z`` cannot be added inside the convolution; empty where it can."""
    ours, other = op.info(conv.out), op.info(z)
    if not static(ours) or not static(other):
        return "a shape is not known"
    if ours.type != other.type:
        return "the sum broadcasts"
    return "" if ours.dtype in FLOATING else "the sum is not of floating dtype"


@rewrite("(Add | Sum)(conv := Conv(x, w, *rest), z)", exact="bits")
def portable(op: Builder, conv: Node, x: Value, w: Value, rest: tuple[Value | None, ...], z: Value) -> Value | No:
    """Into ``fuse::ConvAdd``."""
    reason = _fits(op, conv, z)
    if reason:
        return no(reason)
    bias = rest[0] if rest else None
    return op.node("fuse::ConvAdd", [x, w, bias, z], conv.attrs)


@rewrite("(Add | Sum)(conv := Conv(x, w, *rest), z)", exact="bits")
def runtime(op: Builder, conv: Node, x: Value, w: Value, rest: tuple[Value | None, ...], z: Value) -> Value | No:
    """Into onnxruntime's FusedConv, which takes two spatial dims and float32."""
    reason = _fits(op, conv, z)
    if reason:
        return no(reason)
    if op.info(z).dtype != FLOAT:
        return no("onnxruntime's FusedConv takes float32 only")
    bias = rest[0] if rest else None
    return op.node(contrib.FUSED_CONV, [x, w, bias, z], conv.attrs)


RULES = {"portable": (portable,), "ort": (runtime,)}


def fuse_residual(context: Context) -> None:
    """Fuse each residual sum into its convolution, as the target allows."""
    apply(RULES.get(context.target, ()), context)
