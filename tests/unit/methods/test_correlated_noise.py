"""What correlated noise would gain (docs/privacy-proofs.md): its matrices are what the figures say."""

from __future__ import annotations

import numpy as np
import pytest

from research.correlated_noise import decoder, encoder, power_series, workload

STEPS = 10


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_workload_is_what_sgd_does(momentum: float) -> None:
    gradients_n = np.random.default_rng(5).standard_normal(STEPS)
    place = velocity = 0.0
    for step, gradient in enumerate(gradients_n):
        velocity = momentum * velocity + gradient
        place += velocity
        assert workload(STEPS, momentum=momentum)[step] @ gradients_n == pytest.approx(place)


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_encoder_has_its_bands_and_columns_of_norm_one(bands: int) -> None:
    """A column longer than 1 would cost more than its multiplier says, and flatter the comparison."""
    encoder_nn = encoder(STEPS, momentum=0.0, bands=bands)
    assert np.allclose(np.linalg.norm(encoder_nn, axis=0), 1.0)
    outside_nn = np.triu(np.ones((STEPS, STEPS)), k=1) + np.tri(STEPS, k=-bands)
    assert np.abs(encoder_nn * outside_nn).max() < 1e-9
    product_nn = decoder(STEPS, momentum=0.0, bands=bands) @ encoder_nn
    assert np.allclose(product_nn, workload(STEPS, momentum=0.0))


def test_more_bands_leave_less_noise_at_the_same_multiplier() -> None:
    """Two bands by a search over one number, where a Toeplitz matrix is near the best, are not better."""
    errors = [float(np.linalg.norm(decoder(STEPS, momentum=0.0, bands=bands))) for bands in (1, 2, 5)]
    assert errors[0] > 1.2 * errors[1] > 1.2 * errors[2]
    toeplitz = []
    for below in np.linspace(0.0, 0.99, 100):
        candidate_nn = np.eye(STEPS) + below * np.eye(STEPS, k=-1)
        candidate_nn /= np.linalg.norm(candidate_nn, axis=0)
        toeplitz.append(np.linalg.norm(workload(STEPS, momentum=0.0) @ np.linalg.inv(candidate_nn)))
    assert errors[1] <= min(toeplitz) <= 1.02 * errors[1]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_power_series_of_all_bands_is_the_root_of_the_workload(momentum: float) -> None:
    whole_nn = power_series(STEPS, momentum=momentum, bands=STEPS)
    first_n = whole_nn[:, 0] / whole_nn[0, 0]
    root_nn = sum(first_n[place] * np.eye(STEPS, k=-place) for place in range(STEPS))
    assert np.allclose(root_nn @ root_nn, workload(STEPS, momentum=momentum))
    cut_nn = power_series(STEPS, momentum=momentum, bands=3)
    assert np.allclose(np.linalg.norm(cut_nn, axis=0), 1.0)
    assert np.abs(cut_nn * np.tri(STEPS, k=-3)).max() == 0.0
