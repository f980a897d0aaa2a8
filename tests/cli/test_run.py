from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.cli.calls import call, ok, pair, strict, write
from tests.models import model, node


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(pair(), tmp_path / "m.onnx")
    np.save(tmp_path / "a.npy", np.array([1, 2, 3], np.float32))
    np.savez(tmp_path / "ab.npz", a=np.array([1, 2, 3], np.float32), b=np.array([10, 20, np.nan], np.float32))
    return tmp_path


def test_answers_on_the_screen(here: Path) -> None:
    text = ok("run", "m.onnx", "--inputs", "ab.npz")
    (row,) = [line.split() for line in text.splitlines() if line.startswith("total")]
    assert row == ["total", "float[3]", "11", "22", "16.5", "11,", "22,", "nan;", "1", "NaN"]


def test_answers_in_the_report(here: Path) -> None:
    report = strict(ok("run", "m.onnx", "--inputs", "ab.npz", "--json", "-"))
    assert report["inputs"] == {"a": "float[3]", "b": "float[3]"}
    total = report["outputs"]["total"]
    assert (total["min"], total["max"], total["mean"], total["nan"], total["inf"]) == (11.0, 22.0, 16.5, 1, 0)
    assert total["first"] == [11.0, 22.0, "NaN"]


def test_answers_in_files(here: Path) -> None:
    ok("run", "m.onnx", "--inputs", "ab.npz", "-o", "out.npz", "--output-dir", "out", "-q")
    expected = np.array([11, 22, np.nan], np.float32)
    with np.load(here / "out.npz") as file:
        assert file.files == ["total"]
        np.testing.assert_array_equal(file["total"], expected)
    np.testing.assert_array_equal(np.load(here / "out" / "output_0.npy"), expected)


def test_one_array_fixes_the_size_of_the_other(here: Path) -> None:
    report = strict(ok("run", "m.onnx", "--input", "a=a.npy", "--json", "-"))
    assert report["inputs"] == {"a": "float[3]", "b": "float[3]"}


def test_an_array_beside_an_archive(here: Path) -> None:
    np.savez(here / "b.npz", b=np.array([10, 20, 30], np.float32))
    report = strict(ok("run", "m.onnx", "--inputs", "b.npz", "--input", "a=a.npy", "--json", "-"))
    assert report["outputs"]["total"]["first"] == [11.0, 22.0, 33.0]


def test_sizes_of_symbolic_dims(here: Path) -> None:
    assert "float[5]" in ok("run", "m.onnx", "--dim", "n=5")
    assert "float[0]" in ok("run", "m.onnx", "--dim", "n=0")


def test_made_up_inputs_depend_on_the_seed_alone(here: Path) -> None:
    one, again, two = (ok("run", "m.onnx", "--dim", "n=5", "--seed", seed) for seed in "112")
    assert one == again != two


@pytest.mark.parametrize(
    ("code", "array"),
    [
        (TensorProto.BFLOAT16, np.array([1.5, -2], ml_dtypes.bfloat16)),
        (TensorProto.FLOAT8E4M3FN, np.array([1.5, -2], ml_dtypes.float8_e4m3fn)),
        (TensorProto.FLOAT16, np.array([1.5, -2], np.float16)),
        (TensorProto.INT8, np.array([1, -2], np.int8)),
        (TensorProto.BOOL, np.array([True, False])),
        (TensorProto.COMPLEX64, np.array([1 + 2j, -2], np.complex64)),
        (TensorProto.STRING, np.array(["naïve", "[red]\x1b"])),
    ],
    ids=lambda x: "" if isinstance(x, int) else str(x.dtype),
)
def test_every_dtype_goes_out_and_in_again(code: int, array: np.ndarray, here: Path) -> None:
    proto = model([node("Identity", ["x"], ["y"])], {"x": [2]}, {"y": [2]}, dtype=code, opset=19, ir_version=9)
    write(proto, here / "m.onnx")
    np.savez(here / "x.npz", x=array)
    text = ok("run", "m.onnx", "--inputs", "x.npz", "-o", "y.npz")
    assert "\x1b" not in text
    with np.load(here / "x.npz") as x, np.load(here / "y.npz") as y:
        assert x["x"].tobytes() == y["y"].tobytes()


def test_sequences_are_numbered(here: Path) -> None:
    nodes = [node("SequenceConstruct", ["x", "x"], ["y"])]
    value = onnx.helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, [2])
    proto = model(nodes, {"x": [2]}, ["y"])
    proto.graph.output[0].CopyFrom(value)
    write(proto, here / "m.onnx")
    text = ok("run", "m.onnx", "-o", "out.npz", "--output-dir", "out")
    assert "sequence of 2" in text
    with np.load(here / "out.npz") as file:
        assert file.files == ["y[0]", "y[1]"]
    assert sorted(p.name for p in (here / "out").iterdir()) == ["output_0[0].npy", "output_0[1].npy"]


def test_a_fault_of_the_values_names_the_node(here: Path) -> None:
    proto = model([node("Gather", ["x", "i"], ["y"], name="pick")], {"x": [3], "i": (TensorProto.INT64, [1])}, ["y"])
    write(proto, here / "m.onnx")
    np.savez(here / "in.npz", x=np.ones(3, np.float32), i=np.array([7]))
    outcome = call("run", "m.onnx", "--inputs", "in.npz", "-o", "out.npz")
    assert outcome.code == 2
    assert outcome.err.startswith("error: m.onnx: node 'pick' (Gather): ") and "7" in outcome.err
    assert not (here / "out.npz").exists()


def test_an_embedded_model_on_two_threads(here: Path) -> None:
    report = strict(ok("run", "mlp", "--threads", "2", "--dim", "batch=3", "--json", "-"))
    assert [value["shape"][0] for value in report["outputs"].values()] == [3]
