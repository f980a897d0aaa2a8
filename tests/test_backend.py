"""onnx's official backend runner drives fuse: every case of the suite is in the manifest, and passes or says why not.

``tests/backend_cases.txt`` names every case on the CPU, one a line.  A case that the standard leaves open stands there
with the reason and the test that takes its place.  ``FUSE_REWRITE_MANIFEST=1 pytest tests/test_backend.py -n0`` writes
it anew after an update of onnx; what then fails stands in it as ``FAILS`` and is for a person to look at.
"""

from __future__ import annotations

import os
import unittest
import warnings
from pathlib import Path

import numpy as np
import onnx.backend.test
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from fuse.backend import FuseBackend, prepare, run_model, run_node, supports_device
from fuse.errors import InputError
from fuse.model.load import load
from fuse.runtime.interpret import run
from tests.models import model, node, rand

MANIFEST = Path(__file__).with_name("backend_cases.txt")
CHUNKS = 8

#: Cases whose answer the standard leaves open, why, and the test that holds what it does say.
OPEN = {
    "test_bernoulli": "random: tests/ops/test_random.py",
    "test_bernoulli_double": "random: tests/ops/test_random.py",
    "test_bernoulli_double_expanded": "random: tests/ops/test_random.py",
    "test_bernoulli_expanded": "random: tests/ops/test_random.py",
    "test_bernoulli_seed": "random, the generator is not prescribed: tests/ops/test_random.py",
    "test_bernoulli_seed_expanded": "random, the generator is not prescribed: tests/ops/test_random.py",
    "test_loop16_seq_none": "the runner asks for the length of a scalar: tests/test_backend.py",
    "test_squeezenet": "softmax of 1000 logits equal but for the last bit: tests/test_runtime.py",
    "test_attention_4d_causal_fp16_expanded": "half precision, a ULP is more than rtol: tests/test_backend.py",
}


def cases() -> dict[str, unittest.TestCase]:
    """Every case of the official suite on the CPU, by its name without the device."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        suite = onnx.backend.test.BackendTest(FuseBackend, "backend")
    found: dict[str, unittest.TestCase] = {}
    for group in suite.test_cases.values():
        for name in unittest.defaultTestLoader.getTestCaseNames(group):
            if name.endswith("_cpu"):
                found[name.removesuffix("_cpu")] = group(name)
    return found


@pytest.fixture(scope="module")
def suite() -> dict[str, unittest.TestCase]:
    return cases()


def listed() -> dict[str, str]:
    """The manifest: a note for each case, empty where it must pass."""
    lines = MANIFEST.read_text(encoding="utf-8").splitlines()
    return {name: note.strip() for name, _, note in (line.partition(" ") for line in lines if line)}


def run_cases(chosen: dict[str, unittest.TestCase]) -> dict[str, str]:
    """The last line of the traceback of each case that does not pass; a skipped case does not pass."""
    wrong: dict[str, str] = {}
    for name, case in chosen.items():
        result = unittest.TestResult()
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            case.run(result)
        for _, text in [*result.failures, *result.errors, *result.skipped]:
            wrong[name] = text.strip().splitlines()[-1]
    return wrong


def test_the_manifest_names_every_case(suite) -> None:
    if os.environ.get("FUSE_REWRITE_MANIFEST"):
        wrong = run_cases(suite)
        notes = {name: OPEN.get(name, "FAILS" if name in wrong else "") for name in sorted(suite)}
        MANIFEST.write_text("".join(f"{name} {note}".strip() + "\n" for name, note in notes.items()), encoding="utf-8")
    assert listed().keys() == suite.keys()
    assert {name: note for name, note in listed().items() if note} == OPEN


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_official_cases(suite, chunk: int) -> None:
    chosen = {name: case for i, (name, case) in enumerate(sorted(suite.items())) if i % CHUNKS == chunk}
    assert len(chosen) > 200
    wrong = {name: why for name, why in run_cases(chosen).items() if name not in OPEN}
    assert wrong == {}


def test_the_half_precision_case_is_closer_to_exact_than_its_shipped_answer() -> None:
    """Its answer was rounded after every step; ours is up to two ULP away from it, beyond the rtol of 1e-3."""
    (case,) = (c for c in collect_testcases(None) if c.name == "test_attention_4d_causal_fp16_expanded")
    loaded = load(case.model)
    ((inputs, (shipped,)),) = case.data_sets
    feeds = {value.name: as_array(given) for value, given in zip(loaded.graph.inputs, inputs, strict=True)}
    (ours,), (exact,) = (list(run(loaded, feeds, precision=p).values()) for p in (None, "double"))
    error, theirs = (np.abs(a.astype(np.float64) - exact) for a in (ours, as_array(shipped)))
    assert ours.dtype == np.float16 and error.max() < theirs.max() and (error**2).mean() < (theirs**2).mean()
    assert np.abs(ours.view(np.int16).astype(int) - as_array(shipped).view(np.int16)).max() <= 2


def test_the_loop_whose_scalar_the_runner_cannot_compare() -> None:
    (case,) = (c for c in collect_testcases(None) if c.name == "test_loop16_seq_none")
    ((inputs, (shipped,)),) = case.data_sets
    (ours,) = prepare(case.model).run(inputs)
    assert [(a.dtype, a.shape, a.tolist()) for a in ours] == [(a.dtype, a.shape, a.tolist()) for a in shipped]


def as_array(given: object) -> np.ndarray:
    return numpy_helper.to_array(given) if isinstance(given, TensorProto) else np.asarray(given)


# ---- the interface itself


def test_a_prepared_model_takes_lists_mappings_and_single_arrays() -> None:
    rep = prepare(model([node("Add", ["x", "z"], ["y"])], {"x": [2], "z": [2]}, {"y": [2]}))
    x, z = rand(2), rand(2, seed=1)
    for inputs in ([x, z], (x, z), {"z": z, "x": x}):
        outputs = rep.run(inputs)
        assert outputs["y"].tolist() == outputs[0].tolist() == (x + z).tolist()
    assert run_model(model([node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": [2]}), x)[0].tolist() == (-x).tolist()
    with pytest.raises(InputError, match="3 inputs are given"):
        rep.run([x, z, z])


def test_run_node_runs_one_node_in_the_operator_set_asked_for() -> None:
    x = rand(2, 3)
    (squeezed,) = run_node(helper.make_node("Squeeze", ["x"], ["y"], axes=[0]), [x[None]], opset_version=11)
    assert squeezed.tobytes() == x.tobytes()
    top, places = run_node(helper.make_node("TopK", ["x", "k"], ["v", "i"]), [x, np.array([1])])
    assert top.tolist() == x.max(1, keepdims=True).tolist() and places.tolist() == x.argmax(1)[:, None].tolist()
    with pytest.raises(InputError, match="reads 1 values, 2 are given"):
        run_node(helper.make_node("Relu", ["x"], ["y"]), [x, x])


def test_devices() -> None:
    assert supports_device("CPU") and not supports_device("CUDA")
    with pytest.raises(InputError, match="no device 'CUDA'"):
        prepare(model([node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": [2]}), "CUDA")
