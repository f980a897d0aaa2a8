"""The library's entry points, as ``import fuse`` shows them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fuse.errors import FuseError, InputError
from fuse.ir.model import Model
from fuse.limits import DEFAULT, Limits
from fuse.model.load import load as load_model
from fuse.model.save import save
from fuse.passes.pipeline import run_pipeline
from fuse.planner import MemoryPlan, plan_memory
from fuse.proof.judge import Verdict, verify_models
from fuse.report.outcome import Report, Result
from fuse.runtime.session import InferenceSession
from fuse.runtime.threads import blas_threads
from fuse.zoo import resolve

__all__ = ["InferenceSession", "Report", "Result", "load", "optimize", "plan", "save", "verify"]

Progress = Callable[[str], None]


def load(source: Any, *, data_dir: str | os.PathLike[str] | None = None) -> Model:
    """The model in ``source``: a path, the name of an embedded model, bytes, or a ``ModelProto``.

    A path that exists wins over an embedded model's name.  Raises ``InputError`` and ``ModelError``: ``FuseError``.
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
    only) or ``ort`` (onnxruntime's contrib operators).  ``passes`` and ``skip`` choose passes by name, ``fuel`` bounds
    the number of rewrites.  The model passed in is left as it is.  With ``verify`` the verdict is in
    ``.report.verdict``; a caller that ships the model looks at its ``status``.  Errors name the model.
    """
    raw = load(model_or_path)
    options: dict[str, Any] = {"passes": passes, "skip": skip, "fuel": fuel, "limits": limits, "progress": progress}
    with _named(raw):
        model, journal = run_pipeline(raw, target=target, **options)
        verdict = _judge(raw, model, journal.exactness(), threads, seed, progress) if verify else None
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
    other = load(b) if b is not None else raw
    with _named(raw):
        if b is None:
            other, journal = run_pipeline(raw, target=target, progress=progress)
            exact = journal.exactness()
        return _judge(raw, other, exact, threads, seed, progress, inputs)


@contextlib.contextmanager
def _named(model: Model) -> Iterator[None]:
    """Errors that rise inside say which model it was."""
    try:
        yield
    except FuseError as error:
        raise error.within(model.source) from None


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
    loaded = load(model)
    with _named(loaded):
        return plan_memory(loaded, sizes or {})
