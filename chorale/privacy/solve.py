"""The noise that makes a whole job meet a target. Source: docs/privacy.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import privacy_of
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import MAX_MULTIPLIER, MIN_MULTIPLIER
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError

STATISTICS, RECORDS, SUMS = (
    "statistics_noise_multiplier",
    "records.noise_multiplier",
    "sums.noise_multiplier",
)
# of a target epsilon, where training and statistics are both to be solved for: costs add up about by
# their squares, so training has a tenth more noise than without statistics
STATISTICS_SHARE = 0.4
MIN_USED = 0.99  # of its target that a solved job costs at least
_CLOSE_ENOUGH = 0.995  # leaves room for rounding the multiplier up
_DIGITS = 5  # significant ones of a solved multiplier
_AIM = 0.9975  # of its target, the middle of what is close enough
_AIMED_TRIALS = 6
_TRIALS = 60
Spec = TypeVar("Spec", JobSpec, AnalysisSpec)


def solve(spec: Spec, state: GlobalState) -> Spec:
    """The job with the multipliers that are null filled in, so that it costs 0.99 to 1 of its target.

    Where training and statistics are both to be solved for, the statistics by themselves cost
    STATISTICS_SHARE of epsilon, and training what is left. Of a job with records and sums each is solved as
    if it stood alone: DP-SGD for the record's epsilon, sums for what the updates cost a silo as well. Where
    the noise of one was given, a record may cost less than 0.99 of the target. Deterministic. A job that
    leaves nothing open comes back as it is. Raises ConfigError where no noise meets the target.
    """
    if spec.privacy is None or not spec.privacy.unsolved:
        return spec
    unsolved, target = spec.privacy.unsolved, spec.privacy.epsilon
    if target is None:
        raise ConfigError(f"privacy.epsilon: expected a target to solve for {unsolved[0]}")
    if STATISTICS in unsolved and len(unsolved) > 1:
        # training is not counted here, so any multiplier will do for it
        statistics = _least_multiplier(
            lambda multiplier: JobReleases(
                _filled(spec, statistics=multiplier, records=1.0, sums=1.0), state
            ).epsilon_of_statistics(),
            STATISTICS_SHARE * target,
            asked=target,
        )
        spec = _filled(spec, statistics=statistics)
    if RECORDS in unsolved:
        records = _least_multiplier(
            lambda multiplier: JobReleases(
                _filled(spec, records=multiplier, sums=1.0), state
            ).epsilon_of_steps(),
            target,
            asked=target,
        )
        spec = _filled(spec, records=records)
    if not privacy_of(spec).unsolved:
        return spec

    if SUMS in unsolved and privacy_of(spec).records is not None:
        tried = JobReleases(_filled(spec, sums=1.0), state)
        if tried.epsilon_of_steps() <= target:  # a record needs no noise of the sums
            sums = _least_multiplier(
                lambda multiplier: (
                    JobReleases(_filled(spec, sums=multiplier), state).epsilon_of_updates() or 0.0
                ),
                target,
                asked=target,
            )
            return _filled(spec, sums=sums)

    def cost(multiplier: float) -> float:
        released = JobReleases(_filled(spec, statistics=multiplier, sums=multiplier), state)
        of_silo = released.epsilon_of_updates() if SUMS in unsolved else None
        return max(released.epsilon(), of_silo or 0.0)

    solved = _least_multiplier(cost, target, asked=target)
    return _filled(spec, statistics=solved, sums=solved)


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


def _filled(
    spec: Spec,
    *,
    statistics: float | None = None,
    records: float | None = None,
    sums: float | None = None,
) -> Spec:
    """The job with these multipliers where it has none."""
    privacy = privacy_of(spec).with_multipliers(records=records, sums=sums, statistics=statistics)
    return spec.model_copy(update={"privacy": privacy})
