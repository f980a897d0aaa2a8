"""Recurrent layers against their equations, one sequence and one step at a time in float64, and against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ops import recurrent
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
FUNCTIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}
DIRECTIONS = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
OPS = list(GATES)


@pytest.fixture(autouse=True)
def quiet():
    """As in the interpreter: what overflows becomes an infinity without a warning."""
    with np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("case", node_cases(*OPS))
def test_onnx_cases(case):
    check_case(case, exact=True)


# ---- the equations


def function(name, alpha, beta):
    """One activation of the operator text, on a float."""
    return {
        "Affine": lambda x: alpha * x + beta,
        "Relu": lambda x: max(0, x),
        "LeakyRelu": lambda x: x if x >= 0 else alpha * x,
        "ThresholdedRelu": lambda x: x if x >= alpha else 0,
        "Tanh": np.tanh,
        "ScaledTanh": lambda x: alpha * np.tanh(beta * x),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "HardSigmoid": lambda x: min(max(alpha * x + beta, 0), 1),
        "Elu": lambda x: x if x >= 0 else alpha * (np.exp(x) - 1),
        "Softsign": lambda x: x / (1 + abs(x)),
        "Softplus": lambda x: np.log(1 + np.exp(x)),
    }[name]


DEFAULTS = {
    "Affine": (1, 0),
    "LeakyRelu": (0.01, None),
    "ThresholdedRelu": (1, None),
    "ScaledTanh": (1, 1),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1, None),
}
ACTIVATIONS = ["Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", *DEFAULTS]


def functions(op, names, alphas, betas, clip, count):
    names = names or {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}[op] * count
    alphas, betas, found = list(alphas or []), list(betas or []), []
    for name in names:
        alpha, beta = DEFAULTS.get(name, (None, None))
        alpha = alphas.pop(0) if alpha is not None and alphas else alpha
        beta = betas.pop(0) if beta is not None and betas else beta
        plain = np.vectorize(function(name, alpha, beta), otypes=[float])
        state = op == "LSTM" and len(found) % 3 == 2  # the function of the cell, which is not clipped
        limit = np.inf if clip is None or state else clip
        found.append(lambda x, f=plain, c=limit: f(np.clip(x, -c, c)))
    return found


def cell(op, f, x, states, w, r, b, p, input_forget, linear):
    """The next states from those of one sequence; ``w``, ``r`` and ``b`` by gate."""
    h, n = states[0], r.shape[1]
    g = GATES[op]
    w, r, (wb, rb) = w.reshape(g, n, w.shape[1]), r.reshape(g, n, n), b.reshape(2, g, n)
    if op == "RNN":
        return [f[0](w[0] @ x + r[0] @ h + wb[0] + rb[0])]
    if op == "GRU":
        z, t = (f[0](w[k] @ x + r[k] @ h + wb[k] + rb[k]) for k in (0, 1))
        inside = t * (r[2] @ h + rb[2]) if linear else r[2] @ (t * h) + rb[2]
        return [(1 - z) * f[1](w[2] @ x + inside + wb[2]) + z * h]
    c, (pi, po, pf) = states[1], p.reshape(3, n)
    i = f[0](w[0] @ x + r[0] @ h + wb[0] + rb[0] + pi * c)
    forget = f[0](w[2] @ x + r[2] @ h + wb[2] + rb[2] + pf * c)
    new = f[1](w[3] @ x + r[3] @ h + wb[3] + rb[3])
    cells = (1 - i if input_forget else forget) * c + i * new
    o = f[0](w[1] @ x + r[1] @ h + wb[1] + rb[1] + po * cells)
    return [o * f[2](cells), cells]


def expected(op, x, w, r, b=None, lens=None, h=None, c=None, p=None, **attrs):
    """All outputs of the layer by the equations, in float64."""
    directions = DIRECTIONS[attrs.get("direction", "forward")]
    layout, count = attrs.get("layout", 0), len(directions)
    x = x.swapaxes(0, 1) if layout else x
    steps, batch, n = *x.shape[:2], r.shape[2]
    first = [np.zeros((count, batch, n)) if s is None else s.swapaxes(0, 1) if layout else s for s in (h, c)]
    b = np.zeros((count, 2 * r.shape[1])) if b is None else b
    p = np.zeros((count, 3 * n)) if p is None else p
    lens = [steps] * batch if lens is None else lens
    f = functions(op, *(attrs.get(k) for k in ("activations", "activation_alpha", "activation_beta", "clip")), count)
    y, last = np.zeros((steps, count, batch, n)), [np.zeros((count, batch, n)) for _ in range(STATES[op])]
    rest = attrs.get("input_forget", 0), attrs.get("linear_before_reset", 0)
    own = FUNCTIONS[op]
    for d, backwards in enumerate(directions):
        for k in range(batch):
            states = [s[d, k].astype(float) for s in first[: STATES[op]]]
            for t in reversed(range(lens[k])) if backwards else range(lens[k]):
                states = cell(op, f[own * d : own * d + own], x[t, k], states, w[d], r[d], b[d], p[d], *rest)
                y[t, d, k] = states[0]
            for total, state in zip(last, states, strict=True):
                total[d, k] = state
    if layout:
        y, last = y.transpose(2, 0, 1, 3), [s.swapaxes(0, 1) for s in last]
    return [y, *last]


def layer(op, seed=0, steps=5, batch=3, width=4, hidden=6, count=1, layout=0, scale=0.7, dtype=np.float32):
    """Random inputs: X, W, R, B, sequence_lens, initial_h, and for LSTM initial_c and P."""
    g = GATES[op]
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    shapes = [
        (batch, steps, width) if layout else (steps, batch, width),
        *((count, g * hidden, width), (count, g * hidden, hidden), (count, 2 * g * hidden)),
        *((), state, state, (count, 3 * hidden)),
    ]
    made = [(normal(seed + k, *s) * scale).astype(dtype) for k, s in enumerate(shapes)]
    made[4] = None
    return made[: 8 if op == "LSTM" else 6]


def agree(op, inputs, eps=2e-6, **attrs):
    """The kernel against the equations; returns its outputs."""
    kept = [None if v is None else v.copy() for v in inputs]
    count = 1 + STATES[op]
    got = kernel(op, *inputs, n_outputs=count, **attrs)
    assert len(got) == count
    for g, wanted in zip(got, expected(op, *inputs, **attrs), strict=True):
        assert g.dtype == inputs[0].dtype
        same(g.astype(np.float64), wanted, rtol=eps, atol=eps)
    for v, k in zip(inputs, kept, strict=True):
        assert v is None or v.tolist() == k.tolist()
    return got


VARIANTS = [
    ("RNN", {}),
    ("GRU", {}),
    ("GRU", {"linear_before_reset": 1}),
    ("LSTM", {}),
    ("LSTM", {"input_forget": 1}),
]


@pytest.mark.parametrize(("op", "attrs"), VARIANTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("lens", [None, [5, 5, 5], [2, 5, 3], [0, 1, 4]])
def test_equations(op, attrs, direction, layout, lens):
    inputs = layer(op, count=len(DIRECTIONS[direction]), layout=layout)
    inputs[4] = lens if lens is None else np.array(lens, np.int32)
    y, *last = agree(op, inputs, direction=direction, layout=layout, hidden_size=6, **attrs)
    if lens == [0, 1, 4]:
        y = y.transpose(1, 2, 0, 3) if layout else y
        assert not y[0 if lens[0] == 0 else 9, :, 0].any()
        assert not y[4].any()
        h, first = (v.swapaxes(0, 1) if layout else v for v in (last[0], inputs[5]))
        assert h[:, 0].tolist() == first[:, 0].tolist()


@pytest.mark.parametrize("op", OPS)
def test_absent_inputs_are_zero(op):
    x, w, r = layer(op)[:3]
    agree(op, [x, w, r])
    agree(op, [x, w, r, None, np.array([1, 2, 3], np.int32)])


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("op", OPS)
def test_each_activation(op, name):
    names, inputs = [name] * FUNCTIONS[op], layer(op, steps=3, scale=0.2)  # small: gates beyond 1 multiply without end
    agree(op, inputs, activations=names)
    alpha, beta = DEFAULTS.get(name, (None, None))
    if alpha is not None:
        attrs = {"activation_alpha": tuple(0.25 + 0.125 * k for k in range(len(names)))}
        if beta is not None:
            attrs["activation_beta"] = tuple(0.5 - 0.25 * k for k in range(len(names)))
        agree(op, inputs, activations=names, **attrs)


def test_parameters_go_to_the_activations_that_take_some():
    attrs = {
        "activations": ["Sigmoid", "LeakyRelu", "Affine", "HardSigmoid", "Tanh", "Elu"],
        "activation_alpha": (0.125, 0.5, 0.25, 0.75),
        "activation_beta": (0.0625, 0.375),
        "direction": "bidirectional",
    }
    inputs = layer("LSTM", count=2)
    got = agree("LSTM", inputs, **attrs)
    wanted = onnxruntime_says("LSTM", inputs, 3, opset=14, hidden_size=6, **attrs)
    for g, w in zip(got, wanted, strict=True):
        same(g, w, rtol=1e-4, atol=1e-5)


def test_names_of_activations_ignore_case():
    inputs = layer("GRU")
    a, b = (kernel("GRU", *inputs, activations=names)[0] for names in (["sigmoid", "TANH"], None))
    assert a.tolist() == b.tolist()


@pytest.mark.parametrize(("op", "attrs"), VARIANTS)
def test_clip(op, attrs):
    inputs = layer(op, scale=3, count=2)
    attrs = {**attrs, "direction": "bidirectional"}
    y = agree(op, inputs, clip=0.25, **attrs)[0]
    assert np.abs(y - kernel(op, *inputs, **attrs)[0]).max() > 0.1


@pytest.mark.parametrize(("op", "attrs"), VARIANTS)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_onnxruntime(op, attrs, direction, clip):
    inputs = layer(op, count=len(DIRECTIONS[direction]))
    inputs[4] = np.array([5, 2, 4], np.int32)
    if clip is not None:
        attrs = {**attrs, "clip": clip}
    attrs = {**attrs, "direction": direction, "hidden_size": 6}
    outputs = 1 + STATES[op]
    got = kernel(op, *inputs, n_outputs=outputs, **attrs)
    for g, w in zip(got, onnxruntime_says(op, inputs, outputs, opset=14, **attrs), strict=True):
        same(g, w, rtol=1e-4, atol=1e-5)


# ---- dtypes, sizes, extremes


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("dtype", "eps"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2), (np.float64, 1e-13)])
def test_dtypes(op, dtype, eps):
    agree(op, layer(op, steps=20, dtype=dtype), eps=eps)


@pytest.mark.parametrize("op", OPS)
def test_half_precision_is_rounded_once(op):
    inputs = layer(op, steps=50, dtype=np.float16)
    wide = [None if v is None else v.astype(np.float32) for v in inputs]
    for g, w in zip(kernel(op, *inputs, n_outputs=2), kernel(op, *wide, n_outputs=2), strict=True):
        assert g.tolist() == w.astype(np.float16).tolist()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("sizes", [{"steps": 0}, {"batch": 0}, {"width": 0}, {"hidden": 0}, {"steps": 1, "batch": 1}])
def test_empty_and_single(op, sizes):
    inputs = layer(op, **sizes)
    got = agree(op, inputs)
    if sizes.get("steps") == 0:
        assert got[1].tolist() == inputs[5].tolist()


@pytest.mark.parametrize("op", OPS)
def test_a_long_sequence_is_projected_in_parts(op, monkeypatch):
    inputs = layer(op, steps=23)
    inputs[4] = np.array([23, 7, 11], np.int32)
    whole = kernel(op, *inputs, n_outputs=2)
    monkeypatch.setattr(recurrent, "PROJECTED", 4 * 3 * GATES[op] * 6)
    for a, b in zip(kernel(op, *inputs, n_outputs=2), whole, strict=True):
        same(a, b, rtol=1e-6)


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_saturated_gates(op):
    inputs = layer(op, scale=200)
    agree(op, inputs, eps=1e-5)


@pytest.mark.parametrize("op", OPS)
def test_what_is_padding_is_not_read(op):
    inputs = layer(op)
    inputs[4] = np.array([2, 5, 3], np.int32)
    wanted = kernel(op, *inputs, n_outputs=2, direction="reverse")
    inputs[0][2:, 0] = np.nan
    inputs[0][3:, 2] = np.inf
    got = kernel(op, *inputs, n_outputs=2, direction="reverse")
    assert [g.tolist() for g in got] == [w.tolist() for w in wanted]


def test_nan_stays_in_its_sequence():
    inputs = layer("LSTM")
    inputs[0][1, 1, 0] = np.nan
    y = kernel("LSTM", *inputs)[0]
    assert np.isnan(y[1:, 0, 1]).all()
    assert np.isfinite(y[:, 0, [0, 2]]).all()


# ---- what does not fit


@pytest.mark.parametrize(
    ("change", "attrs", "message"),
    [
        ({1: (1, 24, 5)}, {}, r"W is \[1, 24, 5\], not \[1, 24, 4\]"),
        ({1: (1, 18, 4)}, {}, r"W is \[1, 18, 4\], not \[1, 24, 4\]"),
        ({2: (1, 24, 5)}, {}, r"W is \[1, 24, 4\], not \[1, 20, 4\]"),
        ({2: (2, 24, 6)}, {}, r"R is \[2, 24, 6\], not \[1, 24, 6\]"),
        ({3: (1, 24)}, {}, r"B is \[1, 24\], not \[1, 48\]"),
        ({4: (2,)}, {}, r"sequence_lens is \[2\], not \[3\]"),
        ({5: (1, 2, 6)}, {}, r"initial_h is \[1, 2, 6\], not \[1, 3, 6\]"),
        ({6: (3, 1, 6)}, {}, r"initial_c is \[3, 1, 6\], not \[1, 3, 6\]"),
        ({7: (1, 24)}, {}, r"P is \[1, 24\], not \[1, 18\]"),
        ({0: (5, 3)}, {}, r"X is \[5, 3\], not 3-D"),
        ({}, {"hidden_size": 7}, "hidden_size is 7"),
        ({}, {"direction": "sideways"}, "direction 'sideways' is not"),
        ({}, {"layout": 2}, "layout 2"),
        ({}, {"direction": "bidirectional"}, r"W is \[1, 24, 4\], not \[2, 24, 4\]"),
        ({}, {"activations": ("Sigmoid", "Tanh")}, "2 activations, 3 are needed"),
        ({}, {"activations": ("Sigmoid", "Tanh", "Swish")}, "no activation 'Swish'"),
    ],
)
def test_what_does_not_fit(change, attrs, message):
    inputs = layer("LSTM")
    inputs[4] = np.array([5, 5, 5], np.int32)
    for index, shape in change.items():
        inputs[index] = np.zeros(shape, np.int32 if index == 4 else np.float32)
    with pytest.raises(ShapeError, match=message):
        infer("LSTM", [typed(*v.shape, dtype=v.dtype) for v in inputs], 3, **attrs)
    with pytest.raises(RunError, match=message):
        kernel("LSTM", *inputs, **attrs)


@pytest.mark.parametrize("length", [-1, 6])
def test_a_length_out_of_range(length):
    inputs = layer("GRU")
    inputs[4] = np.array([5, length, 1], np.int32)
    with pytest.raises(RunError, match=rf"sequence length \[{length}\] is not within 5 steps"):
        kernel("GRU", *inputs)


@pytest.mark.parametrize("op", OPS)
def test_inferred(op):
    g = GATES[op]
    inputs = [typed("t", "b", 4), typed(2, g * 6, 4), typed(2, g * 6, 6)]
    found = infer(op, inputs, 1 + STATES[op], direction="bidirectional")
    assert [shape_of(i) for i in found] == ["[t, 2, b, 6]", *["[2, b, 6]"] * STATES[op]]
    assert {i.dtype for i in found} == {np.dtype(np.float32)}
    found = infer(op, [typed("b", "t", 4), typed(1, g * 6, 4), typed(None, None, None)], 2, layout=1, hidden_size=6)
    assert [shape_of(i) for i in found] == ["[b, t, 1, 6]", "[b, 1, 6]"]
    assert shape_of(infer(op, [typed(5, 3, 4), typed(None, None, None), typed(1, None, None)])[0]) == "[5, 1, 3, ?]"
