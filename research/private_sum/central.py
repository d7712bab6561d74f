"""DP-SGD by a curator who holds all records: opacus' own optimizer and sampler, with the noise that a tight
accountant asks for (privacy loss distributions by dp-accounting).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from silo_agent.training.data.base import Samples
from silo_agent.training.machine.seeding import shuffler

INTERVAL = 1e-4  # of the discretized privacy loss
DIGITS = 1e-4  # by which a multiplier may be above the least one


def train(
    model: torch.nn.Linear,
    samples: Samples,
    *,
    rate: float,
    steps: int,
    sample_rate: float,
    clip_norm: float,
    noise_multiplier: float,
    seed: int,
) -> None:
    """The steps, in place. Noise and batches follow from the seed: this arm is a measurement."""
    generator = shuffler(seed)
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=rate),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip_norm,
        expected_batch_size=max(1, round(sample_rate * len(samples))),
        generator=generator,
    )
    batches = UniformWithReplacementSampler(
        num_samples=len(samples), sample_rate=sample_rate, generator=generator, steps=steps
    )
    for places in batches:
        batch = samples.take(np.array(places, dtype=np.int64))
        optimizer.zero_grad()
        logits = wrapped(torch.from_numpy(batch.features).flatten(1))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@cache
def noise_multiplier(epsilon: float, *, delta: float, sample_rate: float, steps: int) -> float:
    """The least at which the steps cost no more than epsilon, to four digits."""
    low, high = 0.3, 100.0
    while high / low > 1.0 + DIGITS:
        middle = math.sqrt(low * high)
        is_enough = epsilon_of(middle, delta=delta, sample_rate=sample_rate, steps=steps) <= epsilon
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def epsilon_of(multiplier: float, *, delta: float, sample_rate: float, steps: int) -> float:
    """Of the Poisson-sampled Gaussian mechanism; neighbors differ by one record more or less."""
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=INTERVAL)
    step = dp_event.PoissonSampledDpEvent(sample_rate, dp_event.GaussianDpEvent(multiplier))
    accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(delta))
