#!/usr/bin/env python3
"""The benchmark: what optimising a model saves in nodes, time and memory, and what it does to the answers.

Everything is measured in one process.  The runners take turns (A B A B, not A A B B), so that whatever else the machine
does disturbs all of them alike, and medians and quartiles are reported.  Before each measured call its runner pauses
and runs once unmeasured: the worker threads of onnxruntime and of BLAS spin for tens of milliseconds after their last
job, and on two cores that doubled the time of whatever came next.

The figures go to ``benchmarks/results/MODEL.json``, from which ``benchmarks/readme.py`` writes the README's table.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from facts import machine
from rich.console import Console
from tables import COMPARISONS, show

import fuse
from fuse.errors import FuseError, InputError
from fuse.ir.model import Model
from fuse.passes.pipeline import TARGETS
from fuse.report import measure
from fuse.report.machine import strict_json
from fuse.report.terminal import traded
from fuse.runtime.threads import blas_threads

RESULTS = Path(__file__).resolve().parent / "results"
SCHEMA = 1

RAW, OPTIMISED = "fuse, raw", "fuse, optimised"
ORT, ORT_OFF = "onnxruntime", "onnxruntime, optimisations off"


# ---- what is measured


def make_feeds(model: Model, seed: int = 0) -> dict[str, Any]:
    """Standard normal numbers for every input, symbolic dims 1.  ``InputError`` for an input that is not of floats."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for entry in fuse.InferenceSession(model).get_inputs():
        dtypes = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
        if entry.type not in dtypes:
            hint = "fuse bench makes up inputs of every type"
            raise InputError(f"input {entry.name!r} is a {entry.type}, not of floats", where=model.source, hint=hint)
        shape = [d if isinstance(d, int) else 1 for d in entry.shape]
        feeds[entry.name] = rng.standard_normal(shape).astype(dtypes[entry.type])
    return feeds


def spread(samples: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and ends of a series of measurements."""
    q1, middle, q3 = quantiles(samples, n=4, method="inclusive")
    return {"median": middle, "q1": q1, "q3": q3, "min": min(samples), "max": max(samples)}


def speed(
    raw: Model, optimised: Model, feeds: Mapping[str, Any], threads: int, runs: int, warmup: int, pause: float
) -> dict[str, Any]:
    """Times of all runners on ``threads`` threads, in milliseconds, as multiples of onnxruntime's, and by operator.

    A multiple is taken between two calls of the same round, which a slow drift of the machine leaves alone.
    """
    with blas_threads(threads):
        runners = {RAW: measure.fuse_runner(raw, feeds), OPTIMISED: measure.fuse_runner(optimised, feeds)}
        if measure.has_onnxruntime():
            runners[ORT] = measure.onnxruntime_runner(raw, feeds, threads)
            runners[ORT_OFF] = measure.onnxruntime_runner(raw, feeds, threads, optimise=False)
        times = measure.interleave(runners, runs, warmup, pause)
        operators = operator_turns({"raw": raw, "optimised": optimised}, feeds, max(2, min(runs // 3, 10)), pause)
    base = times.get(ORT)
    multiples = {name: [t / b for t, b in zip(row, base, strict=True)] for name, row in times.items()} if base else {}
    return {
        "milliseconds": {name: spread(row) for name, row in times.items()},
        "ratios": {name: spread(row) for name, row in multiples.items() if name != ORT},
        "operators": operators,
    }


def operator_turns(
    models: Mapping[str, Model], feeds: Mapping[str, Any], rounds: int, pause: float
) -> dict[str, dict[str, float]]:
    """Milliseconds by operator of each model: medians over ``rounds`` in which the models take turns."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            time.sleep(pause)
            seen[name].append(measure.operator_times(model, feeds, runs=1))
    return {name: {op: median(sample[op] for sample in samples) for op in samples[0]} for name, samples in seen.items()}


def node_counts(model: Model) -> dict[str, Any]:
    """For each target the nodes before and after, and what each pass that changed something took and made."""
    result: dict[str, Any] = {}
    for target in TARGETS:
        report = fuse.optimize(model, target=target, verify=False).report
        passes, start = [], 0
        for stage in report.journal.stages:
            removed, made = traded(report.journal.changes[start : start + stage.changes])
            start += stage.changes
            if stage.changes:
                counts = {"before": stage.nodes_before, "after": stage.nodes_after}
                passes.append({"pass": stage.stage, **counts, "removed": dict(removed), "made": dict(made)})
        result[target] = {
            "before": report.nodes_before,
            "after": report.nodes_after,
            "passes": passes,
            "operators_before": report.operators_before,
            "operators_after": report.operators_after,
        }
    return result


def memory(model: Model, feeds: Mapping[str, Any]) -> dict[str, int]:
    """The figures of the memory plan, symbolic dims 1, and the measured peak of one run, in bytes."""
    inputs = fuse.InferenceSession(model).get_inputs()
    plan = fuse.plan(model, sizes={dim: 1 for entry in inputs for dim in entry.shape if isinstance(dim, str)})
    return {
        "without_reuse": plan.without_reuse,
        "freed": plan.freed,
        "bound": plan.bound,
        "arena": plan.arena,
        "measured": measure.peak_memory(model, feeds),
    }


def accuracy(raw: Model, optimised: Model) -> dict[str, Any]:
    """The verdict, and of each comparison in it the largest difference in parts of the largest output."""
    verdict = fuse.verify(raw, optimised)
    worst: dict[str, float | None] = {}
    for name in COMPARISONS:
        found = [getattr(row, name) for row in verdict.rows]
        worst[name] = max((d.max_rel for d in found if d is not None and d.max_rel is not None), default=None)
    agreed = [d.argmax for row in verdict.rows for d in (row.difference, row.runtimes) if d is not None]
    return {
        "status": verdict.status,
        "line": verdict.line(),
        "input_sets": list(verdict.input_sets),
        "argmax_agreement": min((a for a in agreed if a is not None), default=None),
        **worst,
    }


def bench(name: str, threads: Sequence[int], runs: int, warmup: int, pause: float) -> dict[str, Any]:
    """Measure the model ``name`` (an embedded one, or a path); the result is what the JSON file holds."""
    facts = machine()
    raw = fuse.load(name)
    optimised = fuse.optimize(raw, verify=False).model
    feeds = make_feeds(raw)
    return {
        "schema": SCHEMA,
        "model": Path(name).stem,
        "inputs": {key: list(value.shape) for key, value in feeds.items()},
        "fuse": fuse.__version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": facts,
        "method": {"runs": runs, "warmup": warmup, "pause_seconds": pause},
        "nodes": node_counts(raw),
        "accuracy": accuracy(raw, optimised),
        "memory": {"raw": memory(raw, feeds), "optimised": memory(optimised, feeds)},
        "threads": {str(n): speed(raw, optimised, feeds, n, runs, warmup, pause) for n in threads},
    }


# ---- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0, or 2 where the model cannot be measured."""
    parser = argparse.ArgumentParser(description="Measure a model raw and optimised, on fuse and on onnxruntime.")
    parser.add_argument("--model", default="resnet18", help="an embedded model or a path (default: resnet18)")
    parser.add_argument("--threads", type=_positive, nargs="+", default=[1, 2], help="thread counts (default: 1 2)")
    parser.add_argument("--runs", type=_positive, help="measured calls of each runner (default: 30; 3 with --quick)")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before them (default: 1)")
    parser.add_argument("--quick", action="store_true", help="a few seconds; writes no file unless told")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write (default: benchmarks/results)")
    options = parser.parse_args(arguments)
    runs = max(2, options.runs or (3 if options.quick else 30))
    try:
        record = bench(options.model, options.threads, runs, options.warmup, 0.02 if options.quick else 0.1)
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(record, Console(markup=False, highlight=False, soft_wrap=True))
    target = options.json or (None if options.quick else RESULTS / f"{record['model']}.json")
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(strict_json(record), encoding="ascii")
        print(f"wrote {target}")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
