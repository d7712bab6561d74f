"""Frozen heads: their geometry, their bytes, and that a job never moves them."""

from __future__ import annotations

import numpy as np
import pytest

from crypto.errors import ConfigError
from strategies.parts import heads
from strategies.parts.heads import etf_head, frozen_head, orthonormal_head, random_head
from strategies.recipe import Head
from tests.support.numbers import numbers

FROZEN = [head for head in heads.HEADS if head.is_frozen]


def test_orthonormal_head_is_the_q_of_a_gaussian_matrix_with_a_positive_diagonal_of_r() -> None:
    """Which is Haar-distributed: Dong et al. 2022, Eq. 4."""
    gaussian_DC = numbers(2).normal(5 * 8).reshape(5, 8).T
    q_DC, r_CC = np.linalg.qr(gaussian_DC)
    expected_CD = (q_DC * np.sign(np.diag(r_CC))).T
    np.testing.assert_allclose(orthonormal_head(5, 8, numbers(2)), expected_CD, atol=1e-13)


@pytest.mark.parametrize(("classes", "width"), [(2, 2), (10, 64), (100, 512)])
def test_rows_of_an_orthonormal_head_are_units_at_right_angles(classes: int, width: int) -> None:
    head_CD = orthonormal_head(classes, width, numbers(3))
    assert np.abs(head_CD @ head_CD.T - np.eye(classes)).max() < 1e-12
    single_CD = head_CD.astype(np.float32).astype(np.float64)  # as a state holds it
    assert np.abs(single_CD @ single_CD.T - np.eye(classes)).max() < 1e-6


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (10, 9), (10, 10), (10, 512), (100, 128)])
def test_rows_of_a_simplex_are_units_at_equal_angles_that_sum_to_zero(classes: int, width: int) -> None:
    head_CD = etf_head(classes, width, numbers(4))
    off_diagonal = -1.0 / (classes - 1)
    expected_CC = np.full((classes, classes), off_diagonal) + (1.0 - off_diagonal) * np.eye(classes)
    np.testing.assert_allclose(head_CD @ head_CD.T, expected_CC, atol=1e-12)
    np.testing.assert_allclose(head_CD.sum(axis=0), 0.0, atol=1e-12)
    assert np.linalg.matrix_rank(head_CD) == classes - 1


def test_random_head_is_drawn_as_a_fresh_linear_layer_is() -> None:
    """Uniform within 1/sqrt(D): variance 1/(3 D); its estimate from 51,200 draws is off by 0.4 %."""
    head_CD = random_head(100, 512, numbers(5))
    assert 0.999 / np.sqrt(512) < np.abs(head_CD).max() <= 1 / np.sqrt(512)
    assert head_CD.var() == pytest.approx(1 / (3 * 512), rel=0.03)


def test_a_random_head_is_nearly_but_not_quite_at_right_angles() -> None:
    head_CD = random_head(100, 1280, numbers(6))
    unit_CD = head_CD / np.linalg.norm(head_CD, axis=1, keepdims=True)
    cosines = (unit_CD @ unit_CD.T)[np.triu_indices(100, 1)]
    assert np.sqrt(np.mean(cosines**2)) == pytest.approx(0.0285, rel=0.1)


@pytest.mark.parametrize("head", FROZEN, ids=str)
def test_a_seed_gives_one_head_and_another_seed_another(head: Head) -> None:
    first, again = (frozen_head(head, classes=5, width=8, numbers=numbers(1)) for _ in range(2))
    other = frozen_head(head, classes=5, width=8, numbers=numbers(2))
    assert first.dtype == np.float64
    assert first.shape == (5, 8)
    assert first.tobytes() == again.tobytes()
    assert not np.array_equal(first, other)


def test_a_feature_without_room_for_the_classes_is_refused() -> None:
    with pytest.raises(ConfigError, match="6 orthonormal rows need a feature width of at least 6, got 5"):
        frozen_head(heads.FROZEN_ORTHONORMAL, classes=6, width=5, numbers=numbers())
    with pytest.raises(ConfigError, match="a simplex of 6 classes needs a feature width of at least 5, got"):
        frozen_head(heads.FROZEN_ETF, classes=6, width=4, numbers=numbers())


def test_a_head_that_would_take_hours_to_draw_is_refused_at_once() -> None:
    """The operator chooses classes and width, and every silo draws the head."""
    for head in (heads.FROZEN_ORTHONORMAL, heads.FROZEN_ETF):
        with pytest.raises(ConfigError, match="8192 rows of width 8192 at fixed angles are too many to draw"):
            frozen_head(head, classes=8192, width=8192, numbers=numbers())


@pytest.mark.parametrize("head", [heads.TRAINED, heads.TRAINED_UNBIASED], ids=str)
def test_a_trained_head_is_not_drawn_here(head: Head) -> None:
    with pytest.raises(ConfigError, match=f"strategy.head: a {head} head is not frozen"):
        frozen_head(head, classes=2, width=2, numbers=numbers())


def test_without_negative_entries_a_feature_comes_no_nearer_to_a_random_row_than_a_cosine_of_07() -> None:
    """The best non-negative direction for a row w is max(w, 0): the cosine is its length."""
    head_CD = orthonormal_head(100, 512, numbers(7))
    best_C = np.linalg.norm(np.maximum(head_CD, 0.0), axis=1)
    assert best_C.mean() == pytest.approx(0.706, abs=0.01)
    assert best_C.max() < 0.8
