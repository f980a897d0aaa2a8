"""TfIdfVectorizer."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, ints, kernel, node_cases, shape_of, typed
from tests.ops.oracle import onnxruntime_says

TEXT = np.dtype(object)


@pytest.mark.parametrize("case", node_cases("TfIdfVectorizer"))
def test_onnx_cases(case):
    check_case(case, exact=True)


def attributes(grams, low=1, high=None, skip=0, mode="TF", indexes=None, **rest):
    """Attributes for a pool of ``grams`` ordered by length."""
    lengths = [len(g) for g in grams]
    longest = max(lengths)
    counts = [sum(n for n in lengths if n < size) for size in range(1, longest + 1)]
    pool = tuple(word for gram in grams for word in gram)
    return {
        "min_gram_length": low,
        "max_gram_length": high or longest,
        "max_skip_count": skip,
        "mode": mode,
        "ngram_counts": tuple(counts),
        "ngram_indexes": tuple(indexes or range(len(grams))),
        "pool_strings" if isinstance(pool[0], str) else "pool_int64s": pool,
    } | rest


def by_text(rows, grams, low=1, high=None, skip=0, mode="TF", indexes=None, weights=None):
    """The operator's text, n-gram by n-gram."""
    indexes = indexes or range(len(grams))
    y = np.zeros((len(rows), max(indexes) + 1))
    for number, gram in enumerate(grams):
        if not low <= len(gram) <= (high or 99):
            continue
        for row, words in zip(y, rows, strict=True):
            count = sum(
                [words[start + k * d] for k in range(len(gram))] == list(gram)
                for d in range(1, (skip if len(gram) > 1 else 0) + 2)
                for start in range(len(words) - (len(gram) - 1) * d)
            )
            weight = weights[number] if weights and mode != "TF" else 1
            row[indexes[number]] += weight * (min(count, 1) if mode == "IDF" else count)
    return y


def random_grams(rng, words=4, longest=3):
    grams = {tuple(rng.integers(0, words, size).tolist()) for size in range(1, longest + 1) for _ in range(5)}
    return sorted(grams, key=lambda g: (len(g), rng.random()))


@pytest.mark.parametrize("seed", range(30))
def test_as_the_text_and_onnxruntime_say(seed):
    rng = np.random.default_rng(seed)
    grams = random_grams(rng)
    low, skip, mode = 1 + seed % 3, seed // 3 % 4, ["TF", "IDF", "TFIDF"][seed // 2 % 3]
    indexes = (rng.permutation(len(grams)) + seed % 2).tolist()
    weights = rng.random(len(grams)).astype(np.float32).tolist() if seed % 4 else None
    x = rng.integers(0, 5, (3, 11)).astype([np.int64, np.int32][seed % 2])
    wanted = by_text(x.tolist(), grams, low, 3, skip, mode, indexes, weights)
    attrs = attributes(grams, low, 3, skip, mode, indexes, **({"weights": tuple(weights)} if weights else {}))
    got = kernel("TfIdfVectorizer", x, **attrs)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, wanted, rtol=2e-7)
    np.testing.assert_allclose(got, onnxruntime_says("TfIdfVectorizer", [x], **attrs), rtol=2e-7)


def test_words():
    grams = [("a",), ("é",), ("a", "é"), ("", "a")]
    x = np.array([["a", "é", "a", "z"], ["", "a", "", "a"]], TEXT)
    assert kernel("TfIdfVectorizer", x, **attributes(grams)).tolist() == [[2, 1, 1, 0], [2, 0, 0, 2]]
    one = kernel("TfIdfVectorizer", x[1], **attributes(grams, low=2, skip=2))
    assert one.tolist() == [0, 0, 0, 3]


def test_weights_go_with_the_n_gram_not_with_its_place():
    grams, rest = [(1,), (2,), (3,)], {"indexes": (4, 0, 1), "weights": (10.0, 20.0, 30.0)}
    x = ints(1, 2, 1, 3)
    assert kernel("TfIdfVectorizer", x, **attributes(grams, mode="TF", **rest)).tolist() == [1, 1, 0, 0, 2]
    assert kernel("TfIdfVectorizer", x, **attributes(grams, mode="IDF", **rest)).tolist() == [20, 30, 0, 0, 10]
    assert kernel("TfIdfVectorizer", x, **attributes(grams, mode="TFIDF", **rest)).tolist() == [20, 30, 0, 0, 20]


def test_shared_places_and_n_grams_that_are_there_twice_add_up():
    x = ints(1, 2, 1, 3)
    shared = {"indexes": (1, 1, 0), "weights": (10.0, 20.0, 30.0)}
    grams = [(1,), (2,), (3,)]
    assert kernel("TfIdfVectorizer", x, **attributes(grams, mode="TFIDF", **shared)).tolist() == [30, 40]
    assert kernel("TfIdfVectorizer", x, **attributes(grams, mode="IDF", **shared)).tolist() == [30, 30]
    twice = attributes([(1,), (1,), (2, 1), (2, 1)])
    assert kernel("TfIdfVectorizer", x, **twice).tolist() == [2, 2, 1, 1]


def test_counts_that_float32_holds_and_long_texts():
    x = np.ones(5000, np.int64)
    got = kernel("TfIdfVectorizer", x, **attributes([(1,), (1, 1), (1, 1, 1)], skip=9))
    assert got.tolist() == [5000, sum(5000 - d for d in range(1, 11)), sum(5000 - 2 * d for d in range(1, 11))]
    assert kernel("TfIdfVectorizer", x[:3], **attributes([(1, 1)], low=2, skip=2**31)).tolist() == [3]


def test_empty():
    attrs = attributes([(1,), (2, 3)])
    assert kernel("TfIdfVectorizer", np.zeros(0, np.int64), **attrs).tolist() == [0, 0]
    assert kernel("TfIdfVectorizer", np.zeros((2, 0), np.int64), **attrs).tolist() == [[0, 0]] * 2
    assert kernel("TfIdfVectorizer", np.zeros((0, 5), np.int64), **attrs).shape == (0, 2)
    assert kernel("TfIdfVectorizer", ints(1), **attrs).tolist() == [1, 0]


def test_inferred():
    attrs = attributes([(1,), (2, 3)], indexes=(0, 6))
    assert shape_of(infer("TfIdfVectorizer", [typed("n", "c", dtype=np.int64)], **attrs)[0]) == "[n, 7]"
    found = infer("TfIdfVectorizer", [typed("c", dtype=np.int32)], **attrs)[0]
    assert (shape_of(found), found.dtype) == ("[7]", np.float32)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"mode": "DF"}, "mode 'DF' is not one of"),
        ({"min_gram_length": 0}, "n-grams of 0 to 2 words"),
        ({"min_gram_length": 3}, "n-grams of 3 to 2 words"),
        ({"max_skip_count": -1}, "max_skip_count -1 is negative"),
        ({"pool_strings": ("a",)}, "one of pool_int64s and pool_strings"),
        ({"pool_int64s": None}, "one of pool_int64s and pool_strings"),
        ({"ngram_counts": (0, 2)}, "do not divide a pool of 3"),
        ({"ngram_counts": (0, 9)}, "do not divide a pool of 3"),
        ({"ngram_indexes": (0,)}, "the pool has 2 n-grams, but there are 1 indexes"),
        ({"ngram_indexes": (0, -1)}, "ngram_indexes hold -1"),
        ({"weights": (1.0,)}, "1 weights for 2 n-grams"),
    ],
)
def test_faults(change, text):
    attrs = attributes([(1,), (2, 3)]) | change
    with pytest.raises(RunError, match=text):
        kernel("TfIdfVectorizer", ints(1), **attrs)
    with pytest.raises(ShapeError, match=text):
        infer("TfIdfVectorizer", [typed(3, dtype=np.int64)], **{k: v for k, v in attrs.items() if v is not None})


def test_inputs_of_another_kind():
    attrs = attributes([(1,), (2, 3)])
    for x in (np.array(1), np.zeros((1, 1, 1), np.int64)):
        with pytest.raises(RunError, match=r"is not \[C\] or \[N, C\]"):
            kernel("TfIdfVectorizer", x, **attrs)
    with pytest.raises(RunError, match="not both strings or integers"):
        kernel("TfIdfVectorizer", np.array(["a"], TEXT), **attrs)
    with pytest.raises(ShapeError, match="not both strings or integers"):
        infer("TfIdfVectorizer", [typed(3, dtype=TEXT)], **attrs)
