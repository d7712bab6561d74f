"""The first twelve versions of the ledger's schema, as migrations.py has the later ones."""

from __future__ import annotations

from chorale.runtime.database import Migration

# Files from before versions were counted hold these very tables.
_FIRST: Migration = (
    """
    CREATE TABLE IF NOT EXISTS jobs (
        job_digest BLOB NOT NULL PRIMARY KEY,
        name VARCHAR NOT NULL,
        operator VARCHAR NOT NULL,
        rounds INTEGER NOT NULL,
        max_attempts INTEGER NOT NULL,
        decision VARCHAR NOT NULL, -- Decision
        offered_unix_seconds FLOAT NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS phases ( -- what the first advert for a phase bound it to
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        roster_version INTEGER NOT NULL,
        roster_digest BLOB NOT NULL,
        state_digest BLOB NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS reveals (
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        status VARCHAR NOT NULL, -- RevealStatus
        attempt INTEGER NOT NULL,
        state_digest BLOB NOT NULL,
        cohort_digest BLOB NOT NULL,
        data_set VARCHAR NOT NULL,
        survivors VARCHAR NOT NULL, -- U3, sorted, one name a line
        answer BLOB, -- PendingReveal; null once blanked
        written_unix_seconds FLOAT NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS signed_sets (
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        attempt INTEGER NOT NULL,
        kind VARCHAR NOT NULL,
        data_set VARCHAR NOT NULL,
        survivors VARCHAR NOT NULL,
        min_cohort INTEGER NOT NULL,
        UNIQUE (job_digest, round, phase, attempt)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS cohort_changes (
        job_digest BLOB NOT NULL,
        kind VARCHAR NOT NULL,
        survivors VARCHAR NOT NULL,
        UNIQUE (job_digest, kind, survivors)
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS roster_mark (
        only INTEGER NOT NULL PRIMARY KEY, -- always 1
        version INTEGER NOT NULL,
        digest BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS costs ( -- what one input releases: thousands of inputs share a few of these
        digest BLOB NOT NULL PRIMARY KEY, -- SHA-256 of `releases`
        releases VARCHAR NOT NULL -- chorale.privacy.accountant.releases_to_json
    )
    """,
    # One row for each input that was computed from a data set. A spent row is never erased, nor with its job.
    """
    CREATE TABLE IF NOT EXISTS releases (
        input_id BLOB NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        cost_digest BLOB REFERENCES costs (digest), -- null: a job without privacy
        delta FLOAT NOT NULL, -- the policy's when it was reserved; today's is what counts
        status VARCHAR NOT NULL, -- ReleaseStatus
        process BLOB NOT NULL, -- of whom reserved it
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    """
    CREATE INDEX IF NOT EXISTS releases_by_cost ON releases (data_set, cost_digest, status, job_digest)
    """,
    "CREATE INDEX IF NOT EXISTS releases_by_phase ON releases (job_digest, round, phase)",
)

# A change of the cohort counts each time and not once for each set, so the sets have an order, and each says
# whether it counted.
_EVERY_CHANGE_COUNTS: Migration = (
    "ALTER TABLE signed_sets RENAME TO unordered_sets",
    """
    CREATE TABLE signed_sets ( -- every U3 that this silo signed and that others' shares may have revealed
        number INTEGER NOT NULL PRIMARY KEY, -- in the order of signing
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        attempt INTEGER NOT NULL,
        kind VARCHAR NOT NULL,
        data_set VARCHAR NOT NULL,
        survivors VARCHAR NOT NULL,
        min_cohort INTEGER NOT NULL,
        is_change BOOLEAN NOT NULL, -- counts against the policy's max_cohort_changes
        UNIQUE (job_digest, round, phase, attempt)
    )
    """,
    """
    INSERT INTO signed_sets
    SELECT rowid, job_digest, round, phase, attempt, kind, data_set, survivors, min_cohort, 0
    FROM unordered_sets
    """,
    # An older file does not tell in which phase a set counted, and that phase's set may be erased. So each
    # change still counts as a row of its own: of a phase that never was, and of no data set, so that no
    # cohort is compared with it.
    """
    INSERT INTO signed_sets
    SELECT -rowid, job_digest, -rowid, kind, 0, kind, '', survivors, 0, 1 FROM cohort_changes
    """,
    "DROP TABLE unordered_sets",
    "DROP TABLE cohort_changes",
)

# Cohorts are compared by kind over all jobs of a data set, those under its earlier name included. `phase`
# stays in all tables as it was signed, and as the audit log tells it.
_OTHER_PHASE_NAMES: Migration = (
    """
    UPDATE signed_sets SET kind = CASE kind
        WHEN 'roll-call' THEN 'enrollment'
        WHEN 'presence' THEN 'class-presence'
        WHEN 'personal' THEN 'fine-tune'
        ELSE kind
    END
    """,
)

# States that silos compute themselves. A job of before has none: no silo continues it.
_COMPUTED_STATES: Migration = (
    """
    CREATE TABLE known_states ( -- the newest of each job
        job_digest BLOB NOT NULL PRIMARY KEY,
        round INTEGER NOT NULL, -- of the phase that it is the outcome of: round, stage and number
        stage INTEGER NOT NULL,
        number INTEGER NOT NULL,
        state_digest BLOB NOT NULL,
        draw_seed BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE next_states ( -- what this silo signed as the outcome of a phase
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        body BLOB NOT NULL,
        signature BLOB NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE sum_checks ( -- what checks U3 and the sum of an attempt; of the newest rounds
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        attempt INTEGER NOT NULL,
        sum_check BLOB NOT NULL, -- SumCheck
        UNIQUE (job_digest, round, phase, attempt)
    )
    """,
    """
    CREATE TABLE bad_sums ( -- phases whose sum failed its check
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
)

# A ledger of before takes the delta of the first start with this version (Budget.open_account).
_ACCOUNTS: Migration = (
    """
    CREATE TABLE accounts ( -- the delta at which everything that a data set ever released is valued
        data_set VARCHAR NOT NULL PRIMARY KEY,
        delta FLOAT NOT NULL
    )
    """,
)

# Openings are counted where they fix a draw. An earlier file holds none that does.
_DRAWS: Migration = ("ALTER TABLE jobs ADD COLUMN draws_rounds BOOLEAN NOT NULL DEFAULT 0",)

# Changes of the cohort are counted by data set, over jobs and kinds; what epsilon covers is not one.
_GRANTED_CHANGES: Migration = (
    "ALTER TABLE signed_sets ADD COLUMN is_covered BOOLEAN NOT NULL DEFAULT 0",
    """
    CREATE TABLE cohort_change_grants ( -- further changes of the cohort that the institution allows a job
        number INTEGER NOT NULL PRIMARY KEY,
        job_digest BLOB NOT NULL,
        data_set VARCHAR NOT NULL,
        changes INTEGER NOT NULL,
        is_told BOOLEAN NOT NULL, -- to the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
)

_STATE_USES: Migration = (
    """
    CREATE TABLE state_uses ( -- phases whose input was made from training arrays and may have left
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        training_digest BLOB NOT NULL, -- of the arrays
        min_distance INTEGER NOT NULL,
        survivors VARCHAR, -- U3, sorted, one name a line, once t signatures prove it
        written_unix_seconds FLOAT NOT NULL,
        UNIQUE (data_set, job_digest, round, phase)
    )
    """,
    "CREATE INDEX state_uses_by_arrays ON state_uses (data_set, training_digest)",
    """
    CREATE TABLE abandoned_phases ( -- never revealed by this silo, and it may have signed that
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
)

_STEPS: Migration = (
    """
    CREATE TABLE array_steps ( -- how far the arrays that training reads moved, and this silo's own part
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        array VARCHAR NOT NULL,
        total FLOAT NOT NULL,
        own_total FLOAT NOT NULL,
        first VARCHAR NOT NULL, -- this silo's first lengths, a JSON list
        UNIQUE (data_set, job_digest, array)
    )
    """,
    """
    CREATE TABLE compared_phases ( -- whose step is in array_steps
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (data_set, job_digest, round, phase)
    )
    """,
    """
    CREATE TABLE stopped_data_sets ( -- no input leaves until the job is approved again
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        UNIQUE (data_set, job_digest)
    )
    """,
)

# What is approved is said in words of the job itself; of jobs offered before, it is not there.
_JOBS_AS_SIGNED: Migration = ("ALTER TABLE jobs ADD COLUMN spec BLOB",)

_MEMBERS_OF_USES: Migration = ("ALTER TABLE state_uses ADD COLUMN members INTEGER NOT NULL DEFAULT 0",)
_DRAWN_USES: Migration = ("ALTER TABLE state_uses ADD COLUMN is_drawn BOOLEAN NOT NULL DEFAULT FALSE",)

EARLY_MIGRATIONS = (
    _FIRST,
    _EVERY_CHANGE_COUNTS,
    _OTHER_PHASE_NAMES,
    _COMPUTED_STATES,
    _DRAWS,
    _ACCOUNTS,
    _GRANTED_CHANGES,
    _STATE_USES,
    _STEPS,
    _JOBS_AS_SIGNED,
    _MEMBERS_OF_USES,
    _DRAWN_USES,
)
