"""Bad input: whatever it is, one typed line that says where and what, one that says what to do, exit 2, and no file."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.cli.calls import assert_refused, call, chain, ok, pair, wide, write
from tests.models import model, node

MODEL_COMMANDS = (
    ["optimize"],
    ["optimize", "--no-verify"],
    ["verify"],
    ["run"],
    ["bench"],
    ["plan"],
    ["show"],
    ["strip", "-o", "out.onnx"],
    ["materialize", "-o", "out.onnx"],
)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty current directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def refused(here: Path, *args: object, words: tuple[str, ...]) -> None:
    """``fuse args`` is refused and leaves the directory as it was."""
    before = {p: p.read_bytes() for p in here.rglob("*") if p.is_file()}
    assert_refused(call(*map(str, args)), *words)
    assert {p: p.read_bytes() for p in here.rglob("*") if p.is_file()} == before


def shape_clash() -> onnx.ModelProto:
    return model(
        [node("MatMul", ["x", "w"], ["y"], name="product")], {"x": [2, 3]}, {"y": [2, 5]}, {"w": np.ones((4, 5))}
    )


def unsupported() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], {"x": [2]}, ["y"], opset=9999)


def unknown() -> onnx.ModelProto:
    return model([node("Frobnicate", ["x"], ["y"], name="odd")], {"x": [2]}, ["y"])


BROKEN = {
    "missing.onnx": (None, "no such file"),
    "empty.onnx": (b"", "is empty"),
    "text.onnx": (b"# A read-me\n\nnot a model at all\n", "is text"),
    "random.onnx": (bytes(range(255, 0, -1)) * 9, "random.onnx"),
    "short.onnx": (chain().SerializeToString()[:-40], "cut short"),
    "unsupported.onnx": (unsupported().SerializeToString(), "operator set 9999"),
    "unknown.onnx": (unknown().SerializeToString(), "Frobnicate"),
}


@pytest.mark.parametrize("command", MODEL_COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", BROKEN)
def test_broken_models(command: list[str], name: str, here: Path) -> None:
    data, word = BROKEN[name]
    if data is not None:
        (here / name).write_bytes(data)
    refused(here, *command, name, words=(name, word))


@pytest.mark.parametrize("command", MODEL_COMMANDS, ids=" ".join)
def test_a_directory_is_no_model(command: list[str], here: Path) -> None:
    (here / "models").mkdir()
    refused(here, *command, "models", words=("models", "regular file"))


def test_a_directory_wins_over_an_embedded_model(here: Path) -> None:
    (here / "resnet18").mkdir()
    refused(here, "show", "resnet18", words=("resnet18", "regular file"))


def test_special_files_are_not_opened(here: Path) -> None:
    os.mkfifo(here / "pipe")
    refused(here, "optimize", "pipe", words=("pipe", "regular file"))
    refused(here, "optimize", "/dev/zero", words=("/dev/zero", "regular file"))
    write(pair(), here / "m.onnx")
    refused(here, "run", "m.onnx", "--inputs", "pipe", words=("pipe", "regular file"))


def test_a_contradiction_names_the_node(here: Path) -> None:
    write(shape_clash(), here / "m.onnx")
    refused(here, "optimize", "m.onnx", words=("m.onnx: node 'product' (MatMul): ",))


def test_every_truncation_of_a_model(here: Path) -> None:
    whole = chain().SerializeToString()
    for length in range(0, len(whole), 7):
        (here / "m.onnx").write_bytes(whole[:length])
        outcome = call("show", "m.onnx")
        assert outcome.code in (0, 2), outcome
        assert "Traceback" not in outcome.err
        if outcome.code == 2:
            assert_refused(outcome, "m.onnx")


# ---- feeds


@pytest.fixture
def sums(here: Path) -> Path:
    """total = a + b, and good arrays for both."""
    np.save(here / "a.npy", np.ones(3, np.float32))
    np.save(here / "b.npy", np.ones(3, np.float32))
    write(pair(), here / "m.onnx")
    return here


def archive(path: Path, **arrays: object) -> None:
    np.savez(path, **{name: np.asarray(array) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": np.ones(3, np.float32), "z": np.ones(3, np.float32)}, ("m.onnx", "'z'", "'a', 'b'")),
        ({"a": np.ones(3, np.float64), "b": np.ones(3, np.float32)}, ("m.onnx", "'a'", "double", "float")),
        ({"a": np.ones((3, 1), np.float32), "b": np.ones(3, np.float32)}, ("m.onnx", "'a'", "[3, 1]", "[n]")),
        ({"a": np.ones(3, np.float32), "b": np.ones(4, np.float32)}, ("m.onnx", "'n'", "3", "4")),
        ({"a": np.array(["one"]), "b": np.ones(1, np.float32)}, ("m.onnx", "'a'")),
    ],
    ids=["name", "dtype", "rank", "two sizes", "strings"],
)
@pytest.mark.parametrize("command", ["run", "verify"])
def test_feeds_that_do_not_fit(command: str, arrays: dict, words: tuple[str, ...], sums: Path) -> None:
    archive(sums / "feeds.npz", **arrays)
    refused(sums, command, "m.onnx", "--inputs", "feeds.npz", words=words)


class Bomb:
    """Unpickling it writes a file."""

    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def pickled() -> bytes:
    return pickle.dumps(Bomb())


def object_array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    return stream.getvalue()


def zipped(member: str, data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(member, data)
    return stream.getvalue()


FILES = {
    "pickle.npz": pickled(),
    "object.npz": zipped("a.npy", object_array()),
    "pickle-inside.npz": zipped("a.npy", pickled()),
    "not-a-zip.npz": b"PK\x03\x04 and then nothing that is a zip",
    "text.npz": b"a = 1, 2, 3",
    "empty.npz": b"",
    "other.npz": zipped("a.txt", b"1, 2, 3"),
    "huge.npz": zipped(
        "a.npy", b"\x93NUMPY\x01\x00\x3e\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1<<60,)}\n"
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_arrays(name: str, sums: Path) -> None:
    (sums / name).write_bytes(FILES[name])
    refused(sums, "run", "m.onnx", "--inputs", name, words=(name, "numpy"))
    refused(sums, "run", "m.onnx", "--input", f"a={name}", words=(name,))
    refused(sums, "verify", "m.onnx", "--inputs", name, words=(name, "numpy"))


def test_an_object_array_is_not_unpickled(sums: Path) -> None:
    (sums / "a.npy").write_bytes(object_array())
    refused(sums, "run", "m.onnx", "--input", "a=a.npy", words=("a.npy", "pickle"))


def test_an_archive_and_an_array_are_told_apart(sums: Path) -> None:
    archive(sums / "feeds.npz", a=np.ones(3, np.float32))
    refused(sums, "run", "m.onnx", "--inputs", "a.npy", words=("a.npy", "--input NAME=FILE"))
    refused(sums, "run", "m.onnx", "--input", "a=feeds.npz", words=("feeds.npz", "--inputs FILE"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--input", "a.npy"], ("--input", "'a.npy'", "NAME=FILE")),
        (["--input", "a="], ("--input", "NAME=FILE")),
        (["--input", "c=a.npy"], ("m.onnx", "'c'", "'a', 'b'")),
        (["--input", "a=a.npy", "--input", "a=b.npy"], ("--input", "'a'", "twice")),
        (["--input", "a=gone.npy"], ("gone.npy", "no such file")),
        (["--dim", "m=3"], ("m.onnx", "'m'", "'n'")),
        (["--dim", "n=4", "--input", "a=a.npy"], ("m.onnx", "'n'", "4", "3")),
        (["--dim", f"n={10**15}"], ("m.onnx", "'a'", "bytes")),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_inputs_that_do_not_fit(given: list[str], words: tuple[str, ...], sums: Path) -> None:
    refused(sums, "run", "m.onnx", *given, words=words)


def test_two_models_that_take_different_inputs(sums: Path) -> None:
    write(chain(), sums / "other.onnx")
    refused(sums, "verify", "m.onnx", "other.onnx", words=("inputs",))


# ---- outputs


@pytest.mark.parametrize(
    "command",
    [["optimize", "mlp"], ["strip", "mlp"], ["materialize", "mlp"], ["run", "mlp"], ["export", "mlp"]],
    ids=" ".join,
)
def test_outputs_that_cannot_be_written(command: list[str], here: Path) -> None:
    (here / "directory").mkdir()
    (here / "file").write_bytes(b"here first")
    refused(here, *command, "-o", "nowhere/out.onnx", words=("nowhere/out.onnx", "directory"))
    refused(here, *command, "-o", "file/out.onnx", words=("file/out.onnx",))
    refused(here, *command, "-o", "directory", words=("directory", "is a directory"))
    refused(here, *command, "-o", "/dev/null", words=("/dev/null", "regular file"))
    refused(here, *command, "-o", "x" * 5000, words=("name too long",))
    assert not any((here / "directory").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only(here: Path) -> None:
    (here / "locked").mkdir(mode=0o500)
    refused(here, "optimize", "mlp", "-o", "locked/out.onnx", words=("locked/out.onnx", "written"))


@pytest.mark.parametrize("command", ["optimize", "verify", "run", "bench", "plan", "show"])
def test_a_report_never_takes_the_place_of_the_model(command: str, here: Path) -> None:
    write(chain(), here / "m.onnx")
    (here / "link.json").symlink_to("m.onnx")
    refused(here, command, "m.onnx", "--json", "m.onnx", words=("m.onnx", "input"))
    refused(here, command, "m.onnx", "--json", "link.json", words=("link.json", "input"))
    refused(here, command, "m.onnx", "--json", "gone/report.json", words=("gone/report.json",))


def test_a_report_never_takes_the_place_of_the_output(here: Path) -> None:
    write(chain(), here / "m.onnx")
    refused(here, "optimize", "m.onnx", "-o", "out", "--json", "./out", words=("./out", "output"))


def test_stripping_over_the_only_copy(here: Path) -> None:
    write(chain(), here / "m.onnx")
    refused(here, "strip", "m.onnx", "-o", "m.onnx", words=("m.onnx", "input"))


def test_the_default_output_is_never_the_input(here: Path) -> None:
    write(chain(), here / "m.onnx")
    (here / "m.opt.onnx").symlink_to("m.onnx")
    refused(here, "optimize", "m.onnx", words=("m.opt.onnx", "input"))


def test_an_output_directory_that_is_a_file(here: Path) -> None:
    (here / "file").write_bytes(b"")
    refused(here, "run", "mlp", "--output-dir", "file", words=("file", "directory"))
    refused(here, "run", "mlp", "--output-dir", "gone/below", words=("gone/below", "directory"))


# ---- external data


def outside(location: str) -> onnx.ModelProto:
    """A model whose weights lie in ``location``, or so it says."""
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [2]}, {"y": [2]}, {"w": np.ones(2, np.float32)})
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/hostname", "a/../../secret", "link", "pipe", "gone", "", "short"]
)
@pytest.mark.parametrize("command", [["optimize"], ["materialize", "-o", "out.onnx"], ["run"]], ids=" ".join)
def test_external_data_that_is_not_the_model_s(command: list[str], location: str, here: Path) -> None:
    (here.parent / "secret").write_bytes(bytes(8))
    (here / "link").symlink_to("../secret")
    (here / "short").write_bytes(bytes(7))
    os.mkfifo(here / "pipe")
    write(outside(location), here / "m.onnx")
    refused(here, *command, "m.onnx", words=("m.onnx", "'w'"))


def test_external_data_elsewhere_is_read_where_the_user_says_so(here: Path) -> None:
    (here / "data").mkdir()
    (here / "data" / "w").write_bytes(np.array([1, 2], np.float32).tobytes())
    write(outside("w"), here / "m.onnx")
    refused(here, "run", "m.onnx", words=("m.onnx", "'w'"))
    for command in ("run", "optimize", "plan", "show", "verify"):
        ok(command, "m.onnx", "--data-dir", "data", "-q")
    ok("bench", "m.onnx", "--data-dir", "data", "-q", "--runs", "1")
    ok("strip", "m.onnx", "--data-dir", "data", "-q", "-o", "s.onnx")
    ok("materialize", "m.onnx", "--data-dir", "data", "-q", "-o", "b.onnx")


def test_weights_are_replaced_while_they_are_mapped(here: Path) -> None:
    write(wide(), here / "raw.onnx")
    ok("materialize", "raw.onnx", "-o", "m.onnx", "--external-data")
    ok("optimize", "m.onnx", "-o", "m.onnx", "--external-data")
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "m.onnx.data", "raw.onnx"]
    ok("verify", "raw.onnx", "m.onnx", "-q")


# ---- names as weapons

EVIL = "[red]x[/red]\x1b[2J\r\nerror: forged :smile: {0.__class__} %s"


@pytest.fixture
def evil(here: Path) -> Path:
    proto = model(
        [node("Identity", [EVIL], ["i"], name=EVIL), node("Relu", ["i"], [EVIL + "y"], name=EVIL + "2")],
        {EVIL: [EVIL, 2]},
        {EVIL + "y": [EVIL, 2]},
    )
    proto.graph.name = proto.producer_name = EVIL
    return write(proto, here / "m.onnx")


@pytest.mark.parametrize(
    "args",
    [
        ["show"],
        ["show", "--text"],
        ["plan"],
        ["plan", "--dim", f"{EVIL}=3"],
        ["run"],
        ["verify"],
        ["optimize", "--explain"],
        ["bench", "--runs", "1", "--warmup", "0"],
    ],
    ids=lambda args: " ".join(args[:2])[:20],
)
def test_names_are_shown_and_not_obeyed(args: list[str], evil: Path) -> None:
    text = ok(args[0], str(evil), *args[1:])
    assert "\x1b" not in text and "\r" not in text
    assert "\nerror: forged" not in text
    assert "[red]" in text or args[0] in ("bench", "optimize")


def test_names_in_errors_are_quoted(evil: Path) -> None:
    outcome = call("run", evil, "--dim", "m=1")
    assert_refused(outcome, "\\x1b[2J")
    assert "\x1b" not in outcome.err


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.INT64])
def test_file_names_are_the_user_s_and_never_the_model_s(dtype: int, here: Path) -> None:
    proto = model([node("Add", ["a", "a"], ["../../escaped"])], {"a": [2]}, {"../../escaped": [2]}, dtype=dtype)
    proto.graph.name = "../../escaped"
    write(proto, here / "m.onnx")
    ok("optimize", "m.onnx", "-q")
    ok("run", "m.onnx", "--output-dir", "out", "-o", "out.npz", "-q")
    assert sorted(p.name for p in here.iterdir()) == ["m.onnx", "m.opt.onnx", "out", "out.npz"]
    assert [p.name for p in (here / "out").iterdir()] == ["output_0.npy"]
    assert not list(here.parent.glob("escaped*"))
    with zipfile.ZipFile(here / "out.npz") as file:
        assert file.namelist() == ["output_0.npy"]


@pytest.mark.parametrize(
    "name", ["with space.onnx", "quo'te\".onnx", "new\nline.onnx", "naïve 日本.onnx", "-dash.onnx"]
)
def test_file_names_of_every_kind(name: str, here: Path) -> None:
    write(chain(), here / name)
    text = ok("optimize", "--", name)
    assert (here / f"{Path(name).stem}.opt.onnx").exists()
    assert "new\nline" not in text
