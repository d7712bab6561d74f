"""What a private job promises and what its noise does to its results, for those who submit and read it.

Source: docs/privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from chorale.privacy.job_releases import JobReleases, rows_in_words
from chorale.privacy.quantity_noise import noise_deviations, noised, privacy_of
from chorale.spec.kinds import AnySpec, any_context
from chorale.spec.privacy_spec import MAX_EPSILON
from chorale.spec.state import GlobalState
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.phases.training import TRAIN

DROWNED = 1.0  # noise in the length of the longest update: beyond it sums say little of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """epsilon: what the whole plan costs one silo's data set, at delta, against the coordinator and up to
    `colluders` of the `members` silos that a round names: the noise of `honest` silos counts. unit: record or
    silo. noise: whose noise hides a record, `sum` or `silo`; None where no noise of its own does.
    epsilon_if_all_others_collude: what the plan costs where all other silos give their noise away; infinite
    where nothing is promised then.

    Statistics are noised by record whatever the unit is: epsilon_updates_per_silo and
    epsilon_statistics_per_record are what either costs by itself, the first None where the unit is record.
    multipliers: by field of the job's `privacy`. update_noise: length of the noise on a round's mean update
    in clip norms, the longest that a mean update can be; 0 where it carries none. epsilon_of_rows: what the
    plan costs somebody with so many records in one silo; infinite where nothing is promised. reserve: what
    the noise kept for lost silos costs, as a sentence; "" where no noise on an update is shared.
    """

    epsilon: float
    delta: float
    unit: str
    noise: str | None
    epsilon_if_all_others_collude: float
    members: int
    colluders: int
    honest: int
    epsilon_updates_per_silo: float | None
    epsilon_statistics_per_record: float
    epsilon_of_rows: Mapping[int, float]
    multipliers: Mapping[str, float] = field(default_factory=dict)
    update_noise: float = 0.0
    reserve: str = ""

    def lines(self) -> list[str]:
        """For a person: what is promised, against whom, and what few silos make of it."""
        noise = ", ".join(f"{name} {value:g}" for name, value in self.multipliers.items())
        lines = [
            f"privacy: epsilon {self.epsilon:.4g} at delta {self.delta:g} for the whole job, "
            f"{units(self.epsilon_updates_per_silo, self.epsilon_statistics_per_record)}; "
            f"noise multipliers: {noise}",
            f"privacy: that protects from the coordinator and {self.colluders} of {self.members} silos, by "
            f"the noise of {self.honest} honest ones (of more with a larger min_cohort); "
            f"{if_all_others_collude(self.epsilon_if_all_others_collude)}",
            f"privacy: {rows_in_words(self.epsilon_of_rows)}; all rows of one unit are one record where a "
            "silo's data set has units (data.unit)",
            *([self.reserve] if self.reserve else []),
        ]
        if self.update_noise <= DROWNED:
            return lines
        return [
            *lines,
            f"each round's noise is {self.update_noise:.0f} times as long as the longest update: "
            "expect an accuracy near chance; hiding whole silos takes many more of them",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a silo's data set has spent, against few colluders and against all other silos."""

    epsilon: float
    if_all_others_collude: float


def promise_of(spec: AnySpec, state: GlobalState) -> Promise:
    """What a job with its multipliers promises. state: any of its global states, for the shapes.

    Raises ConfigError for a job that costs more than the target it names.
    """
    privacy, members = privacy_of(spec), spec.named_per_round
    released = JobReleases(spec, state)
    cost = released.epsilon()
    if privacy.epsilon is not None and cost > privacy.epsilon:
        raise ConfigError(
            f"privacy.epsilon: expected noise multipliers that cost at most {privacy.epsilon:g}, "
            f"got {cost:.4g}"
        )
    of_silo = released.epsilon_of_updates()
    if privacy.records is not None and of_silo is not None and not of_silo <= MAX_EPSILON:
        raise ConfigError(
            "privacy.sums.noise_multiplier: expected noise that hides a silo's updates with epsilon "
            f"{MAX_EPSILON:g} at most, got {of_silo:.4g}; leave sums out where records alone are protected"
        )
    multipliers: dict[str, float | None] = {}
    if privacy.records is not None:
        multipliers["records.noise_multiplier"] = privacy.records.noise_multiplier
    update_noise = 0.0
    if privacy.sums is not None:
        multipliers["sums.noise_multiplier"] = privacy.sums.noise_multiplier
        quantities = _noised(spec, state, TRAIN, members)
        update = next(each for each in quantities if each.discloses is Disclosure.UPDATE)
        longest = privacy.sums.clip_norm * (privacy.declared_weight(members) * members)
        update_noise = noise_deviations([update], members)[update.name] * math.sqrt(update.size) / longest
    multipliers["statistics_noise_multiplier"] = privacy.statistics_noise_multiplier
    return Promise(
        epsilon=cost,
        delta=privacy.delta,
        unit=privacy.unit,
        noise=None if privacy.records is None else privacy.records.noise,
        epsilon_if_all_others_collude=JobReleases(spec, state, honest=1).promised_epsilon(),
        members=members,
        colluders=members // 3,
        honest=spec.rule(members).min_honest,
        epsilon_updates_per_silo=of_silo,
        epsilon_statistics_per_record=released.epsilon_of_statistics(),
        multipliers={field: value for field, value in multipliers.items() if value is not None},
        update_noise=update_noise,
        epsilon_of_rows=released.epsilon_of_rows(),
        reserve=_reserve(spec) if privacy.has_shared_noise or privacy.sums is not None else "",
    )


def if_all_others_collude(epsilon: float | None) -> str:
    """The other promise, as a clause; null in a report stands for no bound."""
    cost = "no bound" if epsilon is None or math.isinf(epsilon) else f"epsilon {epsilon:.4g}"
    return f"if all other silos collude with it: {cost}"


def units(updates_per_silo: float | None, statistics_per_record: float) -> str:
    """Whom a job's epsilon is for; of two units, what each costs by itself."""
    if updates_per_silo is None:
        return "for each record"
    return (
        f"for each record; by themselves updates cost epsilon {updates_per_silo:.4g} for each silo, "
        f"statistics epsilon {statistics_per_record:.4g} for each record"
    )


def _reserve(spec: AnySpec) -> str:
    """What the noise kept for lost silos costs, and what losing more of them does (docs/protocol.md 3.1).

    h silos add what one curator would; where all m are there, their noise is sqrt(m / h) times as strong.
    """
    members = spec.named_per_round
    rule = spec.rule(members)
    what, end = "round", "is lost"
    if spec.steps is not None:
        what, end = "step", f"takes one of the {spec.spare_steps} spare ones"
    room = members - rule.min_survivors
    most = max(members - 1, rule.min_survivors)
    whom = f"{room} lost silo{'' if room == 1 else 's'}" if room else "colluders alone"
    times = math.sqrt(members / rule.min_honest)
    now = f"privacy: room for {whom} makes the noise of all {members} {times:.3g} times one curator's"
    lost = f"a {what} that loses more waits for them, is tried again at no further epsilon, and at last {end}"
    if most == rule.min_survivors:
        return f"{now}; {lost}"
    return (
        f"{now}; with min_cohort {most} it is {math.sqrt(members / (most - rule.colluders)):.3g} times, the "
        f"epsilon if all others collude rises, and the room is for 1: {lost}"
    )


def _noised(spec: AnySpec, state: GlobalState, kind: str, members: int) -> tuple[Quantity, ...]:
    """The quantities of a phase with their noise."""
    context = any_context(spec, 1, state, members, public_seed=bytes(32))
    return noised(spec.method.phase(kind).quantities(context), spec, members)
