"""Weights packed in 2, 4 or 8 bits, unpacked block by block where a product or a lookup needs them.

Several codes share a byte, the first in its low bits (in MatMulBnb4 its high ones).  Weights are unpacked a band of
rows at a time, so that a vocabulary of 100,000 rows never stands in memory as float32.
Source: onnxruntime's docs/ContribOperators.md; the NF4 and FP4 codes are those of the QLoRA paper and of bitsandbytes.
"""

from __future__ import annotations

import math

import numpy as np

from fuse.ir.dims import Dim
from fuse.ir.dtypes import BY_NAME, Array, DType
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.elementwise import wide
from fuse.ops.infer import normal_axis, show_shape
from fuse.ops.quant import granularity, reals, spread
from fuse.ops.record import Info, expect, operator, tensor

UINT8 = BY_NAME["uint8"]
BAND = 1 << 18
"""Weights are unpacked this many at a time, 1 MiB of float32: 4096 x 4096 take 20 ms so, 42 in bands of 16 MiB."""

_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 0.5, 2 / 12, 0.25)
BNB4 = (np.array([*_FP4, *(-v for v in _FP4)], np.float32), np.array(_NF4, np.float32))
"""The 16 numbers of FP4 (bitsandbytes' order of its codes) and of NF4."""


def codes(packed: Array, bits: int, count: int) -> Array:
    """The first ``count`` codes of each row of bytes, the lowest bits first."""
    if bits == 8:
        return packed[..., :count]
    lanes = np.stack([(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)], axis=-1)
    return lanes.reshape(*packed.shape[:-1], -1)[..., :count]


# ---- MatMulNBits


def _nbits_info(
    a: Info,
    b: Info,
    scales: Info,
    zeros: Info | None = None,
    g_idx: Info | None = None,
    bias: Info | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Info:
    _check(K, N, block_size, bits, weight_prepacked)
    return tensor(a.dtype, _product_dims(a.shape, K, N))


def _check(K: int, N: int, block_size: int, bits: int, weight_prepacked: int = 0) -> None:
    expect(K > 0 and N > 0, f"K {K} and N {N} must be positive")
    expect(
        block_size >= 16 and block_size & (block_size - 1) == 0, f"block_size {block_size} is no power of 2 from 16 on"
    )
    expect(bits in (2, 4, 8), f"bits {bits} is not 2, 4 or 8")
    expect(not weight_prepacked, "the weights are packed for one particular GPU (weight_prepacked)")


def _product_dims(a: Shape | None, inner: int, outer: int) -> Shape | None:
    if a is None:
        return None
    size = a[-1] if a else None
    expect(bool(a) and (not isinstance(size, int) or size == inner), f"A {show_shape(a)} does not end in {inner}")
    return (*a[:-1], outer)


@operator("com.microsoft::MatMulNBits", infer=_nbits_info)
@at_run_time
def matmul_nbits(
    a: Array,
    b: Array,
    scales: Array,
    zeros: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Array:
    """``a`` (..., K) times the transpose of the packed ``b`` (N, blocks, bytes), plus ``bias`` (N,).

    ``accuracy_level`` allows a runtime to round ``a``; this one never does.  Half precision is computed in float32.
    """
    _check(K, N, block_size, bits, weight_prepacked)
    _product_dims(a.shape, K, N)
    left = wide(a)
    y = np.zeros((*a.shape[:-1], N), left.dtype)
    if b.size:
        weights = _Blocks(b, scales, zeros, g_idx, K, N, block_size, bits, left.dtype)
        ordered = weights.order(left)
        rows = max(1, BAND // ordered.shape[-1])
        for start in range(0, N, rows):
            some = slice(start, min(start + rows, N))
            y[..., some] = ordered @ weights.rows(some).T
    if bias is not None:
        expect(bias.shape == (N,), f"the bias is {list(bias.shape)} for {N} outputs")
        y += bias.astype(y.dtype)
    return y.astype(a.dtype, copy=False)


class _Blocks:
    """The packed weights of MatMulNBits: ``rows`` unpacks some of them to ``dtype``.

    Unpacked weights do not stand in the order of the inputs but by (lane in the byte, byte in the block, block), so
    that no step interleaves anything and scales repeat along the innermost axis; ``order`` puts the inputs so too.
    """

    def __init__(
        self,
        b: Array,
        scales: Array,
        zeros: Array | None,
        groups: Array | None,
        inner: int,
        outer: int,
        block: int,
        bits: int,
        dtype: DType,
    ) -> None:
        self.dtype = dtype
        self.count, self.lanes, self.bytes, self.bits = -(-inner // block), 8 // bits, block * bits // 8, bits
        self.packed = _shaped(b, (outer, self.count, self.bytes), "B")
        self.scales = _shaped(wide(scales), (outer, self.count), "the scales")
        self.zeros = np.full((outer, 1), 1 << (bits - 1), dtype)
        if zeros is not None and zeros.dtype == UINT8:
            packed = _shaped(zeros, (outer, -(-self.count * bits // 8)), "the zero points")
            self.zeros = codes(packed, bits, self.count).astype(dtype)
        elif zeros is not None:
            self.zeros = _shaped(wide(zeros), (outer, self.count), "the zero points")
        self.groups = None if groups is None else self._grouped(groups, inner)

    def _grouped(self, groups: Array, inner: int) -> Array:
        expect(groups.size >= inner, f"g_idx has {groups.size} entries for {inner} inputs")
        used = groups.reshape(-1)[:inner]
        outside = used[(used < 0) | (used >= self.count)]
        expect(not outside.size, f"g_idx names a group beyond the {self.count}: {outside[:1].tolist()}")
        return self.order(used)

    def order(self, x: Array) -> Array:
        """``x`` (..., K) in the order of the unpacked weights, zeros where the last block is not full."""
        lead, full = x.shape[:-1], self.count * self.bytes * self.lanes
        padded = np.zeros((*lead, full), x.dtype)
        padded[..., : x.shape[-1]] = x
        parts = padded.reshape(*lead, self.count, self.bytes, self.lanes)
        return np.ascontiguousarray(np.moveaxis(parts, (-1, -2), (-3, -2))).reshape(*lead, full)

    def rows(self, some: slice) -> Array:
        """Some rows of the weights, in the order above."""
        packed = np.ascontiguousarray(self.packed[some].swapaxes(1, 2))
        w = np.empty((len(packed), self.lanes, self.bytes, self.count), self.dtype)
        for lane in range(self.lanes):
            w[:, lane] = (packed >> (lane * self.bits)) & ((1 << self.bits) - 1)
        zeros, scales = self.zeros[some], self.scales[some]
        if self.groups is None:
            w -= zeros[:, None, None]
            w *= scales[:, None, None]
            return w.reshape(len(packed), -1)
        flat = w.reshape(len(packed), -1)
        flat -= zeros if zeros.shape[1] == 1 else zeros[:, self.groups]
        flat *= scales[:, self.groups]
        return flat


def _shaped(x: Array, shape: tuple[int, ...], what: str) -> Array:
    expect(x.size == math.prod(shape), f"{what} {list(x.shape)} should hold {list(shape)}")
    return x.reshape(shape)


# ---- MatMulBnb4


def _bnb4_info(
    a: Info,
    b: Info,
    absmax: Info,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Info:
    _check(K, N, block_size, 4)
    expect(quant_type in (0, 1), f"quant_type {quant_type} is neither 0 (FP4) nor 1 (NF4)")
    return tensor(a.dtype, _product_dims(a.shape, K if transB else N, N if transB else K))


@operator("com.microsoft::MatMulBnb4", infer=_bnb4_info)
@at_run_time
def matmul_bnb4(
    a: Array,
    b: Array,
    absmax: Array,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
) -> Array:
    """``a`` times the weights (N, K), transposed unless ``transB`` is 0: codes of one table, a largest size a block."""
    attrs = {"K": K, "N": N, "block_size": block_size, "quant_type": quant_type, "transB": transB}
    _bnb4_info(tensor(a.dtype, a.shape), tensor(None), tensor(None), **attrs)
    count = N * K
    packed = _shaped(b, (-(-count // 2),), "B")
    w = np.stack((BNB4[quant_type][packed >> 4], BNB4[quant_type][packed & 15]), axis=-1).reshape(-1)
    scales = np.repeat(_shaped(wide(absmax), (-(-count // block_size),), "absmax"), block_size)[:count]
    weights = np.asarray(w[:count] * scales).reshape(N, K)
    y = np.matmul(wide(a), weights.T if transB else weights)
    return np.asarray(y).astype(a.dtype, copy=False)


# ---- GatherBlockQuantized


def _unpacked_shape(data: Shape | None, dtype: DType | None, bits: int) -> Shape | None:
    """What the codes of ``data`` measure: bytes hold several along the last axis."""
    if data is None or dtype != UINT8 or bits == 8 or not data:
        return data
    size: Dim = data[-1]
    return (*data[:-1], None if size is None else size * (8 // bits))


def _gather_info(
    data: Info,
    indices: Info,
    scales: Info,
    zeros: Info | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Info:
    expect(bits in (2, 4, 8), f"bits {bits} is not 2, 4 or 8")
    shape = _unpacked_shape(data.shape, data.dtype, bits)
    if shape is None or indices.shape is None:
        return tensor(scales.dtype)
    place = normal_axis(gather_axis, len(shape), "gather_axis")
    normal_axis(quantize_axis, len(shape), "quantize_axis")
    return tensor(scales.dtype, (*shape[:place], *indices.shape, *shape[place + 1 :]))


@operator("com.microsoft::GatherBlockQuantized", infer=_gather_info)
@at_run_time
def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zeros: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Gather from a table quantised in blocks along ``quantize_axis``; only the rows that are asked for are unpacked.

    An index outside the table gives zeros.
    """
    rank = data.ndim
    place, along = normal_axis(gather_axis, rank, "gather_axis"), normal_axis(quantize_axis, rank, "quantize_axis")
    expect(place != along, f"gather_axis and quantize_axis are both {place}")
    size = data.shape[place]
    inside = (indices >= -size) & (indices < size)
    rows = np.where(inside, indices, 0).reshape(-1)

    def taken(x: Array) -> Array:
        return np.take(x, rows if x.shape[place] == size else np.zeros_like(rows), axis=place, mode="wrap")

    part, zero_part = taken(data), None if zeros is None else taken(zeros)
    scale = taken(scales)
    if data.dtype == UINT8:
        part = codes(part, bits, part.shape[-1] * (8 // bits))
        zero_part = np.full((), 1 << (bits - 1)) if zero_part is None else codes(zero_part, bits, scale.shape[-1])
    block = block_size or part.shape[along]
    checked = tuple(
        d if i != along and s == 1 else s for i, (d, s) in enumerate(zip(part.shape, scale.shape, strict=True))
    )
    granularity(part.shape, checked, along, block)
    zero = zero_part if zero_part is None or not zero_part.ndim else spread(zero_part, part.shape, along, block)
    y = reals(part, spread(scale, part.shape, along, block), zero, scales.dtype)
    y = y.reshape(*y.shape[:place], *indices.shape, *y.shape[place + 1 :])
    if inside.all():
        return y
    return np.where(inside.reshape(*inside.shape, *(1,) * (rank - 1 - place)), y, y.dtype.type(0))
