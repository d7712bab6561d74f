"""The silo's memory, on disk: jobs and what was decided on them, the newest roster, the reveals.

What the ledger holds of a data set is kept under the id of its account (`data.account` of the settings).

A ledger lives on a local disk. One that is put back from a backup has forgotten what left since: the other
silos know (standing.py).
Source: docs/protocol.md 6, 10.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from chorale.job import Job
from chorale.observability import audit_head
from chorale.runtime.database import Database, Migration
from chorale.spec.fields import Moment
from chorale.spec.kinds import AnySpec
from chorale.spec.settings_file import parse_mapping
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from crypto.identity.certificates import Anchors
from crypto.identity.roster import Roster
from crypto.identity.roster_memory import RosterChanges
from crypto.session.reveal import PendingReveal
from silo_agent.disclosure.ledger import (
    accounts,
    analyses,
    budget,
    costs,
    data_refusals,
    decisions,
    known_states,
    reveals,
    roster_marks,
    signed_sets,
    standing,
    state_uses,
    steps,
)
from silo_agent.disclosure.ledger.accounts import Accounts
from silo_agent.disclosure.ledger.analyses import note_recovered
from silo_agent.disclosure.ledger.audit_trail import AuditTrail
from silo_agent.disclosure.ledger.budget import Budget, Spend
from silo_agent.disclosure.ledger.costs import Cost
from silo_agent.disclosure.ledger.data_refusals import DataRefusals
from silo_agent.disclosure.ledger.decisions import Decisions, suspend
from silo_agent.disclosure.ledger.known_states import KnownStates
from silo_agent.disclosure.ledger.reveals import Decision, Reveals
from silo_agent.disclosure.ledger.standing import check_not_put_back, settle
from silo_agent.disclosure.ledger.steps import Steps
from silo_agent.disclosure.policy.policy import Policy

TABLES: Migration = (
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
        grows_trees BOOLEAN NOT NULL DEFAULT 0, -- its rounds sum the same counts, over the same silos
        spec BLOB, -- as it was signed; null: a recovery recorded it
        is_over BOOLEAN NOT NULL DEFAULT 0 -- says the coordinator
    )
    """,
)
WRITERS = (
    reveals,
    signed_sets,
    analyses,
    state_uses,
    steps,
    known_states,
    costs,
    budget,
    accounts,
    decisions,
    data_refusals,
    roster_marks,
    standing,
    audit_head,
)
# what brings a file from one version to the next; each table stands in the module that alone writes it
MIGRATIONS = ((*TABLES, *(table for each in WRITERS for table in each.TABLES)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerJob:
    """A job that was offered to this silo. spec_bytes: as signed; None where a recovery recorded it.

    is_over: the coordinator said so, which may be a lie, and has not offered it again since. stops_data: a
    data set takes no input before the job is approved again (docs/protocol.md 6.11), also if it is over.
    """

    job_digest: bytes
    name: str
    operator: str
    rounds: int
    decision: Decision
    offered: datetime
    is_over: bool
    stops_data: bool
    spec_bytes: bytes | None = field(repr=False)

    @property
    def id(self) -> str:
        return self.job_digest.hex()[:12]

    @property
    def count(self) -> str:
        """How much training it asks for, as JobSpec.count; with steps the ledger counts spare ones, too."""
        steps = self._fields.get("steps")
        return f"{self.rounds} rounds" if steps is None else f"{steps} steps"

    def waits(self, now: datetime) -> bool:
        """Whether it needs a person's approval: one that is over or too late needs none."""
        if self.stops_data:
            return True
        if self.is_over or self.decision not in (Decision.OFFERED, Decision.SUSPENDED):
            return False
        until = self._fields.get("not_after")
        return until is None or now < TypeAdapter(Moment).validate_python(until)

    @property
    def _fields(self) -> dict[str, Any]:
        return {} if self.spec_bytes is None else parse_mapping(self.spec_bytes, source=f"job {self.id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredCharge:
    """A job that may have run since a snapshot. releases: of its whole plan; None for one without noise.

    policy: of its data set. accounts: that pay, each all of it.
    """

    job_digest: bytes
    spec: AnySpec = field(repr=False)
    policy: Policy = field(repr=False)
    accounts: tuple[str, ...]
    releases: Cost | None = field(repr=False)


class Ledger:
    """One SQLite file, 0600, shared by the agent and the commands of this machine."""

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        is_read_only: bool = False,
    ) -> None:
        """is_read_only: nothing is made or written, not even a newer version of the file."""
        if not is_read_only:
            with suppress(OSError):  # to open it then says why
                path.parent.mkdir(parents=True, exist_ok=True)
        self._database = Database(
            path,
            MIGRATIONS,
            erases_for_good=True,
            is_read_only=is_read_only,  # shares, once they are blanked
        )
        self._clock = clock

    def close(self) -> None:
        self._database.close()

    def reveals(
        self, *, policy: Policy, data_set: str, tell: Callable[[PendingReveal], None] = lambda _: None
    ) -> Reveals:
        """The reveal rule under this policy, for one data set.

        tell: called for every reveal when it is durable and before a share leaves.
        """
        return Reveals(self._database, policy=policy, data_set=data_set, clock=self._clock, tell=tell)

    def budget(
        self,
        *,
        policy: Policy,
        data_set: str,
        budgets: Collection[float] = (),
        tell: Callable[[Spend], None] = lambda _: None,
    ) -> Budget:
        """What an account has released and may still release under this policy. As `Budget`."""
        return Budget(
            self._database, policy=policy, data_set=data_set, budgets=budgets, clock=self._clock, tell=tell
        )

    def audit_trail(self, path: Path) -> AuditTrail:
        """What the audit log at that path says of this ledger."""
        return AuditTrail(self._database, path)

    def accounts(self) -> Accounts:
        """What data sets are charged to."""
        return Accounts(self._database, clock=self._clock)

    def data_refusals(self, *, policy: Policy, data_set: str, is_private: bool = False) -> DataRefusals:
        """How often inputs were refused for one data set, and how often they still may be. is_private: of
        private jobs, which are counted by themselves."""
        return DataRefusals(
            self._database, policy=policy, data_set=data_set, clock=self._clock, is_private=is_private
        )

    def known_states(self) -> KnownStates:
        """The global states that this silo knows to be computed."""
        return KnownStates(self._database)

    def steps(self, *, policy: Policy, data_set: str) -> Steps:
        """How far global states moved, beside this silo's own steps on one data set."""
        return Steps(self._database, policy=policy, data_set=data_set)

    def record_job(self, job: Job, *, is_approved: bool) -> tuple[Decision, bool]:
        """Remember an offered job; what was decided before stays.

        Returns the decision in force, and whether the job was never offered before. Raises
        PolicyRefusal(code=JOB_INVALID) for one that was offered as another operator's: an approval is of who
        asked, too.
        """
        decision = Decision.APPROVED if is_approved else Decision.OFFERED
        with self._database.reading() as connection:
            known = connection.execute(
                "SELECT operator, decision, draws_rounds, grows_trees, is_over,"
                " spec IS NOT NULL AND operator != '' AS is_told FROM jobs WHERE job_digest = ?",
                (job.digest,),
            ).fetchone()
        if known is not None and known["operator"] not in (job.operator, ""):
            raise PolicyRefusal(
                f"job {job.id}: was offered here as a job of {known['operator']}, and {job.operator} "
                "signed it",
                code=Refusal.JOB_INVALID,
            )
        of_rounds = {"draws_rounds": job.spec.draws_rounds, "grows_trees": job.spec.grows_trees}
        is_whole = (
            known is not None
            and known["is_told"]
            and all(known[name] == value for name, value in of_rounds.items())
        )
        is_open = is_approved and known is not None and known["decision"] == Decision.OFFERED
        if is_whole and not is_open and not known["is_over"]:
            return Decision(known["decision"]), False
        with self._database.transaction() as connection:
            added = connection.execute(
                "INSERT INTO jobs (job_digest, name, operator, rounds, max_attempts, decision,"
                " offered_unix_seconds, spec) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (job_digest) DO NOTHING",
                (
                    job.digest,
                    job.spec.name,
                    job.operator,
                    job.spec.rounds,
                    job.spec.max_attempts,
                    decision,
                    self._clock().timestamp(),
                    job.signed.spec_bytes,
                ),
            )
            connection.execute(  # of a job that a recovery recorded, too
                "UPDATE jobs SET draws_rounds = :draws_rounds, grows_trees = :grows_trees, is_over = 0"
                " WHERE job_digest = :job",
                of_rounds | {"job": job.digest},
            )
            connection.execute(
                "UPDATE jobs SET spec = ? WHERE job_digest = ? AND spec IS NULL",
                (job.signed.spec_bytes, job.digest),
            )
            connection.execute(  # of a job that a recovery charged
                "UPDATE jobs SET operator = ? WHERE job_digest = ? AND operator = ''",
                (job.operator, job.digest),
            )
            if is_approved:
                connection.execute(
                    "UPDATE jobs SET decision = ? WHERE job_digest = ? AND decision = ?",
                    (Decision.APPROVED, job.digest, Decision.OFFERED),
                )
            (found,) = connection.execute(
                "SELECT decision FROM jobs WHERE job_digest = ?", (job.digest,)
            ).fetchone()
        return Decision(found), added.rowcount == 1

    def jobs(self) -> list[LedgerJob]:
        """Every job ever offered, newest first."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT *, job_digest IN (SELECT job_digest FROM stopped_data_sets) AS stops_data FROM jobs"
                " ORDER BY offered_unix_seconds DESC"
            ).fetchall()
        return [
            LedgerJob(
                job_digest=row["job_digest"],
                name=row["name"],
                operator=row["operator"],
                rounds=row["rounds"],
                decision=Decision(row["decision"]),
                offered=datetime.fromtimestamp(row["offered_unix_seconds"], UTC),
                is_over=bool(row["is_over"]),
                stops_data=bool(row["stops_data"]),
                spec_bytes=row["spec"],
            )
            for row in rows
        ]

    def spec_bytes(self, job_digest: bytes) -> bytes | None:
        """A recorded job as it was signed; None where there is none, or a recovery recorded it."""
        with self._database.reading() as connection:
            found = connection.execute("SELECT spec FROM jobs WHERE job_digest = ?", (job_digest,)).fetchone()
        return None if found is None else found["spec"]

    def decision(self, job_digest: bytes) -> Decision | None:
        """What is in force for a job; None if it was never offered."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT decision FROM jobs WHERE job_digest = ?", (job_digest,)
            ).fetchone()
        return None if found is None else Decision(found["decision"])

    def job(self, job_id: str) -> LedgerJob:
        """The job whose digest begins with `job_id`. Raises ConfigError unless it is one job."""
        found = [job for job in self.jobs() if job.job_digest.hex().startswith(job_id.lower())]
        if len(found) != 1:
            what = f"{len(found)} begin" if found else "none begins"
            raise ConfigError(f"job {job_id}: expected the id of one offered job, {what} with it")
        return found[0]

    def decisions(self) -> Decisions:
        """What people said to jobs, and say now."""
        return Decisions(self._database, clock=self._clock)

    def suspend(self, job_digest: bytes) -> None:
        """Stop serving an approved job until it is approved again; durable on return."""
        with self._database.transaction() as connection:
            suspend(connection, job_digest)

    def note_over(self, job_digest: bytes) -> bool:
        """The coordinator says that the job has ended: it is shown as over until it is offered again.

        Whether that is news of a job that was offered here.
        """
        with self._database.transaction() as connection:
            changed = connection.execute(
                "UPDATE jobs SET is_over = 1 WHERE job_digest = ? AND NOT is_over", (job_digest,)
            )
        return changed.rowcount == 1

    def check_not_put_back(self) -> None:
        """Raises PolicyRefusal(code=LEDGER) for a ledger that forgot what this silo said of it."""
        with self._database.reading() as connection:
            check_not_put_back(connection)

    @property
    def last_reserved(self) -> datetime | None:
        """When room was made for the last input; None before the first."""
        with self._database.reading() as connection:
            found = connection.execute(
                "SELECT written_unix_seconds FROM releases ORDER BY rowid DESC LIMIT 1"
            ).fetchone()
        return None if found is None else datetime.fromtimestamp(found["written_unix_seconds"], UTC)

    def recover(self, charges: Sequence[RecoveredCharge]) -> None:
        """Charge and reject jobs that may have run since a snapshot, and serve others again.

        What peers keep of this silo up to now stops it no more.
        """
        budgets = [
            [self.budget(policy=charge.policy, data_set=account) for account in charge.accounts]
            for charge in charges
        ]
        now = self._clock().timestamp()
        with self._database.transaction() as connection:
            for charge, of_accounts in zip(charges, budgets, strict=True):
                for budget in of_accounts:
                    budget.charge_plan(connection, charge.job_digest, charge.releases)
                spec = charge.spec
                if spec.sums_cells:
                    note_recovered(connection, charge.job_digest, charge.accounts)
                connection.execute(  # one that the ledger does not hold must not be approved by itself
                    "INSERT INTO jobs (job_digest, name, operator, rounds, max_attempts, decision,"
                    " offered_unix_seconds) VALUES (?, ?, '', ?, ?, ?, ?)"
                    " ON CONFLICT (job_digest) DO UPDATE SET decision = excluded.decision",
                    (charge.job_digest, spec.name, spec.rounds, spec.max_attempts, Decision.REJECTED, now),
                )
            settle(connection, unix_seconds=now)

    def accept_roster(
        self, roster: Roster, *, authority: Anchors, lowest_version: int
    ) -> RosterChanges | None:
        """Make it the newest roster seen. Returns what it changes; None where it was the newest before.

        What a key signed that the authority's certificates no longer have is not compared.
        Raises PolicyRefusal(code=ROSTER) for an older one, and RemoteProtocolError(code=ROSTER) for one that
        lists a certificate which left an accepted one, and does not say that it was readmitted, or whose
        version is far beyond the newest.
        """
        with self._database.transaction() as connection:
            return roster_marks.accept(connection, roster, authority=authority, lowest_version=lowest_version)

    @property
    def roster_version(self) -> int:
        """The version accepted last; 0 before the first."""
        with self._database.reading() as connection:
            return roster_marks.newest_version(connection)

    def costs_of(self, job_digest: bytes) -> dict[str, str]:
        """What the inputs of a job release, as texts by their SHA-256, as the audit log names them."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT DISTINCT digest, costs.releases FROM costs JOIN releases ON cost_digest = digest"
                " WHERE job_digest = ?",
                (job_digest,),
            ).fetchall()
        return {row["digest"].hex(): row["releases"] for row in rows}
