"""Which phase of a job comes next, from what has ended so far. Source: docs/protocol.md 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from chorale.job import Job
from chorale.transport.wire import phase_kind, phase_number
from chorale.v1.records_pb2 import PhaseRecord
from coordinator.phase_machine import GIVEN_UP_IN, PhaseState
from coordinator.storage.store import JobStatus, PhaseRow, Store
from crypto.errors import ChoraleError
from strategies.analysis.counts import FEW_RECORDS, TOO_FEW_RECORDS
from strategies.phases.columns import FEW_VALUES, TOO_FEW

Step = tuple[int, str]  # round and phase
# the same silos have no more: why a job ends at once
FINAL = {FEW_VALUES: TOO_FEW, FEW_RECORDS: TOO_FEW_RECORDS}


class JobFailed(ChoraleError):
    """The job cannot continue; the message is what its operator reads, `public` what its silos do."""

    status = JobStatus.FAILED

    def __init__(self, message: str, *, public: str | None = None) -> None:
        super().__init__(message)
        self.public = message if public is None else public


class BudgetSpent(JobFailed):
    """The silos' privacy budget is spent; what was trained before stays."""

    status = JobStatus.STOPPED


def next_step(
    job: Job, rows: Sequence[PhaseRow], *, is_outdated: Callable[[PhaseRow], bool], has_stalled: bool = False
) -> Step | None:
    """None after the last phase. Raises JobFailed where there is nothing to continue with.

    rows: all phases so far. is_outdated: whether the silos of the job have changed since an enrollment,
    or one asks to join. has_stalled: no further round follows (selection.py).
    """
    if not rows:
        return 0, job.opening
    last = rows[-1]
    if not last.is_ended:
        return last.round, last.phase
    is_lost = last.state is PhaseState.USED_UP
    is_between = phase_kind(last.phase) in job.strategy.between
    if is_lost and job.names_everyone(last.phase) and not is_between:
        return _repeated(job, rows)
    # a phase that was used up uses up its round: what would follow in it lacks the phase's sum. An evaluation
    # between rounds is not repeated, nor taken of a model that stayed as it was
    last_of_round = last_phase_of_rounds(job)
    steps = sum(row.phase == last_of_round and row.state is PhaseState.APPLIED for row in rows)
    skips_round = is_lost and not is_between
    following = job.next_after(last.round, last_of_round if skips_round else last.phase, steps=steps)
    if skips_round and following is not None and phase_kind(following[1]) in job.strategy.between:
        following = job.next_after(*following, steps=steps)
    if following is not None and _has_sum_of(job, rows, following[1]):
        following = job.next_after(*following, steps=steps)
    if following is None or job.names_everyone(following[1]) or following[0] == last.round:
        return following
    if has_stalled:
        return job.closing
    enrollments = [row for row in rows if phase_kind(row.phase) == phase_kind(job.opening)]
    applied = [row for row in enrollments if row.state is PhaseState.APPLIED]
    if not applied or following[0] - 1 - applied[-1].round < job.spec.enrollment_every:
        return following
    if not is_outdated(applied[-1]):
        return following
    number = 1 + max(phase_number(row.phase) for row in enrollments)
    return last.round, f"{phase_kind(job.opening)}.{number}"  # outside rounds: the last round's number


def _has_sum_of(job: Job, rows: Sequence[PhaseRow], kind: str) -> bool:
    """Whether a statistic before the training was summed over the present model, in a round whose training
    came to nothing: what silos would send is the same, and they refuse to send it again and again."""
    if kind not in job.strategy.kinds_before_training:
        return False
    since = model_since(job, rows)
    return any(row.sequence > since and row.phase == kind and row.state is PhaseState.APPLIED for row in rows)


def _repeated(job: Job, rows: Sequence[PhaseRow]) -> Step:
    """A phase outside rounds that was used up is retried under its next number, a few times, but where silos
    hold too little."""
    last = rows[-1]
    kind = phase_kind(last.phase)
    if last.record is not None and (why := FINAL.get(last.record.reason)) is not None:
        raise JobFailed(f"{kind}: {last.record.reason}: {why}")
    failed = takewhile(
        lambda row: phase_kind(row.phase) == kind and row.state is PhaseState.USED_UP, reversed(rows)
    )
    if (times := len(list(failed))) >= job.spec.max_attempts:
        reason = "" if last.record is None else last.record.reason
        raise JobFailed(f"{kind}: used up {times} times, the last time by {reason}")
    return last.round, f"{kind}.{phase_number(last.phase) + 1}"


def completed_rounds(store: Store, job: Job) -> int:
    """Rounds whose last phase was applied."""
    return store.count_applied(job.digest, last_phase_of_rounds(job))


def last_phase_of_rounds(job: Job) -> str:
    """ "" of a job that has no rounds."""
    return next(reversed(job.strategy.round_phases), "")


def stood_in_the_way(rows: Sequence[PhaseRow]) -> dict[str, int]:
    """For how many phases in a row, up to the last that ended, each silo was silent where none can be missed.
    rows: all phases so far."""
    counts: dict[str, int] = {}
    for times, record in enumerate((row.record for row in reversed(rows) if row.is_ended), start=1):
        assert record is not None  # stored with the phase's end
        is_used_up = record.result == PhaseState.USED_UP
        silos = {left.silo for left in record.left_out if is_used_up and left.stage in GIVEN_UP_IN}
        if times > 1:
            silos &= {silo for silo, count in counts.items() if count == times - 1}
        if not silos:
            break
        counts |= dict.fromkeys(silos, times)
    return counts


def model_since(job: Job, rows: Sequence[PhaseRow]) -> int:
    """Sequence number of the phase that led to the present model; 0 if it is the first. rows: all phases so
    far."""
    for row in reversed(rows):
        record, moves = row.record, job.strategy.moves_model(phase_kind(row.phase))
        if moves and record is not None and record.state_digest != row.state_digest:
            return row.sequence
    return 0


class PhaseHistory:
    """The phases of one job so far. What has ended does not change, so it is read from the store once."""

    def __init__(self, store: Store, job_digest: bytes) -> None:
        self._store = store
        self._job_digest = job_digest
        self._ended: list[PhaseRow] = []

    def rows(self) -> list[PhaseRow]:
        """All phases, in the order in which they began."""
        last = self._ended[-1].sequence if self._ended else 0
        newer = self._store.phases(self._job_digest, after=last)
        ended = list(takewhile(lambda row: row.is_ended, newer))
        self._ended += ended
        return [*self._ended, *newer[len(ended) :]]

    def outcomes_for(self, silo: str) -> list[PhaseRecord]:
        """How the last phase ended, and before it the last one that summed the silo's input."""
        records = (record for row in reversed(self.rows()) if (record := row.record) is not None)
        last = next(records, None)
        if last is None or silo in last.cohort:
            return [] if last is None else [last]
        summed = next((record for record in records if silo in record.cohort), None)
        return [last] if summed is None else [summed, last]
