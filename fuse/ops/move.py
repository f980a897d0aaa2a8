"""Operators that give elements another place: reshaping, transposing, joining, splitting, repeating.

None of them computes anything, so each kernel also runs on the object arrays of symbolic sizes from which models
build their shapes, and most return a view of their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import ShapeError
from fuse.ir.dims import Dim, floordiv, product
from fuse.ir.dtypes import INT64, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, same_dim, single, whole
from fuse.ops.infer import broadcast_dims, common_dtype, normal_axes, normal_axis, same_as_first, show_shape
from fuse.ops.record import Info, Trait, expect, operator, tensor

L = Trait.LAYOUT
V = Trait.VIEW | Trait.LAYOUT

operator("Identity", infer=same_as_first, traits=V)(lambda x: x)


# ---- the same elements in another shape


def reshaped(old: Shape | None, target: Sequence[Dim], allowzero: bool) -> tuple[Dim, ...]:
    """The shape that Reshape makes of ``old``: 0 copies the dim at its place, -1 stands for what is left.

    Copied dims cancel on both sides, so that a -1 beside them is known even where they are not (or are 0).  A symbolic
    element of ``target`` is taken for a size: it is not expected to be 0 or -1 at run time.
    """
    say = f"cannot reshape {show_shape(old)} to {show_shape(tuple(target))}"
    expect(sum(d == -1 for d in target) <= 1, f"{say}: more than one -1")
    expect(not any(isinstance(d, int) and d < -1 for d in target), f"{say}: a negative size")
    copied = {i for i, d in enumerate(target) if d == 0 and not allowzero}
    expect(old is None or all(i < len(old) for i in copied), f"{say}: no dim to copy for a 0")
    new = [old[i] if i in copied and old is not None else None if i in copied else d for i, d in enumerate(target)]
    before = None if old is None else product(tuple(d for i, d in enumerate(old) if i not in copied))
    after = product(tuple(d for i, d in enumerate(target) if i not in copied and d != -1))
    both = isinstance(before, int) and isinstance(after, int)
    if -1 in target:
        expect(after != 0, f"{say}: -1 beside a 0 could be any size")
        expect(not both or before % after == 0, f"{say}: the counts of elements do not divide")  # type: ignore[operator]
        new[list(target).index(-1)] = None if before is None or after is None else floordiv(before, after)
    else:
        expect(not both or before == after, f"{say}: the counts of elements differ")
    return tuple(new)


def _reshape_info(x: Info, shape: Info, *, allowzero: int = 0) -> Info:
    if shape.dims is None:
        count = shape.shape[0] if shape.rank == 1 and shape.shape is not None else None
        return tensor(x.dtype, (None,) * count if isinstance(count, int) else None)
    return tensor(x.dtype, reshaped(x.shape, shape.dims, bool(allowzero)))


@operator("Reshape", infer=_reshape_info, traits=V)
@at_run_time
def reshape(x: Array, shape: Array, *, allowzero: int = 0) -> Array:
    return x.reshape(reshaped(x.shape, whole(shape), bool(allowzero)))


def _flat(shape: Shape, axis: int) -> tuple[Dim, Dim]:
    rank = len(shape)
    expect(-rank <= axis <= rank, f"axis {axis} is out of range for rank {rank}")
    split = axis + rank if axis < 0 else axis
    return product(shape[:split]), product(shape[split:])


def _flatten_info(x: Info, *, axis: int = 1) -> Info:
    return tensor(x.dtype, (None, None) if x.shape is None else _flat(x.shape, axis))


@operator("Flatten", infer=_flatten_info, traits=V)
@at_run_time
def flatten(x: Array, *, axis: int = 1) -> Array:
    return x.reshape(_flat(x.shape, axis))


def _squeezed(shape: Shape, axes: Sequence[int] | None) -> Shape | None:
    if axes is None:
        unclear = any(not isinstance(d, int) for d in shape)
        return None if unclear else tuple(d for d in shape if d != 1)
    gone = normal_axes(axes, len(shape))
    for axis in gone:
        size = shape[axis]
        expect(not isinstance(size, int) or size == 1, f"cannot squeeze axis {axis} of shape {show_shape(shape)}")
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def _count(axes: Info) -> int | None:
    """How many axes an input names, where its elements are not known but its length is."""
    size = product(axes.shape) if axes.shape is not None else None
    return size if isinstance(size, int) else None


def _squeeze_info(x: Info, axes: Info | None = None) -> Info:
    if x.shape is None:
        return tensor(x.dtype)
    if axes is None or axes.ints is not None:
        return tensor(x.dtype, _squeezed(x.shape, None if axes is None else axes.ints))
    count = _count(axes)
    expect(count is None or count <= len(x.shape), f"{count} axes to squeeze from shape {show_shape(x.shape)}")
    return tensor(x.dtype, None if count is None else (None,) * (len(x.shape) - count))


@operator("Squeeze", infer=_squeeze_info, traits=V)
@at_run_time
def squeeze(x: Array, axes: Array | None = None) -> Array:
    return x.reshape(_squeezed(x.shape, None if axes is None else whole(axes)))


def _unsqueezed(shape: Shape, axes: Sequence[int]) -> Shape:
    fresh = normal_axes(axes, len(shape) + len(axes))
    old = iter(shape)
    return tuple(1 if i in fresh else next(old) for i in range(len(shape) + len(axes)))


def _unsqueeze_info(x: Info, axes: Info) -> Info:
    if x.shape is not None and axes.ints is not None:
        return tensor(x.dtype, _unsqueezed(x.shape, axes.ints))
    count = _count(axes)
    return tensor(x.dtype, None if x.shape is None or count is None else (None,) * (len(x.shape) + count))


@operator("Unsqueeze", infer=_unsqueeze_info, traits=V)
@at_run_time
def unsqueeze(x: Array, axes: Array) -> Array:
    return x.reshape(_unsqueezed(x.shape, whole(axes)))


# ---- another order


def _permutation(perm: Sequence[int] | None, rank: int) -> tuple[int, ...]:
    if perm is None:
        return tuple(reversed(range(rank)))
    expect(sorted(perm) == list(range(rank)), f"perm {list(perm)} is not a permutation of {rank} axes")
    return tuple(perm)


def _transpose_info(x: Info, *, perm: Sequence[int] | None = None) -> Info:
    if x.shape is None:
        return tensor(x.dtype, None if perm is None else (None,) * len(perm))
    return tensor(x.dtype, [x.shape[i] for i in _permutation(perm, len(x.shape))])


@operator("Transpose", infer=_transpose_info, traits=L)
@at_run_time
def transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array:
    return x.transpose(_permutation(perm, x.ndim))


def _blocks(x: Info, blocksize: int, to_space: bool, mode: str) -> Info:
    expect(mode in ("DCR", "CRD"), f"mode {mode!r} is neither DCR nor CRD")
    expect(blocksize > 0, f"blocksize {blocksize} is not positive")
    if x.shape is None:
        return tensor(x.dtype, (None,) * 4)
    expect(len(x.shape) == 4, f"the input is {show_shape(x.shape)}, not [N, C, H, W]")
    n, c, h, w = x.shape
    for size, step in ((c, blocksize**2),) if to_space else ((h, blocksize), (w, blocksize)):
        fits = not isinstance(size, int) or size % step == 0
        expect(fits, f"blocks of {blocksize} do not divide the input {show_shape(x.shape)}")
    out = [None if d is None else d * blocksize if to_space else floordiv(d, blocksize) for d in (h, w)]
    depth = None if c is None else floordiv(c, blocksize**2) if to_space else c * blocksize**2
    return tensor(x.dtype, (n, depth, *out))


def _depth_to_space_info(x: Info, *, blocksize: int, mode: str = "DCR") -> Info:
    return _blocks(x, blocksize, True, mode)


@operator("DepthToSpace", infer=_depth_to_space_info, traits=L)
@at_run_time
def depth_to_space(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    out: Any = _blocks(tensor(x.dtype, x.shape), blocksize, True, mode).shape
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(out)
    return x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(out)


def _space_to_depth_info(x: Info, *, blocksize: int, mode: str = "DCR") -> Info:
    return _blocks(x, blocksize, False, mode)


@operator("SpaceToDepth", infer=_space_to_depth_info, traits=L)
@at_run_time
def space_to_depth(x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    out: Any = _blocks(tensor(x.dtype, x.shape), blocksize, False, mode).shape
    n, c, h, w = x.shape
    b = blocksize
    parts = x.reshape(n, c, h // b, b, w // b, b)
    return parts.transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)).reshape(out)


# ---- joined, cut, repeated


def joined(shapes: Sequence[Shape | None], axis: int) -> Shape | None:
    """The shape of a concatenation; ``ShapeError`` where ranks or the other dims differ."""
    known = [s for s in shapes if s is not None]
    if not known:
        return None
    say = f"shapes {' and '.join(show_shape(s) for s in known)} cannot be joined along axis {axis}"
    expect(all(len(s) == len(known[0]) for s in known), say)
    place = normal_axis(axis, len(known[0]))
    dims = [same_dim([s[i] for s in known], say) if i != place else None for i in range(len(known[0]))]
    ends = [s[place] for s in known]
    if len(known) == len(shapes) and all(d is not None for d in ends):
        dims[place] = sum(ends[1:], start=ends[0])  # type: ignore[arg-type]
    return tuple(dims)


def _concat_info(x: Info, *xs: Info, axis: int) -> Info:
    return tensor(common_dtype(x, *xs), joined([i.shape for i in (x, *xs)], axis))


@operator("Concat", infer=_concat_info, traits=L)
@at_run_time
def concat(x: Array, *xs: Array, axis: int) -> Array:
    joined([i.shape for i in (x, *xs)], axis)
    return np.concatenate((x, *xs), axis=axis) if xs else x


def chunks(size: Dim, split: Sequence[Dim] | None, parts: int) -> list[Dim]:
    """The sizes of ``parts`` pieces: as ``split`` says, else equal ones with a smaller last one."""
    if split is None:
        step = None if size is None else floordiv(size + (parts - 1), parts)
        last = None if size is None or step is None else size - step * (parts - 1)
        split = [step] * (parts - 1) + [last]
    say = f"cannot split size {size} into {show_shape(tuple(split))}"
    expect(len(split) == parts, f"{say}: there are {parts} outputs")
    expect(not any(isinstance(d, int) and d < 0 for d in split), f"{say}: a negative size")
    if isinstance(size, int) and all(isinstance(d, int) for d in split):
        expect(sum(split) == size, f"{say}: the sum differs")  # type: ignore[arg-type]
    return list(split)


def _parts(split: object, num_outputs: int | None, n_outputs: int) -> int:
    expect(split is None or num_outputs is None, "split and num_outputs exclude each other")
    expect(num_outputs in (None, n_outputs), f"num_outputs is {num_outputs} and there are {n_outputs} outputs")
    return n_outputs


def _split_info(
    x: Info, split: Info | None = None, *, axis: int = 0, num_outputs: int | None = None, n_outputs: int
) -> list[Info]:
    parts = _parts(split, num_outputs, n_outputs)
    if x.shape is None:
        return [tensor(x.dtype)] * parts
    place = normal_axis(axis, len(x.shape))
    sizes: list[Dim] = [None] * parts
    if split is None or split.dims is not None:
        sizes = chunks(x.shape[place], None if split is None else split.dims, parts)
    return [tensor(x.dtype, (*x.shape[:place], d, *x.shape[place + 1 :])) for d in sizes]


@operator("Split", infer=_split_info, traits=L)
@at_run_time
def split(
    x: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, n_outputs: int
) -> tuple[Array, ...]:
    parts = _parts(split, num_outputs, n_outputs)
    place = normal_axis(axis, x.ndim)
    sizes: Any = chunks(x.shape[place], None if split is None else whole(split), parts)
    ends = np.cumsum([0, *sizes])
    before = (slice(None),) * place
    return tuple(x[(*before, slice(ends[i], ends[i + 1]))] for i in range(parts))


def _expand_info(x: Info, shape: Info) -> Info:
    if shape.dims is None:
        return tensor(x.dtype)
    expect(not any(isinstance(d, int) and d < 0 for d in shape.dims), f"negative size in {show_shape(shape.dims)}")
    return tensor(x.dtype, broadcast_dims([x.shape, shape.dims]))


@operator("Expand", infer=_expand_info, traits=L)
@at_run_time
def expand(x: Array, shape: Array) -> Array:
    """Two-way broadcasting of the input with ``shape``; a read-only view that takes no memory of its own."""
    wanted = whole(shape)
    expect(all(d >= 0 for d in wanted), f"negative size in {show_shape(wanted)}")
    return np.broadcast_to(x, broadcast_dims([x.shape, wanted]))  # type: ignore[arg-type]


def tiled(shape: Shape, repeats: Sequence[Dim]) -> tuple[Dim, ...]:
    """Each dim times its count; ``ShapeError`` on a count too many, too few, or negative."""
    say = f"repeats {show_shape(tuple(repeats))} do not fit shape {show_shape(shape)}"
    expect(len(repeats) == len(shape) and not any(isinstance(r, int) and r < 0 for r in repeats), say)
    return tuple(product((d, r)) for d, r in zip(shape, repeats, strict=True))


def _tile_info(x: Info, repeats: Info) -> Info:
    if x.shape is None or repeats.dims is None:
        return tensor(x.dtype, None if x.shape is None else (None,) * len(x.shape))
    return tensor(x.dtype, tiled(x.shape, repeats.dims))


@operator("Tile", infer=_tile_info, traits=L)
@at_run_time
def tile(x: Array, repeats: Array) -> Array:
    counts = whole(repeats)
    out: Any = tiled(x.shape, counts)
    return x if out == x.shape else np.tile(x, counts)


def _along(rank: int, tiles: int, axis: int) -> Array:
    counts = [1] * rank
    counts[normal_axis(axis, rank)] = tiles
    return np.array(counts, dtype=INT64)


def _tile_1_info(x: Info, tiles: Info, axis: Info) -> Info:
    if x.shape is None or tiles.value is None or axis.value is None:
        return tensor(x.dtype, None if x.shape is None else (None,) * len(x.shape))
    counts = _along(len(x.shape), int(single(tiles.value, "tiles")), int(single(axis.value, "axis")))
    return _tile_info(x, tensor(INT64, (len(x.shape),), counts))


@operator("Tile-1", infer=_tile_1_info, traits=L)
@at_run_time
def tile_1(x: Array, tiles: Array, axis: Array) -> Array:
    """Opset 1: ``tiles`` copies one after another along one ``axis``, both given as numbers of the input's dtype."""
    try:
        count, place = int(single(tiles, "tiles")), int(single(axis, "axis"))
    except (OverflowError, ValueError):
        raise ShapeError(f"tiles {tiles} and axis {axis} must be whole numbers") from None
    counts: Array = tile(x, _along(x.ndim, count, place))
    return counts
