from __future__ import annotations

import subprocess
import sys

import pytest

import fuse
from fuse.cli.main import COMMANDS
from tests.cli.calls import ROOT, assert_refused, call, ok

HEAVY = ("onnx", "numpy", "rich", "ml_dtypes", "google", "threadpoolctl", "onnxruntime", "torch")


def imported(code: str) -> set[str]:
    """The top-level modules that a fresh Python has after running ``code``."""
    code = f"{code}\nimport sys; print(*sys.modules)"
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in run.stdout.split()}


HELP = """
import contextlib, io
from fuse.cli.main import cli
with contextlib.redirect_stdout(io.StringIO()) as out:
    try:
        cli.main({args!r})
    except SystemExit as end:
        assert end.code == 0
assert "Usage" in out.getvalue()
"""


def test_importing_fuse_imports_nothing_heavy() -> None:
    assert not imported("import fuse").intersection([*HEAVY, "click"])


@pytest.mark.parametrize("args", [["--help"], ["optimize", "--help"], ["plan", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    assert not imported(HELP.format(args=args)).intersection(HEAVY)


def test_a_command_imports_no_other_command() -> None:
    code = (
        HELP.format(args=["show", "--help"])
        + "\nimport sys; sys.modules = {m: 0 for m in sys.modules if 'fuse.cli.' in m}"
    )
    found = subprocess.run(
        [sys.executable, "-c", code + "\nprint(*sys.modules)"],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    ).stdout.split()
    assert "fuse.cli.show" in found
    assert not {f"fuse.cli.{name}" for name in COMMANDS if name != "show"}.intersection(found)


def test_the_group_lists_every_command_with_a_sentence() -> None:
    text = ok("--help")
    for name in COMMANDS:
        (line,) = [line for line in text.splitlines() if line.split()[:1] == [name]]
        assert len(line.split()) > 3


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example(name: str) -> None:
    text = ok(name, "--help")
    assert f"fuse {name} " in text.partition("Example:")[2]
    assert "--json FILE" in text and "--quiet" in text


def test_the_version() -> None:
    assert ok("--version") == f"fuse {fuse.__version__}\n"


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["nothing"], "no such command"),
        (["optimize"], "missing argument"),
        (["optimize", "resnet18", "--fast"], "--fast"),
        (["optimize", "resnet18", "more"], "more"),
        (["optimize", "resnet18", "--target", "tpu"], "tpu"),
        (["optimize", "resnet18", "--threads", "0"], "--threads"),
        (["optimize", "resnet18", "--seed", "one"], "--seed"),
        (["plan", "resnet18", "--dim", "n"], "NAME=SIZE"),
        (["plan", "resnet18", "--dim", "n=-1"], "NAME=SIZE"),
        (["plan", "resnet18", "--dim", "n=1", "--dim", "n=2"], "twice"),
        (["strip", "resnet18"], "--output"),
        (["show", "--text"], "--text"),
    ],
)
def test_wrong_use_is_one_line(args: list[str], word: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(call(*args), word, "--help")
    assert not list(tmp_path.iterdir())


def test_text_from_the_command_line_cannot_move_the_cursor() -> None:
    outcome = call("optimize", "resnet18", "--no\x1b[2J\nerror: forged")
    assert_refused(outcome)
    assert "\x1b" not in outcome.err


def test_fuse_is_a_module_to_run() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "fuse", "--version"], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (run.returncode, run.stdout) == (0, f"fuse {fuse.__version__}\n")
