"""Convolution by im2col and matrix product, in any number of spatial dimensions.

Three algorithms, one function each; ``conv`` chooses.  ``_pointwise`` multiplies the input as it lies.  ``_depthwise``
adds shifted inputs, one for each kernel position.  ``_columns`` copies what each output sees into a column buffer and
multiplies the weights with it, a band of output rows at a time.  The result is always a new, writable, C-contiguous
array, so that a fused epilogue may work on it in place.
Source: the ONNX operator text of Conv.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.matmul import product
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints, Window, ints, make_window, pad

Slices = tuple[slice, ...]
Algorithm = Callable[[Array, Array, Window, int, tuple[int, ...]], Array]

BAND_BYTES = 16 << 20
"""Column buffers stay below this.  Measured on a VGG layer (64 channels, 224x224): 1 MiB 73 ms, 16 MiB 48, all 63."""

JOINED_COLUMNS = 128
"""Maps smaller than this share one matrix product across the batch: 8 maps of 7x7 take 26 ms joined, 35 one by one."""

BLOCK_BYTES = 2 << 20
"""Depthwise convolution works on as many channels as fit in this: 144 channels of 56x56 take 1.9 ms, 2.8 at 256 KiB."""


# ---- checks shared by inference and kernels


def conv_window(
    x: Shape | None,
    w: Shape | None,
    b: Shape | None,
    auto_pad: str,
    dilations: Ints | None,
    group: int,
    kernel_shape: Ints | None,
    pads: Ints | None,
    strides: Ints | None,
    transposed: bool = False,
) -> Window | None:
    """Check a convolution's shapes and attributes; None where the kernel's size is not known yet."""
    expect(group > 0, f"group {group} must be positive")
    rank = None if x is None else len(x)
    if w is not None:
        expect(len(w) > 2, f"the weights {show_shape(w)} have no spatial axis")
        expect(rank is None or rank == len(w), f"kernel is {len(w) - 2}-D but the input is {rank}-D")
    kernel = kernel_shape if kernel_shape is not None else None if w is None else w[2:]
    if kernel is None or not all(isinstance(k, (int, np.integer)) for k in kernel):
        return None
    window = make_window(rank, [int(k) for k in kernel], strides, dilations, pads, auto_pad)  # type: ignore[arg-type]
    if w is not None:
        agree = len(w) == len(kernel) + 2 and all(_equal(k, s) for k, s in zip(kernel, w[2:], strict=True))
        expect(agree, f"kernel_shape {list(kernel)} but the weights are {show_shape(w)}")
        _check_channels(x, w, b, group, transposed)
    return window


def _check_channels(x: Shape | None, w: Shape, b: Shape | None, group: int, transposed: bool) -> None:
    channels = None if x is None else x[1]
    first, second = w[0], w[1]
    if isinstance(first, int):
        expect(
            first % group == 0, f"group {group} does not divide the {first} {'in' if transposed else 'out'}put channels"
        )
    if transposed:
        expect(_equal(channels, first), f"the input has {channels} channels but the weights take {first}")
        outputs = second * group if second is not None else None
    else:
        takes = second * group if second is not None else None
        expect(
            _equal(channels, takes),
            f"the input has {channels} channels but the weights take {takes} ({second} x group {group})",
        )
        outputs = first
    if b is not None:
        expect(len(b) == 1 and _equal(b[0], outputs), f"the bias is {show_shape(b)} for {outputs} output channels")


def _equal(a: Dim, b: Dim) -> bool:
    """False only where both are numbers and differ."""
    return not isinstance(a, int) or not isinstance(b, int) or a == b


# ---- Conv


def _conv_info(
    x: Info,
    w: Info,
    b: Info | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Info:
    dtype = common_dtype(x, w, b)
    bias = None if b is None else b.shape
    window = conv_window(x.shape, w.shape, bias, auto_pad, dilations, group, kernel_shape, pads, strides)
    if x.shape is None:
        return tensor(dtype, None if w.shape is None else (None, w.shape[0], *(None,) * (len(w.shape) - 2)))
    spatial = (None,) * (len(x.shape) - 2) if window is None else window.out_dims(x.shape[2:])
    return tensor(dtype, (x.shape[0], None if w.shape is None else w.shape[0], *spatial))


@operator("Conv", infer=_conv_info)
def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Convolve ``x`` (N, C, spatial...) with ``w`` (O, C/group, kernel...) and add ``b`` (O,)."""
    bias = None if b is None else b.shape
    lists = (ints(kernel_shape), ints(pads), ints(strides))
    window, out = _geometry(x.shape, w.shape, bias, auto_pad, ints(dilations), group, *lists)
    y = _choose(window, group, x, w, out)(wide(x), wide(w), window, group, out)
    if b is not None:
        y += b.astype(y.dtype, copy=False).reshape(-1, *(1,) * len(out))
    return narrow(y, x)


@functools.lru_cache(maxsize=1024)
def _geometry(
    x: tuple[int, ...],
    w: tuple[int, ...],
    b: tuple[int, ...] | None,
    auto_pad: str,
    dilations: tuple[int, ...] | None,
    group: int,
    kernel_shape: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> tuple[Window, tuple[int, ...]]:
    """The window and the output's spatial sizes; kept, as a model runs the same shapes again and again."""
    window = conv_window(x, w, b, auto_pad, dilations, group, kernel_shape, pads, strides)
    assert window is not None
    return window, tuple(d for d in window.out_dims(x[2:]) if isinstance(d, int))


def _choose(window: Window, group: int, x: Array, w: Array, out: tuple[int, ...]) -> Algorithm:
    """The fastest algorithm as measured: no copy where none is needed, no matrix product of one row a channel."""
    if not (x.size and w.size and math.prod(out)):
        return _nothing
    if group > 1 and group == x.shape[1]:
        return _depthwise
    plain = all(k == 1 for k in window.kernel) and all(s == 1 for s in window.strides) and out == x.shape[2:]
    if plain and (x.shape[0] == 1 or math.prod(out) >= JOINED_COLUMNS):
        return _pointwise
    return _columns


def _nothing(x: Array, w: Array, window: Window, group: int, out: tuple[int, ...]) -> Array:
    """An empty output, or sums over no channels and over padding alone."""
    return np.zeros((x.shape[0], w.shape[0], *out), x.dtype)


def _pointwise(x: Array, w: Array, window: Window, group: int, out: tuple[int, ...]) -> Array:
    """A 1x1 kernel with stride 1: each image is already its own column matrix."""
    images, channels, outputs = x.shape[0], x.shape[1], w.shape[0]
    y = product(
        w.reshape(group, outputs // group, channels // group),
        x.reshape(images, group, channels // group, math.prod(out)),
    )
    return y.reshape(images, outputs, *out)


def _depthwise(x: Array, w: Array, window: Window, group: int, out: tuple[int, ...]) -> Array:
    """One channel a group: multiply and add shifted inputs, one for each kernel position.

    The padded input is split into one plane for each phase of the strides and flattened, so that every shift is one
    contiguous run over all rows.  The columns beyond the output's width that this computes as well are cut off last.
    """
    images, channels = x.shape[:2]
    multiple = w.shape[0] // channels
    y = np.empty((images, channels, multiple, *out), x.dtype)
    extents = [sum(p) + n for p, n in zip(window.frame(x.shape[2:], out), x.shape[2:], strict=True)]
    plane = tuple(-(-extent // stride) for extent, stride in zip(extents, window.strides, strict=True))
    steps = tuple(math.prod(plane[axis + 1 :]) for axis in range(len(plane)))
    area, run = math.prod(plane), out[0] * steps[0]
    places, shifts = _phases(window, x.shape[2:], out), _shifts(window, steps)
    weights = w.reshape(channels, multiple, -1, 1)
    block = min(channels, max(1, BLOCK_BYTES // (x.dtype.itemsize * area * (len(places) + 2 * multiple))))
    planes = {phase: np.zeros((block, 1, area + steps[0]), x.dtype) for phase in places}
    total, scaled = np.empty((2, block, multiple, run), x.dtype)
    for image, low in itertools.product(range(images), range(0, channels, block)):
        part = slice(low, min(low + block, channels))
        used = part.stop - low
        for phase, (target, source) in places.items():
            flat = planes[phase][:used, :, :area].reshape(used, *plane)
            place: Any = (slice(None), *target)
            origin: Any = (image, part, *source)
            flat[place] = x[origin]
        for index, (phase, shift) in enumerate(shifts):
            seen = planes[phase][:used, :, shift : shift + run]
            np.multiply(seen, weights[part, :, index], out=scaled[:used] if index else total[:used])
            if index:
                total[:used] += scaled[:used]
        rows = total[:used].reshape(used, multiple, out[0], *plane[1:])
        y[image, part] = rows[(slice(None), slice(None), *(slice(o) for o in out))]
    return y.reshape(images, channels * multiple, *out)


def _phases(window: Window, sizes: Ints, out: Ints) -> dict[tuple[int, ...], tuple[Slices, Slices]]:
    """Where each phase of the padded input comes from: phase (1, 0) of strides (2, 2) is odd rows, even columns."""
    places: dict[tuple[int, ...], tuple[Slices, Slices]] = {}
    for phase in itertools.product(*(range(s) for s in window.strides)):
        target, source = [], []
        for at, stride, (begin, _), size in zip(phase, window.strides, window.frame(sizes, out), sizes, strict=True):
            first = -(-max(begin - at, 0) // stride)
            start = first * stride + at - begin
            source.append(slice(start, None, stride))
            target.append(slice(first, first + len(range(start, size, stride))))
        places[phase] = tuple(target), tuple(source)
    return places


def _shifts(window: Window, steps: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """For each kernel position: the phase that it reads, and how far along the flattened plane."""
    found = []
    for tap in window.taps():
        offsets = [t * d for t, d in zip(tap, window.dilations, strict=True)]
        phase = tuple(o % s for o, s in zip(offsets, window.strides, strict=True))
        found.append((phase, sum(o // s * step for o, s, step in zip(offsets, window.strides, steps, strict=True))))
    return found


def _columns(x: Array, w: Array, window: Window, group: int, out: tuple[int, ...]) -> Array:
    """im2col: for a band of output rows, the inputs that each output sees as one column, times the weights."""
    images, channels, outputs = x.shape[0], x.shape[1], w.shape[0]
    area, inner, height = math.prod(out), math.prod(out[1:]), channels * math.prod(window.kernel)
    y = np.empty((images, outputs, area), x.dtype)
    weights = w.reshape(group, outputs // group, -1)
    seen = window.slide(pad(x, window.frame(x.shape[2:], out), 0), out)
    spatial = len(out)
    seen = seen.transpose(*range(1, spatial + 2), 0, *range(spatial + 2, seen.ndim))  # (C, kernel..., N, out...)
    joined = min(images, -(-JOINED_COLUMNS // area))
    bands = -(-x.dtype.itemsize * height * joined * area // BAND_BYTES)
    rows = -(-out[0] // bands)
    buffer = np.empty(height * joined * rows * inner, x.dtype)
    for image, row in itertools.product(range(0, images, joined), range(0, out[0], rows)):
        some = slice(image, min(image + joined, images))
        part = seen[(slice(None),) * (1 + spatial) + (some, slice(row, row + rows))]
        columns = buffer[: part.size].reshape(part.shape)
        columns[...] = part
        matrix = columns.reshape(group, height // group, -1)
        target = y[some, :, row * inner : (row + rows) * inner]
        if len(target) == 1:
            product(weights, matrix, out=target.reshape(group, outputs // group, -1))
        else:
            target[...] = product(weights, matrix).reshape(outputs, len(target), -1).swapaxes(0, 1)
    return y.reshape(images, outputs, *out)
