"""DP-SGD: Poisson sampling, a clip of each sample's gradient, noise once on the sum, a public divisor.

Abadi et al. 2016 (arXiv 1607.00133), algorithm 1. Unlike there, all up to and including the noise is whole
numbers (clipping.py, crypto/noise/gaussian.py): what is released is a function of round(x + N), x the sum of
the clipped gradients in units and N Gaussian. Source: docs/privacy.md "Records".
"""

# N = records of the training set, P = values of all trained parameters together

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chorale.observability.logs import get_logger
from chorale.spec.privacy_spec import RecordsSpec
from crypto.errors import ConfigError
from crypto.noise.gaussian import DEVIATION, GaussianStream
from crypto.prg import KEY_BYTES, Keystream
from silo_agent.objective import Cancelled
from silo_agent.training.base.batches import PRIVATE_BATCH, Batch, Batches
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.dp_sgd.clipping import clipped_sum
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.dp_sgd.unit_means import UnitMeans

_WORD_BITS = 64

log = get_logger("silo_agent.training.dp_sgd")


class Draws:
    """Everything random that DP-SGD relies on: who is in each step, and its noise.

    From AES-256-CTR under keys drawn for one round's training alone. Neither the job's seed nor the round is
    in it: one who knew them could draw the same and subtract it. random: the system's CSPRNG, asked for two
    keys.
    """

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._records = Keystream(random(KEY_BYTES))
        self._noise = GaussianStream(random(KEY_BYTES))
        self._position = 0

    def records(self, count: int, *, rate: float) -> NDArray[np.int64]:
        """The places of the records of a step: each is drawn by itself, with a chance of at most `rate`.

        Shapes: -> (<= N,), ascending. The chance is the rate cut to 64 bits.
        """
        word_N = np.empty(count, "<u8")
        self._records.fill(word_N.view(np.uint8))
        below = int(math.ldexp(rate, _WORD_BITS))
        if below >> _WORD_BITS:
            return np.arange(count)
        return np.flatnonzero(word_N < np.uint64(below))

    def noise(self, count: int) -> NDArray[np.int64]:
        """Fresh noise of standard deviation crypto.noise.gaussian.DEVIATION. Shapes: -> (P,)."""
        noise_P = self._noise.sample(self._position, count)
        self._position += count
        return noise_P


class NoisedGradients:
    """Writes one step's gradient into the parameters, of one round's training.

    Units: a unit is 1 / clip_units of the clip norm, so that DEVIATION units are noise_multiplier clip
    norms. expected_batch: the job's, never the number of records that were drawn.
    """

    def __init__(
        self,
        samples: Batches,
        loss: LocalLoss,
        gradients: SampleGradients,
        *,
        records: RecordsSpec,
        expected_batch: int,
        draws: Draws,
        is_cancelled: Callable[[], bool],
    ) -> None:
        if records.noise_multiplier is None:
            raise ConfigError("privacy.records.noise_multiplier: it is null, and has to be solved for first")
        self._samples, self._units = samples, samples.units
        self._loss, self._gradients = loss, gradients
        self._records, self._expected_batch = records, expected_batch
        self._draws, self._is_cancelled = draws, is_cancelled
        self._clip_units = DEVIATION / records.noise_multiplier
        self._size = sum(parameter.numel() for parameter in gradients.parameters)
        self._dropped = 0

    def write(self, step: int) -> None:
        """One step: draw, clip, sum, noise, divide. Without records it is noise alone. Raises Cancelled."""
        chosen_U = self._draws.records(len(self._units), rate=self._records.sample_rate)
        places_N, means = self._units.rows_of(chosen_U), UnitMeans(self._units.sizes_U[chosen_U])
        device = self._samples.device
        sum_P = torch.zeros(self._size, dtype=torch.int64, device=device)
        if len(places_N):  # splitting nothing gives one empty part
            for batch in self._samples.at(torch.split(torch.from_numpy(places_N).to(device), PRIVATE_BATCH)):
                sum_P += self._clipped(batch, means, step)
        sum_P += torch.from_numpy(self._draws.noise(self._size)).to(device)
        # post-processing from here on: floats may do as they like
        scale = self._records.clip_norm / self._clip_units / self._expected_batch
        self._put(sum_P.double() * scale)

    def log_dropped(self) -> None:
        """In the silo's own log alone: the number is data."""
        if self._dropped:
            log.warning("samples without a finite gradient counted as zero", times=self._dropped)

    def _clipped(self, batch: Batch, means: UnitMeans, step: int) -> Tensor:
        if self._is_cancelled():
            raise Cancelled("training: no longer wanted")
        # of one fixed shape, or a sample's gradient would tell how many others were drawn
        filled = self._loss.augmented(batch, step=step).padded(PRIVATE_BATCH)
        gradients = self._gradients.of(self._loss, filled.inputs, filled.labels_N, filled.places_N)
        clipped = clipped_sum(
            gradients,
            count=means.gather(gradients, batch.count),
            clip_norm=self._records.clip_norm,
            clip_units=self._clip_units,
        )
        self._dropped += clipped.dropped
        return clipped.sum_P

    def _put(self, gradient_P: Tensor) -> None:
        parameters = self._gradients.parameters
        parts = torch.split(gradient_P, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
