"""Saving: whole or not at all, weights beside the model where they must, and nothing else touched."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from fuse.errors import FuseError, InputError, LimitError
from fuse.ir.model import Model
from fuse.limits import DEFAULT
from fuse.model import file
from fuse.model.load import load
from fuse.model.save import save, to_proto
from tests.model.protos import const, constants, function, graph, holding, info, model, node, outside, posix, put, same


def large(**consts: Any) -> Model:
    """A model with constants of every form, most of them large enough for a data file."""
    weights = {"w": np.arange(600, dtype=np.float32), "v": np.arange(300.0), "small": np.float32([1, 2]), **consts}
    inner = graph([node("Identity", ["i"], ["t"])], [], [info("t", [400], TensorProto.INT8)])
    inner.initializer.append(const("i", np.arange(400) % 7, np.int8))
    nodes = [
        node("Constant", [], ["k"], value=const("", np.arange(512), np.int64), name="constant"),
        node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        node("f", ["w"], ["z"], domain="own"),
    ]
    tensors = [const(name, array, np.asarray(array).dtype) for name, array in weights.items()]
    outputs = [info("y", [400], TensorProto.INT8), info("k", [512], TensorProto.INT64), info("z", [600])]
    outputs += [info(t.name, t.dims, t.data_type) for t in tensors]
    tensors[0].doc_string = "doc"
    inside = node("Constant", [], ["k"], value=const("", np.arange(600, dtype=np.float32)))
    f = function("f", [inside, node("Add", ["a", "k"], ["b"])])
    body = graph(nodes, [info("c", [], TensorProto.BOOL)], outputs, tensors)
    return load(model(body, functions=[f], domains=["own"]))


def equal(a: Model, b: Model) -> bool:
    """The same but for where the weights lie."""
    return same(to_proto(a), to_proto(b))


def test_weights_beside_the_model(tmp_path: Path) -> None:
    source = large()
    path = save(source, tmp_path / "m.onnx", external_data=True)
    assert path == tmp_path / "m.onnx" and sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    again = load(path)
    assert equal(again, source)
    proto = onnx.load(path, load_external_data=False)
    kept = {t.name: t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer}
    assert kept == {"w": True, "v": True, "small": False}
    assert path.stat().st_size < 3000
    assert all(not int(e.value) % 64 for t in proto.graph.initializer for e in t.external_data if e.key == "offset")
    assert same(onnx.load(path), to_proto(source)), "onnx finds the data too"
    onnx.checker.check_model(str(path))


def test_onnxruntime_finds_the_weights(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    path = save(large(), tmp_path / "m.onnx", external_data=True)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    w, k, y, z = session.run(["w", "k", "y", "z"], {"c": np.array(True)})
    assert np.array_equal(w, np.arange(600)) and np.array_equal(z, 2 * np.arange(600))
    assert np.array_equal(k, np.arange(512)) and np.array_equal(y, np.arange(400) % 7)


def test_two_models_in_one_directory(tmp_path: Path) -> None:
    a, b = large(), large(w=np.ones(600, np.float32))
    save(a, tmp_path / "a.onnx", external_data=True)
    save(b, tmp_path / "b.onnx", external_data=True)
    assert equal(load(tmp_path / "a.onnx"), a) and equal(load(tmp_path / "b.onnx"), b)


def test_models_beyond_protobuf_s_limit_go_beside_by_themselves(tmp_path: Path) -> None:
    source = large()
    size = len(to_proto(source).SerializeToString())
    inline = save(source, tmp_path / "inline.onnx", limits=replace(DEFAULT, protobuf_bytes=size))
    assert inline.stat().st_size == size and os.listdir(tmp_path) == ["inline.onnx"]
    for limit in (size - 1, 9000, 4000):  # by its overhead alone; by its weights
        path = save(source, tmp_path / "m.onnx", limits=replace(DEFAULT, protobuf_bytes=limit))
        assert (tmp_path / "m.onnx.data").exists() and equal(load(path), source)
        (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(
        LimitError, match=r"inside.onnx: the model is larger than a protobuf file can be\n.*external data"
    ):
        save(source, tmp_path / "inside.onnx", external_data=False, limits=replace(DEFAULT, protobuf_bytes=size - 1))
    with pytest.raises(LimitError, match=r"m2.onnx: the model is larger than a protobuf file can be"):
        save(source, tmp_path / "m2.onnx", limits=replace(DEFAULT, protobuf_bytes=100))
    assert sorted(os.listdir(tmp_path)) == ["inline.onnx", "m.onnx"]


def test_a_model_without_large_weights_has_no_data_file(tmp_path: Path) -> None:
    save(load(model([node("Relu", ["x"], ["y"])])), tmp_path / "m.onnx", external_data=True)
    assert os.listdir(tmp_path) == ["m.onnx"]


def test_saving_over_the_files_that_are_mapped(tmp_path: Path) -> None:
    source = large()
    path = save(source, tmp_path / "m.onnx", external_data=True)
    for limits in (DEFAULT, replace(DEFAULT, mapped_files=0)):
        loaded = load(path, limits=limits)
        save(loaded, path, external_data=True)
        assert equal(load(path), source) and equal(loaded, source)
    save(load(path), path)
    assert equal(load(path), source) and path.stat().st_size > 10_000


@posix
def test_saving_through_a_link(tmp_path: Path) -> None:
    """The link stays one, and the weights lie where a loader looks: beside the name that it is given."""
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.onnx"
    link.symlink_to("real/m.onnx")
    for external in (False, True):
        save(large(), link, external_data=external)
        assert link.is_symlink() and (tmp_path / "real" / "m.onnx").is_file()
        assert equal(load(link), large())
    assert sorted(os.listdir(tmp_path)) == ["link.onnx", "link.onnx.data", "real"]


@posix
def test_permissions_of_what_is_written(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        path = save(large(), tmp_path / "m.onnx")
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o600)
        assert save(large(), path).stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


@posix
def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    source = large()
    (tmp_path / "dir.onnx").mkdir()
    os.mkfifo(tmp_path / "fifo.onnx")
    for target, line in (
        (tmp_path / "dir.onnx", ".*dir.onnx: is not a regular file"),
        (tmp_path / "fifo.onnx", ".*fifo.onnx: is not a regular file"),
        ("/dev/null", "/dev/null: is not a regular file"),
        (tmp_path / "none" / "m.onnx", ".*m.onnx: No such file or directory"),
        (tmp_path / "fifo.onnx" / "m.onnx", ".*m.onnx: Not a directory"),
        (tmp_path / ("n" * 300), "n*.*: File name too long"),
        (tmp_path / "a\0b", r".*a\\x00b: .*(null|not allowed)"),
    ):
        for external in (False, True):
            with pytest.raises(InputError, match=line) as caught:
                save(source, target, external_data=external)
            assert caught.value.hint == "nothing was written"
    with pytest.raises(InputError, match=r"external data location 'C:m.onnx.data' is not allowed"):
        save(source, tmp_path / "C:m.onnx", external_data=True)
    assert sorted(os.listdir(tmp_path)) == ["dir.onnx", "fifo.onnx"]
    assert os.path.exists("/dev/null") and not os.path.isfile("/dev/null")


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A model on disk; at the end it must be there unharmed and alone."""
    path = save(large(), tmp_path / "m.onnx", external_data=True)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    yield lambda: save(large(w=np.zeros(600, np.float32)), path, external_data=True)
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_a_failure_at_any_moment_leaves_the_old_files(
    written: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only directory, full disk, an interrupt: at the first and the second call of each function."""
    for name in ("open", "fsync", "fdopen", "chmod"):
        for fatal in (
            PermissionError(13, "Permission denied"),
            OSError(28, "No space left on device"),
            KeyboardInterrupt(),
        ):
            for moment in (1, 2):
                _fail(monkeypatch, name, moment, fatal)
                expected = (InputError,) if isinstance(fatal, OSError) else (KeyboardInterrupt,)
                with pytest.raises(expected) as caught:
                    written()
                if isinstance(fatal, OSError):
                    assert str(caught.value).endswith(f"m.onnx: {fatal.strerror}\nhint: nothing was written")
                monkeypatch.undo()
    _fail(monkeypatch, "replace", 1, PermissionError(13, "Permission denied"))
    with pytest.raises(InputError, match="Permission denied"):
        written()
    monkeypatch.undo()


def _fail(monkeypatch: pytest.MonkeyPatch, name: str, moment: int, error: BaseException) -> None:
    """Let the ``moment``-th call of ``os.<name>`` that concerns a file to be written raise."""
    real, calls = getattr(os, name), [0]

    def failing(*args: Any, **kwargs: Any) -> Any:
        concerned = name != "open" or args[1] & os.O_CREAT
        calls[0] += bool(concerned)
        if concerned and calls[0] == moment:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(file.os, name, failing)


def test_a_weight_that_cannot_be_read_stops_the_saving(written: Callable[[], None], tmp_path: Path) -> None:
    other = tmp_path.parent / f"{tmp_path.name}-other"
    other.mkdir()
    (other / "w.bin").write_bytes(bytes(4096))
    broken = load(put(other, holding(outside(shape=[1024]))), limits=replace(DEFAULT, mapped_files=0))
    (other / "w.bin").unlink()
    for external in (True, False):
        with pytest.raises(FuseError, match=r"external data 'w.bin': No such file or directory"):
            save(broken, tmp_path / "m.onnx", external_data=external)


def test_a_reader_sees_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    """A thread that loads all the time while another saves: never a cut file."""
    path = tmp_path / "m.onnx"
    models = [large(w=np.full(600, i, np.float32)) for i in range(2)]
    save(models[0], path)
    stop, seen, faults = threading.Event(), set(), []

    def reader() -> None:
        while not stop.is_set():
            try:
                seen.add(float(constants(load(path))["w"][0]))
            except Exception as error:
                faults.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    for i in range(20):
        save(models[i % 2], path)
    stop.set()
    thread.join()
    assert not faults and seen <= {0.0, 1.0}


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = (save(large(), tmp_path / name / "m.onnx", external_data=True)
                     for name in ("a", "b") if not (tmp_path / name).mkdir())  # fmt: skip
    for suffix in ("", ".data"):
        assert Path(f"{first}{suffix}").read_bytes() == Path(f"{second}{suffix}").read_bytes()
