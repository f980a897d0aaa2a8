"""Decision trees as flat arrays, run by all rows and all trees at once: each step takes every pair one level down.

All tests are brought to one, ``value <= threshold``, so that a step compares once: ``<`` is ``<=`` with the next float
below, ``>`` and ``>=`` are their opposites with the branches exchanged.  Equality and membership stay tests of their
own.  NaN passes no test; where rows have one it goes the way that the node says for missing values.
Comparisons are made in the wider dtype of thresholds and inputs, integers as float32, as onnxruntime does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fuse.errors import RunError
from fuse.ir.dtypes import DOUBLE, Array, DType

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
"""The tests, in the order in which TreeEnsemble numbers them."""

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""How the weights of a target are brought together, in the order in which TreeEnsemble numbers them."""

#: So many pairs of a row and a tree are on the way at once, which keeps them in a cache; and so many votes.
_PAIRS, _VOTES = 1 << 16, 1 << 20

#: Levels between two looks for the pairs that have arrived.
_LEVELS = 4


@dataclass(frozen=True, slots=True)
class Members:
    """Sets of numbers: ``owner`` is the set of each node (-1 for none)."""

    owner: Array
    numbers: Array
    codes: Array

    @staticmethod
    def of(owner: Array, sets: Sequence[Array], dtype: DType) -> Members:
        """The sets in the order of their numbers in ``owner``."""
        numbers, rank = np.unique(np.concatenate([*sets, np.empty(0)]).astype(dtype), return_inverse=True)
        own = np.repeat(np.arange(len(sets)), [len(s) for s in sets])
        return Members(owner, numbers, np.unique(own * len(numbers) + rank.reshape(-1)))

    def hold(self, nodes: Array, values: Array) -> Array:
        """Where the value is in the node's set."""
        if not self.codes.size:
            return np.zeros(len(nodes), dtype=bool)
        rank = np.minimum(np.searchsorted(self.numbers, values), len(self.numbers) - 1)
        code = self.owner[nodes] * len(self.numbers) + rank
        found = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        return (self.numbers[rank] == values) & (self.codes[found] == code)


@dataclass(frozen=True)
class Votes:
    """What leaves say, in the order of the file: node i has ``count[i]`` votes from ``first[i]`` on."""

    first: Array
    count: Array
    target: Array
    weight: Array

    @staticmethod
    def of(nodes: Array, targets: Array, weights: Array, size: int) -> Votes:
        """Votes of ``nodes``, each with a weight for a target, in an ensemble of ``size`` nodes."""
        order = np.argsort(nodes, kind="stable")
        count = np.bincount(nodes, minlength=size)
        return Votes(np.cumsum(count) - count, count, targets[order], weights[order].astype(DOUBLE))

    @cached_property
    def most(self) -> int:
        """The votes of the node that has most."""
        return int(self.count.max(initial=0))

    @cached_property
    def span(self) -> tuple[int, int]:
        """The lowest and the highest target; (0, -1) where there are no votes."""
        return (int(self.target.min()), int(self.target.max())) if self.target.size else (0, -1)

    @cached_property
    def positive(self) -> bool:
        """True where no weight is negative."""
        return bool((self.weight >= 0).all())


@dataclass(frozen=True)
class Forest:
    """Trees over one numbering of all their nodes, leaves included.

    Node i goes on to ``child[2 * i + 1]`` where its test holds and to ``child[2 * i]`` elsewhere; a leaf to itself.
    ``missing`` is the branch (0 or 1) that NaN takes; ``equal`` marks tests for equality, None where there are none.
    """

    feature: Array
    threshold: Array
    child: Array
    leaf: Array
    missing: Array
    equal: Array | None
    members: Members | None
    roots: Array
    votes: Votes

    @cached_property
    def features(self) -> int:
        """How many features the trees read at least."""
        return int(self.feature[~self.leaf].max(initial=-1)) + 1

    @property
    def dtype(self) -> DType:
        """The dtype in which inputs are compared."""
        return self.threshold.dtype

    # ---- to the leaves

    def leaves(self, rows: Array) -> Array:
        """The leaf that each row [N, F] ends at in each tree, as node numbers [N * T]."""
        values = rows.reshape(-1)
        missing = bool(np.isnan(values).any())
        at = np.tile(self.roots, len(rows))
        going, node = np.arange(at.size), at
        start = np.repeat(np.arange(len(rows)) * rows.shape[1], len(self.roots))
        for _ in range(len(self.leaf) + 1):
            keep = np.flatnonzero(~self.leaf.take(node))
            if keep.size < node.size:
                at[going] = node
                going, node, start = going.take(keep), node.take(keep), start.take(keep)
            if not node.size:
                return at
            for _ in range(_LEVELS):
                node = self._step(values, start, node, missing)
        raise RunError("a tree has no end: one of its branches leads back to itself")

    def _step(self, values: Array, start: Array, node: Array, missing: bool) -> Array:
        value = values.take(start + self.feature.take(node))
        threshold = self.threshold.take(node)
        holds = value <= threshold
        if self.equal is not None:
            holds = np.where(self.equal[node], value == threshold, holds)
        if self.members is not None:
            own = np.flatnonzero(self.members.owner[node] >= 0)
            holds[own] = self.members.hold(node[own], value[own])
        if missing:
            holds = np.where(np.isnan(value), self.missing[node], holds)
        return self.child.take(2 * node + holds)

    # ---- and what they say

    def scores(self, rows: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
        """The weights [N, targets] in float64, and for how many votes each stands.

        Sums are taken in float64, tree after tree and in each leaf in the order of the file.  A target without a vote
        has 0.
        """
        rows = rows.astype(self.dtype, copy=False)
        trees = max(len(self.roots), 1)
        step = max(min(_PAIRS, _VOTES // max(self.votes.most, 1)) // trees, 1)
        parts = [self._gathered(rows[i : i + step], targets, aggregate) for i in range(0, len(rows), step)]
        if not parts:
            return np.zeros((0, targets)), np.zeros((0, targets), dtype=np.intp)
        score, count = (np.concatenate(column) for column in zip(*parts, strict=True))
        return score / trees if aggregate == "AVERAGE" else score, count

    def _gathered(self, rows: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
        leaves = self.leaves(rows)
        first, count = self.votes.first.take(leaves), self.votes.count.take(leaves)
        before = np.cumsum(count) - count
        vote = np.arange(count.sum()) + np.repeat(first - before, count)
        row = np.repeat(np.repeat(np.arange(len(rows)), len(self.roots)), count)
        place, weight = row * targets + self.votes.target.take(vote), self.votes.weight.take(vote)
        size = len(rows) * targets
        counts = np.bincount(place, minlength=size)
        if aggregate in ("SUM", "AVERAGE"):
            total = np.bincount(place, weight, minlength=size)
        else:
            total = np.full(size, np.inf if aggregate == "MIN" else -np.inf)
            (np.minimum if aggregate == "MIN" else np.maximum).at(total, place, weight)
            total[counts == 0] = 0
        return total.reshape(len(rows), targets), counts.reshape(len(rows), targets)
