"""The policy's word on differential privacy: what a data set may spend, and on whose noise it may rest.

It is checked on the signed job, and the silo computes its noise from that job alone, so nothing a
coordinator says changes it. Source: docs/privacy.md, "The ledger".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, ParamSpec

from pydantic import BaseModel, ConfigDict, Field, field_validator

from chorale.privacy.accountant import epsilon
from chorale.privacy.quantity_noise import dp_sgd_steps
from chorale.privacy.releases import DpSgd, Gaussian, Release, SampledGaussian
from chorale.spec.fields import Number
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.privacy_spec import MAX_DELTA, MAX_EPSILON, MIN_DELTA
from crypto.errors import PolicyRefusal, Refusal, Rule
from silo_agent.disclosure.policy.tightening import FIXED, HIGHER, LOWER, Tightens, toward
from strategies.expected import got
from strategies.methods import known_quantities

P = ParamSpec("P")

CEILING = 10.0  # beyond it a record moves the odds of any guess more than twenty-thousandfold

Limit = Annotated[Number, Field(gt=0, le=MAX_EPSILON, allow_inf_nan=False)]  # above it nothing is promised


class Permission(StrEnum):
    REFUSE = "refuse"
    ALLOW = "allow"


def _shares_no_more(now: Permission | float, held: Permission | float) -> bool:
    if isinstance(now, Permission) or isinstance(held, Permission):
        return now is Permission.REFUSE or held is Permission.ALLOW
    return now <= held


class PrivacyPolicy(BaseModel):
    """What a data set may spend, and on whose noise it may rest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: Annotated[Limit, LOWER] = Field(
        default=CEILING, description="budget of the data set, over all jobs and for good; at delta"
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
    partial_jobs: Annotated[Permission, toward(Permission.REFUSE)] = Field(
        default=Permission.REFUSE,
        description="jobs that plan more than is left: refuse, or allow until the budget stops them",
    )
    shared_noise: Annotated[Permission | Limit, Tightens(_shares_no_more)] = Field(
        default=Permission.REFUSE,
        description="jobs whose records are hidden by noise that all silos add together "
        "(privacy.records.noise: sum), so that their privacy rests on the other silos: refuse, allow, or the "
        "most epsilon that one may cost if all other silos give their noise away",
    )

    @field_validator("shared_noise", mode="before")
    @classmethod
    def _is_word_or_number(cls, value: object) -> object:
        with suppress(TypeError, ValueError):
            if value in tuple(Permission) or 0 < float(str(value)) <= MAX_EPSILON:
                return value
        raise ValueError(
            f"expected refuse, allow or a number above 0 and at most {MAX_EPSILON:g}, got {got(value)}"
        )

    def check_job(self, spec: JobSpec) -> None:
        """Raises PolicyRefusal: the first of `refusals`."""
        for refusal in self.refusals(spec):
            raise refusal

    def refusals(self, spec: AnySpec) -> Iterator[PolicyRefusal]:
        """POLICY where privacy is required or noise may not rest on other silos; BUDGET where training alone
        passes the whole budget."""
        if spec.privacy is None:
            if self.required:
                yield refusal_by("a job without privacy", "a private job (privacy.required)", Rule.REQUIRED)
        elif isinstance(spec, JobSpec):
            if spec.privacy.has_shared_noise and self.shared_noise is Permission.REFUSE:
                yield refusal_by(
                    "privacy.records.noise sum, which rests on the other silos' noise",
                    "privacy.records.noise silo, or privacy.shared_noise: allow here",
                    Rule.SHARED_NOISE,
                )
            yield from refusals_of(self._check_training, spec)

    def check_collusion(self, spec: AnySpec, epsilon_if_all_others_collude: float) -> None:
        """Raises PolicyRefusal for a job whose shared noise leaves too little if all other silos collude."""
        most, cost = self.shared_noise, epsilon_if_all_others_collude
        if isinstance(most, Permission) or spec.privacy is None or not spec.privacy.has_shared_noise:
            return
        if not cost <= most:
            raise refusal_by(
                f"{cost:.4g}" if math.isfinite(cost) else "no bound",
                f"at most epsilon {most:g} if all other silos collude (privacy.shared_noise)",
                Rule.SHARED_NOISE,
            )

    def refused(self) -> list[str]:
        """What is refused, line by line, for the description of the whole policy."""
        lines = [
            f"private jobs once the data set has spent epsilon {self.epsilon:g} at delta {self.delta:g}",
            f"private jobs whose training alone costs more than epsilon {self.epsilon:g}",
        ]
        if self.partial_jobs is Permission.REFUSE:
            lines.append("private jobs that plan more than is left")
        if self.required:
            lines.append("every job without privacy")
        if self.shared_noise is Permission.REFUSE:
            lines.append("private jobs whose silos share their noise (privacy.records.noise: sum)")
        elif self.shared_noise is not Permission.ALLOW:
            lines.append(
                f"private jobs with shared noise that cost more than epsilon {self.shared_noise:g} if all "
                "other silos collude"
            )
        return lines

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
        elif not isinstance(self.shared_noise, Permission):
            # the multiplier is that of the noise of h silos together, of which one is left
            honest = spec.rule(spec.named_per_round).min_honest
            alone = SampledGaussian(
                noise_multiplier=multiplier / math.sqrt(honest), sample_rate=rate, draws=0
            )
            self.check_collusion(spec, _epsilon_of_rounds(alone, spec.rounds, spec.privacy.delta))
        rounds = spec.rounds if self.partial_jobs is Permission.REFUSE else 1
        trained = sum(times * arms for times, arms in spec.rungs(rounds))
        cost = _epsilon_of_rounds(round, trained, self.delta)
        if (sums := spec.privacy.sums) is not None and sums.noise_multiplier is not None:
            # a record pays for the cheaper of the two; it exchanges its silo's update, twice the clip
            whole = Gaussian(noise_multiplier=sums.noise_multiplier / 2.0, draws=0)
            cost = min(cost, _epsilon_of_rounds(whole, trained, self.delta))
        if not cost <= self.epsilon:
            name = "round" if spec.steps is None else "step"
            what = f"{rounds} {name}s of training" if rounds > 1 else f"one {name} of training"
            what += f", {trained} of single arms" if trained > rounds else ""
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


def refusal_by(got: str, expected: str, rule: Rule) -> PolicyRefusal:
    """For the field of the policy that `rule` names."""
    return PolicyRefusal(f"policy: expected {expected}, got {got}", rule=rule)
