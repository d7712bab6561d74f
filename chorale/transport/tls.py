"""Mutual TLS 1.3 for gRPC, and the check of one's own certificate before a peer refuses it.

gRPC has no setting for the lowest version; it is set by leaving no cipher suite that TLS 1.2 could use
with ECDSA keys. Source: docs/protocol.md 1 and 8.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field

from chorale.runtime.files import read_limited
from chorale.runtime.key_files import read_key
from crypto.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from crypto.identity.certificates import (
    Anchors,
    Identity,
    Role,
    certificate_to_pem,
    check_certificate,
    key_to_pem,
)

if TYPE_CHECKING:
    import grpc

MAX_PEM_BYTES = 64 * 1024
ENVIRONMENT = {
    # an RSA suite: no TLS 1.2 handshake with an ECDSA key can pick it, and TLS 1.3 has its own list
    "GRPC_SSL_CIPHER_SUITES": "ECDHE-RSA-AES256-GCM-SHA384",
    # the core would print a line to stderr for every refused handshake
    "GRPC_VERBOSITY": "NONE",
}


class IdentityFiles(BaseModel):
    """Where a member's certificate and key lie, PEM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    certificate: Path = Field(
        description="signed by the federation's authority; the coordinator's carries its host's names"
    )
    key: Path = Field(description="made on this machine, never copied")


def restrict_to_tls13() -> None:
    """Leave TLS 1.2 no cipher suite. Call it at the top of every entry point, before grpc is imported.

    Raises LocalProtocolError if grpc has read its environment already.
    """
    is_set = all(os.environ.get(name) == value for name, value in ENVIRONMENT.items())
    if "grpc" in sys.modules and not is_set:
        raise LocalProtocolError("tls: grpc was imported before it was restricted to TLS 1.3")
    os.environ.update(ENVIRONMENT)


def load_identity(files: IdentityFiles) -> Identity:
    """Raises ConfigError that names the file."""
    certificate = read_limited(files.certificate, MAX_PEM_BYTES)
    key = read_key(files.key, MAX_PEM_BYTES)
    try:
        return Identity.load(certificate, key)
    except ConfigError as error:
        raise ConfigError(f"{files.certificate}, {files.key}: {error}") from None


def load_authority(path: Path) -> Anchors:
    """The federation's authority. Raises ConfigError that names the file."""
    try:
        return Anchors.load(read_limited(path, MAX_PEM_BYTES))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from None


def server_credentials(own: Callable[[], tuple[Identity, Anchors]]) -> grpc.ServerCredentials:
    """Credentials that ask every client for a certificate of the federation.

    own: asked at every handshake, so that a new certificate or authority needs no restart.
    """
    import grpc

    def configuration(identity: Identity, authority: Anchors) -> grpc.ServerCertificateConfiguration:
        pair = key_to_pem(identity.key), certificate_to_pem(identity.certificate)
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authority.pem)

    given = own()

    def newer() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        now = own()
        if now == given:
            return None
        given = now
        return configuration(*given)

    return grpc.dynamic_ssl_server_credentials(
        configuration(*given),
        newer,  # type: ignore[arg-type]  # None: nothing has changed
        require_client_authentication=True,
    )


def channel_credentials(identity: Identity, authority: Anchors) -> grpc.ChannelCredentials:
    """Credentials of a silo or operator; the authority alone is trusted to sign the coordinator's."""
    import grpc

    return grpc.ssl_channel_credentials(
        root_certificates=authority.pem,
        private_key=key_to_pem(identity.key),
        certificate_chain=certificate_to_pem(identity.certificate),
    )


def check_own_certificate(
    certificate: x509.Certificate,
    *,
    authority: Anchors,
    role: Role,
    federation: str,
    now: datetime,
    path: Path | None = None,
) -> None:
    """Check what the peer will check, because gRPC shows a refused certificate only as a closed socket.

    path: the certificate's file. Raises ConfigError in words that say what to do about it.
    """
    own = f"{path}: own certificate" if path else "own certificate"
    if now > certificate.not_valid_after_utc:
        raise ConfigError(f"{own}: expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC")
    if now < certificate.not_valid_before_utc:
        raise ConfigError(
            f"{own}: not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC, "
            f"and the clock here says {now:%Y-%m-%d %H:%M} UTC"
        )
    try:
        check_certificate(certificate, authority=authority, role=role, federation=federation, now=now)
    except RemoteProtocolError as error:
        raise ConfigError(f"{own}: {str(error).removeprefix('certificate: ')}") from None
