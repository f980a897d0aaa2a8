"""The judge against planted faults, each of which it must catch, and true rewrites, which it must let stand."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from fuse import zoo
from fuse.model.load import load
from fuse.passes.pipeline import run_pipeline
from fuse.proof.judge import verify_models
from tests.models import F32, I64, model, node, rand

DOUBLE = TensorProto.DOUBLE
X = {"x": ["n", 16]}


def verdict(raw, other, *, declared=True, **options):
    """The verdict of fuse alone; with ``declared=False`` the outputs say nothing of their types, so only a run can."""
    models = [load(raw), load(other)]
    for slot in (slot for m in models if not declared for slot in m.graph.outputs):
        slot.type = None
    return verify_models(*models, onnxruntime=False, **options)


def unary(*ops: str, **consts):
    """A chain of operators from x to y, each with the constants its text names, as in ``Mul w``."""
    nodes, at = [], "x"
    for place, text in enumerate(ops):
        op, *rest = text.split()
        out = "y" if place == len(ops) - 1 else f"t{place}"
        nodes.append(node(op, [r.replace("_", at) for r in (rest if "_" in rest else ["_", *rest])], [out]))
        at = out
    return model(nodes, X, ["y"], {n: np.asarray(a) for n, a in consts.items()})


W = rand(16)
ONE, ZERO = np.ones(16, np.float32), np.zeros((), np.float32)


def steps(a, count: int):
    for _ in range(count):
        a = np.nextafter(a, np.float32(np.inf))
    return a


# ---- planted faults


def reduced(axis: int, keep: int = 1):
    nodes = [node("ReduceSum", ["x", "axes"], ["y"], keepdims=keep)]
    return model(nodes, {"x": ["n", "m"]}, ["y"], {"axes": np.array([axis])})


def attributed(op: str, shape=("n", 16), **attrs):
    return model([node(op, ["x"], ["y"], **attrs)], {"x": list(shape)}, ["y"])


def with_output(kind: int):
    nodes = [node("Relu", ["x"], ["t"]), node("Cast", ["t"], ["y"], to=kind)]
    return model(nodes, X, {"y": (kind, ["n", 16])})


def two_outputs(first: str, second: str, order=("p", "q")):
    return model([node(first, ["x"], ["p"]), node(second, ["x"], ["q"])], X, list(order))


def dense(*, bias=None, scale=None, normal=None, x=("n", 16)):
    """Gemm, and a BatchNormalization behind it where ``normal`` holds its four vectors."""
    w = rand(16, 16, seed=3) / 4
    consts = {"w": w if scale is None else w * scale, "b": np.zeros(16, np.float32) if bias is None else bias}
    nodes = [node("Gemm", ["x", "w", "b"], ["t"])]
    if normal is not None:
        nodes.append(node("BatchNormalization", ["t", "s", "o", "m", "v"], ["y"]))
        consts |= dict(zip("somv", normal, strict=True))
    else:
        nodes.append(node("Identity", ["t"], ["y"]))
    return model(nodes, {"x": list(x)}, ["y"], consts)


FAULTS = {
    "wrong constant": (unary("Mul w", w=W), unary("Mul w", w=np.where(np.arange(16) == 7, W * 1.01, W).astype("f4"))),
    "wrong sign": (unary("Mul w", w=W), unary("Mul w", w=-W)),
    "swapped operands": (unary("Sub _ w", w=W), unary("Sub w _", w=W)),
    "dropped Relu, seen on negatives alone": (unary("Relu"), unary("Identity")),
    "Relu for Abs": (unary("Abs"), unary("Relu")),
    "clamp a little too low": (
        unary("Clip lo hi", lo=np.float32(0), hi=np.float32(6)),
        unary("Clip lo hi", lo=np.float32(0), hi=np.float32(5.9)),
    ),
    "lost bias": (dense(bias=W / 100), dense()),
    "off by 1e-3": (unary("Mul w", w=W), unary("Mul w", w=W * np.float32(1.001))),
    "off by 20 ULP": (unary("Mul w", w=W), unary("Mul w", w=steps(W, 20))),
    "half rounded up, seen at ties alone": (unary("Round"), unary("Add h", "Floor", h=np.float32(0.5))),
    "strict comparison, seen at zeros alone": (unary("GreaterOrEqual z", z=ZERO), unary("Greater z", z=ZERO)),
    "sum over the batch, hidden at size 1": (attributed("Identity", ("n", "m")), reduced(0)),
    "wrong axis": (reduced(0, 0), reduced(1, 0)),
    "wrong axis of a square": (attributed("Softmax", (8, 8), axis=0), attributed("Softmax", (8, 8), axis=1)),
    "transposed square": (attributed("Identity", (8, 8)), attributed("Transpose", (8, 8), perm=[1, 0])),
    "changed dtype": (with_output(F32), with_output(DOUBLE)),
    "float for integer": (with_output(I64), with_output(F32)),
    "values swapped between outputs": (two_outputs("Neg", "Abs"), two_outputs("Abs", "Neg")),
    "output order swapped": (two_outputs("Neg", "Abs"), two_outputs("Neg", "Abs", ("q", "p"))),
    "NaN introduced": (unary("Abs"), unary("Log", "Exp")),
    "Inf made finite": (unary("Mul w", "Exp", w=ONE * 99), unary("Mul w", "Exp", "Min m", w=ONE * 99, m=ONE * 3e38)),
    "NaN made a number": (unary("Sqrt"), unary("Max z", "Sqrt", z=ZERO)),
    "lost rank": (reduced(0, 1), reduced(0, 0)),
    "last of equal maxima": (
        attributed("ArgMax", (40, 3), axis=1),
        attributed("ArgMax", (40, 3), axis=1, select_last_index=1),
    ),
    "padded with zeros before a maximum": (
        attributed("MaxPool", (1, 1, 6, 6), kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
        model(
            [node("Pad", ["x", "p"], ["t"]), node("MaxPool", ["t"], ["y"], kernel_shape=[2, 2])],
            {"x": [1, 1, 6, 6]}, ["y"], {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1])},
        ),
    ),
    "squeezed away at size 1 alone": (
        model([node("Squeeze", ["x", "a"], ["y"])], {"x": ["n", 1, 5]}, ["y"], {"a": np.array([1])}),
        model([node("Squeeze", ["x"], ["y"])], {"x": ["n", 1, 5]}, ["y"]),
    ),
    "integer division rounded down": (
        model([node("Div", ["i", "c"], ["y"])], {"i": (I64, [32])}, ["y"], {"c": np.array(2)}),
        model(
            [node("Cast", ["i"], ["f"], to=F32), node("Div", ["f", "d"], ["g"]), node("Floor", ["g"], ["h"]),
             node("Cast", ["h"], ["y"], to=I64)],
            {"i": (I64, [32])}, ["y"], {"d": np.float32(2)},
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name, declared):
    raw, other = FAULTS[name]
    assert verdict(raw, raw).status == "ok"
    found = verdict(raw, other, declared=declared)
    assert found.status == "moved" and not found.ok, found.line()
    assert found.reasons and found.line().startswith("answers moved: ")
    assert verdict(other, raw, declared=declared).status == "moved"


def test_the_reason_names_output_and_input_set_and_tells_meaning_from_rounding():
    found = verdict(*FAULTS["wrong constant"])
    assert "output 'y' on input set 'normal (n=1)'" in found.reasons[0]
    assert "in float64 the two graphs differ as well" in found.reasons[0]
    row = next(r for r in found.rows if r.moved)
    assert row.ratio > 1000 and row.difference.max_rel > 1e-4
    big = np.float32(1e6)
    raw, other = unary("Mul w", w=W), unary("Add b", "Sub b", "Mul w", b=big, w=W)
    found = verdict(raw, other)
    assert found.status == "moved" and "in float64 the two graphs agree, so rounding grew" in found.reasons[0]


def test_an_error_of_the_optimised_graph_is_a_move():
    raw = model([node("Relu", ["x"], ["y"])], X, ["y"])
    bad = model([node("Reshape", ["x", "s"], ["y"])], X, ["y"], {"s": np.array([7, 7])})
    found = verdict(raw, bad, declared=False)
    assert found.status == "moved" and "only the raw graph runs: model: node 'y' (Reshape)" in found.line()


def test_dtypes_and_shapes_are_told_from_what_ran():
    found = verdict(*FAULTS["changed dtype"], declared=False)
    assert "output 'y' on input set 'normal (n=1)' has another dtype or shape: double[1, 16], it was float[1, 16]" in (
        found.line()
    )
    assert "output 'y' is double[n, 16], it was float[n, 16]" in verdict(*FAULTS["changed dtype"]).line()


# ---- exactness


def test_bits_refuse_one_ulp_that_close_accepts():
    raw, other = unary("Mul w", w=W), unary("Mul w", w=steps(W, 1))
    assert verdict(raw, other, exact="close").ok
    for exact in ("bits", "values"):
        found = verdict(raw, other, exact=exact)
        assert found.status == "moved" and "only exact rewrites were made" in found.line()


def test_values_accept_the_sign_of_zero_and_bits_do_not():
    raw, other = unary("Add z", z=ZERO), unary("Identity")
    assert verdict(raw, other, exact="close").ok and verdict(raw, other, exact="values").ok
    found = verdict(raw, other, exact="bits")
    assert found.status == "moved" and "the sign of zero" in found.line()


# ---- true rewrites


def folded(normal, epsilon: float = 1e-5):
    scale, offset, mean, var = (v.astype(np.float64) for v in normal)
    s = scale / np.sqrt(var + epsilon)
    return s, offset - mean * s


NORMAL = tuple(
    v.astype(np.float32)
    for v in (1 + rand(16, seed=5) / 3, rand(16, seed=6), rand(16, seed=7), np.abs(rand(16, seed=8)) + 0.1)
)


def fold_by_hand():
    s, t = folded(NORMAL)
    w = (rand(16, 16, seed=3) / 4).astype(np.float64) * s
    nodes = [node("Gemm", ["x", "w", "b"], ["y"])]
    return model(nodes, {"x": ["n", 16]}, ["y"], {"w": w.astype(np.float32), "b": t.astype(np.float32)})


REWRITES = {
    "a factor of one removed": (unary("Mul w", w=ONE), unary("Identity"), "bits"),
    "the same graph": (dense(normal=NORMAL), dense(normal=NORMAL), "bits"),
    "two transposes removed": (unary("Transpose", "Transpose"), unary("Identity"), "bits"),
    "BatchNormalization folded": (dense(normal=NORMAL), fold_by_hand(), "close"),
    "two factors merged": (unary("Mul w", "Mul v", w=W, v=W + 3), unary("Mul w", w=W * (W + 3)), "close"),
    "off by at most 4 ULP": (unary("Mul w", w=W), unary("Mul w", w=steps(W, 3)), "close"),
    "Sigmoid written out": (
        unary("Sigmoid"), unary("Neg", "Exp", "Add o", "Div o _", o=np.float32(1)), "close"
    ),
    "integers": (
        model([node("Add", ["i", "z"], ["y"])], {"i": (I64, [8])}, ["y"], {"z": np.array(0)}),
        model([node("Identity", ["i"], ["y"])], {"i": (I64, [8])}, ["y"]),
        "bits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REWRITES)
def test_true_rewrite_stands(name):
    raw, other, exact = REWRITES[name]
    found = verdict(raw, other, exact=exact)
    assert found.ok and not found.reasons, found.line()
    assert found.line().startswith(f"answers unmoved on {len(found.input_sets)} input sets: ")


def stack(depth: int, dtype, fold: bool):
    """Dense layers with BatchNormalization and Relu between them, folded by hand or not, with one number as output."""
    nodes, consts, at = [], {}, "x"
    for k in range(depth):
        w = rand(16, 16, seed=k) / 3
        normal = [1 + rand(16, seed=k + 50) / 3, rand(16, seed=k + 60), rand(16, seed=k + 70)]
        normal.append(np.abs(rand(16, seed=k + 80)) + 0.1)
        w, *normal = (v.astype(dtype) for v in (w, *normal))
        names = [f"{n}{k}" for n in "wbsomv"]
        s, t = folded(normal)
        weights = (w.astype(np.float64) * s, t) if fold else (w, np.zeros(16))
        consts |= dict(zip(names, [v.astype(dtype) for v in (*weights, *normal)][: 2 if fold else 6], strict=False))
        nodes.append(node("Gemm", [at, names[0], names[1]], [f"g{k}"]))
        if not fold:
            nodes.append(node("BatchNormalization", [f"g{k}", *names[2:]], [f"n{k}"]))
        nodes.append(node("Relu", [f"g{k}" if fold else f"n{k}"], [f"r{k}"]))
        at = f"r{k}"
    consts["last"] = rand(16, 1, seed=9).astype(dtype)
    nodes.append(node("MatMul", [at, "last"], ["y"]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return model(nodes, {"x": (kind, [1, 16])}, ["y"], consts)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("seed", range(4))
def test_deep_folds_stand_in_every_precision_and_a_fault_does_not(dtype, seed):
    """One number as output: its error is a matter of luck, which the noise of the weights takes into account."""
    raw, other = stack(6, dtype, fold=False), stack(6, dtype, fold=True)
    assert verdict(raw, other, seed=seed).ok
    wrong = stack(6, dtype, fold=True)
    bias = next(t for t in wrong.graph.initializer if t.name == "b3")
    bias.raw_data = (np.frombuffer(bias.raw_data, dtype) + dtype(0.25)).astype(dtype).tobytes()
    assert verdict(raw, wrong, seed=seed).status == "moved"


def test_the_embedded_mlp_optimised_stands_and_one_wrong_weight_does_not():
    raw = load(zoo.path("mlp"))
    optimised, journal = run_pipeline(raw)
    found = verify_models(raw, optimised, exact=journal.exactness(), onnxruntime=False)
    assert found.ok and found.worst("max_rel") < 1e-6, found.line()
    bias = next(v for v in optimised.graph.constants if v.shape is not None and len(v.shape) == 1)
    bias.set_data(bias.array * np.float32(1.01))
    assert verify_models(raw, optimised, onnxruntime=False).status == "moved"
