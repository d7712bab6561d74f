"""The policy's word on differential privacy: what a data set may spend, and the floor of every private job.

The floor is checked on the signed job, and the silo computes its noise from that job alone, so nothing a
coordinator says leads below it. Source: docs/privacy.md, "The ledger".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, ParamSpec

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from chorale.privacy.accountant import epsilon
from chorale.privacy.quantity_noise import dp_sgd_steps
from chorale.privacy.releases import DpSgd, Release, SampledGaussian
from chorale.spec.fields import Number
from chorale.spec.job_spec import JobSpec
from chorale.spec.privacy_spec import MAX_DELTA, MAX_EPSILON, MIN_DELTA, PrivacySpec
from crypto.errors import PolicyRefusal, Refusal, Rule
from crypto.fixed_point.layout import Disclosure, Quantity
from silo_agent.policy.tightening import AT_LEAST, AT_MOST, FIXED, HIGHER, LOWER, MORE, Tightens, toward
from strategies.methods import known_quantities

P = ParamSpec("P")

CEILING = 10.0  # beyond it a record moves the odds of any guess more than twenty-thousandfold

Epsilon = Annotated[Number, Field(gt=0, le=1e6, allow_inf_nan=False)]
Limit = Annotated[Number, Field(gt=0, allow_inf_nan=False)]


class PartialJobs(StrEnum):
    REFUSE = "refuse"
    ALLOW = "allow"


class PrivacyPolicy(BaseModel):
    """Budget and floor. Lengths are those of the job's own fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: Annotated[Epsilon, LOWER] = Field(
        default=CEILING, description="budget of the data set, over all jobs and for good; at delta"
    )
    accept_epsilon_up_to: Annotated[
        Epsilon | None, Tightens(lambda now, held: held is not None and (now or 0.0) <= held)
    ] = Field(
        default=None,
        description=f"a budget above {CEILING:g} is an error unless this says the number too; null: none is",
    )
    delta: Annotated[Number, FIXED] = Field(
        default=1e-5,
        ge=MIN_DELTA,
        le=MAX_DELTA,
        allow_inf_nan=False,
        description="chance that epsilon does not hold; below 1 / records of this silo; fixed once the agent "
        "has started",
    )
    required: Annotated[bool, HIGHER] = Field(
        default=False, description="true: jobs without privacy are refused; they spend without a bound"
    )
    partial_jobs: Annotated[PartialJobs, toward(PartialJobs.REFUSE)] = Field(
        default=PartialJobs.REFUSE,
        description="jobs that plan more than is left: refuse, or allow until the budget stops them",
    )
    accept_shared_noise: Annotated[bool, LOWER] = Field(
        default=False,
        description="true: jobs whose records are hidden by noise that all silos add together "
        "(privacy.records.noise: sum); their privacy rests on the other silos",
    )
    max_epsilon_if_all_others_collude: Annotated[Limit | None, AT_MOST] = Field(
        default=None,
        description="most that a job with shared noise may cost where all other silos give their noise away; "
        "null: any, once shared noise is accepted",
    )
    max_records_clip_norm: Annotated[Limit | None, AT_MOST] = Field(
        default=None, description="largest privacy.records.clip_norm of a record-level job; null: any"
    )
    max_sums_clip_norm: Annotated[Limit | None, AT_MOST] = Field(
        default=None, description="largest privacy.sums.clip_norm of a silo-level job; null: any"
    )
    min_records_noise_multiplier: Annotated[Limit | None, AT_LEAST] = Field(
        default=None, description="least record-level noise, that of DP-SGD; null: what the budget allows"
    )
    min_sums_noise_multiplier: Annotated[Limit | None, AT_LEAST] = Field(
        default=None, description="least silo-level noise, on summed updates; null: what the budget allows"
    )
    min_statistics_noise_multiplier: Annotated[Limit | None, AT_LEAST] = Field(
        default=None,
        description="least noise on counts and statistics, by record; null: what the budget allows",
    )
    always_noised: Annotated[tuple[str, ...], MORE] = Field(
        default=(), description="quantities that never leave without noise, whatever the job"
    )

    @field_validator("always_noised")
    @classmethod
    def _are_quantities(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        check_names(names)
        return names

    @model_validator(mode="after")
    def _is_meant(self) -> PrivacyPolicy:
        if self.epsilon > max(CEILING, self.accept_epsilon_up_to or 0.0):
            raise ValueError(
                f"epsilon: expected at most {CEILING:g} for a data set, got {self.epsilon:g}; to allow it, "
                f"set accept_epsilon_up_to: {self.epsilon:g}"
            )
        most = self.max_epsilon_if_all_others_collude
        if most is not None and not self.accept_shared_noise:
            raise ValueError(
                "max_epsilon_if_all_others_collude: expected none without accept_shared_noise: true"
            )
        if most is not None and most > MAX_EPSILON:
            raise ValueError(
                f"max_epsilon_if_all_others_collude: expected at most {MAX_EPSILON:g}, above "
                f"which nothing is promised, got {most:g}"
            )
        return self

    def check_job(self, spec: JobSpec) -> None:
        """Raises PolicyRefusal: the first of `refusals`."""
        for refusal in self.refusals(spec):
            raise refusal

    def refusals(self, spec: JobSpec) -> Iterator[PolicyRefusal]:
        """POLICY for a job below the floor, or whose training alone passes what it may cost if all other
        silos collude; BUDGET where its training alone passes the whole budget."""
        if spec.privacy is not None:
            if spec.privacy.has_shared_noise and not self.accept_shared_noise:
                yield refusal_by(
                    "privacy.records.noise sum, which rests on the other silos' noise",
                    "privacy.records.noise silo, or privacy.accept_shared_noise: true here",
                    Rule.ACCEPT_SHARED_NOISE,
                )
            yield from self._floor_refusals(spec.privacy)
            yield from refusals_of(self._check_training, spec)
            return
        if self.required:
            yield refusal_by("a job without privacy", "a private job (privacy.required)", Rule.REQUIRED)
        for name in spec.quantity_names:
            if name in self.always_noised:
                yield refusal_by(
                    f"a job without privacy that sums {name}",
                    "noise on it (privacy.always_noised)",
                    Rule.ALWAYS_NOISED,
                )

    def check_collusion(self, spec: JobSpec, epsilon_if_all_others_collude: float) -> None:
        """Raises PolicyRefusal for a job whose shared noise leaves too little if all other silos collude."""
        most, cost = self.max_epsilon_if_all_others_collude, epsilon_if_all_others_collude
        if most is None or spec.privacy is None or not spec.privacy.has_shared_noise:
            return
        if not cost <= most:
            raise refusal_by(
                f"{cost:.4g}" if math.isfinite(cost) else "no bound",
                f"at most epsilon {most:g} if all other silos collude "
                "(privacy.max_epsilon_if_all_others_collude)",
                Rule.MAX_EPSILON_IF_ALL_OTHERS_COLLUDE,
            )

    def check_quantities(self, spec: JobSpec, quantities: Iterable[Quantity]) -> None:
        """Raises PolicyRefusal for a quantity of `always_noised` that would leave as it is: without noise of
        its own, without that of DP-SGD, and with something to reveal about the data."""
        free = {Disclosure.CONSTANT} if spec.privacy is not None else set()
        if spec.privacy is not None and spec.privacy.records is not None:
            free |= {Disclosure.UPDATE, Disclosure.FROM_UPDATE}
        for quantity in quantities:
            is_bare = quantity.noise is None and quantity.discloses not in free
            if is_bare and quantity.name in self.always_noised:
                raise refusal_by(
                    f"quantity {quantity.name} without noise",
                    "noise on it (privacy.always_noised)",
                    Rule.ALWAYS_NOISED,
                )

    def refused(self) -> list[str]:
        """What is refused, line by line, for the description of the whole policy."""
        lines = [
            f"private jobs once the data set has spent epsilon {self.epsilon:g} at delta {self.delta:g}",
            f"private jobs whose training alone costs more than epsilon {self.epsilon:g}",
        ]
        if self.partial_jobs is PartialJobs.REFUSE:
            lines.append("private jobs that plan more than is left")
        if self.required:
            lines.append("every job without privacy")
        if not self.accept_shared_noise:
            lines.append("private jobs whose silos share their noise (privacy.records.noise: sum)")
        elif self.max_epsilon_if_all_others_collude is not None:
            lines.append(
                "private jobs with shared noise that cost more than epsilon "
                f"{self.max_epsilon_if_all_others_collude:g} if all other silos collude"
            )
        lines += [f"a job's privacy.{field} above {most:g}" for field, most in self._max.items() if most]
        lines += [f"a job's privacy.{field} below {least:g}" for field, least in self._min.items() if least]
        if self.always_noised:
            lines.append(f"without noise: {', '.join(self.always_noised)}")
        return lines

    @property
    def _max(self) -> dict[str, float | None]:
        return {
            "records.clip_norm": self.max_records_clip_norm,
            "sums.clip_norm": self.max_sums_clip_norm,
        }

    @property
    def _min(self) -> dict[str, float | None]:
        return {
            "records.noise_multiplier": self.min_records_noise_multiplier,
            "sums.noise_multiplier": self.min_sums_noise_multiplier,
            "statistics_noise_multiplier": self.min_statistics_noise_multiplier,
        }

    def _floor_refusals(self, privacy: PrivacySpec) -> Iterator[PolicyRefusal]:
        # the job's values by field; a part that the job does not have is not there
        given = {"statistics_noise_multiplier": privacy.statistics_noise_multiplier}
        if privacy.records is not None:
            given["records.clip_norm"] = privacy.records.clip_norm
            given["records.noise_multiplier"] = privacy.records.noise_multiplier
        if privacy.sums is not None:
            given["sums.clip_norm"] = privacy.sums.clip_norm
            given["sums.noise_multiplier"] = privacy.sums.noise_multiplier
        for field, most in self._max.items():
            value = given.get(field)
            if most is not None and value is not None and not value <= most:
                yield refusal_by(f"privacy.{field} {value:g}", f"at most {most:g}", _rule("max", field))
        for field, least in self._min.items():
            if least is None or field not in given:
                continue
            value = given[field]
            if value is None or not value >= least:
                got = "null" if value is None else f"{value:g}"
                yield refusal_by(f"privacy.{field} {got}", f"at least {least:g}", _rule("min", field))

    def _check_training(self, spec: JobSpec) -> None:
        """What needs no global state to be known: an absurd setting is refused before the first phase."""
        assert spec.privacy is not None
        records = spec.privacy.records
        if records is None or records.noise_multiplier is None:
            return
        multiplier, rate = records.noise_multiplier, records.sample_rate
        round: Release = SampledGaussian(noise_multiplier=multiplier, sample_rate=rate, draws=0)
        if not spec.privacy.has_shared_noise:
            round = DpSgd(noise_multiplier=multiplier, sample_rate=rate, steps=dp_sgd_steps(spec))
        elif self.max_epsilon_if_all_others_collude is not None:
            # the multiplier is that of the noise of h silos together, of which one is left
            honest = spec.rule(spec.named_per_round).min_honest
            alone = SampledGaussian(
                noise_multiplier=multiplier / math.sqrt(honest), sample_rate=rate, draws=0
            )
            self.check_collusion(spec, _epsilon_of_rounds(alone, spec.rounds, spec.privacy.delta))
        rounds = spec.rounds if self.partial_jobs is PartialJobs.REFUSE else 1
        cost = _epsilon_of_rounds(round, rounds, self.delta)
        if cost > self.epsilon:
            name = "round" if spec.steps is None else "step"
            what = f"{rounds} {name}s of training" if rounds > 1 else f"one {name} of training"
            raise PolicyRefusal(
                f"policy: expected at most epsilon {self.epsilon:g} for a data set (delta {self.delta:g}), "
                f"got {cost:.4g} for {what}",
                code=Refusal.BUDGET,
            )


def refusals_of(check: Callable[P, object], *args: P.args, **named: P.kwargs) -> list[PolicyRefusal]:
    """What a check refuses, if it does."""
    try:
        check(*args, **named)
    except PolicyRefusal as refusal:
        return [refusal]
    return []


def check_names(quantities: Iterable[str]) -> None:
    """Raises ValueError that lists all quantities for a name that no method sums."""
    unknown = [name for name in quantities if name not in known_quantities()]
    if unknown:
        raise ValueError(f"expected quantities of {', '.join(sorted(known_quantities()))}, got {unknown[0]}")


@lru_cache(maxsize=64)
def _epsilon_of_rounds(round: Release, rounds: int, delta: float) -> float:
    return epsilon({round: rounds}, delta)  # asked before every phase


def _rule(bound: str, field: str) -> Rule:
    """bound: min or max. field: of a job's `privacy`."""
    return Rule(f"privacy.{bound}_{field.replace('.', '_')}")


def refusal_by(got: str, expected: str, rule: Rule) -> PolicyRefusal:
    """For the field of the policy that `rule` names."""
    return PolicyRefusal(f"policy: expected {expected}, got {got}", rule=rule)
