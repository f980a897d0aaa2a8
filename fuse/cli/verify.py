"""``fuse verify``: have the answers moved?"""

from __future__ import annotations

import click

from fuse.cli.ending import MOVED, OK, about
from fuse.cli.options import example, seed_option, target_option, threads_option, with_screen
from fuse.cli.screen import Screen


@click.command(
    "verify",
    epilog=example(
        "fuse verify resnet18",
        "fuse verify model.onnx model.opt.onnx --inputs data.npz",
        codes="Exit code 1: the answers moved.",
    ),
)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--inputs",
    "archives",
    multiple=True,
    metavar="FILE",
    help="An .npz file with an array for each input, instead of made-up ones.  [repeatable]",
)
@seed_option
@target_option
@threads_option
@click.option("--data-dir", metavar="DIR", help="Where A's external data lies.  [default: beside A]")
@with_screen
def command(
    screen: Screen,
    a: str,
    b: str | None,
    archives: tuple[str, ...],
    seed: int,
    target: str,
    threads: int | None,
    data_dir: str | None,
) -> int:
    """Compare the answers of model B with those of model A.

    Without B, A is compared with its own optimised form for --target.  Both run on the same inputs on fuse's runtime,
    on onnxruntime (its optimisations off) where that is installed, and in float64, which tells rounding from damage.
    """
    screen.protect(a, b, *archives)

    from fuse import api
    from fuse.cli.feeds import read_feeds
    from fuse.report import terminal

    with screen.progress("verify") as progress:
        progress("load")
        raw = api.load(a, data_dir=data_dir)
        other = None if b is None else api.load(b)
        feeds = [read_feeds(raw, (), archive) for archive in archives]
        with about(raw.source):
            verdict = api.verify(
                raw, other, inputs=feeds or None, seed=seed, target=target, threads=threads, progress=progress
            )
    screen.report({"a": raw.source, "b": None if other is None else other.source, **verdict.to_dict()})
    screen.show(*terminal.verdict_parts(verdict))
    return MOVED if verdict.status == "moved" else OK
