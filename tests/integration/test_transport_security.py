"""Who gets a connection, what may be called over it, and when an open one ends.

A real coordinator process; clients that are wrong in one thing each, and one that is right.
Source: docs/protocol.md 1 and 8.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from chorale.transport import tls, wire
from chorale.transport.tls import IdentityFiles
from chorale.v1 import federation_pb2 as pb
from chorale.v1 import federation_pb2_grpc, operations_pb2
from crypto.identity.certificates import Role
from tests.support.ceremony import Ceremony
from tests.support.certificates import odd_certificate
from tests.support.federation import COORDINATOR, OPERATOR, LocalFederation
from tests.support.rogue import files

HEALTH = "/grpc.health.v1.Health/Check"
PATIENCE_SECONDS = 20.0
SERVICES = {
    Role.SILO: pb.DESCRIPTOR.services_by_name["Federation"],
    Role.OPERATOR: operations_pb2.DESCRIPTOR.services_by_name["Operations"],
}
METHODS = [
    (role, f"/{service.full_name}/{method.name}")
    for role, service in SERVICES.items()
    for method in service.methods
]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFederation]:
    """A coordinator process that four silos may dial."""
    folder = tmp_path_factory.mktemp("federation")
    with LocalFederation(folder=folder, coordinator={"heartbeat_seconds": 0.1}) as federation:
        federation.start_coordinator()
        yield federation


@asynccontextmanager
async def dial(hub: LocalFederation, identity: IdentityFiles | None) -> AsyncIterator[grpc.aio.Channel]:
    """None: without a certificate."""
    authority = hub.ceremony.certificate_path.read_bytes()
    if identity is None:
        credentials = grpc.ssl_channel_credentials(authority)
    else:
        credentials = tls.channel_credentials(tls.load_identity(identity), hub.ceremony.anchors)
    async with grpc.aio.secure_channel(hub.endpoint["grpc"], credentials) as channel:
        yield channel


async def call(channel: grpc.aio.Channel, method: str, request: bytes = b"") -> tuple[grpc.StatusCode, str]:
    """How a call with one message ends."""
    try:
        await channel.unary_unary(method)(request, timeout=PATIENCE_SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


# the handshake


def shake_hands(hub: LocalFederation, version: ssl.TLSVersion) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    context.set_ciphers("ALL")
    context.load_verify_locations(hub.ceremony.certificate_path)
    silo = files(hub.ceremony, Role.SILO, "silo-0")
    context.load_cert_chain(silo.certificate, silo.key)
    context.set_alpn_protocols(["h2"])
    host, port = hub.endpoint["grpc"].split(":")
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as raw,
        context.wrap_socket(raw, server_hostname=host) as secure,
    ):
        return secure.version()


def test_client_of_tls_12_is_refused(hub: LocalFederation) -> None:
    assert shake_hands(hub, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match=r"(?i)eof|handshake"):
        shake_hands(hub, ssl.TLSVersion.TLSv1_2)


def _none(hub: LocalFederation, folder: Path) -> None:
    return None


def _of_another_authority(hub: LocalFederation, folder: Path) -> IdentityFiles:
    other = Ceremony(folder=folder)
    other.enroll(Role.SILO, "silo-0")
    return files(other, Role.SILO, "silo-0")


def _expired(hub: LocalFederation, folder: Path) -> IdentityFiles:
    ended = datetime.now(UTC) - timedelta(seconds=2)
    own = _beside(hub, folder)
    own.adopt(*odd_certificate(hub.ceremony, "silo-0", until=ended))
    return files(own, Role.SILO, "silo-0")


def _of_the_coordinator(hub: LocalFederation, folder: Path) -> IdentityFiles:
    """serverAuth alone: a thief cannot attend as a silo."""
    return files(hub.ceremony, Role.COORDINATOR, COORDINATOR)


@pytest.mark.parametrize("wrong", [_none, _of_another_authority, _expired, _of_the_coordinator])
async def test_client_gets_no_connection(hub: LocalFederation, wrong: Any, tmp_path: Path) -> None:
    async with dial(hub, files(hub.ceremony, Role.SILO, "silo-0")) as channel:
        assert await call(channel, HEALTH) == (grpc.StatusCode.OK, "")
    async with dial(hub, wrong(hub, tmp_path / "other")) as channel:
        code, _ = await call(channel, HEALTH)
        assert code is grpc.StatusCode.UNAVAILABLE


def _beside(hub: LocalFederation, folder: Path) -> Ceremony:
    """Another office of the same authority, whose members no roster lists."""
    office = Ceremony(folder=folder)
    office.key, office.certificate = hub.ceremony.key, hub.ceremony.certificate
    office.certificate_path.write_bytes(hub.ceremony.certificate_path.read_bytes())
    return office


# what may be called


@pytest.mark.parametrize("role, method", METHODS, ids=[method for _, method in METHODS])
async def test_method_is_for_one_role_alone(hub: LocalFederation, role: Role, method: str) -> None:
    members = {Role.SILO: "silo-0", Role.OPERATOR: OPERATOR}
    async with dial(hub, files(hub.ceremony, role, members[role])) as channel:
        code, _ = await call(channel, method)
        assert code is not grpc.StatusCode.PERMISSION_DENIED
        assert code is not grpc.StatusCode.UNKNOWN
    (other,) = members.keys() - {role}
    async with dial(hub, files(hub.ceremony, other, members[other])) as channel:
        denied = grpc.StatusCode.PERMISSION_DENIED, f"{method}: not allowed to a {other}"
        assert await call(channel, method) == denied


async def test_unknown_method_does_not_exist(hub: LocalFederation) -> None:
    async with dial(hub, files(hub.ceremony, Role.SILO, "silo-0")) as channel:
        code, _ = await call(channel, "/chorale.v1.Federation/Everything")
        assert code is grpc.StatusCode.UNIMPLEMENTED


async def test_member_whom_the_roster_does_not_list_is_denied(hub: LocalFederation, tmp_path: Path) -> None:
    """A sound certificate of the authority: one that was replaced, or never enrolled."""
    own = _beside(hub, tmp_path)
    own.enroll(Role.SILO, "silo-0")
    own.enroll(Role.OPERATOR, "stranger")
    for role, name in own.members:
        method = next(method for allowed, method in METHODS if allowed is role)
        async with dial(hub, files(own, role, name)) as channel:
            code, details = await call(channel, method)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert f"does not list this certificate of {role} {name}" in details


# control streams


class Stream:
    """A silo's control stream, message by message."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        stub: Any = federation_pb2_grpc.FederationStub(channel)
        self.call = stub.Attend(timeout=PATIENCE_SECONDS)

    async def greet(self, version: int = wire.PROTOCOL_VERSION) -> pb.Welcome:
        await self.call.write(pb.SiloMessage(hello=pb.Hello(protocol_version=version)))
        message = await self.call.read()
        assert message is not grpc.aio.EOF, await self.end()
        return message.welcome

    async def until(self, kind: str) -> Any:
        while (message := await self.call.read()) is not grpc.aio.EOF:
            if message.HasField(kind):
                return getattr(message, kind)
        raise AssertionError(f"the stream ended before a {kind}: {await self.end()}")

    async def beats_until_end(self) -> list[float]:
        """Coordinator times of the heartbeats that still came."""
        beats = []
        try:
            while (message := await self.call.read()) is not grpc.aio.EOF:
                if message.HasField("heartbeat"):
                    beats.append(message.heartbeat.unix_seconds)
        except grpc.aio.AioRpcError:
            pass  # the status says it
        return beats

    async def end(self) -> tuple[grpc.StatusCode, str]:
        return await self.call.code(), await self.call.details() or ""


@asynccontextmanager
async def attend(hub: LocalFederation, name: str) -> AsyncIterator[Stream]:
    async with dial(hub, files(hub.ceremony, Role.SILO, name)) as channel:
        yield Stream(channel)


async def test_another_protocol_version_is_refused(hub: LocalFederation) -> None:
    async with attend(hub, "silo-0") as stream:
        assert (await stream.greet()).protocol_version == wire.PROTOCOL_VERSION
    async with attend(hub, "silo-0") as stream:
        await stream.call.write(pb.SiloMessage(hello=pb.Hello(protocol_version=99)))
        assert await stream.beats_until_end() == []
        sentence = "protocol version: this coordinator speaks 1, the silo 99; upgrade the older side"
        assert await stream.end() == (grpc.StatusCode.FAILED_PRECONDITION, sentence)


async def test_certificate_that_expires_ends_the_open_stream_within_a_heartbeat(hub: LocalFederation) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=3)).replace(microsecond=0)
    hub.ceremony.adopt(*odd_certificate(hub.ceremony, "brief", until=expires))
    hub.ceremony.publish()
    async with attend(hub, "brief") as stream, attend(hub, "silo-0") as lasting:
        await lasting.greet()
        await stream.greet()
        beats = await stream.beats_until_end()
        code, details = await stream.end()
        assert (code, details) == (
            grpc.StatusCode.PERMISSION_DENIED,
            f"certificate: certificate expired at {expires.isoformat()}",
        )
        assert beats, "the stream was open before"
        assert max(beats) <= expires.timestamp(), "no heartbeat without a look at the certificate"
        while (await lasting.until("heartbeat")).unix_seconds <= expires.timestamp():
            pass  # those of another silo continue


async def test_revoked_certificate_ends_the_open_stream_within_a_heartbeat(hub: LocalFederation) -> None:
    async with attend(hub, "silo-1") as revoked, attend(hub, "silo-0") as lasting:
        await lasting.greet()
        await revoked.greet()
        await revoked.until("heartbeat")
        hub.ceremony.publish(without=("silo-1",))
        published = time.time()
        beats = await revoked.beats_until_end()
        version = hub.ceremony.version
        sentence = f"roster: version {version} does not list this certificate of silo silo-1"
        assert await revoked.end() == (grpc.StatusCode.PERMISSION_DENIED, sentence)
        assert [beat for beat in beats if beat > published] == []
        await lasting.until("roster")
        while (await lasting.until("heartbeat")).unix_seconds <= published:
            pass
    async with attend(hub, "silo-1") as again:  # refused before it has said anything
        assert await again.beats_until_end() == []
        assert await again.end() == (grpc.StatusCode.PERMISSION_DENIED, sentence)
    hub.ceremony.publish(readmitted=("silo-1",))


async def test_open_connection_outlives_no_revocation(hub: LocalFederation) -> None:
    """The TLS session stays up; each call over it looks at the roster of that moment."""
    request = pb.DownloadRequest(job_digest=bytes(32), digest=bytes(32)).SerializeToString()
    method = "/chorale.v1.Federation/Download"
    async with dial(hub, files(hub.ceremony, Role.SILO, "silo-2")) as channel:
        code, _ = await call(channel, method, request)
        assert code is not grpc.StatusCode.PERMISSION_DENIED
        hub.ceremony.publish(without=("silo-2",))
        code, details = await call(channel, method, request)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "does not list this certificate of silo silo-2" in details
    hub.ceremony.publish(readmitted=("silo-2",))


GARBAGE = b"\xff" * 64


@pytest.mark.parametrize(
    "data, code",
    [(GARBAGE, grpc.StatusCode.INVALID_ARGUMENT), (bytes(5 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED)],
    ids=["garbage", "oversized"],
)
async def test_bytes_that_are_no_message_end_the_stream_and_no_other(
    hub: LocalFederation, data: bytes, code: grpc.StatusCode
) -> None:
    silo = files(hub.ceremony, Role.SILO, "silo-3")
    async with attend(hub, "silo-0") as lasting, dial(hub, silo) as channel:
        await lasting.greet()
        raw = channel.stream_stream("/chorale.v1.Federation/Attend")(timeout=PATIENCE_SECONDS)
        hello = pb.SiloMessage(hello=pb.Hello(protocol_version=wire.PROTOCOL_VERSION))
        await raw.write(hello.SerializeToString())
        assert pb.CoordinatorMessage.FromString(await raw.read()).HasField("welcome")
        await raw.write(data)
        assert await raw.code() is code
        await lasting.until("heartbeat")


@pytest.mark.parametrize("role, method", METHODS, ids=[method for _, method in METHODS])
async def test_bytes_that_are_no_request_are_named(hub: LocalFederation, role: Role, method: str) -> None:
    name = {Role.SILO: "silo-0", Role.OPERATOR: OPERATOR}[role]
    async with dial(hub, files(hub.ceremony, role, name)) as channel:
        malformed = grpc.StatusCode.INVALID_ARGUMENT, "message: the bytes do not parse"
        assert await call(channel, method, GARBAGE) == malformed
