"""Making certificates: requests where keys live, signatures at the authority, nothing beyond a role.

Source: docs/protocol.md 1.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import (
    CLOCK_SKEW,
    NAME_PATTERN,
    ODD_CERTIFICATE,
    MemberId,
    PrivateKey,
    Role,
    check_name,
    federation_of,
    names_of,
    new_key,
    public_key_of,
)

MAX_VALID_DAYS = 3650


def new_csr(key: PrivateKey, member: MemberId, hosts: Sequence[str] = ()) -> bytes:
    """A PEM request for the member's certificate; hosts are where a coordinator listens."""
    names = [x509.UniformResourceIdentifier(member.uri), *map(_host_name, hosts)]
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(_subject(member.federation, member.name))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return request.public_bytes(serialization.Encoding.PEM)


def new_authority(federation: str, *, now: datetime, valid_days: int) -> tuple[PrivateKey, x509.Certificate]:
    """A federation's own certificate authority."""
    check_name("federation", federation)
    key = new_key()
    subject = _subject(federation, "authority")
    uri = x509.UniformResourceIdentifier(f"spiffe://{federation}")
    builder = (
        _dated(now, _valid_until(now, valid_days))
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def sign_csr(
    csr_pem: bytes,
    *,
    authority_key: PrivateKey,
    authority_certificate: x509.Certificate,
    role: Role,
    now: datetime,
    valid_days: int,
    hosts: Sequence[str] = (),
) -> x509.Certificate:
    """Sign a request for that role, adding nothing a role may not have.

    A coordinator gets serverAuth and the hosts of its request and of `hosts`; a silo or operator gets
    clientAuth and no host. Raises ConfigError. Source: docs/protocol.md 1.
    """
    request, member, requested_hosts = _load_csr(csr_pem)
    federation = federation_of(authority_certificate)
    if member.federation != federation:
        raise ConfigError(f"request: expected federation {federation}, got {member.federation}")
    if member.role is not role:
        raise ConfigError(f"request: expected role {role}, got {member.role}")
    all_hosts = list(dict.fromkeys([*requested_hosts, *map(_host_name, hosts)]))
    if role is Role.COORDINATOR and not all_hosts:
        raise ConfigError("request: a coordinator needs at least one host name or address")
    if role is not Role.COORDINATOR and all_hosts:
        raise ConfigError(f"request: only a coordinator has host names or addresses, got role {role}")
    not_after = min(_valid_until(now, valid_days), authority_certificate.not_valid_after_utc)
    if now >= not_after:
        raise ConfigError("authority: the certificate is expired")
    builder = _for_member(_dated(now, not_after), request, member, all_hosts)
    builder = builder.issuer_name(authority_certificate.subject).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
    )
    return builder.sign(authority_key, hashes.SHA256())


def requested_member(csr_pem: bytes) -> MemberId:
    """Who a request wants to be. Raises ConfigError if it is no request of a member."""
    _, member, _ = _load_csr(csr_pem)
    return member


def _for_member(
    builder: x509.CertificateBuilder,
    request: x509.CertificateSigningRequest,
    member: MemberId,
    hosts: list[x509.GeneralName],
) -> x509.CertificateBuilder:
    names = [x509.UniformResourceIdentifier(member.uri), *hosts]
    key = public_key_of(request)
    return (
        builder.subject_name(_subject(member.federation, member.name))
        .public_key(key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([member.role.key_usage]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )


def _load_csr(
    pem: bytes,
) -> tuple[x509.CertificateSigningRequest, MemberId, list[x509.GeneralName]]:
    """A request, who it wants to be, and where it listens."""
    try:
        request = x509.load_pem_x509_csr(pem)
        public_key_of(request)
        has_signed = request.is_signature_valid
    except (*ODD_CERTIFICATE, RemoteProtocolError):
        raise ConfigError("request: expected a PEM certificate request with a P-256 key") from None
    if not has_signed:
        raise ConfigError("request: the signature is not valid")
    try:
        uri, hosts = names_of(request)
        member = MemberId.parse(uri)
    except RemoteProtocolError as error:
        raise ConfigError(str(error).replace("certificate:", "request:")) from None
    if not all(isinstance(name, x509.DNSName | x509.IPAddress) for name in hosts):
        raise ConfigError("request: expected only a URI, host names and addresses")
    return request, member, hosts


def _host_name(host: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
            raise ConfigError(
                f"host: a certificate names no zone: expected {host.partition('%')[0]}, got {host}"
            )
        return x509.IPAddress(address)
    labels = host.split(".")
    if len(host) > 253 or not all(NAME_PATTERN.fullmatch(label) for label in labels):
        raise ConfigError(f"host: expected a lower-case host name or an IP address, got {host!r}")
    return x509.DNSName(host)


def _subject(federation: str, name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _valid_until(now: datetime, valid_days: int) -> datetime:
    if not 1 <= valid_days <= MAX_VALID_DAYS:
        raise ConfigError(f"valid_days: expected 1 to {MAX_VALID_DAYS}, got {valid_days}")
    return now + timedelta(days=valid_days)


def _dated(now: datetime, not_after: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(not_after)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
