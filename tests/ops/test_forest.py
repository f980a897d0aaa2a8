"""Forests against a walk node by node: every test, every odd value, both forms of the attributes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuse.errors import RunError
from fuse.ops import forest
from fuse.ops.forest import Members
from fuse.ops.kept import Same
from fuse.ops.plant import listed_forest, split_forest
from tests.ops.groves import MEMBER, Grove, inputs

FLOAT, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
NODES = [
    "treeids", "nodeids", "modes", "featureids", "values", "falsenodeids", "truenodeids", "missing_value_tracks_true",
]  # fmt: skip
PARTS = [
    "nodes_modes", "nodes_featureids", "nodes_splits", "nodes_falsenodeids", "nodes_falseleafs", "nodes_truenodeids",
    "nodes_trueleafs", "nodes_missing_value_tracks_true", "membership_values", "leaf_targetids", "leaf_weights",
    "tree_roots",
]  # fmt: skip
TINY, MOST = float(np.float32(1e-45)), float(np.finfo(np.float32).max)


def listed(grove, dtype=FLOAT):
    attrs = grove.listed()
    nodes = Same(*(attrs[f"nodes_{n}"] for n in NODES))
    votes = Same(*(attrs[f"target_{n}"] for n in ("treeids", "nodeids", "ids", "weights")))
    return listed_forest(nodes, votes, np.dtype(dtype))


def split(grove, dtype=FLOAT):
    attrs = grove.split(dtype)
    return split_forest(Same(*(attrs[n] for n in PARTS)), np.dtype(dtype))


def says(trees, x, grove, aggregate="SUM"):
    return trees.scores(x, grove.targets, aggregate)[0]


@pytest.mark.parametrize("mode", range(6))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_test_alone(mode, dtype):
    grove = Grove(mode, 8, 3, modes=[mode])
    x = inputs(mode, 200, dtype=dtype)
    np.testing.assert_allclose(says(listed(grove, dtype), x, grove), grove.walk(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(says(split(grove, dtype), x, grove), grove.walk(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_all_tests_together(seed):
    grove = Grove(seed, 5, 6, modes=range(7), targets=3)
    x = inputs(seed, 150)
    np.testing.assert_allclose(says(split(grove), x, grove), grove.walk(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_aggregates(aggregate):
    grove = Grove(3, 7, 4, targets=4, votes=2)
    x = inputs(3, 100)
    np.testing.assert_allclose(
        says(listed(grove), x, grove, aggregate), grove.walk(x, aggregate), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("mode", range(6))
@pytest.mark.parametrize("threshold", [np.inf, -np.inf, np.nan, 0.0, -0.0, TINY, -TINY, MOST])
def test_thresholds_at_the_ends(mode, threshold):
    grove = Grove(0, 1, 0, targets=1)
    grove.trees = [(mode, 0, threshold, frozenset(), 0, [(0, 1.0)], [(0, 2.0)])]
    x = np.array([[0], [-0.0], [TINY], [-TINY], [np.inf], [-np.inf], [np.nan], [MOST], [1]], np.float32)
    wanted = grove.walk(x)
    assert says(listed(grove), x, grove).tolist() == wanted.tolist()
    assert says(split(grove), x, grove).tolist() == wanted.tolist()
    wide = x.astype(np.float64)
    assert says(split(grove, DOUBLE), wide, grove).tolist() == grove.walk(wide).tolist()


def test_sets_of_members():
    sets = [np.array([1.2, 3.7, 8, 9]), np.array([]), np.array([7.0, 12, 7])]
    members = Members.of(np.array([0, -1, 1, 2]), sets, FLOAT)
    x = np.array([1.2, 3.7, 9, 7, 12, 0, np.inf, -np.inf], np.float32)
    for node, held in ((0, sets[0]), (2, sets[1]), (3, sets[2])):
        wanted = [bool((held.astype(np.float32) == v).any()) for v in x]
        assert members.hold(np.full(8, node), x).tolist() == wanted
    assert not members.hold(np.array([0]), np.array([np.nan], np.float32)).any()
    assert not Members.of(np.array([0]), [np.array([])], FLOAT).hold(np.array([0]), x[:1]).any()


def test_members_alone():
    grove = Grove(11, 6, 4, modes=[MEMBER], splits=[-1.0, 0.0, 0.5, 2.0, np.inf])
    x = inputs(11, 120)
    np.testing.assert_allclose(says(split(grove), x, grove), grove.walk(x), rtol=1e-6, atol=1e-6)


def test_comparisons_are_made_in_the_models_precision():
    """0.1 as float32 is above 0.1 as float64: which is meant the dtypes say."""
    tenth = float(np.float32(0.1))
    grove = Grove(0, 1, 0, targets=1)
    grove.trees = [(0, 0, tenth, frozenset(), 0, [(0, 1.0)], [(0, 2.0)])]
    assert says(listed(grove), np.array([[np.float32(0.1)]]), grove).tolist() == [[1]]
    above = np.array([[np.nextafter(tenth, 1)]])
    assert says(listed(grove, DOUBLE), above, grove).tolist() == [[2]]
    assert says(listed(grove), above.astype(np.float32), grove).tolist() == [[1]]
    big = np.array([[(1 << 24) + 1]])
    grove.trees = [(0, 0, float(1 << 24), frozenset(), 0, [(0, 1.0)], [(0, 2.0)])]
    assert says(listed(grove, np.int64), big, grove).tolist() == [[1]]  # an integer is compared as float32


def test_blocks_change_nothing(monkeypatch):
    grove = Grove(5, 9, 5, targets=3, votes=2)
    x = inputs(5, 77)
    trees = listed(grove)
    whole = says(trees, x, grove)
    for pairs, votes in itertools.product((1, 20, 1000), (1, 50)):
        monkeypatch.setattr(forest, "_PAIRS", pairs)
        monkeypatch.setattr(forest, "_VOTES", votes)
        assert says(trees, x, grove).tolist() == whole.tolist()


def test_deep_and_lopsided():
    """A chain as deep as it has nodes, in which rows arrive at every level."""
    tree = [(0, -1.0)]
    for level in range(600):
        tree = (0, 0, float(600 - level), frozenset(), 0, [(0, float(level))], tree)
    grove = Grove(0, 0, 0, targets=1)
    grove.trees = [tree]
    x = np.arange(0, 602, dtype=np.float32).reshape(-1, 1)
    assert says(listed(grove), x, grove).tolist() == grove.walk(x).tolist()


def test_sums_do_not_lose_small_weights():
    """In float32 the sum would stay at 1; in float64 all 1,000 parts of 2^-24 count."""
    grove = Grove(0, 0, 0, targets=1)
    grove.trees = [[(0, 1.0)]] + [[(0, 2.0**-24)]] * 1000
    x = np.zeros((2, 1), np.float32)
    assert says(listed(grove), x, grove).tolist() == [[1 + 1000 * 2.0**-24]] * 2


def test_counts_say_which_targets_had_votes():
    grove = Grove(0, 0, 0, targets=3)
    grove.trees = [(0, 0, 0.0, frozenset(), 0, [(0, 1.0), (2, 0.0)], [(2, 5.0)]), [(2, 1.0)]]
    score, count = listed(grove).scores(np.array([[-1], [1]], np.float32), 3, "MIN")
    assert count.tolist() == [[1, 0, 2], [0, 0, 2]]
    assert score.tolist() == [[1, 0, 0], [0, 0, 1]]


def test_no_rows_and_single_leaves():
    grove = Grove(0, 3, 0, targets=2)
    trees = listed(grove)
    assert trees.features == 0
    assert says(trees, np.zeros((0, 0), np.float32), grove).shape == (0, 2)
    assert says(trees, np.zeros((2, 0), np.float32), grove).tolist() == grove.walk(np.zeros((2, 0))).tolist()


def test_a_circle_is_an_error():
    circle = {
        "nodes_modes": np.zeros(2, np.uint8), "nodes_featureids": (0, 0), "nodes_splits": np.zeros(2, np.float32),
        "nodes_truenodeids": (1, 0), "nodes_trueleafs": (0, 0), "nodes_falsenodeids": (0, 0),
        "nodes_falseleafs": (1, 1), "nodes_missing_value_tracks_true": None, "membership_values": None,
        "leaf_targetids": (0,), "leaf_weights": np.ones(1, np.float32), "tree_roots": (0,),
    }  # fmt: skip
    trees = split_forest(Same(*(circle[n] for n in PARTS)), FLOAT)
    assert trees.scores(np.array([[1]], np.float32), 1, "SUM")[0].tolist() == [[1]]
    with pytest.raises(RunError, match="leads back to itself"):
        trees.scores(np.array([[-1]], np.float32), 1, "SUM")
