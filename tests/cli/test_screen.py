from __future__ import annotations

import io
import os
import stat
import sys

import pytest

from fuse.cli.files import write_whole
from fuse.cli.screen import Screen
from fuse.errors import InputError
from fuse.report.terminal import Columns


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch) -> Terminal:
    """A terminal in the place of stdout and stderr.  No fixture: pytest sets both anew when the test begins."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def test_progress_on_a_terminal(monkeypatch) -> None:
    screen = terminal(monkeypatch)

    def interrupted() -> None:
        with Screen().progress("optimize") as progress:
            progress("[red]pass[/red]\x1b[2J")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = screen.getvalue()
    assert "optimize: [red]pass[/red]\\x1b[2J" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l"), "the cursor is hidden no more"


def test_no_progress_where_quiet_or_piped(monkeypatch) -> None:
    screen = terminal(monkeypatch)
    with Screen(quiet=True).progress("optimize") as progress:
        progress("identity")
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    with Screen().progress("optimize") as progress:
        progress("identity")
    assert (screen.getvalue(), piped.getvalue()) == ("", "")


def test_a_terminal_gets_colour_and_a_pipe_does_not(monkeypatch) -> None:
    screen = terminal(monkeypatch)
    table = Columns(("name", "text"), [("[red]", "text")])
    Screen().show(table)
    assert "\x1b[1m" in screen.getvalue() and "[red]" in screen.getvalue()
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stdout", piped)
    Screen().show(table, "line\nline", table)
    assert piped.getvalue() == "name   text\n[red]  text\n\nline\nline\n\nname   text\n[red]  text\n"


def test_a_report_on_stdout_is_all_there_is(capsys) -> None:
    screen = Screen(json="-")
    screen.report({"a": 1})
    screen.show("table")
    assert capsys.readouterr().out == '{\n  "a": 1\n}\n'


def test_a_report_beside_the_tables(tmp_path, capsys) -> None:
    screen = Screen(json=str(tmp_path / "r.json"))
    screen.report({"a": float("nan")})
    screen.show("table")
    assert capsys.readouterr().out == "table\n"
    assert (tmp_path / "r.json").read_text() == '{\n  "a": "NaN"\n}\n'


# ---- files


def test_a_file_is_written_whole_or_not_at_all(tmp_path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"before")
    os.chmod(target, 0o640)

    def fail(file) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(target, fail)
    assert target.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1
    write_whole(target, lambda file: file.write(b"after"))
    assert target.read_bytes() == b"after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/out")
    write_whole(tmp_path / "link", lambda file: file.write(b"x"))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "out").read_bytes() == b"x"


def test_what_the_system_refuses_names_the_file(tmp_path) -> None:
    def full(file) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match="No space left") as caught:
        write_whole(tmp_path / "out", full)
    assert caught.value.where == str(tmp_path / "out")
    assert not list(tmp_path.iterdir())
