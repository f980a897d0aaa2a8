"""Fourier transforms, windows and the mel scale.

All of it is computed in float64 and rounded once to the dtype of the result: a transform in single precision is wrong
by some units in the last place of its largest element, which is all of a small one.  The one exception is the inverse
transform of complex float32: there ONNX's own case asserts, to 1e-7, what NumPy gives in single precision, which is
1.9e-7 where the answer is 0.
Source: the ONNX operator texts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuse.errors import RunError
from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import BY_CODE, DOUBLE, FLOAT, FLOATING, INT64, INTEGER, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, single
from fuse.ops.cast import cast_to
from fuse.ops.infer import normal_axis, show_shape
from fuse.ops.record import Info, expect, operator, tensor

FRAME_BYTES = 1 << 22
"""Frames of a short-time transform are taken a block at a time, so that they fit in the cache."""


def _scalar(x: Info | None) -> Dim:
    """The one element of an input, where it is known; a tensor of another size is the kernel's to refuse."""
    return x.dims[0] if x is not None and x.dims is not None and len(x.dims) == 1 else None


def _complex(x: Array) -> Array:
    """The numbers of ``x``, whose last axis holds the real part, or the real and the imaginary one."""
    wide = np.ascontiguousarray(x, DOUBLE)
    return wide[..., 0] if x.shape[-1] == 1 else wide.view(np.complex128)[..., 0]


def _parts(y: Array) -> Array:
    """The reverse of ``_complex``."""
    return np.ascontiguousarray(y).view(y.real.dtype).reshape(*y.shape, 2 if y.dtype.kind == "c" else 1)


# ---- DFT


def _transformed(x: Shape, length: Dim, axis: int, inverse: bool, onesided: bool) -> tuple[Shape, int, Dim]:
    """The output's shape, the axis counted from the front, and the length; None for one that is not given or known."""
    rank = len(x)
    expect(rank > 1, f"the input {show_shape(x)} has no axis beside that of the complex parts")
    parts = x[-1]
    expect(parts in (1, 2) or not isinstance(parts, int), f"the last axis holds 1 or 2 parts of a number, not {parts}")
    place = normal_axis(axis, rank)
    expect(place < rank - 1, f"axis {axis} is that of the complex parts")
    if onesided:
        kind = "a one-sided inverse transform takes complex" if inverse else "a one-sided transform takes real"
        expect(parts == 1 + inverse or not isinstance(parts, int), f"{kind} numbers, the last axis has size {parts}")
    if isinstance(length, int):
        expect(length > 0, f"dft_length {length} must be positive")
    out = length if inverse or not onesided or length is None else floordiv(length, 2) + 1
    return (*x[:place], out, *x[place + 1 : -1], 1 if inverse and onesided else 2), place, length


def _default_length(size: Dim, inverse: bool, onesided: bool) -> Dim:
    return size if size is None or not (inverse and onesided) else (size - 1) * 2


def _dft_info(
    x: Info, dft_length: Info | None = None, axis: Info | None = None, *, inverse: int = 0, onesided: int = 0
) -> Info:
    if axis is not None and _scalar(axis) is None and x.shape is not None:
        whole = dft_length is None and not onesided  # then every axis keeps its size
        spatial = x.shape[:-1] if whole else (None,) * (len(x.shape) - 1)
        return tensor(x.dtype, (*spatial, 1 if inverse and onesided else 2))
    place = -2 if axis is None else _scalar(axis)
    return _dft_17_info(x, dft_length, axis=place if isinstance(place, int) else -2, inverse=inverse, onesided=onesided)


def _dft_17_info(
    x: Info, dft_length: Info | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Info:
    if x.shape is None:
        return tensor(x.dtype)
    place = normal_axis(axis, len(x.shape))
    known = _scalar(dft_length)
    length = known if dft_length is not None else _default_length(x.shape[place], bool(inverse), bool(onesided))
    return tensor(x.dtype, _transformed(x.shape, length, axis, bool(inverse), bool(onesided))[0])


@operator("DFT", infer=_dft_info)
@at_run_time
def dft(
    x: Array, dft_length: Array | None = None, axis: Array | None = None, *, inverse: int = 0, onesided: int = 0
) -> Array:
    """The Fourier transform along one axis of ``x``, whose last axis holds real parts, or real and imaginary ones.

    The axis is first cut or filled with zeros to ``dft_length``.  One-sided, the spectrum of real numbers is the half
    that says all, and the inverse takes such a half to real numbers.
    """
    place = -2 if axis is None else int(single(axis, "axis"))
    result: Array = dft_17(x, dft_length, axis=place, inverse=inverse, onesided=onesided)
    return result


@operator("DFT-17", infer=_dft_17_info)
@at_run_time
def dft_17(x: Array, dft_length: Array | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Array:
    """DFT before opset 20: the axis is an attribute, the first after the batch where it is absent."""
    size = x.shape[normal_axis(axis, x.ndim)]
    default = _default_length(size, bool(inverse), bool(onesided))
    length = default if dft_length is None else int(single(dft_length, "dft_length"))
    shape, place, n = _transformed(x.shape, length, axis, bool(inverse), bool(onesided))
    if 0 in shape:
        return np.zeros([d for d in shape if isinstance(d, int)], x.dtype)
    numbers = _complex(x)
    if inverse and x.dtype == FLOAT and numbers.dtype.kind == "c" and not onesided:
        numbers = numbers.astype(np.complex64)
    turn: Any = (np.fft.irfft if inverse else np.fft.rfft) if onesided else np.fft.ifft if inverse else np.fft.fft
    with np.errstate(invalid="ignore", over="ignore"):
        return _parts(turn(numbers, n, place)).astype(x.dtype)


# ---- STFT


def _framed(signal: Shape, step: Dim, length: Dim, window: Shape | None, onesided: bool) -> tuple[Shape, Dim]:
    """The output's shape and the length of a frame."""
    fits = len(signal) == 2 or (len(signal) == 3 and (signal[2] in (1, 2) or not isinstance(signal[2], int)))
    expect(fits, f"the signal {show_shape(signal)} is not [batch, length, 1 or 2]")
    if window is not None:
        expect(len(window) == 1, f"the window {show_shape(window)} is not a vector")
        same = not (isinstance(length, int) and isinstance(window[0], int)) or length == window[0]
        expect(same, f"frame_length {length} but the window has {window[0]} elements")
        length = window[0] if length is None else length
    if isinstance(step, int):
        expect(step > 0, f"frame_step {step} must be positive")
    if isinstance(length, int):
        expect(length > 0, f"frame_length {length} must be positive")
        longer = isinstance(signal[1], int) and signal[1] < length
        expect(not longer, f"a signal of {signal[1]} is shorter than a frame of {length}")
    unclear = signal[1] is None or length is None or step is None
    frames = None if unclear else floordiv(signal[1] - length, step) + 1  # type: ignore[operator, arg-type]
    bins = length if length is None or not onesided else floordiv(length, 2) + 1
    return (signal[0], frames, bins, 2), length


def _stft_info(
    signal: Info, frame_step: Info, window: Info | None = None, frame_length: Info | None = None, *, onesided: int = 1
) -> Info:
    if signal.shape is None:
        return tensor(signal.dtype, (None, None, None, 2))
    length = _scalar(frame_length)
    if frame_length is None and window is None and len(signal.shape) > 1:
        length = signal.shape[1]
    frames = None if window is None else window.shape
    return tensor(signal.dtype, _framed(signal.shape, _scalar(frame_step), length, frames, bool(onesided))[0])


@operator("STFT", infer=_stft_info)
@at_run_time
def stft(
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    """The transform of each frame of ``signal`` (batch, length, 1 or 2) times ``window``: (batch, frames, bins, 2).

    A signal without the last axis is real.  ``onesided`` gives the first half of the bins, of complex numbers too.
    """
    step = int(single(frame_step, "frame_step"))
    given = signal.shape[1] if window is None and signal.ndim > 1 else None
    wanted = given if frame_length is None else int(single(frame_length, "frame_length"))
    shape, length = _framed(signal.shape, step, wanted, None if window is None else window.shape, bool(onesided))
    assert isinstance(length, int)
    numbers = _complex(signal if signal.ndim == 3 else signal[..., None])
    weights = np.ones(length) if window is None else window.astype(DOUBLE)
    frames = np.lib.stride_tricks.sliding_window_view(numbers, length, axis=1)[:, ::step]
    y = np.empty([d for d in shape if isinstance(d, int)], signal.dtype)
    turn = np.fft.rfft if onesided and numbers.dtype.kind == "f" else np.fft.fft
    block = max(1, FRAME_BYTES // (16 * length))
    for item, start in ((i, s) for i in range(len(y)) for s in range(0, frames.shape[1], block)):
        some = slice(start, start + block)
        with np.errstate(invalid="ignore", over="ignore"):
            y[item, some] = _parts(turn(frames[item, some] * weights))[:, : y.shape[2]].astype(signal.dtype)
    return y


# ---- windows


def _number_type(code: int) -> DType:
    expect(BY_CODE.get(code) in FLOATING | INTEGER, f"output_datatype {code} is no type of numbers")
    return BY_CODE[code]


def _window_info(size: Info, *, output_datatype: int = 1, periodic: int = 1) -> Info:
    length = _scalar(size)
    expect(not isinstance(length, int) or length >= 0, f"size {length} is negative")
    return tensor(_number_type(output_datatype), (length,))


def _window(size: Array, periodic: int, output_datatype: int, a: float, b: float, c: float) -> Array:
    """``a + b s + c s**2`` with ``s`` the squared sine over half a turn.

    Each window is such a polynomial, and so says no more than it knows at its ends, where a sum of cosines cancels.  A
    symmetric window of one element, where ONNX divides 0 by 0, is 1.
    """
    length = int(single(size, "size"))
    expect(length >= 0, f"size {length} is negative")
    turn = length if periodic else length - 1
    step = np.arange(length)
    sine = np.sin(np.minimum(step, turn - step) * (math.pi / turn)) if turn > 0 else np.ones(length)
    s = np.square(sine)
    return cast_to(a + b * s + c * np.square(s), _number_type(output_datatype))


@operator("HannWindow", infer=_window_info)
@at_run_time
def hann_window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """``(1 - cos x) / 2`` over a turn."""
    return _window(size, periodic, output_datatype, 0.0, 1.0, 0.0)


@operator("HammingWindow", infer=_window_info)
@at_run_time
def hamming_window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """``25/46 - 21/46 cos x`` over a turn."""
    return _window(size, periodic, output_datatype, 4 / 46, 42 / 46, 0.0)


@operator("BlackmanWindow", infer=_window_info)
@at_run_time
def blackman_window(size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """``0.42 - 0.5 cos x + 0.08 cos 2x`` over a turn."""
    return _window(size, periodic, output_datatype, 0.0, 0.36, 0.64)


# ---- MelWeightMatrix


def _mel_info(
    num_mel_bins: Info,
    dft_length: Info,
    sample_rate: Info,
    lower_edge_hertz: Info,
    upper_edge_hertz: Info,
    *,
    output_datatype: int = 1,
) -> Info:
    length = _scalar(dft_length)
    rows = None if length is None else floordiv(length, 2) + 1
    return tensor(_number_type(output_datatype), (rows, _scalar(num_mel_bins)))


@operator("MelWeightMatrix", infer=_mel_info)
@at_run_time
def mel_weight_matrix(
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Array:
    """How much each bin of a one-sided spectrum (rows) counts for each of ``num_mel_bins`` bands (columns).

    Bands are triangles of height 1 between points evenly spaced in mels, each rounded down to a bin.  ONNX divides the
    range into ``num_mel_bins + 2`` steps, so that the last band ends before ``upper_edge_hertz``.
    """
    bands, length, rate = (
        int(single(x, name))
        for x, name in ((num_mel_bins, "num_mel_bins"), (dft_length, "dft_length"), (sample_rate, "sample_rate"))
    )
    low, high = float(single(lower_edge_hertz, "lower_edge_hertz")), float(single(upper_edge_hertz, "upper_edge_hertz"))
    expect(bands >= 0 and length > 0 and rate > 0, f"{bands} bands of {length} points at {rate} samples a second")
    if not 0 <= low <= high <= rate / 2:
        raise RunError(f"edges of {low:g} and {high:g} hertz are not within 0 and {rate / 2:g}, half the sample rate")
    first, last = (np.log1p(edge / 700) for edge in (low, high))
    hertz = 700 * np.expm1(first + np.arange(bands + 2) * ((last - first) / (bands + 2)))
    hertz[0] = low  # not through a logarithm and back, which may end below a bin
    points = np.floor((length + 1) * hertz / rate).astype(INT64)
    left, center, right = points[:-2], points[1:-1], points[2:]
    row = np.arange(length // 2 + 1)[:, None]
    rising = (row - left) / np.maximum(center - left, 1)
    falling = (right - row) / np.maximum(right - center, 1)
    weights = np.where((left <= row) & (row < center), rising, np.where((center < row) & (row < right), falling, 0))
    return cast_to(np.where(row == center, 1.0, weights), _number_type(output_datatype))
