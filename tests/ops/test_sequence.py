"""Sequences and optionals."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError, ShapeError
from fuse.ir.types import OptionalType, SequenceType, TensorType
from fuse.ops import Info
from tests.ops.cases import check_case, fact, infer, ints, kernel, known, node_cases, typed

A, B, C = (np.full(i + 1, i, np.float32) for i in range(3))


@pytest.mark.parametrize(
    "case", node_cases("SequenceInsert", "SplitToSequence", "OptionalGetElement", "OptionalHasElement")
)
def test_onnx_cases(case):
    check_case(case)


def seq(*shape, dtype=np.float32):
    return Info(SequenceType(typed(*shape, dtype=dtype).type))


def position(value):
    return np.array(value, dtype=np.int32)


def test_insert_erase_and_at_count_from_both_ends():
    start = kernel("SequenceConstruct", A, B)
    for where, wanted in ((None, [A, B, C]), (0, [C, A, B]), (2, [A, B, C]), (-1, [A, C, B]), (-2, [C, A, B])):
        got = kernel("SequenceInsert", start, C, None if where is None else position(where))
        assert [x.size for x in got] == [x.size for x in wanted]
    assert len(start) == 2  # kernels change no sequence in place
    three = [A, B, C]
    for where, left in ((None, [1, 2]), (0, [2, 3]), (-1, [1, 2]), (-3, [2, 3]), (1, [1, 3])):
        got = kernel("SequenceErase", three, None if where is None else position(where))
        assert [x.size for x in got] == left
    assert kernel("SequenceAt", three, position(-1)) is C
    assert kernel("SequenceLength", three).tolist() == 3
    assert kernel("SequenceLength", kernel("SequenceEmpty")).dtype == np.int64


@pytest.mark.parametrize("where", [2, -3, 2**31 - 1])
def test_positions_out_of_range(where):
    say = f"position {where} is out of range for a sequence of 2"
    for op, args in (("SequenceAt", ()), ("SequenceErase", ())):
        with pytest.raises(RunError, match=say):
            kernel(op, [A, B], position(where), *args)
    if where != 2:
        with pytest.raises(RunError, match=say):
            kernel("SequenceInsert", [A, B], C, position(where))
    with pytest.raises(RunError, match="empty sequence"):
        kernel("SequenceErase", [])


def test_sequences_hold_one_dtype():
    with pytest.raises(RunError, match="cannot hold float64"):
        kernel("SequenceConstruct", A, A.astype(np.float64))
    with pytest.raises(RunError, match="got a int64"):
        kernel("SequenceInsert", [A], ints(1))
    with pytest.raises(ShapeError, match="different dtypes"):
        infer("SequenceConstruct", [typed(1), typed(1, dtype=np.int8)])
    with pytest.raises(ShapeError, match="different dtypes"):
        infer("SequenceInsert", [seq(1), typed(1, dtype=np.int8)])


def test_inference_keeps_what_all_elements_share():
    assert str(infer("SequenceConstruct", [typed("n", 2), typed("n", 3)])[0].type) == "seq(float[n, ?])"
    assert str(infer("SequenceInsert", [seq("n", 2), typed(1)])[0].type) == "seq(float[...])"
    assert str(infer("SequenceAt", [seq("n", 2), typed(dtype=np.int64)])[0].type) == "float[n, 2]"
    assert str(infer("SequenceEmpty", [], dtype=7)[0].type) == "seq(int64[...])"
    assert str(infer("SequenceEmpty", [])[0].type) == "seq(float[...])"
    assert str(infer("SequenceErase", [seq(3)])[0].type) == "seq(float[3])"
    assert str(infer("SequenceLength", [seq(3)])[0].type) == "int64[]"
    assert str(infer("SequenceAt", [Info(), typed()])[0].type) == "?[...]"


# ---- from tensors and back


def test_split_to_sequence():
    x = np.arange(10).reshape(5, 2)
    assert [p.tolist() for p in kernel("SplitToSequence", x, np.array(2))] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9]],
    ]
    assert [p.shape for p in kernel("SplitToSequence", x, ints(0, 4, 1))] == [(0, 2), (4, 2), (1, 2)]
    assert [p.tolist() for p in kernel("SplitToSequence", x, axis=-1, keepdims=0)] == [
        [0, 2, 4, 6, 8],
        [1, 3, 5, 7, 9],
    ]
    assert [p.shape for p in kernel("SplitToSequence", x, axis=1)] == [(5, 1), (5, 1)]
    assert [p.shape for p in kernel("SplitToSequence", x, np.array(1), axis=1, keepdims=0)] == [(5, 1), (5, 1)]
    scalars = kernel("SplitToSequence", ints(4, 5), keepdims=0)
    assert [(type(s), s.shape) for s in scalars] == [(np.ndarray, ())] * 2
    assert kernel("SplitToSequence", x[:0]) == []


def test_split_to_sequence_infers():
    assert str(infer("SplitToSequence", [typed(6, "n"), fact(np.array(2))])[0].type) == "seq(float[2, n])"
    assert str(infer("SplitToSequence", [typed(5, "n"), fact(np.array(2))])[0].type) == "seq(float[?, n])"
    assert str(infer("SplitToSequence", [typed("n", 2)])[0].type) == "seq(float[1, 2])"
    assert str(infer("SplitToSequence", [typed("n", 2)], keepdims=0)[0].type) == "seq(float[2])"
    assert str(infer("SplitToSequence", [typed(5, 2), known(1, 4)])[0].type) == "seq(float[?, 2])"


@pytest.mark.parametrize("split", [np.array(0), np.array(-1), ints(1, 1), ints(6, -1)])
def test_split_to_sequence_faults(split):
    with pytest.raises(RunError):
        kernel("SplitToSequence", np.arange(5), split)
    with pytest.raises(ShapeError):
        infer("SplitToSequence", [typed(5), fact(split)])


def test_concat_from_sequence():
    pair = [np.arange(4).reshape(2, 2), np.arange(4, 6).reshape(1, 2)]
    assert kernel("ConcatFromSequence", pair, axis=0).tolist() == [[0, 1], [2, 3], [4, 5]]
    same = [pair[0], pair[0] + 4]
    assert kernel("ConcatFromSequence", same, axis=-1, new_axis=1).tolist() == np.stack(same, axis=2).tolist()
    assert str(infer("ConcatFromSequence", [seq(2, "n")], axis=1)[0].type) == "float[2, ?]"
    assert str(infer("ConcatFromSequence", [seq(2, "n")], axis=-1, new_axis=1)[0].type) == "float[2, n, ?]"
    assert str(infer("ConcatFromSequence", [Info()], axis=1)[0].type) == "?[...]"
    for sequence, attrs, says in (
        ([], {"axis": 0}, "empty sequence"),
        (pair, {"axis": 1}, r"\[2, 2\] and \[1, 2\] cannot be joined"),
        (pair, {"axis": 0, "new_axis": 1}, r"\[2, 2\] and \[1, 2\] cannot be stacked"),
        (pair, {"axis": 2}, "axis 2 is out of range"),
        (same, {"axis": 3, "new_axis": 1}, "axis 3 is out of range"),
    ):
        with pytest.raises(RunError, match=says):
            kernel("ConcatFromSequence", sequence, **attrs)


# ---- optionals


def test_optionals():
    assert kernel("Optional", A) is A
    assert kernel("Optional", type=TensorType()) is None
    assert kernel("OptionalGetElement", [A]) == [A]
    with pytest.raises(RunError, match="the optional is empty"):
        kernel("OptionalGetElement", None)
    for value, wanted in ((None, False), (A, True), ([], True), (np.array(0.0), True)):
        got = kernel("OptionalHasElement", value)
        assert got.dtype == np.bool_
        assert got.tolist() is wanted
    assert kernel("OptionalHasElement").tolist() is False


def test_optionals_infer():
    inside = typed("n").type
    assert infer("Optional", [typed("n")])[0].type == OptionalType(inside)
    assert infer("OptionalGetElement", [Info(OptionalType(inside))])[0].type == inside
    assert infer("OptionalGetElement", [seq("n")])[0].type == SequenceType(inside)
    assert str(infer("OptionalHasElement", [None])[0].type) == "bool[]"
