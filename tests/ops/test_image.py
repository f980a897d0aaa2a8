"""Col2Im, CenterCropPad and ImageDecoder."""

from __future__ import annotations

import importlib
import io
import itertools

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError, UnsupportedError
from fuse.ops.image import center_crop_pad, col2im, image_decoder
from tests.ops.cases import check_case, infer, ints, known, node_cases, shape_of, typed
from tests.ops.oracle import close, normal, onnxruntime_says

F = np.float32


@pytest.mark.parametrize("case", node_cases("Col2Im", "CenterCropPad"))
def test_onnx_cases(case):
    check_case(case, exact=True)


# ---- Col2Im


def added_up(x, image, block, dilations, strides, pads):
    rank = len(image)
    blocks = [
        (image[k] + pads[k] + pads[k + rank] - (block[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in range(rank)
    ]
    columns = x.reshape(len(x), -1, *block, *blocks)
    y = np.zeros((*columns.shape[:2], *image), x.dtype)
    for tap, place in itertools.product(np.ndindex(*block), np.ndindex(*blocks)):
        at = [place[k] * strides[k] + tap[k] * dilations[k] - pads[k] for k in range(rank)]
        if all(0 <= i < n for i, n in zip(at, image, strict=True)):
            y[(slice(None), slice(None), *at)] += columns[(slice(None), slice(None), *tap, *place)]
    return y


COLUMNS = [
    ((7,), (3,), (2,), (1,), (0, 1)),
    ((5, 6), (2, 3), (1, 2), (2, 1), (0, 1, 2, 0)),
    ((4, 4), (2, 2), (1, 1), (2, 2), (0, 0, 0, 0)),
    ((3, 4, 5), (2, 1, 2), (1, 1, 2), (1, 2, 1), (1, 0, 2, 0, 1, 1)),
    ((2, 2), (1, 5), (1, 1), (1, 1), (0, 2, 0, 2)),
]


@pytest.mark.parametrize(("image", "block", "dilations", "strides", "pads"), COLUMNS)
@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_columns_are_added_where_they_lie(image, block, dilations, strides, pads, dtype):
    attrs = {"dilations": dilations, "strides": strides, "pads": pads}
    shape = [typed(2, None, None), known(*image), known(*block)]
    assert shape_of(infer("Col2Im", shape, **attrs)[0]) == f"[2, ?, {', '.join(map(str, image))}]"
    taps, rank = int(np.prod(block)), len(image)
    blocks = [
        (image[k] + pads[k] + pads[k + rank] - (block[k] - 1) * dilations[k] - 1) // strides[k] + 1 for k in range(rank)
    ]
    x = (normal(1, 2, 3 * taps, int(np.prod(blocks))) * 100).astype(dtype)
    got = col2im(x, ints(*image), ints(*block), **attrs)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, added_up(x, image, block, dilations, strides, pads), rtol=1e-14, atol=1e-12)
    if rank == 2 and dtype == np.float64:  # where the paddings of an image of other rank differ, onnxruntime is wrong
        single = x.astype(F)
        wanted = onnxruntime_says("Col2Im", [single, ints(*image), ints(*block)], opset=18, **attrs)
        close(col2im(single, ints(*image), ints(*block), **attrs), wanted)


def test_columns_of_other_dtypes():
    x = np.full((1, 4, 1), 60000, np.float16)
    assert col2im(x, ints(2, 2), ints(2, 2)).dtype == np.float16
    parts = np.full((1, 3, 3), 1 / 256 + 1, F).astype(ml_dtypes.bfloat16)
    parts[0, 0] = 1 / 256
    assert col2im(parts, ints(1, 5), ints(1, 3)).dtype == parts.dtype
    assert col2im(parts, ints(1, 5), ints(1, 3)).astype(F)[0, 0, 0].tolist() == [0.00390625, 1, 2, 2, 1]
    assert col2im(np.array([[[True], [False]]]), ints(1, 2), ints(1, 2)).tolist() == [[[[True, False]]]]
    with pytest.raises(RunError, match="strings have no sum"):
        col2im(np.full((1, 1, 1), "a", object), ints(1, 1), ints(1, 1))
    assert col2im(np.zeros((0, 4, 1), F), ints(2, 2), ints(2, 2)).shape == (0, 1, 2, 2)


def test_columns_inferred_and_faults():
    x = typed("n", "k", "l")
    assert shape_of(infer("Col2Im", [x, known("h", 5), known(2, 2)])[0]) == "[n, floor((k)/(4)), h, 5]"
    assert shape_of(infer("Col2Im", [x, typed(2, dtype=np.int64), typed(2, dtype=np.int64)])[0]) == "[n, ?, ?, ?]"
    for shape, image, block, text in (
        ((1, 4, 3), (2, 2), (2, 2), r"3 blocks are given, the image \[2, 2\] has 1"),
        ((1, 3, 1), (2, 2), (2, 2), "3 rows are no whole number of channels for a block of 4"),
        ((4, 1), (2, 2), (2, 2), "is not .batch, channels x block, blocks"),
        ((1, 4, 1), (2, 2, 2), (2, 2), "the image has 3 axes and the block 2"),
        ((1, 4, 1), (-2, 2), (2, 2), "negative size"),
        ((1, 9, 1), (2, 2), (3, 3), "the window spans 3 positions"),
    ):
        with pytest.raises(RunError, match=text):
            col2im(np.zeros(shape, F), ints(*image), ints(*block))
        with pytest.raises(ShapeError, match=text):
            infer("Col2Im", [typed(*shape), known(*image), known(*block)])


# ---- CenterCropPad


def test_the_larger_half_is_cut_or_added_at_the_end():
    x = np.arange(1, 6)
    cuts = {5: [1, 2, 3, 4, 5], 4: [1, 2, 3, 4], 3: [2, 3, 4], 2: [2, 3], 1: [3], 0: []}
    for size, wanted in cuts.items():
        assert center_crop_pad(x, ints(size)).tolist() == wanted
    assert center_crop_pad(x[:2], ints(5)).tolist() == [0, 1, 2, 0, 0]
    assert center_crop_pad(x[:2], ints(4)).tolist() == [0, 1, 2, 0]
    both = center_crop_pad(np.arange(6).reshape(2, 3), np.array([1, 4], np.int32), axes=(1, 0))
    assert both.tolist() == [[0], [1], [4], [0]]
    words = center_crop_pad(np.array(["a", "b"], object), ints(3))
    assert words.tolist() == ["a", "b", ""]
    assert center_crop_pad(np.zeros(0, np.int8), ints(2)).tolist() == [0, 0]


@pytest.mark.parametrize("seed", range(8))
def test_framed_as_onnxruntime_has_it(seed):
    rng = np.random.default_rng(seed)
    x = normal(seed, *rng.integers(1, 6, 3))
    axes = (rng.permutation(3)[: 1 + seed % 3] - 3 * (seed % 2)).tolist()
    size = rng.integers(1, 9, len(axes))
    wanted = onnxruntime_says("CenterCropPad", [x, size], opset=18, axes=axes)
    assert center_crop_pad(x, size, axes=axes).tolist() == wanted.tolist()


def test_frames_inferred_and_faults():
    x = typed("n", "h", 3)
    assert shape_of(infer("CenterCropPad", [x, known(7, "w")], axes=(1, -1))[0]) == "[n, 7, w]"
    assert shape_of(infer("CenterCropPad", [x, typed(1, dtype=np.int64)], axes=(1,))[0]) == "[n, ?, 3]"
    for size, axes, text in (
        ((1, 1), (0,), "2 sizes for 1 axes"),
        ((1, 1), (0, -2), "name one axis twice"),
        ((1,), (2,), "axis 2 is out of range"),
        ((-1,), (0,), "negative size"),
    ):
        with pytest.raises(RunError, match=text):
            center_crop_pad(np.zeros((2, 3), F), ints(*size), axes=axes)
        with pytest.raises(ShapeError, match=text):
            infer("CenterCropPad", [typed(2, 3), known(*size)], axes=axes)


# ---- ImageDecoder


@pytest.mark.parametrize("case", node_cases("ImageDecoder"))
def test_decoder_cases(case):
    pytest.importorskip("PIL")
    check_case(case)


def encoded(array, kind="PNG", mode=None):
    image = pytest.importorskip("PIL.Image").fromarray(array)
    out = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(out, kind)
    return np.frombuffer(out.getvalue(), np.uint8)


def pixels(*shape):
    return np.random.default_rng(1).integers(0, 256, shape, np.uint8)


def test_colours():
    x = pixels(4, 5, 3)
    assert image_decoder(encoded(x)).tolist() == x.tolist()
    assert image_decoder(encoded(x), pixel_format="BGR").tolist() == x[..., ::-1].tolist()
    grey = image_decoder(encoded(x), pixel_format="Grayscale")
    weighted = x.astype(float) @ [0.299, 0.587, 0.114]
    assert grey.shape == (4, 5, 1)
    assert np.abs(grey[..., 0] - weighted).max() <= 1


def test_grey_palette_and_transparent_files_have_colours_too():
    grey = pixels(4, 5)
    assert image_decoder(encoded(grey)).tolist() == np.repeat(grey[..., None], 3, axis=2).tolist()
    four = pixels(4, 5, 4)
    assert image_decoder(encoded(four)).tolist() == four[..., :3].tolist()
    assert image_decoder(encoded(pixels(4, 5, 3), mode="P")).shape == (4, 5, 3)
    deep = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    assert image_decoder(encoded(deep), pixel_format="Grayscale")[..., 0].tolist() == (deep >> 8).tolist()


def test_what_cannot_be_read_is_empty():
    good = encoded(pixels(40, 50, 3))
    cut, other = good[: good.size // 2], np.frombuffer(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", np.uint8)
    for broken in (np.zeros(0, np.uint8), pixels(50), cut, other):
        assert image_decoder(broken).shape == (0, 0, 3)
        assert image_decoder(broken, pixel_format="Grayscale").shape == (0, 0, 1)


def test_a_bomb_is_refused(monkeypatch):
    data = encoded(pixels(40, 50, 3))
    monkeypatch.setattr(importlib.import_module("PIL.Image"), "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(RunError, match="decompression bomb"):
        image_decoder(data)


def test_pillow_is_asked_for(monkeypatch):
    def absent(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UnsupportedError, match="needs Pillow") as caught:
        image_decoder(np.zeros(3, np.uint8))
    assert caught.value.hint == "pip install pillow"


def test_decoder_inferred_and_faults():
    assert shape_of(infer("ImageDecoder", [typed("n", dtype=np.uint8)])[0]) == "[?, ?, 3]"
    assert shape_of(infer("ImageDecoder", [typed("n", dtype=np.uint8)], pixel_format="Grayscale")[0]) == "[?, ?, 1]"
    with pytest.raises(ShapeError, match="pixel_format 'CMYK' is not one of RGB, BGR, Grayscale"):
        infer("ImageDecoder", [typed("n", dtype=np.uint8)], pixel_format="CMYK")
    with pytest.raises(RunError, match="pixel_format 'CMYK' is not one of"):
        image_decoder(np.zeros(3, np.uint8), pixel_format="CMYK")
