"""What releases cost whose number and parameters were fixed before the data were touched: one block.

A block is composed by its privacy loss distribution (Koskela, Jalko and Honkela 2020; dp-accounting's, which
rounds losses up). Everything that may stop or leave out releases of a block, or take them in another order,
costs no more. What an account of several jobs costs is `privacy_filter`'s. Source: docs/privacy-proofs.md,
"Accounting".
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from chorale.privacy.releases import DpSgd, Gaussian, Release, Releases
from chorale.privacy.remembered import remembered
from chorale.privacy.renyi import accounting, rdp, rdp_epsilon
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Side

# no sample of the noise is further from its law: crypto/noise/gaussian.py
SAMPLER_DISTANCE: Final = 2.0**-77
# Of privacy losses, which are rounded up to it: at least this, and of larger ones a share of the least step's
# deviation. For a delta of 1e-9 and more, epsilon is too much by at most 0.02 %, or 1e-4 where that is more.
GRID: Final = 1e-4
GRID_SHARE: Final = 0.03
# beyond it Renyi's bound is told as it is: no job may ask for so much, and a grid for it fills the memory
MAX_GRID_EPSILON: Final = 60.0
MAX_GRID_POINTS: Final = 1 << 20  # of one step; a job with next to no noise gets a coarser grid
# Of several records' losses, for each of them: at most this, and for small losses a share of their deviation.
# That is up to 3 % too much for rates of 0.002 and more.
ROWS_GRID: Final = 1e-2
ROWS_GRID_SHARE: Final = 0.5
MAX_ROWS_GRID_POINTS: Final = 1 << 14  # a mixture takes a tenth of a millisecond a point
TAIL_DEVIATIONS: Final = 12.0  # dp-accounting leaves out less than e^-50 of a law

Counts: TypeAlias = Counter[Release]
Steps: TypeAlias = tuple[tuple[float, float, int], ...]  # noise multiplier, sample rate, how often


def epsilon(releases: Releases, delta: float, *, sides_are_fixed: bool = True, rows: int = 1) -> float:
    """The epsilon at delta of a block; 0 of none, infinite where delta leaves no room.

    sides_are_fixed: a record is in training or held out, and stays where it is: then the dearer of the two
    sides counts. rows: how many records are there or not; of several, some may be on either side. Raises
    ConfigError for a delta outside (0, 1).
    """
    if not 0 < delta < 1:  # false for NaN too
        raise ConfigError(f"delta: expected more than 0 and less than 1, got {delta}")
    return max(
        _epsilon(frozenset(side.items()), delta, rows)
        for side in sides_of(releases, sides_are_fixed=sides_are_fixed and rows == 1)
    )


def delta_at(releases: Releases, epsilon: float, *, sides_are_fixed: bool = True) -> float:
    """The delta of a block at an epsilon: 1 where nothing is promised, and where no grid is made for it."""
    if epsilon > MAX_GRID_EPSILON:
        return 1.0
    found = 0.0
    for side in sides_of(releases, sides_are_fixed=sides_are_fixed):
        if side:
            failure, distance = charges(side)
            more = failure + (1.0 + math.exp(epsilon)) * distance
            inputs = sorted(map(repr, side.items())), epsilon
            (delta,) = remembered("delta", inputs, partial(_delta_of, side, epsilon), count=1)
            found = max(found, delta + more)
    return min(found, 1.0)


def _delta_of(counts: Counts, epsilon: float) -> list[float]:
    """1 or more where nothing is promised."""
    try:
        return [float(_loss_of(counts).get_delta_for_epsilon(epsilon))]
    except OverflowError:  # next to no noise
        return [1.0]


def sides_of(releases: Releases, *, sides_are_fixed: bool) -> list[Counts]:
    """What touches a record, by the side that it may be on; all together where it may have been on both."""
    counts = Counter(releases)
    if not sides_are_fixed or all(release.side is Side.BOTH for release in counts):
        return [counts]
    return [
        Counter({release: count for release, count in counts.items() if release.side in (side, Side.BOTH)})
        for side in (Side.TRAIN, Side.HOLDOUT)
    ]


def charges(counts: Counts) -> tuple[float, float]:
    """What delta pays before epsilon is asked: failure, distance.

    The probability that a bound is exceeded costs itself. How far the releases' laws are from those that are
    composed costs 1 + e^epsilon times itself.
    """
    failure = sum(count * release.failure for release, count in counts.items())
    draws = sum(count * release.draws for release, count in counts.items())
    distance = sum(count * release.distance for release, count in counts.items())
    return failure, draws * SAMPLER_DISTANCE + distance


@lru_cache(maxsize=1024)
def _epsilon(block: frozenset[tuple[Release, int]], delta: float, rows: int) -> float:
    if not block:
        return 0.0  # a silo that spent nothing says so at its first scrape, before dp-accounting is loaded
    inputs = sorted(map(repr, block)), delta, rows
    (found,) = remembered("epsilon", inputs, lambda: [_computed(Counter(dict(block)), delta, rows)], count=1)
    return found


def _computed(counts: Counts, delta: float, rows: int) -> float:
    failure, distance = charges(counts)
    left = delta - rows * failure
    if left <= 0:
        return math.inf
    if distance == 0.0:
        return _least_epsilon(counts, left, rows)
    # an epsilon at half of delta is no smaller than the one sought, so this much slack is enough
    highest = _least_epsilon(counts, left / 2, rows)
    slack = (1.0 + math.exp(min(highest, 500.0))) * distance
    return _least_epsilon(counts, left - slack, rows) if slack <= left / 2 else math.inf


def _least_epsilon(counts: Counts, delta: float, rows: int) -> float:
    if rows > 1:
        try:
            return float(_loss_of(counts, rows).get_epsilon_for_delta(delta))
        except OverflowError:  # next to no noise
            return math.inf
    bound = rdp_epsilon(rdp(counts), delta)
    if bound > MAX_GRID_EPSILON:
        return bound
    return min(bound, float(_loss_of(counts).get_epsilon_for_delta(delta)))


def _loss_of(counts: Counts, rows: int = 1) -> Any:
    """dp-accounting's privacy loss distribution, both of adding and of removing so many records."""
    square, steps = 0.0, Counter[tuple[float, float]]()
    for release, count in counts.items():
        if isinstance(release, Gaussian) or release.sample_rate == 1.0:
            times = release.steps if isinstance(release, DpSgd) else 1
            square += times * count / release.noise_multiplier**2
        else:
            times = release.steps if isinstance(release, DpSgd) else 1
            steps[release.noise_multiplier, release.sample_rate] += times * count
    return _composed(square, tuple(sorted((*step, count) for step, count in steps.items())), rows)


@lru_cache(maxsize=8)  # of some ten megabytes each
def _composed(square: float, steps: Steps, rows: int) -> Any:
    """Gaussians together are one (Dong, Roth and Su 2022, Corollary 3.3); equal steps are composed at once.

    square: of the Gaussians' sensitivities in standard deviations, added up. rows: a step draws each of them
    by itself, so they move its sum by a mixture of shifts (Ganesh 2024, arXiv 2401.10294).
    """
    accounting()
    from dp_accounting.pld.privacy_loss_distribution import (
        from_gaussian_mechanism,
        from_mixture_gaussian_mechanism,
    )

    composed: Any = None
    laws = [(square**-0.5, 1.0, 1)] if square else []
    laws += list(steps)
    deviation = min(rate / noise for noise, rate, _ in laws)
    least, points = max(GRID, GRID_SHARE * deviation), MAX_GRID_POINTS
    if rows > 1:
        least, points = rows * min(ROWS_GRID, ROWS_GRID_SHARE * deviation), MAX_ROWS_GRID_POINTS
    shifts = (rows / noise for noise, _, _ in laws)
    grid = max(least, *((shift**2 / 2 + TAIL_DEVIATIONS * shift) / points for shift in shifts))
    for noise_multiplier, sample_rate, times in laws:
        if rows == 1 or sample_rate == 1.0:
            law = from_gaussian_mechanism(
                noise_multiplier / rows, sampling_prob=sample_rate, value_discretization_interval=grid
            )
        else:
            drawn = [
                math.comb(rows, each) * sample_rate**each * (1.0 - sample_rate) ** (rows - each)
                for each in range(rows + 1)
            ]
            law = from_mixture_gaussian_mechanism(
                noise_multiplier, range(rows + 1), drawn, value_discretization_interval=grid
            )
        law = law.self_compose(times)
        composed = law if composed is None else composed.compose(law)
    return composed
