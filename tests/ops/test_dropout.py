"""Dropout: the identity in inference, and what tells that a node is one."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import RunError
from fuse.ir.graph import Attr, Graph, Node, Value
from fuse.ops import OPERATORS, Trait
from fuse.ops.dropout import dropout, dropout_1, dropout_is_identity
from tests.ops.cases import check_case, infer, node_cases, typed

X = np.linspace(-3, 3, 24, dtype=np.float32).reshape(2, 3, 4)
YES, NO = np.array(True), np.array(False)


@pytest.mark.parametrize("case", node_cases("Dropout"))
def test_onnx_cases(case):
    check_case(case, exact=True)


@pytest.mark.parametrize("training", [None, NO])
def test_inference_is_the_identity(training):
    y, mask = dropout(X, np.array(0.75, np.float32), training, n_outputs=2)
    assert y.tolist() == X.tolist()
    assert mask.dtype == bool
    assert mask.all()
    assert mask.shape == X.shape
    assert dropout(X, None, training).tolist() == X.tolist()


def test_training_zeroes_a_share_and_scales_the_rest():
    ones = np.ones(20_000, np.float32)
    y, mask = dropout(ones, np.array(0.25, np.float32), YES, seed=3, n_outputs=2)
    assert abs(mask.mean() - 0.75) < 0.02
    assert set(y[mask].tolist()) == {float(np.float32(1 / 0.75))}
    assert not y[~mask].any()
    assert dropout(ones, np.array(0.25, np.float32), YES, seed=3).tolist() == y.tolist()
    assert dropout(ones, np.array(0.25, np.float32), YES, seed=4).tolist() != y.tolist()
    assert dropout(ones, None, YES).tolist() != dropout(ones, None, YES).tolist()


def test_training_with_ratio_0_keeps_all():
    y, mask = dropout(X, np.array(0.0, np.float32), YES, n_outputs=2)
    assert y.tolist() == X.tolist()
    assert mask.all()


@pytest.mark.parametrize("ratio", [1.0, -0.5, np.nan])
def test_a_ratio_outside_its_range(ratio):
    with pytest.raises(RunError, match="outside"):
        dropout(X, np.array(ratio, np.float32), YES)


def test_the_old_form_has_a_mask_of_the_dtype_of_its_input():
    y, mask = dropout_1(X.astype(np.float16), is_test=1, n_outputs=2)
    assert y.tolist() == X.astype(np.float16).tolist()
    assert mask.dtype == np.float16
    assert mask.tolist() == np.ones_like(X).tolist()
    y, mask = dropout_1(np.ones(1000, np.float32), n_outputs=2)
    assert set(y.tolist()) == {0.0, 2.0}
    assert (y / 2).tolist() == mask.tolist()


def test_inferred():
    assert infer("Dropout", [typed("n", 3)], outputs=2) == [typed("n", 3), typed("n", 3, dtype=bool)]
    assert infer("Dropout-1", [typed("n", 3)], outputs=2) == [typed("n", 3), typed("n", 3)]


@pytest.mark.parametrize(
    ("ratio", "training", "identity"),
    [
        (None, None, True),
        (0.5, None, True),
        (0.5, False, True),
        (0.5, True, False),
        (None, True, False),
        (0.0, True, True),
        (0.5, "fed", False),
        ("fed", None, True),
        ("fed", True, False),
        (0.0, "fed", True),
    ],
)
def test_which_nodes_are_identities(ratio, training, identity):
    graph = Graph()

    def value(v):
        return None if v is None else graph.add_input(Value("v")) if v == "fed" else graph.add_const(np.array(v))

    node = Node("Dropout", [graph.add_input(Value("x")), value(ratio), value(training)], [Value("y")])
    assert dropout_is_identity(node) is identity
    assert OPERATORS["Dropout"].has(Trait.RANDOM)


def test_which_old_nodes_are_identities():
    def node(op, **attrs):
        return Node(op, [Value("x")], [Value("y")], {k: Attr("INT", v) for k, v in attrs.items()})

    assert dropout_is_identity(node("Dropout-1", is_test=1))
    assert not dropout_is_identity(node("Dropout-1"))
    assert not dropout_is_identity(node("Relu"))
