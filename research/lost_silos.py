"""What the noise kept for lost silos costs in accuracy, where every silo of a sum is there.

The noise of h = max(threshold, min_cohort) - floor(m/3) silos is what one curator would add, so that of all m
is sqrt(m/h) times as strong. Softmax regression on MNIST, 200 records of each silo, the product's steps in
numpy: Poisson sampling, clipped gradients, Gaussian noise on their sum. One curator holds the same records.
Without surplus is what silos would reach that took noise off again once they know who is there: floor(m/3)
of them may still collude.
"""

# N = records, D = input width, C = classes

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.options import Parser, whole
from crypto.session.cohort import CohortRule
from research.correlated_noise import DATA, FloatArray, clipped_sum, inputs_of
from research.private_sum.arms import CLIP_NORM, DELTA, RATES, SAMPLE_RATE, STEPS, TUNING_SEEDS
from research.private_sum.central import noise_multiplier
from research.private_sum.images import images

SILOS = (5, 10, 20)
EPSILONS = (1.0, 2.0, 8.0)
RECORDS = 200  # of each silo
LAST = STEPS // 3  # states that are averaged
MAX_SEEDS = 50

Samples = tuple[FloatArray, NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """factor: deviation of the noise in one curator's. rate: the best on validation records. accuracy: in
    percent on test records, by seed; averaged: of the mean of the last third of the states, at the same
    rate."""

    silos: int
    epsilon: float
    arm: str
    factor: float
    rate: float
    accuracy: tuple[float, ...]
    averaged: tuple[float, ...]


def factors(silos: int) -> dict[str, float]:
    """Of each arm, by the product's own rule."""
    default = CohortRule.for_members(silos)
    nearly_all = CohortRule.for_members(silos, min_cohort=max(silos - 1, default.min_cohort))
    honest = {
        "default": default.min_honest,
        "min_cohort m-1": nearly_all.min_honest,
        "without surplus": silos - default.colluders,
        "one curator": silos,
    }
    return {arm: math.sqrt(silos / each) for arm, each in honest.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Every number of silos, epsilon and arm."""
    options = _options(arguments)
    data, cells = images(options.data), []
    own, validation, test = (
        (inputs_of(each), each.labels) for each in (data.own, data.validation, data.test)
    )
    seeds = range(1, options.seeds + 1)
    for silos in SILOS:
        for epsilon in EPSILONS:
            multiplier = noise_multiplier(epsilon, delta=DELTA, sample_rate=SAMPLE_RATE, steps=STEPS)
            for arm, factor in factors(silos).items():
                noise, records = multiplier * factor, silos * RECORDS
                by_rate = {
                    rate: statistics.mean(
                        accuracies(own, validation, records, noise=noise, rate=rate, seed=seed)[0]
                        for seed in TUNING_SEEDS
                    )
                    for rate in RATES
                }
                rate = max(by_rate, key=lambda each: by_rate[each])
                found = [accuracies(own, test, records, noise=noise, rate=rate, seed=seed) for seed in seeds]
                cells.append(
                    Cell(
                        silos=silos,
                        epsilon=epsilon,
                        arm=arm,
                        factor=factor,
                        rate=rate,
                        accuracy=tuple(last for last, _ in found),
                        averaged=tuple(mean for _, mean in found),
                    )
                )
                print(_words(cells[-1]), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"cells": [asdict(each) for each in cells], "rows": []}))
    return 0


def accuracies(
    own: Samples, tested: Samples, records: int, *, noise: float, rate: float, seed: int
) -> tuple[float, float]:
    """Percent right of the last state, and of the mean of the last third of them. noise: in clip norms."""
    rng = np.random.default_rng(seed)
    mine = rng.permutation(len(own[1]))[:records]
    inputs_ND, labels_N = own[0][mine], own[1][mine]
    weights_DC = np.zeros((inputs_ND.shape[1], int(own[1].max()) + 1))
    total_DC = np.zeros_like(weights_DC)
    for step in range(STEPS):
        is_drawn_N = rng.random(records) < SAMPLE_RATE
        gradient_DC = clipped_sum(weights_DC, inputs_ND[is_drawn_N], labels_N[is_drawn_N])
        noise_DC = noise * CLIP_NORM * rng.standard_normal(weights_DC.shape)
        weights_DC = weights_DC - rate * (gradient_DC + noise_DC) / (SAMPLE_RATE * records)
        if step >= STEPS - LAST:
            total_DC += weights_DC
    last, mean = (
        100.0 * float(np.mean((tested[0] @ each).argmax(axis=1) == tested[1]))
        for each in (weights_DC, total_DC / LAST)
    )
    return last, mean


def _words(cell: Cell) -> str:
    last, mean = statistics.mean(cell.accuracy), statistics.mean(cell.averaged)
    return (
        f"{cell.silos} silos, epsilon {cell.epsilon:g}, {cell.arm}: noise {cell.factor:.2f}, "
        f"rate {cell.rate:g}, accuracy {last:.1f} +- {statistics.stdev(cell.accuracy):.1f}, "
        f"states averaged {mean:.1f}"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("lost_silos", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of MNIST's npz files")
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="of the accuracies")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
