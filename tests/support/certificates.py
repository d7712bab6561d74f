"""Certificates that `authority sign` never makes: valid for seconds, or for more than a role may do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from crypto.identity import certificates
from crypto.identity.certificates import MemberId, PrivateKey, Role
from tests.support.ceremony import Ceremony

CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


def odd_certificate(
    ceremony: Ceremony,
    name: str,
    *,
    until: datetime,
    role: Role = Role.SILO,
    usage: ObjectIdentifier = CLIENT,
    hosts: Sequence[str] = (),
) -> tuple[PrivateKey, x509.Certificate]:
    """Signed by the ceremony's authority; hosts are IP addresses. For Ceremony.adopt."""
    key = certificates.new_key()
    uri = MemberId(federation=ceremony.federation, role=role, name=name).uri
    names = [x509.UniformResourceIdentifier(uri), *(x509.IPAddress(ip_address(host)) for host in hosts)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(ceremony.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=2))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return key, builder.sign(ceremony.key, hashes.SHA256())
