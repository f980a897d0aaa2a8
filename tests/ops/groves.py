"""Random tree ensembles in both forms of the attributes, and a walk through them, one node of one tree at a time."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

TESTS = [operator.le, operator.lt, operator.ge, operator.gt, operator.eq, operator.ne]
NAMES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
MEMBER = 6

LISTS = [
    "treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true",
]  # fmt: skip


class Grove:
    """Trees as nested tuples (mode, feature, split, set, NaN holds, true branch, false branch); a leaf is its votes."""

    def __init__(self, seed: int, trees: int, depth: int, *, features: int = 3, targets: int = 2, modes: Any = range(6),
                 splits: Any = (-1.0, 0.0, 0.5, 2.0), votes: int = 1, positive: bool = False) -> None:  # fmt: skip
        self.rng = np.random.default_rng(seed)
        self.features, self.targets, self.modes, self.splits = features, targets, list(modes), list(splits)
        self.votes, self.positive = votes, positive
        self.trees = [self._grow(depth) for _ in range(trees)]

    def _grow(self, depth: int) -> Any:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            chosen = rng.choice(self.targets, size=min(self.votes, self.targets), replace=False).tolist()
            weights = np.float32(rng.standard_normal(len(chosen))).tolist()
            return [(t, abs(w) if self.positive else w) for t, w in zip(chosen, weights, strict=True)]
        members = frozenset(rng.choice(self.splits, size=2).tolist())
        split = float(rng.choice(self.splits))
        test = (int(rng.choice(self.modes)), int(rng.integers(self.features)), split, members, int(rng.integers(2)))
        return (*test, self._grow(depth - 1), self._grow(depth - 1))

    # ---- the walk

    def leaf(self, tree: Any, row: Any) -> Any:
        """The votes that the row ends at."""
        while isinstance(tree, tuple):
            mode, feature, split, members, follows, yes, no = tree
            value = row[feature]
            if math.isnan(value):
                holds = bool(follows)
            else:
                holds = value in members if mode == MEMBER else bool(TESTS[mode](value, split))
            tree = yes if holds else no
        return tree

    def walk(self, x: np.ndarray, aggregate: str = "SUM") -> np.ndarray:
        """The scores [N, targets] in float64."""
        out = []
        for row in x.tolist():
            given: list[list[float]] = [[] for _ in range(self.targets)]
            for tree in self.trees:
                for target, weight in self.leaf(tree, row):
                    given[target].append(weight)
            if aggregate in ("MIN", "MAX"):
                best = min if aggregate == "MIN" else max
                out.append([best(g, default=0.0) for g in given])
            else:
                out.append([math.fsum(g) / (len(self.trees) if aggregate == "AVERAGE" else 1) for g in given])
        return np.array(out).reshape(len(x), self.targets)

    # ---- as attributes

    def listed(self, kind: str = "target") -> dict[str, Any]:
        """The attributes of a regressor (``target``) or classifier (``class``)."""
        names = [*(f"nodes_{n}" for n in LISTS), *(f"{kind}_{n}" for n in ("treeids", "nodeids", "ids", "weights"))]
        a: dict[str, list[Any]] = {name: [] for name in names}
        for number, tree in enumerate(self.trees):
            count, stack = 0, [(tree, 0)]
            while stack:
                node, own = stack.pop(0)
                inner = isinstance(node, tuple)
                mode, feature, split, _, follows, yes, no = node if inner else (0, 0, 0.0, None, 0, None, None)
                branches = [count + 1, count + 2] if inner else [0, 0]
                count += 2 * inner
                stack += [(yes, branches[0]), (no, branches[1])] if inner else []
                row = (number, own, NAMES[mode] if inner else "LEAF", feature, split, *branches, follows)
                for name, value in zip(list(a)[:8], row, strict=True):
                    a[name].append(value)
                for target, weight in [] if inner else node:
                    for name, value in zip(list(a)[8:], (number, own, target, weight), strict=True):
                        a[name].append(value)
        return {name: tuple(values) for name, values in a.items()}

    def split(self, dtype: Any = np.float32) -> dict[str, Any]:
        """The attributes of a TreeEnsemble (of one vote a leaf)."""
        n: list[list[Any]] = []
        leaves: list[tuple[int, float]] = []
        roots, sets = [], []
        for tree in self.trees:
            top = tree if isinstance(tree, tuple) else (0, 0, 0.0, frozenset(), 0, tree, tree)
            roots.append(len(n))
            stack = [(top, -1, 0)]
            while stack:
                node, parent, side = stack.pop(0)
                inner = isinstance(node, tuple)
                if parent >= 0:
                    n[parent][side : side + 2] = [len(n) if inner else len(leaves), int(not inner)]
                if not inner:
                    leaves.append(node[0])
                    continue
                stack += [(node[5], len(n), 4), (node[6], len(n), 6)]
                n.append([*node[:3], node[4], 0, 0, 0, 0])
        for tree in self.trees:  # the order of the nodes, which the sets follow
            stack = [tree]
            while stack:
                node = stack.pop(0)
                if isinstance(node, tuple):
                    sets += [*node[3], math.nan] if node[0] == MEMBER else []
                    stack += [node[5], node[6]]
        columns = [tuple(row[k] for row in n) for k in range(8)]
        return {
            "nodes_modes": np.array(columns[0], np.uint8), "nodes_featureids": columns[1],
            "nodes_splits": np.array(columns[2], dtype), "nodes_missing_value_tracks_true": columns[3],
            "nodes_truenodeids": columns[4], "nodes_trueleafs": columns[5], "nodes_falsenodeids": columns[6],
            "nodes_falseleafs": columns[7], "tree_roots": tuple(roots), "n_targets": self.targets,
            "leaf_targetids": tuple(t for t, _ in leaves), "leaf_weights": np.array([w for _, w in leaves], dtype),
            "membership_values": np.array(sets, dtype) if sets else None,
        }  # fmt: skip


def inputs(seed: int, rows: int, columns: int = 3, *, missing: bool = True, dtype: Any = np.float32) -> np.ndarray:
    """Rows that hit thresholds exactly and miss them by one step, with zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(seed)
    at = np.array([-1.0, 0.0, -0.0, 0.5, 2.0], dtype)
    near = np.concatenate([np.nextafter(at, dtype(np.inf)), np.nextafter(at, dtype(-np.inf))])
    odd = np.array([np.inf, -np.inf] + [np.nan] * 2 * missing, dtype)
    return rng.choice(np.concatenate([at, near, odd]), size=(rows, columns)).astype(dtype)
