"""Normalisations of the domain ``com.microsoft``: of a sum with what skips a layer, of embeddings, of groups.

SimplifiedLayerNormalization, and LayerNormalization before operator set 17, are onnxruntime's own too, although files
name them in the default domain.  Sums and statistics are float32 for half precision, the dtype of the input otherwise.
Source: onnxruntime's docs/ContribOperators.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dims import Dim
from fuse.ir.dtypes import BY_CODE, BY_NAME, FLOAT, Array
from fuse.ir.types import Shape
from fuse.ops import norm
from fuse.ops.activation import logistic, swish
from fuse.ops.bounds import at_run_time, fits, in_range
from fuse.ops.elementwise import narrow, wide
from fuse.ops.heads import agreed, ranked
from fuse.ops.infer import common_dtype, normal_axis, show_shape
from fuse.ops.record import OPERATORS, Info, expect, operator, tensor

INT32 = BY_NAME["int32"]

operator("LayerNormalization-1", infer=OPERATORS["LayerNormalization"].infer)(at_run_time(norm.layer_normalization))


def _shape(x: Any) -> Any:
    return None if x is None else x.shape


def _rms(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array]:
    """``x`` over its root mean square, on a fresh array, and one over that root."""
    inverse = 1 / np.sqrt(np.mean(np.square(x), axis=axes, keepdims=True) + x.dtype.type(epsilon))
    return x * inverse, inverse


# ---- SimplifiedLayerNormalization


def _simplified_info(
    x: Info, scale: Info, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int = 1
) -> tuple[Info, Info]:
    if x.shape is None:
        return tensor(scale.dtype), tensor(BY_CODE.get(stash_type))
    first = normal_axis(axis, len(x.shape))
    stat = (*x.shape[:first], *(1,) * (len(x.shape) - first))
    return tensor(scale.dtype, x.shape), tensor(BY_CODE.get(stash_type), stat)


@operator("SimplifiedLayerNormalization-1", infer=_simplified_info)
@at_run_time
def simplified_layer_normalization(
    x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, n_outputs: int = 1
) -> tuple[Array, Array]:
    """``x`` over its root mean square along the axes from ``axis`` on, times ``scale``; also one over that root."""
    axes = tuple(range(normal_axis(axis, x.ndim), x.ndim))
    y, inverse = _rms(wide(x), axes, epsilon)
    return (y * wide(scale)).astype(scale.dtype, copy=False), inverse.astype(BY_CODE[stash_type])


# ---- after a skip


def _check_skip(x: Shape | None, skip: Shape | None, vectors: dict[str, Shape | None]) -> None:
    """Raise ``ShapeError`` where ``skip`` is not of the shape of ``x``, but for a batch that it may lack or share."""
    ranked(x, (2, 3), "the input")
    ranked(skip, (2, 3), "the skip")
    if x is None:
        return
    for name, shape in vectors.items():
        fits(name, shape, x[-1:])
    if skip is not None:
        message = f"the skip {show_shape(skip)} does not fit the input {show_shape(x)}"
        expect(len(skip) <= len(x), message)
        for place, (have, need) in enumerate(zip(reversed(skip), reversed(x), strict=False)):
            both = isinstance(have, int) and isinstance(need, int)
            expect(not both or have == need or (place == 2 and have == 1), message)


def _skip_outputs(x: Info, *others: Info | None) -> list[Info]:
    dtype = common_dtype(x, *others)
    stat = tensor(FLOAT, None if x.shape is None else (*x.shape[:-1], 1))
    whole = tensor(dtype, x.shape)
    return [whole, stat, stat, whole]


def _summed(x: Array, skip: Array, bias: Array | None) -> Array:
    total = np.asarray(wide(x) + wide(skip))
    return total if bias is None else total + wide(bias)


def _skip_info(
    x: Info,
    skip: Info,
    gamma: Info,
    beta: Info | None = None,
    bias: Info | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 1,
) -> list[Info]:
    _check_skip(x.shape, skip.shape, {"gamma": gamma.shape, "beta": _shape(beta), "bias": _shape(bias)})
    return _skip_outputs(x, skip, gamma, beta, bias)


@operator("com.microsoft::SkipLayerNormalization", infer=_skip_info)
@at_run_time
def skip_layer_normalization(
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = 1e-12,
    n_outputs: int = 1,
) -> tuple[Array, ...]:
    """LayerNormalization of ``x + skip + bias``; further outputs are its mean, 1 / deviation, and that sum."""
    _check_skip(x.shape, skip.shape, {"gamma": gamma.shape, "beta": _shape(beta), "bias": _shape(bias)})
    total = _summed(x, skip, bias)
    y, mean, inverse = norm.standardise(total, (-1,), epsilon)
    y *= wide(gamma)
    if beta is not None:
        y += wide(beta)
    return narrow(y, x), mean, inverse, narrow(total, x)


def _skip_simplified_info(
    x: Info, skip: Info, gamma: Info, bias: Info | None = None, *, epsilon: float = 1e-12, n_outputs: int = 1
) -> list[Info]:
    _check_skip(x.shape, skip.shape, {"gamma": gamma.shape, "bias": _shape(bias)})
    return _skip_outputs(x, skip, gamma, bias)


@operator("com.microsoft::SkipSimplifiedLayerNormalization", infer=_skip_simplified_info)
@at_run_time
def skip_simplified_layer_normalization(
    x: Array, skip: Array, gamma: Array, bias: Array | None = None, *, epsilon: float = 1e-12, n_outputs: int = 1
) -> tuple[Array, ...]:
    """``x + skip + bias`` over its root mean square; further outputs are zeros, 1 / that root, and the sum."""
    _check_skip(x.shape, skip.shape, {"gamma": gamma.shape, "bias": _shape(bias)})
    total = _summed(x, skip, bias)
    y, inverse = _rms(total, (-1,), epsilon)
    y *= wide(gamma)
    return narrow(y, x), np.zeros_like(inverse), inverse, narrow(total, x)


# ---- embeddings


def _embed_shape(ids: Shape | None, tables: dict[str, Shape | None], places: Shape | None) -> Shape:
    for what, shape in (("input_ids", ids), ("position_ids", places), *tables.items()):
        ranked(shape, (2,), what)
    batch, length = (None, None) if ids is None else ids
    if places is not None:
        agreed("the lengths of input_ids and position_ids", length, places[1])
        one = isinstance(places[0], int) and places[0] == 1
        batch = batch if one else agreed("the batches of input_ids and position_ids", batch, places[0])
    hidden: Dim = agreed("the widths of the embeddings", *(s[1] for s in tables.values() if s is not None), None)
    return batch, length, hidden


def _embed_info(
    input_ids: Info,
    segment_ids: Info | None,
    word_embedding: Info,
    position_embedding: Info,
    segment_embedding: Info | None,
    gamma: Info,
    beta: Info,
    mask: Info | None = None,
    position_ids: Info | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
    n_outputs: int = 1,
) -> list[Info]:
    tables = {"word": word_embedding, "position": position_embedding, "segment": segment_embedding}
    shape = _embed_shape(input_ids.shape, {n: _shape(t) for n, t in tables.items()}, _shape(position_ids))
    dtype = common_dtype(*tables.values(), gamma, beta)
    return [tensor(dtype, shape), tensor(INT32, shape[:1]), tensor(dtype, shape)]


@operator("com.microsoft::EmbedLayerNormalization", infer=_embed_info)
@at_run_time
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int | None = None,
    n_outputs: int = 1,
) -> tuple[Array, Array, Array]:
    """Embeddings of words, positions and segments added and normalised (batch, length, width).

    Further outputs: how many ones each row of ``mask`` has (zeros without one), and the sum of the embeddings.
    """
    tables = {"word": word_embedding, "position": position_embedding, "segment": segment_embedding}
    _embed_shape(input_ids.shape, {n: _shape(t) for n, t in tables.items()}, _shape(position_ids))
    places = np.arange(input_ids.shape[1])[None] if position_ids is None else position_ids
    total = _rows(word_embedding, input_ids, "word") + _rows(position_embedding, places, "position")
    if segment_ids is not None and segment_embedding is not None:
        fits("segment_ids", segment_ids.shape, input_ids.shape)
        total += _rows(segment_embedding, segment_ids, "segment")
    y, _, _ = norm.standardise(total, (-1,), epsilon)
    y *= wide(gamma)
    y += wide(beta)
    count = np.zeros(len(input_ids), INT32) if mask is None else np.sum(mask == 1, axis=1, dtype=INT32)
    return narrow(y, word_embedding), count, narrow(total, word_embedding)


def _rows(table: Array, ids: Array, what: str) -> Array:
    expect(not (ids < 0).any(), f"{what} {int(ids.min(initial=0))} is negative")
    in_range(ids, len(table), what)
    return wide(table[ids])


# ---- groups of channels


def _group_info(
    x: Info,
    gamma: Info,
    beta: Info,
    skip: Info | None = None,
    bias: Info | None = None,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    n_outputs: int = 1,
) -> list[Info]:
    ranked(x.shape, (4,), "the input")
    expect(activation in (0, 1), f"activation {activation} is not 0 or 1")
    if x.shape is not None:
        channels = x.shape[3 if channels_last else 1]
        for name, info in (("gamma", gamma), ("beta", beta), ("bias", bias)):
            fits(name, _shape(info), (channels,))
        expect(groups > 0, f"groups {groups} must be positive")
        expect(not isinstance(channels, int) or channels % groups == 0, f"{groups} groups do not divide {channels}")
    whole = tensor(common_dtype(x, skip, bias), x.shape)
    return [whole, whole]


def _group_only_info(x: Info, gamma: Info, beta: Info, **attrs: Any) -> list[Info]:
    return _group_info(x, gamma, beta, **attrs)[:1]


@operator("com.microsoft::GroupNorm", infer=_group_only_info)
@at_run_time
def group_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """GroupNormalization of ``x``, whose channels are the last axis or axis 1; then Swish where ``activation`` is 1."""
    expect(activation in (0, 1), f"activation {activation} is not 0 or 1")
    image = np.moveaxis(wide(x), -1, 1) if channels_last else wide(x)
    y = norm.group_normalization(image, gamma, beta, num_groups=groups, epsilon=epsilon)
    if activation:
        y = swish(y)
    return narrow(np.ascontiguousarray(np.moveaxis(y, 1, -1)) if channels_last else y, x)


@operator("com.microsoft::SkipGroupNorm", infer=_group_info)
@at_run_time
def skip_group_norm(
    x: Array,
    gamma: Array,
    beta: Array,
    skip: Array,
    bias: Array | None = None,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
    n_outputs: int = 1,
) -> tuple[Array, Array]:
    """GroupNorm of ``x + skip + bias``, and that sum; ``skip`` may lack the spatial axes, or have them of size 1."""
    whole = (slice(None), None, None) if channels_last else (slice(None), slice(None), None, None)
    total = np.asarray(wide(x) + wide(skip[whole] if skip.ndim == 2 else skip))
    expect(total.shape == x.shape, f"the skip {list(skip.shape)} does not fit the input {list(x.shape)}")
    if bias is not None:
        total += wide(bias if channels_last else bias[:, None, None])
    y = group_norm(
        total, gamma, beta, activation=activation, groups=groups, channels_last=channels_last, epsilon=epsilon
    )
    return narrow(y, x), narrow(total, x)


# ---- with a gate

_GATES = ("silu", "swish", "sigmoid")


def _gated_info(x: Info, scale: Info, gate: Info, *, activation: str = "silu", epsilon: float = 1e-5) -> Info:
    expect(activation in _GATES, f"activation {quote(activation)} is not one of {', '.join(_GATES)}")
    ranked(scale.shape, (1,), "the scale")
    if x.shape is not None:
        fits("gate", gate.shape, x.shape)
    return tensor(common_dtype(x, scale, gate), x.shape)


@operator("com.microsoft::GatedRMSNorm", infer=_gated_info)
@at_run_time
def gated_rms_norm(x: Array, scale: Array, gate: Array, *, activation: str = "silu", epsilon: float = 1e-5) -> Array:
    """Each run of ``len(scale)`` elements over its root mean square, times ``scale`` and the activated ``gate``."""
    _gated_info(*(tensor(a.dtype, a.shape) for a in (x, scale, gate)), activation=activation)
    whole = x.ndim > 0 and len(scale) > 0 and x.shape[-1] % len(scale) == 0
    expect(whole, f"the input {list(x.shape)} has no runs of {len(scale)} elements")
    runs = wide(x).reshape(*x.shape[:-1], x.shape[-1] // len(scale), len(scale))
    y = (_rms(runs, (-1,), epsilon)[0] * wide(scale)).reshape(x.shape)
    y *= logistic(wide(gate))
    if activation != "sigmoid":
        y *= wide(gate)
    return narrow(y, x)
