"""Files that a command writes: checked before the work begins, written whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fuse.errors import InputError


def checked_output(path: str | os.PathLike[str], *inputs: str | os.PathLike[str] | None) -> Path:
    """``path``, if a file can be put there that is none of ``inputs``; raises ``InputError`` before time is spent."""
    target = Path(path)
    where = str(path)
    try:
        present = target.stat() if target.exists() else None
        above = target.parent.is_dir()
    except (OSError, ValueError) as error:
        raise InputError(getattr(error, "strerror", None) or str(error), where=where, hint=_ELSEWHERE) from None
    if not target.name or (present is not None and stat.S_ISDIR(present.st_mode)):
        raise InputError("is a directory", where=where, hint="give the path of a file")
    if not above:
        raise InputError("the directory does not exist", where=where, hint="make it, or give another path")
    if present is not None and not stat.S_ISREG(present.st_mode):
        raise InputError("is not a regular file", where=where, hint=_ELSEWHERE)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError("the directory cannot be written to", where=where, hint=_ELSEWHERE)
    for other in inputs:
        if present is not None and other is not None and os.path.exists(other) and os.path.samefile(target, other):
            raise InputError("would take the place of an input", where=where, hint=_ELSEWHERE)
    return target


_ELSEWHERE = "give another path"


def write_whole(path: str | os.PathLike[str], write: Callable[[IO[bytes]], Any]) -> None:
    """Let ``write`` fill a file beside ``path``, which then takes its place: a reader never sees half of it."""
    target = Path(path).resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=".fuse-", suffix=".tmp", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
            os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o644)
            os.replace(name, target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(error.strerror or str(error), where=str(path), hint="nothing was written") from None


def checked_directory(path: str | os.PathLike[str]) -> Path:
    """``path``, if it is a directory that can be written to, or can be made one."""
    target = Path(path)
    try:
        if target.is_dir():
            if not os.access(target, os.W_OK | os.X_OK):
                raise InputError("the directory cannot be written to", where=str(path), hint=_ELSEWHERE)
            return target
        if target.exists():
            raise InputError("is not a directory", where=str(path), hint=_ELSEWHERE)
    except (OSError, ValueError) as error:
        raise InputError(getattr(error, "strerror", None) or str(error), where=str(path), hint=_ELSEWHERE) from None
    return checked_output(target)
