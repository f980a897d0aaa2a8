from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from fuse.model.load import load
from fuse.report.machine import strict_json
from fuse.report.summary import summary
from tests.models import model, node


def test_the_facts_of_a_model() -> None:
    function = helper.make_function(
        "own", "Same", ["x"], ["y"], [node("Identity", ["x"], ["y"])], [helper.make_opsetid("", 18)]
    )
    proto = model(
        [node("Same", ["x"], ["a"], domain="own"), node("Add", ["a", "w"], ["y"])],
        {"x": ["n", 3], "w": (TensorProto.FLOAT, [3])},
        {"y": ["n", 3]},
        {"w": np.ones(3, np.float32), "unused": np.ones((2, 2))},
        functions=[function],
        domains=["own"],
    )
    proto.producer_name, proto.producer_version = "by hand", "2"
    facts = summary(load(proto))
    assert facts == {
        "source": "model",
        "graph": "g",
        "ir_version": 8,
        "opsets": {"ai.onnx": 18, "own": 1},
        "producer": "by hand 2",
        "inputs": [
            {"name": "x", "type": "float[n, 3]", "default": False},
            {"name": "w", "type": "float[3]", "default": True},
        ],
        "outputs": [{"name": "y", "type": "float[n, 3]"}],
        "nodes": 2,
        "operators": {"Add": 1, "own::Same": 1},
        "functions": ["own::Same"],
        "constants": 1,
        "weight_bytes": 32,
    }
    strict_json(facts)


def test_a_producer_that_is_not_utf8() -> None:
    proto = model([node("Relu", ["x"], ["y"])], {"x": [1]}, {"y": [1]})
    proto.producer_name = "QQQQ"
    data = proto.SerializeToString().replace(b"QQQQ", b"\xb7\x1b\xff\xfe")
    assert summary(load(data))["producer"] == "\\xb7\x1b\\xff\\xfe"
