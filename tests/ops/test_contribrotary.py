"""Rotary embeddings of com.microsoft against onnxruntime and the formula."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import close, normal

OP = "RotaryEmbedding"
B, S, N, H = 2, 3, 2, 8
FLAT = normal(1, B, S, N * H)
BY_HEAD = np.ascontiguousarray(FLAT.reshape(B, S, N, H).swapaxes(1, 2))
COS, SIN = normal(2, 6, H // 2), normal(3, 6, H // 2)
PLACES = np.array([[0, 1, 2], [5, 3, 3]])


def exact(x, places, cos, sin, interleaved):
    """The formula in float64, on (batch, heads, length, size)."""
    y, half = x.astype(np.float64), cos.shape[1]
    pairs = [slice(0, 2 * half, 2), slice(1, 2 * half, 2)] if interleaved else [slice(half), slice(half, 2 * half)]
    a, b = (y[..., p].copy() for p in pairs)
    c, s = cos[places][:, None].astype(np.float64), sin[places][:, None].astype(np.float64)
    y[..., pairs[0]], y[..., pairs[1]] = a * c - b * s, a * s + b * c
    return y


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("x", [FLAT, BY_HEAD], ids=["flat", "by head"])
def test_whole_heads(x, interleaved):
    y = agree(OP, [x, PLACES, COS, SIN], interleaved=interleaved)[0]
    close(y if x.ndim == 4 else y.reshape(B, S, N, H).swapaxes(1, 2), exact(BY_HEAD, PLACES, COS, SIN, interleaved))
    agree(OP, [x, np.array([2]), COS, SIN], interleaved=interleaved)
    agree(OP, [x, np.array(3), COS, SIN], interleaved=interleaved)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("x", [FLAT, BY_HEAD], ids=["flat", "by head"])
def test_a_part_of_each_head(x, dtype, interleaved):
    given = [x.astype(dtype), PLACES, COS[:, :2].astype(dtype), SIN[:, :2].astype(dtype)]
    y = agree(OP, given, interleaved=interleaved, num_heads=N, rotary_embedding_dim=4)[0]
    heads = y if x.ndim == 4 else y.reshape(B, S, N, H).swapaxes(1, 2)
    assert heads[..., 4:].tolist() == BY_HEAD[..., 4:].astype(dtype).tolist()


def test_the_size_of_a_head_comes_from_the_tables():
    agree(OP, [FLAT, PLACES, COS[:, :2], SIN[:, :2]])
    agree(OP, [FLAT, PLACES, COS, SIN], num_heads=N)
    both_refuse(OP, [BY_HEAD, PLACES, COS[:, :2], SIN[:, :2]], "a head has 8 elements, the cosines turn 4")
    both_refuse(OP, [FLAT, PLACES, COS, SIN], "a head has 4 elements", num_heads=4)
    refuse(OP, [FLAT, PLACES, COS, SIN], "the cosines turn 8", num_heads=N, rotary_embedding_dim=4)


def test_scale_has_no_effect():
    agree(OP, [FLAT, PLACES, COS, SIN], scale=2.0)


def test_ragged_batches_may_be_longer_than_the_tables():
    agree(OP, [FLAT, PLACES % 2, COS[:2], SIN[:2]], is_packed_batching=1)


def test_empty():
    agree(OP, [FLAT[:, :0], PLACES[:, :0], COS, SIN])


def test_faults():
    for wrong in (PLACES + 1, PLACES - 1):
        both_refuse(OP, [FLAT, wrong, COS, SIN], "outside the 6 rows")
    both_refuse(OP, [FLAT, np.array([4]), COS, SIN], r"position \[6\] is outside")
    both_refuse(OP, [FLAT, PLACES[:1], COS, SIN], "position_ids is .1, 3. for batch 2 and length 3")
    both_refuse(OP, [FLAT[0], PLACES, COS, SIN], "rank should be 3 or 4")
    both_refuse(OP, [FLAT, PLACES, COS, SIN[:5]], "shapes of cosines and sines differ")
    both_refuse(OP, [FLAT, PLACES, COS, SIN], "needs num_heads", rotary_embedding_dim=8)


def test_gemma():
    """By its formula: onnxruntime has no kernel for the CPU."""
    angles, q, k = normal(4, B, S, H), normal(5, B, N, S, H), normal(6, B, N, S, H)
    half = [a.astype(np.float16) for a in (q, normal(7, B, N, S, H), k, normal(8, B, N, S, H))]
    y = run("GemmaRotaryEmbedding", [angles, *half], 2)
    cos, sin = (f(angles.astype(np.float64))[:, None] for f in (np.cos, np.sin))
    for got, (a, b) in zip(y, (half[:2], half[2:]), strict=True):
        assert got.dtype == np.float16
        close(got, a * cos + b * sin, eps=2e-3)


def test_inferred():
    tables = [typed(2, dtype=np.int64), typed(6, 4), typed(6, 4)]
    assert shapes(OP, typed("b", "s", 16), *tables) == "[b, s, 16]"
    assert shapes(OP, typed("b", 2, "s", 8), *tables) == "[b, 2, s, 8]"
