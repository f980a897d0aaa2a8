"""Operators that make tensors: sizes, constants, ranges, patterns and padding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.dims import Symbolic
from fuse.ir.dtypes import CODE
from tests.ops.cases import check_case, fact, infer, ints, kernel, known, node_cases, same, shape_of, typed

MAX, MIN = 2**63 - 1, -(2**63)
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(
    "case", node_cases("Shape", "Size", "ConstantOfShape", "EyeLike", "OneHot", "Trilu", "Pad", "Range")
)
def test_onnx_cases(case):
    floats = any(x.dtype.kind not in "iub" for given, _ in case.data_sets for x in given)
    op = case.model.graph.node[0].op_type
    check_case(case, exact=not (floats and op in ("Range", "OneHot")))


# ---- sizes


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, None, "n 3 4"),
        (-1, None, "4"),
        (0, -1, "n 3"),
        (-9, 9, "n 3 4"),
        (2, 1, ""),
        (1, 2, "3"),
        (MIN, MAX, "n 3 4"),
    ],
)
def test_shape_slices_like_python(start, end, wanted):
    x = np.zeros((2, 3, 4))
    assert kernel("Shape", x, start=start, end=end).tolist() == list(x.shape[start:end])
    info = infer("Shape", [typed("n", 3, 4)], start=start, end=end)[0]
    assert [str(d) for d in info.dims or ()] == wanted.split()
    assert info.shape == (len(wanted.split()),)


def test_shape_of_a_partly_unknown_tensor_has_a_known_length():
    info = infer("Shape", [typed(None, 3)])[0]
    assert (info.shape, info.value) == ((2,), None)
    assert infer("Shape", [typed(None, 3)], start=1)[0].ints == (3,)


def test_size():
    assert kernel("Size", np.zeros((2, 3))).tolist() == 6
    assert kernel("Size", np.zeros(())).tolist() == 1
    info = infer("Size", [typed("n", 3)])[0]
    assert info.shape == ()
    assert [str(d) for d in info.dims or ()] == ["3*n"]
    assert infer("Size", [typed(None, 0)])[0].ints == (0,)
    assert infer("Size", [typed(None, 2)])[0].value is None


# ---- constants


def test_constant_of_shape():
    same(kernel("ConstantOfShape", ints(2, 0)), np.zeros((2, 0), np.float32))
    value = np.array([-0.0], BF16)
    got = kernel("ConstantOfShape", ints(2), value=value)
    assert got.dtype == BF16
    assert np.signbit(got.astype(np.float32)).all()
    assert kernel("ConstantOfShape", ints(), value=np.array([7], np.int8)).shape == ()
    info = infer("ConstantOfShape", [known("n", 2)], value=ints(1))[0]
    assert shape_of(info) == "[n, 2]"
    assert infer("ConstantOfShape", [known(3)], value=ints(5))[0].ints == (5, 5, 5)
    assert infer("ConstantOfShape", [known(1 << 40)], value=ints(5))[0].value is None
    assert shape_of(infer("ConstantOfShape", [typed(2, dtype=np.int64)])[0]) == "[?, ?]"


def test_constant_of_shape_faults():
    for args, attrs, says in (
        ((ints(2, -1),), {}, "negative size"),
        ((ints(2),), {"value": np.zeros(2)}, "one element"),
    ):
        with pytest.raises(RunError, match=says):
            kernel("ConstantOfShape", *args, **attrs)
        with pytest.raises(ShapeError, match=says):
            infer("ConstantOfShape", [fact(a) for a in args], **attrs)
    with pytest.raises(RunError):
        kernel("ConstantOfShape", ints(1 << 62, 1 << 62))


@pytest.mark.parametrize(
    ("start", "limit", "delta"),
    [(0, 5, 1), (3, 9, 3), (10, 4, -2), (0, 0, 1), (5, 0, 1), (0, 5, -1), (-3, 4, 2), (0, 5, 7), (5, 4, -3)],
)
@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float32, np.float64, np.float16])
def test_range(start, limit, delta, dtype):
    args = [np.array(v, dtype) for v in (start, limit, delta)]
    wanted = np.array(list(range(start, limit, delta)), dtype)
    same(kernel("Range", *args), wanted)
    info = infer("Range", [fact(a) for a in args])[0]
    assert info.dtype == dtype
    assert info.shape == ((len(wanted),) if np.dtype(dtype).kind == "i" else (None,))
    assert info.ints == (tuple(wanted.tolist()) if np.dtype(dtype).kind == "i" else None)


def test_range_of_floats_multiplies_and_does_not_add_up():
    got = kernel("Range", *(np.array(v, np.float32) for v in (0, 1000, 0.1)))
    assert got.shape == (10000,)
    assert got[-1] == np.float32(9999) * np.float32(0.1)
    half = kernel("Range", *(np.array(v, np.float16) for v in (2048, 2053, 1)))
    assert half.dtype == np.float16
    assert half.tolist() == [2048, 2048, 2050, 2052]  # each rounded once, from float32
    same(kernel("Range", *(np.array(v, BF16) for v in (250, 262, 4))), np.array([250, 254, 258], BF16))


def test_range_over_extremes():
    got = kernel("Range", np.array(MIN), np.array(MAX), np.array(2**62))
    assert got.tolist() == [MIN, -(2**62), 0, 2**62]


def test_range_of_symbolic_bounds():
    def dim(start, limit, delta):
        args = [infer("Squeeze", [known(v)])[0] for v in (start, limit, delta)]
        return infer("Range", args)[0].shape[0]

    assert dim(0, "n", 1) == Symbolic.of("n")
    assert dim("n", "n", 1) == 0
    assert dim(1, "n", 1) is None  # n - 1 would be wrong for n = 0
    assert dim(0, "n", 2) is None


@pytest.mark.parametrize(
    "bounds", [(0, 5, 0), (0, np.nan, 1), (0, np.inf, 1), (0, 5, np.nan), (np.inf, 5, 1), (0, 1e30, 1e-8)]
)
def test_range_faults(bounds):
    with pytest.raises(RunError):
        kernel("Range", *(np.array(v, np.float64) for v in bounds))
    if bounds == (0, 5, 0):
        with pytest.raises(ShapeError, match="delta is 0"):
            infer("Range", [fact(np.array(v)) for v in bounds])


def test_eye_like():
    x = np.zeros((2, 3), np.int8)
    same(kernel("EyeLike", x, k=1), np.array([[0, 1, 0], [0, 0, 1]], np.int8))
    same(kernel("EyeLike", x, k=-1, dtype=CODE[BF16]), np.array([[0, 0, 0], [1, 0, 0]], BF16))
    for k in (MAX, MIN, 3, -2):
        assert not kernel("EyeLike", x, k=k).any()
    assert kernel("EyeLike", np.zeros((0, 3))).shape == (0, 3)
    assert str(infer("EyeLike", [typed("n", 3)], dtype=11)[0].type) == "double[n, 3]"
    with pytest.raises(RunError, match="not a matrix"):
        kernel("EyeLike", np.zeros(3))
    with pytest.raises(ShapeError, match="not a matrix"):
        infer("EyeLike", [typed(3)])


# ---- OneHot, Trilu


def test_one_hot():
    values = np.array([2, 5], np.int16)
    got = kernel("OneHot", ints(0, -1, 3, -4, 2), np.array(3), values)
    assert got.tolist() == [[5, 2, 2], [2, 2, 5], [2, 2, 2], [2, 2, 2], [2, 2, 5]]
    assert got.dtype == np.int16
    first = kernel("OneHot", np.array([[1.9, 0.0]], np.float32), ints(2), values, axis=0)
    assert first.tolist() == [[[2, 5]], [[5, 2]]]
    words = kernel("OneHot", np.array(1), np.array(2), np.array(["off", "on"], dtype=object))
    assert words.tolist() == ["off", "on"]
    assert kernel("OneHot", ints(0), np.array(0), values).shape == (1, 0)
    assert shape_of(infer("OneHot", [typed("n", 2), known("d"), typed(2)], axis=1)[0]) == "[n, d, 2]"
    assert shape_of(infer("OneHot", [typed("n"), typed(dtype=np.int64), typed(2)])[0]) == "[n, ?]"


@pytest.mark.parametrize(
    ("depth", "axis", "count", "says"),
    [(-1, -1, 2, "depth -1 is negative"), (2, 2, 2, "axis 2"), (2, -3, 2, "axis -3"), (2, 0, 3, "values has shape")],
)
def test_one_hot_faults(depth, axis, count, says):
    with pytest.raises(RunError, match=says):
        kernel("OneHot", ints(0, 1), np.array(depth), np.zeros(count), axis=axis)
    if count == 2:
        with pytest.raises(ShapeError, match=says):
            infer("OneHot", [typed(2), known(depth), typed(2)], axis=axis)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [MIN, -3, -1, 0, 1, 2, 9, MAX])
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (0, 3), (2, 0)])
def test_trilu(upper, k, shape):
    x = np.random.default_rng(1).integers(1, 9, shape)
    keep = min(max(k, -9), 9)
    wanted = np.triu(x, keep) if upper else np.tril(x, keep)
    same(kernel("Trilu", x, np.array(k), upper=upper), wanted)
    assert infer("Trilu", [fact(x), known(k)], upper=upper)[0].shape == shape


def test_trilu_keeps_what_it_keeps():
    x = np.array([[np.nan, -0.0], [np.inf, 1]], np.float32)
    got = kernel("Trilu", x)
    assert np.isnan(got[0, 0])
    assert np.signbit(got[0, 1])
    assert got[1, 0] == 0
    with pytest.raises(RunError, match="fewer than two dims"):
        kernel("Trilu", x[0])


# ---- Pad


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("pads", [(1, 0, 2, 3), (0, 0, 0, 0), (2, 3, 0, 1), (2, 6, 1, 7)])
def test_pad_like_numpy(mode, pads):
    x = np.arange(12, dtype=np.float32).reshape(3, 4) + 1
    pairs = [(pads[0], pads[2]), (pads[1], pads[3])]
    same(kernel("Pad", x, ints(*pads), mode=mode), np.pad(x, pairs, mode=mode))
    assert infer("Pad", [fact(x), known(*pads)], mode=mode)[0].shape == np.pad(x, pairs).shape


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "constant"])
@pytest.mark.parametrize("low", [-5, -3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("high", [-6, -2, -1, 0, 1, 2, 3])
def test_negative_pads_against_onnxruntime(mode, low, high):
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    x = np.arange(1, 5, dtype=np.float32)
    helper = onnx.helper
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "p"], ["y"], mode=mode)],
        "g",
        [helper.make_tensor_value_info("x", 1, [4]), helper.make_tensor_value_info("p", 7, [2])],
        [helper.make_empty_tensor_value_info("y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    try:
        wanted = session.run(None, {"x": x, "p": ints(low, high)})[0]
    except Exception:  # onnxruntime refuses a reflection beyond the data, which NumPy defines
        if mode != "reflect" or 4 + min(low, 0) + min(high, 0) <= 0:
            with pytest.raises(RunError):
                kernel("Pad", x, ints(low, high), mode=mode)
        return
    same(kernel("Pad", x, ints(low, high), mode=mode), wanted)


def test_pad_along_named_axes():
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    got = kernel("Pad", x, ints(1, -1), np.array(9, np.int32), ints(-1))
    assert got.tolist() == [[9, 0, 1], [9, 3, 4]]
    words = np.array(["a"], dtype=object)
    assert kernel("Pad", words, ints(0, 1)).tolist() == ["a", ""]
    assert kernel("Pad", np.array([True]), ints(1, 0)).tolist() == [False, True]
    assert kernel("Pad", np.array(3.0), ints()).shape == ()
    same(kernel("Pad", np.array([1], BF16), ints(0, 1), np.array([2], BF16)), np.array([1, 2], BF16))
    same(kernel("Pad", np.zeros((0, 2)), ints(1, 0, 0, 0)), np.zeros((1, 2)))
    assert kernel("Pad", np.array([7.0]), ints(2, 1), mode="reflect").tolist() == [7.0] * 4


def test_pad_of_symbolic_sizes():
    assert infer("Pad", [typed("n", 3), known(1, 0, "m", -1)])[0].shape == (Symbolic.of("n") + Symbolic.of("m") + 1, 2)
    assert shape_of(infer("Pad", [typed("n", 3), known(1, 1), None, known(1)])[0]) == "[n, 5]"
    assert shape_of(infer("Pad", [typed("n", 3), typed(4, dtype=np.int64)])[0]) == "[?, ?]"


@pytest.mark.parametrize(
    ("pads", "axes", "mode", "says"),
    [
        ((1, 1, 1), None, "constant", "3 pads for 2 axes"), ((0, -2, 0, -2), None, "constant", "more .* than there is"),
        ((1, 1), (2,), "constant", "out of range"), ((1, 1, 1, 1), (0, -2), "constant", "twice"),
        ((0, 0, 0, 0), None, "mirror", "unknown mode 'mirror'"),
    ],
)  # fmt: skip
def test_pad_faults(pads, axes, mode, says):
    x = np.zeros((2, 3))
    with pytest.raises(RunError, match=says):
        kernel("Pad", x, ints(*pads), None, None if axes is None else ints(*axes), mode=mode)
    with pytest.raises(ShapeError, match=says):
        infer("Pad", [fact(x), known(*pads), None, None if axes is None else known(*axes)], mode=mode)
    with pytest.raises(RunError, match="nothing to repeat"):
        kernel("Pad", np.zeros((0, 2)), ints(1, 0, 0, 0), mode="edge")
