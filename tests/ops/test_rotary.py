"""RotaryEmbedding against rotations of complex numbers, and against onnxruntime."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from tests.ops.cases import check_case, infer, kernel, node_cases, same, shape_of, typed
from tests.ops.oracle import normal, onnxruntime_says

OP = "RotaryEmbedding"


@pytest.mark.parametrize("case", node_cases(OP))
def test_onnx_cases(case):
    check_case(case, exact=True)


def turned(x, cos, sin, ids=None, interleaved=0, num_heads=None, rotary_embedding_dim=0):
    """Each pair as a complex number, times the unit number of its angle, in float64."""
    heads = x.reshape(*x.shape[:2], num_heads, -1) if x.ndim == 3 else x.swapaxes(1, 2)
    unit = cos.astype(np.float64) + 1j * sin
    unit = (unit if ids is None else unit[ids])[:, :, None]
    y, size = heads.astype(np.float64), rotary_embedding_dim or heads.shape[-1]
    first = y[..., 0:size:2] if interleaved else y[..., : size // 2]
    second = y[..., 1:size:2] if interleaved else y[..., size // 2 : size]
    z = (first + 1j * second) * unit
    first[...], second[...] = z.real, z.imag
    return y.reshape(x.shape) if x.ndim == 3 else y.swapaxes(1, 2)


def make(flat=False, turned=8, ids=True, dtype=np.float32):
    """Input (2, 3 heads, 5, 8) or flat, caches of 20 positions or one a token, position ids."""
    x = normal(1, 2, 5, 24) if flat else normal(1, 2, 3, 5, 8)
    angle = normal(2, *((20,) if ids else (2, 5)), turned // 2) * 3
    places = np.random.default_rng(3).integers(0, 20, (2, 5)) if ids else None
    return [x.astype(dtype), np.cos(angle).astype(dtype), np.sin(angle).astype(dtype), places]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("part", [0, 2, 6, 8])
@pytest.mark.parametrize(("dtype", "eps"), [(np.float32, 1e-6), (np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3)])
def test_rotations(flat, ids, interleaved, part, dtype, eps):
    inputs = make(flat, part or 8, ids, dtype)
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": part} | ({"num_heads": 3} if flat else {})
    kept = inputs[0].copy()
    y = kernel(OP, *inputs, **attrs)
    wanted = turned(*inputs, **attrs)
    assert y.dtype == dtype
    same(y.astype(np.float64), wanted, rtol=eps, atol=eps)
    if dtype != np.float32:
        assert np.mean(y == wanted.astype(dtype)) > 0.99
    assert inputs[0].tolist() == kept.tolist()
    if part == 2:
        heads = [a.reshape(2, 5, 3, 8) if flat else a for a in (y, kept)]
        assert heads[0][..., 2:].tolist() == heads[1][..., 2:].tolist()


@pytest.mark.parametrize("interleaved", [0, 1])
def test_onnxruntime(interleaved):
    x, cos, sin, ids = make()
    got = kernel(OP, x, cos, sin, ids, interleaved=interleaved)
    same(got, onnxruntime_says(OP, [x, cos, sin, ids], opset=23, interleaved=interleaved), rtol=1e-5)


def test_empty():
    x, cos, sin, ids = make()
    assert kernel(OP, x[:, :, :0], cos, sin, ids[:, :0]).shape == (2, 3, 0, 8)
    assert kernel(OP, x[:0], cos, sin, ids[:0]).shape == (0, 3, 5, 8)


@pytest.mark.parametrize("position", [20, -21])
def test_a_position_out_of_range(position):
    x, cos, sin, ids = make()
    ids[1, 2] = position
    with pytest.raises(RunError, match=f"position {position} is out of range for size 20"):
        kernel(OP, x, cos, sin, ids)


@pytest.mark.parametrize(
    ("change", "attrs", "message"),
    [
        ({1: (20, 3)}, {}, r"cos_cache is \[20, 3\], not \[\?, 4\]"),
        ({2: (2, 5, 4)}, {}, r"sin_cache is \[2, 5, 4\], not \[\?, 4\]"),
        ({3: (2, 4)}, {}, r"position_ids is \[2, 4\], not \[2, 5\]"),
        ({0: (2, 5, 24)}, {}, "num_heads is needed"),
        ({0: (2, 5, 24)}, {"num_heads": 5}, "5 heads do not divide"),
        ({0: (2, 5)}, {}, "not 3-D or 4-D"),
        ({0: (2, 3, 5, 7)}, {}, "7 numbers, which is odd"),
        ({}, {"rotary_embedding_dim": 10}, "more than the 8 numbers"),
        ({}, {"rotary_embedding_dim": 3}, "not an even number"),
    ],
)
def test_what_does_not_fit(change, attrs, message):
    inputs = make()
    for index, shape in change.items():
        inputs[index] = np.zeros(shape, np.int64 if index == 3 else np.float32)
    with pytest.raises(RunError, match=message):
        kernel(OP, *inputs, **attrs)
    with pytest.raises(ShapeError, match=message):
        infer(OP, [typed(*x.shape, dtype=x.dtype) for x in inputs], **attrs)


def test_inferred():
    ids = typed("b", "s", dtype=np.int64)
    assert shape_of(infer(OP, [typed("b", 3, "s", 8), typed(20, 4), typed(20, 4), ids])[0]) == "[b, 3, s, 8]"
    assert infer(OP, [typed("b", "s", "n"), typed(20, 4), typed(20, 4), ids], num_heads=2)[0].rank == 3
