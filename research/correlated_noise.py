"""What correlated noise would gain over fresh noise in every step: banded matrix factorization in numpy.

SGD's iterates are sums A g of the steps' gradients g. DP-SGD releases g + z N with independent rows of N.
Matrix factorization A = B C releases C g + z N instead (the same as g + z C^-1 N), whose noise in the
iterates is z B N. With C of b bands, a record that is in every b-th step at most, and columns of norm 1, the
cost is that of steps / b steps at sampling rate b q (Choquette-Choo et al. 2023, arXiv 2306.08153). So more
bands cancel more noise and lose amplification by sampling. b = 1 is DP-SGD.

C^T C = X is banded with ones on its diagonal, and |B|^2 = trace(A^T A X^-1) is convex in X.
"""

# n = steps, N = records, C = classes, D = input width

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular, toeplitz  # type: ignore[import-untyped]
from scipy.optimize import minimize  # type: ignore[import-untyped]

from bench.options import Parser, whole
from research.private_sum.arms import CLIP_NORM, DELTA, RATES, SAMPLE_RATE, STEPS, TUNING_SEEDS
from research.private_sum.central import noise_multiplier
from research.private_sum.images import images
from silo_agent.training.data.base import Samples

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "mnist"
BANDS = (1, 2, 5)  # those that divide 50 steps and keep b q at most 1
EPSILONS = (1.0, 4.0, 8.0)
MOMENTA = (0.0, 0.9)
RECORDS = 4_000
LONG_STEPS = 1_000
LONG_RATES = (0.02, 0.05)
LONG_BANDS = (1, 2, 5, 10, 20, 50)  # those with b q above 1 are left out
MAX_SEEDS = 50
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """bands: 1 is independent noise. multiplier: z, the deviation of the noise in clip norms.

    error: root of the mean square of the noise in an iterate over all steps, in clip norms; last: in the last
    one. accuracy: by seed, of the last iterate, softmax regression on MNIST with all records in one place.
    """

    epsilon: float
    momentum: float
    bands: int
    multiplier: float
    error: float
    last: float
    accuracy: tuple[float, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Every epsilon, momentum and number of bands; accuracies where the data are there."""
    options = _options(arguments)
    levels = []
    if options.long:
        for rate in LONG_RATES:
            levels += long_levels(rate)
        if options.json:
            print(json.dumps({"levels": [asdict(each) for each in levels], "rows": []}))
        return 0
    for epsilon in EPSILONS:
        for momentum in MOMENTA:
            for bands in BANDS:
                found = level(epsilon, momentum=momentum, bands=bands)
                if momentum == 0.0 and options.data.is_dir():
                    found = measured(found, options.data, seeds=range(1, options.seeds + 1))
                levels.append(found)
                print(_words(found), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        print(json.dumps({"levels": [asdict(each) for each in levels], "rows": []}))
    return 0


def level(epsilon: float, *, momentum: float, bands: int, steps: int = STEPS) -> Level:
    """What a number of bands costs and leaves at a target epsilon."""
    multiplier = noise_multiplier(epsilon, delta=DELTA, sample_rate=bands * SAMPLE_RATE, steps=steps // bands)
    error_nn = decoder(steps, momentum=momentum, bands=bands)
    return _level_of(error_nn, multiplier, epsilon=epsilon, momentum=momentum, bands=bands)


def _level_of(
    error_nn: FloatArray, multiplier: float, *, epsilon: float, momentum: float, bands: int
) -> Level:
    return Level(
        epsilon=epsilon,
        momentum=momentum,
        bands=bands,
        multiplier=multiplier,
        error=multiplier * float(np.linalg.norm(error_nn)) / math.sqrt(len(error_nn)),
        last=multiplier * float(np.linalg.norm(error_nn[-1])),
    )


def long_levels(rate: float, *, steps: int = LONG_STEPS) -> list[Level]:
    """Of jobs too long for the search: C is a power series, which is not the best one. Printed as found."""
    levels = []
    for epsilon in (EPSILONS[0], EPSILONS[-1]):
        for momentum in MOMENTA:
            work_nn = workload(steps, momentum=momentum)
            for bands in (each for each in LONG_BANDS if each * rate <= 1.0 and steps % each == 0):
                multiplier = noise_multiplier(
                    epsilon, delta=DELTA, sample_rate=bands * rate, steps=steps // bands
                )
                encoder_nn = power_series(steps, momentum=momentum, bands=bands)
                error_nn = solve_triangular(encoder_nn.T, work_nn.T, lower=False).T
                found = _level_of(error_nn, multiplier, epsilon=epsilon, momentum=momentum, bands=bands)
                levels.append(found)
                print(f"rate {rate:g}, {_words(found)}", file=sys.stderr, flush=True)
    return levels


def power_series(steps: int, *, momentum: float, bands: int) -> FloatArray:
    """C: the root of A as a series in the shift, cut to the bands, columns of norm 1. Shapes: -> (n, n).

    A is 1 / ((1 - x)(1 - momentum x)); (1 - p x)^(-1/2) has the coefficients p^k (2k choose k) / 4^k.
    """
    root_n = np.ones(steps)
    for shrink in (1.0, momentum):
        series_n = np.ones(steps)
        for place in range(1, steps):
            series_n[place] = series_n[place - 1] * shrink * (2 * place - 1) / (2 * place)
        root_n = series_n if shrink == 1.0 else np.convolve(root_n, series_n)[:steps]
    root_n[bands:] = 0.0
    encoder_nn = np.tril(toeplitz(root_n))
    return np.asarray(encoder_nn / np.linalg.norm(encoder_nn, axis=0), np.float64)


def workload(steps: int, *, momentum: float) -> FloatArray:
    """A: the iterates of SGD at rate 1 by the steps' gradients. Shapes: -> (n, n)."""
    # after k steps a gradient has moved the iterate by 1 + momentum + ... + momentum^k
    reach_n = np.cumsum(momentum ** np.arange(steps)) if momentum else np.ones(steps)
    ahead_nn = np.subtract.outer(np.arange(steps), np.arange(steps))
    return np.where(ahead_nn >= 0, reach_n[np.abs(ahead_nn)], 0.0)


@cache
def encoder(steps: int, *, momentum: float, bands: int) -> FloatArray:
    """C: lower triangular, of that many bands, columns of norm 1, least |A C^-1|. Shapes: -> (n, n)."""
    work_nn = workload(steps, momentum=momentum)
    gram_nn = work_nn.T @ work_nn
    rows, columns = np.nonzero(np.tri(steps, k=-1) - np.tri(steps, k=-bands))

    def banded(values: FloatArray) -> FloatArray:
        found_nn = np.eye(steps)
        found_nn[rows, columns] = found_nn[columns, rows] = values
        return found_nn

    def cost(values: FloatArray) -> tuple[float, FloatArray]:
        found_nn = banded(values)
        if np.linalg.eigvalsh(found_nn)[0] <= 1e-9:
            return 1e12, np.zeros_like(values)  # the line search turns back
        inverse_nn = np.linalg.inv(found_nn)
        slope_nn = -inverse_nn @ gram_nn @ inverse_nn
        return float(np.trace(gram_nn @ inverse_nn)), 2.0 * slope_nn[rows, columns]

    found = minimize(cost, np.zeros(len(rows)), jac=True, method="L-BFGS-B", options={"maxiter": 3_000})
    # X = C^T C with C lower triangular: Cholesky's factor of X read from its last row on
    reversed_nn = np.linalg.cholesky(banded(found.x)[::-1, ::-1])
    return np.asarray(reversed_nn[::-1, ::-1].T, np.float64)


def decoder(steps: int, *, momentum: float, bands: int) -> FloatArray:
    """B = A C^-1, by which noise reaches the iterates. Shapes: -> (n, n)."""
    encoder_nn = encoder(steps, momentum=momentum, bands=bands)
    return workload(steps, momentum=momentum) @ np.linalg.inv(encoder_nn)


def measured(found: Level, folder: Path, *, seeds: Sequence[int]) -> Level:
    """The rate by validation records on seeds of their own, then the accuracy on test records."""
    data = images(folder)
    by_rate = {
        rate: statistics.mean(
            _accuracy(found, data.own, data.validation, rate=rate, seed=seed) for seed in TUNING_SEEDS
        )
        for rate in RATES
    }
    rate = max(by_rate, key=lambda each: (by_rate[each], -each))
    accuracy = [_accuracy(found, data.own, data.test, rate=rate, seed=seed) for seed in seeds]
    return Level(**{**asdict(found), "accuracy": tuple(accuracy)})


def _accuracy(found: Level, own: Samples, tested: Samples, *, rate: float, seed: int) -> float:
    """Softmax regression from zero; each record is in one of `bands` groups, and steps take them in turn."""
    rng = np.random.default_rng(seed)
    mine = own.take(rng.permutation(len(own))[:RECORDS])
    inputs_ND, labels_N = inputs_of(mine), mine.labels
    group_N = rng.integers(found.bands, size=RECORDS)
    chance = found.bands * SAMPLE_RATE
    weights_DC = np.zeros((inputs_ND.shape[1], int(own.labels.max()) + 1))
    fresh_nDC = found.multiplier * CLIP_NORM * rng.standard_normal((STEPS, *weights_DC.shape))
    inverse_nn = np.linalg.inv(encoder(STEPS, momentum=found.momentum, bands=found.bands))
    noise_nDC = np.tensordot(inverse_nn, fresh_nDC, axes=1)
    for step in range(STEPS):
        is_drawn_N = (group_N == step % found.bands) & (rng.random(RECORDS) < chance)
        gradient_DC = clipped_sum(weights_DC, inputs_ND[is_drawn_N], labels_N[is_drawn_N])
        weights_DC -= rate * (gradient_DC + noise_nDC[step]) / (SAMPLE_RATE * RECORDS)
    guessed_N = (inputs_of(tested) @ weights_DC).argmax(axis=1)
    return float(np.mean(guessed_N == tested.labels))


def clipped_sum(weights_DC: FloatArray, inputs_ND: FloatArray, labels_N: NDArray[np.int64]) -> FloatArray:
    """Of the records' gradients, each x (p - y)^T clipped as a whole."""
    logits_NC = inputs_ND @ weights_DC
    error_NC = np.exp(logits_NC - logits_NC.max(axis=1, keepdims=True))
    error_NC /= error_NC.sum(axis=1, keepdims=True)
    error_NC[np.arange(len(labels_N)), labels_N] -= 1.0
    length_N = np.linalg.norm(error_NC, axis=1) * np.linalg.norm(inputs_ND, axis=1)
    clipped_NC = error_NC * (CLIP_NORM / np.maximum(length_N, CLIP_NORM))[:, np.newaxis]
    sum_DC: FloatArray = inputs_ND.T @ clipped_NC
    return sum_DC


def inputs_of(samples: Samples) -> FloatArray:
    """With a 1 for the bias."""
    flat_ND = samples.features.reshape(len(samples), -1).astype(np.float64)
    return np.hstack([flat_ND, np.ones((len(samples), 1))])


def _words(found: Level) -> str:
    text = (
        f"epsilon {found.epsilon:g}, momentum {found.momentum:g}, {found.bands} bands: "
        f"z {found.multiplier:.3f}, error {found.error:.2f}, in the last iterate {found.last:.2f}"
    )
    if not found.accuracy:
        return text
    mean, deviation = statistics.mean(found.accuracy), statistics.stdev(found.accuracy)
    return f"{text}, accuracy {100 * mean:.1f} +- {100 * deviation:.1f}"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("correlated_noise", __doc__, package="research")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of MNIST's four idx files")
    parser.add_argument("--seeds", type=whole(2, MAX_SEEDS), default=5, help="of the accuracies")
    parser.add_argument(
        "--long", action="store_true", help=f"noise of {LONG_STEPS} steps alone; minutes of CPU time"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
