"""One spelling inside, the model's own in the file: held against every operator and version that onnx defines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, defs, helper

from fuse.errors import ModelError, UnsupportedError
from fuse.ir.check import check
from fuse.ir.dtypes import BY_NAME, CODE
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Model
from fuse.ir.types import TensorType
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.ops.record import OPERATORS
from fuse.ops.spelling import (
    CHANGED,
    DROPPED,
    DROPPED_EVERYWHERE,
    FROM_ATTRIBUTE,
    IMPLIED,
    MOVED,
    REWORDED,
    Move,
    spell,
)
from tests.model.protos import const, function, graph, info, model, node, same

NEWEST = defs.onnx_opset_version()
Schema = Any


@cache
def history() -> dict[str, list[Schema]]:
    """Every version of every operator of the default domain, oldest first."""
    found: dict[str, list[Schema]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append(schema)
    return {name: sorted(schemas, key=lambda s: s.since_version) for name, schemas in sorted(found.items())}


def steps() -> Iterator[tuple[str, Schema, Schema]]:
    """Each operator's versions, two that follow each other at a time."""
    for name, schemas in history().items():
        for old, new in pairwise(schemas):
            yield name, old, new


def changed(op: str, since: int) -> bool:
    """Whether every use of ``op`` before operator set ``since`` has a name of its own."""
    change = CHANGED.get(op)
    return change is not None and change.when is None and change.before >= since


# ---- the tables are complete


def test_every_attribute_that_went_away_is_accounted_for() -> None:
    missing = []
    for op, old, new in steps():
        for name in set(old.attributes) - set(new.attributes):
            moved = any(m.attribute == name and m.since == new.since_version for m in MOVED.get(op, ()))
            dropped = name == DROPPED_EVERYWHERE or name in DROPPED.get(op, {})
            if not (moved or dropped or changed(op, new.since_version) or new.deprecated):
                missing.append((op, new.since_version, name))
    assert missing == []


def test_every_attribute_that_changed_its_type_is_accounted_for() -> None:
    missing = []
    for op, old, new in steps():
        for name in set(old.attributes) & set(new.attributes):
            before, after = old.attributes[name].type.name, new.attributes[name].type.name
            wording = REWORDED.get(op)
            told = wording is not None and (wording.attribute, wording.before) == (name, new.since_version)
            if before != after:
                assert told and wording is not None and (wording.old, wording.new) == (before, after), (op, name)
            elif told:
                assert op == "GridSample", "the one whose words changed and not its type"
    assert missing == []


#: Defaults that differ and need nothing, with the reason.
DEFAULTS = {
    ("Clip", "min"): "an absent bound is the lowest number",
    ("Clip", "max"): "an absent bound is the highest number",
    ("GRU", "direction"): "the first version misspelt 'forward'",
    ("GlobalLpPool", "p"): "2, as a float and as an integer",
    ("LpPool", "p"): "2, as a float and as an integer",
    ("GridSample", "mode"): "'bilinear' is now called 'linear'",
    ("Split", "axis"): "the first version left it open; 0 since",
}


def test_every_default_that_changed_is_accounted_for() -> None:
    missing = []
    for op, old, new in steps():
        for name in set(old.attributes) & set(new.attributes):
            same_default = old.attributes[name].default_value == new.attributes[name].default_value
            same_need = old.attributes[name].required == new.attributes[name].required
            implied = any((d.attribute, d.before) == (name, new.since_version) for d in IMPLIED.get(op, ()))
            known = implied or (op, name) in DEFAULTS or changed(op, new.since_version)
            if not same_default and not known:
                missing.append((op, new.since_version, name))
            if new.attributes[name].required and not same_need and not known:
                assert (op, name) == ("LpPool", "kernel_shape"), "which was never optional in effect"
    assert missing == []


#: Attributes that are new and whose default is not what the older versions did.
NEW_DEFAULTS = {("RoiAlign", "coordinate_transformation_mode")}


def test_new_attributes_have_defaults_that_mean_what_went_without_saying() -> None:
    """A new attribute that changes the meaning has to be implied or stand behind a new name; the list is for review."""
    for op, old, new in steps():
        for name in set(new.attributes) - set(old.attributes):
            if new.attributes[name].required:
                covered = changed(op, new.since_version) or (op, name) == ("Pad", "pads")
                assert covered, f"{op}-{new.since_version} needs {name}"
    for op, name in NEW_DEFAULTS:
        assert any(d.attribute == name for d in IMPLIED[op])


#: Inputs that changed their name and nothing else.
RENAMED = {("BatchNormalization", "input_mean"), ("BatchNormalization", "input_var"), ("Tile", "repeats")}


def test_inputs_keep_their_places() -> None:
    """An input of an old version is at the same place in the newer one, or the operator has a name of its own."""
    for op, old, new in steps():
        if changed(op, new.since_version):
            continue
        for index, formal in enumerate(old.inputs):
            now = new.inputs[index].name if index < len(new.inputs) else None
            moved_back = any(m.index == index and m.either > old.since_version for m in MOVED.get(op, ()))
            same_name = now is not None and now.lower() == formal.name.lower()
            assert same_name or (op, now) in RENAMED or moved_back, (op, new.since_version, formal.name, now)


def test_the_tables_name_nothing_that_is_not() -> None:
    for op, moves in MOVED.items():
        for move in moves:
            versions = [s for s in history()[op] if move.first <= s.since_version < move.since]
            assert versions and all(move.attribute in s.attributes for s in versions), (op, move)
            assert all(s.attributes[move.attribute].type.name == move.kind for s in versions), (op, move)
            newer = next(s for s in history()[op] if s.since_version == move.since)
            if (op, move.attribute) != ("Pad", "paddings"):
                assert newer.inputs[move.index].name.lower() in _now(move), (op, move)
    for op, names in DROPPED.items():
        assert all(any(name in s.attributes for s in history()[op]) for name in names), op
        assert not any(name in history()[op][-1].attributes for name in names), op
    for op, change in CHANGED.items():
        assert change.before in [s.since_version for s in history()[op]], op
        assert change.name.startswith(f"{op}-")


def _now(move: Move) -> tuple[str, ...]:
    return {"value": ("constant_value",)}.get(move.attribute, (move.attribute,))


def test_every_changed_meaning_has_a_kernel_or_its_operator_has_none_either() -> None:
    for op, change in CHANGED.items():
        assert (change.name in OPERATORS) == (op in OPERATORS), op


#: Operators whose text says something else in a newer version although attributes and inputs are the same, and why
#: they have one name all the same.  Found by reading the differences between the texts of all versions.
SAME_ALL_THE_SAME = {
    "AveragePool": "19 and 22 correct the shape formula; nobody computed by the old one",
    "BitShift": "28 defines shifts that were undefined",
    "Cast": "24 corrects a table about float8",
    "ConvTranspose": "11 corrects which side SAME_UPPER pads; implementations never followed the text of 1",
    "Gather": "11 allows negative indices, which were errors",
    "Max, Mean, Min, Sum": "8 allows broadcasting, where shapes had to be equal",
    "MaxPool": "22 says which windows ceil_mode leaves out, as implementations did",
    "Mod": "28 allows floats with fmod=0, which were errors",
    "OneHot": "11 allows negative indices, which were not permitted",
    "Pad": "1 shows one layout of paddings in its example and demands the other; the demand counts",
    "Range": "27 computes half precision in float32, which 11 did not allow",
    "Split": "18 allows parts of unequal size, which were errors",
}


def test_the_review_names_operators_that_are() -> None:
    for names in SAME_ALL_THE_SAME:
        assert all(name in history() for name in names.split(", "))


# ---- every version of every operator, up and down again


def sample(op: str, name: str, formal: Any, low: bool) -> Any:
    """Some value for an attribute, the smaller or the larger one of two."""
    kind = formal.type.name
    if (op, name) == ("Cast", "to") and kind == "STRING":
        return "INT64" if low else "FLOAT16"
    if (op, name) == ("GridSample", "mode"):
        return {True: "nearest", False: "bicubic"}[low]
    tensor = const("t", [1.0, 2.0])
    branch = graph([node("Identity", ["x"], ["inner"])], [], ["inner"])
    return {
        "INT": 0 if low else 1, "INTS": [] if low else [1, 0, 2], "FLOAT": 2.0 if low else 0.5, "FLOATS": [1.5, 2.5],
        "STRING": "a" if low else "", "STRINGS": ["a", "b"], "TENSOR": tensor, "GRAPH": branch,
        "TYPE_PROTO": helper.make_tensor_type_proto(TensorProto.FLOAT, [2]),
    }[kind]  # fmt: skip


def one_node(schema: Schema, opset: int, style: str) -> ModelProto:
    """A model of one node: bare, or with every attribute and every input."""
    made = onnx.NodeProto(op_type=schema.name, name="n")
    full = style != "bare"
    inputs = (
        schema.max_input if full and schema.max_input < 20 else max(schema.min_input, min(schema.max_input, 2 * full))
    )
    outputs = schema.max_output if full and schema.max_output < 20 else max(schema.min_output, 1)
    made.input.extend(["x"] * inputs)
    made.output.extend(f"y{i}" for i in range(outputs))
    for name, formal in sorted(schema.attributes.items()):
        if full or formal.required:
            value = sample(schema.name, name, formal, style == "low")
            kind = AttributeProto.AttributeType.Value(formal.type.name)
            made.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    return model(graph([made], ["x"], list(made.output)), opset=opset)


@pytest.mark.parametrize("style", ["bare", "low", "high"])
def test_every_version_of_every_operator_comes_out_as_it_went_in(style: str) -> None:
    count = 0
    for op, schemas in history().items():
        ends = [s.since_version for s in schemas[1:]] + [NEWEST + 1]
        for schema, end in zip(schemas, ends, strict=True):
            if op == "Constant" or schema.deprecated:
                continue
            for opset in {schema.since_version, end - 1}:
                proto = one_node(schema, opset, style)
                subject = load(proto)
                check(subject)
                assert same(to_proto(subject), proto), (op, opset)
                count += 1
    assert count > 600


def test_the_newest_version_of_every_operator_is_left_alone() -> None:
    for op, schemas in history().items():
        if op == "Constant" or schemas[-1].deprecated:
            continue
        proto = one_node(schemas[-1], NEWEST, "high")
        (loaded,) = load(proto).graph.nodes
        (given,) = proto.graph.node
        assert loaded.op == op and sorted(loaded.attrs) == sorted(a.name for a in given.attribute)
        assert len(loaded.inputs) == len(given.input) and not any(a.implied for a in loaded.attrs.values())


def test_no_attribute_of_an_old_version_meets_a_kernel_that_does_not_know_it() -> None:
    """Inside, an operator has the attributes that its record takes: what is older was turned into those."""
    unknown = []
    for op, schemas in history().items():
        for schema in schemas:
            if op == "Constant" or schema.deprecated:
                continue
            for style in ("low", "high"):
                (loaded,) = load(one_node(schema, schema.since_version, style)).graph.nodes
                record = OPERATORS.get(loaded.op)
                if record is not None:
                    known = {*record.defaults, *record.required}
                    unknown += [(loaded.op, schema.since_version, name) for name in loaded.attrs if name not in known]
    assert unknown == []


# ---- attributes that became inputs


def first_node(subject: Model) -> Node:
    return next(iter(subject.graph.nodes))


MOVES = [pytest.param(op, move, id=f"{op}-{move.attribute}") for op, moves in MOVED.items() for move in moves]


def moving(op: str, move: Move, value: Any) -> ModelProto:
    opset = max(move.first, move.since - 1)
    schema = defs.get_schema(op, opset)
    needed = {n: sample(op, n, a, False) for n, a in schema.attributes.items() if a.required and n != move.attribute}
    names = [f"y{i}" for i in range(schema.min_output)]
    made = node(op, ["x"] * schema.min_input, names, **needed)
    made.attribute.append(
        helper.make_attribute(move.attribute, value, attr_type=AttributeProto.AttributeType.Value(move.kind))
    )
    return model(graph([made], ["x"], names), opset=opset)


@pytest.mark.parametrize(("op", "move"), MOVES)
def test_an_attribute_is_an_input_inside_and_an_attribute_in_the_file(op: str, move: Move) -> None:
    values = {"INT": [0, -3, 1 << 62], "FLOAT": [0.0, -0.0, 1.5, float("inf"), 3.4028234663852886e38]}.get(
        move.kind, [(), (1,), (0, 2, -1)]
    )
    for value in values:
        proto = moving(op, move, value)
        subject = load(proto)
        held = first_node(subject).inputs[move.index]
        assert held is not None and held.is_const and move.attribute not in first_node(subject).attrs
        assert held.origin is not None and held.origin.attribute == FROM_ATTRIBUTE
        assert held.dtype == (np.float32 if move.kind.startswith("FLOAT") else np.int64)
        assert held.shape == (() if move.scalar else (len(value) if isinstance(value, tuple) else 1,))
        assert same(to_proto(subject), proto)


def test_an_absent_attribute_is_an_absent_input() -> None:
    for op, opset in (
        ("Clip", 6),
        ("Squeeze", 11),
        ("ReduceSum", 11),
        ("ReduceMax", 17),
        ("Split", 11),
        ("Dropout", 10),
    ):
        assert len(first_node(load(model([node(op, ["x"], ["y"])], opset=opset))).inputs) == 1
    (clip,) = load(model([node("Clip", ["x"], ["y"], max=1.0)], opset=6)).graph.nodes
    assert clip.inputs[1] is None and clip.inputs[2] is not None


def test_nan_is_carried_bit_for_bit() -> None:
    bits = np.array([0x7FC01234], np.uint32).view(np.float32)[0]
    proto = model([node("Pad", ["x"], ["y"], pads=[0, 0], value=float(bits))], opset=10)
    held = first_node(load(proto)).inputs[2]
    assert held is not None and held.array.tobytes() == bits.tobytes()
    assert same(to_proto(load(proto)), proto)


@pytest.mark.parametrize(
    ("dtype", "value", "held"),
    [
        (TensorProto.FLOAT16, 6.0, np.float16),
        (TensorProto.FLOAT16, 3.4028234663852886e38, np.float32),  # as a half it would be infinite
        (TensorProto.FLOAT16, 0.1, np.float32),
        (TensorProto.DOUBLE, 0.1, np.float64),
        (TensorProto.BFLOAT16, -1.0, BY_NAME["bfloat16"]),
        (TensorProto.INT32, 2.5, np.float32),
    ],
)
def test_a_bound_has_the_data_s_dtype_where_that_says_it_exactly(dtype: int, value: float, held: Any) -> None:
    body = graph([node("Clip", ["x"], ["y"], min=value)], [info("x", [2], dtype)], [info("y", [2], dtype)])
    proto = model(body, opset=10)
    subject = load(proto)
    bound = first_node(subject).inputs[1]
    assert bound is not None and bound.dtype == held and float(bound.array) == float(np.float32(value))
    assert same(to_proto(subject), proto)


def test_an_input_that_the_operator_set_has_as_an_attribute() -> None:
    """Constants are written so, whoever made them; what is computed cannot be said."""
    subject = load(model([node("ReduceMean", ["x"], ["y"], axes=[0])], opset=17))
    mean = first_node(subject)
    mean.rewire(1, subject.graph.add_const(np.array([1, -1]), "axes"))
    (written,) = to_proto(subject).graph.node
    assert list(written.input) == ["x"] and list(written.attribute[0].ints) == [1, -1]
    mean.rewire(1, subject.graph.inputs[0])
    line = r"node 'y' \(ReduceMean\): ReduceMean has no input 'axes' in operator set 17"
    with pytest.raises(UnsupportedError, match=line) as caught:
        to_proto(subject)
    assert caught.value.hint == "use operator set 18 or newer"


@pytest.mark.parametrize(("op", "move"), MOVES)
def test_no_computed_input_becomes_an_attribute(op: str, move: Move) -> None:
    value = 1 if move.kind == "INT" else 1.0 if move.kind == "FLOAT" else (1, 1)
    subject = load(moving(op, move, value))
    first_node(subject).rewire(move.index, subject.graph.inputs[0])
    with pytest.raises(UnsupportedError, match=f"{op} has no input '{move.attribute}' in operator set"):
        to_proto(subject)


def test_numbers_that_an_attribute_cannot_hold() -> None:
    subject = load(model([node("Clip", ["x"], ["y"], min=0.0), node("TopK", ["x"], ["t", "i"], k=1)], opset=9))
    clip, topk = subject.graph.nodes
    clip.rewire(1, subject.graph.add_const(np.float64(0.1)))
    with pytest.raises(
        UnsupportedError, match="attribute 'min' is in single precision, which the input's value does not"
    ):
        to_proto(subject)
    for fine in (np.float64(0.5), np.float16(0.1), np.float64("nan"), np.float64("inf"), np.array([2.0])):
        clip.rewire(1, subject.graph.add_const(np.asarray(fine)))
        assert to_proto(subject).graph.node[0].attribute[0].f == pytest.approx(float(np.ravel(fine)[0]), nan_ok=True)
    topk.rewire(1, subject.graph.add_const(np.array([1, 2])))
    with pytest.raises(UnsupportedError, match="attribute 'k' is one number, the input has 2"):
        to_proto(subject)


def test_inputs_that_the_operator_set_does_not_have_at_all() -> None:
    """Steps of Slice came with set 10: a pass that makes them has made another operator."""
    subject = load(model([node("Slice", ["x"], ["y"], starts=[0], ends=[2])], opset=9))
    slicing = first_node(subject)
    slicing.append_input(None)
    slicing.append_input(subject.graph.add_const(np.array([2]), "steps"))
    with pytest.raises(ModelError, match=r"node 'y' \(Slice\): takes 1 inputs, 5 given"):
        to_proto(subject)
    subject = load(model([node("DepthToSpace", ["x"], ["y"], blocksize=2)], opset=10))
    first_node(subject).attrs["mode"] = Attr("STRING", "CRD")
    with pytest.raises(ModelError, match="has no attribute 'mode' in operator set 10"):
        to_proto(subject)


def test_a_constant_that_another_node_reads_is_written_for_that_one() -> None:
    """The pads of an old Pad, read by a Cast too that some pass put in."""
    subject = load(model([node("Pad", ["x"], ["y"], pads=[1, 1])], opset=10))
    pad = first_node(subject)
    cast = Node("Cast", [pad.inputs[1]], [Value("z", TensorType(BY_NAME["float"], (2,)))], {"to": Attr("INT", 1)})
    subject.graph.append(cast)
    subject.graph.add_output("z", cast.out)
    proto = to_proto(subject)
    assert [list(n.input) for n in proto.graph.node] == [["x"], [proto.graph.initializer[0].name]]
    again = load(proto)
    assert [n.op for n in again.graph.nodes] == ["Pad", "Cast"] and to_proto(again) == proto


def test_a_constant_that_an_inner_graph_reads_is_written_too() -> None:
    other = graph([node("Neg", ["x"], ["e"])], [], ["e"])
    then = graph([node("Abs", ["x"], ["t"])], [], ["t"])
    nodes = [node("Pad", ["x"], ["p"], pads=[1, 1]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    subject = load(model(graph(nodes, ["x", info("c", [], TensorProto.BOOL)], ["p", "y"]), opset=10))
    pad, choice = subject.graph.nodes
    branch = choice.attrs["then_branch"].value
    next(iter(branch.nodes)).rewire(0, pad.inputs[1])
    proto = to_proto(subject)
    assert len(proto.graph.initializer) == 1
    check(load(proto))
    branch.rewire(0, pad.inputs[1])
    check(load(to_proto(subject)))


def test_the_first_split_takes_its_sizes_either_way() -> None:
    for proto in (
        model(graph([node("Split", ["x"], ["y"], split=[2], axis=0)]), opset=1),
        model(graph([node("Split", ["x", "s"], ["y"], axis=0)], ["x", info("s", [1])]), opset=1),
        model(graph([node("Split", ["x", "s"], ["y"], axis=0)], initializers=[const("s", [2.0])]), opset=1),
    ):
        subject = load(proto)
        assert len(first_node(subject).inputs) == 2 and same(to_proto(subject), proto)
    twice = model(graph([node("Split", ["x", "s"], ["y"], split=[2])], ["x", info("s", [1])]), opset=1)
    assert first_node(load(twice)).op == "Split-1" and same(to_proto(load(twice)), twice)


# ---- attributes that went away, other words, other defaults


@pytest.mark.parametrize("op", ["Add", "Greater", "Pow"])
def test_broadcast_and_axis(op: str) -> None:
    """Without effect both are carried; with it the operator is another one and keeps them."""
    for attrs in ({}, {"broadcast": 0}, {"axis": 1}, {"broadcast": 0, "axis": 1}):
        proto = model([node(op, ["x", "x"], ["y"], **attrs)], opset=6)
        assert (
            first_node(load(proto)).op == op
            and not first_node(load(proto)).attrs
            and same(to_proto(load(proto)), proto)
        )
    for attrs in ({"broadcast": 1}, {"broadcast": 1, "axis": 0}):
        proto = model([node(op, ["x", "x"], ["y"], **attrs)], opset=6)
        loaded = first_node(load(proto))
        assert loaded.op == f"{op}-1" and sorted(loaded.attrs) == sorted(attrs) and same(to_proto(load(proto)), proto)
    assert first_node(load(model([node(op, ["x", "x"], ["y"])], opset=7))).op == op


@pytest.mark.parametrize(
    ("opset", "attrs", "outputs", "op", "implied"),
    [
        (1, {}, 1, "Dropout-1", {}),
        (6, {"is_test": 0}, 1, "Dropout-1", {}),
        (6, {"is_test": 1}, 1, "Dropout", {}),
        (6, {"is_test": 1}, 2, "Dropout-1", {}),
        (7, {}, 1, "Dropout", {}),
        (7, {}, 2, "Dropout-1", {"is_test": 1}),
        (9, {}, 2, "Dropout-1", {"is_test": 1}),
        (10, {}, 2, "Dropout", {}),
        (13, {}, 2, "Dropout", {}),
    ],
)
def test_dropout(opset: int, attrs: dict[str, int], outputs: int, op: str, implied: dict[str, int]) -> None:
    proto = model(graph([node("Dropout", ["x"], ["y", "m"][:outputs], **attrs)]), opset=opset)
    loaded = first_node(load(proto))
    assert loaded.op == op and same(to_proto(load(proto)), proto)
    assert {n: a.value for n, a in loaded.attrs.items() if a.implied} == implied


@pytest.mark.parametrize(
    ("opset", "attrs", "outputs", "op", "implied"),
    [
        (1, {"consumed_inputs": [0, 0, 0, 1, 1]}, 1, "BatchNormalization-1", {}),
        (1, {"consumed_inputs": [0, 0, 0, 1, 1], "is_test": 1}, 1, "BatchNormalization", {}),
        (6, {}, 1, "BatchNormalization-1", {}),
        (6, {"is_test": 1}, 1, "BatchNormalization", {}),
        (6, {"is_test": 1, "spatial": 1}, 1, "BatchNormalization", {}),
        (6, {"is_test": 1, "spatial": 0}, 1, "BatchNormalization-1", {}),
        (7, {}, 1, "BatchNormalization", {}),
        (7, {"spatial": 1}, 1, "BatchNormalization", {}),
        (7, {"spatial": 0}, 1, "BatchNormalization-1", {"is_test": 1}),
        (9, {}, 5, "BatchNormalization-1", {}),
        (9, {}, 1, "BatchNormalization", {}),
        (14, {}, 3, "BatchNormalization", {}),
    ],
)
def test_batch_normalization(opset: int, attrs: dict[str, Any], outputs: int, op: str, implied: dict[str, int]) -> None:
    names = [f"y{i}" for i in range(outputs)]
    proto = model(graph([node("BatchNormalization", ["x"] * 5, names, **attrs)], ["x"], ["y0"]), opset=opset)
    loaded = first_node(load(proto))
    assert loaded.op == op and same(to_proto(load(proto)), proto)
    assert {n: a.value for n, a in loaded.attrs.items() if a.implied} == implied
    if op == "BatchNormalization":
        assert not loaded.attrs


def test_an_absent_mask_is_no_mask() -> None:
    loaded = first_node(load(model(graph([node("Dropout", ["x"], ["y", ""])]), opset=9)))
    assert loaded.op == "Dropout" and loaded.outputs[1] is None


@pytest.mark.parametrize(
    ("op", "before", "attribute", "old", "new"),
    [
        ("Concat", 4, "axis", 1, None),
        ("Selu", 6, "alpha", float(np.float32(1.6732)), None),
        ("Selu", 6, "gamma", float(np.float32(1.0507)), None),
        ("RoiAlign", 16, "coordinate_transformation_mode", "output_half_pixel", None),
    ],
)
def test_defaults_that_were_others(op: str, before: int, attribute: str, old: Any, new: Any) -> None:
    schema = defs.get_schema(op, before - 1)
    proto = model([node(op, ["x"] * schema.min_input, ["y"])], opset=before - 1)
    subject = load(proto)
    assert first_node(subject).attrs[attribute].value == old and same(to_proto(subject), proto)
    if attribute in schema.attributes:
        given = sample(op, attribute, schema.attributes[attribute], False)
        proto = model([node(op, ["x"] * schema.min_input, ["y"], **{attribute: given})], opset=before - 1)
        assert first_node(load(proto)).attrs[attribute].value == given and same(to_proto(load(proto)), proto)
    if op != "Concat":
        proto = model([node(op, ["x"] * schema.min_input, ["y"])], opset=before)
        assert attribute not in first_node(load(proto)).attrs


def test_the_element_type_of_the_first_cast_is_a_word() -> None:
    for name, code in CODE_NAMES.items():
        proto = model([node("Cast", ["x"], ["y"], to=name)], opset=5)
        attr = first_node(load(proto)).attrs["to"]
        assert (attr.kind, attr.value) == ("INT", code) and same(to_proto(load(proto)), proto)
    for bad in ("FLOAT99", "float", "", "UNDEFINED"):
        with pytest.raises(ModelError, match=rf"node 'y' \(Cast\): '{bad}' is not an element type"):
            load(model([node("Cast", ["x"], ["y"], to=bad)], opset=5))


CODE_NAMES = {
    name.upper(): CODE[BY_NAME[name]] for name in ("float", "int64", "bool", "float16", "double", "string", "uint8")
}


def test_the_power_of_the_first_lp_pool_is_a_float() -> None:
    for op, more in (("GlobalLpPool", {}), ("LpPool", {"kernel_shape": [2]})):
        for value, kind, held in ((3.0, "INT", 3), (1.5, "FLOAT", 1.5)):
            proto = model([node(op, ["x"], ["y"], p=value, **more)], opset=1)
            attr = first_node(load(proto)).attrs["p"]
            assert (attr.kind, attr.value) == (kind, held) and type(attr.value) is type(held)
            assert same(to_proto(load(proto)), proto)


def test_the_modes_of_the_first_grid_sample() -> None:
    for old, new in (("bilinear", "linear"), ("bicubic", "cubic"), ("nearest", "nearest")):
        proto = model([node("GridSample", ["x", "x"], ["y"], mode=old)], opset=16)
        assert first_node(load(proto)).attrs["mode"].value == new and same(to_proto(load(proto)), proto)
        assert (
            first_node(load(model([node("GridSample", ["x", "x"], ["y"], mode=new)], opset=20))).attrs["mode"].value
            == new
        )


# ---- meanings


@pytest.mark.parametrize("op", [op for op, change in CHANGED.items() if change.when is None])
def test_an_operator_that_means_something_else_has_another_name(op: str) -> None:
    change = CHANGED[op]
    old = defs.get_schema(op, change.before - 1)
    proto = one_node(old, change.before - 1, "bare")
    assert first_node(load(proto)).op == change.name
    now = defs.get_schema(op, change.before)
    if not now.deprecated:
        proto = one_node(now, change.before, "bare")
        assert first_node(load(proto)).op == op


@pytest.mark.parametrize(("op", "opset"), [("Softmax", 12), ("PRelu", 6), ("Resize", 10), ("Tile", 5), ("DFT", 17)])
def test_the_new_meaning_is_not_written_for_an_old_operator_set(op: str, opset: int) -> None:
    x = Graph().add_input(Value("x"))
    with pytest.raises(UnsupportedError, match=f"operator '{op}' has another meaning in operator set {opset}"):
        spell(Node(op, [x], [Value("y")]), opset)
    assert spell(Node(op, [x], [Value("y")]), NEWEST).op_type == op
    with pytest.raises(
        UnsupportedError, match=f"operator '{CHANGED[op].name}' has another meaning in operator set {NEWEST}"
    ):
        spell(Node(CHANGED[op].name, [x], [Value("y")]), NEWEST)
    assert spell(Node(CHANGED[op].name, [x], [Value("y")]), opset).op_type == op


def test_operators_of_other_domains_are_what_they_are() -> None:
    """Even one with a number in its name, or called like one that changed."""
    for op in ("own::Thing-2", "own::Softmax", "own::Clip", "own::Squeeze-11"):
        x = Graph().add_input(Value("x"))
        loaded = Node(op, [x, x], [Value("y")], {"axes": Attr("INTS", (1,))})
        spelled = spell(loaded, 1)
        assert (
            spelled.op_type == op.removeprefix("own::") and spelled.inputs == (x, x) and spelled.attrs == loaded.attrs
        )


# ---- in functions


def referring(op: str, opset: int, reference: str, **attrs: Any) -> ModelProto:
    """A function of one node that gives one attribute as a reference to the function's."""
    kind = defs.get_schema(op, opset).attributes[reference].type.name
    f = function("f", [node(op, ["a"] * defs.get_schema(op, opset).min_input, ["b"], **attrs)], attributes=["given"])
    f.opset_import[0].version = opset
    f.node[0].attribute.add(name=reference, type=AttributeProto.AttributeType.Value(kind), ref_attr_name="given")
    return model([node("f", ["x"], ["y"], domain="own")], opset=opset, functions=[f], domains=["own"])


@pytest.mark.parametrize(
    ("op", "opset", "reference", "attrs"),
    [
        ("Clip", 10, "max", {"min": 0.0}),
        ("ReduceMean", 17, "axes", {}),
        ("Cast", 5, "to", {}),
        ("Add", 6, "broadcast", {}),
        ("BatchNormalization", 6, "is_test", {"spatial": 1}),
        ("BatchNormalization", 7, "spatial", {}),
        ("Dropout", 6, "is_test", {}),
        ("Dropout", 9, "ratio", {}),
        ("GridSample", 16, "mode", {}),
    ],
)
def test_an_attribute_that_the_call_decides_leaves_the_node_as_it_is(
    op: str, opset: int, reference: str, attrs: dict[str, Any]
) -> None:
    """Nothing can be said about it here, so it keeps its old form whole, and no rule takes it for the new one."""
    proto = referring(op, opset, reference, **attrs)
    subject = load(proto)
    (held,) = next(iter(subject.functions.values())).graph.nodes
    assert held.op == f"{op}-{opset}" and sorted(held.attrs) == sorted([reference, *attrs])
    assert same(to_proto(subject), proto)
    with pytest.raises(UnsupportedError, match=f"'{op}-{opset}' has another meaning in operator set {opset + 1}"):
        spell(held, opset + 1)


def test_an_attribute_without_such_a_past_may_be_a_reference() -> None:
    for op, opset, reference in (
        ("LeakyRelu", 6, "alpha"),
        ("Softmax", 12, "axis"),
        ("ReduceMean", 17, "keepdims"),
        ("Cast", 6, "to"),
    ):
        proto = referring(op, opset, reference)
        (held,) = next(iter(load(proto).functions.values())).graph.nodes
        assert (
            held.op in (op, f"{op}-1")
            and held.attrs[reference].reference == "given"
            and same(to_proto(load(proto)), proto)
        )


def test_a_function_speaks_its_own_operator_set() -> None:
    f = function("f", [node("ReduceMean", ["a"], ["b"], axes=[0])])
    f.opset_import[0].version = 17
    proto = model([node("f", ["x"], ["y"], domain="own")], opset=18, functions=[f], domains=["own"])
    subject = load(proto)
    (mean,) = next(iter(subject.functions.values())).graph.nodes
    assert mean.input(1) is not None and same(to_proto(subject), proto)


# ---- operators that onnxruntime writes into the default domain


@pytest.mark.parametrize(
    ("op", "inputs", "opset"),
    [("LayerNormalization", 3, 11), ("LayerNormalization", 2, 16), ("SimplifiedLayerNormalization", 2, 20)],
)
def test_what_onnxruntime_writes_into_the_default_domain_is_read_and_written_back(op, inputs, opset):
    from fuse.runtime.interpret import run
    from tests.models import model as built

    names = ["x", "s", "b"][:inputs]
    proto = built(
        [helper.make_node(op, names, ["y"], axis=-1, epsilon=1e-5)],
        {"x": [2, 4]},
        {"y": [2, 4]},
        {n: np.full(4, 0.5 + i, np.float32) for i, n in enumerate(names[1:])},
        opset=opset,
    )
    loaded = load(proto)
    (node,) = loaded.graph.nodes
    assert node.op == f"{op}-1"
    assert to_proto(loaded).graph.node[0] == proto.graph.node[0]
    x = np.array([[1, 2, 3, 4], [-1, 0, 0, 1]], np.float32)
    centred = x if op.startswith("Simplified") else x - x.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * 0.5 + (1.5 if inputs == 3 else 0)
    np.testing.assert_allclose(run(loaded, {"x": x})["y"], want, rtol=1e-6)


def test_the_standard_operator_of_that_name_is_the_standards():
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("LayerNormalization", ["x", "s"], ["y"])], "g",
            [helper.make_tensor_value_info(n, 1, [4]) for n in "xs"], [helper.make_tensor_value_info("y", 1, [4])],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    assert next(load(proto).graph.nodes).op == "LayerNormalization"
