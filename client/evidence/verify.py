"""Checks an archive of evidence offline, and distrusts every byte of it.

The steps, in this order; the first thing that does not fit ends it:

1. The archive: the bytes are those that its files give, no more and no less.
2. The authority: its certificate is the reader's own, where one is given.
3. The manifest: signed under a certificate of that authority, and it lists exactly these files with their
   SHA-256. Before that no other document is parsed.
4. The makers: rosters are signed with the authority's key; the job, the manifest and the coordinator's
   statement are signed by members of those rosters, the first two by one operator.
5. The phases: in order from the signed first state on, each state signed by t of the silos that are named.
6. The model: its SHA-256 is that of such a state, and of the reader's own file, where one is given.
7. The facts and pages: what this release computes from the job.
8. The coordinator's audit log: its lines about the job chain, and tell of the same phases.
9. The silos' statements: each signed by that silo, and agreeing with what other silos signed.

Source: docs/protocol.md 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from cryptography import x509

from chorale.evidence import CoordinatorStatement
from chorale.job import PURPOSE, Job
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import open_model
from chorale.spec.state import state_digest, state_to_bytes
from client.errors import require_extra
from client.evidence import contents as names
from client.evidence.archive import files_of
from client.evidence.contents import Contents, fits, read_contents
from client.evidence.facts import check_facts, facts_of
from client.evidence.pages import pages_of
from client.evidence.phases import Chain, follow_phases, shapes_of
from client.evidence.silos import check_silo
from crypto import encoding
from crypto.errors import EvidenceMismatch
from crypto.identity.certificates import (
    Anchors,
    MemberId,
    Role,
    SignedBody,
    certificate_from_der,
    check_certificate,
    fingerprint,
    member_of,
    verify,
)
from crypto.identity.roster import Roster, read_roster


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What held. authorities: SHA-256 of the certificates that everything rests on; is_trusted: they are the
    reader's own. silos: those whose statements are in it. notes: what could not be decided. signers: the
    fewest silos that signed a state; 0 where no state is."""

    facts: Mapping[str, Any]
    authorities: tuple[str, ...]
    is_trusted: bool
    has_model: bool
    silos: tuple[str, ...]
    signers: int
    notes: tuple[str, ...]
    statement: CoordinatorStatement


def verify_archive(data: bytes, *, authority: Anchors | None = None, model: bytes | None = None) -> Verified:
    """authority: the reader's own. model: a file of `job fetch`.

    Raises EvidenceMismatch with the first thing that does not fit, and ConfigError where a package that the
    accounting needs is not installed.
    """
    contents = read_contents(files_of(data), trusted=authority)
    rosters = _rosters(contents)
    newest = rosters[max(rosters)]
    job = _job(contents, newest)
    _check_makers(contents, job, newest)
    if job.spec.privacy is not None:
        require_extra("privacy", "dp_accounting", what="checking what the job's noise promises")
    statement = contents.coordinator.statement
    chain = follow_phases(
        job,
        statement.phases,
        rosters=rosters,
        proofs=contents.proofs,
        certificates=contents.certificates,
        arrays=statement.arrays,
        is_done=statement.status == "done",
    )
    _check_model(job, statement, chain, model)
    with fits(names.FACTS):
        facts = check_facts(contents.facts, facts_of(job, statement, chain))
    for name, page in pages_of(facts, statement, sorted(contents.silos), contents.sboms).items():
        if contents.pages[name] != page:
            raise EvidenceMismatch(
                f"{name}: not what release {version()} writes of this job; release "
                f"{contents.manifest.statement.chorale} made the archive"
            )
    notes = _check_audit(job, statement)
    for name, silo in sorted(contents.silos.items()):
        with fits(f"silos/{name}.json"):
            _check_signer(
                silo.certificate, MemberId(federation=job.spec.federation, role=Role.SILO, name=name), rosters
            )
            if (silo.statement.silo, silo.statement.job) != (name, job.digest.hex()):
                raise EvidenceMismatch("it is of another silo or job")
            notes += check_silo(
                job,
                silo.statement,
                phases=statement.phases,
                proofs=contents.proofs,
                shapes=shapes_of(statement.arrays, statement.phases),
            )
    return Verified(
        facts=facts,
        authorities=tuple(fingerprint(each).hex() for each in contents.authority.certificates),
        is_trusted=authority is not None,
        has_model=model is not None,
        silos=tuple(sorted(contents.silos)),
        signers=min((len(each.signers) for each in contents.proofs.values()), default=0),
        notes=tuple(notes),
        statement=statement,
    )


def version() -> str:
    try:
        return metadata.version("chorale")
    except metadata.PackageNotFoundError:
        return "unknown"


def opened_job(contents: Contents) -> Job:
    """The job that its bytes are; who signed them is another step. Raises EvidenceMismatch."""
    with fits(names.JOB):
        spec = JobSpec.from_yaml(contents.job.spec_bytes, source="it")
        if spec.initial_state is None:
            raise EvidenceMismatch("it names no first state, so it was never submitted")
        return Job(spec=spec, signed=contents.job, operator=contents.job.operator)


def _rosters(contents: Contents) -> dict[int, Roster]:
    federation = contents.manifest.statement.federation
    rosters = {}
    for number, signed in contents.rosters.items():
        with fits(f"rosters/{number}.json"):
            roster = read_roster(signed, authority=contents.authority, federation=federation)
            if roster.version != number:
                raise EvidenceMismatch(f"it is version {roster.version}")
        rosters[number] = roster
    if not rosters:
        raise EvidenceMismatch("rosters: there is none in the archive")
    return rosters


def _job(contents: Contents, newest: Roster) -> Job:
    """The job, under the signature of the operator whom its certificate names."""
    job = opened_job(contents)
    with fits(names.SIGNATURE):
        certificate = certificate_from_der(contents.job.operator_certificate)
        body = SignedBody(
            body=encoding.encode(PURPOSE, contents.job.digest), signature=contents.job.signature
        )
        verify(body, purpose=PURPOSE, certificate=certificate)
        contents.authority.issuers_of(certificate)
        if member_of(certificate).role is not Role.OPERATOR:
            raise EvidenceMismatch("it is not an operator who signed the job")
    if job.spec.federation != newest.federation:
        raise EvidenceMismatch(f"{names.JOB}: it is of federation {job.spec.federation}")
    return job


def _check_makers(contents: Contents, job: Job, newest: Roster) -> None:
    manifest, statement = contents.manifest.statement, contents.coordinator.statement
    for file, document in ((names.MANIFEST, manifest), (names.COORDINATOR, statement)):
        if (document.job, document.federation) != (job.digest.hex(), job.spec.federation):
            raise EvidenceMismatch(f"{file}: it is about another job or federation")
    with fits(names.MANIFEST):
        if manifest.operator != job.operator:
            raise EvidenceMismatch(f"{manifest.operator} signed it, and the job belongs to {job.operator}")
        operator = MemberId(federation=newest.federation, role=Role.OPERATOR, name=job.operator)
        _check_signer(contents.manifest.certificate, operator, {newest.version: newest})
    with fits(names.COORDINATOR):
        check_certificate(
            contents.coordinator.certificate,
            authority=contents.authority,
            role=Role.COORDINATOR,
            federation=newest.federation,
            now=statement.made,
        )
        hub = MemberId(federation=newest.federation, role=Role.COORDINATOR, name=statement.coordinator)
        _check_signer(contents.coordinator.certificate, hub, {newest.version: newest})


def _check_signer(certificate: x509.Certificate, expected: MemberId, rosters: Mapping[int, Roster]) -> None:
    """Raises EvidenceMismatch unless it is that member's certificate, by one of these rosters."""
    digest = fingerprint(certificate)
    if not any(each.holds(expected.role, expected.name, digest) for each in rosters.values()):
        raise EvidenceMismatch(
            f"it is not signed by {expected.role} {expected.name}: no roster lists that certificate so"
        )


def _check_model(job: Job, statement: CoordinatorStatement, chain: Chain, model: bytes | None) -> None:
    ends = {chain.final.hex()}
    if job.spec.keep is not None:  # which round was best only the coordinator says
        ends |= {state.hex() for (round, _), state in chain.states.items() if round == statement.model_round}
    if statement.model not in ends:
        raise EvidenceMismatch(f"{names.COORDINATOR}: model: not a state that silos signed")
    if model is None:
        return
    with fits("--model"):
        arrays, _ = open_model(model)
        if state_digest(state_to_bytes(arrays)).hex() != statement.model:
            raise EvidenceMismatch("this file is not the job's model: its arrays have another SHA-256")


def _check_audit(job: Job, statement: CoordinatorStatement) -> list[str]:
    """Notes on phases that it lacks: a coordinator that is killed may have told of one nowhere else."""
    rows = [(each.round, each.phase, each.result, list(each.cohort), each.state) for each in statement.phases]
    with fits(f"{names.COORDINATOR}: audit"):
        entries = statement.audit.entries_of_job()
    ended = []
    for entry in entries:
        if entry.get("job") != job.id:
            raise EvidenceMismatch(f"{names.COORDINATOR}: audit entry {entry['entry']}: of another job")
        if entry["event"] == "phase_ended":
            fields = ("round", "phase", "result", "cohort", "state_digest")
            row = tuple(entry.get(name) for name in fields)
            if row not in rows:
                raise EvidenceMismatch(
                    f"{names.COORDINATOR}: audit entry {entry['entry']}: it tells of a phase otherwise than "
                    "the statement"
                )
            ended.append(row)
    lost = [each for each in rows if each not in ended]
    return [f"the coordinator's audit log lacks round {each[0]} {each[1]}" for each in lost]
