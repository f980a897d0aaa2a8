"""The record of what the optimizer did: each change with its rule and nodes, each refusal with its reason."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fuse.ir.graph import Node

#: How far a rule may move an answer: not at all; the sign of a zero; by rounding in another order.
EXACTNESS = ("bits", "values", "close")


@dataclass(frozen=True, slots=True)
class NodeNote:
    """A node as the record keeps it: its label and operator, and the labels of the file's nodes it came from."""

    name: str
    op: str
    sources: tuple[str, ...] = ()


def note(node: Node) -> NodeNote:
    """The note of a node; one without a name goes by its first output's."""
    label = node.name or next((v.name for v in node.outputs if v is not None), "")
    return NodeNote(label, node.op, node.sources)


@dataclass(frozen=True, slots=True)
class Change:
    """One rewrite: which pass and rule, how exact, the nodes it took and made, and the bytes of weights it added."""

    stage: str
    rule: str
    exact: str
    removed: tuple[NodeNote, ...]
    added: tuple[NodeNote, ...]
    bytes_added: int = 0
    milliseconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A place where a rule's pattern matched and a condition did not hold."""

    stage: str
    rule: str
    node: NodeNote
    reason: str


@dataclass(frozen=True, slots=True)
class StageCount:
    """Nodes and milliseconds of one run of a pass."""

    stage: str
    nodes_before: int
    nodes_after: int
    changes: int
    milliseconds: float


@dataclass(slots=True)
class Journal:
    """Everything that was done.  ``fuel`` is how many more rewrites may be made (None: any number)."""

    fuel: int | None = None
    changes: list[Change] = field(default_factory=list)
    refusals: dict[tuple[str, str], Refusal] = field(default_factory=dict)
    stages: list[StageCount] = field(default_factory=list)
    stage: str = ""

    @property
    def exhausted(self) -> bool:
        """True where no rewrite may be made any more."""
        return self.fuel is not None and len(self.changes) >= self.fuel

    def add(
        self,
        rule: str,
        exact: str,
        removed: Iterable[NodeNote],
        added: Iterable[NodeNote],
        bytes_added: int,
        started: float,
    ) -> None:
        """Record a change that the present pass made and that began at ``started`` of ``time.perf_counter``."""
        elapsed = (time.perf_counter() - started) * 1e3
        self.changes.append(Change(self.stage, rule, exact, tuple(removed), tuple(added), bytes_added, elapsed))

    def refuse(self, rule: str, node: Node, reason: str) -> None:
        """Record why ``rule`` left ``node`` alone; the last reason for a node stands."""
        seen = note(node)
        self.refusals[rule, seen.name] = Refusal(self.stage, rule, seen, reason)

    def exactness(self) -> str:
        """The weakest label among the changes: what may be promised of the whole."""
        used = {c.exact for c in self.changes}
        return next((label for label in reversed(EXACTNESS) if label in used), EXACTNESS[0])

    def removed_by_stage(self) -> dict[str, int]:
        """Nodes that each pass took away, net of those it made, in the order of the passes' first runs."""
        counts: dict[str, int] = {}
        for stage in self.stages:
            counts[stage.stage] = counts.get(stage.stage, 0) + stage.nodes_before - stage.nodes_after
        return counts

    def removed_by_operator(self) -> dict[str, dict[str, int]]:
        """For each pass, how many nodes of each operator it took away."""
        table: dict[str, dict[str, int]] = {}
        for change in self.changes:
            row = table.setdefault(change.stage, {})
            for node in change.removed:
                row[node.op] = row.get(node.op, 0) + 1
        return table

    def to_dict(self) -> dict[str, Any]:
        """The record for JSON."""
        return {
            "stages": [
                {
                    "pass": s.stage,
                    "nodes_before": s.nodes_before,
                    "nodes_after": s.nodes_after,
                    "changes": s.changes,
                    "milliseconds": round(s.milliseconds, 3),
                }
                for s in self.stages
            ],
            "changes": [
                {
                    "pass": c.stage,
                    "rule": c.rule,
                    "exact": c.exact,
                    "removed": [_note_dict(n) for n in c.removed],
                    "added": [_note_dict(n) for n in c.added],
                    "bytes_added": c.bytes_added,
                    "milliseconds": round(c.milliseconds, 3),
                }
                for c in self.changes
            ],
            "refusals": [
                {"pass": r.stage, "rule": r.rule, "node": _note_dict(r.node), "reason": r.reason}
                for r in self.refusals.values()
            ],
        }


def _note_dict(node: NodeNote) -> dict[str, Any]:
    return {"name": node.name, "op": node.op, "sources": list(node.sources)}
