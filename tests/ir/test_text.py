"""The textual form reads back to an equal model, whatever the names, the bits and the nesting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuse.errors import ModelError
from fuse.ir.check import check
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.model import Function, Model
from fuse.ir.parse import parse, parse_function, parse_graph
from fuse.ir.same import difference
from fuse.ir.text import excerpt, split, text
from fuse.ir.types import TensorType
from tests.ir.graphs import HOSTILE, models

SAMPLE = """\
model {
  ir_version 8
  opset 17
  opset com.microsoft 1
}
graph "main" {
  input %x: float[n, 3]
  input %k: int64[n] = int64[2] [1, -2]
  const %w: float[3, 2] = [1.0, 0.5, -0.0, nan, inf, 2.0]
  const %: complex64[] = [1.0, -0.0]
  %y: float[n, 2*n - 1], _ = com.microsoft::Gemm:v2(%x, %w, _) {alpha = 0.1f, (axis = 2), none = INTS []} "fc" from "a"
  () = Print(%y)
  %z: seq(map(int64, ?)), %z~2: ?[...] = If(%k) {
    then_branch = graph "then" {
      %z~3 = Neg(%y)
      return "r": sparse(float[]) = %z~3
    },
    branches = GRAPHS [
      graph {
        return "a" = %y
      },
    ],
  }
  return "logits" = %y
}
function local::Scale {
  opset 17
  attribute alpha
  attribute beta = 1.0
  input %x
  %y = Mul(%x) {by = FLOAT @alpha}
  return "y" = %y
}
"""


def test_the_printer_writes_what_the_parser_read() -> None:
    model = parse(SAMPLE)
    assert text(model) == SAMPLE.replace("const %:", "const %~1:")
    check(model)


def test_the_parser_builds_what_is_written() -> None:
    model = parse(SAMPLE)
    assert (model.ir_version, model.opsets) == (8, {"": 17, "com.microsoft": 1})
    x, k = model.graph.inputs
    assert k.data is not None and k.data.tolist() == [1, -2] and not k.is_const
    w, unnamed = model.graph.constants
    assert w.array.dtype == np.float32 and w.array.shape == (3, 2) and np.signbit(w.array[1, 0])
    assert unnamed.name == "" and unnamed.array == 1 and np.signbit(unnamed.array.imag)
    gemm, show, choice = model.graph.nodes
    assert (gemm.op, gemm.overload, gemm.name, gemm.sources) == ("com.microsoft::Gemm", "v2", "fc", ("a",))
    assert gemm.inputs == (x, w, None) and gemm.outputs[1] is None and show.outputs == []
    assert gemm.attrs["alpha"] == Attr("FLOAT", float(np.float32(0.1)))
    assert gemm.attrs["axis"] == Attr("INT", 2, implied=True)
    assert gemm.attrs["none"] == Attr("INTS", ())
    assert [v.name for v in choice.outputs if v] == ["z", "z"]
    then = choice.attrs["then_branch"].value
    assert then.parent is choice and next(then.nodes).inputs == (gemm.out,)
    function = model.functions["local::Scale", ""]
    assert function.attributes == ("alpha",) and function.defaults == {"beta": Attr("FLOAT", 1.0)}
    assert next(function.graph.nodes).attrs["by"] == Attr("FLOAT", None, reference="alpha")


@given(models(), st.sampled_from([0, 2, 16]))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_any_model_survives_the_round_trip(model: Model, inline: int) -> None:
    check(model)
    printed, constants = split(model, inline=inline)
    again = parse(printed, constants)
    assert difference(model, again) is None
    check(again)
    assert split(again, inline=inline)[0] == printed
    assert all(line.isprintable() for line in printed.split("\n"))


@given(models())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_without_carried_bytes_everything_else_survives(model: Model) -> None:
    assert difference(model, parse(text(model)), carried=False) is None


@given(models())
@settings(max_examples=10, deadline=None, derandomize=True)
def test_a_function_stands_alone(model: Model) -> None:
    for function in model.functions.values():
        printed, constants = split(function)
        assert difference(function, parse_function(printed, constants)) is None


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_on_their_line_and_come_back(name: str) -> None:
    graph = Graph(name)
    value = graph.add_input(Value(name, TensorType(None, None)))
    node = graph.append(Node("Relu", [value], [Value(name)], {name or "a": Attr("STRING", name)}, name))
    graph.add_output(name, node.out)
    printed = text(graph)
    assert len(printed.splitlines()) == 5
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert not set(printed) & set("\u202e\u05d0\u0301\udc80\x1b")
    assert difference(graph, parse_graph(printed)) is None


def test_equal_names_are_told_apart_in_order() -> None:
    graph = Graph()
    for name in ("a", "", "a", "", "a~2"):
        graph.add_input(Value(name))
    assert text(graph).split("\n")[1:-2] == [
        "  input %a",
        "  input %~1",
        "  input %a~2",
        "  input %~2",
        '  input %"a~2"',
    ]


def test_large_constants_are_placeholders_that_a_mapping_fills() -> None:
    graph = Graph()
    graph.add_const(np.arange(100, dtype=np.float32), "w")
    graph.add_const(np.arange(100, dtype=np.float32), "w")
    graph.append(Node("Constant", [], [Value("c")], {"value": Attr("TENSOR", np.zeros((5, 5), np.int8))}))
    printed, constants = split(graph)
    assert sorted(constants) == ["c.value", "w", "w~2"]
    assert "const %w: float[100] = <" in printed and 'value = int8[5, 5] <"c.value" ' in printed
    assert difference(graph, parse_graph(printed, constants)) is None
    with pytest.raises(ModelError, match="constant 'w' is not given"):
        parse_graph(printed)
    with pytest.raises(ModelError, match="constant 'w' has other elements"):
        parse_graph(printed, {**constants, "w": constants["w"] + 1})
    with pytest.raises(ModelError, match=r"constant 'w' is double\[100\], not 'float\[100\]'"):
        parse_graph(printed, {**constants, "w": constants["w"].astype(np.float64)})


def test_no_large_constant_is_loaded_without_hashes() -> None:
    graph = Graph()

    def load() -> np.ndarray:
        raise AssertionError("loaded")

    graph.add_const(load, "w", TensorType(np.dtype(np.float32), (1000, 1000)))
    assert "const %w: float[1000, 1000] = <>" in text(graph, hashes=False)
    with pytest.raises(AssertionError, match="loaded"):
        text(graph)


def test_long_strings_are_not_written_out() -> None:
    graph = Graph()
    graph.add_const(np.array(["a" * 5000], dtype=object), "s")
    printed, constants = split(graph)
    assert len(printed) < 200 and difference(graph, parse_graph(printed, constants)) is None


def test_what_is_carried_is_counted_where_it_is_left_out() -> None:
    graph = parse_graph('graph { %x = A() !{extra = "AAE="} return "x" = %x }')
    assert text(graph).endswith("# carried for the file alone and left out: 1 fields\n")
    assert text(graph, carried=True).endswith("}\n")


def test_depth_is_no_recursion() -> None:
    depth = 3000
    source = "graph {" + "%a = If() {b = graph {" * depth + "}}" * depth + "}"
    graph = parse_graph(source)
    check(graph)
    assert sum(1 for _ in graph.walk()) == depth
    assert text(graph).count("graph {") == depth + 1
    assert difference(graph, parse_graph(source)) is None


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("", "text:1:1: expected 'graph', found the end"),
        ("graph {\n  %y = Relu(%x)\n}", "text:2:13: '%x' is not defined here"),
        ("graph {\n  %x = A()\n  %x = B()\n}", "text:3:3: '%x' is defined twice"),
        ('graph { %y = If() {b = graph {%i = A()}} return "" = %i }', "text:1:54: '%i' is not defined here"),
        ('graph { %y = Loop() {b = graph { return "" = %y }} }', "text:1:46: '%y' is not defined here"),
        ("graph {\n  %y = A() {a = []}\n}", "text:2:18: an empty list needs its kind"),
        ("graph { %y = A() {a = [1, 1.0]} }", "text:1:27: a list has elements of one kind"),
        ("graph { %y = A() {a = 1, a = 2} }", "text:1:26: attribute 'a' is given twice"),
        ("graph { const %c: float[2] = [1.0] }", "text:1:30: 'float[2]' has 2 numbers, 1 are given"),
        ("graph { const %c: float[n] = [1.0] }", "text:1:30: a constant needs sizes that are numbers"),
        ("graph { const %c = [1.0] }", "text:1:20: a constant needs a tensor type with a dtype and a shape"),
        ("graph { const %c: int8[] = 128 }", "text:1:28: 128 is outside int8"),
        ("graph { const %c: int8[] = 1.5 }", "text:1:28: '1.5' is no element of int8"),
        ("graph { const %c: bool[] = 1 }", "text:1:28: '1' is no element of bool"),
        ("graph { const %c: float[] = 0x12 }", "text:1:29: the bits of 4 bytes are 8 hexadecimal digits"),
        ('graph { %"\\q" = A() }', "text:1:9: no such escape: '\\q'"),
        ('graph { %y = A() {a = TYPE_PROTO "A"} }', "text:1:34: "),
        ("graph { %y: float[2/3] = A() }", "text:1:20: expected ',', found '/'"),
        ("graph { %y: flaot[2] = A() }", "text:1:13: expected a type, found 'flaot'"),
        ("graph { } x", "text:1:11: expected the end, found 'x'"),
        ("graph { &", "text:1:9: unexpected character '&'"),
        (" " * 5000 + "\x1b", "text:1:5001: unexpected character '\\x1b'"),
        ("graph { %x: " + "seq(" * 100 + "?" + ")" * 100, "text:1:413: a type nests deeper than 50"),
        ("graph { %x: float[" + "(" * 100, "text:1:70: a dim nests deeper than 50 parentheses"),
        ("graph { %x: float[floor((n)/(0))] = A() }", "text:1:29: division by zero"),
    ],
)
def test_errors_name_line_and_column(source: str, error: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse_graph(source)
    assert str(caught.value).startswith(error)


def test_a_function_is_defined_once() -> None:
    with pytest.raises(ModelError, match=r"golden:1:43: function 'f' is defined twice"):
        parse("model {} graph {} function f {}           function f {}", source="golden")


def test_an_excerpt_marks_the_node_among_its_neighbours() -> None:
    chain = "".join(f"%{b} = Relu(%{a})\n" for a, b in zip("abcdef", "bcdefg", strict=True))
    graph = parse_graph(f"graph {{ input %a {chain} }}")
    first, second, *_, last = graph.nodes
    assert excerpt(second, around=1) == "  %b = Relu(%a)\n> %c = Relu(%b)\n  %d = Relu(%c)"
    assert excerpt(first, around=1) == "> %b = Relu(%a)\n  %c = Relu(%b)"
    assert excerpt(last, around=1) == "  %f = Relu(%e)\n> %g = Relu(%f)"
    alone = Node("Loop", [], [Value("y")], {"body": Attr("GRAPH", Graph()), "s": Attr("STRING", "s" * 999)})
    assert excerpt(alone).startswith('> %y = Loop() {body = graph {...}, s = "sss') and len(excerpt(alone)) == 162


def test_a_function_name_keeps_its_parts() -> None:
    function = Function("a::b", "c::d", "e:f", Graph("body"))
    printed = text(function)
    assert printed.startswith('function "a::b"::"c::d":"e:f" "body" {')
    assert difference(function, parse_function(printed)) is None
