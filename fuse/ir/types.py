"""What is known of a value before it exists: its kind, dtype and shape."""

from __future__ import annotations

from dataclasses import dataclass

from fuse.ir.dims import Dim
from fuse.ir.dtypes import DType, name_of

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor; ``dtype`` or ``shape`` is None where unknown, ``()`` is a scalar."""

    dtype: DType | None = None
    shape: Shape | None = None

    def __str__(self) -> str:
        element = "?" if self.dtype is None else name_of(self.dtype)
        if self.shape is None:
            return f"{element}[...]"
        return f"{element}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class SparseType:
    """A sparse tensor, carried through untouched."""

    dtype: DType | None = None
    shape: Shape | None = None

    def __str__(self) -> str:
        return f"sparse({TensorType(self.dtype, self.shape)})"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type."""

    element: Type | None = None

    def __str__(self) -> str:
        return f"seq({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent."""

    element: Type | None = None

    def __str__(self) -> str:
        return f"optional({self.element or '?'})"


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary from keys (integers or strings) to values of one type."""

    key: DType
    value: Type | None = None

    def __str__(self) -> str:
        return f"map({name_of(self.key)}, {self.value or '?'})"


Type = TensorType | SparseType | SequenceType | OptionalType | MapType
