"""Interpolation against the formulas, position by position, and against onnxruntime."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ops.interpolate import COORDINATES, NEAREST
from fuse.ops.resize import resize
from tests.ops.cases import same
from tests.ops.oracle import close, normal, onnxruntime_says

F = np.float32


def floats(*values):
    return np.array(values, dtype=np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def row(*values):
    return np.array(values, dtype=np.float32)


# ---- by hand


def test_nearest_by_hand():
    x = row(1, 2, 3)
    assert resize(x, None, floats(2)).tolist() == [1, 1, 2, 2, 3, 3]
    # x_original of 6 outputs over 3 inputs, asymmetric: 0, .5, 1, 1.5, 2, 2.5
    modes = {
        "round_prefer_floor": [1, 1, 2, 2, 3, 3],
        "round_prefer_ceil": [1, 2, 2, 3, 3, 3],
        "floor": [1, 1, 2, 2, 3, 3],
        "ceil": [1, 2, 2, 3, 3, 3],
    }
    for mode, wanted in modes.items():
        got = resize(x, None, floats(2), nearest_mode=mode, coordinate_transformation_mode="asymmetric")
        assert got.tolist() == wanted, mode


def test_linear_by_hand():
    x = row(0, 10)
    wanted = {
        "half_pixel": [0, 2.5, 7.5, 10],
        "asymmetric": [0, 5, 10, 10],
        "align_corners": [0, 10 / 3, 20 / 3, 10],
        "pytorch_half_pixel": [0, 2.5, 7.5, 10],
        "tf_half_pixel_for_nn": [2.5, 7.5, 10, 10],
        "half_pixel_symmetric": [0, 2.5, 7.5, 10],
    }
    for mode, values in wanted.items():
        got = resize(x, None, None, ints(4), mode="linear", coordinate_transformation_mode=mode)
        close(got, np.array(values), eps=1e-6)


def test_one_output():
    x = row(0, 10, 40)
    wanted = {"half_pixel": 10, "asymmetric": 0, "align_corners": 0, "pytorch_half_pixel": 0}
    for mode, value in wanted.items():
        got = resize(x, None, None, ints(1), mode="linear", coordinate_transformation_mode=mode)
        assert got.tolist() == [value], mode
    crop = resize(x, floats(0, 0.5), None, ints(1), mode="linear", coordinate_transformation_mode="tf_crop_and_resize")
    assert crop.tolist() == [5]


def test_cropping():
    x = row(0, 1, 2, 3, 4)
    attrs = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": -9.0}
    assert resize(x, floats(0.25, 0.75), None, ints(3), **attrs).tolist() == [1, 2, 3]
    assert resize(x, floats(-0.25, 0.75), None, ints(5), **attrs).tolist() == [-9, 0, 1, 2, 3]
    assert resize(x, floats(1, 0), None, ints(5), **attrs).tolist() == [4, 3, 2, 1, 0]
    nearest = {**attrs, "mode": "nearest"}
    assert resize(x, floats(-0.25, 0.75), None, ints(5), **nearest).tolist() == [-9, 0, 1, 2, 3]
    square = np.arange(4, dtype=F).reshape(2, 2)
    got = resize(square, floats(0, 0, 1, 2), None, ints(2, 2), **attrs)  # the second column lies outside
    assert got.tolist() == [[0, -9], [2, -9]]


def test_float32_scales_decide_ties_as_they_were_meant():
    # 4 / (4/3) is 3 in float32 and 2.9999999 when the rounded scale is taken for exact.
    attrs = {"nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    assert resize(row(0, 1, 2, 3, 4, 5), None, floats(4 / 3), **attrs).tolist() == [0, 0, 1, 2, 3, 3, 4, 5]
    # (4 + 1/2) * 7 / 9 - 1/2 is 3, and 2.9999999 by way of the rounded scale 9/7.
    assert resize(np.arange(7, dtype=F), None, None, ints(9), nearest_mode="floor").tolist()[4] == 3
    assert resize(np.arange(10, dtype=F), None, floats(0.7)).size == 7  # 6.9999999 in float64


# ---- by formula


def kernel_weight(mode, a, distance):
    d = abs(distance)
    if mode == "linear":
        return max(1 - d, 0.0)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def coordinate(mode, i, size, out, scale, length):
    return {
        "half_pixel": (i + 0.5) / scale - 0.5,
        "pytorch_half_pixel": (i + 0.5) / scale - 0.5 if out > 1 else 0.0,
        "align_corners": i * (size - 1) / (length - 1) if length != 1 else 0.0,
        "asymmetric": i / scale,
        "tf_half_pixel_for_nn": (i + 0.5) / scale,
        "half_pixel_symmetric": size / 2 * (1 - out / length) + (i + 0.5) / scale - 0.5,
    }[mode]


def by_formula(x, out, scale, mode, coordinates, a=-0.75, antialias=0, exclude_outside=0):
    """The weighted mean of all neighbours, summed over every position from far left to far right of ``x``."""
    size, y = len(x), []
    for i in range(out):
        at = coordinate(coordinates, i, size, out, scale, size * scale)
        stretch = min(scale, 1.0) if antialias else 1.0
        places = range(math.floor(at) - 60, math.floor(at) + 61)
        weights = [kernel_weight(mode, a, (p - at) * stretch) for p in places]
        if exclude_outside:
            weights = [w if 0 <= p < size else 0.0 for w, p in zip(weights, places, strict=True)]
        total = sum(weights) if antialias or exclude_outside else 1.0
        y.append(sum(w / total * float(x[min(max(p, 0), size - 1)]) for w, p in zip(weights, places, strict=True)))
    return np.array(y)


@pytest.mark.parametrize("coordinates", [c for c in COORDINATES if c != "tf_crop_and_resize"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_interpolation(mode, coordinates, exclude_outside):
    for size, out, antialias in itertools.product([1, 2, 5, 8], [1, 3, 7, 13], [0, 1]):
        x = normal(size, size)
        got = resize(
            x, None, None, ints(out),
            mode=mode, coordinate_transformation_mode=coordinates, antialias=antialias, exclude_outside=exclude_outside,
            cubic_coeff_a=-0.5,
        )  # fmt: skip
        wanted = by_formula(x, out, out / size, mode, coordinates, -0.5, antialias, exclude_outside)
        close(got, wanted, eps=3e-6)


@pytest.mark.parametrize("scale", [0.3, 0.6, 1.7, 2.5])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolation_by_scales(mode, scale):
    x, factor = normal(1, 9), float(F(scale))
    for coordinates in ("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric"):
        got = resize(x, None, floats(scale), mode=mode, coordinate_transformation_mode=coordinates)
        close(got, by_formula(x, math.floor(9 * F(scale)), factor, mode, coordinates), eps=3e-6)


def test_axes_are_separate():
    x = normal(1, 3, 4, 5)
    both = resize(x, None, None, ints(7, 2), axes=[2, 0], mode="cubic")
    one = resize(resize(x, None, None, ints(2), axes=[0], mode="cubic"), None, None, ints(7), axes=[-1], mode="cubic")
    close(both, one.astype(np.float64), eps=2e-6)
    assert both.shape == (2, 4, 7)


# ---- against onnxruntime


@pytest.mark.parametrize("seed", range(60))
def test_as_onnxruntime_has_it(seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, 2, *rng.integers(3, 9, 2))).astype(F)
    attrs = {"mode": ["nearest", "linear", "cubic"][seed % 3]}
    attrs["coordinate_transformation_mode"] = str(rng.choice(["half_pixel", "pytorch_half_pixel", "asymmetric"]))
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = str(rng.choice(list(NEAREST)))
    elif attrs["mode"] == "cubic":
        attrs["exclude_outside"] = int(seed % 2)
    scales = np.array([1, 1, *rng.choice([0.5, 0.6, 2, 1.5, 4 / 3, 5 / 3, 2.5], 2)], F)
    wanted = onnxruntime_says("Resize", [x, None, scales], opset=19, **attrs)
    same(resize(x, None, scales, **attrs), wanted, atol=1e-5)
    if attrs["mode"] == "nearest":
        return  # given sizes, onnxruntime decides by rounded coordinates: see the ties above
    for coordinates in (attrs["coordinate_transformation_mode"], "align_corners"):
        sizes, attrs["coordinate_transformation_mode"] = np.array([1, 2, *rng.integers(1, 15, 2)]), coordinates
        wanted = onnxruntime_says("Resize", [x, None, None, sizes], opset=19, **attrs)
        same(resize(x, None, None, sizes, **attrs), wanted, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude_outside", [0, 1])
def test_antialias_as_onnxruntime_has_it(mode, exclude_outside):
    x = normal(2, 1, 1, 9, 7)
    attrs = {"mode": mode, "antialias": 1, "exclude_outside": exclude_outside}
    wanted = onnxruntime_says("Resize", [x, None, None, ints(1, 1, 4, 3)], opset=19, **attrs)
    same(resize(x, None, None, ints(1, 1, 4, 3), **attrs), wanted, atol=1e-5)


# ---- dtypes and odd inputs


def test_nearest_takes_every_dtype():
    for x in (
        np.array(["a", "b"], object),
        np.array([True, False]),
        np.array([-128, 127], np.int8),
        np.array([1 + 2j, 3], np.complex64),
        np.array([np.nan, -0.0], np.float16),
    ):
        got = resize(x, None, floats(2))
        assert got.dtype == x.dtype
        assert str(got.tolist()) == str([x.tolist()[0]] * 2 + [x.tolist()[1]] * 2)


def test_averages_of_integers_are_rounded_and_kept_in_range():
    x = np.array([0, 255, 255, 0], np.uint8)
    got = resize(x, None, floats(2), mode="cubic")
    assert got.dtype == np.uint8
    exact = by_formula(x, 8, 2.0, "cubic", "half_pixel")
    assert exact.max() > 255
    assert got.tolist() == np.clip(np.rint(exact), 0, 255).tolist()
    edges = np.array([-(2**63), 2**63 - 1], np.int64)
    assert resize(edges, None, floats(2), mode="cubic").tolist()[::3] == edges.tolist()
    assert resize(np.array([2j, 4]), None, floats(2), mode="linear").tolist() == [2j, 1 + 1.5j, 3 + 0.5j, 4]
    assert resize(np.full(3, -7, np.int32), None, None, ints(8), mode="linear").tolist() == [-7] * 8


def test_half_precision_is_rounded_once():
    x = normal(1, 50, dtype=np.float16)
    got = resize(x, None, None, ints(123), mode="cubic")
    wanted = by_formula(x, 123, 123 / 50, "cubic", "half_pixel")
    assert got.dtype == np.float16
    assert np.mean(got == wanted.astype(np.float16)) > 0.97


def test_strings_have_no_averages():
    with pytest.raises(ShapeError, match="strings have no weighted averages"):
        resize(np.array(["a"], object), None, floats(2), mode="linear")
