"""How a command ends: an exit code, and where something went wrong one line that says where, what, and what to do.

Exit codes: 0 all is well; 1 the answers moved; 2 bad input or use, or the machine's limits; 3 a fault in fuse;
128 + n after signal n.  Text from models and files reaches the terminal through ``printable``, so that no name can
forge a line or move the cursor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

import click

from fuse.errors import FuseError, InputError, LawError, LimitError, ModelError, RunError, UnsupportedError

OK, MOVED, BAD, FAULT = 0, 1, 2, 3

#: No part of a line on stderr is longer than this: an error may quote a model that is all one name.
LONGEST = 2000

DEBUG = "FUSE_DEBUG"

#: What to do about an error that does not say so itself, by its kind.
HINTS: dict[type[FuseError], str] = {
    InputError: "`fuse COMMAND --help` says what a command takes",
    ModelError: "if another runtime accepts the model, please report it (`fuse strip` makes it small)",
    UnsupportedError: "onnxruntime may be able to run it",
    RunError: "the values of the inputs may be at fault: try others",
    LimitError: "budgets guard against models that explode; in Python, fuse.limits raises them",
}


@dataclass(slots=True)
class Settings:
    """What the command line said that matters however the command ends."""

    debug: bool = False
    command: str = "fuse"


class Stopped(BaseException):
    """A signal asked the process to end: raised where it was, so that every ``finally`` is run."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def printable(text: object, limit: int = LONGEST, keep: str = "") -> str:
    """``text`` with everything but printable characters (and those in ``keep``) escaped, clipped to ``limit``."""
    plain = str(text)
    if len(plain) > limit:
        plain = plain[: limit - 3] + "..."
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in plain)


def complain(word: str, what: str, *, where: str | None = None, hint: str | None = None, keep: str = "") -> None:
    """Write ``word: where: what`` and a hint to stderr."""
    place = "" if where is None else f"{printable(where, LONGEST // 4)}: "
    lines = [f"{word}: {place}{printable(what, keep=keep)}"]
    if hint is not None:
        lines.append(f"hint: {printable(hint)}")
    with contextlib.suppress(OSError):  # nobody listens: the exit code must do
        print("\n".join(lines), file=sys.stderr, flush=True)


def guarded(run: Callable[[], Any], settings: Settings) -> int:
    """Call ``run`` and return the process's exit code: what ``run`` returned, or what its error stands for."""
    settings.debug = bool(os.environ.get(DEBUG))
    _speak_always()
    try:
        with _signals(), _warnings():
            code = run()
            sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.exceptions.Exit as end:  # --help and --version
        return end.exit_code
    except BrokenPipeError:
        _forget_output()
        return 128 + 13  # what a shell reports of any program that SIGPIPE ended
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Stopped as stop:
        return 128 + stop.number
    except Exception as error:
        code = _explain(error, settings)
        if isinstance(error, OSError):
            _forget_output()
        return code


@contextlib.contextmanager
def about(source: str) -> Iterator[None]:
    """Let an error of the model in the block say which model it is: ``source``."""
    try:
        yield
    except FuseError as error:
        if not isinstance(error, InputError | LawError):
            error.within(source)
        raise


def _explain(error: Exception, settings: Settings) -> int:
    """Say on stderr what ``error`` means for the user, and return the exit code."""
    if settings.debug:
        traceback.print_exception(error)
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "fuse"
        message = error.format_message().strip().rstrip(".")
        complain("error", message[:1].lower() + message[1:], where=command, hint=f"{command} --help")
        return BAD
    if isinstance(error, FuseError) and not isinstance(error, LawError):
        usual = next((text for kind, text in HINTS.items() if isinstance(error, kind)), None)
        complain("error", error.what, where=error.where or settings.command, hint=error.hint or usual)
        return BAD
    if isinstance(error, OSError):
        where = str(error.filename) if error.filename is not None else settings.command
        complain("error", error.strerror or str(error), where=where, hint="--debug shows where it happened")
        return BAD
    if isinstance(error, MemoryError):
        complain(
            "error", "there is not enough memory", where=settings.command, hint="free some, or use another machine"
        )
        return BAD
    kind = type(error).__name__
    hint = (
        f"this is a bug in fuse: please report it with what {DEBUG}=1 shows and the model (`fuse strip` makes it small)"
    )
    complain("error", f"{kind}: {error}", where="fuse", hint=hint, keep="\n" if isinstance(error, LawError) else "")
    return FAULT


def _speak_always() -> None:
    """A terminal that cannot show a character gets an escape in its place, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget_output() -> None:
    """Let what is still buffered for stdout go nowhere: Python would try again, and complain, when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise ``Stopped``: by default they end a process without tidying up."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Stopped(number)

    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # only the main thread may
                before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _warnings() -> Iterator[None]:
    """Show warnings that are meant for users as one line; others as Python would."""
    with warnings.catch_warnings():
        plain = warnings.showwarning

        def show(message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None) -> None:
            if category is UserWarning:
                complain("warning", str(message))
            else:
                plain(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
