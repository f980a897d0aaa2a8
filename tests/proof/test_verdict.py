"""What a verdict says: when it proves nothing, what is random, which feeds were used, and its forms."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from fuse.errors import InputError
from fuse.model.load import load
from fuse.proof.inputs import InputSet, make_inputs
from fuse.proof.judge import verify_models
from fuse.proof.verdict import Verdict
from tests.models import BOOL, F32, I64, model, node, rand

X = {"x": ["n", 16]}
W = rand(16)


def verdict(raw, other=None, **options):
    return verify_models(load(raw), load(raw if other is None else other), onnxruntime=False, **options)


def chain(*ops: str, outputs=None, inputs=None, consts=None, **options):
    names = ["x", *(f"t{i}" for i in range(len(ops) - 1)), "y"]
    nodes = [node(op, [a], [b]) for op, a, b in zip(ops, names, names[1:], strict=False)]
    return model(nodes, inputs or X, outputs or ["y"], consts, **options)


# ---- unproven


def test_an_operator_without_a_kernel_leaves_it_unproven():
    nodes = [node("Mystery", ["x"], ["t"], domain="far"), node("Relu", ["t"], ["y"])]
    raw = model(nodes, X, {"y": ["n", 16]}, domains=["far"])
    found = verdict(raw)
    assert found.status == "unproven" and not found.ok and not found.rows
    assert found.line().startswith("unproven: fuse cannot run the raw graph: ") and "Mystery" in found.line()


def test_an_output_that_is_never_a_number_proves_nothing():
    never = model([node("Log", ["x"], ["t"]), node("Sqrt", ["m"], ["y"])], X, ["y"], {"m": -np.ones(3, np.float32)})
    found = verdict(never)
    assert found.status == "unproven" and found.line() == "unproven: output 'y' is NaN, Inf or empty on every input set"
    consts = {"s": np.array([0]), "e": np.array([0])}
    empty = [node("Slice", ["x", "s", "e"], ["y"])]
    assert verdict(model(empty, X, {"y": ["m", 16]}, consts)).status == "unproven"
    assert verdict(model(empty, X, {"y": [0, 16]}, consts)).ok  # there is nothing more to it


def test_an_output_that_needs_positive_numbers_gets_them():
    """The sum over a large image of logarithms is NaN on every ordinary set."""
    nodes = [node("Log", ["x"], ["t"]), node("ReduceSum", ["t"], ["y"], keepdims=0)]
    raw = model(nodes, {"x": [1, 3, 160, 160]}, ["y"])
    assert len(make_inputs(load(raw))) == 2
    found = verdict(raw)
    assert found.ok and found.input_sets[-1] == "positive"


def test_inputs_that_cannot_be_made_up():
    kind = helper.make_sparse_tensor_type_proto(F32, [3])
    values = [helper.make_value_info(n, kind) for n in ("x", "y")]
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
    raw = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    found = verdict(raw)
    assert found.status == "unproven" and "input 'x' is sparse" in found.line()


def test_sets_that_could_not_run_are_counted():
    nodes = [node("Gather", ["t", "i"], ["y"])]
    raw = load(model(nodes, {"i": (I64, [3])}, ["y"], {"t": W}))
    sets = [InputSet("inside", {"i": np.array([0, 1, 15])}), InputSet("outside", {"i": np.array([0, 1, 16])})]
    found = verify_models(raw, raw, inputs=sets, onnxruntime=False)
    assert found.ok and found.input_sets == ("inside",)
    assert found.notes[0].startswith("1 of 2 input sets could not run (outside: index 16 is out of range")
    assert "could not run" in found.line()


# ---- chance


def random_model(*more, seed=None, dims=("n", 16)):
    attrs = {} if seed is None else {"seed": seed}
    return model([node("RandomNormalLike", ["x"], ["y"], **attrs), *more], {"x": list(dims)}, {"y": list(dims)})


def test_unseeded_draws_are_never_a_mismatch():
    found = verdict(random_model())
    assert found.ok and all(r.random and r.difference.differing for r in found.rows)
    assert found.notes == ("random, so compared by dtype and shape alone: 'y'",)
    assert "dtypes and shapes are the same" in found.line() and "random" in found.line()


def test_draws_of_another_dtype_or_declared_size_are():
    fixed = random_model(dims=(4, 16))
    for attrs, dims, kind in (({"dtype": TensorProto.DOUBLE}, [4, 16], TensorProto.DOUBLE), ({}, [4, 16, 1], F32)):
        nodes = [node("RandomNormalLike", ["x"], ["t"], **attrs)]
        nodes += [node("Identity" if len(dims) == 2 else "Unsqueeze", ["t", *(["a"] * (len(dims) > 2))], ["y"])]
        other = model(nodes, {"x": [4, 16]}, {"y": (kind, dims)}, {"a": np.array([2])})
        models = [load(fixed), load(other)]
        for m in models:
            m.graph.outputs[0].type = None
        assert verify_models(*models, onnxruntime=False).status == "moved"


def test_the_number_of_what_was_drawn_is_drawn_too():
    nodes = [node("RandomNormalLike", ["x"], ["r"]), node("Relu", ["r"], ["t"]), node("NonZero", ["t"], ["y"])]
    raw = model(nodes, {"x": [50, 16]}, {"y": (I64, [2, None])})
    assert verdict(raw).ok


def test_seeded_draws_are_compared():
    assert verdict(random_model(seed=1.0), exact="bits").ok
    assert verdict(random_model(seed=1.0), random_model(seed=2.0)).status == "moved"


# ---- feeds


def test_given_feeds_are_used():
    raw, other = chain("Relu"), chain("Identity")
    blind = {"x": np.ones((2, 16), np.float32)}
    found = verdict(raw, other, inputs=[blind])
    assert found.ok and found.input_sets == ("given 1",)
    assert verdict(raw, other, inputs=[blind, {"x": -blind["x"]}]).status == "moved"
    for wrong in ({"z": blind["x"]}, {"x": blind["x"][0]}, {"x": blind["x"].astype(np.float64)}, {}):
        with pytest.raises(InputError):
            verdict(raw, other, inputs=[wrong])
    assert verdict(raw, inputs=[]).status == "unproven"


def test_use_that_makes_no_sense():
    with pytest.raises(InputError, match="exactness 'roughly'"):
        verdict(chain("Relu"), exact="roughly")
    with pytest.raises(InputError, match="take different inputs"):
        verdict(chain("Relu"), model([node("Relu", ["q"], ["y"])], {"q": ["n", 16]}, ["y"]))


def test_progress_is_told():
    told: list[str] = []
    verdict(chain("Relu"), progress=told.append)
    assert told[:3] == [f"verify on normal (n=1): {what}" for what in ("raw", "optimised", "raw in float64")]


def test_the_seed_chooses_the_inputs():
    a, b, c = (verdict(chain("Exp"), seed=s).rows[0].difference.largest for s in (1, 1, 2))
    assert a == b != c


# ---- other kinds of values


def test_every_kind_of_output():
    nodes = [
        node("Greater", ["x", "x"], ["b"]), node("ArgMax", ["x"], ["i"], axis=-1),
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16), node("Cast", ["i"], ["s"], to=TensorProto.STRING),
        node("Cast", ["x"], ["w"], to=TensorProto.BFLOAT16),
    ]  # fmt: skip
    kinds = {"b": (BOOL, [4, 16]), "i": (I64, [1, 16]), "h": (10, [4, 16]), "s": (8, [1, 16]), "w": (16, [4, 16])}
    nodes[1].attribute[0].i = 0
    found = verdict(model(nodes, {"x": [4, 16]}, kinds), exact="bits")
    assert found.ok and {r.output for r in found.rows} == set(kinds) and all(r.difference.same_bits for r in found.rows)


def test_sequences_and_optionals():
    tensor = helper.make_tensor_type_proto(F32, [2])
    for kind in (helper.make_sequence_type_proto(tensor), helper.make_optional_type_proto(tensor)):
        values = [helper.make_value_info(n, kind) for n in ("x", "y")]
        graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
        raw = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        found = verdict(raw)
        assert found.ok, found.line()


# ---- forms


def test_plain_data_is_strict_json():
    raw, other = chain("Log"), chain("Neg")
    found = verdict(raw, other)
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert data["status"] == "moved" and data["line"] == found.line() and data["exact"] == "close"
    assert data["input_sets"] == list(found.input_sets) and data["seconds"] >= 0
    row = data["rows"][0]
    assert {
        "output",
        "inputs",
        "difference",
        "raw_error",
        "optimised_error",
        "onnxruntime",
        "runtimes",
        "ratio",
    } <= set(row)
    assert {"max_abs", "max_rel", "max_elementwise", "max_ulp", "p99_ulp", "argmax", "same_nonfinite"} <= set(
        row["difference"]
    )
    zero = verdict(chain("Abs"), model([node("Mul", ["x", "z"], ["y"])], X, ["y"], {"z": np.float32(1)}))
    assert zero.ratio == math.inf and zero.to_dict()["ratio"] == "Infinity"


def test_lines():
    same = verdict(chain("Relu"), exact="bits")
    assert same.line() == "answers unmoved on 4 input sets: bit for bit the same"
    w = np.float32(1 + 2.0**-23)
    close = verdict(model([node("Mul", ["x", "w"], ["y"])], X, ["y"], {"w": w}), chain("Identity"))
    assert close.ok and "e-07 of the largest output apart, error against float64 " in close.line()
    assert Verdict("moved", ("a", "b", "c")).line() == "answers moved: a (and 2 more)"
    assert Verdict("unproven", ("a",)).line() == "unproven: a"
