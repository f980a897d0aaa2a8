"""The benchmark, the README's figures and the pictures."""

import importlib.util
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

import fuse
from fuse.report.sawtooth import show_bytes

ROOT = Path(__file__).resolve().parents[2]
BLOCK = "<!-- figures:start -->\nold\n<!-- figures:end -->"


def load(name):
    """A script as a module; it finds its neighbours as it does when it is started."""
    path = ROOT / name
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


BENCH, README, VISUALS = (load(f"{n}.py") for n in ("benchmarks/bench", "benchmarks/readme", "assets/make_visuals"))


def started(code, *arguments, cwd):
    """What a fresh interpreter prints, in another directory than the repository's."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *map(str, [*code, *arguments])]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, cwd=cwd)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One quick benchmark of the mlp, started as a plain script: what it printed, and its file."""
    path = tmp_path_factory.mktemp("bench") / "deeper" / "mlp.json"
    arguments = ["--quick", "--model", "mlp", "--threads", "1", "--json", path]
    done = started([ROOT / "benchmarks" / "bench.py"], *arguments, cwd=path.parents[1])
    assert done.returncode == 0, done.stderr
    return done.stdout, path


@pytest.fixture(scope="module")
def record(bench):
    """The benchmark's JSON."""
    return json.loads(bench[1].read_text(encoding="ascii"))


@pytest.fixture(scope="module")
def report():
    """What fuse itself says of optimising the mlp."""
    return fuse.optimize("mlp", verify=False).report


# ---- the benchmark


def test_file_says_what_was_measured_and_where(record):
    assert record["schema"] == 1 and record["model"] == "mlp" and record["fuse"] == fuse.__version__
    (entry,) = fuse.InferenceSession(fuse.load("mlp")).get_inputs()
    assert record["inputs"] == {entry.name: [d if isinstance(d, int) else 1 for d in entry.shape]}
    assert record["method"]["runs"] >= 2 and record["machine"]["cores"] >= 1
    assert record["machine"]["cpu"] and record["machine"]["numpy"][0].isdigit()


def test_times_are_positive_and_in_order(record):
    assert list(record["threads"]) == ["1"]
    row = record["threads"]["1"]
    assert {"fuse, raw", "fuse, optimised"} <= set(row["milliseconds"])
    for times in [*row["milliseconds"].values(), *row["ratios"].values()]:
        assert 0 < times["min"] <= times["q1"] <= times["median"] <= times["q3"] <= times["max"]


def test_onnxruntime_is_measured_where_installed(record):
    pytest.importorskip("onnxruntime")
    row = record["threads"]["1"]
    assert {"onnxruntime", "onnxruntime, optimisations off"} <= set(row["milliseconds"])
    assert set(row["ratios"]) == set(row["milliseconds"]) - {"onnxruntime"}
    assert 0 < record["accuracy"]["runtimes"] < 2e-6 and record["accuracy"]["argmax_agreement"] == 1.0


def test_onnxruntime_is_left_out_where_missing(monkeypatch, capsys):
    monkeypatch.setattr(BENCH.measure, "has_onnxruntime", lambda: False)
    model = fuse.load("mlp")
    row = BENCH.speed(model, model, BENCH.make_feeds(model), threads=1, runs=2, warmup=0, pause=0)
    assert list(row["milliseconds"]) == ["fuse, raw", "fuse, optimised"] and row["ratios"] == {}


def test_operators_are_those_of_the_graphs(record, report):
    operators = {which: set(times) for which, times in record["threads"]["1"]["operators"].items()}
    assert operators["raw"] == set(report.operators_before)
    assert operators["optimised"] == set(report.operators_after)
    assert "BatchNormalization" in operators["raw"] - operators["optimised"]


def test_nodes_add_up_in_each_target(record, report):
    assert set(record["nodes"]) == {"portable", "onnx", "ort"}
    assert record["nodes"]["portable"]["before"] == report.nodes_before
    assert record["nodes"]["portable"]["after"] == report.nodes_after < record["nodes"]["onnx"]["after"]
    for counts in record["nodes"].values():
        at = dict(counts["operators_before"])
        for done in counts["passes"]:
            assert done["before"] == sum(at.values())
            for op, count in done["made"].items():
                at[op] = at.get(op, 0) + count
            for op, count in done["removed"].items():
                at[op] -= count
            assert done["after"] == sum(at.values())
        assert {op: count for op, count in at.items() if count} == counts["operators_after"]
        assert counts["passes"][0]["removed"] == {"Identity": report.operators_before["Identity"]}


def test_memory_figures_are_in_order(record):
    for figures in record["memory"].values():
        assert 0 < figures["bound"] <= figures["freed"] <= figures["without_reuse"]
        assert figures["bound"] <= figures["arena"] and figures["measured"] > 0
    assert record["memory"]["optimised"]["without_reuse"] < record["memory"]["raw"]["without_reuse"]


def test_answers_stand(record):
    accuracy = record["accuracy"]
    assert accuracy["status"] == "ok" and accuracy["line"].startswith("answers unmoved")
    assert 0 < accuracy["difference"] < 2e-6 and 0 < accuracy["raw_error"] < 2e-6


def test_what_is_printed(bench):
    out = bench[0]
    assert "1 thread\n" in out and "fuse, optimised" in out and " Identity" in out and "answers unmoved" in out
    assert "\x1b" not in out


def test_spread_of_known_numbers():
    assert BENCH.spread([5, 1, 2, 4, 3]) == {"median": 3, "q1": 2, "q3": 4, "min": 1, "max": 5}


@pytest.mark.parametrize("arguments", [["--threads", "0"], ["--runs", "many"], ["--model"]])
def test_bad_use_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        BENCH.main(["--quick", *arguments])
    assert stop.value.code == 2


def test_missing_model_is_one_line(capsys):
    assert BENCH.main(["--quick", "--model", "no_such_model"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: no_such_model: ") and not printed.out


# ---- the README's figures


def readme(page, figures, *arguments):
    return README.main([*arguments, "--json", str(figures), "--readme", str(page)])


def test_readme_round_trip(bench, tmp_path, capsys):
    page, figures = tmp_path / "README.md", bench[1]
    page.write_text(f"# fuse ü\n\n{BLOCK}\n\nthe rest | stays\n", encoding="utf-8")
    assert readme(page, figures, "--check") == 1
    assert "\nold\n" in page.read_text(encoding="utf-8"), "--check must not write"
    assert readme(page, figures) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# fuse ü\n\n<!-- figures:start -->\n| mlp, input 1 x ")
    assert text.endswith("<!-- figures:end -->\n\nthe rest | stays\n") and "\nold\n" not in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and line.endswith(" |")]
    assert len(rows) >= 10 and all(row.count("|") == 4 for row in rows)
    capsys.readouterr()
    assert readme(page, figures, "--check") == 0
    assert readme(page, figures) == 0 and capsys.readouterr().out == "", "a second run has nothing to write"


def test_readme_shows_the_figures_of_the_file(record):
    nodes, (times, memory) = record["nodes"], (record["threads"]["1"], record["memory"])
    lines = README.figures(record).splitlines()
    assert f"| nodes, target `onnx` | {nodes['onnx']['before']} | {nodes['onnx']['after']} |" in lines
    assert any(line.endswith(f" {show_bytes(memory['optimised']['arena'])} |") for line in lines)
    row = next(line for line in lines if line.startswith("| fuse, 1 thread "))
    assert row.endswith(f" {times['milliseconds']['fuse, optimised']['median']:.2f} ms |")


def test_readme_check_finds_one_changed_digit(bench, tmp_path, capsys):
    page, copy = tmp_path / "README.md", tmp_path / "mlp.json"
    page.write_text(BLOCK, encoding="utf-8")
    record = json.loads(bench[1].read_text(encoding="ascii"))
    copy.write_text(json.dumps(record), encoding="ascii")
    assert readme(page, copy) == 0 and readme(page, copy, "--check") == 0
    record["nodes"]["onnx"]["after"] += 1
    copy.write_text(json.dumps(record), encoding="ascii")
    assert readme(page, copy, "--check") == 1 and "out of step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("page", "figures", "words"),
    [
        ("no markers", None, "needs <!-- figures:start -->"),
        (f"{BLOCK}{BLOCK}", None, "each once"),
        ("<!-- figures:end --><!-- figures:start -->", None, "and then"),
        (BLOCK, "{", "Expecting"),
        (BLOCK, "{}", "has no entry"),
        (None, None, "No such file"),
    ],
)
def test_readme_refuses_bad_files(page, figures, words, bench, tmp_path, capsys):
    text, path = tmp_path / "README.md", bench[1]
    if page is not None:
        text.write_text(page, encoding="utf-8")
    if figures is not None:
        path = tmp_path / "bad.json"
        path.write_text(figures, encoding="ascii")
    assert readme(text, path) == 2
    assert words in capsys.readouterr().err
    assert not text.exists() if page is None else text.read_text(encoding="utf-8") == page


def test_the_page_of_the_repository_is_in_step(capsys):
    page, figures = ROOT / "README.md", ROOT / "benchmarks" / "results" / "resnet18.json"
    if not (page.exists() and figures.exists() and README.START in page.read_text(encoding="utf-8")):
        pytest.skip("the page has no figures")
    assert readme(page, figures, "--check") == 0, capsys.readouterr().err


# ---- the pictures

NAMES = {f"{name}.{suffix}" for name in ("nodes", "operators", "memory") for suffix in ("svg", "png")}


@pytest.fixture(scope="module")
def pictures(bench, tmp_path_factory):
    """The pictures of the mlp, drawn twice: once by the plain script in another process, once here."""
    pytest.importorskip("matplotlib")
    home = tmp_path_factory.mktemp("pictures")
    arguments = ["--model", "mlp", "--json", bench[1], "--out", home / "a"]
    done = started([ROOT / "assets" / "make_visuals.py"], *arguments, cwd=home)
    assert done.returncode == 0, done.stderr
    VISUALS.draw("mlp", home / "b" / "c", bench[1])
    return [{path.name: path.read_bytes() for path in out.iterdir()} for out in (home / "a", home / "b" / "c")]


def test_pictures_are_whole(pictures):
    assert set(pictures[0]) == NAMES
    for name, data in pictures[0].items():
        if name.endswith(".svg"):
            root = ElementTree.fromstring(data)
            assert root.tag == "{http://www.w3.org/2000/svg}svg" and len(list(root.iter())) > 50
            assert b"<dc:date>" not in data
        else:
            assert data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) > 5000


def test_pictures_are_the_same_bytes_each_time(pictures):
    assert pictures[0] == pictures[1]


def test_rows_of_the_nodes_picture_add_up(report):
    rows, left = VISUALS.pass_rows(fuse.load("mlp"))
    assert rows[0].counts.total() == report.nodes_before and rows[-1].counts.total() == report.nodes_after
    for before, after in pairwise(rows):
        assert before.counts - after.counts == after.gone
    assert left["portable"] == report.nodes_after < left["onnx"]


@pytest.mark.parametrize(
    ("op", "base"),
    [
        ("fuse::ConvAddRelu", "Conv"),
        ("fuse::ConvTransposeRelu", "ConvTranspose"),
        ("com.microsoft::FusedConv", "Conv"),
        ("com.microsoft::FusedGemm", "Gemm"),
        ("fuse::MatMulTanh", "MatMul"),
        ("Conv", "Conv"),
        ("other::ConvRelu", "other::ConvRelu"),
    ],
)
def test_family(op, base):
    assert VISUALS.family(op) == base


def test_without_matplotlib_one_line_says_what_to_install(tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else find(name, *a))
    assert VISUALS.main(["--out", str(tmp_path / "out")]) == 2 and not (tmp_path / "out").exists()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["error: matplotlib is not installed", 'hint: pip install "fuse-onnx[plot]"']
