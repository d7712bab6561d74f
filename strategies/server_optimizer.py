"""The optimizer of a job that trains by steps: where the gradient of all silos' records moves the model.

g is the summed gradient over the number of records that a step is expected to draw, and weight_decay w.
sgd   m <- momentum m + g, w <- w - eta m
adam  Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015 (arXiv 1412.6980), algorithm 1:
      m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2,
      w <- w - eta (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
eta is the learning rate of the round, t the steps so far. Silos compute the step themselves and compare it to
the last bit, so all of it is + - * / and square roots, number by number (strategies/exact.py).

P = trained parameters, B = those of one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from crypto.errors import ConfigError
from strategies.base import METHOD, MODEL, Array, Arrays, FloatArray, PhaseContext, Pieces, blocks
from strategies.exact import whole_power

STEPS = METHOD + "steps"  # () int64: steps that were applied so far; absent before the first
MOMENT = METHOD + "step_moment"  # (P,) float32: m
SQUARES = METHOD + "step_squares"  # (P,) float32: v
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # of adam


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptimizer:
    """What a job says of its steps. batch_size: records that a silo is expected to draw in one.

    clip_norm: of one record's gradient. rate: by round, counted from 1.
    """

    batch_size: int
    clip_norm: float
    kind: Literal["sgd", "adam"]
    momentum: float
    weight_decay: float
    rate: Callable[[int], float]

    def delta(self, context: PhaseContext, gradient: Pieces) -> tuple[Pieces, dict[str, Array]]:
        """By how much the weights move, piece by piece, and the method/ arrays to keep.

        gradient: the sum over the records of all survivors; handed over piece by piece, in float64.
        """
        assert context.survivors is not None  # Job.next_state says it
        rate, divisor = self.rate(context.round), float(self.batch_size * context.survivors)
        trained = [context.state[MODEL + name].reshape(-1) for name in context.trained]
        weight_P = np.concatenate(trained) if self.weight_decay else None
        steps = steps_taken(context.state) + 1
        correction1, correction2 = 1.0 - whole_power(BETA1, steps), 1.0 - whole_power(BETA2, steps)

        def moments(place: slice) -> tuple[FloatArray, FloatArray]:
            gradient_B = gradient(place) / divisor
            if weight_P is not None:
                gradient_B = gradient_B + self.weight_decay * weight_P[place].astype(np.float64)
            before_B = _kept(context, MOMENT, place)
            if self.kind == "sgd":
                return self.momentum * before_B + gradient_B, gradient_B
            squares_B = BETA2 * _kept(context, SQUARES, place) + (1.0 - BETA2) * (gradient_B * gradient_B)
            return BETA1 * before_B + (1.0 - BETA1) * gradient_B, squares_B

        def delta(place: slice) -> FloatArray:
            moment_B, squares_B = moments(place)
            if self.kind == "sgd":
                return -rate * moment_B
            step_B: FloatArray = (moment_B / correction1) / (np.sqrt(squares_B / correction2) + EPSILON)
            return -rate * step_B

        size = context.trained_values
        names = (MOMENT, SQUARES) if self.kind == "adam" else (MOMENT,) if self.momentum else ()
        arrays: dict[str, Array] = {name: np.empty(size, np.float32) for name in names}
        for block in blocks(size) if names else ():
            for kept_P, kept_B in zip(arrays.values(), moments(block), strict=False):
                kept_P[block] = kept_B
        return delta, {**arrays, STEPS: np.array(steps)}


def steps_taken(state: Arrays) -> int:
    """Steps that were applied so far. Raises ConfigError for what no step wrote: it came from outside."""
    found = state.get(STEPS)
    if found is None:
        return 0
    if found.shape != () or found.dtype.kind not in "iu" or int(found) < 0:
        got = f"got {found.dtype} of shape {found.shape}"
        raise ConfigError(f"state: {STEPS}: expected one whole number from 0, {got}")
    return int(found)


def _kept(context: PhaseContext, name: str, place: slice) -> FloatArray:
    kept_P = context.state.get(name)
    return np.zeros(place.stop - place.start) if kept_P is None else kept_P[place].astype(np.float64)
