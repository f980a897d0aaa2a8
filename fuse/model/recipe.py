"""A recipe is a line of text that stands for a tensor: what its elements are like, and a seed to make them again.

A stripped model keeps every shape and loses every weight: each large tensor is replaced by its ``Recipe``, and the
loader makes an array of the same statistics from it.  The array must be the same bits on every machine, today and in
ten years, so nothing here calls a random generator or a transcendental function.  Element ``i`` is computed from
``splitmix64(seed, i)`` alone (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), by
integer arithmetic and by float64 operations that IEEE 754 rounds exactly.  What a kind means never changes: a better
generator would be a new kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fuse.errors import LimitError, ModelError, quote
from fuse.ir.dtypes import BOOL, BY_NAME, DOUBLE, FLOATING, INTEGER, STRING, Array, DType, name_of
from fuse.limits import DEFAULT, Limits

Number = int | float

#: Elements computed at a time: the temporaries stay in the cache, and a large tensor costs no more than itself.
CHUNK = 1 << 14

#: What each kind is made of, and what its JSON holds.
FIELDS: dict[str, tuple[str, ...]] = {
    "normal": ("seed", "mean", "std", "low", "high"),
    "uniform": ("seed", "low", "high"),
    "bool": ("seed", "mean"),
    "constant": ("value",),
    "text": (),
}

#: About what a short ``str`` takes in memory.
STRING_BYTES = 64

#: A longer text is no recipe.
LONGEST = 1000

_WORD = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
_POWERS_OF_TWO = BY_NAME["float8e8m0"]
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make a tensor's elements; only the fields that ``FIELDS`` lists for ``kind`` count.

    ``normal``: bell-shaped around ``mean`` with deviation ``std``, clipped to ``low`` and ``high``.  ``uniform``:
    evenly within ``low`` and ``high``, both of which occur where the dtype is an integer.  ``bool``: true for the share
    ``mean``.  ``constant``: ``value`` over and over (a pair for complex tensors).  ``text``: the strings ``s0``, ``s1``
    and so on.

    Raises ``ModelError`` where the fields contradict the kind or each other.
    """

    kind: str
    seed: int = 0
    mean: float = 0.0
    std: float = 0.0
    low: Number = 0
    high: Number = 0
    value: tuple[Number, ...] = ()

    def __post_init__(self) -> None:
        _require(self.kind in FIELDS, f"has the unknown kind {quote(self.kind)}")
        _require(_is_int(self.seed) and 0 <= self.seed < _WORD, "has a seed that is not an integer in [0, 2**64)")
        for name in ("mean", "std", "low", "high"):
            _require(_is_finite(getattr(self, name)), f"has a {name} that is not a finite number")
        _require(self.std >= 0, "has a negative std")
        _require(self.low <= self.high, "has bounds that cross")
        _require(self.kind != "uniform" or math.isfinite(self.high - self.low), "has bounds too far apart")
        _require(self.kind != "bool" or 0 <= self.mean <= 1, "has a share outside [0, 1]")
        _require(self.kind != "constant" or len(self.value) in (1, 2), "needs one value, or two for a complex tensor")
        _require(all(_is_number(v) for v in self.value), "has a value that is not a number")


# ---- text


def to_json(recipe: Recipe) -> str:
    """The recipe as one line of JSON; floats are written so that they read back to the same bits."""
    fields = {"kind": recipe.kind} | {k: v for k, v in asdict(recipe).items() if k in FIELDS[recipe.kind]}
    if "value" in fields:
        fields["value"] = [v if math.isfinite(v) else str(float(v)) for v in recipe.value]
    return json.dumps(fields, separators=(",", ":"), allow_nan=False)


def from_json(text: str) -> Recipe:
    """The recipe that ``to_json`` wrote; ``ModelError`` on anything else, and on a missing or an unknown key."""
    _require(len(text) <= LONGEST, f"is {len(text)} characters long")
    try:
        fields = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise ModelError(f"the recipe {quote(text)} is not valid JSON") from None
    _require(isinstance(fields, dict), "is not a JSON object")
    kind = fields.pop("kind", None)
    _require(isinstance(kind, str) and kind in FIELDS, f"has the unknown kind {quote(kind)}")
    for name in fields:
        _require(name in FIELDS[kind], f"of kind {quote(kind)} has the unknown key {quote(name)}")
    for name in FIELDS[kind]:
        _require(name in fields, f"of kind {quote(kind)} lacks the key {quote(name)}")
    if "value" in fields:
        _require(isinstance(fields["value"], list), "has a value that is not a list")
        fields["value"] = tuple(_NON_FINITE.get(v, v) if isinstance(v, str) else v for v in fields["value"])
    return Recipe(kind, **fields)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ModelError(f"the recipe of a stripped tensor {what}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    _require(len(fields) == len(pairs), "names a key twice")
    return fields


def _refuse(word: str) -> None:
    raise ValueError(word)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (_is_int(value) and -(_WORD // 2) <= value < _WORD)  # type: ignore[operator]


def _is_finite(value: object) -> bool:
    return _is_number(value) and math.isfinite(value)  # type: ignore[arg-type]


# ---- from an array to its recipe


def describe(array: Array, seed: int = 0) -> Recipe:
    """The recipe of an array of any dtype and shape.

    An array whose elements are all the same bits stays exactly that.  Floats keep mean, deviation and the smallest and
    largest finite element as bounds, so that a variance stays positive; NaN and Inf are left out of all four and do not
    come back.  Integers keep their range, so that indices stay valid.
    """
    if array.dtype == STRING:
        return Recipe("text")
    flat = np.ravel(array)
    lanes = flat.view(_lane(array.dtype))
    if _is_uniform(flat):
        return Recipe("constant", value=tuple(_plain(v) for v in lanes[: len(lanes) // max(flat.size, 1)]) or (0,))
    if array.dtype == BOOL:
        return Recipe("bool", seed, mean=int(np.count_nonzero(lanes)) / lanes.size)
    if lanes.dtype in INTEGER:
        return Recipe("uniform", seed, low=_plain(lanes.min()), high=_plain(lanes.max()))
    return _describe_floats(lanes, seed)


def _lane(dtype: DType) -> DType:
    """The dtype whose elements the array is made of: complex tensors are pairs; powers of two are their exponents."""
    if dtype.kind == "c":
        return np.dtype(f"f{dtype.itemsize // 2}")
    return np.dtype(np.uint8) if dtype == _POWERS_OF_TWO else dtype


def _plain(element: Any) -> Number:
    dtype = np.asarray(element).dtype
    return float(element) if dtype in FLOATING else int(element)


def _is_uniform(flat: Array) -> bool:
    """True where every element has the first one's bits."""
    rows = flat.view(np.uint8).reshape(flat.size, flat.dtype.itemsize)
    return all(bool((rows[i : i + CHUNK] == rows[0]).all()) for i in range(0, len(rows), CHUNK))


def _describe_floats(lanes: Array, seed: int) -> Recipe:
    low, high, count = math.inf, -math.inf, 0
    for part in _finite(lanes, 1.0):
        low, high, count = min(low, float(part.min())), max(high, float(part.max())), count + part.size
    if not count or low == high:
        return Recipe("constant", value=(low if count else 0.0,))
    # Squares of the elements themselves may overflow, or vanish; a power of two scales without rounding.
    scale = math.ldexp(1.0, math.frexp(max(abs(low), abs(high)))[1] - 1)
    mean = sum(float(part.sum()) for part in _finite(lanes, scale)) / count
    square = sum(float(np.square(part - mean).sum()) for part in _finite(lanes, scale)) / count
    return Recipe("normal", seed, mean=mean * scale, std=math.sqrt(square) * scale, low=low, high=high)


def _finite(lanes: Array, scale: float) -> Iterator[Array]:
    """The finite elements as float64 over ``scale``, some at a time."""
    for start in range(0, lanes.size, CHUNK):
        part = lanes[start : start + CHUNK].astype(DOUBLE)
        part = part[np.isfinite(part)]
        if part.size:
            yield part / scale


# ---- from a recipe to the array


def materialize(recipe: Recipe, shape: tuple[int, ...], dtype: DType, limits: Limits = DEFAULT) -> Array:
    """The array of ``shape`` and ``dtype`` that the recipe stands for, the same bits everywhere.

    Raises what ``check`` raises.
    """
    check(recipe, shape, dtype, limits)
    if dtype == STRING:
        texts = np.empty(math.prod(shape), dtype=STRING)
        texts[:] = [f"s{index}" for index in range(texts.size)]
        return texts.reshape(shape)
    lane = _lane(dtype)
    lanes = np.empty(math.prod(shape) * (dtype.itemsize // lane.itemsize), lane)
    for start in range(0, lanes.size, CHUNK):
        count = min(CHUNK, lanes.size - start)
        lanes[start : start + count] = _narrow(_draw(recipe, lane, start, count), lane)
    return lanes.view(dtype).reshape(shape)


def check(recipe: Recipe, shape: tuple[int, ...], dtype: DType, limits: Limits = DEFAULT) -> None:
    """Raise unless the recipe can make such an array, without making it.

    ``ModelError`` where its kind or its numbers do not suit the dtype, or a size is negative; ``LimitError`` where the
    array would be larger than ``limits.stripped_bytes``.
    """
    name = name_of(dtype)
    _require(all(d >= 0 for d in shape), f"is for the shape {list(shape)}")
    if math.prod(shape) * (dtype.itemsize if dtype != STRING else STRING_BYTES) > limits.stripped_bytes:
        what = f"a stripped tensor of shape {list(shape)} and type {name} has more than {limits.stripped_bytes:,} bytes"
        raise LimitError(what)
    _require(recipe.kind in _kinds(dtype), f"of kind {quote(recipe.kind)} cannot make the type {name}")
    if recipe.kind in ("text", "bool"):
        return
    numbers: tuple[Number, ...] = (recipe.low, recipe.high)
    lane = _lane(dtype)
    if recipe.kind == "constant":
        numbers = recipe.value
        _require(len(numbers) == 1 or dtype.kind == "c", f"gives {len(numbers)} values for the type {name}")
        if lane in FLOATING:
            numbers = tuple(v for v in numbers if math.isfinite(v))
    low, high = _range(lane)
    integral = lane in FLOATING or all(_is_int(v) for v in numbers)
    _require(integral and all(low <= v <= high for v in numbers), f"has numbers that the type {name} does not hold")


def _kinds(dtype: DType) -> tuple[str, ...]:
    if dtype == STRING:
        return ("text",)
    if dtype == BOOL:
        return ("bool", "constant")
    return ("uniform", "constant") if _lane(dtype) in INTEGER else ("normal", "uniform", "constant")


def _range(lane: DType) -> tuple[Number, Number]:
    """The smallest and the largest finite number of the type."""
    if lane == BOOL:
        return 0, 1
    if lane in FLOATING:
        return -float(ml_dtypes.finfo(lane).max), float(ml_dtypes.finfo(lane).max)
    return int(ml_dtypes.iinfo(lane).min), int(ml_dtypes.iinfo(lane).max)


def _draw(recipe: Recipe, lane: DType, start: int, count: int) -> Array:
    """Elements ``start`` to ``start + count``: float64 for floats, bool, or uint64 modulo 2**64 for integers."""
    if recipe.kind == "constant":
        if lane in FLOATING:
            return np.resize(np.array(recipe.value, DOUBLE), count)
        return np.full(count, int(recipe.value[0]) % _WORD, np.uint64)
    words = _words(recipe.seed, start, count)
    if recipe.kind == "normal":
        return _normal(recipe, words)
    if recipe.kind == "bool":
        return np.less(_share(words), recipe.mean)
    if lane in FLOATING:
        low, high = float(recipe.low), float(recipe.high)
        return np.clip(_share(words) * (high - low) + low, low, high)
    span = int(recipe.high) - int(recipe.low) + 1
    if span < _WORD:
        words %= np.uint64(span)
    words += np.uint64(int(recipe.low) % _WORD)
    return words


def _narrow(wide: Array, lane: DType) -> Array:
    """``_draw``'s result as ``lane``, by casts that have one correct answer each."""
    if lane in FLOATING:
        return wide if lane == DOUBLE else wide.astype(np.float32).astype(lane)
    if wide.dtype == BOOL or lane == np.uint64:
        return wide
    if lane.kind in "iub":
        return wide.view(np.int64).astype(lane)
    return wide.view(np.int64).astype(np.int8).astype(lane)  # the types of 4 and 2 bits


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % _WORD
    return z ^ (z >> 31)


def _words(seed: int, start: int, count: int) -> Array:
    """The 64 random bits of each of the elements ``start``, ``start + 1``, ... as uint64."""
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(_mix((seed + _GOLDEN) % _WORD))
    scratch = np.empty_like(z)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        z ^= np.right_shift(z, np.uint64(shift), out=scratch)
        if factor != 1:
            z *= np.uint64(factor)
    return z


_PAIRS = np.uint64(0x0000FFFF0000FFFF)
#: Four numbers, each even over 0 .. 65535: the mean of their sum, and one over its deviation.
_MIDDLE = 4 * 32767.5
_SCALE = 1 / math.sqrt(4 * (65536**2 - 1) / 12)


def _normal(recipe: Recipe, words: Array) -> Array:
    """Four 16-bit numbers of a word, summed: a bell (Irwin-Hall) up to 3.46 deviations.  Overwrites ``words``."""
    upper = (words >> np.uint64(16)) & _PAIRS
    words &= _PAIRS
    words += upper
    np.right_shift(words, np.uint64(32), out=upper)
    words += upper
    words &= np.uint64(0xFFFFFFFF)
    z: Array = words.astype(DOUBLE)
    z -= _MIDDLE
    z *= _SCALE
    with np.errstate(over="ignore"):
        z *= float(recipe.std)
        z += float(recipe.mean)
    np.maximum(z, float(recipe.low), out=z)
    return np.minimum(z, float(recipe.high), out=z)


def _share(words: Array) -> Array:
    """The upper 53 bits as a float64 in [0, 1)."""
    return (words >> np.uint64(11)).astype(DOUBLE) * 2.0**-53
