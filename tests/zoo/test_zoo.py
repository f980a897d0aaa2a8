from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import onnx
import pytest

from fuse import zoo
from fuse.errors import InputError
from fuse.ir.graph import Node
from fuse.ir.model import Model
from fuse.model.load import load
from fuse.model.save import to_proto
from fuse.model.strip import strip

OPERATORS = {
    "resnet18": {
        "Identity": 72,
        "Conv": 20,
        "BatchNormalization": 20,
        "Relu": 17,
        "Add": 8,
        "MaxPool": 1,
        "GlobalAveragePool": 1,
        "Flatten": 1,
        "Gemm": 1,
    },
    "mlp": {"Identity": 2, "Gemm": 2, "BatchNormalization": 1, "Relu": 1, "Softmax": 1},
}
CONSTANTS = {"resnet18": (30, 11_681_832), "mlp": (6, 163)}
WEIGHTS = {
    "resnet18": "c61a0c113cb8f4b82f1c530ea22b6bfb2e857133dc0eedb641b5b9666af54dfe",
    "mlp": "1696e36349c37025893df48e7403cf721e1e5bf021b99c77fcc822e21c9def8d",
}


def test_names_and_paths() -> None:
    assert zoo.names() == ("mlp", "resnet18")
    assert all(zoo.path(name).is_file() and zoo.path(name).stem == name for name in zoo.names())
    for name in ("resnet", "", "../zoo/mlp", "mlp.onnx"):
        with pytest.raises(InputError, match="no embedded model") as caught:
            zoo.path(name)
        assert caught.value.hint == "there are mlp, resnet18"


@pytest.mark.parametrize("name", OPERATORS)
def test_the_graph_is_the_exporters(name: str) -> None:
    model = load(zoo.path(name))
    assert Counter(node.op for node in model.graph.nodes) == OPERATORS[name]
    assert model.node_count() == sum(OPERATORS[name].values())
    assert [v.name for v in model.graph.inputs] == ["input"] and [s.name for s in model.graph.outputs] == ["output"]
    dims = [[str(d) for d in kind.shape] for kind in (model.graph.inputs[0].type, model.graph.outputs[0].type)]
    assert dims == (
        [["1", "3", "224", "224"], ["1", "1000"]] if name == "resnet18" else [["batch", "4"], ["batch", "3"]]
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_files_are_small_and_name_no_place(name: str) -> None:
    data = zoo.path(name).read_bytes()
    assert len(data) < 60_000
    assert not any(word in data for word in (b"site-packages", b".py", b"/home", b"/tmp", b"/root", b"/usr"))
    proto = onnx.ModelProto.FromString(data)
    assert not any(t.raw_data or t.float_data for t in proto.graph.initializer)
    assert [(p.key, p.value) for p in proto.metadata_props] == [("fuse.stripped", "1")]


@pytest.mark.parametrize("name", OPERATORS)
def test_weights_are_the_same_bits_everywhere(name: str) -> None:
    constants = load(zoo.path(name)).graph.constants
    digest = hashlib.sha256()
    for value in constants:
        digest.update(value.array.tobytes())
    assert (len(constants), sum(v.array.size for v in constants)) == CONSTANTS[name]
    assert digest.hexdigest() == WEIGHTS[name]


def parameters(model: Model) -> dict[Node, list[str]]:
    """The constants behind the parameters of each BatchNormalization, followed back through Identity."""
    found: dict[Node, list[str]] = {}
    for node in model.graph.nodes:
        if node.op == "BatchNormalization":
            behind = []
            for value in node.inputs[1:]:
                while value is not None and value.producer is not None and value.producer.op == "Identity":
                    value = value.producer.input(0)
                assert value is not None and value.is_const
                behind.append(value.name)
            found[node] = behind
    return found


def test_what_the_exporter_shared_stays_shared() -> None:
    shared = parameters(load(zoo.path("resnet18")))
    # A fresh network's scales and variances are all ones, its shifts and means all zeros: one constant for each width.
    assert all(scale == var and shift == mean for scale, shift, mean, var in shared.values())
    readers = Counter(name for names in shared.values() for name in names)
    assert sorted(readers.values()) == [10] * 8


@pytest.mark.parametrize("name", OPERATORS)
def test_normalisations_do_something(name: str) -> None:
    arrays = {v.name: v.array for v in load(zoo.path(name)).graph.constants}
    for scale, shift, mean, var in parameters(load(zoo.path(name))).values():
        assert arrays[var].min() >= 0.5 and arrays[var].max() <= 1.5
        assert all(0.1 < arrays[label].std() < 0.4 for label in (scale, shift, mean, var))


@pytest.mark.parametrize("name", OPERATORS)
def test_activations_neither_explode_nor_vanish(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    proto = to_proto(load(zoo.path(name)))
    relus = [node.output[0] for node in proto.graph.node if node.op_type == "Relu"]
    proto.graph.output.extend(onnx.helper.make_empty_tensor_value_info(label) for label in relus)
    shape = (1, 3, 224, 224) if name == "resnet18" else (64, 4)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    answer, *hidden = session.run(None, {"input": x})
    assert np.isfinite(answer).all() and (0.3 if name == "resnet18" else 0.05) < answer.std() < 3
    assert all(0.2 < h.std() < 3 and 0.05 < (h == 0).mean() < 0.7 for h in hidden)


@pytest.mark.parametrize("name", OPERATORS)
def test_stripping_again_changes_no_shape(name: str) -> None:
    model = load(zoo.path(name))
    recipes = strip(model, trained=True)
    stored = {t.name: t for t in onnx.load(zoo.path(name)).graph.initializer}
    assert {v.name for v in recipes} == set(stored)
    assert all(tuple(stored[v.name].dims) == v.shape for v in recipes)
