"""MoE of the domain ``com.microsoft``: each token goes through the few small networks that a router chooses for it.

Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuse.errors import UnsupportedError, quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.activation import gelu, swish
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import agreed, divided, ranked
from fuse.ops.infer import common_dtype
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.softmax import softmax

PLAIN = ("relu", "gelu", "silu", "identity", "relu2")
GATED = ("swiglu", "geglu")
"""Activations of one tensor, and those of a tensor and its gate."""


@dataclass(frozen=True, slots=True)
class Activation:
    """What stands between the two layers of an expert; ``fusion`` tells how a gate lies beside what it gates.

    0 in a layer of its own, 1 element by element, 2 half by half.
    """

    kind: str
    fusion: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    limit: float | None = None
    limit_after: bool = False

    def check(self) -> None:
        """Raise ``ShapeError`` for what does not exist."""
        expect(
            self.kind in PLAIN + GATED, f"activation_type {quote(self.kind)} is not one of {', '.join(PLAIN + GATED)}"
        )
        expect(self.fusion in (0, 1, 2), f"swiglu_fusion {self.fusion} is not 0, 1 or 2")
        expect(self.kind != "geglu" or self.fusion > 0, "geglu needs swiglu_fusion 1 or 2")

    @property
    def doubled(self) -> bool:
        """True where the first layer makes the gate too."""
        return self.kind in GATED and self.fusion > 0

    def plain(self, x: Array) -> Array:
        """An activation of one tensor; Gelu is the one by the hyperbolic tangent, as in onnxruntime."""
        if self.kind == "gelu":
            return np.asarray(gelu(x, approximate="tanh"))
        if self.kind == "silu":
            return np.asarray(swish(x))
        if self.kind == "identity":
            return x
        y = np.maximum(x, 0)
        return np.square(y) if self.kind == "relu2" else y

    def gated(self, gate: Array, x: Array) -> Array:
        """``x`` times its activated gate, both clamped where there is a limit."""
        if self.kind == "geglu":
            return np.asarray(gelu(gate, approximate="tanh")) * x
        limit = np.inf if self.limit is None else self.limit
        if not self.limit_after:
            gate = np.minimum(gate, gate.dtype.type(limit))
        y = np.asarray(swish(gate, alpha=self.alpha))
        if self.limit_after:
            y = np.minimum(y, y.dtype.type(limit))
        return y * (np.clip(x, -limit, limit).astype(x.dtype) + x.dtype.type(self.beta))

    def halves(self, x: Array) -> tuple[Array, Array]:
        """The gate and what it gates, from one tensor."""
        return (x[..., ::2], x[..., 1::2]) if self.fusion == 1 else tuple(np.split(x, 2, axis=-1))  # type: ignore[return-value]


def _check(x: Shape | None, router: Shape | None, fc1: Shape | None, fc2: Shape | None, k: int, doubled: bool) -> None:
    ranked(x, (2, 3), "the input")
    ranked(router, (2,), "router_probs")
    ranked(fc1, (3,), "fc1_experts_weights")
    ranked(fc2, (3,), "fc2_experts_weights")
    blank: Shape = (None,) * 3
    first, second, width = fc1 or blank, fc2 or blank, None if x is None else x[-1]
    experts = agreed("the numbers of experts", None if router is None else router[1], first[0], second[0])
    expect(k >= 1 and (not isinstance(experts, int) or k <= experts), f"k is {k} for {experts} experts")
    agreed("the widths of the input and the experts", width, first[2], second[1])
    inner: Dim = divided(first[1], 2, "fc1_experts_weights") if doubled else first[1]
    agreed("the inner widths of the experts", inner, second[2])


def _info(
    x: Info,
    router_probs: Info,
    fc1_experts_weights: Info,
    fc1_experts_bias: Info | None,
    fc2_experts_weights: Info,
    fc2_experts_bias: Info | None = None,
    fc3_experts_weights: Info | None = None,
    fc3_experts_bias: Info | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Info:
    activation = Activation(activation_type, swiglu_fusion)
    activation.check()
    _check(x.shape, router_probs.shape, fc1_experts_weights.shape, fc2_experts_weights.shape, k, activation.doubled)
    return tensor(common_dtype(x, router_probs, fc1_experts_weights, fc2_experts_weights), x.shape)


@operator("com.microsoft::MoE", infer=_info)
@at_run_time
def moe(
    x: Array,
    router_probs: Array,
    fc1_experts_weights: Array,
    fc1_experts_bias: Array | None,
    fc2_experts_weights: Array,
    fc2_experts_bias: Array | None = None,
    fc3_experts_weights: Array | None = None,
    fc3_experts_bias: Array | None = None,
    *,
    activation_alpha: float = 1.0,
    activation_beta: float = 0.0,
    activation_type: str = "relu",
    k: int = 1,
    normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0,
    swiglu_limit: float | None = None,
    swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Array:
    """For each token, the sum of its ``k`` best experts by ``router_probs`` (tokens, experts), weighted by a softmax.

    An expert is two layers with an activation between, and a third one for a gate that has its own.  Of equal scores
    the later expert is chosen, as in onnxruntime.
    """
    if use_sparse_mixer:
        raise UnsupportedError("MoE with use_sparse_mixer has no kernel")
    activation = Activation(
        activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit,
        bool(swiglu_limit_after_activation),
    )  # fmt: skip
    activation.check()
    _check(x.shape, router_probs.shape, fc1_experts_weights.shape, fc2_experts_weights.shape, k, activation.doubled)
    separate = activation.kind in GATED and not activation.doubled
    expect(separate == (fc3_experts_weights is not None), "a third layer is for a gate that has its own, and no other")
    tokens = wide(x).reshape(-1, x.shape[-1])
    expect(len(tokens) == len(router_probs), f"{len(tokens)} tokens but router_probs for {len(router_probs)}")
    chosen, shares = _routes(wide(router_probs), k, bool(normalize_routing_weights))
    y = np.zeros_like(tokens)
    for expert in range(router_probs.shape[1]):
        token, place = np.nonzero(chosen == expert)
        if not token.size:
            continue
        inner = _layer(tokens[token], fc1_experts_weights, fc1_experts_bias, expert)
        if fc3_experts_weights is not None:
            inner = activation.gated(inner, _layer(tokens[token], fc3_experts_weights, fc3_experts_bias, expert))
        elif activation.doubled:
            inner = activation.gated(*activation.halves(inner))
        else:
            inner = activation.plain(inner)
        y[token] += shares[token, place][:, None] * _layer(inner, fc2_experts_weights, fc2_experts_bias, expert)
    return narrow(y.reshape(x.shape), x)


def _layer(x: Array, weights: Array, bias: Array | None, expert: int) -> Array:
    y = np.matmul(x, wide(weights[expert]).T)
    return y if bias is None else y + wide(bias[expert])


def _routes(scores: Array, k: int, normalised: bool) -> tuple[Array, Array]:
    """The ``k`` experts of each token and their shares."""
    chosen = np.argsort(scores, axis=1, kind="stable")[:, ::-1][:, :k]
    shares = np.take_along_axis(softmax(scores, axis=1), chosen, axis=1)
    return chosen, shares / shares.sum(axis=1, keepdims=True) if normalised else shares
