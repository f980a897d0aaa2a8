"""What is in a model, in short: versions, interface, operators, weights."""

from __future__ import annotations

from typing import Any

from fuse.ir.model import Model
from fuse.ir.text import spell_type
from fuse.model.rest import producer


def summary(model: Model) -> dict[str, Any]:
    """The facts for JSON: strings as the model has them, types as ``fuse.ir.text`` spells them, bytes in memory."""
    graph = model.graph
    return {
        "source": model.source,
        "graph": graph.name,
        "ir_version": model.ir_version,
        "opsets": {domain or "ai.onnx": version for domain, version in model.opsets.items()},
        "producer": producer(model),
        "inputs": [{"name": v.name, "type": spell_type(v.type), "default": v.data is not None} for v in graph.inputs],
        "outputs": [{"name": slot.name, "type": spell_type(slot.type or slot.value.type)} for slot in graph.outputs],
        "nodes": model.node_count(),
        "operators": model.operator_counts(),
        "functions": [key[0] for key in model.functions],
        "constants": sum(len(g.constants) for top in model.graphs() for g in top.walk_graphs()),
        "weight_bytes": model.weight_bytes(),
    }
