"""The options that commands share, each declared once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from fuse.cli.ending import Settings
from fuse.cli.screen import Screen

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

model_argument = click.argument("model", metavar="MODEL")

data_dir_option = click.option(
    "--data-dir", metavar="DIR", help="Where the model's external data lies.  [default: beside the model]"
)

threads_option = click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Threads of the matrix products.  [default: NumPy's own]"
)

seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Seed of the generated inputs."
)

target_option = click.option(
    "--target",
    type=click.Choice(["portable", "onnx", "ort"]),
    default="portable",
    show_default=True,
    help="What fused operators become: model-local functions, which any runtime knows (portable); nothing, only "
    "standard operators are written (onnx); onnxruntime's own operators (ort).",
)

external_option = click.option(
    "--external-data/--no-external-data",
    default=None,
    help="Put the weights into a file beside the model, OUT.data.  [default: only where it would pass 2 GiB]",
)


def _sizes(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for text in given:
        name, _, size = text.rpartition("=")
        if not name or not size.isascii() or not size.isdigit() or len(size) > 18:
            raise click.BadParameter(f"{text!r} is not NAME=SIZE with a whole number as the size")
        if name in sizes:
            raise click.BadParameter(f"{name!r} is given twice")
        sizes[name] = int(size)
    return sizes


dim_option = click.option(
    "--dim",
    "sizes",
    multiple=True,
    callback=_sizes,
    metavar="NAME=SIZE",
    help="The size of a symbolic dim.  [repeatable]",
)


def with_screen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, --quiet and --debug, and hand them to the command as its ``screen``."""

    @click.option("--json", metavar="FILE", help="Write the results to FILE as JSON; - is stdout.")
    @click.option("-q", "--quiet", is_flag=True, help="Show nothing but warnings and errors.")
    @click.option(
        "--debug",
        is_flag=True,
        expose_value=False,
        callback=_debug,
        help="Show the traceback of an error (as FUSE_DEBUG=1).",
    )
    @functools.wraps(function)
    def command(*, json: str | None, quiet: bool, **options: Any) -> Any:
        context = click.get_current_context()
        context.ensure_object(Settings).command = context.command_path
        return function(screen=Screen(json, quiet), **options)

    return command


def _debug(ctx: click.Context, param: click.Parameter, given: bool) -> None:
    if given:
        ctx.ensure_object(Settings).debug = True


def example(*lines: str, codes: str = "") -> str:
    """The end of a command's help: lines to try, and its exit codes where they say something."""
    text = "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
    return f"{text}\n\n{codes}" if codes else text
