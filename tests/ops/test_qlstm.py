"""DynamicQuantizeLSTM against a plain walk in float64 over quantised numbers, and against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import infer, shape_of, typed
from tests.ops.oracle import close, normal
from tests.ops.quantised import equal, integers, interpreted, kernel, onnxruntime_says

LSTM = "com.microsoft::DynamicQuantizeLSTM"
LENGTH, BATCH, WIDTH, HIDDEN = 7, 3, 12, 10

FORMS = {
    "plain": {},
    "lengths": {"lengths": [3, 7, 0]},
    "states": {"lengths": [2, 5, 6], "states": True},
    "peepholes": {"states": True, "peepholes": True, "columns": True, "bias": False},
    "clip": {"attrs": {"clip": 0.5, "input_forget": 1}},
    "activations": {
        "attrs": {
            "activations": ["HardSigmoid", "LeakyRelu", "Softsign"],
            "activation_alpha": [0.3, 0.02],
            "activation_beta": [0.4],
        }
    },
}


def given(dtype, direction, lengths=None, states=False, peepholes=False, columns=False, bias=True, attrs=None):
    """Inputs in order, and attributes."""
    n = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(5)
    shape = (n, 4 * HIDDEN) if columns else (n,)
    zero = np.full(shape, 0 if dtype == np.int8 else 128, dtype)

    def steps():
        return rng.uniform(0.002, 0.006, shape).astype(np.float32)

    inputs = [
        normal(1, LENGTH, BATCH, WIDTH),
        integers(2, dtype, n, WIDTH, 4 * HIDDEN, small=True),
        integers(3, dtype, n, HIDDEN, 4 * HIDDEN, small=True),
        normal(4, n, 8 * HIDDEN) / 5 if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        normal(6, n, BATCH, HIDDEN) if states else None,
        normal(7, n, BATCH, HIDDEN) if states else None,
        normal(8, n, 3 * HIDDEN) / 3 if peepholes else None,
        steps(),
        zero,
        steps(),
        zero,
    ]
    repeated = {k: v * n if isinstance(v, list) else v for k, v in (attrs or {}).items()}
    return inputs, {"hidden_size": HIDDEN, "direction": direction, **repeated}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("form", FORMS)
def test_as_onnxruntime_has_it(dtype, direction, form):
    inputs, attrs = given(dtype, direction, **FORMS[form])
    got = interpreted(LSTM, inputs, 3, **attrs)
    for mine, theirs in zip(got, onnxruntime_says(LSTM, inputs, 3, **attrs), strict=True):
        close(mine, theirs.astype(np.float64), eps=2e-6)


def quantised(x):
    """The numbers that the uint8 steps of ``x`` stand for."""
    low, high = min(float(x.min()), 0), max(float(x.max()), 0)
    scale = np.float32(np.float32(high - low) / np.float32(255)) if low != high else np.float32(1)
    zero = np.clip(np.rint(np.float32(-low) / scale), 0, 255)
    return (np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.float64) - zero) * float(scale)


@pytest.mark.parametrize("lengths", [None, [3, 7, 0]])
def test_by_the_equations(lengths):
    inputs, attrs = given(np.int8, "forward", lengths=lengths, states=True, peepholes=True)
    x, w, r, b, ends, h, c, p, w_scale, _, r_scale, _ = inputs
    got = kernel(LSTM, *inputs, **attrs)
    w, r = w[0].astype(np.float64) * float(w_scale[0]), r[0].astype(np.float64) * float(r_scale[0])
    b, p, h, c = b[0, :40] + b[0, 40:], p[0].reshape(3, HIDDEN), h[0], c[0].astype(np.float64)
    ends = np.full(BATCH, LENGTH) if ends is None else ends
    share = quantised(x.reshape(-1, WIDTH)).reshape(x.shape) @ w + b
    y, last_h, last_c = np.zeros((LENGTH, BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN))

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    for t in range(LENGTH):
        i, o, f, g = np.split(share[t] + quantised(h.astype(np.float32)) @ r, 4, axis=1)
        new = sigmoid(f + p[2] * c) * c + sigmoid(i + p[0] * c) * np.tanh(g)
        h = sigmoid(o + p[1] * new) * np.tanh(new)
        c = new
        h = np.where((t < ends)[:, None], h, 0)
        y[t] = h
        last_h[t + 1 == ends], last_c[t + 1 == ends] = h[t + 1 == ends], c[t + 1 == ends]
    for mine, exact in zip(got, (y[:, None], last_h[None], last_c[None]), strict=True):
        close(mine, exact, eps=1e-5)


def test_no_steps_and_no_sequences():
    inputs, attrs = given(np.int8, "bidirectional", states=True)
    for length, batch in ((0, 3), (7, 0)):
        inputs[0] = np.zeros((length, batch, WIDTH), np.float32)
        inputs[5] = inputs[6] = np.ones((2, batch, HIDDEN), np.float32)
        y, h, c = kernel(LSTM, *inputs, **attrs)
        assert y.shape == (length, 2, batch, HIDDEN)
        equal(h, np.zeros((2, batch, HIDDEN), np.float32))
        equal(c, h)


def test_inputs_are_kept():
    inputs, attrs = given(np.uint8, "bidirectional", lengths=[3, 7, 1], states=True, peepholes=True)
    kept = [None if i is None else i.copy() for i in inputs]
    kernel(LSTM, *inputs, **attrs)
    assert all(i is None or np.array_equal(i, k) for i, k in zip(inputs, kept, strict=True))


def test_inference():
    inputs = [typed("t", "b", 12), typed(2, 12, 40, dtype=np.int8), typed(2, 10, 40, dtype=np.int8), *[None] * 5]
    inputs += [typed(2), typed(2, dtype=np.int8)] * 2
    infos = infer(LSTM, inputs, 3, direction="bidirectional")
    assert [shape_of(i) for i in infos] == ["[t, 2, b, 10]", "[2, b, 10]", "[2, b, 10]"]
    with pytest.raises(ShapeError, match="input 8 is required and missing"):
        infer(LSTM, inputs[:8], 3, direction="bidirectional")


@pytest.mark.parametrize(
    ("change", "attrs", "text"),
    [
        ({0: (7, 3)}, {}, "X is [7, 3], its rank should be 3"),
        ({1: (1, 11, 40)}, {}, "W [1, 11, 40] does not fit 1 directions, inputs of 12 and hidden size 10"),
        ({2: (1, 10, 39)}, {}, "R [1, 10, 39] does not fit 1 directions of hidden size 10"),
        ({}, {"direction": "both"}, "there is no direction 'both'"),
    ],
)
def test_faults_are_refused_alike_by_inference_and_kernel(change, attrs, text):
    inputs, own = given(np.int8, "forward")
    for index, shape in change.items():
        inputs[index] = np.zeros(shape, inputs[index].dtype)
    attrs = own | attrs
    with pytest.raises(ShapeError) as caught:
        infer(LSTM, [None if i is None else typed(*i.shape, dtype=i.dtype) for i in inputs], 3, **attrs)
    assert caught.value.what == text
    with pytest.raises(RunError) as failed:
        kernel(LSTM, *inputs, **attrs)
    assert failed.value.what == text


@pytest.mark.parametrize(
    ("index", "value", "text"),
    [
        (3, np.zeros((1, 40), np.float32), "B is [1, 40], it should be [1, 80]"),
        (4, np.array([3, 8, 1], np.int32), "sequence_lens [3, 8, 1] do not fit 3 sequences of 7"),
        (4, np.array([3, 1], np.int32), "sequence_lens [3, 1] do not fit 3 sequences of 7"),
        (5, np.zeros((1, 3, 9), np.float32), "initial_h is [1, 3, 9], it should be [1, 3, 10]"),
        (7, np.zeros((1, 40), np.float32), "P is [1, 40], it should be [1, 30]"),
        (8, np.ones((1, 10), np.float32), "W_scale [1, 10] is neither one nor 40 a direction"),
        (11, np.zeros(0, np.int8), "R_zero_point [0] is neither one nor 40 a direction"),
    ],
)
def test_values_that_do_not_fit(index, value, text):
    inputs, attrs = given(np.int8, "forward")
    inputs[index] = value
    with pytest.raises(RunError) as caught:
        kernel(LSTM, *inputs, **attrs)
    assert caught.value.what == text


def test_unknown_activations():
    inputs, attrs = given(np.int8, "forward")
    with pytest.raises(RunError, match="there is no activation 'Swish'"):
        kernel(LSTM, *inputs, **attrs, activations=["Sigmoid", "Swish", "Tanh"])
    with pytest.raises(RunError, match="2 activations, 3 are needed"):
        kernel(LSTM, *inputs, **attrs, activations=["Sigmoid", "Tanh"])
