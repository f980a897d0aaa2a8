"""Operators on the columns of a table of features: scaled, normalised, filled, put side by side, picked.

What ai.onnx.ml gives out as float32 is computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fuse.ir.dims import Dim, product
from fuse.ir.dtypes import DOUBLE, FLOAT, FLOATING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, expect, operator, tensor


def _fits(shape: Shape | None, values: Sequence[float], what: str) -> None:
    """Raise unless ``values`` are one for all or one for each element of the last axis."""
    last = None if shape is None else shape[-1] if shape else 1
    say = f"{len(values)} numbers in {what!r} for an input {show_shape(shape)}"
    expect(len(values) == 1 or not isinstance(last, int) or len(values) == last, say)


# ---- scaled


def _scaler_info(x: Info, *, offset: Sequence[float] | None = None, scale: Sequence[float] | None = None) -> Info:
    for values, what in ((offset, "offset"), (scale, "scale")):
        if values:
            _fits(x.shape, values, what)
    return tensor(FLOAT, x.shape)


@operator("ai.onnx.ml::Scaler", infer=_scaler_info)
@at_run_time
def scaler(x: Array, *, offset: Sequence[float] | None = None, scale: Sequence[float] | None = None) -> Array:
    """``(x - offset) * scale`` along the last axis; what is not given changes nothing."""
    _scaler_info(tensor(x.dtype, x.shape), offset=offset, scale=scale)
    y = x.astype(DOUBLE)
    if offset:
        y = y - np.array(offset, dtype=DOUBLE)
    if scale:
        y = y * np.array(scale, dtype=DOUBLE)
    return np.asarray(y).reshape(x.shape).astype(FLOAT)


def _normalizer_info(x: Info, *, norm: str = "MAX") -> Info:
    expect(norm in ("MAX", "L1", "L2"), f"norm {norm!r} is not MAX, L1 or L2")
    expect(x.rank in (None, 1, 2), f"the input {show_shape(x.shape)} is neither [N, C] nor [C]")
    return tensor(FLOAT, x.shape)


@operator("ai.onnx.ml::Normalizer", infer=_normalizer_info)
@at_run_time
def normalizer(x: Array, *, norm: str = "MAX") -> Array:
    """Each row over its greatest element (signed, NaN ignored), its sum of magnitudes, or its length.

    A row of which that is zero stays as it is.
    """
    _normalizer_info(tensor(x.dtype, x.shape), norm=norm)
    y = x.astype(DOUBLE)
    if norm == "MAX":
        divisor = np.fmax.reduce(y, axis=-1, keepdims=True, initial=-np.inf)
    elif norm == "L1":
        divisor = np.abs(y).sum(axis=-1, keepdims=True)
    else:
        divisor = np.sqrt((y * y).sum(axis=-1, keepdims=True))
    return (y / np.where(divisor == 0, 1, divisor)).astype(FLOAT)


@operator("ai.onnx.ml::Binarizer", infer=lambda x, threshold=0.0: Info(x.type))
def binarizer(x: Array, *, threshold: float = 0.0) -> Array:
    """1 where ``x`` is above the threshold, 0 elsewhere, for NaN too."""
    return np.greater(x, threshold).astype(x.dtype)


# ---- filled


def _imputer_info(
    x: Info,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Info:
    if x.dtype is not None:
        floats = x.dtype in FLOATING
        values = imputed_value_floats if floats else imputed_value_int64s
        expect(bool(values), f"needs the attribute 'imputed_value_{'floats' if floats else 'int64s'}'")
        _fits(x.shape, values or (), "imputed_value")
    return Info(x.type)


@operator("ai.onnx.ml::Imputer", infer=_imputer_info)
@at_run_time
def imputer(
    x: Array,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    """``x`` with one value (NaN may be it) replaced: by one for all, or one for each element of the last axis."""
    _imputer_info(
        tensor(x.dtype, x.shape), imputed_value_floats=imputed_value_floats, imputed_value_int64s=imputed_value_int64s
    )
    if x.dtype in FLOATING:
        old = x.dtype.type(replaced_value_float)
        gone = np.isnan(x) if np.isnan(old) else x == old
        return np.where(gone, np.array(imputed_value_floats).astype(x.dtype), x).reshape(x.shape)
    fresh = np.array(imputed_value_int64s, dtype=np.int64)
    outside = fresh[fresh != fresh.astype(x.dtype)]
    expect(outside.size == 0, f"the imputed values {outside.tolist()} do not fit into {x.dtype}")
    return np.where(x == replaced_value_int64, fresh.astype(x.dtype), x).reshape(x.shape)


# ---- side by side


def _feature_vectorizer_info(x: Info, *xs: Info, inputdimensions: Sequence[int] | None = None) -> Info:
    inputs = (x, *xs)
    common_dtype(*inputs)
    given = len(inputdimensions or inputs)
    expect(given == len(inputs), f"{given} input dimensions for {len(inputs)} inputs")
    shapes = [i.shape if i.shape is None else _table(i.shape) for i in inputs]
    known = [s for s in shapes if s is not None]
    rows = same_dim([s[0] for s in known], f"inputs {' and '.join(map(show_shape, known))} have different rows")
    if inputdimensions:
        return tensor(FLOAT, (rows, sum(inputdimensions)))
    widths = [None if s is None else s[1] for s in shapes]
    width: Dim = None if None in widths else sum(widths[1:], start=widths[0])  # type: ignore[arg-type]
    return tensor(FLOAT, (rows, width))


def _table(shape: Shape) -> tuple[Dim, Dim]:
    """An input as [N, C]: one dim is a row."""
    expect(len(shape) in (1, 2), f"the input {show_shape(shape)} is neither [N, C] nor [C]")
    return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])


@operator("ai.onnx.ml::FeatureVectorizer", infer=_feature_vectorizer_info)
@at_run_time
def feature_vectorizer(x: Array, *xs: Array, inputdimensions: Sequence[int] | None = None) -> Array:
    """The columns of all inputs in float32; an input is cut, or filled with zeros, to its share of the dimensions."""
    inputs = (x, *xs)
    infos = [tensor(i.dtype, i.shape) for i in inputs]
    out = _feature_vectorizer_info(*infos, inputdimensions=inputdimensions)
    tables = [i.reshape(1, -1) if i.ndim == 1 else i for i in inputs]
    assert out.shape is not None
    rows: int = out.shape[0]  # type: ignore[assignment]
    parts = []
    for table, width in zip(tables, inputdimensions or [t.shape[1] for t in tables], strict=True):
        part = np.zeros((rows, width), dtype=FLOAT)
        kept = min(width, table.shape[1])
        part[:, :kept] = table[:, :kept]
        parts.append(part)
    return np.concatenate(parts, axis=1)


# ---- picked


def _extractor_info(x: Info, y: Info) -> Info:
    count = None if y.shape is None else product(y.shape)
    if x.shape is None:
        return tensor(x.dtype)
    expect(len(x.shape) > 0, "the input has no axis to pick from")
    return tensor(x.dtype, (*(x.shape[:-1] if len(x.shape) > 1 else (1,)), count))


@operator("ai.onnx.ml::ArrayFeatureExtractor", infer=_extractor_info)
@at_run_time
def array_feature_extractor(x: Array, y: Array) -> Array:
    """The elements ``y`` of the last axis; of a tensor with one dim they come as one row."""
    expect(x.ndim > 0, "the input has no axis to pick from")
    size, places = x.shape[-1], y.reshape(-1)
    outside = places[(places < 0) | (places >= size)]
    expect(outside.size == 0, f"index {int(outside[0]) if outside.size else 0} is out of range for size {size}")
    picked = np.take(x, places, axis=-1)
    return picked.reshape(1, -1) if x.ndim == 1 else picked
