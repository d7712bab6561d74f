"""A silo under a coordinator that deviates: what it is told is not what it knows, and it refuses."""

from __future__ import annotations

import os
from datetime import timedelta

import numpy as np
import pytest

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from tests.support.sessions import NOW
from tests.unit.silo_agent.enrolled import MakeHub, enrolled, refusals


async def test_another_state_for_a_phase_that_was_begun_is_refused_also_after_a_restart(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    await agent.answer("advert", task=hub.begin(1, "train").task)
    flipped = {**hub.state, "model/votes": np.array([0, 0, 0, 1e-30], np.float32)}
    for _ in range(2):
        assert await agent.refusal(task=hub.begin(1, "train", attempt=2, state=flipped).task) == "state"
        await agent.restart()


async def test_a_second_state_within_one_attempt_is_refused(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    await agent.answer("advert", task=hub.begin(1, "train").task)
    flipped = {**hub.state, "model/votes": np.array([0, 0, 0, 1e-30], np.float32)}
    assert await agent.refusal(task=hub.begin(1, "train", state=flipped).task) == "terms"


async def test_a_silo_that_enrollment_did_not_count_refuses_to_train(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    exchange = await hub.until_revealed(0, "enrollment.0", lost=["silo-3"])
    await hub.agree(exchange)
    assert hub.state["method/total"] == 300
    hub.tell_outcome(exchange, cohort=exchange.session.survivors)
    task = hub.begin(1, "train").task
    await hub.agents["silo-0"].answer("advert", task=task)
    assert await hub.agents["silo-3"].refusal(task=task) == "not-enrolled"


async def test_a_total_smaller_than_the_silos_own_count_is_refused(make_hub: MakeHub) -> None:
    """It takes t silos that lie to come to such a state."""
    hub = await enrolled(make_hub)
    smaller = {**hub.state, "method/total": np.array(90, np.int64)}
    agent = hub.agents["silo-0"]
    assert await agent.refusal(task=hub.begin(1, "train", state=smaller).task) == "state"
    hub.prove(smaller, 0, "enrollment.1")
    assert await agent.refusal(task=hub.begin(1, "train").task) == "not-enrolled"
    assert agent.objective.works == []


async def test_a_revealed_phase_is_never_joined_again_also_after_a_restart(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    await hub.until_revealed(1, "train")
    agent = hub.agents["silo-0"]
    for _ in range(2):
        assert await agent.refusal(task=hub.begin(1, "train", attempt=2).task) == "already-revealed"
        await agent.restart()
    assert len(agent.objective.works) == 1


async def test_a_phase_whose_outcome_is_known_is_never_joined_again_also_after_a_restart(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    before = hub.state
    await hub.run(1, "train")
    agent = hub.agents["silo-0"]
    for _ in range(2):
        for state in (before, hub.state):
            agent.tell(task=hub.begin(1, "train", attempt=2, state=state).task)
            assert await agent.refusal() == "later-state"
        await agent.restart()
    assert len(agent.objective.works) == 1


async def test_an_attempt_before_the_present_one_is_refused(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    await agent.answer("advert", task=agent.hub.begin(0, "enrollment.0", attempt=2).task)
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0", attempt=1).task) == "stage"


async def test_an_attempt_beyond_the_jobs_number_is_refused(make_hub: MakeHub) -> None:
    hub = make_hub(max_attempts=2)
    agent = hub.add("silo-0")
    assert await agent.refusal(task=hub.begin(0, "enrollment.0", attempt=3).task) == "terms"


async def test_a_round_keeps_the_roster_it_began_with_and_older_rosters_stay_out(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    agent, first = hub.agents["silo-0"], hub.roster
    await agent.answer("advert", task=hub.begin(1, "train").task)
    newer = hub.members.roster(version=8)
    agent.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(newer.signed)))
    await agent.answer("advert", task=hub.begin(1, "train", attempt=2).task)
    agent.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(first.signed)))
    assert refusals(hub, "silo-0", "roster") == 1
    later = hub.begin(2, "train")  # the coordinator still computes with the older roster
    assert await agent.refusal(task=later.task) == "terms"


async def test_a_roster_older_than_the_policys_age_serves_no_phase(make_hub: MakeHub) -> None:
    hub = make_hub(not_after=NOW + timedelta(days=60))
    agent = hub.add("silo-0")
    task = hub.begin(0, "enrollment.0").task
    hub.now += timedelta(days=8)
    assert await agent.refusal(task=task) == "roster"


async def test_shares_asked_without_signatures_of_the_survivors_do_not_leave(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    request = wire.to_silo(exchange.session.close_consistency(), exchange.key).signatures
    del request.signatures[2:]
    assert await hub.agents["silo-0"].refusal(signatures=request) == "signatures"
    assert hub.agents["silo-0"].is_silent()


async def test_malformed_messages_are_counted_and_change_nothing(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    agent.tell(task=pb.PhaseTask())
    agent.tell(cohort=session_pb2.Cohort())
    agent.tell(job=pb.JobOffer())
    agent.handler.receive(pb.CoordinatorMessage())
    assert refusals(agent.hub, "silo-0", "malformed") == 3
    await agent.answer("advert", task=agent.hub.begin(0, "enrollment.0").task)


async def test_messages_of_a_session_that_never_was_are_refused(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    key = wire.key_to_wire(agent.hub.begin(0, "enrollment.0").key)
    assert await agent.refusal(survivors=session_pb2.Survivors(key=key, survivors=agent.hub.names)) == "stage"


@pytest.mark.parametrize("is_told", [True, False])
async def test_what_a_phase_entered_in_the_audit_log_is_on_disk_before_the_next_advert(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """A coordinator that told no outcome kept spends and reveals of two hundred phases from coming to disk: a
    ledger that was put back after a power loss would have agreed with such a log."""
    hub = make_hub()
    hub.add_all()
    agent, flush = hub.agents["silo-0"], os.fsync
    log, flushed_bytes = agent.folder / "audit.jsonl", [0]

    def counted(handle: int) -> None:
        flush(handle)
        if os.path.sameopenfile(handle, agent.audit._file.fileno()):
            flushed_bytes.append(os.fstat(handle).st_size)

    exchange = await hub.until_revealed(0, "enrollment.0")
    await hub.agree(exchange)
    monkeypatch.setattr(os, "fsync", counted)
    if is_told:
        hub.tell_outcome(exchange, cohort=hub.names)
    await agent.answer("advert", task=hub.begin(1, "train").task)

    assert b'"spent"' in log.read_bytes()[: flushed_bytes[-1]]
