"""External data: tensor bytes in files beside the model, read by memory map and never outside the model's directory."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path, PurePosixPath

from fuse.errors import ModelError, quote

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_INT64_MAX = (1 << 63) - 1


class DataFiles:
    """The data files of one model: each is opened and mapped once, when the first tensor asks for it.

    ``directory`` is where the model lies; None for a model that came as bytes, which then has no data files.
    """

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._maps: dict[str, memoryview] = {}

    def read(self, entries: list[tuple[str, str]], size: int) -> memoryview:
        """The bytes of one tensor: ``entries`` are its ``external_data`` pairs, ``size`` what its dtype and dims need."""
        fields: dict[str, str] = {}
        for key, text in entries:
            if key in fields:
                raise ModelError(f"external data names {quote(key)} twice")
            if key not in _KEYS:
                raise ModelError(f"external data has an unknown field {quote(key)}")
            fields[key] = text
        location = fields.get("location", "")
        data = self._map(location)
        offset = _number(fields, "offset", 0)
        length = _number(fields, "length", size if "length" not in fields else 0)
        if length != size:
            raise ModelError(f"external data gives {length} bytes where dtype and dims need {size}")
        if offset + length > len(data):
            raise ModelError(f"external data ends at byte {offset + length}, {quote(location)} has {len(data)}")
        return data[offset : offset + length]

    def _map(self, location: str) -> memoryview:
        if location in self._maps:
            return self._maps[location]
        if self.directory is None:
            hint = "load it by its path, or give data_dir="
            raise ModelError(f"weights lie in {quote(location)}, but the model has no directory", hint=hint)
        path = self.directory / checked(location)
        root = self.directory.resolve()
        if root not in path.resolve().parents:
            raise ModelError(f"external data {quote(location)} leads out of the model's directory by a link")
        try:
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        except OSError as error:
            raise ModelError(f"external data {quote(location)}: {error.strerror}") from None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"external data {quote(location)} is not a regular file")
            view = memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if status.st_size else b"")
        finally:
            os.close(handle)
        self._maps[location] = view
        return view


def checked(location: str) -> PurePosixPath:
    """``location`` as a relative path of plain components, or ``ModelError``."""
    parts = location.split("/")
    bad = (
        not location
        or len(location) > 4096
        or "\0" in location
        or "\\" in location
        or (len(location) > 1 and location[1] == ":")
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
    if not (text.isascii() and text.isdigit()) or int(text) > _INT64_MAX:
        raise ModelError(f"external data has {key} {quote(text)}, not a count of bytes")
    return int(text)
