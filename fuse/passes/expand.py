"""Expansion: fused nodes of another target go back to plain operators, so that any target can be made of any file."""

from __future__ import annotations

import time

from fuse.ir.copy import inline
from fuse.ir.graph import Node
from fuse.ir.model import Function
from fuse.ops.contrib import FUSED_CONV, FUSED_GEMM, expansion
from fuse.ops.fused import FUSED, definition
from fuse.passes.record import note
from fuse.passes.rewrite import Context


def expand_fused(context: Context) -> None:
    """Replace each fused node that the target does not have by what it stands for."""
    for node in [n for g in context.graphs() for n in g.walk()]:
        if context.journal.exhausted:
            return
        started = time.perf_counter()
        function = _meaning(node, context.target)
        if function is None:
            continue
        taken, made = note(node), inline(node, function)
        context.journal.add("expand", "bits", [taken], map(note, made), 0, started)


def _meaning(node: Node, target: str) -> Function | None:
    """What ``node`` stands for; None where the target has it, or it is no fused node."""
    if node.op in FUSED:
        return definition(node.op) if target != "portable" else None
    if node.op in (FUSED_CONV, FUSED_GEMM) and target != "ort":
        return expansion(node)
    return None
