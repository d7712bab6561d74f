"""One method on one split: its rate chosen on validation records, then trained again and tested."""

# N = records

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from chorale.spec.job_spec import JobSpec
from crypto.errors import ChoraleError
from research.heart_disease.arms import ALONE, Arm
from research.heart_disease.hospitals import Split, job, splits
from research.heart_disease.training import Models, answers, trained
from silo_agent.training.data.base import Samples, SampleSet, SiloData

RATES = (0.01, 0.03, 0.1, 0.3)
Labels = NDArray[np.int64]
Right = Mapping[str, float]  # by hospital: share of its records that its own model gets right
Answers = Callable[[str, SampleSet], Labels]  # the hospital's own model on any records


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """own: by hospital, its model on its own hold-out. everyone: its model on all four hold-outs, the mean of
    the four models. balanced: the same, as the mean of the shares found of the ill and of the healthy.

    rates: chosen; one for each hospital alone, else the same for all.
    """

    arm: str
    seed: int
    own: Right
    everyone: float
    balanced: float
    rates: Mapping[str, float]


def run(arm: Arm, seed: int, folder: Path, rates: Sequence[float] = RATES) -> Outcome:
    """Same budget for every arm: one training for each rate, and the one that is tested."""
    torch.set_num_threads(1)
    found = splits(job(arm, seed=seed, rate=rates[0]), folder, seed=seed)
    chosen = _chosen(arm, seed, found, rates)
    models = _models(arm, seed, {name: split.final for name, split in found.items()}, chosen)
    spec = job(arm, seed=seed, rate=rates[0])
    return tested(
        found, lambda name, samples: answers(spec, models[name], samples), arm.name, seed, rates=chosen
    )


def most_frequent(arm: Arm, seed: int, folder: Path) -> Outcome:
    """No model: each hospital gives every patient the answer that most of its own training records have."""
    found = splits(job(arm, seed=seed, rate=RATES[0]), folder, seed=seed)
    usual = {name: np.bincount(split.final.train.labels).argmax() for name, split in found.items()}
    return tested(
        found, lambda name, samples: np.full(len(samples), usual[name]), "most frequent", seed, rates={}
    )


def tested(
    found: Mapping[str, Split], answer: Answers, arm: str, seed: int, *, rates: Mapping[str, float]
) -> Outcome:
    """Every hospital's model on its own hold-out and on all of them."""
    every = Samples(
        features=np.concatenate([split.test.features for split in found.values()]),
        labels=np.concatenate([split.test.labels for split in found.values()]),
    )
    right_N = [answer(name, every) == every.labels for name in found]
    by_class_N = [every.labels == label for label in (0, 1)]
    return Outcome(
        arm=arm,
        seed=seed,
        own={
            name: float(np.mean(answer(name, split.test) == split.test.labels))
            for name, split in found.items()
        },
        everyone=float(np.mean([np.mean(one) for one in right_N])),
        balanced=float(np.mean([[np.mean(one[is_N]) for is_N in by_class_N] for one in right_N])),
        rates=rates,
    )


def _chosen(arm: Arm, seed: int, found: Mapping[str, Split], rates: Sequence[float]) -> Mapping[str, float]:
    """The rate with the most right answers on validation records, the smaller of two as good.

    Alone each hospital chooses by its own records; together they choose by the sum over all.
    """
    data = {name: split.tuning for name, split in found.items()}
    right = {rate: _right(arm, seed, data, rate) for rate in rates}
    if arm.name == ALONE:
        return {name: max(rates, key=lambda rate: (right[rate][name], -rate)) for name in data}
    best = max(rates, key=lambda rate: (sum(right[rate].values()), -rate))
    return dict.fromkeys(data, best)


def _right(arm: Arm, seed: int, data: Mapping[str, SiloData], rate: float) -> Mapping[str, int]:
    """Right answers on validation records; none where training failed."""
    try:
        models = trained(arm.name, job(arm, seed=seed, rate=rate), data)
    except ChoraleError:
        return dict.fromkeys(data, 0)
    spec = job(arm, seed=seed, rate=rate)
    return {
        name: int(np.sum(answers(spec, models[name], own.holdout) == own.holdout.labels))
        for name, own in data.items()
    }


def _models(arm: Arm, seed: int, data: Mapping[str, SiloData], chosen: Mapping[str, float]) -> Models:
    if arm.name == ALONE:
        return {
            name: trained(arm.name, job(arm, seed=seed, rate=chosen[name]), {name: own})[name]
            for name, own in data.items()
        }
    rate = next(iter(chosen.values()))
    spec: JobSpec = job(arm, seed=seed, rate=rate)
    return trained(arm.name, spec, data)
