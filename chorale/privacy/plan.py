"""What a whole job costs as planned, and the noise that meets a target. Source: docs/privacy.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from chorale.privacy.accountant import epsilon
from chorale.privacy.quantity_noise import privacy_of, releases_by_quantity
from chorale.privacy.releases import Gaussian, Release
from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import MAX_EPSILON, MAX_MULTIPLIER, MIN_MULTIPLIER
from chorale.spec.selection import evaluations
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import TOTAL
from strategies.phases.enrollment import ENROLLMENT

STATISTICS = "statistics_noise_multiplier"
# of a target epsilon, where training and statistics are both to be solved for: costs add up about by
# their squares, so training has a tenth more noise than without statistics
STATISTICS_SHARE = 0.4
ROWS = (2, 5, 10, 20)  # of one person, that epsilon for each record is told for
MIN_USED = 0.99  # of its target that a solved job costs at least
_CLOSE_ENOUGH = 0.995  # leaves room for rounding the multiplier up
_DIGITS = 5  # significant ones of a solved multiplier
_AIM = 0.9975  # of its target, the middle of what is close enough
_AIMED_TRIALS = 6
_TRIALS = 60

Chosen: TypeAlias = Callable[[Quantity, Release], bool]


def planned_phases(spec: JobSpec) -> list[tuple[str, int, int]]:
    """Kind, silos named and times of every phase, in order, of a job that loses no attempt.

    Enrollments count as often as `enrollment_every` allows.
    """
    method, everyone, drawn = spec.method, len(spec.silos), spec.named_per_round
    enrollments = 1 + spec.rounds // spec.enrollment_every
    return [
        *((kind, everyone, enrollments if kind == ENROLLMENT else 1) for kind in method.opening),
        *((kind, drawn, spec.rounds) for kind in method.round_phases),
        *((kind, everyone, evaluations(spec)) for kind in method.between),
        *((kind, everyone, 1) for kind in method.closing),
    ]


def planned_releases(
    spec: JobSpec,
    state: GlobalState,
    of: Chosen = lambda quantity, release: True,
    *,
    honest: int | None = None,
    colluders: int | None = None,
) -> Counter[Release]:
    """All that the job's plan releases of a silo that takes part in everything, and how often.

    Counts every planned phase, and not what a crash makes a silo compute again. `fraction` lessens nothing.
    state: the initial one, for its shapes. of: which of the releases count. honest, colluders: as of
    `releases_by_quantity`.
    """
    shapes = {**state, TOTAL: np.array(1)}  # enrollment writes it; it decides no sensitivity
    planned: Counter[Release] = Counter()
    for kind, members, times in planned_phases(spec):
        found = releases_by_quantity(spec, kind, shapes, members, honest=honest, colluders=colluders)
        for quantity, release in found:
            if of(quantity, release):
                planned[release] += times
    return +planned  # of 0 rounds nothing


def planned_epsilon(spec: JobSpec, state: GlobalState, of: Chosen = lambda quantity, release: True) -> float:
    """What the job as planned costs a silo's data set, at the job's delta. of: which releases count."""
    return epsilon(planned_releases(spec, state, of), privacy_of(spec).delta)


def planned_epsilon_if_all_others_collude(spec: JobSpec, state: GlobalState) -> float:
    """The same if every other silo sides with the coordinator, so that a silo's own noise is all there is.

    Infinite above MAX_EPSILON: then nothing is promised.
    """
    return _promised(epsilon(planned_releases(spec, state, honest=1), privacy_of(spec).delta))


def spent_epsilon_if_all_others_collude(
    spec: JobSpec, state: GlobalState, inputs: Mapping[str, int]
) -> float:
    """The same of what a silo gave so far. inputs: how many it gave to phases of a kind."""
    shapes, spent = {**state, TOTAL: np.array(1)}, Counter[Release]()
    for kind, times in inputs.items():
        members = spec.named_per_round if kind in spec.method.round_phases else len(spec.silos)
        for _, release in releases_by_quantity(spec, kind, shapes, members, honest=1):
            spent[release] += times
    return _promised(epsilon(spent, privacy_of(spec).delta))


def _promised(cost: float) -> float:
    return cost if cost <= MAX_EPSILON else math.inf


def planned_epsilon_of_rows(spec: JobSpec, state: GlobalState) -> dict[int, float]:
    """What the plan costs somebody who has several records in one silo's data set, by their number (ROWS).

    Infinite above MAX_EPSILON: then nothing is promised. Where a silo's data set has a unit, such as a
    patient, all records of one are one, and none of this counts.
    """
    privacy, found = privacy_of(spec), dict.fromkeys(ROWS, math.inf)

    def of_update(quantity: Quantity) -> bool:
        return privacy.sums is not None and quantity.discloses is Disclosure.UPDATE

    statistics = planned_releases(spec, state, lambda quantity, _: not of_update(quantity))
    updates = planned_releases(spec, state, lambda quantity, _: of_update(quantity))
    for rows in ROWS:
        # a silo's update is exchanged for another once, however many records change
        exchanged = {
            replace(each, noise_multiplier=rows * each.noise_multiplier): count
            for each, count in updates.items()
            if isinstance(each, Gaussian)
        }
        cost = epsilon(statistics + Counter(exchanged), privacy.delta, rows=rows)
        if cost > MAX_EPSILON:
            break  # and more records cost more
        found[rows] = cost
    return found


def rows_told(costs: Mapping[int, float]) -> str:
    """The same as a clause."""
    shown = ("no bound" if math.isinf(cost) else f"{cost:.3g}" for cost in costs.values())
    return f"somebody with {', '.join(map(str, costs))} records in one silo: epsilon {', '.join(shown)}"


def planned_updates_epsilon(spec: JobSpec, state: GlobalState) -> float | None:
    """What the planned updates by themselves cost a silo as a whole, at the job's delta.

    None without `privacy.sums`: DP-SGD hides records, and no noise hides a silo.
    """
    if privacy_of(spec).sums is None:
        return None
    return planned_epsilon(
        spec,
        state,
        lambda quantity, release: quantity.discloses is Disclosure.UPDATE and isinstance(release, Gaussian),
    )


def planned_statistics_epsilon(spec: JobSpec, state: GlobalState) -> float:
    """What the planned statistics by themselves cost a record, at the job's delta; they hide no silo."""
    return planned_epsilon(spec, state, lambda quantity, _: quantity.discloses is not Disclosure.UPDATE)


def solve(spec: JobSpec, state: GlobalState) -> JobSpec:
    """The job with the multipliers that are null filled in, so that it costs 0.99 to 1 of its target.

    Where training and statistics are both to be solved for, the statistics by themselves cost
    STATISTICS_SHARE of epsilon, and training what is left; records and sums get the same multiplier.
    Deterministic. A job that leaves nothing open comes back as it is. Raises ConfigError where no noise
    meets the target.
    """
    if spec.privacy is None or not spec.privacy.unsolved:
        return spec
    unsolved, target = spec.privacy.unsolved, spec.privacy.epsilon
    if target is None:
        raise ConfigError(f"privacy.epsilon: expected a target to solve for {unsolved[0]}")
    if STATISTICS in unsolved and len(unsolved) > 1:
        # training is not counted here, so any multiplier will do for it
        statistics = _least_multiplier(
            lambda multiplier: planned_statistics_epsilon(_filled(spec, multiplier, training=1.0), state),
            STATISTICS_SHARE * target,
            asked=target,
        )
        spec = _filled(spec, statistics, training=None)
    solved = _least_multiplier(
        lambda multiplier: planned_epsilon(_filled(spec, multiplier, training=multiplier), state),
        target,
        asked=target,
    )
    return _filled(spec, solved, training=solved)


def _least_multiplier(cost: Callable[[float], float], target: float, *, asked: float) -> float:
    """The least multiplier that costs no more than the target: to _DIGITS, rounded up.

    cost: falls as the multiplier grows. asked: the job's epsilon, of which the target may be a share.
    """
    low, high, guess = MIN_MULTIPLIER, math.inf, 1.0
    try:
        for tried in range(_TRIALS):
            spent = cost(guess)
            low, high = (low, guess) if spent <= target else (guess, high)
            if _CLOSE_ENOUGH * target <= spent <= target or high <= low * (1.0 + 10.0**-_DIGITS):
                break
            # costs fall about as the multiplier grows; halve where that leads nowhere
            guess *= min(max(spent / (_AIM * target), 0.1), 10.0)
            if tried >= _AIMED_TRIALS or not low < guess < high:
                guess = math.sqrt(low * high) if high < math.inf else 4.0 * low
            if high == math.inf and low >= MAX_MULTIPLIER:
                raise ConfigError(f"no noise multiplier up to {MAX_MULTIPLIER:g} is enough")
            guess = min(guess, MAX_MULTIPLIER)
    except ConfigError as error:
        raise ConfigError(
            f"privacy.epsilon: {asked:g} cannot be met, ask for a larger one or for fewer rounds: {error}"
        ) from None
    # few digits, so that a person can read the job; more noise, never less
    unit = 10.0 ** (math.floor(math.log10(high)) + 1 - _DIGITS)
    return float(f"{math.ceil(high / unit) * unit:.{_DIGITS}g}")


def _filled(spec: JobSpec, statistics: float, *, training: float | None) -> JobSpec:
    """The job with these multipliers where it has none."""
    privacy = privacy_of(spec).with_multipliers(records=training, sums=training, statistics=statistics)
    return spec.model_copy(update={"privacy": privacy})
