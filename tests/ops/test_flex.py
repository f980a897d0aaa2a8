"""FlexAttention: onnx's cases, the formula head by head, and what modifiers may do."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuse.errors import RunError, ShapeError
from fuse.model.load import load
from fuse.ops.infer import infer_model, show_shape
from fuse.runtime.interpret import Interpreter, run
from tests.ops.cases import check_case, infer, kernel, node_cases, shape_of, typed
from tests.ops.oracle import normal

FLEX = "ai.onnx.preview::FlexAttention"


@pytest.mark.parametrize("case", node_cases("FlexAttention"))
def test_onnx_cases(case):
    check_case(case)


def test_there_are_cases():
    assert len(node_cases("FlexAttention")) >= 10


def by_heads(q, k, v, scale=None, score=lambda s: s, prob=lambda p: p):
    """The formula in float64, one head at a time."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    group = q.shape[1] // k.shape[1]
    out = np.zeros((*q.shape[:3], v.shape[-1]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = score(q[b, h] @ k[b, h // group].T * scale)
            e = np.exp(s - s.max(axis=1, keepdims=True))
            out[b, h] = prob(e / e.sum(axis=1, keepdims=True)) @ v[b, h // group]
    return out


def make(q=(2, 4, 3, 8), k=(2, 2, 5, 8), v=(2, 2, 5, 6), dtype=np.float32):
    return [normal(n, *shape).astype(dtype) for n, shape in enumerate((q, k, v))]


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_grouped_heads(heads):
    q, k, v = make(k=(2, heads, 5, 8), v=(2, heads, 5, 6))
    y = kernel(FLEX, q, k, v, run=None)
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, by_heads(q, k, v), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("scale", [0.0, -0.5, 3.0])
def test_scale(scale):
    q, k, v = make()
    np.testing.assert_allclose(
        kernel(FLEX, q, k, v, scale=scale, run=None), by_heads(q, k, v, scale), rtol=5e-6, atol=5e-6
    )


@pytest.mark.parametrize(("dtype", "eps"), [(np.float64, 1e-14), (np.float16, 2e-3), (ml_dtypes.bfloat16, 1.5e-2)])
def test_dtypes_are_rounded_once(dtype, eps):
    q, k, v = make(dtype=dtype)
    y = kernel(FLEX, q, k, v, run=None)
    assert y.dtype == dtype
    np.testing.assert_allclose(y.astype(np.float64), by_heads(q, k, v), rtol=eps, atol=eps / 4)


def test_half_precision_where_it_is_asked_for():
    """The largest score, 6e4 * 8, does not fit into float16: the row is NaN there, and 1 at its place in float32."""
    q = np.full((1, 1, 1, 8), 245, np.float16)
    k = np.stack([np.full(8, 245), np.zeros(8)]).astype(np.float16)[None, None]
    v = np.eye(2, dtype=np.float16)[None, None]
    assert kernel(FLEX, q, k, v, scale=1.0, run=None)[0, 0].tolist() == [[1, 0]]
    assert np.isnan(kernel(FLEX, q, k, v, scale=1.0, softmax_precision=TensorProto.FLOAT16, run=None)).any()
    wide = kernel(FLEX, q, k, v, scale=1.0, softmax_precision=TensorProto.DOUBLE, run=None)
    assert (wide.dtype, wide[0, 0].tolist()) == (np.float16, [[1, 0]])


def test_no_queries_and_no_batch():
    q, k, v = make(q=(2, 4, 0, 8))
    assert kernel(FLEX, q, k, v, run=None).shape == (2, 4, 0, 6)
    q, k, v = make(q=(0, 4, 3, 8), k=(0, 2, 5, 8), v=(0, 2, 5, 6))
    assert kernel(FLEX, q, k, v, run=None).shape == (0, 4, 3, 6)


# ---- modifiers


def graph(name, nodes, consts, kind=TensorProto.FLOAT):
    value = helper.make_tensor_value_info
    inits = [numpy_helper.from_array(np.asarray(a), n) for n, a in consts.items()]
    return helper.make_graph(nodes, name, [value("s", kind, None)], [value("r", kind, None)], inits)


def model(arrays, **attrs):
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **attrs)
    kind = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    names = zip("qkv", arrays, strict=True)
    declared = [helper.make_tensor_value_info(n, kind, [f"{n}{i}" for i in range(4)]) for n, _ in names]
    bias = numpy_helper.from_array(np.array(0.5, arrays[0].dtype), "outer")
    main = helper.make_graph([node], "g", declared, [helper.make_tensor_value_info("y", kind, None)], [bias])
    opsets = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    return load(helper.make_model(main, opset_imports=opsets, ir_version=10))


def test_both_modifiers_and_a_captured_value():
    arrays = make()
    score = graph(
        "score", [helper.make_node("Mul", ["s", "s"], ["t"]), helper.make_node("Sub", ["t", "outer"], ["r"])], {}
    )
    prob = graph("prob", [helper.make_node("Mul", ["s", "half"], ["r"])], {"half": np.float32(0.5)})
    loaded = model(arrays, score_mod=score, prob_mod=prob)
    feeds = dict(zip("qkv", arrays, strict=True))
    y = run(loaded, feeds)["y"]
    wanted = by_heads(*arrays, score=lambda s: s * s - 0.5, prob=lambda p: p * 0.5)
    np.testing.assert_allclose(y, wanted, rtol=5e-6, atol=5e-6)
    wide = Interpreter(loaded, precision="double").run(feeds)["y"]
    np.testing.assert_allclose(wide, wanted, rtol=1e-12, atol=1e-13)


def test_a_modifier_must_keep_the_shape():
    arrays = make()
    cut = graph("cut", [helper.make_node("ReduceMax", ["s"], ["r"], keepdims=0)], {})
    with pytest.raises(RunError, match=r"turns \[2, 4, 3, 5\] into \[\]"):
        run(model(arrays, score_mod=cut), dict(zip("qkv", arrays, strict=True)))


def test_inference_reaches_into_the_modifiers():
    score = graph("score", [helper.make_node("Identity", ["s"], ["r"])], {})
    loaded = model(make(), score_mod=score)
    facts = infer_model(loaded)
    assert show_shape(facts[loaded.graph.outputs[0].value].shape) == "[q0, q1, q2, v3]"
    inner = next(iter(loaded.graph.nodes)).attrs["score_mod"].value
    assert show_shape(facts[inner.outputs[0].value].shape) == "[q0, q1, q2, k2]"


# ---- faults and inference


@pytest.mark.parametrize(
    "shapes",
    [
        {"q": (4, 3, 8)},
        {"k": (2, 3, 5, 8), "v": (2, 3, 5, 6)},
        {"k": (2, 2, 5, 7)},
        {"v": (2, 2, 4, 6)},
        {"v": (2, 1, 5, 6)},
        {"k": (1, 2, 5, 8)},
    ],
)
def test_shapes_that_do_not_fit(shapes):
    with pytest.raises(RunError, match="do not fit together"):
        kernel(FLEX, *make(**shapes), run=None)


def test_inference():
    (y,) = infer(FLEX, [typed("b", 4, "l", 8), typed("b", 2, "s", 8), typed(None, 2, "s", 6)])
    assert (y.dtype, shape_of(y)) == (np.float32, "[b, 4, l, 6]")
    with pytest.raises(ShapeError, match="4 query heads do not divide among 3"):
        infer(FLEX, [typed("b", 4, "l", 8), typed("b", 3, "s", 8), typed("b", 3, "s", 6)])
    with pytest.raises(ShapeError, match="different dtypes"):
        infer(FLEX, [typed(1, 1, 1, 1), typed(1, 1, 1, 1, dtype=np.float16), typed(1, 1, 1, 1)])
    with pytest.raises(RunError, match="softmax_precision 7 is no floating type"):
        kernel(FLEX, *make(), softmax_precision=7, run=None)
