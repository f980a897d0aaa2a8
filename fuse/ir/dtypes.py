"""Element types: ONNX's names and numbers beside NumPy's dtypes.

A tensor's dtype is a ``numpy.dtype`` everywhere in fuse; the types NumPy lacks come from ``ml_dtypes``, and strings
are object arrays of ``str``.  Sub-byte types take one byte an element in memory and are packed only in files.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DType = np.dtype[Any]
Array = np.ndarray[Any, DType]

_TABLE: tuple[tuple[int, str, Any], ...] = (
    (1, "float", np.float32),
    (2, "uint8", np.uint8),
    (3, "int8", np.int8),
    (4, "uint16", np.uint16),
    (5, "int16", np.int16),
    (6, "int32", np.int32),
    (7, "int64", np.int64),
    (8, "string", np.object_),
    (9, "bool", np.bool_),
    (10, "float16", np.float16),
    (11, "double", np.float64),
    (12, "uint32", np.uint32),
    (13, "uint64", np.uint64),
    (14, "complex64", np.complex64),
    (15, "complex128", np.complex128),
    (16, "bfloat16", ml_dtypes.bfloat16),
    (17, "float8e4m3fn", ml_dtypes.float8_e4m3fn),
    (18, "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz),
    (19, "float8e5m2", ml_dtypes.float8_e5m2),
    (20, "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
    (21, "uint4", ml_dtypes.uint4),
    (22, "int4", ml_dtypes.int4),
    (23, "float4e2m1", ml_dtypes.float4_e2m1fn),
    (24, "float8e8m0", ml_dtypes.float8_e8m0fnu),
    (25, "uint2", ml_dtypes.uint2),
    (26, "int2", ml_dtypes.int2),
    (27, "float6e2m3", ml_dtypes.float6_e2m3fn),
    (28, "float6e3m2", ml_dtypes.float6_e3m2fn),
)

BY_CODE: dict[int, DType] = {code: np.dtype(kind) for code, _, kind in _TABLE}
BY_NAME: dict[str, DType] = {name: np.dtype(kind) for _, name, kind in _TABLE}
CODE: dict[DType, int] = {np.dtype(kind): code for code, _, kind in _TABLE}
NAME: dict[DType, str] = {np.dtype(kind): name for _, name, kind in _TABLE}

#: Bits an element takes in a packed file, for the types that share a byte.
PACKED_BITS: dict[DType, int] = {
    BY_NAME["uint4"]: 4,
    BY_NAME["int4"]: 4,
    BY_NAME["float4e2m1"]: 4,
    BY_NAME["uint2"]: 2,
    BY_NAME["int2"]: 2,
    BY_NAME["float6e2m3"]: 6,
    BY_NAME["float6e3m2"]: 6,
}

STRING = BY_NAME["string"]
BOOL = BY_NAME["bool"]
INT64 = BY_NAME["int64"]
FLOAT = BY_NAME["float"]
DOUBLE = BY_NAME["double"]

FLOATING: frozenset[DType] = frozenset(d for d, n in NAME.items() if n.startswith(("float", "bfloat", "double")))
"""Every real floating dtype, from 4 bits to 64."""

INTEGER: frozenset[DType] = frozenset(d for d, n in NAME.items() if n.startswith(("int", "uint")))
"""Every integer dtype, sub-byte ones included; bool is not among them."""


def name_of(dtype: DType) -> str:
    """ONNX's lower-case name, as in ``float`` for float32."""
    return NAME.get(dtype) or str(dtype)
