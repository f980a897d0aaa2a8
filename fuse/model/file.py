"""Files: read whole where they are regular, and written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from fuse.errors import InputError, ModelError, quote

Writer = Callable[[Any], object]

_PROTOBUF_END = (1 << 31) - 1
_HINT = "give a file that an ONNX exporter wrote; a broken download is the usual cause"


def shown(path: Path | str) -> str:
    """A path for messages: as it is, with what could disturb a terminal escaped."""
    return quote(path, 1000)[1:-1]


def open_regular(path: Path | str) -> int:
    """A descriptor for reading the regular file at ``path``.

    Raises ``OSError`` for anything else: a directory, a device, or a FIFO, on which opening would wait for a writer.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is not a regular file")
    return handle


def read_file(path: Path) -> bytes:
    """The bytes of a regular file of at most 2 GiB.  Raises ``InputError``."""
    hint = None
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= _PROTOBUF_END:
                return file.read(size)
        what, hint = f"has {size:,} bytes", "a protobuf file ends at 2 GiB: save the weights as external data"
    except FileNotFoundError:
        what, hint = "no such file", "check the path; `fuse show` without a model lists the embedded ones"
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        what = getattr(error, "strerror", None) or str(error)
    raise InputError(what, where=shown(path), hint=hint)


def parse(data: bytes, name: str) -> onnx.ModelProto:
    """The ModelProto in ``data``, or a ``ModelError`` that says what is there instead."""
    if not data:
        raise ModelError("the file is empty", where=name, hint=_HINT)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        what = "is text, not an ONNX model" if _is_text(data) else "is cut short, nested too deep, or not an ONNX model"
        raise ModelError(what, where=name, hint=_HINT) from None
    if not proto.HasField("graph") or not proto.HasField("ir_version"):
        raise ModelError("is not an ONNX model: it holds no graph or no IR version", where=name, hint=_HINT)
    return proto


def _is_text(data: bytes) -> bool:
    return all(byte > 31 or 8 < byte < 14 for byte in data[:1024])


def write_all(files: Sequence[tuple[Path, Writer]]) -> None:
    """Write each file beside its target, flush all of them to disk, then let each take its place, in order.

    A reader finds the old file or the new one.  What fails before the first takes its place leaves everything as it
    was; nothing is left behind in any case.  A link is followed; a target that is a device or a directory is refused.
    """
    staged: list[tuple[Path, Path]] = []
    try:
        for target, write in files:
            real = Path(os.path.realpath(target))
            mode = _mode(real)
            handle, temporary = _temporary(real.parent)
            staged.append((temporary, real))
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, mode)
        while staged:
            os.replace(*staged[0])
            del staged[0]
    finally:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)


def _mode(target: Path) -> int | None:
    """The permissions of the file that is to be replaced; None where there is none."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is not a regular file")
    return stat.S_IMODE(mode)


def _temporary(directory: Path) -> tuple[int, Path]:
    """A new file with the permissions that any new file has, and a name that no other process has."""
    path = directory / f".fuse-{secrets.token_hex(8)}.tmp"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666), path
