"""Schema of the silo's ledger, version by version. Source: docs/protocol.md 6, 10.

A migration never changes once it was released: a file of its version may lie anywhere.
"""

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

_DATA_REFUSALS: Migration = (
    """
    CREATE TABLE data_refusals ( -- inputs of jobs without noise that were refused for this silo's data
        number INTEGER NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    "CREATE INDEX data_refusals_by_job ON data_refusals (data_set, job_digest)",
    """
    CREATE TABLE data_refusal_grants ( -- refusals that the institution allowed a job beyond its policy
        number INTEGER NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        refusals INTEGER NOT NULL,
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
)

_LISTED_CERTIFICATES: Migration = (
    """
    CREATE TABLE listed_certificates ( -- of members, in rosters that were accepted
        fingerprint BLOB NOT NULL PRIMARY KEY, -- SHA-256 of the certificate's DER
        role VARCHAR NOT NULL,
        name VARCHAR NOT NULL,
        is_listed BOOLEAN NOT NULL -- in the one that was accepted last
    )
    """,
    """
    CREATE TABLE departures ( -- of certificates, by the authority's key that signed the roster without them
        fingerprint BLOB NOT NULL,
        signer BLOB NOT NULL, -- SHA-256 of the key's SubjectPublicKeyInfo
        left_in INTEGER NOT NULL, -- the first accepted version of that key that did not list it
        PRIMARY KEY (fingerprint, signer)
    )
    """,
    """
    CREATE TABLE roster_marks ( -- the newest accepted roster of each of the authority's keys
        signer BLOB NOT NULL PRIMARY KEY, -- as above; empty: of an earlier release, which did not note it
        version INTEGER NOT NULL,
        digest BLOB NOT NULL,
        is_newest BOOLEAN NOT NULL -- accepted last, of all keys
    )
    """,
    """
    INSERT INTO roster_marks (signer, version, digest, is_newest)
    SELECT x'', version, digest, 1 FROM roster_mark
    """,
    "DROP TABLE roster_mark",
)

# From here on `data_set` of every table is the id of an account. Each name of before is an account of that
# id; its units are learned when the agent next starts, and on which sides they were is not known.
_ACCOUNTS_OF_UNITS: Migration = (
    "ALTER TABLE accounts ADD COLUMN units_are_known BOOLEAN NOT NULL DEFAULT 0",
    "ALTER TABLE accounts ADD COLUMN sides_are_fixed BOOLEAN NOT NULL DEFAULT 0",
    "ALTER TABLE accounts ADD COLUMN is_generation BOOLEAN NOT NULL DEFAULT 0",
    """
    CREATE TABLE own_accounts ( -- of the data sets that an agent started with
        data_set VARCHAR NOT NULL PRIMARY KEY, -- its name in the settings
        account VARCHAR NOT NULL,
        also VARCHAR NOT NULL, -- a JSON list of the other accounts that its inputs are charged to
        is_told BOOLEAN NOT NULL DEFAULT 0 -- in the audit log
    )
    """,
    """
    INSERT INTO own_accounts (data_set, account, also)
    SELECT data_set, data_set, '[]' FROM (SELECT data_set FROM accounts UNION SELECT data_set FROM releases)
    """,
    """
    CREATE TABLE unit_marks ( -- each unit belongs to the account that saw it first
        number INTEGER NOT NULL PRIMARY KEY,
        account VARCHAR NOT NULL,
        is_held_out BOOLEAN NOT NULL, -- when it was first seen
        marks BLOB NOT NULL -- 16 bytes each, sorted: HMAC-SHA256 by the silo's unit.key
    )
    """,
    "CREATE INDEX unit_marks_by_account ON unit_marks (account, is_held_out)",
    """
    CREATE TABLE unit_keys ( -- what tells the key of the marks from another
        only INTEGER NOT NULL PRIMARY KEY, -- always 1
        digest BLOB NOT NULL
    )
    """,
    """
    CREATE TABLE also_charged ( -- the other accounts that an input is charged to
        account VARCHAR NOT NULL,
        input_id BLOB NOT NULL REFERENCES releases (input_id) ON DELETE CASCADE,
        PRIMARY KEY (account, input_id)
    )
    """,
    "CREATE INDEX also_charged_by_input ON also_charged (input_id)",
    """
    CREATE VIEW charges AS -- every input under each account that it is charged to
    SELECT data_set AS account, input_id, job_digest, round, phase, cost_digest, status FROM releases
    UNION ALL
    SELECT also_charged.account, input_id, job_digest, round, phase, cost_digest, status
    FROM also_charged JOIN releases USING (input_id)
    """,
)

# A job's plan is fixed before its data are touched, and costs less than what is chosen as one goes.
_PLANS: Migration = (
    """
    CREATE TABLE plans (
        number INTEGER NOT NULL PRIMARY KEY, -- in the order in which jobs first touched the account's data
        account VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        cost_digest BLOB NOT NULL REFERENCES costs (digest), -- the releases, each once
        times VARCHAR NOT NULL, -- a JSON list: how often each is planned
        UNIQUE (account, job_digest)
    )
    """,
    """
    CREATE TABLE delta_changes ( -- by an administrator: everything of the account is valued at the new one
        number INTEGER NOT NULL PRIMARY KEY,
        account VARCHAR NOT NULL,
        delta_before FLOAT NOT NULL,
        delta FLOAT NOT NULL,
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
)

# What peers keep shows whether this file was put back from a snapshot. A file of before said nothing yet.
_STANDING: Migration = (
    """
    CREATE TABLE own_heads ( -- what this silo's adverts said of this ledger
        sequence INTEGER NOT NULL PRIMARY KEY,
        head BLOB NOT NULL -- a chain over the inputs that were reserved
    )
    """,
    """
    CREATE TABLE ledger_key (
        only INTEGER NOT NULL PRIMARY KEY, -- always 1
        key BLOB NOT NULL, -- of the marks
        settled INTEGER NOT NULL, -- what was said up to here and lost is charged
        newest_lost INTEGER -- null, or the sequence of a statement of this silo that is not in own_heads
    )
    """,
    """
    CREATE TABLE peer_statements ( -- of each other silo, what it said last of its ledger
        silo VARCHAR NOT NULL PRIMARY KEY,
        sequence INTEGER NOT NULL,
        mark BLOB NOT NULL,
        signature BLOB NOT NULL
    )
    """,
)

# Which plan is the first is decided once. A ledger of before has an order, and no first plan where a job
# without one is in it.
_FIRST_PLANS: Migration = (
    # of an account without private inputs
    "ALTER TABLE plans ADD COLUMN is_first BOOLEAN NOT NULL DEFAULT 0",
    # of the account, at that time
    "ALTER TABLE plans ADD COLUMN sides_were_fixed BOOLEAN NOT NULL DEFAULT 0",
    """
    UPDATE plans SET is_first = 1, sides_were_fixed = coalesce(
        (SELECT sides_are_fixed FROM accounts WHERE data_set = plans.account), 0)
    WHERE number = (SELECT min(number) FROM plans AS other WHERE other.account = plans.account)
    AND NOT EXISTS (
        SELECT 1 FROM charges WHERE charges.account = plans.account AND cost_digest IS NOT NULL
        AND job_digest NOT IN (SELECT job_digest FROM plans AS other WHERE other.account = plans.account)
    )
    """,
)

# A job that an earlier version approved or rejected stays so; nobody's name was kept then.
_PERSONS_DECISIONS: Migration = (
    """
    CREATE TABLE persons_decisions ( -- what people of the institution said to jobs, in order
        number INTEGER NOT NULL PRIMARY KEY,
        job_digest BLOB NOT NULL,
        decision VARCHAR NOT NULL, -- Decision: approved or rejected
        person VARCHAR NOT NULL, -- the name that was typed
        reason VARCHAR NOT NULL, -- of a rejection, as the operator is told it
        required INTEGER NOT NULL, -- approvals that the policy asked for
        changes INTEGER NOT NULL, -- overlapping cohorts beyond the policy's, granted with it
        refusals INTEGER NOT NULL, -- refusals for the data beyond the policy's, granted with it
        is_open BOOLEAN NOT NULL, -- an approval that waits for another person's
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    "CREATE INDEX persons_decisions_by_job ON persons_decisions (job_digest)",
)

# What a sum of before tells of: training samples (1) and hold-outs (2).
_READS_OF_USES: Migration = ("ALTER TABLE state_uses ADD COLUMN reads INTEGER NOT NULL DEFAULT 3",)

MIGRATIONS = (
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
    _DATA_REFUSALS,
    _LISTED_CERTIFICATES,
    _ACCOUNTS_OF_UNITS,
    _PLANS,
    _STANDING,
    _FIRST_PLANS,
    _PERSONS_DECISIONS,
    _READS_OF_USES,
)
