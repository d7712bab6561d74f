"""Changes planted in an archive of evidence: each is found and named, and the archive without it verifies.

Who plants them may hold the keys of operator and coordinator, and that of a silo where it says so; those of
the others, and the authority's, nobody has. The control of every test is the archive without the change:
`lab` makes it, and verifies it, once.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from chorale import evidence
from chorale.evidence import CoordinatorStatement, SiloStatement, sign_statement
from chorale.job import sign_job
from chorale.spec.model_file import facts_of, with_facts
from chorale.spec.state import state_to_bytes
from chorale.transport import wire
from chorale.v1.operations_pb2 import EvidenceMessage, EvidenceProof
from client.evidence import contents as names
from client.evidence.archive import MAX_ENTRY_BYTES, MAX_FILES, archive_bytes, files_of
from client.evidence.contents import job_files
from client.evidence.pack import shown_of
from client.evidence.phases import MAX_ARRAYS
from client.evidence.verify import verify_archive
from crypto.errors import EvidenceMismatch, RemoteProtocolError
from crypto.identity.certificates import Identity, Role
from crypto.identity.roster import roster_to_file_bytes
from research.attacks.forged.federation import HUB, OPERATOR, Files
from tests.support.ceremony import stranger
from tests.support.evidence import AWAY, OTHER, PRIVACY, SILOS, Lab, chained

COORDINATOR, SILO = names.COORDINATOR, f"silos/{SILOS[0]}.json"
SECOND = "proofs/000002-2-train.json"
Values = dict[str, Any]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    made = Lab(folder=tmp_path_factory.mktemp("lab"))
    verify_archive(made.archive, authority=made.anchors)
    return made


def test_honest_archive_verifies_and_so_does_one_that_is_only_sealed_again(lab: Lab) -> None:
    for archive in (lab.archive, lab.sealed(lab.files)):
        held = verify_archive(archive, authority=lab.anchors, model=lab.model)
        assert (held.silos, held.notes) == (SILOS[:3], ())
        assert (held.facts.states_signed_by_silos, held.facts.missing, held.facts.unproved) == (4, {}, ())
    assert archive_bytes(files_of(lab.archive)) == lab.archive
    facts = json.loads(lab.files[names.FACTS])
    assert (facts["purpose"], facts["reference"]) == ("to find strokes", "EK 17")
    assert '- Purpose: "to find strokes".\n- Reference: "EK 17".\n' in lab.files[names.README].decode()


# changes to files


def _with(lab: Lab, file: str, data: bytes) -> Files:
    return {**lab.files, file: data}


def _proof(lab: Lab, file: str, **changed: Any) -> Files:
    values = json.loads(lab.files[file])
    return _with(lab, file, evidence.document_bytes({**values, **changed}))


def _flipped(lab: Lab, file: str) -> bytes:
    data = bytearray(lab.files[file])
    data[len(data) // 2] ^= 1
    return archive_bytes(_with(lab, file, bytes(data)))


def _without(lab: Lab, file: str) -> Files:
    return {name: data for name, data in lab.files.items() if name != file}


def _coordinator(lab: Lab, change: Callable[[Values], None]) -> Files:
    return lab.signed_again(COORDINATOR, CoordinatorStatement, change)


def _silo(lab: Lab, change: Callable[[Values], None]) -> Files:
    return lab.signed_again(SILO, SiloStatement, change)


def _phase(round: int, **changed: Any) -> Callable[[Values], None]:
    """The coordinator tells something else of a training round."""

    def change(values: Values) -> None:
        values["phases"][round].update(changed)

    return change


def _cut(lab: Lab, *rounds: int, **changed: Any) -> Files:
    """Rounds that operator and coordinator together leave out, with their proofs and audit lines."""

    def change(values: Values) -> None:
        values["phases"] = [
            each
            for each in values["phases"]
            if not (each["phase"] == "train" and each["round"] in rounds)
            and not (changed and each["phase"] == "evaluate.0")
        ]
        kept = {(each["round"], each["phase"]) for each in values["phases"]}
        entries = [json.loads(line) for line in values["audit"]["lines"]]
        values["audit"]["lines"] = [
            line
            for line, entry in zip(values["audit"]["lines"], entries, strict=True)
            if entry["event"] != "phase_ended" or (entry["round"], entry["phase"]) in kept
        ]
        values.update(changed)

    files = _coordinator(lab, change)
    return {
        name: data for name, data in files.items() if not any(f"-{number}-train" in name for number in rounds)
    }


def _cancelled(lab: Lab) -> Files:
    """All after round 1, with all that follows from it."""
    first = json.loads(lab.files["proofs/000001-1-train.json"])["next"]
    return lab.rewritten(_cut(lab, 2, 3, status="cancelled", reason="", model=first, model_round=1))


def _lines(change: Callable[[list[str]], list[str]]) -> Callable[[Values], None]:
    def changed(values: Values) -> None:
        values["audit"]["lines"] = change(values["audit"]["lines"])

    return changed


def _own_log(drop: Callable[[Values], bool]) -> Callable[[Values], None]:
    """A silo writes its log again, without some lines: numbers and hashes fit."""

    def change(values: Values) -> None:
        lines = chained([line for line in values["audit"]["lines"] if not drop(json.loads(line))])
        values["audit"] = {"entries": len(lines) + 9, "head": "0" * 64, "lines": lines}

    return change


def _other_job(lab: Lab) -> Files:
    """The operator signs a milder job, and the coordinator says that it was this one."""
    records = {**PRIVACY["records"], "noise_multiplier": 9.0}
    noisier = {**PRIVACY, "records": records, "statistics_noise_multiplier": 90.0}
    signed = lab.federation.job(privacy=noisier).signed
    files = _coordinator(lab, lambda values: values.update(job=signed.digest.hex()))
    proofs = {
        name: evidence.document_bytes({**json.loads(data), "job": signed.digest.hex()})
        for name, data in files.items()
        if name.startswith("proofs/")
    }
    return {**files, **proofs, **job_files(signed)}


def _fewer_signers(lab: Lab) -> Files:
    signers = json.loads(lab.files[SECOND])["signers"]
    del signers[SILOS[0]]
    return {
        **_coordinator(lab, _phase(2, verified_by=2)),
        SECOND: _proof(lab, SECOND, signers=signers)[SECOND],
    }


def _false_state(lab: Lab) -> Files:
    """Coordinator and operator say that round 2 led elsewhere."""
    files = _coordinator(lab, _phase(2, state="ab" * 32))
    return {**files, SECOND: _proof(lab, SECOND, next="ab" * 32)[SECOND]}


def _false_cohort(lab: Lab) -> Files:
    """They put a silo into a sum that it was not in."""
    assert AWAY not in json.loads(lab.files[SECOND])["survivors"]
    files = _coordinator(lab, _phase(2, cohort=list(SILOS)))
    return {**files, SECOND: _proof(lab, SECOND, survivors=list(SILOS))[SECOND]}


def _false_signer(lab: Lab) -> Files:
    """A signature of one silo under the name of another."""
    signers = json.loads(lab.files[SECOND])["signers"]
    signers[AWAY] = signers.pop(SILOS[0])
    return _proof(lab, SECOND, signers=signers)


def _later_roster(lab: Lab) -> Files:
    """A roster that the authority did sign, though later, in the place of the one that silos signed under."""
    later = lab.federation.publish(without=(OTHER,))
    files = _coordinator(lab, lambda values: _rosters(values, later.version))
    proofs = {
        name: evidence.document_bytes({**json.loads(data), "roster_version": later.version})
        for name, data in files.items()
        if name.startswith("proofs/")
    }
    del files["rosters/1.json"]
    return {**files, **proofs, f"rosters/{later.version}.json": roster_to_file_bytes(later.signed)}


def _rosters(values: Values, version: int) -> None:
    for each in values["phases"]:
        each["roster_version"] = version


def _foreign_roster(lab: Lab, folder: Path) -> Files:
    """A roster of the attacker's own authority."""
    other = Lab(folder=folder)
    return _with(lab, "rosters/1.json", other.files["rosters/1.json"])


def _exchanged(lab: Lab) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        values["phases"][1], values["phases"][2] = values["phases"][2], values["phases"][1]

    return change


def _larger(values: Values) -> None:
    values["arrays"]["model/weight"]["shape"] = [2, 3]


def _unsigned(lab: Lab) -> Files:
    document = json.loads(lab.files[COORDINATOR])
    del document["statement"]["audit"]["lines"][2]
    return _with(lab, COORDINATOR, evidence.document_bytes(document))


def _other_cohort(lines: list[str]) -> list[str]:
    entries = [json.loads(line) for line in lines]
    for entry in entries:
        if (entry["event"], entry.get("round"), entry.get("phase")) == ("revealed", 1, "train"):
            entry["cohort"] = "cd" * 32
    return [json.dumps(entry, separators=(",", ":")) for entry in entries]


def _reveals(**fields: object) -> Callable[[Values], None]:
    """A list cannot be looked up, nor is every text a number: that ended in a TypeError and a ValueError."""

    def change(lines: list[str]) -> list[str]:
        entries = [json.loads(line) for line in lines[:-1]]
        changed = [each | fields if each["event"] == "revealed" else each for each in entries]
        return [*(json.dumps(each, separators=(",", ":")) for each in changed), lines[-1]]

    return _lines(change)


def _other_jobs_line(lines: list[str]) -> list[str]:
    entry = {**json.loads(lines[0]), "job": "ab" * 32}
    return [json.dumps(entry, separators=(",", ":")), *lines[1:]]


def _third(lab: Lab) -> bytes:
    return lab.files["proofs/000003-3-train.json"]


def _other_certificate(lab: Lab) -> Files:
    """That of another member in the place of a silo's."""
    found = json.loads(lab.files[names.CERTIFICATES])
    first, second = sorted(found)[:2]
    return _with(lab, names.CERTIFICATES, evidence.document_bytes({**found, first: found[second]}))


def _dearer_plan(values: Values) -> None:
    values["plan"] = values["plan"][:-1]


def _text(lab: Lab, file: str, old: bytes, new: bytes) -> Files:
    assert old in lab.files[file]
    return _with(lab, file, lab.files[file].replace(old, new))


def _facts(lab: Lab, change: Callable[[Values], None]) -> Files:
    values = json.loads(lab.files[names.FACTS])
    change(values)
    return _with(lab, names.FACTS, evidence.document_bytes(values))


def _ended(entry: Values) -> bool:
    return (entry["event"], entry.get("round"), entry.get("phase")) == ("spent", 2, "train")


PLANTED: dict[str, tuple[Callable[[Lab, Path], bytes], str]] = {
    # without a key
    "a bit of a file": (
        lambda lab, _: _flipped(lab, SECOND),
        r"proofs/000002-2-train.json: its SHA-256 is not",
    ),
    "a file less": (
        lambda lab, _: archive_bytes(_without(lab, SILO)),
        r"silos/clinic-a.json: the manifest lists it",
    ),
    "a file more": (
        lambda lab, _: archive_bytes(_with(lab, "silos/clinic-d.json", lab.files[SILO])),
        r"silos/clinic-d.json: the manifest does not list it",
    ),
    # who signed
    "another operator's manifest": (
        lambda lab, _: lab.sealed(lab.files, signer=lab.identities[OTHER]),
        r"manifest.json: eve signed it, and the job belongs to olga",
    ),
    "a stranger's manifest under the operator's name": (
        lambda lab, _: lab.sealed(lab.files, signer=_stranger(OPERATOR)),
        r"manifest.json: certificate: it was not issued by this federation's authority",
    ),
    "a manifest under a certificate of the operator's that no roster lists": (
        lambda lab, _: lab.sealed(lab.files, signer=_unlisted(lab)),
        r"manifest.json: it is not signed by operator olga: the newest roster, version 1, does not",
    ),
    "the coordinator's statement signed by the operator": (
        lambda lab, _: lab.sealed(
            _with(lab, COORDINATOR, _statement_by(lab, COORDINATOR, CoordinatorStatement, OPERATOR))
        ),
        r"coordinator.json: certificate: its extended key usage is not that of a coordinator",
    ),
    "a silo's statement signed by the operator": (
        lambda lab, _: lab.sealed(_with(lab, SILO, _statement_by(lab, SILO, SiloStatement, OPERATOR))),
        r"silos/clinic-a.json: it is not signed by silo clinic-a",
    ),
    "a silo's statement under another name": (
        lambda lab, _: lab.sealed({**_without(lab, SILO), "silos/clinic-d.json": lab.files[SILO]}),
        r"README.md: not what release",
    ),
    "a roster of another authority": (
        lambda lab, folder: lab.sealed(_foreign_roster(lab, folder)),
        r"rosters/1.json of round 0 enrollment.0: roster: the signature is not valid",
    ),
    "a later roster": (
        lambda lab, _: lab.sealed(_later_roster(lab)),
        r"round 0 enrollment.0: next-state of clinic-a: next-state: the signature is not valid",
    ),
    "another job": (lambda lab, _: lab.sealed(_other_job(lab)), r"round 0 enrollment.0: what silos signed"),
    "a job that nobody signed": (
        lambda lab, _: lab.sealed(_text(lab, names.JOB, b"rounds: 3", b"rounds: 2")),
        r"job-signature.json: job: the signature is not valid",
    ),
    # rounds, with the coordinator's and the operator's keys
    "a round less": (lambda lab, _: lab.sealed(_cut(lab, 2)), r"round 3 train: round 2 is missing"),
    "the proof of a round less": (
        lambda lab, _: lab.sealed(_without(lab, SECOND)),
        r"round 2 train: the proof that silos signed is missing",
    ),
    "the last rounds less": (
        lambda lab, _: lab.sealed(_cut(lab, 3)),
        r"round 3 evaluate.0: round 3 is missing|another state",
    ),
    "the last rounds less, told as cancelled": (
        lambda lab, _: lab.sealed(_cancelled(lab)),
        r"silos/clinic-a.json: it revealed round 2 train, which the archive does not have",
    ),
    "a round told as used up": (
        lambda lab, _: lab.sealed(
            {
                **_without(lab, SECOND),
                COORDINATOR: _coordinator(lab, _phase(2, result="used-up", verified_by=0))[COORDINATOR],
            }
        ),
        r"round 2 train: the coordinator names another state",
    ),
    "two rounds exchanged": (
        lambda lab, _: lab.sealed(_coordinator(lab, _exchanged(lab))),
        r"round 2 train: round 1 is missing",
    ),
    "another state after a round": (
        lambda lab, _: lab.sealed(_false_state(lab)),
        r"next-state of clinic-a: next-state: the signature is not valid",
    ),
    "a silo put into a sum": (
        lambda lab, _: lab.sealed(_false_cohort(lab)),
        r"next-state of clinic-a: next-state: the signature is not valid",
    ),
    "fewer signatures": (
        lambda lab, _: lab.sealed(_fewer_signers(lab)),
        r"proof: expected signatures of 3 silos, got 2",
    ),
    "a signature under another name": (
        lambda lab, _: lab.sealed(_false_signer(lab)),
        r"proof: the roster does not hold clinic-d with this certificate",
    ),
    "a proof of another round": (
        lambda lab, _: lab.sealed(_with(lab, SECOND, lab.files["proofs/000001-1-train.json"])),
        r"proofs/000002-2-train.json: it holds the proof of 1-train",
    ),
    "a proof that says another job": (
        lambda lab, _: lab.sealed(_proof(lab, SECOND, job="ab" * 32)),
        r"round 2 train: its proof is of another job",
    ),
    "a proof that says another roster": (
        lambda lab, _: lab.sealed(_proof(lab, SECOND, roster_version=9)),
        r"round 2 train: its proof is of another roster than the coordinator names",
    ),
    "a proof that begins elsewhere": (
        lambda lab, _: lab.sealed(_proof(lab, SECOND, parent="ab" * 32)),
        r"round 2 train: it does not go on from the state before",
    ),
    "a proof that nobody names": (
        lambda lab, _: lab.sealed(
            {**_cut(lab, 3, status="cancelled"), "proofs/000003-3-train.json": _third(lab)}
        ),
        r"round 3 train: a proof is there, and the coordinator does not name it",
    ),
    "another certificate of a signer": (
        lambda lab, _: lab.sealed(_other_certificate(lab)),
        r"certificates.json: \w{12}: it is not the SHA-256 of that certificate",
    ),
    "a roster that is not there": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(2, roster_version=9))),
        r"round 2 train: roster 9 is missing from the archive",
    ),
    "a silo that the job does not name": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(4, cohort=[*SILOS, "zeta"]))),
        r"round 3 evaluate.0: its cohort is not of the silos that the job names",
    ),
    "another cohort than silos signed": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(2, cohort=list(SILOS)))),
        r"round 2 train: silos signed another cohort than the coordinator names",
    ),
    "more signatures than there are": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(2, verified_by=4))),
        r"round 2 train: the coordinator counts other signatures than there are",
    ),
    "no enrollment": (
        lambda lab, _: lab.sealed(_coordinator(lab, lambda values: values["phases"].pop(0))),
        r"round 1 train: a job begins with enrollment.0: phases before it are missing",
    ),
    "a phase twice": (
        lambda lab, _: lab.sealed(
            _coordinator(lab, lambda values: values["phases"].append(values["phases"][-1]))
        ),
        r"round 3 evaluate.0: out of order",
    ),
    "no end of a job that is done": (
        lambda lab, _: lab.sealed(_coordinator(lab, lambda values: values["phases"].pop())),
        r"coordinator.json: it says done, and the last phase is missing",
    ),
    "other arrays than were summed": (
        lambda lab, _: lab.sealed(_coordinator(lab, _larger)),
        r"round 1 train: what silos signed that they summed does not follow from the job",
    ),
    "another model": (
        lambda lab, _: lab.sealed(_coordinator(lab, lambda values: values.update(model="ef" * 32))),
        r"coordinator.json: model after round 3: not the state that silos signed last, of round 3 train",
    ),
    # numbers and pages, with the operator's key
    "epsilon in the facts": (
        lambda lab, _: lab.sealed(_facts(lab, lambda values: values["epsilon"].update(planned=0.1))),
        r"facts.json: epsilon: planned: the signed job gives 0.53\d*, it says 0.1",
    ),
    "a quantity in the facts": (
        lambda lab, _: lab.sealed(_facts(lab, lambda values: values["quantities"]["train"]["summed"].pop())),
        r"facts.json: quantities: train: summed: the signed job gives",
    ),
    "epsilon on a page": (
        lambda lab, _: lab.sealed(_text(lab, names.GDPR, b"planned: 0.5", b"planned: 0.1")),
        r"gdpr.md: not what release",
    ),
    # audit logs, each with the key of the one whose log it is
    "an entry out of the coordinator's log, without its key": (
        lambda lab, _: lab.sealed(_unsigned(lab)),
        r"coordinator.json: evidence-coordinator: the signature is not valid",
    ),
    "an entry of the coordinator's log changed": (
        lambda lab, _: lab.sealed(_coordinator(lab, _last_phase)),
        r"coordinator.json: audit: audit entry \d+: the entry before it was changed",
    ),
    "an input out of a silo's log": (
        lambda lab, _: lab.sealed(_silo(lab, _own_log(_ended))),
        r"silos/clinic-a.json: its log lacks the input of round 2 train",
    ),
    "entries of a silo's log in another order": (
        lambda lab, _: lab.sealed(_silo(lab, _lines(lambda lines: [lines[1], lines[0], *lines[2:]]))),
        r"silos/clinic-a.json: audit entry \d+: out of order",
    ),
    "a reveal over another cohort": (
        lambda lab, _: lab.sealed(_silo(lab, _lines(_other_cohort))),
        r"silos/clinic-a.json: audit entry \d+: it revealed round 1 train over another cohort",
    ),
    "epsilon in a silo's statement": (
        lambda lab, _: lab.sealed(_silo(lab, lambda values: values.update(epsilon=0.1))),
        r"silos/clinic-a.json: epsilon: its log gives 0.53\d*, it says 0.1",
    ),
    "the plan in a silo's statement": (
        lambda lab, _: lab.sealed(_silo(lab, _dearer_plan)),
        r"silos/clinic-a.json: plan: it is not what the signed job releases",
    ),
    "an entry that names no round": (
        lambda lab, _: lab.sealed(_silo(lab, _reveals(round=[]))),
        r"silos/clinic-a.json: audit entry \d+: it names no round and phase",
    ),
    "an entry of another job": (
        lambda lab, _: lab.sealed(_silo(lab, _lines(_other_jobs_line))),
        r"silos/clinic-a.json: audit entry \d+: it is about another job",
    ),
    "another federation in a silo's statement": (
        lambda lab, _: lab.sealed(_silo(lab, lambda values: values.update(federation="other"))),
        r"silos/clinic-a.json: it is of another silo, job or federation",
    ),
    "another operator in a silo's statement": (
        lambda lab, _: lab.sealed(_silo(lab, lambda values: values.update(operator=OTHER))),
        r"silos/clinic-a.json: eve asked for the job there, and olga signed this one",
    ),
    # forms
    "a status with a line of its own": (
        lambda lab, _: lab.sealed(
            _coordinator(lab, lambda values: values.update(status="done\n- 4 silos signed the accuracy"))
        ),
        r"coordinator.json: status: expected one of running, .* got",
    ),
    "a status of the coordinator's own, which asks for no last phase": (
        lambda lab, _: lab.sealed(_cut(lab, 3, status="complete")),
        r"coordinator.json: status: expected one of running, .* got 'complete'",
    ),
    "a result of the coordinator's own": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(2, result="as good as applied"))),
        r"coordinator.json: phases.2.result: expected one of applied, used-up, got",
    ),
    "a phase that is named in another way": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(4, phase="evaluate.\u0660"))),
        r"coordinator.json: phases.4.phase: expected the name of a phase",
    ),
    "a number that is none in a phase of a silo's log": (
        lambda lab, _: lab.sealed(_silo(lab, _reveals(phase="evaluate.x"))),
        r"silos/clinic-a.json: audit entry \d+: it names no round and phase",
    ),
    "a proof in the file of another": (
        lambda lab, _: lab.sealed(
            {**_without(lab, SECOND), "proofs/000002-7-evaluate.0.json": lab.files[SECOND]}
        ),
        r"proofs/000002-7-evaluate.0.json: it holds the proof of 2-train",
    ),
    "control characters in a reason": (
        lambda lab, _: lab.sealed(_coordinator(lab, _phase(2, reason="\x1b[2Jdone"))),
        r"coordinator.json: phases.2.reason: expected printable characters on one line",
    ),
    "arrays larger than any memory": (
        lambda lab, _: lab.sealed(_coordinator(lab, _huge)),
        r"coordinator.json: arrays: expected at most \d+ values each, and at most \d+ arrays",
    ),
    "more arrays than any model has": (
        lambda lab, _: lab.sealed(_coordinator(lab, _many)),
        r"coordinator.json: arrays: expected at most \d+ values each, and at most \d+ arrays",
    ),
    "a document written in another way": (
        lambda lab, _: lab.sealed(_with(lab, SECOND, lab.files[SECOND].replace(b"\n", b" \n"))),
        r"proofs/000002-2-train.json: expected a document as Chorale writes it",
    ),
    "a name that stands twice in a document": (
        lambda lab, _: lab.sealed(_text(lab, SECOND, b'{\n "attempt"', b'{\n "attempt": 9,\n "attempt"')),
        r"proofs/000002-2-train.json: expected a document as Chorale writes it",
    ),
    "an authority of a thousand certificates": (
        lambda lab, _: lab.sealed(_with(lab, names.AUTHORITY, lab.files[names.AUTHORITY] * 200)),
        r"authority.crt: expected at most 65536 bytes",
    ),
    "a proof that is longer than any": (
        lambda lab, _: lab.sealed(_with(lab, SECOND, lab.files[SECOND] + b" " * names.MAX_PROOF_BYTES)),
        r"proofs/000002-2-train.json: expected at most \d+ bytes",
    ),
    "lists in lists": (
        lambda lab, _: lab.sealed(_with(lab, names.FACTS, b'{"a": ' + b"[" * 20 + b"]" * 20 + b"}\n")),
        r"facts.json: expected at most \d+ values in lists of at most 16 levels",
    ),
    "a file of another kind": (
        lambda lab, _: lab.sealed(_with(lab, "note.txt", b"all was well\n")),
        r"note.txt: no archive of evidence has such a file",
    ),
}


def _huge(values: Values) -> None:
    values["arrays"]["model/weight"]["shape"] = [1 << 33] * 8


def _many(values: Values) -> None:
    one = {"type": "float32", "shape": [1]}
    values["arrays"].update({f"model/{number}": one for number in range(MAX_ARRAYS)})


def test_nobody_but_the_operator_whom_silos_know_claims_a_job(lab: Lab) -> None:
    """Every operator reads signed jobs. One who signs the same bytes again, with the coordinator's help, is a
    member and signs all that an operator signs: what silos say they were asked by tells the two apart."""
    eve = lab.identities[OTHER]
    stolen = {**lab.files, **job_files(sign_job(lab.job.signed.spec_bytes, eve))}
    files = lab.rewritten(stolen, signer=eve)
    with pytest.raises(EvidenceMismatch, match=r"silos/clinic-a.json: olga asked for the job there, and eve"):
        verify_archive(lab.sealed(files, signer=eve), authority=lab.anchors)
    verify_archive(lab.sealed(lab.rewritten(lab.files)), authority=lab.anchors)  # the control


@pytest.mark.parametrize("is_64_bit", [False, True])
def test_a_directory_of_millions_is_refused_before_it_is_read(is_64_bit: bool) -> None:
    """Each entry of 47 bytes takes 500 as an object: 256 MiB of them took 2 GB before they were counted."""
    entry = struct.pack("<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, *[0] * 8, 1, *[0] * 6) + b"a"
    entries = MAX_FILES * MAX_ENTRY_BYTES // len(entry) + 1
    directory = entry * entries
    tail = b""
    size, count = len(directory), entries & 0xFFFF
    if is_64_bit:
        tail = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, size, 0)
        tail += struct.pack("<4sLQL", b"PK\6\7", 0, size, 1)
        size, count = 0xFFFFFFFF, 0xFFFF
    data = directory + tail + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, size, 0, 0)
    with pytest.raises(
        EvidenceMismatch, match="archive: its list of files is larger than that of any evidence"
    ):
        files_of(data)


def test_a_coordinator_that_shows_without_end_is_left(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each proof is kept until the last one came: an operator's machine ran out of memory."""
    first = EvidenceMessage(job=lab.job.signed.to_wire())
    roster = EvidenceMessage(roster=wire.signed_body_to_wire(lab.roster.signed))
    certificates = {each.fingerprint.hex(): each.certificate_der for each in lab.identities.values()}
    proof = wire.proof_to_wire(
        lab.run.proofs[0].proof(lab.roster.signed, certificates), job_digest=lab.job.digest
    )
    shown = EvidenceMessage(proof=EvidenceProof(proof=proof, roster_version=lab.roster.version))
    monkeypatch.setattr("client.evidence.pack.MAX_FILES", 10, raising=False)

    def read(proofs: int) -> int:
        messages = [first, roster, *[shown] * proofs]
        authority = lab.anchors
        return len(
            shown_of(messages, job_digest=lab.job.digest, authority=authority, federation="test").proofs
        )

    assert read(9) == 9  # the control
    with pytest.raises(RemoteProtocolError, match="it shows more than the 10 files of an archive"):
        read(10)


@pytest.mark.parametrize("is_strangers", [False, True])
def test_nothing_is_parsed_before_its_signature_held(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, is_strangers: bool
) -> None:
    """64 MiB of JSON took 2 GB before anybody asked who had signed it."""
    parsed: list[int] = []
    loads = json.loads

    def heard(data: bytes, **options: Any) -> Any:
        parsed.append(len(data))
        return loads(data, **options)

    archive = lab.sealed(lab.files, signer=_stranger(OPERATOR))
    if not is_strangers:
        manifest = files_of(lab.archive)[names.MANIFEST].replace(b'"olga"', b'"ogla"')
        archive = archive_bytes({**lab.files, names.MANIFEST: manifest})
    monkeypatch.setattr(evidence.json, "loads", heard)
    with pytest.raises(EvidenceMismatch, match=r"manifest.json: .*(not issued by|signature is not valid)"):
        verify_archive(archive, authority=lab.anchors)
    assert parsed == []
    verify_archive(lab.archive, authority=lab.anchors)  # the control
    assert parsed


def test_a_document_of_too_many_values_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commas and brackets in a text are no values."""
    monkeypatch.setattr(evidence, "MAX_VALUES", 100)
    text = {"text": '[[{,"' * 1000 + "\\", "values": [[]] * 49}
    assert evidence.read_document(evidence.document_bytes(text)) == text  # the control
    for data in (b'{"values": [' + b"[]," * 60 + b"[]]}\n", b'{"\\', b"[" * 200):
        with pytest.raises(RemoteProtocolError, match=r"expected (at most 100 values|a document as)"):
            evidence.read_document(data)
    with pytest.raises(RemoteProtocolError, match=r"expected at most 100 values in lists of at most"):
        evidence.read_document(evidence.document_bytes({"values": [1] * 101}))


def _last_phase(values: Values) -> None:
    lines = values["audit"]["lines"]
    entry = json.loads(lines[1])
    lines[1] = json.dumps({**entry, "attempts": 2}, separators=(",", ":"))


def _stranger(name: str) -> Identity:
    return stranger(Role.OPERATOR, name, now=datetime.now(UTC))


def _unlisted(lab: Lab) -> Identity:
    return lab.federation.issue(Role.OPERATOR, OPERATOR)


def _statement_by(lab: Lab, file: str, kind: type[Any], signer: str) -> bytes:
    statement = evidence.open_statement(lab.files[file], kind).statement
    return sign_statement(statement, lab.identities[signer])


@pytest.mark.parametrize("change", PLANTED)
def test_planted_change_is_named(lab: Lab, tmp_path: Path, change: str) -> None:
    plant, sentence = PLANTED[change]
    with pytest.raises(EvidenceMismatch, match=sentence):
        verify_archive(plant(lab, tmp_path), authority=lab.anchors)


def test_last_rounds_can_be_left_out_where_no_silo_says_anything(lab: Lab) -> None:
    """The archive's own page says so. docs/evidence-pack.md"""
    files = {name: data for name, data in _cancelled(lab).items() if not name.startswith("silos/")}
    held = verify_archive(lab.sealed(lab.rewritten(files)), authority=lab.anchors)
    assert held.statement.status == "cancelled"
    assert b"Operator and coordinator together can leave the last rounds out" in lab.files[names.README]


def test_whole_other_federation_is_found_by_ones_own_authority_alone(lab: Lab, tmp_path: Path) -> None:
    other = Lab(folder=tmp_path)
    with pytest.raises(EvidenceMismatch, match=r"authority.crt: it is not your authority's certificate"):
        verify_archive(other.archive, authority=lab.anchors)
    held = verify_archive(other.archive)  # hence the digest is told, and that it was not compared
    assert held.authorities != verify_archive(lab.archive).authorities
    assert not held.is_trusted


def test_other_model_is_found(lab: Lab) -> None:
    other = state_to_bytes({**lab.arrays, "model/weight": lab.arrays["model/weight"] * 2})
    with pytest.raises(EvidenceMismatch, match=r"--model: this file is not the job's model"):
        verify_archive(lab.archive, model=other)
    with pytest.raises(EvidenceMismatch, match=r"--model: state: "):
        verify_archive(lab.archive, model=b"no model")


def test_metadata_of_the_model_are_those_of_the_job(lab: Lab) -> None:
    """The arrays are the job's, and what their inputs and outputs mean was the writer's choice."""
    facts = facts_of(lab.job.spec, job_digest=lab.job.digest, round=3)
    verify_archive(lab.archive, model=b"".join(with_facts([lab.model], facts)))
    for name, value in (
        ("label_column", '["hiv"]'),
        ("round", "1"),
        ("job", "ab" * 32),
        ("recalibrated", "{}"),
    ):
        false = b"".join(with_facts([lab.model], {**facts, name: value}))
        with pytest.raises(EvidenceMismatch, match=f"--model: its metadata say otherwise .*: {name}"):
            verify_archive(lab.archive, model=false)


def test_policy_that_changed_after_the_approval_is_noted(lab: Lab) -> None:
    held = verify_archive(lab.sealed(_silo(lab, lambda values: values.update(policy="1" * 64))))
    assert held.notes == ("silo clinic-a approved the job under another policy than it states now",)


def test_line_that_the_coordinators_log_lacks_is_noted(lab: Lab) -> None:
    """A coordinator that was killed between its database and its log has such a log."""
    files = _coordinator(lab, _lines(lambda lines: [*lines[:2], *lines[3:]]))
    held = verify_archive(lab.sealed(files), authority=lab.anchors)
    assert held.notes == ("the coordinator's audit log lacks round 1 train",)


ODD: list[Any] = [[], {}, None, -1, 0, 1e308, "", "x", True, 1 << 62, [[]], {"a": 1}, "train", "0" * 64]
DOCUMENTS = (COORDINATOR, SILO, SECOND, names.CERTIFICATES, names.FACTS, names.SIGNATURE)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from _places(each, (*place, name))


def _put(value: Any, place: tuple[Any, ...], odd: Any) -> Any:
    if not place:
        return odd
    value[place[0]] = _put(value[place[0]], place[1:], odd)
    return value


def _odd(lab: Lab, rng: random.Random) -> Files:
    """A document, or a line of an audit log, with an odd value; signed again by the one whose it is."""
    file = rng.choice(DOCUMENTS)
    document = json.loads(lab.files[file])
    if file not in (COORDINATOR, SILO):
        changed = _put(document, rng.choice(list(_places(document))), rng.choice(ODD))
        return _with(lab, file, json.dumps(changed, indent=1, sort_keys=True).encode() + b"\n")
    said, lines = document["statement"], document["statement"]["audit"]["lines"]
    if rng.random() < 0.5:
        said = _put(said, rng.choice(list(_places(said))), rng.choice(ODD))
    else:
        number = rng.randrange(len(lines))
        entry = json.loads(lines[number])
        changed = _put(entry, rng.choice(list(_places(entry))), rng.choice(ODD))
        lines[number] = json.dumps(changed, separators=(",", ":"))
    kind, signer = (CoordinatorStatement, HUB) if file == COORDINATOR else (SiloStatement, SILOS[0])
    identity, data = lab.identities[signer], json.dumps(said, indent=1, sort_keys=True).encode() + b"\n"
    signed = identity.sign(kind.purpose, hashlib.sha256(data).digest())
    again = {**document, "statement": said, "signature": base64.b64encode(signed.signature).decode()}
    return _with(lab, file, json.dumps(again, indent=1, sort_keys=True).encode() + b"\n")


def test_no_odd_value_ends_in_anything_but_a_sentence(lab: Lab) -> None:
    for seed in range(40):
        with suppress(EvidenceMismatch):
            verify_archive(lab.sealed(_odd(lab, random.Random(seed))), authority=lab.anchors)


# the zip file


def _zip(files: Files) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0)), data)
    return made.getvalue()


def _twice(lab: Lab) -> bytes:
    made = io.BytesIO(lab.archive)
    with zipfile.ZipFile(made, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(names.JOB, b"another")
    return made.getvalue()


def _compressed(lab: Lab) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in lab.files.items():
            archive.writestr(name, data)
    return made.getvalue()


def _commented(lab: Lab) -> bytes:
    made = io.BytesIO(lab.archive)
    with zipfile.ZipFile(made, "a") as archive:
        archive.comment = b"all was well"
    return made.getvalue()


def _claiming(lab: Lab) -> bytes:
    """The directory names one file again and again: small archive, large contents."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("a0", b"x" * 5000)
        for number in range(1, 50):
            entry = zipfile.ZipInfo(f"a{number}")
            entry.file_size = entry.compress_size = 5000
            entry.CRC, entry.header_offset = archive.infolist()[0].CRC, 0
            archive.filelist.append(entry)
    return made.getvalue()


ZIPS: dict[str, tuple[Callable[[Lab], bytes], str]] = {
    "no zip": (lambda lab: b"evidence", "`chorale job evidence`, this is none, or only a part of one$"),
    "cut": (lambda lab: lab.archive[:-40], "expected a zip file"),
    "bytes before": (
        lambda lab: b"#!/bin/sh\n" + lab.archive,
        "another program packed it again, or added bytes",
    ),
    "bytes behind": (
        lambda lab: lab.archive + b"more",
        "expected a zip file|another program packed it again, or added bytes",
    ),
    "a comment": (_commented, "another program packed it again, or added bytes"),
    "other headers": (lambda lab: _zip(lab.files), "another program packed it again, or added bytes"),
    "a name twice": (_twice, "job.yaml is there twice"),
    "a name twice in two cases": (
        lambda lab: lab.sealed({**lab.files, "sbom/a": b"", "sbom/A": b""}),
        "sbom/a is there twice",
    ),
    "compressed files": (_compressed, "is compressed, expected it as it is"),
    "a way out": (lambda lab: archive_bytes({**lab.files, "../job.yaml": b""}), "is no name of a file"),
    "an absolute name": (
        lambda lab: archive_bytes({**lab.files, "/etc/passwd": b""}),
        "is no name of a file",
    ),
    "more than there is": (_claiming, "its files claim|it was damaged or changed"),
    "a bit": (
        lambda lab: lab.archive.replace(b"rounds: 3", b"rounds: 2"),
        "it was damaged or changed: Bad CRC",
    ),
}


@pytest.mark.parametrize("trick", ZIPS)
def test_trick_with_the_zip_file_is_named(lab: Lab, trick: str) -> None:
    make, sentence = ZIPS[trick]
    with pytest.raises(EvidenceMismatch, match=f"^archive: .*({sentence})"):
        verify_archive(make(lab), authority=lab.anchors)
