"""Identity elimination: what goes, what must stay, and that nothing else moves."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from fuse.model.load import load
from fuse.passes.pipeline import run_pipeline
from tests.models import BOOL, F32, I64, model, node, ops, rand, same_answers

SPECIAL = np.array([[-0.0, 0.0, 1.5], [np.nan, np.inf, -np.inf]], np.float32)

# name: node(s) from x to y, constants; each is a no-op on a [2, 3] input
NO_OPS = {
    "identity": ([node("Identity", ["x"], ["y"])], {}),
    "dropout": ([node("Dropout", ["x"], ["y"])], {}),
    "dropout_ratio": ([node("Dropout", ["x", "r"], ["y"])], {"r": np.float32(0.3)}),
    "dropout_not_training": ([node("Dropout", ["x", "r", "t"], ["y"])], {"r": np.float32(0.3), "t": np.array(False)}),
    "cast": ([node("Cast", ["x"], ["y"], to=F32)], {}),
    "reshape": ([node("Reshape", ["x", "s"], ["y"])], {"s": np.array([0, -1])}),
    "expand": ([node("Expand", ["x", "s"], ["y"])], {"s": np.array([1, 3])}),
    "tile": ([node("Tile", ["x", "s"], ["y"])], {"s": np.array([1, 1])}),
    "squeeze": ([node("Squeeze", ["x", "s"], ["y"])], {"s": np.array([], np.int64)}),
    "flatten": ([node("Flatten", ["x"], ["y"], axis=1)], {}),
    "slice": (
        [node("Slice", ["x", "a", "b", "c"], ["y"])],
        {"a": np.array([0, 0]), "b": np.array([9, 2**62]), "c": np.array([0, 1])},
    ),
    "pad": ([node("Pad", ["x", "p"], ["y"])], {"p": np.zeros(4, np.int64)}),
    "transpose": ([node("Transpose", ["x"], ["y"], perm=[0, 1])], {}),
    "concat": ([node("Concat", ["x"], ["y"], axis=0)], {}),
    "sum": ([node("Sum", ["x"], ["y"])], {}),
    "max": ([node("Max", ["x"], ["y"])], {}),
    "split": ([node("Split", ["x"], ["y"], num_outputs=1)], {}),
    "times_one": ([node("Mul", ["x", "k"], ["y"])], {"k": np.float32(1)}),
    "one_times": ([node("Mul", ["k", "x"], ["y"])], {"k": np.ones((1, 3), np.float32)}),
    "by_one": ([node("Div", ["x", "k"], ["y"])], {"k": np.float32(1)}),
    "to_the_one": ([node("Pow", ["x", "k"], ["y"])], {"k": np.float32(1)}),
    "minus_zero": ([node("Sub", ["x", "k"], ["y"])], {"k": np.float32(0)}),
}


@pytest.mark.parametrize("name", NO_OPS)
def test_a_no_op_goes_and_every_bit_stays(name):
    nodes, consts = NO_OPS[name]
    after = node("Neg", ["y"], ["z"])
    proto = model([*nodes, after], {"x": [2, 3]}, {"z": [2, 3]}, consts)
    result, journal = same_answers(proto, [{"x": SPECIAL}], exact=True)
    assert ops(result) == ["Neg"]
    assert journal.removed_by_stage()["identity"] == 1


def test_a_sum_with_zero_goes_and_only_the_sign_of_zero_may_move():
    proto = model(
        [node("Add", ["x", "k"], ["y"]), node("Abs", ["y"], ["z"])], {"x": [2, 3]}, ["z"], {"k": np.float32(0)}
    )
    result, journal = same_answers(proto, [{"x": SPECIAL}], exact=True)
    assert ops(result) == ["Abs"]
    assert journal.exactness() == "values"


# name: nodes, constants: these look like no-ops and are not
WORK = {
    "broadcast_mul": ([node("Mul", ["x", "k"], ["y"])], {"k": np.ones((4, 1, 1), np.float32)}),
    "broadcast_add": ([node("Add", ["x", "k"], ["y"])], {"k": np.zeros((3, 1, 3), np.float32)}),
    "one_over": ([node("Div", ["k", "x"], ["y"])], {"k": np.float32(1)}),
    "one_to_the": ([node("Pow", ["k", "x"], ["y"])], {"k": np.float32(1)}),
    "zero_minus": ([node("Sub", ["k", "x"], ["y"])], {"k": np.float32(0)}),
    "minus_negative_zero": ([node("Sub", ["x", "k"], ["y"])], {"k": np.float32(-0.0)}),
    "some_ones": ([node("Mul", ["x", "k"], ["y"])], {"k": np.array([1, 1, 2], np.float32)}),
    "cast": ([node("Cast", ["x"], ["h"], to=10), node("Cast", ["h"], ["y"], to=F32)], {}),
    "reshape": ([node("Reshape", ["x", "s"], ["y"])], {"s": np.array([3, 2])}),
    "transpose": ([node("Transpose", ["x"], ["y"])], {}),
    "reverse": (
        [node("Slice", ["x", "a", "b", "c", "d"], ["y"])],
        {"a": np.array([-1]), "b": np.array([-(2**62)]), "c": np.array([1]), "d": np.array([-1])},
    ),
    "slice": (
        [node("Slice", ["x", "a", "b", "c"], ["y"])],
        {"a": np.array([1]), "b": np.array([3]), "c": np.array([1])},
    ),
    "tile": ([node("Tile", ["x", "s"], ["y"])], {"s": np.array([1, 2])}),
    "pad": ([node("Pad", ["x", "p"], ["y"])], {"p": np.array([0, -1, 0, 1])}),
    "expand": ([node("Expand", ["x", "s"], ["y"])], {"s": np.array([2, 1, 1])}),
    "split": ([node("Split", ["x"], ["y", "q"], axis=1, num_outputs=2)], {}),
}


@pytest.mark.parametrize("name", WORK)
def test_what_only_looks_like_a_no_op_stays(name):
    nodes, consts = WORK[name]
    proto = model([*nodes, node("Neg", ["y"], ["z"])], {"x": [2, 3]}, ["z"], consts)
    result, _ = same_answers(proto, [{"x": SPECIAL}], exact=True, skip=["fold"])
    assert ops(result) == [n.op_type for n in nodes] + ["Neg"]


def test_symbolic_shapes_are_compared_as_symbols():
    consts = {"keep": np.array([0, 6]), "flip": np.array([6, -1])}
    nodes = [
        node("Reshape", ["x", "keep"], ["a"]),
        node("Reshape", ["a", "flip"], ["b"]),
        node("Neg", ["b"], ["z"]),
    ]
    proto = model(nodes, {"x": ["n", 6]}, {"z": [6, None]}, consts)
    result, _ = same_answers(proto, [{"x": rand(2, 6)}, {"x": rand(6, 6)}], exact=True)
    assert ops(result) == ["Reshape", "Neg"]


def test_a_shape_that_is_only_declared_is_not_believed():
    """The file claims [2, 3] for a value that is [3, 2]; only inference decides."""
    proto = model(
        [node("Transpose", ["x"], ["t"]), node("Reshape", ["t", "s"], ["y"]), node("Neg", ["y"], ["z"])],
        {"x": [2, 3]}, ["z"], {"s": np.array([2, 3])},
    )  # fmt: skip
    proto.graph.value_info.append(helper.make_tensor_value_info("t", F32, [2, 3]))
    result, _ = same_answers_unchecked(proto, {"x": rand(2, 3)})
    assert ops(result) == ["Transpose", "Reshape", "Neg"]


def same_answers_unchecked(proto, feed):
    from fuse.runtime.interpret import run

    raw = load(proto)
    result, journal = run_pipeline(raw)
    assert run(result, feed)["z"].tobytes() == run(raw, feed)["z"].tobytes()
    return result, journal


def test_the_mask_of_a_dropout_keeps_it():
    proto = model(
        [node("Dropout", ["x"], ["d", "m"]), node("Cast", ["m"], ["f"], to=F32), node("Add", ["d", "f"], ["y"])],
        {"x": [2, 3]}, {"y": [2, 3], "m": (BOOL, [2, 3])},
    )  # fmt: skip
    result, _ = same_answers(proto, [{"x": SPECIAL}], exact=True)
    assert "Dropout" in ops(result)


@pytest.mark.parametrize("opset", [7, 9, 10, 11, 12, 13])
@pytest.mark.parametrize("mask", [False, True])
def test_dropout_of_every_age_goes_while_its_mask_is_unread(opset, mask):
    ratio = {} if opset >= 12 else {"ratio": 0.3}
    nodes = [node("Dropout", ["x"], ["d", "m"] if mask else ["d"], **ratio), node("Neg", ["d"], ["y"])]
    result, _ = same_answers(model(nodes, {"x": [2, 3]}, ["y"], opset=opset), [{"x": SPECIAL}], exact=True)
    assert ops(result) == ["Neg"]


def test_a_dropout_that_may_train_stays():
    proto = model(
        [node("Dropout", ["x", "r", "t"], ["d"]), node("Neg", ["d"], ["y"])],
        {"x": [2, 3], "t": (BOOL, [])}, ["y"], {"r": np.float32(0.5)},
    )  # fmt: skip
    result, _ = run_pipeline(load(proto))
    assert ops(result) == ["Dropout", "Neg"]


def test_the_interface_keeps_its_names():
    """input -> Identity -> output, two outputs of one value, an output that is also read."""
    nodes = [
        node("Identity", ["x"], ["same"]),
        node("Neg", ["x"], ["n"]),
        node("Identity", ["n"], ["first"]),
        node("Identity", ["n"], ["second"]),
        node("Abs", ["first"], ["third"]),
    ]
    proto = model(nodes, {"x": [3]}, {"same": [3], "first": [3], "second": [3], "third": [3]})
    result, _ = same_answers(proto, [{"x": rand(3)}], exact=True)
    assert sorted(ops(result)) == ["Abs", "Identity", "Identity", "Neg"]
    assert [s.name for s in result.graph.outputs] == ["same", "first", "second", "third"]


def test_a_value_captured_by_a_branch_is_replaced_there_too():
    then = helper.make_graph([node("Relu", ["xi"], ["to"])], "t", [], [helper.make_tensor_value_info("to", F32, [3])])
    orelse = helper.make_graph([node("Neg", ["xi"], ["eo"])], "e", [], [helper.make_tensor_value_info("eo", F32, [3])])
    nodes = [
        node("Add", ["x", "x"], ["a"]),
        node("Identity", ["a"], ["xi"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=orelse),
    ]
    proto = model(nodes, {"x": [3], "c": (BOOL, [])}, {"y": [3]})
    feeds = [{"x": rand(3), "c": np.array(flag)} for flag in (True, False)]
    result, _ = same_answers(proto, feeds, exact=True)
    assert "Identity" not in ops(result)


def test_identities_inside_branches_and_functions_go():
    body = helper.make_function(
        "own", "Twice", ["p"], ["q"],
        [node("Identity", ["p"], ["a"]), node("Add", ["a", "a"], ["b"]), node("Identity", ["b"], ["q"])],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    proto = model(
        [node("Twice", ["x"], ["y"], domain="own")], {"x": [3]}, {"y": [3]}, functions=[body], domains=["own"]
    )
    result, _ = same_answers(proto, [{"x": rand(3)}], exact=True)
    (function,) = result.functions.values()
    assert [n.op for n in function.graph.nodes] == ["Add"]


def test_integer_no_ops():
    proto = model(
        [node("Add", ["x", "k"], ["a"]), node("Mul", ["a", "one"], ["b"]), node("Neg", ["b"], ["y"])],
        {"x": (I64, [2])}, {"y": (I64, [2])}, {"k": np.zeros(1, np.int64), "one": np.ones((), np.int64)},
    )  # fmt: skip
    feed = {"x": np.array([2**53 + 1, -(2**62)])}
    result, _ = same_answers(proto, [feed], exact=True)
    assert ops(result) == ["Neg"]
