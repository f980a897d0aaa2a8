"""GroupQueryAttention against onnxruntime: prompts, decoding, caches with room and with a window, ragged batches."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError, UnsupportedError
from tests.ops.cases import infer, kernel, known, typed
from tests.ops.contrib import DOMAIN, agree, both_refuse, refuse, run, says, shapes
from tests.ops.oracle import close, normal

OP = "GroupQueryAttention"
INT = np.int32
B, S, N, K, H = 2, 4, 4, 2, 16
Q, KEY, V = normal(1, B, S, N * H), normal(2, B, S, K * H), normal(3, B, S, K * H)
STEP = [np.ascontiguousarray(x[:, :1]) for x in (Q, KEY, V)]
ONE = [np.ascontiguousarray(x[:1]) for x in (Q, KEY, V)]
PAST, ROOM = (normal(4, B, K, 3, H), normal(5, B, K, 3, H)), (normal(6, B, K, 9, H), normal(7, B, K, 9, H))
COS, SIN = normal(8, 32, H // 2), normal(9, 32, H // 2)
HEADS = {"num_heads": N, "kv_num_heads": K}
ENDS, TOTAL = np.array([S - 1] * B, INT), np.array([S], INT)


def ints(*values):
    return np.array(values, INT)


def prompt(*inputs, outputs=3, **attrs):
    return agree(OP, [Q, KEY, V, None, None, ENDS, TOTAL, *inputs], outputs, **HEADS, **attrs)


def valid(given, ends, rows, outputs=3, eps=2e-6, kept=None, **attrs):
    """Equal to onnxruntime's where that is specified: the first ``rows`` of each output, the filled part of a cache."""
    ours, theirs = run(OP, given, outputs, **HEADS, **attrs), says(OP, given, outputs, **HEADS, **attrs)
    assert [o.shape for o in ours] == [t.shape for t in theirs]
    for b, (end, row) in enumerate(zip(ends, rows, strict=True)):
        close(ours[0][b, :row], theirs[0][b, :row], eps)
        size = int(end) + 1 if kept is None else kept[b]
        for got, wanted in zip(ours[1:3], theirs[1:3], strict=True):
            close(got[b, :, :size], wanted[b, :, :size], eps)
            assert (got[b, :, size:] == 0).all()
    return ours


# ---- the first prompt


def test_plain():
    y, keys, values = prompt()
    close(keys, KEY.reshape(B, S, K, H).swapaxes(1, 2))
    close(values, V.reshape(B, S, K, H).swapaxes(1, 2))
    for sequence in range(B):  # head by head, in float64
        q, k, v = (x[sequence].reshape(S, -1, H).astype(np.float64) for x in (Q, KEY, V))
        for head in range(N):
            scores = q[:, head] @ k[:, head // 2].T / 4
            scores[np.triu_indices(S, 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            close(y[sequence, :, head * H : (head + 1) * H], weights @ v[:, head // 2])
    prompt(outputs=1)
    prompt(scale=0.1)
    agree(OP, [Q, KEY, V, None, None, ENDS, np.array(S, INT)], 3, **HEADS)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_heads_that_share_keys(heads):
    q, k, v = normal(1, B, S, 4 * H), normal(2, B, S, heads * H), normal(3, B, S, heads * H)
    agree(OP, [q, k, v, None, None, ENDS, TOTAL], 3, num_heads=4, kv_num_heads=heads)


def test_packed():
    packed = np.concatenate((Q, KEY, V), axis=2)
    got = agree(OP, [packed, None, None, None, None, ENDS, TOTAL], 3, **HEADS)
    for a, b in zip(got, prompt(), strict=True):
        assert a.tolist() == b.tolist()
    agree(OP, [packed, None, None, None, None, ENDS, TOTAL, COS, SIN], 3, **HEADS, do_rotary=1)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 9])
def test_windows(window):
    prompt(local_window_size=window)


@pytest.mark.parametrize("softcap", [0.7, 30.0])
@pytest.mark.parametrize("shape", [None, (1, 1, S, S), (1, N, S, S), (B, 1, S, S), (B, N, S, S)])
def test_softcap_and_bias(softcap, shape):
    bias = None if shape is None else normal(10, *shape)
    prompt(None, None, None, bias, softcap=softcap)
    prompt(None, None, None, bias, local_window_size=2)


def test_sinks():
    prompt(smooth_softmax=1)
    prompt(smooth_softmax=1, softcap=0.7)
    sink = normal(11, N)
    y = prompt(None, None, None, None, sink)[0]
    assert y.tolist() == prompt(None, None, None, None, sink, smooth_softmax=1)[0].tolist()
    prompt(None, None, None, normal(10, 1, N, S, S), sink)
    prompt(None, None, None, normal(10, B, 1, S, S), sink, local_window_size=2)
    assert y.tolist() != prompt()[0].tolist()


def test_bidirectional():
    prompt(causal=0)
    prompt(None, None, None, normal(10, 1, N, S, S), causal=0)


@pytest.mark.parametrize("stage", [1, 2])
def test_scores(stage):
    bias = normal(10, 1, N, S, S)
    scores = prompt(None, None, None, bias, outputs=4, qk_output=stage, softcap=0.7, local_window_size=2)[3]
    assert (scores[..., np.triu_indices(S, 1)[0], np.triu_indices(S, 1)[1]] == 0).all()
    prompt(None, None, None, None, normal(11, N), outputs=4, qk_output=stage)


def test_a_ragged_prompt():
    ends = ints(S - 1, 1)
    valid([Q, KEY, V, None, None, ends, TOTAL], ends, [S, 2])
    valid([Q, KEY, V, None, None, ends, TOTAL, COS, SIN], ends, [S, 2], do_rotary=1)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary(interleaved):
    turn = {"do_rotary": 1, "rotary_interleaved": interleaved}
    prompt(COS, SIN, **turn)
    prompt(COS, SIN, np.array([[3, 9, 9, 9], [5, 6, 7, 8]]), **turn)  # a prompt reads the first place alone
    agree(OP, [*STEP, *PAST, ints(3, 3), ints(4), COS, SIN], 3, **HEADS, **turn)
    agree(OP, [*STEP, *PAST, ints(3, 3), ints(4), COS, SIN, np.array([[7], [2]])], 3, **HEADS, **turn)
    chunk = [*ONE, *(p[:1] for p in PAST), ints(6), ints(7), COS, SIN]
    agree(OP, chunk, 3, **HEADS, **turn)
    agree(OP, [*chunk, np.array([[9, 3, 4, 4]])], 3, **HEADS, **turn)


def test_rotary_of_a_part_of_each_head():
    q, k, v = normal(1, B, S, N * 32), normal(2, B, S, K * 32), normal(3, B, S, K * 32)
    agree(OP, [q, k, v, None, None, ENDS, TOTAL, COS, SIN], 3, **HEADS, do_rotary=1)


def test_half_precision():
    given = [x.astype(np.float16) for x in (Q, KEY, V)]
    agree(OP, [*given, None, None, ENDS, TOTAL], 3, eps=1e-3, **HEADS)
    tables = [t.astype(np.float16) for t in (COS, SIN)]
    agree(OP, [*given, None, None, ENDS, TOTAL, *tables], 3, eps=2e-3, **HEADS, do_rotary=1)


def test_norms_of_queries_and_keys():
    """By its formula: onnxruntime has no kernel for the CPU."""
    weights = normal(12, H), normal(13, H)

    def normed(x, weight, epsilon):
        w = x.astype(np.float64).reshape(B, S, -1, H)
        return (w / np.sqrt((w**2).mean(-1, keepdims=True) + epsilon) * weight).reshape(x.shape).astype(np.float32)

    inputs = [Q, KEY, V, None, None, ENDS, TOTAL, COS, SIN, *[None] * 5, *weights]
    got = run(OP, inputs, 3, **HEADS, do_rotary=1, q_norm_epsilon=0.1)
    plain = [normed(Q, weights[0], 0.1), normed(KEY, weights[1], 1e-6), V, None, None, ENDS, TOTAL, COS, SIN]
    for a, b in zip(got, run(OP, plain, 3, **HEADS, do_rotary=1), strict=True):
        close(a, b, eps=5e-6)


# ---- behind a past


def test_decoding():
    _, keys, _ = agree(OP, [*STEP, *PAST, ints(3, 3), ints(4)], 3, **HEADS)
    assert keys[:, :, :3].tolist() == PAST[0].tolist()
    agree(OP, [*STEP, *PAST, ints(3, 3), ints(4)], 3, **HEADS, local_window_size=2)
    agree(OP, [*STEP, *PAST, ints(3, 3), ints(4), None, None, None, normal(10, B, N, 1, 4)], 3, **HEADS)


def test_ragged_decoding():
    valid([*STEP, *PAST, ints(3, 1), ints(4)], (3, 1), (1, 1))
    valid([*STEP, *ROOM, ints(8, 0), ints(9)], (8, 0), (1, 1), local_window_size=3)
    valid([*STEP, *ROOM, ints(3, 1), ints(4), COS, SIN], (3, 1), (1, 1), do_rotary=1)


def test_a_cache_with_room_keeps_its_size():
    got = valid([*STEP, *ROOM, ints(3, 1), ints(4)], (3, 1), (1, 1))
    assert got[1].shape == ROOM[0].shape
    valid([Q, KEY, V, *ROOM, ENDS, TOTAL], ENDS, (S, S))


def test_an_empty_past():
    empty = [p[:, :, :0] for p in PAST]
    got = agree(OP, [Q, KEY, V, *empty, ENDS, TOTAL], 3, **HEADS)
    assert got[0].tolist() == prompt()[0].tolist()


def test_a_second_prompt():
    chunk = [*ONE, *(p[:1] for p in PAST)]
    agree(OP, [*chunk, ints(6), ints(7)], 4, **HEADS, qk_output=2)
    agree(OP, [*chunk, ints(6), ints(7)], 3, **HEADS, local_window_size=3)
    both_refuse(OP, [Q, KEY, V, *PAST, ints(6, 6), ints(7)], "need a batch of 1 or query_seqlens", 3, **HEADS)


def test_padded_chunks():
    behind = [None] * 9
    given = [Q, KEY, V, *ROOM, ints(4, 3), ints(9), *behind, ints(2, 4)]
    valid(given, (4, 3), (2, 4))
    given[7:9] = COS, SIN
    valid(given, (4, 3), (2, 4), do_rotary=1, local_window_size=3)
    given[16] = ints(0, 4)
    given[5] = ints(2, 3)
    valid(given, (2, 3), (0, 4), do_rotary=1)
    both_refuse(OP, [*given[:16], ints(5, 4)], "query_seqlens .5, 4. do not fit", 3, **HEADS)


@pytest.mark.parametrize("room", [4, 5, 6])
@pytest.mark.parametrize("end", [1, 3, 4, 5, 8, 9, 10, 11])
def test_a_cache_that_holds_a_window(room, end):
    window, attrs = 4, {"local_window_size": 4, "sliding_window_cache": 1}
    past = normal(6, B, K, room, H), normal(7, B, K, room, H)
    ends = ints(end, end - 1)
    step = room - window + 1
    kept = [int(t if t <= room else t - step * -(-(t - room) // step)) for t in ends + 1]
    valid([*STEP, *past, ends, ints(end + 1)], ends, (1, 1), kept=kept, **attrs)


def test_more_positions_than_a_window():
    attrs = {"local_window_size": 4, "sliding_window_cache": 1}
    past = normal(6, 1, K, 5, H), normal(7, 1, K, 5, H)
    valid([*ONE, *past, ints(9), ints(10)], (9,), (S,), kept=[4], **attrs)
    valid([*ONE, *past, ints(9), ints(10), None, None, None, normal(3, 1, N, S, 10)], (9,), (S,), kept=[4], **attrs)
    both_refuse(
        OP,
        [*ONE, *past, ints(9), ints(10)],
        "cannot hold a window of 6",
        3,
        **HEADS,
        **attrs | {"local_window_size": 6},
    )


def test_the_layout_of_a_window_does_not_depend_on_the_steps():
    attrs = {**HEADS, "local_window_size": 4, "sliding_window_cache": 1}
    whole = [*ONE, *(np.zeros((1, K, 6, H), np.float32) for _ in range(2)), ints(3), ints(4)]
    _, keys, values = run(OP, whole, 3, **attrs)
    state = whole[3:5]
    for at in range(S):
        state = run(OP, [*(x[:, at : at + 1] for x in ONE), *state, ints(at), ints(at + 1)], 3, **attrs)[1:]
    assert [a.tolist() for a in state] == [keys.tolist(), values.tolist()]


# ---- faults and inference


def test_faults():
    rest = [None, None, ENDS, TOTAL]
    both_refuse(OP, [Q, KEY, V, *rest], "3 heads cannot share 2", 3, num_heads=3, kv_num_heads=2)
    both_refuse(OP, [Q, KEY[:, :2], V, *rest], "lengths of query and key differ", 3, **HEADS)
    both_refuse(OP, [Q, KEY, None, *rest], "key and value go together", 3, **HEADS)
    both_refuse(OP, [Q, KEY, V, *PAST[:1], None, ENDS, TOTAL], "go together", 3, **HEADS)
    both_refuse(OP, [*STEP, *PAST, ints(6, 6), ints(4)], "outside 1 to total_sequence_length 4", 3, **HEADS)
    both_refuse(OP, [*STEP, *PAST, ints(-1, 3), ints(4)], "outside 1 to", 3, **HEADS)
    both_refuse(OP, [*STEP, *PAST, ints(6, 6), ints(7)], "do not fit a cache", 3, **HEADS)
    both_refuse(OP, [*STEP, None, None, ints(3, 3), ints(4)], "the past, which is absent", 3, **HEADS)
    both_refuse(OP, [Q, KEY, V, *rest, COS, None], "do_rotary needs", 3, **HEADS, do_rotary=1)
    both_refuse(OP, [Q, KEY, V, *rest, COS[:2], SIN[:2]], "outside the 2 rows", 3, **HEADS, do_rotary=1)
    both_refuse(OP, [Q, KEY, V, *rest, None, None, None, normal(1, 1, 3, S, S)], "attention_bias", 3, **HEADS)
    refuse(OP, [Q, KEY, V, *rest, COS, SIN, np.array([[0, 1, 2, 3]])], "position_ids", 3, **HEADS, do_rotary=1)
    with pytest.raises(UnsupportedError, match="quantised cache"):
        kernel(f"{DOMAIN}::{OP}", Q, KEY, V, *rest, **HEADS, k_quant_type="PER_TENSOR")


def test_inferred():
    q, kv = typed("b", "s", 64), typed("b", "s", 32)
    ends, total = typed("b", dtype=INT), typed(1, dtype=INT)
    past = typed("b", 2, "p", 16)
    wanted = "[b, s, 64] [b, 2, ?, 16] [b, 2, ?, 16] [b, 4, s, ?]"
    assert shapes(OP, q, kv, kv, past, past, ends, total, outputs=4, **HEADS) == wanted
    sized = known(7)
    assert shapes(OP, q, kv, kv, None, None, ends, sized, outputs=2, **HEADS) == "[b, s, 64] [b, 2, 7, 16]"
    short = typed("b", 2, 3, 16)
    assert shapes(OP, q, kv, kv, short, short, ends, sized, outputs=2, **HEADS) == "[b, s, 64] [b, 2, 7, 16]"
    long = typed("b", 2, 9, 16)
    assert shapes(OP, q, kv, kv, long, long, ends, sized, outputs=2, **HEADS) == "[b, s, 64] [b, 2, 9, 16]"
    packed = typed("b", "s", 128)
    assert shapes(OP, packed, None, None, None, None, ends, sized, outputs=1, **HEADS) == "[b, s, 64]"
    window = {"local_window_size": 4, "sliding_window_cache": 1}
    assert shapes(OP, q, kv, kv, past, past, ends, total, outputs=2, **HEADS, **window) == "[b, s, 64] [b, 2, p, 16]"
    with pytest.raises(ShapeError, match="sizes of a head of query and past differ"):
        infer(f"{DOMAIN}::{OP}", [q, kv, kv, *[typed("b", 2, 3, 8)] * 2, ends, total], **HEADS)
