"""DeformConv."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops.conv import conv
from fuse.ops.deform import BLOCK_BYTES, deform_conv
from tests.ops.cases import check_case, infer, node_cases, same, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says

F = np.float32


@pytest.mark.parametrize("case", node_cases("DeformConv"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def example(seed, *sizes, group=1, offset_group=1, kernel=(2, 3), stride=1, dilation=1, pad=1, mask=False):
    """Inputs and attributes; offsets reach well beyond the border."""
    rank, taps = len(sizes), math.prod(kernel)
    out = [(n + 2 * pad - (k - 1) * dilation - 1) // stride + 1 for n, k in zip(sizes, kernel, strict=True)]
    offset = normal(seed + 2, 2, offset_group * taps * rank, *out) * 2
    given = [
        normal(seed, 2, 4, *sizes),
        normal(seed + 1, 6, 4 // group, *kernel),
        offset.astype(F),
        normal(seed + 3, 6),
    ]
    given += [np.abs(normal(seed + 4, 2, offset_group * taps, *out))] if mask else []
    attrs = {"group": group, "offset_group": offset_group, "strides": [stride] * rank, "dilations": [dilation] * rank}
    return given, {**attrs, "pads": [pad] * (2 * rank)}


def by_formula(x, w, offset, b=None, mask=None, *, group, offset_group, strides, dilations, pads):
    kernel, out, rank = w.shape[2:], offset.shape[2:], w.ndim - 2
    taps, per_group = list(np.ndindex(*kernel)), x.shape[1] // group
    y = np.zeros((len(x), len(w), *out))
    for n, o, c in itertools.product(range(len(x)), range(len(w)), range(per_group)):
        channel = o // (len(w) // group) * per_group + c
        og = channel // (x.shape[1] // offset_group)
        for number, tap in enumerate(taps):
            first = (og * len(taps) + number) * rank
            for place in np.ndindex(*out):
                at = [
                    place[k] * strides[k] + tap[k] * dilations[k] - pads[k] + float(offset[(n, first + k, *place)])
                    for k in range(rank)
                ]
                scale = 1.0 if mask is None else float(mask[(n, og * len(taps) + number, *place)])
                y[(n, o, *place)] += scale * float(w[(o, c, *tap)]) * interpolated(x[n, channel], at)
    return y if b is None else y + b.astype(float).reshape(-1, *(1,) * rank)


def interpolated(image, at):
    total = 0.0
    for corner in itertools.product((0, 1), repeat=len(at)):
        place = [math.floor(p) + d for p, d in zip(at, corner, strict=True)]
        if all(0 <= i < n for i, n in zip(place, image.shape, strict=True)):
            total += math.prod(1 - abs(p - i) for p, i in zip(at, place, strict=True)) * float(image[tuple(place)])
    return total


@pytest.mark.parametrize(
    "case",
    [
        example(0, 5, 6, mask=True),
        example(1, 4, 5, group=2, offset_group=2, mask=True),
        example(2, 5, 4, group=2, stride=2, dilation=2, pad=2),
        example(3, 5, 4, offset_group=4, kernel=(1, 1), pad=0, mask=True),
        example(4, 7, kernel=(3,)),
        example(5, 3, 3, 4, kernel=(2, 1, 2), offset_group=2, mask=True),
    ],
)
def test_as_the_text_says(case):
    given, attrs = case
    got = deform_conv(*given, **attrs)
    assert got.dtype == F
    assert got.flags.c_contiguous
    close(got, by_formula(*given, **attrs), eps=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_as_onnxruntime_has_it(seed):
    group, offset_group = [(1, 1), (2, 1), (1, 2), (2, 4)][seed % 4]
    given, attrs = example(seed, 9, 8, group=group, offset_group=offset_group, stride=1 + seed // 4, mask=seed % 2 == 1)
    same(deform_conv(*given, **attrs), onnxruntime_says("DeformConv", given, opset=19, **attrs), atol=1e-5)


def test_without_offsets_it_is_a_convolution():
    given, attrs = example(1, 60, 70, kernel=(5, 5), pad=2)
    assert given[0].nbytes // 2 * 25 > BLOCK_BYTES  # in more than one band
    given[2][:] = 0
    del attrs["offset_group"]
    wanted = conv(given[0].astype(float), given[1].astype(float), given[3].astype(float), **attrs)
    close(deform_conv(*given, **attrs), wanted, eps=2e-6)


def test_offsets_to_nowhere():
    x, w = np.full((1, 1, 3, 3), np.inf, F), np.ones((1, 1, 1, 1), F)
    offset = np.full((1, 2, 3, 3), 1e30, F)
    assert not deform_conv(x, w, offset).any()
    assert not deform_conv(x, w, -np.inf * np.ones_like(offset)).any()
    offset = np.zeros((1, 2, 3, 3), F)
    offset[0, 0, 1, 1] = np.nan
    assert np.isnan(deform_conv(np.ones_like(x), w, offset)).sum() == 1


def test_half_precision_and_empty():
    given, attrs = example(1, 5, 6, mask=True)
    halves = [a.astype(np.float16) for a in given]
    got = deform_conv(*halves, **attrs)
    assert got.dtype == np.float16
    close(got, deform_conv(*(a.astype(float) for a in halves), **attrs), eps=1e-3)
    x, w, offset = np.zeros((0, 1, 3, 3), F), np.ones((2, 1, 2, 2), F), np.zeros((0, 8, 2, 2), F)
    assert deform_conv(x, w, offset).shape == (0, 2, 2, 2)


def test_inferred():
    x, w = typed("n", 4, "h", "w"), typed(6, 4, 3, 3)
    pads = {"pads": (1, 1, 1, 1)}
    assert shape_of(infer("DeformConv", [x, w, typed(None, 18, None, None)], **pads)[0]) == "[n, 6, h, w]"
    assert shape_of(infer("DeformConv", [x, w, typed(2, 18, 7, 8)], **pads)[0]) == "[2, 6, 7, 8]"
    assert infer("DeformConv", [x, typed(6, None, None, None), typed(2, 18, 7, 8)])[0].dtype == F


@pytest.mark.parametrize(
    ("shapes", "attrs", "text"),
    [
        (
            ((1, 4, 3, 3), (2, 4, 1, 1), (1, 2, 3, 2)),
            {},
            r"offset has shape \[1, 2, 3, 2\], expected is \[1, 2, 3, 3\]",
        ),
        (((1, 4, 3, 3), (2, 4, 1, 1), (1, 3, 3, 3)), {}, "offset has shape"),
        (((1, 4, 3, 3), (2, 4, 1, 1), (1, 2, 3, 3), (2,), (1, 2, 3, 3)), {}, "mask has shape"),
        (((1, 4, 3, 3), (2, 4, 1, 1), (1, 2, 3, 3), (3,)), {}, "bias"),
        (((1, 4, 3, 3), (2, 3, 1, 1), (1, 2, 3, 3)), {}, "channels"),
        (((1, 4, 3, 3), (2, 4, 1, 1), (1, 6, 3, 3)), {"offset_group": 3}, "offset_group 3 does not divide"),
        (((1, 4, 3, 3), (2, 4, 1, 1), (1, 0, 3, 3)), {"offset_group": 0}, "offset_group 0 must be positive"),
    ],
)
def test_faults(shapes, attrs, text):
    with pytest.raises(RunError, match=text):
        deform_conv(*(np.zeros(s, F) for s in shapes), **attrs)
    with pytest.raises(ShapeError, match=text):
        infer("DeformConv", [typed(*s) for s in shapes], **attrs)
