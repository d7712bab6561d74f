"""Which global state a phase may run on: the newest that this silo computed, or that is proven to it.

The coordinator names a state by its digest and chooses nothing by it. Source: docs/protocol.md 7.11.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chorale.credentials import Credentials
from chorale.job import Job
from chorale.transport import wire
from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ConfigError, PolicyRefusal, Refusal, RemoteProtocolError
from crypto.identity.roster import Roster, read_roster
from crypto.session.statements import AbandonedProof, StateProof
from silo_agent.disclosure.ledger.known_states import FIRST, KnownState, KnownStates
from silo_agent.local_storage.local_state import LocalStates
from silo_agent.rounds.data_sets import DataSets

MAX_EARLIER = 100  # phases over one model: policies allow few repeats
MAX_PROOFS = 2  # of the opening phase, and of the newest state


class StateChain:
    """Accepts the states of tasks, one after the other and never back."""

    def __init__(
        self,
        *,
        silo: str,
        known: KnownStates,
        data_sets: DataSets,
        local: LocalStates,
        credentials: Credentials,
    ) -> None:
        self._silo = silo
        self._known = known
        self._data_sets = data_sets
        self._local = local
        self._credentials = credentials

    def accept(self, key: PhaseKey, task: pb.PhaseTask, job: Job, *, roster: Roster) -> None:
        """The task's state is the newest known one, or becomes it. Durable on return.

        roster: this silo's own.

        Raises PolicyRefusal or RemoteProtocolError(code=STATE, LATER_STATE, ROSTER or SIGNATURES).
        """
        for proof in _proofs(task, job):
            self._accept_proof(job, proof, roster)
        self._settle_earlier(task, job, roster)
        state = self._known.newest(job.digest)
        if state is None:
            state = KnownState(
                position=FIRST, state_digest=bytes.fromhex(job.spec.initial_state or ""), draw_seed=b""
            )
        if job.position(key.round, key.phase) <= state.position:
            raise PolicyRefusal(
                f"job {job.id} round {key.round} {key.phase}: the outcome of this or a later phase is known",
                code=Refusal.LATER_STATE,
            )
        if task.state_digest != state.state_digest:
            raise RemoteProtocolError(
                f"job {job.id} round {key.round} {key.phase}: a global state that no silo is known to have "
                "computed",
                code=Refusal.STATE,
            )
        self._known.accept(job.digest, state)

    def is_open(self, key: PhaseKey, job: Job) -> bool:
        """Whether it is a phase of the job and its outcome may still become the newest state."""
        known = self._known.newest(job.digest)
        if key.job_digest != job.digest or known is None:
            return False  # nothing is summed before a first state is known
        return job.position(key.round, key.phase) > known.position

    def newest(self, job_digests: Iterable[bytes]) -> set[bytes]:
        """Digests of the newest known states of these jobs."""
        newest = (self._known.newest(job_digest) for job_digest in job_digests)
        return {state.state_digest for state in newest if state is not None}

    def _accept_proof(self, job: Job, proof: StateProof, own: Roster) -> None:
        known = self._known.newest(job.digest)
        try:
            position = job.position(proof.round, proof.phase)
            if known is not None and position <= known.position:
                return  # sent to several silos, of which this one knows more
            roster = self._roster_of(proof, job, own)
            seed = b"" if known is None else known.draw_seed
            names = job.named(roster.silo_names, proof.round, proof.phase, seed)
            proof.check(job_digest=job.digest, roster=roster, names=names, rule=job.spec.rule(len(names)))
        except ConfigError as error:
            raise RemoteProtocolError(f"proof of a state: {error}", code=Refusal.STATE) from None
        proven = KnownState(position=position, state_digest=proof.next_digest, draw_seed=proof.draw_seed)
        is_applied = proof.next_digest != proof.parent_digest and self._silo in proof.survivors
        ended = PhaseKey(job_digest=job.digest, round=proof.round, phase=proof.phase, attempt=proof.attempt)
        self._local.settle(ended, is_applied=is_applied)
        self._data_sets.of(job.digest).reveals.settle(job.digest, proof.round, proof.phase, proof.survivors)
        self._known.accept(job.digest, proven)

    def _settle_earlier(self, task: pb.PhaseTask, job: Job, own: Roster) -> None:
        """Who was in earlier sums over the same model, as far as this silo has a part in them."""
        for what in (task.cohorts, task.abandoned):
            if len(what) > MAX_EARLIER:
                raise RemoteProtocolError(
                    f"task: expected at most {MAX_EARLIER} earlier phases, got {len(what)}"
                )
        reveals = self._data_sets.of(job.digest).reveals
        for message in task.cohorts:
            key, cohort = wire.cohort_proof_from_wire(message)
            check = self._known.check_of(key) if key.job_digest == job.digest else None
            if check is not None:
                check.check_survivors(cohort.survivors, cohort.signatures)
                reveals.settle(key.job_digest, key.round, key.phase, cohort.survivors)
        for given_up in task.abandoned:
            key, proof = wire.abandoned_proof_from_wire(given_up)
            if key.job_digest == job.digest:
                self._check_abandoned(job, proof, own)
                reveals.note_abandoned(key.job_digest, key.round, key.phase)

    def _check_abandoned(self, job: Job, proof: AbandonedProof, own: Roster) -> None:
        known = self._known.newest(job.digest)
        roster = self._roster_of(proof, job, own)
        bound = self._data_sets.any_reveals.bound_roster(job.digest, proof.round, proof.phase)
        if bound is not None and roster.version != bound:
            # t and the named set are those of the sessions that this silo's input may have gone into
            raise RemoteProtocolError(
                f"proof: expected roster version {bound} of this phase, got {roster.version}",
                code=Refusal.ROSTER,
            )
        try:
            job.check_phase(proof.round, proof.phase)
            seed = b"" if known is None else known.draw_seed
            names = job.named(roster.silo_names, proof.round, proof.phase, seed)
            proof.check(job_digest=job.digest, roster=roster, names=names, rule=job.spec.rule(len(names)))
        except ConfigError as error:
            raise RemoteProtocolError(f"proof: {error}", code=Refusal.STATE) from None

    def _roster_of(self, proof: StateProof | AbandonedProof, job: Job, own: Roster) -> Roster:
        """It may have expired, but holds all silos of the job that this silo's own roster does.

        Security: on an early roster of few silos, t is small, and colluders alone may be t.
        """
        roster = read_roster(
            proof.roster, authority=self._credentials.authority, federation=job.spec.federation
        )
        if missing := sorted((own.silo_names & set(job.spec.silos)) - roster.silo_names):
            raise RemoteProtocolError(
                f"proof: its roster, version {roster.version}, does not hold {missing[0]}",
                code=Refusal.ROSTER,
            )
        return roster


def _proofs(task: pb.PhaseTask, job: Job) -> Sequence[StateProof]:
    if len(task.proofs) > MAX_PROOFS:
        raise RemoteProtocolError(f"task: expected at most {MAX_PROOFS} proofs, got {len(task.proofs)}")
    proofs = []
    for message in task.proofs:
        job_digest, proof = wire.proof_from_wire(message)
        if job_digest != job.digest:
            raise RemoteProtocolError("task: the proof is of another job", code=Refusal.STATE)
        proofs.append(proof)
    return proofs
