"""Whole jobs over real mutual TLS: real sessions, one-hot inputs, silos that come and go."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import re
from contextlib import closing, suppress
from typing import Any

import grpc
import numpy as np
import pytest

from chorale.observability.process_metrics import add_process_metrics
from chorale.runtime.software import own_software
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from coordinator.jobs.aggregate import MaskedSum
from coordinator.jobs.job_runner import JobRunner
from coordinator.metrics import PREFIX, CoordinatorMetrics
from coordinator.storage.store import Store
from crypto.errors import Refusal
from crypto.identity.certificates import Role
from crypto.masking.stored_sum import StoredParts
from crypto.session.cohort import draw_seed, named_set
from tests.support.agents import PATIENCE_SECONDS
from tests.support.records import left_out, train_of
from tests.unit.coordinator.fake_silo import FakeSilo


async def test_job_runs_to_its_end_and_sums_every_silo_once(attended_hub):
    hub = await attended_hub(silos=4)
    digest, summary, records = await hub.run(rounds=2)
    assert (summary.status, summary.rounds_completed) == ("done", 2)
    phases = [(record.round, record.phase, record.result) for record in records]
    assert phases == [
        (0, "enrollment.0", "applied"),
        (1, "train", "applied"),
        (2, "train", "applied"),
        (2, "evaluate.0", "applied"),
    ]
    for record in records:
        assert list(record.cohort) == hub.names
        assert not record.left_out
        assert record.upload_bytes > 0
    state = await hub.state(digest)
    assert int(state["method/total"]) == 400
    # each round adds sum(e_i / 4) / sum(1/4), so a silo counted twice or never would show
    np.testing.assert_allclose(state["model/votes"], np.full(4, 0.5), atol=1e-6)
    assert records[-1].figures["accuracy"] == pytest.approx((0 + 1 + 2 + 3) / 40)
    assert records[1].data_share == pytest.approx(1.0, abs=1e-6)
    ended = await hub.fakes["silo-0"].wait_for("job_ended")
    assert ended.status == "done"
    assert len(hub.fakes["silo-0"].received["outcome"]) == 4


async def test_silo_lost_after_its_shares_is_named_and_not_in_the_sum(attended_hub):
    hub = await attended_hub(silos=4, silo_2={"vanish_on": ("train", "envelopes")})
    digest, summary, records = await hub.run(rounds=1)
    train = train_of(records)
    assert train.result == "applied"
    assert list(train.cohort) == ["silo-0", "silo-1", "silo-3"]
    assert left_out(train) == [("silo-2", "masked", "disconnected")]
    assert train.data_share == pytest.approx(0.75, abs=1e-6)
    assert summary.status == "done"
    await hub.check_votes(digest, [1 / 3, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize("round", [1, 2])
@pytest.mark.parametrize(
    ("lie", "reason"),
    [({"weight": -0.75 + 2.0**-28}, "min-weight"), ({"correct": 100_000}, "implausible")],
)
async def test_sum_that_no_honest_silos_give_uses_up_its_round_and_moves_nothing(
    attended_hub, lie, reason, round
):
    """A round whose weights were cancelled was applied, and the update divided by 4e-9; a forged count was
    applied with its model; the part of a sum that silos would have fetched stayed on the disk."""
    hub = await attended_hub(silos=4, silo_3={"lies": (round, lie)})
    digest, _, records = await hub.run(rounds=2)
    results = {each.round: (each.result, each.reason) for each in records if each.phase == "train"}
    assert results == {round: ("used-up", reason), 3 - round: ("applied", "")}
    await hub.check_votes(digest, np.full(4, 0.25))  # of the other round alone
    assert list(hub.settings.sum_directory.iterdir()) == []


async def test_silo_that_neither_computes_nor_answers_gets_its_task_again(attended_hub):
    hub = await attended_hub(silos=3, silo_2={"loses": "train"})
    _, _, records = await hub.run(rounds=1)
    train = train_of(records)
    assert (train.result, train.attempts, list(train.cohort)) == ("applied", 1, hub.names)


async def test_attempt_with_too_few_silos_fails_and_the_next_one_has_fresh_keys(attended_hub):
    hub = await attended_hub(silos=3, silo_1={"vanish_on": ("train", "cohort")})
    digest = await hub.submit(rounds=1)
    first = await hub.fakes["silo-0"].wait_for("session_ended")
    assert (first.reason, first.key.attempt) == ("too-few-silos", 1)

    await hub.fakes["silo-1"].stop()
    ledger = hub.fakes["silo-1"].ledger
    hub.silo("silo-1", ledger=ledger)
    summary, records = await hub.finish(digest)

    train = train_of(records)
    assert (train.result, train.attempts) == ("applied", 2)
    assert list(train.cohort) == hub.names
    assert summary.status == "done"
    numbers = [task.key.attempt for task in hub.fakes["silo-0"].received["task"] if task.key.phase == "train"]
    assert numbers == [1, 2]


async def test_job_ends_with_the_refusal_when_too_many_silos_refuse_it(attended_hub):
    hub = await attended_hub(silos=3, silo_0={"refuse_with": wire.Refused(code=Refusal.POLICY)})
    _, summary, records = await hub.run(rounds=1)
    assert summary.status == "failed"
    assert "silo-0 (policy)" in summary.reason
    assert (records[0].result, records[0].reason) == ("used-up", "refused")


async def test_job_whose_silos_may_spend_no_more_stops_with_the_model_so_far(attended_hub):
    hub = await attended_hub(
        silos=3, silo_0={"refuse_with": wire.Refused(code=Refusal.BUDGET), "refuse_from": 2}
    )
    digest, summary, records = await hub.run(rounds=3)
    assert (summary.status, summary.rounds_completed) == ("stopped", 1)
    others = r"(; no answer yet from: silo-[12](, silo-2)?)?"  # as far as each has come
    stays = "the model after 1 of 3 rounds stays"
    assert re.fullmatch(rf"budget: refused by silos: silo-0 \(budget\){others}; {stays}", summary.reason)
    assert [(record.round, record.result, record.reason) for record in records] == [
        (0, "applied", ""), (1, "applied", ""), (2, "used-up", "budget"),
    ]  # fmt: skip
    state = await hub.state(digest)
    np.testing.assert_allclose(state["model/votes"][:3], [1 / 3, 1 / 3, 1 / 3], atol=1e-6)


async def test_job_that_the_budget_refuses_before_its_first_round_has_failed(attended_hub):
    hub = await attended_hub(silos=3, silo_0={"refuse_with": wire.Refused(code=Refusal.BUDGET)})
    summary, records = await hub.finish(await hub.submit(rounds=1))
    assert summary.status == "failed"
    assert summary.reason.startswith("budget: refused by silos: silo-0 (budget)")
    assert records[0].reason == "budget"


async def test_coordinator_that_stops_in_unmask_resumes_the_same_session(attended_hub):
    # two of four answer, three are needed: the sum is stored and waits
    gone = {"vanish_on": ("enrollment", "signatures")}
    hub = await attended_hub(silos=4, silo_0=gone, silo_1=gone)
    digest = await hub.submit(rounds=1)
    await hub.fakes["silo-3"].wait_for("signatures")
    # silos keep their sessions over a lost connection, as their ledger would over a restart
    before = hub.fakes["silo-3"]
    await hub.restart()
    assert len(before.ledger.revealed) == 1

    summary, records = await hub.finish(digest)

    assert (records[0].phase, records[0].attempts, records[0].result) == ("enrollment.0", 1, "applied")
    assert list(records[0].cohort) == hub.names
    assert summary.status == "done"
    state = await hub.state(digest)
    assert int(state["method/total"]) == 400


async def test_coordinator_that_stops_before_unmask_begins_a_new_attempt(attended_hub):
    hub = await attended_hub(
        silos=3, reconnect_grace_seconds=5.0, silo_0={"vanish_on": ("train", "survivors")}
    )
    digest = await hub.submit(rounds=1)
    await hub.fakes["silo-1"].wait_for("survivors", count=2)  # of enrollment and of train
    await hub.restart(keeps=["ledger"])

    summary, records = await hub.finish(digest)

    train = train_of(records)
    assert (train.attempts, train.result) == (2, "applied")
    assert summary.status == "done"
    await hub.check_votes(digest, np.full(3, 1 / 3))


async def test_job_goes_on_by_itself_after_a_fault_of_this_machine(attended_hub, monkeypatch):
    add, faults = MaskedSum.add, iter([OSError(errno.EMFILE, "too many open files")])

    def add_after_a_fault(masked_sum, spooled):
        for fault in faults:
            raise fault
        add(masked_sum, spooled)

    monkeypatch.setattr(MaskedSum, "add", add_after_a_fault)
    monkeypatch.setattr("coordinator.jobs.job_runner.RESUME_SECONDS", 0.05)
    hub = await attended_hub(silos=3)

    summary, records = await hub.finish(await hub.submit(rounds=1))

    assert (summary.status, summary.rounds_completed) == ("done", 1)
    assert (records[0].phase, records[0].attempts, records[0].result) == ("enrollment.0", 2, "applied")
    assert list(records[0].cohort) == hub.names


@pytest.mark.parametrize(
    ("silos", "drawn"), [(5, {"fraction": 0.6}), (6, {"fraction": 0.5, "draw": "groups"})]
)
async def test_draw_is_fixed_by_the_stored_seeds_where_the_coordinator_stops_before_it_applies(
    silos, drawn, attended_hub, monkeypatch
):
    """Between the reveal and the next state: nothing but the store knows the silos' b any more."""
    faults = iter([OSError(errno.EMFILE, "too many open files")])

    def open_after_a_fault(**parts):
        for fault in faults:
            raise fault
        return StoredParts(**parts)

    monkeypatch.setattr("coordinator.jobs.outcome.StoredParts", open_after_a_fault)
    monkeypatch.setattr("coordinator.jobs.job_runner.RESUME_SECONDS", 0.05)
    hub = await attended_hub(silos=silos)
    digest, summary, records = await hub.run(rounds=4, **drawn)
    assert (summary.status, summary.rounds_completed) == ("done", 4)
    assert (records[0].phase, records[0].attempts, records[0].result) == ("enrollment.0", 1, "applied")
    state = await hub.state(digest)
    with closing(Store(hub.settings.directory / "coordinator.sqlite")) as store:
        rows = store.phases(digest)
    self_mask_seeds = rows[0].self_mask_seeds
    assert list(self_mask_seeds) == hub.names
    assert [row.self_mask_seeds for row in rows[1:]] == [None] * 5
    seed = draw_seed(digest, self_mask_seeds)
    assert state["method/draw_seed"].tobytes() == seed
    for record in records[1:-1]:
        assert tuple(record.cohort) == named_set(
            hub.names,
            on_roster=hub.names,
            round=record.round,
            fraction=drawn["fraction"],
            draw_seed=seed,
            by_groups="draw" in drawn,
        )
    assert list(records[-1].cohort) == hub.names


async def test_a_job_waits_twice_as_long_after_each_fault_until_a_phase_has_ended(attended_hub, monkeypatch):
    broken = OSError(errno.EIO, "input/output error")
    enter, faults = Store.enter_unmask, iter([broken, broken, broken, None, broken])

    def enter_after_a_fault(store, sequence, **values):
        if (fault := next(faults, None)) is not None:
            raise fault
        enter(store, sequence, **values)

    tell_progress, lines = JobRunner._tell_progress, []

    def tell(runner, line, awaited):
        lines.append(line)
        tell_progress(runner, line, awaited)

    monkeypatch.setattr(Store, "enter_unmask", enter_after_a_fault)
    monkeypatch.setattr(JobRunner, "_tell_progress", tell)
    monkeypatch.setattr("coordinator.jobs.job_runner.RESUME_SECONDS", 0.05)
    monkeypatch.setattr("coordinator.jobs.job_runner.MAX_RESUME_SECONDS", 0.15)
    hub = await attended_hub(silos=3)

    summary, _ = await hub.finish(await hub.submit(rounds=1, max_attempts=5))

    waits = [line.rpartition(" in ")[2] for line in lines if line.startswith("stopped by OSError")]
    assert waits == ["0.05 seconds", "0.1 seconds", "0.15 seconds", "0.05 seconds"]
    assert summary.status == "done"


async def test_silo_that_accuses_another_in_every_round_keeps_it_out_of_one(attended_hub):
    """It kept it out of every second round, for ever."""
    hub = await attended_hub(silos=5, silo_4={"accuses": "silo-3"})
    _, summary, records = await hub.run(rounds=5)
    assert summary.status == "done"
    lost = {record.round: left_out(record) for record in records if record.phase == "train"}
    assert lost == {
        1: [("silo-4", "masked", "complained")],
        2: [("silo-3", "waiting", "sits-out")],
        3: [("silo-4", "masked", "complained")],
        4: [("silo-4", "waiting", "sits-out")],
        5: [("silo-4", "masked", "complained")],
    }


def sample(hub, name, **labels):
    return hub.host.resources.metrics.registry.get_sample_value(f"chorale_coordinator_{name}", labels)


async def test_metrics_count_jobs_and_know_when_a_running_one_wrote_its_checkpoint(start_hub):
    hub = await start_hub(silos=3)
    digest = await hub.submit(rounds=1)
    job_id = digest.hex()[:12]
    assert sample(hub, "jobs", status="running") == 1
    resources = hub.host.resources
    initial = resources.checkpoints.path(digest, resources.store.job(digest).state_digest).stat().st_mtime
    assert sample(hub, "checkpoint_timestamp_seconds", federation_job=job_id) == initial

    await hub.control(digest, "PAUSE")
    assert (sample(hub, "jobs", status="running"), sample(hub, "jobs", status="paused")) == (0, 1)
    hub.start_silos()
    await hub.fakes["silo-0"].wait_for("outcome")
    # the phase that was under way ends all the same, and still nothing waits for a checkpoint
    assert sample(hub, "checkpoint_timestamp_seconds", federation_job=job_id) is None
    await hub.control(digest, "RESUME")
    assert sample(hub, "checkpoint_timestamp_seconds", federation_job=job_id) > initial

    await hub.finish(digest)
    assert sample(hub, "checkpoint_timestamp_seconds", federation_job=job_id) is None
    assert sample(hub, "rounds_completed", federation_job=job_id) == 1
    await hub.stop()
    await hub.start()
    assert (sample(hub, "jobs", status="running"), sample(hub, "jobs", status="done")) == (0, 1)


def series(metrics):
    """Names with their labels."""
    return {
        (each.name, *sorted(each.labels.items()))
        for family in metrics.registry.collect()
        for each in family.samples
    }


async def test_no_series_appears_that_was_not_there_from_the_start(attended_hub):
    """A counter whose first value is 1 shows no increase: an alert would miss what happened once."""
    hub = await attended_hub(silos=4, silo_2={"vanish_on": ("train", "envelopes")})
    digest, _, _ = await hub.run(rounds=1)

    expected = CoordinatorMetrics()
    add_process_metrics(expected.registry, PREFIX, version=own_software().version)
    expected.know_silos(hub.names)
    expected.know_job(digest.hex()[:12])
    assert sample(hub, "dropouts_total", silo="silo-2", stage="masked") > 0
    assert series(hub.host.resources.metrics) == series(expected)


async def test_new_roster_takes_effect_with_the_next_round(start_hub):
    hub = await start_hub(silos=5)
    digest = await hub.submit(rounds=1)
    await hub.control(digest, "PAUSE")
    hub.start_silos()
    await hub.fakes["silo-0"].wait_for("outcome")
    hub.ceremony.publish(without=("silo-4",))
    await hub.fakes["silo-0"].wait_for("roster")
    await hub.control(digest, "RESUME")

    summary, records = await hub.finish(digest)

    assert summary.status == "done"
    cohorts = {record.phase: list(record.cohort) for record in records}
    assert cohorts["enrollment.0"] == hub.names
    assert cohorts["train"] == hub.names[:4]
    # it is no longer named, so it is not left out either
    assert not train_of(records).left_out


async def test_silo_that_was_away_hears_of_the_last_sum_that_it_is_in_and_of_the_last_phase(start_hub):
    """Its local state follows from the first of them."""
    hub = await start_hub(silos=4)
    digest = await hub.submit(rounds=1)
    await hub.control(digest, "PAUSE")
    hub.start_silos()
    await hub.fakes["silo-3"].wait_for("outcome")
    await hub.fakes["silo-3"].stop()
    await hub.control(digest, "RESUME")
    await hub.control(digest, "PAUSE")  # before what follows the training
    await hub.fakes["silo-0"].wait_for("outcome", 2)
    back = hub.silo("silo-3", ledger=hub.fakes["silo-3"].ledger)
    await back.wait_for("outcome", 2)
    await hub.control(digest, "RESUME")

    _, records = await hub.finish(digest)

    assert list(records[1].cohort) == hub.names[:3]
    outcomes = [(outcome.record.round, outcome.record.phase) for outcome in back.received["outcome"][:2]]
    assert outcomes == [(0, "enrollment.0"), (1, "train")]


async def test_job_whose_operator_left_the_roster_starts_no_further_phase(start_hub):
    hub = await start_hub(silos=3)
    digest = await hub.submit(rounds=1)
    await hub.control(digest, "PAUSE")
    hub.start_silos()
    await hub.fakes["silo-0"].wait_for("outcome")
    del hub.ceremony.members[Role.OPERATOR, "ops"]
    hub.operator = hub.ceremony.enroll(Role.OPERATOR, "other")
    hub.ceremony.publish(admins=("other",))
    await hub.fakes["silo-0"].wait_for("roster")
    await hub.control(digest, "RESUME")

    summary, records = await hub.finish(digest)

    assert summary.status == "failed"
    assert "does not hold operator ops" in summary.reason
    assert [record.phase for record in records] == ["enrollment.0"]


async def test_private_job_reports_how_seldom_its_noise_leaves_a_word(attended_hub):
    hub = await attended_hub(silos=4)
    privacy = {
        "sums": {"clip_norm": 0.5, "noise_multiplier": 2.0},
        "statistics_noise_multiplier": 0.05,
    }
    _, summary, records = await hub.run(rounds=1, privacy=privacy, update_bits=16)
    assert summary.status == "done"
    assert [record.phase for record in records] == ["enrollment.0", "train", "evaluate.0"]
    for record in records:
        assert record.result == "applied"
        assert 0 <= dict(record.figures)["wrap_probability"] <= 2.0**-40
    assert records[1].figures["wrap_probability"] > 0  # 16 bits have little room


class Pretender(FakeSilo):
    """Does not deal in train, says at each heartbeat that it prepares the phase, and downloads its state."""

    def say(self, message: pb.SiloMessage) -> None:
        if message.WhichOneof("kind") == "shares" and message.shares.key.phase.startswith("train"):
            self._uploads.append(asyncio.create_task(self._pretend(message.shares.key)))
        else:
            super().say(message)

    async def _pretend(self, key: Any) -> None:
        digest = hashlib.sha256(self.states[key.SerializeToString()]).digest()
        with suppress(grpc.aio.AioRpcError):  # the job is over
            while True:
                self.say(pb.SiloMessage(heartbeat=pb.Heartbeat(preparing=[key])))
                await self._download(wire.key_from_wire(key), digest)
                await asyncio.sleep(0.05)


async def test_silo_that_only_says_that_it_is_at_work_is_left_out_at_the_deadline(attended_hub):
    # its heartbeats held every stage to the hard cap, and no such cap ends this test
    limits = {"stage_deadline_seconds": 1.0, "stage_hard_cap_seconds": 3600.0}
    hub = await attended_hub(silos=4, **limits, silo_2={"kind": Pretender})
    _, _, records = await hub.run(rounds=1)
    train = train_of(records)
    assert left_out(train) == [("silo-2", "share", "no-answer")]
    assert train.result == "applied"


async def test_a_phase_that_nobody_was_there_to_abandon_is_proven_before_the_next(attended_hub, monkeypatch):
    """Silos give no input over a model until it is known who is in every other sum over it: without the proof
    the job stood still for ever, though all silos were back."""
    monkeypatch.setattr("coordinator.jobs.phase_runner.REOFFER_SECONDS", 0.05)
    hub = await attended_hub(silos=4)
    for fake in hub.fakes.values():
        fake.vanish_on = ("train", "survivors")
    digest = await hub.submit(rounds=2, max_attempts=1)
    for fake in hub.fakes.values():
        await fake.wait_for("survivors", 2)  # the opening phase's, and the round's
    with closing(Store(hub.settings.directory / "coordinator.sqlite")) as store:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while store.phases(digest)[-1].round < 2:
                await asyncio.sleep(0.02)
        assert [phase.sequence for phase in store.unproven_phases(digest, after=0)] == [2]
        for name, fake in list(hub.fakes.items()):
            hub.silo(name, **fake.kept)

        summary, records = await hub.finish(digest)

        assert store.unproven_phases(digest, after=0) == []
    results = [(record.round, record.result) for record in records]
    assert results == [(0, "applied"), (1, "used-up"), (2, "applied"), (2, "applied")]
    assert (summary.status, records[1].reason) == ("done", "too-few-silos")
    for fake in hub.fakes.values():
        (task,) = [task for task in fake.received["task"] if task.key.phase == "train"]
        assert [proof.key.round for proof in task.abandoned] == [1]
