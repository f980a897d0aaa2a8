from __future__ import annotations

import gc
import itertools
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
from onnx import TensorProto, helper

from fuse.errors import InputError
from fuse.model.load import load
from fuse.report.measure import fuse_runner, interleave, onnxruntime_runner, operator_times, peak_memory
from tests.models import BOOL, I64, info, model, node

N = 1 << 20


def test_runners_take_turns() -> None:
    calls: list[str] = []
    runners = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleave(runners, runs=3, warmup=1)
    assert "".join(calls) == "ab" + "ababab"
    assert {name: len(row) for name, row in times.items()} == {"a": 3, "b": 3}
    assert all(ms >= 0 for row in times.values() for ms in row)


def test_after_a_pause_comes_a_call_that_is_not_measured() -> None:
    calls: list[str] = []
    runners = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = interleave(runners, runs=2, warmup=0, pause=1e-6)
    assert "".join(calls) == "aabb" * 2
    assert {name: len(row) for name, row in times.items()} == {"a": 2, "b": 2}


def test_times_are_milliseconds(monkeypatch) -> None:
    ticks = itertools.count(step=0.25)
    monkeypatch.setattr("fuse.report.measure.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert interleave({"a": lambda: None, "b": lambda: None}, runs=2, warmup=0) == {
        "a": [250.0, 250.0],
        "b": [250.0, 250.0],
    }


def test_the_garbage_collector_comes_back() -> None:
    seen = []
    interleave({"a": lambda: seen.append(gc.isenabled())}, runs=1, warmup=1)
    assert seen == [True, False] and gc.isenabled()

    def fail() -> None:
        if not gc.isenabled():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interleave({"a": fail}, runs=1)
    assert gc.isenabled()


@pytest.fixture
def seconds(monkeypatch) -> None:
    """Let every look at the interpreter's clock take one second: a node with n nodes inside takes 2 n + 1."""
    ticks = itertools.count()
    monkeypatch.setattr("fuse.runtime.interpret.time", SimpleNamespace(perf_counter=lambda: next(ticks)))


def test_operators_are_charged_together_most_first(seconds) -> None:
    proto = model(
        [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Relu", ["b"], ["y"])], {"x": [2]}, {"y": [2]}
    )
    times = operator_times(load(proto), {"x": np.ones(2, np.float32)}, runs=3)
    assert list(times.items()) == [("Relu", 2000.0), ("Neg", 1000.0)]


def test_a_loop_is_charged_what_its_body_is_not(seconds) -> None:
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Neg", ["v"], ["n"]), node("Neg", ["n"], ["w"])],
        "body",
        [info("i", I64, []), info("c", BOOL, []), info("v", TensorProto.FLOAT, [2])],
        [info("d", BOOL, []), info("w", TensorProto.FLOAT, [2])],
    )
    proto = model([node("Loop", ["trips", "", "x"], ["y"], body=body)], {"x": [2]}, {"y": [2]}, {"trips": np.array(5)})
    times = operator_times(load(proto), {"x": np.ones(2, np.float32)}, runs=2)
    # five rounds of three inner nodes: 1 s each, and 2 looks at the clock for each of them inside the Loop's own 31
    assert times == {"Loop": 16000.0, "Neg": 10000.0, "Identity": 5000.0}


def test_a_function_is_charged_what_its_body_is_not(seconds) -> None:
    function = helper.make_function(
        "own",
        "Twice",
        ["x"],
        ["y"],
        [node("Neg", ["x"], ["n"]), node("Neg", ["n"], ["y"])],
        [helper.make_opsetid("", 18)],
    )
    calls = [node("Twice", ["x"], ["a"], domain="own"), node("Twice", ["a"], ["y"], domain="own")]
    proto = model(calls, {"x": [2]}, {"y": [2]}, functions=[function], domains=["own"])
    times = operator_times(load(proto), {"x": np.ones(2, np.float32)}, runs=1)
    assert times == {"own::Twice": 6000.0, "Neg": 4000.0}


def test_the_peak_is_what_one_run_holds_at_a_time() -> None:
    """Two results are alive while the second is computed; the first is gone when the third is."""
    nodes = [node("Add", ["x", "x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Sub", ["b", "x"], ["y"])]
    x = np.ones(N, np.float32)
    peak = peak_memory(load(model(nodes, {"x": ["n"]}, {"y": ["n"]})), {"x": x})
    assert 2 * x.nbytes <= peak < 2.1 * x.nbytes
    assert not tracemalloc.is_tracing()


def test_the_peak_leaves_constants_out_and_a_trace_under_way_alone() -> None:
    x = np.ones(N, np.float32)
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": ["n"]}, {"y": ["n"]}, {"w": np.ones(N, np.float32)})
    tracemalloc.start()
    try:
        kept = np.ones(4 * N, np.float32)
        peak = peak_memory(load(proto), {"x": x})
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()
    assert x.nbytes <= peak < 1.1 * x.nbytes < kept.nbytes


def test_fuse_and_onnxruntime_answer_alike() -> None:
    pytest.importorskip("onnxruntime")
    proto = model(
        [node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 2]}, {"w": np.ones((3, 2), np.float32)}
    )
    loaded, feeds = load(proto), {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    expected = [[3, 3], [12, 12]]
    np.testing.assert_array_equal(fuse_runner(loaded, feeds)()["y"], expected)
    np.testing.assert_array_equal(onnxruntime_runner(loaded, feeds, threads=1)()[0], expected)


def test_what_onnxruntime_refuses_is_an_input_error() -> None:
    pytest.importorskip("onnxruntime")
    proto = model([node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    with pytest.raises(InputError, match="onnxruntime cannot run the model: "):
        onnxruntime_runner(load(proto), {"x": np.ones((2, 2, 2), np.float32)})
