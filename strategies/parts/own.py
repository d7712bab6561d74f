"""What of the model is each silo's own in every round: options, and the figure that tells how good they are.

FedPer (Arivazhagan et al. 2019, arXiv 1912.00818): body together, head at home, trained together.
FedRep (Collins et al., ICML 2021, arXiv 2102.07078): the head alone for some epochs, then the body alone.
Ditto (Li et al., ICML 2021, arXiv 2012.04221): FedAvg, and beside it a model at each silo, held near it.
Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv 2002.07948): a model that is good after a step at the silo;
here the first-order variant.
Own parameters are no part of the layout: they are the silo's local state and leave it in no sum. What leaves
beside FedAvg's sums is how good the own models are: of a silo whose own model has accuracy a on its hold-out
a, a^2 and 1, before each round's training and at the end (strategies/parts/personal.py says what that tells).
`accuracy` is the global model's as it was received; with an own head that is the initial one on the
common body, and says little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import Field

from crypto.fixed_point.layout import Quantity
from strategies.base import Array, PhaseContext
from strategies.parts.personal import PersonalPhase
from strategies.recipe import Own, PartOptions


class HeadFirstOptions(PartOptions):
    """FedRep."""

    head_epochs: int = Field(
        default=10,
        ge=1,
        le=1_000,
        description="tau of FedRep: passes that train the own head alone, first",
    )


class OwnModelOptions(PartOptions):
    """Ditto."""

    own_pull: float = Field(
        default=0.1, ge=0, le=1e3, description="lambda of Ditto: pull of the own model to the received one"
    )


class AdaptedOptions(PartOptions):
    """Per-FedAvg."""

    inner_rate: float = Field(
        default=0.01, gt=0, le=100, description="alpha of Per-FedAvg: rate of the step that adapts the model"
    )


OWN_OPTIONS: Mapping[Own, type[PartOptions]] = MappingProxyType(
    {
        **dict.fromkeys(Own, PartOptions),
        Own.HEAD_FIRST: HeadFirstOptions,
        Own.MODEL: OwnModelOptions,
        Own.ADAPTED: AdaptedOptions,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAccuracy:
    """The statistic that rides in training and in the last evaluation: how good the silos' own models are,
    summed and read as after a fine-tuning."""

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return PersonalPhase().quantities(context)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> Mapping[str, float]:
        return PersonalPhase().apply(context, sums).figures

    def arrays(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        return {}
