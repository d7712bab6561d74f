"""What a private job reaches by its choices, at each epsilon and number of silos:
`python -m research.private_sum.choices`.

As `research.lost_silos`: softmax regression on MNIST, 200 records of each silo, in numpy; the noise of all
arms costs the same epsilon. It is of the pixels, or of a body's features (`body.py`), as a job with
`trains: head` is. Silos with `noise: silo` train for a pass over their records each round.
"""

# N = records, D = input width, C = classes

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from bench.options import Parser, whole
from research.correlated_noise import FloatArray, clipped_sum, inputs_of
from research.lost_silos import EPSILONS, RECORDS, SILOS, Samples, accuracies, factors
from research.private_sum.arms import CLIP_NORM, DELTA, RATES, SAMPLE_RATE, STEPS, TUNING_SEEDS
from research.private_sum.body import features, trained
from research.private_sum.central import noise_multiplier
from research.private_sum.images import Images, images

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
INPUTS = (PIXELS, DIGITS, FASHION) = ("pixels", "a body of digits", "a body of fashion")
SHARED = ("default", "min_cohort m-1", "one curator")
STEPS_A_ROUND = round(1 / SAMPLE_RATE)
MAX_SEEDS = 50

Parts = dict[str, Samples]  # own, validation and test, with the inputs of the layer that is trained
Run = Callable[..., float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """inputs: pixels, or what the body was trained on whose features they are. arm: who adds the noise.
    epsilon: None without noise. rate: the best on validation records. accuracy: in percent on test records,
    by seed."""

    silos: int
    epsilon: float | None
    inputs: str
    arm: str
    rate: float
    accuracy: tuple[float, ...]

    @property
    def words(self) -> str:
        mean, deviation = statistics.mean(self.accuracy), statistics.stdev(self.accuracy)
        return (
            f"{self.inputs}, {self.silos} silos, epsilon {self.epsilon}, {self.arm}: rate {self.rate:g}, "
            f"accuracy {mean:.1f} +- {deviation:.1f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Every input, number of silos, epsilon and arm."""
    options = _options(arguments)
    found, cells = images(options.data / "mnist"), []
    for inputs in INPUTS:
        parts = parts_of(inputs, found, options.data)
        for silos, epsilon in product(SILOS, (*EPSILONS, None)):
            for arm, run in arms(silos, epsilon).items():
                rate, accuracy = tuned(run, parts, seeds=range(1, options.seeds + 1))
                cell = Cell(
                    silos=silos, epsilon=epsilon, inputs=inputs, arm=arm, rate=rate, accuracy=accuracy
                )
                print(cell.words, file=sys.stderr if options.json else sys.stdout, flush=True)
                cells.append(cell)
    if options.json:
        print(json.dumps({"cells": [asdict(each) for each in cells], "rows": []}))
    return 0


def parts_of(inputs: str, found: Images, data: Path) -> Parts:
    """The same records for every input."""
    parts = {"own": found.own, "validation": found.validation, "test": found.test}
    if inputs == PIXELS:
        return {name: (inputs_of(each), each.labels) for name, each in parts.items()}
    model = trained(data / "fashion_mnist" if inputs == FASHION else None)
    return {name: (features(model, each), each.labels) for name, each in parts.items()}


def arms(silos: int, epsilon: float | None) -> Mapping[str, Run]:
    """Each gives percent right on the tested records. epsilon: None for no noise."""
    if epsilon is None:
        return {"no noise": partial(together, silos=silos, noise=0.0)}
    noise = noise_multiplier(epsilon, delta=DELTA, sample_rate=SAMPLE_RATE, steps=STEPS)
    by_factor = {arm: factor for arm, factor in factors(silos).items() if arm in SHARED}
    return {
        "noise: silo": partial(alone, silos=silos, noise=noise),
        **{arm: partial(together, silos=silos, noise=noise * each) for arm, each in by_factor.items()},
    }


def tuned(run: Run, parts: Parts, *, seeds: Sequence[int]) -> tuple[float, tuple[float, ...]]:
    """The rate with the best mean on validation records, and the accuracies on test records at it."""
    own = parts["own"]
    by_rate = {
        rate: statistics.mean(run(own, parts["validation"], rate=rate, seed=seed) for seed in TUNING_SEEDS)
        for rate in RATES
    }
    rate = max(by_rate, key=lambda each: by_rate[each])
    return rate, tuple(run(own, parts["test"], rate=rate, seed=seed) for seed in seeds)


def together(own: Samples, tested: Samples, *, silos: int, noise: float, rate: float, seed: int) -> float:
    """Percent right after steps over the records of all silos. noise: in clip norms."""
    return accuracies(own, tested, silos * RECORDS, noise=noise, rate=rate, seed=seed)[0]


def alone(own: Samples, tested: Samples, *, silos: int, noise: float, rate: float, seed: int) -> float:
    """The same where each silo takes a round's steps by itself, with all the noise that its own records need,
    and the models are averaged."""
    rng = np.random.default_rng(seed)
    mine = rng.permutation(len(own[1]))[: silos * RECORDS].reshape(silos, RECORDS)
    weights_DC: FloatArray = np.zeros((own[0].shape[1], int(own[1].max()) + 1))
    for _ in range(STEPS // STEPS_A_ROUND):
        total_DC = np.zeros_like(weights_DC)
        for records_N in mine:
            local_DC = weights_DC
            for _ in range(STEPS_A_ROUND):
                drawn_N = records_N[rng.random(RECORDS) < SAMPLE_RATE]
                gradient_DC = clipped_sum(local_DC, own[0][drawn_N], own[1][drawn_N])
                noise_DC = noise * CLIP_NORM * rng.standard_normal(weights_DC.shape)
                local_DC = local_DC - rate * (gradient_DC + noise_DC) / (SAMPLE_RATE * RECORDS)
            total_DC += local_DC
        weights_DC = total_DC / silos
    return 100.0 * float(np.mean((tested[0] @ weights_DC).argmax(axis=1) == tested[1]))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("private_sum.choices", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of mnist/ and fashion_mnist/")
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="of the accuracies")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
