"""Methods by name: a preset is a row of parts with its own values for their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from strategies.recipe import (
    Closing,
    Features,
    Head,
    Loss,
    Mix,
    Own,
    Recipe,
    Regularizer,
    ServerUpdate,
    StatisticName,
)

SPHEREFED = Recipe(
    head=Head.FROZEN_ORTHONORMAL, features=Features.UNIT, loss=Loss.SPHERE_MSE, closing=Closing.FFC
)
FEDDR_PLUS = Recipe(
    head=Head.FROZEN_ETF,
    features=Features.UNIT,
    loss=Loss.DOT_REGRESSION,
    regularizer=Regularizer.FD,
    mix=Mix.CONVEX,
    defaults={"beta": 0.9},
)

PRESETS: Mapping[str, Recipe] = MappingProxyType(
    {
        "fedavg": Recipe(),
        "fedavg_ft": Recipe(closing=Closing.PERSONAL),
        "fedexp": Recipe(server_update=ServerUpdate.FEDEXP),
        "fedopt": Recipe(server_update=ServerUpdate.FEDOPT),
        "fednova": Recipe(server_update=ServerUpdate.FEDNOVA),
        "scaffold": Recipe(server_update=ServerUpdate.SCAFFOLD),
        "feddw": Recipe(
            head=Head.TRAINED_UNBIASED,
            regularizer=Regularizer.SOFT_LABELS,
            statistic=StatisticName.SOFT_LABELS,
        ),
        "fedcsd": Recipe(
            regularizer=Regularizer.CSD,
            statistic=StatisticName.LOGIT_PROTOTYPES,
            defaults={"mu": 0.001, "tau": 10.0, "alpha": 0.9},
        ),
        "fedprox": Recipe(regularizer=Regularizer.PROX, defaults={"mu": 0.001}),
        "moon": Recipe(regularizer=Regularizer.MOON, defaults={"mu": 1.0, "contrast_tau": 0.5}),
        "fedntd": Recipe(regularizer=Regularizer.NTD, defaults={"mu": 1.0, "tau": 3.0}),
        "fedetf": Recipe(
            head=Head.FROZEN_ETF,
            features=Features.PROJECTED_UNIT,
            loss=Loss.BALANCED_SOFTMAX,
            defaults={"balance": 1.0},
        ),
        "fedgela": Recipe(head=Head.FROZEN_ETF, loss=Loss.CLIENT_ADAPTED),
        "dot_regression": Recipe(head=Head.FROZEN_ETF, features=Features.UNIT, loss=Loss.DOT_REGRESSION),
        "feddr_plus": FEDDR_PLUS,
        "feddr_plus_ft": replace(
            FEDDR_PLUS, closing=Closing.PERSONAL, defaults={**FEDDR_PLUS.defaults, "personal_tunes": "body"}
        ),
        "fedbabu": Recipe(head=Head.FROZEN_RANDOM),
        "fedbabu_ft": Recipe(head=Head.FROZEN_RANDOM, closing=Closing.PERSONAL),
        "spherefed": SPHEREFED,
        "spherefed_ft": replace(SPHEREFED, closing=Closing.FFC_PERSONAL, defaults={"personal_tunes": "head"}),
        "spherefed_fedprox": replace(SPHEREFED, regularizer=Regularizer.PROX, defaults={"mu": 0.0001}),
        "spherefed_fednova": replace(SPHEREFED, server_update=ServerUpdate.FEDNOVA),
        "spherefed_fedopt": replace(SPHEREFED, server_update=ServerUpdate.FEDOPT),
        "fedper": Recipe(own=Own.HEAD),
        "fedrep": Recipe(own=Own.HEAD_FIRST, defaults={"head_epochs": 10}),
        "ditto": Recipe(own=Own.MODEL, defaults={"own_pull": 0.1}),
        "per_fedavg": Recipe(own=Own.ADAPTED, defaults={"inner_rate": 0.01}),
    }
)
