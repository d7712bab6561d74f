"""From the signed first state to the model: every phase in its order, every state signed by t silos.

What is checked here rests on the keys of silos and authority and on the job alone, and on no word of the
coordinator. Source: docs/protocol.md 3.2, 5.1, 5.10, 11.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from chorale.evidence import ArrayShape, PhaseFacts
from chorale.job import Job
from chorale.spec.state import GlobalState
from chorale.transport.wire import PhaseKey, phase_kind
from client.evidence.contents import COORDINATOR, fits
from client.evidence.proofs import ProofDocument
from crypto.errors import ConfigError, EvidenceMismatch
from crypto.identity.certificates import certificate_from_der
from crypto.identity.roster import Roster
from crypto.identity.roster_memory import RosterMemory
from crypto.session.cohort import withstands
from strategies.base import TOTAL
from strategies.phases.arms import ARM, ARMS, arms_in, live_arms, with_arms
from strategies.phases.enrollment import ENROLLMENT
from strategies.phases.trees import FIGURE, after_rounds

APPLIED = "applied"
MAX_ARRAYS = 100_000  # more than the header of a state's file has room for
MAX_VALUES = 1 << 33
MAX_TOTAL = float(1 << 47)  # of a sum that silos check, docs/protocol.md 4.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProof:
    """How far one phase is proved, in its own numbers and not in those of the whole job.

    named: how many of the job's silos on its roster it names. signers: those whose signatures on its state
    hold. silent: the others that it names. missing: silos of the job that its roster lacks. summed: how many
    are in its sum. withstands: how many silos may lie together; required: how many it has to withstand.
    Source: docs/protocol.md 11.8.
    """

    round: int
    phase: str
    roster_version: int
    named: int
    signers: tuple[str, ...]
    silent: tuple[str, ...]
    missing: tuple[str, ...]
    summed: int
    withstands: int
    required: int

    @property
    def title(self) -> str:
        return f"round {self.round} {self.phase}"

    @property
    def is_unproved(self) -> bool:
        """A phase that nobody signs moves no state, and says nothing that could be proved."""
        return bool(self.signers) and self.withstands < self.required


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """final: the state after the last phase. states: those that t silos signed, by round and phase."""

    final: bytes
    states: Mapping[tuple[int, str], bytes]
    phases: tuple[PhaseProof, ...]


@dataclass(kw_only=True)
class _Walk:
    """Where the job stands between two phases. rosters: those of its phases so far, and the reader's own.
    applied: kinds of phases with a sum.
    unfinished: the last phase was applied and is not the last of its round."""

    state: bytes
    rosters: RosterMemory
    seed: bytes = b""
    position: tuple[int, int, int] | None = None
    round: int = 0
    applied: set[str] = field(default_factory=set)
    unfinished: bool = False
    states: dict[tuple[int, str], bytes] = field(default_factory=dict)
    phases: list[PhaseProof] = field(default_factory=list)


def shapes_of(arrays: Mapping[str, ArrayShape], phases: Sequence[PhaseFacts]) -> GlobalState:
    """A state of these shapes and of zeros, which takes no memory. Quantities depend on two values, to which
    these phases led: the total of samples, and the level of a tree."""
    zeros = {
        name: np.broadcast_to(np.zeros((), np.dtype(each.type)), each.shape) for name, each in arrays.items()
    }
    totals = [each.figures.get("samples") for each in phases if _enrolls(each)]
    trees = [each.figures[FIGURE] for each in phases if FIGURE in each.figures]
    return {**after_rounds(zeros, trees), TOTAL: np.array(_whole(totals[-1]) if totals else 1)}


def follow_phases(
    job: Job,
    phases: tuple[PhaseFacts, ...],
    *,
    rosters: Mapping[int, Roster],
    proofs: Mapping[str, ProofDocument],
    certificates: Mapping[str, bytes],
    arrays: Mapping[str, ArrayShape],
    is_done: bool,
    known: Roster | None = None,
) -> Chain:
    """known: a roster from before the job. Raises EvidenceMismatch, or another ChoraleError, that names the
    first phase that does not fit; one that withstands too few silos does fit."""
    assert job.spec.initial_state is not None
    if len(arrays) > MAX_ARRAYS or any(_values(each) > MAX_VALUES for each in arrays.values()):
        raise EvidenceMismatch(
            f"{COORDINATOR}: arrays: expected at most {MAX_VALUES} values each, and at most {MAX_ARRAYS} "
            "arrays"
        )
    memory = RosterMemory.of(() if known is None else (known,))
    walk = _Walk(state=bytes.fromhex(job.spec.initial_state), rosters=memory)
    operator = certificate_from_der(job.signed.operator_certificate)
    left = _by_phase(proofs)
    for number, phase in enumerate(phases):
        with fits(f"round {phase.round} {phase.phase[:80]}"):
            roster = _next_roster(walk, phase, rosters)
            roster.check_member(operator)
            _check_order(job, walk, phase)
            names = job.named(roster.silo_names, phase.round, phase.phase, walk.seed)
            if not set(phase.cohort) <= set(names) or list(phase.cohort) != sorted(set(phase.cohort)):
                raise EvidenceMismatch("its cohort is not of the silos that the job names")
            key = PhaseKey(job_digest=job.digest, round=phase.round, phase=phase.phase, attempt=0)
            document = left.pop((phase.round, phase.phase), None)
            state = shapes_of(arrays, phases[:number])
            is_summed = document is not None or phase.result == APPLIED
            if job.spec.arms and is_summed and key.kind in job.strategy.round_phases:
                state = with_arms(state, _live_arms(job, phases[number:]))
            layout = job.layout(key, state, len(names))
            if document is not None:
                _check_proof(job, walk, phase, document, roster, names, layout=layout.digest)
                proof = document.proof(roster.signed, certificates)
                rule = job.spec.rule(len(names))
                proof.check(job_digest=job.digest, roster=roster, names=names, rule=rule)
                walk.state = walk.states[phase.round, phase.phase] = proof.next_digest
                walk.seed = proof.draw_seed
            elif phase.verified_by or (phase.result == APPLIED and layout.tagged is not None):
                raise EvidenceMismatch("the proof that silos signed is missing")
            if phase.state != walk.state.hex():
                raise EvidenceMismatch("the coordinator names another state than the silos signed")
            walk.phases.append(_proved(job, phase, document, roster, names))
    if left:
        round, name = next(iter(left))
        raise EvidenceMismatch(
            f"round {round} {name}: a proof is there, and the coordinator does not name it"
        )
    _check_end(job, phases, is_done=is_done)
    return Chain(final=walk.state, states=walk.states, phases=tuple(walk.phases))


def _next_roster(walk: _Walk, phase: PhaseFacts, rosters: Mapping[int, Roster]) -> Roster:
    """Security: any roster that the authority ever signed has a valid signature, so one on which colluders
    stood alone would make them a quorum. Dates say nothing: who signs a phase chooses its date."""
    version = phase.roster_version
    if version not in rosters:
        raise EvidenceMismatch(f"roster {version} is missing from the archive")
    roster, before = rosters[version], walk.rosters.version
    if version < before:
        whose = "the phase before" if walk.phases else "the one that you knew before the job"
        raise EvidenceMismatch(f"roster {version} is older than roster {before}, of {whose}")
    if version > before:
        walk.rosters.check(roster)
        walk.rosters = walk.rosters.after(roster)
    return roster


def _proved(
    job: Job, phase: PhaseFacts, document: ProofDocument | None, roster: Roster, names: tuple[str, ...]
) -> PhaseProof:
    signers = set() if document is None else document.signers.keys()
    return PhaseProof(
        round=phase.round,
        phase=phase.phase,
        roster_version=roster.version,
        named=len(names),
        signers=tuple(sorted(signers)),
        silent=tuple(sorted(set(names) - signers)),
        missing=tuple(sorted(set(job.spec.silos) - roster.silo_names)),
        summed=len(phase.cohort),
        withstands=withstands(len(signers), len(names)),
        required=_required(job, phase.phase, present=len(set(job.spec.silos) & roster.silo_names)),
    )


def _required(job: Job, phase: str, *, present: int) -> int:
    """A third of the silos that the job names, whichever stand on a roster. Of a drawn round a third of the
    drawn ones, while t of those on its roster would withstand as many as the whole job has to: of a roster on
    which colluders are more than a third, a draw names too many of them. Source: docs/protocol.md 11.8."""
    whole = len(job.spec.silos) // 3
    if job.names_everyone(phase) or not job.spec.draws_rounds:
        return whole
    bears = withstands(job.spec.rule(present).threshold, present)
    return job.spec.named_per_round // 3 if bears >= whole else whole


def _values(array: ArrayShape) -> int:
    """Of an array, an axis without any counted as one: numpy refuses what has more."""
    return math.prod(max(1, axis) for axis in array.shape)


def _live_arms(job: Job, phases: Sequence[PhaseFacts]) -> list[int]:
    """Of a search, by the figures of the first of these phases that has any: without a sum the arms stay.

    Figures are the coordinator's. Which arms they were, silos signed with the layout.
    """
    names = (each.figures for each in phases if ARM in each.figures)
    found = next(names, {})
    try:
        arms = arms_in({name: value for name, value in found.items() if value is not None})
        return live_arms({ARMS: np.array(arms, np.int64)}, len(job.spec.arms))
    except (ValueError, OverflowError, ConfigError):
        raise EvidenceMismatch("the coordinator does not tell which arms of the search it is of") from None


def _enrolls(phase: PhaseFacts) -> bool:
    return phase_kind(phase.phase) == ENROLLMENT and phase.result == APPLIED


def _whole(total: float | None) -> int:
    if total is None or not 1 <= total <= MAX_TOTAL:
        raise EvidenceMismatch("an enrollment does not tell the total of samples")
    return round(total)


def _by_phase(proofs: Mapping[str, ProofDocument]) -> dict[tuple[int, str], ProofDocument]:
    found: dict[tuple[int, str], ProofDocument] = {}
    for name, each in proofs.items():
        if (each.round, each.phase) in found:
            raise EvidenceMismatch(f"{name}: a second proof of round {each.round} {each.phase}")
        found[each.round, each.phase] = each
    return found


def _check_order(job: Job, walk: _Walk, phase: PhaseFacts) -> None:
    job.check_phase(phase.round, phase.phase)
    position = job.position(phase.round, phase.phase)
    if walk.position is None and phase.phase != job.opening:
        raise EvidenceMismatch(f"a job begins with {job.opening}: phases before it are missing")
    if walk.position is not None and position <= walk.position:
        raise EvidenceMismatch("out of order")
    kind, kinds = phase_kind(phase.phase), job.strategy.round_phases
    is_same_round = kind in kinds and phase.round == walk.round
    # without their sum there is nothing to go on with: such a phase is repeated, or the job has failed
    opening, closing = job.strategy.opening, job.strategy.closing
    before = opening[: opening.index(kind)] if kind in opening else opening
    before += closing[: closing.index(kind)] if kind in closing else ()
    if lacking := [each for each in before if each not in walk.applied]:
        raise EvidenceMismatch(f"{lacking[0]} before it is missing")
    if walk.unfinished and not is_same_round:
        raise EvidenceMismatch(f"the end of round {walk.round} is missing")
    closes = kind in closing and walk.round < job.spec.rounds and not _may_end(job, walk)
    if closes or (kind in kinds and phase.round > walk.round + 1):
        raise EvidenceMismatch(f"round {walk.round + 1} is missing")
    if kind in kinds:
        walk.round = phase.round
        walk.unfinished = phase.result == APPLIED and kind != kinds[-1]
    walk.position = position
    if phase.result == APPLIED:
        walk.applied.add(kind)


def _may_end(job: Job, walk: _Walk) -> bool:
    """Before the last round, if the job says that it stops, or once it has taken its steps."""
    steps, last = job.spec.steps, job.strategy.round_phases[-1]
    before = {state for (_, phase), state in walk.states.items() if phase != last}
    taken = {state for (_, phase), state in walk.states.items() if phase == last} - before
    return job.spec.stop is not None or (steps is not None and len(taken) >= steps)


def _check_proof(
    job: Job,
    walk: _Walk,
    phase: PhaseFacts,
    document: ProofDocument,
    roster: Roster,
    names: tuple[str, ...],
    *,
    layout: bytes,
) -> None:
    """All of a proof but its signatures."""
    rule = job.spec.rule(len(names))
    if document.job != job.digest.hex():
        raise EvidenceMismatch("its proof is of another job")
    if document.roster_version != roster.version:
        raise EvidenceMismatch("its proof is of another roster than the coordinator names")
    if document.parent != walk.state.hex():
        raise EvidenceMismatch("it does not go on from the state before: what led there is missing")
    if document.survivors != phase.cohort:
        raise EvidenceMismatch("silos signed another cohort than the coordinator names")
    if len(document.survivors) < rule.min_survivors:
        raise EvidenceMismatch(f"a sum of {len(document.survivors)} silos, fewer than the job allows")
    if (len(document.signers), rule.threshold) != (phase.verified_by, phase.threshold):
        raise EvidenceMismatch("the coordinator counts other signatures than there are")
    if phase.result != APPLIED and document.next != document.parent:
        raise EvidenceMismatch(f"silos signed another state, and the coordinator calls it {phase.result}")
    if document.layout != layout.hex():
        raise EvidenceMismatch(
            "what silos signed that they summed does not follow from the job and these arrays"
        )
    if walk.seed and document.draw_seed != walk.seed.hex():
        raise EvidenceMismatch("what the rounds are drawn by was replaced")


def _check_end(job: Job, phases: tuple[PhaseFacts, ...], *, is_done: bool) -> None:
    last = phases[-1] if phases else None
    is_closed = (
        last is not None and phase_kind(last.phase) == job.strategy.closing[-1] and last.result == APPLIED
    )
    if is_done and not is_closed:
        raise EvidenceMismatch("coordinator.json: it says done, and the last phase is missing")
