"""Normalisations of com.microsoft against onnxruntime, and against float64 formulas where it has no kernel."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, says, shapes
from tests.ops.oracle import close, normal

HALF = np.float16
X, SKIP = normal(1, 2, 3, 8), normal(2, 2, 3, 8)
GAMMA, BETA, BIAS = normal(3, 8), normal(4, 8), normal(5, 8)
FAR = 1e4


def normed(x, epsilon, axes=-1):
    w = x.astype(np.float64)
    return (w - w.mean(axes, keepdims=True)) / np.sqrt(w.var(axes, keepdims=True) + epsilon)


# ---- of the default domain


@pytest.mark.parametrize("dtype", [np.float32, np.float64, HALF])
@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified(dtype, axis):
    scale = normal(6, *X.shape[axis:]).astype(dtype)
    agree("SimplifiedLayerNormalization-1", [X.astype(dtype), scale], 2, exact=False, axis=axis)
    agree("SimplifiedLayerNormalization-1", [X.astype(dtype), scale], 1, exact=False, axis=axis, epsilon=0.5)


def test_simplified_extremes():
    rows = np.array([[0, 0, 0, 0], [1e20, -1e20, 3e19, 0], [1e-30, 0, 0, 0], [3, 3, 3, 3]], np.float32)
    agree("SimplifiedLayerNormalization-1", [rows, GAMMA[:4]], 2, exact=False, double=False)
    big = (X * 1000).astype(HALF)  # squares overflow half precision
    y = run("SimplifiedLayerNormalization-1", [big, GAMMA.astype(HALF)])[0]
    w = big.astype(np.float64)
    close(y, w / np.sqrt((w**2).mean(-1, keepdims=True)) * GAMMA.astype(HALF), eps=1e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, HALF])
def test_layer_normalization_before_it_was_a_standard(dtype):
    given = [a.astype(dtype) for a in (X, GAMMA, BETA)]
    agree("LayerNormalization-1", given, 3, exact=False)
    agree("LayerNormalization-1", given[:2], 1, exact=False, epsilon=0.5)


# ---- after a skip


@pytest.mark.parametrize("dtype", [np.float32, HALF])
def test_skip(dtype):
    x, skip, gamma, beta, bias = (a.astype(dtype) for a in (X, SKIP, GAMMA, BETA, BIAS))
    eps = 2e-6 if dtype == np.float32 else 1e-3  # of a half, two neighbours may both be right
    agree("SkipLayerNormalization", [x, skip, gamma, beta, bias], 4, eps)
    agree("SkipLayerNormalization", [x, skip, gamma], 1, eps, epsilon=0.1)
    agree("SkipLayerNormalization", [x, skip[0], gamma, beta], 4, eps)
    agree("SkipLayerNormalization", [x, skip[:1], gamma, None, bias], 4, eps)
    agree("SkipLayerNormalization", [x[0], skip[0], gamma, beta], 4, eps)
    agree("SkipSimplifiedLayerNormalization", [x, skip, gamma, bias], 4, eps)
    agree("SkipSimplifiedLayerNormalization", [x[0], skip[0], gamma], 4, eps, epsilon=0.1)
    agree("SkipSimplifiedLayerNormalization", [x, skip[0], gamma], 1, eps)


def test_the_sum_of_a_skip_is_rounded_once():
    x, skip, bias = (np.full((1, 1, 8), v, HALF) for v in (2048, 1, 1))
    total = run("SkipLayerNormalization", [x, skip, GAMMA.astype(HALF), None, bias[0, 0]], 4)[3]
    assert total.tolist() == np.full((1, 1, 8), 2050, HALF).tolist()


def test_skip_far_from_zero():
    """A mean of squares minus a square of means would lose all digits here."""
    x = (X + FAR).astype(np.float32)
    y, mean, inverse, _ = run("SkipLayerNormalization", [x, SKIP, GAMMA, BETA], 4)
    w = x.astype(np.float64) + SKIP
    close(y, normed(w, 1e-12) * GAMMA + BETA, eps=2e-3)
    close(mean, w.mean(-1, keepdims=True), eps=1e-6)
    close(inverse, 1 / w.std(-1, keepdims=True), eps=2e-3)


def test_constant_rows():
    rows, nothing = np.full((1, 2, 8), 3, np.float32), np.zeros((1, 2, 8), np.float32)
    agree("SkipLayerNormalization", [rows, nothing, GAMMA, BETA], 4)
    agree("SkipSimplifiedLayerNormalization", [nothing, nothing, GAMMA], 4)
    close(run("SkipLayerNormalization", [rows, nothing, GAMMA, BETA])[0][0, 0], BETA)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_empty_and_nan(op):
    agree(op, [X[:0], SKIP[:0], GAMMA], 4)
    x = X.copy()
    x[0, 0, 0], x[1, 1, 1] = np.nan, np.inf
    agree(op, [x, SKIP, GAMMA], 1)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_faults(op):
    both_refuse(op, [X, SKIP[:, :1], GAMMA], "does not fit the input")
    both_refuse(op, [X, SKIP[0, 0], GAMMA], "rank should be 2 or 3")
    both_refuse(op, [X, SKIP, GAMMA[:1]], r"gamma is \[1\], not \[8\]")
    both_refuse(op, [X[None], SKIP[None], GAMMA], "rank should be 2 or 3")


# ---- embeddings

IDS, SEGMENTS = np.array([[0, 1, 2], [3, 4, 4]], np.int32), np.array([[0, 1, 1], [0, 0, 1]], np.int32)
WORDS, PLACES, PARTS = normal(6, 5, 8), normal(7, 6, 8), normal(8, 2, 8)
EMBED = "EmbedLayerNormalization"


def test_embeddings():
    given = [IDS, SEGMENTS, WORDS, PLACES, PARTS, GAMMA, BETA]
    y, count, total = agree(EMBED, given, 3)
    assert count.tolist() == [0, 0]
    close(total, WORDS[IDS] + PLACES[:3] + PARTS[SEGMENTS])
    close(y, normed(total, 1e-12) * GAMMA + BETA)
    agree(EMBED, [IDS, None, WORDS, PLACES, None, GAMMA, BETA], 3, epsilon=0.1)
    agree(EMBED, [IDS[:, :0], SEGMENTS[:, :0], *given[2:]], 3)


def test_the_mask_of_embeddings_is_counted():
    mask = np.array([[1, 2, 0], [1, 0, 1]], np.int32)
    got = agree(EMBED, [IDS, SEGMENTS, WORDS, PLACES, PARTS, GAMMA, BETA, mask], 2)[1]
    assert got.tolist() == [1, 2]


def test_positions_of_embeddings():
    given = [IDS, SEGMENTS, WORDS, PLACES, PARTS, GAMMA, BETA, None]
    places = np.array([[2, 1, 0], [5, 5, 5]], np.int32)
    agree(EMBED, [*given, places], 3)
    agree(EMBED, [*given, places[:1]], 3)
    both_refuse(EMBED, [*given, places + 1], "position 6 is out of range", 3)
    both_refuse(EMBED, [*given, places - 1], "position -1 is negative", 3)
    both_refuse(EMBED, [*given, places[:, :2]], "lengths of input_ids and position_ids differ", 3)


def test_faults_of_embeddings():
    rest = [GAMMA, BETA]
    both_refuse(EMBED, [IDS + 1, SEGMENTS, WORDS, PLACES, PARTS, *rest], "word 5 is out of range", 2)
    both_refuse(EMBED, [IDS - 1, SEGMENTS, WORDS, PLACES, PARTS, *rest], "word -1 is negative", 2)
    both_refuse(EMBED, [IDS, SEGMENTS + 1, WORDS, PLACES, PARTS, *rest], "segment 2 is out of range", 2)
    both_refuse(EMBED, [IDS, SEGMENTS, WORDS, PLACES[:2], PARTS, *rest], "position 2 is out of range", 2)
    both_refuse(EMBED, [IDS, SEGMENTS, WORDS, PLACES[:, :4], PARTS, *rest], "widths of the embeddings differ", 2)


# ---- groups: onnxruntime has no kernel for the CPU


def groups(x, count, epsilon):
    """(N, H, W, C) by groups of channels, in float64."""
    parts = x.reshape(*x.shape[:3], count, -1)
    return normed(parts, epsilon, (1, 2, 4)).reshape(x.shape)


def swished(x):
    return x / (1 + np.exp(-x))


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, HALF])
def test_group_norm(activation, dtype):
    x = (normal(9, 2, 3, 5, 8) * 2 + 1).astype(dtype)
    wanted = groups(x, 4, 0.1) * GAMMA + BETA
    wanted = swished(wanted) if activation else wanted
    attrs = {"activation": activation, "groups": 4, "epsilon": 0.1}
    y = run("GroupNorm", [x, GAMMA, BETA], **attrs)[0]
    assert y.dtype == dtype
    close(y, wanted, eps=1e-3 if dtype == HALF else 2e-6)
    turned = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    first = run("GroupNorm", [turned, GAMMA, BETA], **attrs, channels_last=0)[0]
    close(np.moveaxis(first, 1, -1), y, eps=1e-3 if dtype == HALF else 2e-6)


@pytest.mark.parametrize("spatial", [(3, 5), (1, 1), ()])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_skip_group_norm(spatial, bias):
    x, skip = normal(9, 2, 3, 5, 8), normal(10, 2, *spatial, 8)
    wide = skip[:, None, None] if skip.ndim == 2 else skip
    total = x.astype(np.float64) + wide + (0 if bias is None else bias)
    attrs = {"activation": 1, "groups": 2}
    y, summed = run("SkipGroupNorm", [x, GAMMA, BETA, skip, bias], 2, **attrs)
    close(summed, total)
    close(y, swished(groups(total, 2, 1e-5) * GAMMA + BETA))
    turned = [np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, skip)]
    first = run("SkipGroupNorm", [turned[0], GAMMA, BETA, turned[1], bias], 2, **attrs, channels_last=0)
    close(np.moveaxis(first[0], 1, -1), y)


def test_group_faults():
    x = normal(9, 2, 3, 5, 8)
    refuse("GroupNorm", [x, GAMMA, BETA], "3 groups do not divide 8", activation=0, groups=3)
    refuse("GroupNorm", [x, GAMMA, BETA], "activation 2", activation=2, groups=2)
    refuse("SkipGroupNorm", [x, GAMMA, BETA, x[..., :4]], "broadcast|does not fit", 2, activation=0, groups=2)


# ---- with a gate


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("dtype", [np.float32, HALF])
def test_gated(activation, dtype):
    given = [normal(11, 2, 3, 24).astype(dtype), normal(12, 8).astype(dtype), normal(13, 2, 3, 24).astype(dtype)]
    agree("GatedRMSNorm", given, activation=activation)
    agree("GatedRMSNorm", given, activation=activation, epsilon=0.5)


def test_gated_in_brain_floats():
    given = [normal(k, 2, 8).astype(ml_dtypes.bfloat16) for k in range(3)]
    y = run("GatedRMSNorm", [given[0], given[1][0], given[2]])[0]
    w, scale, gate = (a.astype(np.float64) for a in (given[0], given[1][0], given[2]))
    wanted = w / np.sqrt((w**2).mean(-1, keepdims=True) + 1e-5) * scale * swished(gate)
    assert np.mean(y == wanted.astype(ml_dtypes.bfloat16)) > 0.9


def test_gated_faults():
    refuse("GatedRMSNorm", [X, GAMMA[:3], X], "no runs of 3 elements")
    refuse("GatedRMSNorm", [X, GAMMA, X[:1]], "gate is")
    refuse("GatedRMSNorm", [X, GAMMA, X], "activation 'gelu' is not one of", activation="gelu")


def test_inferred():
    x, v = typed("b", "s", 8), typed(8)
    assert shapes("SkipLayerNormalization", x, x, v, outputs=4) == "[b, s, 8] [b, s, 1] [b, s, 1] [b, s, 8]"
    half = typed("b", "s", 8, dtype=HALF)
    kinds = infer("com.microsoft::SkipLayerNormalization", [half, half, typed(8, dtype=HALF)], 4)
    assert [k.dtype for k in kinds] == [HALF, np.float32, np.float32, HALF]
    assert shapes("SkipSimplifiedLayerNormalization", typed("t", 8), typed("t", 8), v, outputs=2) == "[t, 8] [t, 1]"
    ids = typed("b", "s", dtype=np.int32)
    table = typed(5, 8)
    assert shapes(EMBED, ids, None, table, table, None, v, v, outputs=3) == "[b, s, 8] [b] [b, s, 8]"
    simplified = infer("SimplifiedLayerNormalization-1", [typed("b", "s", 8), v], 2)
    assert [str(i.type) for i in simplified] == ["float[b, s, 8]", "float[b, s, 1]"]
    with pytest.raises(ShapeError, match="gamma"):
        infer("com.microsoft::SkipLayerNormalization", [x, x, typed(4)])


def test_onnxruntime_counts_ones_too():
    """The operator's text says the position of the first 0; its kernel counts, and so does fuse."""
    mask = np.array([[0, 1, 1], [1, 0, 1]], np.int32)
    given = [IDS, SEGMENTS, WORDS, PLACES, PARTS, GAMMA, BETA, mask]
    assert says(EMBED, given, 2)[1].tolist() == [2, 2] == run(EMBED, given, 2)[1].tolist()
