"""Which phase of a job comes next, from what has ended so far. Pure. Source: docs/protocol.md 7."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chorale.job import Job
from chorale.transport.wire import phase_kind, phase_number
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import PhaseRow
from crypto.errors import ChoraleError

Step = tuple[int, str]  # round and phase


class JobFailed(ChoraleError):
    """The job cannot go on; the message is what its operator reads."""


class BudgetSpent(JobFailed):
    """The silos' data may spend no more; what was trained before stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSequence:
    """is_outdated: whether the silos of the job have changed since an enrollment, or one asks to join."""

    job: Job
    is_outdated: Callable[[PhaseRow], bool]

    def next_step(self, rows: Sequence[PhaseRow]) -> Step | None:
        """None after the last phase. Raises JobFailed where there is nothing to go on with."""
        if not rows:
            return 0, self.job.opening
        last = rows[-1]
        if not last.is_ended:
            return last.round, last.phase
        if last.state is PhaseState.USED_UP and self.job.names_everyone(last.phase):
            return self._repeated(rows)
        following = self._after(last)
        if following is None or self.job.names_everyone(following[1]) or following[0] == last.round:
            return following
        return self._enrollment(rows) if self._needs_enrollment(rows, following[0]) else following

    def last_enrollment(self, rows: Sequence[PhaseRow]) -> PhaseRow | None:
        applied = (row for row in reversed(rows) if row.state is PhaseState.APPLIED)
        return next((row for row in applied if self._is_opening(row)), None)

    def _after(self, last: PhaseRow) -> Step | None:
        """A phase that was used up uses up its round: what would follow in it lacks the phase's sum."""
        is_lost = last.state is PhaseState.USED_UP
        phase = self.job.strategy.round_phases[-1] if is_lost else last.phase
        return self.job.next_after(last.round, phase)

    def _repeated(self, rows: Sequence[PhaseRow]) -> Step:
        """A phase outside rounds that was used up is tried under its next number, a few times."""
        last = rows[-1]
        kind, failed = phase_kind(last.phase), 0
        for row in reversed(rows):
            if phase_kind(row.phase) != kind or row.state is not PhaseState.USED_UP:
                break
            failed += 1
        if failed >= self.job.spec.max_attempts:
            reason = "" if last.record is None else last.record.reason
            raise JobFailed(f"{kind}: used up {failed} times, the last time by {reason}")
        return last.round, f"{kind}.{phase_number(last.phase) + 1}"

    def _needs_enrollment(self, rows: Sequence[PhaseRow], next_round: int) -> bool:
        last = self.last_enrollment(rows)
        if last is None or next_round - 1 - last.round < self.job.spec.enrollment_every:
            return False
        return self.is_outdated(last)

    def _enrollment(self, rows: Sequence[PhaseRow]) -> Step:
        """Phases outside rounds carry the number of the last round used."""
        numbers = [phase_number(row.phase) for row in rows if self._is_opening(row)]
        return rows[-1].round, f"{phase_kind(self.job.opening)}.{max(numbers) + 1}"

    def _is_opening(self, row: PhaseRow) -> bool:
        return phase_kind(row.phase) == phase_kind(self.job.opening)
