"""What a party signs of a job for those who check it later: a document, its signature, a certificate.

A document has one form as bytes, so what a reader sees is what was signed. A statement proves who signed
something, never that it is true. Source: docs/protocol.md 11.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from cryptography import x509
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from chorale.job import MAX_CERTIFICATE_BYTES
from chorale.privacy.releases import MAX_RELEASES_BYTES
from chorale.runtime import audit
from chorale.runtime.software import Software, installed_packages
from chorale.spec.fields import NAME_FORM, Sha256, in_words
from chorale.spec.state import ARRAY_NAME, GlobalState
from chorale.transport.wire import PHASE_PATTERN
from crypto import encoding
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import Anchors, Identity, SignedBody, certificate_from_der, check_signature
from strategies.expected import wrong_value

FORMAT = 1
MAX_STATEMENT_BYTES = 64 << 20
MAX_SIGNATURE_BYTES = 128
MAX_VALUES = 1 << 22  # of a document; one of 64 MiB that somebody signed for a job has fewer
MAX_DEPTH = 16  # ours have 7
_MARK = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{,\]}]', re.DOTALL)
# its one form: the statement's lines stand one space further in than by themselves
_SIGNED = re.compile(
    rb'\{\n "certificate": "([A-Za-z0-9+/=]{1,%d})",\n "signature": "([A-Za-z0-9+/=]{1,%d})",\n "statement": '
    % (2 * MAX_CERTIFICATE_BYTES, 2 * MAX_SIGNATURE_BYTES)
)
_SIGNED_END = b"\n}\n"


def _printable(text: str) -> str:
    """Security: it is shown on terminals and pages, where it may begin no line of its own."""
    if not text.isprintable():
        raise ValueError("expected printable characters on one line")
    return text


Digest = Sha256
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"), in_words(NAME_FORM)]
Text = Annotated[str, Field(max_length=4096), AfterValidator(_printable)]
# Security: a coordinator's own word for `done` would not be held to the job's last phase
STATUSES = ("running", "paused", "done", "cancelled", "stopped", "failed")
RESULTS = ("applied", "used-up")
Status = Annotated[
    str, StringConstraints(pattern=f"^({'|'.join(STATUSES)})$"), in_words(f"one of {', '.join(STATUSES)}")
]
Result = Annotated[
    str, StringConstraints(pattern=f"^({'|'.join(RESULTS)})$"), in_words(f"one of {', '.join(RESULTS)}")
]
PhaseName = Annotated[
    str,
    StringConstraints(pattern=f"^({PHASE_PATTERN.pattern})$"),
    in_words("the name of a phase, such as train or enrollment.0"),
]
Cost = Annotated[str, Field(max_length=MAX_RELEASES_BYTES)]
Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]
Number = float | None  # null: not a number, or infinite


class Document(BaseModel):
    """Part of a statement. Nothing else may stand in it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Runs(Document):
    """What somebody says that it runs. packages: Chorale and what it needs, name to version."""

    version: Text
    sha256: Text
    packages: dict[Text, Text] = {}

    @classmethod
    def here(cls, software: Software) -> Self:
        """This process, by its own word."""
        return cls(version=software.version, sha256=software.sha256, packages=installed_packages())


class AuditExcerpt(Document):
    """The lines of an audit log that are about one job, as they stand there. entries, head: of the whole log
    when this was written, so that its owner can be held to all of it later."""

    entries: Count
    head: Digest
    lines: tuple[Annotated[str, Field(max_length=audit.MAX_LINE_BYTES)], ...]

    @classmethod
    def of(cls, path: Path, *, job: bytes, events: Collection[str]) -> Self:
        """Raises ConfigError if the log is not there or its chain is broken."""
        lines, count, head = [], 0, audit.FIRST_PREVIOUS
        for line, entry in audit.read_lines(path):
            count, head = entry["entry"], hashlib.sha256(line).hexdigest()
            about = entry.get("job")
            if entry["event"] in events and about in (job.hex(), job.hex()[:12]):
                lines.append(line.decode().removesuffix("\n"))
        return cls(entries=count, head=head, lines=tuple(lines))

    def entries_of_job(self) -> list[dict[str, Any]]:
        """The lines, each of which follows the one before, or stands behind others that are not here.

        Raises ConfigError that names the first that does not.
        """
        found: list[dict[str, Any]] = []
        number, line_hash = 0, audit.FIRST_PREVIOUS
        for line in self.lines:
            data = line.encode() + b"\n"
            entry = audit.read_line(data)
            if not number < entry["entry"] <= self.entries:
                raise ConfigError(f"audit entry {entry['entry']}: out of order, or beyond the end of the log")
            if entry["entry"] == number + 1 and entry["previous"] != line_hash:
                raise ConfigError(f"audit entry {entry['entry']}: the entry before it was changed")
            number, line_hash = entry["entry"], hashlib.sha256(data).hexdigest()
            found.append(entry)
        if number == self.entries and line_hash != self.head:
            raise ConfigError(f"audit entry {number}: it is not the last entry of the log that was stated")
        return found


class Statement(Document):
    """What every statement says first. made: by the signer's own clock."""

    purpose: ClassVar[str]
    federation: Name
    job: Digest
    made: AwareDatetime

    def to_bytes(self) -> bytes:
        """Its one form."""
        return _canonical(self.model_dump(mode="json"))


class LeftOutFact(Document):
    silo: Text
    stage: Text
    reason: Text


class PhaseFacts(Document):
    """A phase that is over, as the coordinator tells it. Who stands in `cohort`, and `state`, are proven by
    silos where `verified_by` is above 0."""

    round: Count
    phase: PhaseName
    roster_version: Count
    attempts: Count
    result: Result
    reason: Text
    cohort: tuple[Name, ...]
    left_out: tuple[LeftOutFact, ...]
    data_share: Number
    figures: dict[Text, Number]
    state: Digest
    seconds: Number
    upload_bytes: Count
    quantities: tuple[Text, ...]
    verified_by: Count
    threshold: Count


class ArrayShape(Document):
    type: Annotated[str, Field(pattern=r"^(float32|float64|int64|uint8)$")]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, le=1 << 33)], ...], Field(max_length=8)]


class CoordinatorStatement(Statement):
    """All that the coordinator says of a job. silos: what each of them reported that it runs."""

    purpose: ClassVar[str] = "evidence-coordinator"
    coordinator: Name
    software: Runs
    silos: dict[Name, Runs]
    submitted: AwareDatetime
    status: Status
    reason: Text
    model: Digest
    model_round: Count
    kept: Text
    arrays: dict[Annotated[str, Field(pattern=f"^{ARRAY_NAME.pattern}$")], ArrayShape]
    phases: tuple[PhaseFacts, ...]
    audit: AuditExcerpt


class SiloStatement(Statement):
    """What one silo says of its own part in a job. operator: who signed the job that was offered there first.
    policy: SHA-256 of its data set's policy file.

    costs: what an input releases, as text by its SHA-256, which the log's `spent` lines name. plan: what the
    whole job was to release, each with how often; of a job without privacy nothing. epsilon: of all inputs
    of this job together, at delta; null where one left without noise.
    """

    purpose: ClassVar[str] = "evidence-silo"
    silo: Name
    operator: Name
    software: Runs
    decision: Text
    policy: Digest
    delta: float
    sides_are_fixed: bool
    costs: dict[Digest, Cost]
    plan: tuple[tuple[Cost, Count], ...]
    epsilon: Number
    audit: AuditExcerpt


class FileFacts(Document):
    bytes: Count
    sha256: Digest


class Manifest(Statement):
    """What is in an archive of evidence, by the job's operator. chorale: the version that wrote it."""

    purpose: ClassVar[str] = "evidence-manifest"
    format: Annotated[int, Field(ge=1, le=1 << 16)]
    operator: Name
    chorale: Text
    files: dict[Text, FileFacts]


S = TypeVar("S", bound=Statement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed(Generic[S]):
    """A statement whose signature held under `certificate`; whose that is, is still to be checked."""

    statement: S
    certificate: x509.Certificate


def sign_statement(statement: Statement, identity: Identity) -> bytes:
    """The statement as a file."""
    signed = identity.sign(statement.purpose, hashlib.sha256(statement.to_bytes()).digest())
    return _canonical(
        {
            "certificate": base64.b64encode(identity.certificate_der).decode(),
            "signature": base64.b64encode(signed.signature).decode(),
            "statement": statement.model_dump(mode="json"),
        }
    )


def open_statement(data: bytes, kind: type[S], *, authority: Anchors | None = None) -> Signed[S]:
    """What a file says. authority: who has to have issued the certificate; None: that is checked later.

    Security: the signature is checked over the bytes as they stand there, and nothing of the statement is
    parsed before it held. Raises RemoteProtocolError.
    """
    found = _SIGNED.match(data)
    if found is None or not data.endswith(_SIGNED_END) or len(data) > MAX_STATEMENT_BYTES:
        raise RemoteProtocolError(
            f"expected a statement, its signature and a certificate, at most {MAX_STATEMENT_BYTES} bytes"
        )
    certificate = certificate_from_der(from_base64(found[1].decode(), MAX_CERTIFICATE_BYTES))
    if authority is not None:
        authority.issuers_of(certificate)
    signed = data[found.end() : -len(_SIGNED_END)].replace(b"\n ", b"\n") + b"\n"
    body = encoding.encode(kind.purpose, hashlib.sha256(signed).digest())
    signature = from_base64(found[2].decode(), MAX_SIGNATURE_BYTES)
    check_signature(SignedBody(body=body, signature=signature), purpose=kind.purpose, certificate=certificate)
    return Signed(statement=parsed(kind, read_document(signed)), certificate=certificate)


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """A document that is not signed by itself, in its one form."""
    return _canonical(document)


def read_document(data: bytes, *, max_bytes: int = MAX_STATEMENT_BYTES) -> dict[str, Any]:
    """Raises RemoteProtocolError for bytes in any other form than that in which they are written, and for a
    document that is too long, too deep or of too many values, before it is parsed."""
    if len(data) > max_bytes:
        raise RemoteProtocolError(f"expected at most {max_bytes} bytes, got {len(data)}")
    _check_size(data)
    try:
        document = json.loads(data)
        is_same = isinstance(document, dict) and _canonical(document) == data
    except (ValueError, RecursionError):
        is_same = False
    if not is_same:
        raise RemoteProtocolError("expected a document as Chorale writes it, got other bytes")
    return dict(document)


def _check_size(data: bytes) -> None:
    """A value of three bytes takes 64 as an object: 64 MiB of them took 2 GB before they were counted."""
    values = depth = 0
    for found in _MARK.finditer(data):
        match data[found.start()]:
            case 0x5B | 0x7B:  # [ {
                values, depth = values + 1, depth + 1
            case 0x5D | 0x7D:  # ] }
                depth -= 1
            case 0x2C:  # ,
                values += 1
        if depth > MAX_DEPTH or values > MAX_VALUES:
            raise RemoteProtocolError(
                f"expected at most {MAX_VALUES} values in lists of at most {MAX_DEPTH} levels"
            )


D = TypeVar("D", bound=Document)


def parsed(kind: type[D], values: object) -> D:
    """Raises RemoteProtocolError that names the first field that is wrong."""
    try:
        # strict as JSON is: lists are tuples there, and text a date
        made = kind.model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(each) for each in first["loc"])
        raise RemoteProtocolError(f"{place}: {wrong_value(first)}") from None
    if made.model_dump(mode="json") != values:
        raise RemoteProtocolError("a value is written in another form than Chorale writes it")
    return made


def from_base64(text: object, most: int) -> bytes:
    """Raises RemoteProtocolError."""
    try:
        if not isinstance(text, str) or len(text) > 2 * most:
            raise ValueError
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise RemoteProtocolError(f"expected at most {most} bytes in base64") from None


def number(value: float) -> Number:
    """A figure as a document holds it."""
    return float(value) if math.isfinite(value) else None


def shapes_of(state: GlobalState) -> dict[str, ArrayShape]:
    return {
        name: ArrayShape(type=str(array.dtype), shape=tuple(array.shape)) for name, array in state.items()
    }


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
