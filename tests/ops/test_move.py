"""Operators that move elements: values, shapes with symbolic dims, and faults that must not pass."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Symbolic, evaluate
from fuse.ops import OPERATORS, Trait
from fuse.ops.record import sizes
from tests.ops.cases import check_case, fact, infer, ints, kernel, known, node_cases, same, shape_of, typed

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

MOVES = (
    "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Concat", "Split", "Expand", "Tile",
    "DepthToSpace", "SpaceToDepth",
)  # fmt: skip


@pytest.mark.parametrize("case", node_cases(*MOVES))
def test_onnx_cases(case):
    tensors = all(isinstance(x, np.ndarray) for given, _ in case.data_sets for x in given)
    check_case(case, exact=tensors)


# ---- Reshape


@pytest.mark.parametrize(
    ("shape", "allowzero", "wanted"),
    [
        ((-1,), 0, (24,)), ((0, -1), 0, (2, 12)), ((4, 0, -1), 0, (4, 3, 2)), ((2, 0, 4), 0, (2, 3, 4)),
        ((1, 1, 24), 1, (1, 1, 24)),
    ],
)  # fmt: skip
def test_reshape(shape, allowzero, wanted):
    got = kernel("Reshape", X, ints(*shape), allowzero=allowzero)
    assert got.shape == wanted
    assert got.reshape(-1).tolist() == list(range(24))


@pytest.mark.parametrize(
    ("old", "shape", "allowzero", "wanted"),
    [
        ((0, 3, 4), (0, -1), 0, (0, 12)),  # the copied 0 cancels: a batch of nothing keeps its features
        ((0, 3), (3, 0), 1, (3, 0)),
        ((0,), (5, 0), 1, (5, 0)),
        ((), (1,), 0, (1,)),
        ((1, 1), (), 0, ()),
    ],
)
def test_reshape_of_empty_and_scalar(old, shape, allowzero, wanted):
    assert kernel("Reshape", np.zeros(old, np.int8), ints(*shape), allowzero=allowzero).shape == wanted
    assert infer("Reshape", [typed(*old), known(*shape)], allowzero=allowzero)[0].shape == wanted


@pytest.mark.parametrize(
    ("shape", "allowzero", "says"),
    [
        ((-1, -1), 0, "more than one -1"), ((5, -1), 0, "do not divide"), ((23,), 0, "counts of elements differ"),
        ((-1, 0), 1, "-1 beside a 0"), ((1, 1, 1, 0), 0, "no dim to copy"), ((-2, 12), 0, "negative size"),
    ],
)  # fmt: skip
def test_reshape_faults_name_the_shapes(shape, allowzero, says):
    with pytest.raises(RunError, match=says) as error:
        kernel("Reshape", X, ints(*shape), allowzero=allowzero)
    assert "[2, 3, 4]" in error.value.what
    with pytest.raises(ShapeError, match=says):
        infer("Reshape", [typed(2, 3, 4), known(*shape)], allowzero=allowzero)


@pytest.mark.parametrize(
    ("old", "target", "wanted"),
    [
        (("n", 3, 4), (0, -1), "[n, 12]"),
        (("n", 3, 4), ("n", -1), "[n, 12]"),
        (("n", "s", 12), ("n", "s", 3, -1), "[n, s, 3, 4]"),
        (("n", "s", 12), (-1, 12), "[n*s, 12]"),
        ((None, 3, 4), (0, -1), "[?, 12]"),
        ((None, 3, 4), (-1, 6), "[?, 6]"),
        (("n",), (2, "m"), "[2, m]"),
    ],
)
def test_reshape_of_symbolic_dims(old, target, wanted):
    assert shape_of(infer("Reshape", [typed(*old), known(*target)])[0]) == wanted


def test_reshape_divides_symbolic_counts():
    dim = infer("Reshape", [typed("n", 6), known(-1, 4)])[0].shape[0]
    assert [evaluate(dim, {"n": n}) for n in (2, 4, 10)] == [3, 6, 15]


def test_reshape_by_unknown_elements_keeps_the_rank():
    assert shape_of(infer("Reshape", [typed(2, 3), typed(3, dtype=np.int64)])[0]) == "[?, ?, ?]"
    assert shape_of(infer("Reshape", [typed(2, 3), typed(None, dtype=np.int64)])[0]) == "[...]"


# ---- Flatten, Squeeze, Unsqueeze, Transpose


def test_flatten_splits_before_the_axis():
    for axis, wanted in ((0, (1, 24)), (1, (2, 12)), (3, (24, 1)), (-1, (6, 4)), (-3, (1, 24))):
        assert kernel("Flatten", X, axis=axis).shape == wanted
        assert infer("Flatten", [typed(2, 3, 4)], axis=axis)[0].shape == wanted
    assert shape_of(infer("Flatten", [typed("n", 3, "w")])[0]) == "[n, 3*w]"
    assert kernel("Flatten", np.float32(3).reshape(()), axis=0).shape == (1, 1)
    with pytest.raises(RunError, match="axis 4 is out of range for rank 3"):
        kernel("Flatten", X, axis=4)


def test_squeeze_and_unsqueeze_are_inverse():
    y = kernel("Unsqueeze", X, ints(0, -1, 2))
    assert y.shape == (1, 2, 1, 3, 4, 1)
    assert np.shares_memory(y, X)
    assert kernel("Squeeze", y, ints(-1, 0, 2)).shape == X.shape
    assert kernel("Squeeze", y).shape == X.shape
    assert kernel("Squeeze", np.ones((1, 1))).shape == ()
    assert kernel("Squeeze", y, ints()).shape == y.shape


@pytest.mark.parametrize(
    ("op", "axes", "says"),
    [
        ("Squeeze", (1,), "cannot squeeze axis 1"), ("Squeeze", (3,), "out of range"), ("Squeeze", (0, -3), "twice"),
        ("Unsqueeze", (0, 0), "twice"), ("Unsqueeze", (5,), "out of range"), ("Unsqueeze", (-(2**63),), "out of range"),
    ],
)  # fmt: skip
def test_squeeze_and_unsqueeze_faults(op, axes, says):
    with pytest.raises(RunError, match=says):
        kernel(op, np.ones((1, 2, 3)), ints(*axes))
    with pytest.raises(ShapeError, match=says):
        infer(op, [typed(1, 2, 3), known(*axes)])


def test_squeeze_infers_what_it_can():
    assert shape_of(infer("Squeeze", [typed(1, "n", 3), known(0)])[0]) == "[n, 3]"
    assert shape_of(infer("Squeeze", [typed(3, "n", 1), known(1)])[0]) == "[3, 1]"
    assert shape_of(infer("Squeeze", [typed(1, "n", 3)])[0]) == "[...]"  # n may be 1
    assert shape_of(infer("Squeeze", [typed(1, 2, 3)])[0]) == "[2, 3]"
    assert shape_of(infer("Squeeze", [typed(1, 2, 3), typed(1, dtype=np.int64)])[0]) == "[?, ?]"
    assert shape_of(infer("Unsqueeze", [typed(1, 2), typed(1, dtype=np.int64)])[0]) == "[?, ?, ?]"


def test_transpose():
    assert kernel("Transpose", X).tolist() == X.transpose(2, 1, 0).tolist()
    assert kernel("Transpose", X, perm=(1, 0, 2))[2, 1, 3] == X[1, 2, 3]
    assert shape_of(infer("Transpose", [typed("a", "b", 3)], perm=(2, 0, 1))[0]) == "[3, a, b]"
    assert kernel("Transpose", np.float32(1).reshape(())).shape == ()
    for perm in ((0, 1), (0, 1, 1), (0, 1, -1), (0, 1, 3)):
        with pytest.raises(RunError, match="not a permutation of 3 axes"):
            kernel("Transpose", X, perm=perm)
        with pytest.raises(ShapeError, match="not a permutation of 3 axes"):
            infer("Transpose", [typed(2, 3, 4)], perm=perm)


# ---- DepthToSpace, SpaceToDepth


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_space_to_depth_undoes_depth_to_space(mode):
    x = np.arange(2 * 12 * 2 * 3).reshape(2, 12, 2, 3)
    y = kernel("DepthToSpace", x, blocksize=2, mode=mode)
    assert y.shape == (2, 3, 4, 6)
    assert kernel("SpaceToDepth", y, blocksize=2, mode=mode).tolist() == x.tolist()
    channel = 6 if mode == "DCR" else 2  # block (1, 0) of depth 0: DCR counts blocks first, CRD depth first
    assert y[0, 0, 1, 0] == x[0, channel, 0, 0]


def test_blocks_that_do_not_divide():
    assert shape_of(infer("DepthToSpace", [typed("n", 8, "h", 3)], blocksize=2)[0]) == "[n, 2, 2*h, 6]"
    for op, shape in (("DepthToSpace", (1, 6, 2, 2)), ("SpaceToDepth", (1, 1, 3, 2))):
        with pytest.raises(RunError, match="do not divide"):
            kernel(op, np.zeros(shape), blocksize=2)
        with pytest.raises(ShapeError, match="do not divide"):
            infer(op, [typed(*shape)], blocksize=2)
    with pytest.raises(RunError, match="blocksize 0"):
        kernel("DepthToSpace", np.zeros((1, 4, 2, 2)), blocksize=0)
    with pytest.raises(RunError, match="not \\[N, C, H, W\\]"):
        kernel("SpaceToDepth", np.zeros((4, 2, 2)), blocksize=2)


# ---- Concat, Split


def test_concat():
    a, b = X[:, :1], X[:, 1:]
    same(kernel("Concat", a, b, X[:, :0], axis=-2), X)
    assert kernel("Concat", X, axis=0) is X
    joined = infer("Concat", [typed("n", 2), typed("m", 2), typed(3, None)], axis=0)[0]
    assert joined.shape == (Symbolic.of("n") + Symbolic.of("m") + 3, 2)
    assert shape_of(infer("Concat", [typed("n", 2), typed(None, 3)], axis=1)[0]) == "[n, 5]"
    assert shape_of(infer("Concat", [typed(1, 2), typed(None, 2)], axis=0)[0]) == "[?, 2]"


def test_concat_faults_name_all_shapes():
    with pytest.raises(RunError, match=r"\[2, 3, 4\] and \[2, 2, 4\] cannot be joined along axis 0"):
        kernel("Concat", X, X[:, :2], axis=0)
    with pytest.raises(ShapeError, match=r"\[2\] and \[2, 1\] cannot be joined"):
        infer("Concat", [typed(2), typed(2, 1)], axis=0)
    with pytest.raises(ShapeError, match="different dtypes: float, double"):
        infer("Concat", [typed(2), typed(2, dtype=np.float64)], axis=0)
    with pytest.raises(ShapeError, match="axis 1 is out of range for rank 1"):
        infer("Concat", [typed(2), typed(2)], axis=1)
    with pytest.raises(ShapeError, match="input 0 is required"):
        infer("Concat", [], axis=0)


def test_split_uneven_last_chunk():
    parts = kernel("Split", np.arange(7), axis=0, num_outputs=3, n_outputs=3)
    assert [p.tolist() for p in parts] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [shape_of(i) for i in infer("Split", [typed(7)], 3, num_outputs=3)] == ["[3]", "[3]", "[1]"]
    halves = infer("Split", [typed("n", 2)], 2, num_outputs=2)
    joined = infer("Concat", halves, axis=0)[0]
    assert shape_of(joined) == "[n, 2]"


def test_split_by_sizes():
    parts = kernel("Split", X, ints(0, 3), axis=1, n_outputs=2)
    assert [p.shape for p in parts] == [(2, 0, 4), (2, 3, 4)]
    assert [shape_of(i) for i in infer("Split", [typed("n", 3), known(1, 2)], 2, axis=-1)] == ["[n, 1]", "[n, 2]"]
    assert [shape_of(i) for i in infer("Split", [typed("n", 3), typed(2, dtype=np.int64)], 2)] == ["[?, 3]", "[?, 3]"]


@pytest.mark.parametrize(
    ("sizes", "num_outputs", "outputs", "says"),
    [
        ((1, 1), None, 2, "the sum differs"), ((-1, 6), None, 2, "negative"), ((2, 3), None, 3, "there are 3 outputs"),
        (None, 4, 4, "negative"), (None, 3, 2, "num_outputs is 3 and there are 2"), ((2, 3), 2, 2, "exclude"),
    ],
)  # fmt: skip
def test_split_faults(sizes, num_outputs, outputs, says):
    given = None if sizes is None else ints(*sizes)
    with pytest.raises(RunError, match=says):
        kernel("Split", np.arange(5), given, num_outputs=num_outputs, n_outputs=outputs)
    with pytest.raises(ShapeError, match=says):
        infer("Split", [typed(5), None if sizes is None else known(*sizes)], outputs, num_outputs=num_outputs)


# ---- Expand, Tile


def test_expand_broadcasts_both_ways():
    x = ints(1, 2, 3).reshape(3, 1)
    assert kernel("Expand", x, ints(2, 1, 2)).tolist() == [[[1, 1], [2, 2], [3, 3]]] * 2
    assert kernel("Expand", x, ints(1)).shape == (3, 1)
    assert kernel("Expand", x, ints(0, 1, 1)).shape == (0, 3, 1)
    assert kernel("Expand", x, ints(1 << 40)).shape == (3, 1 << 40)  # takes no memory
    assert shape_of(infer("Expand", [typed(3, 1), known("n", 1, "m")])[0]) == "[n, 3, m]"
    for shape, says in (((2, 2), "do not broadcast"), ((3, -1), "negative size")):
        with pytest.raises(RunError, match=says):
            kernel("Expand", x, ints(*shape))
        with pytest.raises(ShapeError, match=says):
            infer("Expand", [typed(3, 1), known(*shape)])


def test_tile():
    x = ints(1, 2).reshape(1, 2)
    assert kernel("Tile", x, ints(2, 2)).tolist() == [[1, 2, 1, 2]] * 2
    assert kernel("Tile", x, ints(0, 1)).shape == (0, 2)
    assert kernel("Tile", x, ints(1, 1)) is x
    assert shape_of(infer("Tile", [typed("n", 2), known(3, "m")])[0]) == "[3*n, 2*m]"
    for repeats in ((1,), (-1, 1)):
        with pytest.raises(RunError, match="repeats"):
            kernel("Tile", x, ints(*repeats))
        with pytest.raises(ShapeError, match="repeats"):
            infer("Tile", [typed(1, 2), known(*repeats)])
    with pytest.raises(RunError):
        kernel("Tile", x, ints(1 << 40, 1 << 40))


def test_tile_of_opset_1_takes_floats():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = kernel("Tile-1", x, np.array([2], np.float32), np.array([1], np.float32))
    assert y.tolist() == np.concatenate([x, x], axis=1).tolist()
    with pytest.raises(RunError, match="whole numbers"):
        kernel("Tile-1", x, np.array([np.nan], np.float32), np.array([1], np.float32))
    tiles, axis = np.array(3), np.array(-2)
    assert shape_of(infer("Tile-1", [typed(2, 3), fact(tiles), fact(axis)])[0]) == "[6, 3]"


# ---- what all of them promise


def test_symbolic_sizes_move_like_numbers():
    """The chain by which exporters build the target of a Reshape: Shape, Gather, arithmetic, Unsqueeze, Concat."""
    x = typed("n", "s", 12)
    shape = infer("Shape", [x])[0]
    n, s = (infer("Gather", [shape, fact(np.array(i))])[0] for i in (0, 1))
    assert n.value is not None
    assert n.value.shape == ()
    rows = infer("Mul", [n, s])[0]
    column = infer("Unsqueeze", [rows, known(0)])[0]
    target = infer("Concat", [column, known(3, -1)], axis=0)[0]
    assert shape_of(infer("Reshape", [x, target])[0]) == "[n*s, 3, 4]"
    assert infer("Tile", [shape, known(2)])[0].dims == (*(shape.dims or ()), *(shape.dims or ()))
    turned = infer("Transpose", [infer("Reshape", [shape, known(1, 3)])[0]])[0]
    assert [str(d) for d in turned.dims or ()] == ["n", "s", "12"]
    wide = infer("Expand", [infer("Squeeze", [n])[0], known(2)])[0]
    assert wide.dims == (Symbolic.of("n"), Symbolic.of("n"))
    first = infer("Split", [shape, known(1, 2)], 2)[0]
    assert first.dims == (Symbolic.of("n"),)
    assert infer("Slice", [shape, known(2), known(-10), known(0), known(-2)])[0].dims == (12, Symbolic.of("n"))


def test_large_results_are_not_computed_by_inference():
    out = infer("Tile", [sizes([1, 2]), known(1 << 40)])[0]
    assert out.shape == (1 << 41,)
    assert out.value is None


@pytest.mark.parametrize("op", MOVES)
def test_traits(op):
    assert OPERATORS[op].has(Trait.LAYOUT)
    assert OPERATORS[op].has(Trait.VIEW) == (op in ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"))


@pytest.mark.parametrize("dtype", ["bool", "complex64", "object", "bfloat16", "int4", "float8_e4m3fn"])
def test_every_dtype_moves(dtype):
    import ml_dtypes

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    x = (np.arange(6) % 2).astype(kind).reshape(2, 3)
    for op, args, attrs in (
        ("Transpose", (), {}), ("Concat", (x,), {"axis": 0}), ("Tile", (ints(2, 1),), {}),
        ("Expand", (ints(2, 2, 3),), {}), ("Reshape", (ints(-1),), {}),
    ):  # fmt: skip
        assert kernel(op, x, *args, **attrs).dtype == kind
