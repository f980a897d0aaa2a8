"""Acceptance of the runtime: the embedded models and onnx's light models, against onnxruntime and float64.

Runs under pytest and as a plain script: ``python tests/test_runtime.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import fuse
from fuse.model.save import to_proto
from fuse.runtime.interpret import run

LIGHT = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data" / "light").glob("*.onnx"))


def feeds(model: Any, seed: int = 0, batch: int = 3) -> dict[str, np.ndarray]:
    """Standard normal numbers for every input; symbolic dims become ``batch``."""
    rng = np.random.default_rng(seed)
    shapes = {v.name: [d if isinstance(d, int) else batch for d in v.shape] for v in model.graph.inputs}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def relative(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference over the largest magnitude of ``b``."""
    return float(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max())


def against_onnxruntime(name: str, seeds: Sequence[int]) -> list[float]:
    """For each seed, how far the raw graph's answer on fuse is from onnxruntime's without its optimisations."""
    ort = pytest.importorskip("onnxruntime")
    model = fuse.load(name)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = to_proto(model).SerializeToString()
    theirs = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    ours = fuse.InferenceSession(model)
    differences = []
    for seed in seeds:
        feed = feeds(model, seed)
        (want,), (got,) = theirs.run(None, feed), ours.run(None, feed)
        assert got.dtype == want.dtype and got.shape == want.shape
        assert np.array_equal(got.argmax(-1), want.argmax(-1))
        differences.append(relative(got, want))
    return differences


def test_raw_resnet18_against_onnxruntime() -> None:
    assert max(against_onnxruntime("resnet18", range(2))) <= 5e-7


def test_raw_mlp_against_onnxruntime() -> None:
    """In single inputs either runtime may be off by the last bit, which is 6e-8 to 1.2e-7 of the largest output."""
    differences = against_onnxruntime("mlp", range(32))
    assert np.median(differences) <= 1e-7 and max(differences) <= 5e-7


@pytest.mark.parametrize("name", ["resnet18", "mlp"])
def test_raw_graph_against_float64(name: str) -> None:
    model = fuse.load(name)
    feed = feeds(model)
    exact = run(model, feed, precision="double")["output"]
    assert exact.dtype == np.float64
    assert relative(run(model, feed)["output"], exact) <= 5e-7


def shipped(path: Path) -> tuple[Any, dict[str, np.ndarray], np.ndarray]:
    """A light model, the official runner's input (0, 1/n, 2/n, ... in order), and the output shipped beside it."""
    model = fuse.load(str(path))
    (value,) = model.graph.inputs
    count = int(np.prod(value.shape))
    feed = {value.name: (np.arange(count).reshape(value.shape) / count).astype(np.float32)}
    data = path.with_name(f"{path.stem}_output_0.pb").read_bytes()
    return model, feed, numpy_helper.to_array(onnx.TensorProto.FromString(data))


@pytest.mark.parametrize("path", [p for p in LIGHT if "squeezenet" not in p.stem], ids=lambda p: p.stem)
def test_light_models_give_the_output_shipped_beside_them(path: Path) -> None:
    model, feed, want = shipped(path)
    (got,) = fuse.InferenceSession(model).run(None, feed)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-7)


def test_light_squeezenet_gives_its_output_where_the_last_bit_cannot_decide() -> None:
    """Its 1000 logits are equal, near 9.5e9, where float32 counts in steps of 1024: softmax makes 0 or 1 of one step.

    Whether the steps come out equal is the matrix product's affair (its blocking, its threads), so the answer is
    compared in float64, and the logits in float32.
    """
    model, feed, want = shipped(next(p for p in LIGHT if "squeezenet" in p.stem))
    np.testing.assert_allclose(run(model, feed, precision="double")["softmaxout_1"], want, rtol=2e-5)
    (softmax,) = (n for n in model.graph.nodes if n.op == "Softmax-1")
    logits = softmax.inputs[0]
    model.graph.rewire(0, logits)
    got, exact = (run(model, feed, precision=p)["softmaxout_1"] for p in (None, "double"))
    assert np.abs(exact - exact.mean()).max() <= 1e-12 * exact.mean()
    np.testing.assert_allclose(got, exact, rtol=2e-5)


def test_a_session_looks_like_onnxruntimes() -> None:
    session = fuse.InferenceSession("mlp", threads=1)
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.type, given.shape) == ("input", "tensor(float)", ["batch", 4])
    assert (made.name, made.type, made.shape) == ("output", "tensor(float)", ["batch", 3])
    feed = {"input": np.zeros((2, 4), np.float32)}
    (first,) = session.run(None, feed)
    (again,) = session.run(["output"], feed)
    assert first.tobytes() == again.tobytes() and first.shape == (2, 3)


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-n0", *sys.argv[1:]]))
