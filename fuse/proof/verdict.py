"""The verdict: what was compared, what was found, in one line for people and as plain data for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fuse.errors import quote
from fuse.proof.compare import Difference
from fuse.proof.tolerance import error_ratio


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output on one input set.

    ``difference`` is optimised against raw on fuse, ``raw_error`` and ``optimised_error`` are each against the raw
    graph in float64, ``onnxruntime`` is optimised against raw on onnxruntime, and ``runtimes`` onnxruntime against fuse
    on the raw graph; each is None where it could not be had.  ``random`` marks an output that is drawn anew in each
    run.  ``moved`` is the reason; empty where the answer stands.
    """

    output: str
    inputs: str
    difference: Difference | None = None
    raw_error: Difference | None = None
    optimised_error: Difference | None = None
    onnxruntime: Difference | None = None
    runtimes: Difference | None = None
    random: bool = False
    moved: str = ""

    @property
    def ratio(self) -> float | None:
        """The optimised graph's largest error against float64 over the raw graph's."""
        return error_ratio(self.raw_error, self.optimised_error)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``status`` is ``ok``, ``moved`` or ``unproven``; ``reasons`` say why where it is not ok.

    ``notes`` are what a reader should know beside it: input sets that could not run, outputs that are random, why there
    is no second opinion.  ``onnxruntime`` is its version, empty where it gave none, and ``disagreements`` says for each
    output on which the two runtimes differ on the raw graph how they do.
    """

    status: str
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rows: tuple[OutputRow, ...] = ()
    input_sets: tuple[str, ...] = ()
    seed: int = 0
    exact: str = "close"
    onnxruntime: str = ""
    disagreements: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True where the answers were compared and did not move."""
        return self.status == "ok"

    def line(self) -> str:
        """The verdict in one sentence."""
        if not self.ok:
            word = "answers moved" if self.status == "moved" else self.status
            more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
            return f"{word}: {self.reasons[0]}{more}"
        sets = f"{len(self.input_sets)} input set{'s' * (len(self.input_sets) != 1)}"
        notes = "".join(f"; {note}" for note in self.notes[:3])
        return f"answers unmoved on {sets}: {self._distance()}{self._second()}{notes}"

    def _second(self) -> str:
        if not self.onnxruntime:
            return ""
        if not self.disagreements:
            return f"; onnxruntime {self.onnxruntime} agrees on both files"
        name, how = next(iter(self.disagreements.items()))
        apart = f"the runtimes disagree on the raw graph already: output {quote(name)} {how}"
        return f"; onnxruntime {self.onnxruntime} finds the two files alike, but {apart}"

    def _distance(self) -> str:
        found = [r.difference for r in self.rows if r.difference is not None and not r.random]
        if all(d.same_bits for d in found):
            return "bit for bit the same" if found else "dtypes and shapes are the same"
        if all(d.same_values for d in found):
            return "the same but for the sign of zeros"
        text = f"at most {self.worst('max_rel'):.1e} of the largest output apart"
        ratio = self.ratio
        return text if ratio is None else f"{text}, error against float64 {ratio:.2f} x the raw graph's"

    def worst(self, figure: str) -> float:
        """The largest ``figure`` of ``Difference`` between raw and optimised on fuse; 0.0 where there is none."""
        found = [getattr(r.difference, figure) for r in self.rows if r.difference is not None and not r.random]
        return max((f for f in found if f is not None), default=0.0)

    @property
    def ratio(self) -> float | None:
        """The largest error against float64 of all optimised outputs over the raw ones', in parts of each output."""
        pairs = [(r.raw_error, r.optimised_error) for r in self.rows if r.raw_error is not None and not r.random]
        relative = [(a.max_rel, b.max_rel) for a, b in pairs if b is not None]
        known = [(a, b) for a, b in relative if a is not None and b is not None]
        if not known:
            return None
        raw, other = (max(side) for side in zip(*known, strict=True))
        return 1.0 if raw == other else other / raw if raw else math.inf

    def to_dict(self) -> dict[str, Any]:
        """The verdict as strict JSON holds it: NaN and Inf are strings."""
        rows = [{**asdict(row), "ratio": row.ratio} for row in self.rows]
        plain = _plain(
            {**{n: getattr(self, n) for n in self.__slots__ if n != "rows"}, "ratio": self.ratio, "rows": rows}
        )
        return {**plain, "line": self.line()}


def _plain(value: Any) -> Any:
    """The same in dicts, lists, strings, numbers and None; two levels of dataclasses deep, no deeper."""
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
