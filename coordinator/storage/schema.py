"""Tables of the coordinator's store, which `store.py` writes. Source: docs/protocol.md 10.

`MIGRATIONS` is what brings a file from one version to the next. There is one version so far.
"""

from __future__ import annotations

from chorale.observability import audit_head

MIGRATIONS = (
    (
        """
        CREATE TABLE rosters (
            version INTEGER NOT NULL PRIMARY KEY,
            body BLOB NOT NULL,
            signature BLOB NOT NULL
        )
        """,
        """
        CREATE TABLE jobs (
            sequence INTEGER NOT NULL PRIMARY KEY,
            digest BLOB NOT NULL UNIQUE,
            spec BLOB NOT NULL,
            signature BLOB NOT NULL,
            operator_certificate BLOB NOT NULL,
            status VARCHAR NOT NULL, -- JobStatus
            reason VARCHAR NOT NULL,
            submitted_unix_seconds FLOAT NOT NULL,
            state_digest BLOB NOT NULL
        )
        """,
        """
        CREATE TABLE round_rosters (
            job BLOB NOT NULL REFERENCES jobs (digest),
            round INTEGER NOT NULL,
            version INTEGER NOT NULL REFERENCES rosters (version),
            PRIMARY KEY (job, round)
        )
        """,
        """
        CREATE TABLE phases (
            sequence INTEGER NOT NULL PRIMARY KEY,
            job BLOB NOT NULL REFERENCES jobs (digest),
            round INTEGER NOT NULL,
            phase VARCHAR NOT NULL,
            roster_version INTEGER NOT NULL,
            state VARCHAR NOT NULL, -- PhaseState
            attempt INTEGER NOT NULL,
            started_unix_seconds FLOAT NOT NULL,
            upload_bytes INTEGER NOT NULL,
            cohort JSON,
            state_digest BLOB NOT NULL,
            record_json TEXT,
            self_mask_seeds JSON, -- of an opening: what the draw of the job is made of
            session_digest BLOB, -- of the file that UNMASK resumes from
            UNIQUE (job, round, phase)
        )
        """,
        """
        CREATE TABLE left_out (
            sequence INTEGER NOT NULL PRIMARY KEY,
            phase INTEGER NOT NULL REFERENCES phases (sequence),
            attempt INTEGER NOT NULL,
            silo VARCHAR NOT NULL,
            stage VARCHAR NOT NULL,
            reason VARCHAR NOT NULL,
            rule VARCHAR NOT NULL DEFAULT '', -- the policy field that refused
            text VARCHAR NOT NULL DEFAULT '', -- what a person who rejected the job typed
            UNIQUE (phase, attempt, silo)
        )
        """,
        """
        CREATE TABLE complaints (
            sequence INTEGER NOT NULL PRIMARY KEY,
            phase INTEGER NOT NULL REFERENCES phases (sequence),
            attempt INTEGER NOT NULL,
            sender VARCHAR NOT NULL,
            accused VARCHAR NOT NULL,
            UNIQUE (phase, attempt, sender)
        )
        """,
        """
        CREATE TABLE state_proofs ( -- that t silos computed the state that a phase led to
            phase INTEGER NOT NULL PRIMARY KEY REFERENCES phases (sequence),
            proof BLOB NOT NULL -- chorale.v1.StateProof
        )
        """,
        """
        CREATE TABLE phase_proofs ( -- of a phase without effect: who was in its sum, or that it has none
            phase INTEGER NOT NULL PRIMARY KEY REFERENCES phases (sequence),
            cohort BLOB, -- chorale.v1.CohortProof
            abandoned BLOB -- chorale.v1.AbandonedProof
        )
        """,
        *audit_head.TABLES,
    ),
)
