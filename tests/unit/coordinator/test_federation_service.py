"""The silos' service: hello, one stream each, downloads and uploads that are none of theirs."""

from __future__ import annotations

import asyncio
import hashlib
import os
from contextlib import suppress
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from cryptography import x509

from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import federation_pb2_grpc, operations_pb2
from coordinator.service import access, federation_service
from coordinator.service.access import FEDERATION_METHODS
from coordinator.service.federation_service import SERVICE, FederationService
from crypto.errors import Refusal
from tests.support.rpc_errors import rpc_fails

KEY = wire.PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
REFUSED = pb.SiloMessage(refused=wire.refused_to_wire(wire.Refused(code=Refusal.POLICY), KEY))


async def first_answer(stub, *messages):
    async def say():
        for message in messages:
            yield message

    async for answer in stub.Attend(say()):
        return answer


async def stub_of(hub, name="silo-0"):
    channel = hub.silo(name).channel()
    hub.stack.push_async_callback(channel.close)
    return federation_pb2_grpc.FederationStub(channel)


def test_every_method_of_the_service_is_served_as_it_is_declared():
    handlers = FederationService.handlers(FederationService.__new__(FederationService))
    declared = pb.DESCRIPTOR.services_by_name["Federation"].methods
    assert {f"/{SERVICE}/{method.name}" for method in declared} == FEDERATION_METHODS
    for method in declared:
        handler = handlers.service(SimpleNamespace(method=f"/{SERVICE}/{method.name}"))
        assert handler is not None, method.name
        assert handler.request_streaming is method.client_streaming
        assert handler.response_streaming is method.server_streaming


def greeting(**fields):
    return pb.SiloMessage(hello=pb.Hello(**{"protocol_version": wire.PROTOCOL_VERSION, **fields}))


GREETINGS = {
    "another version": (
        greeting(protocol_version=99),
        "FAILED_PRECONDITION",
        "this coordinator speaks 1, the silo 99",
    ),
    "no hello": (pb.SiloMessage(heartbeat=pb.Heartbeat()), "INVALID_ARGUMENT", "expected a hello first"),
    **{
        f"a digest of {size}": (
            greeting(software_digest=b"d" * size),
            "INVALID_ARGUMENT",
            f"expected none or 32 bytes, got {size}",
        )
        for size in (1, 31, 33, 4096)
    },
}


@pytest.mark.parametrize(("said", "code", "sentence"), GREETINGS.values(), ids=GREETINGS)
async def test_stream_that_does_not_begin_as_it_should_is_refused(start_hub, said, code, sentence):
    hub = await start_hub()
    with rpc_fails(code, sentence):
        await first_answer(await stub_of(hub), said)


@pytest.mark.parametrize(("digest", "said"), [(b"", "no digest"), (b"x" * 32, "78" * 32)])
async def test_silo_that_runs_other_software_than_required_is_refused(start_hub, digest, said):
    hub = await start_hub(required_software=["61" * 32, "62" * 32])
    stub = await stub_of(hub)
    agreed = greeting(software_digest=b"b" * 32)
    assert (await first_answer(stub, agreed)).WhichOneof("kind") == "welcome"
    with rpc_fails("PERMISSION_DENIED", f"software: this silo reports {said}, which"):
        await first_answer(stub, greeting(software_digest=digest))


async def test_stream_that_says_nothing_is_ended(start_hub, monkeypatch):
    monkeypatch.setattr("coordinator.service.federation_service.HELLO_SECONDS", 0.05)
    hub = await start_hub()
    call = (await stub_of(hub)).Attend()  # opened, and not a word
    with rpc_fails("INVALID_ARGUMENT", "expected a hello first"):
        await call.read()


async def test_newer_connection_replaces_the_older(start_hub):
    hub = await start_hub()
    older = hub.silo("silo-0")
    await older.wait_for("heartbeat")
    newer = hub.silo("silo-0")
    error = await older.wait_for("error")
    assert error.code() is grpc.StatusCode.ABORTED
    await newer.wait_for("heartbeat", count=2)
    assert len(hub.host.resources.attendance.connections) == 1
    await older.stop()


async def test_grpc_is_asked_who_calls_when_a_call_begins_and_never_again(start_hub, monkeypatch):
    """It frees a call when its handler ends, and crashes the process where that call is asked later."""
    ask, asked = access.caller_of, []
    for module in (access, federation_service):
        monkeypatch.setattr(module, "caller_of", lambda context: asked.append(context) or ask(context))
    hub = await start_hub()
    fake = hub.silo("silo-0")
    await fake.wait_for("heartbeat")
    asked_at_first = len(asked)
    assert asked_at_first > 0
    fake.say(pb.SiloMessage(heartbeat=pb.Heartbeat()))
    await fake.wait_for("heartbeat", count=3)
    assert len(asked) == asked_at_first


async def test_revoked_silo_that_reads_nothing_counts_as_gone_and_is_not_heard(start_hub):
    """gRPC cannot end its call before it reads what was sent to it."""
    hub = await start_hub()
    fake = hub.silo("silo-1")
    await fake.wait_for("welcome")
    await fake.stop()  # it would replace the call, or be replaced
    channel = fake.channel([("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)])
    hub.stack.push_async_callback(channel.close)
    call = federation_pb2_grpc.FederationStub(channel).Attend()
    await call.write(greeting())
    await call.read()
    kept = hub.silo("silo-2")
    await kept.wait_for("heartbeat")
    attendance = hub.host.resources.attendance
    unread = pb.CoordinatorMessage(job_ended=pb.JobEnded(reason="x" * (1 << 20)))
    attendance.send("silo-1", unread)

    hub.ceremony.publish(without=("silo-1",))
    while "silo-1" in attendance.connections:
        await asyncio.sleep(0.01)
    heard = SimpleNamespace(messages=[], on_connected=print, on_lost=print)
    heard.on_message = lambda silo, message: heard.messages.append(silo)
    attendance.listeners.append(heard)
    await call.write(REFUSED)
    kept.say(REFUSED)
    while "silo-2" not in heard.messages:
        await asyncio.sleep(0.01)
    await kept.wait_for("heartbeat", count=3)

    assert not call.done()
    assert "silo-1" not in heard.messages
    assert "silo-2" in attendance.connections
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("method", ["on_connected", "on_message", "on_lost"])
async def test_a_stream_whose_reader_fails_ends_and_its_silo_is_not_connected(start_hub, caplog, method):
    """The reader's task died of InvalidVersion, and the silo stayed connected without being heard."""
    hub = await start_hub()
    attendance = hub.host.resources.attendance
    kept = hub.silo("silo-1")
    await kept.wait_for("heartbeat")

    def fail(silo, *message):
        if silo == "silo-0":
            raise x509.InvalidVersion("9 is not a valid X509 version", 9)

    heard = SimpleNamespace(on_connected=print, on_message=print, on_lost=print)
    setattr(heard, method, fail)
    lost = []
    attendance.listeners += [
        heard,
        SimpleNamespace(on_connected=print, on_message=print, on_lost=lost.append),
    ]
    fake = hub.silo("silo-0")
    if method == "on_message":
        await fake.wait_for("heartbeat")
        assert "silo-0" in attendance.connections  # the control
        fake.say(REFUSED)
    if method == "on_lost":
        await fake.wait_for("heartbeat")
        await fake.stop()
    else:
        error = await fake.wait_for("error")
        assert error.code() is grpc.StatusCode.INTERNAL
        assert error.details() == "control stream: the coordinator had an internal error"
    while not lost:
        await asyncio.sleep(0.01)
    assert lost == ["silo-0"]
    assert list(attendance.connections) == ["silo-1"]
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    await kept.wait_for("heartbeat", count=3)


async def test_a_stream_whose_checks_fail_ends_with_them(start_hub, monkeypatch):
    hub = await start_hub()
    fake = hub.silo("silo-0")
    await fake.wait_for("heartbeat")

    def fail(guard, caller, method):
        raise OSError("no such disk")

    monkeypatch.setattr(access.AccessGuard, "check", fail)
    error = await fake.wait_for("error")
    assert error.code() is grpc.StatusCode.INTERNAL
    while hub.host.resources.attendance.connections:
        await asyncio.sleep(0.01)


async def test_stopping_ends_streams_with_a_reason(start_hub):
    hub = await start_hub()
    fake = hub.silo("silo-0")
    await fake.wait_for("heartbeat")
    await hub.stop()
    del hub.host
    error = await fake.wait_for("error")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in error.details()


async def test_download_of_a_job_that_does_not_name_the_silo_is_refused(start_hub):
    hub = await start_hub(silos=4)
    digest = await hub.submit(silos=hub.names[:3])
    _, state = hub.job(silos=hub.names[:3])
    request = pb.DownloadRequest(job_digest=digest, digest=hashlib.sha256(state).digest())
    stub = await stub_of(hub, "silo-3")
    with rpc_fails("FAILED_PRECONDITION", "not a present state or sum of a job of this silo"):
        await anext(aiter(stub.Download(request)))


async def test_upload_for_no_running_attempt_is_refused(start_hub):
    hub = await start_hub()
    stub = await stub_of(hub)
    key = wire.PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
    call = stub.Upload()
    header = pb.UploadHeader(key=wire.key_to_wire(key), total_bytes=10)
    await call.write(pb.UploadMessage(header=header))
    with rpc_fails("FAILED_PRECONDITION", "no such job is running"):
        await call.read()


@pytest.mark.parametrize(
    "first, sentence",
    [
        (pb.UploadMessage(chunk=pb.Chunk(offset=0, data=b"x")), "expected a header first"),
        (pb.UploadMessage(header=pb.UploadHeader(total_bytes=10)), "job digest: expected 32 bytes"),
    ],
)
async def test_malformed_upload_is_refused(start_hub, first, sentence):
    hub = await start_hub()
    call = (await stub_of(hub)).Upload()
    await call.write(first)
    with rpc_fails("INVALID_ARGUMENT", sentence):
        await call.read()


QUICK = {"stage_deadline_seconds": 0.1, "min_upload_bytes_per_second": 10**9}  # of transfers that stand still


async def test_an_upload_that_never_says_what_it_is_ends(start_hub):
    # it held its call for as long as the silo liked
    hub = await start_hub(**QUICK)
    call = (await stub_of(hub)).Upload()
    with rpc_fails("DEADLINE_EXCEEDED", r"upload: nothing came for 0\.1.* seconds"):
        await call.read()


def big_job(hub):
    """A signed job whose state is larger than what a connection takes in unread."""
    state = state_to_bytes({"model/votes": np.zeros(4 << 20, np.float32)})
    signed, _ = hub.job(initial_state=state_digest(state).hex())
    return signed, state


async def hand_in(hub):
    """Submit the large job; its digest, its state and where that lies."""
    signed, state = big_job(hub)

    async def messages():
        yield operations_pb2.SubmitMessage(job=signed.to_wire())
        for offset in range(0, len(state), wire.CHUNK_BYTES):
            data = state[offset : offset + wire.CHUNK_BYTES]
            yield operations_pb2.SubmitMessage(chunk=pb.Chunk(offset=offset, data=data))

    await hub.operations().SubmitJob(messages())
    path = hub.host.resources.checkpoints.path(signed.digest, hashlib.sha256(state).digest())
    return signed.digest, state, path


def times_open(path):
    """How often this process has the file open: a running job may do so, too."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            count += os.readlink(f"/proc/self/fd/{entry}") == str(path)
    return count


async def closed(path, before):
    while times_open(path) > before:
        await asyncio.sleep(0.01)


async def read_to_the_end(call):
    while await call.read() is not grpc.aio.EOF:
        pass


NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]


async def test_a_download_that_nobody_reads_gives_its_file_back(start_hub):
    hub = await start_hub(**QUICK)
    digest, state, path = await hand_in(hub)
    channel = hub.silo("silo-0").channel([*NARROW, ("grpc.max_receive_message_length", 8 << 20)])
    hub.stack.push_async_callback(channel.close)
    stub = federation_pb2_grpc.FederationStub(channel)
    request = pb.DownloadRequest(job_digest=digest, digest=hashlib.sha256(state).digest())
    before = times_open(path)  # the job's own memory map of it
    whole = b"".join([chunk.data async for chunk in stub.Download(request)])
    assert whole == state  # the control: one that is read
    await closed(path, before)

    call = stub.Download(request)
    await call.read()
    await closed(path, before)
    with rpc_fails("DEADLINE_EXCEEDED", r"download: nothing was read for 0\.1"):
        await read_to_the_end(call)


async def test_a_model_that_its_operator_does_not_read_gives_its_file_back(start_hub):
    hub = await start_hub(**QUICK)
    digest, state, path = await hand_in(hub)
    before = times_open(path)
    assert await hub.fetch(digest) == state  # the control
    await closed(path, before)
    call = hub.operations(options=NARROW).FetchModel(operations_pb2.FetchRequest(job_digest=digest))
    await call.read()
    await closed(path, before)
    with rpc_fails("DEADLINE_EXCEEDED", r"fetch: nothing was read for 0\.1"):
        await read_to_the_end(call)


@pytest.mark.parametrize("says", ["nothing", "a job", "half a state"])
async def test_a_submission_that_stands_still_ends_and_leaves_nothing(start_hub, says):
    hub = await start_hub(**QUICK)
    signed, state = big_job(hub)
    call = hub.operations().SubmitJob()
    if says != "nothing":
        await call.write(operations_pb2.SubmitMessage(job=signed.to_wire()))
    if says == "half a state":
        await call.write(operations_pb2.SubmitMessage(chunk=pb.Chunk(offset=0, data=state[:100])))
    with rpc_fails("DEADLINE_EXCEEDED", r"submit: nothing came for 0\.1.* seconds"):
        await call
    assert not list(hub.settings.spool_directory.glob("submit-*"))


async def test_a_member_has_only_so_many_calls_of_a_method_over_all_its_connections(start_hub, monkeypatch):
    monkeypatch.setattr(access, "MIN_CALLS", 2)
    hub = await start_hub(max_jobs=1)
    stubs = [await stub_of(hub) for _ in range(3)]  # a connection each
    for fake in hub.fakes.values():
        await fake.stop()
    calls = [stub.Upload() for stub in stubs]
    reads = {asyncio.ensure_future(call.read()): call for call in calls}
    done, waiting = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
    with rpc_fails("RESOURCE_EXHAUSTED", "2 calls of silo silo-0 are under way already"):
        done.pop().result()
    assert (len(done), len(waiting)) == (0, 2)

    # the control: another silo's call, and one of this silo when one of the two has ended
    assert await refusal_of(await stub_of(hub, "silo-1")) is grpc.StatusCode.INVALID_ARGUMENT
    assert await refusal_of(stubs[0]) is grpc.StatusCode.RESOURCE_EXHAUSTED
    reads[waiting.pop()].cancel()
    while await refusal_of(stubs[0]) is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await asyncio.sleep(0.01)
    assert await refusal_of(stubs[0]) is grpc.StatusCode.INVALID_ARGUMENT


async def refusal_of(stub):
    """The code by which an upload with a malformed header ends."""
    call = stub.Upload()
    with suppress(asyncio.InvalidStateError):  # it has ended already
        await call.write(pb.UploadMessage(header=pb.UploadHeader(total_bytes=10)))
    return await call.code()
