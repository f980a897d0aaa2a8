"""Execution order: unsorted nodes are sorted with a warning, cycles are shown."""

from __future__ import annotations

import re

import pytest

from fuse.ir.check import check
from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import BOOL, chain, function, graph, info, model, node, refused


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_cycles_are_shown(count: int) -> None:
    nodes = [node("Add", ["x", f"v{(i - 1) % count}"], [f"v{i}"], name=f"n{i}") for i in range(count)]
    nodes.append(node("Relu", ["v0"], ["y"]))
    names = [re.escape(f"'n{i}'") for i in range(count)]
    shown = "|".join(" -> ".join([*names[i:], *names[:i], names[i]]) for i in range(count))
    if count > 8:
        shown = r"('n\d+' -> ){8}\.\.\. -> 'n\d+'"
    refused(model(nodes), f"model: nodes form a cycle: ({shown})")


def test_a_cycle_through_a_subgraph() -> None:
    then, other = graph([node("Neg", ["b"], ["t"])], [], ["t"]), graph([node("Neg", ["x"], ["e"])], [], ["e"])
    nodes = [
        node("If", ["c"], ["a"], then_branch=then, else_branch=other, name="if"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("Neg", ["b"], ["y"]),
    ]
    proto = model(graph(nodes, ["x", info("c", [], BOOL)]))
    refused(
        proto, "model: nodes form a cycle: 'relu' -> 'if' -> 'relu'|model: nodes form a cycle: 'if' -> 'relu' -> 'if'"
    )


def test_a_cycle_inside_a_subgraph_and_a_function() -> None:
    loop = [node("Add", ["x", "q"], ["p"], name="p"), node("Neg", ["p"], ["q"], name="q")]
    then, other = graph(loop, [], ["q"]), graph([node("Neg", ["x"], ["e"])], [], ["e"])
    proto = model(graph([node("If", ["c"], ["y"], then_branch=then, else_branch=other)], ["x", info("c", [], BOOL)]))
    refused(proto, r"model: node 'y' \(If\): nodes form a cycle: 'q' -> 'p' -> 'q'|.*'p' -> 'q' -> 'p'")
    body = [node("Add", ["a", "q"], ["p"], name="p"), node("Neg", ["p"], ["q"], name="q"), node("Neg", ["q"], ["b"])]
    proto = model([node("f", ["x"], ["y"], domain="own")], functions=[function("f", body)], domains=["own"])
    refused(proto, "model: function 'own::f': nodes form a cycle: .*")


def test_unsorted_nodes_are_sorted_with_one_warning() -> None:
    nodes = [
        node("Add", ["r", "s"], ["y"], name="last"),
        node("Relu", ["t"], ["r"], name="third"),
        node("Neg", ["x"], ["t"], name="first"),
        node("Abs", ["x"], ["s"], name="second"),
    ]
    with pytest.warns(UserWarning, match="^nodes were out of order and have been sorted$") as caught:
        result = load(model(nodes))
    assert len(caught) == 1
    check(result)
    assert [n.name for n in result.graph.nodes] == ["first", "third", "second", "last"]


def test_a_node_that_only_a_subgraph_needs_comes_before_it() -> None:
    then, other = graph([node("Neg", ["late"], ["t"])], [], ["t"]), graph([node("Neg", ["x"], ["e"])], [], ["e"])
    inner = graph([node("If", ["c"], ["i"], then_branch=then, else_branch=other)], [], ["i"])
    another = graph([node("Neg", ["x"], ["o"])], [], ["o"])
    nodes = [
        node("If", ["c"], ["y"], then_branch=inner, else_branch=another, name="if"),
        node("Relu", ["x"], ["late"], name="late"),
    ]
    with pytest.warns(UserWarning, match="sorted"):
        result = load(model(graph(nodes, ["x", info("c", [], BOOL)])))
    check(result)
    assert [n.name for n in result.graph.nodes] == ["late", "if"]


def test_a_chain_out_of_order() -> None:
    proto = chain(20_000)
    proto.graph.node.reverse()
    with pytest.warns(UserWarning, match="sorted"):
        result = load(proto)
    assert to_proto(result) == chain(20_000)
