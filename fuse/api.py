"""The library's entry points, as ``import fuse`` shows them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuse.errors import InputError
from fuse.ir.graph import Model
from fuse.limits import DEFAULT, Limits
from fuse.model.load import load as load_model
from fuse.model.save import save
from fuse.passes.pipeline import run_pipeline
from fuse.passes.record import Journal
from fuse.planner import MemoryPlan, plan_memory
from fuse.runtime.session import InferenceSession
from fuse.runtime.threads import blas_threads
from fuse.verify.judge import Verdict, verify_models
from fuse.zoo import resolve

__all__ = ["InferenceSession", "Report", "Result", "load", "optimize", "plan", "save", "verify"]

Progress = Callable[[str], None]


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


def load(source: Any, *, data_dir: str | os.PathLike[str] | None = None) -> Model:
    """The model in ``source``: a path, the name of an embedded model, bytes, or a ``ModelProto``.

    A path that exists wins over an embedded model's name.  Raises ``InputError`` and ``ModelError`` (see ``fuse.errors``).
    """
    return load_model(resolve(source), data_dir=data_dir)


def optimize(
    model_or_path: Any,
    *,
    target: str = "portable",
    verify: bool = True,
    passes: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    fuel: int | None = None,
    threads: int | None = None,
    seed: int = 0,
    limits: Limits = DEFAULT,
    progress: Progress | None = None,
) -> Result:
    """Optimise a model and prove that its answers did not move.

    ``target`` is what is written: ``portable`` (fused operators as model-local functions), ``onnx`` (standard operators
    only) or ``ort`` (onnxruntime's contrib operators).  ``passes`` and ``skip`` choose passes by name, ``fuel`` bounds the
    number of rewrites.  The model passed in is left as it is.  With ``verify`` the verdict is in ``.report.verdict``; a
    caller that ships the model looks at its ``status``.
    """
    raw = load(model_or_path)
    model, journal = run_pipeline(
        raw, target=target, passes=passes, skip=skip, fuel=fuel, limits=limits, progress=progress
    )
    verdict = None
    if verify:
        verdict = _judge(raw, model, journal.exactness(), threads, seed, progress)
    report = Report(
        target=target,
        nodes_before=raw.node_count(),
        nodes_after=model.node_count(),
        operators_before=raw.operator_counts(),
        operators_after=model.operator_counts(),
        weight_bytes_before=raw.weight_bytes(),
        weight_bytes_after=model.weight_bytes(),
        journal=journal,
        verdict=verdict,
    )
    return Result(model, report)


def verify(
    a: Any,
    b: Any = None,
    *,
    inputs: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
    target: str = "portable",
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Compare two models on the same inputs; one model alone is compared with its own optimised form.

    ``inputs`` are feeds to use in place of the generated ones.  Raises ``InputError`` where the interfaces differ.
    """
    raw = load(a)
    exact = "close"
    if b is None:
        other, journal = run_pipeline(raw, target=target, progress=progress)
        exact = journal.exactness()
    else:
        other = load(b)
    return _judge(raw, other, exact, threads, seed, progress, inputs)


def _judge(
    raw: Model,
    other: Model,
    exact: str,
    threads: int | None,
    seed: int,
    progress: Progress | None,
    inputs: Sequence[Mapping[str, Any]] | None = None,
) -> Verdict:
    with blas_threads(threads):
        return verify_models(raw, other, inputs=inputs, seed=seed, exact=exact, progress=progress)


def plan(model: Any, *, sizes: Mapping[str, int] | None = None) -> MemoryPlan:
    """The memory plan of a model's activations; ``sizes`` gives the symbolic dims their numbers."""
    for name, size in (sizes or {}).items():
        if size < 0:
            raise InputError(f"dim {name!r} is {size}")
    return plan_memory(load(model), sizes or {})
