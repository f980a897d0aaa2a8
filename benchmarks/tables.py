"""The tables of a benchmark, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from fuse.report.sawtooth import show_bytes
from fuse.report.terminal import Columns, counted, operator_times_table, plain

#: Comparisons that the verdict holds, and what each row of the accuracy table says.
COMPARISONS = {
    "difference": "optimised against raw, both on fuse",
    "raw_error": "raw against the raw graph in float64",
    "optimised_error": "optimised against the raw graph in float64",
    "runtimes": "raw on onnxruntime against raw on fuse",
    "onnxruntime": "optimised against raw, both on onnxruntime",
}


def show(record: Mapping[str, Any], console: Console) -> None:
    """Print the tables of a benchmark."""
    facts, method = record["machine"], record["method"]
    shapes = ", ".join(f"{plain(name)} {shape}" for name, shape in record["inputs"].items())
    console.print(f"{plain(record['model'])} ({shapes}), fuse {record['fuse']}, {record['date']}")
    console.print(machine_line(facts))
    console.print(
        f"{method['runs']} runs of each in turns after {method['warmup']} unmeasured, "
        f"each after a pause of {method['pause_seconds']} s and a call to warm up; load at the start {facts['load']}\n"
    )
    for threads, row in record["threads"].items():
        console.print(f"{threads} thread{'s' * (threads != '1')}")
        console.print(times_table(row))
        console.print(operator_times_table({f"{which} graph": ops for which, ops in row["operators"].items()}))
    if facts["onnxruntime"] is None:
        console.print('onnxruntime is not installed and was skipped: pip install "fuse-onnx[ort]"\n')
    console.print(nodes_table(record["nodes"]))
    console.print(memory_table(record["memory"]))
    console.print(accuracy_table(record["accuracy"]))
    console.print(plain(record["accuracy"]["line"], 400))


def machine_line(facts: Mapping[str, Any]) -> str:
    """The machine in one sentence."""
    lib = facts["blas"]
    multiplies = f" with {lib['name']} {lib['version']} ({lib['architecture']})" if lib else ""
    peer = f", onnxruntime {facts['onnxruntime']}" if facts["onnxruntime"] else ""
    cores = f"{facts['cores']} core{'s' * (facts['cores'] != 1)}"
    return f"{facts['cpu']}, {cores}, Python {facts['python']}, NumPy {facts['numpy']}{multiplies}{peer}"


def times_table(row: Mapping[str, Any]) -> Columns:
    """Median and quartiles of each runner, and how many times onnxruntime's time that is."""
    rows = []
    for name, ms in row["milliseconds"].items():
        times = row["ratios"].get(name)
        ratio = f"{times['median']:.2f} ({times['q1']:.2f} to {times['q3']:.2f})" if times else ""
        rows.append((name, f"{ms['median']:.2f}", f"{ms['q1']:.2f} to {ms['q3']:.2f}", f"{ms['min']:.2f}", ratio))
    return Columns(("runner", "median ms>", "quartiles>", "min>", "x onnxruntime>"), rows)


def nodes_table(nodes: Mapping[str, Any]) -> Columns:
    """What each pass took away, by target."""
    rows = []
    for target, counts in nodes.items():
        rows.append((target, "all", f"{counts['before']} -> {counts['after']}", "", ""))
        for done in counts["passes"]:
            change = f"{done['before']} -> {done['after']}"
            rows.append(("", done["pass"], change, counted(done["removed"]), counted(done["made"])))
    return Columns(("target", "pass", "nodes", "removed", "made"), rows)


def memory_table(figures: Mapping[str, Mapping[str, int]]) -> Columns:
    """The memory plans of both graphs side by side."""
    says = {
        "without_reuse": "without reuse",
        "freed": "freed after last use",
        "bound": "lower bound",
        "arena": "arena",
        "measured": "measured peak of a run (scratch of the kernels included)",
    }
    rows = [(text, *(show_bytes(figures[which][key]) for which in ("raw", "optimised"))) for key, text in says.items()]
    return Columns(("memory of the activations", "raw>", "optimised>"), rows)


def accuracy_table(figures: Mapping[str, Any]) -> Columns:
    """The largest differences, in parts of the largest output."""
    rows = [(text, f"{figures[key]:.1e}") for key, text in COMPARISONS.items() if figures[key] is not None]
    return Columns(("largest difference over the largest output", ">"), rows)
