"""Tables of the silo's ledger. Source: docs/protocol.md 6, 10."""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("job_digest", LargeBinary, primary_key=True),
    Column("name", String, nullable=False),
    Column("operator", String, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("decision", String, nullable=False),  # Decision
    Column("offered_unix_seconds", Float, nullable=False),
)

# What the first advert for a phase bound it to.
phases = Table(
    "phases",
    metadata,
    Column("job_digest", LargeBinary, nullable=False),
    Column("round", Integer, nullable=False),
    Column("phase", String, nullable=False),
    Column("roster_version", Integer, nullable=False),
    Column("roster_digest", LargeBinary, nullable=False),
    Column("state_digest", LargeBinary, nullable=False),
    UniqueConstraint("job_digest", "round", "phase"),
)

reveals = Table(
    "reveals",
    metadata,
    Column("job_digest", LargeBinary, nullable=False),
    Column("round", Integer, nullable=False),
    Column("phase", String, nullable=False),
    Column("status", String, nullable=False),  # RevealStatus
    Column("attempt", Integer, nullable=False),
    Column("state_digest", LargeBinary, nullable=False),
    Column("cohort_digest", LargeBinary, nullable=False),
    Column("data_set", String, nullable=False),
    Column("survivors", String, nullable=False),  # U3, sorted, one name a line
    Column("answer", LargeBinary),  # PendingReveal; null once blanked
    Column("written_unix_seconds", Float, nullable=False),
    UniqueConstraint("job_digest", "round", "phase"),
)

# Every U3 that this silo signed and that may have been revealed by others' shares.
signed_sets = Table(
    "signed_sets",
    metadata,
    Column("number", Integer, primary_key=True),  # in the order of signing
    Column("job_digest", LargeBinary, nullable=False),
    Column("round", Integer, nullable=False),
    Column("phase", String, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", String, nullable=False),
    Column("data_set", String, nullable=False),
    Column("survivors", String, nullable=False),
    Column("min_cohort", Integer, nullable=False),
    Column("is_change", Boolean, nullable=False),  # counts against the policy's max_cohort_changes
    UniqueConstraint("job_digest", "round", "phase", "attempt"),
)

roster_mark = Table(
    "roster_mark",
    metadata,
    Column("only", Integer, primary_key=True),  # always 1
    Column("version", Integer, nullable=False),
    Column("digest", LargeBinary, nullable=False),
)

# What one input releases, kept once: thousands of inputs share a few of these.
costs = Table(
    "costs",
    metadata,
    Column("digest", LargeBinary, primary_key=True),  # SHA-256 of `releases`
    Column("releases", String, nullable=False),  # chorale.privacy.accountant.releases_to_json
)

# One row for each input that was computed from a data set. A spent row is never erased, nor with its job.
releases = Table(
    "releases",
    metadata,
    Column("input_id", LargeBinary, primary_key=True),
    Column("data_set", String, nullable=False),
    Column("job_digest", LargeBinary, nullable=False),
    Column("round", Integer, nullable=False),
    Column("phase", String, nullable=False),
    Column("cost_digest", LargeBinary, ForeignKey("costs.digest")),  # null: a job without privacy
    Column("delta", Float, nullable=False),  # the policy's when it was reserved; today's is what counts
    Column("status", String, nullable=False),  # ReleaseStatus
    Column("process", LargeBinary, nullable=False),  # who reserved it
    Column("written_unix_seconds", Float, nullable=False),
    Index("releases_by_cost", "data_set", "cost_digest", "status", "job_digest"),
    Index("releases_by_phase", "job_digest", "round", "phase"),
)
