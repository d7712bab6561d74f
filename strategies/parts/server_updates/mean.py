"""FedAvg's server update, the weighted mean of the deltas as it is, and FedNova's.

FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
algorithm 1; strategies/phases/training.py says how the mean is summed and what it leaks.

FedNova: directions normalized by the local steps behind them, so that no silo pulls by stepping more.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
NeurIPS 2020 (arXiv 2007.07481), Eqs. 6 and 8; with a_k the sum of the coefficients with which silo k's
gradients enter its delta (silo_agent/training/parts/server_updates.py) and d_k = delta_k / a_k:
w <- w + (sum_k p_k a_k / sum_k p_k) (sum_k p_k d_k / sum_k p_k).
Where all silos take the same steps it is FedAvg.

Leaks the weighted mean of the silos' a_k besides what FedAvg leaks: with epochs and batch size known, how
evenly the samples are spread over the silos.
The quantity `delta` holds p d_k, smaller than p delta_k by a_k: in a job with thousands of local steps
`update_bound` may be lower by as much, or `update_bits` 64, because the step multiplies the ring's
rounding by the mean a_k again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import Array, PhaseContext, ServerStep, pieces_of
from strategies.recipe import ServerUpdate, UnderPrivacy

NORMALIZER = "normalizer"
MAX_NORMALIZER = float(1 << 24)  # p a_k; a_k is at most local steps / (1 - momentum)
POST_PROCESSING = UnderPrivacy(why="post-processing of the summed delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedMean:
    """FedAvg's step: the mean delta itself. Needs no further sum."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return ()

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        return ServerStep(steps=pieces_of(sums, "delta"), divisor=float(sums["weight"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FedNova:
    """Needs p a_k summed too, and p d_k in place of p delta_k."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return (
            Quantity(name=NORMALIZER, bound=MAX_NORMALIZER, is_tagged=True, discloses=Disclosure.FROM_UPDATE),
        )

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        """The mean direction, as far as the mean silo went."""
        weight = float(sums["weight"])
        effective_steps = float(sums[NORMALIZER]) / weight
        delta = pieces_of(sums, "delta")
        return ServerStep(
            steps=lambda place: effective_steps * delta(place) / weight,
            figures={"effective_steps": effective_steps},
        )


WEIGHTED_MEAN = ServerUpdate(word="weighted-mean", rule=WeightedMean(), under_privacy=POST_PROCESSING)
FEDNOVA = ServerUpdate(
    word="fednova",
    rule=FedNova(),
    counts_steps=True,
    under_privacy=UnderPrivacy(
        why="in a record-level job the number of steps is the job's own and tells nothing",
        shared="divides by the local steps, and silos take none",
        sums="sums the silo's number of steps, which tells how many samples it holds",
    ),
)
