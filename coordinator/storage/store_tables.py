"""Tables of the coordinator's store. Source: docs/protocol.md 10."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

rosters = sa.Table(
    "rosters",
    metadata,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
)
jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("spec", sa.LargeBinary, nullable=False),
    sa.Column("signature", sa.LargeBinary, nullable=False),
    sa.Column("operator_certificate", sa.LargeBinary, nullable=False),
    sa.Column("status", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False, default=""),
    sa.Column("submitted_unix_seconds", sa.Float, nullable=False),
    sa.Column("state_digest", sa.LargeBinary, nullable=False),
)
round_rosters = sa.Table(
    "round_rosters",
    metadata,
    sa.Column("job", sa.ForeignKey("jobs.digest"), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("version", sa.ForeignKey("rosters.version"), nullable=False),
)
phases = sa.Table(
    "phases",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("job", sa.ForeignKey("jobs.digest"), nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("phase", sa.String, nullable=False),
    sa.Column("roster_version", sa.Integer, nullable=False),
    sa.Column("state", sa.String, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("started_unix_seconds", sa.Float, nullable=False),
    sa.Column("upload_bytes", sa.Integer, nullable=False, default=0),
    sa.Column("cohort", sa.JSON),
    sa.Column("session", sa.LargeBinary),
    sa.Column("state_digest", sa.LargeBinary, nullable=False),
    sa.Column("record_json", sa.Text),
    sa.UniqueConstraint("job", "round", "phase"),
)
left_out = sa.Table(
    "left_out",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("phase", sa.ForeignKey("phases.sequence"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("silo", sa.String, nullable=False),
    sa.Column("stage", sa.String, nullable=False),
    sa.Column("reason", sa.String, nullable=False),
    sa.UniqueConstraint("phase", "attempt", "silo"),
)
complaints = sa.Table(
    "complaints",
    metadata,
    sa.Column("sequence", sa.Integer, primary_key=True),
    sa.Column("phase", sa.ForeignKey("phases.sequence"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("sender", sa.String, nullable=False),
    sa.Column("accused", sa.String, nullable=False),
    sa.UniqueConstraint("phase", "attempt", "sender"),
)
