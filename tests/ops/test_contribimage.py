"""Operators of com.microsoft on images against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from tests.ops.cases import infer, known, typed
from tests.ops.contrib import agree, both_refuse, refuse, run, shapes
from tests.ops.oracle import normal

X = normal(1, 2, 3, 4, 5)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [0, 1])
def test_grid_sample(mode, padding, corners):
    grid = normal(2, 2, 5, 6, 2) * 0.8
    agree("GridSample", [X, grid], eps=1e-5, mode=mode, padding_mode=padding, align_corners=corners)


def test_grid_sample_faults():
    grid = normal(2, 2, 5, 6, 2)
    refuse("GridSample", [X, grid], "mode 'linear' is not one of", mode="linear")
    refuse("GridSample", [X[0], grid[0]], "needs 4 axes")
    assert shapes("GridSample", typed("n", 3, 4, 5), typed("n", "h", "w", 2)) == "[n, 3, h, w]"


# ---- ConvTransposeWithDynamicPads

DECONV = "ConvTransposeWithDynamicPads"
W = normal(3, 3, 2, 3, 3)


def pads(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("given", [(1, 0, 1, 2), (0, 0, 0, 0), (2, 1, 1, 1)])
@pytest.mark.parametrize("strides", [None, [2, 2], [2, 1]])
def test_pads_that_are_an_input(given, strides):
    attrs = {} if strides is None else {"strides": strides}
    agree(DECONV, [X, W, pads(*given), normal(4, 2)], eps=5e-6, **attrs)
    agree(DECONV, [X, W, pads(*given)], eps=5e-6, dilations=[2, 2], **attrs)


def test_without_pads():
    y = run(DECONV, [X, W, None, normal(4, 2)], strides=[2, 1], output_padding=[1, 0])[0]
    zeros = agree(DECONV, [X, W, pads(0, 0, 0, 0), normal(4, 2)], eps=5e-6, strides=[2, 1], output_padding=[1, 0])[0]
    assert y.tolist() == zeros.tolist()
    both_refuse(DECONV, [X, W, pads(1, 0, 1)], r"Pads is \[3\], not \[4\]")


def test_deconv_inferred():
    x, w = typed("n", 3, "h", "w"), typed(3, 2, 3, 3)
    assert shapes(DECONV, x, w, known(1, 0, 1, 0)) == "[n, 2, h, w + 2]"
    assert shapes(DECONV, x, w, typed(4, dtype=np.int64)) == "[n, 2, ?, ?]"
    with pytest.raises(ShapeError, match="Pads is"):
        infer(f"com.microsoft::{DECONV}", [x, w, known(1, 0)])


# ---- CropAndResize

BOXES = np.array([[0, 0, 1, 1], [0.1, 0.2, 0.8, 0.5], [-0.2, 0.3, 1.3, 0.9], [0.9, 0.9, 0.1, 0.2]], np.float32)
IMAGES = np.array([0, 1, 1, 0], np.int32)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 1), (1, 5), (9, 2)])
def test_crops(mode, size):
    crop = np.array(size, np.int32)
    agree("CropAndResize", [X, BOXES, IMAGES, crop], double=mode != "nearest", mode=mode, extrapolation_value=2.5)
    agree("CropAndResize", [X, BOXES[:0], IMAGES[:0], crop], mode=mode)


def test_a_crop_of_the_whole_is_the_image():
    y = agree("CropAndResize", [X, BOXES[:1], IMAGES[:1], np.array([4, 5], np.int32)])[0]
    np.testing.assert_allclose(y[0], X[0], rtol=1e-6, atol=1e-6)


def test_crop_faults():
    crop = np.array([2, 2], np.int32)
    both_refuse("CropAndResize", [X, BOXES, IMAGES + 1, crop], "batch index 2 is out of range")
    both_refuse("CropAndResize", [X, BOXES, IMAGES - 1, crop], "batch index -1 is negative")
    both_refuse("CropAndResize", [X, BOXES, IMAGES[:2], crop], "numbers of rois and batch_indices differ")
    both_refuse("CropAndResize", [X, BOXES, IMAGES, crop * 0], "a crop of size")
    refuse("CropAndResize", [X, BOXES, IMAGES, crop], "mode 'area' is not", mode="area")
    sizes = type(known(1))(typed(2, dtype=np.int32).type, np.array([3, 4], np.int32))
    boxes = [typed("r", 4), typed("r", dtype=np.int32)]
    assert shapes("CropAndResize", typed("n", 3, "h", "w"), *boxes, sizes) == "[r, 3, 3, 4]"
