"""Attention of com.microsoft against onnxruntime: masks of all shapes, past states, biases, and the packed forms."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fuse.errors import ShapeError, UnsupportedError
from fuse.model.load import load
from fuse.ops.infer import infer_model
from fuse.runtime.interpret import Interpreter
from tests.ops.cases import infer, kernel, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import close, normal

INT = np.int32
B, S, W, N, H = 2, 3, 6, 2, 4
D = N * H
X, WEIGHTS, BIAS, PAST = normal(1, B, S, W), normal(2, W, 3 * D), normal(3, 3 * D), normal(4, 2, B, N, 2, H)
LOWEST = float(np.finfo(np.float32).min)


def attention(*inputs, outputs=2, eps=2e-6, **attrs):
    return agree("Attention", [X, WEIGHTS, BIAS, *inputs], outputs, eps, num_heads=N, **attrs)


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def exact(x, add=0.0, heads=N, weights=WEIGHTS, bias=BIAS):
    """Self-attention by its formula in float64."""
    projected = x.astype(np.float64) @ weights + bias
    q, k, v = (p.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for p in np.split(projected, 3, axis=-1))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]) + add
    return (softmax(scores) @ v).swapaxes(1, 2).reshape(*x.shape[:2], -1)


def mask(*values):
    return np.array(values, INT)


def test_plain():
    y, present = attention()
    close(y, exact(X))
    assert present.shape == (2, B, N, S, H)
    agree("Attention", [X, WEIGHTS], num_heads=N)
    attention(scale=0.3)
    attention(scale=0.0)


@pytest.mark.parametrize("unidirectional", [0, 1])
@pytest.mark.parametrize(
    "given",
    [
        mask(2, 3),
        mask(1, 2, 0, 1),
        mask(3, 2, 0, 3, 5, 0, 3, 5),
        mask([1, 0, 1], [1, 1, 0]),
        mask([[1, 0, 0], [1, 1, 0], [1, 0, 1]], [[1, 1, 1], [0, 1, 0], [1, 1, 0]]),
        mask([0], [0]),
        mask([0]).reshape(1, 1),
    ],
    ids=["ends", "ends and starts", "cumulated", "raw", "raw by query", "dummy", "dummy for all"],
)
def test_masks(given, unidirectional):
    attention(given, unidirectional=unidirectional)


def test_a_mask_of_all_lengths():
    big = np.tril(np.ones((5, 5), INT))[None, None].repeat(B, axis=0)
    big[1, :, :, 1] = 0
    got = run("Attention", [X, WEIGHTS, BIAS, big], num_heads=N)[0]
    close(got, exact(X, np.where(big[:, :, :S, :S] > 0, 0, -10000.0)), eps=1e-4)
    behind = run("Attention", [X, WEIGHTS, BIAS, big, PAST], num_heads=N)[0]
    raw = np.ascontiguousarray(big[:, 0, 2:5, :5])
    assert behind.tolist() == run("Attention", [X, WEIGHTS, BIAS, raw, PAST], num_heads=N)[0].tolist()


@pytest.mark.parametrize("value", [-10000.0, LOWEST, -50.0])
def test_rows_that_see_nothing(value):
    y, _ = attention(mask([0, 0, 0], [0, 1, 1]), eps=2e-4, mask_filter_value=value)
    if value == LOWEST:  # the scores vanish beside it, so that all values count the same
        v = (X.astype(np.float64) @ WEIGHTS + BIAS)[0, :, 2 * D :]
        close(y[0], np.broadcast_to(v.mean(axis=0), (S, D)))


def test_minus_infinity_for_a_whole_row_is_nan():
    y, _ = attention(mask(0, 2), mask_filter_value=-np.inf)
    assert np.isnan(y[0]).all()
    assert np.isfinite(y[1]).all()


@pytest.mark.parametrize("shape", [(1, 1, S, S), (B, 1, S, S), (1, N, S, S), (B, N, S, S)])
def test_attention_bias(shape):
    attention(None, None, normal(5, *shape), outputs=1)
    attention(mask(2, 3), None, normal(5, *shape), outputs=1, unidirectional=1)


@pytest.mark.parametrize("filled", [0, 1, 2])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_past(filled, unidirectional):
    _, present = attention(None, PAST[:, :, :, :filled], unidirectional=unidirectional)
    assert present[:, :, :, :filled].tolist() == PAST[:, :, :, :filled].tolist()
    seen = np.ones((B, filled + S), INT)
    seen[0, 0] = 0
    attention(seen, PAST[:, :, :, :filled], unidirectional=unidirectional)


def test_a_past_with_room():
    room = normal(6, 2, B, N, 9, H)
    inputs = [X, WEIGHTS, BIAS, None, room, None, mask(2)]
    y, present = run("Attention", inputs, 2, num_heads=N, past_present_share_buffer=1)
    wanted = run("Attention", [*inputs[:4], room[:, :, :, :2]], 2, num_heads=N)
    assert y.tolist() == wanted[0].tolist()
    assert present[:, :, :, :5].tolist() == wanted[1].tolist()
    assert present[:, :, :, 5:].tolist() == room[:, :, :, 5:].tolist()
    for filled in (-1, 7):
        inputs[6] = mask(filled)
        refuse("Attention", inputs, "do not fit a buffer of 9", num_heads=N, past_present_share_buffer=1)


def test_values_of_another_width():
    sizes = [D, D, 6]
    inputs = [X, normal(7, W, 2 * D + 6), normal(8, 2 * D + 6)]
    agree("Attention", inputs, num_heads=N, qkv_hidden_sizes=sizes)
    refuse("Attention", inputs, "different sizes", 2, num_heads=N, qkv_hidden_sizes=sizes)


@pytest.mark.parametrize("x", [X[:0], X[:, :0]])
def test_empty(x):
    agree("Attention", [x, WEIGHTS, BIAS], num_heads=N)


def test_half_precision_is_carried_in_float32():
    half = [a.astype(np.float16) for a in (X, WEIGHTS, BIAS)]
    y = run("Attention", half, num_heads=N)[0]
    wanted = exact(half[0], weights=half[1].astype(np.float64), bias=half[2].astype(np.float64))
    assert np.mean(y == wanted.astype(np.float16)) > 0.9


def test_faults():
    both_refuse("Attention", [X, WEIGHTS, BIAS, mask([1, 1], [1, 1])], "does not fit batch 2", num_heads=N)
    both_refuse("Attention", [X, WEIGHTS, BIAS, mask(-1, 2)], "ends a sequence at -1", num_heads=N)
    both_refuse("Attention", [X, WEIGHTS, BIAS[:-1]], "columns of the weight", num_heads=N)
    both_refuse("Attention", [X, WEIGHTS, BIAS], "cannot be split into 3 heads", num_heads=3)
    both_refuse("Attention", [X[0], WEIGHTS, BIAS], "rank should be 3", num_heads=N)
    both_refuse("Attention", [X, WEIGHTS, BIAS, None, PAST[:, :1]], "past .* does not fit", 2, num_heads=N)
    both_refuse("Attention", [X, WEIGHTS, BIAS, None, None, normal(5, 1, 1, 1, S)], "attention_bias", num_heads=N)
    with pytest.raises(UnsupportedError, match="do_rotary"):
        kernel("com.microsoft::Attention", X, WEIGHTS, BIAS, num_heads=N, do_rotary=1)


def test_inferred():
    given = [typed("b", "s", 6), typed(6, 24), typed(24)]
    assert shapes("Attention", *given, outputs=2, num_heads=2) == "[b, s, 8] [2, b, 2, s, 4]"
    past = typed(2, "b", 2, "p", 4)
    assert shapes("Attention", *given, None, past, outputs=2, num_heads=2) == "[b, s, 8] [2, b, 2, p + s, 4]"
    shared = {"num_heads": 2, "past_present_share_buffer": 1}
    assert shapes("Attention", *given, None, past, outputs=2, **shared) == "[b, s, 8] [2, b, 2, p, 4]"
    wide = [typed("b", "s", 6), typed(6, 22), None]
    assert shapes("Attention", *wide, num_heads=2, qkv_hidden_sizes=[8, 8, 6]) == "[b, s, 6]"
    with pytest.raises(ShapeError, match="columns are no queries"):
        infer("com.microsoft::Attention", [typed("b", "s", 6), typed(6, 25)], num_heads=2)


# ---- without padding


def test_packed_attention_is_attention_by_sequence():
    bias, bounds = normal(9, 3, 1, S, S), mask(0, 2, 2, 5)  # the second sequence is empty
    tokens = normal(10, 5, W)
    offset = mask([0, 1, 2], [3, 4, 5], [6, 7, 8])
    y = run("PackedAttention", [tokens, WEIGHTS, BIAS, offset, bounds, bias], num_heads=N)[0]
    assert y.shape == (5, D)
    for index, length in ((0, 2), (2, 3)):
        own = tokens[bounds[index] : bounds[index + 1]]
        close(y[bounds[index] : bounds[index + 1]], exact(own[None], bias[index, :, :length, :length])[0])
    one = run("PackedAttention", [tokens, WEIGHTS, BIAS, offset, bounds, bias[:1]], num_heads=N)[0]
    close(one[2:], exact(tokens[None, 2:], bias[0])[0])
    refuse("PackedAttention", [tokens, WEIGHTS, BIAS, offset, mask(0, 3, 2, 5)], "does not divide 5", num_heads=N)


def test_packed_heads():
    projected = normal(10, 5, W) @ WEIGHTS
    offset, bounds = mask([0, 1, 2], [3, 4, 5]), mask(0, 2, 5)
    wanted = run("PackedAttention", [normal(10, 5, W), WEIGHTS, BIAS, offset, bounds], num_heads=N, scale=0.3)[0]
    parts = [np.ascontiguousarray(p) for p in np.split(projected, 3, axis=1)]
    y = run("PackedMultiHeadAttention", [*parts, BIAS, offset, bounds], num_heads=N, scale=0.3)[0]
    close(y, wanted)
    packed = np.stack([p.reshape(5, N, H) for p in parts], axis=2)
    y = run("PackedMultiHeadAttention", [packed, None, None, BIAS, offset, bounds], num_heads=N, scale=0.3)[0]
    close(y, wanted)
    refuse("PackedMultiHeadAttention", [parts[0], None, None, None, offset, bounds], "needs a key", num_heads=N)


# ---- in a model


def test_a_layer_as_the_tools_write_it():
    """Loaded, inferred with symbolic sizes, and run, in float64 too; the first sequence is all padding."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array((rng.standard_normal(shape) / 2).astype(np.float32), name)

    weights = [
        weight("words", 11, D), weight("places", 9, D), weight("gamma", D), weight("beta", D), weight("qkv", D, 3 * D),
        weight("qkv_bias", 3 * D), weight("out", D, D), weight("out_bias", D), weight("up", D, 16),
        weight("up_bias", 16),
    ]  # fmt: skip

    def step(op, inputs, outputs, **attrs):
        return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attrs)

    nodes = [
        step("EmbedLayerNormalization", ["ids", "", "words", "places", "", "gamma", "beta", "mask"], ["x", "count"]),
        step("Attention", ["x", "qkv", "qkv_bias", "mask"], ["seen"], num_heads=N),
        step("FusedMatMul", ["seen", "out"], ["mixed"], alpha=0.5),
        step("SkipLayerNormalization", ["mixed", "x", "gamma", "beta", "out_bias"], ["y", "", "", "sum"]),
        helper.make_node("MatMul", ["sum", "up"], ["wide"]),
        step("BiasGelu", ["wide", "up_bias"], ["z"]),
    ]
    given = [helper.make_tensor_value_info(n, onnx.TensorProto.INT32, ["b", "s"]) for n in ("ids", "mask")]
    made = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("y", "z")]
    graph = helper.make_graph(nodes, "layer", given, made, weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model = load(proto)
    facts = infer_model(model)
    assert [str(facts[s.value].type) for s in model.graph.outputs] == ["float[b, s, 8]", "float[b, s, 16]"]
    feeds = {"ids": rng.integers(0, 11, (3, 5)).astype(INT), "mask": mask([0] * 5, [1, 1, 1, 0, 0], [1] * 5)}
    got = Interpreter(model).run(feeds)
    double = Interpreter(model, precision="double").run(feeds)
    session = pytest.importorskip("onnxruntime").InferenceSession(proto.SerializeToString())
    for name, wanted in zip(("y", "z"), session.run(["y", "z"], feeds), strict=True):
        close(got[name], wanted, eps=1e-3)  # -10000 leaves three digits of the scores of the padding
        close(got[name][1:], wanted[1:], eps=3e-6)
        close(double[name][1:], wanted[1:], eps=3e-6)
        assert double[name].dtype == np.float64
