"""DP-SGD: Poisson sampling, a clip of each sample's gradient, and a sum of whole numbers.

Abadi et al. 2016 (arXiv 1607.00133), algorithm 1. Unlike there, all up to and including the noise is whole
numbers: what is released is a function of round(x + N), x the sum of the clipped gradients in units and N
Gaussian. The silo adds the noise itself and trains on, or all silos of a secure sum share it.
Source: docs/privacy-proofs.md "Records".
"""

# P = values of all trained parameters together

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chorale.privacy.products import DEVIATION
from chorale.spec.privacy_spec import RecordsSpec
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from silo_agent.training.dp_sgd.clipping import ClippedSums
from silo_agent.training.dp_sgd.micro_batches import MicroBatches, log_dropped
from silo_agent.training.dp_sgd.rounding import RoundedSums


class NoisedGradients:
    """Writes one step's gradient into the parameters, of one round's training.

    Units: DEVIATION units are noise_multiplier clip norms, or a little more where a sum has to be rounded.
    expected_batch: the job's, never the number of records that were drawn.
    """

    def __init__(self, batches: MicroBatches, *, records: RecordsSpec, expected_batch: int) -> None:
        if records.noise_multiplier is None:
            raise ConfigError("privacy.records.noise_multiplier: it is null, and has to be solved for first")
        self._batches, self._records, self._expected_batch = batches, records, expected_batch
        self._noise_multiplier = records.noise_multiplier
        self._dropped = 0

    def write(self, step: int) -> None:
        """One step: draw, clip, sum, noise, divide. Without records it is noise alone. Raises Cancelled."""
        device, gradients = self._batches.samples.device, self._batches.gradients
        sums = ClippedSums(
            [each.shape for each in gradients.parameters],
            clip_norm=self._records.clip_norm,
            clip_units=DEVIATION / self._noise_multiplier,
            device=device,
            products=gradients.products,
        )
        for rows, count in self._batches.of(step):
            sums.add(rows, count=count)
        clipped = sums.total()
        self._dropped += clipped.dropped
        sum_P = clipped.sum_P
        sum_P += torch.from_numpy(self._batches.draws.noise(len(sum_P))).to(device)
        # post-processing from here on: floats may do as they like
        self._put(sum_P, unit=self._records.clip_norm / sums.clip_units)

    def log_dropped(self) -> None:
        log_dropped(self._dropped)

    def _put(self, sum_P: Tensor, *, unit: float) -> None:
        gradient_P = sum_P.double() * (unit / self._expected_batch)
        parameters = self._batches.gradients.parameters
        parts = torch.split(gradient_P, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)


def gradient_sum(batches: MicroBatches, *, clip_norm: float, quantity: Quantity) -> NDArray[np.int64]:
    """What a silo adds to the sum of a step, without its noise: clipped gradients of the records that are
    drawn, in whole units, each number within the quantity's bound.

    A record moves it by at most `clipped_sensitivity`: the clamp brings no two sums farther apart. Without
    records it is zero. Shapes: -> (P,) in the order of the model's parameters. Raises ConfigError, Cancelled.
    """
    assert quantity.noise is not None
    rounded = RoundedSums(
        clip_norm=clip_norm,
        scale=quantity.noise.scale,
        values=quantity.size,
        bits=batches.draws.rounding_bits,
    )
    sum_P, dropped = np.zeros(quantity.size, np.int64), 0
    for gradients, count in batches.of(0):
        clipped = rounded.of(gradients, count=count)
        sum_P += clipped.sum_P.numpy(force=True)
        dropped += clipped.dropped
    log_dropped(dropped)
    most = math.floor(quantity.noise.scale * quantity.bound)
    return np.clip(sum_P, -most, most)
