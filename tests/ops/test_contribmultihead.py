"""MultiHeadAttention and its decoding form against onnxruntime, and the packed forms against the others."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import close, normal

INT = np.int32
OP, STEP = "MultiHeadAttention", "DecoderMaskedMultiHeadAttention"
B, S, L, N, H = 2, 3, 4, 2, 4
D = N * H
Q, K, V, BIAS = normal(1, B, S, D), normal(2, B, L, D), normal(3, B, L, D), normal(4, 3 * D)
PAST = normal(5, B, N, 2, H), normal(6, B, N, 2, H)
ROOM = normal(7, B, N, 9, H), normal(8, B, N, 9, H)
RAW = np.array([[1, 0, 1, 1], [1, 1, 0, 0]], INT)


def attention(*inputs, outputs=4, eps=2e-6, **attrs):
    return agree(OP, inputs, outputs, eps, num_heads=N, **attrs)


def split(x, parts=1):
    """(batch, length, width) as (batch, length, heads, parts, size)."""
    return x.reshape(*x.shape[:2], parts, N, -1).swapaxes(2, 3)


@pytest.mark.parametrize("bias", [None, BIAS])
def test_plain(bias):
    attention(Q, K, V, bias)
    attention(Q, K, V, bias, outputs=1)
    attention(Q, K, V, bias, scale=0.2)


def test_values_of_another_width():
    attention(Q, K, normal(3, B, L, 6), normal(4, 2 * D + 6))


@pytest.mark.parametrize(
    "mask",
    [
        np.array([2, 4], INT),
        np.array([2, 4, 0, 3, 6, 0, 4, 8], INT),
        RAW,
        np.tril(np.ones((S, L), INT)) * np.ones((B, 1, 1), INT),
    ],
    ids=["ends", "cumulated", "raw", "raw by query"],
)
def test_masks(mask):
    attention(Q, K, V, BIAS, mask)
    attention(Q, K, V, None, mask, normal(9, 1, N, S, L))


@pytest.mark.parametrize("value", [-10000.0, float(np.finfo(np.float32).min), -np.inf])
def test_rows_that_see_nothing(value):
    y = attention(Q, K, V, BIAS, np.array([0, 3], INT), outputs=1, eps=2e-4, mask_filter_value=value)[0]
    assert np.isnan(y[0]).all() == np.isneginf(value)
    assert np.isfinite(y[1]).all()


@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("heads", [1, N])
def test_attention_bias(batch, heads):
    attention(Q, K, V, None, None, normal(9, batch, heads, S, L))


@pytest.mark.parametrize("filled", [0, 1, 2])
def test_past(filled):
    past = [np.ascontiguousarray(p[:, :, :filled]) for p in PAST]
    mask = np.concatenate((np.ones((B, filled), INT), RAW), axis=1)
    y = attention(Q, K, V, BIAS, mask, normal(9, 1, N, S, filled + L), *past)
    assert y[1][:, :, :filled].tolist() == past[0].tolist()
    attention(Q, K[:, :S], V[:, :S], None, None, None, *past, unidirectional=1)
    attention(Q[:, :1], K[:, :1], V[:, :1], None, None, None, *past, unidirectional=1)
    attention(Q[:, :1], K, V, None, None, None, *past, unidirectional=1)


def test_unidirectional_scores_of_later_keys_are_the_lowest():
    scores = attention(Q, K[:, :S], V[:, :S], unidirectional=1)[3]
    later = np.triu(np.ones((S, S), bool), 1)
    assert (scores[..., later] == np.finfo(np.float32).min).all()


def test_unidirectional_across_lengths_is_refused():
    """onnxruntime's CPU kernel lets the last query see all keys there and aligns the others to the left; its CUDA
    kernel aligns all to the right."""
    refuse(OP, [Q, K, V], "no agreed meaning", num_heads=N, unidirectional=1)


def test_keys_by_head():
    keys, values = normal(6, B, N, 5, H), normal(7, B, N, 5, H)
    attention(Q, keys, values)
    attention(Q, keys, values, BIAS)
    attention(Q, keys, values, None, np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]], INT))


@pytest.mark.parametrize("bias", [None, BIAS])
def test_packed(bias):
    q, k, v = Q, K[:, :S], V[:, :S]
    wanted = run(OP, [q, k, v, bias], 4, num_heads=N)
    packed = split(np.concatenate((q, k, v), axis=2), 3)
    assert packed.shape == (B, S, N, 3, H)
    for got, other in zip(run(OP, [packed, None, None, bias], 4, num_heads=N), wanted, strict=True):
        close(got, other, eps=1e-6)
    wanted = run(OP, [Q, K, V, bias], 4, num_heads=N)
    packed = split(np.concatenate((K, V), axis=2), 2)
    assert packed.shape == (B, L, N, 2, H)
    for got, other in zip(run(OP, [Q, packed, None, bias], 4, num_heads=N), wanted, strict=True):
        close(got, other, eps=1e-6)


@pytest.mark.parametrize("filled", [0, 3, 5])
def test_a_past_with_room(filled):
    agree(OP, [Q, K, V, BIAS, None, None, *ROOM, np.array([filled], INT)], 3, num_heads=N)


def test_a_past_without_enough_room():
    both_refuse(OP, [Q, K, V, BIAS, None, None, *ROOM, np.array([6], INT)], "exceed a buffer of 9", 3, num_heads=N)


def test_beams():
    step = [x[:, :1] for x in (Q, K, V)]
    origin = np.zeros((1, 2, 9), INT)
    origin[0, 0, 1] = origin[0, 1, 0] = origin[0, 1, 2] = 1
    filled = np.array([3], INT)
    agree(OP, [*step, BIAS, None, None, *ROOM, filled, origin], 3, num_heads=N)
    two = np.array([2], INT)
    bias, mask = normal(9, 1, N, 1, 4), np.ones((B, 4), INT)
    decoding = {"num_heads": N, "past_present_share_buffer": 1}
    agree(STEP, [*step, mask, bias, *ROOM, filled, two, origin], 3, **decoding)
    agree(STEP, [*step, mask, bias, *ROOM, filled, two, origin, BIAS], 4, output_qk=1, **decoding)
    refuse(STEP, [*step, mask, bias, *ROOM, filled, two], "2 beams need cache_indirection", **decoding)
    refuse(STEP, [*step, mask, bias, *ROOM, filled, two, origin + 2], "names a beam outside 0 to 1", **decoding)


def test_decoding():
    step, filled = [x[:, :1] for x in (Q, K, V)], np.array([3], INT)
    decoding = {"num_heads": N, "past_present_share_buffer": 1}
    agree(STEP, [*step, None, None, *ROOM, filled], 3, **decoding)
    y = agree(STEP, [*step, RAW, normal(9, 1, 1, 1, 4), *ROOM, filled, None, None, BIAS], 4, output_qk=1, **decoding)
    packed = np.concatenate(step, axis=2)
    got = run(STEP, [packed, None, None, RAW, normal(9, 1, 1, 1, 4), *ROOM, filled, None, None, BIAS], 4, **decoding)
    for a, b in zip(got, y, strict=True):
        close(a, b)
    both_refuse(STEP, [Q, K, V, None, None, *ROOM, filled], "one query a sequence", 3, **decoding)


def test_decoding_across():
    agree(STEP, [Q[:, :1], normal(6, B, N, 5, H), normal(7, B, N, 5, H)], num_heads=N)
    mask = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0]], INT)
    agree(STEP, [Q[:, :1], normal(6, B, N, 5, H), normal(7, B, N, 5, H), mask], num_heads=N)


@pytest.mark.parametrize(("q", "k"), [(0, L), (S, L)])
def test_empty_batches(q, k):
    batch = 0 if q == S else B
    attention(Q[:batch, :q], K[:batch, :k], V[:batch, :k], outputs=3)


def test_faults():
    both_refuse(OP, [Q, K, V], "cannot be split into 3 heads", num_heads=3)
    both_refuse(OP, [Q, K[:1], V], "batches of query and key differ: 2, 1", num_heads=N)
    both_refuse(OP, [Q, K, V[:, :2]], "lengths of key and value differ: 4, 2", num_heads=N)
    both_refuse(OP, [Q, K[..., :4], V], "widths of query and key differ: 8, 4", num_heads=N)
    both_refuse(OP, [Q, K, V, BIAS[:-1]], "the bias is", num_heads=N)
    both_refuse(OP, [Q, K, V, None, RAW[:, :3]], "does not fit batch 2", num_heads=N)
    both_refuse(OP, [Q, K, V, None, None, normal(9, 1, N, 1, L)], "attention_bias", num_heads=N)
    both_refuse(OP, [Q, K, V, None, None, None, PAST[0]], "go together", 3, num_heads=N)
    both_refuse(OP, [normal(1, B, S, 3 * D)], "needs a key", num_heads=N)


def test_inferred():
    q, kv = typed("b", "s", 8), typed("b", "l", 8)
    wanted = "[b, s, 8] [b, 2, l, 4] [b, 2, l, 4] [b, 2, s, l]"
    assert shapes(OP, q, kv, kv, outputs=4, num_heads=2) == wanted
    past = typed("b", 2, "p", 4)
    wanted = "[b, s, 8] [b, 2, p + l, 4] [b, 2, p + l, 4] [b, 2, s, p + l]"
    assert (
        shapes(OP, q, kv, kv, None, None, None, past, past, outputs=4, num_heads=2).replace("l + p", "p + l") == wanted
    )
    room = [None, None, None, past, past, typed(1, dtype=INT)]
    assert shapes(OP, q, kv, kv, *room, outputs=3, num_heads=2) == "[b, s, 8] [b, 2, p, 4] [b, 2, p, 4]"
    assert shapes(OP, typed("b", "s", 2, 3, 4), outputs=2, num_heads=2) == "[b, s, 8] [b, 2, s, 4]"
    by_head = typed("b", 2, "l", 4)
    assert shapes(OP, q, by_head, by_head, outputs=2, num_heads=2) == "[b, s, 8] [b, 2, l, 4]"
    with pytest.raises(ShapeError, match="attention_bias"):
        infer("com.microsoft::MultiHeadAttention", [q, kv, kv, None, None, typed(1, 3, "s", "l")], num_heads=2)
