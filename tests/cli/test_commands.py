"""The commands that look at a model, and those that write another form of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import fuse
from fuse.zoo import names
from tests.cli.calls import call, chain, ok, strict, wide, write
from tests.models import model, node


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(chain(), tmp_path / "m.onnx")
    return tmp_path


# ---- show


def test_show_without_a_model_lists_the_embedded_ones(here: Path) -> None:
    text = ok("show")
    listed = {line.split()[0] for line in text.splitlines()[1:]}
    assert listed == set(names())
    assert set(strict(ok("show", "--json", "-"))["models"]) == set(names())


def test_show_resnet18() -> None:
    text = ok("show", "resnet18")
    rows = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    assert (rows["Identity"], rows["Conv"], rows["BatchNormalization"], rows["nodes"]) == ("72", "20", "20", "141")
    facts = strict(ok("show", "resnet18", "--json", "-"))
    assert facts["nodes"] == 141 and sum(facts["operators"].values()) == 141
    assert facts["inputs"] == [{"name": "input", "type": "float[1, 3, 224, 224]", "default": False}]
    assert facts["producer"].startswith("pytorch ")
    assert 46e6 < facts["weight_bytes"] < 47.5e6


def test_show_text_reads_back(here: Path) -> None:
    from fuse.ir.parse import parse
    from fuse.ir.text import split

    spelled, constants = split(fuse.load("m.onnx"), carried=False)
    assert ok("show", "m.onnx", "--text") == spelled.rstrip("\n") + "\n"
    assert parse(spelled, constants).node_count() == 4


def test_quiet_is_quiet(here: Path) -> None:
    for command in ("show", "plan", "run", "verify", "optimize"):
        assert ok(command, "m.onnx", "-q") == ""


# ---- strip and materialize


def test_strip_and_materialize(here: Path) -> None:
    text = ok("strip", "m.onnx", "-o", "small.onnx", "--keep-below", "16")
    assert "1 constants became recipes" in text
    small = onnx.load(here / "small.onnx")
    assert [t.name for t in small.graph.initializer if t.metadata_props] == ["w"]
    ok("materialize", "small.onnx", "-o", "big.onnx")
    ok("materialize", "small.onnx", "-o", "big.onnx")
    big = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(here / "big.onnx").graph.initializer}
    raw = {t.name: onnx.numpy_helper.to_array(t) for t in chain().graph.initializer}
    assert big["w"].shape == raw["w"].shape and not np.array_equal(big["w"], raw["w"])
    np.testing.assert_array_equal(big["b"], raw["b"])
    ok("verify", "small.onnx", "big.onnx")


def test_strip_without_notes(here: Path) -> None:
    proto = chain()
    proto.doc_string = proto.graph.node[0].doc_string = "File /home/someone/train.py, line 3"
    write(proto, here / "m.onnx")
    ok("strip", "m.onnx", "-o", "with.onnx")
    ok("strip", "m.onnx", "-o", "without.onnx", "--no-notes")
    assert b"someone" in (here / "with.onnx").read_bytes()
    assert b"someone" not in (here / "without.onnx").read_bytes()


def test_materialize_with_external_data(here: Path) -> None:
    write(wide(), here / "wide.onnx")
    ok("strip", "wide.onnx", "-o", "small.onnx")
    assert (here / "small.onnx").stat().st_size < 1000
    report = strict(ok("materialize", "small.onnx", "-o", "big.onnx", "--external-data", "--json", "-"))
    assert (here / "big.onnx.data").stat().st_size == report["weight_bytes"] == 64 * 64 * 4
    ok("verify", "small.onnx", "big.onnx", "-q")


# ---- plan


def test_plan(here: Path) -> None:
    report = strict(ok("plan", "m.onnx", "--dim", "n=1000", "--measure", "--json", "-"))
    # i shares x's memory; m is 1000 x 3 floats; s and y are written over it
    assert (report["without_reuse"], report["bound"], report["arena"]) == (36_000, 12_000, 12_000)
    assert report["shares"]["in-place"] == 2
    assert report["overhead_percent"] == 0
    assert report["measured_peak"] >= 12_000
    text = ok("plan", "m.onnx", "--dim", "n=1000", "--measure")
    rows = {line[:22].strip(): line.split() for line in text.splitlines()}
    assert rows["without reuse"][2:4] == ["36", "kB"]
    assert rows["arena"][1:3] == ["12", "kB"]
    assert "measured" in rows and "█" in text and "┤" in text
    assert "(MatMul)" in text


def test_plan_of_sizes_that_are_not_known(here: Path) -> None:
    text = ok("plan", "m.onnx")
    assert "not planned" in text and "unknown size" in text


def test_plan_of_the_optimised_graph() -> None:
    raw = strict(ok("plan", "mlp", "--dim", "batch=4", "--json", "-"))
    small = strict(ok("plan", "mlp", "--dim", "batch=4", "--optimized", "--json", "-"))
    assert len(small["steps"]) < len(raw["steps"])
    assert small["without_reuse"] < raw["without_reuse"]


# ---- verify


def test_verify_alone_compares_with_the_optimised_form(here: Path) -> None:
    text = ok("verify", "m.onnx")
    assert "answers unmoved" in text
    assert [line for line in text.splitlines() if line.startswith("y ")]


def test_verify_says_what_moved(here: Path) -> None:
    other = chain()
    other.graph.node[2].op_type = "Sub"
    write(other, here / "other.onnx")
    outcome = call("verify", "m.onnx", "other.onnx", "--json", "report.json")
    assert (outcome.code, outcome.err) == (1, "")
    assert "answers moved" in outcome.out and "moved: " in outcome.out
    report = strict((here / "report.json").read_text())
    assert report["status"] == "moved" and report["reasons"]
    assert any(row["moved"] for row in report["rows"])


def test_verify_on_the_user_s_inputs(here: Path) -> None:
    """The two models differ for negative numbers alone, which the file has only in its second set."""
    for name, op in (("a.onnx", "Relu"), ("b.onnx", "Identity")):
        write(model([node(op, ["x"], ["y"])], {"x": [2]}, {"y": [2]}), here / name)
    np.savez(here / "plus.npz", x=np.array([1, 2], np.float32))
    np.savez(here / "minus.npz", x=np.array([1, -2], np.float32))
    assert call("verify", "a.onnx", "b.onnx", "--inputs", "plus.npz").code == 0
    assert call("verify", "a.onnx", "b.onnx", "--inputs", "minus.npz").code == 1
    assert call("verify", "a.onnx", "b.onnx", "--inputs", "plus.npz", "--inputs", "minus.npz").code == 1
    assert call("verify", "a.onnx", "b.onnx").code == 1


# ---- bench


def test_bench(here: Path) -> None:
    pytest.importorskip("onnxruntime")
    report = strict(
        ok("bench", "m.onnx", "--runs", "3", "--warmup", "1", "--threads", "1", "--dim", "n=7", "--json", "-")
    )
    assert set(report["milliseconds"]) == {"fuse, raw", "fuse, optimised", "onnxruntime"}
    assert all(len(row) == 3 and min(row) > 0 for row in report["milliseconds"].values())
    assert report["threads"] == 1
    assert set(report["operator_milliseconds"]["raw"]) == {"Identity", "MatMul", "Add", "Relu"}
    assert "Identity" not in report["operator_milliseconds"]["optimised"]
    text = ok("bench", "m.onnx", "--runs", "1", "--warmup", "0")
    assert "x onnxruntime" in text and "operator" in text


def test_bench_without_the_others(here: Path) -> None:
    report = strict(ok("bench", "m.onnx", "--runs", "1", "--no-optimize", "--no-onnxruntime", "--json", "-"))
    assert set(report["milliseconds"]) == {"fuse, raw"}


def test_bench_of_what_onnxruntime_refuses(here: Path) -> None:
    pytest.importorskip("onnxruntime")
    proto = model([node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]}, dtype=onnx.TensorProto.BFLOAT16)
    write(proto, here / "m.onnx")
    outcome = call("bench", "m.onnx", "--runs", "1")
    assert outcome.code == 0 and outcome.err.startswith("warning: ") and "onnxruntime" in outcome.err
    outcome = call("bench", "m.onnx", "--runs", "1", "--onnxruntime")
    assert outcome.code == 2 and outcome.err.startswith("error: ")


# ---- export


def test_export_without_torch_says_what_to_install(here: Path, monkeypatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = call("export", "resnet18", "-o", "out.onnx")
    assert outcome.code == 2
    assert "torch" in outcome.err and 'pip install "fuse-onnx[export]"' in outcome.err
    assert not (here / "out.onnx").exists()
