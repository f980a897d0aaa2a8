"""Tensors: every element type in every place where a file may keep it, bit for bit; what does not add up refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fuse.errors import LimitError, ModelError
from fuse.ir.dtypes import BY_CODE, BY_NAME, FLOATING, INTEGER, NAME, PACKED_BITS, STRING
from fuse.ir.types import MapType, OptionalType, SequenceType, SparseType, TensorType
from fuse.limits import DEFAULT
from fuse.model.external import DataFiles
from fuse.model.tensors import densify, pack, read_tensor, read_type, stored_bytes, write_tensor, write_type

FILES = DataFiles(None)
CODES = sorted(BY_CODE)
NUMERIC = [code for code in CODES if BY_CODE[code] != STRING]


def name(code: int) -> str:
    return NAME[BY_CODE[code]]


def read(proto: TensorProto, **limits: Any) -> np.ndarray:
    _, data = read_tensor(proto, FILES, replace(DEFAULT, **limits))
    return data() if callable(data) else data


def bits(array: np.ndarray) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def every_pattern(code: int) -> np.ndarray:
    """Each bit pattern of a type of up to 16 bits, some thousands of a wider one."""
    dtype = BY_CODE[code]
    if dtype.kind == "b":
        return np.array([False, True, True])
    width = PACKED_BITS.get(dtype, 8 * dtype.itemsize)
    if width <= 8:
        return np.arange(1 << width, dtype=np.uint8).view(dtype)
    if width == 16:
        return np.arange(1 << 16, dtype=np.uint16).view(dtype)
    return np.frombuffer(np.random.default_rng(code).bytes(dtype.itemsize * 4096), dtype)


# ---- raw data


@pytest.mark.parametrize("code", NUMERIC, ids=name)
def test_raw_data_keeps_every_bit_pattern(code: int) -> None:
    array = every_pattern(code)
    proto = write_tensor(array, "t")
    assert proto.name == "t" and proto.data_type == code and list(proto.dims) == [array.size]
    assert len(proto.raw_data) == stored_bytes(array.dtype, array.size)
    again = read(proto)
    assert again.dtype == array.dtype and bits(again) == bits(array)
    assert write_tensor(again, "t") == proto


@pytest.mark.parametrize("code", NUMERIC, ids=name)
def test_raw_data_is_what_onnx_writes_and_reads(code: int) -> None:
    array = every_pattern(code)[:37].reshape(-1)
    theirs = numpy_helper.from_array(array)
    assert write_tensor(array).raw_data == theirs.raw_data
    assert bits(numpy_helper.to_array(write_tensor(array))) == bits(array)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (5, 1), (0,), (0, 7), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("code", NUMERIC, ids=name)
def test_every_shape(code: int, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int))
    array = np.resize(every_pattern(code)[::-1], count).reshape(shape)
    again = read(write_tensor(array))
    assert again.shape == shape and again.dtype == array.dtype and bits(again) == bits(array)


def test_arrays_of_any_layout_are_packed_in_order() -> None:
    square = np.arange(12, dtype=np.int32).reshape(3, 4)
    for view in (square.T, square[::2, ::-1], square[:, 1:3], np.broadcast_to(square[0], (3, 4))):
        assert pack(view) == bits(view)
        assert pack(view.astype(">i4")) == bits(view)
    nibbles = (square % 8).astype(BY_NAME["int4"])
    assert pack(nibbles.T) == bytes([0x40, 0x10, 0x15, 0x62, 0x32, 0x37])


def test_packing_by_hand() -> None:
    """Low bits first; four elements of 6 bits share three bytes.  Worked out on paper from the text of the format."""
    as_type = lambda values, kind: np.array(values, np.uint8).view(BY_NAME[kind])
    assert pack(as_type([1, 2, 15], "uint4")) == bytes([0x21, 0x0F])
    assert pack(as_type([15, 8], "int4")) == bytes([0x8F])
    assert pack(as_type([1, 2, 3, 0, 1], "uint2")) == bytes([0b00111001, 0b01])
    assert pack(as_type([0b000001, 0b000010, 0b000011, 0b000100], "float6e2m3")) == bytes([0x81, 0x30, 0x10])
    assert pack(as_type([0b111111], "float6e3m2")) == bytes([0x3F])
    proto = TensorProto(data_type=TensorProto.INT4, dims=[3], raw_data=bytes([0x8F, 0x07]))
    assert read(proto).astype(int).tolist() == [-1, -8, 7]
    proto = TensorProto(data_type=TensorProto.INT2, dims=[4], raw_data=bytes([0b11100100]))
    assert read(proto).astype(int).tolist() == [0, 1, -2, -1]


def test_padding_bits_and_odd_bools_are_normalised() -> None:
    proto = TensorProto(data_type=TensorProto.UINT4, dims=[1], raw_data=b"\xf5")
    assert read(proto).astype(int).tolist() == [5] and write_tensor(read(proto)).raw_data == b"\x05"
    proto = TensorProto(data_type=TensorProto.BOOL, dims=[3], raw_data=b"\x00\x02\xff")
    assert write_tensor(read(proto)).raw_data == b"\x00\x01\x01"


def test_raw_data_is_not_copied_again() -> None:
    """The array lies over the bytes that protobuf hands out: no second copy of a weight."""
    array = read(write_tensor(np.arange(1000, dtype=np.float32)))
    base = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert isinstance(base, (memoryview, bytes))
    assert not array.flags.writeable


# ---- the fields by type


FIELDS = {
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10, 16, *range(17, 29)), "int32_data"),
    1: "float_data", 14: "float_data", 7: "int64_data", 11: "double_data", 15: "double_data",
    12: "uint64_data", 13: "uint64_data",
}  # fmt: skip


def in_field(array: np.ndarray, code: int) -> TensorProto:
    """The array in its typed field, made here from the text of the format and not by fuse or onnx."""
    proto = TensorProto(data_type=code, dims=array.shape)
    flat, field = np.ascontiguousarray(array).reshape(-1), FIELDS[code]
    if array.dtype in PACKED_BITS and PACKED_BITS[array.dtype] < 6:
        entries = list(pack(flat))
    elif field == "int32_data" and array.dtype not in INTEGER:
        entries = flat.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8).tolist()
    elif array.dtype.kind == "c":
        entries = flat.view(np.float32 if array.dtype.itemsize == 8 else np.float64).tolist()
    else:
        entries = flat.tolist()
    getattr(proto, field).extend(entries)
    return proto


def finite(code: int) -> np.ndarray:
    """Patterns without signalling NaNs, which a Python float cannot carry into the field."""
    array = every_pattern(code)
    if array.dtype.kind in "fc" and array.dtype.itemsize > 2:
        return array[np.isfinite(array)]
    return array


@pytest.mark.parametrize("code", NUMERIC, ids=name)
def test_typed_fields_keep_every_bit_pattern(code: int) -> None:
    array = finite(code)
    again = read(in_field(array, code))
    assert again.dtype == array.dtype and again.shape == array.shape and bits(again) == bits(array)


@pytest.mark.parametrize("code", NUMERIC, ids=name)
def test_typed_fields_read_as_onnx_reads_them(code: int) -> None:
    for count in (1, 2, 3, 5, 16):
        proto = in_field(np.resize(finite(code), count), code)
        assert bits(read(proto)) == bits(numpy_helper.to_array(proto))


@pytest.mark.parametrize("field", ["float_data", "double_data"])
def test_signalling_nans_stay_as_they_are(field: str) -> None:
    """A conversion between float and double would set the quiet bit; the payload and the bit are kept."""
    kind, code = (np.uint32, 1) if field == "float_data" else (np.uint64, 11)
    patterns = {np.uint32: [0x7F800001, 0xFFC01234, 0x7F800000], np.uint64: [0x7FF0000000000001, 0xFFF8000000001234, 0]}
    raw = np.array(patterns[kind], kind).tobytes()
    number = TensorProto.DESCRIPTOR.fields_by_name[field].number
    proto = TensorProto.FromString(bytes([number << 3 | 2, len(raw)]) + raw)
    proto.data_type = code
    proto.dims.append(3)
    assert bits(read(proto)) == raw


def test_bit_patterns_that_a_writer_sign_extended() -> None:
    """C++ writers put the int16 behind a float16 into the field: -1 there is 65535."""
    proto = TensorProto(data_type=TensorProto.FLOAT16, dims=[2], int32_data=[-17408, 15360])
    assert read(proto).tolist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("code", "field", "entries", "line"),
    [
        (TensorProto.INT8, "int32_data", [128], "int32_data has an entry that is no int8"),
        (TensorProto.UINT8, "int32_data", [-1], "int32_data has an entry that is no uint8"),
        (TensorProto.INT16, "int32_data", [1 << 15], "int32_data has an entry that is no int16"),
        (TensorProto.UINT32, "uint64_data", [1 << 32], "uint64_data has an entry that is no uint32"),
        (TensorProto.FLOAT16, "int32_data", [1 << 16], "int32_data has an entry of more than 16 bits"),
        (TensorProto.FLOAT8E5M2, "int32_data", [256], "int32_data has an entry of more than 8 bits"),
        (TensorProto.FLOAT6E2M3, "int32_data", [64], "int32_data has an entry of more than 6 bits"),
        (TensorProto.INT4, "int32_data", [256], "int32_data has an entry of more than 8 bits"),
        (TensorProto.FLOAT, "double_data", [1.0], "double_data does not hold elements of type float"),
        (TensorProto.INT64, "int32_data", [1], "int32_data does not hold elements of type int64"),
    ],
)
def test_entries_that_do_not_fit_their_type(code: int, field: str, entries: list[Any], line: str) -> None:
    proto = TensorProto(data_type=code, dims=[1])
    getattr(proto, field).extend(entries)
    with pytest.raises(ModelError, match=line):
        read(proto)


def test_strings() -> None:
    array = np.array(["", "é", "a\0b", "x" * 1000], dtype=object).reshape(2, 2)
    proto = write_tensor(array, "s")
    assert read(proto).tolist() == array.tolist() and read(proto).shape == (2, 2)
    proto = TensorProto(data_type=TensorProto.STRING, dims=[2], string_data=[b"\xff\xfe", b"ok"])
    assert write_tensor(read(proto)).string_data == proto.string_data, "bytes that are no UTF-8 are kept"


# ---- what does not add up


def tensor(**fields: Any) -> TensorProto:
    return TensorProto(**{"data_type": TensorProto.FLOAT, **fields})


@pytest.mark.parametrize(
    ("proto", "line"),
    [
        (tensor(dims=[2], raw_data=b"\0" * 7), "raw data has 7 bytes where dtype and dims need 8"),
        (tensor(dims=[2], raw_data=b"\0" * 9), "raw data has 9 bytes where dtype and dims need 8"),
        (tensor(dims=[2], raw_data=b""), "raw data has 0 bytes"),
        (tensor(dims=[3], data_type=TensorProto.INT4, raw_data=b"\0"), "raw data has 1 bytes where .* need 2"),
        (tensor(dims=[2], float_data=[1.0]), "float_data has 1 entries where 2 elements need 2"),
        (tensor(dims=[2], float_data=[1.0] * 3), "float_data has 3 entries"),
        (tensor(dims=[1], data_type=14, float_data=[1.0]), "float_data has 1 entries where 1 elements need 2"),
        (tensor(dims=[5], data_type=TensorProto.INT4, int32_data=[1, 2]), "int32_data has 2 entries .* need 3"),
        (tensor(dims=[1], float_data=[1.0], raw_data=b"\0" * 4), "more than one field holds the tensor's data"),
        (tensor(dims=[1], float_data=[1.0], int32_data=[1]), "more than one field holds the tensor's data"),
        (tensor(dims=[1]), "dims \\[1\\] promise 1 elements and there is no data"),
        (tensor(dims=[1 << 62]), "dims .* are more than NumPy can count"),
        (tensor(dims=[1 << 33, 1 << 33]), "dims .* are more than NumPy can count"),
        (tensor(dims=[0, 1 << 62]), "dims .* are more than NumPy can count"),
        (tensor(dims=[1 << 40]), "promise 1099511627776 elements and there is no data"),
        (tensor(dims=[-1]), "dims \\[-1\\] are negative"),
        (tensor(dims=[1] * 65, raw_data=b"\0" * 4), "rank 65: NumPy handles 64 dimensions"),
        (tensor(dims=[1] * 2000, raw_data=b"\0" * 4), "rank 2000: NumPy handles 64 dimensions"),
        (tensor(data_type=0, raw_data=b""), "element type 0 is not one that ONNX defines"),
        (tensor(data_type=99, raw_data=b""), "element type 99 is not one that ONNX defines"),
        (tensor(data_type=8, dims=[1], raw_data=b"a"), "a string tensor cannot have raw data"),
        (tensor(data_type=8, dims=[1], data_location=1), "a string tensor cannot have external data"),
        (tensor(segment=TensorProto.Segment(begin=0, end=1), dims=[0]), "stored in segments"),
    ],
)  # fmt: skip
def test_refused(proto: TensorProto, line: str) -> None:
    with pytest.raises(ModelError, match=line):
        read(proto)


def test_rank_64_and_empty_tensors_are_fine() -> None:
    assert read(tensor(dims=[1] * 64, raw_data=b"\0" * 4)).ndim == 64
    assert read(tensor(dims=[0, 1 << 40])).shape == (0, 1 << 40)
    assert read(tensor(dims=[0], raw_data=b"")).size == 0
    assert read(tensor(dims=[0])).dtype == np.float32
    assert read(tensor(raw_data=b"\0" * 4)).shape == ()


# ---- sparse tensors


def sparse(values: Any, indices: Any, dims: list[int]) -> onnx.SparseTensorProto:
    made = [numpy_helper.from_array(np.asarray(a)) for a in (values, indices)]
    return helper.make_sparse_tensor(*made, dims)


def test_sparse_tensors_made_dense() -> None:
    flat = sparse(np.array([1.5, -2.5], np.float32), np.array([1, 4], np.int64), [2, 3])
    paired = sparse(np.array([1.5, -2.5], np.float32), np.array([[0, 1], [1, 1]], np.int64), [2, 3])
    want = np.array([[0, 1.5, 0], [0, -2.5, 0]], np.float32)
    for proto in (flat, paired):
        assert densify(proto, FILES).dtype == np.float32
        assert np.array_equal(densify(proto, FILES), want)
    none = sparse(np.empty(0, np.int8), np.empty((0, 2), np.int64), [2, 2])
    assert np.array_equal(densify(none, FILES), np.zeros((2, 2), np.int8))
    text = densify(sparse(np.array(["a"], object), np.array([1], np.int64), [3]), FILES)
    assert text.tolist() == ["", "a", ""]


@pytest.mark.parametrize(
    ("indices", "dims", "line"),
    [
        ([6, 7], [2, 3], "a sparse index lies outside dims"),
        ([-1, 0], [2, 3], "a sparse index lies outside dims"),
        ([4, 1], [2, 3], "not in ascending order, each once"),
        ([1, 1], [2, 3], "not in ascending order, each once"),
        ([[0, 3], [1, 0]], [2, 3], "a sparse index lies outside dims"),
        ([[-1, 1], [1, 0]], [2, 3], "a sparse index lies outside dims"),
        ([[0, 0, 0], [0, 0, 1]], [2, 3], "3 columns for rank 2"),
        ([0], [2, 3], "one int64 index for each"),
        ([[[0]], [[1]]], [2, 3], "one int64 index for each"),
        ([0, 1], [-2, -3], "negative"),
        ([0, 1], [1 << 40, 1 << 40], "more than NumPy can count"),
    ],
)
def test_sparse_tensors_that_contradict_themselves(indices: Any, dims: list[int], line: str) -> None:
    with pytest.raises(ModelError, match=line):
        densify(sparse(np.array([1.0, 2.0], np.float32), np.array(indices, np.int64), dims), FILES)


def test_sparse_tensors_keep_to_the_budget() -> None:
    small = sparse(np.array([1.0], np.float32), np.array([0], np.int64), [256])
    assert densify(small, FILES, replace(DEFAULT, dense_bytes=1024)).size == 256
    with pytest.raises(LimitError, match=r"dims \[256\] is too large to make dense"):
        densify(small, FILES, replace(DEFAULT, dense_bytes=1023))


# ---- types


def test_types_there_and_back() -> None:
    float_type, n = TensorType(BY_NAME["float"], (1, None, 3)), helper.make_tensor_type_proto(1, ["n", 2])
    for kind in (
        float_type, TensorType(), TensorType(BY_NAME["int4"], ()), SparseType(BY_NAME["double"], (2,)),
        SequenceType(float_type), SequenceType(), OptionalType(SequenceType(float_type)),
        MapType(STRING, float_type), read_type(n),
    ):  # fmt: skip
        assert read_type(write_type(kind)) == kind
    assert write_type(read_type(n)) == n
    assert str(read_type(n)) == "float[n, 2]"
    assert read_type(onnx.TypeProto()) is None and write_type(None) == onnx.TypeProto()


def test_declared_dims() -> None:
    """-1 is what exporters write for "any"; ONNX has no other negative sizes."""
    kind = read_type(helper.make_tensor_type_proto(1, [-1, 0]))
    assert isinstance(kind, TensorType) and kind.shape == (None, 0)
    with pytest.raises(ModelError, match="a declared dim is -4"):
        read_type(helper.make_tensor_type_proto(1, [-4]))
    with pytest.raises(ModelError, match="element type 99"):
        read_type(helper.make_tensor_type_proto(99, [1]))


def test_every_floating_type_is_one_of_the_table() -> None:
    """The sets that kernels and passes ask for were made from names: nothing is missing."""
    assert {NAME[d] for d in FLOATING} == {
        "float", "double", "float16", "bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
        "float4e2m1", "float8e8m0", "float6e2m3", "float6e3m2",
    }  # fmt: skip
    assert len(INTEGER) == 12 and set(BY_CODE) == set(TensorProto.DataType.values()) - {0}
