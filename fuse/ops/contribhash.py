"""MurmurHash3 of the domain ``com.microsoft``: a 32-bit hash of each number or string, for tables of hashed features.

Source: onnxruntime's docs/ContribOperators.md; MurmurHash3_x86_32 by Austin Appleby, which is in the public domain.
"""

from __future__ import annotations

import numpy as np

from fuse.ir.dtypes import BY_NAME, STRING, Array
from fuse.ops.bounds import at_run_time
from fuse.ops.record import Info, expect, operator, tensor

UINT32, INT32 = BY_NAME["uint32"], BY_NAME["int32"]
WORD = np.dtype("<u4")


def _info(x: Info, *, positive: int = 1, seed: int = 0) -> Info:
    return tensor(UINT32 if positive else INT32, x.shape)


@operator("com.microsoft::MurmurHash3", infer=_info)
@at_run_time
def murmur_hash_3(x: Array, *, positive: int = 1, seed: int = 0) -> Array:
    """The hash of the bytes of each element, a string's in UTF-8; int32 where not ``positive``."""
    expect(0 <= seed < 1 << 32, f"seed {seed} is no unsigned number of 32 bits")
    if x.dtype == STRING:
        y = _of_strings(x.reshape(-1).tolist(), seed)
    else:
        kind = x.dtype.newbyteorder("<")
        y = _hashed(np.ascontiguousarray(x, kind).reshape(-1, 1).view(np.uint8), seed)
    return y.reshape(x.shape).view(UINT32 if positive else INT32)


def _of_strings(texts: list[str], seed: int) -> Array:
    """Strings of one length are hashed together."""
    coded = [t.encode("utf-8", "surrogateescape") for t in texts]
    lengths = np.array([len(c) for c in coded], np.int64)
    y = np.empty(len(coded), UINT32)
    for length in np.unique(lengths):
        where = np.flatnonzero(lengths == length)
        joined = np.frombuffer(b"".join(coded[i] for i in where), np.uint8)
        y[where] = _hashed(joined.reshape(len(where), length), seed)
    return y


def _hashed(data: Array, seed: int) -> Array:
    """The hash of each row of bytes."""
    count, length = data.shape
    whole = length - length % 4
    words = np.ascontiguousarray(data[:, :whole]).view(WORD).reshape(count, whole // 4)
    with np.errstate(over="ignore"):
        h = np.full(count, seed, UINT32)
        for place in range(whole // 4):
            h = _turned(h ^ _mixed(words[:, place]), 13) * np.uint32(5) + np.uint32(0xE6546B64)
        if whole < length:
            rest = np.zeros((count, 4), np.uint8)
            rest[:, : length - whole] = data[:, whole:]
            h = h ^ _mixed(rest.view(WORD)[:, 0])
        h = h ^ np.uint32(length)
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            h = (h ^ (h >> np.uint32(shift))) * np.uint32(factor)
        return h ^ (h >> np.uint32(16))


def _mixed(k: Array) -> Array:
    return _turned(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _turned(x: Array, bits: int) -> Array:
    return (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))
