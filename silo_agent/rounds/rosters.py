"""The rosters that this silo accepted: the newest, and those that running rounds began with.

Source: docs/protocol.md 1, 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import Identity, SignedBody
from crypto.identity.roster import Roster, open_roster
from crypto.identity.roster_memory import RosterChanges
from silo_agent.connection.own_certificates import OwnCertificates
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.rounds.data_sets import DataSets

HELD_VERSIONS = 8  # rounds that run begin with one of the last few

REFUSED_EVENT = "roster refused"  # audit entry: a roster of the authority that this silo does not accept

log = get_logger("silo_agent.rounds.rosters")


class Rosters:
    """Never goes back to an older version, in this run of the agent or a later one."""

    def __init__(
        self,
        *,
        credentials: OwnCertificates,
        ledger: Ledger,
        data_sets: DataSets,
        lowest_version: int,
        audit: AuditLog,
        clock: Callable[[], datetime],
    ) -> None:
        self._credentials = credentials
        self._max_age = timedelta(days=data_sets.max_roster_age_days)
        self._ledger = ledger
        self._data_sets = data_sets
        self._lowest_version = lowest_version
        self._audit = audit
        self._clock = clock
        self._refused: set[bytes] = set()  # digests; each is told once, however often it is relayed
        self._held: dict[int, Roster] = {}

    def take(self, signed: SignedBody) -> Roster:
        """Accept a relayed roster. Raises PolicyRefusal or RemoteProtocolError(code=ROSTER)."""
        authority = self._credentials.authority
        roster = open_roster(
            signed,
            authority=authority,
            federation=self._credentials.member.federation,
            now=self._clock(),
            max_age=self._max_age,
        )
        try:
            changes = self._ledger.accept_roster(
                roster, authority=authority, lowest_version=self._lowest_version
            )
        except (PolicyRefusal, RemoteProtocolError) as error:
            if roster.digest not in self._refused:
                self._refused.add(roster.digest)
                self._audit.append(
                    REFUSED_EVENT, version=roster.version, digest=roster.digest, reason=str(error)
                )
            raise
        if roster.version not in self._held:
            log.info("roster accepted", version=roster.version, members=len(roster.members))
        if changes is not None:
            _tell(changes, version=roster.version)
        self._held[roster.version] = roster
        for version in sorted(self._held)[:-HELD_VERSIONS]:
            del self._held[version]
        return roster

    @property
    def version(self) -> int:
        """The newest version that this silo ever accepted; 0 before the first."""
        return self._ledger.roster_version

    @property
    def newest(self) -> Roster | None:
        """The newest that was accepted in this run, whether or not it still holds; None before the first."""
        return self._held[max(self._held)] if self._held else None

    @property
    def current(self) -> Roster:
        """The newest, if it still holds. Raises RemoteProtocolError(code=ROSTER)."""
        newest = self.newest
        if newest is None:
            raise RemoteProtocolError("roster: the coordinator has relayed none", code=Refusal.ROSTER)
        return self.check(newest)

    def for_phase(self, job_digest: bytes, round: int, phase: str) -> Roster:
        """The roster that this silo first adverted under in the round, else the newest."""
        bound = self._data_sets.any_reveals.bound_roster(job_digest, round, phase)
        if bound is None or bound not in self._held:
            return self.current
        return self.check(self._held[bound])

    def own_in(self, job_digest: bytes, round: int, phase: str) -> Identity:
        """The certificate and key under which this silo takes part in the round."""
        bound = self._data_sets.any_reveals.bound_roster(job_digest, round, phase)
        roster = self.newest if bound is None else self._held.get(bound, self.newest)
        return self._credentials.identity if roster is None else self._credentials.of(roster)

    def check_own_entry(self, roster: Roster) -> None:
        """Raises RemoteProtocolError(code=ROSTER) if it does not hold this silo's certificate."""
        if not self._credentials.is_listed(roster):
            name = self._credentials.member.name
            raise RemoteProtocolError(
                f"roster: version {roster.version} does not hold silo {name} with this certificate",
                code=Refusal.ROSTER,
            )

    def check(self, roster: Roster) -> Roster:
        """One that was accepted, if it holds today. Raises RemoteProtocolError(code=ROSTER)."""
        now = self._clock()
        roster.check_trusted(self._credentials.authority, now)
        roster.check_current(now, max_age=self._max_age)
        self.check_own_entry(roster)
        return roster


def _tell(changes: RosterChanges, *, version: int) -> None:
    """A member whose certificate is another one may be somebody else: people must be able to see it."""
    for old, new in changes.renewed:
        log.warning(
            "certificate of a member changed",
            version=version,
            member=new.title,
            before=old.fingerprint.hex()[:16],
            now=new.fingerprint.hex()[:16],
        )
    for member in changes.readmitted:
        log.warning("member readmitted", version=version, member=member.title)
