"""The operators' service: what is accepted, steered and handed out."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import shutil
import sqlite3
import threading
from contextlib import closing

import grpc
import numpy as np
import pytest

from chorale.runtime.audit import read_entries
from chorale.runtime.software import own_software
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport import wire
from chorale.v1 import operations_pb2 as pb
from coordinator.jobs import job_manager
from coordinator.service.operations_service import MAX_SUBMISSIONS
from crypto.errors import Refusal
from crypto.identity.certificates import Role
from tests.unit.coordinator.conftest import submission


async def submit(hub, signed, state):
    return await hub.operations().SubmitJob(submission(signed, state))


async def status_of(hub, digest):
    reply = await hub.operations().ListJobs(pb.ListJobsRequest())
    return next(job.status for job in reply.jobs if job.job_digest == digest)


async def test_job_handed_in_twice_is_one_job(make_hub):
    hub = make_hub()
    await hub.start()
    signed, state = hub.job()
    first, second = await submit(hub, signed, state), await submit(hub, signed, state)
    assert first.job_digest == second.job_digest == signed.digest
    assert len((await hub.operations().ListJobs(pb.ListJobsRequest())).jobs) == 1


async def test_job_with_a_forged_signature_is_refused(make_hub):
    hub = make_hub()
    await hub.start()
    signed, state = hub.job()
    forged = dataclasses.replace(signed, spec_bytes=signed.spec_bytes.replace(b"rounds: 2", b"rounds: 9"))
    with pytest.raises(grpc.aio.AioRpcError, match="the signature is not valid") as raised:
        await submit(hub, forged, state)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_job_under_a_certificate_of_an_unknown_version_is_refused(make_hub):
    # what a parser raised past every handler was an error of the coordinator
    hub = make_hub()
    await hub.start()
    signed, state = hub.job()
    version_3, version_9 = bytes.fromhex("a003020102"), bytes.fromhex("a003020108")
    odd = signed.operator_certificate.replace(version_3, version_9)
    assert odd != signed.operator_certificate
    forged = dataclasses.replace(signed, operator_certificate=odd)
    with pytest.raises(grpc.aio.AioRpcError, match="certificate: expected an X.509 certificate") as raised:
        await submit(hub, forged, state)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await submit(hub, signed, state)).job_digest == signed.digest  # the control


async def test_job_for_silos_that_nobody_knows_is_refused_by_their_names(make_hub):
    hub = make_hub()
    await hub.start()
    signed, state = hub.job(silos=["silo-0", "silo-1", "silo-x"])
    with pytest.raises(
        grpc.aio.AioRpcError, match=r"silos: silo-x not on the roster \(version 1\)"
    ) as raised:
        await submit(hub, signed, state)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_progress_names_the_silos_that_refused_and_why(make_hub):
    hub = make_hub()
    await hub.start()
    fake = hub.silo("silo-0", refuse_with=wire.Refused(code=Refusal.JOB_NOT_APPROVED))
    await fake.wait_for("welcome")
    digest = await hub.submit()
    async for event in hub.operations().WatchJob(pb.WatchRequest(job_digest=digest)):
        if "silo-0" in event.summary.progress and "without" in event.summary.progress:
            break
    assert event.summary.progress.endswith("; without silo-0 (job-not-approved)")


async def test_other_calls_are_answered_while_a_job_file_is_read(make_hub, monkeypatch):
    # a file of 60 kB held every other call for 1.7 s
    hub, begun, answered = make_hub(), threading.Event(), threading.Event()
    await hub.start()
    waited, open_job = [], job_manager.open_job

    def slow(*args, **kwargs):
        begun.set()
        waited.append(answered.wait(timeout=20))
        return open_job(*args, **kwargs)

    monkeypatch.setattr(job_manager, "open_job", slow)
    submitted = asyncio.create_task(hub.submit())
    await asyncio.to_thread(begun.wait, 20)
    await hub.operations().ListJobs(pb.ListJobsRequest())
    answered.set()
    await submitted
    assert waited == [True]


async def test_initial_state_with_another_digest_is_refused(make_hub):
    hub = make_hub()
    await hub.start()
    signed, state = hub.job()
    other = state[:-1] + bytes([state[-1] ^ 1])
    with pytest.raises(grpc.aio.AioRpcError, match="digest is not the one in the signed job"):
        await submit(hub, signed, other)
    assert not (await hub.operations().ListJobs(pb.ListJobsRequest())).jobs


async def test_initial_state_larger_than_allowed_is_refused(make_hub):
    hub = make_hub(max_state_bytes=1024)
    await hub.start()
    signed, _ = hub.job()
    with pytest.raises(grpc.aio.AioRpcError, match="exceeds 1024 bytes"):
        await submit(hub, signed, b"x" * 1025)


async def test_initial_state_that_brings_a_draw_seed_is_refused(make_hub):
    hub = make_hub(silos=5)
    await hub.start()
    votes = {"model/votes": np.zeros(5, np.float32)}
    brought = state_to_bytes({**votes, "method/draw_seed": np.zeros(32, np.uint8)})
    drawn, full = (
        hub.job(fraction=fraction, initial_state=state_digest(brought).hex())[0] for fraction in (0.6, 1.0)
    )
    with pytest.raises(grpc.aio.AioRpcError, match="draw_seed: expected none before the opening") as raised:
        await submit(hub, drawn, brought)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await submit(hub, full, brought)).job_digest == full.digest


async def test_more_jobs_than_allowed_are_refused(make_hub):
    hub = make_hub(max_jobs=1)
    await hub.start()
    await hub.submit()
    signed, state = hub.job(nonce="1" * 32)
    with pytest.raises(grpc.aio.AioRpcError, match="1 jobs are unfinished") as raised:
        await submit(hub, signed, state)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_an_operator_hands_in_only_so_many_jobs_at_once(make_hub):
    # without a bound one operator could fill the coordinator's disk with states that never end
    hub = make_hub()
    await hub.start()
    signed, state = hub.job()
    stubs = [hub.operations() for _ in range(MAX_SUBMISSIONS)]
    open_calls = [stub.SubmitJob() for stub in stubs]
    for call in open_calls:
        await call.write(await anext(submission(signed, state)))
    while len(list(hub.settings.spool_directory.glob("submit-*"))) < MAX_SUBMISSIONS:
        await asyncio.sleep(0.01)
    with pytest.raises(grpc.aio.AioRpcError, match="4 jobs of ops are being handed in already") as raised:
        await submit(hub, signed, state)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    open_calls[0].cancel()
    while len(list(hub.settings.spool_directory.glob("submit-*"))) >= MAX_SUBMISSIONS:
        await asyncio.sleep(0.01)
    assert (await submit(hub, signed, state)).job_digest == signed.digest


async def test_cancelled_job_ends_and_its_silos_are_told(make_hub):
    hub = make_hub()
    await hub.start()
    fake = hub.silo("silo-0")
    await fake.wait_for("welcome")
    digest = await hub.submit()
    await fake.wait_for("task")
    request = pb.ControlRequest(job_digest=digest, action=pb.ControlRequest.ACTION_CANCEL)
    assert (await hub.operations().ControlJob(request)).status == "cancelled"
    assert (await fake.wait_for("job_ended")).status == "cancelled"
    with pytest.raises(grpc.aio.AioRpcError, match=r"it has ended \(cancelled\)") as raised:
        await hub.operations().ControlJob(request)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_silo_that_was_away_is_told_which_of_its_jobs_have_ended(make_hub):
    # it asked its people for the approval of a job that was over
    hub = make_hub()
    await hub.start()
    ended = await hub.submit()
    await hub.operations().ControlJob(pb.ControlRequest(job_digest=ended, action=ACTIONS["cancel"]))
    running, silo = await hub.submit(), hub.silo("silo-0")
    for kind in ("job_ended", "task"):
        await silo.wait_for(kind)
    ended_jobs = [(each.job_digest, each.status, each.reason) for each in silo.received["job_ended"]]
    assert ended_jobs == [(ended, "cancelled", "")]
    assert running != ended


ACTIONS = {
    "pause": pb.ControlRequest.ACTION_PAUSE,
    "resume": pb.ControlRequest.ACTION_RESUME,
    "cancel": pb.ControlRequest.ACTION_CANCEL,
}


async def control(hub, digest, action, identity=None):
    request = pb.ControlRequest(job_digest=digest, action=ACTIONS[action])
    return (await hub.operations(identity).ControlJob(request)).status


async def test_another_operator_may_watch_a_job_and_nothing_else(make_hub):
    # any operator could cancel the job of another and fetch its model
    hub = make_hub()
    other = hub.ceremony.enroll(Role.OPERATOR, "other")
    hub.ceremony.publish()
    await hub.start()
    digest = await hub.submit()
    for action in ACTIONS:
        with pytest.raises(grpc.aio.AioRpcError, match="it belongs to operator ops; only this") as raised:
            await control(hub, digest, action, other)
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "or an admin of the roster may control it" in raised.value.details()
    with pytest.raises(grpc.aio.AioRpcError, match="only this operator may fetch its model") as raised:
        await anext(aiter(hub.operations(other).FetchModel(pb.FetchRequest(job_digest=digest))))
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert await status_of(hub, digest) == "running"

    stub = hub.operations(other)
    assert [job.job_digest for job in (await stub.ListJobs(pb.ListJobsRequest())).jobs] == [digest]
    events = aiter(stub.WatchJob(pb.WatchRequest(job_digest=digest)))
    assert hashlib.sha256((await anext(events)).job.spec).digest() == digest
    assert (await anext(events)).summary.job_digest == digest
    once = [event async for event in stub.WatchJob(pb.WatchRequest(job_digest=digest, once=True))]
    assert [event.WhichOneof("kind") for event in once] == ["job", "summary"]  # of a job that goes on
    # the control: its own operator, also after a restart, and at the end with another certificate
    assert await hub.fetch(digest)
    assert await control(hub, digest, "pause") == "paused"
    await hub.stop()
    await hub.start()
    assert await control(hub, digest, "resume") == "running"
    with pytest.raises(grpc.aio.AioRpcError, match="it belongs to operator ops"):
        await control(hub, digest, "cancel", other)
    assert await control(hub, digest, "cancel") == "cancelled"
    renewed = hub.ceremony.enroll(Role.OPERATOR, "ops")
    hub.ceremony.publish()
    assert hub.operator.fingerprint != renewed.fingerprint
    assert await hub.fetch(digest)


async def test_an_admin_of_the_roster_may_steer_the_job_of_another_and_not_fetch_its_model(make_hub):
    hub = make_hub()
    lead = hub.ceremony.enroll(Role.OPERATOR, "lead")
    hub.ceremony.publish(admins=("lead",))
    await hub.start()
    digest = await hub.submit()
    with pytest.raises(grpc.aio.AioRpcError, match="only this operator may fetch its model") as raised:
        await anext(aiter(hub.operations(lead).FetchModel(pb.FetchRequest(job_digest=digest))))
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert await control(hub, digest, "pause", lead) == "paused"
    assert await control(hub, digest, "resume", lead) == "running"
    hub.ceremony.publish()  # the mark is gone at once
    with pytest.raises(grpc.aio.AioRpcError, match="it belongs to operator ops"):
        await control(hub, digest, "cancel", lead)
    hub.ceremony.publish(admins=("lead",))
    assert await control(hub, digest, "cancel", lead) == "cancelled"
    entries = read_entries(hub.host.resources.settings.directory / "audit.jsonl")
    steered = [entry for entry in entries if entry["event"] == "job_controlled"]
    assert [(entry["action"], entry["operator"]) for entry in steered] == [
        ("pause", "lead"),
        ("resume", "lead"),
        ("cancel", "lead"),
    ]


async def test_paused_job_stays_paused_over_a_restart_and_goes_on_when_resumed(make_hub):
    hub = make_hub(silos=3)
    await hub.start()
    digest = await hub.submit(rounds=1)
    pause = pb.ControlRequest(job_digest=digest, action=pb.ControlRequest.ACTION_PAUSE)
    await hub.operations().ControlJob(pause)
    hub.start_silos()
    outcome = await hub.fakes["silo-0"].wait_for("outcome")
    assert outcome.record.phase == "enrollment.0"
    await hub.stop_silos()
    await hub.stop()
    await hub.start()
    assert await status_of(hub, digest) == "paused"
    hub.start_silos()
    await hub.fakes["silo-0"].wait_for("job")
    resume = pb.ControlRequest(job_digest=digest, action=pb.ControlRequest.ACTION_RESUME)
    await hub.operations().ControlJob(resume)
    summary, records = await hub.finish(digest)
    assert summary.status == "done"
    assert [record.phase for record in records] == ["enrollment.0", "train", "evaluate.0"]


async def test_a_job_in_the_words_of_an_earlier_release_is_listed_and_its_model_fetched(make_hub):
    hub = make_hub(silos=3)
    await hub.start()
    hub.start_silos()
    digest = await hub.submit(rounds=1)
    await hub.finish(digest)
    model = await hub.fetch(digest)
    await hub.stop_silos()
    await hub.stop()
    with closing(sqlite3.connect(hub.settings.directory / "coordinator.sqlite")) as connection, connection:
        old = "CAST(replace(CAST(spec AS TEXT), 'enrollment_every', 'roll_call_every') AS BLOB)"
        connection.execute(f"UPDATE jobs SET spec = {old}")
    await hub.start()
    (listed,) = (await hub.operations().ListJobs(pb.ListJobsRequest())).jobs
    assert (listed.name, listed.status, list(listed.silos)) == ("one-hot", "done", hub.names)
    assert (listed.rounds, listed.rounds_completed) == (1, 1)
    summary, records = await hub.finish(digest)
    assert (summary, len(records)) == (listed, 3)
    assert await hub.fetch(digest) == model


async def test_silos_are_listed_with_connection_and_expiry(make_hub):
    hub = make_hub(silos=3)
    await hub.start()
    await hub.silo("silo-1").wait_for("heartbeat")
    reply = await hub.operations().ListSilos(pb.ListSilosRequest())
    assert [(silo.name, silo.connected) for silo in reply.silos] == [
        ("silo-0", False),
        ("silo-1", True),
        ("silo-2", False),
    ]
    expires = hub.identities["silo-1"].certificate.not_valid_after_utc.timestamp()
    assert reply.silos[1].certificate_expires_unix_seconds == expires
    shown = {silo.name: silo.certificate_sha256 for silo in reply.silos}
    assert shown == {f"silo-{place}": hub.identities[f"silo-{place}"].fingerprint for place in range(3)}


async def test_silos_are_listed_with_the_software_that_they_report(make_hub):
    """A hospital that forgot an upgrade was found by asking each of them."""
    hub = make_hub(silos=3)
    await hub.start()
    for silo, digest in (("silo-0", b"a" * 32), ("silo-1", b"b" * 32), ("silo-2", b"")):
        fake = hub.silo(silo)
        fake.hello.software_digest, fake.hello.software_version = digest, "1\x1b" + "1" * 100
        await fake.wait_for("heartbeat")
    reply = await hub.operations().ListSilos(pb.ListSilosRequest())
    assert [silo.software_digest for silo in reply.silos] == [b"a" * 32, b"b" * 32, b""]
    assert {silo.software_version for silo in reply.silos} == {"1?" + "1" * 62}
    own = own_software()
    assert (reply.software_version, reply.software_digest.hex()) == (own.version, own.sha256)
    metrics = hub.host.resources.metrics
    assert metrics.registry.get_sample_value("chorale_coordinator_software_digests") == 2
    await hub.fakes["silo-1"].stop()
    while metrics.registry.get_sample_value("chorale_coordinator_software_digests") != 1:
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["WatchJob", "FetchModel"])
async def test_unknown_job_is_not_found(make_hub, name):
    hub = make_hub()
    await hub.start()
    request = {"WatchJob": pb.WatchRequest, "FetchModel": pb.FetchRequest}[name](job_digest=b"j" * 32)
    with pytest.raises(grpc.aio.AioRpcError, match="not known here") as raised:
        await anext(aiter(getattr(hub.operations(), name)(request)))
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_nothing_is_kept_of_a_job_that_nobody_knows(make_hub):
    hub = make_hub()
    await hub.start()
    with pytest.raises(grpc.aio.AioRpcError, match="not known here"):
        await anext(aiter(hub.operations().WatchJob(pb.WatchRequest(job_digest=b"j" * (1 << 20)))))
    assert not hub.host.job_manager._changes


async def test_a_job_whose_model_was_removed_to_make_room_is_listed_and_not_fetched(make_hub):
    """One such folder that was missing made `chorale job list` fail for every operator."""
    hub = make_hub()
    await hub.start()
    hub.start_silos()
    digest = await hub.submit(rounds=1)
    await hub.finish(digest)
    await hub.stop_silos()
    await hub.stop()
    shutil.rmtree(hub.settings.directory / "checkpoints" / digest.hex())
    await hub.start()
    assert await status_of(hub, digest) == "done"
    with pytest.raises(grpc.aio.AioRpcError, match="its model was removed") as raised:
        await hub.fetch(digest)
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND
