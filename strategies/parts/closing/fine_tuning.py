"""Fine-tuning: after the last round every silo tunes the final model on its own data and keeps the result.

FedBABU (Oh, Kim, Yun 2022, arXiv 2106.06042), section 4: full, body or head. SphereFed (Dong, Zhang, Li,
Kung 2022), appendix B: the backbone stays, the silo's own head is learned by SGD or solved for by Eq. 9 over
the silo's samples alone. FedDr+ FT (Kim et al.), Algorithm 1, stage 2: the body, by the method's own loss
at the last round's learning rate, with the final global model for a teacher.
A silo tests its personal model on its own hold-out; of a silo with accuracy a the sums hold a, a^2 and 1. A
silo without a hold-out keeps its model, too, and adds nothing to any of the three.
Leaks how many silos have a hold-out, and mean and variance of their accuracies. Two moments of two silos
are the two accuracies, without saying whose (docs/threat-model.md). Each goes in whole hundredths: it is
a fraction of few samples, and a sum of such fractions that is exact has one set of addends.
The model itself never leaves.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from crypto.errors import ConfigError
from strategies.base import PartOptions, options_of
from strategies.parts.closing.ffc import FFC_NEEDS, FfcOptions, calibration
from strategies.parts.heads import UNIT
from strategies.parts.losses import DOT_REGRESSION
from strategies.phases.evaluation import EvaluatePhase, PersonalAccuracy
from strategies.recipe import ADDS_NOTHING, Closing, Options, Recipe, UnderPrivacy, always

FINE_TUNE = "fine-tune"


class Scope(StrEnum):
    """What of the model becomes the silo's own. A head is learned by SGD, or solved for as FFC does."""

    FULL = "full"
    BODY = "body"
    HEAD = "head"
    SOLVED_HEAD = "solved-head"


class FineTuningOptions(PartOptions):
    """How a silo fine-tunes; batches, optimizer, momentum and weight decay are the job's training's."""

    fine_tune_scope: Scope = Field(
        default=Scope.FULL,
        description="what a silo fine-tunes: full, body, head, or solved-head: least squares on its own data",
    )
    fine_tune_epochs: int | None = Field(
        default=5,
        ge=0,
        le=1_000,
        description="passes over the silo's data; 0 tests the final model as it is; null: as many epochs or "
        "steps as a round",
    )
    fine_tune_learning_rate: float | None = Field(
        default=None, gt=0, le=100, description="of all of them; left out, that of the last round"
    )
    fine_tune_regularizer: bool = Field(
        default=True, description="whether the method's regularizer joins its loss here, too"
    )


FINE_TUNE_PHASE = EvaluatePhase(kind=FINE_TUNE, statistics=(PersonalAccuracy(),))


def _check_scope(recipe: Recipe, options: Options) -> None:
    """The part that is fine-tuned has to suit the method's own loss."""
    scope = options_of(FineTuningOptions, options).fine_tune_scope
    if scope is not Scope.BODY and recipe.loss is DOT_REGRESSION:
        raise ConfigError(
            "strategy.options.fine_tune_scope: expected body, because dot-regression takes the head for unit "
            f"vectors, and a fine-tuned one is not, got {scope}"
        )
    if scope is Scope.SOLVED_HEAD and (recipe.features is not UNIT or recipe.head.has_bias):
        raise ConfigError(
            "strategy.options.fine_tune_scope: solved-head needs features unit and a head without a bias, "
            f"got features {recipe.features} and head {recipe.head}"
        )


def _tunes_a_part(options: Options) -> bool:
    return options_of(FineTuningOptions, options).fine_tune_scope is not Scope.FULL


FINE_TUNED_WITHOUT_NOISE = (
    "fine-tunes a model for each silo without any noise, so one record may change all of its answers and the "
    "silo's accuracy from 0 to 1"
)
REFUSED = UnderPrivacy(records=FINE_TUNED_WITHOUT_NOISE, sums=FINE_TUNED_WITHOUT_NOISE)

NO_CLOSING = Closing(word="none", under_privacy=ADDS_NOTHING)
# fine-tuning comes after the evaluation, so that a job whose silos cannot fine-tune has its final figures
FINE_TUNING = Closing(
    word="fine-tuning",
    options=FineTuningOptions,
    under_privacy=REFUSED,
    check_options=_check_scope,
    needs_head=_tunes_a_part,
    after_evaluation=(FINE_TUNE_PHASE,),
)


class FfcFineTuningOptions(FfcOptions, FineTuningOptions):
    """Those of both steps."""


FFC_FINE_TUNING = Closing(
    word="ffc-fine-tuning",
    options=FfcFineTuningOptions,
    needs=FFC_NEEDS,
    under_privacy=REFUSED,
    check_options=_check_scope,
    needs_classes=True,
    needs_head=always,
    before_evaluation=calibration,
    after_evaluation=(FINE_TUNE_PHASE,),
)
