"""Upsample and the old Resize: positions over scales, as onnxruntime has them."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.record import Info
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

F = np.float32


@pytest.mark.parametrize("case", node_cases("Upsample"))
def test_onnx_cases(case):
    check_case(case)


@pytest.mark.parametrize(("op", "name", "opset"), [("Upsample", "Upsample", 9), ("Resize-10", "Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(2, 3), (1.5, 2), (1, 4 / 3), (2.5, 1)])
def test_growing(op, name, opset, mode, scales):
    x, factors = normal(1, 1, 2, 3, 4), np.array([1, 1, *scales], F)
    same(kernel(op, x, factors, mode=mode), onnxruntime_says(name, [x, factors], opset=opset, mode=mode))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_shrinking(mode):
    x, factors = normal(1, 1, 2, 7, 8), np.array([1, 1, 0.6, 0.5], F)
    same(kernel("Resize-10", x, factors, mode=mode), onnxruntime_says("Resize", [x, factors], opset=10, mode=mode))


def test_nearest_takes_the_upper_neighbour_where_it_shrinks():
    x = np.arange(7, dtype=F)
    assert kernel("Resize-10", x, np.array([0.6], F)).tolist() == [0, 2, 4, 5]
    assert kernel("Resize-10", x[:3], np.array([1.5], F)).tolist() == [0, 0, 1, 2]


def test_the_first_form():
    x = np.array([[[[1, 2], [3, 4]]]], F)
    got = kernel("Upsample-1", x, height_scale=1.0, width_scale=2.0)
    assert got.tolist() == [[[[1, 1, 2, 2], [3, 3, 4, 4]]]]
    got = kernel("Upsample-1", x, height_scale=2.0, width_scale=1.0, mode="bilinear")
    assert got.tolist() == [[[[1, 2], [2, 3], [3, 4], [3, 4]]]]


def test_inferred():
    scales = Info(typed(4).type, np.array([1, 1, 2, 0.5], F))
    for op in ("Upsample", "Resize-10"):
        assert shape_of(infer(op, [typed("n", 3, "h", 10), scales])[0]) == "[n, 3, 2*h, 5]"
        assert shape_of(infer(op, [typed("n", 3, "h", 10), typed(4)])[0]) == "[?, ?, ?, ?]"
    first = infer("Upsample-1", [typed(1, 3, "h", 10)], height_scale=2.0, width_scale=1.5)[0]
    assert shape_of(first) == "[1, 3, 2*h, 15]"


def test_faults():
    x = np.ones((1, 1, 2, 2), F)
    for check in (
        lambda: kernel("Upsample", x, np.ones(3, F)),
        lambda: infer("Upsample", [typed(1, 1, 2, 2), typed(3)]),
    ):
        with pytest.raises(ShapeError, match=r"scales are \[3\] for an input of rank 4"):
            check()
    for check in (
        lambda: kernel("Upsample", x, np.ones(4, F), mode="cubic"),
        lambda: infer("Upsample", [typed(1), typed(1)], mode="cubic"),
    ):
        with pytest.raises(ShapeError, match="mode 'cubic' is not one of nearest, linear"):
            check()
    with pytest.raises(RunError, match="scale -1 is not a positive number"):
        kernel("Upsample", x, np.array([1, 1, -1, 1], F))
    for check in (
        lambda: kernel("Upsample-1", np.ones((2, 2), F), height_scale=1.0, width_scale=1.0),
        lambda: infer("Upsample-1", [typed(2, 2)], height_scale=1.0, width_scale=1.0),
    ):
        with pytest.raises(ShapeError, match="the input is 2-D, not 4-D"):
            check()
