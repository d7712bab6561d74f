"""Logit prototypes: what the teacher says on average about the samples of each class.

Source: FedCSD, Yan et al. 2023 (arXiv 2308.10162), Eq. 6 at the silos, Eq. 7 here:
P_G = (1/K) sum_k P_k, each silo's mean weighing the same. A silo that lacks a class sends a zero row;
only the direction of a row is ever used (Eq. 8), so dividing by m, by the silos of the sum or by those
that hold the class gives the same loss. With `count_weighted` (not the paper's) the sums of logits are
divided by the sums of class counts instead, and a sample weighs the same at every silo.
A class of which no silo sent its own has a zero row, like none; `missing_prototypes: identity` makes it like
itself alone, a row that everybody knows beforehand.
Leaks those sums: for a class that one silo holds alone the row is that silo's mean logits, which is why
rows of classes with few holders are not sent. count_weighted also leaks the federation's class counts.
With `logit_clip` L each sample's logits are clipped to the norm L, and a record moves the sums by at most
L. So it does the means: one more sample moves the mean of n by |v - mean| / (n + 1) <= 2 L / (n + 1), and
the first one moves a row of zeros by |v| <= L.

C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from pydantic import Field

from crypto.errors import ConfigError
from crypto.fixed_point.layout import CLIPPED, MAX_VALUES, Disclosure, Quantity, Side
from strategies.base import METHOD, Array, FloatArray, PartOptions, PhaseContext, PhaseResult, options_of
from strategies.parts.csd import CSD, CsdOptions, teacher_state
from strategies.parts.statistics.class_counts import class_counts
from strategies.phases.enrollment import MAX_SAMPLES
from strategies.recipe import Need, Options, Statistic, UnderPrivacy

PROTOTYPES_KIND = "prototypes"
PROTOTYPES = METHOD + "prototypes"  # (C, C) float64: row = true class, column = logit

LOGIT_BOUND = float(1 << 20)  # of a class's mean logit; a model with larger ones has diverged
LOGIT_SUM_BOUND = float(1 << 32)  # of a class's summed logits at one silo


class MissingPrototypes(StrEnum):
    """The row of a class of which no silo sent one."""

    ZERO = "zero"
    IDENTITY = "identity"


class PrototypeOptions(PartOptions):
    """How the silos' prototypes are joined."""

    count_weighted: bool = Field(
        default=False, description="every sample weighs the same, not every silo (the paper: every silo)"
    )
    missing_prototypes: MissingPrototypes = Field(
        default=MissingPrototypes.ZERO,
        description="row of a class of which no silo sends one: zero, or identity, like itself alone",
    )
    logit_clip: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="norm to which each sample's logits are clipped; a private job needs one",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrototypesPhase:
    """Before training in every round: the teacher's mean logits by class, over all silos."""

    kind: str = PROTOTYPES_KIND

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: prototypes or prototype_sums (C, C), class_counts (C,)."""
        C = context.classes
        clipped = Quantity(
            name=CLIPPED, bound=float(MAX_VALUES), is_count=True, discloses=Disclosure.DIAGNOSTIC
        )
        options = options_of(PrototypeOptions, context.options)
        change = options.logit_clip
        if not options.count_weighted:
            means = Quantity(
                name="prototypes",
                shape=(C, C),
                bound=LOGIT_BOUND,
                sensitivity_l2=change,
                is_tagged=True,
                discloses=Disclosure.CLASS_STATISTIC,
                side=Side.TRAIN,
            )
            return means, clipped
        sums = Quantity(
            name="prototype_sums",
            shape=(C, C),
            bound=LOGIT_SUM_BOUND,
            sensitivity_l2=change,
            is_tagged=True,
            discloses=Disclosure.CLASS_STATISTIC,
            side=Side.TRAIN,
        )
        return sums, class_counts(C, bound=MAX_SAMPLES), clipped

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write method/prototypes, (C, C) float64; where no silo sent a row, as `missing_prototypes` says."""
        prototypes_CC = _joined(context, sums)
        is_sent_C = np.asarray(prototypes_CC.any(axis=1))
        figures = {"classes_with_prototype": float(np.count_nonzero(is_sent_C))}
        if options_of(PrototypeOptions, context.options).missing_prototypes is MissingPrototypes.IDENTITY:
            prototypes_CC = np.where(is_sent_C[:, np.newaxis], prototypes_CC, np.eye(context.classes))
        return PhaseResult(state={**context.state, PROTOTYPES: prototypes_CC}, figures=figures)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """A private job sums none."""
        return {"clipped": float(sums[CLIPPED])} if CLIPPED in sums else {}


def _joined(context: PhaseContext, sums: Mapping[str, Array]) -> FloatArray:
    if not options_of(PrototypeOptions, context.options).count_weighted:
        return np.asarray(sums["prototypes"] / context.members, dtype=np.float64)
    counts_C1 = np.maximum(sums["class_counts"], 1)[:, np.newaxis]
    return np.asarray(sums["prototype_sums"] / counts_C1, dtype=np.float64)


def _check_clip(options: Options) -> None:
    if options_of(PrototypeOptions, options).logit_clip is None:
        raise ConfigError(
            "strategy.options.logit_clip: a private job needs it, because logits have no bound of their own"
        )


def _least_rows(options: Options) -> int:
    """None where missing ones are public, and where none is compared with."""
    is_public = options_of(PrototypeOptions, options).missing_prototypes is MissingPrototypes.IDENTITY
    return int(options_of(CsdOptions, options).similarity and not is_public)


LOGIT_PROTOTYPES = Statistic(
    word="logit-prototypes",
    needs_classes=True,
    options=PrototypeOptions,
    before_training=(PrototypesPhase(),),
    asks=teacher_state,
    needs=(
        Need(
            holds=lambda recipe: CSD in recipe.regularizers,
            reason="the statistic logit-prototypes is what the regularizer csd compares with, and nothing "
            "else uses it: it needs that regularizer",
        ),
    ),
    under_privacy=UnderPrivacy(why="sums answers of a global model, clipped to logit_clip"),
    check_private=_check_clip,
    reads=(PROTOTYPES,),
    least_rows=_least_rows,
    public_rows="missing_prototypes: identity",
)
