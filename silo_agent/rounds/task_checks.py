"""Everything that must hold before a phase touches this silo's data.

The silo computes its own terms from job, roster and global state; the coordinator's digest only has
to agree with them. Source: docs/protocol.md 3, 5.1, 7.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Protocol

from chorale.job import Job
from chorale.privacy.job_releases import JobReleases
from chorale.runtime.machine import LimitTooLow, check_memory
from chorale.spec.state import GlobalState, state_from_file
from chorale.transport.wire import PhaseKey, checked_digest
from chorale.v1 import federation_pb2 as pb
from crypto.errors import ConfigError, PolicyRefusal, Refusal, RemoteProtocolError, Rule
from crypto.identity.certificates import SignedBody, certificate_from_der
from crypto.identity.roster import Roster
from crypto.session import bodies
from crypto.session.messages import Abandoned, SessionTerms
from crypto.session.silo_session import SiloSession
from silo_agent.connection.own_certificates import OwnCertificates
from silo_agent.disclosure.policy.policy import MAX_STATE_BYTES
from silo_agent.metrics import PhaseEnd, SiloMetrics
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.first_state import FirstStates
from silo_agent.rounds.offered_jobs import OfferedJobs
from silo_agent.rounds.rosters import Rosters
from silo_agent.rounds.session_handler import SessionHandler
from silo_agent.training.phase_input import PhaseRequest
from strategies.phases.enrollment import ENROLLMENT
from strategies.phases.training import TRAIN

ENROLLED_ONLY = frozenset({TRAIN})  # phases that weigh a silo by what enrollment counted
STATE_COPIES = 4  # at the least: the state, the model, its gradient, and the update as words


class Files(Protocol):
    """What people wrote for this silo (silo_agent.in_force). version: another one where what is in force, or
    what keeps phases waiting, changed."""

    version: int

    def check(self) -> None:
        """Raises PolicyRefusal(code=SETTINGS) while it is not what is in force."""

    def look(self) -> None:
        """See whether it changed."""


class _Unwritten:
    version = 0

    def check(self) -> None:
        return

    look = check


class TaskChecks:
    """The silo's own reading of a task."""

    def __init__(
        self,
        *,
        credentials: OwnCertificates,
        jobs: OfferedJobs,
        rosters: Rosters,
        data_sets: DataSets,
        first_states: FirstStates,
        metrics: SiloMetrics,
        clock: Callable[[], datetime],
        min_memory_bytes: int = 0,
        files: Files | None = None,
    ) -> None:
        """min_memory_bytes: of a process without a job. files: None: nobody writes any while it runs."""
        self._credentials = credentials
        self._jobs = jobs
        self._rosters = rosters
        self._data_sets = data_sets
        self._first_states = first_states
        self._metrics = metrics
        self._clock = clock
        self._min_memory_bytes = min_memory_bytes
        self.files = files or _Unwritten()
        self._missed_enrollment: set[bytes] = set()

    def job(self, key: PhaseKey, task: pb.PhaseTask) -> tuple[Roster, Job]:
        """Roster and job of the task, before a state is downloaded for it.

        Raises PolicyRefusal, also where policy or memory has no room for the state, or RemoteProtocolError.
        """
        self.files.check()
        roster, job = self._roster_and_job(key)
        data_set = self._data_sets.of(job.digest)
        data_set.steps.check_runs()
        checked_digest(task.state_digest, what="state digest")
        if not 0 < task.state_bytes <= MAX_STATE_BYTES:
            raise PolicyRefusal(
                f"policy: expected a global state of 1 to {MAX_STATE_BYTES} bytes, got {task.state_bytes}",
                rule=Rule.STATE_BYTES,
            )
        processes = 1 if job.spec.privacy is None else 2
        needed_bytes = processes * self._min_memory_bytes + STATE_COPIES * task.state_bytes
        try:
            check_memory(needed_bytes, what=f"job {job.id}")
        except LimitTooLow as error:
            raise PolicyRefusal(str(error), code=Refusal.CONFIGURATION) from None
        return roster, job

    async def first_state(self, key: PhaseKey, task: pb.PhaseTask, job: Job) -> Path | None:
        """The file of the task's state, if it is the job's first and this silo drew it itself.

        Asked in every phase: a silo may come late. Raises PolicyRefusal for a given one that is not allowed.
        """
        path = await self._first_states.file(job)
        if path is not None and key.round > 0:
            path.unlink(missing_ok=True)  # no later phase starts from it
        is_wanted = task.state_digest.hex() == job.spec.initial_state
        return path if is_wanted and path is not None and path.exists() else None

    def request(
        self, key: PhaseKey, task: pb.PhaseTask, job: Job, roster: Roster, path: Path
    ) -> tuple[SessionTerms, PhaseRequest]:
        """The phase as this silo understands it. Raises PolicyRefusal or RemoteProtocolError."""
        is_first = key.round == 0 and key.phase == job.opening
        if is_first and task.state_digest.hex() != job.spec.initial_state:
            raise RemoteProtocolError(
                f"job {job.id}: the first global state is not the one its operator signed", code=Refusal.STATE
            )
        state = state_from_file(path)
        try:
            if task.state_digest.hex() == job.spec.initial_state:
                job.check_first(key.round, key.phase, state)
            terms = job.terms(
                roster=roster,
                round=key.round,
                phase=key.phase,
                attempt=key.attempt,
                state=state,
                state_digest=task.state_digest,
            )
        except ConfigError as error:
            raise RemoteProtocolError(str(error), code=Refusal.TERMS) from None
        if terms.digest() != task.session_digest:
            raise RemoteProtocolError(
                f"job {job.id} round {key.round} {key.phase}: the coordinator's terms are not this silo's",
                code=Refusal.TERMS,
            )
        if self._credentials.member.name not in terms.names:
            raise PolicyRefusal(f"round {key.round}: this silo is not named", code=Refusal.NOT_NAMED)
        data_set = self._data_sets.of(job.digest)
        self._check_policy(job, terms)
        data_set.reveals.check_attempt(terms)
        if key.kind in ENROLLED_ONLY:
            self._check_enrolled(key)
        if key.round == 0 and key.kind == ENROLLMENT:  # later the plan is partly behind
            data_set.budget.check_plan(job, state)
        if key.kind == ENROLLMENT and job.spec.privacy is not None:
            self._check_promises(job, state, data_set)
        context = job.context(key, state, terms.rule.members)
        request = PhaseRequest(job=job, key=key, rule=terms.rule, layout=terms.layout, context=context)
        if (use := data_set.use_of(request)) is not None:
            data_set.reveals.check_use(use)
        return terms, request

    def session(self, terms: SessionTerms, roster: Roster) -> SiloSession:
        """A fresh session. Raises PolicyRefusal or RemoteProtocolError."""
        return SiloSession(
            terms=terms,
            identity=self._credentials.of(roster),
            roster=self._rosters.check(roster),  # the input took its time
            authority=self._credentials.authority,
            ledger=self._data_sets.of(terms.job_digest).reveals,
            now=self._clock(),
        )

    def handler(
        self, key: PhaseKey, session: SiloSession, *, begun: tuple[Job, SessionTerms] | None = None
    ) -> SessionHandler:
        """What answers the messages of a session. begun: of one that begins now, for which nothing is spent
        or signed that the policy in force then refuses; one from the ledger signs nothing more."""
        begun_under = self._data_sets.of(key.job_digest).policy

        def recheck() -> None:
            if begun is None:
                return
            job, terms = begun
            self.files.check()
            data_set = self._data_sets.of(key.job_digest)
            if data_set.policy is not begun_under:
                self._jobs.check_policy(job)
                self._check_policy(job, terms)
            data_set.budget.check_held(job, key)

        return SessionHandler(
            key,
            session,
            policy=lambda: self._data_sets.of(key.job_digest).policy,
            authority=lambda: self._credentials.authority,
            recheck=recheck,
        )

    def resumed(self, key: PhaseKey) -> SessionHandler:
        """The session as the ledger has it from before a restart.

        Security: the key of a certificate of the authority may be stolen since it began, so those of its
        cohort must be of keys that are trusted now. Raises PolicyRefusal or RemoteProtocolError.
        """
        recorded = self._data_sets.any_reveals.recorded(key.job_digest, key.round, key.phase)
        if recorded is None or recorded[0].attempt != key.attempt:
            raise RemoteProtocolError("this silo has no such session", code=Refusal.STAGE)
        if not self._jobs.is_approved(key.job_digest):
            raise PolicyRefusal("the job is not approved here any more", code=Refusal.JOB_NOT_APPROVED)
        pending, is_revealed = recorded
        authority = self._credentials.authority.valid_at(self._clock())
        for der in pending.certificates.values():
            authority.issuers_of(certificate_from_der(der))
        identity, ledger = self._credentials.identity, self._data_sets.of(key.job_digest).reveals
        session = SiloSession.resume(pending, revealed=is_revealed, identity=identity, ledger=ledger)
        return self.handler(key, session)

    def abandoned(self, key: PhaseKey) -> tuple[SignedBody, bytes]:
        """The statement that this silo never reveals the phase, which is so before it is signed, and the
        certificate that it is signed under, DER.

        Raises PolicyRefusal, also where its shares may have left, or RemoteProtocolError.
        """
        roster, job = self._roster_and_job(key)
        self._data_sets.of(job.digest).reveals.abandon(key.job_digest, key.round, key.phase)
        said = Abandoned(
            federation=roster.federation,
            job_digest=key.job_digest,
            round=key.round,
            phase=key.phase,
            sender=self._credentials.member.name,
        )
        own = self._rosters.own_in(key.job_digest, key.round, key.phase)
        return bodies.sign(own, said), own.certificate_der

    def note_outcome(self, key: PhaseKey, end: PhaseEnd) -> None:
        """Whether the total in the global state still counts this silo."""
        if key.kind != ENROLLMENT:
            return
        if end is PhaseEnd.LEFT_OUT:
            self._missed_enrollment.add(key.job_digest)
        elif end is PhaseEnd.APPLIED:
            self._missed_enrollment.discard(key.job_digest)

    def close(self) -> None:
        self._first_states.close()

    def forget(self, job_digest: bytes) -> None:
        self._missed_enrollment.discard(job_digest)
        self._first_states.forget(job_digest)

    def _roster_and_job(self, key: PhaseKey) -> tuple[Roster, Job]:
        """The phase is one that an approved job can come to."""
        roster = self._rosters.for_phase(key.job_digest, key.round, key.phase)
        job = self._jobs.approved(key.job_digest, roster)
        try:
            job.check_phase(key.round, key.phase)
        except ConfigError as error:
            raise RemoteProtocolError(str(error), code=Refusal.TERMS) from None
        return roster, job

    def _check_policy(self, job: Job, terms: SessionTerms) -> None:
        """Raises PolicyRefusal where the policy in force refuses this one session."""
        self._data_sets.of(job.digest).policy.check_terms(terms)

    def _check_promises(self, job: Job, state: GlobalState, data_set: DataSet) -> None:
        """What the job's whole plan costs, against few colluders and against all others, is told and bounded.

        Raises PolicyRefusal.
        """
        try:
            planned = JobReleases(job.spec, state).epsilon()
            collude = JobReleases(job.spec, state, honest=1).promised_epsilon()
        except ConfigError as error:
            raise PolicyRefusal(f"job {job.id}: {error}", code=Refusal.JOB_INVALID) from None
        self._metrics.epsilon_planned.labels(data_set=data_set.name).set(planned)
        self._metrics.epsilon_planned_if_all_others_collude.labels(data_set=data_set.name).set(collude)
        data_set.policy.privacy.check_collusion(job.spec, collude)

    def _check_enrolled(self, key: PhaseKey) -> None:
        missed = key.job_digest in self._missed_enrollment
        if missed or not self._data_sets.any_reveals.has_answered(key.job_digest, ENROLLMENT):
            raise PolicyRefusal(
                f"round {key.round}: the enrollment did not count this silo", code=Refusal.NOT_ENROLLED
            )
