"""Attention against the text's steps, one query at a time in float64, and against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import attend
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

INF, NAN = np.inf, np.nan
BF16 = ml_dtypes.bfloat16


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases("Attention"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def split(x, heads):
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def one_query(scores, bias, softcap, mode):
    """The probabilities of one row of scaled products, and the row at the stage ``mode``."""
    stages = [scores, softcap * np.tanh(scores / softcap) if softcap else scores]
    stages.append(np.where(np.isneginf(bias), -INF, stages[1] + bias))
    row, weights = stages[2], np.zeros_like(scores)
    if (row > -INF).any():
        weights = np.exp(row - row.max())
        weights /= weights.sum()
    return weights, [*stages, weights][mode]


def by_query(q, k, v, mask=None, past_key=None, past_value=None, lens=None, **attrs):
    """All four outputs in float64."""
    flat, dtype = q.ndim == 3, np.float64
    q = split(q, attrs.get("q_num_heads")).astype(dtype)
    k, v = (split(x, attrs.get("kv_num_heads")).astype(dtype) for x in (k, v))
    if past_key is not None:
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    (batch, heads, queries, size), keys = q.shape, k.shape[2]
    scale = attrs.get("scale", 1 / np.sqrt(size))
    full = np.zeros((batch, heads, queries, keys))
    if mask is not None:
        low = np.where(mask, 0, -INF) if mask.dtype == bool else mask.astype(dtype)
        low = np.concatenate([low, np.full((*low.shape[:-1], keys - low.shape[-1]), -INF)], axis=-1)
        full = full + low
    y, kept = np.zeros((batch, heads, queries, v.shape[3])), np.zeros((batch, heads, queries, keys))
    left, right = attrs.get("left_window_size", -1), attrs.get("right_window_size", -1)
    for b, h, i in np.ndindex(batch, heads, queries):
        own = h * k.shape[1] // heads
        p = i + (past_key.shape[2] if past_key is not None else lens[b] - queries if lens is not None else 0)
        bias = full[b, h, i].copy()
        for j in range(keys):
            hidden = attrs.get("is_causal", 0) and j > p
            hidden = hidden or (left >= 0 and j < p - left) or (right >= 0 and j > p + right)
            if hidden or (lens is not None and j >= lens[b]):
                bias[j] = -INF
        mode = attrs.get("qk_matmul_output_mode", 0)
        weights, kept[b, h, i] = one_query(k[b, own] @ q[b, h, i] * scale, bias, attrs.get("softcap", 0), mode)
        seen = weights > 0
        y[b, h, i] = weights[seen] @ v[b, own][seen]
    return [y.swapaxes(1, 2).reshape(batch, queries, -1) if flat else y, k, v, kept]


def make(seed=0, batch=2, heads=4, kv_heads=2, queries=3, keys=5, size=8, value_size=6, flat=False, dtype=np.float32):
    shapes = [(batch, heads, queries, size), (batch, kv_heads, keys, size), (batch, kv_heads, keys, value_size)]
    made = [normal(seed + i, *s).astype(dtype) for i, s in enumerate(shapes)]
    return [x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) for x in made] if flat else made


def agree(inputs, eps=2e-6, **attrs):
    if inputs[0].ndim == 3:
        attrs = {"q_num_heads": 4, "kv_num_heads": 2, **attrs}
    kept = [None if x is None else x.copy() for x in inputs]
    got = kernel("Attention", *inputs, n_outputs=4, **attrs)
    for g, wanted in zip(got, by_query(*inputs, **attrs), strict=True):
        same(g.astype(np.float64), wanted, rtol=eps, atol=eps)
    for x, before in zip(inputs, kept, strict=True):
        assert x is None or x.tolist() == before.tolist()
    y = kernel("Attention", *inputs, n_outputs=1, **attrs)[0]
    same(y, got[0], rtol=1e-6)
    return got


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "attrs", [{}, {"softcap": 0.5}, {"scale": 0.3}, {"is_causal": 1}, {"scale": -0.5, "softcap": 2.0}]
)
def test_modes(flat, mode, attrs):
    agree(make(flat=flat), qk_matmul_output_mode=mode, **attrs)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 1), (6, 2), (6, 3)])
@pytest.mark.parametrize("flat", [False, True])
def test_heads(heads, kv_heads, flat):
    inputs = make(heads=heads, kv_heads=kv_heads, flat=flat)
    agree(inputs, **({"q_num_heads": heads, "kv_num_heads": kv_heads} if flat else {}))


MASKS = [
    (5,),
    (3, 5),
    (1, 5),
    (1, 3, 5),
    (4, 3, 5),
    (2, 1, 3, 5),
    (2, 4, 1, 5),
    (2, 4, 3, 5),
    (1, 1, 1, 5),
    (3, 4),
    (2, 4, 3, 2),
]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("kind", ["bool", "float", "infinite", "int"])
@pytest.mark.parametrize("causal", [0, 1])
def test_masks(shape, kind, causal):
    mask = normal(9, *shape)
    if kind == "bool":
        mask = mask > -0.5
    elif kind == "infinite":
        mask = np.where(mask > 0.5, -INF, mask).astype(np.float32)
    elif kind == "int":
        mask = np.round(mask * 3).astype(np.int32)
    agree([*make(), mask], is_causal=causal, qk_matmul_output_mode=2)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_a_query_that_sees_nothing_gives_zeros(mode):
    mask = np.ones((3, 5), bool)
    mask[1] = False
    for hidden in (mask, np.where(mask, 0, -INF).astype(np.float32)):
        y, _, _, kept = agree([*make(), hidden], qk_matmul_output_mode=mode)
        assert not y[:, :, 1].any()
        assert mode != 3 or not kept[:, :, 1].any()
    assert y[:, :, 0].any()


def test_what_is_hidden_has_no_effect():
    q, k, v = make()
    mask = np.ones(5, bool)
    mask[2] = False
    wanted = kernel("Attention", q, k, v, mask, is_causal=0)[0]
    for odd in (NAN, INF, 3e38):
        k[:, :, 2] = odd
        assert kernel("Attention", q, k, v, mask)[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("left", [-1, 0, 1, 4])
@pytest.mark.parametrize("right", [-1, 0, 2])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows(left, right, causal):
    attrs = {"left_window_size": left, "right_window_size": right, "is_causal": causal, "qk_matmul_output_mode": 2}
    agree(make(queries=6, keys=7), **attrs)
    past = [normal(5, 2, 2, 3, 8), normal(6, 2, 2, 3, 6)]
    agree([*make(queries=4, keys=4), None, *past], **attrs)
    agree([*make(queries=4, keys=7), None, None, None, np.array([2, 6])], **attrs)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("flat", [False, True])
def test_the_past(causal, flat):
    past = [normal(5, 2, 2, 4, 8), normal(6, 2, 2, 4, 6)]
    got = agree([*make(queries=2, keys=2, flat=flat), None, *past], is_causal=causal)
    assert got[1].shape == (2, 2, 6, 8)
    assert got[1][:, :, :4].tolist() == past[0].tolist()
    mask = normal(7, 2, 6) > 0
    agree([*make(queries=2, keys=2, flat=flat), mask, *past], is_causal=causal)
    nothing = [p[:, :, :0] for p in past]
    agree([*make(flat=flat), None, *nothing], is_causal=causal)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("lens", [[5, 3], [1, 0], [2, 5]])
def test_lengths(causal, lens):
    agree([*make(), None, None, None, np.array(lens)], is_causal=causal, qk_matmul_output_mode=3)
    agree([*make(), normal(8, 3, 5), None, None, np.array(lens)], is_causal=causal)


@pytest.mark.parametrize("group", [1, 7, 16, 40, 10**9])
def test_groups_of_heads_make_no_difference(group, monkeypatch):
    monkeypatch.setattr(attend, "GROUP", group)
    mask = normal(9, 3, 6, 3, 5)
    agree([*make(batch=3, heads=6, kv_heads=3), mask], is_causal=1, qk_matmul_output_mode=3)


# ---- dtypes, sizes, extremes


@pytest.mark.parametrize(("dtype", "eps"), [(np.float64, 1e-14), (np.float16, 1e-3), (BF16, 1e-2)])
def test_dtypes(dtype, eps):
    inputs = make(dtype=dtype)
    got = agree([*inputs, normal(9, 3, 5).astype(dtype)], eps=eps)
    assert {g.dtype for g in got} == {np.dtype(dtype)}


def test_half_precision_is_rounded_once():
    inputs = [x.astype(np.float16) for x in make(keys=200, size=64)]
    wide = kernel("Attention", *(x.astype(np.float32) for x in inputs))[0]
    assert kernel("Attention", *inputs)[0].tolist() == wide.astype(np.float16).tolist()


def test_scores_beyond_half_precision():
    q, k, v = (x.astype(np.float16) for x in make(size=64))
    y = kernel("Attention", q * 100, k * 100, v)[0]
    same(y.astype(np.float64), by_query(q * 100, k * 100, v)[0], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(("precision", "dtype"), [(1, np.float32), (10, np.float16), (11, np.float64), (16, BF16)])
def test_the_precision_of_the_softmax(precision, dtype):
    q, k, v = make()
    plain = kernel("Attention", q, k, v, qk_matmul_output_mode=3, n_outputs=4)[3]
    got = kernel("Attention", q, k, v, qk_matmul_output_mode=3, n_outputs=4, softmax_precision=precision)[3]
    assert got.dtype == np.float32
    same(got, plain, rtol=2e-2 if np.dtype(dtype).itemsize == 2 else 1e-6)
    assert got.tolist() == got.astype(dtype).astype(np.float32).tolist()


@pytest.mark.parametrize(
    "sizes", [{"batch": 0}, {"queries": 0}, {"keys": 0}, {"size": 0}, {"value_size": 0}, {"keys": 1}]
)
def test_empty_and_single(sizes):
    got = agree(make(**sizes), scale=0.5)
    if sizes.get("keys") == 0:
        assert not got[0].any()


def test_large_scores():
    q, k, v = make()
    agree([q * 1e4, k * 1e4, v])
    y = kernel("Attention", q * 0 + 1, k * 0, v)[0]
    same(y, np.broadcast_to(v.mean(axis=2, keepdims=True).repeat(2, axis=1), y.shape), rtol=1e-6)


@pytest.mark.parametrize("attrs", [{}, {"is_causal": 1}, {"softcap": 0.7}, {"scale": 0.2}])
@pytest.mark.parametrize("flat", [False, True])
def test_onnxruntime(attrs, flat):
    inputs = make(flat=flat)
    if flat:
        attrs = {**attrs, "q_num_heads": 4, "kv_num_heads": 2}
    got = onnxruntime_says("Attention", inputs, opset=23, **attrs)
    same(kernel("Attention", *inputs, **attrs)[0], got, rtol=1e-4, atol=1e-5)


# ---- what does not fit


@pytest.mark.parametrize(
    ("change", "attrs", "message"),
    [
        ({0: (2, 3, 32)}, {}, "do not fit together"),
        ({1: (2, 2, 5, 7)}, {}, "do not fit together"),
        ({2: (2, 2, 4, 6)}, {}, "do not fit together"),
        ({1: (2, 3, 5, 8), 2: (2, 3, 5, 6)}, {}, "3 heads of keys do not divide 4 of queries"),
        ({0: (32,), 1: (32,), 2: (32,)}, {}, "not 3-D or 4-D"),
        ({0: (2, 3, 32), 1: (2, 5, 16), 2: (2, 5, 12)}, {}, "number of heads is not given"),
        ({0: (2, 3, 30), 1: (2, 5, 16), 2: (2, 5, 12)}, {"q_num_heads": 4, "kv_num_heads": 2}, "4 heads do not divide"),
        ({}, {"q_num_heads": 3}, "but has 3 heads"),
        ({3: (3, 6)}, {}, "attn_mask"),
        ({3: (2, 5)}, {}, "attn_mask"),
        ({3: (1, 1, 1, 3, 5)}, {}, "attn_mask"),
        ({3: ()}, {}, "attn_mask"),
        ({4: (2, 2, 4, 8)}, {}, "past_key and past_value come together"),
        ({4: (2, 2, 4, 8), 5: (2, 2, 3, 6)}, {}, "past_key is .* but past_value"),
        ({4: (2, 2, 4, 7), 5: (2, 2, 4, 6)}, {}, r"past_key is \[2, 2, 4, 7\], not \[2, 2, \?, 8\]"),
        ({6: (3,)}, {}, r"nonpad_kv_seqlen is \[3\], not \[2\]"),
        ({4: (2, 2, 4, 8), 5: (2, 2, 4, 6), 6: (2,)}, {}, "nonpad_kv_seqlen excludes"),
        ({}, {"qk_matmul_output_mode": 4}, "qk_matmul_output_mode 4"),
        ({}, {"left_window_size": -2}, "left_window_size -2"),
        ({}, {"softmax_precision": 7}, "softmax_precision 7"),
    ],
)
def test_what_does_not_fit(change, attrs, message):
    inputs = [*make(), None, None, None, None]
    for index, shape in change.items():
        inputs[index] = np.ones(shape, np.int64 if index == 6 else np.float32)
    with pytest.raises(RunError, match=message):
        kernel("Attention", *inputs, **attrs)
    with pytest.raises(ShapeError, match=message):
        infer("Attention", [None if x is None else typed(*x.shape, dtype=x.dtype) for x in inputs], **attrs)


@pytest.mark.parametrize("length", [-1, 6])
def test_a_length_out_of_range(length):
    with pytest.raises(RunError, match=rf"nonpad_kv_seqlen \[{length}\] is not within 5 keys"):
        kernel("Attention", *make(), None, None, None, np.array([1, length]))


def test_inferred():
    inputs = [typed("b", 4, "q", 8), typed("b", 2, "k", 8), typed("b", 2, "k", 6)]
    found = infer("Attention", inputs, 4)
    assert [shape_of(i) for i in found] == ["[b, 4, q, 6]", "[b, 2, k, 8]", "[b, 2, k, 6]", "[b, 4, q, k]"]
    past = [typed("b", 2, "p", 8), typed("b", 2, "p", 6)]
    assert shape_of(infer("Attention", [*inputs, None, *past], 4)[3]) == "[b, 4, q, k + p]"
    flat = [typed("b", "q", 32), typed("b", "k", 16), typed("b", "k", 12, dtype=np.float16)]
    found = infer("Attention", flat, 3, q_num_heads=4, kv_num_heads=2)
    assert [shape_of(i) for i in found] == ["[b, q, 24]", "[b, 2, k, 8]", "[b, 2, k, 6]"]
    assert [i.dtype for i in found] == [np.float32, np.float32, np.float16]
