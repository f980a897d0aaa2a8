"""Tensors and types between protobuf and NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from fuse.errors import LimitError, ModelError
from fuse.ir.dims import Dim, Symbolic
from fuse.ir.dtypes import BY_CODE, CODE, PACKED_BITS, STRING, Array, DType
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type
from fuse.limits import DEFAULT, Limits
from fuse.model import recipe
from fuse.model.external import DataFiles

RECIPE_KEY = "fuse.recipe"
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_FIELD_OF = {
    **{code: "int32_data" for code in (2, 3, 4, 5, 6, 9, 10, 16, *range(17, 29))},
    1: "float_data",
    14: "float_data",
    7: "int64_data",
    8: "string_data",
    11: "double_data",
    15: "double_data",
    12: "uint64_data",
    13: "uint64_data",
}


def dtype_of(code: int) -> DType:
    """The NumPy dtype of ONNX's element type number."""
    if code not in BY_CODE:
        raise ModelError(f"element type {code} is not one that ONNX defines")
    return BY_CODE[code]


def stored_bytes(dtype: DType, count: int) -> int:
    """Bytes that ``count`` elements take in a file."""
    return -(-count * PACKED_BITS[dtype] // 8) if dtype in PACKED_BITS else count * dtype.itemsize


def read_tensor(
    proto: onnx.TensorProto, files: DataFiles, limits: Limits = DEFAULT
) -> tuple[TensorType, Array | Callable[[], Array]]:
    """The tensor's type and its array, or a function that loads the array.  Refuses what does not add up."""
    dtype = dtype_of(proto.data_type)
    shape = tuple(proto.dims)
    if len(shape) > limits.rank:
        raise ModelError(f"rank {len(shape)}: NumPy handles {limits.rank} dimensions")
    if any(d < 0 for d in shape):
        raise ModelError(f"dims {list(shape)} are negative")
    count = math.prod(shape)
    filled = [f for f in _DATA_FIELDS if len(getattr(proto, f))]
    external = proto.data_location == onnx.TensorProto.EXTERNAL
    if len(filled) + proto.HasField("raw_data") + external > 1:
        raise ModelError("more than one field holds the tensor's data")
    kind = TensorType(dtype, shape)
    if external:
        size = stored_bytes(dtype, count)
        view = files.read([(e.key, e.value) for e in proto.external_data], size)
        return kind, lambda: _from_bytes(view, dtype, shape)
    if proto.HasField("raw_data"):
        return kind, _from_raw(proto, dtype, shape, count)
    if filled:
        return kind, _from_fields(proto, filled[0], dtype, shape, count)
    described = [p.value for p in proto.metadata_props if p.key == RECIPE_KEY]
    if described:
        told = recipe.from_json(described[0])
        return kind, lambda: recipe.materialize(told, shape, dtype)
    if count:
        hint = "a model without its weights cannot be loaded; `fuse strip` leaves a recipe in their place"
        raise ModelError(f"dims {list(shape)} promise {count} elements and there is no data", hint=hint)
    return kind, np.zeros(shape, dtype)


def _from_raw(proto: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], count: int) -> Array:
    if dtype == STRING:
        raise ModelError("a string tensor cannot have raw data")
    raw = proto.raw_data
    if len(raw) != stored_bytes(dtype, count):
        need = stored_bytes(dtype, count)
        raise ModelError(f"raw data has {len(raw)} bytes where dtype and dims need {need}")
    return _from_bytes(memoryview(raw), dtype, shape)


def _from_bytes(view: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype == STRING:
        raise ModelError("a string tensor cannot have external data")
    count = math.prod(shape)
    if dtype in PACKED_BITS:
        return _unpack(np.frombuffer(view, np.uint8), dtype, count).reshape(shape)
    if dtype.kind == "b":
        return (np.frombuffer(view, np.uint8) != 0).reshape(shape)
    flat = np.frombuffer(view, dtype.newbyteorder("<") if dtype.itemsize > 1 and dtype.isbuiltin else dtype)
    return flat.astype(dtype, copy=not flat.flags.aligned).reshape(shape)


def _unpack(packed: Array, dtype: DType, count: int) -> Array:
    bits = PACKED_BITS[dtype]
    lanes = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    codes = np.stack(lanes, axis=-1).reshape(-1)[:count]
    if dtype.name.startswith("int"):
        signed = codes.astype(np.int8)
        return np.where(signed >= 1 << (bits - 1), signed - (1 << bits), signed).astype(dtype)
    return codes.astype(dtype) if dtype.name.startswith("uint") else codes.view(dtype)


def pack(array: Array) -> bytes:
    """The array's bytes as a file has them: little-endian, sub-byte types packed from the low bits up."""
    bits = PACKED_BITS.get(array.dtype)
    if bits is None:
        little = array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))
        return little.tobytes()
    lanes = 8 // bits
    plain = array.dtype.name.startswith(("int", "uint"))
    codes = array.reshape(-1).astype(np.int8).view(np.uint8) if plain else array.reshape(-1).view(np.uint8)
    padded = np.zeros(-(-codes.size // lanes) * lanes, np.uint8)
    padded[: codes.size] = codes & ((1 << bits) - 1)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(padded.reshape(-1, lanes) << shifts, axis=1).astype(np.uint8).tobytes()


def _from_fields(proto: onnx.TensorProto, field: str, dtype: DType, shape: tuple[int, ...], count: int) -> Array:
    if _FIELD_OF.get(proto.data_type) != field:
        raise ModelError(f"{field} does not hold elements of type {onnx.TensorProto.DataType.Name(proto.data_type)}")
    have = len(getattr(proto, field))
    need = count * 2 if dtype.kind == "c" else count
    if dtype in PACKED_BITS:
        need = stored_bytes(dtype, count)
    if have != need:
        raise ModelError(f"{field} has {have} entries where dims {list(shape)} need {need}")
    if dtype == STRING:
        texts = np.empty(count, dtype=object)
        texts[:] = [s.decode("utf-8", "surrogateescape") for s in proto.string_data]
        return texts.reshape(shape)
    if dtype in PACKED_BITS:
        return _unpack(np.array(proto.int32_data, np.int64).astype(np.uint8), dtype, count).reshape(shape)
    if dtype.kind == "b":
        return (np.array(proto.int32_data, np.int64) != 0).reshape(shape)
    return np.asarray(numpy_helper.to_array(proto)).astype(dtype, copy=False).reshape(shape)


def write_tensor(array: Array, name: str = "") -> onnx.TensorProto:
    """The array as a proto with its bytes inside."""
    proto = onnx.TensorProto(data_type=CODE[array.dtype], dims=array.shape)
    if name:
        proto.name = name
    if array.dtype == STRING:
        proto.string_data.extend(str(s).encode("utf-8", "surrogateescape") for s in array.reshape(-1))
    else:
        proto.raw_data = pack(array)
    return proto


def densify(proto: onnx.SparseTensorProto, files: DataFiles, limits: Limits = DEFAULT) -> Array:
    """The dense array of a sparse tensor, within ``limits.dense_bytes``."""
    kind, data = read_tensor(proto.values, files, limits)
    values = data() if callable(data) else data
    _, places = read_tensor(proto.indices, files, limits)
    indices = np.asarray(places() if callable(places) else places)
    shape, dtype = tuple(proto.dims), kind.dtype
    assert dtype is not None
    count = math.prod(shape)
    if any(d < 0 for d in shape) or len(shape) > limits.rank:
        raise ModelError(f"a sparse tensor has dims {list(shape)}")
    if count * dtype.itemsize > limits.dense_bytes:
        raise LimitError(f"a sparse tensor of dims {list(shape)} is too large to make dense")
    if indices.dtype != np.int64 or indices.ndim not in (1, 2) or len(indices) != values.size:
        raise ModelError("a sparse tensor needs one int64 index for each value")
    flat = indices if indices.ndim == 1 else np.zeros(len(indices), np.int64)
    if indices.ndim == 2:
        if indices.shape[1] != len(shape):
            raise ModelError(f"sparse indices have {indices.shape[1]} columns for rank {len(shape)}")
        for axis, size in enumerate(shape):
            if ((indices[:, axis] < 0) | (indices[:, axis] >= size)).any():
                raise ModelError(f"a sparse index lies outside dims {list(shape)}")
            flat = flat * size + indices[:, axis]
    if ((flat < 0) | (flat >= count)).any():
        raise ModelError(f"a sparse index lies outside dims {list(shape)}")
    dense = np.zeros(count, dtype)
    dense[flat] = values.reshape(-1)
    return dense.reshape(shape)


# ---- types


def read_type(proto: onnx.TypeProto) -> Type | None:
    """The IR's type of a TypeProto; None where it says nothing or is of a kind that fuse only carries."""
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        inner = getattr(proto, which)
        shape = tuple(_dim(d) for d in inner.shape.dim) if inner.HasField("shape") else None
        dtype = dtype_of(inner.elem_type) if inner.elem_type else None
        return TensorType(dtype, shape) if which == "tensor_type" else SparseType(dtype, shape)
    if which == "sequence_type":
        return SequenceType(read_type(proto.sequence_type.elem_type))
    if which == "optional_type":
        return OptionalType(read_type(proto.optional_type.elem_type))
    if which == "map_type":
        return MapType(dtype_of(proto.map_type.key_type), read_type(proto.map_type.value_type))
    return None


def _dim(proto: Any) -> Dim:
    which = proto.WhichOneof("value")
    if which == "dim_value":
        if proto.dim_value < 0:
            # Exporters write -1 for "any"; ONNX has no negative sizes.
            if proto.dim_value == -1:
                return None
            raise ModelError(f"a declared dim is {proto.dim_value}")
        return int(proto.dim_value)
    return Symbolic.of(proto.dim_param) if which == "dim_param" and proto.dim_param else None


def write_type(kind: Type | None) -> onnx.TypeProto:
    """The TypeProto of a type; dims that are neither numbers nor bare symbols are left open."""
    proto = onnx.TypeProto()
    if isinstance(kind, (TensorType, SparseType)):
        inner = proto.tensor_type if isinstance(kind, TensorType) else proto.sparse_tensor_type
        inner.elem_type = CODE[kind.dtype] if kind.dtype is not None else 0
        if kind.shape is not None:
            inner.shape.SetInParent()
            for dim in kind.shape:
                entry = inner.shape.dim.add()
                if isinstance(dim, int):
                    entry.dim_value = dim
                elif dim is not None and dim.name is not None:
                    entry.dim_param = dim.name
    elif isinstance(kind, SequenceType):
        proto.sequence_type.elem_type.CopyFrom(write_type(kind.element))
    elif isinstance(kind, OptionalType):
        proto.optional_type.elem_type.CopyFrom(write_type(kind.element))
    elif isinstance(kind, MapType):
        proto.map_type.key_type = CODE[kind.key]
        proto.map_type.value_type.CopyFrom(write_type(kind.value))
    return proto


