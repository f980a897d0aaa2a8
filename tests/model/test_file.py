"""Files that are no models, and paths that are no files: one line, no traceback, nothing that blocks."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from fuse.errors import InputError
from tests.model.protos import RELU, checked, refused


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "model: the file is empty"),
        (b"\0", "model: is cut short, nested too deep, or not an ONNX model"),
        (b"hello, world\n" * 100, "model: is text, not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", "model: is cut short, .*"),
        (b"\x80\x04\x95\x0b\0\0\0\0\0\0\0}\x94", "model: .*not an ONNX model.*"),
        (os.urandom(1000), "model: .*not an ONNX model.*"),
        (onnx.NodeProto(name="n").SerializeToString(), "model: .*not an ONNX model.*"),
    ],
)
def test_what_is_not_a_model(data: bytes, line: str) -> None:
    refused(data, line)


def test_paths_that_are_no_model_files(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", ".*none.onnx: no such file", InputError)
    refused(str(tmp_path / "none.onnx"), ".*none.onnx: no such file", InputError)
    refused(tmp_path, ".*: is not a regular file", InputError)
    refused("a\0b", r"a\\x00b: embedded null byte", InputError)
    refused(17, "a model is a path, bytes or a ModelProto, not int", InputError)
    (tmp_path / "text.onnx").write_text("not a model")
    refused(tmp_path / "text.onnx", "text.onnx: is text, not an ONNX model")
    (tmp_path / "empty.onnx").touch()
    refused(tmp_path / "empty.onnx", "empty.onnx: the file is empty")
    (tmp_path / "good.onnx").write_bytes(RELU.SerializeToString())
    assert checked(tmp_path / "good.onnx").source == "good.onnx"
    (tmp_path / "o\x1b[2J.onnx").write_bytes(b"")
    refused(tmp_path / "o\x1b[2J.onnx", r"o\\x1b\[2J.onnx: the file is empty")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs POSIX")
def test_devices_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.onnx")
    refused(tmp_path / "fifo.onnx", ".*fifo.onnx: is not a regular file", InputError)
    refused("/dev/zero", "/dev/zero: is not a regular file", InputError)


def test_a_sparse_file_of_3_gigabytes_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "big.onnx", "wb") as file:
        file.truncate(3 << 30)
    refused(tmp_path / "big.onnx", ".*big.onnx: has 3,221,225,472 bytes", InputError)
