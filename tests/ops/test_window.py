"""The window that convolutions and pools share: sizes, padding, what it sees, and the attributes it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ir.dims import Symbolic, evaluate
from fuse.ops.window import make_window, pad

N = Symbolic.of("n")


def sizes_by_counting(size, kernel, stride, dilation, begin, end, ceil):
    """Windows that start inside the input or its begin padding and (for floor) end inside the padding."""
    extent, count, start = (kernel - 1) * dilation + 1, 0, -begin
    while start < size and (start + extent <= size + end or (ceil and start - stride + extent < size + end)):
        count, start = count + 1, start + stride
    return count


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
def test_sizes_agree_with_counting_and_with_symbols(kernel, stride, ceil):
    for dilation in (1, 2):
        for begin, end in ((0, 0), (1, 0), (0, 1), (2, 2)):
            window = make_window(3, [kernel], [stride], [dilation], [begin, end], ceil_mode=ceil)
            if max(begin, end) >= window.extents[0]:
                continue
            (symbolic,) = window.out_dims([N])
            for size in range(max(window.extents[0] - begin - end, 1), 12):
                (out,) = window.out_dims([size])
                assert out == sizes_by_counting(size, kernel, stride, dilation, begin, end, ceil)
                assert evaluate(symbolic, {"n": size}) == out


def test_the_last_window_must_start_inside():
    # 2 inputs and 1 begin padding: the window of 3 at stride 3 that ceil asks for would start at 2, in the end padding.
    assert make_window(3, [3], [3], None, [1, 1], ceil_mode=1).out_dims([2]) == (1,)
    assert make_window(3, [3], [2], None, [1, 1], ceil_mode=1).out_dims([4]) == (3,)


@pytest.mark.parametrize(
    ("auto", "size", "stride", "out", "pads"),
    [
        ("SAME_UPPER", 5, 2, 3, (1, 1)),
        ("SAME_UPPER", 6, 2, 3, (0, 1)),
        ("SAME_LOWER", 6, 2, 3, (1, 0)),
        ("SAME_UPPER", 7, 4, 2, (0, 0)),
        ("VALID", 7, 2, 3, (0, 0)),
    ],
)
def test_auto_pad(auto, size, stride, out, pads):
    window = make_window(3, [3], [stride], auto_pad=auto)
    assert window.out_dims([size]) == (out,)
    assert window.padding([size]) == (pads,)
    assert evaluate(window.out_dims([N])[0], {"n": size}) == out


def test_a_zero_size_axis_gives_no_outputs():
    assert make_window(3, [3]).out_dims([0]) == (0,)
    assert make_window(3, [3], auto_pad="SAME_UPPER").out_dims([0]) == (0,)
    assert make_window(3, [3], ceil_mode=1).out_dims([None]) == (None,)


def test_slide_shows_each_output_its_inputs():
    window = make_window(4, [2, 2], [2, 1], [1, 2], [1, 0, 0, 1])
    x = np.arange(1, 13, dtype=np.float32).reshape(1, 1, 3, 4)
    out = window.out_dims(x.shape[2:])
    assert out == (2, 3)
    seen = window.slide(pad(x, window.frame(x.shape[2:], out), 0), out)
    assert seen.shape == (1, 1, 2, 2, 2, 3)
    # The output at row 1, column 2 reads rows 1 and 2, columns 2 and 4 (which is padding).
    assert seen[0, 0, :, :, 1, 2].tolist() == [[7, 0], [11, 0]]
    assert seen[0, 0, :, :, 0, 0].tolist() == [[0, 0], [1, 3]]


def test_padding_nothing_copies_nothing():
    x = np.ones((1, 1, 3), np.float32)
    assert pad(x, ((0, 0),), 0) is x


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"rank": 5}, "kernel is 2-D but the input is 5-D"),
        ({"strides": [0, 1]}, "strides [0, 1] must be positive"),
        ({"strides": [1]}, "strides has 1 entries but the kernel is 2-D"),
        ({"dilations": [1, 0]}, "dilations [1, 0] must be positive"),
        ({"kernel": [3, -1]}, "kernel_shape [3, -1] must be positive"),
        ({"pads": [0, 0, -1, 0]}, "pads [0, 0, -1, 0] must not be negative"),
        ({"kernel": [3, 2**40]}, f"kernel_shape [3, {2**40}] is beyond any tensor"),
        ({"pads": [0, 2**40, 0, 0]}, f"pads [0, {2**40}, 0, 0] is beyond any tensor"),
        ({"pads": [0, 0]}, "pads has 2 entries, a 2-D kernel needs 4"),
        ({"auto_pad": "SAME"}, "auto_pad 'SAME' is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER"),
        (
            {"auto_pad": "VALID", "pads": [0, 1, 0, 1]},
            "auto_pad VALID and explicit pads [0, 1, 0, 1] exclude each other",
        ),
    ],
)
def test_refused_attributes(given, text):
    with pytest.raises(ShapeError) as caught:
        make_window(**{"rank": 4, "kernel": [3, 3], **given})
    assert caught.value.what == text


def test_a_window_larger_than_the_padded_input_is_refused():
    with pytest.raises(ShapeError, match="the window spans 5 positions but the padded input has 4"):
        make_window(3, [3], None, [2], [1, 1]).out_dims([2])
    with pytest.raises(ShapeError, match=f"spans {2**30} positions"):
        make_window(3, [2**30]).out_dims([7])
