"""What the reserve for lost silos costs: its factors are the product's, and noise is measured."""

from __future__ import annotations

import numpy as np
import pytest

from research.lost_silos import accuracies, factors
from tests.unit.chorale.test_plans_of_steps import noise_of_all


@pytest.mark.parametrize("silos", [5, 10, 20])
def test_factors_are_those_of_the_noise_that_silos_draw(silos: int) -> None:
    found = factors(silos)
    assert found["one curator"] == 1.0
    assert found["default"] == pytest.approx(noise_of_all(silos), rel=0.01)
    assert found["min_cohort m-1"] == pytest.approx(noise_of_all(silos, min_cohort=silos - 1), rel=0.01)
    assert 1.0 < found["without surplus"] < found["min_cohort m-1"]


def test_more_noise_is_less_accurate() -> None:
    """Two classes, by the sign of one input."""
    rng = np.random.default_rng(7)
    labels_N = rng.integers(2, size=2_000)
    inputs_ND = np.column_stack([2.0 * labels_N - 1.0, rng.standard_normal((2_000, 20)), np.ones(2_000)])
    quiet, loud = (
        accuracies((inputs_ND, labels_N), (inputs_ND, labels_N), 200, noise=noise, rate=1.0, seed=1)
        for noise in (0.1, 30.0)
    )
    assert min(quiet) > 95.0
    assert max(loud) < 90.0
