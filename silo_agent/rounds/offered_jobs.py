"""Jobs that the coordinator offered: each is opened again, by the current roster, before it is served."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from chorale.credentials import Credentials
from chorale.job import Job, SignedJob, open_job
from chorale.observability.logs import get_logger
from chorale.pinned_code import check_code
from chorale.runtime.audit import AuditLog
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from crypto.identity.roster import Roster
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import Approval, Policy
from silo_agent.rounds.data_sets import DataSets

MAX_JOBS = 64  # held at once, of at most 256 KiB each

log = get_logger("silo_agent.rounds.offered_jobs")


class OfferedJobs:
    """Which jobs this silo serves: signed by an operator of the roster, allowed, approved."""

    def __init__(
        self,
        *,
        silo: str,
        ledger: Ledger,
        data_sets: DataSets,
        credentials: Credentials,
        clock: Callable[[], datetime],
    ) -> None:
        self.silo = silo
        self._ledger = ledger
        self._data_sets = data_sets
        self._credentials = credentials
        self._clock = clock
        self._signed: dict[bytes, SignedJob] = {}
        # once at least: by whom it is signed, who is on a roster, and the policy that allows it
        self._served: dict[bytes, tuple[str, Policy]] = {}
        self._last_decision: dict[bytes, Decision] = {}  # as the coordinator was told it

    def offer(self, signed: SignedJob, roster: Roster) -> Job:
        """Take an offered job; it is opened now and again for every phase.

        Raises PolicyRefusal or RemoteProtocolError where it may not be served now.
        """
        if signed.digest not in self._signed and len(self._signed) >= MAX_JOBS:
            # the oldest that could never be served goes: any operator can make up such jobs
            oldest = next((digest for digest in self._signed if digest not in self._served), None)
            if oldest is None:
                raise PolicyRefusal(f"job {signed.id}: {MAX_JOBS} jobs are open already", code=Refusal.POLICY)
            self.forget(oldest)
        self._signed[signed.digest] = signed
        return self.approved(signed.digest, roster)

    def approved(self, job_digest: bytes, roster: Roster) -> Job:
        """The job, if it may be served now. Raises PolicyRefusal or RemoteProtocolError."""
        signed = self._signed.get(job_digest)
        if signed is None:
            raise PolicyRefusal(f"job {job_digest.hex()[:12]}: was never offered", code=Refusal.JOB_INVALID)
        job = open_job(signed, roster=roster, authority=self._credentials.authority, now=self._clock())
        if self.silo not in job.spec.silos:
            raise PolicyRefusal(f"job {job.id}: does not list this silo", code=Refusal.NOT_NAMED)
        self.check_policy(job)
        self._check_decision(job)
        self._data_sets.check_unit(job.spec)
        return job

    def check_policy(self, job: Job) -> None:
        """Raises PolicyRefusal where the policy in force refuses the job, or this silo's code is another."""
        allowed = (job.operator, self._policy_of(job))
        if self._served.get(job.digest) != allowed:  # else the same policy said it of the same bytes
            self._ask_policy(job)
            _check_code(job)
            self._served[job.digest] = allowed

    def has(self, job_digest: bytes) -> bool:
        """Whether the job was offered in this run and has not ended."""
        return job_digest in self._signed

    @property
    def digests(self) -> frozenset[bytes]:
        """Of the jobs that were offered in this run and have not ended."""
        return frozenset(self._signed)

    def is_approved(self, job_digest: bytes) -> bool:
        return self._ledger.decision(job_digest) is Decision.APPROVED

    def suspend(self, job_digest: bytes) -> None:
        """Refuse the job from now on, after a restart too, until it is approved again."""
        self._ledger.suspend(job_digest)
        job_id = job_digest.hex()[:12]
        log.warning("job suspended", job=job_id, resume=f"chorale silo approve --config FILE {job_id}")

    def end(self, job_digest: bytes) -> bool:
        """The coordinator says that the job is over: people read so until it is offered again. Whether that
        is news: a silo that connects hears it of every job that ended lately."""
        was_open = self.has(job_digest)
        self.forget(job_digest)
        self._data_sets.any_reveals.blank_old_shares()
        return self._ledger.note_over(job_digest) or was_open

    def is_decided_since(self, job_digest: bytes) -> bool:
        """Whether a phase that was refused for want of an approval would be answered otherwise now."""
        decision = self._ledger.decision(job_digest)
        return decision is Decision.APPROVED or decision is not self._last_decision.get(job_digest)

    def tell_decisions(self, audit: AuditLog) -> None:
        """Enter what people decided and granted since into the audit log."""
        self._ledger.decisions().tell(audit)

    def forget(self, job_digest: bytes) -> None:
        self._signed.pop(job_digest, None)
        self._served.pop(job_digest, None)
        self._last_decision.pop(job_digest, None)
        self._data_sets.forget(job_digest)

    def _policy_of(self, job: Job) -> Policy:
        return self._data_sets.named(job.spec).policy

    def _ask_policy(self, job: Job) -> None:
        """Raises PolicyRefusal. Security: of a job that names a data set the field is not told, for a field
        would say that this silo has that one."""
        try:
            self._policy_of(job).check_job(job.spec, operator=job.operator)
        except PolicyRefusal as refusal:
            if job.spec.data is None:
                raise
            raise PolicyRefusal(str(refusal), code=refusal.code) from None

    def _check_decision(self, job: Job) -> None:
        is_approved = self._policy_of(job).approval is Approval.AUTOMATIC
        decision, is_new = self._ledger.record_job(job, is_approved=is_approved)
        if is_new:
            log.info("job offered", job=job.id, name=job.spec.name, decision=decision.value)
        self._last_decision[job.digest] = decision
        if decision is Decision.REJECTED:
            raise self._rejected(job)
        if decision is Decision.SUSPENDED:
            raise PolicyRefusal(
                f"job {job.id}: suspended after an input was refused, or a second sum failed its check; "
                f"to resume: chorale silo approve --config <this silo's file> {job.id}",
                code=Refusal.DATA,
            )
        if decision is Decision.OFFERED:
            raise PolicyRefusal(
                f"job {job.id} ({job.spec.name}) waits for approval: "
                f"chorale silo approve --config <this silo's file> {job.id}",
                code=Refusal.JOB_NOT_APPROVED,
            )

    def _rejected(self, job: Job) -> PolicyRefusal:
        """With what a person typed for the operator, and nothing else of this silo."""
        said = self._ledger.decisions().of(job.digest)
        if not said or said[-1].decision is not Decision.REJECTED:  # by a recovery
            return PolicyRefusal(f"job {job.id}: was rejected here", code=Refusal.JOB_NOT_APPROVED)
        return PolicyRefusal(
            f"job {job.id}: {said[-1].by} rejected it here: {said[-1].reason}",
            code=Refusal.REJECTED,
            text=said[-1].reason,
        )


def _check_code(job: Job) -> None:
    """Raises PolicyRefusal where this silo's copy of a distribution is not the job's. Nothing of it runs."""
    try:
        check_code(job.spec)
    except ConfigError as error:
        raise PolicyRefusal(f"job {job.id}: code: {error}", code=Refusal.CODE) from None
