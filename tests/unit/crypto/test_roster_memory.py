"""A certificate that left comes back only where a roster says so, whichever versions a party saw."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from crypto.errors import Refusal, RemoteProtocolError
from crypto.identity.certificates import Role, SignedBody
from crypto.identity.roster import Member, Roster
from crypto.identity.roster_memory import RosterMemory

A1, A2 = (Member(Role.SILO, "a", bytes([place] * 32)) for place in (1, 2))
B, HUB = Member(Role.SILO, "b", bytes([3] * 32)), Member(Role.COORDINATOR, "hub", bytes([4] * 32))


def roster(version: int, *members: Member) -> Roster:
    issued = datetime(2026, 11, 21, tzinfo=UTC)
    return Roster(
        federation="test",
        version=version,
        issued=issued,
        expires=issued + timedelta(days=1),
        members=tuple(sorted(members)),
        signed=SignedBody(body=b"", signature=b""),
    )


def refuses(memory: RosterMemory, later: Roster, message: str) -> None:
    with pytest.raises(RemoteProtocolError, match=message) as caught:
        memory.check(later)
    assert caught.value.code is Refusal.ROSTER


def back(member: Member, version: int) -> Member:
    return replace(member, readmitted_in=version)


def test_a_certificate_that_was_revoked_or_replaced_does_not_come_back() -> None:
    memory = RosterMemory.of([roster(1, A1, B, HUB), roster(2, A1, HUB), roster(3, A2, HUB)])
    refuses(memory, roster(4, A2, B, HUB), "version 4 lists a certificate of silo b that left in version 2")
    refuses(
        memory, roster(4, A1, HUB), "silo a that left in version 3, and does not say that it was readmitted"
    )
    memory.check(roster(4, A2, HUB))
    memory.check(roster(4, A2, replace(B, fingerprint=bytes(32)), HUB))  # with another certificate


def test_a_version_far_beyond_the_newest_is_refused() -> None:
    """One roster of a stolen key took the versions away that the authority had left."""
    memory = RosterMemory.of([roster(3, A1)])
    memory.check(roster(3 + (1 << 20), A1))
    refuses(memory, roster(4 + (1 << 20), A1), "version 1048580 follows version 3, expected at most 1048576")
    RosterMemory().check(roster(4 + (1 << 20), A1))  # of one that has seen none


def test_a_readmission_counts_against_what_was_before_it_alone() -> None:
    seen = [roster(1, A1, B), roster(2, A1), roster(3, A1, back(B, 3))]
    memory = RosterMemory.of(seen)
    memory.check(roster(4, A1, back(B, 3)))
    again = memory.after(roster(4, A1))
    # a folder put back from version 3 signs B with the mark of then
    refuses(again, roster(5, A1, back(B, 3)), "left in version 4")
    again.check(roster(5, A1, back(B, 5)))


@pytest.mark.parametrize("seen", [(1, 2), (1, 3), (2, 3), (1, 2, 3), (1,), (3,)])
def test_a_mark_is_good_for_a_party_that_slept(seen: tuple[int, ...]) -> None:
    rosters = {1: roster(1, A1, B), 2: roster(2, A1), 3: roster(3, A1), 4: roster(4, A1, back(B, 4))}
    memory = RosterMemory.of(rosters[version] for version in seen)
    memory.check(rosters[4])
    memory.check(roster(5, A1, back(B, 4)))  # the mark stays while the certificate is listed


def test_changes_name_each_member_once() -> None:
    memory = RosterMemory.of([roster(1, A1, B), roster(2, A2)])
    changes = memory.changes(roster(3, back(A1, 3), HUB))
    assert changes.joined == (HUB,)
    assert changes.left == ()
    assert [(old.fingerprint, new.fingerprint) for old, new in changes.renewed] == [
        (A2.fingerprint, A1.fingerprint)
    ]
    assert changes.readmitted == (A1,)
    assert memory.changes(roster(3, B)).left == (A2,)
