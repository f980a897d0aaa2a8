"""Resize: ONNX's own cases, sizes and policies, inference, and faults."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Symbolic
from fuse.ops.record import Info
from fuse.ops.resize import resize, scaled_dim
from tests.ops.cases import check_case, infer, known, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

F = np.float32


@pytest.mark.parametrize("case", node_cases("Resize"))
def test_onnx_cases(case):
    check_case(case)


def floats(*values):
    return np.array(values, dtype=np.float32)


def ints(*values):
    return np.array(values, dtype=np.int64)


def row(*values):
    return np.array(values, dtype=np.float32)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_zero_sizes_and_fresh_results(mode):
    x = np.ones((0, 2, 3), F)
    assert resize(x, None, floats(1, 2, 2), mode=mode).shape == (0, 4, 6)
    assert resize(np.ones((2, 3), F), None, None, ints(2, 0), mode=mode).shape == (2, 0)
    assert resize(np.ones((2, 0), F), None, None, ints(4, 0), mode=mode).shape == (4, 0)
    x = np.ones((2, 3), F)
    assert not np.shares_memory(resize(x, None, floats(1, 1), mode=mode), x)


def test_empty_inputs_count_as_absent():
    x, empty = row(1, 2), np.zeros(0, F)
    assert resize(x, empty, floats(2), np.zeros(0, np.int64)).tolist() == [1, 1, 2, 2]
    assert resize(x, empty, empty, ints(4)).tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("policy", "sizes", "wanted"),
    [
        ("stretch", (7, 8), (7, 8)),
        ("not_larger", (7, 8), (4, 8)),
        ("not_smaller", (7, 8), (7, 14)),
        ("not_larger", (1, 9), (1, 2)),
        ("not_smaller", (1, 5), (3, 5)),  # 2.5 is rounded up
    ],
)
def test_aspect_ratio_policies(policy, sizes, wanted):
    x = normal(1, 2, 4)
    attrs = {"keep_aspect_ratio_policy": policy, "mode": "linear"}
    got = resize(x, None, None, ints(*sizes), **attrs)
    assert got.shape == wanted
    assert infer("Resize", [typed(2, 4), None, None, known(*sizes)], **attrs)[0].shape == wanted
    same(got, onnxruntime_says("Resize", [x, None, None, ints(*sizes)], opset=19, **attrs))


# ---- inference and faults


def scales(*values):
    array = np.array(values, F)
    return Info(typed(len(values)).type, array)


def test_inferred():
    x = typed("n", 3, "h", "w")
    assert shape_of(infer("Resize", [x, None, scales(1, 1, 2, 0.5)])[0]) == "[n, 3, 2*h, floor((w)/(2))]"
    assert (
        shape_of(infer("Resize", [x, None, scales(2, 1.5), None], axes=(2, 3))[0]) == "[n, 3, 2*h, w + floor((w)/(2))]"
    )
    assert shape_of(infer("Resize", [x, None, scales(1, 1, 1.1, 1)])[0]) == "[n, 3, ?, w]"
    assert shape_of(infer("Resize", [x, None, typed(4)])[0]) == "[?, ?, ?, ?]"
    assert shape_of(infer("Resize", [x, None, typed(0), known("n", 3, "p", 9)])[0]) == "[n, 3, p, 9]"
    assert shape_of(infer("Resize", [x, None, None, known(4, 9)], axes=(-2, -1))[0]) == "[n, 3, 4, 9]"
    assert shape_of(infer("Resize", [typed(10), None, scales(0.7)])[0]) == "[7]"


def test_scaled_dims():
    n = Symbolic.of("n")
    assert str(scaled_dim(n, 0.25)) == "floor((n)/(4))"
    assert [scaled_dim(n, s) for s in (0.0, math.nan, math.inf, 1 / 3)] == [None] * 4
    assert scaled_dim(None, 2.0) is None


@pytest.mark.parametrize(
    ("arguments", "attrs", "error", "text"),
    [
        ([None, floats(0)], {}, RunError, "scale 0 is not a positive number"),
        ([None, floats(np.nan)], {}, RunError, "scale nan is not a positive number"),
        ([None, floats(np.inf)], {}, RunError, "scale inf is not a positive number"),
        ([None, floats(1e30)], {}, RunError, "scale 1e+30 makes an axis of 2 too large"),
        ([None, None, ints(-1)], {}, RunError, "an axis cannot be resized to -1"),
        ([None, None, ints(2**62)], {}, RunError, f"an axis cannot be resized to {2**62}"),
        ([None, floats(1, 1)], {}, ShapeError, "scales has 2 entries for 1 axes"),
        ([None, None, ints(1, 1)], {}, ShapeError, "sizes has 2 entries for 1 axes"),
        ([], {}, ShapeError, "exactly one of scales and sizes must be given"),
        ([None, floats(1), ints(2)], {}, ShapeError, "exactly one of scales and sizes must be given"),
        ([None, floats(2)], {"mode": "area"}, ShapeError, "mode 'area' is not one of nearest, linear, cubic"),
        ([None, floats(2)], {"nearest_mode": "up"}, ShapeError, "nearest_mode 'up' is not one of"),
        ([None, floats(2)], {"coordinate_transformation_mode": "x"}, ShapeError, "coordinate_transformation_mode 'x'"),
        (
            [None, None, ints(2)],
            {"keep_aspect_ratio_policy": "x"},
            ShapeError,
            "keep_aspect_ratio_policy 'x' is not one of",
        ),
        ([None, floats(2)], {"coordinate_transformation_mode": "tf_crop_and_resize"}, ShapeError, "needs 2 roi"),
        ([None, floats(2)], {"axes": (1,)}, ShapeError, "axis 1 is out of range for rank 1"),
    ],
)
def test_faults(arguments, attrs, error, text):
    with pytest.raises(error) as caught:
        resize(row(1, 2), *arguments, **attrs)
    assert text in caught.value.what


def test_an_empty_axis_cannot_grow():
    with pytest.raises(RunError, match="an empty axis cannot be resized to 4"):
        resize(np.zeros((1, 0), F), None, None, ints(1, 4))


def test_inference_refuses_what_the_kernel_refuses():
    with pytest.raises(ShapeError, match="sizes has 2 entries for 1 axes"):
        infer("Resize", [typed(3), None, None, known(1, 1)])
    with pytest.raises(ShapeError, match="axis 1 is out of range for rank 1"):
        infer("Resize", [typed(3), None, scales(1)], axes=(1,))
    with pytest.raises(ShapeError, match="mode 'area' is not one of nearest, linear, cubic"):
        infer("Resize", [typed(3), None, scales(1)], mode="area")
    with pytest.raises(ShapeError, match="keep_aspect_ratio_policy 'x' is not one of"):
        infer("Resize", [typed(3), None, scales(1)], keep_aspect_ratio_policy="x")
