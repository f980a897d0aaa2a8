"""Made-up inputs: they fit, they can be replayed, and they hold the numbers that find faults."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from fuse.errors import UnsupportedError
from fuse.model.load import load
from fuse.proof.inputs import make_inputs
from fuse.runtime.interpret import run
from tests.models import BOOL, F32, I64, model, node

STRING = TensorProto.STRING


def build(nodes, inputs, outputs, consts=None, **options):
    return load(model(nodes, inputs, outputs, consts, **options))


def identity(dtype: int, dims, opset: int = 21):
    return build([node("Identity", ["x"], ["y"])], {"x": (dtype, dims)}, ["y"], opset=opset, ir_version=10)


def alike(a, b) -> bool:
    if isinstance(a, list):
        return len(a) == len(b) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()


def test_the_seed_replays_and_changes_every_set():
    m = build([node("Add", ["x", "z"], ["y"])], {"x": ["n", 8], "z": ["n", 8]}, ["y"])
    first, again, other = (make_inputs(m, seed=s, count=4) for s in (7, 7, 8))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.label == b.label and a.sizes == b.sizes
        assert all(alike(a.feeds[n], b.feeds[n]) and not alike(a.feeds[n], c.feeds[n]) for n in ("x", "z"))
        assert not alike(a.feeds["x"], a.feeds["z"])
    labels = [s.label for s in make_inputs(m, count=9)]
    assert len(set(labels)) == 9
    assert [s.label for s in make_inputs(m, count=2)] == labels[:2]


def test_floats_hold_zeros_ties_corners_and_both_signs():
    feeds = [s.feeds["x"] for s in make_inputs(identity(F32, [100, 10]), count=4)]
    assert all(x.dtype == np.float32 and x.shape == (100, 10) and np.isfinite(x).all() for x in feeds)
    normal, edges, large, positive = feeds
    assert abs(normal.mean()) < 0.2 and 0.8 < normal.std() < 1.2
    assert (np.signbit(edges) & (edges == 0)).any() and (~np.signbit(edges) & (edges == 0)).any()
    for corner in (0.5, -0.5, 2.5, 3.0, -3.0, 6.0):
        assert (edges == np.float32(corner)).sum() > 1  # more than once: ties
    assert edges.max() > 15 and edges.min() < -15 and (np.abs(edges[edges != 0]) < 0.1).any()
    assert large.min() < -60 and large.max() > 60
    assert (positive >= 0).all() and (positive < 1).all()


@pytest.mark.parametrize(
    "code", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT8E4M3FN]
)
def test_floats_of_every_width_are_finite(code):
    m = identity(code, [64])
    for entry in make_inputs(m, count=4):
        x = entry.feeds["x"]
        assert x.dtype == helper.tensor_dtype_to_np_dtype(code) and np.isfinite(x.astype(np.float64)).all()
        assert len(np.unique(x.astype(np.float64))) > 5


def test_symbols_get_one_size_each_above_one_and_then_one():
    m = build([node("Add", ["x", "z"], ["y"])], {"x": ["n", "m", 8], "z": ["n", "m", 8]}, ["y"])
    sets = make_inputs(m, count=2)
    assert [s.feeds["x"].shape for s in sets] == [s.feeds["z"].shape for s in sets]
    assert sets[0].feeds["x"].shape == (1, 1, 8)
    n, k, _ = sets[1].feeds["x"].shape
    assert n > 1 and k > 1 and n != k
    assert sets[1].sizes == {"n": n, "m": k}
    assert f"n={n}" in sets[1].label


def test_two_names_for_one_size_are_found_out():
    m = build([node("Add", ["x", "z"], ["y"])], {"x": ["n", 4], "z": ["batch", 4]}, ["y"])
    one, many = make_inputs(m, count=2)
    assert one.feeds["x"].shape[0] == 1 and many.feeds["x"].shape[0] > 1
    for entry in (one, many):
        run(m, entry.feeds)


def test_a_network_that_needs_pixels_gets_them():
    pools = [node("MaxPool", ["x"], ["a"], kernel_shape=[7, 7], strides=[7, 7])]
    m = build([*pools, node("Relu", ["a"], ["y"])], {"x": ["n", 3, "h", "w"]}, ["y"])
    one, many = make_inputs(m, count=2)
    assert many.feeds["x"].shape[2] >= 7 and many.feeds["x"].shape[0] > 1
    assert one.feeds["x"].shape[0] == 1 and one.feeds["x"].shape[2] >= 7


def test_a_graph_that_fits_one_entry_alone_gets_no_more():
    """Exporters write the batch of their example into a Reshape."""
    consts = {"s": np.array([1, -1]), "w": np.ones((12, 2), np.float32)}
    nodes = [node("Reshape", ["x", "s"], ["a"]), node("MatMul", ["a", "w"], ["y"])]
    m = build(nodes, {"x": ["n", 12]}, ["y"], consts)
    sets = make_inputs(m, count=4)
    assert [s.feeds["x"].shape for s in sets] == [(1, 12)] * 4
    m = build(nodes, {"x": ["n", "m", 4]}, ["y"], consts)
    sets = make_inputs(m, count=2)
    assert all(s.feeds["x"].size == 12 for s in sets)


def test_unnamed_dims_and_unknown_ranks():
    m = build([node("MatMul", ["x", "w"], ["y"])], {"x": [None, 4]}, ["y"], {"w": np.ones((4, 2), np.float32)})
    assert {s.feeds["x"].shape[0] > 1 for s in make_inputs(m, count=2)} == {True, False}
    m = build([node("Conv", ["x", "w"], ["y"])], {"x": None}, ["y"], {"w": np.ones((2, 3, 1, 1), np.float32)})
    entry = make_inputs(m, count=2)[1]
    assert entry.feeds["x"].ndim == 4 and entry.feeds["x"].shape[1] == 3


def test_inputs_with_defaults_are_left_to_them():
    proto = model([node("Add", ["x", "w"], ["y"])], {"x": [4], "w": [4]}, ["y"], {"w": np.ones(4, np.float32)})
    m = load(proto)
    assert all(set(s.feeds) == {"x"} for s in make_inputs(m))


def test_no_inputs_at_all():
    m = build([node("Neg", ["w"], ["y"])], {}, ["y"], {"w": np.ones(4, np.float32)})
    assert [s.feeds for s in make_inputs(m)] == [{}]


# ---- roles

TABLE = np.ones((5, 3), np.float32)


def indices_of(m, name="ids", count=6):
    return np.concatenate([s.feeds[name].reshape(-1) for s in make_inputs(m, count=count)])


def test_indices_stay_within_the_table_and_reach_its_ends():
    chain = [
        node("Identity", ["ids"], ["a"]),
        node("Unsqueeze", ["a", "zero"], ["b"]),
        node("Cast", ["b"], ["c"], to=TensorProto.INT32),
        node("Reshape", ["c", "flat"], ["d"]),
        node("Gather", ["t", "d"], ["y"]),
    ]
    consts = {"t": TABLE, "zero": np.array([0]), "flat": np.array([-1])}
    m = build(chain, {"ids": (I64, ["n", 40])}, ["y"], consts)
    found = indices_of(m)
    assert found.min() == 0 and found.max() == 4


def test_the_axis_and_the_narrowest_table_count():
    nodes = [node("Gather", ["t", "ids"], ["a"], axis=1), node("Gather", ["t", "ids"], ["b"], axis=-2)]
    found = indices_of(build(nodes, {"ids": (I64, [50])}, ["a", "b"], {"t": TABLE}))
    assert found.min() == 0 and found.max() == 2
    nodes = [node("GatherElements", ["x", "ids"], ["a"], axis=1)]
    m = build(nodes, {"x": [9, "k"], "ids": (I64, [9, 2])}, ["a"])
    for entry in make_inputs(m, count=4):
        assert entry.feeds["ids"].max() < entry.feeds["x"].shape[1]
        run(m, entry.feeds)


def test_a_table_with_an_open_axis_is_sized_first():
    m = build([node("Gather", ["x", "ids"], ["y"])], {"x": ["n", 2], "ids": (I64, [64])}, ["y"])
    one, many = make_inputs(m, count=2)
    assert one.feeds["x"].shape[0] == 1 and not one.feeds["ids"].any()
    assert many.feeds["ids"].max() == many.feeds["x"].shape[0] - 1


def test_index_tuples_and_scatters():
    nodes = [node("GatherND", ["t", "ids"], ["y"])]
    found = indices_of(build(nodes, {"ids": (I64, [30, 2])}, ["y"], {"t": TABLE}))
    assert found.min() == 0 and found.max() == 2
    nodes = [node("ScatterElements", ["t", "ids", "x"], ["y"], axis=0)]
    m = build(nodes, {"ids": (I64, [2, 3]), "x": [2, 3]}, ["y"], {"t": TABLE})
    found = indices_of(m)
    assert found.min() == 0 and found.max() == 4


def test_indices_read_inside_subgraphs_and_functions():
    branch = helper.make_graph(
        [node("Gather", ["t", "ids"], ["r"])], "b", [], [helper.make_empty_tensor_value_info("r")]
    )
    nodes = [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    m = build(nodes, {"c": (BOOL, []), "ids": (I64, [60])}, ["y"], {"t": TABLE})
    assert indices_of(m).max() == 4
    body = helper.make_function(
        "my", "Look", ["t", "i"], ["o"], [node("Gather", ["t", "i"], ["o"])], [helper.make_opsetid("", 18)]
    )
    nodes = [node("Look", ["t", "ids"], ["y"], domain="my")]
    m = build(nodes, {"ids": (I64, [60])}, ["y"], {"t": TABLE}, functions=[body], domains=["my"])
    assert indices_of(m).max() == 4


def test_indices_behind_arithmetic_stay_small():
    nodes = [node("Add", ["ids", "two"], ["a"]), node("Gather", ["t", "a"], ["y"])]
    m = build(nodes, {"ids": (I64, [40])}, ["y"], {"t": np.ones((50, 1), np.float32), "two": np.array(2)})
    found = indices_of(m)
    assert found.min() == 0 and 0 < found.max() < 8


def test_floats_that_are_made_indices():
    nodes = [node("Cast", ["x"], ["i"], to=I64), node("Gather", ["t", "i"], ["y"])]
    m = build(nodes, {"x": [40]}, ["y"], {"t": TABLE})
    found = indices_of(m, "x")
    assert found.dtype == np.float32 and found.min() == 0 and found.max() == 4


def test_integers_that_only_arithmetic_reads_have_both_signs():
    m = build([node("Mul", ["ids", "ids"], ["y"])], {"ids": (I64, [200])}, ["y"])
    found = indices_of(m, count=2)
    assert found.min() < 0 < found.max() and 0 in found
    m = build([node("Cast", ["ids"], ["y"], to=F32)], {"ids": (TensorProto.UINT8, [2000])}, ["y"])
    assert indices_of(m).max() == 255
    m = build([node("Cast", ["ids"], ["y"], to=F32)], {"ids": (TensorProto.INT8, [2000])}, ["y"])
    assert (indices_of(m).min(), indices_of(m).max()) == (-128, 127)
    m = identity(TensorProto.INT4, [300])
    found = make_inputs(m, count=2)[1].feeds["x"]
    assert found.dtype == np.dtype(ml_dtypes.int4) and set(found.astype(int)) == set(range(-8, 8))


def test_integers_of_unknown_use_are_small_and_not_negative():
    nodes = [node("Mystery", ["ids"], ["y"], domain="far")]
    m = build(nodes, {"ids": (I64, [200])}, {"y": [200]}, domains=["far"])
    found = indices_of(m)
    assert found.min() == 0 and found.max() == 3


def test_divisors_counts_and_target_shapes():
    m = build([node("Div", ["ids", "d"], ["y"])], {"ids": (I64, [40]), "d": (I64, [40])}, ["y"])
    assert indices_of(m, "d").min() >= 1
    m = build([node("Div", ["x", "d"], ["y"])], {"x": [40], "d": [40]}, ["y"])
    assert (make_inputs(m, count=2)[1].feeds["d"] == 0).any()  # a float may be divided by zero
    for op, shape, dims in (("Reshape", "s", [3]), ("Expand", "s", [2]), ("Tile", "s", [2])):
        m = build([node(op, ["x", shape], ["y"])], {"x": [4, 6], shape: (I64, dims)}, ["y"])
        for entry in make_inputs(m, count=4):
            run(m, entry.feeds)
    m = build([node("TopK", ["x", "k"], ["y", "i"])], {"x": [4, 6], "k": (I64, [1])}, ["y", "i"])
    assert set(indices_of(m, "k")) == {1}


@pytest.mark.parametrize(
    ("op", "slot", "count"),
    [("ReduceSum", 1, 2), ("CumSum", 1, None), ("Slice", 3, 2), ("Pad", 3, 3), ("Unsqueeze", 1, 3), ("Squeeze", 1, 1)],
)
def test_axes_differ_and_are_there(op, slot, count):
    consts = {"s": np.zeros(2, np.int64), "e": np.ones(2, np.int64), "p": np.zeros(6, np.int64), "v": np.float32(0)}
    between = {"Slice": ["s", "e"], "Pad": ["p", "v"]}.get(op, [])
    used = {n: consts[n] for n in between}
    m = build(
        [node(op, ["x", *between, "a"], ["y"])],
        {"x": [3, 1, 4], "a": (I64, [] if count is None else [count])},
        {"y": None},
        used,
    )
    for entry in make_inputs(m, count=6):
        axes = entry.feeds["a"].reshape(-1).tolist()
        assert len(set(axes)) == (count or 1) == len(axes)
        run(m, entry.feeds)


def test_parts_make_up_the_axis():
    nodes = [node("Split", ["x", "s"], ["a", "b", "c"], axis=1)]
    m = build(nodes, {"x": [2, 8], "s": (I64, [3])}, {"a": None, "b": None, "c": None})
    for entry in make_inputs(m, count=2):
        assert entry.feeds["s"].tolist() == [2, 2, 4]
        run(m, entry.feeds)


def test_bools_and_strings():
    found = make_inputs(identity(BOOL, [64]), count=2)[0].feeds["x"]
    assert found.dtype == np.bool_ and found.any() and not found.all()
    found = make_inputs(identity(STRING, [64]), count=2)[1].feeds["x"]
    assert found.dtype == object and "" in found and len(set(found)) > 5 and all(isinstance(t, str) for t in found)
    m = build([node("Cast", ["x"], ["y"], to=F32)], {"x": (STRING, [30])}, ["y"], opset=21, ir_version=10)
    assert [float(t) for t in make_inputs(m)[0].feeds["x"]]


def typed(kind, op="Identity"):
    value = helper.make_value_info("x", kind)
    graph = helper.make_graph([node(op, ["x"], ["y"])], "g", [value], [helper.make_value_info("y", kind)])
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


def test_sequences_optionals_and_what_cannot_be_made():
    tensor = helper.make_tensor_type_proto(F32, ["n", 2])
    normal, edges = make_inputs(typed(helper.make_sequence_type_proto(tensor)), count=2)
    assert [x.shape for x in normal.feeds["x"]] == [(1, 2)] * 2
    assert len(edges.feeds["x"]) == 3 and all(x.shape[0] > 1 and x.dtype == np.float32 for x in edges.feeds["x"])
    normal, edges = make_inputs(typed(helper.make_optional_type_proto(tensor)), count=2)
    assert normal.feeds["x"].shape == (1, 2) and edges.feeds["x"] is None
    with pytest.raises(UnsupportedError, match="input 'x' is sparse"):
        make_inputs(typed(helper.make_sparse_tensor_type_proto(F32, [3])))


def test_complex_numbers():
    found = make_inputs(identity(TensorProto.COMPLEX64, [64]))[1].feeds["x"]
    assert found.dtype == np.complex64 and (found.imag < 0).any() and (found.real == 0).any()


def test_small_models_are_tried_more_often():
    small = build([node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"])
    large = build([node("Relu", ["x"], ["y"])], {"x": [1, 3, 224, 224]}, ["y"])
    assert (len(make_inputs(small)), len(make_inputs(large))) == (4, 2)
    assert math.prod(make_inputs(large)[0].feeds["x"].shape) == 150528
