"""A silo remembers who was revoked: by the rosters that it accepted, through restarts and gaps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from chorale.runtime.audit import read_entries
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.certificates import Anchors
from crypto.identity.issuing import new_authority
from crypto.identity.roster import Roster
from crypto.identity.roster_memory import RosterChanges
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.rounds.rosters import REFUSED_EVENT
from tests.support.agents import FEDERATION, Agent, Members, make_members, with_another_certificate
from tests.support.sessions import NOW
from tests.unit.silo_agent.conftest import MakeHub

MEMBERS = make_members(4)
REVOKED = "silo-3"


def show(agent: Agent, roster: Roster) -> None:
    """What a coordinator relays."""
    agent.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(roster.signed)))


def refused_in_audit(agent: Agent) -> list[tuple[int, str]]:
    entries = read_entries(agent.folder / "audit.jsonl")
    return [(entry["version"], entry["reason"]) for entry in entries if entry["event"] == REFUSED_EVENT]


def refusals(agent: Agent) -> float:
    value = agent.metrics.registry.get_sample_value(
        "chorale_silo_refusals_total", {"reason": Refusal.ROSTER.value}
    )
    assert value is not None
    return value


async def test_silo_refuses_a_roster_that_lists_whom_an_earlier_one_revoked(make_hub: MakeHub) -> None:
    """The weekly command signed the certificates of the first page, and clinic-c was in again."""
    agent = make_hub().add("silo-0")
    for version, without in ((8, []), (9, [REVOKED])):
        show(agent, MEMBERS.roster(version=version, without=without))
    await agent.restart()
    for _ in range(2):  # a coordinator relays it at every connection
        show(agent, MEMBERS.roster(version=10))
    assert agent.ledger.roster_version == 9
    assert agent.metrics.registry.get_sample_value("chorale_silo_roster_version") != 10
    left = f"version 10 lists a certificate of silo {REVOKED} that left in version 9"
    ((version, reason),) = refused_in_audit(agent)[-1:]
    assert (version, left in reason) == (10, True)
    assert [version for version, _ in refused_in_audit(agent)].count(10) == 1
    before = refusals(agent)
    show(agent, MEMBERS.roster(version=10))
    assert refusals(agent) == before + 1
    show(agent, MEMBERS.roster(version=10, readmitted={REVOKED: 10}))
    assert agent.ledger.roster_version == 10


async def test_silo_tells_once_a_roster_whose_certificate_changed_and_who_came_back(
    make_hub: MakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_hub().add("silo-0")
    changed = with_another_certificate(MEMBERS, "silo-1")
    show(agent, MEMBERS.roster(version=8))
    for _ in range(2):
        show(agent, changed.roster(version=9))
    show(agent, changed.roster(version=10, without=[REVOKED]))
    show(agent, changed.roster(version=11, readmitted={REVOKED: 11}))
    entries = [
        (record.getMessage(), record.__dict__["fields"])
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
    before, now = (each.silos["silo-1"].fingerprint.hex()[:16] for each in (MEMBERS, changed))
    assert entries == [
        (
            "certificate of a member changed",
            {"version": 9, "member": "silo silo-1", "before": before, "now": now},
        ),
        ("member readmitted", {"version": 11, "member": f"silo {REVOKED}"}),
    ]


def accept(
    ledger: Ledger, roster: Roster, *, authority: Anchors = MEMBERS.authority, lowest_version: int = 1
) -> RosterChanges | None:
    return ledger.accept_roster(roster, authority=authority, lowest_version=lowest_version)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def test_certificate_that_another_replaced_does_not_come_back(ledger: Ledger) -> None:
    changed = with_another_certificate(MEMBERS, "silo-1")
    accept(ledger, MEMBERS.roster(version=1))
    accept(ledger, changed.roster(version=5))  # it slept through three
    with pytest.raises(RemoteProtocolError, match="silo silo-1 that left in version 5"):
        accept(ledger, MEMBERS.roster(version=6))
    assert ledger.roster_version == 5
    accept(ledger, MEMBERS.roster(version=6, readmitted={"silo-1": 6}))
    with pytest.raises(RemoteProtocolError, match="silo silo-1 that left in version 6"):
        accept(ledger, changed.roster(version=7))


def test_silo_that_lost_its_ledger_has_its_lowest_version_and_no_memory(
    tmp_path: Path, ledger: Ledger
) -> None:
    """`lowest_roster_version` keeps old rosters out; whom a later one lists is then the authority's word."""
    accept(ledger, MEMBERS.roster(version=8))
    accept(ledger, MEMBERS.roster(version=9, without=[REVOKED]))
    lost = Ledger(tmp_path / "another.sqlite")
    with pytest.raises(PolicyRefusal, match="expected version 9 or newer, got 8"):
        accept(lost, MEMBERS.roster(version=8), lowest_version=9)
    assert accept(lost, MEMBERS.roster(version=9, without=[REVOKED]), lowest_version=9) is not None
    with pytest.raises(RemoteProtocolError, match=f"silo {REVOKED} that left in version 9") as caught:
        accept(ledger, MEMBERS.roster(version=10), lowest_version=9)
    assert caught.value.code is Refusal.ROSTER
    accept(lost, MEMBERS.roster(version=10), lowest_version=9)
    lost.close()


# a change of the authority's key: what the old one signed last, a thief of it may have signed


def with_another_key(members: Members) -> Members:
    """The same members; another key of the authority signs."""
    key, certificate = new_authority(FEDERATION, now=NOW - timedelta(days=1), valid_days=365)
    return dataclasses.replace(members, authority_key=key, authority=Anchors((certificate,)))


RENEWED = with_another_key(MEMBERS)
BOTH = Anchors((*RENEWED.authority.certificates, *MEMBERS.authority.certificates))
HIGHEST = 9 + (1 << 20)


def trust(agent: Agent, authority: Anchors) -> None:
    """The file with the authority's certificates has changed."""
    agent.credentials.take_over(agent.credentials.identity, authority)


async def test_a_roster_of_a_stolen_key_is_forgotten_with_its_certificate(make_hub: MakeHub) -> None:
    """One of version 10^6 ended every silo that saw it: the authority's own were older for ever."""
    agent = make_hub().add("silo-0")
    trust(agent, BOTH)
    show(agent, RENEWED.roster(version=9))
    show(agent, MEMBERS.roster(version=HIGHEST))
    show(agent, RENEWED.roster(version=10))
    assert agent.ledger.roster_version == HIGHEST  # as long as it has both
    await agent.restart()
    trust(agent, RENEWED.authority)
    show(agent, RENEWED.roster(version=8))
    assert agent.ledger.roster_version == HIGHEST  # nor one older than the new key's
    show(agent, RENEWED.roster(version=10))
    assert agent.ledger.roster_version == 10


async def test_whom_a_stolen_key_left_out_is_in_once_its_certificate_is_removed(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    trust(agent, BOTH)
    show(agent, RENEWED.roster(version=8))
    show(agent, MEMBERS.roster(version=9, without=[REVOKED]))
    show(agent, RENEWED.roster(version=10))
    assert agent.ledger.roster_version == 9
    trust(agent, RENEWED.authority)
    show(agent, RENEWED.roster(version=11))
    assert agent.ledger.roster_version == 11


def test_who_left_by_both_keys_stays_out_when_one_is_removed(ledger: Ledger) -> None:
    accept(ledger, RENEWED.roster(version=8), authority=BOTH)
    accept(ledger, MEMBERS.roster(version=9, without=[REVOKED]), authority=BOTH)
    accept(ledger, RENEWED.roster(version=10, without=[REVOKED]), authority=BOTH)
    for authority in (BOTH, RENEWED.authority):
        with pytest.raises(RemoteProtocolError, match=f"silo {REVOKED} that left in version 10"):
            accept(ledger, RENEWED.roster(version=11), authority=authority)
    with pytest.raises(RemoteProtocolError, match=f"silo {REVOKED} that left in version 9"):
        accept(ledger, MEMBERS.roster(version=11), authority=MEMBERS.authority)


def test_whom_a_stolen_key_readmitted_is_out_once_its_certificate_is_removed(ledger: Ledger) -> None:
    accept(ledger, RENEWED.roster(version=8), authority=BOTH)
    accept(ledger, RENEWED.roster(version=9, without=[REVOKED]), authority=BOTH)
    accept(ledger, MEMBERS.roster(version=10, readmitted={REVOKED: 10}), authority=BOTH)
    with pytest.raises(RemoteProtocolError, match=f"silo {REVOKED} that left in version 9"):
        accept(ledger, RENEWED.roster(version=11), authority=RENEWED.authority)
    accept(ledger, RENEWED.roster(version=11, without=[REVOKED]), authority=BOTH)
    with pytest.raises(RemoteProtocolError, match=f"silo {REVOKED} that left in version 11"):
        accept(ledger, RENEWED.roster(version=12, readmitted={REVOKED: 10}), authority=BOTH)


def test_a_version_far_beyond_the_newest_is_refused(ledger: Ledger) -> None:
    accept(ledger, MEMBERS.roster(version=9))
    with pytest.raises(RemoteProtocolError, match="version 1048586 follows version 9, expected at most"):
        accept(ledger, MEMBERS.roster(version=HIGHEST + 1))
    accept(ledger, MEMBERS.roster(version=HIGHEST + 1), lowest_version=10)  # the site's own word
