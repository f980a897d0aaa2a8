"""NonMaxSuppression."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.boxes import BLOCK, non_max_suppression
from tests.ops.cases import check_case, infer, ints, known, node_cases, shape_of, typed
from tests.ops.oracle import onnxruntime_says

F = np.float32


@pytest.mark.parametrize("case", node_cases("NonMaxSuppression"))
def test_onnx_cases(case):
    check_case(case)


def floats(*values):
    return np.array(values, F)


def chosen(boxes, scores, limit=100, iou=0.5, least=None, **attrs):
    """The boxes kept of one image and one class."""
    given = [np.array([boxes], F), np.array([[scores]], F), ints(limit), floats(iou)]
    found = non_max_suppression(*given, *([] if least is None else [floats(least)]), **attrs)
    assert found.dtype == np.int64
    assert (found[:, :2] == 0).all()
    return found[:, 2].tolist()


def apart(count):
    """Unit squares that do not touch."""
    return [[0, 3 * i, 1, 3 * i + 1] for i in range(count)]


def one_by_one(boxes, scores, limit, iou, least, center):
    """The operator's text, box by box."""
    found = []
    for n, c in np.ndindex(*scores.shape[:2]):
        order = sorted(range(boxes.shape[1]), key=lambda i: (-scores[n, c, i], i))
        kept = []
        for i in order:
            fits = least is None or scores[n, c, i] > least
            if len(kept) < limit and fits and not any(shared(boxes[n, i], boxes[n, j], center) > iou for j in kept):
                kept.append(i)
        found += [(n, c, i) for i in kept]
    return found


def corners(box, center):
    if center:
        x, y, w, h = box
        return x - w / 2, x + w / 2, y - h / 2, y + h / 2
    y1, x1, y2, x2 = box
    return min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)


def shared(a, b, center):
    """Intersection over union, of numbers that are exact in float64."""
    (al, ar, at, ab), (bl, br, bt, bb) = corners(a, center), corners(b, center)
    both = max(min(ar, br) - max(al, bl), 0) * max(min(ab, bb) - max(at, bt), 0)
    union = (ar - al) * (ab - at) + (br - bl) * (bb - bt) - both
    return both / union if both > 0 else 0


@pytest.mark.parametrize("seed", range(12))
def test_as_the_text_says(seed):
    rng = np.random.default_rng(seed)
    boxes = rng.integers(0, 64, (2, [7, BLOCK, BLOCK + 1, 300][seed % 4], 4)).astype(F) / 4
    scores = rng.integers(-8, 8, (2, 2, boxes.shape[1])).astype(F) / 8  # many ties
    limit, iou, least = [3, 10**6][seed % 2], [0.0, 0.3, 0.75][seed % 3], [None, 0.0][seed // 2 % 2]
    given = [boxes, scores, ints(limit), floats(iou)] + ([] if least is None else [floats(least)])
    found = non_max_suppression(*given, center_point_box=seed % 2)
    wanted = one_by_one(boxes.astype(float), scores, limit, np.float32(iou), least, seed % 2)
    assert [tuple(row) for row in found.tolist()] == wanted


@pytest.mark.parametrize("seed", range(20))
def test_as_onnxruntime_has_it(seed):
    rng = np.random.default_rng(seed)
    boxes = rng.random((2, 150, 4)).astype(F)
    scores = np.round(rng.standard_normal((2, 3, 150)), seed % 3 + 1).astype(F)
    given = [boxes, scores, ints([5, 1000][seed % 2]), floats([0, 0.3, 0.5, 1][seed % 4])]
    given += [floats(0.1)] if seed % 3 else []
    wanted = onnxruntime_says("NonMaxSuppression", given, opset=11, center_point_box=seed // 2 % 2)
    assert non_max_suppression(*given, center_point_box=seed // 2 % 2).tolist() == wanted.tolist()


def test_equal_scores_come_in_order_and_zero_has_no_sign():
    assert chosen(apart(6), [0.0, -0.0, 0.0, -0.0, 1.0, 0.0]) == [4, 0, 1, 2, 3, 5]
    assert chosen(apart(4), [0.0, -0.0, 1e-45, 0.0], least=0.0) == [2]
    assert chosen(apart(4), [1, np.inf, -np.inf, 2]) == [1, 3, 0, 2]


def test_nan_scores_are_the_worst():
    assert chosen(apart(4), [np.nan, -1, np.nan, 1]) == [3, 1, 0, 2]
    assert chosen(apart(4), [np.nan, -1, np.nan, 1], least=-2) == [3, 1]


def test_the_threshold_itself_is_allowed():
    half = [[0, 0, 1, 2], [0, 0, 1, 1]]
    assert chosen(half, [2, 1], iou=0.5) == [0, 1]
    assert chosen(half, [2, 1], iou=0.49) == [0]
    assert chosen([[0, 0, 1, 1]] * 3, [1, 2, 3], iou=1) == [2, 1, 0]
    assert chosen([[0, 0, 1, 1], [0, 1, 1, 2]], [1, 2], iou=0) == [1, 0]  # they touch and share nothing


def test_boxes_without_area_or_with_nan_suppress_nothing():
    assert chosen([[0, 0, 0, 1]] * 3, [1, 2, 3], iou=0) == [2, 1, 0]
    assert chosen([[0, 0, np.nan, 1]] * 3, [1, 2, 3], iou=0) == [2, 1, 0]
    assert chosen([[0, 0, np.inf, 1]] * 3, [1, 2, 3], iou=0) == [2, 1, 0]
    assert chosen([[5, 5, -1, -1]] * 2, [1, 2], iou=0, center_point_box=1) == [1, 0]


def test_a_chain_of_boxes_is_settled_in_order():
    """Each box overlaps the next: 0 removes 1, which then cannot remove 2, and so on."""
    count = 2 * BLOCK + 3
    boxes = [[0, i, 1, i + 1.9] for i in range(count)]
    assert chosen(boxes, -np.arange(count), limit=count, iou=0.3) == list(range(0, count, 2))
    assert chosen(boxes, -np.arange(count), limit=5, iou=0.3) == [0, 2, 4, 6, 8]


def test_flipped_corners_are_the_same_box():
    assert chosen([[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 1, 0]], [1, 3, 2]) == [1]


def test_what_is_not_given():
    boxes, scores = np.array([apart(3)], F), np.zeros((1, 1, 3), F)
    assert non_max_suppression(boxes, scores).shape == (0, 3)
    assert non_max_suppression(boxes, scores, ints(-1), floats(0.5)).shape == (0, 3)
    assert len(non_max_suppression(boxes, scores, np.array(9), np.zeros(0, F), None)) == 3
    assert len(non_max_suppression(boxes, scores, ints(2))) == 2
    empty = non_max_suppression(np.zeros((1, 0, 4), F), np.zeros((1, 2, 0), F), ints(9), floats(0.5))
    assert empty.shape == (0, 3)
    assert non_max_suppression(np.zeros((0, 5, 4), F), np.zeros((0, 2, 5), F), ints(9)).shape == (0, 3)


def test_inferred():
    given = [typed("n", "b", 4), typed("n", "c", "b")]
    assert shape_of(infer("NonMaxSuppression", [*given, typed(1)])[0]) == "[?, 3]"
    assert shape_of(infer("NonMaxSuppression", [*given, known(0)])[0]) == "[0, 3]"
    assert shape_of(infer("NonMaxSuppression", given)[0]) == "[0, 3]"


def test_faults():
    for boxes, scores in (((1, 3, 5), (1, 1, 3)), ((1, 3), (1, 1, 3)), ((1, 3, 4), (1, 3)), ((2, 3, 4), (1, 1, 3))):
        with pytest.raises(RunError, match=r"boxes|scores"):
            non_max_suppression(np.zeros(boxes, F), np.zeros(scores, F), ints(1))
        with pytest.raises(ShapeError, match=r"boxes|scores"):
            infer("NonMaxSuppression", [typed(*boxes), typed(*scores)])
    one = np.zeros((1, 1, 4), F), np.zeros((1, 1, 1), F)
    for iou in (-0.1, 1.1, np.nan):
        with pytest.raises(RunError, match=r"iou_threshold .* is outside"):
            non_max_suppression(*one, ints(1), floats(iou))
    with pytest.raises(RunError, match="center_point_box 2 is not 0 or 1"):
        non_max_suppression(*one, center_point_box=2)
    with pytest.raises(RunError, match="max_output_boxes_per_class must be one element"):
        non_max_suppression(*one, ints(1, 2))
