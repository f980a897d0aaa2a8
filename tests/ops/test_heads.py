"""What the attention operators share: shapes, masks, states."""

from __future__ import annotations

import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ir.dims import Symbolic
from fuse.ops.heads import MASKED, agreed, attend, check_bias, divided, grown, join, later, mask_to_add, split
from tests.ops.oracle import close, normal


def seen(mask, batch=2, length=3, total=4):
    added = mask_to_add(np.array(mask), batch, length, total, MASKED)
    return None if added is None else np.broadcast_to(added, (batch, 1, length, total)) == 0


def test_heads_are_split_and_joined():
    x = normal(1, 2, 3, 8)
    assert split(x, 4).shape == (2, 4, 3, 2)
    assert split(x, 4)[1, 2, 0].tolist() == x[1, 0, 4:6].tolist()
    assert join(split(x, 4)).tolist() == x.tolist()


def test_masks_that_count():
    assert seen([2, 0])[:, 0, 0].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert seen([2, 9])[1].all()
    assert seen([3, 4, 1, 2])[:, 0, 2].tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert seen([3, 1, 0, 3, 6, 0, 3, 6])[:, 0, 1].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_masks_that_mark():
    assert seen([[1, 0, 2, -1], [0, 1, 0, 0]])[:, 0, 0].tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]
    by_query = np.arange(24).reshape(2, 3, 4) % 2
    assert seen(by_query)[:, 0].tolist() == by_query.tolist()
    big = np.arange(72).reshape(2, 1, 6, 6) % 5
    assert seen(big).tolist() == (big[:, :, 1:4, :4] > 0).tolist()


def test_masks_that_say_nothing():
    assert seen([[0], [0]]) is None
    assert seen([[0]]) is None
    assert seen([[0], [1]], total=1)[:, 0, 0].tolist() == [[False], [True]]


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 4), (1, 3, 4), (2, 1, 3, 3), (2, 1, 4, 5), ()])
def test_masks_that_do_not_fit(shape):
    with pytest.raises(ShapeError, match="does not fit batch 2, length 3 and total 4"):
        seen(np.ones(shape, np.int32))


def test_later():
    assert later(2, 4).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    assert later(3, 3).tolist() == [[0, 1, 1], [0, 0, 1], [0, 0, 0]]


def test_states_grow():
    past, new = normal(1, 2, 3, 4, 5), normal(2, 2, 3, 2, 5)
    whole, state = grown(past, new)
    assert whole is state
    assert whole.tolist() == np.concatenate((past, new), axis=2).tolist()
    assert grown(None, new)[0] is new
    whole, state = grown(past, new, 1)
    assert whole.tolist() == np.concatenate((past[:, :, :1], new), axis=2).tolist()
    assert state[:, :, 3:].tolist() == past[:, :, 3:].tolist()
    assert not np.shares_memory(state, past)
    for filled in (-1, 3):
        with pytest.raises(ShapeError, match="exceed a buffer of 4"):
            grown(past, new, filled)


def test_attend():
    q, k, v = (normal(s, 1, 2, 3, 4) for s in range(3))
    blocked = np.array([[0, 1, 1], [0, 0, 1], [0, 0, 0]], bool)
    y, scores = attend(q, k, v, 0.5, (None, np.zeros((1, 1, 3, 3))), blocked, keep=True)
    assert (scores[..., blocked] == np.finfo(np.float32).min).all()
    close(y[0, 0], join(v)[0, 0])  # the first query sees the first value alone
    assert attend(q, k, v)[1] is None
    none = attend(q, k, v, None, (np.full((1, 1, 3, 3), -np.inf),))[0]
    assert np.isnan(none).all()


def test_shapes():
    n = Symbolic.of("n")
    assert agreed("sizes", None, n, 3, None) == 3
    assert agreed("sizes", None, n) == n
    with pytest.raises(ShapeError, match="sizes differ: 3, 4"):
        agreed("sizes", 3, n, 4)
    assert (divided(8, 2, "x"), divided(None, 2, "x"), str(divided(n * 2, 2, "x"))) == (4, None, "n")
    for width, heads in ((8, 3), (8, 0), (8, -2)):
        with pytest.raises(ShapeError, match=r"split into 3 heads|must be positive"):
            divided(width, heads, "x")
    check_bias((1, 1, n, 4), 2, 3, 5, 4)
    check_bias(None, 2, 3, 5, 4)
    for shape in ((2, 3, 1, 4), (2, 2, 5, 4), (3, 3, 5, 4), (2, 3, 5, 1), (3, 5, 4)):
        with pytest.raises(ShapeError, match="attention_bias"):
            check_bias(shape, 2, 3, 5, 4)
