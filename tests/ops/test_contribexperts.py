"""MoE against onnxruntime, and against its formula where that has no kernel."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError, UnsupportedError
from tests.ops.cases import infer, kernel, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import close, normal

T, H, W, E = 7, 8, 6, 4
X, ROUTER = normal(1, T, H), normal(2, T, E)
FC1, B1, FC2, B2 = normal(3, E, W, H), normal(4, E, W), normal(5, E, H, W), normal(6, E, H)
WIDE, WIDE_BIAS, FC3, B3 = normal(7, E, 2 * W, H), normal(8, E, 2 * W), normal(9, E, W, H), normal(10, E, W)


def moe(*inputs, **attrs):
    return agree("MoE", [X, ROUTER, *inputs], eps=5e-6, **attrs)[0]


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity"])
@pytest.mark.parametrize(("k", "normalised"), [(1, 0), (2, 0), (2, 1), (4, 1)])
def test_plain(activation, k, normalised):
    moe(FC1, B1, FC2, B2, activation_type=activation, k=k, normalize_routing_weights=normalised)


def test_optional_biases_and_batches():
    moe(FC1, None, FC2)
    moe(FC1, None, FC2, B2, k=3)
    y = agree("MoE", [X[None], ROUTER, FC1, B1, FC2, B2], eps=5e-6)[0]
    assert y[0].tolist() == moe(FC1, B1, FC2, B2).tolist()


def test_of_equal_scores_the_later_expert_is_chosen():
    router = np.array([[1, 2, 2, 0], [2, 1, 2, 2], [0, 0, 0, 0]], np.float32)
    for k in (1, 2):
        agree("MoE", [X[:3], router, FC1, B1, FC2, B2], eps=5e-6, k=k)


@pytest.mark.parametrize("limit", [None, 0.5])
def test_interleaved_gates(limit):
    attrs = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.7, "activation_beta": 1.0, "k": 2}
    moe(WIDE, WIDE_BIAS, FC2, B2, **attrs, **({} if limit is None else {"swiglu_limit": limit}))


def expert(gate, x, kind, alpha=1.0, beta=0.0, limit=np.inf, after=False):
    if kind == "geglu":
        return gate / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * x
    gate = gate if after else np.minimum(gate, limit)
    y = gate / (1 + np.exp(-alpha * gate))
    return (np.minimum(y, limit) if after else y) * (np.clip(x, -limit, limit) + beta)


def exact(kind, fusion, **options):
    """One token at a time, in float64."""
    y = np.zeros((T, H))
    for t in range(T):
        shares = np.exp(ROUTER[t].astype(np.float64))
        e = int(np.argmax(shares))
        if fusion == 0:
            gate, x = FC1[e].astype(np.float64) @ X[t] + B1[e], FC3[e].astype(np.float64) @ X[t] + B3[e]
        else:
            both = WIDE[e].astype(np.float64) @ X[t] + WIDE_BIAS[e]
            gate, x = (both[::2], both[1::2]) if fusion == 1 else (both[:W], both[W:])
        y[t] = shares[e] / shares.sum() * (FC2[e] @ expert(gate, x, kind, **options) + B2[e])
    return y


@pytest.mark.parametrize("fusion", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1])
def test_gates_in_each_place(fusion, after):
    layers = [FC1, B1, FC2, B2, FC3, B3] if fusion == 0 else [WIDE, WIDE_BIAS, FC2, B2]
    attrs = {"activation_type": "swiglu", "swiglu_fusion": fusion, "activation_alpha": 1.7, "activation_beta": 0.5}
    got = run("MoE", [X, ROUTER, *layers], **attrs, swiglu_limit=0.8, swiglu_limit_after_activation=after)[0]
    close(got, exact("swiglu", fusion, alpha=1.7, beta=0.5, limit=0.8, after=bool(after)))


def test_other_activations():
    for fusion in (1, 2):
        got = run("MoE", [X, ROUTER, WIDE, WIDE_BIAS, FC2, B2], activation_type="geglu", swiglu_fusion=fusion)[0]
        close(got, exact("geglu", fusion))
    got = run("MoE", [X, ROUTER, FC1, B1, FC2, B2], activation_type="relu2")[0]
    e = np.argmax(ROUTER, axis=1)
    share = np.exp(ROUTER.astype(np.float64))
    share = (share / share.sum(1, keepdims=True))[np.arange(T), e][:, None]
    inner = np.maximum(np.einsum("tih,th->ti", FC1[e].astype(np.float64), X) + B1[e], 0) ** 2
    close(got, share * (np.einsum("thi,ti->th", FC2[e].astype(np.float64), inner) + B2[e]), eps=5e-6)


def test_faults():
    plain = [X, ROUTER, FC1, B1, FC2, B2]
    both_refuse("MoE", plain, "k is 9 for 4 experts", k=9)
    both_refuse("MoE", plain, "k is 0 for 4 experts", k=0)
    both_refuse("MoE", [X, ROUTER[:, :3], *plain[2:]], "numbers of experts differ")
    both_refuse("MoE", [X[:, :4], *plain[1:]], "widths of the input and the experts differ")
    refuse("MoE", [X[:3], *plain[1:]], "3 tokens but router_probs for 7")
    refuse("MoE", plain, "activation_type 'tanh' is not one of", activation_type="tanh")
    refuse("MoE", plain, "a third layer is for a gate", activation_type="swiglu")
    refuse("MoE", [*plain, FC3], "a third layer is for a gate")
    refuse("MoE", plain, "geglu needs swiglu_fusion", activation_type="geglu")
    with pytest.raises(UnsupportedError, match="use_sparse_mixer"):
        kernel("com.microsoft::MoE", *plain, use_sparse_mixer=1)


def test_inferred():
    layers = [typed("e", 6, 8), None, typed("e", 8, 6)]
    assert shapes("MoE", typed("b", "s", 8), typed("t", "e"), *layers) == "[b, s, 8]"
    with pytest.raises(ShapeError, match="inner widths"):
        infer("com.microsoft::MoE", [typed("t", 8), typed("t", "e"), layers[0], None, typed("e", 8, 5)])
