"""ZipMap, CastMap and DictVectorizer, and maps on their way through session, comparison and report."""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest
from onnx import helper

from fuse.cli.feeds import flat, write_archive
from fuse.errors import InputError, RunError, ShapeError
from fuse.ir.types import MapType, SequenceType, TensorType
from fuse.model.load import load
from fuse.ops.maps import column
from fuse.ops.record import Info
from fuse.proof.compare import compare_arrays, epsilon
from fuse.report.values import shown, value_facts
from fuse.runtime.interpret import Interpreter
from fuse.runtime.session import InferenceSession
from tests.ops.cases import infer, kernel, shape_of, typed
from tests.ops.classical import agree, fuse_says, one_node, strings

ZIP, CAST, DICT = (f"ai.onnx.ml::{n}" for n in ("ZipMap", "CastMap", "DictVectorizer"))
X = np.array([[0.1, 1.5], [2.25, -3]], np.float32)


def map_of(key, element=1):
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(element, None))


def sequence_of_maps(key):
    return helper.make_sequence_type_proto(map_of(key))


def map_info(key, value):
    return Info(MapType(np.dtype(key), TensorType(np.dtype(value))))


# ---- ZipMap


def test_zip_map_agrees_with_onnxruntime():
    agree("ZipMap", [X], [sequence_of_maps(7)], 1, classlabels_int64s=[4, -5])
    agree("ZipMap", [X], [sequence_of_maps(8)], 1, classlabels_strings=["a", "ß"])
    agree("ZipMap", [X[0]], [sequence_of_maps(8)], 1, classlabels_strings=["a", ""])
    agree("ZipMap", [X[:0]], [sequence_of_maps(7)], 1, classlabels_int64s=[4, -5])


def test_zip_map_by_hand():
    made = kernel(ZIP, X, classlabels_strings=("a", "b"))
    assert made == [{"a": float(np.float32(0.1)), "b": 1.5}, {"a": 2.25, "b": -3.0}]
    assert [type(v) for v in made[0].values()] == [float, float]
    assert list(kernel(ZIP, X, classlabels_int64s=(9, 1))[0]) == [9, 1]


def test_zip_map_faults():
    with pytest.raises(RunError, match="2 columns for 3 keys"):
        kernel(ZIP, X, classlabels_int64s=(1, 2, 3))
    with pytest.raises(RunError, match="needs keys, either integers or strings"):
        kernel(ZIP, X)
    with pytest.raises(RunError, match=r"\[1, 1, 2\] is neither"):
        kernel(ZIP, X[:1, None], classlabels_int64s=(1, 2))


def test_zip_map_inference():
    (y,) = infer(ZIP, [typed("n", 2)], classlabels_strings=("a", "b"))
    assert y.type == SequenceType(MapType(np.dtype(object), TensorType(np.dtype(np.float32))))
    assert str(y.type) == "seq(map(string, float[...]))"
    with pytest.raises(ShapeError, match="3 columns for 2 keys"):
        infer(ZIP, [typed("n", 3)], classlabels_strings=("a", "b"))


# ---- CastMap


@pytest.mark.parametrize(("spelled", "to"), [("float", "TO_FLOAT"), ("int64", "TO_INT64"), ("string", "TO_STRING")])
def test_cast_map_agrees_with_onnxruntime(spelled, to):
    x = {3: 1.5, 0: 2.0, -1: -4.25}
    agree("CastMap", [x], [spelled], 1, cast_to=to)
    del x[-1]
    agree("CastMap", [x], [spelled], 1, cast_to=to, map_form="SPARSE", max_map=6)


def test_cast_map_from_strings():
    x = {2: "1.5", 1: " -7 ", 5: "inf"}
    assert kernel(CAST, x).tolist() == [[-7, 1.5, np.inf]]
    assert kernel(CAST, x, cast_to="TO_STRING").tolist() == [[" -7 ", "1.5", "inf"]]
    assert kernel(CAST, {2: "1.5", 1: " -7 "}, cast_to="TO_INT64").tolist() == [[-7, 1]]
    assert kernel(CAST, {}, cast_to="TO_STRING").shape == (1, 0)
    assert kernel(CAST, {1: np.float32(2.5)}, map_form="SPARSE", max_map=3).tolist() == [[0, 2.5, 0]]


@pytest.mark.parametrize(
    ("x", "attrs", "message"),
    [
        ({1: "two"}, {}, "'two' is not a number of type float"),
        ({1: "inf"}, {"cast_to": "TO_INT64"}, "'inf' is not a number of type int64"),
        ({5: 1.0}, {"map_form": "SPARSE", "max_map": 5}, "key 5 is outside of 0 to 4"),
        ({-1: 1.0}, {"map_form": "SPARSE", "max_map": 5}, "key -1 is outside of 0 to 4"),
        ({1: 1.0}, {"map_form": "SPARSE", "max_map": 0}, "max_map 0 is not positive"),
        ({1: 1.0}, {"map_form": "LOOSE"}, "map_form 'LOOSE'"),
        ({1: 1.0}, {"cast_to": "TO_BOOL"}, "cast_to 'TO_BOOL'"),
        (np.zeros(1), {}, "the input is a ndarray, not a map"),
    ],
)
def test_cast_map_faults(x, attrs, message):
    with pytest.raises(RunError, match=message):
        kernel(CAST, x, **attrs)


def test_cast_map_inference():
    (y,) = infer(CAST, [map_info(np.int64, np.float32)], cast_to="TO_INT64")
    assert (y.dtype, shape_of(y)) == (np.int64, "[1, ?]")
    (y,) = infer(CAST, [map_info(np.int64, np.float32)], map_form="SPARSE", max_map=4)
    assert (y.dtype, shape_of(y)) == (np.float32, "[1, 4]")


# ---- DictVectorizer


def test_dict_vectorizer_agrees_with_onnxruntime():
    agree("DictVectorizer", [{"a": 1.5, "z": 2.0}], ["float"], 1, string_vocabulary=["z", "b", "a"])
    agree("DictVectorizer", [{"a": 1.5, "q": 2.0}], ["float"], 1, string_vocabulary=["z", "b", "a"])
    agree("DictVectorizer", [{4: 1.5, -2: 2.0}], ["float"], 1, int64_vocabulary=[-2, 0, 4])


def test_dict_vectorizer_by_hand():
    assert kernel(DICT, {"a": 4, "c": 8}, string_vocabulary=("a", "c", "b", "z")).tolist() == [[4, 8, 0, 0]]
    words = kernel(DICT, {1: "x", 2: "y"}, int64_vocabulary=(3, 2))
    assert words.tolist() == [["", "y"]]
    for dtype in (np.int64, np.float32, np.float64):
        y = kernel(DICT, {"a": dtype(4)}, string_vocabulary=("a", "b"))
        assert (y.dtype, y.tolist()) == (dtype, [[4, 0]])
    assert kernel(DICT, {}, string_vocabulary=("a",)).tolist() == [[0]]
    with pytest.raises(RunError, match="needs a vocabulary"):
        kernel(DICT, {"a": 1.0})


@pytest.mark.parametrize("value", [np.int64, np.float32, np.float64, object])
def test_dict_vectorizer_inference(value):
    (y,) = infer(DICT, [map_info(object, value)], string_vocabulary=("a", "b"))
    assert (y.dtype, shape_of(y)) == (value, "[1, 2]")


# ---- maps as inputs


def fed(element, feed):
    proto = one_node("DictVectorizer", [{"a": 1.0}], ["float"], 1, string_vocabulary=["a", "b"])
    proto.graph.input[0].CopyFrom(helper.make_value_info("i0", map_of(8, element)))
    proto.graph.output[0].CopyFrom(onnx.ValueInfoProto(name="o0"))
    return Interpreter(load(proto)).run({"i0": feed})["o0"]


@pytest.mark.parametrize(("element", "dtype"), [(1, np.float32), (11, np.float64), (7, np.int64)])
def test_feeds_take_the_declared_type(element, dtype):
    for one in (1, 1.0, np.float64(1), np.int32(1)):
        y = fed(element, {"a": one})
        assert (y.dtype, y.tolist()) == (dtype, [[1, 0]])


@pytest.mark.parametrize(
    ("element", "feed", "message"),
    [
        (1, np.zeros(1), r"is a ndarray, the model wants map\(string, float"),
        (1, {1: 2.0}, "has the key '1', the model wants"),
        (1, {"a": "x"}, "does not hold numbers of type float"),
        (7, {"a": 1.5}, "does not hold whole numbers"),
    ],
)
def test_feeds_that_do_not_fit(element, feed, message):
    with pytest.raises(InputError, match=message):
        fed(element, feed)


# ---- maps as outputs


def classifier():
    """A linear classifier with a ZipMap behind it, as converters write it."""
    ml = {"domain": "ai.onnx.ml", "classlabels_strings": ["a", "b"]}
    own = {"coefficients": [1.0, 0.0, 0.0, 1.0], "intercepts": [0.0, 0.0], "post_transform": "SOFTMAX"}
    nodes = [
        helper.make_node("LinearClassifier", ["x"], ["label", "p"], **ml, **own),
        helper.make_node("ZipMap", ["p"], ["maps"], **ml),
    ]
    made = [helper.make_tensor_value_info("label", 8, ["n"]), helper.make_value_info("maps", sequence_of_maps(8))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 2])], made)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_a_session_gives_dicts():
    session = InferenceSession(classifier())
    assert [o.type for o in session.get_outputs()] == ["tensor(string)", "seq(map(string,tensor(float)))"]
    labels, maps = session.run(None, {"x": np.array([[1, 1], [0, 2]], np.float32)})
    assert labels.tolist() == ["a", "b"]
    assert maps[0] == {"a": 0.5, "b": 0.5}
    assert maps[1]["b"] == pytest.approx(1 / (1 + np.exp(-2)), rel=1e-7)


def test_comparison_takes_the_floats_of_a_map_as_float32():
    one, next_ = 1.0, float(np.nextafter(np.float32(1), np.float32(2)))
    found = compare_arrays([{"a": one, "b": 2.0}], [{"b": 2.0, "a": next_}])
    assert (found.same_dtype, found.differing, found.max_ulp) == (True, 1, 1)
    assert epsilon([{"a": one}]) == np.finfo(np.float32).eps
    assert not compare_arrays([{"a": one}], [{"b": one}]).same_values
    assert compare_arrays([{"a": one}], [{"a": np.float64(1)}]).same_dtype is False


def test_columns():
    assert column([0.5, 2]).dtype == np.float32
    assert column([1, 2]).dtype == np.int64
    assert column([np.float64(1)]).dtype == np.float64
    assert column([np.float32(1)]).dtype == np.float32
    assert column(["a", ""]).tolist() == ["a", ""]
    assert (column([]).dtype, column([]).shape) == (np.float32, (0,))


def test_a_map_in_the_report():
    facts = value_facts([{"a": 0.25, "b": 0.75}])
    assert facts["type"] == "sequence of 1"
    assert shown(facts["elements"][0]) == ("map of 2, string to float", "0.25", "0.75", "0.5", "0.25, 0.75")


def test_a_map_in_a_file():
    values = {"maps": [{4: 0.25}, {4: 0.5, 7: 1.0}]}
    assert {k: v.tolist() for k, v in flat(values).items()} == {
        "maps[0].keys": [4], "maps[0].values": [0.25], "maps[1].keys": [4, 7], "maps[1].values": [0.5, 1.0],
    }  # fmt: skip
    file = io.BytesIO()
    write_archive(file, values)
    read = np.load(io.BytesIO(file.getvalue()), allow_pickle=False)
    assert read["maps[1].values"].dtype == np.float32


def test_all_the_way_through_loader_and_interpreter():
    (y,) = fuse_says("CastMap", [{2: 0.5, 1: 1.5}], ["float"], 1)
    assert y.tolist() == [[1.5, 0.5]]
    assert strings("a").tolist() == ["a"]
