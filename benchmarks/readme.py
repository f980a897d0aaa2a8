#!/usr/bin/env python3
"""The README's figures: written from the benchmark's JSON file, never by hand.

``python benchmarks/readme.py`` rewrites what stands between the markers; with ``--check`` it changes nothing and ends
with 1 where the README says something else than the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tables import machine_line

from fuse.report.sawtooth import show_bytes

HOME = Path(__file__).resolve().parent
START, END = "<!-- figures:start -->", "<!-- figures:end -->"


def figures(record: Mapping[str, Any]) -> str:
    """The block between the markers, in Markdown: a table, and a line on where and how it was measured."""
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in record["inputs"].values())
    head = f"{record['model']}, input {shapes}"
    rows = [*_node_rows(record["nodes"]), *_memory_rows(record["memory"]), *_time_rows(record["threads"])]
    rows += _accuracy_rows(record["accuracy"])
    lines = [f"| {head} | raw graph | optimised |", "| --- | ---: | ---: |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", _footnote(record)])


def _node_rows(nodes: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    for target, counts in nodes.items():
        yield f"nodes, target `{target}`", str(counts["before"]), str(counts["after"])


def _memory_rows(memory: Mapping[str, Mapping[str, int]]) -> Iterable[tuple[str, str, str]]:
    says = {
        "without_reuse": "activations, each in memory of its own",
        "arena": "activations, planned arena",
        "bound": "its lower bound",
        "measured": "measured peak of a run, scratch included",
    }
    for key, text in says.items():
        yield text, show_bytes(memory["raw"][key]), show_bytes(memory["optimised"][key])


def _time_rows(threads: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    for count, row in threads.items():
        plural = f"{count} thread{'s' * (count != '1')}"
        times, ratios = row["milliseconds"], row["ratios"]
        cells = [_ms(times[name]) for name in ("fuse, raw", "fuse, optimised")]
        yield f"fuse, {plural}", cells[0], cells[1]
        if "onnxruntime" in times:
            yield f"onnxruntime, {plural}", _ms(times["onnxruntime"]), ""
            multiples = [f"{ratios[name]['median']:.2f} x" for name in ("fuse, raw", "fuse, optimised")]
            yield f"fuse over onnxruntime, {plural}", multiples[0], multiples[1]


def _ms(times: Mapping[str, float]) -> str:
    return f"{times['median']:.{1 if times['median'] >= 10 else 2}f} ms"


def _accuracy_rows(accuracy: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """Differences in parts of the largest output; a figure that could not be had is left out."""
    says = [
        ("largest error against float64", "raw_error", "optimised_error"),
        ("largest difference from the raw graph", "", "difference"),
        ("largest difference from onnxruntime", "runtimes", ""),
    ]
    for text, *keys in says:
        cells = ["" if accuracy.get(key) is None else f"{accuracy[key]:.1e}" for key in keys]
        if any(cells):
            yield text, cells[0], cells[1]


def _footnote(record: Mapping[str, Any]) -> str:
    method = record["method"]
    return (
        f"Measured on {record['date']}: {machine_line(record['machine'])}. Times are medians of {method['runs']} runs "
        "taken in turns, ratios medians over the turns; differences are in parts of the largest output. "
        "`python benchmarks/bench.py` measures them again."
    )


def rewritten(text: str, block: str) -> str:
    """``text`` with ``block`` between the markers; ``ValueError`` unless both stand there once, in order."""
    if text.count(START) != 1 or text.count(END) != 1 or text.index(END) < text.index(START):
        raise ValueError(f"needs {START} and then {END}, each once")
    before, after = text.split(START)[0], text.split(END)[1]
    return f"{before}{START}\n{block}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the README is, or was brought, in step; 1 where ``--check`` finds it out of step; 2 on bad files."""
    parser = argparse.ArgumentParser(description="Write the benchmark's figures into the README.")
    parser.add_argument("--check", action="store_true", help="change nothing; end with 1 where they differ")
    parser.add_argument("--json", type=Path, default=HOME / "results" / "resnet18.json", metavar="FILE")
    parser.add_argument("--readme", type=Path, default=HOME.parent / "README.md", metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        block = figures(json.loads(options.json.read_text(encoding="ascii")))
        text = options.readme.read_text(encoding="utf-8")
        wanted = rewritten(text, block)
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyError as error:
        print(f"error: {options.json}: has no entry {error}\nhint: python benchmarks/bench.py", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {options.readme} or {options.json}: {error}", file=sys.stderr)
        return 2
    if wanted == text:
        return 0
    if options.check:
        print(
            f"{options.readme} is out of step with {options.json}\nhint: python benchmarks/readme.py", file=sys.stderr
        )
        return 1
    options.readme.write_text(wanted, encoding="utf-8")
    print(f"wrote {options.readme}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
