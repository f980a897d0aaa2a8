"""The second opinion: onnxruntime, its own optimisations switched off, on the bytes of a model."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuse.errors import InputError, UnsupportedError
from fuse.ir.dtypes import BY_NAME, CODE
from fuse.ir.model import Model
from fuse.limits import DEFAULT
from fuse.model.save import save, to_proto

NAME = "onnxruntime"


def installed() -> bool:
    """True where onnxruntime can be imported; it is not imported for the question."""
    return importlib.util.find_spec(NAME) is not None


def require() -> None:
    """Raise ``InputError`` unless onnxruntime is there."""
    if not installed():
        raise InputError("onnxruntime is not installed", hint='pip install "fuse-onnx[ort]", or verify without it')


class Peer:
    """A session of onnxruntime on ``model`` as it would be saved, without optimisations of onnxruntime's own.

    Raises ``UnsupportedError`` with onnxruntime's first line where it cannot load the model.
    """

    def __init__(self, model: Model) -> None:
        import onnxruntime  # a second of work that only this opinion needs

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # fuse's own runs come in between
        self.version: str = onnxruntime.__version__
        try:
            self._session = open_session(model, options)
        except Exception as error:  # onnxruntime raises a class of its own for each status code
            raise _refused("cannot load the model", error) from None
        self._inputs = {v.name for v in self._session.get_inputs()}
        self._inputs |= {v.name for v in self._session.get_overridable_initializers()}

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name.  Raises ``UnsupportedError`` where onnxruntime fails, with its first line."""
        try:
            results = self._session.run(None, {n: _given(v) for n, v in feeds.items() if n in self._inputs})
        except Exception as error:
            raise _refused("cannot run the model", error) from None
        return {o.name: _taken(v, o.type) for o, v in zip(self._session.get_outputs(), results, strict=True)}


def _given(value: Any) -> Any:
    """A feed as onnxruntime takes it: types that NumPy lacks go as raw bits with ONNX's number beside them."""
    if not isinstance(value, np.ndarray) or value.dtype.isbuiltin != 2:
        return value
    import onnxruntime

    bits = np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, CODE[value.dtype])


def _taken(value: Any, kind: str) -> Any:
    """An answer in fuse's dtypes: those that NumPy lacks come back as raw bits."""
    dtype = BY_NAME.get(kind.removeprefix("tensor(").removesuffix(")"))
    if dtype is None or dtype.isbuiltin != 2 or not isinstance(value, np.ndarray):
        return value
    return value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value


def open_session(model: Model, options: Any) -> Any:
    """A session of onnxruntime on ``model`` as it would be saved, its weights beside it where they are too large."""
    import onnxruntime

    providers = ["CPUExecutionProvider"]
    defaults = sum(v.nbytes for v in model.graph.inputs if v.data is not None)
    if model.weight_bytes() + defaults <= DEFAULT.protobuf_bytes:
        return onnxruntime.InferenceSession(to_proto(model).SerializeToString(), options, providers=providers)
    with tempfile.TemporaryDirectory(prefix="fuse-", ignore_cleanup_errors=True) as directory:
        path = save(model, Path(directory) / "model.onnx", external_data=True)
        return onnxruntime.InferenceSession(str(path), options, providers=providers)


def _refused(what: str, error: Exception) -> UnsupportedError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = lines[0].split(" : ", 3)[-1].strip()
    return UnsupportedError(f"{NAME} {what}: {text[:200]}")
