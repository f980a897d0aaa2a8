"""QAttention and QEmbedLayerNormalization: by the formula in float64, and as onnxruntime has them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError, UnsupportedError
from tests.ops.cases import infer, shape_of, typed
from tests.ops.oracle import close, normal
from tests.ops.quantised import equal, integers, interpreted, kernel, one, onnxruntime_says, scales

BATCH, LENGTH, WIDTH, HEADS, SIZE, BEFORE = 2, 5, 24, 3, 8, 4
HIDDEN = HEADS * SIZE
ATTENTION = "com.microsoft::QAttention"


def masks():
    rng = np.random.default_rng(0)
    return {
        "none": None,
        "ends": np.array([3, 5]),
        "ends and starts": np.array([3, 5, 1, 0]),
        "marks": rng.integers(0, 2, (BATCH, LENGTH)),
        "nothing seen": np.zeros((BATCH, LENGTH)),
        "no mask": np.zeros((BATCH, 1)),
        "marks of pairs": rng.integers(0, 2, (BATCH, LENGTH, LENGTH)),
        "marks and past": rng.integers(0, 2, (BATCH, LENGTH + BEFORE)),
        "ends and past": np.array([3, 9]),
        "past alone": None,
    }


def given(dtype, columns, name):
    """The inputs in order; the mask by its name."""
    shape = (3 * HIDDEN,) if columns else ()
    mask = masks()[name]
    w_zero = np.zeros(shape, dtype) if dtype == np.int8 else integers(6, dtype, *shape)
    return [
        integers(1, np.uint8, BATCH, LENGTH, WIDTH),
        integers(2, dtype, WIDTH, 3 * HIDDEN, small=True),
        normal(3, 3 * HIDDEN),
        one(0.02),
        scales(5, *shape) / 4,
        None if mask is None else mask.astype(np.int32),
        one(120, np.uint8),
        w_zero,
        normal(7, 2, BATCH, HEADS, BEFORE, SIZE) if "past" in name else None,
    ]


def formula(x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past, seen, causal, scale=None, value=-10000.0):
    """The operator in float64; ``seen`` is the mask as (batch, length, total) of truth."""
    numbers = (x.astype(np.float64) - int(x_zero)) @ (w.astype(np.float64) - w_zero)
    numbers = numbers * float(x_scale) * w_scale.astype(np.float64) + bias
    q, k, v = numbers.reshape(BATCH, LENGTH, 3, HEADS, SIZE).transpose(2, 0, 3, 1, 4)
    if past is not None:
        k, v = np.concatenate((past[0], k), 2), np.concatenate((past[1], v), 2)
    total = k.shape[2]
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(SIZE))
    scores += np.where(seen[:, None], 0, value)
    if causal:
        scores[..., np.arange(total) > np.arange(LENGTH)[:, None] + total - LENGTH] = -np.inf
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = (e / e.sum(-1, keepdims=True)) @ v
    return y.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, HIDDEN), np.stack((k, v))


def as_pairs(name, total):
    mask, places = masks()[name], np.arange(total)
    if mask is None or name == "no mask":
        return np.ones((BATCH, LENGTH, total), bool)
    if mask.ndim == 3:
        return mask > 0
    if mask.ndim == 1:
        rows = (places < mask[:BATCH, None]) & (places >= (mask[BATCH:, None] if len(mask) > BATCH else 0))
    else:
        rows = mask > 0
    return np.broadcast_to(rows[:, None], (BATCH, LENGTH, total))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("columns", [False, True], ids=["one scale", "a scale a column"])
@pytest.mark.parametrize("name", masks())
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(dtype, columns, name, causal):
    inputs = given(dtype, columns, name)
    got = interpreted(ATTENTION, inputs, 2, num_heads=HEADS, unidirectional=causal)
    wanted = formula(*inputs, as_pairs(name, LENGTH + BEFORE * ("past" in name)), causal)
    # where all of a row is masked its scores stand beyond -10000, and float32 has steps of a thousandth there
    close(got[0], wanted[0], eps=2e-3 if name in ("marks", "marks of pairs", "nothing seen") else 1e-5)
    close(got[1], wanted[1], eps=1e-6)
    theirs = onnxruntime_says(ATTENTION, inputs, 2, num_heads=HEADS, unidirectional=causal)
    close(got[0], theirs[0].astype(np.float64), eps=5e-6)
    equal(got[1], theirs[1])


def test_scale_and_mask_value():
    inputs = given(np.int8, False, "marks")
    attrs = {"num_heads": HEADS, "scale": 0.3, "mask_filter_value": -1.5}
    got, _ = kernel("QAttention", *inputs, **attrs)
    close(got, formula(*inputs, as_pairs("marks", LENGTH), False, 0.3, -1.5)[0], eps=1e-5)
    close(got, onnxruntime_says(ATTENTION, inputs, **attrs).astype(np.float64), eps=5e-6)


def test_inference_of_attention():
    inputs = [typed("b", "n", 24, dtype=np.uint8), typed(24, 72, dtype=np.int8), typed(72), typed(), typed()]
    infos = infer(ATTENTION, inputs, 2, num_heads=3)
    assert [shape_of(i) for i in infos] == ["[b, n, 24]", "[2, b, 3, n, 8]"]
    past = [*inputs, None, None, None, typed(2, "b", 3, "p", 8)]
    assert shape_of(infer(ATTENTION, past, 2, num_heads=3)[1]) == "[2, b, 3, n + p, 8]"


@pytest.mark.parametrize(
    ("change", "attrs", "text"),
    [
        ({0: (2, 5)}, {}, "the input is [2, 5], its rank should be 3"),
        ({1: (23, 72)}, {}, "the input has width 24 but the weight 23 rows"),
        ({1: (24, 70)}, {}, "70 columns are no queries, keys and values of 3 heads"),
        ({8: (2, 2, 4, 4, 8)}, {}, "past [2, 2, 4, 4, 8] does not fit 3 heads of the input [2, 5, 24]"),
        ({}, {"num_heads": 0}, "num_heads 0 must be positive"),
    ],
)
def test_faults_of_attention(change, attrs, text):
    inputs = given(np.int8, False, "past alone")
    for index, shape in change.items():
        inputs[index] = np.zeros(shape, inputs[index].dtype)
    attrs = {"num_heads": HEADS} | attrs
    with pytest.raises(ShapeError) as caught:
        infer(ATTENTION, [None if i is None else typed(*i.shape, dtype=i.dtype) for i in inputs], 2, **attrs)
    assert caught.value.what == text
    with pytest.raises(RunError) as failed:
        kernel("QAttention", *inputs, **attrs)
    assert failed.value.what == text


def test_a_mask_that_does_not_fit():
    inputs = given(np.int8, False, "none")
    inputs[5] = np.zeros((BATCH, 7), np.int32)
    with pytest.raises(RunError, match=r"a mask of shape \[2, 7\] does not fit batch 2, length 5 and total 5"):
        kernel("QAttention", *inputs, num_heads=HEADS)


def test_what_no_kernel_does():
    with pytest.raises(UnsupportedError, match="do_rotary"):
        kernel("QAttention", *given(np.int8, False, "none"), num_heads=HEADS, do_rotary=1)


# ---- QEmbedLayerNormalization

EMBED = "com.microsoft::QEmbedLayerNormalization"


def embedding(segments, mask):
    rng = np.random.default_rng(0)
    tables = [integers(k, np.uint8, *s) for k, s in enumerate([(30, 16), (10, 16), (2, 16), (16,), (16,)])]
    steps, zeros = list(scales(1, 5)), list(integers(2, np.uint8, 5))
    ids, kinds = rng.integers(0, 30, (2, 6)).astype(np.int32), rng.integers(0, 2, (2, 6)).astype(np.int32)
    marks = np.array([[1, 1, 1, 0, 0, 0], [1] * 6], np.int32)
    keep = [True, True, segments, True, True]
    return [
        ids, kinds if segments else None, *(t if k else None for t, k in zip(tables, keep, strict=True)),
        marks if mask else None, *(np.asarray(s) if k else None for s, k in zip(steps, keep, strict=True)),
        *(np.asarray(z) if k else None for z, k in zip(zeros, keep, strict=True)),
    ]  # fmt: skip


@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_embedding(segments, mask):
    inputs = embedding(segments, mask)
    y, reach = interpreted(EMBED, inputs, 2, epsilon=1e-5)
    word, position, kind, gamma, beta = (
        None if t is None else (t.astype(np.float64) - int(z)) * float(s)
        for t, s, z in zip(inputs[2:7], inputs[8:13], inputs[13:], strict=True)
    )
    total = word[inputs[0]] + position[:6] + (kind[inputs[1]] if segments else 0)
    total -= total.mean(-1, keepdims=True)
    exact = total / np.sqrt(np.square(total).mean(-1, keepdims=True) + 1e-5) * gamma + beta
    close(y, exact, eps=3e-6)
    assert reach.tolist() == ([3, 6] if mask else [0, 0])
    theirs = onnxruntime_says(EMBED, inputs, 2, epsilon=1e-5)
    close(y, theirs[0].astype(np.float64), eps=3e-6)
    equal(reach, theirs[1])


def test_faults_of_the_embedding():
    inputs = embedding(True, False)
    inputs[0] = np.full((1, 2), 30, np.int32)
    with pytest.raises(RunError, match="word 30 is out of range for size 30"):
        kernel("QEmbedLayerNormalization", *inputs)
    inputs = embedding(True, False)
    inputs[0] = np.zeros((1, 11), np.int32)
    with pytest.raises(RunError, match="11 positions but embeddings for 10"):
        kernel("QEmbedLayerNormalization", *inputs)
    with pytest.raises(ShapeError, match=r"input_ids is \[3\], not \[batch, length\]"):
        infer(EMBED, [None if i is None else typed(*(3,) if k == 0 else i.shape) for k, i in enumerate(inputs)])
