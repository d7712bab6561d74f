"""Personal models: after the last round every silo fine-tunes the final model and keeps what comes of it.

FedBABU (Oh, Kim, Yun 2022, arXiv 2106.06042), section 4: full, body or head. SphereFed (Dong, Zhang, Li,
Kung 2022), appendix B: the backbone stays, the silo's own head is learned by SGD or solved for by Eq. 9 over
the silo's samples alone. FedDr+ FT (Kim et al.), Algorithm 1, stage 2: the body, by the method's own loss
at the last round's learning rate, with the final global model for a teacher.
A silo tests its personal model on its own hold-out; of a silo with accuracy a the sums hold a, a^2 and 1. A
silo without a hold-out keeps its model, too, and adds nothing to any of the three.
Leaks how many silos have a hold-out, and mean and variance of their accuracies. Two moments of two silos
are the two accuracies, without saying whose (docs/threat-model.md). Both are summed in 16 bits: an accuracy
is a fraction of few samples, and a sum of such fractions that is exact has one set of addends.
The model itself never leaves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import Field

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from strategies.base import Array, PhaseContext, PhaseResult
from strategies.recipe import Features, Head, Loss, OptionValue, PartOptions, Recipe, options_of

PERSONAL_KIND = "personal"
ACCURACY, SQUARE, SILOS = "personal_accuracy", "personal_accuracy_square", "personal_silos"
DEVIATION = "personal_accuracy_deviation"  # a figure; no sum has this name


class Tuned(StrEnum):
    """What of the model becomes the silo's own. A head is learned by SGD, or solved for as FFC does."""

    FULL = "full"
    BODY = "body"
    HEAD = "head"
    SOLVED_HEAD = "solved-head"


class PersonalOptions(PartOptions):
    """How a silo fine-tunes; batches, optimizer, momentum and weight decay are the job's training's."""

    personal_tunes: Tuned = Field(
        default=Tuned.FULL,
        description="what a silo fine-tunes: full, body, head, or solved-head: least squares on its own data",
    )
    personal_epochs: int = Field(
        default=5, ge=0, le=1_000, description="passes over the silo's data; 0 tests the final model as it is"
    )
    personal_learning_rate: float | None = Field(
        default=None, gt=0, le=100, description="of all of them; left out, that of the last round"
    )
    personal_regularizer: bool = Field(
        default=True, description="whether the method's regularizer joins its loss here, too"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalPhase:
    """Closing phase: sums the accuracy of the silos' own models, its square and 1. The state stays."""

    @property
    def kind(self) -> str:
        return PERSONAL_KIND

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Units: accuracies are shares of a silo's hold-out, 0 to 1."""
        return (
            Quantity(name=ACCURACY, bound=1.0, ring_bits=16),
            Quantity(name=SQUARE, bound=1.0, ring_bits=16),
            Quantity(name=SILOS, bound=1.0, is_count=True),
        )

    def apply(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Figures: mean and standard deviation over the silos that have a hold-out, and their number.

        Every silo weighs the same; the deviation is that of these silos, not an estimate for others.
        Without any hold-out the number stands alone.
        """
        silos = int(sums[SILOS])
        figures = {SILOS: float(silos)}
        if silos > 0:
            # rounding in the ring may take a mean out of its range, and a variance of zero just below it
            mean, square = (min(max(float(sums[name]) / silos, 0.0), 1.0) for name in (ACCURACY, SQUARE))
            figures |= {ACCURACY: mean, DEVIATION: math.sqrt(max(square - mean**2, 0.0))}
        return PhaseResult(state=context.state, figures=figures)


def check_personal(recipe: Recipe, options: Mapping[str, OptionValue]) -> None:
    """Raises ConfigError where the part that is to be fine-tuned does not suit the method's own loss."""
    if not recipe.closing.has_personal:
        return
    tuned = options_of(PersonalOptions, options).personal_tunes
    if tuned is not Tuned.BODY and recipe.loss is Loss.DOT_REGRESSION:
        raise ConfigError(
            "strategy.options.personal_tunes: expected body, because dot-regression takes the head for unit "
            f"vectors, and a fine-tuned one is not, got {tuned}"
        )
    if tuned is Tuned.SOLVED_HEAD and (recipe.features is not Features.UNIT or recipe.head is Head.TRAINED):
        raise ConfigError(
            "strategy.options.personal_tunes: solved-head needs features unit and a head without a bias, "
            f"got features {recipe.features} and head {recipe.head}"
        )
