"""Constant folding: a node whose inputs are all known is run once, here, and its result becomes a constant.

``Shape`` of an input with fixed dims folds too.  Folding keeps a budget for each node and for the whole model, counted
in bytes added beyond the constants that it frees, and one of arithmetic; what would pass it stays.  Random and stateful
operators, control flow, and nodes that would raise an error are left for run time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import FuseError
from fuse.ir.dtypes import STRING, Array
from fuse.ir.graph import Graph, Node
from fuse.ops.dropout import dropout_is_identity
from fuse.ops.infer import check_arity, known
from fuse.ops.record import Info, Operator, Trait, lookup
from fuse.passes.record import Change, note
from fuse.passes.rewrite import Context, remove_dead

_NEVER = Trait.RANDOM | Trait.CONTROL

#: Operators that undo a compression: folded, they would blow up a weight that was made small on purpose, and take from
#: a runtime what tells it to compute in integers.
_UNPACKING = frozenset({"DequantizeLinear", "com.microsoft::DequantizeLinear"})

#: Operators that multiply: their work is the product of the sizes they contract, not the sum of what they touch.
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})


def fold(context: Context) -> None:
    """Replace what is known before the model runs by constants, within the budgets of ``context.limits``."""
    spent = _Spent()
    for graph in context.graphs():
        for inner in list(graph.walk_graphs()):
            for node in list(inner.nodes):
                if context.journal.exhausted:
                    return
                if node.graph is inner:
                    _visit(node, inner, context, spent)


class _Spent:
    """What folding has used of the model's budgets."""

    def __init__(self) -> None:
        self.bytes = 0
        self.flops = 0


def _visit(node: Node, graph: Graph, context: Context, spent: _Spent) -> None:
    started = time.perf_counter()
    record = lookup(node.op)
    if record is None or any(a.reference for a in node.attrs.values()) or not any(node.outputs):
        return
    if node.op in _UNPACKING:
        context.journal.refuse("fold", node, "it would undo the quantisation of a weight")
        return
    facts = [context.facts.get(v) if v is not None else None for v in node.outputs]
    told = [f.value if f is not None else None for f in facts]
    if len(told) == 1 and told[0] is not None and told[0].dtype != object and facts[0] is not None:
        results: Sequence[Any] = [told[0].astype(facts[0].dtype)]
    elif all(v is None or v.is_const for v in node.inputs):
        run = _run(node, record, context, spent)
        if run is None:
            return
        results = run
    else:
        return
    if any(not isinstance(r, np.ndarray) for r in results):
        return  # a sequence or an absent optional: ONNX has no such constant
    freed = sum(v.nbytes for v in {v for v in node.inputs if v is not None and v.is_const and len(v.uses) == 1})
    made = sum(r.nbytes for r in results)
    if not _affordable(made, freed, context, spent):
        context.journal.refuse("fold", node, f"the result has {made:,} bytes, more than the budget allows")
        return
    spent.bytes += made - freed
    _commit(node, graph, results, context, started)


def _run(node: Node, record: Operator, context: Context, spent: _Spent) -> Sequence[Any] | None:
    """The node's results; None where it must not or cannot run now."""
    if record.traits & _NEVER and not (node.op == "Dropout" and dropout_is_identity(node)):
        return None
    infos = [context.facts.get(v) if v is not None else None for v in node.outputs]
    sizes = [_elements(i) for i in infos if i is not None]
    estimate = sum(
        s * _width(i) for s, i in zip(sizes, [i for i in infos if i is not None], strict=True) if s is not None
    )
    freed = sum(v.nbytes for v in {v for v in node.inputs if v is not None and len(v.uses) == 1})
    if not sizes or None in sizes:
        context.journal.refuse("fold", node, "the size of the result is not known beforehand")
        return None
    if not _affordable(estimate, freed, context, spent):
        context.journal.refuse("fold", node, f"the result has {estimate:,} bytes, more than the budget allows")
        return None
    work = _flops(node, sum(s or 0 for s in sizes))
    if spent.flops + work > context.limits.fold_flops:
        context.journal.refuse("fold", node, f"it takes {work:,} operations, more than the budget allows")
        return None
    spent.flops += work
    keywords = {name: a.value for name, a in node.attrs.items()}
    if record.wants_outputs:
        keywords["n_outputs"] = len(node.outputs)
    try:
        check_arity(record, node.inputs)
        with np.errstate(all="ignore"):
            result = record.kernel(*(None if v is None else v.data for v in node.inputs), **keywords)
    except (FuseError, ArithmeticError, IndexError, MemoryError, TypeError, ValueError) as error:
        context.journal.refuse("fold", node, f"it raises an error, which is left for run time: {error}")
        return None
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(r) if isinstance(r, np.generic) else r for r in results][: len(node.outputs)]


def _elements(info: Info) -> int | None:
    if info.shape is None or not all(isinstance(d, int) for d in info.shape):
        return None
    return math.prod(int(d) for d in info.shape if d is not None and isinstance(d, int))


def _width(info: Info) -> int:
    return info.dtype.itemsize if info.dtype is not None else 8


def _affordable(made: int, freed: int, context: Context, spent: _Spent) -> bool:
    limits = context.limits
    return made <= max(limits.fold_node_bytes, freed) and spent.bytes + made - freed <= limits.fold_total_bytes


def _flops(node: Node, out: int) -> int:
    touched = sum(math.prod(int(d) for d in v.shape or () if isinstance(d, int)) for v in node.inputs if v is not None)
    if node.op in _PRODUCTS:
        second = node.input(1)
        inner = math.prod(int(d) for d in second.shape if isinstance(d, int)) if second and second.shape else 1
        return 2 * out * max(inner, 1)
    return out + touched


def _commit(node: Node, graph: Graph, results: Sequence[Array], context: Context, started: float) -> None:
    made = 0
    for value, result in zip(node.outputs, results, strict=False):
        if value is None or not value.uses:
            continue
        data = result if result.dtype == STRING else np.ascontiguousarray(result).reshape(result.shape)
        constant = graph.add_const(data.copy() if data.base is not None else data, value.name)
        constant.info = value.info
        context.facts[constant] = known(constant, {}) or Info()
        made += constant.nbytes
        value.replace_by(constant)
    removed, freed = remove_dead([node])
    elapsed = (time.perf_counter() - started) * 1e3
    context.journal.add(
        Change(context.journal.stage, "fold", "bits", tuple(note(n) for n in removed), (), made - freed, elapsed)
    )
