"""Checks an archive of evidence offline, and distrusts every byte of it.

The steps, in this order; the first thing that does not fit ends it:

1. The archive: the bytes are those that its files give, no more and no less.
2. The authority: its certificate is the reader's own, where one is given.
3. The manifest: signed under a certificate of that authority, and it lists exactly these files with their
   SHA-256. Before that no other document is parsed.
4. The makers: rosters are signed with the authority's key; the job, the manifest and the coordinator's
   statement are signed by members of the newest, the first two by one operator.
5. The phases: in order from the signed first state on, under rosters whose versions never fall, each state
   signed by so many of the silos that are named that it withstands a third of those of the job.
6. The model: its SHA-256 is that of such a state, and of the reader's own file, where one is given.
7. The facts and pages: what this release computes from the job.
8. The coordinator's audit log: its lines about the job chain, and tell of the same phases.
9. The silos' statements: each signed by a silo of the newest roster, and agreeing with what others signed.

No time in an archive counts: each is by the clock of its signer.

Source: docs/protocol.md 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from cryptography import x509

from chorale.evidence import CoordinatorStatement
from chorale.job import PURPOSE, Job
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.kinds import signed_spec
from chorale.spec.model_file import analysis_facts, open_model
from chorale.spec.model_file import facts_of as model_facts
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport.wire import phase_kind
from client.errors import require_extra
from client.evidence import contents as names
from client.evidence.archive import files_of
from client.evidence.contents import Contents, fits, read_contents
from client.evidence.facts import Facts, check_facts, facts_of
from client.evidence.pages import pages_of
from client.evidence.phases import APPLIED, Chain, follow_phases, shapes_of
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
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What held. authorities: SHA-256 of the certificates that everything rests on; is_trusted: they are the
    reader's own. silos: those whose statements are in it. notes: what could not be decided."""

    facts: Facts
    authorities: tuple[str, ...]
    is_trusted: bool
    has_model: bool
    silos: tuple[str, ...]
    notes: tuple[str, ...]
    statement: CoordinatorStatement


def verify_archive(
    data: bytes,
    *,
    authority: Anchors | None = None,
    model: bytes | None = None,
    roster: SignedBody | None = None,
) -> Verified:
    """As `examine`, and EvidenceMismatch for the weakest phase that is unproved, or if silos signed none."""
    held = examine(data, authority=authority, model=model, roster=roster)
    if held.facts.unproved or held.facts.weakest is None:
        raise EvidenceMismatch(held.facts.result)
    return held


def examine(
    data: bytes,
    *,
    authority: Anchors | None = None,
    model: bytes | None = None,
    roster: SignedBody | None = None,
) -> Verified:
    """authority: the reader's own. model: a file of `job fetch`. roster: one that the reader knew before the
    job.

    Raises EvidenceMismatch with the first thing that does not fit, and ConfigError where a package that the
    accounting needs is not installed. An unproved phase fits.
    """
    contents = read_contents(files_of(data), trusted=authority)
    rosters, known = _rosters(contents, authority, roster)
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
        known=known,
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
            _check_silos_signer(silo.certificate, name, statement, rosters)
            said = silo.statement
            if (said.silo, said.job, said.federation) != (name, job.digest.hex(), job.spec.federation):
                raise EvidenceMismatch("it is of another silo, job or federation")
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
        spec = signed_spec(contents.job.spec_bytes, source="it")
        if spec.initial_state is None:
            raise EvidenceMismatch("it names no first state, so it was never submitted")
        return Job(spec=spec, signed=contents.job, operator=contents.job.operator)


def _rosters(
    contents: Contents, authority: Anchors | None, known: SignedBody | None
) -> tuple[dict[int, Roster], Roster | None]:
    """By version, and the one that the reader knew before."""
    federation = contents.manifest.statement.federation
    rosters = {}
    phases = contents.coordinator.statement.phases
    first = {each.roster_version: f" of round {each.round} {each.phase}" for each in reversed(phases)}
    for number, signed in contents.rosters.items():
        with fits(f"rosters/{number}.json{first.get(number, '')}"):
            roster = read_roster(signed, authority=contents.authority, federation=federation)
            if roster.version != number:
                raise EvidenceMismatch(f"it is version {roster.version}")
        rosters[number] = roster
    if not rosters:
        raise EvidenceMismatch("rosters: there is none in the archive")
    if known is None:
        return rosters, None
    with fits("--roster"):
        own = read_roster(known, authority=authority or contents.authority, federation=federation)
        if own.version in rosters and rosters[own.version].digest != own.digest:
            raise EvidenceMismatch(f"the archive has another roster of version {own.version}")
    return rosters, own


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
        _check_signer(contents.manifest.certificate, operator, newest)
    with fits(names.COORDINATOR):
        check_certificate(
            contents.coordinator.certificate,
            authority=contents.authority,
            role=Role.COORDINATOR,
            federation=newest.federation,
            now=statement.made,
        )
        hub = MemberId(federation=newest.federation, role=Role.COORDINATOR, name=statement.coordinator)
        _check_signer(contents.coordinator.certificate, hub, newest)


def _check_signer(certificate: x509.Certificate, expected: MemberId, newest: Roster) -> None:
    """Raises EvidenceMismatch unless it is that member's certificate, by the newest roster."""
    if not newest.holds(expected.role, expected.name, fingerprint(certificate)):
        raise EvidenceMismatch(
            f"it is not signed by {expected.role} {expected.name}: the newest roster, version "
            f"{newest.version}, does not list that certificate so"
        )


def _check_silos_signer(
    certificate: x509.Certificate, name: str, statement: CoordinatorStatement, rosters: Mapping[int, Roster]
) -> None:
    """Security: a key that was stolen is why a certificate leaves, and no time tells when it signed."""
    newest = rosters[max(rosters)]
    member = MemberId(federation=newest.federation, role=Role.SILO, name=name)
    held = [
        each
        for each in statement.phases
        if rosters[each.roster_version].holds(Role.SILO, name, fingerprint(certificate))
    ]
    try:
        _check_signer(certificate, member, newest)
    except EvidenceMismatch as error:
        if held:
            last = f"round {held[-1].round} {held[-1].phase}"
            raise EvidenceMismatch(f"{error}; it left the rosters after {last}") from None
        raise


def _check_model(job: Job, statement: CoordinatorStatement, chain: Chain, model: bytes | None) -> None:
    trained = (each.round for each in statement.phases if (each.phase, each.result) == (TRAIN, APPLIED))
    ends = {chain.final.hex()} if statement.model_round == max(trained, default=0) else set()
    if job.spec.keep is not None:  # which round was best only the coordinator says
        ends.add(_tested(job, statement).get(statement.model_round, ""))
    if statement.model not in ends:
        last = next((each.title for each in reversed(chain.phases) if each.signers), "none")
        where = f"{names.COORDINATOR}: model after round {statement.model_round}"
        raise EvidenceMismatch(f"{where}: not the state that silos signed last, of {last}")
    if model is None:
        return
    with fits("--model"):
        arrays, found = open_model(model)
        if state_digest(state_to_bytes(arrays)).hex() != statement.model:
            raise EvidenceMismatch("this file is not the job's model: its arrays have another SHA-256")
        # Security: what inputs and outputs mean stands there, and programs go by it
        facts = _facts_of(job, statement)
        names_found = sorted(found.keys() | facts.keys() if found else ())
        for name in names_found:
            if name != "chorale" and found.get(name) != facts.get(name):
                raise EvidenceMismatch(f"its metadata say otherwise than the job: {name[:80]}")


def _facts_of(job: Job, statement: CoordinatorStatement) -> dict[str, str]:
    """What a file of the job's last state says of it."""
    if isinstance(job.spec, AnalysisSpec):
        return analysis_facts(job.signed.spec_bytes)
    return model_facts(job.training, job_digest=job.digest, round=statement.model_round)


def _tested(job: Job, statement: CoordinatorStatement) -> dict[int, str]:
    """By round, the state in which its model was tested first: that is what a job keeps."""
    state, trained, found = str(job.spec.initial_state), 0, dict[int, str]()
    for each in statement.phases:
        kind = phase_kind(each.phase)
        if each.result == APPLIED and kind in (TRAIN, EVALUATE_ALL, EVALUATE):
            found.setdefault(trained, state)
            trained = each.round if kind == TRAIN else trained
        state = each.state
    return found


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
