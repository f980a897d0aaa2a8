"""Constant folding: what is known becomes a constant, within the budgets; errors and chance stay for run time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

from fuse.errors import RunError, ShapeError
from fuse.limits import DEFAULT
from fuse.model.load import load
from fuse.passes.pipeline import run_pipeline
from fuse.runtime.interpret import run
from tests.models import F32, I64, model, node, ops, rand, same_answers


def folded(nodes, consts, feed, **options):
    """``nodes`` make ``k`` of constants; the model is x + k."""
    proto = model([*nodes, node("Add", ["x", "k"], ["y"])], {"x": list(feed.shape)}, ["y"], consts)
    return same_answers(proto, [{"x": feed}], exact=True, **options)


def test_a_chain_over_constants_becomes_one():
    nodes = [node("Mul", ["a", "b"], ["m"]), node("Transpose", ["m"], ["t"]), node("Exp", ["t"], ["k"])]
    result, journal = folded(nodes, {"a": rand(3, 2), "b": rand(2, seed=1)}, rand(2, 3))
    assert ops(result) == ["Add"]
    assert journal.removed_by_operator()["fold"] == {"Mul": 1, "Transpose": 1, "Exp": 1}
    assert len(result.graph.constants) == 1


@pytest.mark.parametrize(
    ("op", "a", "b"),
    [
        ("Div", 2**53 * 3 + 3, 3),
        ("Div", -7, 2),
        ("Mod", -7, 2),
        ("Mul", 2**62, 3),
        ("Sub", -(2**63), 1),
    ],
)
def test_integers_fold_exactly(op, a, b):
    consts = {"a": np.array([a], np.int64), "b": np.array([b], np.int64)}
    proto = model(
        [node(op, ["a", "b"], ["k"]), node("Add", ["x", "k"], ["y"])],
        {"x": (I64, [1])}, {"y": (I64, [1])}, consts,
    )  # fmt: skip
    result, _ = same_answers(proto, [{"x": np.array([0])}], exact=True)
    assert ops(result) == ["Add"]


def test_half_precision_overflows_as_it_would_at_run_time():
    nodes = [node("Mul", ["a", "a"], ["m"]), node("Cast", ["m"], ["k"], to=F32)]
    result, _ = folded(nodes, {"a": np.array([300, 2], np.float16)}, rand(2))
    assert ops(result) == ["Add"]
    (constant,) = result.graph.constants
    assert constant.array.tolist() == [np.inf, 4.0]


def test_a_value_that_would_raise_is_left_for_run_time():
    consts = {"a": np.array([1]), "z": np.array([0])}
    nodes = [node("Div", ["a", "z"], ["d"]), node("Cast", ["d"], ["k"], to=F32), node("Add", ["x", "k"], ["y"])]
    result, journal = run_pipeline(load(model(nodes, {"x": [1]}, ["y"], consts)))
    assert ops(result) == ["Div", "Cast", "Add"]
    assert any("integer division by zero" in r.reason for r in journal.refusals.values())
    with pytest.raises(RunError, match=r"node 'd' \(Div\): integer division by zero"):
        run(result, {"x": np.zeros(1, np.float32)})


@pytest.mark.parametrize(
    ("bad", "consts", "message"),
    [
        (node("Gather", ["a", "z"], ["d"]), {"a": np.array([1]), "z": np.array([7])}, "index 7 is out of range"),
        (node("Reshape", ["a", "z"], ["d"]), {"a": np.arange(4), "z": np.array([3, -1])}, "cannot reshape"),
    ],
)
def test_shapes_that_can_never_fit_are_refused_with_the_node(bad, consts, message):
    nodes = [bad, node("Cast", ["d"], ["k"], to=F32), node("Add", ["x", "k"], ["y"])]
    with pytest.raises(ShapeError, match=f"node 'd' .*{message}"):
        run_pipeline(load(model(nodes, {"x": [1]}, {"y": [1]}, consts)))


def test_chance_is_never_folded():
    nodes = [node("RandomNormal", [], ["k"], shape=[2, 2])]
    proto = model([*nodes, node("Add", ["x", "k"], ["y"])], {"x": [2, 2]}, ["y"])
    result, _ = run_pipeline(load(proto))
    assert ops(result) == ["RandomNormal", "Add"]


def test_a_small_model_does_not_become_a_large_one():
    value = helper.make_tensor("v", F32, [1], [1.0])
    proto = model(
        [node("ConstantOfShape", ["s"], ["k"], value=value), node("Add", ["x", "k"], ["y"])],
        {"x": [2048, 2048]}, ["y"], {"s": np.array([2048, 2048])},
    )  # fmt: skip
    result, journal = run_pipeline(load(proto))
    assert ops(result) == ["ConstantOfShape", "Add"]
    (refusal,) = [r for r in journal.refusals.values() if r.stage == "fold"]
    assert "16,777,216 bytes" in refusal.reason


def test_a_result_as_large_as_what_it_frees_is_folded():
    weight = rand(1100, 1000)
    proto = model(
        [node("Transpose", ["w"], ["t"]), node("MatMul", ["x", "t"], ["y"])],
        {"x": [1, 1000]},
        {"y": [1, 1100]},
        {"w": weight},
    )
    result, journal = run_pipeline(load(proto))
    assert ops(result) == ["MatMul"]
    assert result.weight_bytes() == weight.nbytes
    assert sum(c.bytes_added for c in journal.changes) == 0


def test_a_weight_with_another_reader_is_not_doubled():
    weight = rand(1100, 1000)
    nodes = [
        node("Transpose", ["w"], ["t"]),
        node("MatMul", ["x", "t"], ["m"]),
        node("MatMul", ["m", "w"], ["y"]),
    ]
    result, _ = run_pipeline(load(model(nodes, {"x": [1, 1000]}, {"y": [1, 1000]}, {"w": weight})))
    assert "Transpose" in ops(result)


def test_the_whole_model_has_one_budget():
    nodes, consts, last = [], {}, "x"
    for i in range(8):
        consts[f"c{i}"] = rand(1, 64, seed=i)
        nodes += [node("Tile", [f"c{i}", "r"], [f"k{i}"]), node("Add", [last, f"k{i}"], [f"y{i}"])]
        last = f"y{i}"
    proto = model(nodes, {"x": [64, 64]}, [last], {**consts, "r": np.array([64, 1])})
    each = 64 * 64 * 4
    limits = replace(DEFAULT, fold_total_bytes=3 * each)
    result, _ = run_pipeline(load(proto), limits=limits)
    assert ops(result).count("Tile") == 5


def test_arithmetic_has_a_budget():
    proto = model(
        [node("MatMul", ["a", "b"], ["k"]), node("Add", ["x", "k"], ["y"])],
        {"x": [64, 64]}, ["y"], {"a": rand(64, 64), "b": rand(64, 64, seed=1)},
    )  # fmt: skip
    few, _ = run_pipeline(load(proto), limits=replace(DEFAULT, fold_flops=1000))
    many, _ = run_pipeline(load(proto))
    assert ops(few) == ["MatMul", "Add"] and ops(many) == ["Add"]


def test_shape_arithmetic_over_fixed_dims_folds():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i"], ["g"]),
        node("Concat", ["g", "minus"], ["t"], axis=0),
        node("Reshape", ["x", "t"], ["y"]),
    ]
    proto = model(nodes, {"x": [2, 3, 4]}, {"y": None}, {"i": np.array([-1]), "minus": np.array([-1])})
    result, _ = same_answers(proto, [{"x": rand(2, 3, 4)}], exact=True)
    assert ops(result) == ["Reshape"]


def test_a_symbolic_dim_is_not_frozen():
    nodes = [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=F32)]
    proto = model(nodes, {"x": ["n", 3]}, {"y": [2]})
    result, _ = same_answers(proto, [{"x": rand(2, 3)}, {"x": rand(5, 3)}], exact=True)
    assert ops(result) == ["Shape", "Cast"]


def test_the_known_part_of_a_symbolic_shape_folds():
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["g"]), node("Cast", ["g"], ["y"], to=F32)]
    proto = model(nodes, {"x": ["n", 3]}, {"y": []}, {"i": np.array(1)})
    result, _ = same_answers(proto, [{"x": rand(2, 3)}, {"x": rand(5, 3)}], exact=True)
    assert ops(result) == []


def test_a_function_body_is_not_folded_for_one_of_its_callers():
    body = helper.make_function(
        "own", "Last", ["p"], ["q"],
        [node("Shape", ["p"], ["s"]), node("Gather", ["s", "i"], ["g"]), node("Cast", ["g"], ["q"], to=F32)],
        [helper.make_opsetid("", 18)],
    )  # fmt: skip
    body.node.insert(0, node("Constant", [], ["i"], value_int=0))
    nodes = [
        node("Last", ["a"], ["u"], domain="own"),
        node("Last", ["b"], ["v"], domain="own"),
        node("Add", ["u", "v"], ["y"]),
    ]
    proto = model(nodes, {"a": [2], "b": [5]}, {"y": []}, functions=[body], domains=["own"])
    same_answers(proto, [{"a": rand(2), "b": rand(5)}], exact=True)


def test_a_constant_may_be_an_output():
    proto = model(
        [node("Neg", ["k"], ["y"]), node("Abs", ["x"], ["z"])], {"x": [2]}, {"y": [2], "z": [2]}, {"k": rand(2)}
    )
    result, _ = same_answers(proto, [{"x": rand(2)}], exact=True)
    assert ops(result) == ["Abs"]


def test_an_input_with_a_default_is_not_a_constant():
    proto = model(
        [node("Neg", ["k"], ["n"]), node("Add", ["x", "n"], ["y"])], {"x": [2], "k": [2]}, ["y"], {"k": rand(2)}
    )
    feeds = [{"x": rand(2)}, {"x": rand(2), "k": rand(2, seed=3)}]
    result, _ = same_answers(proto, feeds, exact=True)
    assert ops(result) == ["Neg", "Add"]


def test_a_quantised_weight_stays_quantised():
    consts = {"q": np.arange(-128, 128, dtype=np.int8).reshape(16, 16), "s": np.float32(0.02), "z": np.int8(0)}
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["w"]), node("MatMul", ["x", "w"], ["y"])]
    result, journal = same_answers(model(nodes, {"x": [2, 16]}, ["y"], consts), [{"x": rand(2, 16)}], exact=True)
    assert ops(result) == ["DequantizeLinear", "MatMul"]
    assert any("quantisation" in r.reason for r in journal.refusals.values())


def test_bfloat16_folds():
    import ml_dtypes

    nodes = [node("Add", ["a", "a"], ["b"]), node("Cast", ["b"], ["k"], to=F32)]
    result, _ = folded(nodes, {"a": np.array([1.0, 3.140625], ml_dtypes.bfloat16)}, rand(2))
    assert ops(result) == ["Add"]
