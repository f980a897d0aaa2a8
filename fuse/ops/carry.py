"""Operators that carry a state from one step of decoding to the next: a cache, a window, a recurrent memory.

Half precision is carried in float32 from the first position to the last and rounded once.
Source: the ONNX operator texts of TensorScatter, CausalConvWithState and LinearAttention.
"""

from __future__ import annotations

import numpy as np

from fuse.errors import quote
from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.activation import logistic
from fuse.ops.bounds import at_run_time, fits, same_dim
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, normal_axis, show_shape
from fuse.ops.record import Info, expect, operator, tensor

# ---- TensorScatter


def _scatter_axis(cache: Shape | None, update: Shape | None, indices: Shape | None, mode: str, axis: int) -> int:
    """The sequence's axis counted from the front; ``ShapeError`` where the shapes do not fit together."""
    expect(mode in ("linear", "circular"), f"mode {quote(mode)} is not linear or circular")
    if cache is None:
        return axis
    at = normal_axis(axis, len(cache))
    expect(at > 0, f"axis {axis} is the batch")
    fits("update", update, (*cache[:at], None, *cache[at + 1 :]))
    fits("write_indices", indices, cache[:1])
    if update is not None and isinstance(update[at], int) and isinstance(cache[at], int):
        short = f"update {show_shape(update)} is longer than the cache {show_shape(cache)}"
        expect(update[at] <= cache[at], short)  # type: ignore[operator]
    return at


def _tensor_scatter_info(
    past_cache: Info, update: Info, write_indices: Info | None = None, *, axis: int = -2, mode: str = "linear"
) -> Info:
    indices = None if write_indices is None else write_indices.shape
    _scatter_axis(past_cache.shape, update.shape, indices, mode, axis)
    return tensor(common_dtype(past_cache, update), past_cache.shape)


@operator("TensorScatter", infer=_tensor_scatter_info)
@at_run_time
def tensor_scatter(
    past_cache: Array, update: Array, write_indices: Array | None = None, *, axis: int = -2, mode: str = "linear"
) -> Array:
    """The cache with ``update`` written along ``axis`` from each sample's index on, around the end where circular."""
    indices = None if write_indices is None else write_indices.shape
    at = _scatter_axis(past_cache.shape, update.shape, indices, mode, axis)
    size, count, batch = past_cache.shape[at], update.shape[at], past_cache.shape[0]
    first = np.zeros(batch, np.int64) if write_indices is None else write_indices
    if mode == "circular":
        first = first % max(size, 1)
    outside = first[(first < 0) | (first + count > size)] if mode == "linear" else first[:0]
    expect(not outside.size, f"{count} positions from {outside[:1].tolist()} are not within the {size} of the cache")
    y = past_cache.copy()
    places = (first[:, None] + np.arange(count)) % max(size, 1)
    np.moveaxis(y, at, 1)[np.arange(batch)[:, None], places] = np.moveaxis(update, at, 1)
    return y


# ---- CausalConvWithState


def _conv_check(x: Shape | None, weight: Shape | None, bias: Shape | None, past: Shape | None, activation: str) -> Dim:
    """One less than the size of the kernel; ``ShapeError`` where the shapes do not fit together."""
    expect(activation in ("none", "silu", "swish"), f"activation {quote(activation)} is not none, silu or swish")
    fits("input", x, (None, None, None))
    batch, channels = (None, None) if x is None else x[:2]
    fits("weight", weight, (channels, 1, None))
    fits("bias", bias, (channels,))
    taps = None if weight is None else weight[2]
    expect(not isinstance(taps, int) or taps > 0, "the kernel is empty")
    carried = None if taps is None else taps - 1
    fits("past_state", past, (batch, channels, carried))
    return carried


def _conv_info(
    x: Info, weight: Info, bias: Info | None = None, past_state: Info | None = None, *, activation: str = "none"
) -> tuple[Info, Info]:
    shapes = [None if i is None else i.shape for i in (x, weight, bias, past_state)]
    carried = _conv_check(shapes[0], shapes[1], shapes[2], shapes[3], activation)
    dtype = common_dtype(x, weight, bias, past_state)
    return tensor(dtype, x.shape), tensor(dtype, None if x.shape is None else (*x.shape[:2], carried))


@operator("CausalConvWithState", infer=_conv_info)
@at_run_time
def causal_conv_with_state(
    x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *, activation: str = "none"
) -> tuple[Array, Array]:
    """Each channel of ``x`` (batch, channels, length) convolved with its kernel over the positions up to each one.

    Gives the result and the last positions, those of the past and zeros before it included, for the next call.
    """
    shapes = [None if a is None else a.shape for a in (x, weight, bias, past_state)]
    _conv_check(shapes[0], shapes[1], shapes[2], shapes[3], activation)
    length, taps = x.shape[2], weight.shape[2]
    before = np.zeros((*x.shape[:2], taps - 1), x.dtype) if past_state is None else past_state
    whole = np.concatenate([before, x], axis=2)
    seen, kernel = wide(whole), wide(weight)
    y = np.zeros(x.shape, seen.dtype) if bias is None else np.broadcast_to(wide(bias)[:, None], x.shape).copy()
    for tap in range(taps):
        y += seen[:, :, tap : tap + length] * kernel[:, :, tap]
    if activation != "none":
        y *= logistic(y)
    return narrow(y, x), whole[:, :, length:]


# ---- LinearAttention

RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
"""For each update rule whether the memory decays, and whether it is corrected by what it already holds."""


def _memory_check(shapes: dict[str, Shape | None], q_num_heads: int, kv_num_heads: int, rule: str) -> tuple[Dim, ...]:
    """Batch, positions, and the sizes of a head's key and value; ``ShapeError`` where the inputs do not fit together.

    ``shapes`` holds those of the given inputs by their names in the operator text.
    """
    expect(rule in RULES, f"update_rule {quote(rule)} is not one of {', '.join(RULES)}")
    for name, needed in zip(("decay", "beta"), RULES[rule], strict=True):
        expect((name in shapes) == needed, f"update_rule {rule} {'needs' if needed else 'takes no'} {name}")
    expect(kv_num_heads > 0 and q_num_heads > 0, f"numbers of heads {q_num_heads} and {kv_num_heads} must be positive")
    expect(q_num_heads % kv_num_heads == 0, f"{kv_num_heads} heads of keys do not divide {q_num_heads} of queries")
    sizes: dict[str, Dim] = {}
    for name, heads in (("query", q_num_heads), ("key", kv_num_heads), ("value", kv_num_heads)):
        shape = shapes[name]
        fits(name, shape, (None, None, None))
        width = None if shape is None else shape[2]
        expect(
            not isinstance(width, int) or width % heads == 0, f"{heads} heads do not divide {name} {show_shape(shape)}"
        )
        sizes[name] = None if width is None else floordiv(width, heads)
    key = same_dim((sizes["query"], sizes["key"]), f"a head has {sizes['query']} in query, {sizes['key']} in key")
    lead = [s[:2] if s is not None else (None, None) for s in (shapes["query"], shapes["key"], shapes["value"])]
    batch, steps = (
        same_dim(column, "query, key and value differ in batch or length") for column in zip(*lead, strict=True)
    )
    fits("past_state", shapes.get("past_state"), (batch, kv_num_heads, key, sizes["value"]))
    for name, width in (("decay", None if key is None else key * kv_num_heads), ("beta", 1)):
        shape = shapes.get(name)
        narrow_one = shape is not None and len(shape) == 3 and shape[2] == kv_num_heads
        fits(name, shape, (batch, steps, kv_num_heads if narrow_one else width))
    return batch, steps, key, sizes["value"]


def _linear_attention_info(
    query: Info,
    key: Info,
    value: Info,
    past_state: Info | None = None,
    decay: Info | None = None,
    beta: Info | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Info, Info]:
    inputs = {"query": query, "key": key, "value": value, "past_state": past_state, "decay": decay, "beta": beta}
    shapes = {name: info.shape for name, info in inputs.items() if info is not None}
    batch, steps, k, v = _memory_check(shapes, q_num_heads, kv_num_heads, update_rule)
    dtype = common_dtype(query, key, value, decay, beta)
    state = dtype if past_state is None else past_state.dtype
    width = None if v is None else v * q_num_heads
    return tensor(dtype, (batch, steps, width)), tensor(state, (batch, kv_num_heads, k, v))


@operator("LinearAttention", infer=_linear_attention_info)
@at_run_time
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Array, Array]:
    """A memory of products of keys and values, (batch, heads, key, value), that each query reads after its key is in.

    Gives what was read at each position, and the memory after the last.  A memory that no past gives a dtype has that
    of the queries.
    """
    inputs = {"query": query, "key": key, "value": value, "past_state": past_state, "decay": decay, "beta": beta}
    shapes = {name: a.shape for name, a in inputs.items() if a is not None}
    _memory_check(shapes, q_num_heads, kv_num_heads, update_rule)
    batch, steps = query.shape[:2]
    share = q_num_heads // kv_num_heads
    q = _steps(query, (kv_num_heads, share, query.shape[2] // q_num_heads))
    k, v = (_steps(a, (kv_num_heads, a.shape[2] // kv_num_heads)) for a in (key, value))
    factor = scale if scale else 1 / np.sqrt(max(k.shape[3], 1))
    q = q * q.dtype.type(factor)
    keep = None if decay is None else np.exp(_steps(decay, (kv_num_heads, decay.shape[2] // kv_num_heads)))
    rate = None if beta is None else _steps(beta, (beta.shape[2], 1))
    memory = np.zeros((batch, kv_num_heads, k.shape[3], v.shape[3]), q.dtype)
    if past_state is not None:
        memory += past_state.astype(q.dtype)
    y = np.empty((steps, batch, kv_num_heads, share, v.shape[3]), q.dtype)
    for t in range(steps):
        if keep is not None:
            memory *= keep[t][..., None]
        new = v[t]
        if rate is not None:
            new = rate[t] * (new - (k[t][..., None, :] @ memory)[..., 0, :])
        memory += k[t][..., None] * new[..., None, :]
        y[t] = q[t] @ memory
    out = y.swapaxes(0, 1).reshape(batch, steps, q_num_heads * v.shape[3])
    return narrow(out, query), narrow(memory, query if past_state is None else past_state)


def _steps(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` (batch, steps, packed) as (steps, batch, ...), its last axis unpacked to ``shape``."""
    return wide(x).reshape(*x.shape[:2], *shape).swapaxes(0, 1)
