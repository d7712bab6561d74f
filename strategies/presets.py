"""Methods by name: a preset is a row of parts with its own values for their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from crypto.errors import ConfigError
from strategies.expected import did_you_mean
from strategies.parts.closing.ccvr import CCVR
from strategies.parts.closing.ffc import FFC
from strategies.parts.closing.fine_tuning import FFC_FINE_TUNING, FINE_TUNING, NO_CLOSING
from strategies.parts.csd import CSD
from strategies.parts.gkd import GKD
from strategies.parts.heads import (
    FROZEN_ETF,
    FROZEN_ORTHONORMAL,
    FROZEN_RANDOM,
    PROJECTED_UNIT,
    RAW,
    TRAINED,
    TRAINED_UNBIASED,
    UNIT,
)
from strategies.parts.losses import (
    BALANCED_SOFTMAX,
    CLIENT_ADAPTED,
    DOT_REGRESSION,
    SPHERE_MSE,
    TASK_LOSS,
)
from strategies.parts.personalization import (
    ADAPTED,
    ALONE,
    LOCAL_AGGREGATION,
    NO_PERSONALIZATION,
    OWN_BODY,
    OWN_HEAD,
    OWN_HEAD_FIRST,
    OWN_MODEL,
    OWN_NORMALIZATION,
)
from strategies.parts.regularizers import ADDITIVE, CONVEX, FD, KD, MOON, NO_REGULARIZER, NTD, PERTURBED, PROX
from strategies.parts.server_updates.fedexp import FEDEXP
from strategies.parts.server_updates.fedopt import FEDOPT
from strategies.parts.server_updates.mean import FEDNOVA, WEIGHTED_MEAN
from strategies.parts.server_updates.scaffold import SCAFFOLD
from strategies.parts.statistics.feature_prototypes import FEATURE_PROTOTYPE_SUMS, FEATURE_PROTOTYPES
from strategies.parts.statistics.logit_prototypes import LOGIT_PROTOTYPES
from strategies.parts.statistics.soft_labels import CLASS_DISTILLATION, CLASS_RELATIONS, SOFT_LABEL_SUMS
from strategies.phases.trees import TREES
from strategies.recipe import Rates, Recipe

# docs/evidence.md, "Rates of the presets": one that is not measured has those of the preset that trains alike
FEDAVG_RATES = Rates(default=0.05, least=0.003, most=0.3)
ON_DIGITS = Rates(default=0.05, least=0.01, most=0.3)  # presets that were tried there alone, at 0.01 to 3
TUNED_ON_DIGITS = Rates(default=0.05, least=0.03, most=0.3)  # at 0.03 to 10
SPHEREFED_ON_DIGITS = Rates(default=0.5, least=0.01, most=3.0)
FEDAVG = Recipe(
    head=TRAINED,
    features=RAW,
    loss=TASK_LOSS,
    regularizer=NO_REGULARIZER,
    mix=ADDITIVE,
    server_update=WEIGHTED_MEAN,
    personalization=NO_PERSONALIZATION,
    closing=NO_CLOSING,
    rates=FEDAVG_RATES,
)
FEDBABU = replace(FEDAVG, head=FROZEN_RANDOM, rates=Rates(default=1.0, least=0.03, most=10.0))
SPHEREFED = replace(
    FEDAVG,
    head=FROZEN_ORTHONORMAL,
    features=UNIT,
    loss=SPHERE_MSE,
    closing=FFC,
    rates=Rates(default=0.5, least=0.01, most=10.0),
)
FEDDR_PLUS = replace(
    FEDAVG,
    head=FROZEN_ETF,
    features=UNIT,
    loss=DOT_REGRESSION,
    regularizer=FD,
    mix=CONVEX,
    rates=Rates(default=0.1, least=0.01, most=3.0),
    defaults={"beta": 0.9},
)

PRESETS: Mapping[str, Recipe] = MappingProxyType(
    {
        "fedavg": FEDAVG,
        "fedavg_ft": replace(FEDAVG, closing=FINE_TUNING),
        "fedexp": replace(FEDAVG, server_update=FEDEXP, rates=ON_DIGITS),
        "fedopt": replace(FEDAVG, server_update=FEDOPT, rates=ON_DIGITS),
        "fednova": replace(FEDAVG, server_update=FEDNOVA, rates=ON_DIGITS),
        "scaffold": replace(FEDAVG, server_update=SCAFFOLD, rates=Rates(default=0.05, least=0.01, most=0.1)),
        "feddw": replace(
            FEDAVG, head=TRAINED_UNBIASED, regularizer=CLASS_RELATIONS, statistic=SOFT_LABEL_SUMS
        ),
        "feddistill_plus": replace(
            FEDAVG,
            regularizer=CLASS_DISTILLATION,
            statistic=SOFT_LABEL_SUMS,
            rates=ON_DIGITS,
            defaults={"mu": 1.0},
        ),
        "fedcsd": replace(
            FEDAVG,
            regularizer=CSD,
            statistic=LOGIT_PROTOTYPES,
            defaults={"mu": 0.001, "tau": 10.0, "alpha": 0.9},
        ),
        "fedprox": replace(FEDAVG, regularizer=PROX, rates=TUNED_ON_DIGITS, defaults={"mu": 0.001}),
        "moon": replace(
            FEDAVG, regularizer=MOON, rates=TUNED_ON_DIGITS, defaults={"mu": 1.0, "contrast_tau": 0.5}
        ),
        "fedgkd": replace(FEDAVG, regularizer=GKD, rates=ON_DIGITS, defaults={"mu": 0.1, "tau": 1.0}),
        "fedntd": replace(FEDAVG, regularizer=NTD, rates=ON_DIGITS, defaults={"mu": 1.0, "tau": 3.0}),
        "fedsol": replace(
            FEDAVG,
            regularizer=KD,
            mix=PERTURBED,
            rates=ON_DIGITS,
            defaults={"rho": 1.0, "radius": "adaptive", "tau": 3.0},
        ),
        "fedetf": replace(
            FEDAVG,
            head=FROZEN_ETF,
            features=PROJECTED_UNIT,
            loss=BALANCED_SOFTMAX,
            rates=Rates(default=0.05, least=0.01, most=3.0),
            defaults={"balance": 1.0},
        ),
        "fedgela": replace(
            FEDAVG, head=FROZEN_ETF, loss=CLIENT_ADAPTED, rates=Rates(default=0.1, least=0.01, most=1.0)
        ),
        "dot_regression": replace(
            FEDAVG,
            head=FROZEN_ETF,
            features=UNIT,
            loss=DOT_REGRESSION,
            rates=Rates(default=0.5, least=0.03, most=3.0),
        ),
        "feddr_plus": FEDDR_PLUS,
        "feddr_plus_ft": replace(
            FEDDR_PLUS, closing=FINE_TUNING, defaults={**FEDDR_PLUS.defaults, "fine_tune_scope": "body"}
        ),
        "fedbabu": FEDBABU,
        # the head, trained at last, does not bear the rate of the body behind a frozen one
        "fedbabu_ft": replace(
            FEDBABU, closing=FINE_TUNING, defaults={"fine_tune_learning_rate": FEDAVG_RATES.default}
        ),
        "spherefed": SPHEREFED,
        "spherefed_ft": replace(SPHEREFED, closing=FFC_FINE_TUNING, defaults={"fine_tune_scope": "head"}),
        "spherefed_fedprox": replace(
            SPHEREFED, regularizer=PROX, rates=SPHEREFED_ON_DIGITS, defaults={"mu": 0.0001}
        ),
        "spherefed_fednova": replace(SPHEREFED, server_update=FEDNOVA, rates=SPHEREFED_ON_DIGITS),
        "spherefed_fedopt": replace(SPHEREFED, server_update=FEDOPT, rates=SPHEREFED_ON_DIGITS),
        "ccvr": replace(FEDAVG, closing=CCVR),
        "local_only": replace(FEDAVG, personalization=ALONE),
        "fedproto": replace(
            FEDAVG,
            personalization=ALONE,
            regularizer=FEATURE_PROTOTYPES,
            statistic=FEATURE_PROTOTYPE_SUMS,
            defaults={"mu": 1.0},
        ),
        "lg_fedavg": replace(FEDAVG, personalization=OWN_BODY),
        "fedper": replace(FEDAVG, personalization=OWN_HEAD),
        "fedrep": replace(FEDAVG, personalization=OWN_HEAD_FIRST, defaults={"head_epochs": 10}),
        "fedbn": replace(FEDAVG, personalization=OWN_NORMALIZATION),
        "ditto": replace(FEDAVG, personalization=OWN_MODEL, defaults={"personal_pull": 0.1}),
        "fedala": replace(FEDAVG, personalization=LOCAL_AGGREGATION),
        "per_fedavg": replace(FEDAVG, personalization=ADAPTED, defaults={"inner_rate": 0.01}),
    }
)


# no row: of the network `trees` alone, which nothing else trains
GROWN_TREES = replace(FEDAVG, growth=TREES, rates=Rates(default=0.1, least=0.01, most=1.0))


def recipe_of(preset: str) -> Recipe:
    """The row of that name, or that of trees. Raises ConfigError."""
    if preset == TREES.word:
        return GROWN_TREES
    if preset not in PRESETS:
        known = sorted((*PRESETS, TREES.word))
        message = f"expected one of {', '.join(known)}, got {preset}{did_you_mean(preset, known)}"
        raise ConfigError(f"strategy.preset: {message}")
    return PRESETS[preset]
