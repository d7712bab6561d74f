"""Schema of the coordinator's store, version by version. Source: docs/protocol.md 10.

A migration never changes once it was released: a file of its version may lie anywhere.
"""

from __future__ import annotations

from chorale.runtime.database import Migration

# Files from before versions were counted hold these very tables.
_FIRST: Migration = (
    """
    CREATE TABLE IF NOT EXISTS rosters (
        version INTEGER NOT NULL PRIMARY KEY,
        body BLOB NOT NULL,
        signature BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS jobs (
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
    CREATE TABLE IF NOT EXISTS round_rosters (
        job BLOB NOT NULL REFERENCES jobs (digest),
        round INTEGER NOT NULL,
        version INTEGER NOT NULL REFERENCES rosters (version),
        PRIMARY KEY (job, round)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS phases (
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
        session BLOB,
        state_digest BLOB NOT NULL,
        record_json TEXT,
        UNIQUE (job, round, phase)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS left_out (
        sequence INTEGER NOT NULL PRIMARY KEY,
        phase INTEGER NOT NULL REFERENCES phases (sequence),
        attempt INTEGER NOT NULL,
        silo VARCHAR NOT NULL,
        stage VARCHAR NOT NULL,
        reason VARCHAR NOT NULL,
        UNIQUE (phase, attempt, silo)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS complaints (
        sequence INTEGER NOT NULL PRIMARY KEY,
        phase INTEGER NOT NULL REFERENCES phases (sequence),
        attempt INTEGER NOT NULL,
        sender VARCHAR NOT NULL,
        accused VARCHAR NOT NULL,
        UNIQUE (phase, attempt, sender)
    )
    """,
)

# Phases have other names since, and a signed job other words: no silo continues an earlier job.
# Its rows stay as they were; a job that had not ended ends here.
_OTHER_PHASE_NAMES: Migration = (
    """
    UPDATE jobs SET status = 'failed', reason = 'the coordinator was upgraded: submit the job again'
    WHERE status IN ('running', 'paused')
    """,
)

# Silos compute the states themselves: none continues a job whose states they did not. What the draw of a job
# is made of is stored with the sum that reveals it.
_COMPUTED_STATES: Migration = (
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
    "ALTER TABLE phases ADD COLUMN self_mask_seeds JSON",
    """
    UPDATE jobs SET status = 'failed', reason = 'the coordinator was upgraded: submit the job again'
    WHERE status IN ('running', 'paused')
    """,
)

# What UNMASK resumes from is a file: it grows with the square of the number of silos, and each update of a
# row writes the whole row.
_SESSION_FILES: Migration = (
    "ALTER TABLE phases DROP COLUMN session",
    "ALTER TABLE phases ADD COLUMN session_digest BLOB",
    """
    UPDATE jobs SET status = 'failed', reason = 'the coordinator was upgraded: submit the job again'
    WHERE status IN ('running', 'paused')
    """,
)

# What comes with a refusal: the policy field that refused, or what a person who rejected the job typed.
_REFUSAL_DETAILS: Migration = (
    "ALTER TABLE left_out ADD COLUMN rule VARCHAR NOT NULL DEFAULT ''",
    "ALTER TABLE left_out ADD COLUMN text VARCHAR NOT NULL DEFAULT ''",
)

MIGRATIONS = (_FIRST, _OTHER_PHASE_NAMES, _COMPUTED_STATES, _SESSION_FILES, _REFUSAL_DETAILS)
