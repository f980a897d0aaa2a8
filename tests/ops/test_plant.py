"""Forests made of attributes: what is refused, and what stands for what."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ops.kept import Same
from fuse.ops.plant import listed_forest, split_forest
from tests.ops.test_forest import FLOAT, NODES, PARTS

STUMP = {
    "treeids": (4, 4, 4), "nodeids": (0, 1, 2), "modes": ("BRANCH_LEQ", "LEAF", "LEAF"), "featureids": (1, 0, 0),
    "values": (0.5, 0.0, 0.0), "falsenodeids": (2, 0, 0), "truenodeids": (1, 0, 0), "missing_value_tracks_true": None,
}  # fmt: skip
VOTES = ((4, 4), (1, 2), (0, 0), (1.0, 2.0))
SPLIT = {
    "nodes_modes": np.array([0], np.uint8), "nodes_featureids": (1,), "nodes_splits": np.array([0.5], np.float32),
    "nodes_falsenodeids": (1,), "nodes_falseleafs": (1,), "nodes_truenodeids": (0,), "nodes_trueleafs": (1,),
    "nodes_missing_value_tracks_true": None, "membership_values": None, "leaf_targetids": (0, 0),
    "leaf_weights": np.array([1, 2], np.float32), "tree_roots": (0,),
}  # fmt: skip
X = np.array([[9, 0], [9, 1]], np.float32)


def listed(votes=VOTES, **changes):
    nodes = STUMP | changes
    return listed_forest(Same(*(nodes[n] for n in NODES)), Same(*votes), FLOAT)


def split(**changes):
    lists = SPLIT | changes
    return split_forest(Same(*(lists[n] for n in PARTS)), FLOAT)


def scores(trees, x=X, targets=1):
    return trees.scores(x, targets, "SUM")[0].tolist()


def test_the_stump_itself():
    assert scores(listed()) == [[1], [2]]
    assert scores(split()) == [[1], [2]]
    assert listed().features == 2


def test_the_root_is_the_node_that_no_other_leads_to():
    shuffled = {"nodeids": (7, -3, 100), "modes": ("LEAF", "BRANCH_LEQ", "LEAF"), "featureids": (0, 1, 0)}
    more = {"values": (0.0, 0.5, 0.0), "falsenodeids": (0, 100, 0), "truenodeids": (0, 7, 0)}
    trees = listed(((4, 4), (100, 7), (0, 0), (2.0, 1.0)), **shuffled, **more)
    assert scores(trees) == [[1], [2]]


def test_trees_may_be_mixed_up():
    nodes = {
        "treeids": (9, 2, 9, 9, 2), "nodeids": (0, 0, 1, 2, 5), "modes": ("BRANCH_GT", "LEAF", "LEAF", "LEAF", "LEAF"),
        "featureids": (0,) * 5, "values": (0.0,) * 5, "falsenodeids": (1, 0, 0, 0, 0), "truenodeids": (2, 0, 0, 0, 0),
    }  # fmt: skip
    trees = listed(((2, 9, 9), (0, 1, 2), (0, 0, 0), (10.0, 1.0, 2.0)), **nodes)
    assert scores(trees) == [[12], [12]]
    assert scores(trees, -X) == [[11], [11]]


def test_a_vote_on_a_node_that_is_no_leaf_counts_for_nothing():
    assert scores(listed(((4, 4, 4), (1, 2, 0), (0, 0, 0), (1.0, 2.0, 50.0)))) == [[1], [2]]


def test_leaves_without_votes():
    assert scores(listed(((4,), (2,), (0,), (2.0,)))) == [[0], [2]]
    assert scores(listed((None, None, None, None))) == [[0], [0]]


def test_a_leafs_branches_and_feature_mean_nothing():
    odd = {"featureids": (1, -5, 99), "falsenodeids": (2, 77, 77), "truenodeids": (1, -1, -1)}
    assert scores(listed(**odd)) == [[1], [2]]
    assert listed(**odd).features == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"treeids": (4, 4)}, "lists of different lengths.*'treeids': 2"),
        ({"missing_value_tracks_true": (1,)}, "lists of different lengths"),
        ({"nodeids": (0, 1, 1)}, "node 1 of tree 4 is there twice"),
        ({"truenodeids": (3, 0, 0)}, "tree 4 has no node 3"),
        ({"falsenodeids": (-1, 0, 0)}, "tree 4 has no node -1"),
        ({"treeids": (4, 4, 5)}, "tree 4 has no node 2"),
        ({"modes": ("BRANCH_LEQ", "LEAF", "BRANCH_MEMBER")}, "unknown node modes.*BRANCH_MEMBER"),
        ({"modes": ("leaf", "LEAF", "LEAF")}, "unknown node modes.*leaf"),
        ({"featureids": (-2, 0, 0)}, "feature -2 is negative"),
        (dict.fromkeys(NODES, ()), "has no nodes"),
    ],
)
def test_faults_of_lists(changes, message):
    with pytest.raises(ShapeError, match=message):
        listed(**changes)


def test_a_tree_without_a_root():
    both = {"modes": ("BRANCH_LEQ",) * 3, "truenodeids": (1, 2, 0), "falsenodeids": (1, 2, 0)}
    with pytest.raises(ShapeError, match="tree 4 has no root"):
        listed(**both)


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        (((4, 4), (1, 2), (0, 0), (1.0,)), "lists of different lengths"),
        (((4, 4), (1, 9), (0, 0), (1.0, 2.0)), "tree 4 has no node 9"),
        (((4, 7), (1, 2), (0, 0), (1.0, 2.0)), "tree 7 has no node 2"),
    ],
)
def test_faults_of_votes(votes, message):
    with pytest.raises(ShapeError, match=message):
        listed(votes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes_featureids": ()}, "lists of different lengths"),
        ({"nodes_trueleafs": (1, 0)}, "lists of different lengths"),
        ({"leaf_targetids": (0,)}, "lists of different lengths"),
        ({"nodes_modes": np.array([7], np.uint8)}, "no mode 7 among 7"),
        ({"nodes_falsenodeids": (2,)}, "no leaf 2 among 2"),
        ({"nodes_truenodeids": (1,), "nodes_trueleafs": (0,)}, "no node 1 among 1"),
        ({"tree_roots": (1,)}, "no tree root 1 among 1"),
        ({"nodes_modes": np.array([6], np.uint8)}, "1 membership tests and 0 sets"),
        ({"membership_values": np.array([1, np.nan, 2, np.nan], np.float32)}, "0 membership tests and"),
    ],
)
def test_faults_of_split_lists(changes, message):
    with pytest.raises(ShapeError, match=message):
        split(**changes)


@pytest.mark.parametrize("members", [[0.0, 5.0], [0.0, 5.0, np.nan]])
def test_the_last_delimiter_may_be_left_out(members):
    trees = split(nodes_modes=np.array([6], np.uint8), membership_values=np.array(members, np.float32))
    assert scores(trees) == [[1], [2]]


def test_a_forest_is_made_once():
    nodes, votes = [STUMP[n] for n in NODES], VOTES
    assert listed_forest(Same(*nodes), Same(*votes), FLOAT) is listed_forest(Same(*nodes), Same(*votes), FLOAT)
    assert listed_forest(Same(*nodes), Same(*votes), np.dtype(np.float64)).dtype == np.float64
