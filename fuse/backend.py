"""fuse behind ONNX's own backend interface, so that its official test runner (and any tool that knows it) can drive it.

Source: ``onnx.backend.base``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict

from fuse.errors import InputError
from fuse.ir.model import Model
from fuse.model.load import load
from fuse.runtime.interpret import Interpreter


class FuseRep(BackendRep):  # type: ignore[misc]
    """A loaded model, ready to run many times."""

    def __init__(self, model: Model) -> None:
        self._interpreter = Interpreter(model)
        self._inputs = [value.name for value in model.graph.inputs]
        self._names = [slot.name for slot in model.graph.outputs]
        self._result = namedtupledict("Outputs", self._names)

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """The outputs, by position and name; ``inputs`` is a mapping, a sequence in the inputs' order, or one array."""
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) > len(self._inputs):
                raise InputError(f"{len(given)} inputs are given, the model has {len(self._inputs)}")
            feeds = dict(zip(self._inputs, given, strict=False))
        results = self._interpreter.run(feeds)
        return self._result(*(results[name] for name in self._names))


class FuseBackend(Backend):  # type: ignore[misc]
    """Runs models on fuse's NumPy runtime, on the CPU."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for ``CPU`` alone."""
        return device == "CPU"

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True for every model: what cannot run says so when it is prepared or run."""
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> FuseRep:
        """Load ``model``.  Raises ``ModelError`` for what is wrong in it, ``InputError`` for another device."""
        if not cls.supports_device(device):
            raise InputError(f"there is no device {device!r}", hint="fuse runs on the CPU")
        return FuseRep(load(model))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run one node on its inputs, in operator set ``opset_version`` (the newest where it is not given)."""
        opset = int(kwargs.get("opset_version", onnx.defs.onnx_opset_version()))
        names = list(dict.fromkeys(name for name in node.input if name))
        arrays = [np.asarray(x) for x in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        if len(arrays) != len(names):
            raise InputError(f"the node reads {len(names)} values, {len(arrays)} are given")
        declared = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], node.op_type, declared, results)
        domains = {"": opset, **({node.domain: 1} if node.domain else {})}
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in domains.items()]
        return cls.prepare(onnx.helper.make_model(graph, opset_imports=imports), device).run(arrays)


prepare = FuseBackend.prepare
run_model = FuseBackend.run_model
run_node = FuseBackend.run_node
supports_device = FuseBackend.supports_device
is_compatible = FuseBackend.is_compatible
