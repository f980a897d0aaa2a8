"""External data: tensor bytes in files beside the model, never outside the model's directory.

Nothing is read until a tensor is asked for.  The first files are mapped into memory when the model is loaded, so that
one huge file costs no memory and may be replaced while the model is in use.  A mapping holds a file descriptor, and
some exporters write a file for each of a thousand tensors: those after the first ``limits.mapped_files`` are read when
a tensor is asked for, and refused if they changed in between.

Who truncates a mapped file ends the process that reads it (SIGBUS); ``mapped_files=0`` maps nothing.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fuse.errors import ModelError, quote
from fuse.limits import DEFAULT, Limits
from fuse.model.file import open_regular

#: The checksum is of the whole file, which nobody wants to read for one tensor; ``basepath`` is onnx's own note.
_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_INT64_MAX = (1 << 63) - 1

Bytes = Callable[[], memoryview]


@dataclass(slots=True)
class _DataFile:
    location: str
    path: str
    stamp: tuple[int, ...]
    size: int
    view: memoryview | None

    def part(self, offset: int, length: int) -> Bytes:
        """A function that gives ``length`` bytes from ``offset``."""
        if self.view is not None:
            view = self.view[offset : offset + length]
            return lambda: view
        return lambda: self._read(offset, length)

    def _read(self, offset: int, length: int) -> memoryview:
        try:
            with os.fdopen(open_regular(self.path), "rb") as file:
                if _stamp(file.fileno()) == self.stamp:
                    file.seek(offset)
                    data = file.read(length)
                    if len(data) == length:
                        return memoryview(data)
        except OSError as error:
            raise ModelError(f"external data {quote(self.location)}: {error.strerror}") from None
        raise ModelError(f"external data {quote(self.location)} has changed since the model was loaded")


class DataFiles:
    """The data files of one model.

    ``directory`` is where the model lies, None for one that came as bytes.  ``data_dir`` is searched before it, and
    links may lead into either.
    """

    def __init__(self, directory: Path | None, data_dir: Path | None = None, limits: Limits = DEFAULT) -> None:
        self.directories = [d for d in (data_dir, directory) if d is not None]
        self.limits = limits
        self._files: dict[str, _DataFile] = {}

    def part(self, entries: list[tuple[str, str]], size: int) -> Bytes:
        """A function that gives the bytes of one tensor.

        ``entries`` are its ``external_data`` pairs, ``size`` is what its dtype and dims need.  The location is checked
        and the file opened now; its bytes are read when the function is called.
        """
        fields: dict[str, str] = {}
        for key, text in entries:
            if key in fields:
                raise ModelError(f"external data names {quote(key)} twice")
            if key not in _KEYS:
                raise ModelError(f"external data has an unknown field {quote(key)}")
            if not isinstance(text, str):
                raise ModelError(f"external data has a {key} that is not UTF-8 text")
            fields[key] = text
        location = fields.get("location", "")
        file = self._file(location)
        offset = _number(fields, "offset", 0)
        length = _number(fields, "length", size)
        if length != size:
            raise ModelError(f"external data gives {length} bytes where dtype and dims need {size}")
        if offset + length > file.size:
            raise ModelError(f"external data ends at byte {offset + length}, {quote(location)} has {file.size}")
        return file.part(offset, length)

    def _file(self, location: str) -> _DataFile:
        file = self._files.get(location)
        if file is None:
            path = self._path(location)
            try:
                handle = open_regular(path)
                try:
                    size = os.fstat(handle).st_size
                    view = self._view(handle, size)
                    file = self._files[location] = _DataFile(location, path, _stamp(handle), size, view)
                finally:
                    os.close(handle)
            except OSError as error:
                raise ModelError(f"external data {quote(location)}: {error.strerror}") from None
        return file

    def _view(self, handle: int, size: int) -> memoryview | None:
        if not size:
            return memoryview(b"")
        if len(self._files) >= self.limits.mapped_files:
            return None
        return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))

    def _path(self, location: str) -> str:
        """Where the file really lies, which must be inside of one of the directories."""
        relative = checked(location)
        if not self.directories:
            hint = "load it by its path, or give data_dir="
            raise ModelError(f"weights lie in {quote(location)}, but the model has no directory", hint=hint)
        paths = [os.path.realpath(directory / relative) for directory in self.directories]
        path = next((p for p in paths if os.path.exists(p)), paths[-1])
        roots = [os.path.realpath(directory) for directory in self.directories]
        if not any(os.path.commonpath([path, root]) == root for root in roots):
            hint = "data_dir= names a directory that links may lead into"
            raise ModelError(f"external data {quote(location)} leads out of the model's directory by a link", hint=hint)
        return path


def _stamp(handle: int) -> tuple[int, ...]:
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def checked(location: str) -> PurePosixPath:
    """``location`` as a relative path of plain components, or ``ModelError``."""
    parts = location.split("/")
    bad = (
        len(location) > 4096
        or "\0" in location
        or "\\" in location
        or location[1:2] == ":"
        or location.startswith("~")
        or any(part in ("", ".", "..") for part in parts)
    )
    if bad:
        hint = "a location is a relative path inside the model's directory"
        raise ModelError(f"external data location {quote(location)} is not allowed", hint=hint)
    return PurePosixPath(*parts)


def _number(fields: dict[str, str], key: str, default: int) -> int:
    text = fields.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > _INT64_MAX:
        raise ModelError(f"external data has {key} {quote(text)}, not a count of bytes")
    return int(text)
