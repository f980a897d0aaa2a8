"""Structural equality sees every difference, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuse.ir.copy import copy_model
from fuse.ir.graph import Attr, Graph, Node, Origin, Value
from fuse.ir.model import Model
from fuse.ir.parse import parse
from fuse.ir.same import difference, same
from fuse.ir.types import TensorType

SOURCE = """
model { ir_version 8  opset 17 }
graph "main" {
  input %x: float[2]
  const %w: float[2] = [0.0, nan]
  const %s: string[1] = ["a"]
  %a: float[2], _ = Split(%x, %w) {
    alpha = 0.0, list = [0.0, 1.0], count = 1, t = float[1] [0.0], ref = [1, 2],
    body = graph "b" { %i = Neg(%x) {deep = 1}  return "r" = %i }, bodies = GRAPHS [graph {}]
  } "first" from "p"
  %b = Add(%a, %a) "second"
  return "y": float[2] = %b
}
function local::F { opset 17  attribute c  attribute d = 1.0  input %x  return "y" = %x }
"""


def first(model: Model) -> Node:
    return next(model.graph.nodes)


def second(model: Model) -> Node:
    return list(model.graph.nodes)[1]


def const(model: Model, index: int = 0) -> Value:
    return list(model.graph.constants)[index]


def body(model: Model) -> Graph:
    graph: Graph = first(model).attrs["body"].value
    return graph


CHANGES: list[tuple[str, Callable[[Model], object]]] = [
    ("ir_version: '8' against '9'", lambda m: setattr(m, "ir_version", 9)),
    ("opsets", lambda m: m.opsets.update(x=1)),
    ("model: carried bytes", lambda m: setattr(m, "extra", b"x")),
    ("functions", lambda m: m.functions.clear()),
    ("attributes: '('c',)' against '()'", lambda m: setattr(m.functions["local::F", ""], "attributes", ())),
    (
        "attribute 'd': '1.0' against '-0.0'",
        lambda m: m.functions["local::F", ""].defaults.update(d=Attr("FLOAT", -0.0)),
    ),
    ("opsets", lambda m: m.functions["local::F", ""].opsets.clear()),
    ("graph: name: 'main' against 'other'", lambda m: setattr(m.graph, "name", "other")),
    ("graph: number of inputs", lambda m: m.graph.add_input(Value("k"))),
    ("graph: input 0: name: 'x' against 'z'", lambda m: setattr(m.graph.inputs[0], "name", "z")),
    ("graph: input 0: type", lambda m: setattr(m.graph.inputs[0], "type", None)),
    ("graph: input 0: data", lambda m: m.graph.inputs[0].set_data(np.zeros(2, np.float32))),
    ("graph: input 0: declared type", lambda m: setattr(m.graph.inputs[0], "info", b"x")),
    ("graph: constant 0: data", lambda m: const(m).set_data(np.array([-0.0, np.nan], np.float32))),
    ("graph: constant 0: data", lambda m: const(m).set_data(np.array([0, 0x7FC00001], np.uint32).view(np.float32))),
    ("graph: constant 0: data", lambda m: const(m).set_data(np.array([[0.0, np.nan]], np.float32))),
    ("graph: constant 1: data", lambda m: const(m, 1).set_data(np.array(["b"], object))),
    ("graph: constant 0: origin", lambda m: setattr(const(m), "origin", Origin("value"))),
    ("number of nodes", lambda m: m.graph.append(Node("A"))),
    ("node 0 'first': operator", lambda m: setattr(first(m), "op", "Slit")),
    ("node 0 'first': operator", lambda m: setattr(first(m), "overload", "v")),
    ("name: 'second' against ''", lambda m: setattr(second(m), "name", "")),
    ("node 0 'first': sources", lambda m: setattr(first(m), "sources", ())),
    ("node 0 'first': inputs", lambda m: first(m).rewire(1, m.graph.inputs[0])),
    ("node 1 'second': inputs", lambda m: second(m).rewire(1, None)),
    ("node 0 'first': output 1 is there", lambda m: first(m).outputs.__setitem__(1, Value("z"))),
    ("node 0 'first': number of outputs", lambda m: first(m).outputs.pop()),
    ("node 0 'first': output 0: type", lambda m: setattr(first(m).out, "type", TensorType())),
    ("attributes", lambda m: first(m).attrs.pop("alpha")),
    ("attribute 'alpha': '0.0' against '-0.0'", lambda m: first(m).attrs.update(alpha=Attr("FLOAT", -0.0))),
    ("attribute 'alpha': kind", lambda m: first(m).attrs.update(alpha=Attr("INT", 0))),
    ("attribute 'alpha': implied", lambda m: first(m).attrs.update(alpha=Attr("FLOAT", 0.0, implied=True))),
    ("attribute 'alpha': carried bytes", lambda m: first(m).attrs.update(alpha=Attr("FLOAT", 0.0, extra=b"x"))),
    ("attribute 'list'", lambda m: first(m).attrs.update(list=Attr("FLOATS", (0.0,)))),
    ("attribute 'count': '1' against '2'", lambda m: first(m).attrs.update(count=Attr("INT", 2))),
    ("attribute 't'", lambda m: first(m).attrs.update(t=Attr("TENSOR", np.array([-0.0], np.float32)))),
    ("attribute 'ref': reference", lambda m: first(m).attrs.update(ref=Attr("INTS", (1, 2), reference="q"))),
    ("attribute 'bodies': number of graphs", lambda m: first(m).attrs.update(bodies=Attr("GRAPHS", ()))),
    ("attribute 'body': graph: name", lambda m: setattr(body(m), "name", "c")),
    ("graph: node 0 '': attribute 'deep'", lambda m: next(body(m).nodes).attrs.update(deep=Attr("INT", 2))),
    ("graph: output 0: value", lambda m: body(m).rewire(0, m.graph.inputs[0])),
    ("graph: output 0: name: 'y' against 'z'", lambda m: setattr(m.graph.outputs[0], "name", "z")),
    ("graph: output 0: type", lambda m: setattr(m.graph.outputs[0], "type", None)),
    ("graph: output 0: declared type", lambda m: setattr(m.graph.outputs[0], "info", b"x")),
    ("graph: output 0: value", lambda m: m.graph.rewire(0, first(m).out)),
    ("number of outputs", lambda m: m.graph.add_output("z", first(m).out)),
]


@pytest.mark.parametrize(("says", "change"), CHANGES, ids=[f"{says[:30]}-{i}" for i, (says, _) in enumerate(CHANGES)])
def test_a_difference_is_seen_and_placed(says: str, change: Callable[[Model], object]) -> None:
    model, other = parse(SOURCE), parse(SOURCE)
    assert difference(model, other) is None and same(model, other)
    change(other)
    found = difference(model, other)
    assert found is not None and says in found
    assert difference(other, model) is not None and not same(model, other)


def test_bytes_that_are_carried_may_be_passed_over() -> None:
    model, other = parse(SOURCE), parse(SOURCE)
    other.graph.inputs[0].info, other.extra, first(other).extra = b"a", b"b", b"c"
    assert difference(model, other) is not None
    assert difference(model, other, carried=False) is None


def test_the_file_and_the_order_of_attributes_do_not_matter() -> None:
    model, other = parse(SOURCE), parse(SOURCE, source="elsewhere")
    first(other).attrs = dict(reversed(first(other).attrs.items()))
    assert same(model, other)


def test_a_copy_is_the_same() -> None:
    model = parse(SOURCE)
    assert difference(model, copy_model(model)) is None


def test_kinds_differ() -> None:
    model = parse(SOURCE)
    assert difference(model, model.graph) == "kind: 'Model' against 'Graph'"
