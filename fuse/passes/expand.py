"""Expansion: a model that holds fused nodes goes back to plain operators, so that any target can be made of any file."""

from __future__ import annotations

import time

from fuse.ir.copy import inline
from fuse.ops.fused import FUSED, definition
from fuse.passes.record import Change, note
from fuse.passes.rewrite import Context


def expand_fused(context: Context) -> None:
    """Replace each of fuse's own fused nodes by its body where the target is another than portable."""
    if context.target == "portable":
        return
    calls = [n for g in context.graphs() for n in g.walk() if n.op in FUSED]
    for node in calls:
        if context.journal.exhausted:
            return
        started = time.perf_counter()
        taken, made = note(node), inline(node, definition(node.op))
        added = tuple(note(n) for n in made)
        elapsed = (time.perf_counter() - started) * 1e3
        context.journal.add(Change(context.journal.stage, "expand", "bits", (taken,), added, 0, elapsed))
