"""Tables of the silo's ledger, by the module that alone writes them. Source: docs/protocol.md 6, 10.

`MIGRATIONS` is what brings a file from one version to the next. There is one version so far.
"""

from __future__ import annotations

from chorale.runtime.database import Migration

LEDGER: Migration = (
    """
    CREATE TABLE jobs (
        job_digest BLOB NOT NULL PRIMARY KEY,
        name VARCHAR NOT NULL,
        operator VARCHAR NOT NULL,
        rounds INTEGER NOT NULL,
        max_attempts INTEGER NOT NULL,
        decision VARCHAR NOT NULL, -- Decision
        offered_unix_seconds FLOAT NOT NULL,
        draws_rounds BOOLEAN NOT NULL DEFAULT 0, -- its openings fix a draw, and are counted
        spec BLOB, -- as it was signed; null: a recovery recorded it
        is_over BOOLEAN NOT NULL DEFAULT 0 -- says the coordinator
    )
    """,
    """
    CREATE TABLE contents ( -- what each data set held when it was last read, for the institution's people
        data_set VARCHAR NOT NULL PRIMARY KEY, -- its name in the settings
        records INTEGER NOT NULL,
        units INTEGER, -- null: each record is one
        columns VARCHAR, -- a JSON list; null: they have no names
        read_unix_seconds FLOAT NOT NULL
    )
    """,
)
REVEALS: Migration = (
    """
    CREATE TABLE phases ( -- what the first advert for a phase bound it to
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
    CREATE TABLE reveals (
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        status VARCHAR NOT NULL, -- RevealStatus
        attempt INTEGER NOT NULL,
        state_digest BLOB NOT NULL,
        cohort_digest BLOB NOT NULL,
        data_set VARCHAR NOT NULL, -- id of an account, here and in the other tables
        survivors VARCHAR NOT NULL, -- U3, sorted, one name a line
        answer BLOB, -- PendingReveal; null once blanked
        written_unix_seconds FLOAT NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
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
        is_covered BOOLEAN NOT NULL DEFAULT 0, -- by epsilon
        UNIQUE (job_digest, round, phase, attempt)
    )
    """,
    """
    CREATE TABLE abandoned_phases ( -- never revealed by this silo, and it may have signed that
        job_digest BLOB NOT NULL,
        round INTEGER NOT NULL,
        phase VARCHAR NOT NULL,
        UNIQUE (job_digest, round, phase)
    )
    """,
)
STATE_USES: Migration = (
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
        members INTEGER NOT NULL,
        is_drawn BOOLEAN NOT NULL,
        reads INTEGER NOT NULL, -- training samples (1), hold-outs (2)
        UNIQUE (data_set, job_digest, round, phase)
    )
    """,
    "CREATE INDEX state_uses_by_arrays ON state_uses (data_set, training_digest)",
)
STEPS: Migration = (
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
KNOWN_STATES: Migration = (
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
BUDGET: Migration = (
    """
    CREATE TABLE costs ( -- what one input releases: thousands of inputs share a few of these
        digest BLOB NOT NULL PRIMARY KEY, -- SHA-256 of `releases`
        releases VARCHAR NOT NULL -- chorale.privacy.accountant.releases_to_json
    )
    """,
    # One row for each input that was computed from a data set. A spent row is never erased, nor with its job.
    """
    CREATE TABLE releases (
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
    "CREATE INDEX releases_by_cost ON releases (data_set, cost_digest, status, job_digest)",
    "CREATE INDEX releases_by_phase ON releases (job_digest, round, phase)",
    # A job's plan is fixed before its data are touched, and costs less than what is chosen as one goes.
    """
    CREATE TABLE plans (
        number INTEGER NOT NULL PRIMARY KEY, -- in the order in which jobs first touched the account's data
        account VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        cost_digest BLOB NOT NULL REFERENCES costs (digest), -- the releases, each once
        times VARCHAR NOT NULL, -- a JSON list: how often each is planned
        is_first BOOLEAN NOT NULL DEFAULT 0, -- of an account without private inputs
        sides_were_fixed BOOLEAN NOT NULL DEFAULT 0, -- of the account, at that time
        UNIQUE (account, job_digest)
    )
    """,
)
ACCOUNTS: Migration = (
    """
    CREATE TABLE accounts ( -- the delta at which everything that a data set ever released is valued
        data_set VARCHAR NOT NULL PRIMARY KEY,
        delta FLOAT NOT NULL,
        units_are_known BOOLEAN NOT NULL DEFAULT 0,
        sides_are_fixed BOOLEAN NOT NULL DEFAULT 0,
        divided_by VARCHAR -- what decided on sides first; null: nothing yet
    )
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
DECISIONS: Migration = (
    """
    CREATE TABLE persons_decisions ( -- what people of the institution said to jobs, in order
        number INTEGER NOT NULL PRIMARY KEY,
        job_digest BLOB NOT NULL,
        decision VARCHAR NOT NULL, -- Decision: approved or rejected
        person VARCHAR NOT NULL, -- the name that was typed
        reason VARCHAR NOT NULL, -- of a rejection, as the operator reads it
        required INTEGER NOT NULL, -- approvals that the policy asked for
        changes INTEGER NOT NULL, -- overlapping cohorts beyond the policy's, granted with it
        refusals INTEGER NOT NULL, -- refusals for the data beyond the policy's, granted with it
        is_open BOOLEAN NOT NULL, -- an approval that waits for another person's
        is_told BOOLEAN NOT NULL, -- in the audit log
        written_unix_seconds FLOAT NOT NULL,
        policy BLOB -- digest of the file that the person saw
    )
    """,
    "CREATE INDEX persons_decisions_by_job ON persons_decisions (job_digest)",
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
DATA_REFUSALS: Migration = (
    """
    CREATE TABLE data_refusals ( -- inputs of jobs without noise that were refused for this silo's data
        number INTEGER NOT NULL PRIMARY KEY,
        data_set VARCHAR NOT NULL,
        job_digest BLOB NOT NULL,
        written_unix_seconds FLOAT NOT NULL
    )
    """,
    "CREATE INDEX data_refusals_by_job ON data_refusals (data_set, job_digest)",
)
ROSTER_MARKS: Migration = (
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
        signer BLOB NOT NULL PRIMARY KEY, -- as above
        version INTEGER NOT NULL,
        digest BLOB NOT NULL,
        is_newest BOOLEAN NOT NULL -- accepted last, of all keys
    )
    """,
)
# What peers keep shows whether this file was put back from a snapshot.
STANDING: Migration = (
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

MIGRATIONS = (
    (
        *LEDGER,
        *REVEALS,
        *STATE_USES,
        *STEPS,
        *KNOWN_STATES,
        *BUDGET,
        *ACCOUNTS,
        *DECISIONS,
        *DATA_REFUSALS,
        *ROSTER_MARKS,
        *STANDING,
    ),
)
