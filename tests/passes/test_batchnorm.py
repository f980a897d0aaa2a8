"""BatchNormalization into the layer before it, against the formula in float64, and where it must not fold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from fuse.limits import DEFAULT
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.passes.pipeline import run_pipeline
from fuse.runtime.interpret import run
from tests.models import BOOL, F32, model, node, ops, rand, same_answers


def norm(channels: int, seed: int = 5, dtype=np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "sc": rng.normal(1, 0.3, channels).astype(dtype),
        "bi": rng.normal(0, 1, channels).astype(dtype),
        "mu": rng.normal(0, 1, channels).astype(dtype),
        "va": rng.uniform(0.1, 2, channels).astype(dtype),
    }


BN = node("BatchNormalization", ["c", "sc", "bi", "mu", "va"], ["y"], epsilon=1e-3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution(bias, group, dims):
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    conv = node("Conv", inputs, ["c"], group=group, pads=[1] * (2 * dims))
    consts = {"w": rand(8, 4 // group, *[3] * dims), "b": rand(8), **norm(8)}
    proto = model([conv, BN], {"x": [2, 4, *[5] * dims]}, ["y"], consts)
    result, journal = same_answers(proto, [{"x": rand(2, 4, *[5] * dims)}])
    assert ops(result) == ["Conv"]
    assert journal.removed_by_stage()["batchnorm"] == 1 and journal.exactness() == "close"


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution_scales_its_second_axis_within_each_group(bias, group):
    inputs = ["x", "w", "b"] if bias else ["x", "w"]
    conv = node("ConvTranspose", inputs, ["c"], group=group, strides=[2, 2], output_padding=[1, 1])
    consts = {"w": rand(4, 6 // group, 3, 3), "b": rand(6), **norm(6)}
    proto = model([conv, BN], {"x": [1, 4, 5, 5]}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(1, 4, 5, 5)}])
    assert ops(result) == ["ConvTranspose"]


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("bias", [None, (6,), (1, 6), (1,)])
def test_gemm(trans, bias):
    weight = rand(6, 4) if trans else rand(4, 6)
    inputs = ["x", "w"] if bias is None else ["x", "w", "b"]
    gemm = node("Gemm", inputs, ["c"], alpha=0.5, beta=2.0, transB=trans)
    consts = {"w": weight, **({} if bias is None else {"b": rand(*bias)}), **norm(6)}
    proto = model([gemm, BN], {"x": ["n", 4]}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(3, 4)}, {"x": rand(1, 4)}])
    assert ops(result) == ["Gemm"]


def test_a_bias_for_each_row_stays():
    gemm = node("Gemm", ["x", "w", "b"], ["c"])
    proto = model([gemm, BN], {"x": [3, 4]}, ["y"], {"w": rand(4, 6), "b": rand(3, 1), **norm(6)})
    result, _ = same_answers(proto, [{"x": rand(3, 4)}])
    assert ops(result) == ["Gemm", "BatchNormalization"]


def test_the_fold_is_as_close_to_the_exact_answer_as_the_raw_graph():
    conv = node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
    proto = model([conv, BN], {"x": [1, 64, 9, 9]}, ["y"], {"w": rand(32, 64, 3, 3), **norm(32)})
    raw, feed = load(proto), {"x": rand(1, 64, 9, 9)}
    result, _ = run_pipeline(raw)
    exact = run(raw, feed, precision="double")["y"]
    before, after = (np.abs(run(m, feed)["y"] - exact).max() for m in (raw, result))
    assert after <= 1.5 * before


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes(dtype):
    code = {np.float16: 10, np.float64: 11}[dtype]
    conv = node("Conv", ["x", "w"], ["c"])
    consts = {"w": rand(4, 3, 3, 3, dtype=dtype), **norm(4, dtype=dtype)}
    proto = model([conv, BN], {"x": [1, 3, 5, 5]}, ["y"], consts, dtype=code)
    tolerance = {np.float16: 4e-3, np.float64: 1e-14}[dtype]
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5, dtype=dtype)}], tolerance=tolerance)
    assert ops(result) == ["Conv"]


def test_a_weight_shared_by_two_convolutions_serves_both():
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        BN,
        node("Conv", ["x", "w"], ["d"]),
        node("Add", ["y", "d"], ["z"]),
    ]
    proto = model(nodes, {"x": [1, 3, 5, 5]}, ["z"], {"w": rand(4, 3, 3, 3), **norm(4)})
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5)}], target="onnx")
    assert sorted(ops(result)) == ["Add", "Conv", "Conv"]


def test_a_shared_weight_is_written_again_only_within_the_budget():
    nodes = [node("Conv", ["x", "w"], ["c"]), BN, node("Conv", ["x", "w"], ["d"]), node("Add", ["y", "d"], ["z"])]
    proto = model(nodes, {"x": [1, 3, 5, 5]}, ["z"], {"w": rand(4, 3, 3, 3), **norm(4)})
    tight = replace(DEFAULT, duplicate_bytes=300)
    result, journal = same_answers(proto, [{"x": rand(1, 3, 5, 5)}], exact=True, target="onnx", limits=tight)
    assert "BatchNormalization" in ops(result)
    assert any("stays in use elsewhere" in r.reason for r in journal.refusals.values())


KEPT = {
    "other reader": ([node("Relu", ["c"], ["r"]), node("Add", ["y", "r"], ["z"])], ["z"]),
    "also an output": ([node("Relu", ["y"], ["z"])], ["z", "c"]),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_convolution_that_is_read_elsewhere_keeps_its_normalisation(case):
    more, outputs = KEPT[case]
    conv = node("Conv", ["x", "w"], ["c"])
    proto = model([conv, BN, *more], {"x": [1, 3, 5, 5]}, outputs, {"w": rand(4, 3, 3, 3), **norm(4)})
    result, journal = same_answers(proto, [{"x": rand(1, 3, 5, 5)}], exact=True)
    assert any("BatchNormalization" in op for op in ops(result))
    assert any(r.stage == "batchnorm" and r.reason for r in journal.refusals.values())


def test_a_convolution_that_a_branch_reads_keeps_its_normalisation():
    then = helper.make_graph([node("Relu", ["c"], ["t"])], "t", [], [helper.make_tensor_value_info("t", F32, None)])
    orelse = helper.make_graph([node("Neg", ["c"], ["e"])], "e", [], [helper.make_tensor_value_info("e", F32, None)])
    nodes = [
        node("Conv", ["x", "w"], ["c"]), BN,
        node("If", ["k"], ["i"], then_branch=then, else_branch=orelse),
        node("Add", ["y", "i"], ["z"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": [1, 3, 5, 5], "k": (BOOL, [])}, ["z"], {"w": rand(4, 3, 3, 3), **norm(4)})
    feeds = [{"x": rand(1, 3, 5, 5), "k": np.array(flag)} for flag in (True, False)]
    result, _ = same_answers(proto, feeds, exact=True)
    assert "BatchNormalization" in ops(result)


def test_training_mode_stays():
    bn = node("BatchNormalization", ["c", "sc", "bi", "mu", "va"], ["y", "rm", "rv"], training_mode=1)
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), bn],
        {"x": [2, 3, 5, 5]},
        ["y", "rm", "rv"],
        {"w": rand(4, 3, 3, 3), **norm(4)},
    )
    result, _ = same_answers(proto, [{"x": rand(2, 3, 5, 5)}], exact=True)
    assert ops(result) == ["Conv", "BatchNormalization"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("sc", np.inf), ("mu", np.nan), ("va", -1.0), ("va", np.nan)],
)
def test_numbers_that_are_not_finite_stay_where_they_are(name, value):
    consts = {"w": rand(4, 3, 3, 3), **norm(4)}
    consts[name][2] = value
    proto = model([node("Conv", ["x", "w"], ["c"]), BN], {"x": [1, 3, 5, 5]}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5)}], exact=True)
    assert ops(result) == ["Conv", "BatchNormalization"]


def test_a_weight_that_would_overflow_half_precision_stays():
    consts = {"w": np.full((1, 1, 1, 1), 3000, np.float16), **norm(1, dtype=np.float16)}
    consts["sc"][0] = 60
    proto = model([node("Conv", ["x", "w"], ["c"]), BN], {"x": [1, 1, 2, 2]}, ["y"], consts, dtype=10)
    result, journal = same_answers(proto, [{"x": np.full((1, 1, 2, 2), 1e-3, np.float16)}], exact=True)
    assert ops(result) == ["Conv", "BatchNormalization"]
    assert any("overflow" in r.reason for r in journal.refusals.values())


@pytest.mark.parametrize("target", ["w", "sc", "b"])
def test_parameters_that_can_be_fed_are_not_folded(target):
    consts = {"w": rand(4, 3, 3, 3), "b": rand(4), **norm(4)}
    shape = list(consts[target].shape)
    proto = model([node("Conv", ["x", "w", "b"], ["c"]), BN], {"x": [1, 3, 5, 5], target: shape}, ["y"], consts)
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5)}], exact=True)
    assert ops(result) == ["Conv", "BatchNormalization"]


def test_initializers_listed_as_inputs_before_ir_version_4_are_constants():
    consts = {"w": rand(4, 3, 3, 3), **norm(4)}
    proto = model(
        [node("Conv", ["x", "w"], ["c"]), BN], {"x": [1, 3, 5, 5], **{n: list(a.shape) for n, a in consts.items()}},
        {"y": [1, 4, 3, 3]}, consts, opset=9, ir_version=3,
    )  # fmt: skip
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5)}])
    assert ops(result) == ["Conv"]
    written = to_proto(result)
    assert {i.name for i in written.graph.initializer} < {i.name for i in written.graph.input}


def test_the_new_node_and_value_keep_the_old_names():
    conv = node("Conv", ["x", "w"], ["c"], name="conv1")
    bn = node("BatchNormalization", ["c", "sc", "bi", "mu", "va"], ["y"], name="bn1")
    proto = model([conv, bn, node("Neg", ["y"], ["z"])], {"x": [1, 3, 5, 5]}, ["z"], {"w": rand(4, 3, 3, 3), **norm(4)})
    result, _ = same_answers(proto, [{"x": rand(1, 3, 5, 5)}])
    first = next(result.graph.nodes)
    assert (first.name, first.out.name, first.sources) == ("bn1", "y", ("conv1", "bn1"))
