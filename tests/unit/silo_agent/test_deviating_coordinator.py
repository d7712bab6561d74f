"""A silo under a coordinator that deviates: what it is told is not what it knows, and it refuses."""

from __future__ import annotations

import os
from datetime import timedelta

import numpy as np
import pytest

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from tests.support.agents import changed
from tests.support.sessions import NOW
from tests.unit.silo_agent.enrolled import MakeHub, enrolled, refusals


async def test_terms_that_are_not_the_silos_own_are_refused(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    task = hub.begin(0, "enrollment.0").task
    agent.tell(task=changed(task, session_digest=bytes(32)))
    assert await agent.refusal() == "terms"
    agent.tell(task=task)
    await agent.answer("advert")


async def test_a_first_state_that_the_operator_did_not_sign_is_refused(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    planted = {"model/votes": np.ones(4, np.float32)}
    agent.tell(task=hub.begin(0, "enrollment.0", state=planted).task)
    assert await agent.refusal() == "state"


async def test_another_state_for_a_phase_that_was_begun_is_refused_also_after_a_restart(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(1, "train").task)
    await agent.answer("advert")
    flipped = {**hub.state, "model/votes": np.array([0, 0, 0, 1e-30], np.float32)}
    for _ in range(2):
        agent.tell(task=hub.begin(1, "train", attempt=2, state=flipped).task)
        assert await agent.refusal() == "state"
        await agent.restart()


async def test_a_second_state_within_one_attempt_is_refused(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(1, "train").task)
    await agent.answer("advert")
    flipped = {**hub.state, "model/votes": np.array([0, 0, 0, 1e-30], np.float32)}
    agent.tell(task=hub.begin(1, "train", state=flipped).task)
    assert await agent.refusal() == "terms"


async def test_a_silo_that_enrollment_did_not_count_refuses_to_train(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    exchange = hub.begin(0, "enrollment.0")
    await hub.until_signed(exchange, lost=["silo-3"])
    await hub.unmask(exchange)
    await hub.agree(exchange)
    assert hub.state["method/total"] == 300
    hub.tell_outcome(exchange, cohort=exchange.session.survivors)
    task = hub.begin(1, "train").task
    hub.agents["silo-0"].tell(task=task)
    await hub.agents["silo-0"].answer("advert")
    hub.agents["silo-3"].tell(task=task)
    assert await hub.agents["silo-3"].refusal() == "not-enrolled"


async def test_a_total_smaller_than_the_silos_own_count_is_refused(make_hub: MakeHub) -> None:
    """It takes t silos that lie to come to such a state."""
    hub = await enrolled(make_hub)
    smaller = {**hub.state, "method/total": np.array(90, np.int64)}
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(1, "train", state=smaller).task)
    assert await agent.refusal() == "state"
    hub.prove(smaller, 0, "enrollment.1")
    agent.tell(task=hub.begin(1, "train").task)
    assert await agent.refusal() == "not-enrolled"
    assert agent.objective.works == []


async def test_a_revealed_phase_is_never_joined_again_also_after_a_restart(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    await hub.unmask(exchange)
    agent = hub.agents["silo-0"]
    for _ in range(2):
        agent.tell(task=hub.begin(1, "train", attempt=2).task)
        assert await agent.refusal() == "already-revealed"
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


async def test_rounds_never_go_back(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(2, "train").task)
    await agent.answer("advert")
    agent.tell(task=hub.begin(1, "train").task)
    assert await agent.refusal() == "stage"


async def test_an_attempt_before_the_present_one_is_refused(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    agent.tell(task=hub.begin(0, "enrollment.0", attempt=2).task)
    await agent.answer("advert")
    agent.tell(task=hub.begin(0, "enrollment.0", attempt=1).task)
    assert await agent.refusal() == "stage"


async def test_an_attempt_beyond_the_jobs_number_is_refused(make_hub: MakeHub) -> None:
    hub = make_hub(max_attempts=2)
    agent = hub.add("silo-0")
    agent.tell(task=hub.begin(0, "enrollment.0", attempt=3).task)
    assert await agent.refusal() == "terms"


async def test_a_round_keeps_the_roster_it_began_with_and_older_rosters_stay_out(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    agent, first = hub.agents["silo-0"], hub.roster
    agent.tell(task=hub.begin(1, "train").task)
    await agent.answer("advert")
    newer = hub.members.roster(version=8)
    agent.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(newer.signed)))
    agent.tell(task=hub.begin(1, "train", attempt=2).task)
    await agent.answer("advert")
    agent.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(first.signed)))
    assert refusals(hub, "silo-0", "roster") == 1
    agent.tell(task=hub.begin(2, "train").task)
    assert await agent.refusal() == "terms"  # the coordinator still computes with the older roster


async def test_a_roster_older_than_the_policys_age_serves_no_phase(make_hub: MakeHub) -> None:
    hub = make_hub(not_after=NOW + timedelta(days=60))
    agent = hub.add("silo-0")
    task = hub.begin(0, "enrollment.0").task
    hub.now += timedelta(days=8)
    agent.tell(task=task)
    assert await agent.refusal() == "roster"


async def test_a_job_that_was_never_offered_is_refused(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    task = hub.begin(0, "enrollment.0").task
    stranger = pb.PhaseTask()
    stranger.CopyFrom(task)
    stranger.key.job_digest = bytes(32)
    agent.tell(task=stranger)
    assert await agent.refusal() == "job-invalid"


async def test_shares_asked_without_signatures_of_the_survivors_do_not_leave(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    request = wire.to_silo(exchange.session.close_consistency(), exchange.key).signatures
    del request.signatures[2:]
    hub.agents["silo-0"].tell(signatures=request)
    assert await hub.agents["silo-0"].refusal() == "signatures"
    assert hub.agents["silo-0"].is_silent()


async def test_malformed_messages_are_counted_and_change_nothing(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    agent.tell(task=pb.PhaseTask())
    agent.tell(cohort=session_pb2.Cohort())
    agent.tell(job=pb.JobOffer())
    agent.handler.receive(pb.CoordinatorMessage())
    assert refusals(hub, "silo-0", "malformed") == 3
    agent.tell(task=hub.begin(0, "enrollment.0").task)
    await agent.answer("advert")


async def test_messages_of_a_session_that_never_was_are_refused(make_hub: MakeHub) -> None:
    hub = make_hub()
    agent = hub.add("silo-0")
    key = wire.key_to_wire(hub.begin(0, "enrollment.0").key)
    agent.tell(survivors=session_pb2.Survivors(key=key, survivors=hub.names))
    assert await agent.refusal() == "stage"


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

    exchange = hub.begin(0, "enrollment.0")
    await hub.until_signed(exchange)
    await hub.unmask(exchange)
    await hub.agree(exchange)
    monkeypatch.setattr(os, "fsync", counted)
    if is_told:
        hub.tell_outcome(exchange, cohort=hub.names)
    agent.tell(task=hub.begin(1, "train").task)
    await agent.answer("advert")

    assert b'"spent"' in log.read_bytes()[: flushed_bytes[-1]]
