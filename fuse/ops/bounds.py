"""What indices, axes and counts may be, checked once for inference and once more at run time.

A fault that inference finds is the model's (``ShapeError``); a kernel that meets the same fault has met a value
(``RunError``).  Operators say their rules in one function over shapes, which both sides call; ``at_run_time`` in front
of a kernel turns the one error into the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Dim, Symbolic
from fuse.ir.dtypes import Array

F = TypeVar("F", bound=Callable[..., Any])


def at_run_time(kernel: F) -> F:
    """The kernel with its ``ShapeError``s raised as ``RunError``: at run time a shape is a value like any other.

    What NumPy itself refuses (a result too big for memory or for an index) becomes a ``RunError`` as well.
    """

    @functools.wraps(kernel)
    def checked(*inputs: Any, **attrs: Any) -> Any:
        try:
            return kernel(*inputs, **attrs)
        except ShapeError as error:
            raise RunError(error.what, where=error.where, hint=error.hint) from None
        except (ValueError, IndexError, OverflowError, MemoryError) as error:
            raise RunError(str(error)) from error

    return checked  # type: ignore[return-value]


def whole(x: Array) -> tuple[int, ...]:
    """The elements of an integer tensor as Python integers, which neither overflow nor wrap.

    A symbolic element raises ``TypeError``, which tells inference that the result is not known.
    """
    return tuple(int(v) for v in x.reshape(-1).tolist())


def single(x: Array, what: str) -> Any:
    """The element of a scalar or of a tensor with one element."""
    if x.size != 1:
        raise ShapeError(f"{what} must be one element, its shape is {list(x.shape)}")
    return x.reshape(-1)[0].item() if x.dtype != object else x.reshape(-1)[0]


def in_range(indices: Array, size: int, what: str = "index") -> None:
    """Raise ``ShapeError`` unless every index lies in ``[-size, size)``; names the first that does not."""
    if indices.size == 0 or (-size <= int(indices.min()) and int(indices.max()) < size):
        return
    outside = indices[(indices < -size) | (indices >= size)]
    raise ShapeError(f"{what} {int(outside.reshape(-1)[0])} is out of range for size {size}")


def same_dim(column: Sequence[Dim], message: str) -> Dim:
    """The one dim that all of ``column`` must be, numbers before symbols; ``ShapeError`` where two numbers differ."""
    numbers = {d for d in column if isinstance(d, int)}
    if len(numbers) > 1:
        raise ShapeError(message)
    if numbers:
        return numbers.pop()
    return next((d for d in column if d is not None), None)


def clamped(size: Dim) -> Dim:
    """``max(size, 0)``; None where a symbolic size might be negative."""
    if isinstance(size, Symbolic):
        plain = all(f > 0 and all(isinstance(a, str) for a in m) for m, f in size.terms.items())
        return size if plain else None
    return None if size is None else max(size, 0)


def element(x: Any, dtype: Any) -> Array:
    """``x`` as an array: NumPy hands out bare elements for results of rank 0."""
    return x if isinstance(x, np.ndarray) else np.asarray(x, dtype=dtype)


def fits(name: str, shape: Sequence[Dim] | None, wanted: Sequence[Dim]) -> None:
    """Raise ``ShapeError`` unless ``shape`` can be ``wanted``, in which None is any size; an unknown one can."""
    if shape is not None:
        shown = ["[" + ", ".join("?" if d is None else str(d) for d in s) + "]" for s in (shape, wanted)]
        message = f"{name} is {shown[0]}, not {shown[1]}"
        if len(shape) != len(wanted):
            raise ShapeError(message)
        for pair in zip(shape, wanted, strict=True):
            same_dim(pair, message)
