"""What is compared: settings (data, silos, records, epsilon), and arms that differ in privacy alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from research.accuracy.trials import Split, Trial

SUITE = "private-sum"
DELTA = 1e-5
SAMPLE_RATE = 0.2
STEPS = 50
CLIP_NORM = 1.0
# counts are noised until they cost next to nothing: accuracy is measured here outside of the job
STATISTICS = 300.0
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
LOW_RATES = (0.015625, 0.03125, 0.0625, 0.125, 0.25, 0.5, 1.0)  # of pictures in color: 3,072 inputs
TUNING_SEEDS = (101, 102)
SUM, SILO, CENTRAL, NONE = "sum", "silo", "central", "none"
ARMS = (SILO, SUM, CENTRAL, NONE)
SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
TITLES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10 subset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """data: folder of the data set. records: of each silo. rates, tuning_seeds: of each arm."""

    data: str
    silos: int
    records: int
    epsilon: float
    rates: tuple[float, ...] = RATES
    tuning_seeds: tuple[int, ...] = TUNING_SEEDS

    @property
    def name(self) -> str:
        return f"{self.data} {self.silos} x {self.records} epsilon {self.epsilon:g}"

    def trials(self, arm: str, *, tested: Split, seeds: Iterable[int], rates: Iterable[float]) -> list[Trial]:
        """One for each seed and rate. Without privacy the trials of all epsilons are the same ones."""
        where = f"{self.data} {self.silos} x {self.records}" if arm == NONE else self.name
        return [
            Trial(
                suite=SUITE,
                setting=where,
                arm=arm,
                tested=tested,
                seed=seed,
                learning_rate=rate,
                silos=self.silos,
                strategy={"preset": "fedavg"},
                job=self.job(arm),
                partition={"records": self.records},
                data={"name": self.data},
            )
            for seed in seeds
            for rate in rates
        ]

    def job(self, arm: str) -> Mapping[str, Any]:
        """Fields of the job file. A pass over the data has 1 / SAMPLE_RATE steps in every arm."""
        batch = round(SAMPLE_RATE * self.records)
        rounds = round(STEPS * SAMPLE_RATE)
        fields: dict[str, Any] = {
            "model": {"name": "mlp", "hidden": ()},
            "classes": 10,
            "input_shape": SHAPES[self.data],
            "training": {"batch_size": batch, "local_epochs": 1, "momentum": 0.0},
            **({"steps": STEPS, "spare_steps": 0} if arm == SUM else {"rounds": rounds}),
        }
        if arm == NONE:
            return fields
        records: dict[str, Any] = {
            "clip_norm": CLIP_NORM,
            "noise_multiplier": None,
            "sample_rate": SAMPLE_RATE,
        }
        if arm == SUM:
            records["noise"] = SUM
        privacy = {
            "delta": DELTA,
            "epsilon": self.epsilon,
            "records": records,
            "statistics_noise_multiplier": STATISTICS,
        }
        return {**fields, "privacy": privacy}


SETTINGS = (
    Setting(data="mnist", silos=20, records=1000, epsilon=1.0),
    Setting(data="mnist", silos=5, records=1000, epsilon=1.0),
    Setting(data="mnist", silos=20, records=200, epsilon=1.0),
    Setting(data="mnist", silos=20, records=200, epsilon=4.0),
    Setting(data="mnist", silos=20, records=200, epsilon=8.0),
    Setting(data="fashion_mnist", silos=20, records=200, epsilon=1.0),
    Setting(
        data="cifar10", silos=20, records=200, epsilon=1.0, rates=LOW_RATES, tuning_seeds=TUNING_SEEDS[:1]
    ),
)
