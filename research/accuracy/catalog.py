"""The suites by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from research.accuracy.arms import ARMS, COMPARED
from research.accuracy.suites import Setting, Suite

CUTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "Dirichlet 0.1": {"kind": "dirichlet", "alpha": 0.1},
        "Dirichlet 0.3": {"kind": "dirichlet", "alpha": 0.3},
        "Dirichlet 0.5": {"kind": "dirichlet", "alpha": 0.5},
        "Dirichlet 1": {"kind": "dirichlet", "alpha": 1.0},
        "2 shards": {"kind": "shards", "shards_per_silo": 2},
    }
)
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-5}

RATES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
PRESET_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

DIGITS = Suite(
    name="digits",
    about="scikit-learn's digits (1,797 scans of 8 x 8), 10 silos, an mlp of 64 hidden units, 15 rounds of 3 "
    "local epochs in batches of 32",
    needs_data=False,
    arms=COMPARED,
    seeds=tuple(range(1, 21)),
    tuning_seeds=(101, 102, 103),
    common=(0.03, 0.1, 0.3, 1.0),
    common_arms=tuple(name for name in COMPARED if name not in ("fedprox", "fedbabu", "moon")),
    tunes_strength=True,
    settings=tuple(
        Setting(
            name=name,
            silos=10,
            data={"format": "digits", "name": "digits"},
            partition=CUTS[name],
            rates=RATES,
            unit_rates=RATES,
            tests=359,
            job={
                "classes": 10,
                "input_shape": [1, 8, 8],
                "rounds": 15,
                "model": {"name": "mlp", "hidden": [64]},
                "training": {**SGD, "local_epochs": 3, "batch_size": 32},
            },
        )
        for name in ("Dirichlet 0.1", "Dirichlet 0.5", "2 shards")
    ),
)
# every other preset, at fewer seeds: at which rates does it learn at all
PRESETS = Suite(
    name="presets",
    about="the digits' silos, model and rounds, every preset that trains as none of another suite",
    needs_data=False,
    arms=tuple(name for name in ARMS if name not in COMPARED),
    seeds=(),
    tuning_seeds=(101,),
    settings=tuple(
        replace(setting, rates=PRESET_RATES, unit_rates=PRESET_RATES)
        for setting in DIGITS.settings
        if setting.name == "Dirichlet 0.5"
    ),
)

# FedDr+ (arXiv 2406.02355), table of tuned rates: 0.01 for features as they are, 0.35 and 0.55 for unit ones
IMAGE_RATES, IMAGE_UNIT_RATES = (0.003, 0.01, 0.03, 0.1, 0.3), (0.01, 0.03, 0.1, 0.35, 1.0)
IMAGE_ARMS = (
    "fedavg",
    "spherefed",
    "spherefed_no_ffc",
    "spherefed_untrained",
    "feddr_plus",
    "feddr_plus_no_fd",
    "fedcsd",
    "feddw",
)
CIFAR = Suite(
    name="cifar",
    about="a subset of CIFAR-10 (20,000 training and 4,000 test images), 50 silos of which a round draws 10, "
    "the network cnn, crops and flips, 60 rounds of 3 local epochs in batches of 10; 20 rounds in tuning",
    arms=IMAGE_ARMS,
    seeds=(1, 2, 3),
    tuning_seeds=(101,),
    tuning_rounds=20,
    settings=tuple(
        Setting(
            name=name,
            silos=50,
            data={"format": "jpegs", "name": "cifar10"},
            place="cifar10",
            partition=CUTS[name],
            rates=IMAGE_RATES[:3],  # batches are small: the larger ones guess after ten rounds
            unit_rates=IMAGE_UNIT_RATES[:3],
            tests=4_000,
            job={
                "classes": 10,
                "input_shape": [3, 32, 32],
                "rounds": 60,
                "fraction": 0.2,
                "model": {"name": "cnn"},
                "normalize": {"mean": [0.4908, 0.4818, 0.4467], "std": [0.2455, 0.2430, 0.2606]},
                "augment": [{"kind": "random-crop", "padding": 4}, {"kind": "horizontal-flip"}],
                "training": {**SGD, "local_epochs": 3, "batch_size": 10},
            },
        )
        for name in ("2 shards", "Dirichlet 0.1")
    ),
)
CHEST = Suite(
    name="chest",
    about="PneumoniaMNIST with as many images of each class (2,428 for training, 468 for tests), 20 silos, "
    "the network cnn, 20 rounds of 2 local epochs in batches of 8",
    arms=IMAGE_ARMS,
    seeds=(1, 2, 3, 4, 5),
    tuning_seeds=(101,),
    settings=tuple(
        Setting(
            name=name,
            silos=20,
            data={"format": "npz", "name": "pneumonia"},
            place="pneumoniamnist_balanced/pneumoniamnist.npz",
            partition=CUTS[name],
            rates=IMAGE_RATES,
            unit_rates=IMAGE_UNIT_RATES,
            tests=468,
            job={
                "classes": 2,
                "input_shape": [1, 28, 28],
                "rounds": 20,
                "model": {"name": "cnn"},
                "training": {**SGD, "local_epochs": 2, "batch_size": 8},
            },
        )
        for name in ("Dirichlet 0.3", "Dirichlet 1")
    ),
)
FASHION = Suite(
    name="fashion",
    about="Fashion-MNIST, 20 silos, an mlp of two hidden layers of 128, 15 rounds of 2 local epochs in "
    "batches of 64",
    arms=IMAGE_ARMS,
    seeds=(1, 2, 3, 4, 5),
    tuning_seeds=(101, 102),
    settings=tuple(
        Setting(
            name=name,
            silos=20,
            data={"format": "mnist", "name": "fashion-mnist"},
            place="fashion_mnist",
            partition=CUTS[name],
            rates=IMAGE_RATES,
            unit_rates=IMAGE_UNIT_RATES,
            tests=10_000,
            job={
                "classes": 10,
                "input_shape": [1, 28, 28],
                "rounds": 15,
                "model": {"name": "mlp", "hidden": [128, 128]},
                "training": {**SGD, "local_epochs": 2, "batch_size": 64},
            },
        )
        for name in ("2 shards", "Dirichlet 0.1")
    ),
)

SUITES: Mapping[str, Suite] = MappingProxyType(
    {one.name: one for one in (DIGITS, PRESETS, CIFAR, CHEST, FASHION)}
)
