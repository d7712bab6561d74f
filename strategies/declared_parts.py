"""Every part that a job may name, by field of the recipe and word: the only list of them on this side.

The words that a job file may use, the checks, the presets and the tables of docs/methods.md follow it.
silo_agent/training/parts/computed_parts.py says how a silo computes each.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from crypto.errors import ConfigError
from strategies.analysis.method import KINDS
from strategies.analysis.noised import NOISED
from strategies.expected import did_you_mean
from strategies.parts.closing.ccvr import CCVR
from strategies.parts.closing.ffc import FFC, calibration
from strategies.parts.closing.fine_tuning import FFC_FINE_TUNING, FINE_TUNING, NO_CLOSING
from strategies.parts.csd import CSD
from strategies.parts.gkd import GKD
from strategies.parts.heads import FEATURES, HEADS
from strategies.parts.losses import LOSSES
from strategies.parts.personalization import PERSONALIZATIONS
from strategies.parts.regularizers import MIXES, NO_REGULARIZER, REGULARIZERS
from strategies.parts.server_updates.fedexp import FEDEXP
from strategies.parts.server_updates.fedopt import FEDOPT
from strategies.parts.server_updates.mean import FEDNOVA, WEIGHTED_MEAN
from strategies.parts.server_updates.scaffold import SCAFFOLD
from strategies.parts.statistics.feature_prototypes import FEATURE_PROTOTYPE_SUMS, FEATURE_PROTOTYPES
from strategies.parts.statistics.logit_prototypes import LOGIT_PROTOTYPES
from strategies.parts.statistics.soft_labels import CLASS_DISTILLATION, CLASS_RELATIONS, SOFT_LABEL_SUMS
from strategies.phases.columns import COLUMN_MOMENTS
from strategies.phases.enrollment import CLASS_PRESENCE, ENROLLMENT
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN
from strategies.recipe import Part, Recipe

SERVER_UPDATES = (WEIGHTED_MEAN, FEDEXP, FEDOPT, FEDNOVA, SCAFFOLD)
ALL_REGULARIZERS = (*REGULARIZERS, CSD, GKD, CLASS_RELATIONS, CLASS_DISTILLATION, FEATURE_PROTOTYPES)
STATISTICS = (SOFT_LABEL_SUMS, LOGIT_PROTOTYPES, FEATURE_PROTOTYPE_SUMS)
CLOSINGS = (NO_CLOSING, FFC, CCVR, FINE_TUNING, FFC_FINE_TUNING)
PARTS: Mapping[str, tuple[Part, ...]] = MappingProxyType(
    {
        "head": HEADS,
        "features": FEATURES,
        "loss": LOSSES,
        "regularizer": ALL_REGULARIZERS,
        "mix": MIXES,
        "second_regularizer": tuple(each for each in ALL_REGULARIZERS if each is not NO_REGULARIZER),
        "server_update": SERVER_UPDATES,
        "statistic": STATISTICS,
        "personalization": PERSONALIZATIONS,
        "closing": CLOSINGS,
    }
)
# every kind of phase that a method may have: metrics count by it
PHASE_KINDS = (
    ENROLLMENT,
    COLUMN_MOMENTS,
    CLASS_PRESENCE,
    *(phase.kind for statistic in STATISTICS for phase in statistic.before_training),
    TRAIN,
    EVALUATE_ALL,
    *(phase.kind for phase in calibration({})),
    EVALUATE,
    *(phase.kind for phase in FINE_TUNING.after_evaluation),
    *KINDS,
    NOISED,
)


def part_named(field: str, word: str) -> Part:
    """The declaration of that word. Raises ConfigError with the words that there are."""
    for part in PARTS[field]:
        if part.word == word:
            return part
    known = [part.word for part in PARTS[field]]
    raise ConfigError(f"expected one of {', '.join(known)}, got {word}{did_you_mean(word, known)}")


def recipe_from(words: Mapping[str, str | None]) -> Recipe:
    """The recipe of a job that names its parts, by field the word of each. Raises ConfigError."""
    parts: dict[str, Any] = {
        field: part_named(field, word) for field, word in words.items() if word is not None
    }
    return Recipe(**parts)
