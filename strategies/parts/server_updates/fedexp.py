"""FedExP: the mean delta, stretched where the silos' deltas cancel.

Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023, Eq. 9,
with the silos' weights p for the plain mean:
w <- w + eta_g mean, eta_g = max(1, sum_k p_k ||delta_k||^2 / (2 (||mean||^2 + epsilon))).
Where all silos agree eta_g is 1: that is FedAvg. The paper also averages the last two models for its
figures; the global model here is the last one.

Leaks, in addition to what FedAvg leaks, the weighted mean of the deltas' squared lengths: one number a round.

P = trained parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import Array, PartOptions, PhaseContext, ServerStep, options_of
from strategies.exact import total
from strategies.recipe import ServerUpdate, UnderPrivacy

SQUARED_LENGTH = "update_sq_norm"


class FedExPOptions(PartOptions):
    """The extrapolated step."""

    extrapolation_epsilon: float = Field(
        default=1e-3, ge=0, le=1e3, description="epsilon: keeps the step finite where the deltas cancel"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FedExP:
    """Needs p ||delta||^2 summed too."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """update_bound holds p |delta| of every parameter, and p <= 1: P update_bound^2 is reached only by
        deltas that are clipped nearly everywhere. Clipped here, the step falls back towards FedAvg's."""
        trained = context.trained_values
        return (
            Quantity(
                name=SQUARED_LENGTH,
                bound=max(1.0, trained * (context.update_bound * context.update_bound)),
                is_tagged=True,
                discloses=Disclosure.FROM_UPDATE,
            ),
        )

    def step(self, context: PhaseContext, sums: Mapping[str, Array]) -> ServerStep:
        """eta_g times the mean delta; eta_g is a figure."""
        epsilon = options_of(FedExPOptions, context.options).extrapolation_epsilon
        weight = float(sums["weight"])
        mean_P = sums["delta"] / weight
        rate = extrapolation(
            mean_of_squares=float(sums[SQUARED_LENGTH]) / weight,
            square_of_mean=float(total(mean_P * mean_P)),
            epsilon=epsilon,
        )
        return ServerStep(steps=lambda place: rate * mean_P[place], figures={"server_step": rate})


def extrapolation(*, mean_of_squares: float, square_of_mean: float, epsilon: float) -> float:
    """eta_g; 1 where nothing moved."""
    below = 2.0 * (square_of_mean + epsilon)
    return max(1.0, mean_of_squares / below) if below > 0.0 else 1.0


FEDEXP = ServerUpdate(
    word="fedexp",
    options=FedExPOptions,
    rule=FedExP(),
    stretch=lambda silos: max(1.0, silos / 2),  # eta_g of deltas that are orthogonal and of one length
    under_privacy=UnderPrivacy(
        why="in a record-level job the update's length is post-processing of DP-SGD",
        shared="stretches the step by the lengths of the silos' own updates, and silos make none",
        sums="sums the length of the silo's update with the update, which the clip of the update does "
        "not bound and no noise covers",
    ),
)
