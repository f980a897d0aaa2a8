"""The interpreter: what a model means, that memory is given back, and that errors say where."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from onnx import helper

from fuse.errors import InputError, RunError, UnsupportedError
from fuse.model.load import load
from fuse.runtime.interpret import Interpreter, run
from tests.models import BOOL, F32, I64, info, model, node, rand


def test_outputs_come_by_name_in_order_and_only_those_asked_for():
    m = load(model([node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["b"])], {"x": [3]}, {"b": [3], "a": [3]}))
    feed = {"x": np.array([1, -2, 3], np.float32)}
    assert {k: v.tolist() for k, v in run(m, feed).items()} == {"b": [1, 2, 3], "a": [-1, 2, -3]}
    assert list(run(m, feed)) == ["b", "a"]
    assert list(run(m, feed, ["a"])) == ["a"]
    with pytest.raises(InputError, match="no output 'c'"):
        run(m, feed, ["c"])


def test_an_output_may_be_an_input_or_a_constant_and_may_come_twice():
    m = load(model([node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": [2], "x": [2], "k": [2]}, {"k": rand(2)}))
    feed = {"x": np.array([1, -0.0], np.float32)}
    got = run(m, feed)
    assert got["x"].tobytes() == feed["x"].tobytes() and got["k"].tolist() == rand(2).tolist()


def test_rank_0_results_are_arrays():
    m = load(model([node("Add", ["x", "x"], ["y"])], {"x": []}, {"y": []}))
    got = run(m, {"x": np.float32(1.5)})["y"]
    assert isinstance(got, np.ndarray) and got.shape == () and got.dtype == np.float32 and got == 3


def chain(length: int):
    nodes = [node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    return load(model(nodes, {"v0": [250_000]}, {f"v{length}": [250_000]}))


def test_values_are_given_back_after_their_last_use():
    m, feed = chain(40), {"v0": np.ones(250_000, np.float32)}
    interpreter = Interpreter(m)
    interpreter.run(feed)
    tracemalloc.start()
    interpreter.run(feed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3.2 * 1_000_000  # two arrays of a megabyte, and change: not forty


def test_nothing_is_kept_between_runs():
    interpreter = Interpreter(chain(3))
    first = interpreter.run({"v0": np.ones(250_000, np.float32)})["v3"]
    second = interpreter.run({"v0": np.zeros(250_000, np.float32)})["v3"]
    assert first[0] == -1 and second[0] == 0 and not interpreter._values


def branches():
    then = helper.make_graph([node("Mul", ["h", "h"], ["t"])], "t", [], [info("t", F32, None)])
    orelse = helper.make_graph([node("Neg", ["h"], ["e"])], "e", [], [info("e", F32, None)])
    return [node("Add", ["x", "x"], ["h"]), node("If", ["c"], ["y"], then_branch=then, else_branch=orelse)]


@pytest.mark.parametrize(("flag", "want"), [(True, [4, 16]), (False, [-2, 4])])
def test_a_branch_reads_the_values_around_it(flag, want):
    m = load(model(branches(), {"x": [2], "c": (BOOL, [])}, {"y": [2]}))
    got = run(m, {"x": np.array([1, -2], np.float32), "c": np.array(flag)})
    assert got["y"].tolist() == want


def test_a_loop_reads_the_values_around_it_in_every_round():
    body = helper.make_graph(
        [node("Add", ["s", "h"], ["s2"]), node("Identity", ["go"], ["go2"])], "b",
        [info("i", I64, []), info("go", BOOL, []), info("s", F32, [2])],
        [info("go2", BOOL, []), info("s2", F32, [2])],
    )  # fmt: skip
    nodes = [node("Mul", ["x", "x"], ["h"]), node("Loop", ["n", "", "x"], ["y"], body=body)]
    m = load(model(nodes, {"x": [2], "n": (I64, [])}, {"y": [2]}))
    x = np.array([1, 3], np.float32)
    for rounds in (0, 1, 5):
        assert run(m, {"x": x, "n": np.array(rounds)})["y"].tolist() == (x + rounds * x * x).tolist()


def own(name, inputs, body, attributes=(), domains=()):
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_function("own", name, inputs, ["q"], body, imports, attributes=list(attributes))


def referring(node_, name, kind):
    attribute = node_.attribute.add()
    attribute.name = attribute.ref_attr_name = name
    attribute.type = kind
    return node_


def test_attribute_references_are_bound_by_the_call_through_every_level():
    inner = own("Inner", ["p"], [referring(node("LeakyRelu", ["p"], ["q"]), "alpha", 1)], ["alpha"])
    outer = own("Outer", ["p"], [referring(node("Inner", ["p"], ["q"], domain="own"), "alpha", 1)], ["alpha"], ["own"])
    nodes = [
        node("Outer", ["x"], ["a"], domain="own", alpha=0.5),
        node("Outer", ["x"], ["b"], domain="own"),
        node("Inner", ["x"], ["c"], domain="own", alpha=2.0),
    ]
    m = load(model(nodes, {"x": [1]}, {n: [1] for n in "abc"}, functions=[inner, outer], domains=["own"]))
    got = run(m, {"x": np.array([-1], np.float32)})
    assert [float(got[n][0]) for n in "abc"] == [-0.5, pytest.approx(-0.01), -2.0]


def test_an_absent_optional_input_of_a_function():
    clip = own("Bound", ["p", "lo", "hi"], [node("Clip", ["p", "lo", "hi"], ["q"])])
    nodes = [
        node("Bound", ["x", "", "one"], ["a"], domain="own"),
        node("Bound", ["x", "one"], ["b"], domain="own"),
    ]
    m = load(model(nodes, {"x": [3]}, {"a": [3], "b": [3]}, {"one": np.float32(1)}, functions=[clip], domains=["own"]))
    got = run(m, {"x": np.array([-5, 0, 5], np.float32)})
    assert got["a"].tolist() == [-5, 0, 1] and got["b"].tolist() == [1, 1, 5]


def test_float64_rounds_nothing_in_between():
    nodes = [node("Cast", ["x"], ["h"], to=10), node("Cast", ["h"], ["f"], to=F32), node("Div", ["f", "k"], ["y"])]
    m = load(model(nodes, {"x": [1]}, {"y": [1]}, {"k": np.float32(3)}))
    feed = {"x": np.array([1.0001], np.float32)}
    exact = run(m, feed, precision="double")["y"]
    assert exact.dtype == np.float64 and exact[0] == np.float64(np.float32(1.0001)) / 3
    assert run(m, feed)["y"][0] == np.float32(1) / np.float32(3)


def test_float64_reads_the_bits_of_the_declared_dtype():
    m = load(model([node("BitCast", ["x"], ["y"], to=6)], {"x": [2]}, {"y": (6, [2])}, opset=26, ir_version=13))
    feed = {"x": np.array([1.5, -0.0], np.float32)}
    assert run(m, feed, precision="double")["y"].tolist() == feed["x"].view(np.int32).tolist()


def test_float64_leaves_integers_alone():
    m = load(
        model(
            [node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=F32)],
            {"x": [2, 5]},
            {"y": [2], "s": (I64, [2])},
        )
    )
    got = run(m, {"x": rand(2, 5)}, precision="double")
    assert got["s"].dtype == np.int64 and got["y"].dtype == np.float64


def test_the_observer_sees_every_node_once_in_order():
    seen = []
    m = load(model(branches(), {"x": [2], "c": (BOOL, [])}, {"y": [2]}))
    Interpreter(m, observe=lambda n, outputs, seconds: seen.append((n.op, len(outputs), seconds >= 0))).run(
        {"x": rand(2), "c": np.array(True)}
    )
    assert seen == [("Add", 1, True), ("Mul", 1, True), ("If", 1, True)]


@pytest.mark.parametrize(
    ("nodes", "feed", "message"),
    [
        (
            [node("Div", ["i", "z"], ["y"], name="d")],
            {"i": [1], "z": [0]},
            r"m: node 'd' \(Div\): integer division by zero",
        ),
        (
            [node("Gather", ["i", "z"], ["y"])],
            {"i": [1], "z": [4]},
            r"m: node 'y' \(Gather\): index 4 is out of range for size 1",
        ),
        (
            [node("Add", ["i", "z"], ["y"])],
            {"i": [1, 2], "z": [1, 2, 3]},
            r"node 'y' \(Add\): .*\(inputs int64\[2\], int64\[3\]\)",
        ),
    ],
)
def test_errors_name_the_node_the_operator_and_the_values(nodes, feed, message):
    m = load(model(nodes, {"i": (I64, ["a"]), "z": (I64, ["b"])}, {"y": (I64, ["c"])}))
    m.source = "m"
    with pytest.raises(RunError, match=message):
        run(m, {k: np.array(v) for k, v in feed.items()})


def test_an_unknown_operator_is_named_when_it_would_run():
    m = load(model([node("Own", ["x"], ["y"], domain="custom", name="n1")], {"x": [2]}, {"y": [2]}, domains=["custom"]))
    with pytest.raises(UnsupportedError, match=r"node 'n1' \(custom::Own\).*no kernel"):
        run(m, {"x": rand(2)})


def test_an_unknown_precision_is_refused():
    with pytest.raises(InputError):
        Interpreter(chain(1), precision="half")


def test_a_long_chain_does_not_recurse():
    nodes = [node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)]
    m = load(model(nodes, {"v0": [1]}, {"v20000": [1]}))
    assert run(m, {"v0": np.ones(1, np.float32)})["v20000"].tolist() == [1]
