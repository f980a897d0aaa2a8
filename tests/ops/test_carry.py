"""Caches, causal convolutions and linear attention against their texts' loops in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, ints, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal

BF16 = ml_dtypes.bfloat16
OPS = ("TensorScatter", "CausalConvWithState", "LinearAttention")


@pytest.mark.parametrize("case", node_cases(*OPS))
def test_onnx_cases(case):
    check_case(case, exact=True)


# ---- TensorScatter


def scattered(cache, update, first, axis, circular):
    """The text's pseudocode."""
    axis %= cache.ndim
    y = cache.copy()
    for prefix in np.ndindex(cache.shape[:axis]):
        for s in range(update.shape[axis]):
            place = int(first[prefix[0]]) + s
            y[(*prefix, place % cache.shape[axis] if circular else place)] = update[(*prefix, s)]
    return y


@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 6, 4), -2), ((2, 6), 1), ((2, 3, 4, 6), -1), ((2, 6, 3), -2)])
@pytest.mark.parametrize("count", [0, 1, 4, 6])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, BF16, object])
def test_scatter(shape, axis, count, dtype):
    cache = (normal(1, *shape) * 5).astype(dtype)
    update = np.take((normal(2, *shape) * 5).astype(dtype), range(count), axis=axis)
    kept = cache.copy()
    for first in (ints(0, 6 - count), ints(6 - count, 0)):
        got = kernel("TensorScatter", cache, update, first, axis=axis)
        assert got.tolist() == scattered(cache, update, first, axis, False).tolist()
    for first in (ints(5, 2), ints(6, 13), ints(-1, -7)):
        got = kernel("TensorScatter", cache, update, first, axis=axis, mode="circular")
        assert got.tolist() == scattered(cache, update, first, axis, True).tolist()
    got = kernel("TensorScatter", cache, update, axis=axis)
    assert got.tolist() == scattered(cache, update, ints(0, 0), axis, False).tolist()
    assert cache.tolist() == kept.tolist()


@pytest.mark.parametrize("first", [-1, 3])
def test_a_place_outside_the_cache(first):
    with pytest.raises(RunError, match=rf"4 positions from \[{first}\] are not within the 6"):
        kernel("TensorScatter", normal(1, 2, 6, 3), normal(2, 2, 4, 3), ints(0, first))


@pytest.mark.parametrize(
    ("update", "first", "attrs", "message"),
    [
        ((2, 7, 3), (2,), {}, "longer than the cache"),
        ((2, 4, 5), (2,), {}, r"update is \[2, 4, 5\], not \[2, \?, 3\]"),
        ((2, 4), (2,), {}, r"update is \[2, 4\]"),
        ((2, 4, 3), (3,), {}, r"write_indices is \[3\], not \[2\]"),
        ((2, 4, 3), (2,), {"axis": 0}, "axis 0 is the batch"),
        ((2, 4, 3), (2,), {"axis": 3}, "axis 3 is out of range"),
        ((2, 4, 3), (2,), {"mode": "ring"}, "mode 'ring'"),
    ],
)
def test_what_does_not_fit_a_cache(update, first, attrs, message):
    with pytest.raises(RunError, match=message):
        kernel("TensorScatter", normal(1, 2, 6, 3), normal(2, *update), np.zeros(first, np.int64), **attrs)
    with pytest.raises(ShapeError, match=message):
        infer("TensorScatter", [typed(2, 6, 3), typed(*update), typed(*first, dtype=np.int64)], **attrs)


# ---- CausalConvWithState


def convolved(x, weight, bias, past, activation):
    x, weight = x.astype(np.float64), weight.astype(np.float64)
    taps = weight.shape[2]
    before = np.zeros((*x.shape[:2], taps - 1)) if past is None else past.astype(np.float64)
    whole, y = np.concatenate([before, x], axis=2), np.zeros(x.shape)
    for b, c, t in np.ndindex(x.shape):
        y[b, c, t] = whole[b, c, t : t + taps] @ weight[c, 0] + (0 if bias is None else float(bias[c]))
    return y / (1 + np.exp(-y)) if activation != "none" else y, whole[:, :, whole.shape[2] - taps + 1 :]


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("length", [0, 1, 2, 9])
@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize(("dtype", "eps"), [(np.float32, 1e-6), (np.float16, 1e-3), (BF16, 8e-3)])
@pytest.mark.parametrize("given", [False, True])
def test_convolution(taps, length, activation, dtype, eps, given):
    x, weight = normal(1, 2, 3, length).astype(dtype), normal(2, 3, 1, taps).astype(dtype)
    more = [normal(3, 3).astype(dtype), normal(4, 2, 3, taps - 1).astype(dtype)] if given else [None, None]
    y, state = kernel("CausalConvWithState", x, weight, *more, activation=activation)
    wanted, carried = convolved(x, weight, *more, activation)
    assert (y.dtype, state.dtype) == (dtype, dtype)
    same(y.astype(np.float64), wanted, rtol=eps, atol=eps)
    assert state.astype(np.float64).tolist() == carried.tolist()


def test_steps_are_as_one_call():
    x, weight = normal(1, 2, 3, 10), normal(2, 3, 1, 4)
    whole, last = kernel("CausalConvWithState", x, weight)
    parts, state = [], None
    for start, end in ((0, 1), (1, 2), (2, 7), (7, 10)):
        y, state = kernel("CausalConvWithState", x[:, :, start:end], weight, None, state)
        parts.append(y)
    assert np.concatenate(parts, axis=2).tolist() == whole.tolist()
    assert state.tolist() == last.tolist()


@pytest.mark.parametrize(
    ("shapes", "attrs", "message"),
    [
        ([(2, 3), (3, 1, 4)], {}, r"input is \[2, 3\]"),
        ([(2, 3, 9), (3, 2, 4)], {}, r"weight is \[3, 2, 4\], not \[3, 1, \?\]"),
        ([(2, 3, 9), (2, 1, 4)], {}, r"weight is \[2, 1, 4\]"),
        ([(2, 3, 9), (3, 1, 0)], {}, "kernel is empty"),
        ([(2, 3, 9), (3, 1, 4), (4,)], {}, r"bias is \[4\], not \[3\]"),
        ([(2, 3, 9), (3, 1, 4), (3,), (2, 3, 4)], {}, r"past_state is \[2, 3, 4\], not \[2, 3, 3\]"),
        ([(2, 3, 9), (3, 1, 4)], {"activation": "relu"}, "activation 'relu'"),
    ],
)
def test_what_does_not_fit_a_convolution(shapes, attrs, message):
    with pytest.raises(RunError, match=message):
        kernel("CausalConvWithState", *(np.zeros(s, np.float32) for s in shapes), **attrs)
    with pytest.raises(ShapeError, match=message):
        infer("CausalConvWithState", [typed(*s) for s in shapes], 2, **attrs)


# ---- LinearAttention

RULES = {"linear": (), "gated": ("decay",), "delta": ("beta",), "gated_delta": ("decay", "beta")}


def remembered(query, key, value, past=None, decay=None, beta=None, *, q_num_heads, kv_num_heads, scale=0.0, **_):
    """The text's recurrences, head by head."""
    b, t, d_k, d_v = *query.shape[:2], query.shape[2] // q_num_heads, value.shape[2] // kv_num_heads
    q, k, v = (
        a.astype(np.float64).reshape(b, t, h, -1)
        for a, h in zip((query, key, value), (q_num_heads, kv_num_heads, kv_num_heads), strict=True)
    )
    state = np.zeros((b, kv_num_heads, d_k, d_v)) if past is None else past.astype(np.float64)
    y, scale = np.zeros((b, t, q_num_heads, d_v)), scale or d_k**-0.5
    for n, step, h in np.ndindex(b, t, kv_num_heads):
        s = state[n, h]
        if decay is not None:
            g = np.exp(decay[n, step].astype(np.float64).reshape(kv_num_heads, -1)[h])
            s *= g[:, None]
        new = v[n, step, h]
        if beta is not None:
            rate = float(beta[n, step, h if beta.shape[2] == kv_num_heads else 0])
            new = rate * (new - s.T @ k[n, step, h])
        s += np.outer(k[n, step, h], new)
        for own in range(q_num_heads):
            if own * kv_num_heads // q_num_heads == h:
                y[n, step, own] = scale * s.T @ q[n, step, own]
    return y.reshape(b, t, -1), state


def memory(rule, heads=4, kv_heads=2, steps=6, per_key=True, per_head=True, dtype=np.float32, past=True):
    key = normal(2, 2, steps, kv_heads, 5)
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    inputs = [normal(1, 2, steps, heads * 5), key.reshape(2, steps, kv_heads * 5), normal(3, 2, steps, kv_heads * 3)]
    inputs += [normal(4, 2, kv_heads, 5, 3) if past else None]
    inputs += [-np.abs(normal(5, 2, steps, kv_heads * (5 if per_key else 1))) if "decay" in RULES[rule] else None]
    inputs += [1 / (1 + np.exp(-normal(6, 2, steps, kv_heads if per_head else 1))) if "beta" in RULES[rule] else None]
    return [None if a is None else a.astype(dtype) for a in inputs]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_recurrence(rule, heads, kv_heads, per_key, per_head, past):
    inputs = memory(rule, heads, kv_heads, per_key=per_key, per_head=per_head, past=past)
    attrs = {"q_num_heads": heads, "kv_num_heads": kv_heads, "update_rule": rule}
    for extra in ({}, {"scale": 0.25, "chunk_size": 2}):
        got = kernel("LinearAttention", *inputs, **attrs, **extra)
        for g, wanted in zip(got, remembered(*inputs, **attrs, **extra), strict=True):
            same(g.astype(np.float64), wanted, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_half_precision_is_rounded_once(dtype):
    inputs = memory("gated_delta", steps=40, dtype=dtype)
    attrs = {"q_num_heads": 4, "kv_num_heads": 2}
    wide = kernel("LinearAttention", *(a.astype(np.float32) for a in inputs), **attrs)
    for g, w in zip(kernel("LinearAttention", *inputs, **attrs), wide, strict=True):
        assert g.dtype == dtype
        assert g.tolist() == w.astype(dtype).tolist()


def test_the_memory_has_the_dtype_of_the_past():
    inputs = memory("gated_delta", dtype=np.float16)
    inputs[3] = inputs[3].astype(np.float32)
    y, state = kernel("LinearAttention", *inputs, q_num_heads=4, kv_num_heads=2)
    assert (y.dtype, state.dtype) == (np.float16, np.float32)


@pytest.mark.parametrize("rule", RULES)
def test_no_steps_leave_the_memory(rule):
    inputs = memory(rule, steps=0)
    y, state = kernel("LinearAttention", *inputs, q_num_heads=4, kv_num_heads=2, update_rule=rule)
    assert y.shape == (2, 0, 12)
    assert state.tolist() == inputs[3].tolist()


@pytest.mark.parametrize(
    ("change", "attrs", "message"),
    [
        ({4: None}, {}, "update_rule gated_delta needs decay"),
        ({5: None}, {}, "update_rule gated_delta needs beta"),
        ({}, {"update_rule": "delta"}, "update_rule delta takes no decay"),
        ({}, {"update_rule": "sum"}, "update_rule 'sum'"),
        ({}, {"kv_num_heads": 3}, "3 heads of keys do not divide 4"),
        ({}, {"q_num_heads": 0}, "must be positive"),
        ({0: (2, 6, 24)}, {}, "6 in query, 5 in key"),
        ({0: (2, 6, 21)}, {}, "4 heads do not divide query"),
        ({2: (2, 5, 6)}, {}, "differ in batch or length"),
        ({3: (2, 2, 3, 5)}, {}, r"past_state is \[2, 2, 3, 5\], not \[2, 2, 5, 3\]"),
        ({4: (2, 6, 3)}, {}, r"decay is \[2, 6, 3\], not \[2, 6, 10\]"),
        ({5: (2, 6, 4)}, {}, r"beta is \[2, 6, 4\], not \[2, 6, 1\]"),
    ],
)
def test_what_does_not_fit_a_memory(change, attrs, message):
    inputs = memory("gated_delta")
    for index, shape in change.items():
        inputs[index] = None if shape is None else np.zeros(shape, np.float32)
    attrs = {"q_num_heads": 4, "kv_num_heads": 2, **attrs}
    with pytest.raises(RunError, match=message):
        kernel("LinearAttention", *inputs, **attrs)
    with pytest.raises(ShapeError, match=message):
        infer("LinearAttention", [None if a is None else typed(*a.shape) for a in inputs], 2, **attrs)


# ---- inference


def test_inferred():
    found = infer("TensorScatter", [typed("b", "m", 4), typed("b", 1, 4), typed("b", dtype=np.int64)])
    assert shape_of(found[0]) == "[b, m, 4]"
    found = infer("CausalConvWithState", [typed("b", 3, "l"), typed(3, 1, 4)], 2)
    assert [shape_of(i) for i in found] == ["[b, 3, l]", "[b, 3, 3]"]
    half = [typed("b", "t", n, dtype=np.float16) for n in (20, 10, 6)]
    attrs = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": "linear"}
    found = infer("LinearAttention", [*half, typed("b", 2, 5, 3)], 2, **attrs)
    assert [shape_of(i) for i in found] == ["[b, t, 12]", "[b, 2, 5, 3]"]
    assert [i.dtype for i in found] == [np.float16, np.float32]
