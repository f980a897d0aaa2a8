"""Strip: a recipe in the place of each large constant, so that a model can be shared without its weights.

Which values shared a constant still do, and constants that held the same bytes get the same seed and so stay equal:
what a compiler can merge before stripping it can merge after.  Small constants (shapes, axes, indices, scalars) decide
what a graph means, and stay as they are.

A freshly exported network has never been trained, and its normalisations do nothing: scale 1, shift 0, mean 0,
variance 1.  ``trained=True`` gives each parameter the statistics of a trained one instead, by the part it plays: its
*role*, found by following the constant to the operators that read it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from fuse.ir.dtypes import FLOATING, STRING, Array
from fuse.ir.graph import Graph, Node, Value
from fuse.ir.model import Model
from fuse.ir.types import Shape, TensorType
from fuse.model.recipe import STRING_BYTES, Recipe, describe
from fuse.ops.spelling import FROM_ATTRIBUTE

#: Operators that hand a parameter on: the values are the same, and Transpose only moves them.
_CARRIERS = frozenset({"Identity", "Cast", "Transpose"})

#: Which input of which operator is a parameter, and of what kind.
ROLES: dict[tuple[str, int], str] = {
    ("Conv", 1): "weight",
    ("Conv", 2): "bias",
    ("ConvTranspose", 1): "weight",
    ("ConvTranspose", 2): "bias",
    ("Gemm", 0): "weight",
    ("Gemm", 1): "weight",
    ("Gemm", 2): "bias",
    ("MatMul", 0): "weight",
    ("MatMul", 1): "weight",
    ("BatchNormalization", 1): "scale",
    ("BatchNormalization", 2): "shift",
    ("BatchNormalization", 3): "mean",
    ("BatchNormalization", 4): "variance",
    ("InstanceNormalization", 1): "scale",
    ("InstanceNormalization", 2): "shift",
    ("GroupNormalization", 1): "scale",
    ("GroupNormalization", 2): "shift",
    ("LayerNormalization", 1): "scale",
    ("LayerNormalization", 2): "shift",
}


@dataclass(frozen=True, slots=True)
class Role:
    """The part that a constant plays for one reader; ``variance`` is what a weight's elements should have."""

    name: str
    variance: float = 0.0


def strip(model: Model, *, keep_below: int = 1024, trained: bool = False) -> dict[Value, Recipe]:
    """The recipe of each constant that the saver shall leave out: ``save(model, path, recipes=strip(model))``.

    Constants (and defaults of inputs) of fewer than ``keep_below`` bytes are kept.  With ``trained``, every parameter
    that has a role is replaced, small ones too, and gets a trained network's statistics; the others keep their own.
    The model itself stays as it is.
    """
    recipes: dict[Value, Recipe] = {}
    seeds: dict[bytes, int] = {}
    for value in _constants(model):
        roles = list(_roles(value)) if trained else []
        array = value.array
        if not roles and _size(array) < keep_below:
            continue
        own = describe(array)
        # Parameters are born equal (all zeros, all ones); training makes them differ unless they are one value.
        fresh = bool(roles) and own.kind == "constant"
        key = len(recipes).to_bytes(8, "little") if fresh else _fingerprint(array)
        seed = seeds.setdefault(key, len(seeds))
        recipes[value] = _of_roles(roles, seed) if roles else describe(array, seed)
    return recipes


def _constants(model: Model) -> Iterator[Value]:
    for body in model.graphs():
        for graph in body.walk_graphs():
            # What an older operator version has as an attribute is no tensor of the file.
            yield from (v for v in graph.constants if v.origin is None or v.origin.attribute != FROM_ATTRIBUTE)
            yield from (v for v in graph.inputs if v.data is not None)


def _size(array: Array) -> int:
    return array.size * (STRING_BYTES if array.dtype == STRING else array.dtype.itemsize)


def _fingerprint(array: Array) -> bytes:
    digest = hashlib.sha256(array.dtype.name.encode())
    if array.dtype == STRING:
        digest.update("\0".join(map(str, array.ravel())).encode("utf-8", "surrogatepass"))
    else:
        digest.update(np.ravel(array).view(np.uint8).data)
    return digest.digest()


# ---- notes


def forget(model: Model) -> int:
    """Remove documentation strings and metadata, in place; returns how many.

    Exporters write stack traces and paths of the machine they ran on into both.  Neither has a meaning for the graph.
    """
    removed = _scrub(model, "extra", onnx.ModelProto)
    for function in model.functions.values():
        removed += _scrub(function, "extra", onnx.FunctionProto)
        removed += sum(_scrub(attr, "extra", onnx.AttributeProto) for attr in function.defaults.values())
    for body in model.graphs():
        for graph in body.walk_graphs():
            removed += _forget_graph(graph)
    return removed


def _forget_graph(graph: Graph) -> int:
    removed = _scrub(graph, "extra", onnx.GraphProto)
    removed += sum(_scrub(slot, "info", onnx.ValueInfoProto) for slot in graph.outputs)
    made = [v for node in graph.nodes for v in node.outputs if v is not None]
    for value in (*graph.inputs, *graph.constants, *made):
        removed += _scrub(value, "info", onnx.ValueInfoProto) + _scrub(value, "extra", onnx.TensorProto)
        if value.origin is not None:
            sparse = value.origin.attribute == "sparse_initializer"
            removed += _scrub(value.origin, "extra", onnx.SparseTensorProto if sparse else onnx.NodeProto)
    for node in graph.nodes:
        removed += _scrub(node, "extra", onnx.NodeProto)
        removed += sum(_scrub(attr, "extra", onnx.AttributeProto) for attr in node.attrs.values())
    return removed


def _scrub(holder: Any, field: str, kind: Any) -> int:
    """Clear the notes in the message of type ``kind`` that ``holder`` carries as bytes, and in those inside it."""
    carried = getattr(holder, field)
    if not carried:
        return 0
    whole = kind.FromString(carried)
    removed, stack = 0, [whole]
    while stack:
        message = stack.pop()
        for described, content in message.ListFields():
            if described.name in ("doc_string", "metadata_props"):
                removed += 1
                message.ClearField(described.name)
            elif described.message_type is not None:
                stack.extend(content if isinstance(content, Sequence) else [content])
    if removed:
        setattr(holder, field, whole.SerializeToString())
    return removed


# ---- roles


def _roles(value: Value) -> Iterator[Role]:
    """The roles of a floating-point constant, one for each operator that reads it as a parameter."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype not in FLOATING or kind.shape is None:
        return
    stack: list[tuple[Value, Shape]] = [(value, kind.shape)]
    while stack:
        carried, shape = stack.pop()
        for user, index in carried.uses:
            if not isinstance(user, Node):
                continue
            if user.op in _CARRIERS and index == 0:
                stack.append((user.out, _moved(user, shape)))
                continue
            name = ROLES.get((user.op, index), "")
            if name and name != "weight":
                yield Role(name)
            elif name and len(shape) > 1:
                yield Role(name, _gain(user) / max(1.0, _FAN_IN[user.op](user, index, _numbers(shape))))


def _moved(node: Node, shape: Shape) -> Shape:
    if node.op != "Transpose":
        return shape
    perm = node.attrs.get("perm")
    if perm is None or sorted(perm.value) != list(range(len(shape))):
        return shape[::-1]
    return tuple(shape[axis] for axis in perm.value)


def _numbers(shape: Shape) -> tuple[int, ...]:
    return tuple(dim for dim in shape if isinstance(dim, int))


def _gain(node: Node) -> float:
    """What a weight multiplies the mean square by: 1 in front of a BatchNormalization, whose variance is about 1.

    Otherwise 2, because a ReLU halves the mean square of what passes it (He et al., "Delving deep into rectifiers",
    2015).  Activations so keep their size from layer to layer.
    """
    return 1.0 if any(isinstance(u, Node) and u.op == "BatchNormalization" for u in node.out.readers) else 2.0


def _conv(node: Node, index: int, shape: tuple[int, ...]) -> float:
    return math.prod(shape[1:])


def _conv_transpose(node: Node, index: int, shape: tuple[int, ...]) -> float:
    """Input channels of a group, times the kernel's taps that meet in one output element on average."""
    group, strides = node.attrs.get("group"), node.attrs.get("strides")
    taps = math.prod(shape[2:]) / max(1, math.prod(strides.value) if strides is not None else 1)
    return shape[0] / max(1, group.value if group is not None else 1) * taps


def _gemm(node: Node, index: int, shape: tuple[int, ...]) -> float:
    transposed = node.attrs.get("transB" if index else "transA")
    return shape[(1 + index + bool(transposed is not None and transposed.value)) % 2]


def _matmul(node: Node, index: int, shape: tuple[int, ...]) -> float:
    return shape[-2] if index else shape[-1]


_FAN_IN: dict[str, Callable[[Node, int, tuple[int, ...]], float]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}


def _of_roles(roles: list[Role], seed: int) -> Recipe:
    """The statistics of a trained parameter that plays all of ``roles``: the pickiest of them decides."""
    names = {role.name for role in roles}
    if "variance" in names:
        return Recipe("uniform", seed, low=0.5, high=1.5)
    if "scale" in names:
        return _bell(seed, 1.0, 0.15)
    if "weight" in names:
        return _bell(seed, 0.0, math.sqrt(min(role.variance for role in roles if role.name == "weight")))
    return _bell(seed, 0.0, 0.2 if names & {"shift", "mean"} else 0.05)


def _bell(seed: int, mean: float, std: float) -> Recipe:
    return Recipe("normal", seed, mean=mean, std=std, low=mean - 4 * std, high=mean + 4 * std)
