"""Residual sums and activations fused into layers: for every base, activation and target, and where it must not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from fuse.model.save import to_proto
from fuse.ops.contrib import ACTIVATIONS as CONTRIB_ACTIVATIONS
from fuse.ops.contrib import FUSED_CONV, FUSED_GEMM
from fuse.ops.fused import ACTIVATIONS
from tests.models import BOOL, F32, I64, model, node, ops, optimized, rand, same_answers

LAYERS = {
    "Conv": (
        node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        {"w": rand(4, 3, 3, 3), "b": rand(4)},
        [2, 3, 5, 5],
    ),
    "ConvTranspose": (node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2]), {"w": rand(3, 4, 3, 3)}, [2, 3, 5, 5]),
    "Gemm": (node("Gemm", ["x", "w", "b"], ["c"], alpha=0.5), {"w": rand(6, 4), "b": rand(4)}, [5, 6]),
    "MatMul": (node("MatMul", ["x", "w"], ["c"]), {"w": rand(6, 4)}, [2, 5, 6]),
    "Add": (node("Add", ["x", "w"], ["c"]), {"w": rand(5, 1)}, [2, 5, 6]),
}
ATTRS = {"LeakyRelu": {"alpha": 0.3}, "Elu": {"alpha": 0.7}, "HardSigmoid": {"alpha": 0.3, "beta": 0.4}}
BOUNDS = {"lo": np.float32(-0.25), "hi": np.float32(0.5)}


def activation(op: str, source: str = "c"):
    inputs = [source, "lo", "hi"] if op == "Clip" else [source]
    return node(op, inputs, ["y"], **ATTRS.get(op, {}))


@pytest.mark.parametrize("op", ACTIVATIONS)
@pytest.mark.parametrize("base", LAYERS)
def test_portable(base, op):
    layer, consts, shape = LAYERS[base]
    proto = model([layer, activation(op)], {"x": shape}, ["y"], {**consts, **BOUNDS})
    result, journal = same_answers(proto, [{"x": rand(*shape) * 3}], exact=True)
    assert ops(result) == [f"fuse::{base}{op}"]
    assert journal.removed_by_stage()["activation"] == 1
    assert journal.exactness() == "bits"


@pytest.mark.parametrize("op", ["Relu", "Clip", "HardSwish"])
@pytest.mark.parametrize("swap", [False, True])
def test_a_residual_sum_goes_before_the_activation(op, swap):
    layer, consts, shape = LAYERS["Conv"]
    total = node("Add", ["z", "c"] if swap else ["c", "z"], ["s"])
    proto = model([layer, total, activation(op, "s")], {"x": shape, "z": [2, 4, 5, 5]}, ["y"], {**consts, **BOUNDS})
    result, journal = same_answers(proto, [{"x": rand(*shape), "z": rand(2, 4, 5, 5)}], exact=True)
    assert ops(result) == [f"fuse::ConvAdd{op}"]
    assert journal.removed_by_stage() | {"residual": 1, "activation": 1} == journal.removed_by_stage()


@pytest.mark.parametrize("swap", [False, True])
def test_sum_of_two_is_a_residual_too(swap):
    layer, consts, shape = LAYERS["Conv"]
    total = node("Sum", ["z", "c"] if swap else ["c", "z"], ["y"])
    proto = model([layer, total], {"x": shape, "z": [2, 4, 5, 5]}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(*shape), "z": rand(2, 4, 5, 5)}], exact=True)
    assert ops(result) == ["fuse::ConvAdd"]
    more = node("Sum", ["c", "z", "z"], ["y"])
    proto = model([layer, more], {"x": shape, "z": [2, 4, 5, 5]}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(*shape), "z": rand(2, 4, 5, 5)}], exact=True)
    assert ops(result) == ["Conv", "Sum"]


def test_a_sum_of_two_convolutions_takes_the_second_in():
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("Conv", ["x", "v"], ["d"]),
        node("Add", ["c", "d"], ["s"]),
        node("Relu", ["s"], ["y"]),
    ]
    proto = model(nodes, {"x": [1, 3, 5, 5]}, ["y"], {"w": rand(4, 3, 3, 3), "v": rand(4, 3, 3, 3, seed=2)})
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5)}], exact=True)
    assert sorted(ops(result)) == ["Conv", "fuse::ConvAddRelu"]


BROADCASTS = {"channel": [4, 1, 1], "row": [5], "wider": [3, 1, 4, 5, 5], "scalar": []}


@pytest.mark.parametrize("case", BROADCASTS)
def test_a_sum_that_broadcasts_stays(case):
    layer, consts, shape = LAYERS["Conv"]
    proto = model([layer, node("Add", ["c", "z"], ["y"])], {"x": shape, "z": BROADCASTS[case]}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(*shape), "z": rand(*BROADCASTS[case])}], exact=True)
    assert ops(result) == ["Conv", "Add"]


def test_symbolic_sizes_must_be_the_same_symbol():
    layer, consts, _ = LAYERS["Conv"]
    for dims, fused in ((["n", 4, 5, 5], True), (["m", 4, 5, 5], False)):
        proto = model([layer, node("Add", ["c", "z"], ["y"])], {"x": ["n", 3, 5, 5], "z": dims}, ["y"], consts)
        feeds = [{"x": rand(n, 3, 5, 5), "z": rand(n, 4, 5, 5)} for n in (1, 2)]
        result, _ = same_answers(proto, feeds, exact=True)
        assert ops(result) == (["fuse::ConvAdd"] if fused else ["Conv", "Add"])


def test_a_convolution_added_to_itself():
    layer, consts, shape = LAYERS["Conv"]
    proto = model([layer, node("Add", ["c", "c"], ["y"])], {"x": shape}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(*shape)}], exact=True)
    assert ops(result) == ["Conv", "Add"]


def test_a_layer_that_is_read_elsewhere_keeps_its_activation():
    layer, consts, shape = LAYERS["Conv"]
    for more, outputs in (
        ([node("Relu", ["c"], ["y"])], ["y", "c"]),
        ([node("Relu", ["c"], ["y"]), node("Neg", ["c"], ["z"])], ["y", "z"]),
    ):
        proto = model([layer, *more], {"x": shape}, outputs, consts)
        result, _ = same_answers(proto, [{"x": rand(*shape)}], exact=True)
        assert ops(result)[:2] == ["Conv", "Relu"]


def test_a_layer_inside_a_branch_is_fused_there():
    layer, consts, shape = LAYERS["Gemm"]
    then = helper.make_graph([layer, activation("Relu")], "t", [], [helper.make_tensor_value_info("y", F32, None)])
    orelse = helper.make_graph([node("Neg", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", F32, None)])
    proto = model(
        [node("If", ["k"], ["z"], then_branch=then, else_branch=orelse)], {"x": shape, "k": (BOOL, [])}, ["z"], consts
    )
    feeds = [{"x": rand(*shape), "k": np.array(flag)} for flag in (True, False)]
    result, _ = same_answers(proto, feeds, exact=True)
    inner = [n.op for n in result.graph.walk()]
    assert "fuse::GemmRelu" in inner and "Relu" not in inner


def test_a_layer_outside_a_branch_does_not_move_into_it():
    layer, consts, shape = LAYERS["Gemm"]
    then = helper.make_graph([activation("Relu")], "t", [], [helper.make_tensor_value_info("y", F32, None)])
    orelse = helper.make_graph([node("Neg", ["x"], ["e"])], "e", [], [helper.make_tensor_value_info("e", F32, None)])
    proto = model(
        [layer, node("If", ["k"], ["z"], then_branch=then, else_branch=orelse)],
        {"x": shape, "k": (BOOL, [])},
        {"z": [None, None]},
        consts,
    )
    feeds = [{"x": rand(*shape), "k": np.array(flag)} for flag in (True, False)]
    result, _ = same_answers(proto, feeds, exact=True)
    assert ops(result) == ["Gemm", "If"]


def test_the_onnx_target_fuses_nothing():
    layer, consts, shape = LAYERS["Conv"]
    proto = model([layer, activation("Relu")], {"x": shape}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(*shape)}], exact=True, target="onnx")
    assert ops(result) == ["Conv", "Relu"] and not to_proto(result).functions


@pytest.mark.parametrize("op", CONTRIB_ACTIVATIONS)
@pytest.mark.parametrize("base", ["Conv", "Gemm"])
def test_onnxruntimes_own_operators(base, op):
    layer, consts, shape = LAYERS[base]
    proto = model([layer, activation(op)], {"x": shape}, ["y"], {**consts, **BOUNDS})
    result, _ = same_answers(proto, [{"x": rand(*shape)}], exact=True, target="ort")
    if base == "Gemm" and op == "Clip":
        assert ops(result) == ["Gemm", "Clip"]
    else:
        assert ops(result) == [FUSED_CONV if base == "Conv" else FUSED_GEMM]


def test_onnxruntimes_residual():
    layer, consts, shape = LAYERS["Conv"]
    proto = model(
        [layer, node("Add", ["z", "c"], ["s"]), node("Relu", ["s"], ["y"])],
        {"x": shape, "z": [2, 4, 5, 5]},
        ["y"],
        consts,
    )
    result, _ = same_answers(proto, [{"x": rand(*shape), "z": rand(2, 4, 5, 5)}], exact=True, target="ort")
    assert ops(result) == [FUSED_CONV]
    assert [o.domain for o in to_proto(result).opset_import] == ["", "com.microsoft"]


def test_a_clip_with_an_open_end_keeps_infinities():
    layer, consts, shape = LAYERS["Conv"]
    for target in ("portable", "ort"):
        proto = model([layer, node("Clip", ["c", "lo"], ["y"])], {"x": shape}, ["y"], {**consts, **BOUNDS})
        feed = rand(*shape)
        feed[0, 0, 0, 0] = np.inf
        same_answers(proto, [{"x": feed}], exact=True, target=target)


def test_bounds_that_were_attributes():
    """Before operator set 11 the bounds of Clip are attributes, which a function's input cannot be."""
    layer, consts, shape = LAYERS["Conv"]
    proto = model(
        [layer, node("Clip", ["c"], ["y"], min=0.0, max=6.0)], {"x": shape}, {"y": [2, 4, 5, 5]}, consts, opset=9
    )
    for target in ("portable", "onnx", "ort"):
        same_answers(proto, [{"x": rand(*shape) * 5}], exact=True, target=target)


def test_integers_are_not_fused():
    proto = model(
        [node("Add", ["x", "x"], ["a"]), node("Relu", ["a"], ["y"])], {"x": (I64, [3])}, {"y": (I64, [3])}, opset=18
    )
    result, _ = same_answers(proto, [{"x": np.array([-1, 0, 2])}], exact=True)
    assert ops(result) == ["Add", "Relu"]


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
@pytest.mark.parametrize("before", ["portable", "onnx", "ort"])
def test_a_file_of_one_target_can_become_another(before, target):
    layer, consts, shape = LAYERS["Conv"]
    proto = model(
        [layer, node("Add", ["z", "c"], ["s"]), node("Relu", ["s"], ["y"])],
        {"x": shape, "z": [2, 4, 5, 5]},
        ["y"],
        consts,
    )
    first, _ = optimized(proto, target=before)
    direct, _ = optimized(proto, target=target)
    feed = {"x": rand(*shape), "z": rand(2, 4, 5, 5)}
    second, _ = same_answers(to_proto(first), [feed], exact=True, target=target)
    assert ops(second) == ops(direct)


@pytest.mark.parametrize("target", ["portable", "onnx", "ort"])
@pytest.mark.parametrize("optimisations", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_onnxruntime_runs_what_is_written(target, optimisations):
    ort = pytest.importorskip("onnxruntime")
    layer, consts, shape = LAYERS["Conv"]
    nodes = [layer, node("Add", ["z", "c"], ["s"]), node("Relu", ["s"], ["y"])]
    for opset, ir_version in ((8, 3), (9, 7), (13, 8), (18, 10), (21, 10)):
        given = {"x": shape, "z": [2, 4, 5, 5]}
        if ir_version < 4:
            given |= {n: list(a.shape) for n, a in consts.items()}
        proto = model(nodes, given, {"y": [2, 4, 5, 5]}, consts, opset=opset, ir_version=ir_version)
        result, _ = optimized(proto, target=target)
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, optimisations)
        feed = {"x": rand(*shape), "z": rand(2, 4, 5, 5)}
        answers = [
            ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feed)[0]
            for m in (proto, to_proto(result))
        ]
        assert np.abs(answers[0] - answers[1]).max() <= 1e-5
