"""A federation in which the writer of evidence holds every key: its rosters, and a job as they show it.

Every signature is real and nothing is trained, so a job takes milliseconds.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from chorale import evidence
from chorale.evidence import (
    AuditExcerpt,
    CoordinatorStatement,
    Manifest,
    PhaseFacts,
    Runs,
    SiloStatement,
    shapes_of,
    sign_statement,
)
from chorale.job import Job, sign_job
from chorale.privacy.composition import AccountReleases, FirstPlan
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import releases_to_json
from chorale.runtime.audit import AuditLog
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport.wire import PhaseKey, phase_kind
from client.evidence import contents as names
from client.evidence.archive import archive_bytes
from client.evidence.contents import certificates_file, file_facts, job_files
from client.evidence.facts import document_of, facts_of
from client.evidence.pages import pages_of
from client.evidence.phases import follow_phases
from client.evidence.phases import shapes_of as zeros_of
from client.evidence.proofs import ProofDocument
from client.evidence.verify import version
from crypto.encoding import digest
from crypto.errors import ChoraleError
from crypto.identity import certificates, issuing
from crypto.identity.certificates import Anchors, Identity, MemberId, Role
from crypto.identity.roster import Member, Roster, read_roster, roster_to_file_bytes, sign_roster
from crypto.session import bodies
from crypto.session.messages import Abandoned
from crypto.session.statements import Signer, StateProof

OPERATOR, HUB = "olga", "hub"
DAYS = 30
DRAW_SEED = hashlib.sha256(b"draw").digest()
FIGURES: Mapping[str, Mapping[str, float]] = {
    "enrollment.0": {"samples": 90.0},
    "evaluate.0": {"accuracy": 0.9},
}
Files = dict[str, bytes]


class Federation:
    """An authority, a coordinator, operators and silos. rosters: by version."""

    def __init__(
        self, silos: Sequence[str], *, name: str = "test", operators: Sequence[str] = (OPERATOR,)
    ) -> None:
        self.name, self.silos, self.operators = name, tuple(silos), tuple(operators)
        self.identities: dict[str, Identity] = {}
        self.rosters: dict[int, Roster] = {}
        self._authorities: list[tuple[certificates.PrivateKey, Any]] = []
        self._readmitted: dict[str, int] = {}
        self.rotate()

    @property
    def anchors(self) -> Anchors:
        return Anchors(tuple(certificate for _, certificate in self._authorities))

    def rotate(self) -> None:
        """Another key of the authority, and certificates of it for everybody."""
        day_before = _now() - timedelta(days=1)
        self._authorities.append(issuing.new_authority(self.name, now=day_before, valid_days=90))
        members = {Role.COORDINATOR: (HUB,), Role.OPERATOR: self.operators, Role.SILO: self.silos}
        for role, each in members.items():
            for name in each:
                self.renew(role, name)

    def renew(self, role: Role, name: str) -> None:
        self.identities[name] = self.issue(role, name)

    def issue(self, role: Role, name: str) -> Identity:
        """A certificate that no roster lists yet."""
        key, member = certificates.new_key(), MemberId(federation=self.name, role=role, name=name)
        authority_key, authority = self._authorities[-1]
        certificate = issuing.sign_csr(
            issuing.new_csr(key, member, ("127.0.0.1",) if role is Role.COORDINATOR else ()),
            authority_key=authority_key,
            authority_certificate=authority,
            role=role,
            now=_now(),
            valid_days=DAYS,
        )
        return Identity(member=member, certificate=certificate, key=key)

    def publish(
        self,
        silos: Collection[str] | None = None,
        *,
        readmitted: Sequence[str] = (),
        without: Sequence[str] = (),
        forgets_marks: bool = False,
    ) -> Roster:
        """The next version, of these silos or all of them, and of everybody else."""
        number = max(self.rosters, default=0) + 1
        self._readmitted |= dict.fromkeys(readmitted, number)
        listed = {*(self.silos if silos is None else silos), *self.operators, HUB} - set(without)
        signed = sign_roster(
            authority_key=self._authorities[-1][0],
            federation=self.name,
            version=number,
            issued=_now(),
            expires=_now() + timedelta(days=DAYS),
            members=[
                Member(each.member.role, name, each.fingerprint, readmitted_in=self._readmitted.get(name, 0))
                for name, each in self.identities.items()
                if name in listed
            ],
        )
        roster = read_roster(signed, authority=self.anchors, federation=self.name)
        self.rosters[number] = roster
        return roster

    def job(self, *, operator: str = OPERATOR, nonce: str = "0" * 32, **fields: Any) -> Job:
        values = {
            "name": "heart",
            "federation": self.name,
            "silos": list(self.silos),
            "rounds": 3,
            "model": {"name": "mlp", "norm": "group"},
            "classes": 2,
            "input_shape": [2],
            "training": {"local_epochs": 1, "batch_size": 32, "learning_rate": 0.05},
            "not_after": (_now() + timedelta(days=1)).isoformat(),
            **fields,
        }
        spec = JobSpec.model_validate_json(json.dumps(values))
        complete = spec.filled(nonce=nonce, initial_state=hashlib.sha256(b"first").digest())
        return self.signed(complete, complete.to_yaml(), operator=operator)

    def signed(self, spec: JobSpec, data: bytes, *, operator: str = OPERATOR) -> Job:
        return Job(spec=spec, signed=sign_job(data, self.identities[operator]), operator=operator)


@dataclass(kw_only=True)
class Run:
    """A job phase by phase. folder: for audit logs. Lists may be changed: that is what a forger does."""

    federation: Federation
    job: Job
    folder: Path
    phases: list[PhaseFacts] = field(default_factory=list)
    proofs: list[ProofDocument] = field(default_factory=list)
    certificates: dict[str, bytes] = field(default_factory=dict)
    rosters: dict[int, Roster] = field(default_factory=dict)
    silos: Files = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arrays = {"model/weight": np.ones((2, 2), np.float32), "method/total": np.array(90)}
        self.model = state_to_bytes(self.arrays)
        self.state = str(self.job.spec.initial_state)

    def whole(self, *rosters: Roster, **options: Any) -> Run:
        """All phases of the job; the last of the rosters serves for all that follow, too."""
        rounds = self.job.spec.rounds
        steps = [(0, self.job.opening), *((n, "train") for n in range(1, rounds + 1)), (rounds, "evaluate.0")]
        for number, (round, phase) in enumerate(steps):
            self.phase(round, phase, rosters[min(number, len(rosters) - 1)], **options)
        return self

    def steps(self, roster: Roster, *steps: tuple[int, str]) -> Run:
        """These phases alone."""
        for round, phase in steps:
            self.phase(round, phase, roster)
        return self

    def phase(
        self,
        round: int,
        phase: str,
        roster: Roster,
        *,
        signers: Collection[str] | None = None,
        keys: Mapping[str, Identity] | None = None,
        away: Collection[str] = (),
        result: str = "applied",
        moves: bool = True,
    ) -> ProofDocument | None:
        """signers: by default the first t of the named silos. keys: of signers under another one than now.
        moves: whether the state that they sign is another one."""
        self.rosters[roster.version] = roster
        seed = DRAW_SEED if self.phases and self.job.spec.draws_rounds else b""
        named = self.job.named(roster.silo_names, round, phase, seed)
        rule = self.job.spec.rule(len(named))
        survivors = tuple(name for name in named if name not in away)
        proof = None
        if result == "applied" and phase != "evaluate.0":
            chosen = named[: rule.threshold] if signers is None else signers
            unsigned = self._unsigned(round, phase, roster, named, survivors)
            if not moves:
                unsigned = replace(unsigned, next_digest=unsigned.parent_digest)
            proof = self._signed(unsigned, roster, named, chosen, keys or {})
            self.proofs.append(proof)
            self.state = proof.next
        self.phases.append(
            PhaseFacts(
                round=round,
                phase=phase,
                roster_version=roster.version,
                attempts=1,
                result=result,
                reason="",
                cohort=survivors if result == "applied" else (),
                left_out=(),
                data_share=1.0,
                figures=dict(FIGURES.get(phase, {})),
                state=self.state,
                seconds=1.0,
                upload_bytes=100,
                quantities=(),
                verified_by=0 if proof is None else len(proof.signers),
                threshold=0 if proof is None else rule.threshold,
            )
        )
        return proof

    def add_silo(self, name: str, *, key: Identity | None = None, **changed: Any) -> None:
        """Its statement, of all phases so far with its input. key: of who signs it."""
        statement = self.silo_statement(name).model_copy(update=changed)
        self.silos[name] = sign_statement(statement, key or self.federation.identities[name])

    def archive(self, newest: Roster | None = None, **changed: Any) -> bytes:
        """As its operator writes it, whether it verifies or not. changed: of the coordinator's statement."""
        newest = newest or self.rosters[max(self.rosters)]
        return archive_bytes(self.files(self.statement(**changed), {**self.rosters, newest.version: newest}))

    def files(
        self,
        statement: CoordinatorStatement,
        rosters: Mapping[int, Roster],
        *,
        proofs: Mapping[str, ProofDocument] | None = None,
        sboms: Mapping[str, bytes] | None = None,
    ) -> Files:
        identities, bills = self.federation.identities, sboms or {}
        documents = proofs or {
            f"proofs/{n:06}-{each.round}-{each.phase}.json": each for n, each in enumerate(self.proofs)
        }
        files = {
            **job_files(self.job.signed),
            names.AUTHORITY: self.federation.anchors.pem,
            names.COORDINATOR: sign_statement(statement, identities[HUB]),
            names.CERTIFICATES: certificates_file(self.certificates),
            **{f"rosters/{n}.json": roster_to_file_bytes(each.signed) for n, each in rosters.items()},
            **{
                name: evidence.document_bytes(each.model_dump(mode="json"))
                for name, each in documents.items()
            },
            **{f"silos/{name}.json": data for name, data in self.silos.items()},
            **bills,
            **self._computed(statement, rosters, documents, bills),
        }
        manifest = Manifest(
            federation=self.federation.name,
            job=self.job.digest.hex(),
            made=evidence.now(),
            format=evidence.FORMAT,
            operator=self.job.operator,
            chorale=version(),
            files=file_facts(files),
        )
        return {**files, names.MANIFEST: sign_statement(manifest, identities[self.job.operator])}

    def _computed(
        self,
        statement: CoordinatorStatement,
        rosters: Mapping[int, Roster],
        documents: Mapping[str, ProofDocument],
        bills: Mapping[str, bytes],
    ) -> Files:
        """Facts and pages; those of phases that do not follow one another nobody reads."""
        try:
            chain = follow_phases(
                self.job,
                statement.phases,
                rosters=rosters,
                proofs=documents,
                certificates=self.certificates,
                arrays=statement.arrays,
                is_done=statement.status == "done",
            )
        except ChoraleError:
            return dict.fromkeys((names.FACTS, *names.PAGES), b"{}\n")
        facts = facts_of(self.job, statement, chain)
        return {
            names.FACTS: evidence.document_bytes(document_of(facts)),
            **pages_of(facts, statement, sorted(self.silos), bills),
        }

    def _unsigned(
        self, round: int, phase: str, roster: Roster, named: tuple[str, ...], survivors: tuple[str, ...]
    ) -> StateProof:
        is_last = (round, phase) == (self.job.spec.rounds, "train")
        after = state_digest(self.model) if is_last else hashlib.sha256(f"{round} {phase}".encode()).digest()
        return StateProof(
            roster=roster.signed,
            round=round,
            phase=phase,
            attempt=1,
            layout_digest=self.layout(round, phase, len(named)),
            cohort_digest=hashlib.sha256(b"cohort %d" % round).digest(),
            survivors=survivors,
            parent_digest=bytes.fromhex(self.state),
            sum_digest=hashlib.sha256(b"sum %d" % round).digest(),
            next_digest=after,
            draw_seed=DRAW_SEED if self.job.spec.draws_rounds else b"",
            signers={},
        )

    def layout(self, round: int, phase: str, members: int) -> bytes:
        key = PhaseKey(job_digest=self.job.digest, round=round, phase=phase, attempt=0)
        return self.job.layout(key, zeros_of(shapes_of(self.arrays), ()), members).digest

    def _signed(
        self,
        unsigned: StateProof,
        roster: Roster,
        named: tuple[str, ...],
        signers: Collection[str],
        keys: Mapping[str, Identity],
    ) -> ProofDocument:
        rule, federation = self.job.spec.rule(len(named)), self.federation.name
        session = digest(
            "session", federation, self.job.digest, roster.version, roster.digest, unsigned.round,
            unsigned.phase, unsigned.attempt, list(named), unsigned.layout_digest, rule.members,
            rule.threshold, rule.min_cohort, unsigned.parent_digest,
        )  # fmt: skip
        signed = {}
        for name in signers:
            identity = keys.get(name, self.federation.identities[name])
            said = unsigned.statement(name, federation=federation, session_digest=session)
            signed[name] = Signer(
                certificate=identity.certificate_der, signature=bodies.sign(identity, said).signature
            )
            self.certificates[identity.fingerprint.hex()] = identity.certificate_der
        return ProofDocument.of(
            replace(unsigned, signers=signed), job=self.job.digest, roster_version=roster.version
        )

    def abandoned(self, name: str, round: int, phase: str) -> str:
        """A silo's signature that it never reveals this phase, in base64."""
        said = Abandoned(
            federation=self.federation.name, job_digest=self.job.digest, round=round, phase=phase, sender=name
        )
        return base64.b64encode(bodies.sign(self.federation.identities[name], said).signature).decode()

    def statement(self, **changed: Any) -> CoordinatorStatement:
        phases = tuple(self.phases)
        trained = [each.round for each in phases if (each.phase, each.result) == ("train", "applied")]
        log = self.folder / "hub.jsonl"
        log.unlink(missing_ok=True)
        audit = AuditLog(log)
        audit.append("started", federation=self.federation.name)
        audit.append("job_submitted", job=self.job.id, name=self.job.spec.name, operator=self.job.operator)
        for each in phases:
            audit.append("phase_ended", **_ended(self.job, each))
        audit.append("job_ended", job=self.job.id, status="done", reason="")
        audit.close()
        events = ("job_submitted", "phase_ended", "job_ended")
        return CoordinatorStatement(
            federation=self.federation.name,
            job=self.job.digest.hex(),
            made=evidence.now(),
            coordinator=HUB,
            software=Runs(version="1", sha256=""),
            silos={},
            submitted=evidence.now(),
            arrays=shapes_of(self.arrays),
            phases=phases,
            audit=AuditExcerpt.of(log, job=self.job.digest, events=events),
            **{
                "status": "done",
                "reason": "",
                "model": self.state,
                "model_round": max(trained, default=0),
                "kept": "",
                **changed,
            },
        )

    def silo_statement(self, name: str) -> SiloStatement:
        job, spec = self.job, self.job.spec
        shapes, costs, spent = zeros_of(shapes_of(self.arrays), ()), {}, Counter[Any]()
        cohorts = {(each.round, each.phase): each.cohort for each in self.proofs}
        log = self.folder / f"{name}.jsonl"
        log.unlink(missing_ok=True)
        audit = AuditLog(log)
        audit.append("job_approved", job=job.digest, by="Ada", policy="0" * 64)
        for each in self.phases:
            if name not in each.cohort:
                continue
            key: dict[str, Any] = {"job": job.digest, "round": each.round, "phase": each.phase}
            audit.append("advertised", **key)
            releases = None
            if spec.privacy is not None:
                cost = JobReleases(spec, shapes).cost(phase_kind(each.phase), len(spec.silos))
                text = releases_to_json(cost)
                releases = hashlib.sha256(text.encode()).digest()
                costs[releases.hex()] = text
                spent.update(cost)
            audit.append("spent", **key, data_set="own", releases=releases)
            cohort = cohorts.get((each.round, each.phase), "0" * 64)
            audit.append("revealed", **key, cohort=cohort, survivors=list(each.cohort))
        audit.close()
        plan = {} if spec.privacy is None else JobReleases(spec, shapes).planned()
        delta = 1e-5 if spec.privacy is None else spec.privacy.delta
        account = AccountReleases(
            delta=delta,
            sides_are_fixed=True,
            releases=spent,
            jobs=frozenset({job.digest}),
            first=FirstPlan(job=job.digest, releases=plan, sides_are_fixed=True) if plan else None,
        )
        return SiloStatement(
            federation=self.federation.name,
            job=job.digest.hex(),
            made=evidence.now(),
            silo=name,
            operator=job.operator,
            software=Runs(version="1", sha256=""),
            decision="approved",
            policy="0" * 64,
            delta=delta,
            sides_are_fixed=True,
            costs=costs,
            plan=tuple((releases_to_json([each]), count) for each, count in plan.items()),
            epsilon=None if spec.privacy is None else account.epsilon(),
            audit=AuditExcerpt.of(log, job=job.digest, events=("job_approved", "spent", "revealed")),
        )


def _ended(job: Job, phase: PhaseFacts) -> dict[str, Any]:
    return {
        "job": job.id,
        "round": phase.round,
        "phase": phase.phase,
        "result": phase.result,
        "cohort": list(phase.cohort),
        "state_digest": phase.state,
    }


def _now() -> datetime:
    return datetime.now(UTC)
