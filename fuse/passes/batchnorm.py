"""BatchNormalization folded into the convolution or product before it.

Inference-time normalisation is ``y * s + t`` for each channel, with ``s = scale / sqrt(var + epsilon)`` and
``t = bias - mean * s``; ``s`` multiplies into the weight's output channels and ``t`` into the bias.  The new weights
are computed in float64 and rounded once.  The old weight stays as it is for whoever else reads it.
"""

from __future__ import annotations

import numpy as np

from fuse.ir.dtypes import FLOATING, Array
from fuse.ir.graph import Node, Value
from fuse.ops.record import attr
from fuse.passes.build import Builder
from fuse.passes.match import No, no, rewrite
from fuse.passes.rewrite import Context, apply


def scale_and_shift(root: Node, scale: Array, bias: Array, mean: Array, var: Array) -> tuple[Array, Array] | No:
    """``s`` and ``t`` of the normalisation in float64, one for each channel; a refusal where they are not finite."""
    if attr(root, "training_mode") or any(v is not None and v.uses for v in root.outputs[1:]):
        return no("it is in training mode")
    wide = [np.asarray(a, dtype=np.float64).reshape(-1) for a in (scale, bias, mean, var)]
    deviation = wide[3] + float(attr(root, "epsilon"))
    if not bool((deviation > 0).all()):
        return no("a variance is negative")
    s = wide[0] / np.sqrt(deviation)
    t = wide[1] - wide[2] * s
    return (s, t) if bool(np.isfinite(s).all() and np.isfinite(t).all()) else no("a channel's scale is not finite")


def _rounded(wide: Array, like: Array) -> Array | No:
    """``wide`` in the dtype of ``like``; a refusal where a finite weight would not stay finite."""
    with np.errstate(over="ignore"):
        narrow = wide.astype(like.dtype)
    lost = np.isfinite(wide) & ~np.isfinite(narrow.astype(np.float64))
    return no("a weight would overflow") if bool(lost.any()) else narrow


def _bias(rest: tuple[Value | None, ...]) -> Array | No | None:
    """The layer's bias: its array, None where it has none, a refusal where it is not a constant."""
    value = rest[0] if rest else None
    if value is None:
        return None
    return value.array if value.is_const else no("the bias is not a constant")


@rewrite("BatchNormalization(conv := (Conv | ConvTranspose)(x, W, *rest), SCALE, BIAS, MEAN, VAR)", exact="close")
def convolution(
    op: Builder, conv: Node, x: Value, W: Array, rest: tuple[Value | None, ...],
    SCALE: Array, BIAS: Array, MEAN: Array, VAR: Array, root: Node,
) -> Value | No:  # fmt: skip
    """Conv and ConvTranspose: the output channel is the weight's first axis, or its second within each group."""
    folded = scale_and_shift(root, SCALE, BIAS, MEAN, VAR)
    bias = _bias(rest)
    if isinstance(folded, No) or isinstance(bias, No):
        return folded if isinstance(folded, No) else bias  # type: ignore[return-value]
    if W.dtype not in FLOATING or W.dtype != SCALE.dtype:
        return no("the weight and the scale have different dtypes")
    s, t = folded
    if conv.op == "Conv":
        shaped = s.reshape((-1,) + (1,) * (W.ndim - 1))
    else:
        group = int(attr(conv, "group"))
        per_input = np.repeat(s.reshape(group, -1), W.shape[0] // group, axis=0)  # [inputs, outputs of the group]
        shaped = per_input.reshape(per_input.shape + (1,) * (W.ndim - 2))
    weight = _rounded(W.astype(np.float64) * shaped, W)
    shift = _rounded((0.0 if bias is None else bias.astype(np.float64)) * s + t, W)
    if isinstance(weight, No) or isinstance(shift, No):
        return no("a weight would overflow")
    names = [conv.input(1), conv.input(2)]
    w = op.const(weight, names[0].name if names[0] is not None else "")
    b = op.const(shift, names[1].name if names[1] is not None else f"{w.name}_bias")
    return op.node(conv.op, [x, w, b], conv.attrs)


@rewrite("BatchNormalization(gemm := Gemm(x, W, *rest), SCALE, BIAS, MEAN, VAR)", exact="close")
def product(
    op: Builder, gemm: Node, x: Value, W: Array, rest: tuple[Value | None, ...],
    SCALE: Array, BIAS: Array, MEAN: Array, VAR: Array, root: Node,
) -> Value | No:  # fmt: skip
    """Gemm: the channel is a column of the product.  ``alpha`` stays, ``beta`` multiplies into the new bias."""
    folded = scale_and_shift(root, SCALE, BIAS, MEAN, VAR)
    bias = _bias(rest)
    if isinstance(folded, No) or isinstance(bias, No):
        return folded if isinstance(folded, No) else bias  # type: ignore[return-value]
    if W.dtype not in FLOATING or W.dtype != SCALE.dtype:
        return no("the weight and the scale have different dtypes")
    if bias is not None and bias.ndim > 1 and bias.shape[0] != 1:
        return no("the bias differs from row to row")
    s, t = folded
    weight = _rounded(W.astype(np.float64) * (s[:, None] if attr(gemm, "transB") else s), W)
    before = 0.0 if bias is None else bias.astype(np.float64).reshape(-1) * float(attr(gemm, "beta"))
    shift = _rounded(before * s + t, W)
    if isinstance(weight, No) or isinstance(shift, No):
        return no("a weight would overflow")
    old = gemm.input(1)
    w = op.const(weight, old.name if old is not None else "")
    attrs = {name: a for name, a in gemm.attrs.items() if name != "beta"}
    return op.node("Gemm", [x, w, op.const(shift, f"{w.name}_bias")], attrs)


RULES = (convolution, product)


def fold_batchnorm(context: Context) -> None:
    """Fold each BatchNormalization into the layer before it."""
    apply(RULES, context)
