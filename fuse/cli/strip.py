"""``fuse strip``: a model without its weights, small enough for a bug report."""

from __future__ import annotations

import click

from fuse.cli.ending import OK
from fuse.cli.files import checked_output
from fuse.cli.options import data_dir_option, example, with_screen
from fuse.cli.screen import Screen


@click.command(
    "strip", epilog=example("fuse strip big.onnx -o small.onnx", "fuse materialize small.onnx -o again.onnx")
)
@click.argument("model", metavar="BIG")
@click.option("-o", "--output", metavar="SMALL", required=True, help="Where to write.")
@click.option(
    "--keep-below",
    type=click.IntRange(0),
    default=1024,
    show_default=True,
    metavar="BYTES",
    help="Keep constants smaller than this as they are: shapes, axes, scalars.",
)
@click.option("--trained", is_flag=True, help="Give parameters a trained network's statistics instead of their own.")
@click.option("--notes/--no-notes", default=True, help="Keep documentation strings and metadata.  [default: --notes]")
@data_dir_option
@with_screen
def command(
    screen: Screen, model: str, output: str, keep_below: int, trained: bool, notes: bool, data_dir: str | None
) -> int:
    """Replace the weights of BIG by short recipes and write SMALL.

    Shapes, names and the graph stay; each large constant becomes a line that says how to make another of the same
    dtype, shape and statistics.  Every command of fuse reads SMALL as it is, `fuse materialize` makes an ordinary file
    of it.  --no-notes also removes what exporters write about the machine they ran on.
    """
    out = checked_output(output, model)
    screen.protect(model, output=out)

    from fuse import api
    from fuse.model.strip import forget, strip
    from fuse.report.sawtooth import show_bytes

    with screen.progress("strip") as progress:
        progress("load")
        loaded = api.load(model, data_dir=data_dir)
        removed = 0 if notes else forget(loaded)
        progress("describe the weights")
        recipes = strip(loaded, keep_below=keep_below, trained=trained)
        progress("write")
        api.save(loaded, out, recipes=recipes)
    before, after = loaded.weight_bytes(), out.stat().st_size
    screen.report(
        {
            "source": loaded.source,
            "written": str(out),
            "recipes": len(recipes),
            "notes_removed": removed,
            "weight_bytes": before,
            "file_bytes": after,
        }
    )
    screen.show(
        f"{len(recipes)} constants became recipes: {show_bytes(before)} of weights, a file of {show_bytes(after)}"
    )
    return OK
