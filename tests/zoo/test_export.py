from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

import fuse
from fuse import zoo
from fuse.errors import InputError
from fuse.zoo import export as module
from fuse.zoo.export import export


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nothing(package: str) -> Any:
        raise ImportError(package)

    monkeypatch.setattr(module.importlib, "import_module", nothing)
    with pytest.raises(InputError, match="needs torch, which is not installed") as caught:
        export("mlp", tmp_path / "mlp.onnx")
    assert caught.value.hint == 'pip install "fuse-onnx[export]"'
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [0, 6, 21, 99])
def test_operator_sets_beyond_the_exporter_are_refused(opset: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"operator set {opset} cannot be exported"):
        export("mlp", tmp_path / "mlp.onnx", opset=opset)


def structure(proto: onnx.ModelProto) -> Any:
    """What a graph computes and shares, with no name in it: equal for equal graphs in any order of nodes.

    Each value gets a term: its operator, attributes and the terms of its inputs, numbered as they are met.  Constants
    are known by dtype and dims; which parameters are one constant is told by the places that read it.
    """
    numbers: dict[Any, int] = {}
    terms: dict[str, int] = {}
    constants = {t.name: (t.name, ("constant", t.data_type, tuple(t.dims))) for t in proto.graph.initializer}
    shape = [str(d) for d in proto.graph.input[0].type.tensor_type.shape.dim]
    terms[proto.graph.input[0].name] = numbers.setdefault(("input", *shape), len(numbers))
    readers: dict[str, list[Any]] = {}
    behind = {name: name for name in constants}
    computing = []
    for node in proto.graph.node:
        if node.op_type == "Identity" and node.input[0] in behind:
            behind[node.output[0]] = behind[node.input[0]]
        else:
            computing.append(node)
    for node in computing:
        attributes = tuple(sorted((a.name, a.SerializeToString(deterministic=True)) for a in node.attribute))
        given = tuple(constants[behind[i]][1] if i in behind else terms[i] for i in node.input)
        term = numbers.setdefault((node.op_type, attributes, given), len(numbers))
        terms.update((label, term) for label in node.output)
        for index, label in enumerate(node.input):
            if label in behind:
                readers.setdefault(behind[label], []).append((term, index))
    sharing = sorted(sorted(places) for places in readers.values())
    answer = [str(d) for d in proto.graph.output[0].type.tensor_type.shape.dim]
    return Counter(n.op_type for n in proto.graph.node), list(numbers.items()), sharing, answer, proto.opset_import[0]


@pytest.mark.parametrize("name", zoo.names())
def test_the_embedded_graph_is_a_real_export(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    embedded = onnx.load(zoo.path(name))
    fresh = onnx.load(export(name, tmp_path / "fresh.onnx", opset=embedded.opset_import[0].version))
    for ours, theirs in zip(structure(embedded), structure(fresh), strict=True):
        assert ours == theirs
    assert all(t.raw_data for t in fresh.graph.initializer)
    assert [p.name for p in tmp_path.iterdir()] == ["fresh.onnx"]


@pytest.mark.parametrize(("target", "nodes"), [("portable", 24), ("onnx", 49), ("ort", 24)])
def test_a_fresh_resnet18_shows_the_same_figures(target: str, nodes: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    raw = fuse.load(export("resnet18", tmp_path / "fresh.onnx"))
    report = fuse.optimize(raw, target=target).report
    assert (report.nodes_before, report.nodes_after) == (141, nodes)
    assert report.verdict is not None and report.verdict.status == "ok"
    assert report.verdict.ratio is not None and report.verdict.ratio <= 1.5
    assert 0 < report.verdict.worst("max_rel") <= 5e-7


def test_structure_sees_a_changed_attribute_and_a_lost_share() -> None:
    whole = structure(onnx.load(zoo.path("mlp")))
    changed = onnx.load(zoo.path("mlp"))
    next(n for n in changed.graph.node if n.op_type == "BatchNormalization").attribute[0].f = 0.5
    assert structure(changed) != whole
    split = onnx.load(zoo.path("mlp"))
    other = split.graph.initializer.add()
    other.CopyFrom(next(t for t in split.graph.initializer if t.name == split.graph.node[0].input[0]))
    other.name = split.graph.node[0].input[0] = "other"
    assert structure(split) != whole


def test_weights_are_torchs_own_and_seeded(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    a, b = (export("mlp", tmp_path / f"{k}.onnx").read_bytes() for k in "ab")
    assert a == b
    assert torch.equal(before, torch.random.get_rng_state())
    weight = onnx.numpy_helper.to_array(onnx.ModelProto.FromString(a).graph.initializer[0])
    assert weight.shape == (16, 4) and abs(weight).max() <= 1 / 2  # uniform within 1 / sqrt(fan_in)


def test_bad_names_and_places(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("torchvision")
    with pytest.raises(InputError, match="no model is named 'resnet19'") as caught:
        export("resnet19", tmp_path / "x.onnx")
    assert "resnet18" in (caught.value.hint or "")
    with pytest.raises(InputError, match="No such file or directory"):
        export("mlp", tmp_path / "nowhere" / "x.onnx")
    assert not list(tmp_path.iterdir())
