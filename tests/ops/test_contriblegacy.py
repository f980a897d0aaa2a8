"""What onnxruntime still runs of the default domain's first experiments."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import infer, kernel, known, typed
from tests.ops.contrib import agree, both_refuse
from tests.ops.oracle import close, normal

X = normal(1, 2, 3, 5, 6) * 3


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("Affine-1", {}),
        ("Affine-1", {"alpha": 2.0, "beta": -1.0}),
        ("Scale-1", {}),
        ("Scale-1", {"scale": -0.5}),
        ("ParametricSoftplus-1", {"alpha": 2.0, "beta": 0.5}),
        ("ScaledTanh-1", {"alpha": 2.0, "beta": 0.5}),
        ("ImageScaler-1", {"bias": [1.0, -2.0, 0.5]}),
        ("ImageScaler-1", {"bias": [1.0, -2.0, 0.5], "scale": 2.0}),
    ],
)
def test_elementwise(op, attrs):
    agree(op, [X], **attrs)
    agree(op, [X[:0]], **attrs)


def test_softplus_neither_overflows_nor_vanishes():
    x = np.array([-100, -20, 20, 1000], np.float32)
    y = kernel("ParametricSoftplus-1", x, alpha=1.0, beta=1.0)
    close(y, np.logaddexp(0, x.astype(np.float64)), eps=1e-7)
    assert y[0] > 0


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(dtype):
    x = X.astype(dtype)
    eps = 1e-3 if dtype == np.float16 else 1e-14
    close(kernel("Affine-1", x, alpha=2.0, beta=1.0), 2 * x.astype(np.float64) + 1, eps)
    close(kernel("ScaledTanh-1", x, alpha=2.0, beta=0.5), 2 * np.tanh(x.astype(np.float64) / 2), eps)
    assert kernel("ImageScaler-1", x, bias=[1.0, 2.0, 3.0]).dtype == dtype


@pytest.mark.parametrize(
    "attrs",
    [
        {"border": [1, 0, 2, 1]},
        {"border": [0, 0, 0, 0]},
        {"border": [3, 0, 3, 0]},
        {"border": [1, 2, 0, 0], "scale": [2, 3]},
        {"border": [1, 2, 1, 1], "scale": [3, 3]},
    ],
)
def test_crop(attrs):
    agree("Crop-1", [X], **attrs)


def test_slice():
    agree("DynamicSlice-1", [X[0, 0], np.array([1]), np.array([-1]), np.array([1])], exact=False)
    agree("DynamicSlice-1", [X[0, 0], np.array([1, 0]), np.array([100, 2])], exact=False)


def test_faults():
    for attrs, say in (
        ({"border": [1, 3, 3, 3]}, "reach beyond"),
        ({"border": [1, 2, 0, 0], "scale": [5, 3]}, "reach beyond"),
        ({"border": [1, 2, 3]}, "is not left, top, right, bottom"),
        ({"border": [-1, 0, 0, 0]}, "negative"),
        ({}, "is not left, top, right, bottom"),
    ):
        with pytest.raises(RunError, match=say):
            kernel("Crop-1", X, **attrs)
        with pytest.raises(ShapeError, match=say):
            infer("Crop-1", [typed(*X.shape)], **attrs)
    for op in ("ScaledTanh-1", "ParametricSoftplus-1"):
        both_refuse(op, [X], "needs alpha and beta", alpha=1.0)
    with pytest.raises(RunError, match="1 biases for the channels"):
        kernel("ImageScaler-1", X, bias=[1.0])


def test_inferred():
    cropped = infer("Crop-1", [typed("n", 3, "h", "w")], border=(1, 0, 2, 1))[0]
    assert str(cropped.type) == "float[n, 3, h - 1, w - 3]"
    sized = infer("Crop-1", [typed("n", 3, "h", "w")], border=(1, 0, 2, 1), scale=(4, 5))[0]
    assert str(sized.type) == "float[n, 3, 4, 5]"
    assert infer("Affine-1", [typed("n", 3)], alpha=2.0)[0] == typed("n", 3)
    sliced = infer("DynamicSlice-1", [typed("n", 6), known(1), known(4), known(1)])[0]
    assert str(sliced.type) == "float[n, 3]"
