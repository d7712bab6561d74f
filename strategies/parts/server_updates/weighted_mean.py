"""FedAvg's server update: the weighted mean of the deltas, as it is.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017,
algorithm 1; strategies/phases/training.py says how the mean is summed and what it leaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crypto.fixed_point.layout import Quantity
from strategies.base import Array, PhaseContext, ServerStep
from strategies.recipe import ServerUpdate, Standing

POST_PROCESSING = Standing(why="post-processing of the summed delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedMean:
    """FedAvg's step: the mean delta itself. Needs nothing summed beside."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return ()

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        return ServerStep(step_P=sums["delta"], divisor=float(sums["weight"]))


WEIGHTED_MEAN = ServerUpdate(word="weighted-mean", rule=WeightedMean(), standing=POST_PROCESSING)
