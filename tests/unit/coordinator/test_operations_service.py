"""The operators' service: what is accepted, steered and handed out."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest

from chorale.job import SignedJob
from chorale.runtime.audit import read_entries
from chorale.runtime.software import own_software
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport import wire
from chorale.v1 import operations_pb2 as pb
from coordinator.jobs import job_manager
from coordinator.service.operations_service import MAX_SUBMISSIONS
from crypto.errors import Refusal
from crypto.identity.certificates import Role
from tests.support.rpc_errors import rpc_fails
from tests.unit.coordinator.conftest import submission


async def submit(hub, signed, state):
    return await hub.operations().SubmitJob(submission(signed, state))


async def test_job_handed_in_twice_is_one_job(start_hub):
    hub = await start_hub()
    signed, state = hub.job()
    first, second = await submit(hub, signed, state), await submit(hub, signed, state)
    assert first.job_digest == second.job_digest == signed.digest
    assert len(await hub.jobs()) == 1


Submission = tuple[SignedJob, bytes]


def forged(hub: Any) -> Submission:
    signed, state = hub.job()
    spec = signed.spec_bytes.replace(b"rounds: 2", b"rounds: 9")
    return dataclasses.replace(signed, spec_bytes=spec), state


def of_an_unknown_version(hub: Any) -> Submission:
    """What a parser raised past every handler was an error of the coordinator."""
    signed, state = hub.job()
    version_3, version_9 = bytes.fromhex("a003020102"), bytes.fromhex("a003020108")
    odd = signed.operator_certificate.replace(version_3, version_9)
    assert odd != signed.operator_certificate
    return dataclasses.replace(signed, operator_certificate=odd), state


def with_another_state(hub: Any) -> Submission:
    signed, state = hub.job()
    return signed, state[:-1] + bytes([state[-1] ^ 1])


REFUSED: dict[str, tuple[Callable[[Any], Submission], str]] = {
    "a forged signature": (forged, "the signature is not valid"),
    "a certificate of an unknown version": (
        of_an_unknown_version,
        "certificate: expected an X.509 certificate",
    ),
    "silos that nobody knows": (
        lambda hub: hub.job(silos=["silo-0", "silo-1", "silo-x"]),
        r"silos: silo-x not on the roster \(version 1\)",
    ),
    "another state": (with_another_state, "digest is not the one in the signed job"),
    "a state larger than allowed": (lambda hub: (hub.job()[0], b"x" * 1025), "exceeds 1024 bytes"),
}


@pytest.mark.parametrize(("made", "sentence"), REFUSED.values(), ids=REFUSED)
async def test_job_that_does_not_hold_is_refused_and_leaves_no_trace(start_hub, made, sentence):
    hub = await start_hub(max_state_bytes=1024)
    with rpc_fails("INVALID_ARGUMENT", sentence):
        await submit(hub, *made(hub))
    assert await hub.jobs() == []
    signed, state = hub.job()
    assert (await submit(hub, signed, state)).job_digest == signed.digest  # the control


async def test_progress_names_the_silos_that_refused_and_why(start_hub):
    hub = await start_hub()
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


async def test_initial_state_that_brings_a_draw_seed_is_refused(start_hub):
    hub = await start_hub(silos=5)
    votes = {"model/votes": np.zeros(5, np.float32)}
    brought = state_to_bytes({**votes, "method/draw_seed": np.zeros(32, np.uint8)})
    drawn, full = (
        hub.job(fraction=fraction, initial_state=state_digest(brought).hex())[0] for fraction in (0.6, 1.0)
    )
    with rpc_fails("INVALID_ARGUMENT", "draw_seed: expected none before the opening"):
        await submit(hub, drawn, brought)
    assert (await submit(hub, full, brought)).job_digest == full.digest


async def test_more_jobs_than_allowed_are_refused(start_hub):
    hub = await start_hub(max_jobs=1)
    await hub.submit()
    signed, state = hub.job(nonce="1" * 32)
    with rpc_fails("RESOURCE_EXHAUSTED", "1 jobs are unfinished"):
        await submit(hub, signed, state)


async def test_an_operator_hands_in_only_so_many_jobs_at_once(start_hub):
    # without a bound one operator could fill the coordinator's disk with states that never end
    hub = await start_hub()
    signed, state = hub.job()
    stubs = [hub.operations() for _ in range(MAX_SUBMISSIONS)]
    open_calls = [stub.SubmitJob() for stub in stubs]
    for call in open_calls:
        await call.write(await anext(submission(signed, state)))
    while len(list(hub.settings.spool_directory.glob("submit-*"))) < MAX_SUBMISSIONS:
        await asyncio.sleep(0.01)
    with rpc_fails("RESOURCE_EXHAUSTED", "4 jobs of ops are being handed in already"):
        await submit(hub, signed, state)
    open_calls[0].cancel()
    while len(list(hub.settings.spool_directory.glob("submit-*"))) >= MAX_SUBMISSIONS:
        await asyncio.sleep(0.01)
    assert (await submit(hub, signed, state)).job_digest == signed.digest


async def test_cancelled_job_ends_and_its_silos_are_told(start_hub):
    hub = await start_hub()
    fake = hub.silo("silo-0")
    await fake.wait_for("welcome")
    digest = await hub.submit()
    await fake.wait_for("task")
    assert await hub.control(digest, "CANCEL") == "cancelled"
    assert (await fake.wait_for("job_ended")).status == "cancelled"
    with rpc_fails("FAILED_PRECONDITION", r"it has ended \(cancelled\)"):
        await hub.control(digest, "CANCEL")


async def test_a_silo_that_was_away_is_told_which_of_its_jobs_have_ended(start_hub):
    # it asked its people for the approval of a job that was over
    hub = await start_hub()
    ended = await hub.submit()
    await hub.control(ended, "CANCEL")
    running, silo = await hub.submit(), hub.silo("silo-0")
    for kind in ("job_ended", "task"):
        await silo.wait_for(kind)
    ended_jobs = [(each.job_digest, each.status, each.reason) for each in silo.received["job_ended"]]
    assert ended_jobs == [(ended, "cancelled", "")]
    assert running != ended


async def test_another_operator_may_watch_a_job_and_nothing_else(make_hub):
    # any operator could cancel the job of another and fetch its model
    hub = make_hub()
    other = hub.ceremony.enroll(Role.OPERATOR, "other")
    hub.ceremony.publish()
    await hub.start()
    digest = await hub.submit()
    for action in ("PAUSE", "RESUME", "CANCEL"):
        with rpc_fails("PERMISSION_DENIED", "it belongs to operator ops; only this") as raised:
            await hub.control(digest, action, other)
        assert "or an admin of the roster may control it" in raised.value.details()
    with rpc_fails("PERMISSION_DENIED", "only this operator may fetch its model"):
        await anext(aiter(hub.operations(other).FetchModel(pb.FetchRequest(job_digest=digest))))
    assert (await hub.jobs())[0].status == "running"

    stub = hub.operations(other)
    assert [job.job_digest for job in (await stub.ListJobs(pb.ListJobsRequest())).jobs] == [digest]
    events = aiter(stub.WatchJob(pb.WatchRequest(job_digest=digest)))
    assert hashlib.sha256((await anext(events)).job.spec).digest() == digest
    assert (await anext(events)).summary.job_digest == digest
    once = [event async for event in stub.WatchJob(pb.WatchRequest(job_digest=digest, once=True))]
    assert [event.WhichOneof("kind") for event in once] == ["job", "summary"]  # of a job that goes on
    # the control: its own operator, also after a restart, and at the end with another certificate
    assert await hub.fetch(digest)
    assert await hub.control(digest, "PAUSE") == "paused"
    await hub.stop()
    await hub.start()
    assert await hub.control(digest, "RESUME") == "running"
    with pytest.raises(grpc.aio.AioRpcError, match="it belongs to operator ops"):
        await hub.control(digest, "CANCEL", other)
    assert await hub.control(digest, "CANCEL") == "cancelled"
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
    with rpc_fails("PERMISSION_DENIED", "only this operator may fetch its model"):
        await anext(aiter(hub.operations(lead).FetchModel(pb.FetchRequest(job_digest=digest))))
    assert await hub.control(digest, "PAUSE", lead) == "paused"
    assert await hub.control(digest, "RESUME", lead) == "running"
    hub.ceremony.publish()  # the mark is gone at once
    with pytest.raises(grpc.aio.AioRpcError, match="it belongs to operator ops"):
        await hub.control(digest, "CANCEL", lead)
    hub.ceremony.publish(admins=("lead",))
    assert await hub.control(digest, "CANCEL", lead) == "cancelled"
    entries = read_entries(hub.host.resources.settings.directory / "audit.jsonl")
    steered = [entry for entry in entries if entry["event"] == "job_controlled"]
    assert [(entry["action"], entry["operator"]) for entry in steered] == [
        ("pause", "lead"),
        ("resume", "lead"),
        ("cancel", "lead"),
    ]


async def test_paused_job_stays_paused_over_a_restart_and_goes_on_when_resumed(start_hub):
    hub = await start_hub(silos=3)
    digest = await hub.submit(rounds=1)
    await hub.control(digest, "PAUSE")
    hub.start_silos()
    outcome = await hub.fakes["silo-0"].wait_for("outcome")
    assert outcome.record.phase == "enrollment.0"
    await hub.stop_silos()
    await hub.stop()
    await hub.start()
    assert (await hub.jobs())[0].status == "paused"
    hub.start_silos()
    await hub.fakes["silo-0"].wait_for("job")
    await hub.control(digest, "RESUME")
    summary, records = await hub.finish(digest)
    assert summary.status == "done"
    assert [record.phase for record in records] == ["enrollment.0", "train", "evaluate.0"]


async def test_a_job_in_the_words_of_an_earlier_release_is_listed_and_its_model_fetched(attended_hub):
    hub = await attended_hub(silos=3)
    digest, _, _ = await hub.run(rounds=1)
    model = await hub.fetch(digest)
    await hub.stop_silos()
    await hub.stop()
    with closing(sqlite3.connect(hub.settings.directory / "coordinator.sqlite")) as connection, connection:
        old = "CAST(replace(CAST(spec AS TEXT), 'enrollment_every', 'roll_call_every') AS BLOB)"
        connection.execute(f"UPDATE jobs SET spec = {old}")
    await hub.start()
    (listed,) = await hub.jobs()
    assert (listed.name, listed.status, list(listed.silos)) == ("one-hot", "done", hub.names)
    assert (listed.rounds, listed.rounds_completed) == (1, 1)
    summary, records = await hub.finish(digest)
    assert (summary, len(records)) == (listed, 3)
    assert await hub.fetch(digest) == model


async def test_silos_are_listed_with_connection_and_expiry(start_hub):
    hub = await start_hub(silos=3)
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


async def test_silos_are_listed_with_the_software_that_they_report(start_hub):
    """A hospital that forgot an upgrade was found by asking each of them."""
    hub = await start_hub(silos=3)
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
async def test_unknown_job_is_not_found(start_hub, name):
    hub = await start_hub()
    request = {"WatchJob": pb.WatchRequest, "FetchModel": pb.FetchRequest}[name](job_digest=b"j" * 32)
    with rpc_fails("NOT_FOUND", "not known here"):
        await anext(aiter(getattr(hub.operations(), name)(request)))


async def test_nothing_is_kept_of_a_job_that_nobody_knows(start_hub):
    hub = await start_hub()
    with pytest.raises(grpc.aio.AioRpcError, match="not known here"):
        await anext(aiter(hub.operations().WatchJob(pb.WatchRequest(job_digest=b"j" * (1 << 20)))))
    assert not hub.host.job_manager._changes


async def test_a_job_whose_model_was_removed_to_make_room_is_listed_and_not_fetched(attended_hub):
    """One such folder that was missing made `chorale job list` fail for every operator."""
    hub = await attended_hub()
    digest, _, _ = await hub.run(rounds=1)
    await hub.stop_silos()
    await hub.stop()
    shutil.rmtree(hub.settings.directory / "checkpoints" / digest.hex())
    await hub.start()
    assert (await hub.jobs())[0].status == "done"
    with rpc_fails("NOT_FOUND", "its model was removed"):
        await hub.fetch(digest)
