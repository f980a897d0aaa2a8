#!/usr/bin/env python3
"""The pictures: nodes after each pass, time by operator before and after, and the live memory of a run.

``python assets/make_visuals.py [--out DIR]`` draws each as SVG and PNG.  Nodes and memory are computed on the spot;
times are read from the benchmark's JSON file, or measured where there is none, so that the same file gives the same
pictures, byte for byte.  Needs matplotlib: ``pip install "fuse-onnx[plot]"``.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fuse
from fuse.errors import FuseError
from fuse.ir.model import Model
from fuse.report.sawtooth import show_bytes
from fuse.report.terminal import traded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOME = Path(__file__).resolve().parent
BENCHMARKS = HOME.parent / "benchmarks"

#: Okabe and Ito's colours, which colour-blind people tell apart.
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"
GREY, INK, DARK, FAINT = "#B0B0B0", "#222222", "#555555", "#E4E4E4"

#: Milliseconds below which an operator has no row.
LEAST = 0.05

COLOURS = {"Identity": GREY, "BatchNormalization": ORANGE, "Relu": GREEN, "Add": PURPLE, "Conv": BLUE, "Gemm": SKY}

STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "fuse",
    "svg.fonttype": "path",
}


def family(op: str) -> str:
    """The operator that ``op`` is at heart: ``fuse::ConvAddRelu`` is a Conv with what follows it."""
    match = re.match(r"(?:fuse::|com\.microsoft::Fused)(ConvTranspose|Conv|Gemm|MatMul|Add)", op)
    return match[1] if match else op


# ---- nodes after each pass


@dataclass(frozen=True, slots=True)
class Row:
    """The graph after one pass: its operators by family, and what the pass took away."""

    label: str
    counts: Counter[str]
    gone: Counter[str]


def pass_rows(model: Model) -> tuple[list[Row], dict[str, int]]:
    """A row for the raw graph and for each pass that changed it, and the nodes that are left in each target."""
    report = fuse.optimize(model, verify=False).report
    counts = _families(report.operators_before)
    rows, start = [Row("as exported", counts, Counter())], 0
    for stage in report.journal.stages:
        removed, made = traded(report.journal.changes[start : start + stage.changes])
        start += stage.changes
        if stage.changes:
            gone = _families(removed) - _families(made)
            counts = counts + _families(made) - _families(removed)
            rows.append(Row(stage.stage, counts, gone))
    others = {t: fuse.optimize(model, target=t, verify=False).report.nodes_after for t in ("onnx", "ort")}
    return rows, {"portable": report.nodes_after, **others}


def _families(counts: Mapping[str, int]) -> Counter[str]:
    result: Counter[str] = Counter()
    for op, count in counts.items():
        result[family(op)] += count
    return result


def draw_nodes(name: str, rows: Sequence[Row], left: Mapping[str, int]) -> Figure:
    """Bars of nodes by operator: the raw graph above, and below it what each pass leaves."""
    most = rows[0].counts.total()
    counts = ", ".join(f"{count} in the {target} target" for target, count in left.items() if target != "portable")
    title = f"{name}: {most} nodes become {left['portable']}"
    figure, (axes,) = _figure(title, f"Nodes by operator after each pass; {counts}", 0.62 * len(rows) + 0.3)
    shown = [op for op in COLOURS if any(row.counts[op] >= most / 50 for row in rows)]
    for place, row in enumerate(rows):
        parts = [(op, row.counts[op], COLOURS[op]) for op in shown]
        total = row.counts.total()
        parts.append(("others", total - sum(count for _, count, _ in parts), DARK))
        at = 0
        for op, count, colour in parts:
            axes.barh(place, count, left=at, height=0.62, color=colour, label=op if place == 0 else None)
            if count >= most / 50:
                axes.text(at + count / 2, place, str(count), ha="center", va="center", color=_on(colour))
            at += count
        gone = ", ".join(f"\N{MINUS SIGN}{count} {op}" for op, count in row.gone.most_common())
        axes.text(total + most / 100, place, str(total), va="center", weight="bold")
        axes.text(total + most / 14, place, gone, va="center")
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_xlim(0, most * 1.06)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    figure.legend(ncols=7, frameon=False, loc="outside lower left", handlelength=1, columnspacing=1.4)
    return figure


# ---- time by operator


def read_times(model: str, path: Path | None) -> dict[str, Any]:
    """The benchmark's record for ``model``: from ``path``, else from the results, else measured now."""
    path = path or BENCHMARKS / "results" / f"{Path(model).stem}.json"
    if path.exists():
        record: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        return record
    print(f"{path} is not there; measuring", file=sys.stderr)
    sys.path.insert(0, str(BENCHMARKS))
    bench = importlib.import_module("bench")
    return dict(bench.bench(model, [1], 3, 0, 0.1))


def draw_operators(record: Mapping[str, Any]) -> Figure:
    """Two bars for each operator, raw and optimised, one panel for each count of threads."""
    sums = {
        threads: {which: _sum_families(row["operators"][which]) for which in ("raw", "optimised")}
        for threads, row in record["threads"].items()
    }
    first = next(iter(sums.values()))["raw"]
    seen = [op for pair in sums.values() for times in pair.values() for op, ms in times.items() if ms >= LEAST]
    ops = sorted(dict.fromkeys(seen), key=lambda op: -first.get(op, 0.0))
    machine = record["machine"]
    where = f"{machine['cpu']}, {machine['cores']} cores, NumPy {machine['numpy']}, {record['date']}"
    title = f"{record['model']}: time by operator on fuse's NumPy runtime"
    subtitle = f"Milliseconds of one run, medians; measured on {where}"
    figure, found = _figure(title, subtitle, 0.5 * (len(ops) + 1) + 1.1, columns=len(sums))
    for axes, (threads, pair) in zip(found, sums.items(), strict=True):
        _draw_panel(axes, ops, pair)
        axes.set_title(f"{threads} thread{'s' * (threads != '1')}")
    labels = [f"{op} and what\nis fused into it" if op in ("Conv", "Gemm") else op for op in ops]
    found[0].set_yticks(range(len(ops) + 1), [*labels, "all"])
    found[0].invert_yaxis()
    handles, names = found[0].get_legend_handles_labels()
    figure.legend(handles, names, ncols=2, frameon=False, loc="outside lower left", handlelength=1)
    return figure


def _sum_families(times: Mapping[str, float]) -> dict[str, float]:
    result: dict[str, float] = {}
    for op, ms in times.items():
        result[family(op)] = result.get(family(op), 0.0) + ms
    return result


def _draw_panel(axes: Axes, ops: Sequence[str], pair: Mapping[str, Mapping[str, float]]) -> None:
    most = max(sum(times.values()) for times in pair.values())
    for shift, which, label, colour in ((-0.2, "raw", "raw graph", ORANGE), (0.2, "optimised", "optimised", BLUE)):
        times = pair[which]
        rows = [*((times.get(op, 0.0), op in times) for op in ops), (sum(times.values()), True)]
        axes.barh(
            [place + shift for place in range(len(rows))],
            [ms for ms, _ in rows],
            height=0.36,
            color=colour,
            label=label,
        )
        for place, (ms, there) in enumerate(rows):
            text = f"{ms:.1f}" if ms >= LEAST else "0.0" if there else "gone"
            axes.text(ms + most / 60, place + shift, text, va="center", fontsize=9)
    axes.set_xlim(0, most * 1.15)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("ms")


# ---- live memory


def draw_memory(name: str, models: Mapping[str, Model]) -> Figure:
    """Bytes alive at each node, filled, under what they would come to if nothing were reused."""
    plans = {which: fuse.plan(model, sizes=_ones(model)) for which, model in models.items()}
    subtitle = "Bytes alive while each node runs, and what all would take without reuse; from fuse's memory plan"
    figure, found = _figure(f"{name}: memory of the activations", subtitle, 3.6, columns=len(plans))
    top = 1.12 * max(plan.without_reuse for plan in plans.values()) or 1.0
    for axes, (which, plan) in zip(found, plans.items(), strict=True):
        steps = len(plan.live)
        births: Counter[int] = Counter()
        for slot in plan.slots.values():
            births[slot.birth] += slot.bytes
        kept = list(itertools.accumulate(births[step] for step in range(steps)))
        axes.grid(axis="y", color=FAINT)
        axes.set_axisbelow(True)
        axes.stairs(plan.live, range(steps + 1), fill=True, color=ORANGE if which == "raw" else BLUE)
        axes.stairs(kept, range(steps + 1), color=DARK, linewidth=1.4, baseline=None)
        axes.axhline(plan.arena, color=INK, linewidth=1.2, linestyle=(0, (5, 3)))
        bound = "at its lower bound" if plan.arena == plan.bound else f"lower bound {show_bytes(plan.bound)}"
        crowded = plan.without_reuse - plan.arena < top / 6
        _say(axes, steps, plan.without_reuse, f"no reuse {show_bytes(plan.without_reuse)}")
        _say(axes, steps, plan.arena, f"arena {show_bytes(plan.arena)},\n{bound}", below=crowded)
        axes.set_title(f"{'raw graph' if which == 'raw' else which}, {steps} nodes")
        axes.set_xlim(0, steps)
        axes.set_xlabel("node, in order of execution")
    found[0].set_ylim(0, top)
    found[0].yaxis.set_major_formatter(lambda size, _: show_bytes(size))
    return figure


def _say(axes: Axes, x: float, y: float, text: str, below: bool = False) -> None:
    """Words at the right end of a line, above it or below; a white rim keeps them readable over what they cover."""
    from matplotlib.patheffects import withStroke

    words = axes.annotate(text, (x, y), (-2, -4 if below else 4), textcoords="offset points", ha="right", fontsize=9)
    words.set(va="top" if below else "bottom", path_effects=[withStroke(linewidth=3, foreground="white")])


def _ones(model: Model) -> dict[str, int]:
    """The symbolic dims of the inputs, all 1."""
    inputs = fuse.InferenceSession(model).get_inputs()
    return {dim: 1 for entry in inputs for dim in entry.shape if isinstance(dim, str)}


# ---- all of them


def _figure(title: str, subtitle: str, height: float, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """A figure of ``columns`` panels, ``height`` inches without its head: a bold line and a plain one below it."""
    from matplotlib.figure import Figure

    head = 0.65
    whole = height + head + 0.3
    figure = Figure(figsize=(9, whole), layout="constrained")
    figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - head / whole))
    figure.text(0.01, 1 - 0.12 / whole, title, weight="bold", fontsize=13, va="top")
    figure.text(0.01, 1 - 0.38 / whole, subtitle, va="top", fontsize=9.5, color=DARK)
    return figure, figure.subplots(1, columns, sharey=True, squeeze=False)[0]


def _on(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else INK


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw; 0, or 2 where matplotlib or the model is missing."""
    parser = argparse.ArgumentParser(description="Draw nodes per pass, time by operator and live memory.")
    parser.add_argument("--out", type=Path, default=HOME, metavar="DIR", help="where to (default: beside this script)")
    parser.add_argument("--model", default="resnet18", help="an embedded model or a path (default: resnet18)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="times (default: benchmarks/results/MODEL.json)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("matplotlib") is None:
        print('error: matplotlib is not installed\nhint: pip install "fuse-onnx[plot]"', file=sys.stderr)
        return 2
    try:
        for path in draw(options.model, options.out, options.json):
            print(f"wrote {path}")
    except FuseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def draw(name: str, out: Path, times: Path | None = None) -> list[Path]:
    """Draw the three pictures of the model ``name`` into the directory ``out``; returns the files."""
    from matplotlib import rc_context

    raw = fuse.load(name)
    label = Path(name).stem
    models = {"raw": raw, "optimised": fuse.optimize(raw, verify=False).model}
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    with rc_context(STYLE):
        figures = {
            "nodes": draw_nodes(label, *pass_rows(raw)),
            "operators": draw_operators(read_times(name, times)),
            "memory": draw_memory(label, models),
        }
        for which, figure in figures.items():
            for suffix, facts in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
                paths.append(out / f"{which}.{suffix}")
                figure.savefig(paths[-1], dpi=110, metadata=facts)
    return paths


if __name__ == "__main__":
    raise SystemExit(main())
