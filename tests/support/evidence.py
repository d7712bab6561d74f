"""A federation that ran a private job, as its evidence tells it: every signature real, nothing trained.

Whoever attacks may hold any of the keys here, and writes files as the product does.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
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
    Statement,
    shapes_of,
    sign_statement,
)
from chorale.job import Job, sign_job
from chorale.privacy.composition import AccountReleases, FirstPlan
from chorale.privacy.plan import planned_releases
from chorale.privacy.quantity_noise import releases_of
from chorale.privacy.releases import releases_to_json
from chorale.runtime.audit import AuditLog
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from chorale.transport.wire import PhaseKey, phase_kind
from client.evidence import contents as names
from client.evidence.archive import archive_bytes, files_of
from client.evidence.contents import file_facts, read_contents
from client.evidence.facts import facts_of
from client.evidence.pack import Shown, archive_of
from client.evidence.pages import pages_of
from client.evidence.phases import follow_phases
from client.evidence.phases import shapes_of as zeros_of
from client.evidence.proofs import ProofDocument
from client.evidence.verify import opened_job, version
from crypto.encoding import digest
from crypto.identity.certificates import Identity, Role
from crypto.identity.roster import Roster, read_roster, roster_from_file_bytes
from crypto.session import bodies
from crypto.session.statements import Signer, StateProof
from tests.support.ceremony import Ceremony

OPERATOR, OTHER, HUB = "olga", "eve", "hub"
SILOS = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
AWAY = "clinic-d"  # not in the sum of round 2
ROUNDS = 3
DELTA = 1e-5
Files = dict[str, bytes]


def spec(**fields: Any) -> JobSpec:
    values = {
        "name": "heart-private",
        "federation": "test",
        "silos": list(SILOS),
        "rounds": ROUNDS,
        "model": {"name": "mlp", "norm": "group"},
        "classes": 2,
        "input_shape": [2],
        "training": {"local_epochs": 1, "batch_size": 32, "learning_rate": 0.05},
        "privacy": {
            "delta": DELTA,
            "records": {"clip_norm": 1.0, "noise_multiplier": 4.0, "sample_rate": 0.1, "noise": "silo"},
            "statistics_noise_multiplier": 40.0,
        },
        "not_after": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
        **fields,
    }
    return JobSpec.model_validate_json(json.dumps(values))


@dataclass(kw_only=True)
class Lab:
    """One federation under `folder`, whose job ended. files: of the honest archive."""

    folder: Path
    files: Files = field(init=False)
    identities: dict[str, Identity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ceremony = Ceremony(folder=self.folder / "members")
        for role, name in (
            (Role.COORDINATOR, HUB),
            (Role.OPERATOR, OPERATOR),
            (Role.OPERATOR, OTHER),
            *((Role.SILO, silo) for silo in SILOS),
        ):
            self.identities[name] = self.ceremony.enroll(role, name)
        self.ceremony.publish()
        self.roster = self._roster()
        self.arrays = {"model/weight": np.ones((2, 2), np.float32), "method/total": np.array(90)}
        self.model = state_to_bytes(self.arrays)
        self.job = self._job(spec())
        self.archive = self.archive_of_job(self.job)
        self.files = files_of(self.archive)

    # the honest way

    def _roster(self) -> Roster:
        signed = roster_from_file_bytes(self.ceremony.roster_path.read_bytes())
        return read_roster(signed, authority=self.ceremony.anchors, federation="test")

    def _job(self, spec: JobSpec) -> Job:
        first = hashlib.sha256(b"first").digest()
        complete = spec.filled(nonce="0" * 32, initial_state=first)
        signed = sign_job(complete.to_yaml(), self.identities[OPERATOR])
        return Job(spec=complete, signed=signed, operator=OPERATOR)

    def archive_of_job(self, job: Job) -> bytes:
        proofs = self.proofs(job)
        phases = self.phases(job, proofs)
        shown = Shown(
            job=job.signed,
            statement=bytearray(sign_statement(self.statement(job, phases), self.identities[HUB])),
            rosters={self.roster.version: self.roster.signed},
            proofs=list(proofs),
            certificates={
                self.identities[name].fingerprint.hex(): self.identities[name].certificate_der
                for name in SILOS
            },
        )
        silos = {
            name: sign_statement(self.silo_statement(job, name, phases, proofs), self.identities[name])
            for name in SILOS[:3]
        }
        return archive_of(
            shown,
            identity=self.identities[OPERATOR],
            authority=self.ceremony.anchors,
            silos=silos,
            sboms={"chorale.cdx.json": b"{}\n"},
        )

    def steps(self, job: Job) -> list[tuple[int, str]]:
        return [(0, "enrollment.0"), *((n, "train") for n in range(1, ROUNDS + 1)), (ROUNDS, "evaluate.0")]

    def proofs(self, job: Job, signers: tuple[str, ...] = SILOS[:3]) -> list[ProofDocument]:
        """Of every phase that moves the state: the last one leads to the model."""
        assert job.spec.initial_state is not None
        found, parent = [], bytes.fromhex(job.spec.initial_state)
        for number, (round, phase) in enumerate(self.steps(job)[:-1]):
            following = (
                state_digest(self.model) if round == ROUNDS else hashlib.sha256(b"%d" % number).digest()
            )
            found.append(self.proof(job, round, phase, parent, following, signers=signers))
            parent = following
        return found

    def proof(
        self, job: Job, round: int, phase: str, parent: bytes, following: bytes, *, signers: tuple[str, ...]
    ) -> ProofDocument:
        survivors = tuple(name for name in SILOS if (round, name) != (2, AWAY))
        layout = self.layout(job, round, phase)
        unsigned = StateProof(
            roster=self.roster.signed,
            round=round,
            phase=phase,
            attempt=1,
            layout_digest=layout,
            cohort_digest=hashlib.sha256(b"cohort %d" % round).digest(),
            survivors=survivors,
            parent_digest=parent,
            sum_digest=hashlib.sha256(b"sum %d" % round).digest(),
            next_digest=following,
            draw_seed=b"",
            signers={},
        )
        rule = job.spec.rule(len(SILOS))
        session = digest(
            "session", "test", job.digest, self.roster.version, self.roster.digest, round, phase, 1,
            list(SILOS), layout, rule.members, rule.threshold, rule.min_cohort, parent,
        )  # fmt: skip
        signed = {}
        for name in signers:
            identity = self.identities[name]
            said = unsigned.statement(name, federation="test", session_digest=session)
            signature = bodies.sign(identity, said).signature
            signed[name] = Signer(certificate=identity.certificate_der, signature=signature)
        return ProofDocument.of(
            replace(unsigned, signers=signed), job=job.digest, roster_version=self.roster.version
        )

    def layout(self, job: Job, round: int, phase: str) -> bytes:
        key = PhaseKey(job_digest=job.digest, round=round, phase=phase, attempt=0)
        return job.layout(key, zeros_of(shapes_of(self.arrays), ()), len(SILOS)).digest

    def phases(self, job: Job, proofs: list[ProofDocument]) -> tuple[PhaseFacts, ...]:
        proven = {(each.round, each.phase): each for each in proofs}
        found = []
        figures = {"enrollment.0": {"samples": 90.0}, "evaluate.0": {"accuracy": 0.9}}
        for round, phase in self.steps(job):
            proof = proven.get((round, phase))
            found.append(
                PhaseFacts(
                    round=round,
                    phase=phase,
                    roster_version=self.roster.version,
                    attempts=1,
                    result="applied",
                    reason="",
                    cohort=SILOS if proof is None else proof.survivors,
                    left_out=(),
                    data_share=1.0,
                    figures=figures.get(phase, {}),
                    state=proofs[-1].next if proof is None else proof.next,
                    seconds=1.0,
                    upload_bytes=100,
                    quantities=(),
                    verified_by=0 if proof is None else len(proof.signers),
                    threshold=0 if proof is None else job.spec.rule(len(SILOS)).threshold,
                )
            )
        return tuple(found)

    def statement(self, job: Job, phases: tuple[PhaseFacts, ...], **changed: Any) -> CoordinatorStatement:
        log = self.folder / f"{hashlib.sha256(repr((phases, changed)).encode()).hexdigest()[:8]}-hub.jsonl"
        log.unlink(missing_ok=True)
        audit = AuditLog(log)
        audit.append("started", federation="test")
        audit.append("job_submitted", job=job.id, name=job.spec.name, operator=OPERATOR)
        for each in phases:
            audit.append("phase_ended", **_ended(job, each))
        audit.append("job_ended", job=job.id, status="done", reason="")
        audit.close()
        events = ("job_submitted", "phase_ended", "job_ended")
        return CoordinatorStatement(
            federation="test",
            job=job.digest.hex(),
            made=evidence.now(),
            coordinator=HUB,
            software=Runs(version="1", sha256=""),
            silos={},
            submitted=evidence.now(),
            model=state_digest(self.model).hex(),
            model_round=ROUNDS,
            kept="",
            arrays=shapes_of(self.arrays),
            phases=phases,
            audit=AuditExcerpt.of(log, job=job.digest, events=events),
            **{"status": "done", "reason": "", **changed},
        )

    def silo_statement(
        self, job: Job, name: str, phases: tuple[PhaseFacts, ...], proofs: list[ProofDocument]
    ) -> SiloStatement:
        shapes, costs, spent = zeros_of(shapes_of(self.arrays), ()), {}, Counter[Any]()
        cohorts = {(each.round, each.phase): each.cohort for each in proofs}
        log = self.folder / f"{name}.jsonl"
        log.unlink(missing_ok=True)
        audit = AuditLog(log)
        audit.append("job_approved", job=job.digest, by="Ada")
        for each in phases:
            key = {"job": job.digest, "round": each.round, "phase": each.phase}
            cost = releases_of(job.spec, phase_kind(each.phase), shapes, len(SILOS))
            text = releases_to_json(cost)
            costs[hashlib.sha256(text.encode()).hexdigest()] = text
            spent.update(cost)
            audit.append("advertised", **key)
            audit.append("spent", **key, data_set="own", releases=hashlib.sha256(text.encode()).digest())
            cohort = cohorts.get((each.round, each.phase), "0" * 64)
            audit.append("revealed", **key, cohort=cohort, survivors=list(each.cohort))
        audit.close()
        plan = planned_releases(job.spec, shapes)
        account = AccountReleases(
            delta=DELTA,
            sides_are_fixed=True,
            releases=spent,
            jobs=frozenset({job.digest}),
            first=FirstPlan(job=job.digest, releases=plan, sides_are_fixed=True),
        )
        return SiloStatement(
            federation="test",
            job=job.digest.hex(),
            made=evidence.now(),
            silo=name,
            operator=OPERATOR,
            software=Runs(version="1", sha256=""),
            decision="approved",
            policy="0" * 64,
            delta=DELTA,
            sides_are_fixed=True,
            costs=costs,
            plan=tuple((releases_to_json([each]), count) for each, count in plan.items()),
            epsilon=account.epsilon(),
            audit=AuditExcerpt.of(log, job=job.digest, events=("job_approved", "spent", "revealed")),
        )

    # what an attacker does

    def rewritten(self, files: Files, *, signer: Identity | None = None) -> Files:
        """The files with facts and pages as they follow from the others."""
        contents = read_contents(files_of(self.sealed(files, signer=signer)))
        job, statement = opened_job(contents), contents.coordinator.statement
        chain = follow_phases(
            job,
            statement.phases,
            rosters={self.roster.version: self.roster},
            proofs=contents.proofs,
            certificates=contents.certificates,
            arrays=statement.arrays,
            is_done=statement.status == "done",
        )
        facts = facts_of(job, statement, chain)
        pages = pages_of(facts, statement, sorted(contents.silos), contents.sboms)
        return {**files, names.FACTS: evidence.document_bytes(facts), **pages}

    def sealed(self, files: Mapping[str, bytes], *, signer: Identity | None = None) -> bytes:
        """An archive of these files, under a new manifest."""
        identity = signer or self.identities[OPERATOR]
        manifest = evidence.open_statement(self.files[names.MANIFEST], Manifest).statement
        job = hashlib.sha256(files[names.JOB]).hexdigest()
        made = manifest.model_copy(
            update={
                "files": file_facts(files),
                "operator": identity.member.name,
                "chorale": version(),
                "job": job,
            }
        )
        return archive_bytes({**files, names.MANIFEST: sign_statement(made, identity)})

    def signed_again(
        self, file: str, kind: type[Statement], change: Callable[[dict[str, Any]], None]
    ) -> Files:
        """The files with one statement changed, by whoever signed it."""
        values = evidence.open_statement(self.files[file], kind).statement.model_dump(mode="json")
        change(values)
        identity = self.identities[str(values.get("silo") or values.get("coordinator"))]
        said = identity.sign(kind.purpose, hashlib.sha256(evidence.document_bytes(values)).digest())
        document = {
            "certificate": base64.b64encode(identity.certificate_der).decode(),
            "signature": base64.b64encode(said.signature).decode(),
            "statement": values,
        }
        return {**self.files, file: evidence.document_bytes(document)}


def chained(lines: list[str]) -> list[str]:
    """Lines of an audit log with numbers and hashes that fit one another, as its own writer can make them."""
    made, previous = [], "0" * 64
    for number, line in enumerate(lines, start=1):
        entry = {**json.loads(line), "entry": number, "previous": previous}
        made.append(json.dumps(entry, separators=(",", ":")))
        previous = hashlib.sha256(made[-1].encode() + b"\n").hexdigest()
    return made


def _ended(job: Job, phase: PhaseFacts) -> dict[str, Any]:
    return {
        "job": job.id,
        "round": phase.round,
        "phase": phase.phase,
        "result": phase.result,
        "cohort": list(phase.cohort),
        "state_digest": phase.state,
    }
