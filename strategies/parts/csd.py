"""FedCSD's regularizer, and its teacher, which follows the global model slowly: the moving mean of all global
models so far.

Source: FedCSD, Yan et al. 2023 (arXiv 2308.10162), Eq. 12: w_xi <- alpha w_xi + (1 - alpha) w_G, from
w_xi = w_G at the start. BatchNorm's running means and variances follow like the weights.
Sums nothing and leaks nothing: silos have seen every global model that it is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from pydantic import Field

from crypto.errors import ConfigError
from strategies.base import (
    METHOD,
    MODEL,
    Array,
    Arrays,
    PartOptions,
    PhaseContext,
    blocks,
    model_in,
    options_of,
)
from strategies.parts.regularizers import TemperatureOptions
from strategies.recipe import Options, Recipe, Regularizer, UnderPrivacy

# of a teacher whose answers are summed: the largest that the paper tries
MOST_ALPHA = 0.99
# Security: of twelve silos, four a round, solving 16 rounds for each silo's sums is off by 1.1 times their
# size at 0.9, by 0.16 at 0.99 and by 0.02 at 0.999 (docs/threat-model.md)
MOST_ALPHA_OF_DRAWN_ROUNDS = 0.9
TEACHER = METHOD + "teacher/"  # prefix of the teacher's trained parameters and float buffers


class TeacherOptions(PartOptions):
    """How slowly the teacher follows."""

    alpha: float = Field(
        default=0.9,
        ge=0,
        le=1,
        description="alpha: share of the old teacher; 0 is the global model itself. At most 0.99 where "
        "prototypes are summed, and 0.9 where rounds are drawn too",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmaTeacher:
    """Keeps method/teacher/<parameter> once a round was applied; until then the model is the teacher."""

    def arrays(self, context: PhaseContext, state: Arrays) -> dict[str, Array]:
        """The next teacher: alpha * old + (1 - alpha) * the round's new model, rounded to float32 once."""
        alpha = options_of(TeacherOptions, context.options).alpha
        teacher, before = {}, context.state
        for name in (*context.trained, *context.buffers):
            old = before.get(TEACHER + name, before[MODEL + name])
            old_N, new_N = old.reshape(-1), state[MODEL + name].reshape(-1)
            taught_N = np.empty(old.size, np.float32)
            for block in blocks(old.size):
                old_B, new_B = old_N[block].astype(np.float64), new_N[block].astype(np.float64)
                taught_N[block] = alpha * old_B + (1.0 - alpha) * new_B
            teacher[TEACHER + name] = taught_N.reshape(old.shape)
        return teacher


def teacher_state(state: Arrays) -> dict[str, Array]:
    """The teacher under the model's own names: what the state keeps of it, else the model itself."""
    return {
        name: state.get(TEACHER + name.removeprefix(MODEL), array) for name, array in model_in(state).items()
    }


class Mask(StrEnum):
    """Which samples the teacher teaches: where it gives the true class more than chance, where it does so
    after delta-hat refined its logits, where it is right, or all."""

    ADAPTIVE = "adaptive"
    REFINED = "refined"
    FORCIBLE = "forcible"
    NONE = "none"


class Distance(StrEnum):
    """From teacher to student: cross-entropy as the paper writes it, or KL, its value less the entropy."""

    CE = "ce"
    KL = "kl"


class CsdOptions(TemperatureOptions, TeacherOptions):
    """FedCSD's self-distillation."""

    mask: Mask = Field(default=Mask.ADAPTIVE, description="M: which samples the teacher teaches")
    form: Distance = Field(default=Distance.CE, description="ce or kl; same gradient unless through delta")
    similarity: bool = Field(
        default=True,
        description="delta-hat: class similarity on the teacher's logits; false leaves them unchanged",
    )
    grad_through_delta: bool = Field(
        default=False, description="whether the student's gradient also flows through delta-hat"
    )
    own_prototypes: bool = Field(
        default=False,
        description="each silo compares with its own prototypes, without the statistic logit-prototypes",
    )


def _check_prototypes(recipe: Recipe, options: Options) -> None:
    alpha = options_of(TeacherOptions, options).alpha
    if recipe.statistic is None or not recipe.statistic.before_training:  # of another regularizer
        return
    if alpha > MOST_ALPHA:
        raise ConfigError(
            f"strategy.options.alpha: expected at most {MOST_ALPHA:g} with the statistic {recipe.statistic}, "
            f"got {alpha:g}: the teacher would hardly move, and every round would sum the same answers again"
        )
    if options_of(CsdOptions, options).own_prototypes:
        raise ConfigError(
            "strategy.options.own_prototypes: each silo compares with its own, and the statistic "
            f"{recipe.statistic} sums those of all: expected false, or no statistic"
        )


def _check_private(options: Options) -> None:
    if options_of(CsdOptions, options).own_prototypes:
        raise ConfigError(
            "strategy.options.own_prototypes: a silo's own prototypes are means of all its records, so one "
            "of them changes the gradients of all the others and no clip bounds it: a private job needs false"
        )


CSD = Regularizer(
    word="csd",
    needs_classes=True,
    options=CsdOptions,
    keeper=EmaTeacher(),
    reads=(TEACHER,),
    check_options=_check_prototypes,
    check_private=_check_private,
    under_privacy=UnderPrivacy(
        why="compares each sample with a mean of global models and with noised prototypes, both "
        "post-processing of sums paid for before"
    ),
)
