"""``fuse bench``: how long a run takes, raw and optimised, on fuse and on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from fuse.cli.ending import OK, about, complain
from fuse.cli.options import (
    data_dir_option,
    dim_option,
    example,
    model_argument,
    seed_option,
    threads_option,
    with_screen,
)
from fuse.cli.screen import Screen
from fuse.errors import InputError

if TYPE_CHECKING:
    from fuse.ir.model import Model
    from fuse.report.measure import Runner


@click.command(
    "bench", epilog=example("fuse bench resnet18 --threads 2", "fuse bench model.onnx --dim batch=8 --json -")
)
@model_argument
@click.option(
    "--runs", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Measured runs of each."
)
@click.option("--warmup", type=click.IntRange(0), default=3, show_default=True, metavar="N", help="Runs before them.")
@threads_option
@dim_option
@seed_option
@click.option("--optimize/--no-optimize", default=True, help="Measure the optimised graph too.  [default: --optimize]")
@click.option(
    "--onnxruntime/--no-onnxruntime", default=None, help="Measure onnxruntime too.  [default: where it is installed]"
)
@data_dir_option
@with_screen
def command(
    screen: Screen,
    model: str,
    runs: int,
    warmup: int,
    threads: int | None,
    sizes: dict[str, int],
    seed: int,
    optimize: bool,
    onnxruntime: bool | None,
    data_dir: str | None,
) -> int:
    """Measure MODEL: the raw and the optimised graph on fuse, and the raw one on onnxruntime.

    The runners take turns, so that a busy machine disturbs all alike; medians are what to look at.
    """
    screen.protect(model)

    from fuse import api
    from fuse.cli.feeds import complete_feeds
    from fuse.report.measure import PAUSE, fuse_runner, interleave, operator_times
    from fuse.runtime.threads import blas_thread_count, blas_threads

    with screen.progress("bench") as progress, blas_threads(threads):
        progress("load")
        raw = api.load(model, data_dir=data_dir)
        with about(raw.source):
            feeds = complete_feeds(raw, {}, sizes, seed)
            graphs = {"raw": raw}
            if optimize:
                graphs["optimised"] = api.optimize(raw, verify=False, progress=progress).model
            runners = {f"fuse, {name}": fuse_runner(graph, feeds) for name, graph in graphs.items()}
            used = blas_thread_count()
            reference = _onnxruntime(raw, feeds, used, onnxruntime)
            if reference is not None:
                runners["onnxruntime"] = reference
            progress(f"{runs} runs of each")
            times = interleave(runners, runs, warmup, PAUSE)
            progress("operators")
            operators = {name: operator_times(graph, feeds, min(runs, 10)) for name, graph in graphs.items()}
    screen.report(
        {
            "source": raw.source,
            "threads": used,
            "sizes": sizes,
            "milliseconds": times,
            "median_milliseconds": {name: median(row) for name, row in times.items()},
            "operator_milliseconds": operators,
        }
    )
    _show(screen, raw, times, operators, used, runs)
    return OK


def _onnxruntime(raw: Model, feeds: Mapping[str, Any], threads: int, wanted: bool | None) -> Runner | None:
    """The second opinion: None where it is not wanted; where it was not asked for, its refusal is a warning."""
    from fuse.report.measure import has_onnxruntime, onnxruntime_runner

    if wanted is False or (wanted is None and not has_onnxruntime()):
        return None
    try:
        return onnxruntime_runner(raw, feeds, threads)
    except InputError as error:
        if wanted:
            raise
        complain("warning", error.what, where=error.where)
        return None


def _show(
    screen: Screen,
    raw: Model,
    times: Mapping[str, list[float]],
    operators: Mapping[str, Mapping[str, float]],
    threads: int,
    runs: int,
) -> None:
    if screen.silent:
        return
    from fuse.report import terminal

    reference = "onnxruntime" if "onnxruntime" in times else None
    screen.show(
        f"{terminal.plain(raw.source)}: {runs} runs in turns, {threads} threads",
        terminal.times_table(times, reference),
        terminal.operator_times_table(operators),
    )
