"""A step draws units, and one unit moves its sum by one clip, however many rows it has.

U = units, N = rows, P = parameters.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from chorale.privacy.batch_cap import batch_cap
from chorale.privacy.products import DEVIATION
from crypto.fixed_point.layout import Disclosure, Quantity
from crypto.noise.sensitivity import Noise, clipped_sensitivity
from silo_agent.training.base.batches import Tensors
from silo_agent.training.dp_sgd.micro_batches import Draws
from silo_agent.training.dp_sgd.records import gradient_sum
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.models.base import FederatedModel
from tests.unit.training.dp_sgd import (
    fixed_random,
    gradient_of,
    gradients_one_by_one,
    make_model,
    make_samples,
    micro_batches,
    released_units,
)
from tests.unit.training.test_private_batches import inputs_of, rounding_gradients

Indices = NDArray[np.int64]


def units_of(sizes: list[int]) -> Indices:
    return np.repeat(np.arange(len(sizes)), sizes)


def without(samples: Tensors, unit: int) -> Tensors:
    assert samples.units_N is not None
    stays = torch.from_numpy(samples.units_N != unit)
    return replace(
        samples,
        features=samples.features[stays],
        labels=samples.labels[stays],
        units_N=samples.units_N[stays.numpy()],
    )


def alone(samples: Tensors, unit: int) -> Tensors:
    assert samples.units_N is not None
    (rows,) = np.nonzero(samples.units_N == unit)
    chosen = slice(int(rows[0]), int(rows[-1]) + 1)
    return replace(
        samples,
        features=samples.features[chosen],
        labels=samples.labels[chosen],
        units_N=samples.units_N[chosen],
    )


def length(sum_P: NDArray[np.int64]) -> float:
    return float(np.linalg.norm(sum_P.astype(np.float64)))


SIZES = [3, 5, 1, 40, 2, 7, 1, 20, 4]


@pytest.mark.parametrize("unit", range(len(SIZES)))
def test_one_unit_less_moves_the_sum_by_its_own_clipped_mean_and_nothing_else(unit: int) -> None:
    """Wherever the batches of 32 rows end."""
    model, rows = rounding_gradients(), sum(SIZES)
    samples = Tensors(features=inputs_of(rows, 3), labels=torch.arange(rows) % 2, units_N=units_of(SIZES))
    whole, less = released_units(model, samples), released_units(model, without(samples, unit))
    moved_P = whole - less
    assert (moved_P == released_units(model, alone(samples, unit))).all()
    assert length(moved_P) <= DEVIATION


def test_without_units_each_row_is_a_clip() -> None:
    model, one = make_model(), make_samples(1)
    four = Tensors(features=one.features.repeat(4, 1), labels=one.labels.repeat(4), units_N=units_of([4]))
    as_unit = length(released_units(model, four))
    assert as_unit <= DEVIATION
    assert length(released_units(model, replace(four, units_N=None))) == pytest.approx(4 * as_unit, rel=1e-5)
    assert as_unit > DEVIATION / 2


def test_a_units_gradient_is_the_mean_of_its_rows() -> None:
    model, samples = make_model(), make_samples(sum(SIZES))
    rows_NP = gradients_one_by_one(model, samples)
    means_UP = torch.stack([part.mean(dim=0) for part in torch.split(rows_NP, SIZES)])
    norm_U = means_UP.norm(dim=1)
    clip = float(norm_U.median())
    expected_P = (means_UP * (clip / norm_U).clamp(max=1.0)[:, None]).sum(dim=0) / 8
    found_P = gradient_of(model, replace(samples, units_N=units_of(SIZES)), clip_norm=clip)
    torch.testing.assert_close(found_P, expected_P, rtol=1e-4, atol=1e-6)


def test_a_unit_with_a_row_that_has_no_finite_gradient_counts_as_zero() -> None:
    model, samples = make_model(), make_samples(sum(SIZES))
    samples = replace(samples, units_N=units_of(SIZES))
    bad = replace(samples, features=samples.features.clone())
    bad.features[20] = float("inf")  # of the unit of 40 rows
    assert (released_units(model, bad) == released_units(model, without(samples, 3))).all()


class Listed(Draws):
    """Those units, and no noise."""

    def __init__(self, chosen: list[int]) -> None:
        super().__init__(fixed_random())
        self.chosen, self.asked = chosen, 0

    def records(self, count: int, *, rate: float) -> Indices:
        self.asked = count
        return np.array(self.chosen, np.int64)

    def noise(self, count: int) -> NDArray[np.int64]:
        return np.zeros(count, np.int64)


def test_a_step_draws_units_with_all_of_their_rows() -> None:
    model = make_model()
    samples = replace(make_samples(sum(SIZES)), units_N=units_of(SIZES))
    draws = Listed([1, 3, 8])
    found = released_units(model, samples, draws)
    expected = sum(released_units(model, alone(samples, unit)) for unit in (1, 3, 8))
    assert draws.asked == len(SIZES)
    assert (found == expected).all()


def gradient_quantity(model: FederatedModel, scale: float) -> Quantity:
    values = sum(parameter.numel() for parameter in model.parameters())
    return Quantity(
        name="gradient",
        shape=(values,),
        bound=64.0,
        discloses=Disclosure.UPDATE,
        noise=Noise(variance=64.0, scale=scale),
    )


def test_a_step_of_shared_noise_moves_by_one_units_sensitivity() -> None:
    model, samples = make_model(), replace(make_samples(sum(SIZES)), units_N=units_of(SIZES))
    quantity = gradient_quantity(model, 1024.0)
    most = clipped_sensitivity(0.1, scale=1024.0, coordinates=quantity.size).l2

    def summed(of: Tensors) -> float:
        with SampleGradients(model) as gradients:
            batches = micro_batches(of, gradients, draws=Listed(list(range(len(of.units)))))
            return length(gradient_sum(batches, clip_norm=0.1, quantity=quantity))

    assert summed(alone(samples, 3)) <= most
    assert summed(replace(alone(samples, 3), units_N=None)) > 5 * most  # 40 rows


def test_constant_work_has_room_for_all_rows_of_the_units_that_it_hides() -> None:
    """Whatever is drawn, a step runs as many batches; a unit beyond the cap is left out with all its rows."""
    model, sizes = make_model(), [4] * 30
    samples = replace(make_samples(120), units_N=units_of(sizes), rows_per_unit=4)
    ran, cap = set(), batch_cap(30, sample_rate=0.05, steps=1)
    assert cap < 30
    for chosen in ([], [0], list(range(30))):
        with SampleGradients(model) as gradients:
            batches = micro_batches(samples, gradients, draws=Listed(chosen), rate=0.05, constant_work=30)
            found = [count for _, count in batches.of(0)]
        ran.add(len(found))
        assert sum(found) == min(len(chosen), cap)
    assert ran == {math.ceil(cap * 4 / 32)}
