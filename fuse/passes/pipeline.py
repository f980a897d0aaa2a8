"""The pipeline: which passes run, in which order, and why there.

Every pass is one function over a ``Context``.  After each, ``ir.check`` holds the graph against the laws of the IR; a
pass that breaks one is a fault in fuse and stops the optimisation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuse.errors import InputError
from fuse.ir.check import check
from fuse.ir.copy import copy_model
from fuse.ir.model import Model
from fuse.limits import DEFAULT, Limits
from fuse.ops.infer import infer_model
from fuse.passes.activation import fuse_activation
from fuse.passes.batchnorm import fold_batchnorm
from fuse.passes.dead import eliminate_dead
from fuse.passes.expand import expand_fused
from fuse.passes.fold import fold
from fuse.passes.identity import eliminate
from fuse.passes.record import Journal, StageCount
from fuse.passes.residual import fuse_residual
from fuse.passes.rewrite import Context

TARGETS = ("portable", "onnx", "ort")


def infer_shapes(context: Context) -> None:
    """Infer every value's dtype and shape, symbols included."""
    context.facts = infer_model(context.model)


@dataclass(frozen=True, slots=True)
class Stage:
    """A pass by name, and the reason for its place."""

    name: str
    run: Callable[[Context], None]
    why: str


PIPELINE: tuple[Stage, ...] = (
    Stage("expand", expand_fused, "first: fused nodes of another target go back to the operators they were made of"),
    Stage("shapes", infer_shapes, "before any rule: most conditions ask for a dtype or a shape"),
    Stage("identity", eliminate, "early: an Identity between two operators hides every pattern below"),
    Stage("fold", fold, "after it, so that weights behind Identity nodes are constants where they are read"),
    Stage("shapes", infer_shapes, "again: folded shapes make more shapes known"),
    Stage("identity", eliminate, "again: a Reshape to a folded shape may do nothing"),
    Stage("batchnorm", fold_batchnorm, "before the sums: BatchNormalization stands between Conv and Add"),
    Stage("residual", fuse_residual, "before the activations: Relu follows the sum, not the convolution"),
    Stage("activation", fuse_activation, "last of the rules: it closes a node to further fusion"),
    Stage("dead", eliminate_dead, "at the end, over all that the rules left behind"),
)


def stage_names() -> tuple[str, ...]:
    """The passes' names, each once, in order."""
    return tuple(dict.fromkeys(stage.name for stage in PIPELINE))


def run_pipeline(
    model: Model,
    *,
    target: str = "portable",
    passes: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    fuel: int | None = None,
    limits: Limits = DEFAULT,
    progress: Callable[[str], None] | None = None,
) -> tuple[Model, Journal]:
    """Optimise a copy of ``model`` for ``target``; returns it with the record of what was done.

    ``passes`` names those to run (all by default), ``skip`` those to leave out, ``fuel`` bounds the number of rewrites,
    ``progress`` is told each pass's name as it starts.  Raises ``InputError`` for an unknown target or pass.
    """
    if target not in TARGETS:
        raise InputError(f"there is no target {target!r}", hint=f"targets are {', '.join(TARGETS)}")
    for name in [*(passes or ()), *skip]:
        if name not in stage_names():
            raise InputError(f"there is no pass {name!r}", hint=f"passes are {', '.join(stage_names())}")
    context = Context(copy_model(model), journal=Journal(fuel), limits=limits, target=target)
    check(context.model)
    for stage in PIPELINE:
        needed = stage.name == "shapes" or passes is None or stage.name in passes
        if not needed or stage.name in skip:
            continue
        if progress is not None:
            progress(stage.name)
        _run(stage, context)
    return context.model, context.journal


def _run(stage: Stage, context: Context) -> None:
    journal, model = context.journal, context.model
    journal.stage = stage.name
    before, changes, started = model.node_count(), len(journal.changes), time.perf_counter()
    stage.run(context)
    elapsed = (time.perf_counter() - started) * 1e3
    check(model)
    journal.stages.append(StageCount(stage.name, before, model.node_count(), len(journal.changes) - changes, elapsed))
