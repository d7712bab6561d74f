"""A member removes a certificate of the authority while it runs: what that key signed is not trusted.

Source: docs/protocol.md 1.6.
"""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from chorale.v1 import session_pb2
from crypto.errors import RemoteProtocolError
from crypto.identity import issuing
from crypto.identity.certificates import Anchors, Role
from tests.support.agents import FEDERATION, NOW, Agent, Hub, Members, _issue, make_members
from tests.unit.silo_agent.conftest import MakeHub

OLD = make_members(4)
NEW_KEY, NEW_CERTIFICATE = issuing.new_authority(FEDERATION, now=NOW - timedelta(hours=1), valid_days=365)
NEW = Anchors((NEW_CERTIFICATE,))
BOTH = Anchors((OLD.authority.certificates[0], NEW_CERTIFICATE))
# every member has a certificate of the new key; a thief of the old one still signs rosters
HONEST = Members(
    authority_key=NEW_KEY,
    authority=BOTH,
    silos={name: _issue(NEW_KEY, NEW_CERTIFICATE, Role.SILO, name) for name in OLD.silos},
    operator=_issue(NEW_KEY, NEW_CERTIFICATE, Role.OPERATOR, "ops"),
)
THIEF = dataclasses.replace(HONEST, authority_key=OLD.authority_key)


def make(make_hub: MakeHub, signer: Members) -> Hub:
    """Silos that trust both certificates, under a roster that this key signed."""
    hub = make_hub(members=signer)
    hub.add_all()
    return hub


def remove_old(hub: Hub, *agents: Agent) -> None:
    """Their `authority.crt` holds the new certificate alone."""
    for agent in agents or tuple(hub.agents.values()):
        agent.credentials.take_over(agent.credentials.identity, NEW)
    hub.members = dataclasses.replace(hub.members, authority=NEW)


@pytest.mark.parametrize("signer", [HONEST, THIEF], ids=["new-key", "stolen-key"])
async def test_silo_begins_no_phase_under_a_roster_of_a_key_that_it_removed(
    make_hub: MakeHub, signer: Members
) -> None:
    """The roster was accepted before; it decided who is in every sum until somebody restarted the silo."""
    hub = make(make_hub, signer)
    remove_old(hub)
    agent = hub.agents["silo-0"]
    rosters = agent.handler._rosters
    if signer is HONEST:
        assert rosters.current is rosters.newest
        assert await hub.run(0, "enrollment.0")
        return
    with pytest.raises(RemoteProtocolError, match="signed with no key of the authority that is trusted now"):
        _ = rosters.current
    assert await agent.refusal(task=hub.begin(0, "enrollment.0").task) == "roster"
    assert agent.is_silent()


async def test_silo_begins_no_session_when_the_anchor_went_while_it_computed(make_hub: MakeHub) -> None:
    """The roster was looked at when the task came, and an input takes hours."""
    hub = make(make_hub, THIEF)
    agent = hub.agents["silo-0"]
    exchange = hub.begin(0, "enrollment.0")
    roster, job = agent.handler._checks.job(exchange.key, exchange.task)
    remove_old(hub)
    with pytest.raises(RemoteProtocolError, match="signed with no key"):
        agent.handler._checks.session(hub.terms(0, "enrollment.0"), roster)
    assert job.digest == hub.job.digest


@pytest.mark.parametrize("is_removed", [False, True])
async def test_session_in_progress_ends_when_the_anchor_goes(make_hub: MakeHub, is_removed: bool) -> None:
    """It kept the certificates that it began with, and revealed a sum under the removed key's roster."""
    hub = make(make_hub, THIEF)
    exchange = hub.begin(0, "enrollment.0")
    await hub.advertise(exchange)
    agent = hub.agents["silo-0"]
    if not is_removed:
        await hub.share(exchange)
        return
    remove_old(hub, agent)
    assert await agent.refusal(cohort=session_pb2.Cohort(key=exchange.wire_key)) == "roster"


@pytest.mark.parametrize("is_removed", [False, True])
async def test_session_of_the_ledger_is_not_taken_up_once_the_anchor_went(
    make_hub: MakeHub, is_removed: bool
) -> None:
    """A restart forgets what the silo trusted; the cohort's certificates tell it."""
    hub = make(make_hub, OLD)
    exchange = hub.begin(0, "enrollment.0")
    await hub.until_signed(exchange)
    agent = hub.agents["silo-0"]
    await agent.restart()
    if not is_removed:
        assert await hub.unmask(exchange)
        return
    remove_old(hub, agent)
    assert await agent.refusal(signatures=session_pb2.Signatures(key=exchange.wire_key)) == "roster"
