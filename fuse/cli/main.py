"""The command line: ``fuse COMMAND``, one module a command, loaded when it is asked for.

At the top of these modules nothing is imported but click and ``fuse.errors``: help and completion are instant, and the
libraries come in when a command's work begins.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

import fuse
from fuse.cli.ending import Settings, guarded

#: The commands in the order in which one meets them.
COMMANDS = ("optimize", "verify", "run", "bench", "plan", "show", "strip", "materialize", "export")


class Commands(click.Group):
    """A group whose commands are the modules of ``fuse.cli`` named in ``COMMANDS``, each with a ``command`` in it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"fuse.cli.{cmd_name}").command
        return command

    def main(self, args: Sequence[str] | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """Run, and end the process with one line on stderr where something went wrong, and the right exit code.

        click's own ``main`` would exit with 1 where a pipe breaks, which here means that the answers moved.
        """
        if os.environ.get("_FUSE_COMPLETE"):  # a shell asks what could come next on its command line
            return super().main(args, prog_name="fuse", complete_var="_FUSE_COMPLETE")
        settings = Settings()
        given = sys.argv[1:] if args is None else list(args)

        def run() -> Any:
            with self.make_context("fuse", given, obj=settings) as ctx:
                return self.invoke(ctx)

        sys.exit(guarded(run, settings))


EPILOG = """\b
Example:
  fuse optimize resnet18
  fuse optimize model.onnx -o small.onnx --target onnx

\b
Exit codes: 0 all is well, 1 the answers moved, 2 bad input or use,
3 a fault in fuse.
"""


@click.command(
    cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(fuse.__version__, message="fuse %(version)s")
def cli() -> None:
    """Make ONNX models smaller and faster, and prove that their answers did not move.

    A MODEL is the path of an .onnx file or the name of an embedded one (see `fuse show`); a path that exists wins.
    """


def main() -> None:
    """The entry point."""
    cli.main()
