"""Calling the command line in a test, and the small models that it is called on."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from click.testing import CliRunner
from onnx import TensorProto

from fuse.cli.main import cli
from tests.models import model, node

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return strict(self.out)


def strict(text: str) -> Any:
    """The JSON in ``text``, which must have no NaN or Infinity in it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def call(*args: str | os.PathLike[str]) -> Outcome:
    """``fuse args`` in this process."""
    split = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**split).invoke(cli, [str(arg) for arg in args])
    return Outcome(result.exit_code, result.stdout, result.stderr)


def ok(*args: str | os.PathLike[str]) -> str:
    """stdout of ``fuse args``, which must end well and say nothing on stderr."""
    outcome = call(*args)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return outcome.out


def start(*args: str, code: str = "", cwd: Path | None = None, env: dict[str, str] | None = None, **pipes: Any) -> Any:
    """``fuse args`` as a process of its own; ``code`` is run in it first."""
    begin = f"import sys; sys.argv[1:] = {list(args)!r}\n{code}\nfrom fuse.cli.main import main; main()"
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
    return subprocess.Popen([sys.executable, "-c", begin], cwd=cwd, env=surroundings, **kept)


def wait(process: Any) -> Outcome:
    """The outcome of a started process; its stdout and stderr as UTF-8."""
    out, err = process.communicate(timeout=120)
    return Outcome(process.returncode, (out or b"").decode(), (err or b"").decode())


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, one typed line that says where and what, one that says what to do, and nothing else."""
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert len(lines) == 2, outcome.err
    assert lines[0].startswith("error: ") and lines[0].count(": ") >= 2
    assert lines[1].startswith("hint: ") and len(lines[1]) > len("hint: ")
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err, (word, outcome.err)


# ---- models


def chain(*, name: str = "y", size: Any = 4) -> onnx.ModelProto:
    """y = relu(identity(x) @ w + b): one node to eliminate, two to fuse."""
    rng = np.random.default_rng(0)
    return model(
        [
            node("Identity", ["x"], ["i"]),
            node("MatMul", ["i", "w"], ["m"]),
            node("Add", ["m", "b"], ["s"]),
            node("Relu", ["s"], [name]),
        ],
        {"x": ["n", size]},
        {name: ["n", 3]},
        {
            "w": rng.standard_normal((4, 3)).astype(np.float32),
            "b": rng.standard_normal(3).astype(np.float32),
        },
    )


def wide() -> onnx.ModelProto:
    """y = relu(x @ w) with 16 kB of weights."""
    w = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    return model(
        [node("MatMul", ["x", "w"], ["m"]), node("Relu", ["m"], ["y"])], {"x": [2, 64]}, {"y": [2, 64]}, {"w": w}
    )


def pair(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """total = a + b over one symbolic dim."""
    return model([node("Add", ["a", "b"], ["total"])], {"a": ["n"], "b": ["n"]}, {"total": ["n"]}, dtype=dtype)


def write(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path
