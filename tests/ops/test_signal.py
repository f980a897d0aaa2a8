"""DFT, STFT, windows and MelWeightMatrix."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.signal import FRAME_BYTES
from tests.ops.cases import check_case, infer, ints, kernel, known, node_cases, same, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says, ulps

F = np.float32
WINDOWS = ("HannWindow", "HammingWindow", "BlackmanWindow")


@pytest.mark.parametrize("case", node_cases("DFT", "STFT", *WINDOWS, "MelWeightMatrix"))
def test_onnx_cases(case):
    check_case(case, exact=True)


# ---- DFT


def turns(length, inverse):
    k = np.arange(length)
    return np.exp((2j if inverse else -2j) * np.pi / length * (np.outer(k, k) % length))


def by_formula(x, axis, length, inverse, onesided):
    """The sum that defines the transform."""
    z = x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0)
    z = np.moveaxis(z.astype(complex), axis, -1)
    if inverse and onesided:
        half = fitted(z, length // 2 + 1)
        half[..., 0] = half[..., 0].real
        if length % 2 == 0:
            half[..., -1] = half[..., -1].real
        z = np.concatenate([half, np.conj(half[..., 1 : (length + 1) // 2][..., ::-1])], axis=-1)
    y = fitted(z, length) @ turns(length, inverse)
    y = np.moveaxis(y / length if inverse else y, -1, axis)
    if inverse and onesided:
        return y.real[..., None]
    y = np.take(y, range(length // 2 + 1), axis) if onesided else y
    return np.stack([y.real, y.imag], axis=-1)


def fitted(z, length):
    out = np.zeros((*z.shape[:-1], length), complex)
    common = min(length, z.shape[-1])
    out[..., :common] = z[..., :common]
    return out


@pytest.mark.parametrize("length", [None, 1, 2, 5, 8, 13])
@pytest.mark.parametrize(
    ("inverse", "onesided", "parts"), [(0, 0, 1), (0, 0, 2), (1, 0, 1), (1, 0, 2), (0, 1, 1), (1, 1, 2)]
)
def test_transforms(length, inverse, onesided, parts):
    for axis in (0, 1, -2):
        x = normal(3, 4, 6, 7, parts)
        size = x.shape[axis]
        used = length or (2 * (size - 1) if inverse and onesided else size)
        lengths = None if length is None else np.array(length)
        got = kernel("DFT", x, lengths, np.array(axis), inverse=inverse, onesided=onesided)
        wanted = by_formula(x, axis % 4, used, inverse, onesided)
        assert got.dtype == F
        assert got.shape == wanted.shape
        if inverse and parts == 2 and not onesided:
            close(got, wanted, eps=3e-7)
        else:  # each element to half a unit of its own
            np.testing.assert_allclose(got, wanted, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("seed", range(16))
def test_transforms_as_onnxruntime_does(seed):
    rng = np.random.default_rng(seed)
    inverse, onesided = seed % 2, seed // 2 % 2
    parts = 1 + inverse if onesided else 1 + seed // 4 % 2
    x = normal(seed, 2, *rng.integers(2, 9, 2), parts)
    length = int(rng.integers(max(2 * x.shape[1], 1), 24)) if onesided and inverse else int(rng.integers(1, 12))
    given = [x, np.array(length), np.array([1, -3][seed % 2])]
    attrs = {"inverse": inverse, "onesided": onesided}
    close(kernel("DFT", *given, **attrs), onnxruntime_says("DFT", given, opset=20, **attrs))


def test_before_opset_20_the_axis_was_an_attribute():
    x = normal(1, 3, 4, 5, 1)
    close(kernel("DFT-17", x), onnxruntime_says("DFT", [x], opset=17))
    close(kernel("DFT-17", x, None, axis=-2), onnxruntime_says("DFT", [x], opset=17, axis=2))
    assert kernel("DFT-17", x).tolist() == kernel("DFT", x, None, np.array(1)).tolist()
    assert kernel("DFT", x).tolist() == kernel("DFT", x, None, np.array(2)).tolist()


def test_the_inverse_of_complex_numbers_has_the_noise_that_onnx_asserts():
    x = np.zeros((1, 10, 10, 2), F)
    x[0, ..., 0] = np.arange(100).reshape(10, 10)
    got = kernel("DFT", x, None, np.array(1), inverse=1)
    wanted = np.fft.ifft(x[0, ..., 0].astype(np.complex64), axis=0)
    assert got[0].tolist() == np.stack([wanted.real, wanted.imag], axis=-1).tolist()
    double = kernel("DFT", x.astype(np.float64), None, np.array(1), inverse=1)
    np.testing.assert_allclose(double[0, 5, :, 1], 0, atol=1e-14)


def test_a_small_element_beside_a_large_one():
    x = np.zeros((1, 4096, 1), F)
    x[0, :, 0] = 1e6 * np.cos(2 * np.pi * 8 * np.arange(4096) / 4096)
    x[0, :, 0] += np.cos(2 * np.pi * 100 * np.arange(4096) / 4096).astype(F)
    exact = np.fft.fft(x[0, :, 0].astype(float))
    got = kernel("DFT", x, None, np.array(1))[0]
    assert ulps(got[100, 0], exact[100].real, F) <= 0.51


def test_transform_dtypes_and_odd_inputs():
    halves = normal(1, 2, 8, 1, dtype=np.float16)
    wanted = kernel("DFT", halves.astype(float), onesided=1)
    assert ulps(kernel("DFT", halves, onesided=1), wanted, np.float16).max() <= 0.51
    assert kernel("DFT", halves.astype(ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16
    assert kernel("DFT", np.zeros((0, 4, 1), F)).shape == (0, 4, 2)
    assert not kernel("DFT", np.zeros((2, 0, 1), F), np.array(3)).any()
    spoilt = kernel("DFT", np.array([[[np.nan], [1], [2]], [[1], [2], [3]]], F))
    assert np.isnan(spoilt[0, :, 0]).all()
    assert np.isfinite(spoilt[1]).all()
    assert kernel("DFT", np.array([[[3], [-1]]], F)).tolist() == [[[2, 0], [4, 0]]]


def test_transform_inferred():
    x = typed("b", "n", 1)
    assert shape_of(infer("DFT", [x])[0]) == "[b, n, 2]"
    assert shape_of(infer("DFT", [x, known("k"), known(1)], onesided=1)[0]) == "[b, floor((k)/(2)) + 1, 2]"
    assert shape_of(infer("DFT", [x, typed(1, dtype=np.int64)], onesided=1)[0]) == "[b, ?, 2]"
    assert shape_of(infer("DFT", [x, None, typed(dtype=np.int64)])[0]) == "[b, n, 2]"
    assert shape_of(infer("DFT", [x, known(4), typed(dtype=np.int64)])[0]) == "[?, ?, 2]"
    assert shape_of(infer("DFT", [x, None, typed(dtype=np.int64)], onesided=1)[0]) == "[?, ?, 2]"
    assert shape_of(infer("DFT", [typed("b", "n", 2)], inverse=1, onesided=1)[0]) == "[b, 2*n - 2, 1]"
    assert shape_of(infer("DFT-17", [typed("b", 4, 9, 2)])[0]) == "[b, 4, 9, 2]"


@pytest.mark.parametrize(
    ("shape", "length", "axis", "attrs", "text"),
    [
        ((2, 4, 3), None, 1, {}, "the last axis holds 1 or 2 parts of a number, not 3"),
        ((2, 4, 1), None, 2, {}, "axis 2 is that of the complex parts"),
        ((2, 4, 1), None, -1, {}, "axis -1 is that of the complex parts"),
        ((2, 4, 1), None, 3, {}, "axis 3 is out of range"),
        ((2, 4, 1), 0, 1, {}, "dft_length 0 must be positive"),
        ((2, 1, 2), None, 1, {"inverse": 1, "onesided": 1}, "dft_length 0 must be positive"),
        ((2, 4, 2), None, 1, {"onesided": 1}, "a one-sided transform takes real numbers"),
        ((2, 4, 1), None, 1, {"inverse": 1, "onesided": 1}, "a one-sided inverse transform takes complex numbers"),
        ((2,), None, 0, {}, "has no axis beside"),
    ],
)
def test_transform_faults(shape, length, axis, attrs, text):
    with pytest.raises(RunError, match=text):
        kernel("DFT", np.zeros(shape, F), None if length is None else np.array(length), np.array(axis), **attrs)
    with pytest.raises(ShapeError, match=text):
        infer("DFT", [typed(*shape), None if length is None else known(length), known(axis)], **attrs)


# ---- STFT


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("onesided", [0, 1])
def test_frames(parts, onesided):
    for length, frame, step in itertools.product((8, 21), (1, 5, 8), (1, 3, 30)):
        x, window = normal(length, 2, length, parts), normal(1, frame)
        got = kernel("STFT", x, np.array(step), window, np.array(frame), onesided=onesided)
        starts = range(0, length - frame + 1, step)
        assert got.shape == (2, len(starts), frame // 2 + 1 if onesided else frame, 2)
        for number, start in enumerate(starts):
            piece = x[:, start : start + frame].astype(float) * window.astype(float)[:, None]
            wanted = by_formula(piece, 1, frame, 0, 0)[:, : got.shape[2]]
            np.testing.assert_allclose(got[:, number], wanted, rtol=2e-7, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_frames_as_onnxruntime_has_them(seed):
    rng = np.random.default_rng(seed)
    frame = int(rng.integers(2, 9))
    given = [normal(seed, 2, 30, 1 + seed % 2), np.array(int(rng.integers(1, 7)))]
    given += [None, np.array(frame)] if seed % 3 else [normal(1, frame)]
    close(kernel("STFT", *given, onesided=seed // 2 % 2), onnxruntime_says("STFT", given, onesided=seed // 2 % 2))


def test_frames_with_less_given():
    x = normal(1, 1, 6, 1)
    flat = kernel("STFT", x[..., 0], np.array(2), None, np.array(4))
    assert flat.tolist() == kernel("STFT", x, np.array(2), np.ones(4, F)).tolist()
    whole = kernel("STFT", x, np.array(2))
    np.testing.assert_allclose(whole[:, 0], kernel("DFT", x, None, np.array(1), onesided=1))


def test_a_long_signal_is_taken_in_blocks():
    frame = 512
    x = normal(1, 1, FRAME_BYTES // (16 * frame) + frame + 9, 1)
    got = kernel("STFT", x, np.array(1), None, np.array(frame))
    last = kernel("STFT", x[:, -frame:], np.array(1), None, np.array(frame))
    assert got.shape[1] > FRAME_BYTES // (16 * frame)
    assert got[0, -1].tolist() == last[0, 0].tolist()


def test_frames_inferred_and_faults():
    signal, step = typed("b", "n", 1), known(4)
    assert shape_of(infer("STFT", [signal, step, typed(16)])[0]) == "[b, floor((n)/(4)) - 3, 9, 2]"
    assert shape_of(infer("STFT", [typed("b", 100, 1), step, None, known(20)], onesided=0)[0]) == "[b, 21, 20, 2]"
    assert shape_of(infer("STFT", [signal, typed(dtype=np.int64), typed("w")])[0]) == "[b, ?, floor((w)/(2)) + 1, 2]"
    assert shape_of(infer("STFT", [typed("b", 9, 1), step])[0]) == "[b, 1, 5, 2]"
    for shape, step, window, frame, text in (
        ((1, 8, 1), 0, 4, None, "frame_step 0 must be positive"),
        ((1, 8, 1), 1, 4, 5, "frame_length 5 but the window has 4 elements"),
        ((1, 8, 1), 1, 9, None, "a signal of 8 is shorter than a frame of 9"),
        ((1, 8, 1), 1, None, 0, "frame_length 0 must be positive"),
        ((1, 8, 3), 1, 4, None, "is not .batch, length, 1 or 2."),
        ((8,), 1, 4, None, "is not .batch, length, 1 or 2."),
    ):
        given = [np.zeros(shape, F), np.array(step), None if window is None else np.zeros(window, F)]
        with pytest.raises(RunError, match=text):
            kernel("STFT", *given, None if frame is None else np.array(frame))
        infos = [typed(*shape), known(step), None if window is None else typed(window)]
        with pytest.raises(ShapeError, match=text):
            infer("STFT", [*infos, None if frame is None else known(frame)])


# ---- windows

COSINES = {"HannWindow": (0.5, 0.5, 0.0), "HammingWindow": (25 / 46, 21 / 46, 0.0), "BlackmanWindow": (0.42, 0.5, 0.08)}


@pytest.mark.parametrize("op", WINDOWS)
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op, periodic):
    a, b, c = COSINES[op]
    for size in (2, 3, 7, 10, 512):
        got = kernel(op, np.array(size), periodic=periodic, output_datatype=11)
        x = 2 * np.pi * np.arange(size) / (size - 1 + periodic)
        np.testing.assert_allclose(got, a - b * np.cos(x) + c * np.cos(2 * x), rtol=1e-12, atol=1e-15)
        ends = got[1:] if periodic else got
        assert ends.tolist() == ends[::-1].tolist()  # exactly symmetric
        single = kernel(op, np.array(size), periodic=periodic)
        assert single.dtype == F
        assert single.tolist() == got.astype(F).tolist()
        close(single, onnxruntime_says(op, [np.array(size)], periodic=periodic), eps=1e-6)


def test_windows_are_precise_where_cosines_cancel():
    size, n = 10**6, np.arange(1, 50)
    small = np.square(np.pi * n / size)  # of the sine's square, to twelve digits
    np.testing.assert_allclose(kernel("HannWindow", np.array(size), output_datatype=11)[1:50], small, rtol=1e-8)
    got = kernel("BlackmanWindow", np.array(size), output_datatype=11)[:50]
    assert got[0] == 0
    np.testing.assert_allclose(got[1:], 0.36 * small + 0.64 * small**2, rtol=1e-8)


@pytest.mark.parametrize("op", WINDOWS)
def test_short_windows_dtypes_inference_and_faults(op):
    assert kernel(op, np.array(0)).shape == (0,)
    assert kernel(op, np.array(1), periodic=0).tolist() == [1]
    assert kernel(op, ints(6), output_datatype=7).tolist() == [0, 0, 0, 1, 0, 0]
    assert kernel(op, np.array(5, np.int32), output_datatype=10).dtype == np.float16
    assert kernel(op, np.array(5), output_datatype=16).dtype == ml_dtypes.bfloat16
    assert shape_of(infer(op, [known("n")])[0]) == "[n]"
    assert infer(op, [typed(dtype=np.int64)], output_datatype=11)[0].dtype == np.float64
    for code in (0, 8, 9, 14, 99):
        with pytest.raises(ShapeError, match=f"output_datatype {code} is no type of numbers"):
            infer(op, [known(3)], output_datatype=code)
    with pytest.raises(RunError, match="size -1 is negative"):
        kernel(op, np.array(-1))
    with pytest.raises(ShapeError, match="size -1 is negative"):
        infer(op, [known(-1)])
    with pytest.raises(RunError, match="size must be one element"):
        kernel(op, ints(1, 2))


# ---- MelWeightMatrix


def mel(bands, length, rate, low, high, **attrs):
    scalars = [np.array(v, np.int64) for v in (bands, length, rate)]
    return kernel("MelWeightMatrix", *scalars, np.array(low, F), np.array(high, F), **attrs)


def test_bands_are_triangles():
    got = mel(3, 64, 8000, 0, 4000)
    step = 2595 * math.log10(1 + 4000 / 700) / 5
    points = [int(65 * 700 * (10 ** (k * step / 2595) - 1) // 8000) for k in range(5)]
    assert points == [0, 2, 6, 12, 20]
    for band, (left, center, right) in enumerate(zip(points, points[1:], points[2:], strict=False)):
        rise, fall = np.arange(33) - left, right - np.arange(33)
        wanted = np.clip(np.minimum(rise / (center - left), fall / (right - center)), 0, None)
        np.testing.assert_allclose(got[:, band], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("bands", "length", "rate", "low", "high"),
    [(8, 16, 8192, 0, 4096), (40, 512, 16000, 20, 7600), (128, 400, 16000, 0, 8000), (1, 64, 8000, 125, 3800)],
)
def test_bands_as_onnxruntime_has_them(bands, length, rate, low, high):
    scalars = [np.array(v, np.int64) for v in (bands, length, rate)] + [np.array(v, F) for v in (low, high)]
    same(mel(bands, length, rate, low, high), onnxruntime_says("MelWeightMatrix", scalars))


def test_bands_at_their_edges():
    assert mel(1, 16, 1700, 100, 850)[:, 0].tolist()[:2] == [0, 0]  # 100 hertz are bin 1 exactly, not 0.99999
    narrow = mel(4, 16, 8192, 0, 2000)
    assert narrow[:, 0].tolist()[0] == 1  # left and center in one bin
    assert mel(2, 9, 100, 10, 10).sum() == 2  # no width at all
    assert mel(0, 9, 100, 0, 50).shape == (5, 0)
    assert mel(4, 16, 8192, 0, 4096, output_datatype=6).dtype == np.int32
    assert mel(6, 7, 100, 0, 50).shape == (4, 6)  # an odd length


def test_bands_inferred_and_faults():
    given = [known(80), known("n"), known(16000), typed(), typed()]
    assert shape_of(infer("MelWeightMatrix", given)[0]) == "[floor((n)/(2)) + 1, 80]"
    for low, high in ((0, 4001), (-1, 4000), (300, 200), (0, math.nan)):
        with pytest.raises(RunError, match="half the sample rate"):
            mel(4, 16, 8000, low, high)
    with pytest.raises(RunError, match="4 bands of 0 points"):
        mel(4, 0, 8000, 0, 4000)
