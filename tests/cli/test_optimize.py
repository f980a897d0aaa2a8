from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import fuse
from fuse import api
from fuse.proof.verdict import Verdict
from fuse.report.terminal import plain
from tests.cli.calls import ROOT, call, chain, ok, strict, wide, write


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(chain(), tmp_path / "m.onnx")
    return tmp_path


def verdict(monkeypatch, status: str) -> None:
    """Let every verification end with ``status``."""
    monkeypatch.setattr(
        api, "verify_models", lambda *args, **kwargs: Verdict(status, reasons=("output 'y' is a test",))
    )


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_the_main_job(here: Path) -> None:
    text = ok("optimize", "m.onnx")
    assert "m.onnx: 4 -> " in text
    assert "answers unmoved" in text
    assert "wrote m.opt.onnx" in text
    assert "Identity" not in operators(here / "m.opt.onnx")
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "m.opt.onnx"]


def test_the_result_gives_the_same_answers_and_can_be_optimised_again(here: Path) -> None:
    ok("optimize", "m.onnx", "-o", "a.onnx")
    ok("optimize", "a.onnx", "-o", "b.onnx")
    assert (here / "a.onnx").read_bytes() == (here / "b.onnx").read_bytes()
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    raw, small = (fuse.InferenceSession(here / name).run(None, {"x": x})[0] for name in ("m.onnx", "a.onnx"))
    np.testing.assert_allclose(small, raw, rtol=0, atol=1e-6)


def test_an_embedded_model_goes_to_the_current_directory(here: Path) -> None:
    ok("optimize", "mlp", "--no-verify")
    assert (here / "mlp.opt.onnx").exists()


def test_a_path_wins_over_an_embedded_model(here: Path) -> None:
    write(chain(name="own"), here / "mlp")
    ok("optimize", "mlp", "-q")
    assert onnx.load(here / "mlp.opt.onnx").graph.output[0].name == "own"


def test_a_model_elsewhere_is_written_here(here: Path) -> None:
    (here / "there").mkdir()
    write(chain(), here / "there" / "n.onnx")
    ok("optimize", "there/n.onnx", "-q")
    assert (here / "n.opt.onnx").exists()
    assert [p.name for p in (here / "there").iterdir()] == ["n.onnx"]


def test_the_input_is_replaced_where_it_is_named(here: Path) -> None:
    ok("optimize", "m.onnx", "-o", "m.onnx", "-q")
    assert "Identity" not in operators(here / "m.onnx")
    assert [p.name for p in here.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("target", "domains"), [("portable", {"", "fuse"}), ("onnx", {""}), ("ort", {"", "com.microsoft"})]
)
def test_targets(target: str, domains: set[str], here: Path) -> None:
    ok("optimize", "m.onnx", "--target", target)
    assert {node.domain for node in onnx.load(here / "m.opt.onnx").graph.node} <= domains


def test_answers_that_moved_are_not_written(here: Path, monkeypatch) -> None:
    verdict(monkeypatch, "moved")
    outcome = call("optimize", "m.onnx", "--json", "report.json")
    assert outcome.code == 1
    assert outcome.err.startswith("error: m.onnx: the answers moved: nothing was written\nhint: ")
    assert "output 'y' is a test" in outcome.out and "wrote" not in outcome.out
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "report.json"]
    report = strict((here / "report.json").read_text())
    assert (report["written"], report["verification"]["status"]) == (None, "moved")


def test_what_cannot_be_proved_is_written_with_a_warning(here: Path, monkeypatch) -> None:
    verdict(monkeypatch, "unproven")
    outcome = call("optimize", "m.onnx", "-q")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "warning: unproven: output 'y' is a test\n"
    assert (here / "m.opt.onnx").exists()


def test_no_verify(here: Path, monkeypatch) -> None:
    verdict(monkeypatch, "moved")
    assert "not verified" in ok("optimize", "m.onnx", "--no-verify")
    assert (here / "m.opt.onnx").exists()


def test_passes_by_name(here: Path) -> None:
    ok("optimize", "m.onnx", "--passes", "identity, dead")
    assert operators(here / "m.opt.onnx") == ["MatMul", "Add", "Relu"]
    ok("optimize", "m.onnx", "--skip", "identity,activation", "--skip", "dead")
    assert operators(here / "m.opt.onnx") == ["Identity", "MatMul", "Add", "Relu"]
    outcome = call("optimize", "m.onnx", "--skip", "magic")
    assert outcome.code == 2 and "'magic'" in outcome.err and "identity" in outcome.err


def test_the_report(here: Path) -> None:
    report = strict(ok("optimize", "m.onnx", "--json", "-"))
    assert report["written"] == "m.opt.onnx"
    assert report["nodes_before"] == 4
    assert report["operators_before"] == {"Add": 1, "Identity": 1, "MatMul": 1, "Relu": 1}
    assert report["removed_operators_by_pass"]["identity"] == {"Identity": 1}
    assert report["verification"]["status"] == "ok"
    ok("optimize", "m.onnx", "-q", "--json", "report.json")
    kept = json.loads((here / "report.json").read_text())
    assert kept["nodes_after"] == report["nodes_after"]


def test_external_data(here: Path) -> None:
    write(wide(), here / "m.onnx")
    ok("optimize", "m.onnx", "--external-data", "-o", "out.onnx")
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "out.onnx", "out.onnx.data"]
    assert (here / "out.onnx").stat().st_size < 2000
    assert (here / "out.onnx.data").stat().st_size == 64 * 64 * 4
    ok("verify", "m.onnx", "out.onnx", "-q")


def test_explain_says_why_a_rule_left_a_node_alone(here: Path) -> None:
    proto = chain()
    proto.graph.output.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, ["n", 3]))
    write(proto, here / "m.onnx")
    report = strict(ok("optimize", "m.onnx", "--json", "-"))
    assert report["refusals"]
    text = " ".join(ok("optimize", "m.onnx", "--explain").split())
    for refusal in report["refusals"]:
        assert plain(refusal["node"]["name"]) in text and " ".join(plain(refusal["reason"], 200).split()) in text
    assert "left alone because" not in ok("optimize", "m.onnx")


def test_nothing_but_plain_columns_in_a_pipe(here: Path) -> None:
    text = ok("optimize", "m.onnx")
    assert text.isascii() and "\x1b" not in text
    row = next(line for line in text.splitlines() if line.startswith("identity "))
    assert row.split()[1:4] == ["4", "->", "3"]


def test_the_same_bytes_whatever_the_hash_seed(here: Path) -> None:
    for seed in "12":
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        args = ["optimize", "m.onnx", "-q", "--no-verify", "-o", f"{seed}.onnx"]
        subprocess.run([sys.executable, "-m", "fuse", *args], env=env, check=True, cwd=here)
    assert (here / "1.onnx").read_bytes() == (here / "2.onnx").read_bytes()
