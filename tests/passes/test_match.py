"""The pattern language: what it reads, what it refuses at import, what it binds."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.ir.graph import Graph, Node, Value
from fuse.passes.match import Call, Var, match, no, parse, rewrite


def chain() -> tuple[Graph, Node, Node]:
    graph = Graph()
    x = graph.add_input(Value("x"))
    low, high = (graph.add_const(np.float32(v), n) for v, n in ((0, "lo"), (6, "hi")))
    first = graph.append(Node("Clip", [x, low, high], [Value("a")]))
    second = graph.append(Node("Clip", [first.out, low, None], [Value("b")]))
    graph.add_output("y", second.out)
    return graph, first, second


def test_reads_operators_operands_labels_and_rest():
    pattern = parse("(Relu | Clip)(c := Conv(x, W, *rest), None, LO)")
    assert pattern.ops == {"Relu", "Clip"}
    inner, absent, low = pattern.operands
    assert inner == Call(frozenset({"Conv"}), (Var("x", False), Var("W", True)), "rest", "c")
    assert absent is None and low == Var("LO", True)


def test_names_of_other_domains_are_attributes():
    assert parse("com.microsoft.Gelu(x)").ops == {"com.microsoft::Gelu"}
    assert parse("fuse.ConvAdd(x, w)").ops == {"fuse::ConvAdd"}


def test_old_meanings_are_subscripts():
    assert parse("(Dropout | Dropout[1])(x)").ops == {"Dropout", "Dropout-1"}


@pytest.mark.parametrize("text", ["x", "Relu(x, k=1)", "Relu(x + 1)", "Relu(", "3", "[Relu](x)"])
def test_refuses_what_is_no_pattern(text):
    with pytest.raises(SyntaxError):
        parse(text)


def test_a_misspelt_parameter_fails_at_import():
    with pytest.raises(TypeError, match="binds no 'y'"):

        @rewrite("Relu(x)", exact="bits")
        def rule(op, y):
            return y


def test_the_first_parameter_is_the_builder():
    with pytest.raises(TypeError, match="first parameter"):

        @rewrite("Relu(x)", exact="bits")
        def rule(x):
            return x


def test_an_unknown_exactness_fails_at_import():
    with pytest.raises(ValueError, match="exact is one of"):
        rewrite("Relu(x)", exact="roughly")


def test_binds_values_constants_nodes_and_absent_inputs():
    graph, first, second = chain()
    found = match(parse("Clip(inner := Clip(x, LO, HI), LO2, None)"), second)
    assert found is not None
    assert found.bound["x"] is graph.inputs[0]
    assert found.bound["inner"] is first
    assert found.bound["HI"].array == 6
    assert found.nodes == [second, first]


def test_a_capital_wants_a_constant():
    _, first, _ = chain()
    assert match(parse("Clip(X, lo, hi)"), first) is None
    assert match(parse("Clip(x, LO, HI)"), first) is not None


def test_more_inputs_than_the_pattern_names_do_not_match():
    _, first, second = chain()
    assert match(parse("Clip(x, LO)"), first) is None
    assert match(parse("Clip(x, LO)"), second) is not None


def test_one_name_is_one_value():
    graph = Graph()
    x, y = graph.add_input(Value("x")), graph.add_input(Value("y"))
    double = graph.append(Node("Mul", [x, x], [Value("d")]))
    mixed = graph.append(Node("Mul", [x, y], [Value("m")]))
    assert match(parse("Mul(a, a)"), double) is not None
    assert match(parse("Mul(a, a)"), mixed) is None


@pytest.mark.parametrize("swap", [False, True])
def test_commutative_operands_match_in_either_order(swap):
    graph = Graph()
    x, z = graph.add_input(Value("x")), graph.add_input(Value("z"))
    conv = graph.append(Node("Relu", [x], [Value("c")]))
    operands = [z, conv.out] if swap else [conv.out, z]
    total = graph.append(Node("Add", operands, [Value("s")]))
    found = match(parse("Add(r := Relu(x), z)"), total)
    assert found is not None and found.bound["z"] is z and found.bound["r"] is conv
    difference = graph.append(Node("Sub", operands, [Value("d")]))
    assert (match(parse("Sub(r := Relu(x), z)"), difference) is None) is swap


def test_only_the_first_output_of_a_node_is_its_result():
    graph = Graph()
    x = graph.add_input(Value("x"))
    split = graph.append(Node("Split", [x], [Value("a"), Value("b")]))
    second = split.outputs[1]
    relu = graph.append(Node("Relu", [second], [Value("r")]))
    assert match(parse("Relu(Split(x))"), relu) is None


def test_no_keeps_its_reason():
    assert no("too wide").reason == "too wide"
