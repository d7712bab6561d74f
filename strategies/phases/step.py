"""One step of a job whose silos share their noise: the gradient of all silos' records, and the server's step.

DP-SGD (Abadi et al. 2016, algorithm 1) over the records of all silos together: every silo draws its batch by
Poisson sampling, clips each record's gradient and sums them as whole numbers; each adds one h-th of the
noise's variance inside the secure sum. Nobody but the silo sees a sum without all the noise of h silos.
Source: docs/privacy-proofs.md "A step in the sum".
Leaks the noised sum over the batch of each step, and nothing besides: how many records were drawn is in no
quantity, and the divisor is declared.

P = trained parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity, Side
from strategies.base import Array, Keeper, Phase, PhaseContext, PhaseResult, Pieces, ServerRule, pieces_of
from strategies.phases.training import TRAIN, moved
from strategies.server_optimizer import StepOptimizer

GRADIENT = "gradient"
CLAMP = 2.0  # of a number of a silo's sum, in clipped gradients of an expected batch
MIN_RING_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPhase(Phase):
    """A training round of one step. update: what the optimizer's delta does to the model."""

    kind: str = TRAIN
    optimizer: StepOptimizer
    update: ServerRule
    keepers: tuple[Keeper, ...] = ()

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: gradient (P,) in the order of context.trained. Units: of a gradient; a silo hands over
        whole numbers of the noise's units, each clamped to the bound."""
        return (
            Quantity(
                name=GRADIENT,
                shape=(context.trained_values,),
                bound=CLAMP * self.optimizer.batch_size * self.optimizer.clip_norm,
                ring_bits=max(MIN_RING_BITS, context.update_bits),
                sensitivity_l2=self.optimizer.clip_norm,
                is_whole_units=True,
                is_tagged=True,
                discloses=Disclosure.UPDATE,
                side=Side.TRAIN,
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Take the step; none where too few silos took part. Every silo weighs the same."""
        assert context.survivors is not None  # Job.next_state says it
        data_share = context.survivors / context.members
        if data_share < context.min_weight:
            return PhaseResult(state=None, data_share=data_share, reason="min-weight")
        delta, kept = self.optimizer.delta(context, pieces_of(sums, GRADIENT))
        step = self.update.step(context, _Delta(pieces=delta, size=context.trained_values))
        state = {**context.state, **moved(context, step), **kept, **step.arrays}
        for keeper in self.keepers:
            state |= keeper.arrays(context, state)
        return PhaseResult(state=state, figures=step.figures, data_share=data_share)


class _Delta(Mapping[str, Array]):
    """The optimizer's delta as the sums that a server update reads."""

    def __init__(self, *, pieces: Pieces, size: int) -> None:
        self._pieces, self._size = pieces, size

    def __getitem__(self, name: str) -> Array:
        return np.ones(()) if name == "weight" else self._pieces(slice(0, self._size))

    def pieces(self, name: str) -> Pieces:
        return self._pieces

    def __iter__(self) -> Iterator[str]:
        return iter(("delta", "weight"))

    def __len__(self) -> int:
        return 2
