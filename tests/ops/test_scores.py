"""Post transforms against formulas, and what classifiers share."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from fuse.errors import ShapeError
from fuse.ops.scores import (
    TRANSFORMS,
    batch_of,
    binary_labels,
    check_transform,
    labels_of,
    probit,
    rows_of,
    transformed,
    two_scores,
)
from tests.ops.cases import typed

NAN, INF = math.nan, math.inf


def test_the_numbers_of_the_transforms_are_the_standards():
    assert [TRANSFORMS[i] for i in range(5)] == ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"]
    with pytest.raises(ShapeError, match="unknown post_transform 'SIGMOID'"):
        check_transform("SIGMOID")


def test_none_and_logistic():
    s = np.array([[-800.0, -1.0, -0.0], [1.0, 40.0, 800.0]])
    assert transformed(s, "NONE").tolist() == s.tolist()
    got = transformed(s, "LOGISTIC")
    wanted = [[0.0, 1 / (1 + math.e), 0.5], [math.e / (1 + math.e), 1 / (1 + math.exp(-40)), 1.0]]
    np.testing.assert_allclose(got, wanted, rtol=4e-16, atol=1e-300)


def test_softmax_by_row():
    got = transformed(np.array([[0.0, math.log(3)], [1e6, 1e6]]), "SOFTMAX")
    np.testing.assert_allclose(got, [[0.25, 0.75], [0.5, 0.5]], rtol=1e-14)


def test_softmax_zero_leaves_zeros_out():
    s = np.array([[0.0, math.log(3), 0.0, 0.0 + math.log(1e6)], [-3.0, 0.0, -3.0, 5e-8], [0.0, -0.0, 1e-7, 0.0]])
    got = transformed(s, "SOFTMAX_ZERO")
    np.testing.assert_allclose(got[0], [0, 3 / 1000003, 0, 1000000 / 1000003], rtol=1e-12)
    assert got[1].tolist() == [0.5, 0, 0.5, 0]
    assert got[2].tolist() == [0, 0, 0, 0]


def test_softmax_zero_far_below_zero_does_not_vanish():
    got = transformed(np.array([[-2000.0, 0.0, -2001.0]]), "SOFTMAX_ZERO")
    np.testing.assert_allclose(got, [[1 / (1 + 1 / math.e), 0, 1 / (1 + math.e)]], rtol=1e-14)


def test_probit_is_the_normal_quantile():
    p = np.array([[0.5, 0.975, 0.3, 1e-300], [0.999999, 0.0, 1.0, NAN], [-0.1, 1.1, -INF, INF]])
    got = probit(p)
    normal = statistics.NormalDist()
    assert got[0, 0] == 0
    assert got[0, 1] == pytest.approx(1.9599639845400545, rel=1e-15)
    np.testing.assert_allclose([normal.cdf(v) for v in got[0, :3]], p[0, :3], rtol=1e-14)
    assert -37.1 < got[0, 3] < -37.0
    assert got[1, 1] == -INF
    assert got[1, 2] == INF
    assert np.isnan(got[1, 3])
    assert np.isnan(got[2]).all()
    assert probit(np.zeros((0, 2))).shape == (0, 2)


def test_every_transform_takes_no_rows():
    for name in TRANSFORMS:
        assert transformed(np.zeros((0, 3)), name).shape == (0, 3)


def test_two_scores():
    s = np.array([0.25, -2.0])
    assert two_scores(s, "NONE", probability=True).tolist() == [[0.75, 0.25], [3.0, -2.0]]
    assert two_scores(s, "NONE", probability=False).tolist() == [[-0.25, 0.25], [2.0, -2.0]]
    assert two_scores(s, "LOGISTIC", probability=True).tolist() == [[-0.25, 0.25], [2.0, -2.0]]
    assert two_scores(s, "PROBIT", probability=False).tolist() == [[0.75, 0.25], [3.0, -2.0]]


def test_labels():
    assert labels_of((3, -1), None).tolist() == [3, -1]
    assert labels_of(None, ("a", "b")).dtype == object
    for wrong in [(None, None), ((1,), ("a",)), ((), ())]:
        with pytest.raises(ShapeError, match="either integers or strings"):
            labels_of(*wrong)


def test_binary_labels():
    assert binary_labels(labels_of((3, 5), None)).tolist() == [3, 5]
    assert binary_labels(labels_of((7,), None)).tolist() == [0, 7]
    assert binary_labels(labels_of(None, ("x",))).tolist() == ["0", "x"]
    with pytest.raises(ShapeError, match="cannot tell 3 classes apart"):
        binary_labels(labels_of((1, 2, 3), None))


def test_rows():
    assert rows_of(np.zeros(3)).shape == (1, 3)
    assert rows_of(np.zeros((0, 3))).shape == (0, 3)
    assert rows_of(np.zeros((2, 0))).shape == (2, 0)
    with pytest.raises(ShapeError, match="neither"):
        rows_of(np.zeros((1, 2, 3)))
    with pytest.raises(ShapeError, match=r"\[2, 3\] has 3 features, the model 4"):
        rows_of(np.zeros((2, 3)), 4)
    assert str(batch_of(typed("n", 3))) == "n"
    assert batch_of(typed(3)) == 1
