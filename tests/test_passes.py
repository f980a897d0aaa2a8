"""Acceptance of the optimizer: the figures that fuse promises on its embedded models, for every target.

Runs under pytest and as a plain script: ``python tests/test_passes.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import fuse
from fuse.model.save import to_proto
from fuse.runtime.interpret import run

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))
NODES = {"portable": 24, "onnx": 49, "ort": 24}


def image(seed: int = 0) -> dict[str, np.ndarray]:
    return {"input": np.random.default_rng(seed).standard_normal((1, 3, 224, 224)).astype(np.float32)}


@pytest.fixture(scope="module")
def raw():
    return fuse.load("resnet18")


def test_the_victim(raw) -> None:
    counts = raw.operator_counts()
    assert raw.node_count() == 141
    assert counts == {
        "Identity": 72, "BatchNormalization": 20, "Conv": 20, "Relu": 17, "Add": 8,
        "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "MaxPool": 1,
    }  # fmt: skip


@pytest.mark.parametrize("target", NODES)
def test_resnet18(raw, target: str) -> None:
    result = fuse.optimize(raw, target=target, verify=False)
    assert result.report.nodes_after <= NODES[target]
    removed = result.report.journal.removed_by_operator()
    assert removed["identity"] == {"Identity": 72}
    assert removed["batchnorm"] == {"BatchNormalization": 20, "Conv": 20}
    assert sum(result.report.journal.removed_by_stage().values()) == 141 - result.report.nodes_after
    feed = image()
    before, after = run(raw, feed)["output"], run(result.model, feed)["output"]
    exact = run(raw, feed, precision="double")["output"]
    scale = np.abs(before).max()
    assert np.abs(after - before).max() <= 5e-7 * scale
    assert np.abs(after - exact).max() <= 1.5 * np.abs(before - exact).max()
    assert np.array_equal(before.argmax(-1), after.argmax(-1))


def test_each_removed_node_has_a_pass(raw) -> None:
    journal = fuse.optimize(raw, verify=False).report.journal
    removed = {k: v for k, v in journal.removed_by_stage().items() if v}
    assert removed == {"identity": 72, "batchnorm": 20, "residual": 8, "activation": 17}


@pytest.mark.parametrize("target", NODES)
def test_onnxruntime_loads_the_result_and_agrees(raw, target: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    result = fuse.optimize(raw, target=target, verify=False)
    feed = image(1)

    def answer(model, level):
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        data = to_proto(model).SerializeToString()
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feed)[0]

    want = answer(raw, "ORT_DISABLE_ALL")
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        got = answer(result.model, level)
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_the_verdict_is_on_by_default() -> None:
    result = fuse.optimize("mlp")
    assert result.report.verdict is not None and result.report.verdict.status == "ok"


def test_the_memory_plan(raw) -> None:
    plan = fuse.plan(fuse.optimize(raw, verify=False).model)
    assert plan.freed <= 4_014_080  # 3.83 MiB: the first convolution's result beside its pooled form
    assert plan.bound <= plan.arena <= 1.02 * plan.bound


@pytest.mark.parametrize("target", ["portable", "onnx"])
@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_light_models_are_optimised_with_answers_unmoved(path: Path, target: str) -> None:
    model = fuse.load(str(path))
    result = fuse.optimize(model, verify=False, target=target)
    (value,) = model.graph.inputs
    feed = {value.name: np.random.default_rng(3).standard_normal(value.shape).astype(np.float32)}
    (want,), (got,) = run(model, feed).values(), run(result.model, feed).values()
    assert result.report.nodes_after < result.report.nodes_before
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-n0", *sys.argv[1:]]))
