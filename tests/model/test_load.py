"""Loading: versions, inputs and initializers, outputs, types, and models of any size."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fuse.errors import FuseError, LimitError, ModelError, UnsupportedError
from fuse.ir.check import check
from fuse.limits import DEFAULT
from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import (
    CONDITION,
    F32,
    I64,
    RELU,
    bare,
    branches,
    chain,
    checked,
    const,
    graph,
    info,
    model,
    node,
    refused,
    rich,
    same,
)


def test_cut_at_every_byte() -> None:
    """Never a traceback: an error, or the model that the first bytes happen to be."""
    data = rich().SerializeToString()
    errors = []
    for length in range(len(data)):
        try:
            load(data[:length])
        except FuseError as error:
            errors.append(str(error))
    assert len(errors) > len(data) - 10 and all(e.startswith("model: ") for e in errors)


def test_every_bit_flipped() -> None:
    """Never anything but an error of fuse's own, or a model that keeps the laws and can be written."""
    data = rich().SerializeToString()
    survived = 0
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                result = load(bytes(flipped))
            except FuseError:
                continue
            check(result)
            with contextlib.suppress(UnsupportedError):
                to_proto(result)
            survived += 1
    assert survived > 100


@pytest.mark.parametrize("version", [0, -1, onnx.IR_VERSION + 1, 999])
def test_ir_versions_that_are_not_known(version: int) -> None:
    proto = ModelProto.FromString(RELU.SerializeToString())
    proto.ir_version = version
    refused(proto, f"model: IR version {version} is not supported", UnsupportedError)


def test_ir_versions_that_are_known() -> None:
    for version in range(3, onnx.IR_VERSION + 1):
        proto = model([node("Relu", ["x"], ["y"])], ir_version=version)
        assert same(to_proto(checked(proto)), proto)
    for version in (1, 2):  # files could not say an operator set then: it was the first
        proto = model([node("Relu", ["x"], ["y"], consumed_inputs=[0])], opset=None, ir_version=version)
        assert load(proto).opsets == {"": 1}
        assert same(to_proto(checked(proto)), proto)


@pytest.mark.parametrize(
    ("imports", "line"),
    [
        ([], "model: the model imports no operator set"),
        ([("own", 1)], "model: node 'n' .Relu.: the model imports no operator set of domain 'ai.onnx'"),
        ([("", 0)], "model: operator set 0 of domain 'ai.onnx' is not supported"),
        ([("", 9999)], "model: operator set 9999 of domain 'ai.onnx' is not supported"),
        ([("", 18), ("ai.onnx.ml", 99)], "model: operator set 99 of domain 'ai.onnx.ml' is not supported"),
        ([("", 18), ("", 17)], "model: operator set of domain 'ai.onnx' is imported twice, in different versions"),
        ([("ai.onnx", 18), ("", 17)], "model: operator set of domain 'ai.onnx' is imported twice, .*"),
        ([("own", 1), ("own", 2), ("", 18)], "model: operator set of domain 'own' is imported twice, .*"),
    ],
)
def test_operator_sets_that_make_no_sense(imports: list[tuple[str, int]], line: str) -> None:
    proto = ModelProto.FromString(RELU.SerializeToString())
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(*entry) for entry in imports)
    with pytest.raises((ModelError, UnsupportedError)) as caught:
        load(proto)
    assert re.fullmatch(line, str(caught.value).split("\n")[0])


def test_ai_onnx_is_the_default_domain() -> None:
    proto = model([node("Relu", ["x"], ["y"], domain="ai.onnx")])
    proto.opset_import.add(domain="ai.onnx", version=18)
    result = checked(proto)
    assert result.opsets == {"": 18} and [n.op for n in result.graph.nodes] == ["Relu"]


def test_every_operator_set() -> None:
    for opset in range(1, onnx.defs.onnx_opset_version() + 1):
        proto = model([node("Relu", ["x"], ["y"])], opset=opset)
        assert same(to_proto(checked(proto)), proto)


def test_outputs_of_every_kind() -> None:
    """An input, a constant, the same value under two names and twice under one: all stay what they are."""
    nodes = [node("Relu", ["x"], ["r"])]
    proto = model(graph(nodes, ["x"], ["x", "r", "r", "w"], [const("w")]))
    result = load(proto)
    assert [slot.name for slot in result.graph.outputs] == ["x", "r", "r", "w"]
    assert same(to_proto(result), proto)
    assert [v.is_const for v in (s.value for s in result.graph.outputs)] == [False, False, False, True]
    only = model(graph([], ["x"], ["x"]))
    assert same(to_proto(checked(only)), only)


def test_an_initializer_that_is_an_input_is_a_default() -> None:
    """From IR version 4 on; before that every initializer had to be listed, and is a constant all the same."""
    body = graph([node("Add", ["x", "w"], ["y"])], ["x", "w"], ["y"], [const("w", [3.0, 4.0])])
    value = checked(model(body)).graph.inputs[1]
    assert value.name == "w" and not value.is_const and value.array.tolist() == [3.0, 4.0]
    for ir_version in (3, 4):
        proto = model(body, ir_version=ir_version)
        result = checked(proto)
        assert [v.name for v in result.graph.inputs] == (["x"] if ir_version == 3 else ["x", "w"])
        assert [v.name for v in result.graph.constants] == (["w"] if ir_version == 3 else [])
        assert same(to_proto(result), proto)


def test_the_input_list_of_an_old_file_keeps_its_order() -> None:
    body = graph([node("Sum", ["x", "w", "z", "u"], ["y"])], ["w", "x", "u", "z"], ["y"], [const("u"), const("w")])
    proto = model(body, ir_version=3)
    result = load(proto)
    assert [v.name for v in result.graph.inputs] == ["x", "z"]
    assert same(to_proto(result), proto)
    node_of = next(iter(result.graph.nodes))
    node_of.rewire(1, next(v for v in result.graph.constants if v.name == "u"))
    result.graph.drop_const(next(v for v in result.graph.constants if v.name == "w"))
    fresh = result.graph.add_const(np.zeros(2, np.float32), "new")
    node_of.append_input(fresh)
    assert [i.name for i in to_proto(result).graph.input] == ["x", "u", "z", "new"]
    refused(
        model(graph([node("Relu", ["x"], ["y"])], ["x", "x"]), ir_version=3), "model: graph input 'x' is defined twice"
    )
    twice = graph([node("Relu", ["x"], ["y"])], ["x", "w", "w"], initializers=[const("w")])
    refused(model(twice, ir_version=3), "model: two graph inputs have the same name")


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        (info("w", [3]), r"model: initializer 'w': is float\[2\] and declared as float\[3\]"),
        (info("w", [1, 2]), r"model: initializer 'w': is float\[2\] and declared as float\[1, 2\]"),
        (info("w", [2], I64), r"model: initializer 'w': is float\[2\] and declared as int64\[2\]"),
        (info("w", [2], TensorProto.DOUBLE), r"model: initializer 'w': is float\[2\] and declared as double\[2\]"),
    ],
)
def test_a_default_is_what_its_input_is_declared_to_be(declared: Any, line: str) -> None:
    for ir_version in (3, 8):
        body = graph([node("Add", ["x", "w"], ["y"])], ["x", declared], ["y"], [const("w")])
        refused(model(body, ir_version=ir_version), line)
    for dims in (["n"], None, [-1]):
        body = graph([node("Add", ["x", "w"], ["y"])], ["x", info("w", dims)], ["y"], [const("w")])
        checked(model(body))


def test_sparse_initializers() -> None:
    values = numpy_helper.from_array(np.array([7.0, 8.0], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 2])), [3])
    body = graph([node("Add", ["x", "w"], ["y"])])
    body.sparse_initializer.append(sparse)
    proto = model(body)
    result = checked(proto)
    assert next(iter(result.graph.constants)).array.tolist() == [0.0, 7.0, 8.0]
    assert same(to_proto(result), proto)
    refused(
        proto,
        "model: sparse initializer 'w': .*too large to make dense",
        LimitError,
        limits=replace(DEFAULT, dense_bytes=11),
    )
    body.sparse_initializer.add().CopyFrom(sparse)
    body.sparse_initializer[1].values.name = "v"
    checked(model(body))
    line = "model: sparse initializer 'v': the sparse tensors have more than 12 bytes when made dense"
    refused(model(body), line, LimitError, limits=replace(DEFAULT, dense_bytes=12))
    body.sparse_initializer[1].values.name = "w"
    refused(model(body), "model: sparse initializer 'w' is defined twice")


def test_types_beyond_tensors() -> None:
    """Sequences, optionals, maps and sparse tensors are carried."""
    tensor = helper.make_tensor_type_proto(F32, [2])
    inputs = [
        helper.make_value_info("s", helper.make_sequence_type_proto(tensor)),
        helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
        helper.make_value_info("m", helper.make_map_type_proto(I64, tensor)),
        helper.make_value_info("p", helper.make_sparse_tensor_type_proto(F32, [2])),
    ]
    opaque = onnx.ValueInfoProto(name="q")
    opaque.type.opaque_type.name = "thing"
    nodes = [node("op", ["s", "o", "m", "p", "q"], ["y"], domain="own")]
    proto = model(graph(nodes, [*inputs, opaque]), domains=["own"])
    result = checked(proto)
    assert [str(v.type) for v in result.graph.inputs] == [
        "seq(float[2])", "optional(float[2])", "map(int64, float[2])", "sparse(float[2])", "None",
    ]  # fmt: skip
    assert same(to_proto(result), proto)
    bad = model(graph([node("Relu", ["x"], ["y"])], ["x", info("z", [-4])]))
    refused(bad, "model: declared type of 'z': a declared dim is -4")


def test_value_infos_are_kept_and_believed_by_nobody() -> None:
    body = graph([node("Relu", ["x"], ["r"]), node("Neg", ["r"], ["y"])], ["x"], ["y"], [const("w")])
    body.value_info.extend(
        [info("r", ["made", "up"], I64), info("w"), info("elsewhere"), info("x"), info("y"), info("r")]
    )
    proto = model(body)
    result = checked(proto)
    relu = next(iter(result.graph.nodes))
    assert relu.out.type is None
    assert sorted(i.SerializeToString() for i in to_proto(result).graph.value_info) == sorted(
        i.SerializeToString() for i in proto.graph.value_info
    )
    bad = model(graph([node("Relu", ["x"], ["y"])]))
    bad.graph.value_info.append(info("y", [2], 99))
    refused(bad, "model: declared type of 'y': element type 99 is not one that ONNX defines")


def test_the_declared_type_of_a_value_goes_with_it() -> None:
    body = graph([node("Relu", ["x"], ["r"]), node("Neg", ["r"], ["y"])])
    body.value_info.append(info("r"))
    result = load(model(body))
    relu = next(iter(result.graph.nodes))
    relu.out.replace_by(result.graph.inputs[0])
    result.graph.remove(relu)
    assert not to_proto(result).graph.value_info


def test_a_chain_of_100_000_nodes() -> None:
    """Nothing recurses, and nothing is quadratic: that would be hours."""
    proto = chain(100_000)
    assert to_proto(load(proto)) == proto


def test_one_value_with_100_000_readers_and_a_node_with_as_many_inputs() -> None:
    count = 100_000
    proto = bare(count + 1, ("x",), ("y",))
    for i, made in enumerate(proto.graph.node):
        made.op_type = "Neg"
        made.input.append("x")
        made.output.append(f"v{i}")
    made.op_type = "Sum"
    made.input[:] = [f"v{i}" for i in range(count)]
    made.output[:] = ["y"]
    result = load(proto)
    assert len(result.graph.inputs[0].uses) == count
    assert to_proto(result) == proto


def test_100_000_initializers_of_every_kind() -> None:
    """As constants, and as inputs with defaults, which no list is searched for."""
    count = 50_000
    proto = bare(1, ("x",), ("y",))
    (made,) = proto.graph.node
    made.op_type = "Sum"
    made.output.append("y")
    for i in range(2 * count):
        proto.graph.initializer.add(name=f"w{i}", data_type=F32, dims=[1], raw_data=b"\0" * 4)
        made.input.append(f"w{i}")
        if i < count:
            proto.graph.input.add(name=f"w{i}").type.tensor_type.elem_type = F32
    result = load(proto)
    assert len(result.graph.constants) == count and len(result.graph.inputs) == count + 1
    assert to_proto(result) == proto


def test_many_captures_of_many_constants() -> None:
    """Constants read in inner graphs: each is asked once, not once for each reader and graph."""
    count = 1000
    weights = [const(f"w{i}") for i in range(count)]
    nodes = [
        node(
            "If",
            ["c"],
            [f"v{i}"],
            **branches(node("Add", ["x", f"w{i}"], ["t"]), node("Add", ["t", "w0"], ["u"]), out="u"),
        )
        for i in range(count)
    ]
    proto = model(graph([*nodes, node("Sum", [f"v{i}" for i in range(count)], ["y"])], CONDITION, ["y"], weights))
    assert same(to_proto(load(proto)), proto)


def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    """What is left after loading is one array of the weight's size, and neither the proto nor the file's bytes."""
    size = 8 << 20
    body = graph([node("Add", ["x", "w"], ["y"])], [info("x", [size // 4])], ["y"], [const("w", np.ones(size // 4))])
    path = tmp_path / "m.onnx"
    path.write_bytes(model(body).SerializeToString())
    del body
    load(path)  # what is imported and cached on first use
    gc.collect()
    gc.disable()
    try:
        tracemalloc.start()
        result = load(path)
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert next(iter(result.graph.constants)).array[0] == 1
    assert left < 1.1 * size and peak < 1.2 * size


def test_the_proto_is_left_alone_and_let_go() -> None:
    """Nothing of the model depends on it, and no cycle of references keeps it until the next collection."""
    proto = rich()
    gc.collect()
    gc.disable()
    try:
        references = sys.getrefcount(proto)
        result = load(proto)
        assert sys.getrefcount(proto) == references
    finally:
        gc.enable()
    before = to_proto(result).SerializeToString()
    proto.Clear()
    assert to_proto(result).SerializeToString() == before
    assert load(result) is result
