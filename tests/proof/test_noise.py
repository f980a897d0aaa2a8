"""Nudged weights: one unit in the last place, up or down, and nothing else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from fuse.model.load import load
from fuse.proof.compare import compare_arrays
from fuse.proof.noise import nudged
from tests.models import model, node, rand


def weights(m):
    return {v.name: v.array for v in m.graph.constants}


@pytest.mark.parametrize("dtype", [np.float16, np.dtype(ml_dtypes.bfloat16), np.float32, np.float64])
def test_every_weight_moves_by_one_ulp(dtype):
    w = rand(50, 7).astype(dtype)
    m = load(
        model(
            [node("Identity", ["w"], ["y"])], {}, {"y": (helper.np_dtype_to_tensor_dtype(w.dtype), [50, 7])}, {"w": w}
        )
    )
    found = weights(nudged(m, 1))["w"]
    assert found.dtype == w.dtype and found.shape == w.shape
    d = compare_arrays(w, found)
    assert d.max_ulp == 1 and d.differing == w.size
    up = np.abs(found.astype(np.float64)) > np.abs(w.astype(np.float64))
    assert 0.3 < up.mean() < 0.7
    assert weights(m)["w"].tobytes() == w.tobytes()
    assert weights(nudged(m, 1))["w"].tobytes() == found.tobytes() != weights(nudged(m, 2))["w"].tobytes()


def test_what_is_left_alone():
    top = np.finfo(np.float32).max
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, top, -top], np.float32)
    consts = {
        "special": special,
        "power": np.float32(2),
        "one": np.array([2], np.float32),
        "ids": np.array([1, 2, 3]),
        "eight": np.array([1, 2], ml_dtypes.float8_e4m3fn),
    }
    nodes = [node("Identity", [n], [f"{n}_out"]) for n in consts]
    kinds = {
        f"{n}_out": (helper.np_dtype_to_tensor_dtype(np.asarray(a).dtype), list(a.shape)) for n, a in consts.items()
    }
    m = load(model(nodes, {}, kinds, consts, opset=19, ir_version=9))
    for seed in range(4):
        found = weights(nudged(m, seed))
        for name in ("power", "one", "ids", "eight"):
            assert found[name].tobytes() == np.asarray(consts[name]).tobytes()
        d = compare_arrays(special, found["special"])
        assert d.same_nonfinite and d.max_ulp <= 1
        assert found["special"][:5].tobytes() == special[:5].tobytes()


def test_weights_that_are_inputs_and_weights_of_subgraphs():
    branch = helper.make_graph([node("Identity", ["v"], ["r"])], "b", [], [helper.make_empty_tensor_value_info("r")])
    branch.initializer.append(helper.make_tensor("v", 1, [2], [1.0, 2.0]))
    nodes = [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch), node("Identity", ["w"], ["z"])]
    m = load(model(nodes, {"c": (9, []), "w": [2]}, {"y": [2], "z": [2]}, {"w": np.array([1, 2], np.float32)}))
    result = nudged(m, 0)
    assert compare_arrays(m.graph.inputs[1].array, result.graph.inputs[1].array).max_ulp == 1
    inner = [next(iter(n.subgraphs[0].constants)).array for n in (next(iter(g.nodes)) for g in (m.graph, result.graph))]
    assert compare_arrays(inner[0], inner[1]).max_ulp == 1
