"""``fuse materialize``: an ordinary file of a stripped one."""

from __future__ import annotations

import click

from fuse.cli.ending import OK
from fuse.cli.files import checked_output
from fuse.cli.options import data_dir_option, example, external_option, with_screen
from fuse.cli.screen import Screen


@click.command("materialize", epilog=example("fuse materialize resnet18 -o resnet18.onnx"))
@click.argument("model", metavar="SMALL")
@click.option("-o", "--output", metavar="BIG", required=True, help="Where to write.")
@external_option
@data_dir_option
@with_screen
def command(screen: Screen, model: str, output: str, external_data: bool | None, data_dir: str | None) -> int:
    """Make the weights of SMALL from their recipes and write BIG.

    The weights are the same bits on every machine.  SMALL is what `fuse strip` wrote, or an embedded model.
    """
    out = checked_output(output)
    screen.protect(model, output=out)

    from fuse import api
    from fuse.report.sawtooth import show_bytes
    from fuse.report.terminal import plain

    with screen.progress("materialize") as progress:
        progress("load")
        loaded = api.load(model, data_dir=data_dir)
        progress("write")
        api.save(loaded, out, external_data=external_data)
    size = loaded.weight_bytes()
    screen.report({"source": loaded.source, "written": str(out), "weight_bytes": size})
    screen.show(f"wrote {plain(out, 200)} with {show_bytes(size)} of weights")
    return OK
