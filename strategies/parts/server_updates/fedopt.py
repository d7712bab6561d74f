"""FedOpt: the mean delta taken for a gradient by an optimizer at the coordinator.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021 (arXiv 2003.00295), algorithm 2; with D the mean
delta, m = 0 and v = tau^2 at first and no bias correction:
adam  m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D^2, w <- w + eta m / (sqrt(v) + tau)
yogi  as adam, but v <- v - (1 - beta2) D^2 sign(v - D^2)
sgd   m <- momentum m + D, w <- w + eta m
SphereFed (Dong et al. 2022) runs FedOpt with sgd, eta = 1 and momentum 0.3: the default here.

Leaks what FedAvg leaks: m and v follow from the sums. They are part of the global state, whose digest
every silo checks, so they travel down with the model: one more vector of its length for sgd, two for
adam and yogi.

P = trained parameters, B = those of one piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from pydantic import Field

from crypto.fixed_point.layout import Quantity
from strategies.base import (
    METHOD,
    Array,
    FloatArray,
    PartOptions,
    PhaseContext,
    ServerStep,
    blocks,
    options_of,
    pieces_of,
)
from strategies.parts.server_updates.mean import POST_PROCESSING
from strategies.recipe import ServerUpdate

MOMENT = METHOD + "server_moment"  # (P,) float32: m
SQUARES = METHOD + "server_squares"  # (P,) float32: v


class ServerOptimizer(StrEnum):
    SGD = "sgd"
    ADAM = "adam"
    YOGI = "yogi"


DEFAULT_RATES: Mapping[ServerOptimizer, float] = {
    ServerOptimizer.SGD: 1.0,  # SphereFed, its table of hyper-parameters
    ServerOptimizer.ADAM: 0.01,  # a step is about eta a parameter, whatever the deltas' size
    ServerOptimizer.YOGI: 0.01,
}


class FedOptOptions(PartOptions):
    """The coordinator's optimizer. Only sgd reads the momentum; only adam and yogi the betas and tau."""

    server_optimizer: ServerOptimizer = Field(
        default=ServerOptimizer.SGD, description="what the mean delta is a gradient for: sgd, adam, yogi"
    )
    server_learning_rate: float | None = Field(
        default=None, gt=0, le=1e3, description="eta; left out, 1.0 for sgd and 0.01 for adam and yogi"
    )
    server_momentum: float = Field(default=0.3, ge=0, lt=1, description="of sgd")
    server_beta1: float = Field(default=0.9, ge=0, lt=1, description="beta1: memory of m")
    server_beta2: float = Field(default=0.99, ge=0, lt=1, description="beta2: memory of v")
    server_tau: float = Field(default=1e-3, gt=0, le=1.0, description="tau: adaptivity, v is tau^2 at first")

    @property
    def learning_rate(self) -> float:
        given = self.server_learning_rate
        return DEFAULT_RATES[self.server_optimizer] if given is None else given

    @property
    def whole_rate(self) -> float:
        """With sgd's momentum one delta moves the model in every later round, too: eta / (1 - momentum)."""
        momentum = self.server_momentum if self.server_optimizer is ServerOptimizer.SGD else 0.0
        return self.learning_rate / (1.0 - momentum)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedOpt:
    """Needs no further sum; keeps its moments in the global state."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return ()

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        """The optimizer's step, and its moments for the next round."""
        options = options_of(FedOptOptions, context.options)
        delta, weight = pieces_of(sums, "delta"), float(sums["weight"])
        size = context.trained_values

        def moments(place: slice) -> tuple[FloatArray, FloatArray | None]:
            return _moments(context, options, delta(place) / weight, place)

        def steps(place: slice) -> FloatArray:
            moment_B, squares_B = moments(place)
            if squares_B is None:
                return options.learning_rate * moment_B
            step_B: FloatArray = options.learning_rate * moment_B / (np.sqrt(squares_B) + options.server_tau)
            return step_B

        names = (MOMENT,) if options.server_optimizer is ServerOptimizer.SGD else (MOMENT, SQUARES)
        arrays = {name: np.empty(size, np.float32) for name in names}
        for block in blocks(size):
            for kept_P, kept_B in zip(arrays.values(), moments(block), strict=False):
                kept_P[block] = kept_B
        return ServerStep(steps=steps, arrays=arrays)


def _moments(
    context: PhaseContext, options: FedOptOptions, mean_B: FloatArray, place: slice
) -> tuple[FloatArray, FloatArray | None]:
    """m, and v where the optimizer has one, of a piece."""
    before_B = _kept(context, MOMENT, place, start=0.0)
    if options.server_optimizer is ServerOptimizer.SGD:
        return options.server_momentum * before_B + mean_B, None
    beta1, beta2, tau = options.server_beta1, options.server_beta2, options.server_tau
    moment_B = beta1 * before_B + (1.0 - beta1) * mean_B
    squares_B, square_B = _kept(context, SQUARES, place, start=tau * tau), mean_B * mean_B
    if options.server_optimizer is ServerOptimizer.ADAM:
        return moment_B, beta2 * squares_B + (1.0 - beta2) * square_B
    # never below zero: where v > D^2 it falls by a share of D^2, which is less than v
    return moment_B, squares_B - (1.0 - beta2) * square_B * np.sign(squares_B - square_B)


def _kept(context: PhaseContext, name: str, place: slice, *, start: float) -> FloatArray:
    kept_P = context.state.get(name)
    return np.full(place.stop - place.start, start) if kept_P is None else kept_P[place].astype(np.float64)


FEDOPT = ServerUpdate(
    word="fedopt",
    options=FedOptOptions,
    rule=FedOpt(),
    is_optimizer=True,
    adapts=lambda options: options_of(FedOptOptions, options).server_optimizer is not ServerOptimizer.SGD,
    rate=lambda options: options_of(FedOptOptions, options).whole_rate,
    under_privacy=POST_PROCESSING,
)
