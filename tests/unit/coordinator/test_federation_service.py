"""The silos' service: hello, one stream each, downloads and uploads that are none of theirs."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from types import SimpleNamespace

import grpc
import pytest
from cryptography import x509

from chorale.transport import wire
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import federation_pb2_grpc
from coordinator.service import access, federation_service
from coordinator.service.access import FEDERATION_METHODS
from coordinator.service.federation_service import SERVICE, FederationService
from crypto.errors import Refusal

KEY = wire.PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
REFUSED = pb.SiloMessage(refused=wire.refused_to_wire(Refusal.POLICY, KEY))


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


async def test_other_protocol_version_is_told_both_versions(make_hub):
    hub = make_hub()
    await hub.start()
    stub = await stub_of(hub)
    with pytest.raises(grpc.aio.AioRpcError, match="this coordinator speaks 1, the silo 99") as raised:
        await first_answer(stub, pb.SiloMessage(hello=pb.Hello(protocol_version=99)))
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_stream_that_does_not_say_hello_is_refused(make_hub):
    hub = make_hub()
    await hub.start()
    stub = await stub_of(hub)
    with pytest.raises(grpc.aio.AioRpcError, match="expected a hello first") as raised:
        await first_answer(stub, pb.SiloMessage(heartbeat=pb.Heartbeat()))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_stream_that_says_nothing_is_ended(make_hub, monkeypatch):
    monkeypatch.setattr("coordinator.service.federation_service.HELLO_SECONDS", 0.05)
    hub = make_hub()
    await hub.start()
    call = (await stub_of(hub)).Attend()  # opened, and not a word
    with pytest.raises(grpc.aio.AioRpcError, match="expected a hello first") as raised:
        await call.read()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_newer_connection_replaces_the_older(make_hub):
    hub = make_hub()
    await hub.start()
    older = hub.silo("silo-0")
    await older.wait_for("heartbeat")
    newer = hub.silo("silo-0")
    error = await older.wait_for("error")
    assert error.code() is grpc.StatusCode.ABORTED
    await newer.wait_for("heartbeat", count=2)
    assert len(hub.host.resources.attendance.connections) == 1
    await older.stop()


async def test_grpc_is_asked_who_calls_when_a_call_begins_and_never_again(make_hub, monkeypatch):
    """It frees a call when its handler ends, and crashes the process where that call is asked later."""
    ask, asked = access.caller_of, []
    for module in (access, federation_service):
        monkeypatch.setattr(module, "caller_of", lambda context: asked.append(context) or ask(context))
    hub = make_hub()
    await hub.start()
    fake = hub.silo("silo-0")
    await fake.wait_for("heartbeat")
    asked_at_first = len(asked)
    assert asked_at_first > 0
    fake.say(pb.SiloMessage(heartbeat=pb.Heartbeat()))
    await fake.wait_for("heartbeat", count=3)
    assert len(asked) == asked_at_first


async def test_revoked_silo_that_reads_nothing_counts_as_gone_and_is_not_heard(make_hub):
    """gRPC cannot end its call before it reads what was sent to it."""
    hub = make_hub()
    await hub.start()
    fake = hub.silo("silo-1")
    await fake.wait_for("welcome")
    await fake.stop()  # it would replace the call, or be replaced
    channel = fake.channel([("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)])
    hub.stack.push_async_callback(channel.close)
    call = federation_pb2_grpc.FederationStub(channel).Attend()
    await call.write(pb.SiloMessage(hello=pb.Hello(protocol_version=wire.PROTOCOL_VERSION)))
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
async def test_a_stream_whose_reader_fails_ends_and_its_silo_is_not_connected(make_hub, caplog, method):
    """The reader's task died of InvalidVersion, and the silo stayed connected without being heard."""
    hub = make_hub()
    await hub.start()
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


async def test_a_stream_whose_checks_fail_ends_with_them(make_hub, monkeypatch):
    hub = make_hub()
    await hub.start()
    fake = hub.silo("silo-0")
    await fake.wait_for("heartbeat")

    def fail(guard, caller, method):
        raise OSError("no such disk")

    monkeypatch.setattr(access.AccessGuard, "check", fail)
    error = await fake.wait_for("error")
    assert error.code() is grpc.StatusCode.INTERNAL
    while hub.host.resources.attendance.connections:
        await asyncio.sleep(0.01)


async def test_stopping_ends_streams_with_a_reason(make_hub):
    hub = make_hub()
    await hub.start()
    fake = hub.silo("silo-0")
    await fake.wait_for("heartbeat")
    await hub.stop()
    del hub.host
    error = await fake.wait_for("error")
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "shutting down" in error.details()


async def test_download_of_a_job_that_does_not_name_the_silo_is_refused(make_hub):
    hub = make_hub(silos=4)
    await hub.start()
    digest = await hub.submit(silos=hub.names[:3])
    _, state = hub.job(silos=hub.names[:3])
    request = pb.DownloadRequest(job_digest=digest, state_digest=hashlib.sha256(state).digest())
    stub = await stub_of(hub, "silo-3")
    with pytest.raises(grpc.aio.AioRpcError, match="not a present state of a job of this silo") as raised:
        await anext(aiter(stub.Download(request)))
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_upload_for_no_running_attempt_is_refused(make_hub):
    hub = make_hub()
    await hub.start()
    stub = await stub_of(hub)
    key = wire.PhaseKey(job_digest=b"j" * 32, round=1, phase="train", attempt=1)
    call = stub.Upload()
    header = pb.UploadHeader(key=wire.key_to_wire(key), total_bytes=10)
    await call.write(pb.UploadMessage(header=header))
    with pytest.raises(grpc.aio.AioRpcError, match="no such job is running") as raised:
        await call.read()
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    "first, sentence",
    [
        (pb.UploadMessage(chunk=pb.Chunk(offset=0, data=b"x")), "expected a header first"),
        (pb.UploadMessage(header=pb.UploadHeader(total_bytes=10)), "job digest: expected 32 bytes"),
    ],
)
async def test_malformed_upload_is_refused(make_hub, first, sentence):
    hub = make_hub()
    await hub.start()
    call = (await stub_of(hub)).Upload()
    await call.write(first)
    with pytest.raises(grpc.aio.AioRpcError, match=sentence) as raised:
        await call.read()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
