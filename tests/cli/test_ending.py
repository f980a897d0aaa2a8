from __future__ import annotations

import signal
import warnings
from pathlib import Path

import pytest

from fuse.cli.ending import Settings, guarded, printable
from fuse.errors import InputError, LawError, LimitError, ModelError, RunError, ShapeError, UnsupportedError
from tests.cli.calls import chain, start, wait, write


def raiser(error: BaseException):
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("result", "code"),
    [(None, 0), (0, 0), (1, 1)],
)
def test_a_result_is_the_exit_code(result, code, capsys) -> None:
    assert guarded(lambda: result, Settings()) == code
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", [InputError, ModelError, ShapeError, UnsupportedError, RunError, LimitError])
def test_each_typed_error_is_exit_code_2_with_a_hint(kind, capsys) -> None:
    assert guarded(raiser(kind("is wrong", where="a.onnx")), Settings()) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: a.onnx: is wrong"
    assert second.startswith("hint: ")


def test_an_own_hint_is_shown(capsys) -> None:
    guarded(raiser(InputError("is wrong", where="a.onnx", hint="do that")), Settings())
    assert capsys.readouterr().err == "error: a.onnx: is wrong\nhint: do that\n"


def test_what_the_system_refuses_is_no_fault_of_fuse(capsys) -> None:
    assert guarded(raiser(OSError(28, "No space left on device", "out")), Settings()) == 2
    assert capsys.readouterr().err.startswith("error: out: No space left on device\nhint: ")
    assert guarded(raiser(MemoryError()), Settings()) == 2


@pytest.mark.parametrize("error", [ValueError("off by one"), LawError("a node reads nothing")])
def test_a_fault_of_fuse_asks_for_a_report(error, capsys, monkeypatch) -> None:
    monkeypatch.delenv("FUSE_DEBUG", raising=False)
    assert guarded(raiser(error), Settings()) == 3
    err = capsys.readouterr().err
    assert str(error) in err and "report" in err and "Traceback" not in err


def test_debug_shows_the_traceback(capsys, monkeypatch) -> None:
    monkeypatch.setenv("FUSE_DEBUG", "1")
    assert guarded(raiser(ValueError("off by one")), Settings()) == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141)])
def test_an_interruption_is_silent(error, code, capfd) -> None:
    assert guarded(raiser(error), Settings()) == code
    assert capfd.readouterr().err == ""


def test_warnings_for_users_are_one_line(capsys) -> None:
    def run() -> None:
        warnings.warn("nodes were\x1b out of order", UserWarning, stacklevel=1)

    assert guarded(run, Settings()) == 0
    assert capsys.readouterr().err == "warning: nodes were\\x1b out of order\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a b", "a b"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\nb", "a\\nb"),
        ("a\u202eb", "a\\u202eb"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_printable_clips() -> None:
    assert len(printable("x" * 10**6)) == 2000
    assert printable("a\nb", keep="\n") == "a\nb"


# ---- real processes

PAUSE = """
import os, time
def pause(handle):
    print("ready", flush=True)
    time.sleep(100)
os.fsync = pause
"""


#: The text of a model in pieces, so that the reader is gone before the last of them.
SLOW = """
import time
import click
def echo(text):
    print("first", flush=True)
    time.sleep(1)
    print(text)
click.echo = echo
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_file_behind(number, code, tmp_path) -> None:
    source = write(chain(), tmp_path / "m.onnx")
    (tmp_path / "m.opt.onnx").write_bytes(b"what was there before")
    process = start("optimize", str(source), "--no-verify", code=PAUSE, cwd=tmp_path)
    assert process.stdout.readline() == b"ready\n"
    assert len(list(tmp_path.iterdir())) == 3, "the temporary file is there"
    process.send_signal(number)
    outcome = wait(process)
    assert (outcome.code, outcome.err) == (code, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.opt.onnx"]
    assert (tmp_path / "m.opt.onnx").read_bytes() == b"what was there before"


def test_a_reader_that_goes_away_is_no_error(tmp_path) -> None:
    process = start("show", "mlp", "--text", cwd=tmp_path, code=SLOW)
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    outcome = wait(process)
    assert (outcome.code, outcome.err) == (141, "")


def test_a_full_disk_is_one_line(tmp_path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "wb") as full:
        outcome = wait(start("show", "mlp", cwd=tmp_path, stdout=full))
    assert outcome.code == 2
    assert outcome.err.startswith("error: ") and "space" in outcome.err and "Traceback" not in outcome.err
    assert len(outcome.err.splitlines()) == 2


def test_a_locale_without_unicode(tmp_path) -> None:
    env = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    outcome = wait(start("plan", "mlp", cwd=tmp_path, env=env))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.isascii() and "\\u" not in outcome.out
