"""``fuse optimize``: the main job. Optimise, prove, and only then write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuse.cli.ending import MOVED, OK, about, complain
from fuse.cli.files import checked_output
from fuse.cli.options import (
    data_dir_option,
    example,
    external_option,
    model_argument,
    seed_option,
    target_option,
    threads_option,
    with_screen,
)
from fuse.cli.screen import Screen

if TYPE_CHECKING:
    from fuse.api import Result
    from fuse.ir.model import Model


def _names(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for text in given for name in text.split(",") if name.strip())


@click.command(
    "optimize",
    epilog=example(
        "fuse optimize resnet18",
        "fuse optimize model.onnx -o small.onnx --target onnx --explain",
        "fuse optimize model.onnx -q --json report.json",
        codes="Exit code 1: the answers moved, and nothing was written.",
    ),
)
@model_argument
@click.option(
    "-o", "--output", metavar="OUT", help="Where to write.  [default: NAME.opt.onnx in the current directory]"
)
@target_option
@click.option("--verify/--no-verify", default=True, help="Prove that the answers did not move.  [default: --verify]")
@click.option("--passes", multiple=True, callback=_names, metavar="A,B", help="Run these passes alone.")
@click.option("--skip", multiple=True, callback=_names, metavar="A,B", help="Leave these passes out.")
@threads_option
@seed_option
@external_option
@data_dir_option
@click.option("--explain", is_flag=True, help="List where a rule's pattern was found and left alone, and why.")
@with_screen
def command(
    screen: Screen,
    model: str,
    output: str | None,
    target: str,
    verify: bool,
    passes: tuple[str, ...],
    skip: tuple[str, ...],
    threads: int | None,
    seed: int,
    external_data: bool | None,
    data_dir: str | None,
    explain: bool,
) -> int:
    """Optimise MODEL and write it.

    Before anything is written, the raw and the optimised model are run on the same inputs and compared; where the
    answers moved, nothing is written.  Without -o the result goes to NAME.opt.onnx in the current directory, and MODEL
    itself is only replaced where -o names it.
    """
    out = checked_output(output or f"{Path(model).stem}.opt.onnx", *(() if output else (model,)))
    screen.protect(model, output=out)

    from fuse import api

    with screen.progress("optimize") as progress:
        progress("load")
        raw = api.load(model, data_dir=data_dir)
        with about(raw.source):
            result = api.optimize(
                raw,
                target=target,
                verify=verify,
                passes=passes or None,
                skip=skip,
                threads=threads,
                seed=seed,
                progress=progress,
            )
        verdict = result.report.verdict
        moved = verdict is not None and verdict.status == "moved"
        if not moved:
            progress("write")
            api.save(result.model, out, external_data=external_data)
    screen.report({"source": raw.source, "written": None if moved else str(out), **result.report.to_dict()})
    if verdict is not None and verdict.status == "unproven":
        complain("warning", verdict.line())
    _show(screen, raw, result, None if moved else out, explain)
    if moved:
        hint = "try --skip with the passes that changed most, and please report it"
        complain("error", "the answers moved: nothing was written", where=raw.source, hint=hint)
    return MOVED if moved else OK


def _show(screen: Screen, raw: Model, result: Result, out: Path | None, explain: bool) -> None:
    if screen.silent:
        return
    from fuse.report import terminal

    report = result.report
    parts: list[object] = [
        terminal.summary_line(report, raw.source),
        terminal.passes_table(report.journal),
        terminal.operators_table(report.operators_before, report.operators_after),
    ]
    if explain:
        refusals = list(report.journal.refusals.values())
        parts.append(terminal.refusals_table(refusals) if refusals else "no rule found its pattern and left it alone")
    verdict = "not verified" if report.verdict is None else terminal.verdict_line(report.verdict)
    parts.append("\n".join([verdict, "nothing was written" if out is None else f"wrote {terminal.plain(out, 200)}"]))
    screen.show(*parts)
