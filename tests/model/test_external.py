"""External data: read from beside the model and from nowhere else, and not before it is asked for."""

from __future__ import annotations

import gc
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from fuse.errors import ModelError
from fuse.ir.dtypes import BY_CODE, PACKED_BITS, STRING
from fuse.limits import DEFAULT
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.model.tensors import pack, stored_bytes, write_tensor
from tests.model.protos import constants, function, graph, holding, info, model, node, outside, posix, put, refused

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with ``w.bin`` in it, and beside it a file that no model may read."""
    inside = tmp_path / "models"
    inside.mkdir()
    (inside / "w.bin").write_bytes(pack(WEIGHT))
    (tmp_path / "secret.bin").write_bytes(b"s" * 48)
    return inside


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


# ---- where data may lie


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin", "a/../../secret.bin", "./w.bin", "a/./w.bin", "/etc/hostname", "C:\\x", "C:/x", "\\\\host\\x",
        "a\\b", "~/x", "~root/x", "", ".", "..", "a//b", "w.bin/", "a\0b", "x" * 5000, "a/" * 2500 + "b",
    ],
)  # fmt: skip
def test_locations_that_are_refused_by_their_grammar(folder: Path, location: str) -> None:
    refused(
        put(folder, holding(outside(location=location))),
        "m.onnx: initializer 'w': external data location .* is not allowed",
    )


@posix
@pytest.mark.parametrize(
    "place", ["initializer", "constant", "function", "branch", "sparse", "list", "sparse constant"]
)
def test_the_rule_holds_wherever_a_tensor_may_stand(folder: Path, place: str) -> None:
    """One place in the code, nine in a file: none leads to what lies outside."""

    def proto(location: str) -> ModelProto:
        held = outside("t", location=location)
        flat = outside("t", [12], location=location)
        indices = write_tensor(np.arange(12), "")
        constant = node("Constant", [], ["k"], value=held)
        sparse = helper.make_sparse_tensor(flat, indices, [12])
        other = graph([node("Neg", ["x"], ["e"])], [], ["e"])
        if place == "initializer":
            return holding(held)
        if place == "constant":
            return model(graph([constant], ["x"], ["k"]))
        if place == "function":
            f = function("f", [constant, node("Add", ["a", "k"], ["b"])])
            return model([node("f", ["x"], ["y"], domain="own")], functions=[f], domains=["own"])
        if place == "branch":
            then = graph([node("Identity", ["t"], ["r"])], [], ["r"], [held])
            body = [node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
            return model(graph(body, ["x", info("c", [], TensorProto.BOOL)]))
        if place == "sparse":
            body = graph([node("Identity", ["t"], ["y"])])
            body.sparse_initializer.append(sparse)
            return model(body)
        if place == "list":
            return model([node("op", ["x"], ["y"], domain="own", many=[held, held])], domains=["own"])
        return model(graph([node("Constant", [], ["k"], sparse_value=sparse)], ["x"], ["k"]))

    good = load(put(folder, proto("w.bin")))
    moved = to_proto(good)
    assert pack(WEIGHT) in moved.SerializeToString() and b"w.bin" not in moved.SerializeToString()
    refused(put(folder, proto("../secret.bin")), "m.onnx: .*external data location '../secret.bin' is not allowed")
    (folder / "link.bin").symlink_to("../secret.bin")
    refused(put(folder, proto("link.bin")), "m.onnx: .*leads out of the model's directory by a link")


@posix
def test_links(folder: Path, tmp_path: Path) -> None:
    """A link inside the directory is fine; one that leads out is not, as a file or as a directory on the way."""
    (folder / "inner").mkdir()
    (folder / "inner" / "link.bin").symlink_to("../w.bin")
    (folder / "up").symlink_to("..")
    (folder / "out.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "loop.bin").symlink_to("loop.bin")
    (folder / "dangling.bin").symlink_to("nothing.bin")
    os.link(folder / "w.bin", folder / "hard.bin")
    for location in ("inner/link.bin", "hard.bin", "up/models/w.bin"):
        assert np.array_equal(constants(load(put(folder, holding(outside(location=location)))))["w"], WEIGHT)
    for location in ("out.bin", "up/secret.bin"):
        line = "m.onnx: initializer 'w': external data '.*' leads out of the model's directory by a link"
        refused(put(folder, holding(outside(location=location))), line)
    for location, reason in (("loop.bin", "Too many levels.*"), ("dangling.bin", "No such file.*")):
        refused(put(folder, holding(outside(location=location))), f"m.onnx: .*'{location}': {reason}")
    linked = tmp_path / "elsewhere.onnx"
    linked.symlink_to(put(folder, holding(outside())))
    refused(linked, "elsewhere.onnx: initializer 'w': external data 'w.bin': No such file or directory")


@posix
def test_a_cache_of_links_needs_its_directory_named(tmp_path: Path) -> None:
    """As download caches lay it out: names are links to files called by their hash, in another directory."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "aaaa").write_bytes(pack(WEIGHT))
    (blobs / "bbbb").write_bytes(holding(outside()).SerializeToString())
    (snapshot / "w.bin").symlink_to("../../blobs/aaaa")
    (snapshot / "m.onnx").symlink_to("../../blobs/bbbb")
    refused(snapshot / "m.onnx", "m.onnx: .*leads out of the model's directory by a link")
    assert np.array_equal(constants(load(snapshot / "m.onnx", data_dir=tmp_path))["w"], WEIGHT)
    refused(snapshot / "m.onnx", "m.onnx: .*leads out.*", data_dir=snapshot)


def test_a_directory_for_the_data(folder: Path, tmp_path: Path) -> None:
    proto = holding(outside())
    for source in (proto, proto.SerializeToString()):
        refused(source, "model: initializer 'w': weights lie in 'w.bin', but the model has no directory")
        assert np.array_equal(constants(load(source, data_dir=folder))["w"], WEIGHT)
        refused(source, "model: initializer 'w': external data 'w.bin': No such file.*", data_dir=tmp_path)
    assert np.array_equal(constants(load(put(tmp_path, proto), data_dir=str(folder)))["w"], WEIGHT)
    (tmp_path / "w.bin").write_bytes(pack(WEIGHT + 1))
    assert np.array_equal(constants(load(tmp_path / "m.onnx", data_dir=folder))["w"], WEIGHT), "it comes first"
    assert np.array_equal(constants(load(tmp_path / "m.onnx"))["w"], WEIGHT + 1)


# ---- what the entries say


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ({"offset": -1}, "has offset '-1', not a count of bytes"),
        ({"offset": "abc"}, "has offset 'abc', not a count of bytes"),
        ({"offset": ""}, "has offset '', not a count of bytes"),
        ({"offset": "0x10"}, "has offset '0x10', not a count of bytes"),
        ({"offset": "１"}, "has offset '１', not a count of bytes"),
        ({"offset": 1 << 63}, "has offset '9223372036854775808', not a count of bytes"),
        ({"offset": "9" * 5000}, "has offset '9+...', not a count of bytes"),
        ({"offset": 10**12}, "ends at byte 1000000000048, 'w.bin' has 48"),
        ({"offset": 1}, "ends at byte 49, 'w.bin' has 48"),
        ({"length": -1}, "has length '-1', not a count of bytes"),
        ({"length": 0}, "gives 0 bytes where dtype and dims need 48"),
        ({"length": 47}, "gives 47 bytes where dtype and dims need 48"),
        ({"length": 49}, "gives 49 bytes where dtype and dims need 48"),
        ({"location": None}, "location '' is not allowed"),
        ({"__class__": "x"}, "has an unknown field '__class__'"),
        ({"Location": "x"}, "has an unknown field 'Location'"),
    ],
)
def test_entries_that_make_no_sense(folder: Path, entries: dict[str, Any], line: str) -> None:
    refused(put(folder, holding(outside(**entries))), f"m.onnx: initializer 'w': external data {line}")


def test_entries_given_twice_or_as_bytes(folder: Path) -> None:
    twice = outside(offset=0)
    twice.external_data.add(key="offset", value="0")
    refused(put(folder, holding(twice)), "m.onnx: .*external data names 'offset' twice")
    path = put(folder, holding(outside(location="www.bin")))
    path.write_bytes(path.read_bytes().replace(b"www", b"\xff\xfe\xfd"))
    refused(path, "m.onnx: .*external data has a location that is not UTF-8 text")
    both = outside()
    both.raw_data = pack(WEIGHT)
    refused(put(folder, holding(both)), "m.onnx: .*more than one field holds the tensor's data")


def test_entries_that_are_fine(folder: Path) -> None:
    for entries in (
        {},
        {"offset": 0},
        {"length": 48},
        {"offset": 0, "length": 48, "checksum": "0" * 40, "basepath": "/x"},
    ):
        assert np.array_equal(constants(load(put(folder, holding(outside(**entries)))))["w"], WEIGHT)
    (folder / "w.bin").write_bytes(b"")
    assert constants(load(put(folder, holding(outside(shape=(0, 4))))))["w"].shape == (0, 4)
    refused(put(folder, holding(outside())), "m.onnx: .*ends at byte 48, 'w.bin' has 0")


@posix
@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "device", "below a file"])
def test_files_that_are_none(folder: Path, kind: str) -> None:
    """Nothing blocks: not even a FIFO that nobody writes to."""
    location, reason = "odd.bin", "is not a regular file"
    if kind == "missing":
        reason = "No such file or directory"
    elif kind == "directory":
        (folder / "odd.bin").mkdir()
    elif kind == "fifo":
        os.mkfifo(folder / "odd.bin")
    elif kind == "device":
        (folder / "odd.bin").symlink_to("/dev/zero")
        reason = "leads out of the model's directory by a link"
    else:
        location, reason = "w.bin/odd.bin", "Not a directory"
    line = f"m.onnx: initializer 'w': external data '{location}'(:)? {reason}"
    refused(put(folder, holding(outside(location=location))), line)


# ---- reading


def test_nothing_is_read_until_it_is_asked_for(folder: Path) -> None:
    """A file of a terabyte, none of it there: loading costs nothing, and one weight costs itself."""
    with open(folder / "w.bin", "wb") as handle:
        handle.truncate(1 << 40)
        handle.seek(1 << 39)
        handle.write(pack(WEIGHT))
    result = load(put(folder, holding(outside("huge", [1 << 37], offset=1 << 39), outside(offset=1 << 39))))
    huge, small = result.graph.constants
    assert callable(huge._data) and callable(small._data) and huge.type is not None
    assert np.array_equal(small.array, WEIGHT) and callable(huge._data)
    assert huge.array.nbytes == 1 << 39 and huge.array[11] == 11 and not huge.array.flags.writeable


def test_the_array_lies_over_the_file(folder: Path) -> None:
    """Aligned data of a plain type is the memory map itself; odd offsets and other types are copies."""
    (folder / "w.bin").write_bytes(b"\0" + pack(WEIGHT) + pack(WEIGHT))
    arrays = constants(load(put(folder, holding(outside(offset=1), outside("v", offset=49), outside("u", offset=44)))))
    assert np.array_equal(arrays["w"], WEIGHT) and np.array_equal(arrays["v"], WEIGHT)
    assert all(a.flags.aligned for a in arrays.values())
    assert isinstance(_root(arrays["u"]), memoryview) and not isinstance(_root(arrays["w"]), memoryview)


def _root(array: Any) -> Any:
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def test_tensors_may_overlap(folder: Path) -> None:
    arrays = constants(load(put(folder, holding(outside(), outside("row", [4], offset=16), outside("again")))))
    assert np.array_equal(arrays["row"], WEIGHT[1]) and np.array_equal(arrays["again"], WEIGHT)


@pytest.mark.parametrize("code", sorted(code for code in BY_CODE if BY_CODE[code] != STRING))
def test_every_type(folder: Path, code: int) -> None:
    dtype = BY_CODE[code]
    count = 5
    raw = np.random.default_rng(code).bytes(stored_bytes(dtype, count))
    if dtype.kind == "b" or dtype in PACKED_BITS:
        raw = (
            pack(np.frombuffer(np.random.default_rng(code).bytes(count), np.uint8).view(dtype))
            if dtype.kind != "b"
            else b"\0\1\1\0\1"
        )
    (folder / "w.bin").write_bytes(b"#" + raw)
    for limit in (DEFAULT, replace(DEFAULT, mapped_files=0)):
        (array,) = constants(load(put(folder, holding(outside(shape=[5], code=code, offset=1))), limits=limit)).values()
        assert array.dtype == dtype and array.shape == (5,) and pack(array) == raw


@posix
def test_many_tensors_in_one_file_are_one_mapping(folder: Path) -> None:
    (folder / "w.bin").write_bytes(np.arange(20_000, dtype=np.float32).tobytes())
    tensors = [outside(f"w{i}", [1], offset=4 * i, length=4) for i in range(20_000)]
    path = put(folder, model(graph([node("Identity", ["x"], ["y"])], ["x"], ["y"], tensors)))
    gc.collect()
    before = descriptors()
    result = load(path)
    assert descriptors() - before <= 1
    assert [v.array.item() for v in result.graph.constants] == list(range(20_000))
    del result
    gc.collect()
    assert descriptors() == before


@posix
def test_a_file_for_each_of_many_tensors(folder: Path) -> None:
    """As torch's exporter writes large models; a mapping holds a descriptor, and a process has about a thousand."""
    count = 300
    for i in range(count):
        (folder / f"w{i}.bin").write_bytes(np.float32(i).tobytes())
    path = put(folder, model(graph([node("Identity", ["x"], ["y"])], ["x"], ["y"],
                                   [outside(f"w{i}", [], location=f"w{i}.bin") for i in range(count)])))  # fmt: skip
    gc.collect()
    before = descriptors()
    result = load(path)
    assert descriptors() - before <= DEFAULT.mapped_files
    assert [v.array.item() for v in result.graph.constants] == list(range(count))
    assert descriptors() - before <= DEFAULT.mapped_files


def test_unmapped_files_are_refused_once_they_have_changed(folder: Path) -> None:
    limits = replace(DEFAULT, mapped_files=0)
    path = put(folder, holding(outside(), outside("v")))
    result = load(path, limits=limits)
    w, v = result.graph.constants
    assert np.array_equal(w.array, WEIGHT)
    (folder / "new.bin").write_bytes(pack(WEIGHT + 1))
    os.replace(folder / "new.bin", folder / "w.bin")
    with pytest.raises(ModelError, match=r"external data 'w.bin' has changed since the model was loaded"):
        _ = v.array
    result = load(path, limits=limits)
    (folder / "w.bin").unlink()
    with pytest.raises(ModelError, match=r"external data 'w.bin': No such file or directory"):
        _ = next(iter(result.graph.constants)).array


@posix
def test_mapped_files_may_be_replaced(folder: Path) -> None:
    result = load(put(folder, holding(outside())))
    (folder / "new.bin").write_bytes(pack(WEIGHT + 1))
    os.replace(folder / "new.bin", folder / "w.bin")
    assert np.array_equal(constants(result)["w"], WEIGHT), "what was loaded is what is read"
