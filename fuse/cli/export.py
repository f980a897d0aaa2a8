"""``fuse export``: a model as PyTorch exports it, with torch's own initial weights."""

from __future__ import annotations

import click

from fuse.cli.ending import OK
from fuse.cli.files import checked_output
from fuse.cli.options import example, with_screen
from fuse.cli.screen import Screen


@click.command(
    "export", epilog=example("fuse export resnet18 -o resnet18.onnx", "fuse export mobilenet_v2 -o m.onnx --opset 17")
)
@click.argument("name", metavar="NAME")
@click.option("-o", "--output", metavar="OUT", required=True, help="Where to write.")
@click.option("--opset", type=click.IntRange(1), metavar="N", help="The operator set.  [default: the exporter's]")
@with_screen
def command(screen: Screen, name: str, output: str, opset: int | None) -> int:
    """Export NAME, `mlp` or one of torchvision's classifiers, with the exporter's clean-up off.

    This needs PyTorch and torchvision: pip install "fuse-onnx[export]".
    """
    out = checked_output(output)
    screen.protect(output=out)

    from fuse.report.sawtooth import show_bytes
    from fuse.report.terminal import plain
    from fuse.zoo.export import export

    with screen.progress("export") as progress:
        progress(name)
        export(name, out, opset=opset)
    size = out.stat().st_size
    screen.report({"name": name, "written": str(out), "file_bytes": size})
    screen.show(f"wrote {plain(out, 200)}, {show_bytes(size)}")
    return OK
