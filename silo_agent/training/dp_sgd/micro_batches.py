"""The records of each step, drawn one by one, and their gradients: in micro-batches of one shape.

Abadi et al. 2016 (arXiv 1607.00133), algorithm 1, up to the clip. Source: docs/privacy-proofs.md, "Records".
"""

# N = records of the training set, or samples of one micro-batch; P = trained values

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from chorale.observability.logs import get_logger
from chorale.privacy.batch_cap import batch_cap
from crypto.noise.gaussian import MAX_VARIANCE, GaussianStream
from crypto.prg import KEY_BYTES, Keystream
from silo_agent.training.base.batches import PRIVATE_BATCH, Batch, Batches
from silo_agent.training.base.loss import LocalLoss
from silo_agent.training.dp_sgd.outer_products import SampleRows, materialized
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.dp_sgd.unit_means import UnitMeans
from silo_agent.training.objective import Cancelled

_WORD_BITS = 64

log = get_logger("silo_agent.training.dp_sgd")


class Draws:
    """Everything random that DP-SGD relies on: who is in each step, its noise, and how gradients are rounded.

    From AES-256-CTR under keys drawn for one input's training alone. Neither the job's seed nor the round is
    in it: one who knew them could draw the same and subtract it. random: the system's CSPRNG, asked for one
    key for each that is used.
    """

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._records = Keystream(random(KEY_BYTES))
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
        """Fresh noise of standard deviation DEVIATION. Shapes: -> (P,)."""
        noise_P = np.empty(count, np.int64)
        self._noise.sample_into(self._position, noise_P)
        self._position += count
        return noise_P

    @cached_property
    def rounding_bits(self) -> Keystream:
        return Keystream(self._random(KEY_BYTES))

    @cached_property
    def _noise(self) -> GaussianStream:
        return GaussianStream(MAX_VARIANCE, self._random(KEY_BYTES), quantity=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatches:
    """The gradients of the records of each step, PRIVATE_BATCH of them at a time.

    A record is a unit of the samples, and its gradient the mean of its rows'.
    constant_work: for how many records the silo computes, whatever it has; None: for those that are drawn.
    steps: of the whole job.
    """

    samples: Batches
    loss: LocalLoss
    gradients: SampleGradients
    sample_rate: float
    draws: Draws
    is_cancelled: Callable[[], bool]
    steps: int = 1
    constant_work: int | None = None

    def of(self, step: int) -> Iterator[tuple[list[SampleRows], int]]:
        """(N, *shape) for each parameter, and how many of the first N count: the others fill up.

        Under constant work what is drawn beyond the cap is left out. Raises Cancelled.
        """
        units = self.samples.units
        count, among, cap, least = len(units), len(units), None, 0
        if self.constant_work is not None:
            # more records than the policy says take more time, but none is left out unpaid for
            among = max(count, self.constant_work)
            cap = batch_cap(among, sample_rate=self.sample_rate, steps=self.steps)
            least = math.ceil(cap * self.samples.rows_per_unit / PRIVATE_BATCH)
        drawn_U = self.draws.records(among, rate=self.sample_rate)
        drawn_U = drawn_U[drawn_U < count][:cap]
        places_N = torch.from_numpy(units.rows_of(drawn_U)).to(self.samples.device)
        taken, means = 0, UnitMeans(units.sizes_U[drawn_U])
        if len(places_N):  # splitting nothing gives one empty part
            for batch in self.samples.at(torch.split(places_N, PRIVATE_BATCH)):
                yield self._gradients(batch, means, step)
                taken += 1
        for _ in range(taken, least):
            yield self._gradients(self.samples.filler(), means, step)

    def _gradients(self, batch: Batch, means: UnitMeans, step: int) -> tuple[list[SampleRows], int]:
        if self.is_cancelled():
            raise Cancelled("training: no longer wanted")
        # of one fixed shape, or a sample's gradient would tell how many others were drawn
        filled = self.loss.augmented(batch, step=step).padded(PRIVATE_BATCH)
        gradients = self.gradients.of(self.loss, filled.inputs, filled.labels_N, filled.places_N)
        # by the data set's kind, not by what was drawn: a record must not change how others are cut
        if self.samples.units_N is None:
            return gradients, batch.count
        # copies: parameters may share memory
        rows = [materialized(each).clone() for each in gradients]
        return list(rows), means.gather(rows, batch.count)


def log_dropped(dropped: int) -> None:
    """In the silo's own log alone, and not how many: weights that make every gradient infinite would tell
    there how many records were drawn."""
    if dropped:
        log.warning("samples without a finite gradient counted as zero")
