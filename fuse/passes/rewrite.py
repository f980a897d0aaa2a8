"""The driver: applies rules until none fits any more, and records each change and each refusal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fuse.errors import FuseError
from fuse.ir.graph import Graph, Node, Value
from fuse.ir.model import Model
from fuse.limits import DEFAULT, Limits
from fuse.ops.fused import FUSED
from fuse.ops.record import Info
from fuse.passes.build import Builder
from fuse.passes.match import Match, No, Rule, arguments, match
from fuse.passes.record import Journal, note


@dataclass(slots=True)
class Context:
    """What every pass works on: the model, what is known of its values, the journal, the budgets, the target."""

    model: Model
    facts: dict[Value, Info] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    limits: Limits = DEFAULT
    target: str = "portable"
    duplicated: int = 0
    """Bytes that rewrites have added so far by writing a new weight while the old one stays in use."""

    def graphs(self) -> Iterator[Graph]:
        """The main graph and the bodies of the model's own functions; those of fused operators are fixed."""
        yield self.model.graph
        for key, function in self.model.functions.items():
            if key[0] not in FUSED:
                yield function.graph

    def opset(self, graph: Graph) -> int:
        """The operator set in force in ``graph``: the model's, or that of the function around it."""
        *_, outermost = graph.enclosing()
        if outermost is not self.model.graph:
            for function in self.model.functions.values():
                if function.graph is outermost and "" in function.opsets:
                    return function.opsets[""]
        return self.model.opsets.get("", 0)


def apply(rules: Sequence[Rule], context: Context) -> None:
    """Apply ``rules`` to every graph of the model, subgraphs and function bodies included, until none fits."""
    by_op: dict[str, list[Rule]] = {}
    for rule in rules:
        for op in sorted(rule.pattern.ops):
            by_op.setdefault(op, []).append(rule)
    queue = deque(n for g in context.graphs() for n in g.walk() if n.op in by_op)
    queued = set(queue)
    while queue and not context.journal.exhausted:
        node = queue.popleft()
        queued.discard(node)
        for rule in by_op.get(node.op, ()):
            touched = _try(rule, node, context) if node.graph is not None else None
            if touched is None:
                continue
            fresh = [n for n in touched if n.op in by_op and n not in queued and n.graph is not None]
            queue.extend(fresh)
            queued.update(fresh)
            break


def _try(rule: Rule, node: Node, context: Context) -> list[Node] | None:
    """Apply ``rule`` at ``node``; returns the nodes to look at again, or None where it does not apply."""
    found = match(rule.pattern, node)
    if found is None:
        return None
    started = time.perf_counter()
    reason = _outside_readers(found)
    graph = node.graph
    assert graph is not None
    builder = Builder(graph, context.facts, context.opset(graph))
    result: object = None
    if not reason:
        try:
            result = rule.build(builder, **arguments(rule, found))
        except FuseError as error:
            result = No(str(error.what))
        reason = result.reason if isinstance(result, No) else ""
    if not reason and isinstance(result, Value):
        reason = _costs(found, builder, context) if builder.nodes else renames(node, result)
    if reason or not isinstance(result, Value):
        builder.undo()
        context.journal.refuse(rule.name, node, reason)
        return None
    return _replace(rule, found, result, builder, context, started)


def _outside_readers(found: Match) -> str:
    """Why the matched nodes cannot go: a value inside is read outside, or a second output of the root is."""
    inside = set(found.nodes)
    root = found.nodes[0]
    for node in found.nodes:
        for value in node.outputs:
            if value is None or value is root.outputs[0]:
                continue
            if value.is_output:
                return f"the result of {note(node).op} inside is an output of the graph"
            if any(user not in inside for user in value.readers):
                return f"the result of {note(node).op} inside has another reader"
    return ""


def _costs(found: Match, builder: Builder, context: Context) -> str:
    """Why the new nodes are not worth it; empty where they are."""
    return _still_read(found, builder) or _duplicates(found, builder, context)


def _still_read(found: Match, builder: Builder) -> str:
    """Why the rewrite would save nothing: a new node reads the result of a matched one, which has to stay for it."""
    kept = {n for made in builder.nodes for v in made.inputs if v is not None and (n := v.producer) in found.nodes}
    return f"the result of {note(kept.pop()).op} inside is read once more" if kept else ""


def _duplicates(found: Match, builder: Builder, context: Context) -> str:
    """Why the rewrite would cost too much memory: it writes new weights and the old ones have other readers."""
    inside = set(found.nodes)
    read = {v for n in found.nodes for v in n.inputs if v is not None and v.is_const}
    freed = sum(v.nbytes for v in read if all(user in inside for user in v.readers))
    added = sum(v.nbytes for v in builder.constants) - freed
    if added <= 0:
        return ""
    if context.duplicated + added > context.limits.duplicate_bytes:
        return f"a weight stays in use elsewhere: another {added:,} bytes are more than the budget allows"
    context.duplicated += added
    return ""


def renames(node: Node, value: Value) -> str:
    """Why ``value`` cannot show in an output slot in place of the node's result; empty where it can.

    A graph input, an outer value, or one that shows in a slot already needs an Identity for the second name.
    """
    out = node.out
    if not out.is_output:
        return ""
    if value.producer is None and not value.is_const:
        return "an output of the graph would be an input by another name"
    owner = value.owner.graph if isinstance(value.owner, Node) else value.owner
    if owner is not node.graph:
        return "an output of the graph would be a value of the graph around it"
    return "one value would be two outputs of the graph" if value.is_output else ""


def _replace(rule: Rule, found: Match, result: Value, builder: Builder, context: Context, started: float) -> list[Node]:
    root = found.nodes[0]
    graph = root.graph
    assert graph is not None
    sources = tuple(dict.fromkeys(s for n in reversed(found.nodes) for s in (n.sources or (note(n).name,))))
    for made in builder.nodes:
        graph.insert(made, before=root)
        made.sources = sources
    out = root.out
    if result.producer in builder.nodes:
        result.name, result.info = out.name, out.info
        assert result.producer is not None
        result.producer.name = root.name
    touched = [u for u in out.readers if isinstance(u, Node)]
    touched += [v.producer for n in found.nodes for v in n.inputs if v is not None and v.producer is not None]
    out.replace_by(result)
    removed, freed = remove_dead(found.nodes)
    added = sum(v.nbytes for v in builder.constants) - freed
    context.journal.add(rule.name, rule.exact, map(note, removed), map(note, builder.nodes), added, started)
    return [*builder.nodes, *touched]


def remove_dead(nodes: Sequence[Node]) -> tuple[list[Node], int]:
    """Remove those of ``nodes`` (readers before producers) that nothing reads, and the constants only they read.

    Returns the nodes and the bytes of the constants.
    """
    removed, freed = [], 0
    for node in nodes:
        graph = node.graph
        if graph is None or any(v is not None and v.uses for v in node.outputs):
            continue
        inputs = node.inputs
        graph.remove(node)
        removed.append(node)
        for value in dict.fromkeys(inputs):
            if value is not None and value.is_const and not value.uses and isinstance(value.owner, Graph):
                freed += value.nbytes
                value.owner.drop_const(value)
    return removed, freed
