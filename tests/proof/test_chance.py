"""Which outputs are drawn anew, through every way that a value can take."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fuse.model.load import load
from fuse.proof.chance import random_outputs
from tests.models import BOOL, model, node

X = {"x": [4]}


def drawn(nodes, outputs, inputs=None, consts=None, **options):
    outputs = {name: [4] for name in outputs}
    found = random_outputs(load(model(nodes, X | (inputs or {}), outputs, consts, **options)))
    return set(found.unseeded), set(found.drawn)


def test_a_draw_reaches_what_reads_it_and_nothing_else():
    nodes = [
        node("RandomNormalLike", ["x"], ["r"]),
        node("Add", ["r", "x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Neg", ["x"], ["c"]),
    ]
    assert drawn(nodes, ["a", "b", "c"]) == ({"a", "b"}, {"a", "b"})


def test_a_seed_repeats_within_one_runtime():
    assert drawn([node("RandomNormalLike", ["x"], ["a"], seed=1.0)], ["a"]) == (set(), {"a"})


def dropout(**consts):
    inputs = ["x", *(["r", "t"] if "t" in consts else [])]
    return [node("Dropout", inputs, ["a"])], consts


def test_dropout_draws_in_training_alone():
    ratio = np.float32(0.5)
    nodes, consts = dropout()
    assert drawn(nodes, ["a"], consts=consts) == (set(), set())
    for mode, wanted in ((False, set()), (True, {"a"})):
        nodes, consts = dropout(r=ratio, t=np.array(mode))
        assert drawn(nodes, ["a"], consts=consts) == (wanted, wanted)
    nodes = [node("Dropout", ["x", "r", "t"], ["a"])]
    assert drawn(nodes, ["a"], {"t": (BOOL, [])}, {"r": ratio})[0] == {"a"}
    nodes = [node("Dropout", ["x", "r", "t"], ["a"], seed=3)]
    assert drawn(nodes, ["a"], {"t": (BOOL, [])}, {"r": ratio}) == (set(), {"a"})


def branches(inner):
    graphs = [
        helper.make_graph([node(op, [source], ["r"])], "b", [], [helper.make_empty_tensor_value_info("r")])
        for op, source in (inner, ("Neg", "x"))
    ]
    return node("If", ["c"], ["a"], then_branch=graphs[0], else_branch=graphs[1])


def test_subgraphs_that_draw_or_read_what_was_drawn():
    condition = {"c": (BOOL, [])}
    assert drawn([branches(("RandomNormalLike", "x"))], ["a"], condition)[0] == {"a"}
    noise = node("RandomNormalLike", ["x"], ["n"])
    assert drawn([noise, branches(("Neg", "n"))], ["a"], condition)[0] == {"a"}
    assert drawn([noise, branches(("Abs", "x"))], ["a"], condition)[0] == set()
    shown = helper.make_graph([], "b", [], [helper.make_empty_tensor_value_info("n")])
    assert drawn([noise, node("If", ["c"], ["a"], then_branch=shown, else_branch=shown)], ["a"], condition)[0] == {"a"}


def test_functions_that_draw_themselves_or_through_others():
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    noise = helper.make_function("my", "Noise", ["v"], ["o"], [node("RandomNormalLike", ["v"], ["o"])], imports)
    outer = helper.make_function("my", "Outer", ["v"], ["o"], [node("Noise", ["v"], ["o"], domain="my")], imports)
    plain = helper.make_function("my", "Plain", ["v"], ["o"], [node("Neg", ["v"], ["o"])], imports)
    nodes = [node("Outer", ["x"], ["a"], domain="my"), node("Plain", ["x"], ["b"], domain="my")]
    found = drawn(nodes, ["a", "b"], functions=[noise, outer, plain], domains=["my"])
    assert found == ({"a"}, {"a"})
