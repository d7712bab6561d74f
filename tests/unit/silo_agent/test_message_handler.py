"""A silo's part in a job under an honest coordinator: its answers, and when it gives none."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.observability import logs
from chorale.runtime.audit import read_entries
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import session_pb2
from crypto.errors import ConfigError, Refusal, RemoteProtocolError, SiloStage
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.seeding import training_seed
from tests.support.agents import Agent, OneHot, changed
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

# the honest way


async def test_a_job_runs_from_enrollment_to_evaluation_and_sums_every_silo_once(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    assert int(hub.state["method/total"]) == 400
    sums = await hub.run(1, "train")
    np.testing.assert_allclose(sums["delta"], np.full(4, 0.25), atol=1e-6)
    assert sums["weight"] == pytest.approx(1.0)
    assert (await hub.run(3, "evaluate.0"))["correct"] == 0 + 1 + 2 + 3


async def test_sample_counts_leave_rounded_to_the_policys_granularity(make_hub: MakeHub) -> None:
    hub = make_hub()
    for name in hub.names:
        hub.add(name, samples=109)
    sums = await hub.run(0, "enrollment.0")
    assert sums["samples"] == 400
    holdout = hub.agents["silo-0"].objective
    await hub.run(1, "train")
    assert [len(work.data.holdout) for work in holdout.works] == [20]
    assert [len(work.data.train) for work in holdout.works] == [109]


async def test_a_lost_silo_is_left_out_of_the_sum_and_named_in_the_others_logs(
    make_hub: MakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = await enrolled(make_hub)
    logs.configure()
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange, lost=["silo-3"])
    sums = await hub.unmask(exchange)
    np.testing.assert_allclose(sums["delta"], [0.25, 0.25, 0.25, 0.0], atol=1e-6)
    hub.tell_outcome(exchange, cohort=exchange.session.survivors)
    logged = capsys.readouterr().err
    assert "silo-3 (masked: disconnected)" in logged
    assert '"data_share": 0.75' in logged
    left_out = {"phase": "train", "result": "left-out"}
    registry = hub.agents["silo-3"].metrics.registry
    assert registry.get_sample_value("chorale_silo_rounds_total", left_out) == 1


async def test_what_the_coordinator_repeats_is_answered_with_the_same_bytes(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    exchange, agent = hub.begin(0, "enrollment.0"), hub.agents["silo-0"]
    await hub.advertise(exchange)
    again = await agent.answer("advert", task=exchange.task)
    exchange.session.on_advert(
        "silo-0", wire.from_silo(pb.SiloMessage(advert=again))
    )  # refuses any other advert
    cohort = exchange.close_advertise()
    agent.tell(cohort=cohort)
    assert await agent.answer("shares", cohort=cohort) == await agent.answer("shares")


async def test_an_upload_that_failed_is_told_and_begins_again_with_the_next_envelopes(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the session, the coordinator waited out its deadline, and repeated envelopes met silence."""
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_shared(exchange)
    envelopes = exchange.close_share()
    silo, failures = (
        hub.agents["silo-0"],
        [RemoteProtocolError("closed", code=Refusal.STAGE), OSError("full")],
    )
    upload = silo.transfers.upload

    async def failing(*arguments: Any, **more: Any) -> None:
        if failures:
            raise failures.pop(0)
        await upload(*arguments, **more)

    monkeypatch.setattr(silo.transfers, "upload", failing)
    for code in ("stage", "internal"):
        assert await silo.refusal(envelopes=envelopes["silo-0"]) == code
    for name, agent in hub.agents.items():
        agent.tell(envelopes=envelopes[name])
        _, exchange.vectors[name] = await agent.uploaded()
        exchange.session.on_masked(name)
    await hub.consistency(exchange)
    silo.tell(envelopes=envelopes["silo-0"])
    assert (await hub.unmask(exchange))["weight"] == pytest.approx(1.0)
    assert silo.is_silent(), "it masked again after it had signed"


async def test_the_input_is_computed_once_for_all_attempts_at_a_phase(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    await hub.advertise(hub.begin(1, "train"))
    sums = await hub.run(1, "train", attempt=2)
    assert [len(agent.objective.works) for agent in hub.agents.values()] == [1, 1, 1, 1]
    np.testing.assert_allclose(sums["delta"], np.full(4, 0.25), atol=1e-6)


async def test_torch_is_loaded_and_told_before_the_data_are_touched(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the time that the word took would tell how many records were read."""
    expected, loaded = [SiloStage.LOADING_TORCH, None], list[list[SiloStage | None]]()
    load = Agent._data

    def seen(agent: Agent, job: Job) -> SiloData:
        loaded.append(list(agent.stages))
        return load(agent, job)

    monkeypatch.setattr(Agent, "_data", seen)
    hub = await enrolled(make_hub)
    assert loaded == [expected] * 4
    await hub.run(1, "train")
    assert [agent.stages for agent in hub.agents.values()] == [expected] * 4  # once


async def test_batches_are_drawn_afresh_for_every_input_and_by_nothing_that_the_job_says(
    make_hub: MakeHub,
) -> None:
    """An operator who knew the batches could choose weights for them. A false alarm once in 2^59."""
    hub = await enrolled(make_hub)
    agent, seeds = hub.agents["silo-0"], list[int]()
    for attempt in (1, 2, 3):  # a restart computes the same phase again
        await agent.answer("advert", task=hub.begin(1, "train", attempt=attempt).task)
        seeds.append(agent.objective.works[-1].seed)
        await agent.restart()
    known = {training_seed(job_seed=hub.job.spec.seed, silo="silo-0", round=round) for round in range(4)}
    assert len({*seeds, *known}) == len(seeds) + len(known)
    assert max(seeds).bit_length() > 48


async def test_the_event_loop_answers_while_training_runs(make_hub: MakeHub) -> None:
    opened = threading.Event()
    objective = OneHot(gate=lambda work: _wait(opened))
    hub = await enrolled(make_hub, each=lambda name: {"objective": objective})
    exchange, agent = hub.begin(1, "train"), hub.agents["silo-0"]
    agent.tell(task=exchange.task)
    await asyncio.sleep(0)
    assert agent.handler.preparing == (exchange.key,)
    agent.tell(roster=pb.RosterUpdate(roster=wire.signed_body_to_wire(hub.roster.signed)))
    assert agent.is_silent()
    opened.set()
    await agent.answer("advert")
    assert agent.handler.preparing == ()


async def test_a_session_that_signed_answers_after_a_restart_and_repeats_its_answer(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    exchange.session.close_consistency()
    await hub.agents["silo-0"].restart()
    first = await hub.ask_shares(exchange, "silo-0")
    await hub.agents["silo-0"].restart()
    assert await hub.ask_shares(exchange, "silo-0") == first
    exchange.session.on_unmask("silo-0", wire.from_silo(pb.SiloMessage(unmask_shares=first)))
    for name in ("silo-1", "silo-2", "silo-3"):
        shares = await hub.ask_shares(exchange, name)
        exchange.session.on_unmask(name, wire.from_silo(pb.SiloMessage(unmask_shares=shares)))
    sums = hub.reveal(exchange, exchange.session.close_unmask())
    np.testing.assert_allclose(sums["delta"], np.full(4, 0.25), atol=1e-6)


async def test_a_restart_before_the_signature_ends_the_session_and_the_next_attempt_succeeds(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.advertise(exchange)
    await hub.agents["silo-0"].restart()
    cohort = exchange.close_advertise()
    assert await hub.agents["silo-0"].refusal(cohort=cohort) == "stage"
    sums = await hub.run(1, "train", attempt=2)
    np.testing.assert_allclose(sums["delta"], np.full(4, 0.25), atol=1e-6)


# approval and policy


async def test_a_job_waits_for_approval_and_goes_on_when_it_is_given(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0", approval="manual")
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0").task) == "job-not-approved"
    agent.handler.poll()
    assert agent.is_silent()
    agent.ledger.decisions().approve(agent.hub.job.digest, by="ann")
    agent.handler.poll()
    await agent.answer("advert")


async def test_a_task_that_was_asked_again_does_not_come_back_when_the_approval_is_seen(
    make_hub: MakeHub,
) -> None:
    """It did, after its phase had been revealed, and ended the computing of the next one's input."""
    hub = make_hub()
    for name in hub.names:
        hub.add(name, approval="manual")
    agent = hub.agents["silo-0"]
    assert await agent.refusal(task=hub.begin(0, "enrollment.0").task) == "job-not-approved"
    for each in hub.agents.values():
        each.ledger.decisions().approve(hub.job.digest, by="ann")
    await hub.run(0, "enrollment.0")
    agent.tell(task=hub.begin(1, "train").task)
    agent.handler.poll()
    await agent.answer("advert")


async def test_a_refusal_is_told_though_no_disk_takes_its_note(
    make_hub: MakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the task that computes the input, and the coordinator waited for an answer in vain."""
    agent = make_hub().add("silo-0", approval="manual")

    def full(event: str, **fields: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(agent.audit, "append", full)
    agent.tell(task=agent.hub.begin(0, "enrollment.0").task)

    assert await agent.refusal() == "job-not-approved"


async def test_a_rejected_job_is_refused_even_where_approval_is_automatic(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    agent.ledger.decisions().reject(agent.hub.job.digest, by="ann", reason="not this one")
    refused = await agent.answer("refused", task=agent.hub.begin(0, "enrollment.0").task)
    assert (refused.code, refused.text, refused.rule) == ("rejected", "not this one", "")


async def test_rejection_reaches_a_coordinator_that_waits_and_an_approval_after_it_too(
    make_hub: MakeHub,
) -> None:
    """Nobody told the coordinator no: the job stood there as one that waits for approval."""
    agent = make_hub().add("silo-0", approval="manual")
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0").task) == "job-not-approved"
    agent.ledger.decisions().reject(agent.hub.job.digest, by="ann", reason="not this one")
    agent.handler.poll()
    refused = await agent.answer("refused")
    assert (refused.code, refused.text) == ("rejected", "not this one")
    agent.handler.poll()
    assert agent.is_silent()  # told once
    agent.ledger.decisions().approve(agent.hub.job.digest, by="ann")
    agent.handler.poll()
    await agent.answer("advert")


async def test_rejection_of_an_earlier_version_has_no_text(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    agent.ledger.decisions().reject(agent.hub.job.digest, by="ann", reason="not this one")
    with agent.ledger._database.transaction() as connection:
        connection.execute("DELETE FROM persons_decisions")
    refused = await agent.answer("refused", task=agent.hub.begin(0, "enrollment.0").task)
    assert (refused.code, refused.text) == ("job-not-approved", "")


async def test_job_of_two_approvals_is_served_after_the_second_name_alone(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0", approval="manual", required_approvals=2)
    decisions = agent.ledger.decisions()
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0").task) == "job-not-approved"
    assert decisions.approve(agent.hub.job.digest, by="Ann Lee", required=2) == 1
    for same in ("Ann Lee", "ann lee", "\uff21nn Lee"):
        with pytest.raises(ConfigError, match="approved this job already; the policy asks for 2"):
            decisions.approve(agent.hub.job.digest, by=same, required=2)
    agent.handler.poll()
    assert agent.is_silent()
    assert decisions.approve(agent.hub.job.digest, by="Bo", required=2) == 0
    agent.handler.poll()
    await agent.answer("advert")
    entries = [each for each in read_entries(agent.folder / "audit.jsonl") if each["event"] == "job_approved"]
    assert [(each["by"], each["required"]) for each in entries] == [("Ann Lee", 2), ("Bo", 2)]


@pytest.mark.parametrize(
    "policy",
    [
        {"min_silos": 5},
        {"operators": ["somebody-else"]},
        {"max_rounds": 2},
        {"allowed_quantities": ["delta", "weight"]},
    ],
)
async def test_policy_refuses_before_data_is_touched(make_hub: MakeHub, policy: dict[str, Any]) -> None:
    agent = make_hub().add("silo-0", **policy)
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0").task) == "policy"
    assert agent.objective.works == []
    assert agent.is_silent()


async def test_no_envelope_leaves_for_a_cohort_below_the_policys_least(make_hub: MakeHub) -> None:
    hub = make_hub(silos=5)
    for name in hub.names:
        hub.add(name, **({"min_silos": 5} if name == "silo-0" else {}))
    exchange = hub.begin(0, "enrollment.0")
    await hub.advertise(exchange, without=["silo-4"])
    cohort = exchange.close_advertise()
    await hub.agents["silo-1"].answer("shares", cohort=cohort)
    assert await hub.agents["silo-0"].refusal(cohort=cohort) == "cohort-too-small"
    assert hub.agents["silo-0"].is_silent()


async def test_near_cohorts_are_refused_when_the_policy_allows_no_change(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all(max_cohort_changes=0)
    await hub.run(0, "enrollment.0")
    await hub.run(1, "train")
    exchange = hub.begin(2, "train")
    await hub.until_shared(exchange)
    await hub.mask(exchange, without=["silo-3"])
    survivors = exchange.close_masked()
    assert await hub.agents["silo-0"].refusal(survivors=survivors) == "overlapping-cohort"


# data


@pytest.mark.parametrize("spoil", [np.nan, np.inf])
async def test_an_update_that_is_not_finite_never_leaves(make_hub: MakeHub, spoil: float) -> None:
    hub = make_hub()
    for name in hub.names:
        hub.add(name, objective=OneHot(spoil=spoil if name == "silo-0" else 1.0))
    await hub.run(0, "enrollment.0")
    agent = hub.agents["silo-0"]
    assert await agent.refusal(task=hub.begin(1, "train").task) == "data"
    assert agent.is_silent()


async def test_fewer_samples_than_the_granularity_are_refused(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0", samples=9)
    assert await agent.refusal(task=agent.hub.begin(0, "enrollment.0").task) == "data"


async def test_an_objective_that_fails_is_refused_as_internal_and_tried_again(make_hub: MakeHub) -> None:
    faults = [RuntimeError("out of memory")]

    def fail_once(work: Any) -> None:
        if faults:
            raise faults.pop()

    hub = make_hub()
    for name in hub.names:
        hub.add(name, objective=OneHot(gate=fail_once if name == "silo-0" else lambda work: None))
    await hub.run(0, "enrollment.0")
    agent = hub.agents["silo-0"]
    assert await agent.refusal(task=hub.begin(1, "train").task) == "internal"
    await agent.answer("advert", task=hub.begin(1, "train").task)


# ends


async def test_an_ended_job_stops_its_training(make_hub: MakeHub) -> None:
    stopped = threading.Event()

    def train_until_cancelled(work: Any) -> None:
        while not work.is_cancelled():
            stopped.wait(0.01)
        stopped.set()

    objective = OneHot(gate=train_until_cancelled)
    hub = await enrolled(make_hub, each=lambda name: {"objective": objective})
    agent = hub.agents["silo-0"]
    agent.tell(task=hub.begin(1, "train").task)
    while not agent.objective.works:
        await asyncio.sleep(0)
    agent.tell(job_ended=pb.JobEnded(job_digest=hub.job.digest, status="cancelled"))
    assert await asyncio.to_thread(stopped.wait, 10)
    assert await agent.refusal(task=hub.begin(1, "train").task) == "job-invalid"


async def test_an_ended_job_is_over_until_it_is_offered_again(make_hub: MakeHub) -> None:
    """It stood among those that wait for approval for good. The coordinator's word decides nothing: a job
    that it offers again is served as before."""
    agent = make_hub().add("silo-0")
    agent.tell(job=pb.JobOffer(job=agent.hub.job.signed.to_wire()))
    for status in ("done", "done", "\x1b[2J"):  # the coordinator says it again when this silo connects
        agent.tell(job_ended=pb.JobEnded(job_digest=agent.hub.job.digest, status=status))
        agent.tell(job_ended=pb.JobEnded(job_digest=bytes(32), status=status))
    (job,) = agent.ledger.jobs()
    assert (job.is_over, job.decision, job.waits(agent.hub.now)) == (True, Decision.APPROVED, False)
    agent.tell(job=pb.JobOffer(job=agent.hub.job.signed.to_wire()))
    (job,) = agent.ledger.jobs()
    assert (job.is_over, job.decision) == (False, Decision.APPROVED)


async def test_an_ended_session_answers_nothing_more(make_hub: MakeHub) -> None:
    hub = make_hub()
    hub.add_all()
    exchange = hub.begin(0, "enrollment.0")
    await hub.advertise(exchange)
    cohort = exchange.close_advertise()
    agent = hub.agents["silo-0"]
    agent.tell(session_ended=session_pb2.SessionEnded(key=exchange.wire_key, reason="restarted"))
    assert await agent.refusal(cohort=cohort) == "stage"


async def test_the_audit_trail_tells_of_adverts_spends_and_refusals_without_numbers(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    agent = hub.agents["silo-0"]
    assert await agent.refusal(task=changed(hub.begin(1, "train").task, session_digest=bytes(32))) == "terms"
    entries = list(read_entries(agent.folder / "audit.jsonl"))
    assert [(entry["event"], entry["phase"]) for entry in entries] == [
        ("advertised", "enrollment.0"),
        ("spent", "enrollment.0"),
        ("refused", "train"),
    ]


def _wait(opened: threading.Event) -> None:
    assert opened.wait(20)
