"""The policy file: the silo's last word on what may leave it.

A refusal carries a code of the closed list; its sentence stays in the silo's own log. What a quantity
discloses is read from the method's code at the silo, never from a message.
Source: docs/protocol.md 6, 9 (guarantee G3).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sized
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from chorale.runtime.files import read_limited
from chorale.spec.fields import Name, Sha256, in_words
from chorale.spec.job_spec import JobSpec
from chorale.spec.kinds import AnySpec
from chorale.spec.selection import expected_cohort_changes
from chorale.spec.settings_file import MAX_BYTES, check_whole, settings_of
from chorale.spec.training.class_rows import check_reachable
from crypto.errors import PolicyRefusal, Refusal, Rule
from crypto.fixed_point.layout import Disclosure, Quantity
from crypto.session.cohort import (
    SMALLEST_FEDERATION,
    default_colluders,
)
from crypto.session.messages import SessionTerms
from silo_agent.disclosure.policy.analysis_policy import EXACT_REFUSED, AnalysisPolicy
from silo_agent.disclosure.policy.drawn_rounds import check_drawn_rounds, check_redrawn_statistics
from silo_agent.disclosure.policy.learning_rates import rate_refusals
from silo_agent.disclosure.policy.privacy_policy import (
    Permission,
    PrivacyPolicy,
    check_names,
    refusal_by,
    refusals_of,
)
from silo_agent.disclosure.policy.readable import FEWER_READ, Readable
from silo_agent.disclosure.policy.tightening import COARSER, FEWER, FIXED, HIGHER, LOWER, Tightens, toward
from strategies.expected import got
from strategies.phases.arms import without_arm
from strategies.phases.trees import TreesOptions

SHA256 = re.compile(r"[0-9a-f]{64}")
ENV_PREFIX = "CHORALE_POLICY_"
MAX_STATE_BYTES = 4 << 30  # of a global model: what a download may fill of this silo's disk and memory
# of a private job, where no number is declared: as many as a hospital's table has, 2.6 GB of 1,000 columns
MOST_RECORDS = 1 << 17


Listed = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}(==[A-Za-z0-9][A-Za-z0-9.+!_-]{0,63})?$"),
    in_words("name or name==version, such as hospital-models==1.2.0"),
]


class Approval(StrEnum):
    MANUAL = "manual"
    AUTOMATIC = "automatic"


class FirstState(StrEnum):
    COMPUTED = "computed"
    GIVEN = "given"


class DrawnRounds(StrEnum):
    REFUSE = "refuse"
    ALLOW = "allow"
    WITH_STATISTICS = "with_statistics"


def _allows_fewer_draws(now: DrawnRounds, held: DrawnRounds) -> bool:
    order = list(DrawnRounds)
    return order.index(now) <= order.index(held)


def _draws_no_less(now: FirstState | tuple[str, ...], held: FirstState | tuple[str, ...]) -> bool:
    if FirstState.COMPUTED in (now, held):
        return now is FirstState.COMPUTED
    return held is FirstState.GIVEN or (isinstance(now, tuple) and {*now} <= {*held})


def _expects_no_more(now: int | None, held: int | None) -> bool:
    """Another number serves larger data sets, or shows in the time that a phase takes."""
    return held is None and now is not None and now <= MOST_RECORDS


class Policy(BaseModel):
    """What a silo allows. Every default is the cautious one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    # which jobs
    federation: Annotated[Name, FIXED] = Field(description="jobs of this federation alone")
    approval: Annotated[Approval, toward(Approval.MANUAL)] = Field(
        default=Approval.MANUAL,
        description="manual: a job waits for `chorale silo approve`; automatic: policy alone decides",
    )
    required_approvals: Annotated[int, HIGHER] = Field(
        default=1,
        ge=1,
        le=2,
        description="people who have to approve a job with approval: manual; 2 are two names, which "
        "`chorale silo approve --by` takes",
    )
    operators: Annotated[tuple[str, ...] | None, FEWER] = Field(
        default=None, min_length=1, description="operators whose jobs are accepted; null: all on the roster"
    )
    require_purpose: Annotated[bool, HIGHER] = Field(
        default=False, description="true: jobs that say no purpose or no reference are refused"
    )
    max_rounds: Annotated[int, LOWER] = Field(
        default=1_000, ge=1, le=1_000_000, description="longest job that is accepted"
    )
    distributions: Annotated[tuple[Listed, ...], FEWER] = Field(
        default=(),
        description="installed distributions whose code jobs may run, as name or name==version; [] for none "
        "but Chorale itself",
    )
    initial_state: Annotated[
        FirstState | Annotated[tuple[Sha256, ...], Field(min_length=1)], Tightens(_draws_no_less)
    ] = Field(
        default=FirstState.COMPUTED,
        description="starting weights of a job. computed: those alone that this silo draws itself from the "
        "job; given: an operator's own too; or the SHA-256 digests of given ones that are accepted",
    )

    # what they read
    inputs: Annotated[Readable | None, FEWER_READ] = Field(
        default=None,
        description="columns that jobs may read as inputs, by data set, null for all of one; a data set that "
        "is not named is read by no job; null: all of every data set",
    )
    labels: Annotated[Readable | None, FEWER_READ] = Field(
        default=None, description="columns that jobs may read as label, by data set, as in inputs; null: all"
    )

    # what they sum
    min_silos: Annotated[int, HIGHER] = Field(
        default=SMALLEST_FEDERATION,
        ge=SMALLEST_FEDERATION,
        le=10_000,
        description="fewest silos in any sum this silo is part of",
    )
    allowed_quantities: Annotated[tuple[str, ...] | None, FEWER] = Field(
        default=None,
        min_length=1,
        description="quantities that may be summed; null: all but class statistics",
    )
    class_statistics: Annotated[Permission, toward(Permission.REFUSE)] = Field(
        default=Permission.REFUSE, description="sums by class without noise: refuse or allow"
    )
    shared_sums: Annotated[Permission, toward(Permission.REFUSE)] = Field(
        default=Permission.ALLOW,
        description="sums by class that the model is computed from, noised or not, which all silos of a "
        "phase see: allow or refuse",
    )
    min_class_holders: Annotated[int | None, HIGHER] = Field(
        default=None,
        ge=1,
        le=10_000,
        description="silos that must hold a class before its row is sent; null: the job's safe default",
    )
    local_state: Annotated[Permission, toward(Permission.REFUSE)] = Field(
        default=Permission.REFUSE,
        description="methods that keep something at this silo between rounds: refuse or allow",
    )
    count_granularity: Annotated[int, COARSER] = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="sample counts are rounded down to a multiple; 1 accepts that they are published",
    )

    # how often they ask
    max_repeats: Annotated[int, LOWER] = Field(
        default=2,
        ge=0,
        le=1_000,
        description="further sums over a model that a sum was taken of, by other phases or jobs",
    )
    max_cohort_changes: Annotated[int, LOWER] = Field(
        default=10,
        ge=0,
        le=1_000_000,
        description="overlapping cohorts, per data set over all jobs: sums whose cohort nearly equals an "
        "earlier one and is not the one just before; `chorale silo approve --more-cohort-changes` adds to it",
    )
    max_data_refusals: Annotated[int, LOWER] = Field(
        default=5,
        ge=0,
        le=1_000_000,
        description="refusals of jobs without noise for what the data are, and by themselves failures of "
        "private ones, per data set over all jobs; one more and none touches the data; `chorale silo approve "
        "--more-data-refusals` adds to it",
    )
    max_step_ratio: Annotated[float, LOWER] = Field(
        default=3.0,
        ge=1,
        le=1e6,
        description="how many of this silo's own steps a step of the global model may be long; beyond it no "
        "further input leaves until the job is approved again",
    )
    drawn_rounds: Annotated[DrawnRounds, Tightens(_allows_fewer_draws)] = Field(
        default=DrawnRounds.ALLOW,
        description="jobs whose rounds each draw a new set of silos; many sums may give one silo's. refuse: "
        "none of them; allow: without statistics by class, unless they have noise; with_statistics: all",
    )
    assumed_colluders: Annotated[int | None, HIGHER] = Field(
        default=None,
        ge=0,
        le=10_000,
        description="silos of a job that may side with the coordinator; null: a tenth of them, at least 1",
    )
    max_roster_age_days: Annotated[float, LOWER] = Field(
        default=7.0, gt=0, le=366, description="a roster signed longer ago than this is refused"
    )

    # how private they are
    constant_work_records: Annotated[int | None, Tightens(_expects_no_more)] = Field(
        default=None,
        ge=1,
        le=100_000_000,
        description="private jobs compute as much as for so many records, the most that the data set may "
        f"hold; null: as much as there is, at most {MOST_RECORDS}",
    )
    privacy: PrivacyPolicy = Field(default=PrivacyPolicy(), description="what a data set may spend")
    analyses: AnalysisPolicy = Field(default=AnalysisPolicy(), description="what analyses may show of it")

    @field_validator("initial_state", mode="before")
    @classmethod
    def _is_word_or_digests(cls, value: object) -> object:
        digests = value if isinstance(value, list | tuple) and value else (value,)
        wrong = [each for each in digests if not isinstance(each, str) or not SHA256.fullmatch(each)]
        if wrong and value not in tuple(FirstState):
            raise ValueError(f"expected computed, given or a list of SHA-256 digests, got {got(wrong[0])}")
        return value

    @model_validator(mode="after")
    def _asks_people(self) -> Policy:
        if self.approval is Approval.AUTOMATIC and self.required_approvals > 1:
            raise ValueError(
                f"required_approvals: expected 1 with approval: automatic, which asks nobody, "
                f"got {self.required_approvals}"
            )
        return self

    @model_validator(mode="after")
    def _has_quantities(self) -> Policy:
        if not self.distributions:  # tasks of others sum under names of their own
            try:
                check_names(self.allowed_quantities or ())
            except ValueError as error:
                raise ValueError(f"allowed_quantities: {error}") from None
        return self

    def check_job(self, spec: AnySpec, *, operator: str) -> None:
        """Raises PolicyRefusal where the job as such is not allowed: the first of `refusals`."""
        for refusal in self.refusals(spec, operator=operator):
            raise refusal

    def refusals(self, spec: AnySpec, *, operator: str) -> Iterator[PolicyRefusal]:
        """Every rule by which the job as such is not allowed."""
        yield from self._refusals_of_any(spec, operator=operator)
        if isinstance(spec, JobSpec):
            yield from self._refusals_of_training(spec)
        else:
            if spec.sums_cells:
                yield from self.analyses.refusals(spec.min_cell, what="an analysis")
            for quantity in spec.quantities:
                yield from refusals_of(self.check_listed, quantity)
            yield from self.privacy.refusals(spec)

    def _refusals_of_any(self, spec: AnySpec, *, operator: str) -> Iterator[PolicyRefusal]:
        if spec.federation != self.federation:
            yield refusal_by(f"federation {spec.federation}", self.federation, Rule.FEDERATION)
        if self.operators is not None and operator not in self.operators:
            yield refusal_by(f"operator {operator}", ", ".join(self.operators), Rule.OPERATORS)
        if self.require_purpose and None in (spec.purpose, spec.reference):
            wanted = "purpose and reference (require_purpose)"
            yield refusal_by("a job without one of them", wanted, Rule.REQUIRE_PURPOSE)
        if len(spec.silos) < self.min_silos:
            yield refusal_by(f"{len(spec.silos)} silos", f"at least {self.min_silos}", Rule.MIN_SILOS)

    def _refusals_of_training(self, spec: JobSpec) -> Iterator[PolicyRefusal]:
        yield from refusals_of(self.check_distributions, spec)
        if spec.rounds > self.max_rounds:
            spare = "" if spec.spare_steps is None else f" and {spec.spare_steps} spare ones"
            yield refusal_by(f"{spec.count}{spare}", f"at most {self.max_rounds}", Rule.MAX_ROUNDS)
        expected = expected_cohort_changes(spec)
        if expected > self.max_cohort_changes:
            yield refusal_by(
                f"about {expected:.3g} overlapping cohorts by fraction {spec.fraction:g}",
                f"at most {self.max_cohort_changes} (max_cohort_changes)",
                Rule.MAX_COHORT_CHANGES,
            )
        yield from refusals_of(self.check_draw, spec)
        if self.drawn_rounds is not DrawnRounds.WITH_STATISTICS:
            yield from refusals_of(check_redrawn_statistics, spec)
        for each in spec.arms or (spec,):
            yield from rate_refusals(each)
        # here and not in the phase that sums it: rounds may come before
        for quantity in spec.quantities:
            yield from refusals_of(self.check_quantities, [quantity], is_private=spec.privacy is not None)
        yield from refusals_of(check_reachable, spec, self.min_class_holders)
        # Security: sums with and without a silo tell of how its state moves, unless their noise covers a
        # whole silo (docs/threat-model.md). Beside DP-SGD that noise may be as little as one likes.
        privacy = spec.privacy
        is_covered = privacy is not None and privacy.sums is not None and privacy.records is None
        has_state = spec.method.recipe.keeps_local_state and not is_covered
        if has_state and self.local_state is Permission.REFUSE:
            yield refusal_by(
                f"strategy {spec.strategy.name}",
                "a method without local state (local_state: refuse)",
                Rule.LOCAL_STATE,
            )
        yield from self.privacy.refusals(spec)
        if spec.subgroups is not None:
            yield from self.analyses.refusals(spec.subgroups.min_cell, what="subgroups")
        if spec.grows_trees:
            leaf = spec.method.options_of(TreesOptions).min_records
            yield from self.analyses.small_cells("strategy.options.min_records", leaf)
        if not spec.model.is_built_in:
            why = f"model {spec.model.name} is not built in"
            yield from refusals_of(self.check_given_state, spec, why=why)

    def check_distributions(self, spec: JobSpec) -> None:
        """Raises PolicyRefusal where the job runs code that is not allowed here."""
        for distribution in spec.distributions:
            if not {distribution, distribution.partition("==")[0]} & {*self.distributions}:
                listed = ", ".join(self.distributions) or "no other"
                raise refusal_by(
                    f"code of {distribution}",
                    f"code of Chorale or of {listed} (distributions)",
                    Rule.DISTRIBUTIONS,
                )

    def check_given_state(self, spec: AnySpec, *, why: str) -> None:
        """Raises PolicyRefusal where a first state that this silo did not draw itself is not allowed."""
        if self.initial_state is FirstState.GIVEN:
            return
        is_list = isinstance(self.initial_state, tuple)
        if is_list and spec.initial_state in self.initial_state:
            return
        allowed = "computed here or listed" if is_list else "computed here"
        expected = f"an initial state that is {allowed} (initial_state)"
        raise refusal_by(f"the given one {spec.initial_state}: {why}", expected, Rule.INITIAL_STATE)

    def colluders(self, spec: AnySpec) -> int:
        """A: silos of the job that may side with the coordinator."""
        return (
            default_colluders(len(spec.silos)) if self.assumed_colluders is None else self.assumed_colluders
        )

    def check_draw(self, spec: JobSpec) -> None:
        """Raises PolicyRefusal, as `check_drawn_rounds`."""
        check_drawn_rounds(
            spec,
            colluders=self.colluders(spec),
            may_redraw=self.drawn_rounds is not DrawnRounds.REFUSE,
        )

    def check_terms(self, terms: SessionTerms) -> None:
        """Raises PolicyRefusal where this one session is not allowed."""
        if terms.federation != self.federation:
            raise refusal_by(f"federation {terms.federation}", self.federation, Rule.FEDERATION)
        self.check_cohort(terms.names)
        self.check_quantities(terms.layout.quantities)

    def check_cohort(self, members: Sized) -> None:
        """Raises PolicyRefusal where fewer silos than `min_silos` would stand in a sum."""
        if len(members) < self.min_silos:
            raise PolicyRefusal(
                f"policy: expected a cohort of at least {self.min_silos} silos, got {len(members)}",
                code=Refusal.COHORT_TOO_SMALL,
            )

    def check_listed(self, quantity: Quantity) -> None:
        """Raises PolicyRefusal where `allowed_quantities` does not list it."""
        name = without_arm(quantity.name)
        if self.allowed_quantities is not None and name not in self.allowed_quantities:
            allowed = f"{', '.join(self.allowed_quantities)} (allowed_quantities)"
            raise refusal_by(f"quantity {name}", allowed, Rule.ALLOWED_QUANTITIES)

    def check_quantities(self, quantities: Iterable[Quantity], *, is_private: bool = False) -> None:
        """Raises PolicyRefusal where a quantity may not be summed. is_private: they will carry noise, or be
        refused for it."""
        for quantity in quantities:
            self.check_listed(quantity)
            is_bare = quantity.noise is None and not is_private
            if is_bare and quantity.discloses is Disclosure.CELL and self.analyses.exact is Permission.REFUSE:
                expected = f"no analyses {EXACT_REFUSED}"
                raise refusal_by(f"quantity {quantity.name}", expected, Rule.ANALYSES)
            if quantity.is_shared and self.shared_sums is Permission.REFUSE:
                raise refusal_by(
                    f"quantity {quantity.name}",
                    "no sums by class that silos see (shared_sums: refuse)",
                    Rule.SHARED_SUMS,
                )
            if is_bare and quantity.discloses.is_by_class and self.class_statistics is Permission.REFUSE:
                raise refusal_by(
                    f"quantity {quantity.name}",
                    "no class statistics (class_statistics: refuse)",
                    Rule.CLASS_STATISTICS,
                )

    @property
    def most_records(self) -> int:
        """How many records private jobs count on, whatever the data set holds."""
        return MOST_RECORDS if self.constant_work_records is None else self.constant_work_records

    def rounded(self, samples: int) -> int:
        """A sample count as it may be known: rounded down to `count_granularity`."""
        return samples - samples % self.count_granularity


def load_policy(path: Path) -> Policy:
    """Raises ConfigError that names file, field and what is allowed."""
    return read_policy(path)[1]


def read_policy(path: Path) -> tuple[bytes, Policy]:
    """A policy and the SHA-256 of its file, by which statements and approvals name it.

    Raises ConfigError also where the last line is not `...`: of a file that is half written the fields that
    are missing would have their defaults.
    """
    data = read_limited(path, MAX_BYTES)
    check_whole(data, source=str(path))
    return hashlib.sha256(data).digest(), settings_of(Policy, data, source=str(path), env_prefix=ENV_PREFIX)
