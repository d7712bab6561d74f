"""FedDW's claims that a CPU can probe: head and soft labels grow alike, skewed silos gain, mild ones lose
nothing.

Handwritten digits, MLP 64-128-128-128, ten silos, five local epochs of Adam. FedAvg is the same job with
mu = 0: the same bias-free head, seeds, silos and draws, so differences are paired. Seeds differ by about
eight points of accuracy, paired differences by about three.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from chorale.spec.job_spec import JobSpec
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.data.partition import cut_dirichlet, split_holdout
from silo_agent.training.parts.statistics.soft_labels import relations_of
from strategies.base import Arrays
from strategies.parts.statistics.soft_labels import SOFT_LABELS
from tests.support.objectives import make_job
from tests.support.simulation import simulate
from tests.support.small_methods import built_model

SILOS, CLASSES = 10, 10
STRONG, MILD = 0.1, 0.5  # Dirichlet: the card's pathological and practical settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """alpha: of the Dirichlet cut. drawn: silos of a round."""

    alpha: float
    drawn: int
    rounds: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Accuracy of the global model in per cent, and the gap between soft labels and head at the end."""

    accuracy_by_round: tuple[float, ...]
    gap: float

    def last(self, rounds: int) -> float:
        return float(np.mean(self.accuracy_by_round[-rounds:]))


@cache
def run(setting: Setting, *, mu: float) -> Run:
    train, test = digits(setting.seed)
    job = gate_job(setting, mu=mu)
    accuracies, state = [], None
    for phase in simulate(job, silos_of(train, setting), takes_part=lambda round: drawn(setting, round)):
        if phase.phase == "train":
            state = phase.state
            accuracies.append(accuracy(job, state, test))
    assert state is not None
    return Run(accuracy_by_round=tuple(accuracies), gap=consistency_gap(state))


def gate_job(setting: Setting, *, mu: float) -> JobSpec:
    return make_job(
        {"preset": "feddw", "options": {"mu": mu}},
        name="gate",
        federation="gate",
        silos=tuple(f"silo-{place}" for place in range(SILOS)),
        rounds=setting.rounds,
        model={"name": "mlp", "hidden": (128, 128, 128), "seed": setting.seed},
        training={"local_epochs": 5, "batch_size": 32, "optimizer": "adam", "learning_rate": 1e-3},
        input_shape=(64,),
        seed=setting.seed,
    )


def digits(seed: int) -> tuple[Samples, Samples]:
    features, labels = load_digits(return_X_y=True)
    samples = Samples(features=(features / 16).astype(np.float32), labels=labels.astype(np.int64))
    kept, held = split_holdout(samples.labels, fraction=0.2, rng=np.random.default_rng([seed, 1]))
    return samples.take(kept), samples.take(held)


def silos_of(train: Samples, setting: Setting) -> list[SiloData]:
    cut = cut_dirichlet(
        train.labels,
        train.labels,
        classes=CLASSES,
        silos=SILOS,
        alpha=setting.alpha,
        min_samples=5,
        rng=np.random.default_rng([setting.seed, 2]),
    )
    parts = [train.take(places) for places in cut.train]
    return [SiloData(train=part, holdout=part.first(1), name="digits") for part in parts]


def drawn(setting: Setting, round: int) -> list[int]:
    generator = np.random.default_rng([setting.seed, 3, round])
    return sorted(generator.choice(SILOS, size=setting.drawn, replace=False).tolist())


@torch.no_grad()
def accuracy(job: JobSpec, state: Arrays, test: Samples) -> float:
    model = built_model(job, state).eval()
    answers_N = model(torch.tensor(test.features)).argmax(dim=1).numpy()
    return 100.0 * float(np.mean(answers_N == test.labels))


def consistency_gap(state: Arrays) -> float:
    """mean (Omega - S)^2 of the global matrix and the global head."""
    relations_CC = relations_of(torch.tensor(state["model/head.weight"], dtype=torch.float64)).numpy()
    return float(np.mean((state[SOFT_LABELS] - relations_CC) ** 2))


def short(seed: int) -> Setting:
    return Setting(alpha=STRONG, drawn=5, rounds=10, seed=seed)


def strong(seed: int) -> Setting:
    return Setting(alpha=STRONG, drawn=5, rounds=30, seed=seed)


def mild(seed: int) -> Setting:
    return Setting(alpha=MILD, drawn=SILOS, rounds=30, seed=seed)


def test_head_grows_like_the_soft_labels_and_skewed_silos_gain() -> None:
    """The first ten rounds of two seeds."""
    gains = []
    for seed in range(2):
        plain, pulled = run(short(seed), mu=0.0), run(short(seed), mu=10.0)
        assert plain.gap >= 5 * pulled.gap, seed
        gains.append(pulled.last(4) - plain.last(4))
    assert np.mean(gains) >= 1.5, gains


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_gap_closes_under_strong_skew() -> None:
    pairs = [(run(strong(seed), mu=0.0).gap, run(strong(seed), mu=10.0).gap) for seed in range(8)]
    plain, pulled = np.mean(pairs, axis=0)
    assert plain >= 5 * pulled, pairs


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_paired_gain_under_strong_skew() -> None:
    gains = [run(strong(seed), mu=10.0).last(10) - run(strong(seed), mu=0.0).last(10) for seed in range(8)]
    assert np.mean(gains) >= 1.5, gains
    assert sum(gain > 0 for gain in gains) >= 6, gains


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_harm_under_mild_skew() -> None:
    losses = [
        run(mild(seed), mu=0.0).accuracy_by_round[-1] - run(mild(seed), mu=10.0).accuracy_by_round[-1]
        for seed in range(4)
    ]
    assert np.mean(losses) <= 1.0, losses
