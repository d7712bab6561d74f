from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from chorale.runtime.files import write_atomic
from chorale.transport import tls
from chorale.transport.tls import check_own_certificate, load_authority, load_identity
from crypto.errors import ConfigError
from crypto.identity import certificates
from crypto.identity.certificates import Anchors, Identity, Role
from tests.unit.chorale.conftest import NOW, Party


@dataclass(frozen=True)
class Files:
    certificate: Path
    key: Path
    authority: Path


class Echo(grpc.GenericRpcHandler):
    """Answers every method with what it was sent and the TLS version of the connection."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    def _answer(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return request + b" " + context.auth_context()["ssl_tls_version"][0]


@pytest.fixture(scope="module")
def party() -> Party:
    """Enrolled in real time, because TLS reads the clock itself."""
    return Party.enroll(datetime.now(UTC))


@pytest.fixture
def files(party: Party, tmp_path: Path) -> dict[Role, Files]:
    now = datetime.now(UTC)
    return {role: write(party, party.issue(role, "one", now=now), tmp_path / role) for role in Role}


@pytest.fixture
def port(files: dict[Role, Files]) -> Iterator[int]:
    own = files[Role.COORDINATOR]
    server = grpc.server(ThreadPoolExecutor(max_workers=1), handlers=[Echo()])
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(lambda: loaded(own)))
    server.start()
    yield port
    server.stop(grace=None).wait()


def write(party: Party, member: Identity, folder: Path) -> Files:
    files = Files(folder / "certificate.pem", folder / "key.pem", folder / "authority.pem")
    folder.mkdir(exist_ok=True)
    files.certificate.write_bytes(certificates.certificate_to_pem(member.certificate))
    write_atomic(files.key, certificates.key_to_pem(member.key))
    files.authority.write_bytes(party.authority.pem)
    return files


def loaded(files: Files) -> tuple[Identity, Anchors]:
    return load_identity(files), load_authority(files.authority)


def call(port: int, files: Files) -> bytes:
    credentials = tls.channel_credentials(*loaded(files))
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        method = channel.unary_unary("/test/Echo")
        return method(b"hello", timeout=30)


def shake_hands(port: int, files: Files, version: ssl.TLSVersion) -> str | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = context.maximum_version = version
    context.load_verify_locations(files.authority)
    context.load_cert_chain(files.certificate, files.key)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
    ):
        return secure.version()


def test_silo_and_coordinator_talk_over_tls_13(port: int, files: dict[Role, Files]) -> None:
    assert call(port, files[Role.SILO]) == b"hello TLSv1.3"


def test_a_client_of_tls_12_is_refused(port: int, files: dict[Role, Files]) -> None:
    silo = files[Role.SILO]
    assert shake_hands(port, silo, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match=r"(?i)eof|handshake"):
        shake_hands(port, silo, ssl.TLSVersion.TLSv1_2)


def test_a_client_of_another_authority_is_refused(
    port: int, files: dict[Role, Files], tmp_path: Path
) -> None:
    stranger = Party.enroll(datetime.now(UTC))
    foreign = write(stranger, stranger.silos["clinic-a"], tmp_path / "foreign")
    foreign.authority.write_bytes(files[Role.SILO].authority.read_bytes())
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        call(port, foreign)


def test_a_silo_cannot_pose_as_coordinator(files: dict[Role, Files]) -> None:
    own = files[Role.SILO]
    server = grpc.server(ThreadPoolExecutor(max_workers=1), handlers=[Echo()])
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(lambda: loaded(own)))
    server.start()
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        call(port, files[Role.OPERATOR])
    server.stop(grace=None).wait()


def test_a_server_takes_another_authority_and_certificate_without_a_restart(
    files: dict[Role, Files], tmp_path: Path
) -> None:
    """Between old and new authority it takes clients of both, and then those of the new one alone."""
    following = Party.enroll(datetime.now(UTC))
    now = datetime.now(UTC)
    others = {
        role: write(following, following.issue(role, "one", now=now), tmp_path / f"new-{role}")
        for role in Role
    }
    old, new = files[Role.SILO], others[Role.SILO]
    own = [*loaded(files[Role.COORDINATOR])]
    server = grpc.server(ThreadPoolExecutor(max_workers=1), handlers=[Echo()])
    port = server.add_secure_port("127.0.0.1:0", tls.server_credentials(lambda: (own[0], own[1])))
    server.start()
    assert call(port, old)
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        call(port, new)

    both = Anchors.load(old.authority.read_bytes() + new.authority.read_bytes())
    for client in (old, new):
        client.authority.write_bytes(both.pem)
    own[1] = both
    for client in (old, new):
        assert call(port, client)
    own[0] = load_identity(others[Role.COORDINATOR])
    for client in (old, new):
        assert call(port, client)

    own[1] = following.authority
    assert call(port, new)
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        call(port, old)
    server.stop(grace=None).wait()


@pytest.mark.parametrize("is_late", [False, True])
def test_restriction_comes_before_grpc_or_fails(is_late: bool) -> None:
    lines = [
        "import chorale.transport.tls",
        "chorale.transport.tls.restrict_to_tls13()",
        "import grpc",
        "print('restricted')",
    ]
    if is_late:
        lines.insert(0, "import grpc")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env={}, capture_output=True, text=True, check=False
    )
    if is_late:
        assert "LocalProtocolError: tls: grpc was imported before" in done.stderr
    else:
        assert done.stdout == "restricted\n"


def test_tls_does_not_import_grpc_by_itself() -> None:
    code = "import sys, chorale.transport.tls; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_identity_is_loaded_with_its_key(files: dict[Role, Files]) -> None:
    assert load_identity(files[Role.SILO]).member.uri == "spiffe://test/silo/one"


def test_identity_errors_name_the_files(files: dict[Role, Files]) -> None:
    mixed = Files(files[Role.SILO].certificate, files[Role.OPERATOR].key, files[Role.SILO].authority)
    with pytest.raises(ConfigError, match=r"certificate.pem, .*key.pem: identity: the key does not belong"):
        load_identity(mixed)
    missing = Files(files[Role.SILO].certificate, Path("nowhere.pem"), files[Role.SILO].authority)
    with pytest.raises(ConfigError, match=r"^nowhere.pem: no such file"):
        load_identity(missing)


def test_authority_errors_name_the_file(files: dict[Role, Files], party: Party) -> None:
    assert load_authority(files[Role.SILO].authority) == party.authority
    with pytest.raises(ConfigError, match=r"key.pem: certificate: expected a PEM certificate"):
        load_authority(files[Role.SILO].key)
    with pytest.raises(ConfigError, match=r"^nowhere.pem: no such file"):
        load_authority(Path("nowhere.pem"))


def check(member: Identity, party: Party, **changes: Any) -> None:
    sound = {"authority": party.authority, "role": Role.SILO, "federation": "test", "now": NOW}
    check_own_certificate(member.certificate, **(sound | changes))


class TestOwnCertificate:
    """Each case is the sound one with a single change."""

    @pytest.fixture
    def party(self) -> Party:
        return Party.enroll(NOW)

    def test_a_sound_one_passes(self, party: Party) -> None:
        check(party.silos["clinic-a"], party)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"now": NOW + timedelta(days=31)}, "expired on 2026-12-21 12:00 UTC"),
            (
                {"now": NOW - timedelta(days=1)},
                "not valid .* clock here says 2026-11-20 12:00 UTC",
            ),
            ({"role": Role.OPERATOR}, "expected role operator, got silo"),
            ({"federation": "other"}, "expected federation other, got test"),
        ],
        ids=["expired", "of the future", "another role", "another federation"],
    )
    def test_what_is_wrong_with_it_is_named(self, party: Party, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=f"own certificate: .*{message}"):
            check(party.silos["clinic-a"], party, **change)

    def test_one_of_another_authority_is_named(self, party: Party) -> None:
        stranger = Party.enroll(NOW)
        with pytest.raises(ConfigError, match="own certificate: it was not issued by this federation's"):
            check(stranger.silos["clinic-a"], party)
