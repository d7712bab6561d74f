"""Who is who: certificates with a SPIFFE name, and signatures with a purpose.

ECDSA P-256 throughout. The authority signs requests and nothing else leaves its machine; keys are
made where they live. Source: docs/protocol.md 1 and 2.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from crypto import encoding
from crypto.errors import ConfigError, Refusal, RemoteProtocolError

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey

MAX_ANCHORS = 2  # the authority's present certificate, and while it changes its key the other one
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
CLOCK_SKEW = timedelta(minutes=5)  # a certificate is valid a little before it was made
# certificates: what their bytes alone decide is found out once, dates and rosters are looked at each time.
# A peer's has at most the bytes of an advert or a job, so that these are a few megabytes.
REMEMBERED = 512

_HASH = ec.ECDSA(hashes.SHA256())
_PEM_END = b"-----END CERTIFICATE-----"
# what cryptography raises for bytes that it cannot read: its parsers state no closed list, so it is wide
ODD_CERTIFICATE = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    NotImplementedError,
    UnsupportedAlgorithm,
    InternalError,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
# a reader refuses a certificate with any other critical extension (RFC 5280, 4.2)
_KNOWN_EXTENSIONS = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)


class Role(StrEnum):
    SILO = "silo"
    COORDINATOR = "coordinator"
    OPERATOR = "operator"

    @property
    def key_usage(self) -> x509.ObjectIdentifier:
        """A silo that held serverAuth could pose as coordinator, so each role has one usage."""
        if self is Role.COORDINATOR:
            return ExtendedKeyUsageOID.SERVER_AUTH
        return ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberId:
    """A member's name in its federation. Raises ConfigError for names outside NAME_PATTERN."""

    federation: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        check_name("federation", self.federation)
        check_name(self.role, self.name)

    @property
    def uri(self) -> str:
        return f"spiffe://{self.federation}/{self.role}/{self.name}"

    @classmethod
    def parse(cls, uri: str) -> MemberId:
        """Raises RemoteProtocolError unless it reads spiffe://<federation>/<role>/<name>."""
        scheme, separator, path = uri.partition("://")
        parts = path.split("/")
        try:
            if scheme != "spiffe" or not separator or len(parts) != 3:
                raise ValueError(uri)
            return cls(federation=parts[0], role=Role(parts[1]), name=parts[2])
        except (ValueError, ConfigError):
            raise RemoteProtocolError(
                "certificate: expected a name spiffe://<federation>/<role>/<name>"
            ) from None


@dataclass(frozen=True, slots=True)
class Anchors:
    """The authority's certificates that a member trusts: one, or two while the authority changes its key.

    What one of them signed holds. Raises ConfigError unless they are one or two different certificates of
    authorities of one federation. Source: docs/protocol.md 1.6.
    """

    certificates: tuple[x509.Certificate, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.certificates) <= MAX_ANCHORS:
            raise ConfigError(f"authority: expected one or two certificates, got {len(self.certificates)}")
        if len(set(self.certificates)) < len(self.certificates):
            raise ConfigError("authority: expected two different certificates, got the same twice")
        try:
            names = [_federation_of_authority(certificate) for certificate in self.certificates]
        except RemoteProtocolError as error:
            raise ConfigError(str(error).removeprefix("certificate: ")) from None
        if len(set(names)) > 1:
            raise ConfigError(f"authority: expected one federation, got {names[0]} and {names[1]}")

    @classmethod
    def load(cls, pem: bytes) -> Anchors:
        """What a PEM file of one or two certificates holds. Raises ConfigError."""
        blocks = pem.split(_PEM_END)[:-1]
        return cls(tuple(load_certificate(block + _PEM_END) for block in blocks) or (load_certificate(pem),))

    @property
    def pem(self) -> bytes:
        return b"".join(map(certificate_to_pem, self.certificates))

    @property
    def federation(self) -> str:
        return federation_of(self.certificates[0])

    def valid_at(self, now: datetime) -> Anchors:
        """Those that are valid then. Raises RemoteProtocolError(code=ROSTER) where none is."""
        valid = [one for one in self.certificates if _is_valid(one, now=now)]
        if not valid:
            _check_validity("authority", self.certificates[0], now=now)
        return Anchors(tuple(valid))

    def holds_all_of(self, earlier: Anchors) -> bool:
        """Whether none of those that were trusted earlier was removed since."""
        return set(earlier.certificates) <= set(self.certificates)

    def issuers_of(self, certificate: x509.Certificate) -> list[x509.Certificate]:
        """Those that it was issued under: two where both have one key. Raises RemoteProtocolError(ROSTER)."""
        issuers = [one for one in self.certificates if _is_issued_by(certificate, one)]
        if not issuers:
            raise _refused("it was not issued by this federation's authority")
        return issuers

    def verify(self, signed: SignedBody, *, purpose: str, code: Refusal) -> list[encoding.Value]:
        """The fields of what one of them signed. Raises RemoteProtocolError with `code`."""
        self.signer_of(signed, purpose=purpose, code=code)
        return _decoded(signed, purpose=purpose, code=code)

    def signer_of(self, signed: SignedBody, *, purpose: str, code: Refusal) -> x509.Certificate:
        """Which of them signed it. Raises RemoteProtocolError with `code`."""
        for certificate in self.certificates[:-1]:
            with suppress(RemoteProtocolError):
                check_signature(signed, purpose=purpose, certificate=certificate)
                return certificate
        check_signature(signed, purpose=purpose, certificate=self.certificates[-1], code=code)
        return self.certificates[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBody:
    """Bytes that were signed, as they were signed: verify first, parse after."""

    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A member's certificate and the key that belongs to it."""

    member: MemberId
    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)

    @classmethod
    def load(cls, certificate_pem: bytes, key_pem: bytes) -> Identity:
        """Raises ConfigError if either is unusable or they do not belong together."""
        certificate = load_certificate(certificate_pem)
        key = load_key(key_pem)
        if certificate.public_key() != key.public_key():
            if _has_later(certificate_pem, key):
                raise ConfigError("identity: expected the member's own certificate first in its file")
            raise ConfigError("identity: the key does not belong to the certificate")
        try:
            member = member_of(certificate)
        except RemoteProtocolError as error:
            raise ConfigError(str(error)) from None
        return cls(member=member, certificate=certificate, key=key)

    @property
    def certificate_der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.certificate)

    def sign(self, purpose: str, *fields: encoding.Field) -> SignedBody:
        """Sign the canonical encoding of the fields under that purpose."""
        return sign(self.key, purpose, *fields)


def sign(key: PrivateKey, purpose: str, *fields: encoding.Field) -> SignedBody:
    """Sign the canonical encoding of the fields; never raw bytes of a peer."""
    body = encoding.encode(purpose, *fields)
    return SignedBody(body=body, signature=key.sign(body, _HASH))


def verify(
    signed: SignedBody,
    *,
    purpose: str,
    certificate: x509.Certificate,
    code: Refusal = Refusal.MALFORMED,
) -> list[encoding.Value]:
    """The fields of a signed body, read only after its signature held.

    Raises RemoteProtocolError with `code`.
    """
    check_signature(signed, purpose=purpose, certificate=certificate, code=code)
    return _decoded(signed, purpose=purpose, code=code)


def _decoded(signed: SignedBody, *, purpose: str, code: Refusal) -> list[encoding.Value]:
    """The fields of a body whose signature held."""
    try:
        return encoding.decode(purpose, signed.body)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(str(error), code=code) from None


def check_signature(
    signed: SignedBody, *, purpose: str, certificate: x509.Certificate, code: Refusal = Refusal.MALFORMED
) -> None:
    """For a body that the receiver knows in full; any other is opened with `verify`.

    Raises RemoteProtocolError with `code`.
    """
    try:
        public_key_of(certificate).verify(signed.signature, signed.body, _HASH)
    except InvalidSignature:
        raise RemoteProtocolError(f"{purpose}: the signature is not valid", code=code) from None


def fingerprint(certificate: x509.Certificate | bytes) -> bytes:
    """SHA-256 of the certificate's DER bytes."""
    if isinstance(certificate, x509.Certificate):
        certificate = certificate.public_bytes(serialization.Encoding.DER)
    return hashlib.sha256(certificate).digest()


def key_digest(key: ec.EllipticCurvePublicKey) -> bytes:
    """SHA-256 of the key (SubjectPublicKeyInfo): a renewed certificate of the same key has the same."""
    return hashlib.sha256(
        key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    ).digest()


@lru_cache(maxsize=REMEMBERED)
def member_of(certificate: x509.Certificate) -> MemberId:
    """The member that a certificate names.

    Raises RemoteProtocolError unless it holds exactly one URI and that is a member's.
    """
    return MemberId.parse(names_of(certificate)[0])


def federation_of(authority: x509.Certificate) -> str:
    """The federation whose authority this is. Raises ConfigError if it is none."""
    try:
        uri, _ = names_of(authority)
    except RemoteProtocolError:
        uri = ""
    federation = uri.removeprefix("spiffe://")
    if federation == uri or not NAME_PATTERN.fullmatch(federation):
        raise ConfigError("authority: the certificate does not name a federation")
    return federation


@lru_cache(maxsize=REMEMBERED)
def certificate_from_der(data: bytes) -> x509.Certificate:
    """Raises RemoteProtocolError if they are no certificate with a P-256 key and a positive serial number."""
    try:
        certificate = x509.load_der_x509_certificate(data)
        _read_plain_fields(certificate)
    except ODD_CERTIFICATE:
        raise RemoteProtocolError("certificate: expected an X.509 certificate") from None
    return certificate


def check_certificate(
    certificate: x509.Certificate,
    *,
    authority: Anchors,
    role: Role,
    federation: str,
    now: datetime,
) -> MemberId:
    """The member named by a certificate that the authority issued for that role and that is valid now.

    Raises RemoteProtocolError that says what was wrong. Source: docs/protocol.md 1.
    """
    issuers = authority.issuers_of(certificate)
    if not any(_is_valid(issuer, now=now) for issuer in issuers):
        _check_validity("authority", max(issuers, key=lambda one: one.not_valid_after_utc), now=now)
    _check_validity("certificate", certificate, now=now)
    member = _member_with_usage(certificate, role)
    if member.role is not role:
        raise _refused(f"expected role {role}, got {member.role}")
    if member.federation != federation:
        raise _refused(f"expected federation {federation}, got {member.federation}")
    return member


def new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: PrivateKey) -> bytes:
    """Unencrypted PKCS#8: the file's permissions protect it."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def certificate_to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def load_certificate(pem: bytes) -> x509.Certificate:
    """Raises ConfigError if it is no PEM certificate with a P-256 key and a positive serial number."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _read_plain_fields(certificate)
    except ODD_CERTIFICATE:
        raise ConfigError("certificate: expected a PEM certificate with a P-256 key") from None
    except RemoteProtocolError as error:
        raise ConfigError(str(error)) from None
    return certificate


def _has_later(pem: bytes, key: PrivateKey) -> bool:
    """Whether a file's certificate of that key stands behind others, such as the authority's."""
    with suppress(*ODD_CERTIFICATE):
        return any(each.public_key() == key.public_key() for each in x509.load_pem_x509_certificates(pem))
    return False


def load_key(pem: bytes) -> PrivateKey:
    """Raises ConfigError if it is no unencrypted PEM private key on P-256."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except ODD_CERTIFICATE:
        raise ConfigError("key: expected an unencrypted PEM private key") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError("key: expected a P-256 key")
    return key


def names_of(
    holder: x509.Certificate | x509.CertificateSigningRequest,
) -> tuple[str, list[x509.GeneralName]]:
    """The one URI among the subject alternative names, and the other names.

    Raises RemoteProtocolError if they cannot be read, and unless there is exactly one URI.
    """
    try:
        names = list(holder.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (*ODD_CERTIFICATE, x509.ExtensionNotFound):
        raise RemoteProtocolError("certificate: it holds no readable subject alternative name") from None
    uris = [name.value for name in names if isinstance(name, x509.UniformResourceIdentifier)]
    if len(uris) != 1:
        raise RemoteProtocolError(f"certificate: expected one URI, got {len(uris)}")
    return uris[0], [name for name in names if not isinstance(name, x509.UniformResourceIdentifier)]


@lru_cache(maxsize=REMEMBERED)
def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*ODD_CERTIFICATE, InvalidSignature):
        return False
    return True


@lru_cache(maxsize=REMEMBERED)
def _federation_of_authority(certificate: x509.Certificate) -> str:
    """Raises RemoteProtocolError or ConfigError for a certificate that may not sign others."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (*ODD_CERTIFICATE, x509.ExtensionNotFound):
        raise _refused("authority: basic constraints are missing or unreadable") from None
    if not constraints.ca:
        raise _refused("authority: expected the certificate of the federation's authority, got another one")
    _check_critical("authority", certificate, allows="key_cert_sign")
    return federation_of(certificate)


@lru_cache(maxsize=REMEMBERED)
def _member_with_usage(certificate: x509.Certificate, role: Role) -> MemberId:
    """The member that it names, if its key and its usage are those of the role."""
    public_key_of(certificate)
    try:
        extensions = certificate.extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        usages = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except (*ODD_CERTIFICATE, x509.ExtensionNotFound):
        raise _refused("basic constraints or extended key usage are missing or unreadable") from None
    _check_critical("certificate", certificate, allows="digital_signature")
    if constraints.ca:
        raise _refused("it is an authority's own, expected a member's")
    if usages != [role.key_usage]:
        raise _refused(f"its extended key usage is not that of a {role}")
    _, hosts = names_of(certificate)
    if hosts and role is not Role.COORDINATOR:
        raise _refused(f"only a coordinator has host names or addresses, got role {role}")
    return member_of(certificate)


def _check_critical(what: str, certificate: x509.Certificate, *, allows: str) -> None:
    """Nothing critical in it is unknown here, and its key may be used for what it is used for."""
    try:
        extensions = {extension.oid: extension for extension in certificate.extensions}
    except ODD_CERTIFICATE:
        raise _refused(f"{what}: its extensions are unreadable") from None
    for oid, extension in extensions.items():
        if extension.critical and oid not in _KNOWN_EXTENSIONS:
            raise _refused(f"{what}: an unknown critical extension ({oid.dotted_string})")
    usage = extensions.get(ExtensionOID.KEY_USAGE)
    if usage is not None and not getattr(usage.value, allows):
        raise _refused(f"{what}: its key usage lacks {allows}")


def _is_valid(certificate: x509.Certificate, *, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc


def _check_validity(what: str, certificate: x509.Certificate, *, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise _refused(f"{what} is not valid before {certificate.not_valid_before_utc.isoformat()}")
    if now > certificate.not_valid_after_utc:
        raise _refused(f"{what} expired at {certificate.not_valid_after_utc.isoformat()}")


def _refused(message: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"certificate: {message}", code=Refusal.ROSTER)


def public_key_of(
    holder: x509.Certificate | x509.CertificateSigningRequest,
) -> ec.EllipticCurvePublicKey:
    """Raises RemoteProtocolError(code=ROSTER) unless it is a key on P-256."""
    try:
        key = holder.public_key()
    except ODD_CERTIFICATE:
        raise _refused("its key is unreadable") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise _refused("expected a P-256 key")
    return key


def _read_plain_fields(certificate: x509.Certificate) -> None:
    """Read the key and the dates, which are parsed at their first reading, while errors are expected.

    Names and extensions are read under ODD_CERTIFICATE each time. Raises what that lists, or
    RemoteProtocolError for a key of another kind or a serial number that RFC 5280 does not allow.
    """
    public_key_of(certificate)
    if certificate.serial_number <= 0:
        raise _refused("its serial number is not positive")
    _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc


def check_name(what: str, name: str) -> None:
    """Raises ConfigError for names outside NAME_PATTERN."""
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{what}: expected 1 to 63 lower-case letters, digits and inner hyphens, got {name!r}"
        )
