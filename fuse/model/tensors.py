"""Tensors and types between protobuf and NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx

from fuse.errors import LimitError, ModelError
from fuse.ir.dims import Dim, Symbolic
from fuse.ir.dtypes import BY_CODE, CODE, INTEGER, PACKED_BITS, STRING, Array, DType, name_of
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType, Type
from fuse.limits import DEFAULT, Limits
from fuse.model import recipe
from fuse.model.external import DataFiles
from fuse.model.rest import rest_of

RECIPE_KEY = "fuse.recipe"
_INT64_MAX = (1 << 63) - 1
_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
_FIELD_OF = {
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16, *range(17, 29)), "int32_data"),
    1: "float_data",
    14: "float_data",
    7: "int64_data",
    8: "string_data",
    11: "double_data",
    15: "double_data",
    12: "uint64_data",
    13: "uint64_data",
}
_UNDERSTOOD = frozenset({"dims", "data_type", "raw_data", "external_data", "data_location", *_DATA_FIELDS})
_NAMED = _UNDERSTOOD | {"name"}


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
    count = _count(shape, dtype, limits)
    filled = [f for f in _DATA_FIELDS if len(getattr(proto, f))]
    external = proto.data_location == onnx.TensorProto.EXTERNAL
    if len(filled) + proto.HasField("raw_data") + external > 1:
        raise ModelError("more than one field holds the tensor's data")
    if proto.HasField("segment"):
        raise ModelError("the tensor is stored in segments, which fuse cannot join")
    if dtype == STRING and (external or proto.HasField("raw_data")):
        raise ModelError(f"a string tensor cannot have {'external' if external else 'raw'} data")
    kind = TensorType(dtype, shape)
    if external:
        part = files.part([(e.key, e.value) for e in proto.external_data], stored_bytes(dtype, count))
        return kind, lambda: _from_bytes(part(), dtype, shape)
    if proto.HasField("raw_data"):
        raw = proto.raw_data
        if len(raw) != stored_bytes(dtype, count):
            need = stored_bytes(dtype, count)
            raise ModelError(f"raw data has {len(raw)} bytes where dtype and dims need {need}")
        return kind, _from_bytes(memoryview(raw), dtype, shape)
    if filled:
        return kind, _from_field(proto, filled[0], dtype, count).reshape(shape)
    described = [p.value for p in proto.metadata_props if p.key == RECIPE_KEY]
    if described:
        told = recipe.from_json(described[0])
        recipe.check(told, shape, dtype, limits)
        return kind, lambda: recipe.materialize(told, shape, dtype, limits)
    if count:
        hint = "a model without its weights cannot be loaded; `fuse strip` leaves a recipe in their place"
        raise ModelError(f"dims {list(shape)} promise {count} elements and there is no data", hint=hint)
    return kind, np.zeros(shape, dtype)


def _count(shape: tuple[int, ...], dtype: DType, limits: Limits) -> int:
    """How many elements there are, in numbers that cannot overflow."""
    if len(shape) > limits.rank:
        raise ModelError(f"rank {len(shape)}: NumPy handles {limits.rank} dimensions")
    if any(d < 0 for d in shape):
        raise ModelError(f"dims {list(shape)} are negative")
    if math.prod(d or 1 for d in shape) * dtype.itemsize > _INT64_MAX:
        raise ModelError(f"dims {list(shape)} are more than NumPy can count")
    return math.prod(shape)


def tensor_rest(proto: onnx.TensorProto, *, named: bool) -> bytes:
    """What fuse only carries of a tensor: documentation, metadata but for the recipe, fields of other versions.

    The name is among it unless the tensor is ``named`` as its value is: an initializer.
    """
    rest = rest_of(proto, _NAMED if named else _UNDERSTOOD)
    if RECIPE_KEY.encode() not in rest:
        return rest
    left = onnx.TensorProto.FromString(rest)
    kept = [p for p in left.metadata_props if p.key != RECIPE_KEY]
    del left.metadata_props[:]
    left.metadata_props.extend(kept)
    return left.SerializeToString()


def _from_bytes(view: memoryview, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype in PACKED_BITS:
        return _unpack(np.frombuffer(view, np.uint8), dtype, math.prod(shape)).reshape(shape)
    if dtype.kind == "b":
        return (np.frombuffer(view, np.uint8) != 0).reshape(shape)
    flat = np.frombuffer(view, dtype.newbyteorder("<") if dtype.itemsize > 1 else dtype)
    return flat.astype(dtype, copy=not flat.flags.aligned).reshape(shape)


def _group(bits: int) -> tuple[int, int]:
    """Elements of ``bits`` bits fill whole bytes in groups: how many elements a group has, and how many bytes."""
    whole = math.lcm(bits, 8)
    return whole // bits, whole // 8


def _unpack(packed: Array, dtype: DType, count: int) -> Array:
    bits = PACKED_BITS[dtype]
    lanes, width = _group(bits)
    padded = np.zeros((-(-packed.size // width), width), np.uint8)
    padded.reshape(-1)[: packed.size] = packed
    words = _joined(padded, 8) if width > 1 else padded[:, 0]
    codes = np.empty((len(words), lanes), np.uint8)
    for lane in range(lanes):
        codes[:, lane] = words >> bits * lane & (1 << bits) - 1
    return codes.reshape(-1)[:count].view(dtype)


def pack(array: Array) -> bytes:
    """The array's bytes as a file has them: little-endian, types of less than a byte packed from the low bits up."""
    bits = PACKED_BITS.get(array.dtype)
    if bits is None:
        little = array if array.dtype.byteorder != ">" else array.astype(array.dtype.newbyteorder("<"))
        return little.tobytes()
    lanes, width = _group(bits)
    padded = np.zeros((-(-array.size // lanes), lanes), np.uint8)
    padded.reshape(-1)[: array.size] = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & (1 << bits) - 1
    words = _joined(padded, bits)
    packed = np.stack([words >> 8 * i & 255 for i in range(width)], axis=-1).astype(np.uint8)
    return packed.tobytes()[: stored_bytes(array.dtype, array.size)]


def _joined(columns: Array, bits: int) -> Array:
    """One number a row, whose ``bits`` bits from the low end up are the row's first element, and so on."""
    words = np.zeros(len(columns), np.uint32)
    for i in range(columns.shape[1]):
        words |= columns[:, i].astype(np.uint32) << bits * i
    return words


def _from_field(proto: onnx.TensorProto, field: str, dtype: DType, count: int) -> Array:
    """The elements, in one dimension, from the field for their type."""
    if _FIELD_OF.get(proto.data_type) != field:
        raise ModelError(f"{field} does not hold elements of type {name_of(dtype)}")
    entries = getattr(proto, field)
    need = 2 * count if dtype.kind == "c" else count
    bits = PACKED_BITS.get(dtype, 8)
    if bits in (2, 4):  # an entry is a packed byte; one of 6 bits has an entry for itself
        need = stored_bytes(dtype, count)
    if len(entries) != need:
        raise ModelError(f"{field} has {len(entries)} entries where {count} elements need {need}")
    if dtype == STRING:
        texts = np.empty(count, dtype=object)
        texts[:] = [s.decode("utf-8", "surrogateescape") for s in entries]
        return texts
    if field in ("float_data", "double_data"):
        return _floats(entries, field).view(dtype)
    numbers = np.array(entries, np.uint64 if field == "uint64_data" else np.int64)
    if bits in (2, 4):
        return _unpack(_cut(numbers, 8, field), dtype, count)
    if dtype.kind == "b":
        return numbers != 0
    if dtype not in INTEGER:  # half precision and less, as bit patterns
        return _cut(numbers, bits if bits < 8 else 8 * dtype.itemsize, field).view(dtype)
    fitting = numbers.astype(dtype)
    if (fitting != numbers).any():
        raise ModelError(f"{field} has an entry that is no {name_of(dtype)}")
    return fitting


def _floats(entries: Iterable[float], field: str) -> Array:
    """The entries of ``float_data`` or ``double_data``, bit for bit: by way of a Python float, a NaN may lose some."""
    alone = onnx.TensorProto()
    getattr(alone, field).MergeFrom(entries)
    native = np.float32 if field == "float_data" else np.float64
    little = np.dtype(native).newbyteorder("<")
    count = len(getattr(alone, field))
    encoded = alone.SerializeToString()
    return np.array(np.frombuffer(encoded[len(encoded) - count * little.itemsize :], little), native)


def _cut(numbers: Array, bits: int, field: str) -> Array:
    """Bit patterns as unsigned integers of that width; writers sign-extend some of them."""
    if ((numbers < -(1 << bits - 1)) | (numbers >= 1 << bits)).any():
        raise ModelError(f"{field} has an entry of more than {bits} bits")
    return (numbers & (1 << bits) - 1).astype(np.uint16 if bits > 8 else np.uint8)


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
    _, places = read_tensor(proto.indices, files, limits)
    shape, dtype = tuple(proto.dims), kind.dtype
    assert dtype is not None
    count = _count(shape, dtype, limits)
    if count * dtype.itemsize > limits.dense_bytes:
        raise LimitError(f"a sparse tensor of dims {list(shape)} is too large to make dense")
    values = data() if callable(data) else data
    indices = places() if callable(places) else places
    if indices.dtype != np.int64 or indices.ndim not in (1, 2) or values.ndim != 1 or len(indices) != values.size:
        raise ModelError("a sparse tensor needs a list of values and one int64 index for each")
    if indices.ndim == 2:
        if indices.shape[1] != len(shape):
            raise ModelError(f"sparse indices have {indices.shape[1]} columns for rank {len(shape)}")
        outside = any(((column < 0) | (column >= size)).any() for column, size in zip(indices.T, shape, strict=True))
    else:
        outside = bool(((indices < 0) | (indices >= count)).any())
    if outside:
        raise ModelError(f"a sparse index lies outside dims {list(shape)}")
    flat = indices
    if indices.ndim == 2:
        flat = np.zeros(len(indices), np.int64)
        for column, size in zip(indices.T, shape, strict=True):
            flat = flat * size + column
    if (np.diff(flat) <= 0).any():
        raise ModelError("sparse indices are not in ascending order, each once")
    dense = np.full(count, "", dtype) if dtype == STRING else np.zeros(count, dtype)
    dense[flat] = values
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
    if which != "dim_param" or not proto.dim_param:
        return None
    if not isinstance(proto.dim_param, str):
        raise ModelError("the name of a declared dim is not UTF-8 text")
    return Symbolic.of(proto.dim_param)


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
