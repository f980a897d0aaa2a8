"""The screen: where a command's results go.

Tables and charts go to stdout, progress and complaints to stderr, the machine's report to a file.  A terminal gets
colour, lines and a spinner; a pipe gets plain columns that awk can read.  Nothing from a model is taken for markup.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fuse.cli.files import checked_output, write_whole
from fuse.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


class Screen:
    """Output as the user wants it: ``quiet`` shows no results, ``json`` names the file of the machine's report.

    With ``json`` "-" the report is all that stdout gets.
    """

    def __init__(self, json: str | None = None, quiet: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.silent = quiet or json == "-"
        self._console: Console | None = None

    def protect(self, *inputs: str | os.PathLike[str] | None, output: str | os.PathLike[str] | None = None) -> None:
        """Refuse, before any work, a report that cannot be written or would take the place of another file."""
        if self.json is None or self.json == "-":
            return
        checked_output(self.json, *inputs)
        if output is not None and os.path.realpath(output) == os.path.realpath(self.json):
            raise InputError("is the output's path too", where=self.json, hint="give the report a path of its own")

    @property
    def console(self) -> Console:
        """The console of stdout."""
        if self._console is None:
            self._console = _console(sys.stdout)
        return self._console

    @property
    def width(self) -> int:
        """Columns to draw in: the terminal's, or the customary 80 in a pipe."""
        return self.console.width if self.console.is_terminal else 80

    @property
    def unicode(self) -> bool:
        """Whether stdout can show characters beyond ASCII."""
        return (getattr(sys.stdout, "encoding", None) or "ascii").lower().startswith("utf")

    def show(self, *parts: Any) -> None:
        """Print tables, charts and lines, a blank line between them."""
        if self.silent:
            return
        for number, part in enumerate(parts):
            if number:
                self.console.print()
            self.console.print(part, soft_wrap=isinstance(part, str) or not self.console.is_terminal)

    def report(self, data: Mapping[str, Any]) -> None:
        """Write the machine's report where one is wanted."""
        if self.json is None:
            return
        from fuse.report.machine import strict_json

        text = strict_json(data)
        if self.json == "-":
            sys.stdout.write(text)
        else:
            write_whole(self.json, lambda file: file.write(text.encode("ascii")))

    @contextlib.contextmanager
    def progress(self, what: str) -> Iterator[Callable[[str], None]]:
        """A spinner on a terminal's stderr while the block runs; the function given shows what is done at present."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda text: None
            return
        from rich.text import Text  # a bare string would be taken for markup

        from fuse.report.terminal import plain

        with _console(sys.stderr).status(Text(what)) as status:
            yield lambda text: status.update(Text(f"{what}: {plain(text)}"))


def _console(stream: Any) -> Console:
    from rich.console import Console

    return Console(file=stream, markup=False, highlight=False, emoji=False)
