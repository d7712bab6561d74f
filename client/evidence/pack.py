"""Makes the archive of a job: what the coordinator shows, what institutions handed on, and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from chorale import evidence
from chorale.evidence import FORMAT, CoordinatorStatement, Manifest, SiloStatement
from chorale.job import Job, SignedJob
from chorale.spec.kinds import any_spec
from chorale.transport import wire
from chorale.transport.chunks import chunk_of
from chorale.v1.operations_pb2 import EvidenceMessage
from client.evidence import contents as names
from client.evidence.archive import MAX_FILES, archive_bytes
from client.evidence.contents import certificates_file, file_facts, fits, job_files
from client.evidence.facts import document_of, facts_of
from client.evidence.pages import pages_of
from client.evidence.phases import follow_phases
from client.evidence.proofs import ProofDocument
from client.evidence.verify import examine, version
from client.operations import Operations
from crypto.errors import ConfigError, RemoteProtocolError
from crypto.identity.certificates import Anchors, Identity, SignedBody, fingerprint
from crypto.identity.roster import MAX_FILE_BYTES, read_roster, roster_to_file_bytes


@dataclass(kw_only=True)
class Shown:
    """What a coordinator shows of a job: nothing of it is checked yet."""

    job: SignedJob
    statement: bytearray = field(default_factory=bytearray)
    rosters: dict[int, SignedBody] = field(default_factory=dict)
    proofs: list[ProofDocument] = field(default_factory=list)
    certificates: dict[str, bytes] = field(default_factory=dict)


def collect(
    operations: Operations,
    job_digest: bytes,
    *,
    identity: Identity,
    authority: Anchors,
    silos: Mapping[str, bytes] | None = None,
    sboms: Mapping[str, bytes] | None = None,
) -> bytes:
    """The archive of a job. silos: files that institutions handed on, by where they are from. sboms: by name.

    Raises as `archive_of`, ConfigError for a file that is no statement of a silo, and RemoteProtocolError for
    a coordinator that shows something else.
    """
    statements = {}
    for source, data in (silos or {}).items():
        try:
            statements[evidence.open_statement(data, SiloStatement).statement.silo] = data
        except RemoteProtocolError as error:
            raise ConfigError(f"{source}: expected a file of `silo evidence`: {error}") from None
    shown = shown_of(
        operations.evidence(job_digest),
        job_digest=job_digest,
        authority=authority,
        federation=identity.member.federation,
    )
    return archive_of(shown, identity=identity, authority=authority, silos=statements, sboms=sboms or {})


def shown_of(
    messages: Iterable[EvidenceMessage], *, job_digest: bytes, authority: Anchors, federation: str
) -> Shown:
    """Raises RemoteProtocolError for a stream of another form, or about another job."""
    stream = iter(messages)
    first = next(stream, None)
    if first is None or first.WhichOneof("kind") != "job":
        raise RemoteProtocolError("coordinator: expected the job before its evidence")
    shown = Shown(job=SignedJob.from_wire(first.job))
    if shown.job.digest != job_digest:
        raise RemoteProtocolError("coordinator: the evidence is of another job than the one asked for")
    for message in stream:
        if len(shown.rosters) + len(shown.proofs) >= MAX_FILES:
            raise RemoteProtocolError(f"coordinator: it shows more than the {MAX_FILES} files of an archive")
        match message.WhichOneof("kind"):
            case "statement":
                chunk = chunk_of(message.statement)
                if chunk.offset != len(shown.statement):
                    raise RemoteProtocolError("coordinator: its statement has a hole")
                shown.statement += chunk.data
                if len(shown.statement) > evidence.MAX_STATEMENT_BYTES:
                    raise RemoteProtocolError("coordinator: its statement is too long")
            case "roster":
                signed = wire.signed_body_from_wire(message.roster, max_bytes=MAX_FILE_BYTES)
                roster = read_roster(signed, authority=authority, federation=federation)
                shown.rosters[roster.version] = signed
            case "proof":
                _take_proof(shown, message)
            case other:
                raise RemoteProtocolError(f"coordinator: {other}: not a part of evidence")
    return shown


def archive_of(
    shown: Shown,
    *,
    identity: Identity,
    authority: Anchors,
    silos: Mapping[str, bytes],
    sboms: Mapping[str, bytes],
) -> bytes:
    """The archive, signed by the job's operator, once it was verified as anybody else would.

    silos: signed statements, by name. sboms: files by name. Raises EvidenceMismatch where something in it
    does not fit; phases that are unproved are in its facts.
    """
    with fits(names.COORDINATOR):
        coordinator = evidence.open_statement(
            bytes(shown.statement), CoordinatorStatement, authority=authority
        )
    statement = coordinator.statement
    with fits(names.JOB):
        spec = any_spec(shown.job.spec_bytes, source="it")
    job = Job(spec=spec, signed=shown.job, operator=shown.job.operator)
    rosters = {
        version: read_roster(signed, authority=authority, federation=spec.federation)
        for version, signed in shown.rosters.items()
    }
    proofs = {f"proofs/{n:06}-{each.title}.json": each for n, each in enumerate(shown.proofs)}
    chain = follow_phases(
        job,
        statement.phases,
        rosters=rosters,
        proofs=proofs,
        certificates=shown.certificates,
        arrays=statement.arrays,
        is_done=statement.status == "done",
    )
    facts = facts_of(job, statement, chain)
    bills = {f"sbom/{name}": data for name, data in sboms.items()}
    files = {
        **job_files(shown.job),
        names.AUTHORITY: authority.pem,
        names.COORDINATOR: bytes(shown.statement),
        names.CERTIFICATES: certificates_file(shown.certificates),
        names.FACTS: evidence.document_bytes(document_of(facts)),
        **{
            f"rosters/{version}.json": roster_to_file_bytes(signed)
            for version, signed in shown.rosters.items()
        },
        **{name: evidence.document_bytes(each.model_dump(mode="json")) for name, each in proofs.items()},
        **{f"silos/{name}.json": data for name, data in silos.items()},
        **bills,
        **pages_of(facts, statement, sorted(silos), bills),
    }
    manifest = Manifest(
        federation=spec.federation,
        job=job.digest.hex(),
        made=evidence.now(),
        format=FORMAT,
        operator=identity.member.name,
        chorale=version(),
        files=file_facts(files),
    )
    data = archive_bytes({**files, names.MANIFEST: evidence.sign_statement(manifest, identity)})
    examine(data, authority=authority)
    return data


def _take_proof(shown: Shown, message: EvidenceMessage) -> None:
    wire_proof, number = message.proof.proof, message.proof.roster_version
    if number not in shown.rosters:
        raise RemoteProtocolError(f"coordinator: a proof of roster {number}, which it did not send")
    wire_proof.roster.CopyFrom(wire.signed_body_to_wire(shown.rosters[number]))
    job_digest, proof = wire.proof_from_wire(wire_proof)
    for signer in proof.signers.values():
        shown.certificates[fingerprint(signer.certificate).hex()] = signer.certificate
    shown.proofs.append(ProofDocument.of(proof, job=job_digest, roster_version=number))
