"""NonMaxSuppression: the best boxes of each class, without those that overlap a better one too much.

Candidates are taken best first, a block at a time.  One matrix of overlaps strikes out what the boxes kept so far
suppress; a second one settles the block among itself.  Overlaps are computed in the dtype of the boxes by the formula
that onnxruntime uses, so that a pair right at the threshold is judged alike.
Source: the ONNX operator text.
"""

from __future__ import annotations

import itertools

import numpy as np

from fuse.ir.dtypes import INT64, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim, single
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor

BLOCK = 128
"""Candidates judged at once: with many more the matrices leave the cache, with many fewer the calls cost most."""

EARLIER = np.triu(np.ones((BLOCK, BLOCK), bool), 1)
"""True at [i, j] where i is before j."""


def _check(boxes: Shape | None, scores: Shape | None, center_point_box: int) -> None:
    expect(center_point_box in (0, 1), f"center_point_box {center_point_box} is not 0 or 1")
    if boxes is not None:
        fits = len(boxes) == 3 and (boxes[2] == 4 or not isinstance(boxes[2], int))
        expect(fits, f"boxes {show_shape(boxes)} are not [batch, boxes, 4]")
    if scores is not None:
        expect(len(scores) == 3, f"scores {show_shape(scores)} are not [batch, classes, boxes]")
    if boxes is not None and scores is not None:
        say = f"boxes {show_shape(boxes)} and scores {show_shape(scores)} differ in batch or in the number of boxes"
        same_dim((boxes[0], scores[0]), say)
        same_dim((boxes[1], scores[2]), say)


def _info(
    boxes: Info,
    scores: Info,
    max_output_boxes_per_class: Info | None = None,
    iou_threshold: Info | None = None,
    score_threshold: Info | None = None,
    *,
    center_point_box: int = 0,
) -> Info:
    _check(boxes.shape, scores.shape, center_point_box)
    limit = (0,) if max_output_boxes_per_class is None else max_output_boxes_per_class.ints
    return tensor(INT64, (0 if limit is not None and max(limit, default=0) <= 0 else None, 3))


@operator("NonMaxSuppression", infer=_info)
@at_run_time
def non_max_suppression(
    boxes: Array,
    scores: Array,
    max_output_boxes_per_class: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> Array:
    """The selected (batch, class, box) triples: batch by batch, class by class, the best score first.

    Of equal scores the first box comes first, 0.0 and -0.0 are equal, and NaN is the worst score of all.  A box without
    area, or with a NaN in it, suppresses nothing.  An empty tensor counts as an absent input.
    """
    _check(boxes.shape, scores.shape, center_point_box)
    limit = max(int(_given(max_output_boxes_per_class, "max_output_boxes_per_class", 0)), 0)
    allowed = boxes.dtype.type(_given(iou_threshold, "iou_threshold", 0.0))
    expect(0 <= allowed <= 1, f"iou_threshold {allowed:g} is outside [0, 1]")
    least = _given(score_threshold, "score_threshold", None)
    found = [np.empty((0, 3), INT64)]
    sides = [_sides(image, center_point_box) for image in boxes] if limit else []
    for batch, label in itertools.product(range(len(sides)), range(scores.shape[1])):
        own = scores[batch, label]
        order = np.arange(own.size) if least is None else np.flatnonzero(own > least)
        kept = _kept(sides[batch], order[np.argsort(-own[order], kind="stable")], limit, allowed)
        found.append(np.stack([np.full_like(kept, batch), np.full_like(kept, label), kept], axis=1))
    return np.concatenate(found)


def _given(x: Array | None, name: str, default: float | None) -> float:
    return default if x is None or x.size == 0 else single(x, name)  # type: ignore[return-value]


def _sides(boxes: Array, center_point_box: int) -> Array:
    """Left, right, top and bottom of each box, and its area, as the rows of a (5, boxes) array."""
    if center_point_box:
        (x, y), half = boxes[:, :2].T, boxes[:, 2:].T / 2
        left, right, top, bottom = x - half[0], x + half[0], y - half[1], y + half[1]
    else:
        y1, x1, y2, x2 = boxes.T
        left, right, top, bottom = np.minimum(x1, x2), np.maximum(x1, x2), np.minimum(y1, y2), np.maximum(y1, y2)
    with np.errstate(all="ignore"):
        return np.stack([left, right, top, bottom, (right - left) * (bottom - top)])


def _overlaps(a: Array, b: Array, allowed: np.floating) -> Array:
    """True at [i, j] where box i of ``a`` and box j of ``b`` share more than ``allowed`` of their union.

    Most pairs do not touch: four comparisons find those that do, and only these are measured.
    """
    column = a[:, :, None]
    found = (column[0] < b[1]) & (b[0] < column[1]) & (column[2] < b[3]) & (b[2] < column[3])
    touching = np.flatnonzero(found)
    first, second = np.divmod(touching, max(b.shape[1], 1))
    p, q = a[:, first], b[:, second]
    with np.errstate(all="ignore"):
        both = (np.minimum(p[1], q[1]) - np.maximum(p[0], q[0])) * (np.minimum(p[3], q[3]) - np.maximum(p[2], q[2]))
        union = p[4] + q[4] - both
        real = (both > 0) & (p[4] > 0) & (q[4] > 0) & (union > 0)
        found.reshape(-1)[touching] = real & (both / union > allowed)
    return found


def _kept(sides: Array, order: Array, limit: int, allowed: np.floating) -> Array:
    """The boxes of ``order``, best first, that no better kept one suppresses; at most ``limit``."""
    kept = np.empty(0, INT64)
    for start in range(0, order.size, BLOCK):
        block = order[start : start + BLOCK]
        if kept.size:
            block = block[~_overlaps(sides[:, block], sides[:, kept], allowed).any(axis=1)]
        own = sides[:, block]
        beats = _overlaps(own, own, allowed) & EARLIER[: block.size, : block.size]
        kept = np.concatenate([kept, block[_survivors(beats)]])[:limit]
        if kept.size == limit:
            break
    return kept


def _survivors(beats: Array) -> Array:
    """Who is left where ``beats[i, j]`` says that i, if it is left itself, removes j; i is always before j.

    Each round removes what the survivors of the last one beat.  A box is settled once all before it are, so the result
    is the sequential one, after as many rounds as the longest chain of boxes that beat each other, which is short.
    """
    left: Array = np.ones(len(beats), bool)
    while True:
        after = np.logical_not(beats[left].any(axis=0))
        if np.array_equal(after, left):
            return left
        left = after
