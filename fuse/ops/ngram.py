"""TfIdfVectorizer: how often each n-gram of a pool comes in a text.

Words become numbers, and a row of words becomes a chain of states: the state after the first k words says which of the
pool's n-grams begin with them.  All rows and all starting points go through the chain at once, and only those that are
still the beginning of an n-gram go on.
Source: the ONNX operator text.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuse.errors import quote
from fuse.ir.dtypes import FLOAT, INT64, STRING, Array
from fuse.ir.types import Shape
from fuse.ops.bounds import at_run_time
from fuse.ops.infer import show_shape
from fuse.ops.record import Info, expect, operator, tensor
from fuse.ops.window import Ints

MODES = ("TF", "IDF", "TFIDF")

# ---- the pool


@dataclass(frozen=True, slots=True)
class _Grams:
    """The n-grams of one length.

    ``keys[k]`` are the sorted (state, word) pairs that lead from k words to k + 1, as ``state * words + word``; the
    state reached is the pair's place.  ``first`` and ``count`` say for each last state which of ``numbers``, the
    n-grams' numbers in the pool, end there: more than one where the pool lists an n-gram twice.
    """

    keys: tuple[Array, ...]
    numbers: Array
    first: Array
    count: Array


def _grams(words: Array, number: int, total: int) -> _Grams:
    """The n-grams in the rows of ``words`` (numbers below ``total``), the first of which is ``number`` in the pool."""
    state, keys = np.zeros(len(words), INT64), []
    for column in words.T:
        found, state = np.unique(state * total + column, return_inverse=True)
        keys.append(found)
    order = np.argsort(state, kind="stable")
    count = np.bincount(state)
    return _Grams(tuple(keys), number + order, np.cumsum(count) - count, count)


@functools.lru_cache(maxsize=8)  # a pool of 100,000 n-grams takes longer to arrange than a text to count
def _arranged(pool: tuple[Any, ...], counts: tuple[int, ...], low: int, high: int) -> tuple[Any, dict[int, _Grams]]:
    """The number of each word of the pool, and its n-grams by their length, between ``low`` and ``high``."""
    if isinstance(pool[0], str):
        words: Any = {word: number for number, word in enumerate(dict.fromkeys(pool))}
        total, flat = len(words), np.array([words[w] for w in pool], INT64)
    else:
        words, flat = np.unique(np.array(pool, INT64), return_inverse=True)
        total = len(words)
    lengths, number = {}, 0
    for size, (start, end) in enumerate(zip(counts, (*counts[1:], len(pool)), strict=True), 1):
        if low <= size <= high and end > start:
            lengths[size] = _grams(flat[start:end].reshape(-1, size), number, total)
        number += (end - start) // size
    return words, lengths


def _check(
    x: Shape | None,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints | None,
    pool_strings: Sequence[str] | None,
    weights: Sequence[float] | None,
) -> int:
    """The output's last size, after the attributes are checked against each other."""
    expect(x is None or len(x) in (1, 2), f"the input {show_shape(x)} is not [C] or [N, C]")
    expect(mode in MODES, f"mode {quote(mode)} is not one of {', '.join(MODES)}")
    grams = f"{min_gram_length} to {max_gram_length}"
    expect(0 < min_gram_length <= max_gram_length, f"n-grams of {grams} words")
    expect(max_skip_count >= 0, f"max_skip_count {max_skip_count} is negative")
    expect(bool(pool_int64s) != bool(pool_strings), "one of pool_int64s and pool_strings must be given")
    size, number = len(pool_int64s or pool_strings or ()), 0
    for length, (start, end) in enumerate(zip(ngram_counts, (*ngram_counts[1:], size), strict=True), 1):
        fits = 0 <= start <= end <= size and (end - start) % length == 0
        expect(fits, f"ngram_counts {list(ngram_counts)} do not divide a pool of {size} into n-grams")
        number += (end - start) // length
    expect(
        number == len(ngram_indexes) > 0, f"the pool has {number} n-grams, but there are {len(ngram_indexes)} indexes"
    )
    expect(min(ngram_indexes) >= 0, f"ngram_indexes hold {min(ngram_indexes)}")
    expect(not weights or len(weights) == number, f"{len(weights or ())} weights for {number} n-grams")
    return max(ngram_indexes) + 1


# ---- TfIdfVectorizer


def _info(
    x: Info,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Info:
    size = _check(
        x.shape, max_gram_length, max_skip_count, min_gram_length, mode, ngram_counts, ngram_indexes, pool_int64s,
        pool_strings, weights,
    )  # fmt: skip
    if x.dtype is not None:
        expect((x.dtype == STRING) == bool(pool_strings), "the input and the pool are not both strings or integers")
    return tensor(FLOAT, None if x.shape is None else (*x.shape[:-1], size))


@operator("TfIdfVectorizer", infer=_info)
@at_run_time
def tf_idf_vectorizer(
    x: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints | None = None,
    pool_strings: Sequence[str] | None = None,
    weights: Sequence[float] | None = None,
) -> Array:
    """For each row of ``x`` ([C] or [N, C] words): how often the pool's n-gram i is in it, at ``ngram_indexes[i]``.

    The words of an n-gram may have up to ``max_skip_count`` others between any two, the same number between all.  Mode
    IDF counts at most once, and the modes with IDF multiply with ``weights[i]``.  N-grams that share an index add up.
    """
    pool = pool_strings or pool_int64s or ()
    size = _check(
        x.shape, max_gram_length, max_skip_count, min_gram_length, mode, ngram_counts, ngram_indexes, pool_int64s,
        pool_strings, weights,
    )  # fmt: skip
    expect((x.dtype == STRING) == bool(pool_strings), "the input and the pool are not both strings or integers")
    words, lengths = _arranged(tuple(pool), tuple(ngram_counts), min_gram_length, max_gram_length)
    rows = np.atleast_2d(_numbered(x, words))
    scale = np.array(weights, FLOAT) if weights and mode != "TF" else np.ones(len(ngram_indexes), FLOAT)
    places = np.array(ngram_indexes, INT64)
    y = np.zeros((len(rows), size), FLOAT)
    for length, grams in lengths.items():
        row, state, times = _found(rows, grams, length, len(words), max_skip_count if length > 1 else 0)
        number, source = _members(grams, state)
        value = scale[number] if mode == "IDF" else scale[number] * times[source]
        np.add.at(y, (row[source], places[number]), value)
    return y.reshape(*x.shape[:-1], size)


def _numbered(x: Array, words: Any) -> Array:
    """The words of ``x`` as numbers, -1 where the pool does not have them."""
    if isinstance(words, dict):
        return np.array([words.get(w, -1) for w in x.reshape(-1).tolist()], INT64).reshape(x.shape)
    place = np.minimum(np.searchsorted(words, x), len(words) - 1)
    return np.where(words[place] == x, place, -1)


def _found(rows: Array, grams: _Grams, length: int, total: int, most_skipped: int) -> tuple[Array, Array, Array]:
    """Which rows hold which of ``grams``' last states, and how many times."""
    found = [np.empty(0, INT64)]
    last = len(grams.count)
    for distance in range(1, most_skipped + 2):
        starts = rows.shape[1] - (length - 1) * distance
        if starts <= 0:
            break
        row, place = np.divmod(np.arange(len(rows) * starts), starts)
        state = np.zeros(row.shape, INT64)
        for step, keys in enumerate(grams.keys):
            word = rows[row, place + step * distance]
            key = state * total + word
            state = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            hit = (keys[state] == key) & (word >= 0)
            row, place, state = row[hit], place[hit], state[hit]
        found.append(row * last + state)
    both, times = np.unique(np.concatenate(found), return_counts=True)
    return both // last, both % last, times


def _members(grams: _Grams, state: Array) -> tuple[Array, Array]:
    """The numbers of the n-grams that end in each of ``state``, and which of ``state`` each one comes from."""
    count = grams.count[state]
    source = np.repeat(np.arange(state.size), count)
    within = np.arange(source.size) - np.repeat(np.cumsum(count) - count, count)
    return grams.numbers[grams.first[state][source] + within], source
