"""What a whole job costs as planned, and the noise that meets a target. Source: docs/privacy.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from chorale.privacy.accountant import Release, Skellam, epsilon
from chorale.privacy.protection import DELTA, named_releases, privacy_of
from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import MAX_MULTIPLIER, MIN_MULTIPLIER
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from strategies.base import TOTAL
from strategies.phases.enrollment import ENROLLMENT

STATISTICS = "statistics_noise_multiplier"
# of a target epsilon, where training and statistics are both to be solved for: costs add up about by
# their squares, so training has a tenth more noise than without statistics
STATISTICS_SHARE = 0.4
MIN_USED = 0.99  # of its target that a solved job costs at least
_CLOSE_ENOUGH = 0.995  # leaves room for rounding the multiplier up
_DIGITS = 5  # significant ones of a solved multiplier
_HALVINGS = 60

Chosen: TypeAlias = Callable[[str, Release], bool]  # by the quantity's name and what it releases


def planned_releases(spec: JobSpec, state: GlobalState) -> Counter[Release]:
    """All that the job's plan releases of a silo that takes part in everything, and how often.

    Counts every round, every enrollment that `enrollment_every` allows, and each other phase once; not what
    a crash makes a silo compute anew. `fraction` lessens nothing. state: the initial one, for its shapes.
    """
    planned: Counter[Release] = Counter()
    for _, release, times in _planned(spec, state):
        planned[release] += times
    return planned


def planned_epsilon(spec: JobSpec, state: GlobalState) -> float:
    """What the job as planned costs a silo's data set, at the job's delta."""
    return epsilon(planned_releases(spec, state), privacy_of(spec).delta)


def planned_updates_epsilon(spec: JobSpec, state: GlobalState) -> float | None:
    """What the planned updates by themselves cost a silo as a whole, at the job's delta.

    None without `privacy.sums`: DP-SGD hides records, and no noise a silo.
    """
    if privacy_of(spec).sums is None:
        return None
    return _cost(spec, state, _is_noised_update)


def planned_statistics_epsilon(spec: JobSpec, state: GlobalState) -> float:
    """What the planned statistics by themselves cost a record, at the job's delta; they hide no silo."""
    return _cost(spec, state, _is_statistic)


def solve(spec: JobSpec, state: GlobalState) -> JobSpec:
    """The job with the multipliers that are null filled in, so that it costs 0.99 to 1 of its target.

    Where training and statistics are both to be solved for, the statistics by themselves cost
    STATISTICS_SHARE of epsilon, and training what is left; records and sums get the same multiplier.
    Deterministic. A job that leaves nothing open comes back as it is. Raises ConfigError where no noise
    meets the target.
    """
    if spec.privacy is None or not spec.privacy.unsolved:
        return spec
    target = spec.privacy.epsilon
    if target is None:
        raise ConfigError(f"privacy.epsilon: expected a target to solve for {spec.privacy.unsolved[0]}")
    is_training_given = spec.privacy.unsolved == (STATISTICS,)
    if is_training_given:
        return _filled(spec, statistics=_solved(spec, state, "statistics", target))
    if STATISTICS in spec.privacy.unsolved:
        share = STATISTICS_SHARE * target
        spec = _filled(spec, statistics=_solved(spec, state, "statistics", share, of=_is_statistic))
    return _filled(spec, training=_solved(spec, state, "training", target))


def _solved(
    spec: JobSpec,
    state: GlobalState,
    field: str,
    target: float,
    *,
    of: Chosen = lambda name, release: True,
) -> float:
    """The least multiplier at which what `of` names costs no more than the target; to _DIGITS, rounded up."""

    def cost(multiplier: float) -> float:
        # a stand-in for what is not counted here: only statistics are solved for before training is
        tried = _filled(_filled(spec, **{field: multiplier}), training=1.0)
        return _cost(tried, state, of)

    low, high = _bracket(cost, target, asked=privacy_of(spec).epsilon or target)
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        spent = cost(middle)
        low, high = (low, middle) if spent <= target else (middle, high)
        if _CLOSE_ENOUGH * target <= spent <= target:
            break
    return _rounded_up(high)


def _bracket(cost: Callable[[float], float], target: float, *, asked: float) -> tuple[float, float]:
    """A multiplier that costs too much, or the least there is, and one that does not.

    asked: the job's target, of which this one may be a share.
    """
    low = high = 1.0
    try:
        while cost(high) > target:
            low, high = high, 2.0 * high
            if high > MAX_MULTIPLIER:
                raise ConfigError(f"no noise multiplier up to {MAX_MULTIPLIER:g} is enough")
        while low > MIN_MULTIPLIER and cost(low) <= target:
            low, high = max(low / 2.0, MIN_MULTIPLIER), low
    except ConfigError as error:
        raise ConfigError(
            f"privacy.epsilon: {asked:g} cannot be met, ask for a larger one or for fewer rounds: {error}"
        ) from None
    return low, high


def _rounded_up(multiplier: float) -> float:
    """To few digits, so that a person can read the job; more noise, never less."""
    unit = 10.0 ** (math.floor(math.log10(multiplier)) + 1 - _DIGITS)
    return float(f"{math.ceil(multiplier / unit) * unit:.{_DIGITS}g}")


def _cost(spec: JobSpec, state: GlobalState, of: Chosen) -> float:
    planned: Counter[Release] = Counter()
    for name, release, times in _planned(spec, state):
        if of(name, release):
            planned[release] += times
    return epsilon(planned, privacy_of(spec).delta)


def _planned(spec: JobSpec, state: GlobalState) -> Iterator[tuple[str, Release, int]]:
    """Name of the quantity, what one input releases through it, how many inputs the plan has."""
    sizes = {**state, TOTAL: np.array(1)}  # enrollment writes it; it decides no sensitivity
    for kind, members, times in _plan(spec):
        for name, release in named_releases(spec, kind, sizes, members):
            yield name, release, times


def _plan(spec: JobSpec) -> Iterator[tuple[str, int, int]]:
    """Each phase's kind, how many silos it names, and how often it comes."""
    method = spec.method
    for kind in method.opening:
        yield kind, len(spec.silos), 1 + spec.rounds // spec.enrollment_every if kind == ENROLLMENT else 1
    for kind in method.round_phases:
        yield kind, spec.named_per_round, spec.rounds
    for kind in method.closing:
        yield kind, len(spec.silos), 1


def _is_statistic(name: str, release: Release) -> bool:
    return name != DELTA


def _is_noised_update(name: str, release: Release) -> bool:
    return name == DELTA and isinstance(release, Skellam)


def _filled(spec: JobSpec, *, statistics: float | None = None, training: float | None = None) -> JobSpec:
    privacy = privacy_of(spec).with_multipliers(records=training, sums=training, statistics=statistics)
    return spec.model_copy(update={"privacy": privacy})
