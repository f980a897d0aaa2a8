"""The pipeline as a whole: dead code, targets, fuel, determinism, and that it leaves its input alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from fuse.errors import InputError, LawError
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.passes import pipeline
from fuse.passes.pipeline import Stage, run_pipeline, stage_names
from tests.models import model, node, ops, rand, same_answers


def block():
    nodes = [
        node("Identity", ["w"], ["w2"]),
        node("Conv", ["x", "w2"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        node("BatchNormalization", ["c", "sc", "bi", "mu", "va"], ["n"], name="bn"),
        node("Add", ["n", "x"], ["s"], name="sum"),
        node("Relu", ["s"], ["y"], name="relu"),
    ]
    consts = {
        "w": rand(3, 3, 3, 3),
        **{k: np.abs(rand(3, seed=i)) + 0.5 for i, k in enumerate(("sc", "bi", "mu", "va"))},
    }
    return model(nodes, {"x": ["n", 3, 6, 6]}, {"y": ["n", 3, 6, 6]}, consts)


def test_a_residual_block_becomes_one_node_and_every_change_is_on_record():
    result, journal = same_answers(block(), [{"x": rand(2, 3, 6, 6)}, {"x": rand(1, 3, 6, 6)}])
    assert ops(result) == ["fuse::ConvAddRelu"]
    removed = journal.removed_by_stage()
    assert {k: v for k, v in removed.items() if v} == {"identity": 1, "batchnorm": 1, "residual": 1, "activation": 1}
    (final,) = result.graph.nodes
    assert final.name == "relu" and final.sources == ("conv", "bn", "sum", "relu")
    assert all(c.removed and c.rule and c.exact for c in journal.changes)


def test_the_model_passed_in_is_left_alone():
    raw = load(block())
    before = to_proto(raw).SerializeToString(deterministic=True)
    run_pipeline(raw)
    assert to_proto(raw).SerializeToString(deterministic=True) == before


def test_twice_changes_nothing_more():
    once, _ = run_pipeline(load(block()))
    twice, journal = run_pipeline(load(to_proto(once)))
    assert not journal.changes
    assert to_proto(twice).SerializeToString(deterministic=True) == to_proto(once).SerializeToString(deterministic=True)


@pytest.mark.parametrize("fuel", range(5))
def test_fuel_bounds_the_rewrites_and_any_prefix_is_right(fuel):
    _, journal = same_answers(block(), [{"x": rand(2, 3, 6, 6)}], fuel=fuel)
    assert len(journal.changes) == fuel


def test_passes_can_be_chosen_and_skipped():
    only, _ = run_pipeline(load(block()), passes=["identity"])
    assert ops(only) == ["Conv", "BatchNormalization", "Add", "Relu"]
    most, _ = run_pipeline(load(block()), skip=["batchnorm"])
    assert ops(most) == ["Conv", "BatchNormalization", "fuse::AddRelu"]


@pytest.mark.parametrize("options", [{"target": "tflite"}, {"passes": ["magic"]}, {"skip": ["magic"]}])
def test_unknown_names_are_refused_with_the_known_ones(options):
    with pytest.raises(InputError) as caught:
        run_pipeline(load(block()), **options)
    assert caught.value.hint


def test_every_stage_has_a_reason_and_the_names_are_one_word():
    assert all(stage.why for stage in pipeline.PIPELINE)
    assert all(name.isidentifier() for name in stage_names())


def test_a_pass_that_breaks_a_law_is_stopped_there(monkeypatch):
    def vandal(context):
        node = next(context.model.graph.nodes)
        node.out.uses.clear()

    stages = (*pipeline.PIPELINE[:2], Stage("vandal", vandal, "to be caught"))
    monkeypatch.setattr(pipeline, "PIPELINE", stages)
    with pytest.raises(LawError):
        run_pipeline(load(block()))


def test_dead_code_goes_and_unknown_operators_stay():
    nodes = [
        node("Relu", ["x"], ["y"]),
        node("Neg", ["x"], ["a"]),
        node("Exp", ["a"], ["b"]),
        node("Log", ["x"], ["c"], domain="custom"),
    ]
    proto = model(nodes, {"x": [3]}, {"y": [3]}, {"unused": rand(5)}, domains=["custom"])
    result, journal = run_pipeline(load(proto))
    assert ops(result) == ["Relu", "custom::Log"]
    assert not result.graph.constants
    assert journal.removed_by_operator()["dead"] == {"Exp": 1, "Neg": 1}


def test_functions_that_nothing_calls_go():
    def function(name, body):
        return helper.make_function(
            "own", name, ["p"], ["q"], body, [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
        )

    functions = [
        function("Used", [node("Inner", ["p"], ["q"], domain="own")]),
        function("Inner", [node("Neg", ["p"], ["q"])]),
        function("Unused", [node("Abs", ["p"], ["q"])]),
    ]
    proto = model(
        [node("Used", ["x"], ["y"], domain="own")], {"x": [2]}, {"y": [2]}, functions=functions, domains=["own"]
    )
    result, _ = same_answers(proto, [{"x": rand(2)}], exact=True)
    assert sorted(name for name, _ in result.functions) == ["own::Inner", "own::Used"]


def test_a_long_chain_is_near_linear_and_does_not_recurse():
    kinds = ["Relu", "Identity", "Neg"]
    nodes = [node(kinds[i % 3], [f"v{i}"], [f"v{i + 1}"]) for i in range(6000)]
    proto = model(nodes, {"v0": [4]}, {"v6000": [4]})
    result, _ = run_pipeline(load(proto))
    assert len(result.graph) == 4000


def test_the_interface_and_the_opset_stay_the_models_own():
    proto = block()
    for target in ("portable", "onnx", "ort"):
        result, _ = run_pipeline(load(proto), target=target)
        written = to_proto(result)
        assert written.graph.input == proto.graph.input and written.graph.output == proto.graph.output
        assert written.opset_import[0].version == proto.opset_import[0].version
