"""The graph keeps its books: uses on both sides, subgraphs included, and walks that survive what happens meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.ir.check import check
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.parse import parse_graph


def chain(length: int) -> tuple[Graph, list[Node]]:
    graph = Graph("chain")
    value = graph.add_input(Value("x"))
    for index in range(length):
        value = graph.append(Node("Relu", [value], [Value(f"v{index}")], name=f"n{index}")).out
    graph.add_output("y", value)
    return graph, list(graph.nodes)


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def bypass(graph: Graph, node: Node) -> None:
    """Let the readers of ``node`` read its input, and delete it."""
    source = node.input(0)
    assert source is not None
    node.out.replace_by(source)
    graph.remove(node)


BRANCHES = """
graph {
  input %x
  const %w: float[] = 1.0
  %a = Neg(%x) "a"
  %y = If(%x) {
    then_branch = graph { %i = Add(%a, %w) "i"  return "r" = %i  return "s" = %a },
    else_branch = graph {
      %j = Loop(%x) { body = graph { input %k  %l = Mul(%k, %a) "l"  return "t" = %l  return "u" = %w } } "j"
      return "r" = %j
      return "s" = %x
    }
  } "y"
  return "y" = %y
}
"""


# ---- uses


def test_uses_are_recorded_on_both_sides_and_in_order() -> None:
    graph = Graph()
    x, y = graph.add_input(Value("x")), graph.add_input(Value("y"))
    add = graph.append(Node("Add", [x, x, None, y], [Value("z")]))
    assert list(x.uses) == [(add, 0), (add, 1)] and list(y.uses) == [(add, 3)]
    assert x.readers == [add, add] and x.only_reader is None and y.only_reader is add
    assert add.input(2) is None and add.input(9) is None and add.inputs == (x, x, None, y)
    add.rewire(1, y)
    add.rewire(2, y)
    assert list(x.uses) == [(add, 0)] and list(y.uses) == [(add, 3), (add, 1), (add, 2)]
    add.rewire(0, None)
    assert not x.uses and add.inputs == (None, y, y, y)
    add.trim_inputs(2)
    assert add.inputs == (None, y) and list(y.uses) == [(add, 1)]
    add.append_input(x)
    assert add.inputs == (None, y, x) and x.only_reader is add
    check(graph)


def test_rewiring_to_the_same_value_changes_nothing() -> None:
    graph, (first, second) = chain(2)
    second.rewire(0, first.out)
    first.out.replace_by(first.out)
    assert second.input(0) is first.out and first.out.only_reader is second
    check(graph)


def test_output_slots_are_uses_with_names_of_their_own() -> None:
    graph, (first, second) = chain(2)
    graph.add_output("also", second.out)
    assert second.out.is_output and second.out.slots == 2 and second.out.only_reader is None
    second.out.replace_by(first.out)
    assert [(s.name, s.value) for s in graph.outputs] == [("y", first.out), ("also", first.out)]
    assert not second.out.is_output and first.out.slots == 2
    graph.rewire(0, second.out)
    assert second.out.is_output and first.out.is_output
    check(graph)


def test_dropping_a_slot_moves_the_others_up() -> None:
    graph, nodes = chain(3)
    for node in (nodes[0], nodes[2], nodes[1]):
        graph.add_output(node.name, node.out)
    graph.drop_output(0)
    assert [s.name for s in graph.outputs] == ["n0", "n2", "n1"]
    check(graph)
    graph.drop_output(1)
    assert [(s.name, s.value) for s in graph.outputs] == [("n0", nodes[0].out), ("n1", nodes[1].out)]
    assert not nodes[2].out.uses
    check(graph)


def test_uses_reach_through_subgraphs() -> None:
    graph = parse_graph(BRANCHES)
    a, y = graph.nodes
    by_name = {node.name: node for node in graph.walk()}
    then, other = y.subgraphs
    (body,) = by_name["j"].subgraphs
    assert set(a.out.uses) == {(by_name["i"], 0), (then, 1), (by_name["l"], 1)}
    assert a.out.is_output and a.out.only_reader is None
    (w,) = graph.constants
    assert set(w.uses) == {(by_name["i"], 1), (body, 1)}
    x = graph.inputs[0]
    a.out.replace_by(x)
    assert not a.out.uses and {s.value for s in then.outputs} == {x, by_name["i"].out}
    check(graph)
    graph.remove(a)
    assert set(x.uses) == {(by_name["i"], 0), (then, 1), (by_name["l"], 1), (y, 0), (by_name["j"], 0), (other, 1)}
    check(graph)


def test_removing_a_node_gives_up_what_its_subgraphs_read() -> None:
    graph = parse_graph(BRANCHES)
    a, y = graph.nodes
    (w,) = graph.constants
    y.out.replace_by(a.out)
    graph.remove(y)
    assert list(a.out.uses) == [(graph, 0)] and not w.uses
    graph.drop_const(w)
    check(graph)


def test_a_subgraph_may_be_released_before_its_node_is_removed() -> None:
    graph = parse_graph(BRANCHES)
    a, y = graph.nodes
    y.out.replace_by(a.out)
    for sub in y.subgraphs:
        sub.release()
    graph.remove(y)
    assert list(a.out.uses) == [(graph, 0)]
    check(graph)


def test_what_is_read_cannot_be_removed() -> None:
    graph, (first, _) = chain(2)
    with pytest.raises(AssertionError, match="still read"):
        graph.remove(first)
    assert first.graph is graph
    check(graph)


def test_graphs_in_references_are_no_subgraphs() -> None:
    node = Node("If", [], [], {"a": Attr("GRAPH", None, reference="r"), "b": Attr("GRAPHS", None, reference="s")})
    assert node.subgraphs == []


# ---- constants


def test_constants_are_read_only_views() -> None:
    graph = Graph()
    array = np.arange(3)
    value = graph.add_const(array, "c")
    assert value.is_const and not value.array.flags.writeable and array.flags.writeable
    assert np.shares_memory(value.array, array)
    with pytest.raises(ValueError, match="read-only"):
        value.array[0] = 1


def test_a_scalar_that_numpy_returns_becomes_an_array() -> None:
    graph = Graph()
    value = graph.add_const(np.add(np.float32(1), np.float32(2)), "c")
    assert type(value.data) is np.ndarray and value.data.shape == () and value.data == 3
    check(graph)


def test_data_is_loaded_once_and_late() -> None:
    loads = []

    def load() -> np.ndarray:
        loads.append(1)
        return np.ones(2, np.float32)

    graph = Graph()
    value = graph.add_const(load, "c")
    assert value.is_const and not loads
    assert value.array is value.data and loads == [1]
    assert not value.array.flags.writeable


def test_an_input_with_a_default_is_no_constant() -> None:
    value = Graph().add_input(Value("x"))
    assert value.data is None
    value.set_data(np.zeros(2))
    assert not value.is_const and value.array.tolist() == [0, 0]
    with pytest.raises(ValueError, match="'y' has no data"):
        _ = Value("y").array


# ---- the order of nodes


def test_insert_and_unlink() -> None:
    graph, (a, b, c) = chain(3)
    assert len(graph) == 3 and names(graph) == ["n0", "n1", "n2"]
    for node, before, order in ((c, a, "n2 n0 n1"), (c, None, "n0 n1 n2"), (a, c, "n1 n0 n2"), (b, None, "n0 n2 n1")):
        assert graph.insert(graph.unlink(node), before) is node
        assert names(graph) == order.split() and len(graph) == 3 and node.graph is graph
    with pytest.raises(AssertionError):
        graph.append(a)
    with pytest.raises(AssertionError):
        Graph().insert(graph.unlink(a), b)


def test_the_node_at_hand_may_be_removed_while_walking() -> None:
    graph, _ = chain(5)
    seen = []
    for node in graph.nodes:
        seen.append(node.name)
        if node.name in ("n0", "n2", "n3"):
            bypass(graph, node)
    assert seen == ["n0", "n1", "n2", "n3", "n4"] and names(graph) == ["n1", "n4"]
    check(graph)


@pytest.mark.parametrize("width", [2, 3, 6])
@pytest.mark.parametrize("backwards", [False, True])
def test_nodes_ahead_may_be_removed_with_it(width: int, backwards: bool) -> None:
    """A rule that fuses ``width`` nodes into one removes nodes that the walk has yet to reach."""
    graph, nodes = chain(6)
    seen = []
    for node in graph.nodes:
        seen.append(node.name)
        if node is nodes[0]:
            for gone in sorted(nodes[:width], key=nodes.index, reverse=backwards):
                bypass(graph, gone)
    assert seen == ["n0", *(f"n{i}" for i in range(width, 6))]
    check(graph)


def test_nodes_inserted_while_walking() -> None:
    graph, nodes = chain(3)
    seen = []
    for node in graph.nodes:
        seen.append(node.name)
        if node is nodes[1]:
            graph.insert(Node("A", name="before"), nodes[1])
            graph.insert(Node("A", name="after"), nodes[2])
        if node is nodes[2]:
            graph.insert(Node("A", name="instead"), nodes[2])
            bypass(graph, node)
    assert seen == ["n0", "n1", "after", "n2"]
    assert names(graph) == ["n0", "before", "n1", "after", "instead"]


def test_what_is_behind_removed_nodes_is_reached() -> None:
    graph, nodes = chain(4)
    seen = []
    for node in graph.nodes:
        seen.append(node.name)
        if node is nodes[1]:
            bypass(graph, nodes[1])
            bypass(graph, nodes[2])
            graph.insert(Node("A", name="late"), nodes[3])
    assert seen == ["n0", "n1", "n3"] and names(graph) == ["n0", "late", "n3"]


def test_a_branch_moves_out_while_it_is_walked() -> None:
    graph = parse_graph(BRANCHES)
    *_, y = graph.nodes
    then = y.subgraphs[0]
    for node in then.nodes:
        graph.insert(then.unlink(node), before=y)
    y.out.replace_by(then.outputs[0].value)
    graph.remove(y)
    assert names(graph) == ["a", "i"] and graph.outputs[0].value.name == "i"
    check(graph)


def test_a_node_ahead_that_goes_to_another_graph_is_no_silent_end() -> None:
    graph, nodes = chain(3)
    walk = graph.nodes
    assert next(walk) is nodes[0]
    bypass(graph, nodes[0])
    Graph().append(graph.unlink(nodes[1]))
    with pytest.raises(AssertionError, match="moved to another graph"):
        next(walk)


def test_a_node_ahead_that_moves_before_the_present_one_goes_is_passed_over() -> None:
    graph, nodes = chain(3)
    walk = graph.nodes
    assert next(walk) is nodes[0]
    Graph().append(graph.unlink(nodes[1]))
    graph.unlink(nodes[0])
    assert list(walk) == [nodes[2]]


# ---- walks


def test_walks_reach_every_graph_and_go_outwards() -> None:
    graph = parse_graph(BRANCHES)
    assert {n.name for n in graph.walk()} == {"a", "y", "i", "j", "l"}
    graphs = list(graph.walk_graphs())
    assert graphs[0] is graph and len(graphs) == len(set(graphs)) == 4
    (inner,) = (n for n in graph.walk() if n.name == "l")
    assert inner.graph is not None
    around = list(inner.graph.enclosing())
    assert [len(g) for g in around] == [1, 1, 2] and around[-1] is graph


def test_operators_have_domains() -> None:
    node = Node("ai.onnx.ml::Scaler")
    assert (node.domain, node.op_type) == ("ai.onnx.ml", "Scaler")
    assert (Node("Relu").domain, Node("Relu").op_type) == ("", "Relu")
