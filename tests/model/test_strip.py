from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuse.errors import FuseError
from fuse.ir.graph import Value
from fuse.ir.model import Model
from fuse.model.load import load
from fuse.model.recipe import Recipe
from fuse.model.save import save, to_proto
from fuse.model.strip import forget, strip

RNG = np.random.default_rng(0)


def model_of(nodes: list[Any], constants: dict[str, Any], shape: Any = ("n", 4), **more: Any) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, **more)


def by_name(recipes: dict[Value, Recipe]) -> dict[str, Recipe]:
    return {value.name: recipe for value, recipe in recipes.items()}


def told(proto: onnx.ModelProto, **options: Any) -> dict[str, Recipe]:
    return by_name(strip(load(proto), **options))


def reloaded(model: Model, recipes: dict[Value, Recipe], tmp_path: Path) -> dict[str, Any]:
    again = load(save(model, tmp_path / "small.onnx", recipes=recipes))
    return {v.name: v.array for g in again.graphs() for s in g.walk_graphs() for v in s.constants}


# ---- what is replaced


def test_large_constants_are_replaced_and_small_ones_kept(tmp_path: Path) -> None:
    weight, shape = RNG.standard_normal((64, 4)).astype(np.float32), np.array([-1, 64])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Add", ["b", "e"], ["y"]),
    ]
    proto = model_of(nodes, {"w": weight.T, "s": shape, "e": weight[:, 0]})
    assert set(told(proto)) == {"w"}
    assert set(told(proto, keep_below=256)) == {"w", "e"} and set(told(proto, keep_below=257)) == {"w"}
    assert set(told(proto, keep_below=0)) == {"w", "e", "s"}
    model = load(proto)
    before = to_proto(model).SerializeToString()
    recipes = strip(model)
    assert to_proto(model).SerializeToString() == before
    file = save(model, tmp_path / "small.onnx", recipes=recipes)
    stored = onnx.load(file, load_external_data=False)
    tensors = {t.name: t for t in stored.graph.initializer}
    assert not tensors["w"].raw_data and [p.key for p in tensors["w"].metadata_props] == ["fuse.recipe"]
    assert [(p.key, p.value) for p in stored.metadata_props] == [("fuse.stripped", "1")]
    arrays = reloaded(model, recipes, tmp_path)
    assert arrays["s"].tolist() == [-1, 64] and (arrays["e"] == weight[:, 0]).all()
    assert arrays["w"].shape == (4, 64) and not (arrays["w"] == weight.T).any()
    assert abs(arrays["w"].std() / weight.std() - 1) < 0.15
    assert weight.min() <= arrays["w"].min() and arrays["w"].max() <= weight.max()
    whole = to_proto(load(file))
    assert not whole.metadata_props and not any(t.metadata_props for t in whole.graph.initializer)


def test_equal_constants_stay_equal(tmp_path: Path) -> None:
    weight = RNG.standard_normal(300).astype(np.float32)
    other = weight.copy()
    other[7] += 1
    nodes = [helper.make_node("Sum", ["x", "a", "b", "c", "d"], ["y"])]
    model = load(model_of(nodes, {"a": weight, "b": weight, "c": other, "d": weight.reshape(300, 1)}))
    arrays = reloaded(model, strip(model), tmp_path)
    assert arrays["a"].tobytes() == arrays["b"].tobytes() == arrays["d"].tobytes()
    assert not (arrays["a"] == arrays["c"]).any()


def test_same_bytes_of_another_dtype_are_not_equal() -> None:
    bits = RNG.integers(1, 1 << 20, 300)
    nodes = [
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["d"], ["g"], to=TensorProto.FLOAT),
        helper.make_node("Sum", ["x", "f", "g"], ["y"]),
    ]
    recipes = told(model_of(nodes, {"i": bits, "d": bits.view(np.float64)}))
    assert recipes["i"].seed != recipes["d"].seed


def test_indices_masks_and_constants_keep_what_they_mean(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["t", "i"], ["a"]),
        helper.make_node("Where", ["m", "x", "o"], ["b"]),
        helper.make_node("Sum", ["a", "b"], ["y"]),
    ]
    constants = {
        "t": RNG.standard_normal((50, 4)).astype(np.float32),
        "i": RNG.integers(0, 50, 400),
        "m": RNG.random(1200) < 0.9,
        "o": np.full(400, -np.inf, np.float32),
    }
    model = load(model_of(nodes, constants))
    arrays = reloaded(model, strip(model, keep_below=500), tmp_path)
    assert arrays["i"].min() >= 0 and arrays["i"].max() < 50 and arrays["i"].dtype == np.int64
    assert abs(arrays["m"].mean() - 0.9) < 0.05
    assert (arrays["o"] == -np.inf).all()


def test_subgraphs_functions_and_defaults_are_reached() -> None:
    big = RNG.standard_normal(300).astype(np.float32)
    branch = [
        helper.make_graph(
            [helper.make_node("Add", ["x", name], [f"{name}_out"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(big + k, name)],
        )
        for k, name in enumerate(("then", "else"))
    ]
    inner = [
        helper.make_node("Constant", [], ["in_function"], value=numpy_helper.from_array(big + 2)),
        helper.make_node("Add", ["v", "in_function"], ["w"]),
    ]
    function = helper.make_function("own", "Shift", ["v"], ["w"], inner, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("If", ["c"], ["a"], then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("Shift", ["a"], ["b"], domain="own"),
        helper.make_node("Add", ["b", "default"], ["y"]),
    ]
    proto = model_of(nodes, {"c": np.array(True), "default": big + 3}, functions=[function])
    proto.opset_import.add(domain="own", version=1)
    proto.graph.input.append(helper.make_tensor_value_info("default", TensorProto.FLOAT, [300]))
    assert set(told(proto)) == {"then", "else", "in_function", "default"}


@pytest.mark.parametrize("attribute", ["value", "value_floats"])
def test_constant_nodes_lose_their_weights_too(attribute: str, tmp_path: Path) -> None:
    weight = RNG.standard_normal(300).astype(np.float32)
    held = numpy_helper.from_array(weight) if attribute == "value" else weight.tolist()
    nodes = [helper.make_node("Constant", [], ["w"], **{attribute: held}), helper.make_node("Add", ["x", "w"], ["y"])]
    model = load(model_of(nodes, {}, ("n", 300)))
    recipes = strip(model)
    file = save(model, tmp_path / "small.onnx", recipes=recipes)
    assert weight[5:8].tobytes() not in file.read_bytes() and file.stat().st_size < 600
    array = reloaded(model, recipes, tmp_path)["w"]
    assert array.shape == (300,) and array.dtype == np.float32 and not (array == weight).any()
    assert b"fuse.recipe" not in to_proto(load(file)).SerializeToString()


def test_sparse_constants_lose_their_weights_too(tmp_path: Path) -> None:
    values, places = RNG.standard_normal(200).astype(np.float32), np.arange(0, 600, 3)
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {}, ("n", 600))
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(numpy_helper.from_array(values, "w"), numpy_helper.from_array(places), [600])
    )
    model = load(proto)
    recipes = strip(model)
    file = save(model, tmp_path / "small.onnx", recipes=recipes)
    assert values[5:8].tobytes() not in file.read_bytes()
    assert reloaded(model, recipes, tmp_path)["w"].shape == (600,)


@pytest.mark.parametrize(
    ("text", "dims", "reason"),
    [
        ('{"kind":"normal","seed":0}', [2], "lacks the key 'mean'"),
        ('{"kind":"uniform","seed":0,"low":0.0,"high":1e39}', [2], "has numbers that the type float does not hold"),
        ('{"kind":"text"}', [2], "of kind 'text' cannot make the type float"),
        ('{"kind":"uniform","seed":0,"low":0.0,"high":1.0}', [1 << 40], "a stripped tensor of shape"),
    ],
)
def test_a_recipe_is_held_against_its_tensor_at_loading(text: str, dims: list[int], reason: str) -> None:
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], {}, ("n", 1))
    tensor = proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=dims)
    tensor.metadata_props.add(key="fuse.recipe", value=text)
    with pytest.raises(FuseError, match=f"initializer 'w': .*{reason}"):
        load(proto)


def test_attributes_of_older_versions_are_no_tensors() -> None:
    proto = model_of([helper.make_node("Squeeze", ["x"], ["y"], axes=[1, 2])], {}, ("n", 1, 1))
    proto.opset_import[0].version = 11
    assert told(proto, keep_below=0) == {}


# ---- a trained network's statistics


def sharing_model() -> onnx.ModelProto:
    """Two Conv + BatchNormalization; equal parameters are shared through Identity, as the exporter leaves them."""
    norm = ["ones", "zeros", "mean", "var"]
    nodes = [
        helper.make_node("Identity", ["ones"], ["var"]),
        helper.make_node("Identity", ["zeros"], ["mean"]),
        helper.make_node("Identity", ["mean"], ["shift_2"]),
        helper.make_node("Conv", ["x", "w1"], ["a"]),
        helper.make_node("BatchNormalization", ["a", *norm], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "ones", "shift_2", "mean", "var"], ["y"]),
    ]
    weights = {f"w{i}": RNG.standard_normal((8, 8, 3, 3)).astype(np.float32) for i in (1, 2)}
    flat = {"ones": np.ones(8, np.float32), "zeros": np.zeros(8, np.float32)}
    return model_of(nodes, weights | flat, (1, 8, 9, 9))


def test_own_statistics_of_a_fresh_network_are_trivial() -> None:
    recipes = told(sharing_model(), keep_below=0)
    assert recipes["ones"] == Recipe("constant", value=(1.0,)) and recipes["zeros"] == Recipe("constant", value=(0.0,))


def test_trained_statistics_replace_small_parameters_and_keep_sharing(tmp_path: Path) -> None:
    model = load(sharing_model())
    recipes = strip(model, trained=True)
    assert set(by_name(recipes)) == {"ones", "zeros", "w1", "w2"}  # one recipe each, however many read it
    arrays = reloaded(model, recipes, tmp_path)
    assert arrays["ones"].min() >= 0.5 and arrays["ones"].max() <= 1.5 and arrays["ones"].std() > 0.1
    assert arrays["zeros"].std() > 0.05 and abs(arrays["zeros"]).max() <= 0.8
    again = load(tmp_path / "small.onnx")
    assert [n.op for n in again.graph.nodes] == [n.op for n in model.graph.nodes]
    assert len(again.graph.constants) == 4


def test_parameters_that_are_not_shared_become_different() -> None:
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s1", "z", "z2", "v"], ["a"]),
        helper.make_node("BatchNormalization", ["a", "s2", "z", "z2", "v"], ["y"]),
    ]
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    recipes = told(model_of(nodes, {"s1": ones, "s2": ones, "v": ones, "z": zeros, "z2": zeros}), trained=True)
    assert len({r.seed for r in recipes.values()}) == 5
    assert recipes["v"].kind == "uniform" and recipes["v"].low > 0 and recipes["s1"].mean == 1.0


@pytest.mark.parametrize(
    ("op", "attributes", "index", "shape", "fan_in"),
    [
        ("Conv", {"group": 2}, 1, (6, 4, 3, 5), 60),
        ("Conv", {}, 1, (6, 4, 7), 28),
        ("ConvTranspose", {"group": 2, "strides": [2, 2]}, 1, (8, 3, 4, 4), 16),
        ("Gemm", {}, 1, (30, 7), 30),
        ("Gemm", {"transB": 1}, 1, (30, 7), 7),
        ("Gemm", {"transA": 1}, 0, (30, 7), 30),
        ("Gemm", {}, 0, (30, 7), 7),
        ("MatMul", {}, 1, (5, 30, 7), 30),
        ("MatMul", {}, 0, (5, 30, 7), 7),
    ],
)
def test_weights_are_scaled_by_their_fan_in(
    op: str, attributes: dict[str, Any], index: int, shape: tuple[int, ...], fan_in: int
) -> None:
    inputs = ["x", "carried"] if index else ["carried", "x"]
    nodes = [helper.make_node("Identity", ["w"], ["carried"]), helper.make_node(op, inputs, ["y"], **attributes)]
    recipe = told(model_of(nodes, {"w": RNG.standard_normal(shape).astype(np.float32)}, None), trained=True)["w"]
    assert recipe.kind == "normal" and recipe.mean == 0
    assert recipe.std == pytest.approx(math.sqrt(2 / fan_in), rel=1e-12)


def test_weights_in_front_of_a_normalisation_have_gain_one() -> None:
    assert told(sharing_model(), trained=True)["w1"].std == pytest.approx(math.sqrt(1 / 72), rel=1e-12)


def test_fan_in_follows_a_transpose_and_the_widest_reader_decides() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    recipe = told(model_of(nodes, {"w": RNG.standard_normal((40, 4)).astype(np.float32)}), trained=True)["w"]
    assert recipe.std == pytest.approx(math.sqrt(2 / 40), rel=1e-12)


def test_constants_without_a_role_keep_their_own_statistics() -> None:
    nodes = [helper.make_node("Add", ["x", "table"], ["a"]), helper.make_node("MatMulInteger", ["q", "q2"], ["i"])]
    nodes += [helper.make_node("Cast", ["i"], ["f"], to=1), helper.make_node("Add", ["a", "f"], ["y"])]
    q = RNG.integers(0, 9, (64, 64)).astype(np.uint8)
    table = np.linspace(5, 9, 400, dtype=np.float32)
    recipes = told(model_of(nodes, {"table": table, "q": q, "q2": q + 1}), trained=True)
    assert (recipes["table"].low, recipes["table"].high) == (5.0, 9.0)
    assert (recipes["q"].kind, recipes["q"].low, recipes["q"].high) == ("uniform", 0, 8)


def test_broken_shapes_are_no_fault_of_strip() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], perm=[0, 5]),
        helper.make_node("Gemm", ["x", "t"], ["a"]),
        helper.make_node("Conv", ["a", "v"], ["y"], strides=[0]),
    ]
    constants = {"w": np.ones((3, 4), np.float32), "v": np.ones(4, np.float32)}
    assert set(told(model_of(nodes, constants), trained=True)) == {"w"}


# ---- notes


def test_forget_removes_paths_and_traces_and_nothing_else() -> None:
    bare = sharing_model()
    noted = onnx.ModelProto()
    noted.CopyFrom(bare)
    path = "/home/someone/secret.py"
    noted.doc_string = noted.graph.doc_string = path
    noted.metadata_props.add(key="trace", value=path)
    for part in (*noted.graph.node, *noted.graph.initializer, *noted.graph.input, *noted.graph.output):
        part.doc_string = path
        part.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=path)
    constant = helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(2)), doc_string=path)
    constant.attribute[0].doc_string = constant.attribute[0].t.doc_string = path
    noted.graph.node.append(constant)
    bare.graph.node.append(helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(2))))
    for proto in (noted, bare):
        proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None, path))
    bare.graph.value_info[0].ClearField("doc_string")
    model = load(noted)
    assert forget(model) > 30
    assert path.encode() not in to_proto(model).SerializeToString()
    assert to_proto(model).SerializeToString(deterministic=True) == to_proto(load(bare)).SerializeToString(
        deterministic=True
    )
    assert forget(load(bare)) == 0
