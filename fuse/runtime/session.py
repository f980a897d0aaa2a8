"""A session with onnxruntime's interface over fuse's runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuse.errors import InputError
from fuse.ir.dtypes import name_of
from fuse.ir.model import Model
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type
from fuse.model.load import load
from fuse.runtime.interpret import Interpreter
from fuse.runtime.threads import blas_threads
from fuse.zoo import resolve


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output: its name, its type in onnxruntime's spelling, its dims (symbols as strings, None unknown)."""

    name: str
    type: str
    shape: list[int | str | None]


class InferenceSession:
    """Runs one model: a path, bytes, the name of an embedded model, a ``ModelProto``, or a loaded ``Model``.

    ``threads`` is the number of threads of the matrix products (None: what NumPy's BLAS is set to).
    """

    def __init__(self, path_or_model: Any, *, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads is {threads}; at least one is needed")
        self._model: Model = load(resolve(path_or_model))
        self._interpreter = Interpreter(self._model)
        self._threads = threads

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that must be fed, in order; those with a default are left out."""
        return [_arg(v.name, v.type) for v in self._model.graph.inputs if v.data is None]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """The inputs that have a default."""
        return [_arg(v.name, v.type) for v in self._model.graph.inputs if v.data is not None]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in order."""
        return [_arg(slot.name, slot.type or slot.value.type) for slot in self._model.graph.outputs]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """The outputs named (all for None), in that order, as arrays."""
        with blas_threads(self._threads):
            results = self._interpreter.run(input_feed, output_names)
        names = [slot.name for slot in self._model.graph.outputs] if output_names is None else output_names
        return [results[name] for name in names]


def _arg(name: str, kind: Type | None) -> NodeArg:
    shape = kind.shape if isinstance(kind, (TensorType, SparseType)) else None
    dims = [d if d is None or isinstance(d, int) else d.name or str(d) for d in shape or ()]
    return NodeArg(name, _spelled(kind), dims)


def _spelled(kind: Type | None) -> str:
    if isinstance(kind, (TensorType, SparseType)) and kind.dtype is not None:
        return f"{'sparse_' * isinstance(kind, SparseType)}tensor({name_of(kind.dtype)})"
    if isinstance(kind, SequenceType):
        return f"seq({_spelled(kind.element)})"
    if isinstance(kind, OptionalType):
        return f"optional({_spelled(kind.element)})"
    if isinstance(kind, MapType):
        return f"map({name_of(kind.key)},{_spelled(kind.value)})"
    return "unknown"
