"""What the rosters that a party has seen say together: who is in, and which certificates have left.

The authority keeps it of those that it signed, coordinator and silos of those that they accepted. A
certificate that has left comes back only where the roster says so. Source: docs/protocol.md 1.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.roster import MAX_VERSION_STEP, Member, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterChanges:
    """What a roster changes. renewed: members before and after, whose certificate is another one.
    readmitted: members whose certificate had left; they stand in `joined` or `renewed` too."""

    joined: tuple[Member, ...]
    left: tuple[Member, ...]
    renewed: tuple[tuple[Member, Member], ...]
    readmitted: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterMemory:
    """members: of the newest roster. left: by fingerprint, the first version seen that did not list it.
    version: of the newest; 0 before the first, and then the next may have any."""

    version: int = 0
    members: tuple[Member, ...] = ()
    left: Mapping[bytes, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, rosters: Iterable[Roster]) -> RosterMemory:
        """Of rosters in order of version, none of which is doubted."""
        memory = cls()
        for roster in rosters:
            memory = memory.after(roster)
        return memory

    def check(self, roster: Roster) -> None:
        """Raises RemoteProtocolError(code=ROSTER) if a certificate is back that left, and was not readmitted
        since, or for a version so high that the authority could not go on from it for long."""
        if self.version and roster.version > self.version + MAX_VERSION_STEP:
            raise RemoteProtocolError(
                f"roster: version {roster.version} follows version {self.version}, expected at most "
                f"{MAX_VERSION_STEP} more",
                code=Refusal.ROSTER,
            )
        for member in roster.members:
            left_in = self.left.get(member.fingerprint, 0)
            if left_in and member.readmitted_in <= left_in:
                raise RemoteProtocolError(
                    f"roster: version {roster.version} lists a certificate of {member.title} that left in "
                    f"version {left_in}, and does not say that it was readmitted since",
                    code=Refusal.ROSTER,
                )

    def changes(self, roster: Roster) -> RosterChanges:
        """From the newest roster to a later one."""
        before = {(member.role, member.name): member for member in self.members}
        after = {(member.role, member.name): member for member in roster.members}
        return RosterChanges(
            joined=tuple(member for key, member in after.items() if key not in before),
            left=tuple(member for key, member in before.items() if key not in after),
            renewed=tuple(
                (before[key], member)
                for key, member in after.items()
                if key in before and before[key] != member
            ),
            readmitted=tuple(member for member in roster.members if member.fingerprint in self.left),
        )

    def after(self, roster: Roster) -> RosterMemory:
        """With a later roster as the newest."""
        listed = {member.fingerprint for member in roster.members}
        gone = {member.fingerprint for member in self.members} - listed
        staying = {key: version for key, version in self.left.items() if key not in listed}
        return RosterMemory(
            version=roster.version,
            members=roster.members,
            left=MappingProxyType(staying | dict.fromkeys(gone, roster.version)),
        )
