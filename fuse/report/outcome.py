"""What came of an optimisation: the model and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fuse.ir.model import Model
from fuse.passes.record import Journal
from fuse.proof.judge import Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """What an optimisation did: the record of changes, node counts, the verdict (None where none was asked for)."""

    target: str
    nodes_before: int
    nodes_after: int
    operators_before: dict[str, int]
    operators_after: dict[str, int]
    weight_bytes_before: int
    weight_bytes_after: int
    journal: Journal
    verdict: Verdict | None

    def to_dict(self) -> dict[str, Any]:
        """The report for JSON."""
        return {
            "target": self.target,
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "operators_before": self.operators_before,
            "operators_after": self.operators_after,
            "weight_bytes_before": self.weight_bytes_before,
            "weight_bytes_after": self.weight_bytes_after,
            "removed_by_pass": self.journal.removed_by_stage(),
            "removed_operators_by_pass": self.journal.removed_by_operator(),
            **self.journal.to_dict(),
            "verification": self.verdict.to_dict() if self.verdict is not None else None,
        }


@dataclass(frozen=True, slots=True)
class Result:
    """An optimised model and its report."""

    model: Model
    report: Report
