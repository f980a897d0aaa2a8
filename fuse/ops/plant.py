"""Forests made of the attributes of tree operators: lists checked, names resolved, tests brought to one form."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fuse.errors import ShapeError
from fuse.ir.dtypes import DOUBLE, FLOAT, INT64, Array, DType
from fuse.ops.forest import MODES, Forest, Members, Votes
from fuse.ops.kept import KEPT, Same
from fuse.ops.record import expect

_STRICT = [m in ("BRANCH_LT", "BRANCH_GTE") for m in MODES]
_SWAPPED = [m in ("BRANCH_GTE", "BRANCH_GT", "BRANCH_NEQ") for m in MODES]
_EQUAL = [m in ("BRANCH_EQ", "BRANCH_NEQ") for m in MODES]
_MEMBER = MODES.index("BRANCH_MEMBER")

# ---- lists


def _array(values: Sequence[int]) -> Array:
    return np.array(values, dtype=INT64)


def _floats(values: Any) -> Array:
    """An attribute of floats as float32; a tensor as it is."""
    return values if isinstance(values, np.ndarray) else np.array(values, dtype=FLOAT)


def _same_length(**lists: Any) -> None:
    sizes = {name: 0 if values is None else len(values) for name, values in lists.items()}
    expect(len(set(sizes.values())) <= 1, f"lists of different lengths: {sizes}")


def _within(ids: Array, size: int, what: str) -> Array:
    outside = ids[(ids < 0) | (ids >= size)]
    if outside.size:
        raise ShapeError(f"there is no {what} {outside[0]} among {size}")
    return ids


def _tracks(tracks: Sequence[int] | None, size: int) -> Array:
    if not tracks:
        return np.zeros(size, dtype=bool)
    _same_length(nodes=range(size), missing_value_tracks_true=tracks)
    return _array(tracks) != 0


# ---- TreeEnsemble


@functools.lru_cache(KEPT)
def split_forest(lists: Same, dtype: DType) -> Forest:
    """The forest of a TreeEnsemble, in whose lists tests and leaves are apart: leaves come behind the tests here."""
    modes, features, splits, no, no_leaf, yes, yes_leaf, tracks, members, targets, weights, roots = lists.parts
    size, ends = len(modes), len(targets)
    _same_length(modes=modes, featureids=features, splits=splits, truenodeids=yes, falsenodeids=no)
    _same_length(modes=modes, trueleafs=yes_leaf, falseleafs=no_leaf)
    _same_length(leaf_targetids=targets, leaf_weights=weights)
    code, pad = _within(modes.astype(np.intp), len(MODES), "mode"), np.zeros(ends, dtype=np.intp)
    count = int((code == MODES.index("BRANCH_MEMBER")).sum())
    return planted(
        modes=np.append(code, pad),
        feature=np.append(_array(features), pad),
        splits=np.append(splits, pad.astype(splits.dtype)),
        branches=(
            np.append(_followers(no, no_leaf, size, ends), pad),
            np.append(_followers(yes, yes_leaf, size, ends), pad),
        ),
        tracks=np.append(_tracks(tracks, size), pad.astype(bool)),
        leaf=np.arange(size + ends) >= size,
        roots=_within(_array(roots), size, "tree root"),
        votes=Votes.of(np.arange(size, size + ends), _array(targets), weights, size + ends),
        dtype=dtype,
        sets=_sets(members, count),
    )


def _followers(ids: Sequence[int], leaves: Sequence[int], size: int, ends: int) -> Array:
    """The nodes that a branch leads to, leaves counted from ``size`` on."""
    where, to_leaf = _array(ids), _array(leaves) != 0
    _within(where[to_leaf], ends, "leaf")
    _within(where[~to_leaf], size, "node")
    return np.where(to_leaf, where + size, where)


def _sets(members: Array | None, count: int) -> list[Array]:
    """The sets of numbers that NaNs delimit; a NaN behind the last one of ``count`` may be there or not."""
    if members is None:
        return []
    parts = [part[~np.isnan(part)] for part in np.split(members, np.flatnonzero(np.isnan(members)))]
    return parts[:-1] if len(parts) == count + 1 and not parts[-1].size else parts


# ---- the older form


@functools.lru_cache(KEPT)
def listed_forest(nodes: Same, votes: Same, dtype: DType) -> Forest:
    """The forest of nodes that are named by a tree and a number in it.

    A tree's root is the first of its nodes that no other leads to; trees are taken in the order of their first nodes.
    """
    trees, ids, modes, features, splits, no, yes, tracks = nodes.parts
    owners, places, targets, weights = votes.parts
    _same_length(treeids=trees, nodeids=ids, modes=modes, values=splits, featureids=features)
    _same_length(treeids=trees, falsenodeids=no, truenodeids=yes)
    _same_length(treeids=owners, nodeids=places, ids=targets, weights=weights)
    expect(bool(trees), "the ensemble has no nodes")
    names = _Names(_array(trees), _array(ids))
    kinds, kind = np.unique(np.array(modes), return_inverse=True)
    unknown = [str(k) for k in kinds if k not in ("LEAF", *MODES[:-1])]
    expect(not unknown, f"unknown node modes {unknown}")
    leaf = np.array([k == "LEAF" for k in kinds])[kind]
    branches = [names.find(names.trees, np.where(leaf, names.ids, _array(b))) for b in (no, yes)]
    return planted(
        modes=np.array([0 if k == "LEAF" else MODES.index(k) for k in kinds])[kind],
        feature=_array(features),
        splits=_floats(splits),
        branches=(branches[0], branches[1]),
        tracks=_tracks(tracks, len(trees)),
        leaf=leaf,
        roots=names.roots(np.concatenate([b[~leaf] for b in branches])),
        votes=Votes.of(
            names.find(_array(owners or ()), _array(places or ())),
            _array(targets or ()),
            _floats(() if weights is None else weights),
            len(trees),
        ),
        dtype=dtype,
    )


class _Names:
    """Finds nodes by tree and number."""

    def __init__(self, trees: Array, ids: Array) -> None:
        self.trees, self.ids = trees, ids
        self._owners, self._numbers = np.unique(trees), np.unique(ids)
        codes = self._code(trees, ids)
        self._order = np.argsort(codes, kind="stable")
        self._codes = codes[self._order]
        twice = self._order[1:][self._codes[1:] == self._codes[:-1]]
        if twice.size:
            raise ShapeError(f"node {ids[twice[0]]} of tree {trees[twice[0]]} is there twice")

    def _code(self, trees: Array, ids: Array) -> Array:
        """One number for each pair, -1 where the tree or the node is unknown."""
        owner, number = _rank(self._owners, trees), _rank(self._numbers, ids)
        return np.where((owner < 0) | (number < 0), -1, owner * len(self._numbers) + number)

    def find(self, trees: Array, ids: Array) -> Array:
        """The places of these nodes in the lists."""
        at = _rank(self._codes, self._code(trees, ids))
        lost = np.flatnonzero(at < 0)
        if lost.size:
            raise ShapeError(f"tree {trees[lost[0]]} has no node {ids[lost[0]]}")
        return self._order[at]

    def roots(self, children: Array) -> Array:
        """The first node of each tree that is not among ``children``."""
        free = np.ones(len(self.ids), dtype=bool)
        free[children] = False
        tops = np.flatnonzero(free)
        owners, first = np.unique(self.trees[tops], return_index=True)
        rootless = np.setdiff1d(self._owners, owners)
        if rootless.size:
            raise ShapeError(f"tree {rootless[0]} has no root: each of its nodes follows another")
        _, seen = np.unique(self.trees, return_index=True)
        return tops[first][np.argsort(seen)]


def _rank(known: Array, values: Array) -> Array:
    """Where each value stands in the sorted ``known``; -1 where it does not."""
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[at] == values, at, -1)


# ---- one form for all


def planted(
    modes: Array,
    feature: Array,
    splits: Array,
    branches: tuple[Array, Array],
    tracks: Array,
    leaf: Array,
    roots: Array,
    votes: Votes,
    dtype: DType,
    sets: Sequence[Array] = (),
) -> Forest:
    """The forest of nodes with a mode of ``MODES`` each, of which those marked as ``leaf`` test nothing.

    ``branches`` are the nodes that follow where the test fails and where it holds, ``tracks`` says whether NaN counts
    as holding, ``sets`` are those of the membership nodes in turn.  Inputs of ``dtype`` are compared as they are,
    integers and narrower floats as float32.
    """
    wide: DType = np.result_type(dtype if dtype == DOUBLE else FLOAT, splits.dtype if splits.dtype == DOUBLE else FLOAT)
    swapped = np.array(_SWAPPED)[modes]
    itself = np.arange(len(modes))
    child = np.stack([np.where(leaf, itself, np.where(swapped, *pair)) for pair in (branches[::-1], branches)], axis=1)
    inner = feature[~leaf]
    expect(bool((inner >= 0).all()), f"feature {inner.min(initial=0)} is negative")
    equal, member = np.array(_EQUAL)[modes] & ~leaf, (modes == _MEMBER) & ~leaf
    expect(int(member.sum()) == len(sets), f"{int(member.sum())} membership tests and {len(sets)} sets of members")
    return Forest(
        feature=np.where(leaf, 0, feature),
        threshold=_thresholds(modes, splits.astype(wide)),
        child=child.reshape(-1),
        leaf=leaf,
        missing=tracks ^ swapped,
        equal=equal if equal.any() else None,
        members=Members.of(np.where(member, np.cumsum(member) - 1, -1), sets, wide) if len(sets) else None,
        roots=roots,
        votes=votes,
    )


def _thresholds(modes: Array, splits: Array) -> Array:
    """What ``<=`` must compare with in the place of each node's own test; NaN where that never holds."""
    dtype = splits.dtype.type
    below = np.where(splits == -np.inf, dtype(np.nan), np.nextafter(splits, dtype(-np.inf)))
    above = np.array(_SWAPPED)[modes] & ~np.array(_EQUAL)[modes]
    unordered = np.isnan(splits) & above  # no value is above NaN: all must be below
    return np.where(unordered, dtype(np.inf), np.where(np.array(_STRICT)[modes], below, splits))
