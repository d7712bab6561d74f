"""Schema of the silo's ledger, version by version. Source: docs/protocol.md 6, 10.

A migration never changes once it was released: a file of its version may lie anywhere.
"""

from __future__ import annotations

from chorale.runtime.database import Migration
from silo_agent.ledger.early_migrations import EARLY_MIGRATIONS

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

# Which account a data set has follows from its settings alone.
_ACCOUNTS_OF_SETTINGS: Migration = (
    "DROP VIEW charges",
    "DROP TABLE also_charged",
    "DROP TABLE own_accounts",
    "ALTER TABLE accounts DROP COLUMN is_generation",
    "ALTER TABLE accounts ADD COLUMN divided_by VARCHAR",  # what decided on sides first; null: nothing yet
)

MIGRATIONS = (
    *EARLY_MIGRATIONS,
    _DATA_REFUSALS,
    _LISTED_CERTIFICATES,
    _ACCOUNTS_OF_UNITS,
    _PLANS,
    _STANDING,
    _FIRST_PLANS,
    _PERSONS_DECISIONS,
    _READS_OF_USES,
    (
        "ALTER TABLE jobs ADD COLUMN is_over BOOLEAN NOT NULL DEFAULT 0",  # as the coordinator says
        "ALTER TABLE persons_decisions ADD COLUMN policy BLOB",  # digest of it; null: an earlier version
    ),
    (
        """
        CREATE TABLE contents ( -- what each data set held when it was last read, for the institution's people
            data_set VARCHAR NOT NULL PRIMARY KEY, -- its name in the settings
            records INTEGER NOT NULL,
            units INTEGER, -- null: each record is one
            columns VARCHAR, -- a JSON list; null: they have no names
            read_unix_seconds FLOAT NOT NULL
        )
        """,
    ),
    _ACCOUNTS_OF_SETTINGS,
)
