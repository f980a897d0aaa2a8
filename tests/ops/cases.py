"""The onnx package's own cases for single operators, through loader, inference and interpreter."""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as node_package
import pytest
from onnx import numpy_helper

from fuse.ir.dims import Symbolic
from fuse.ir.dtypes import NAME, STRING
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ir.types import OptionalType, SequenceType, TensorType
from fuse.model.load import load
from fuse.ops import OPERATORS, Info
from fuse.ops.infer import infer_graph, infer_model, infer_node, show_shape
from fuse.ops.record import sizes
from fuse.runtime.interpret import Interpreter

KINDS = {int: "INT", float: "FLOAT", str: "STRING", np.ndarray: "TENSOR", Graph: "GRAPH"}


def node_cases(*ops: str) -> list[Any]:
    """The cases of one node whose operator is among ``ops``, as pytest parameters."""
    prefix = f"{node_package.__name__}."
    for module in pkgutil.walk_packages(node_package.__path__, prefix):
        path = Path(node_package.__path__[0], *module.name.removeprefix(prefix).split(".")).with_suffix(".py")
        if path.exists() and any(f'"{op}"' in path.read_text(encoding="utf-8") for op in ops):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(module.name)
    chosen = {
        case.name: case
        for case in node_package._NodeTestCases
        if "_expanded" not in case.name and [n.op_type for n in case.model.graph.node] in [[op] for op in ops]
    }
    return [pytest.param(case, id=name) for name, case in sorted(chosen.items())]


def plain(value: Any) -> Any:
    """A case's datum as fuse holds it."""
    if isinstance(value, onnx.TensorProto):
        return plain(numpy_helper.to_array(value))
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    array = value if value is None else np.asarray(value)
    return array.astype(object) if array is not None and array.dtype.kind in "US" else array


def check_case(case: Any, exact: bool = False, rtol: float = 1e-5) -> None:
    """Run the case; answers must be right, and what inference says of them true.

    ``exact`` asks that inference names dtype and shape in full once the elements of integer inputs are known; a greater
    ``rtol`` is for the few cases whose answers were typed in with four digits.
    """
    model = load(case.model)
    facts = infer_model(model)
    for given, wanted in case.data_sets:
        names = [v.name for v in model.graph.inputs]
        got = Interpreter(model).run(dict(zip(names, map(plain, given), strict=True)))
        for slot, expected in zip(model.graph.outputs, wanted, strict=True):
            same(got[slot.name], plain(expected), rtol)
            holds(facts.get(slot.value, Info(slot.value.type)), got[slot.name])
        if exact:
            known = infer_graph(model.graph, {}, [fact(plain(x)) for x in given])
            for slot, info in zip(model.graph.outputs, known, strict=True):
                holds(info, got[slot.name])
                assert info.type == fact(got[slot.name]).type


def fact(value: Any) -> Info:
    """All that inference can know of a tensor."""
    return Info(TensorType(value.dtype, value.shape), value if value.dtype.kind in "iub" else None)


def same(got: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Equal dtypes, shapes and values; floats up to rounding."""
    if isinstance(wanted, list):
        assert isinstance(got, list)
        assert len(got) == len(wanted)
        for g, w in zip(got, wanted, strict=True):
            same(g, w, rtol, atol)
        return
    if wanted is None:
        assert got is None
        return
    assert isinstance(got, np.ndarray)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if wanted.dtype == STRING or wanted.dtype.kind in "iub" or wanted.dtype not in NAME:
        assert got.tolist() == wanted.tolist()
        return
    if wanted.dtype.itemsize < 4:  # two ULP, for bfloat16 as in onnx's own runner
        rtol = max(rtol, 2**-6 if wanted.dtype.name == "bfloat16" else 2e-3)
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


def holds(info: Info, value: Any) -> None:
    """What inference said is true of the value."""
    kind = info.type
    if isinstance(kind, OptionalType):
        if value is not None:
            holds(Info(kind.element), value)
        return
    if isinstance(kind, SequenceType):
        assert isinstance(value, list)
        for element in value:
            holds(Info(kind.element), element)
        return
    if not isinstance(kind, TensorType):
        return
    assert isinstance(value, np.ndarray)
    assert kind.dtype in (None, value.dtype)
    if kind.shape is not None:
        assert len(kind.shape) == value.ndim
        assert all(a == b for a, b in zip(kind.shape, value.shape, strict=True) if isinstance(a, int))
    if info.value is not None and info.value.dtype != object:
        assert info.value.tolist() == value.tolist()


def kernel(op: str, *inputs: Any, **attrs: Any) -> Any:
    """The operator's kernel on these inputs."""
    return OPERATORS[op].kernel(*inputs, **attrs)


def infer(op: str, inputs: Sequence[Info | None], outputs: int = 1, run: Any = None, **attrs: Any) -> list[Info]:
    """What inference says of a node of this operator."""
    given = {name: Attr(KINDS.get(type(value), "INTS"), value) for name, value in attrs.items()}
    values = [None if i is None else Value(str(k), i.type) for k, i in enumerate(inputs)]
    return infer_node(Node(op, values, [Value(f"o{i}") for i in range(outputs)], given), inputs, run)


def typed(*shape: Any, dtype: Any = np.float32) -> Info:
    """A tensor of which dtype and shape are known; a dim is a number, a symbol's name, or None."""
    dims = tuple(Symbolic.of(d) if isinstance(d, str) else d for d in shape)
    return Info(TensorType(np.dtype(dtype), dims))


def known(*values: Any) -> Info:
    """A 1-D int64 tensor of known elements; names are symbols."""
    return sizes([Symbolic.of(v) if isinstance(v, str) else v for v in values])


def shape_of(info: Info) -> str:
    """The inferred shape, for comparison with text as in ``[n, 3]``."""
    return show_shape(info.shape)


def ints(*values: int) -> np.ndarray:
    """A 1-D int64 tensor."""
    return np.array(values, dtype=np.int64)
