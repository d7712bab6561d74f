"""The suites by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from research.accuracy.arms import ARMS
from research.accuracy.suites import Setting, Suite

CUTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1},
        "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5},
        "2 shards": {"kind": "shards", "shards_per_silo": 2},
    }
)
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-5}

RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

DIGITS = Suite(
    name="digits",
    about="scikit-learn's digits (1,797 scans of 8 x 8), 10 silos, an mlp of 64 hidden units, 15 rounds of 3 "
    "local epochs in batches of 32",
    needs_data=False,
    arms=tuple(ARMS),
    seeds=tuple(range(1, 21)),
    tuning_seeds=(101, 102, 103),
    common=(0.03, 0.1, 0.3, 1.0),
    common_arms=tuple(name for name in ARMS if name not in ("fedprox", "fedbabu", "moon")),
    tunes_strength=True,
    settings=tuple(
        Setting(
            name=name,
            silos=10,
            data={"format": "digits", "name": "digits"},
            partition=cut,
            rates=RATES,
            unit_rates=RATES,
            job={
                "classes": 10,
                "input_shape": [1, 8, 8],
                "rounds": 15,
                "model": {"name": "mlp", "hidden": [64]},
                "training": {**SGD, "local_epochs": 3, "batch_size": 32},
            },
        )
        for name, cut in CUTS.items()
    ),
)

CIFAR10 = {"format": "cifar10", "name": "cifar10"}
CIFAR100 = {"format": "cifar100", "name": "cifar100"}
COLOR = {"input_shape": [3, 32, 32]}
# FedDr+ (arXiv 2406.02355), section 5 and its appendix: 10 of 100 silos a round
FEDDR_PLUS_JOB = {
    **COLOR,
    "classes": 10,
    "rounds": 320,
    "fraction": 0.1,
    "model": {"name": "vgg11", "norm": "none"},
    "training": {
        **SGD,
        "local_epochs": 10,
        "batch_size": 50,
        "schedule": {"kind": "milestones", "milestones": [160, 240]},
    },
}
# SphereFed (Dong et al. 2022), section 5: its FedAvg base
SPHEREFED_JOB = {
    **COLOR,
    "classes": 100,
    "rounds": 100,
    "model": {"name": "mobilenet_v2"},
    "training": {**SGD, "local_epochs": 10, "batch_size": 64, "schedule": {"kind": "cosine"}},
}
# FedCSD (arXiv 2308.10162), section V, with ResNet-18 where the paper has ResNet-50
FEDCSD_JOB = {
    **COLOR,
    "classes": 100,
    "rounds": 100,
    "model": {"name": "resnet18"},
    "training": {**SGD, "local_epochs": 5, "batch_size": 64},
}
# FedDW (Liu et al.), section V: CIFAR-10 under adam
FEDDW_JOB = {
    **COLOR,
    "classes": 10,
    "rounds": 50,
    "model": {"name": "cnn"},
    "training": {"optimizer": "adam", "local_epochs": 5, "batch_size": 128},
}
SGD_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 5.0)  # from the papers' least to their largest
ADAM_RATES = (0.0003, 0.001, 0.003)
PAPER = Suite(
    name="paper",
    about="the papers' own CIFAR settings, one tuning seed and three seeds",
    arms=tuple(ARMS),
    seeds=(1, 2, 3),
    tuning_seeds=(101,),
    settings=(
        Setting(
            name="FedDr+, CIFAR-10, 2 shards",
            silos=100,
            data=CIFAR10,
            place="cifar10",
            partition={"kind": "shards", "shards_per_silo": 2},
            job=FEDDR_PLUS_JOB,
            rates=SGD_RATES,
            unit_rates=SGD_RATES,
        ),
        Setting(
            name="FedDr+, CIFAR-10, Dirichlet 0.1",
            silos=100,
            data=CIFAR10,
            place="cifar10",
            partition={"kind": "dirichlet", "alpha": 0.1, "balance": True},
            job=FEDDR_PLUS_JOB,
            rates=SGD_RATES,
            unit_rates=SGD_RATES,
        ),
        Setting(
            name="FedDW, CIFAR-10, Dirichlet 0.5",
            silos=10,
            data=CIFAR10,
            place="cifar10",
            partition={"kind": "dirichlet", "alpha": 0.5},
            job=FEDDW_JOB,
            rates=ADAM_RATES,
            unit_rates=ADAM_RATES,
        ),
        Setting(
            name="FedDW, CIFAR-10, Dirichlet 0.1, half of the silos",
            silos=10,
            data=CIFAR10,
            place="cifar10",
            partition={"kind": "dirichlet", "alpha": 0.1},
            job={**FEDDW_JOB, "fraction": 0.5},
            rates=ADAM_RATES,
            unit_rates=ADAM_RATES,
        ),
        Setting(
            name="SphereFed, CIFAR-100, Dirichlet 0.1",
            silos=10,
            data=CIFAR100,
            place="cifar100",
            partition={"kind": "dirichlet", "alpha": 0.1},
            job=SPHEREFED_JOB,
            rates=SGD_RATES,
            unit_rates=SGD_RATES,
        ),
        Setting(
            name="FedCSD, CIFAR-100, Dirichlet 0.5",
            silos=10,
            data=CIFAR100,
            place="cifar100",
            partition={"kind": "dirichlet", "alpha": 0.5},
            job=FEDCSD_JOB,
            rates=SGD_RATES,
            unit_rates=SGD_RATES,
        ),
    ),
)
SUITES: Mapping[str, Suite] = MappingProxyType({one.name: one for one in (DIGITS, PAPER)})
