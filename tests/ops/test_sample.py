"""GridSample and AffineGrid."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.sample import affine_grid, grid_sample
from tests.ops.cases import check_case, infer, ints, known, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says, ulps

F = np.float32
MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")


@pytest.mark.parametrize("case", node_cases("GridSample", "AffineGrid"))
def test_onnx_cases(case):
    check_case(case, exact=True, rtol=5e-4)  # some answers have four digits


# ---- GridSample by formula, in float64


def kernel(mode, distance):
    d, a = abs(distance), -0.75
    if mode == "linear":
        return max(1 - d, 0.0)
    if d <= 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0


def pixel(image, place, padding, corners):
    """A pixel of the endless image."""
    found = []
    for i, size in zip(place, image.shape, strict=True):
        if padding == "zeros" and not 0 <= i < size:
            return 0.0
        if padding == "reflection":
            low, high = (0, size - 1) if corners else (-0.5, size - 0.5)
            while not low <= i <= high and high > low:
                i = 2 * low - i if i < low else 2 * high - i
        found.append(int(min(max(i, 0), size - 1)))
    return float(image[tuple(found)])


def by_formula(x, grid, mode, padding, corners):
    """The sample, and the sum of the sizes of its terms, by which errors are measured."""
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    size = np.zeros(y.shape)
    for n, *out in np.ndindex(grid.shape[:-1]):
        where = [
            ((float(g) + 1) / 2 * (s - 1) if corners else ((float(g) + 1) * s - 1) / 2)
            for g, s in zip(grid[(n, *out)][::-1], x.shape[2:], strict=True)
        ]
        taps = [[round(p)] if mode == "nearest" else range(math.floor(p) - 1, math.floor(p) + 3) for p in where]
        for place in itertools.product(*taps):
            weight = 1.0 if mode == "nearest" else math.prod(map(lambda i, p: kernel(mode, i - p), place, where))
            for c in range(x.shape[1]):
                term = weight * pixel(x[n, c], place, padding, corners)
                y[(n, c, *out)] += term
                size[(n, c, *out)] += abs(term)
    return y, size


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("corners", [0, 1])
def test_as_the_text_says(mode, padding, corners):
    for seed, sizes in enumerate([(5,), (4, 6), (1, 3), (3, 2, 4)]):
        x = normal(seed, 2, 2, *sizes)
        grid = (normal(seed + 9, 2, 3, *(2,) * (len(sizes) - 1), len(sizes)) * 1.5).astype(F)
        got = grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=corners)
        wanted, size = by_formula(x, grid, mode, padding, bool(corners))
        assert got.dtype == F
        np.testing.assert_array_less(np.abs(got - wanted), 4 * np.spacing(F(1)) * size + 1e-30)


def test_float64_is_that_precise():
    x, grid = normal(1, 1, 2, 5, 7, dtype=np.float64), normal(2, 1, 9, 9, 2, dtype=np.float64)
    for mode in MODES:
        got = grid_sample(x, grid, mode=mode)
        wanted, size = by_formula(x, grid, mode, "zeros", False)
        np.testing.assert_array_less(np.abs(got - wanted), 1e-14 * size + 1e-300)


@pytest.mark.parametrize("seed", range(24))
def test_as_onnxruntime_has_it(seed):
    rng = np.random.default_rng(seed)
    rank = 3 if seed % 5 == 4 and MODES[seed % 3] != "cubic" else 2
    x = normal(seed, 2, 3, *rng.integers(1, 8, rank))
    grid = (normal(seed + 99, 2, *rng.integers(1, 6, rank), rank) * 1.5).astype(F)
    grid = np.round(grid * 4) / 4 if seed % 2 else grid  # many ties
    for padding, corners in itertools.product(PADDINGS, (0, 1)):
        attrs = {"mode": MODES[seed % 3], "padding_mode": padding, "align_corners": corners}
        same(grid_sample(x, grid, **attrs), onnxruntime_says("GridSample", [x, grid], opset=20, **attrs), atol=1e-5)


def test_many_places_are_read_in_blocks():
    x, grid = normal(1, 2, 1, 40, 30), normal(2, 2, 300, 301, 2)
    whole = grid_sample(x, grid)
    for n, i, j in ((0, 0, 0), (1, 217, 133), (1, 299, 300)):
        one = grid_sample(x[n : n + 1], grid[n : n + 1, i : i + 1, j : j + 1])
        assert whole[n, 0, i, j] == one[0, 0, 0, 0]


def at(x, *places, **attrs):
    """Samples of a row of pixels."""
    grid = np.array(places, F).reshape(1, -1, 1)
    return grid_sample(np.asarray(x).reshape(1, 1, -1), grid, **attrs).reshape(-1)


def test_places_that_are_far_infinite_or_nan():
    x = np.array([1, 2, 4, 8], F)
    far = (1e30, -1e30, np.inf, -np.inf)
    for mode in MODES:
        assert at(x, *far, mode=mode).tolist() == [0] * 4
        np.testing.assert_allclose(at(x, *far, mode=mode, padding_mode="border"), [8, 1, 8, 1], rtol=1e-6)
        for padding in PADDINGS:
            assert np.isnan(at(x, np.nan, 0.1, mode=mode, padding_mode=padding)).tolist() == [True, False]
        mirrored = at(x, *far, 0, mode=mode, padding_mode="reflection")
        assert np.isnan(mirrored).tolist() == [False, False, True, True, False]


def test_nothing_from_outside_meets_an_infinity():
    x = np.array([np.inf, 1, 1, np.nan], F)
    assert at(x, 0, -3, 3).tolist() == [1, 0, 0]
    assert at(x, -1.05)[0] == np.inf  # part of the first pixel and part of a zero
    assert at(x, -1, mode="nearest", padding_mode="border")[0] == np.inf


def test_ties_of_nearest_go_to_the_even_pixel():
    x = np.array([10, 20, 30, 40], F)
    assert at(x, -1, -0.5, 0, 0.5, 1, mode="nearest").tolist() == [10, 10, 30, 30, 0]
    third = np.array([1 / 3], F)  # 1.5 in float32, a little more in float64
    assert at(x[:3], third[0], mode="nearest").tolist() == [30]


def test_mirrors():
    x = np.array([1, 2, 4, 8], F)
    nearest = {"mode": "nearest", "padding_mode": "reflection"}
    steps = np.arange(-9, 13)
    assert at(x, *((2 * steps + 1) / 4 - 1), **nearest).tolist() == [
        1, 1, 2, 4, 8, 8, 4, 2, 1, 1, 2, 4, 8, 8, 4, 2, 1, 1, 2, 4, 8, 8,
    ][: len(steps)]  # fmt: skip
    assert at(x, *(2 * steps / 3 - 1), align_corners=1, **nearest).tolist() == [
        [1, 2, 4, 8, 4, 2][step % 6] for step in steps
    ]
    assert at([7], -5, 0.3, 9, padding_mode="reflection", align_corners=1).tolist() == [7] * 3


def test_dtypes():
    assert at(np.array(["a", "b"], object), -0.5, 0.5, 3, mode="nearest").tolist() == ["a", "b", ""]
    assert at(np.array([True, False]), -0.5, 0, 3).tolist() == [True, True, False]
    assert at(np.array([1 + 2j, 3], np.complex64), -0.5, 0, np.nan)[:2].tolist() == [1 + 2j, 2 + 1j]
    numbers = at(np.array([-3, 4], np.int8), -0.5, 0, 0.25, 0.75, np.nan)
    assert (numbers.dtype, numbers.tolist()) == (np.int8, [-3, 0, 2, 3, 0])  # truncated
    edges = at(np.array([0, 255, 255, 0], np.uint8), *np.linspace(-1, 1, 9), mode="cubic", padding_mode="border")
    assert edges.max() == 255
    assert edges.min() == 0  # held in range
    big = np.array([2**53 + 1, 7], np.int64)
    assert at(big, -0.5, 0.5, mode="nearest").tolist() == big.tolist()


def test_half_precision_is_rounded_once():
    x, grid = normal(1, 1, 3, 6, 6, dtype=np.float16), normal(2, 1, 9, 9, 2, dtype=np.float16)
    for mode in ("linear", "cubic"):
        got = grid_sample(x, grid, mode=mode)
        wanted = grid_sample(x.astype(np.float64), grid.astype(np.float64), mode=mode)
        assert got.dtype == np.float16
        assert ulps(got, wanted, np.float16).max() <= 0.52
    assert grid_sample(x.astype(ml_dtypes.bfloat16), grid).dtype == ml_dtypes.bfloat16
    assert grid_sample(x.astype(F), grid.astype(np.float64), mode="nearest").dtype == F


def test_empty():
    assert grid_sample(np.zeros((0, 2, 3, 3), F), np.zeros((0, 4, 5, 2), F)).shape == (0, 2, 4, 5)
    assert grid_sample(np.zeros((1, 2, 3, 3), F), np.zeros((1, 0, 5, 2), F)).shape == (1, 2, 0, 5)
    assert grid_sample(np.zeros((1, 0, 3, 3), F), np.zeros((1, 4, 5, 2), F)).shape == (1, 0, 4, 5)
    assert grid_sample(np.zeros((1, 1, 0, 3), F), np.zeros((1, 1, 2, 2), F)).tolist() == [[[[0, 0]]]]
    with pytest.raises(RunError, match="has no border"):
        grid_sample(np.zeros((1, 1, 0, 3), F), np.zeros((1, 1, 2, 2), F), padding_mode="border")


def test_inferred():
    found = infer("GridSample", [typed("n", "c", "h", "w"), typed("n", "p", "q", 2)])[0]
    assert shape_of(found) == "[n, c, p, q]"
    assert shape_of(infer("GridSample", [typed("n", "c", "h", "w"), typed(3, "p", 9, None)])[0]) == "[3, c, p, 9]"


@pytest.mark.parametrize(
    ("x", "grid", "attrs", "text"),
    [
        ((1, 1, 3, 3), (1, 2, 2, 3), {}, "does not fit"),
        ((1, 1, 3, 3), (1, 2, 2), {}, "does not fit"),
        ((1, 1, 3, 3), (2, 2, 2, 2), {}, "does not fit"),
        ((1, 1), (1, 2), {}, "has no spatial axis"),
        ((1, 1, 3, 3), (1, 2, 2, 2), {"mode": "bilinear"}, "mode 'bilinear' is not one of"),
        ((1, 1, 3, 3), (1, 2, 2, 2), {"padding_mode": "x"}, "padding_mode 'x' is not one of"),
    ],
)
def test_faults(x, grid, attrs, text):
    with pytest.raises(RunError, match=text):
        grid_sample(np.zeros(x, F), np.zeros(grid, F), **attrs)
    with pytest.raises(ShapeError, match=text):
        infer("GridSample", [typed(*x), typed(*grid)], **attrs)


def test_strings_have_no_averages():
    with pytest.raises(RunError, match="strings have no linear interpolation"):
        at(np.array(["a"], object), 0)


# ---- AffineGrid


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 4), (1, 5), (2, 3, 4)])
def test_affine_places(sizes, corners):
    theta = normal(1, 2, len(sizes), len(sizes) + 1)
    got = affine_grid(theta, ints(2, 7, *sizes), align_corners=corners)
    assert got.shape == (2, *sizes, len(sizes))
    for n, *place in np.ndindex(2, *sizes):
        unit = [
            (2 * i / (s - 1) - 1 if s > 1 else 0.0) if corners else (2 * i + 1) / s - 1
            for i, s in zip(place, sizes, strict=True)
        ]
        wanted = theta[n].astype(float) @ [*unit[::-1], 1.0]
        np.testing.assert_allclose(got[(n, *place)], wanted, rtol=2e-7, atol=1e-7)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("sizes", [(3, 4), (2, 5, 3)])
def test_affine_as_onnxruntime_has_it(sizes, corners):
    given = [normal(1, 2, len(sizes), len(sizes) + 1), ints(2, 7, *sizes)]
    wanted = onnxruntime_says("AffineGrid", given, opset=20, align_corners=corners)
    same(affine_grid(*given, align_corners=corners), wanted)


def test_the_identity_samples_the_image_itself():
    x = normal(3, 2, 3, 4, 5)
    theta = np.broadcast_to(np.eye(2, 3, dtype=F), (2, 2, 3))
    for corners in (0, 1):
        grid = affine_grid(theta, ints(*x.shape), align_corners=corners)
        assert grid_sample(x, grid, mode="nearest", align_corners=corners).tolist() == x.tolist()


def test_affine_dtypes_inference_and_faults():
    half = affine_grid(normal(1, 1, 2, 3, dtype=np.float16), ints(1, 1, 2, 2))
    assert half.dtype == np.float16
    assert affine_grid(np.zeros((1, 2, 3), F), ints(1, 1, 0, 2)).shape == (1, 0, 2, 2)
    assert shape_of(infer("AffineGrid", [typed("n", 2, 3), known("n", 3, "h", 8)])[0]) == "[n, h, 8, 2]"
    assert shape_of(infer("AffineGrid", [typed("n", 3, 4), typed(5, dtype=np.int64)])[0]) == "[n, ?, ?, ?, 3]"
    assert infer("AffineGrid", [typed("n", 3, 4), typed("k", dtype=np.int64)])[0].shape is None
    for size, text in (
        ((1, 1, 2), "size has 3 entries"),
        ((1, 1, 2, 2, 2), "does not fit"),
        ((2, 1, 2, 2), "does not fit"),
    ):
        with pytest.raises(RunError, match=text):
            affine_grid(np.zeros((1, 2, 3), F), ints(*size))
        with pytest.raises(ShapeError, match=text):
            infer("AffineGrid", [typed(1, 2, 3), known(*size)])
    with pytest.raises(RunError, match="negative size"):
        affine_grid(np.zeros((1, 2, 3), F), ints(1, 1, -2, 2))
