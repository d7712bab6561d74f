"""Which files an archive has, and each of them parsed: still of anybody who wrote it."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from chorale import evidence
from chorale.evidence import FORMAT, CoordinatorStatement, FileFacts, Manifest, Signed, SiloStatement
from chorale.job import MAX_CERTIFICATE_BYTES, SignedJob
from chorale.transport.tls import MAX_PEM_BYTES
from chorale.transport.wire import MAX_SILOS
from client.evidence.proofs import ProofDocument
from crypto.errors import ChoraleError, EvidenceMismatch
from crypto.identity.certificates import Anchors, SignedBody, fingerprint
from crypto.identity.roster import roster_from_file_bytes, roster_to_file_bytes

MANIFEST, JOB, SIGNATURE = "manifest.json", "job.yaml", "job-signature.json"
AUTHORITY, COORDINATOR, CERTIFICATES = "authority.crt", "coordinator.json", "certificates.json"
FACTS, README, GDPR, MODEL_CARD = "facts.json", "README.md", "gdpr.md", "model-card.md"
PAGES = (README, GDPR, MODEL_CARD)
REQUIRED = (MANIFEST, JOB, SIGNATURE, AUTHORITY, COORDINATOR, CERTIFICATES, FACTS, *PAGES)
ROSTER = re.compile(r"rosters/([1-9][0-9]{0,18})\.json")
PROOF = re.compile(r"proofs/[0-9]{6}-([0-9]{1,20}-[a-z0-9.-]{1,80})\.json")
SILO = re.compile(r"silos/([a-z0-9-]{1,63})\.json")
SBOM = re.compile(r"sbom/[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
MAX_SIGNATURE_FILE_BYTES = 2 * (MAX_CERTIFICATE_BYTES + evidence.MAX_SIGNATURE_BYTES) + 256
MAX_PROOF_BYTES = 4096 + MAX_SILOS * 768  # a silo's name twice, its certificate's digest, its signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """facts, pages and sboms are bytes as they stand there. silos: by name. rosters: by version."""

    manifest: Signed[Manifest]
    authority: Anchors
    job: SignedJob
    coordinator: Signed[CoordinatorStatement]
    rosters: Mapping[int, SignedBody]
    certificates: Mapping[str, bytes]
    proofs: Mapping[str, ProofDocument]
    silos: Mapping[str, Signed[SiloStatement]]
    facts: bytes
    pages: Mapping[str, bytes]
    sboms: Mapping[str, bytes] = field(default_factory=dict)


@contextmanager
def fits(what: str) -> Iterator[None]:
    """An error of Chorale inside is a mismatch of this thing."""
    try:
        yield
    except ChoraleError as error:
        raise EvidenceMismatch(f"{what}: {error}") from error


def read_contents(files: Mapping[str, bytes], *, trusted: Anchors | None = None) -> Contents:
    """Raises EvidenceMismatch that names the first file that is missing, unknown or not of its form.

    The authority first, which is the reader's own where one is given, then the manifest: a member signed it,
    and it lists these very files. Nothing else is parsed before. trusted: the reader's own authority.
    """
    for name in REQUIRED:
        if name not in files:
            raise EvidenceMismatch(f"{name}: it is missing from the archive")
    with fits(AUTHORITY):
        authority = _authority(files[AUTHORITY], trusted)
    with fits(MANIFEST):
        manifest = evidence.open_statement(files[MANIFEST], Manifest, authority=authority)
    _check_listed(manifest.statement, files)
    with fits(COORDINATOR):
        coordinator = evidence.open_statement(files[COORDINATOR], CoordinatorStatement, authority=authority)
    with fits(SIGNATURE):
        job = _signed_job(files)
    with fits(CERTIFICATES):
        certificates = _certificates(files[CERTIFICATES])
    rosters, proofs, silos, sboms = {}, {}, {}, {}
    for name, data in sorted(files.items()):
        with fits(name):
            if found := ROSTER.fullmatch(name):
                rosters[int(found[1])] = _roster(data)
            elif found := PROOF.fullmatch(name):
                proofs[name] = evidence.parsed(
                    ProofDocument, evidence.read_document(data, max_bytes=MAX_PROOF_BYTES)
                )
                if found[1] != proofs[name].title:
                    raise EvidenceMismatch(f"it holds the proof of {proofs[name].title}")
            elif found := SILO.fullmatch(name):
                silos[found[1]] = evidence.open_statement(data, SiloStatement)
            elif SBOM.fullmatch(name):
                sboms[name] = data
            elif name not in REQUIRED:
                raise EvidenceMismatch("no archive of evidence has such a file")
    return Contents(
        manifest=manifest,
        authority=authority,
        job=job,
        coordinator=coordinator,
        rosters=rosters,
        certificates=certificates,
        proofs=proofs,
        silos=silos,
        facts=files[FACTS],
        pages={name: files[name] for name in PAGES},
        sboms=sboms,
    )


def file_facts(files: Mapping[str, bytes]) -> dict[str, FileFacts]:
    """What a manifest says of all files but itself."""
    return {
        name: FileFacts(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in sorted(files.items())
        if name != MANIFEST
    }


def job_files(job: SignedJob) -> dict[str, bytes]:
    """A signed job as two files: what was signed, and by whom."""
    document = {
        "operator_certificate": base64.b64encode(job.operator_certificate).decode(),
        "signature": base64.b64encode(job.signature).decode(),
    }
    return {JOB: job.spec_bytes, SIGNATURE: evidence.document_bytes(document)}


def certificates_file(ders: Mapping[str, bytes]) -> bytes:
    """DER by SHA-256."""
    return evidence.document_bytes({name: base64.b64encode(der).decode() for name, der in ders.items()})


def _authority(data: bytes, trusted: Anchors | None) -> Anchors:
    if len(data) > MAX_PEM_BYTES:
        raise EvidenceMismatch(f"expected at most {MAX_PEM_BYTES} bytes, got {len(data)}")
    authority = Anchors.load(data)
    if authority.pem != data:
        raise EvidenceMismatch("there is more in it than certificates")
    if trusted is not None and not set(authority.certificates) <= set(trusted.certificates):
        found = ", ".join(fingerprint(each).hex()[:16] for each in authority.certificates)
        expected = ", ".join(fingerprint(each).hex()[:16] for each in trusted.certificates)
        raise EvidenceMismatch(f"it is not your authority's certificate: expected {expected}, got {found}")
    return authority


def _check_listed(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    if manifest.format != FORMAT:
        raise EvidenceMismatch(
            f"{MANIFEST}: expected format {FORMAT}, got {manifest.format}, of release {manifest.chorale}"
        )
    found = file_facts(files)
    for name in sorted(found.keys() | manifest.files.keys()):
        if name not in found:
            raise EvidenceMismatch(f"{name}: the manifest lists it, and the archive lacks it")
        if name not in manifest.files:
            raise EvidenceMismatch(f"{name}: the manifest does not list it")
        if found[name] != manifest.files[name]:
            raise EvidenceMismatch(f"{name}: its SHA-256 is not the one in the manifest: it was changed")


def _signed_job(files: Mapping[str, bytes]) -> SignedJob:
    document = evidence.read_document(files[SIGNATURE], max_bytes=MAX_SIGNATURE_FILE_BYTES)
    if document.keys() != {"operator_certificate", "signature"}:
        raise EvidenceMismatch("expected a signature and a certificate")
    wire = SignedJob(
        spec_bytes=files[JOB],
        signature=evidence.from_base64(document["signature"], evidence.MAX_SIGNATURE_BYTES),
        operator_certificate=evidence.from_base64(document["operator_certificate"], MAX_CERTIFICATE_BYTES),
    ).to_wire()
    return SignedJob.from_wire(wire)


def _certificates(data: bytes) -> dict[str, bytes]:
    found = {}
    for name, text in evidence.read_document(data).items():
        der = evidence.from_base64(text, MAX_CERTIFICATE_BYTES)
        if hashlib.sha256(der).hexdigest() != name:
            raise EvidenceMismatch(f"{name[:12]}: it is not the SHA-256 of that certificate")
        found[name] = der
    return found


def _roster(data: bytes) -> SignedBody:
    signed = roster_from_file_bytes(data)
    if roster_to_file_bytes(signed) != data:
        raise EvidenceMismatch("expected a roster as the authority writes it, got other bytes")
    return signed
