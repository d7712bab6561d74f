"""Which of a silo's certificates a connection shows, and which one signs in a round.

Source: docs/protocol.md 8.8.
"""

from __future__ import annotations

import pytest

from crypto.identity.certificates import Identity
from crypto.identity.roster import Roster
from silo_agent.connection.own_certificates import OwnCertificates
from tests.support.agents import Members, _issue, make_members

MEMBERS = make_members(4)


@pytest.fixture
def first() -> Identity:
    return MEMBERS.silos["silo-0"]


@pytest.fixture
def second(first: Identity) -> Identity:
    return _issue(
        MEMBERS.authority_key, MEMBERS.authority.certificates[0], first.member.role, first.member.name
    )


@pytest.fixture
def own(first: Identity, second: Identity) -> OwnCertificates:
    made = OwnCertificates(first, MEMBERS.authority)
    made.take_over(second, MEMBERS.authority)
    return made


def roster_with(one: Identity) -> Roster:
    members = Members(
        authority_key=MEMBERS.authority_key,
        authority=MEMBERS.authority,
        silos={**MEMBERS.silos, "silo-0": one},
        operator=MEMBERS.operator,
    )
    return members.roster()


def test_connections_show_the_listed_certificate_first_and_then_each_in_turn(
    own: OwnCertificates, first: Identity, second: Identity
) -> None:
    assert [own.dialing(roster_with(first), lambda _: True) for _ in range(3)] == [first, second, first]
    own.accepted()
    assert own.identity is first
    assert [own.dialing(roster_with(second), lambda _: True) for _ in range(2)] == [second, first]


def test_a_certificate_that_no_longer_holds_is_not_shown_while_the_next_does(
    own: OwnCertificates, first: Identity, second: Identity
) -> None:
    assert {own.dialing(roster_with(first), lambda one: one is second) for _ in range(3)} == {second}
    assert own.dialing(None, lambda _: False) is first  # to say what is wrong with it


def test_a_round_that_runs_is_signed_with_the_certificate_of_its_roster(
    own: OwnCertificates, first: Identity, second: Identity
) -> None:
    """Signatures of the new key in a round of the old roster were refused, and the silo left out."""
    own.dialing(roster_with(second), lambda _: True)
    own.accepted()
    assert own.identity is second
    assert own.of(roster_with(first)) is first
    assert own.of(roster_with(second)) is second
    assert own.dialing(roster_with(first), lambda _: True) is second  # the former connects no more
    own.take_over(second, MEMBERS.authority)  # the authority's file changed alone
