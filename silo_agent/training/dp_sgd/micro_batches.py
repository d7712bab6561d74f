"""The records of each step, drawn one by one, and their gradients: in micro-batches of one shape.

Abadi et al. 2016 (arXiv 1607.00133), algorithm 1, up to the clip. Source: docs/privacy.md, "Records".
"""

# N = samples of one micro-batch

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from chorale.privacy.batch_cap import batch_cap
from chorale.privacy.quantity_noise import dp_sgd_steps, privacy_of
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from crypto.prg import KEY_BYTES, Keystream
from silo_agent.objective import Cancelled
from silo_agent.training.base.batches import PRIVATE_BATCH, Batch, Batches
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.dp_sgd.checks import Probes, check_gradients
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.models.base import FederatedModel

_WORD_BITS = 64


class Draws:
    """Who is in each step: from AES-256-CTR under a key drawn for one input's training alone.

    Neither the job's seed nor the round is in it: one who knew them could draw the same. random: the
    system's CSPRNG, asked for one key.
    """

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._records = Keystream(random(KEY_BYTES))

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


@dataclass(frozen=True, kw_only=True)
class MicroBatches:
    """Gradients of single samples, PRIVATE_BATCH of them at a time.

    cap: most records of a step. With it every step computes as for so many, whatever was drawn, and draws as
    among `drawn_among` records. None: what was drawn decides.
    """

    samples: Batches
    loss: LocalLoss
    gradients: SampleGradients
    sample_rate: float
    draws: Draws
    is_cancelled: Callable[[], bool]
    cap: int | None = None
    drawn_among: int = 0

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self.gradients.parameters

    def of_step(self, step: int) -> Iterator[tuple[list[Tensor], int]]:
        """Gradients, (N, *shape) for each parameter, and how many of the first of them count: the others
        fill up. Raises Cancelled."""
        samples = self.samples
        places_N = self.draws.records(max(len(samples), self.drawn_among), rate=self.sample_rate)
        places_N = places_N[places_N < len(samples)][: self.cap]
        taken = 0
        if len(places_N):  # splitting nothing gives one empty part
            place_N = torch.from_numpy(places_N).to(samples.device)
            for batch in samples.at(torch.split(place_N, PRIVATE_BATCH)):
                yield self._of(batch.padded(PRIVATE_BATCH) if self.loss.augmentation is None else batch, step)
                taken += 1
        # a teacher's kept answers have no row for a silo without records
        for _ in range(taken, math.ceil((self.cap or 0) / PRIVATE_BATCH)):
            yield self._of(samples.filler(), step)

    def _of(self, batch: Batch, step: int) -> tuple[list[Tensor], int]:
        if self.is_cancelled():
            raise Cancelled("training: no longer wanted")
        # of one fixed shape, or a sample's gradient would tell how many others were drawn
        filled = self.loss.augmented(batch, step=step).padded(PRIVATE_BATCH)
        return self.gradients.of(self.loss, filled.inputs, filled.labels_N, filled.places_N), batch.count
