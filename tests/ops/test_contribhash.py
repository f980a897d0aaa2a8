"""MurmurHash3 against onnxruntime and the published test vectors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.cases import typed
from tests.ops.contrib import agree, refuse, run, shapes

OP = "MurmurHash3"
NUMBERS = [np.int32, np.uint32, np.int64, np.uint64, np.float32, np.float64]


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers(dtype, positive):
    x = np.array([[0, 1, 7], [100, 2, 3]]).astype(dtype)
    agree(OP, [x], positive=positive, double=False)
    agree(OP, [x], positive=positive, seed=42, double=False)
    top = np.array([np.finfo(dtype).max if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max], dtype)
    agree(OP, [top], double=False)
    agree(OP, [x[:0]], double=False)


@pytest.mark.parametrize("seed", [0, 1, 0xFFFFFFFF])
def test_strings(seed):
    texts = ["", "a", "ab", "abc", "abcd", "abcde", "héllo wörld", "日本語", "x" * 1000, "a", "test\0x"[:4]]
    x = np.array(texts, dtype=object)
    agree(OP, [x], seed=seed)
    assert run(OP, [x.reshape(1, -1)], seed=seed)[0].shape == (1, len(texts))


def test_vectors_of_the_author():
    x = np.array(["", "test", "Hello, world!", "The quick brown fox jumps over the lazy dog"], dtype=object)
    assert run(OP, [x])[0].tolist() == [0, 0xBA6BD213, 0xC0363E43, 0x2E4FF723]
    assert run(OP, [x], seed=0x9747B28C)[0].tolist() == [0xEBB6C228, 0x704B81DC, 0x24884CBA, 0x2FA826CD]


def test_signs_and_faults():
    x = np.array(["test"], dtype=object)
    assert run(OP, [x], positive=0)[0].tolist() == [0xBA6BD213 - (1 << 32)]
    refuse(OP, [x], "no unsigned number", seed=-1)
    assert shapes(OP, typed("n", 3)) == "[n, 3]"
