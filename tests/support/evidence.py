"""A federation that ran a private job, as its evidence tells it: every signature real, nothing trained.

An attacker may hold any of the keys here, and writes files as the product does.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale import evidence
from chorale.evidence import Manifest, Statement, sign_statement
from client.evidence import contents as names
from client.evidence.archive import archive_bytes, files_of
from client.evidence.contents import file_facts, read_contents
from client.evidence.facts import document_of, facts_of
from client.evidence.pages import pages_of
from client.evidence.phases import follow_phases
from client.evidence.verify import opened_job, version
from crypto.identity.certificates import Identity
from research.attacks.forged.federation import OPERATOR, Federation, Files, Run

OTHER = "eve"  # a second operator
SILOS = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
AWAY = "clinic-d"  # not in the sum of round 2
ROUNDS = 3
PRIVACY: dict[str, Any] = {
    "delta": 1e-5,
    "records": {"clip_norm": 1.0, "noise_multiplier": 4.0, "sample_rate": 0.1, "noise": "silo"},
    "statistics_noise_multiplier": 40.0,
}


@dataclass(kw_only=True)
class Lab:
    """One federation under `folder`, whose job ended. files: of the honest archive."""

    folder: Path
    files: Files = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.federation = Federation(SILOS, operators=(OPERATOR, OTHER))
        self.identities = self.federation.identities
        self.anchors = self.federation.anchors
        self.certificate_path = self.folder / "authority.crt"
        self.certificate_path.write_bytes(self.anchors.pem)
        self.roster = self.federation.publish()
        self.job = self.federation.job(privacy=PRIVACY, purpose="to find strokes", reference="EK 17")
        self.run = Run(federation=self.federation, job=self.job, folder=self.folder)
        for round, phase in (
            (0, "enrollment.0"),
            (1, "train"),
            (2, "train"),
            (3, "train"),
            (3, "evaluate.0"),
        ):
            self.run.phase(round, phase, self.roster, away=(AWAY,) if round == 2 else ())
        for name in SILOS[:3]:
            self.run.add_silo(name)
        self.arrays, self.model = self.run.arrays, self.run.model
        bills = {"sbom/chorale.cdx.json": b"{}\n"}
        self.files = self.run.files(self.run.statement(), {1: self.roster}, sboms=bills)
        self.archive = archive_bytes(self.files)

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
        return {**files, names.FACTS: evidence.document_bytes(document_of(facts)), **pages}

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
        """The files with one statement changed, signed as it was."""
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
