"""The window that convolutions and pools slide over their input: its checks, its output sizes, and what it reaches.

Every operator with ``kernel_shape``, ``strides``, ``dilations``, ``pads`` and ``auto_pad`` builds one ``Window`` here,
in inference and in its kernel, so that both refuse the same attributes with the same words.  Spatial axes are numbered
from 0, batch and channel left out.
Source: the ONNX operator texts of Conv, MaxPool and AveragePool.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fuse.errors import quote
from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import Array
from fuse.ops.record import expect

Ints = Sequence[int]
Pads = tuple[tuple[int, int], ...]

LARGEST = 1 << 31
"""No attribute of a window reaches this: every runtime keeps them in 32 bits."""

AUTO = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True)
class Window:
    """A checked window.  All tuples have one entry a spatial axis; ``pads`` are the explicit (begin, end) pairs."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: Pads
    auto: str
    ceil: bool

    @property
    def extents(self) -> tuple[int, ...]:
        """How many input positions the window spans, dilation counted."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def out_dims(self, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """The output's spatial dims; ``ShapeError`` where the window does not fit in the padded input."""
        same = self.auto.startswith("SAME")
        return tuple(
            self._same_dim(axis, dim) if same else self._fitted_dim(axis, dim) for axis, dim in enumerate(dims)
        )

    def _same_dim(self, axis: int, dim: Dim) -> Dim:
        stride = self.strides[axis]
        return None if dim is None else floordiv(dim + (stride - 1), stride)

    def _fitted_dim(self, axis: int, dim: Dim) -> Dim:
        if dim is None:
            return None
        (begin, end), stride, extent = self.pads[axis], self.strides[axis], self.extents[axis]
        if isinstance(dim, int):
            expect(
                dim == 0 or dim + begin + end >= extent,
                f"the window spans {extent} positions but the padded input has {dim + begin + end}",
            )
        # Rounding up adds stride - 1; a last window that would start beyond begin + dim, in the end padding, is
        # dropped.  Both bounds are floors over one stride, so the smaller numerator gives the smaller of them.
        slack = min(end - extent + stride - 1, -1) if self.ceil else end - extent
        out = floordiv(dim + (begin + slack), stride) + 1
        return max(out, 0) if isinstance(out, int) else out

    def padding(self, sizes: Ints) -> Pads:
        """The (begin, end) padding of each axis for an input of ``sizes``, ``auto_pad`` resolved."""
        if not self.auto.startswith("SAME"):
            return self.pads
        result = []
        for size, stride, extent in zip(sizes, self.strides, self.extents, strict=True):
            total = max((-(-size // stride) - 1) * stride + extent - size, 0)
            less, more = total // 2, total - total // 2
            result.append((less, more) if self.auto == "SAME_UPPER" else (more, less))
        return tuple(result)

    def taps(self) -> Iterator[tuple[int, ...]]:
        """The kernel's positions in row-major order."""
        return itertools.product(*(range(k) for k in self.kernel))

    def frame(self, sizes: Ints, out: Ints) -> Pads:
        """The (begin, end) padding that the windows of ``out`` outputs touch: a last one may hang over the end."""
        pairs = self.padding(sizes)
        return tuple(
            (begin, max((o - 1) * stride + extent - begin - size, 0))
            for (begin, _), o, stride, extent, size in zip(pairs, out, self.strides, self.extents, sizes, strict=True)
        )

    def slide(self, x: Array, out: tuple[int, ...]) -> Array:
        """The view (N, C, kernel..., out...) of what each output sees in ``x`` (N, C, spatial...), padded already.

        Its elements overlap in memory.  Under one kernel position they do not, so that may be written to.
        """
        batch, steps = x.strides[:2], x.strides[2:]
        taps = tuple(step * d for step, d in zip(steps, self.dilations, strict=True))
        moves = tuple(step * s for step, s in zip(steps, self.strides, strict=True))
        return as_strided(x, (*x.shape[:2], *self.kernel, *out), (*batch, *taps, *moves))


def pad(x: Array, pairs: Pads, fill: Any) -> Array:
    """``x`` (N, C, spatial...) with ``fill`` around it; ``x`` itself where there is nothing to pad."""
    if not any(begin or end for begin, end in pairs):
        return x
    sizes = [begin + size + end for (begin, end), size in zip(pairs, x.shape[2:], strict=True)]
    padded = np.full((*x.shape[:2], *sizes), fill, x.dtype)
    inside = (slice(begin, begin + size) for (begin, _), size in zip(pairs, x.shape[2:], strict=True))
    padded[(slice(None), slice(None), *inside)] = x
    return padded


def make_window(
    rank: int | None,
    kernel: Ints,
    strides: Ints | None = None,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
) -> Window:
    """Check a window's attributes against each other and against the input's ``rank`` (None where unknown)."""
    return _checked(
        rank, tuple(map(int, kernel)), ints(strides), ints(dilations), ints(pads), auto_pad, bool(ceil_mode)
    )


def ints(values: Ints | None) -> tuple[int, ...] | None:
    """A list attribute as a tuple of plain integers."""
    return None if values is None else tuple(map(int, values))


@functools.lru_cache(maxsize=1024)
def _checked(
    rank: int | None,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    auto_pad: str,
    ceil_mode: bool,
) -> Window:
    n = len(kernel)
    expect(rank is None or rank == n + 2, f"kernel is {n}-D but the input is {rank}-D")
    strides = _entries("strides", strides, n, 1)
    dilations = _entries("dilations", dilations, n, 1)
    for name, values in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
        expect(all(v > 0 for v in values), f"{name} {list(values)} must be positive")
        expect(max(values, default=1) < LARGEST, f"{name} {list(values)} is beyond any tensor")
    expect(auto_pad in AUTO, f"auto_pad {quote(auto_pad)} is not one of {', '.join(AUTO)}")
    flat = pads if pads is not None else (0,) * (2 * n)
    expect(len(flat) == 2 * n, f"pads has {len(flat)} entries, a {n}-D kernel needs {2 * n}")
    expect(all(v >= 0 for v in flat), f"pads {list(flat)} must not be negative")
    expect(max(flat, default=0) < LARGEST, f"pads {list(flat)} is beyond any tensor")
    expect(
        auto_pad == "NOTSET" or not any(flat), f"auto_pad {auto_pad} and explicit pads {list(flat)} exclude each other"
    )
    pairs = tuple(zip(flat[:n], flat[n:], strict=True))
    return Window(kernel, strides, dilations, pairs, auto_pad, ceil_mode)


def _entries(name: str, values: tuple[int, ...] | None, count: int, default: int) -> tuple[int, ...]:
    if values is None:
        return (default,) * count
    expect(len(values) == count, f"{name} has {len(values)} entries but the kernel is {count}-D")
    return values
