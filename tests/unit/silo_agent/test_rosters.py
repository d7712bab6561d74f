"""A silo remembers who was revoked: by the rosters that it accepted, through restarts and gaps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.runtime.audit import read_entries
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from crypto.errors import PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.roster import Roster
from silo_agent.ledger.ledger import Ledger
from silo_agent.rounds.rosters import REFUSED_EVENT
from tests.support.agents import Agent, make_members, with_another_certificate
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
    told = [
        (record.getMessage(), record.__dict__["fields"])
        for record in caplog.records
        if record.levelname == "WARNING"
    ]
    before, now = (each.silos["silo-1"].fingerprint.hex()[:16] for each in (MEMBERS, changed))
    assert told == [
        (
            "certificate of a member changed",
            {"version": 9, "member": "silo silo-1", "before": before, "now": now},
        ),
        ("member readmitted", {"version": 11, "member": f"silo {REVOKED}"}),
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def test_certificate_that_another_replaced_does_not_come_back(ledger: Ledger) -> None:
    changed = with_another_certificate(MEMBERS, "silo-1")
    ledger.accept_roster(MEMBERS.roster(version=1), lowest_version=1)
    ledger.accept_roster(changed.roster(version=5), lowest_version=1)  # it slept through three
    with pytest.raises(RemoteProtocolError, match="silo silo-1 that left in version 5"):
        ledger.accept_roster(MEMBERS.roster(version=6), lowest_version=1)
    assert ledger.roster_version == 5
    ledger.accept_roster(MEMBERS.roster(version=6, readmitted={"silo-1": 6}), lowest_version=1)
    with pytest.raises(RemoteProtocolError, match="silo silo-1 that left in version 6"):
        ledger.accept_roster(changed.roster(version=7), lowest_version=1)


def test_silo_that_lost_its_ledger_has_its_lowest_version_and_no_memory(
    tmp_path: Path, ledger: Ledger
) -> None:
    """`lowest_roster_version` keeps old rosters out; whom a later one lists is then the authority's word."""
    ledger.accept_roster(MEMBERS.roster(version=8), lowest_version=1)
    ledger.accept_roster(MEMBERS.roster(version=9, without=[REVOKED]), lowest_version=1)
    lost = Ledger(tmp_path / "another.sqlite")
    with pytest.raises(PolicyRefusal, match="expected version 9 or newer, got 8"):
        lost.accept_roster(MEMBERS.roster(version=8), lowest_version=9)
    assert lost.accept_roster(MEMBERS.roster(version=9, without=[REVOKED]), lowest_version=9) is not None
    with pytest.raises(RemoteProtocolError, match=f"silo {REVOKED} that left in version 9") as caught:
        ledger.accept_roster(MEMBERS.roster(version=10), lowest_version=9)
    assert caught.value.code is Refusal.ROSTER
    lost.accept_roster(MEMBERS.roster(version=10), lowest_version=9)
    lost.close()


def test_ledger_of_before_takes_the_certificates_of_its_newest_roster(ledger: Ledger) -> None:
    newest = MEMBERS.roster(version=8)
    ledger.accept_roster(newest, lowest_version=1)
    with ledger._database.transaction() as connection:
        connection.execute("DELETE FROM listed_certificates")  # as the migration leaves it
    ledger.accept_roster(newest, lowest_version=1)  # which the coordinator relays at the next connection
    assert ledger.accept_roster(newest, lowest_version=1) is None
    ledger.accept_roster(MEMBERS.roster(version=9, without=[REVOKED]), lowest_version=1)
    with pytest.raises(RemoteProtocolError, match="left in version 9"):
        ledger.accept_roster(MEMBERS.roster(version=10), lowest_version=1)
