"""The data file: weights written beside the model, one after the other, where protobuf has no room for them."""

from __future__ import annotations

import math
from typing import Any

import onnx

from fuse.ir.dtypes import CODE, STRING
from fuse.ir.graph import Value
from fuse.ir.types import TensorType
from fuse.model.tensors import pack, stored_bytes

#: Tensors smaller than this stay in the model file all the same.
INLINE_BYTES = 1024
#: Offsets are multiples of this, so that a memory map gives aligned arrays.
ALIGNMENT = 64


def weight(value: Value) -> int:
    """The bytes that a constant takes in a file; 0 for strings, which cannot lie in a data file.  Loads nothing."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.dtype is None or kind.dtype == STRING or kind.shape is None:
        return 0
    return stored_bytes(kind.dtype, math.prod(d if isinstance(d, int) else 0 for d in kind.shape))


class DataWriter:
    """Gives weights their places in the file called ``name``, and writes them there later."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self.parts: list[tuple[int, Value]] = []

    def takes(self, value: Value) -> bool:
        """True for a constant that belongs here."""
        return weight(value) >= INLINE_BYTES

    def tensor(self, value: Value) -> onnx.TensorProto:
        """The tensor of a constant, with a place in this file for its bytes."""
        kind = value.type
        assert isinstance(kind, TensorType) and kind.dtype is not None
        offset, length = -(-self.size // ALIGNMENT) * ALIGNMENT, weight(value)
        self.parts.append((offset, value))
        self.size = offset + length
        proto = onnx.TensorProto(data_type=CODE[kind.dtype], dims=kind.shape)
        proto.data_location = onnx.TensorProto.EXTERNAL
        for key, text in (("location", self.name), ("offset", str(offset)), ("length", str(length))):
            proto.external_data.add(key=key, value=text)
        return proto

    def write(self, file: Any) -> None:
        """Write all weights to ``file``, which is open and empty."""
        for offset, value in self.parts:
            file.write(b"\0" * (offset - file.tell()))
            file.write(pack(value.array))
