"""``fuse show``: what is in a model, in short or in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fuse.cli.ending import OK
from fuse.cli.options import data_dir_option, example, with_screen
from fuse.cli.screen import Screen

if TYPE_CHECKING:
    from fuse.ir.model import Model


@click.command("show", epilog=example("fuse show", "fuse show resnet18", "fuse show model.onnx --text | head -40"))
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--text", is_flag=True, help="Print the whole graph as text, with hashes in the place of large constants."
)
@data_dir_option
@with_screen
def command(screen: Screen, model: str | None, text: bool, data_dir: str | None) -> int:
    """Show what is in MODEL: versions, inputs and outputs, operators, weights.

    Without MODEL, list the embedded models.
    """
    screen.protect(model)

    from fuse import api
    from fuse.report import terminal
    from fuse.report.summary import summary

    if model is None:
        if text:
            raise click.UsageError("--text needs a MODEL")
        from fuse.zoo import names

        found = {name: summary(api.load(name)) for name in names()}
        screen.report({"models": found})
        screen.show(terminal.zoo_table(found))
        return OK
    loaded = api.load(model, data_dir=data_dir)
    facts = summary(loaded)
    if text:
        _text(screen, loaded, facts)
        return OK
    screen.report(facts)
    screen.show(
        terminal.heading_table(facts),
        terminal.interface_table(facts),
        terminal.counts_table(facts["operators"]),
    )
    return OK


def _text(screen: Screen, model: Model, facts: dict[str, Any]) -> None:
    from fuse.ir.text import text

    spelled = text(model)
    screen.report({**facts, "text": spelled})
    if not screen.silent:
        click.echo(spelled.rstrip("\n"))
