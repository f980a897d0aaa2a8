"""RoiAlign and MaxRoiPool."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.roi import REGIONS, max_roi_pool, roi_align
from tests.ops.cases import check_case, infer, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says, ulps

F = np.float32


@pytest.mark.parametrize("case", node_cases("RoiAlign"))
def test_onnx_cases(case):
    check_case(case, exact=True, rtol=5e-4)  # the cases' answers have four digits


# ---- RoiAlign


def by_formula(x, roi, output, ratio, scale, half_pixel, mode="avg"):
    """One region of one channel in float64, sample by sample."""
    x = x.astype(np.float64)
    offset = 0.5 if half_pixel else 0.0
    x1, y1, x2, y2 = (float(c) * scale - offset for c in roi)
    height, width = (y2 - y1, x2 - x1) if half_pixel else (max(y2 - y1, 1.0), max(x2 - x1, 1.0))
    gh, gw = (ratio or math.ceil(size / cells) for size, cells in zip((height, width), output, strict=True))
    y = np.zeros(output)
    for row, column in np.ndindex(*output):
        values = [
            sample(
                x, y1 + (row + (i + 0.5) / gh) * height / output[0], x1 + (column + (j + 0.5) / gw) * width / output[1]
            )
            for i in range(gh)
            for j in range(gw)
        ]
        if values and mode == "avg":
            y[row, column] = sum(map(sum, values)) / len(values)
        elif values:
            y[row, column] = max(map(max, values))
    return y


def sample(x, y, z):
    """The four weighted pixels around a place."""
    height, width = x.shape
    if not (-1 <= y <= height and -1 <= z <= width):
        return [0.0] * 4
    y, z = min(max(y, 0.0), height - 1), min(max(z, 0.0), width - 1)
    top, left = int(y), int(z)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    u, v = y - top, z - left
    return [
        (1 - u) * (1 - v) * x[top, left], (1 - u) * v * x[top, right],
        u * (1 - v) * x[bottom, left], u * v * x[bottom, right],
    ]  # fmt: skip


def regions(seed, count, reach=20.0):
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.random((count, 2, 2)) * reach - 4, axis=1)
    return corners.reshape(count, 4).astype(F), rng.integers(0, 2, count)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
def test_as_the_text_says(mode, coordinates, ratio):
    x = normal(ratio, 2, 2, 9, 11)
    rois, images = regions(ratio, 12)
    attrs = {"mode": mode, "sampling_ratio": ratio, "coordinate_transformation_mode": coordinates}
    got = roi_align(x, rois, images, output_height=3, output_width=2, spatial_scale=0.75, **attrs)
    assert got.dtype == F
    for region, image in enumerate(images):
        for channel in range(2):
            rest = ((3, 2), ratio, 0.75, coordinates == "half_pixel", mode)
            wanted = by_formula(x[image, channel], rois[region], *rest)
            np.testing.assert_allclose(got[region, channel], wanted, rtol=2e-6, atol=2e-6)


def test_float64_is_that_precise():
    x, (rois, images) = normal(1, 2, 1, 9, 11, dtype=np.float64), regions(3, 5)
    got = roi_align(x, rois.astype(np.float64), images, output_height=2, output_width=2, sampling_ratio=2)
    for region, image in enumerate(images):
        wanted = by_formula(x[image, 0], rois[region], (2, 2), 2, 1.0, True)
        np.testing.assert_allclose(got[region, 0], wanted, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_as_onnxruntime_has_it(seed):
    rng = np.random.default_rng(seed)
    x = normal(seed, 2, 3, *rng.integers(1, 12, 2))
    rois, images = regions(seed, REGIONS + 5)
    rois = np.round(rois) if seed % 2 else rois  # samples right at the border
    attrs = {
        "mode": ["avg", "max"][seed // 2 % 2],
        "output_height": int(rng.integers(1, 5)),
        "output_width": int(rng.integers(1, 5)),
        "sampling_ratio": int(rng.integers(0, 4)),
        "spatial_scale": [1.0, 0.5, 0.3][seed % 3],
        "coordinate_transformation_mode": ["half_pixel", "output_half_pixel"][seed % 2],
    }
    same(roi_align(x, rois, images, **attrs), onnxruntime_says("RoiAlign", [x, rois, images], opset=16, **attrs))


def test_before_opset_16_pixels_are_not_shifted():
    x, (rois, images) = normal(1, 2, 3, 9, 9), regions(1, 4)
    wanted = onnxruntime_says("RoiAlign", [x, rois, images], opset=15, output_height=2, output_width=2)
    attrs = {"output_height": 2, "output_width": 2, "coordinate_transformation_mode": "output_half_pixel"}
    same(roi_align(x, rois, images, **attrs), wanted)


def test_regions_outside_reversed_and_without_size():
    x, first = np.arange(16, dtype=F).reshape(1, 1, 4, 4) + 1, np.zeros(1, np.int64)

    def pooled(*roi, **attrs):
        rois = np.array([roi], F)
        return roi_align(x, rois, first, output_height=2, output_width=2, **attrs).reshape(-1).tolist()

    assert pooled(-9, -9, -5, -5) == [0] * 4
    assert pooled(20, 20, 25, 25) == [0] * 4
    assert pooled(3, 3, 1, 1) == [0] * 4  # a negative size has no samples
    assert pooled(3, 3, 1, 1, sampling_ratio=1) == [11, 10, 7, 6]  # backwards
    assert pooled(1, 1, 1, 1) == [0] * 4
    assert pooled(1, 1, 1, 1, sampling_ratio=2) == [(1 + 2 + 5 + 6) / 4] * 4
    old = {"coordinate_transformation_mode": "output_half_pixel"}
    assert pooled(3, 3, 1, 1, **old) == [16] * 4  # at least one pixel large, then held at the border


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_infinities_and_nan_stay_where_they_are(mode):
    x = np.ones((1, 1, 12, 12), F)
    x[0, 0, 1, 1], x[0, 0, 10, 10] = np.inf, np.nan
    roi, first = np.array([[0, 0, 12, 12]], F), np.zeros(1, np.int64)
    y = roi_align(x, roi, first, output_height=4, output_width=4, sampling_ratio=2, mode=mode)[0, 0]
    assert y[0, 0] == np.inf
    assert np.isnan(y[3, 3])
    y[0, 0] = y[3, 3] = 1
    assert np.isfinite(y).all()
    outside = roi_align(np.full_like(x, np.inf), roi - 40, first, output_height=2, output_width=2, mode=mode)
    assert not outside.any()


def test_half_precision_is_rounded_once():
    x = normal(1, 1, 4, 9, 9, dtype=np.float16)
    rois = np.array([[0.5, 1, 7, 8], [2, 2, 5, 4]], np.float16)
    images = np.zeros(2, np.int64)
    attrs = {"output_height": 3, "output_width": 3, "sampling_ratio": 2}
    got = roi_align(x, rois, images, **attrs)
    wanted = roi_align(x.astype(np.float64), rois.astype(np.float64), images, **attrs)
    assert got.dtype == np.float16
    assert ulps(got, wanted, np.float16).max() <= 0.51
    b = roi_align(x.astype(ml_dtypes.bfloat16), rois.astype(ml_dtypes.bfloat16), images, **attrs)
    assert b.dtype == ml_dtypes.bfloat16


def test_no_regions_and_no_pixels():
    x, none = normal(1, 1, 3, 5, 5), np.zeros((0, 4), F)
    assert roi_align(x, none, np.zeros(0, np.int64), output_height=2, output_width=3).shape == (0, 3, 2, 3)
    empty = roi_align(np.zeros((1, 2, 0, 5), F), np.ones((1, 4), F), np.zeros(1, np.int64))
    assert empty.tolist() == [[[[0]], [[0]]]]


def test_align_inferred():
    given = [typed("n", "c", "h", "w"), typed("r", 4), typed("r", dtype=np.int64)]
    assert shape_of(infer("RoiAlign", given, output_height=7)[0]) == "[r, c, 7, 1]"
    assert shape_of(infer("RoiAlign", [*given[:2], typed(5, dtype=np.int64)])[0]) == "[5, c, 1, 1]"
    with pytest.raises(ShapeError, match="3 rois but 5 batch indices"):
        infer("RoiAlign", [given[0], typed(3, 4), typed(5, dtype=np.int64)])


@pytest.mark.parametrize(
    ("change", "attrs", "text"),
    [
        ({"images": [2]}, {}, "batch index 2 is out of range for 1 images"),
        ({"images": [-1]}, {}, "batch index -1 is out of range for 1 images"),
        ({"images": [0, 0]}, {}, "1 rois but batch indices of shape"),
        ({"rois": [[0, 0, np.nan, 1]]}, {}, "roi 0 is not finite"),
        ({"rois": [[0, 0, 1e30, 1]]}, {}, "too large to be sampled"),
        ({"rois": [[0, 0, 1]]}, {}, r"rois \[1, 3\] are not"),
        ({}, {"mode": "min"}, "mode 'min' is not avg or max"),
        ({}, {"coordinate_transformation_mode": "x"}, "coordinate_transformation_mode 'x' is not one of"),
        ({}, {"output_height": 0}, "output 0 x 1 must be positive"),
        ({}, {"sampling_ratio": -1}, "sampling_ratio -1 is negative"),
    ],
)
def test_align_faults(change, attrs, text):
    given = {"rois": [[0, 0, 1, 1]], "images": [0]} | change
    with pytest.raises(RunError, match=text):
        roi_align(np.zeros((1, 1, 3, 3), F), np.array(given["rois"], F), np.array(given["images"]), **attrs)


# ---- MaxRoiPool


def test_cells_are_whole_pixels():
    x = -np.arange(1.0, 17, dtype=F).reshape(1, 1, 4, 4)

    def pooled(*roi, **attrs):
        return max_roi_pool(x, np.array([[0, *roi]], F), pooled_shape=(2, 2), **attrs)[0, 0].tolist()

    assert pooled(0, 0, 3, 3) == [[-1, -3], [-9, -11]]
    assert pooled(0, 0, 2, 2) == [[-1, -2], [-5, -6]]  # the middle pixel is in both cells
    assert pooled(0.5, 0.5, 2.4, 2.5) == pooled(1, 1, 2, 3)  # halves are rounded away from 0
    assert pooled(3, 3, 1, 1) == [[-16, -16], [-16, -16]]  # at least one pixel
    assert pooled(2, 2, 9, 9) == [[-11, 0], [0, 0]]  # a cell outside is 0
    assert pooled(2, 2, 6, 6, spatial_scale=0.5) == pooled(1, 1, 3, 3)


@pytest.mark.parametrize("seed", range(12))
def test_pools_as_onnxruntime_does(seed):
    rng = np.random.default_rng(seed)
    x = normal(seed, 2, 3, *rng.integers(1, 12, 2))
    corners, images = regions(seed, 20)
    rois = np.concatenate([images[:, None].astype(F), corners], axis=1)
    attrs = {"pooled_shape": rng.integers(1, 5, 2).tolist(), "spatial_scale": [1.0, 0.5, 0.3][seed % 3]}
    wanted = onnxruntime_says("MaxRoiPool", [x, rois], opset=16, **attrs)
    assert max_roi_pool(x, rois, **attrs).tolist() == wanted.tolist()


def test_other_dtypes_and_nan():
    x = np.arange(9, dtype=np.float16).reshape(1, 1, 3, 3)
    x[0, 0, 0, 0], x[0, 0, 2, 2] = np.nan, -np.inf
    roi = np.array([[0, 0, 0, 2, 2]], np.float16)
    y = max_roi_pool(x, roi, pooled_shape=(3, 3))
    assert y.dtype == np.float16
    assert str(y.tolist()) == str(x.tolist())
    b = max_roi_pool(x.astype(ml_dtypes.bfloat16), roi.astype(ml_dtypes.bfloat16), pooled_shape=(1, 1))
    assert np.isnan(b.astype(F)).all()


def test_pool_inferred_and_faults():
    assert (
        shape_of(infer("MaxRoiPool", [typed("n", 3, "h", "w"), typed("r", 5)], pooled_shape=(6, 7))[0])
        == "[r, 3, 6, 7]"
    )
    x = np.zeros((1, 1, 3, 3), F)
    for roi, text in (([1, 0, 0, 1, 1], "batch index 1 is out"), ([0, 0, np.inf, 1, 1], "roi 0 is not finite")):
        with pytest.raises(RunError, match=text):
            max_roi_pool(x, np.array([roi], F), pooled_shape=(1, 1))
    with pytest.raises(RunError, match=r"pooled_shape \[2\] is not two sizes"):
        max_roi_pool(x, np.zeros((1, 5), F), pooled_shape=(2,))
    with pytest.raises(ShapeError, match=r"rois \[r, 4\] are not"):
        infer("MaxRoiPool", [typed(1, 1, 3, 3), typed("r", 4)], pooled_shape=(1, 1))
