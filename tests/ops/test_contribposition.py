"""Position biases and padding of com.microsoft against formulas: onnxruntime has no kernels for the CPU."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, known, typed
from tests.ops.contrib import refuse, run, shapes
from tests.ops.oracle import close, normal

INT = np.int32


def bucket(distance, both, buckets, most):
    """T5's rule, one distance at a time."""
    result = 0
    if both:
        buckets //= 2
        result += buckets * (distance > 0)
        size = abs(distance)
    else:
        size = max(-distance, 0)
    exact = buckets // 2
    if size < exact:
        return result + size
    grown = exact + int(math.log(size / exact) / math.log(most / exact) * (buckets - exact))
    return result + min(grown, buckets - 1)


@pytest.mark.parametrize("both", [0, 1])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (12, 30)])
def test_relative_position_bias(both, buckets, most):
    heads, length = 3, 50
    by_head = normal(1, heads, buckets)
    table = by_head.reshape(buckets, heads)  # the shape is the transposed one, the elements are not
    y = run(
        "RelativePositionBias", [table, np.array(length), np.array([length])], max_distance=most, is_bidirectional=both
    )[0]
    assert y.shape == (1, heads, length, length)
    for query in range(0, length, 7):
        for key in range(length):
            place = bucket(key - query, both, buckets, most)
            assert y[0, :, query, key].tolist() == by_head[:, place].tolist(), (query, key)


def test_relative_position_bias_faults():
    table, one = normal(1, 8, 2), np.array(4)
    op = "RelativePositionBias"
    refuse(op, [table, one, np.array(5)], "query_length and key_length differ: 4, 5", max_distance=20)
    refuse(op, [table, np.array(-1), np.array(-1)], "the length -1 is negative", max_distance=20)
    refuse(op, [table, one, one], "leave no room", max_distance=2)
    assert run(op, [table, np.array(0), np.array(0)], max_distance=20)[0].shape == (1, 2, 0, 0)
    assert shapes(op, typed(8, 2), known("n"), known("n"), max_distance=20) == "[1, 2, n, n]"
    assert shapes(op, typed(8, 2), typed(), typed(), max_distance=20) == "[1, 2, ?, ?]"


B, S, N, H, D = 2, 3, 2, 4, 8
GATED = "GatedRelativePositionBias"
PARTS = [normal(3, N * H), normal(4, 1, N, S, S), normal(5, H, D), normal(6, D), normal(7, 1, N, 1, 1)]


def gated(query, bias, rel_pos, weight, gate_bias, eco):
    """The operator's text, in float64."""
    layer = (query.astype(np.float64) + bias).reshape(B, S, N, H).swapaxes(1, 2)
    gate = 1 / (1 + np.exp(-(layer @ weight + gate_bias).reshape(B, N, S, 2, D // 2).sum(-1)))
    return (gate[..., :1] * (gate[..., 1:] * eco - 1) + 2) * rel_pos


def test_gated_bias():
    query = normal(2, B, S, N * H)
    y = run(GATED, [query, *PARTS], num_heads=N)[0]
    close(y, gated(query, *PARTS))
    refuse(GATED, [query, *PARTS], "cannot be split into 3 heads", num_heads=3)
    x = [typed("b", "s", 8), typed(8), typed(1, 2, "s", "s"), typed(4, 8), typed(8), typed(1, 2, 1, 1)]
    assert shapes(GATED, *x, num_heads=2) == "[b, 2, s, s]"


def test_gated_bias_of_packed_tokens():
    tokens, offset = normal(2, 4, N * H), np.array([[0, 1, 3], [4, 2, 5]], INT)
    full = np.zeros((B * S, N * H), np.float32)
    full[offset.reshape(-1)[:4]] = tokens
    y = run(GATED, [tokens, *PARTS, offset], num_heads=N)[0]
    close(y, gated(full.reshape(B, S, -1), *PARTS))


# ---- padding


def test_padding_comes_out_and_in_again():
    x, lengths = normal(8, 3, 4, 5), np.array([2, 0, 4], INT)
    tokens, offset, bounds, most = run("RemovePadding", [x, lengths], 4)
    assert tokens.tolist() == np.concatenate((x[0, :2], x[2])).tolist()
    assert offset.tolist() == [[0, 1, 8, 9], [10, 11, 2, 3], [4, 5, 6, 7]]
    assert (bounds.tolist(), most.tolist()) == ([0, 2, 2, 6], [4])
    back = run("RestorePadding", [tokens, offset])[0]
    assert back[0, :2].tolist() == x[0, :2].tolist()
    assert back[2].tolist() == x[2].tolist()
    assert not back[0, 2:].any()
    assert not back[1].any()


def test_padding_of_nothing():
    x = normal(8, 0, 4, 5)
    tokens, offset, bounds, most = run("RemovePadding", [x, np.zeros(0, INT)], 4)
    assert (tokens.shape, offset.shape, bounds.tolist(), most.tolist()) == ((0, 5), (0, 4), [0], [0])
    full = run("RemovePadding", [normal(8, 2, 0, 5), np.zeros(2, INT)], 4)
    assert (full[0].shape, full[3].tolist()) == ((0, 5), [0])


def test_padding_faults_and_sizes():
    x = normal(8, 3, 4, 5)
    for wrong in ([5, 0, 0], [-1, 0, 0]):
        refuse("RemovePadding", [x, np.array(wrong, INT)], "is not within the length 4", 4)
    refuse("RemovePadding", [x, np.array([1], INT)], "sequence_token_count is", 4)
    refuse("RestorePadding", [normal(9, 2, 5), np.array([[0, 7]], INT)], "token_offset 7 is out of range")
    refuse("RestorePadding", [normal(9, 3, 5), np.array([[0, 1]], INT)], "3 tokens do not fit")
    wanted = "[?, 5] [b, s] [b + 1] [1]"
    assert shapes("RemovePadding", typed("b", "s", 5), typed("b", dtype=INT), outputs=4) == wanted
    assert shapes("RestorePadding", typed("t", 5), typed("b", "s", dtype=INT)) == "[b, s, 5]"
    with pytest.raises(ShapeError, match="rank should be 3"):
        infer("com.microsoft::RemovePadding", [typed("t", 5), typed("b")], 4)
