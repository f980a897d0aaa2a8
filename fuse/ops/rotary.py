"""RotaryEmbedding: each pair of numbers of a head turned by an angle that grows with the position.

Source: the ONNX operator text.
"""

from __future__ import annotations

from fuse.ir.dims import Dim, floordiv
from fuse.ir.dtypes import Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time, fits, in_range
from fuse.ops.elementwise import narrow, wide
from fuse.ops.infer import common_dtype, show_shape
from fuse.ops.record import Info, expect, operator, tensor


def _sizes(x: Shape, num_heads: int | None) -> tuple[Dim, Dim, Dim]:
    """Batch, positions, and the size of a head."""
    if len(x) == 4:
        return x[0], x[2], x[3]
    expect(len(x) == 3, f"the input is {show_shape(x)}, not 3-D or 4-D")
    expect(bool(num_heads) and num_heads > 0, "num_heads is needed for a 3-D input")  # type: ignore[operator]
    assert num_heads is not None
    whole = x[2]
    expect(not isinstance(whole, int) or whole % num_heads == 0, f"{num_heads} heads do not divide {show_shape(x)}")
    return x[0], x[1], None if whole is None else floordiv(whole, num_heads)


def _check(
    x: Shape | None,
    caches: tuple[Shape | None, ...],
    ids: Shape | None,
    given: bool,
    num_heads: int | None,
    turned: int,
) -> None:
    """Raise ``ShapeError`` where the inputs do not fit together; ``given`` says that there are position ids."""
    batch, positions, size = (None, None, None) if x is None else _sizes(x, num_heads)
    expect(turned >= 0 and turned % 2 == 0, f"rotary_embedding_dim {turned} is not an even number")
    if isinstance(size, int):
        expect(turned <= size, f"rotary_embedding_dim {turned} is more than the {size} numbers of a head")
        expect(turned > 0 or size % 2 == 0, f"a head has {size} numbers, which is odd")
    half = turned // 2 or (None if size is None else floordiv(size, 2))
    for name, cache in zip(("cos_cache", "sin_cache"), caches, strict=True):
        wanted = (None, half) if given else (batch, positions, half)
        fits(name, cache, wanted)
    if given:
        fits("position_ids", ids, (batch, positions))


def _rotary_info(
    x: Info,
    cos_cache: Info,
    sin_cache: Info,
    position_ids: Info | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Info:
    ids = None if position_ids is None else position_ids.shape
    given = position_ids is not None
    _check(x.shape, (cos_cache.shape, sin_cache.shape), ids, given, num_heads, rotary_embedding_dim)
    return tensor(common_dtype(x, cos_cache, sin_cache), x.shape)


@operator("RotaryEmbedding", infer=_rotary_info)
@at_run_time
def rotary_embedding(
    x: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
) -> Array:
    """The first ``rotary_embedding_dim`` numbers of each head (0: all) turned in pairs, the others as they are.

    Pairs are neighbours where ``interleaved``, else a number of the first half with its counterpart in the second.  The
    caches hold the cosines and sines of each position, or of each token where no ``position_ids`` are given.
    """
    ids = None if position_ids is None else position_ids.shape
    given = position_ids is not None
    _check(x.shape, (cos_cache.shape, sin_cache.shape), ids, given, num_heads, rotary_embedding_dim)
    cos, sin = wide(cos_cache), wide(sin_cache)
    if position_ids is not None:
        in_range(position_ids, len(cos_cache), "position")
        in_range(position_ids, len(sin_cache), "position")
        cos, sin = cos[position_ids], sin[position_ids]
    y = x.copy()
    heads = y.reshape(*y.shape[:2], num_heads or 1, -1) if y.ndim == 3 else y.swapaxes(1, 2)  # a view either way
    turned = 2 * cos.shape[-1]
    first, second = (
        slice(k, turned, 2) if interleaved else slice(k * turned // 2, (k + 1) * turned // 2) for k in (0, 1)
    )
    a, b, cos, sin = wide(heads[..., first]), wide(heads[..., second]), cos[:, :, None], sin[:, :, None]
    heads[..., first], heads[..., second] = narrow(a * cos - b * sin, x), narrow(a * sin + b * cos, x)
    return y
