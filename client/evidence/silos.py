"""What a silo's own statement says, compared with itself and with what other silos signed."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from chorale.evidence import PhaseFacts, SiloStatement
from chorale.job import Job
from chorale.privacy.composition import AccountReleases, FirstPlan, kinds_of
from chorale.privacy.job_releases import JobReleases
from chorale.privacy.releases import Release, releases_from_json
from chorale.spec.state import GlobalState
from chorale.transport.wire import PHASE_PATTERN
from client.evidence.phases import APPLIED
from client.evidence.proofs import ProofDocument
from crypto.errors import ConfigError, EvidenceMismatch

REVEALED, SPENT, APPROVED_BY = "revealed", "spent", "job_approved"
RELATIVE = 1e-6  # of two computations of one epsilon on different machines


def check_silo(
    job: Job,
    silo: SiloStatement,
    *,
    phases: tuple[PhaseFacts, ...],
    proofs: Mapping[str, ProofDocument],
    shapes: GlobalState,
) -> list[str]:
    """Notes on what cannot be decided. Raises EvidenceMismatch or ConfigError for what does not fit."""
    if silo.silo not in job.spec.silos:
        raise EvidenceMismatch(f"the job does not name silo {silo.silo}")
    if silo.operator != job.operator:
        raise EvidenceMismatch(f"{silo.operator} asked for the job there, and {job.operator} signed this one")
    entries = silo.audit.entries_of_job()
    for entry in entries:
        if entry.get("job") != job.digest.hex():
            raise EvidenceMismatch(f"audit entry {entry['entry']}: it is about another job")
    revealed = [entry for entry in entries if entry["event"] == REVEALED]
    spent = [entry for entry in entries if entry["event"] == SPENT]
    notes = _check_reveals(silo, revealed, phases=phases, proofs=proofs, job=job)
    given = set(map(_phase_of, spent))
    for phase in phases:
        if silo.silo in phase.cohort and (phase.round, phase.phase) not in given:
            raise EvidenceMismatch(
                f"its log lacks the input of round {phase.round} {phase.phase}, which stands in the sum"
            )
    _check_epsilon(job, silo, spent, shapes)
    policies = [entry["policy"] for entry in entries if entry["event"] == APPROVED_BY and "policy" in entry]
    if policies and policies[-1] != silo.policy:
        notes.append(f"silo {silo.silo} approved the job under another policy than it states now")
    return notes


def _check_reveals(
    silo: SiloStatement,
    revealed: list[dict[str, Any]],
    *,
    phases: tuple[PhaseFacts, ...],
    proofs: Mapping[str, ProofDocument],
    job: Job,
) -> list[str]:
    known = {(phase.round, phase.phase): phase for phase in phases}
    proven = {(each.round, each.phase): each for each in proofs.values()}
    missing, notes = [], []
    for entry in revealed:
        key = _phase_of(entry)
        if key not in known:
            missing.append(key)
            continue
        proof = proven.get(key)
        if proof is None and known[key].result != APPLIED:
            notes.append(
                f"silo {silo.silo} revealed round {key[0]} {key[1]}, which the coordinator calls "
                f"{known[key].result} and of which silos signed no state"
            )
        if proof is None or silo.silo not in proof.survivors:
            continue
        if (entry.get("cohort"), entry.get("survivors")) != (proof.cohort, list(proof.survivors)):
            raise EvidenceMismatch(
                f"audit entry {entry['entry']}: it revealed round {key[0]} {key[1]} over another cohort than "
                "silos signed"
            )
    if not missing:
        return notes
    first = f"round {missing[0][0]} {missing[0][1]}"
    last = phases[-1] if phases else None
    is_after = last is None or job.position(*missing[0]) > job.position(last.round, last.phase)
    if len(missing) > 1 or not is_after:
        raise EvidenceMismatch(f"it revealed {first}, which the archive does not have: phases were left out")
    return [
        *notes,
        f"silo {silo.silo} revealed {first}, which had not ended yet by the coordinator's statement",
    ]


def _phase_of(entry: dict[str, Any]) -> tuple[int, str]:
    round, phase = entry.get("round"), entry.get("phase")
    if type(round) is not int or not isinstance(phase, str) or not PHASE_PATTERN.fullmatch(phase):
        raise EvidenceMismatch(f"audit entry {entry['entry']}: it names no round and phase")
    return round, phase


def _check_epsilon(job: Job, silo: SiloStatement, spent: list[dict[str, Any]], shapes: GlobalState) -> None:
    """What its log says that left costs what it says, by the accountant of silos."""
    costs: dict[object, tuple[Release, ...]] = {}
    for digest, text in silo.costs.items():
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise EvidenceMismatch(f"costs: {digest[:12]}: it is not the SHA-256 of that text")
        costs[digest] = releases_from_json(text)
    released: Counter[Release] = Counter()
    unnoised = 0
    for entry in spent:
        released_by: object = entry.get("releases")
        if released_by is None:
            unnoised += 1
        elif isinstance(released_by, str) and released_by in costs:
            released.update(costs[released_by])
        else:
            raise EvidenceMismatch(f"audit entry {entry['entry']}: what it releases is not told")
    plan = _plan_of(silo)
    if plan and job.spec.privacy is None:
        raise EvidenceMismatch("plan: the job has no privacy")
    if plan and kinds_of(plan) != kinds_of(JobReleases(job.spec, shapes).planned()):
        raise EvidenceMismatch("plan: it is not what the signed job releases")
    first = FirstPlan(job=job.digest, releases=plan, sides_are_fixed=silo.sides_are_fixed) if plan else None
    account = AccountReleases(
        delta=silo.delta,
        sides_are_fixed=silo.sides_are_fixed,
        releases=released,
        jobs=frozenset({job.digest}),
        first=first,
    )
    expected = None if unnoised else account.epsilon()
    if expected is not None and math.isinf(expected):
        expected = None
    is_same = expected is silo.epsilon is None or (
        expected is not None
        and silo.epsilon is not None
        and math.isclose(expected, silo.epsilon, rel_tol=RELATIVE)
    )
    if not is_same:
        raise EvidenceMismatch(f"epsilon: its log gives {_shown(expected)}, it says {_shown(silo.epsilon)}")


def _plan_of(silo: SiloStatement) -> dict[Release, int]:
    plan: dict[Release, int] = {}
    for text, count in silo.plan:
        releases = releases_from_json(text)
        if len(releases) != 1:
            raise ConfigError("plan: expected one release a row")
        plan[releases[0]] = count
    return plan


def _shown(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{epsilon:.6g}"
