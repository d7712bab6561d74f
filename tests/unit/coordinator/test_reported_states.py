"""What an operator is told of a job that waits or was refused: at whom, and by which rule; nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from chorale.transport import wire
from chorale.v1 import federation_pb2 as fpb
from chorale.v1 import operations_pb2 as pb
from coordinator.jobs.phase_record import ApprovalWait
from coordinator.reasons import Reason, standstill_in_words
from crypto.errors import Refusal, Rule
from tests.unit.coordinator.fake_silo import FakeSilo

WAITING = wire.Refused(code=Refusal.JOB_NOT_APPROVED)
TEXT = "not before the board's meeting in May"


class IdleSilo(FakeSilo):
    """Connected, and does nothing about its tasks."""

    is_idle = True

    async def _on_task(self, task: fpb.PhaseTask) -> None:
        if not self.is_idle:
            await super()._on_task(task)


async def summary_with(hub: Any, digest: bytes, state: str) -> Any:
    """The first summary of the job that says so, and of each other state that was told before."""
    states = []
    async for event in hub.operations().WatchJob(pb.WatchRequest(job_digest=digest)):
        if event.HasField("summary"):
            states.append(event.summary.state)
            if event.summary.state == state:
                return event.summary
    pytest.fail(f"never told {state!r}, but {states}")


async def test_job_that_nobody_approved_waits_for_approval_and_says_where(attended_hub):
    hub = await attended_hub(silos=4, silo_0={"refuse_with": WAITING}, silo_2={"refuse_with": WAITING})
    await hub.welcomed()
    digest = await hub.submit(rounds=1)

    summary = await summary_with(hub, digest, "waiting for approval at silo-0, silo-2")

    assert {each.silo for each in summary.awaited if each.why == "approval"} == {"silo-0", "silo-2"}
    assert (summary.status, summary.operator) == ("running", "ops")
    assert [job.state for job in await hub.jobs()] == ["waiting for approval at silo-0, silo-2"]


async def test_job_whose_silos_are_away_says_how_many_are_connected(start_hub):
    hub = await start_hub(silos=4)
    for name in hub.names[:2]:
        await hub.silo(name).wait_for("welcome")
    digest = await hub.submit(rounds=1)
    summary = await summary_with(hub, digest, "waiting for silos: 2 of 4 connected")
    assert [each.silo for each in summary.awaited if each.why == "connection"] == ["silo-2", "silo-3"]


async def test_silo_that_loads_torch_is_told_until_it_has(start_hub):
    hub = await start_hub(silos=3)
    for name in hub.names[:2]:
        hub.silo(name)
    slow = hub.silo("silo-2", kind=IdleSilo)
    digest = await hub.submit(rounds=1)
    await slow.wait_for("task")
    slow.say(fpb.SiloMessage(stage=fpb.Stage(stage="loading-torch")))
    await summary_with(hub, digest, "waiting for silo-2: loading torch")
    slow.say(fpb.SiloMessage(stage=fpb.Stage()))
    await summary_with(hub, digest, "running")
    slow.is_idle = False
    slow.say(fpb.SiloMessage(heartbeat=fpb.Heartbeat()))  # it gets its task again
    summary, _ = await hub.finish(digest)
    assert (summary.status, summary.state) == ("done", "done")


async def test_stage_that_is_not_on_the_list_ends_the_line(start_hub):
    hub = await start_hub(silos=3)
    slow = hub.silo("silo-2", kind=IdleSilo)
    await hub.submit(rounds=1)
    await slow.wait_for("task")
    slow.say(fpb.SiloMessage(stage=fpb.Stage(stage="reading 17 samples")))
    error = await slow.wait_for("error")
    assert "stage: the word is not on the closed list" in error.details()


async def test_refusal_names_the_rule_to_the_operator_and_to_no_other_silo(start_hub):
    hub = await start_hub(silos=3)
    refused = wire.Refused(code=Refusal.POLICY, rule=Rule.MAX_ROUNDS)
    hub.silo("silo-0", refuse_with=refused)
    other = hub.silo("silo-1", kind=IdleSilo)
    await hub.welcomed()

    summary, records = await hub.finish(await hub.submit(rounds=1))

    open_ones = "; no answer yet from: silo-1, silo-2"
    assert summary.reason == f"refused by silos: silo-0 (policy: max_rounds){open_ones}"
    left = {each.silo: (each.reason, each.rule, each.text) for each in records[0].left_out}
    assert left["silo-0"] == ("policy", "max_rounds", "")
    outcome = await other.wait_for("outcome")
    assert {each.silo: (each.reason, each.rule) for each in outcome.record.left_out}["silo-0"] == (
        "policy", "",
    )  # fmt: skip


@pytest.mark.parametrize("preset", ["fedcsd", "fedavg"])
async def test_a_job_that_ends_for_want_of_class_rows_says_the_ways_out(start_hub, preset):
    """A silo may refuse any job by that rule; of one that sums no rows the reason has no sentence on rows."""
    hub = await start_hub(silos=3)
    for name in hub.names:
        hub.silo(name, refuse_with=wire.Refused(code=Refusal.POLICY, rule=Rule.MIN_CLASS_HOLDERS))
    await hub.welcomed()

    summary, _ = await hub.finish(await hub.submit(rounds=1, strategy={"preset": preset}))

    way_out = "strategy.options missing_prototypes: identity puts public rows in place of missing ones"
    assert "(policy: min_class_holders)" in summary.reason
    assert (way_out in summary.reason) == ("class rows" in summary.reason) == (preset == "fedcsd")


def test_time_until_people_approve_is_that_of_no_phase():
    # ten minutes until somebody approved were told as seconds of the enrollment
    wait = ApprovalWait()
    assert wait.seconds(now=5.0) == 0.0
    for now, awaited in ((10.0, {"a": "approval", "b": "input"}), (14.0, {"a": "approval"}), (17.0, {})):
        wait.note(awaited, now=now)
    wait.note({"a": "connection"}, now=20.0)
    assert wait.seconds(now=30.0) == 7.0
    wait.note({"a": "approval"}, now=30.0)
    assert wait.seconds(now=31.0) == 8.0


async def test_silo_that_has_not_approved_yet_is_not_among_those_that_refused(start_hub):
    # one silo's rejection blamed others, whose people nobody had asked yet
    hub = await start_hub(silos=3)
    for name in hub.names[:2]:
        hub.silo(name, refuse_with=WAITING)
    await hub.welcomed()
    digest = await hub.submit(rounds=1)
    await summary_with(hub, digest, "waiting for approval at silo-0, silo-1; for silos: 2 of 3 connected")
    hub.silo("silo-2", refuse_with=wire.Refused(code=Refusal.REJECTED, text=TEXT))

    summary, records = await hub.finish(digest)

    assert summary.reason == (
        f'refused by silos: silo-2 (rejected: "{TEXT}"); no approval yet at: silo-0, silo-1'
    )
    assert records[0].approval_seconds > 0


async def test_rejection_ends_the_job_and_only_its_operator_reads_the_text(start_hub):
    hub = await start_hub(silos=3)
    refused = wire.Refused(code=Refusal.REJECTED, text=TEXT)
    hub.silo("silo-0", refuse_with=refused)
    other = hub.silo("silo-1", kind=IdleSilo)
    await hub.welcomed()

    summary, records = await hub.finish(await hub.submit(rounds=1))

    open_ones = "; no answer yet from: silo-1, silo-2"
    assert summary.reason == f'refused by silos: silo-0 (rejected: "{TEXT}"){open_ones}'
    assert [left.text for left in records[0].left_out if left.silo == "silo-0"] == [TEXT]
    ended = await other.wait_for("job_ended")
    assert ended.reason == f"refused by silos: silo-0 (rejected){open_ones}"
    told_to_silos = b"".join(
        body.SerializeToString()
        for fake in hub.fakes.values()
        for bodies in fake.received.values()
        for body in bodies
    )
    assert TEXT.encode() not in told_to_silos
    assert b"rejected" in told_to_silos  # the control
    assert TEXT not in (hub.settings.directory / "audit.jsonl").read_text()


def test_text_of_a_rejection_cannot_pretend_that_other_silos_refused() -> None:
    forged = Reason(code="rejected", text='no"), silo-2 (policy: max_rounds')
    assert forged.for_operator == r'rejected: "no\"), silo-2 (policy: max_rounds"'


def test_a_state_names_few_silos_and_counts_the_others() -> None:
    many = {f"silo-{place}": "approval" for place in range(9)}
    assert standstill_in_words(many, silos=9, in_the_way={}).endswith("silo-4, silo-5 and 3 more")
    both = {"a": "approval", "b": "connection", "c": "input"}
    assert (
        standstill_in_words(both, silos=4, in_the_way={})
        == "waiting for approval at a; for silos: 3 of 4 connected"
    )
    assert standstill_in_words({"c": "input", "d": "answer"}, silos=4, in_the_way={}) == "running"
