"""What the files of all kinds of jobs say: whose they are, over which silos, and how long their phases may
take.

Silos check these values and never infer them. Source: docs/protocol.md 3 and 7.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Self

from pydantic import Field

from chorale.runtime import plain_yaml
from chorale.spec.fields import (
    MAX_SIMULATED_SILOS,
    DataSetName,
    Moment,
    Name,
    Nonce,
    OneLine,
    Sha256,
    SpecPart,
    check_federation,
    check_not_over,
)
from chorale.spec.settings_file import check_values, parse_mapping
from chorale.transport.wire import MAX_SILOS
from crypto.errors import ConfigError
from crypto.session.cohort import SMALLEST_FEDERATION, CohortRule

LAST = "initial_state"  # line of a signed file


class SharedFields(SpecPart, serialize_by_alias=True):
    """Fields of every job, first in its file but for LAST."""

    name: Name = Field(description="the job's name: lower-case letters, digits and inner hyphens")
    federation: Name = Field(description="the federation it belongs to")
    purpose: OneLine | None = Field(
        default=None,
        description="what the model is for, in a sentence; institutions read it first; null: not said",
    )
    reference: OneLine | None = Field(
        default=None, description="number of the ethics vote or of the project; null: none"
    )
    nonce: Nonce | None = Field(
        default=None,
        description="32 random hex digits that keep two equal jobs apart; `job submit` fills them in",
    )
    not_after: Moment = Field(
        description="no session starts after this time, such as 2027-01-31T00:00:00Z; where it is left out, "
        "`job submit` takes the 30th day from then"
    )
    data: DataSetName | None = Field(
        default=None,
        description="name of the silos' data set that is read; null: the only one of each silo",
    )
    silos: tuple[Name, ...] = Field(
        min_length=SMALLEST_FEDERATION,
        max_length=MAX_SIMULATED_SILOS,
        description=f"names of all silos of the job; at most {MAX_SILOS}, but in a simulation",
    )
    threshold: int | None = Field(
        default=None,
        ge=SMALLEST_FEDERATION,
        le=MAX_SIMULATED_SILOS,
        description="silos needed to unmask a sum; null: two thirds of the named ones and one, never fewer",
    )
    min_cohort: int | None = Field(
        default=None,
        ge=SMALLEST_FEDERATION,
        le=MAX_SIMULATED_SILOS,
        description="fewest silos in a sum; null: a third of the named ones and two more, never fewer",
    )
    max_attempts: int = Field(
        default=5, ge=1, le=100, description="sessions tried for one phase of one round"
    )
    train_deadline_seconds: float = Field(
        default=600.0,
        ge=1,
        le=604_800,
        description="time to compute a silo's part of a phase; heartbeats of a silo at work extend it",
    )
    train_hard_cap_seconds: float = Field(
        default=3_600.0,
        ge=1,
        le=604_800,
        description="time after which even a silo at work is left out; not below train_deadline_seconds",
    )
    initial_state: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the initial global state, the last line of a signed job",
    )

    @classmethod
    def from_yaml(cls, data: bytes, *, source: str) -> Self:
        """Raises ConfigError that names file, field and what is allowed."""
        return check_values(cls, parse_mapping(data, source=source), source=source)

    def to_yaml(self) -> bytes:
        """The job as a file; these bytes are signed, and their SHA-256 is the job digest."""
        values = self.model_dump(mode="json", exclude_none=True)
        if LAST in values:
            values[LAST] = values.pop(LAST)
        return plain_yaml.dump(values).encode()

    def base(self) -> bytes:
        """SHA-256 of the job as a file without `initial_state`, which is its last line: what the first state
        follows from. Source: docs/protocol.md 7.12."""
        unsigned = self.model_copy(update={LAST: None})
        return hashlib.sha256(unsigned.to_yaml()).digest()

    def filled(self, *, nonce: str | None, initial_state: bytes | None) -> Self:
        """The job as it is signed. initial_state: the state's digest; None where it is yet to be known."""
        digest = None if initial_state is None else initial_state.hex()
        values = self.model_dump() | {"nonce": nonce, LAST: digest}
        return check_values(type(self), values, source=self.name)

    def check_submittable(self, *, now: datetime) -> None:
        """Raises ConfigError for a job that silos would refuse or that could not run."""
        if self.nonce is None or self.initial_state is None:
            raise ConfigError(f"job {self.name}: nonce and initial_state are required in a signed job")
        check_federation(self.name, len(self.silos))
        check_not_over(self.name, self.not_after, now=now)

    def rule(self, members: int) -> CohortRule:
        """Sizes for m named silos; the job's own values raise the defaults, never lower them.

        Raises ConfigError if m is below 3 or below what the job asks for. Source: docs/protocol.md 3.1.
        """
        default = CohortRule.for_members(members)
        return CohortRule.for_members(
            members,
            threshold=max(default.threshold, self.threshold or 0),
            min_cohort=max(default.min_cohort, self.min_cohort or 0),
        )

    def check_deadlines(self) -> None:
        """Raises ValueError."""
        if self.train_hard_cap_seconds < self.train_deadline_seconds:
            raise ValueError(
                "train_hard_cap_seconds: expected at least train_deadline_seconds, "
                f"{self.train_deadline_seconds:g}, got {self.train_hard_cap_seconds:g}"
            )
