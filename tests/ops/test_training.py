"""Gradient: derivative graphs against hand formulas and against central differences in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from fuse.errors import FuseError, ModelError, UnsupportedError
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.model.load import load
from fuse.ops import training
from fuse.ops.infer import infer_model
from fuse.ops.vjp import RULES
from fuse.runtime.interpret import Interpreter
from tests.ops.cases import holds, infer, kernel, same, typed

HEAD = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.preview.training" : 1]>'
SIMPLE = Path(onnx.__file__).parent / "backend/test/data/simple"


def bound(proto):
    """The model, whose Gradient nodes the loader binds, and for each whether it could be."""
    model = load(proto)
    nodes = [n for n in model.graph.nodes if n.op == training.GRADIENT]
    return model, ["derivative" in n.attrs for n in nodes]


def gradients(inputs, y, body, xs=None, zs=()):
    """A model that returns ``y`` and its gradients by ``xs``, all inputs where not given."""
    names = [n.split()[-1] for n in inputs]
    xs = names if xs is None else xs
    quoted = ", ".join(f'"{n}"' for n in xs)
    extra = f"zs = [{', '.join(f'{chr(34)}{n}{chr(34)}' for n in zs)}], " if zs else ""
    outs = ", ".join(f"g_{n}" for n in xs)
    text = f"""{HEAD} g ({", ".join(inputs)}) => (float[Q] {y}, {", ".join(f"float[Q] g_{n}" for n in xs)}) {{
      {body}
      {outs} = ai.onnx.preview.training.Gradient <xs = [{quoted}], {extra} y = "{y}"> ({", ".join([*xs, *zs])})
    }}"""
    proto = parser.parse_model(text)
    for slot in proto.graph.output:
        slot.type.tensor_type.ClearField("shape")
    model, done = bound(proto)
    assert done == [True]
    return model


def run(model, *feeds):
    facts = infer_model(model)
    names = [v.name for v in model.graph.inputs]
    got = Interpreter(model).run(dict(zip(names, feeds, strict=True)))
    for slot in model.graph.outputs:
        holds(facts[slot.value], got[slot.name])
    return [got[slot.name] for slot in model.graph.outputs]


# ---- the onnx package's own cases


@pytest.mark.parametrize("name", ["test_gradient_of_add", "test_gradient_of_add_and_mul"])
def test_onnx_cases(name):
    folder = SIMPLE / name
    model, done = bound(onnx.load(folder / "model.onnx"))
    assert done == [True]

    def read(kind):
        paths = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
        return [numpy_helper.to_array(onnx.TensorProto.FromString(p.read_bytes())) for p in paths]

    for got, wanted in zip(run(model, *read("input")), read("output"), strict=True):
        same(got, wanted)


# ---- each rule

A, B, C = "float[2, 3] a", "float[2, 3] b", "float[3] c"
ONE = "one = Constant <value_ints = [1]> () "

CASES = {
    "add": ([A, C], "y = Add(a, c)"),
    "sub": ([C, A], "y = Sub(c, a)"),
    "mul": ([A, "float[1, 3] b"], "y = Mul(a, b)"),
    "div": ([A, C], "y = Div(a, c)"),
    "pow": ([A, "float[] b"], "p = Exp(a) y = Pow(p, b)"),
    "pow by another dtype": ([A], "two = Constant <value = double {2.5}> () p = Exp(a) y = Pow(p, two)"),
    "sum": ([A, C, B], "y = Sum(a, c, b)"),
    "mean": ([A, C, B], "y = Mean(a, c, b)"),
    "max": ([A, C, B], "y = Max(a, c, b)"),
    "min": ([A, C], "y = Min(a, c)"),
    "where": ([A, C], "z = Sub(a, a) k = Greater(a, z) y = Where(k, a, c)"),
    "used twice": ([A], "b = Mul(a, a) y = Mul(b, a)"),
    **{op.lower(): ([A], f"y = {op}(a)") for op in (
        "Neg", "Abs", "Exp", "Reciprocal", "Sin", "Cos", "Tan", "Tanh", "Sigmoid", "Softplus", "Erf", "Softsign",
        "Relu", "LeakyRelu", "Elu", "Identity", "Softmax", "LogSoftmax", "Floor", "Sign",
    )},
    "log": ([A], "e = Exp(a) f = Add(e, e) y = Log(f)"),
    "sqrt": ([A], "e = Exp(a) y = Sqrt(e)"),
    "elu with alpha": ([A], "y = Elu <alpha = 0.5> (a)"),
    "clip": ([A], "l = Constant <value_float = -0.6> () h = Constant <value_float = 0.7> () y = Clip(a, l, h)"),
    "softmax of axis 0": ([A, B], "s = Softmax <axis = 0> (a) y = Mul(s, b)"),
    "log softmax of axis 0": ([A, B], "s = LogSoftmax <axis = 0> (a) y = Mul(s, b)"),
    "dropout": ([A], "y = Dropout(a)"),
    "cast": ([A], "d = Cast <to = 11> (a) e = Mul(d, d) y = Cast <to = 1> (e)"),
    "cast to integers": ([A], "i = Cast <to = 7> (a) f = Cast <to = 1> (i) y = Add(f, a)"),
    "matmul": ([A, "float[4, 3, 2] b"], "y = MatMul(a, b)"),
    "matmul of batches": (["float[4, 1, 2, 3] a", "float[5, 3, 2] b"], "y = MatMul(a, b)"),
    **{f"gemm {ta}{tb}": (
        [f"float[{'3, 2' if ta else '2, 3'}] a", f"float[{'4, 3' if tb else '3, 4'}] b", "float[4] c"],
        f"y = Gemm <transA = {ta}, transB = {tb}, alpha = 0.5, beta = 2.0> (a, b, c)",
    ) for ta in (0, 1) for tb in (0, 1)},
    "gemm without c": ([A, "float[3, 4] b"], "y = Gemm(a, b)"),
    **{f"{op} {keep}": (
        [A, B if keep else "float[2] b"],
        f"{ONE} e = Exp(a) r = {op} <keepdims = {keep}> ({'a' if 'Log' not in op else 'e'}, one) y = Mul(r, b)",
    ) for keep in (0, 1) for op in (
        "ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
        "ReduceMax", "ReduceMin",
    )},
    "reduce all": ([A], "y = ReduceMean <keepdims = 0> (a)"),
    "reshape": ([A, C], "s = Constant <value_ints = [3, -1]> () r = Reshape(a, s) q = MatMul(r, a) y = Mul(q, c)"),
    "flatten": (["float[2, 3, 2] a", "float[6] c"], "f = Flatten(a) y = Mul(f, c)"),
    "squeeze": ([A, C], f"{ONE} u = Unsqueeze(a, one) s = Squeeze(u, one) y = Mul(s, c)"),
    "transpose": (["float[2, 3, 4] a", "float[2] c"], "t = Transpose <perm = [1, 2, 0]> (a) y = Mul(t, c)"),
    "transpose all": ([A, "float[2] c"], "t = Transpose(a) y = Mul(t, c)"),
    "expand": ([C, "float[4, 2, 3] b"], "s = Constant <value_ints = [4, 2, 1]> () e = Expand(c, s) y = Mul(e, b)"),
    "concat": ([A, "float[2, 1] b", "float[2, 4] d"], "k = Concat <axis = -1> (a, b) y = Mul(k, d)"),
    "gather": (
        [A, "float[2, 2, 3] b"],
        "i = Constant <value = int64[2, 2] {1, -1, 0, 1}> () g = Gather(a, i) y = Mul(g, b)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_against_central_differences(name):
    inputs, body = CASES[name]
    model = gradients(inputs, "y", body)
    rng = np.random.default_rng(11)
    feeds = []
    for declared in inputs:
        dims = [int(d) for d in declared[declared.index("[") + 1 : declared.index("]")].split(",") if d.strip()]
        feeds.append(rng.uniform(0.3, 1.5, dims).astype(np.float32) * rng.choice([-1, 1], dims))
    feeds = [f.astype(np.float32) for f in feeds]
    if name == "div":
        feeds[1] = np.abs(feeds[1])
    got = run(model, *feeds)[1:]
    wide = Interpreter(model, precision="double")
    names = [v.name for v in model.graph.inputs]

    def total(values):
        return float(wide.run(dict(zip(names, values, strict=True)), ["y"])["y"].sum())

    for k, gradient in enumerate(got):
        assert gradient.dtype == np.float32
        assert gradient.shape == feeds[k].shape
        numeric = np.zeros(feeds[k].shape)
        for at in np.ndindex(feeds[k].shape):
            step = np.zeros(feeds[k].shape, np.float32)
            step[at] = 2**-10
            values = [list(feeds), list(feeds)]
            values[0][k], values[1][k] = feeds[k] + step, feeds[k] - step
            width = float(values[0][k][at]) - float(values[1][k][at])
            numeric[at] = (total(values[0]) - total(values[1])) / width
        np.testing.assert_allclose(gradient, numeric, rtol=2e-4, atol=2e-4)


def test_every_rule_has_a_case():
    used = {w.split("<")[0].split("(")[0].strip() for _, body in CASES.values() for w in body.replace("=", " ").split()}
    inside = {"fuse::SumTo", "fuse::CastLike", "fuse::SwapLast", "fuse::ScalarLike", "Shape", "Size", "Ceil", "Round"}
    assert set(RULES) - inside <= used


# ---- what a derivative is taken of


def test_equal_elements_share():
    x = np.array([[1, 1, 0]], np.float32)
    model = gradients(["float[1, 3] a"], "y", f"{ONE} y = ReduceMax(a, one)")
    assert run(model, x)[1].tolist() == [[0.5, 0.5, 0]]
    model = gradients(["float[1, 3] a", "float[1, 3] b"], "y", "y = Max(a, b)")
    assert [g.tolist() for g in run(model, x, x)[1:]] == [[[0.5] * 3]] * 2


def test_intermediate_tensors_cut_the_path():
    model = gradients([A, C], "y", "h = Mul(a, a) y = Mul(h, c)", xs=["h", "c"])
    a, c = np.full((2, 3), 3, np.float32), np.array([1, 2, 3], np.float32)
    _, by_h, by_c = run(model, a, c)
    assert by_h.tolist() == [[1, 2, 3]] * 2
    assert by_c.tolist() == [18, 18, 18]


def test_other_values_can_be_fed_than_those_named():
    text = f"""{HEAD} g (float[2] a, float[2] b, float[2] k) => (float[2] y, float[2] d) {{
      h = Mul(a, a)
      y = Mul(h, b)
      d = ai.onnx.preview.training.Gradient <xs = ["a"], zs = ["b"], y = "y"> (k, b)
    }}"""
    model, done = bound(parser.parse_model(text))
    assert done == [True]
    y, d = run(model, *(np.full(2, v, np.float32) for v in (1, 2, 5)))
    assert y.tolist() == [2, 2]
    assert d.tolist() == [20, 20]  # 2 k b


def test_what_does_not_depend_has_no_gradient():
    model = gradients([A, C], "y", "y = Neg(a)")
    _, by_a, by_c = run(model, np.ones((2, 3), np.float32), np.ones(3, np.float32))
    assert by_a.tolist() == [[-1] * 3] * 2
    assert by_c.tolist() == [0, 0, 0]
    model = gradients([A, C], "y", "y = Neg(c)", xs=["a"], zs=["c"])
    assert not run(model, np.ones((2, 3), np.float32), np.ones(3, np.float32))[1].any()
    itself = gradients([A], "y", "y = Neg(a)", xs=["y"])
    assert run(itself, np.ones((2, 3), np.float32))[1].tolist() == [[1] * 3] * 2


def test_the_second_derivative():
    text = f"""{HEAD} g (float[2] a, float[2] b) => (float[2] dd, float[2] db) {{
      h = Mul(a, a)
      i = Mul(h, a)
      y = Mul(i, b)
      d = ai.onnx.preview.training.Gradient <xs = ["a"], zs = ["b"], y = "y"> (a, b)
      dd, db = ai.onnx.preview.training.Gradient <xs = ["a", "b"], y = "d"> (a, b)
    }}"""
    model, done = bound(parser.parse_model(text))
    assert done == [True, True]
    a, b = np.array([2, -3], np.float32), np.array([5, 7], np.float32)
    dd, db = run(model, a, b)
    assert dd.tolist() == (6 * a * b).tolist()
    assert db.tolist() == (3 * a * a).tolist()


@pytest.mark.parametrize("body", ["h = MatMul(a, b) y = Tanh(h)", "h = Softmax(a) y = Pow(h, b)"])
def test_rules_can_be_derived_again(body):
    text = f"""{HEAD} g (float[2, 2] a, float[2, 2] b) => (float[2, 2] q, float[2, 2] dd) {{
      {body}
      d = ai.onnx.preview.training.Gradient <xs = ["a"], zs = ["b"], y = "y"> (a, b)
      q = Mul(d, b)
      dd = ai.onnx.preview.training.Gradient <xs = ["a"], zs = ["b"], y = "q"> (a, b)
    }}"""
    model, done = bound(parser.parse_model(text))
    assert done == [True, True]
    a, b = np.array([[0.3, 0.8], [0.5, 0.2]], np.float32), np.array([[2, 3], [0.5, 1]], np.float32)
    wide = Interpreter(model, precision="double")
    dd = run(model, a, b)[1]
    for at in np.ndindex(2, 2):
        step = np.zeros((2, 2), np.float32)
        step[at] = 2**-10
        high, low = (wide.run({"a": v, "b": b}, ["q"])["q"].sum() for v in (a + step, a - step))
        np.testing.assert_allclose(dd[at], (high - low) / (float((a + step)[at]) - float((a - step)[at])), rtol=1e-3)


def test_a_long_chain_needs_no_recursion():
    chain = "".join(f"v{i + 1} = Neg(v{i}) " for i in range(3000))
    model = gradients(["float[2] v0"], "v3000", chain)
    assert run(model, np.ones(2, np.float32))[1].tolist() == [1, 1]


# ---- binding


def label(value: Value) -> str:
    return value.name


def test_the_attribute_stays_out_of_the_file_and_pins_what_it_names():
    inputs, body = CASES["add"]
    model = gradients(inputs, "y", body)
    node = next(n for n in model.graph.nodes if n.op == training.GRADIENT)
    attribute = node.attrs["derivative"]
    assert attribute.implied
    assert attribute.value.parent is node
    y = next(v for n in model.graph.nodes for v in n.outputs if v is not None and v.name == "y")
    assert attribute.value in y.readers
    assert training.names(node, label) == {"xs": ("a", "c"), "y": "y"}
    fresh = Value("renamed", y.type)
    model.graph.insert(Node("Identity", [y], [fresh]), before=node)
    for user, index in list(y.uses):
        if user is attribute.value:
            user.rewire(index, fresh)
    assert training.names(node, label)["y"] == "renamed"


def test_parts_nobody_asked_for_are_not_computed():
    model = gradients([A, "float[3, 4] b"], "y", "y = MatMul(a, b)", xs=["a"], zs=["b"])
    node = next(n for n in model.graph.nodes if n.op == training.GRADIENT)
    assert [n.op for n in node.attrs["derivative"].value.nodes].count("MatMul") == 2  # y itself, and y by a


def test_names_that_are_nowhere():
    text = f"""{HEAD} g (float[2] a) => (float[2] d) {{
      d = ai.onnx.preview.training.Gradient <xs = ["a"], y = "nowhere"> (a)
    }}"""
    with pytest.raises(ModelError, match="'nowhere' is defined nowhere before it"):
        bound(parser.parse_model(text))
    attrs = {"xs": Attr("STRINGS", ("a",)), "y": Attr("STRING", "y")}
    node = Node(training.GRADIENT, [], [Value("d")], attrs)
    a, y = Value("a"), Value("y")
    with pytest.raises(ModelError, match=r"takes a value for each of xs and zs \(1\), 0 given"):
        training.bind(node, {"a": a, "y": y}.get)


@pytest.mark.parametrize(
    "body", ["y = Det(a)", "y = Gather <axis = 1> (a, i)", "t = Constant <value = bool {1}> () y = Dropout(a, , t)"]
)
def test_an_operator_without_a_derivative_is_refused_when_run(body):
    text = f"""{HEAD} g (float[2, 2] a) => (float[A] d) {{
      i = Constant <value_ints = [1]> ()
      {body}
      d = ai.onnx.preview.training.Gradient <xs = ["a"], y = "y"> (a)
    }}"""
    model, done = bound(parser.parse_model(text))
    assert done == [False]
    node = next(n for n in model.graph.nodes if n.op == training.GRADIENT)
    assert "derivative" not in node.attrs
    a = model.graph.inputs[0]
    assert {user for user, _ in a.uses} <= set(model.graph.nodes)  # nothing of the attempt is left
    with pytest.raises(UnsupportedError, match="without a derivative"):
        kernel(training.GRADIENT, np.ones((2, 2)), xs=("a",), y="y", run=None)


def test_products_with_vectors_are_refused():
    model = gradients([A, "float[3] c"], "y", "y = MatMul(a, c)")
    with pytest.raises(FuseError, match="product with a vector"):
        Interpreter(model).run({"a": np.ones((2, 3), np.float32), "c": np.ones(3, np.float32)})


def test_operators_of_derivative_graphs():
    x = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    assert kernel("fuse::SumTo", x, np.zeros((2, 1))).tolist() == [[3], [12]]
    assert kernel("fuse::SumTo", x, np.zeros((), np.float64)).dtype == np.float64
    assert kernel("fuse::SwapLast", x).shape == (1, 3, 2)
    assert str(infer("fuse::SwapLast", [typed("n", 2, 3)])[0].type) == "float[n, 3, 2]"
    assert str(infer("fuse::SumTo", [typed("n", 2), typed(2, dtype=np.float64)])[0].type) == "double[2]"
    assert kernel("fuse::ScalarLike", np.zeros(3, np.float16), value=0.1).tolist() == np.float16(0.1)
    assert infer(training.GRADIENT, [typed(1)], 1, run=lambda g, i: list(i), xs=("a",), y="y", derivative=Graph())
