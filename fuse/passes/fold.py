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
from fuse.passes.record import note
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
    told = _told(node, context)
    if told is not None:
        results: Sequence[Any] | None = [told]
    elif all(v is None or v.is_const for v in node.inputs):
        results = _run(node, record, context, spent)
    else:
        return
    if results is None or any(not isinstance(r, np.ndarray) for r in results):
        return  # left alone with a reason, or a sequence or an absent optional: ONNX has no such constant
    freed, made = _freed(node), sum(r.nbytes for r in results)
    if not _affordable(node, made, freed, context, spent):
        return
    spent.bytes += made - freed
    _commit(node, graph, results, context, started)


def _told(node: Node, context: Context) -> Array | None:
    """The node's one result where inference knows every element of it."""
    info = context.facts.get(node.outputs[0]) if len(node.outputs) == 1 and node.outputs[0] is not None else None
    if info is None or info.value is None or info.value.dtype == object or node.op in _UNPACKING:
        return None
    return info.value.astype(info.dtype)


def _run(node: Node, record: Operator, context: Context, spent: _Spent) -> Sequence[Any] | None:
    """The node's results; None where it must not or cannot run now."""
    if node.op in _UNPACKING:
        context.journal.refuse("fold", node, "it would undo the quantisation of a weight")
        return None
    if record.traits & _NEVER and not (node.op == "Dropout" and dropout_is_identity(node)):
        return None
    infos = [info for v in node.outputs if v is not None and (info := context.facts.get(v)) is not None]
    sizes = [_elements(info) for info in infos]
    if not sizes or None in sizes:
        context.journal.refuse("fold", node, "the size of the result is not known beforehand")
        return None
    estimate = sum((size or 0) * _width(info) for size, info in zip(sizes, infos, strict=True))
    if not _affordable(node, estimate, _freed(node), context, spent):
        return None
    work = _flops(node, sum(size or 0 for size in sizes))
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


def _freed(node: Node) -> int:
    """Bytes of the constants that only this node reads, once."""
    return sum(v.nbytes for v in node.inputs if v is not None and v.is_const and len(v.uses) == 1)


def _elements(info: Info) -> int | None:
    if info.shape is None or not all(isinstance(d, int) for d in info.shape):
        return None
    return math.prod(int(d) for d in info.shape if d is not None and isinstance(d, int))


def _width(info: Info) -> int:
    return info.dtype.itemsize if info.dtype is not None else 8


def _affordable(node: Node, made: int, freed: int, context: Context, spent: _Spent) -> bool:
    """Whether a result of ``made`` bytes fits the budgets; where it does not, the refusal is recorded."""
    limits = context.limits
    if made <= max(limits.fold_node_bytes, freed) and spent.bytes + made - freed <= limits.fold_total_bytes:
        return True
    context.journal.refuse("fold", node, f"the result has {made:,} bytes, more than the budget allows")
    return False


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
    context.journal.add("fold", "bits", map(note, removed), (), made - freed, started)
