"""Loading and saving with no pass in between keeps every field of every model in the onnx package's backend suite.

What is the same is said in ``tests.model.protos``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

from fuse.model.load import load
from fuse.model.save import to_proto
from tests.model.protos import normal

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FOLDERS = sorted(path.name for path in DATA.iterdir() if path.is_dir() and any(path.rglob("*.onnx")))
PARTS = 4


@cache
def node_cases() -> list[tuple[str, onnx.ModelProto]]:
    """The models of the suite that are made in code, those of single operators."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(case.name, case.model) for case in collect_testcases(None)]


def models(group: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The models of one group: a folder of the suite, or a part of the cases that are made in code."""
    if group.isdigit():
        yield from node_cases()[int(group) :: PARTS]
        return
    for path in sorted((DATA / group).rglob("*.onnx")):
        yield str(path.relative_to(DATA)), onnx.load(path)


def written(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What fuse writes for the model it loads, which is left as it was."""
    before = proto.SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = to_proto(load(proto))
    assert proto.SerializeToString() == before
    return result


@pytest.mark.parametrize("group", [*FOLDERS, *map(str, range(PARTS))])
def test_every_field_of_every_model_of_the_suite(group: str) -> None:
    count = 0
    for name, proto in models(group):
        assert normal(written(proto)) == normal(proto), name
        count += 1
    assert count >= (1 if group in FOLDERS else 350)


def test_the_suite_is_all_there() -> None:
    """About what onnx 1.20 has; a suite that is not found would pass every test above."""
    assert {"light", "simple", "pytorch-converted", "pytorch-operator"} <= set(FOLDERS)
    assert len(node_cases()) > 1400


def test_the_comparison_sees_a_difference() -> None:
    """Each field that the suite has is one that ``normal`` compares: change any and it shows."""
    proto = onnx.load(next((DATA / "simple").rglob("test_sequence_model1/model.onnx")))
    reference = normal(proto)
    changes = [
        lambda m: setattr(m, "producer_name", "other"),
        lambda m: setattr(m.graph.node[0], "name", "other"),
        lambda m: m.graph.node[0].metadata_props.add(key="k", value="v"),
        lambda m: m.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1),
        lambda m: m.graph.value_info.add(name="other"),
        lambda m: m.graph.node[-1].output.append("other"),
        lambda m: setattr(m.opset_import[0], "version", 9),
    ]
    for change in changes:
        other = onnx.ModelProto()
        other.CopyFrom(proto)
        change(other)
        assert normal(other) != reference


# ---- a second opinion


def census(proto: onnx.ModelProto) -> list[Any]:
    """What onnx_ir finds in a model: every node with its attributes, every tensor with its bytes."""
    ir = pytest.importorskip("onnx_ir")
    model = ir.from_proto(proto)
    found: list[Any] = [model.opset_imports, sorted(model.metadata_props.items()), model.doc_string]
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in graphs:
        for node in ir.traversal.RecursiveGraphIterator(graph):
            names = [value.name if value is not None else None for value in node.inputs]
            attributes = sorted((a.name, a.type, _told(ir, a)) for a in node.attributes.values())
            found.append((node.op_type, node.domain, names, [v.name for v in node.outputs], attributes))
        found += [(name, _bytes(v.const_value)) for name, v in sorted(graph.initializers.items())]
        found += [(v.name, str(v.type), str(v.shape)) for v in (*graph.inputs, *graph.outputs)]
    return sorted(map(repr, found))


def _told(ir: Any, attribute: Any) -> str:
    if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
        return repr(_bytes(attribute.value))
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph"  # its nodes are found on their own
    return attribute.ref_attr_name if attribute.is_ref() else str(attribute.value)


def _bytes(tensor: Any) -> Any:
    strings = tensor.dtype.name == "STRING"
    return str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tolist() if strings else tensor.tobytes()


@pytest.mark.parametrize("group", ["light", "simple", "pytorch-converted", "pytorch-operator"])
def test_onnx_ir_finds_the_same(group: str) -> None:
    for name, proto in models(group):
        assert census(written(proto)) == census(proto), name


def test_onnx_ir_finds_the_same_in_a_sample_of_the_operators() -> None:
    """Every ninth case; those that onnx_ir cannot read, it cannot read from fuse's file either."""
    pytest.importorskip("onnx_ir")
    refused = 0
    for name, proto in node_cases()[::9]:
        try:
            wanted = census(proto)
        except (NotImplementedError, ValueError, TypeError):
            refused += 1
            continue
        assert census(written(proto)) == wanted, name
    assert refused < 10
