"""``fuse plan``: how much memory the activations take, and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from fuse.cli.ending import OK, about
from fuse.cli.options import data_dir_option, dim_option, example, model_argument, seed_option, with_screen
from fuse.cli.screen import Screen

if TYPE_CHECKING:
    from fuse.ir.model import Model
    from fuse.planner import MemoryPlan


@click.command("plan", epilog=example("fuse plan resnet18 --optimized", "fuse plan model.onnx --dim batch=8 --measure"))
@model_argument
@dim_option
@click.option("--optimized/--raw", default=False, help="Plan the optimised graph, or MODEL as it is.  [default: --raw]")
@click.option("--measure", is_flag=True, help="Run it once too, and put the peak that was measured beside the plan.")
@seed_option
@data_dir_option
@with_screen
def command(
    screen: Screen, model: str, sizes: dict[str, int], optimized: bool, measure: bool, seed: int, data_dir: str | None
) -> int:
    """Plan the memory of MODEL's activations and draw what is alive at each step.

    The figures leave out the weights and the inputs.  A value whose size is unknown is listed and not planned: --dim
    gives a symbolic dim its size.
    """
    screen.protect(model)

    from fuse import api
    from fuse.cli.feeds import check_sizes
    from fuse.planner import plan_memory

    with screen.progress("plan") as progress:
        progress("load")
        loaded, measured = api.load(model, data_dir=data_dir), None
        with about(loaded.source):
            if optimized:
                loaded = api.optimize(loaded, verify=False, progress=progress).model
            progress("place the values")
            plan = plan_memory(loaded, sizes)
            check_sizes(loaded, sizes)
            if measure:
                progress("run")
                measured = _measured(loaded, sizes, seed)
    from fuse.report.terminal import overhead, shares

    screen.report(
        {
            "source": loaded.source,
            "optimized": optimized,
            "sizes": sizes,
            "measured_peak": measured,
            "overhead_percent": overhead(plan),
            "shares": shares(plan),
            **plan.to_dict(),
        }
    )
    _show(screen, plan, measured)
    return OK


def _measured(model: Model, sizes: Mapping[str, int], seed: int) -> int:
    from fuse.cli.feeds import complete_feeds
    from fuse.report.measure import peak_memory

    return peak_memory(model, complete_feeds(model, {}, sizes, seed))


def _show(screen: Screen, plan: MemoryPlan, measured: int | None) -> None:
    if screen.silent:
        return
    from fuse.report import terminal

    screen.show(
        terminal.plan_table(plan, measured),
        terminal.plan_notes(plan),
        terminal.peak_table(plan),
        terminal.chart(plan, screen.width, screen.unicode),
    )
