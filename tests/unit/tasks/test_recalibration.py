"""Slope and intercept of calibration, from histograms of scores, against a fit to the scores themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from strategies.base import Array
from strategies.tasks.curves import BINS, Curves, _edges
from strategies.tasks.recalibration import calibration_line, in_the_large

Floats = NDArray[np.float64]


def histogram(log_odds_N: Floats, is_true_N: NDArray[np.bool_]) -> Array:
    """As silos sum it: by outcome and bin of the score. Shapes: -> (1, 2, B)."""
    places_N = np.searchsorted(_edges()[1:-1], 1 / (1 + np.exp(-log_odds_N)), side="right")
    return np.stack([np.bincount(places_N[is_true_N == side], minlength=BINS) for side in (False, True)])[
        None
    ]


def drawn(samples: int, *, slope: float, intercept: float, seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    log_odds_N = rng.normal(-0.5, 2.0, samples)
    chance_N = 1 / (1 + np.exp(-(intercept + slope * log_odds_N)))
    return log_odds_N, rng.random(samples) < chance_N


def fitted(log_odds_N: Floats, is_true_N: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and intercept of the scores one by one, by another optimizer."""

    def loss(found: Floats) -> float:
        logits_N = found[0] * log_odds_N + found[1]
        return float(np.logaddexp(0, np.where(is_true_N, -logits_N, logits_N)).sum())

    best = minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
    return float(best.x[0]), float(best.x[1])


@pytest.mark.parametrize(("slope", "intercept"), [(1.0, 0.0), (0.6, 0.4), (1.8, -1.0)])
def test_the_line_of_binned_scores_is_that_of_the_scores(slope: float, intercept: float) -> None:
    log_odds_N, is_true_N = drawn(3_000, slope=slope, intercept=intercept, seed=5)
    figures = Curves(1).figures({"scores": histogram(log_odds_N, is_true_N)})
    expected = fitted(log_odds_N, is_true_N)
    assert figures["calibration_slope"].value == pytest.approx(expected[0], abs=0.003)
    assert figures["calibration_intercept"].value == pytest.approx(expected[1], abs=0.003)


def test_in_the_large_the_model_says_as_much_as_happens() -> None:
    log_odds_N, is_true_N = drawn(3_000, slope=1.0, intercept=0.7, seed=6)
    found = Curves(1).figures({"scores": histogram(log_odds_N, is_true_N)})["calibration_in_the_large"].value
    chance_N = 1 / (1 + np.exp(-(log_odds_N + found)))
    assert chance_N.sum() == pytest.approx(is_true_N.sum(), rel=1e-3)
    assert found == pytest.approx(0.7, abs=0.15)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    """300 draws: at 95 % fewer than 270 or more than 298 have a chance below 2e-3 (binomial)."""
    inside = {"calibration_slope": 0, "calibration_intercept": 0}
    truth = {"calibration_slope": 0.8, "calibration_intercept": 0.3}
    for seed in range(300):
        log_odds_N, is_true_N = drawn(400, slope=0.8, intercept=0.3, seed=1_000 + seed)
        figures = Curves(1).figures({"scores": histogram(log_odds_N, is_true_N)})
        for name, value in truth.items():
            sampling = figures[name].sampling
            assert sampling is not None
            inside[name] += sampling[0] <= value <= sampling[1]
    assert all(270 <= count <= 298 for count in inside.values()), inside


@pytest.mark.parametrize(
    "counts",
    [
        [[0.0, 0.0, 0.0], [5.0, 5.0, 5.0]],  # nobody without
        [[9.0, 0.0, 0.0], [0.0, 0.0, 9.0]],  # in order
        [[9.0, 4.0, 0.0], [0.0, 3.0, 9.0]],  # in order but for one score
        [[0.0, 4.0, 9.0], [9.0, 3.0, 0.0]],  # against it
        [[0.0, 4.0, 0.0], [0.0, 6.0, 0.0]],  # one score
    ],
)
def test_where_no_line_is_best_there_is_none(counts: list[list[float]]) -> None:
    negative_B, positive_B = np.array(counts)
    slope, intercept = calibration_line(negative_B, positive_B, np.array([-2.0, 0.0, 2.0]))
    assert math.isnan(slope.value)
    assert math.isnan(intercept.value)
    assert slope.sampling is None


def test_in_the_large_needs_both_outcomes_alone() -> None:
    one_score = np.array([0.0, 4.0]), np.array([0.0, 6.0]), np.array([-1.0, 1.0])
    assert in_the_large(*one_score).value == pytest.approx(math.log(6 / 4) - 1.0)


def test_a_model_that_is_far_off_has_a_line_too() -> None:
    """Newton's first step alone would leave the numbers."""
    log_odds_N, is_true_N = drawn(2_000, slope=1.0, intercept=9.0, seed=8)
    figures = Curves(1).figures({"scores": histogram(log_odds_N - 9.0, is_true_N)})
    assert figures["calibration_in_the_large"].value == pytest.approx(18.0, abs=1.5)


def test_a_line_is_found_where_whole_steps_of_newton_lead_away() -> None:
    counts = np.zeros((1, 2, BINS))
    counts[0, 0, [36, 198]], counts[0, 1, [3, 93]] = (73, 8), (166, 162)
    figures = Curves(1).figures({"scores": counts})
    assert figures["calibration_slope"].value < 0
    assert math.isfinite(figures["calibration_in_the_large"].value)


def test_several_curves_have_no_line_and_noise_may_move_it_anywhere() -> None:
    assert "calibration_slope" not in Curves(3).figures({"scores": np.ones((3, 2, BINS))})
    log_odds_N, is_true_N = drawn(500, slope=1.0, intercept=0.0, seed=7)
    scores = {"scores": histogram(log_odds_N, is_true_N)}
    figure = Curves(1).figures(scores, {"scores": 3.0})["calibration_slope"]
    assert figure.noise == (-math.inf, math.inf)
    assert figure.sampling is None
