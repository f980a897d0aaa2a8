"""Fused operators: kernel, inference and function body are one definition, and a file's body is what counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from fuse.errors import ShapeError
from fuse.ir.check import check
from fuse.ir.copy import copy_graph, copy_model
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.same import difference
from fuse.ir.types import TensorType
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.ops import OPERATORS
from fuse.ops.fused import ACTIVATIONS, BASES, DOMAIN, FUSED, PREFIX, RESIDUAL, Fused, attach, definition
from fuse.ops.infer import infer_node, tensor
from fuse.runtime.interpret import run
from tests.model.protos import const, graph, info, model, node, same

DTYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64}
ALL = sorted(FUSED)
Arrays = list[np.ndarray | None]


def test_every_combination_is_there() -> None:
    assert len(FUSED) == len(BASES) * len(ACTIVATIONS) + len(RESIDUAL) * (len(ACTIVATIONS) + 1)
    assert {"fuse::ConvRelu", "fuse::ConvAdd", "fuse::ConvAddRelu", "fuse::GemmClip", "fuse::AddRelu"} <= FUSED.keys()
    assert all(OPERATORS[op].op == op == fused.op for op, fused in FUSED.items())


# ---- one definition


@pytest.mark.parametrize("op", ALL)
def test_the_function_has_the_operator_s_interface(op: str) -> None:
    """As many inputs as the kernel takes, every attribute of it, one output; in operators that any runtime has."""
    fused, record, function = FUSED[op], OPERATORS[op], definition(op)
    check(Model(Graph(), 8, {"": 18}, {function.key: function}))
    assert function.key == (op, "") and [v.name for v in function.graph.inputs] == list(fused.inputs)
    assert len(fused.inputs) == record.max_inputs and len(function.graph.outputs) == 1
    assert set(function.attributes) == {*record.defaults, *record.required} and not record.required
    nodes = list(function.graph.nodes)
    expected = [fused.base, *["Add"] * fused.residual, *[fused.activation] * bool(fused.activation)]
    assert [n.op for n in nodes] == expected
    referenced = [a.reference for n in nodes for a in n.attrs.values()]
    assert sorted(referenced) == sorted(function.attributes)
    for made in nodes:
        known = OPERATORS[made.op]
        assert made.attrs.keys() == known.defaults.keys()
        for name, attr in made.attrs.items():
            schema = onnx.defs.get_schema(made.op, 18).attributes[name]
            assert attr.kind == schema.type.name and attr.reference in (name, PREFIX + name)


def given(fused: Fused, dtype: Any, seed: int, optional: bool) -> tuple[Arrays, dict[str, Any]]:
    """Random inputs and attributes; without the optional inputs where ``optional`` is false."""
    rng = np.random.default_rng(seed)

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    inputs: Arrays
    attrs: dict[str, Any] = {}
    if fused.base == "Conv":
        inputs = [some(2, 4, 5, 6), some(6, 2, 3, 3), some(6)]
        attrs = {"group": 2, "pads": (1, 0, 1, 2), "strides": (2, 1), "dilations": (1, 2), "kernel_shape": (3, 3)}
    elif fused.base == "ConvTranspose":
        inputs = [some(1, 4, 3, 4), some(4, 3, 2, 3), some(6)]
        attrs = {"group": 2, "strides": (2, 1), "pads": (0, 1, 1, 0)}
    elif fused.base == "Gemm":
        inputs = [some(4, 3), some(5, 4), some(1, 5)]
        attrs = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": -2.0}
    elif fused.base == "MatMul":
        inputs = [some(2, 3, 4), some(4, 5)]
    else:
        inputs = [some(2, 3, 1), some(3, 4)]
    if fused.base in ("Conv", "ConvTranspose", "Gemm") and not optional:
        inputs[2] = None
    if fused.residual:
        inputs.append(some(*OPERATORS[fused.base].kernel(*inputs, **attrs).shape))
    if fused.activation == "Clip":
        inputs += [np.asarray(-0.25, dtype), np.asarray(0.75, dtype)] if optional else [None, np.asarray(0.5, dtype)]
    elif optional:
        attrs |= (
            {PREFIX + n: float(v) * 1.25 for n, v in OPERATORS[fused.activation].defaults.items()}
            if fused.activation
            else {}
        )
    return inputs, attrs


def as_attrs(attrs: dict[str, Any]) -> dict[str, Attr]:
    kinds = {int: "INT", float: "FLOAT", tuple: "INTS", str: "STRING"}
    return {name: Attr(kinds[type(value)], value) for name, value in attrs.items()}


def reference(fused: Fused, inputs: Arrays, attrs: dict[str, Any]) -> np.ndarray:
    """The function's body, node by node, under a name that has no kernel."""
    body = definition(fused.op)
    function = Function("own", "f", "", copy_graph(body.graph, {}), body.attributes)
    return calling(Node("own::f", [], [Value("y")], as_attrs(attrs)), inputs, {function.key: function})


def kernel(fused: Fused, inputs: Arrays, attrs: dict[str, Any]) -> np.ndarray:
    return calling(Node(fused.op, [], [Value("y")], as_attrs(attrs)), inputs, {})


def calling(call: Node, inputs: Arrays, functions: Any) -> np.ndarray:
    outer = Graph("g")
    for index, array in enumerate(inputs):
        value = None if array is None else outer.add_input(Value(f"x{index}", TensorType(array.dtype, array.shape)))
        call.append_input(value)
    outer.append(call)
    outer.add_output("y", call.out)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    return run(Model(outer, 8, {"": 18}, functions), feeds)["y"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ALL)
def test_the_kernel_computes_what_the_function_says(op: str, dtype: str) -> None:
    """Bit for bit, with and without optional inputs, with the defaults and with other attributes."""
    fused = FUSED[op]
    for seed, optional in enumerate((True, False)):
        inputs, attrs = given(fused, DTYPES[dtype], seed, optional)
        before = [None if a is None else a.copy() for a in inputs]
        for more in (attrs, {n: v for n, v in attrs.items() if n in ("group", "transA", "transB")}):
            if more is not attrs and fused.residual:
                continue  # another shape than the residual's
            want, got = reference(fused, inputs, more), kernel(fused, inputs, more)
            assert got.dtype == want.dtype == DTYPES[dtype] and got.shape == want.shape
            assert got.tobytes() == want.tobytes()
        assert all(a is None or a.tobytes() == b.tobytes() for a, b in zip(inputs, before, strict=True))  # type: ignore[union-attr]


SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 0.5]


@pytest.mark.parametrize("op", [op for op in ALL if FUSED[op].base in ("Add", "MatMul", "Conv")])
def test_special_numbers(op: str) -> None:
    """NaN, infinities, zeros of both signs, subnormal and huge numbers come out with the same bits."""
    fused = FUSED[op]
    x = np.array(SPECIAL, np.float32)
    zero, one = np.zeros_like(x), np.ones((1, 1), np.float32)
    inputs: Arrays = {
        "Add": [x, -zero], "MatMul": [x.reshape(-1, 1), one], "Conv": [x.reshape(1, 1, -1), one[None], None],
    }[fused.base]  # fmt: skip
    if fused.residual:
        inputs.append(-zero.reshape(1, 1, -1))
    if fused.activation == "Clip":
        inputs += [np.float32(-2).reshape(()), np.float32(2).reshape(())]
    assert kernel(fused, inputs, {}).tobytes() == reference(fused, inputs, {}).tobytes()


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 2, 3), (3,), ()])
def test_a_residual_of_another_shape_is_broadcast_as_the_function_does(shape: tuple[int, ...]) -> None:
    x, w = np.arange(6, dtype=np.float32).reshape(1, 2, 3), np.ones((2, 2, 1), np.float32)
    z = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    fused = FUSED["fuse::ConvAddRelu"]
    got, want = kernel(fused, [x, w, None, z], {}), reference(fused, [x, w, None, z], {})
    assert got.shape == want.shape and got.tobytes() == want.tobytes()
    infos = [tensor(x.dtype, x.shape), tensor(w.dtype, w.shape), None, tensor(z.dtype, z.shape)]
    ins = [None if i is None else Value("v", i.type) for i in infos]
    (inferred,) = infer_node(Node(fused.op, ins, [Value("y")]), infos)
    assert inferred.shape == want.shape and inferred.dtype == np.float32


def test_inference_refuses_what_does_not_fit() -> None:
    x, w = tensor(np.dtype(np.float32), (1, 2, 5)), tensor(np.dtype(np.float32), (2, 2, 3))
    values = [Value("v") for _ in range(4)]
    with pytest.raises(ShapeError, match="the residual is missing"):
        infer_node(Node("fuse::ConvAdd", values[:2], [Value("y")]), [x, w])
    with pytest.raises(ShapeError, match="do not broadcast"):
        infer_node(Node("fuse::ConvAdd", values, [Value("y")]), [x, w, None, tensor(x.dtype, (1, 2, 4))])  # type: ignore[arg-type]
    with pytest.raises(ShapeError):
        infer_node(Node("fuse::ConvRelu", values[:2], [Value("y")]), [x, tensor(x.dtype, (2, 3, 3))])  # type: ignore[arg-type]


# ---- in a file


def small(op: str = "fuse::ConvAddRelu") -> Model:
    """A model of one fused node, as the pipeline makes it."""
    nodes = [node("Conv", ["x", "w"], ["c"], kernel_shape=[1]), node("Relu", ["c"], ["y"])]
    proto = model(graph(nodes, [info("x", [1, 2, 3])], [info("y", [1, 2, 3])], [const("w", np.ones((2, 2, 1)))]))
    subject = load(proto)
    conv, relu = subject.graph.nodes
    residual = [conv.inputs[0]] if FUSED[op].residual else []
    fused = Node(
        op, [*conv.inputs, *[None] * bool(residual), *residual], [Value("y")], {"kernel_shape": Attr("INTS", (1,))}
    )
    subject.graph.insert(fused, conv)
    relu.out.replace_by(fused.out)
    subject.graph.remove(relu)
    subject.graph.remove(conv)
    attach(subject)
    check(subject)
    return subject


X = np.array([[[-1, 2, 3], [0.5, -4, 1]]], np.float32)


def test_attach_gives_a_model_what_it_needs_and_takes_the_rest_away() -> None:
    subject = small()
    assert list(subject.functions) == [("fuse::ConvAddRelu", "")] and subject.opsets == {"": 18, "fuse": 1}
    before = copy_model(subject)
    attach(subject)
    assert difference(subject, before) is None, "once is enough"
    first, second = small(), small()
    assert first.functions["fuse::ConvAddRelu", ""].graph is not second.functions["fuse::ConvAddRelu", ""].graph
    next(iter(first.functions["fuse::ConvAddRelu", ""].graph.nodes)).name = "changed"
    assert difference(small(), second) is None, "no model's body is another's"
    (call,) = subject.graph.nodes
    call.out.replace_by(subject.graph.inputs[0])
    subject.graph.remove(call)
    attach(subject)
    assert not subject.functions and subject.opsets == {"": 18}
    old = small()
    old.ir_version, old.functions = 4, {}
    attach(old)
    assert old.ir_version == 8, "files have functions from version 8 on"


def test_attach_leaves_other_functions_alone() -> None:
    subject = small()
    other = Function("fuse", "Other", "", copy_graph(definition("fuse::AddRelu").graph, {}), (), {}, {"": 18})
    subject.functions["fuse::Other", ""] = other
    subject.graph.outputs[0].value.producer.op = "fuse::Other"  # type: ignore[union-attr]
    attach(subject)
    assert list(subject.functions) == [("fuse::Other", "")] and subject.opsets["fuse"] == 1


@pytest.mark.parametrize(
    "op", ["fuse::ConvRelu", "fuse::ConvAddRelu", "fuse::ConvAdd", "fuse::ConvLeakyRelu", "fuse::ConvClip"]
)
def test_a_fused_node_is_known_again(op: str) -> None:
    subject = small(op)
    proto = to_proto(subject)
    onnx.checker.check_model(proto, full_check=True)
    again = load(proto.SerializeToString())
    assert [n.op for n in again.graph.nodes] == [op] and list(again.functions) == [(op, "")]
    assert same(to_proto(again), proto)
    assert np.array_equal(run(again, {"x": X})["y"], run(subject, {"x": X})["y"])


@pytest.mark.parametrize("op", ["fuse::ConvRelu", "fuse::ConvAddRelu", "fuse::ConvHardSigmoid"])
def test_onnxruntime_runs_the_function(op: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    subject = small(op)
    session = ort.InferenceSession(to_proto(subject).SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], run(subject, {"x": X})["y"], rtol=1e-6)


def test_every_function_can_be_written_and_is_known_again() -> None:
    """All of them in one file, each called once."""
    outer = Graph("g")
    x = outer.add_input(Value("x", TensorType(np.dtype(np.float32), (1, 2, 3))))
    for index, op in enumerate(ALL):
        width = len(BASES[FUSED[op].base]) - (FUSED[op].base in ("Conv", "ConvTranspose", "Gemm"))
        inputs: list[Value | None] = [x] * width
        if FUSED[op].residual:
            inputs = [x, x, None, x]
        call = outer.append(Node(op, inputs, [Value(f"y{index}")]))
        outer.add_output(f"y{index}", call.out, x.type)
    subject = Model(outer, 8, {"": 18})
    attach(subject)
    proto = to_proto(subject)
    onnx.checker.check_model(proto)
    again = load(proto)
    assert [n.op for n in again.graph.nodes] == ALL and len(again.functions) == len(ALL)
    assert same(to_proto(again), proto)


def tampered(change: Any) -> tuple[onnx.ModelProto, Model]:
    """The file of a fused node with its function changed, and the model as fuse loads it."""
    proto = to_proto(small())
    change(proto.functions[0])
    return proto, load(proto)


CHANGES = {
    "another activation": lambda f: setattr(f.node[2], "op_type", "Neg"),
    "another sum": lambda f: setattr(f.node[1], "op_type", "Mul"),
    "the inputs swapped": lambda f: f.node[1].input.reverse(),
    "the wrong input": lambda f: f.node[1].input.__setitem__(1, "X"),
    "an attribute of its own": lambda f: _drop(f, "auto_pad", helper.make_attribute("auto_pad", "VALID")),
    "an attribute less": lambda f: _drop(f, "pads"),
    "a node more": lambda f: _append(f),
    "a default": lambda f: f.attribute_proto.append(helper.make_attribute("extra", 1)),
    "the output before the activation": lambda f: f.output.__setitem__(0, f.node[1].output[0]),
}


def _drop(function: onnx.FunctionProto, name: str, *other: onnx.AttributeProto) -> None:
    kept = [a for a in function.node[0].attribute if a.name != name]
    assert len(kept) == len(function.node[0].attribute) - 1
    del function.node[0].attribute[:]
    function.node[0].attribute.extend([*kept, *other])


def _append(function: onnx.FunctionProto) -> None:
    function.node.add(op_type="Neg", input=[function.output[0]], output=["negated"])
    function.output[0] = "negated"


@pytest.mark.parametrize("name", CHANGES)
def test_a_body_that_is_another_is_expanded_and_gives_its_own_answer(name: str) -> None:
    """The file says what it computes; the name of a function is no reason to compute anything else."""
    ort = pytest.importorskip("onnxruntime")
    proto, subject = tampered(CHANGES[name])
    check(subject)
    assert not any(n.op in FUSED for n in subject.graph.nodes) and not subject.functions
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(run(subject, {"x": X})["y"], session.run(None, {"x": X})[0], rtol=1e-6)
    assert not to_proto(subject).functions


def test_names_and_notes_in_the_body_do_not_matter() -> None:
    def rename(f: onnx.FunctionProto) -> None:
        f.doc_string, f.node[0].name, f.node[0].doc_string = "doc", "other", "doc"
        f.node[0].output[0] = f.node[1].input[0] = "renamed"

    _, subject = tampered(rename)
    assert [n.op for n in subject.graph.nodes] == ["fuse::ConvAddRelu"]


def own(name: str, nodes: list[onnx.NodeProto], inputs: Any = ("a",), outputs: Any = ("b",)) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_function(DOMAIN, name, list(inputs), list(outputs), nodes, opsets)


def test_functions_of_the_domain_that_fuse_does_not_know() -> None:
    """From another version of fuse, or from somebody else: expanded, in branches and in each other too."""
    functions = [
        own("Inner", [node("Neg", ["a"], ["b"])]),
        own("Outer", [node("Inner", ["a"], ["m"], domain=DOMAIN), node("Inner", ["m"], ["b"], domain=DOMAIN)]),
        own("Unused", [node("Outer", ["a"], ["b"], domain=DOMAIN)]),
    ]
    then = graph([node("Outer", ["x"], ["t"], domain=DOMAIN)], [], ["t"])
    other = graph([node("Inner", ["x"], ["e"], domain=DOMAIN)], [], ["e"])
    nodes = [node("If", ["c"], ["i"], then_branch=then, else_branch=other), node("Outer", ["i"], ["y"], domain=DOMAIN)]
    body = graph(nodes, ["x", info("c", [], onnx.TensorProto.BOOL)])
    subject = load(model(body, functions=functions, domains=[DOMAIN]))
    check(subject)
    assert not subject.functions and [n.op for n in subject.graph.nodes] == ["If", "Neg", "Neg"]
    x = np.float32([1, -2])
    assert run(subject, {"x": x, "c": np.array(True)})["y"].tolist() == [1, -2]
    assert run(subject, {"x": x, "c": np.array(False)})["y"].tolist() == [-1, 2]


def test_a_name_that_fuse_knows_with_another_interface() -> None:
    other = own("ConvRelu", [node("Neg", ["a"], ["b"])])
    subject = load(model([node("ConvRelu", ["x"], ["y"], domain=DOMAIN)], functions=[other], domains=[DOMAIN]))
    assert [n.op for n in subject.graph.nodes] == ["Neg"]
    assert run(subject, {"x": np.float32([1, -2])})["y"].tolist() == [-1, 2]
