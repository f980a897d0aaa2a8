"""What can go wrong, said in one line: where, what, and what to do.

Every error that a user can cause is a ``FuseError``.  Its text is ``where: what`` and, where there is something
to do about it, a second line ``hint: ...``.  Text that comes from a model passes through ``quote`` so that it can
neither forge terminal output nor flood it.
"""

from __future__ import annotations


def quote(text: object, limit: int = 80) -> str:
    """Model text as a single-quoted, printable, clipped literal: control characters are escaped."""
    plain = str(text)
    if len(plain) > limit:
        plain = plain[: limit - 3] + "..."
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in plain)
    return f"'{escaped}'"


class FuseError(Exception):
    """Base of every error that fuse raises on purpose.

    Attributes: ``what`` happened, ``where`` (a file, a node, an input, or None), ``hint`` (what to do, or None).
    """

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def within(self, outer: str) -> FuseError:
        """The same error with ``outer`` put before its place, as in ``model.onnx: node 'a' (Conv): ...``."""
        if self.where is None or outer != self.where.split(": ")[0]:
            self.where = outer if self.where is None else f"{outer}: {self.where}"
        return self

    def __str__(self) -> str:
        line = self.what if self.where is None else f"{self.where}: {self.what}"
        return line if self.hint is None else f"{line}\nhint: {self.hint}"


class ModelError(FuseError):
    """The model file or the graph in it is broken, or uses what fuse cannot carry."""


class InputError(FuseError):
    """The caller's own arguments are wrong: a path, a flag, a feed's name, dtype or shape."""


class ShapeError(ModelError):
    """Shapes, dtypes or attributes of one operator do not fit together."""


class UnsupportedError(FuseError):
    """Valid ONNX, but an operator or a type that this runtime has no kernel for."""


class RunError(FuseError):
    """A value met at run time is outside what the operator allows (an index, a size, a division)."""


class LimitError(FuseError):
    """A budget of ``fuse.limits`` would be exceeded."""


class LawError(FuseError):
    """A law of the IR is broken: a fault in fuse (or in a user's rule), never in the model."""
