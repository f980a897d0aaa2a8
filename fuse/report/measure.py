"""Measuring: what a run takes, in milliseconds and in bytes.

A machine that is shared, or warms up, drifts by more than what is looked for.  So runners take turns (A B A B, not
A A B B), and what is reported is the median.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from fuse.errors import InputError
from fuse.ir.graph import Graph, Node
from fuse.ir.model import Model
from fuse.proof import peer
from fuse.runtime.interpret import Interpreter

Runner = Callable[[], object]

#: Seconds after which the worker threads of onnxruntime and OpenBLAS have stopped spinning.
PAUSE = 0.1


def interleave(
    runners: Mapping[str, Runner], runs: int = 20, warmup: int = 3, pause: float = 0.0
) -> dict[str, list[float]]:
    """Call the runners in turns, ``warmup`` rounds unmeasured and then ``runs`` measured.

    With a ``pause`` (seconds) each measured call comes after that pause and one unmeasured call: the worker threads of
    onnxruntime and of OpenBLAS spin for tens of milliseconds after their last job and disturb whoever is next.
    Returns milliseconds, one for each measured call, in order.  The garbage collector is off meanwhile.
    """
    for _ in range(warmup):
        for run in runners.values():
            run()
    times: dict[str, list[float]] = {name: [] for name in runners}
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(runs):
            for name, run in runners.items():
                if pause:
                    time.sleep(pause)
                    run()
                started = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - started) * 1e3)
    finally:
        if collects:
            gc.enable()
    return times


def fuse_runner(model: Model, feeds: Mapping[str, Any]) -> Runner:
    """What runs ``model`` on fuse's own runtime."""
    interpreter = Interpreter(model)
    return lambda: interpreter.run(feeds)


def has_onnxruntime() -> bool:
    """Whether onnxruntime is installed."""
    return peer.installed()


def onnxruntime_runner(
    model: Model, feeds: Mapping[str, Any], threads: int | None = None, *, optimise: bool = True
) -> Runner:
    """What runs ``model`` on onnxruntime, with its default optimisations or with none.

    Raises ``InputError`` where onnxruntime is not installed or refuses the model.
    """
    try:
        import onnxruntime  # an extra
    except ImportError:
        hint = 'pip install "fuse-onnx[ort]"'
        raise InputError("onnxruntime is not installed", hint=hint) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what it has to say comes as an exception
    if threads is not None:
        options.intra_op_num_threads = threads
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = peer.open_session(model, options)
        session.run(None, feeds)
    except Exception as error:  # its exceptions have no common base but this one
        reason = " ".join(str(error).split())
        raise InputError(f"onnxruntime cannot run the model: {reason[:300]}", where=model.source) from None
    return lambda: session.run(None, feeds)


def operator_times(model: Model, feeds: Mapping[str, Any], runs: int = 5) -> dict[str, float]:
    """Milliseconds that each operator's nodes take together in one run: the median of ``runs``, most first.

    A node that runs a subgraph or a function is charged what its inner nodes are not.
    """
    clock = _Clock(model)
    interpreter = Interpreter(model, observe=clock.observe)
    interpreter.run(feeds)
    samples: list[dict[str, float]] = []
    for _ in range(runs):
        clock.start()
        interpreter.run(feeds)
        samples.append(dict(clock.times))
    ops = dict.fromkeys(op for sample in samples for op in sample)
    medians = {op: median(sample.get(op, 0.0) for sample in samples) * 1e3 for op in ops}
    return dict(sorted(medians.items(), key=lambda item: (-item[1], item[0])))


class _Clock:
    """Seconds by operator.  ``inside`` holds what the finished nodes of each graph took, until the node around asks."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.start()

    def start(self) -> None:
        self.times: dict[str, float] = {}
        self.inside: dict[Graph, float] = {}

    def observe(self, node: Node, outputs: Sequence[Any], seconds: float) -> None:
        bodies = node.subgraphs if node.attrs else []
        function = self.model.functions.get((node.op, node.overload)) if node.domain else None
        if function is not None:
            bodies = [*bodies, function.graph]
        inner = sum(self.inside.pop(body, 0.0) for body in bodies)
        self.times[node.op] = self.times.get(node.op, 0.0) + max(0.0, seconds - inner)
        if node.graph is not None:
            self.inside[node.graph] = self.inside.get(node.graph, 0.0) + seconds


def peak_memory(model: Model, feeds: Mapping[str, Any]) -> int:
    """The most bytes that one run has allocated at a time beyond what was there before, by tracemalloc.

    A run before it, not measured, loads the constants and prepares the steps.
    """
    interpreter = Interpreter(model)
    interpreter.run(feeds)
    gc.collect()
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        interpreter.run(feeds)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not tracing:
            tracemalloc.stop()
    return peak - before
