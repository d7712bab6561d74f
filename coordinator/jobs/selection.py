"""Which of a job's models is handed out, and whether its rounds have ended early: from stored records alone.

Nothing of it is stored beside them, so a coordinator that starts again decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from chorale.job import Job
from chorale.spec.selection import Measurements
from chorale.transport.wire import phase_kind
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import Store
from strategies.figure import figure_in
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The best model so far. description: its metric, for people."""

    round: int
    state_digest: bytes
    description: str


class Selection:
    """Of one job. It reads each phase once, after it has ended."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store = store
        self._job = job
        self._read = 0  # sequence number of the last phase
        self._states: dict[int, bytes] = {}  # digest of the state in which a round's model was tested
        self._measured = Measurements()

    @property
    def kept(self) -> Kept | None:
        """None where the job hands out its newest model, or before one was measured."""
        rule = self._job.spec.keep
        best = None if rule is None else self.measured.best(rule)
        if rule is None or best is None:
            return None
        round, _ = best
        figure = figure_in({**self.measured.closing, **self.measured.by_round}[round], rule.metric)
        return Kept(
            round=round,
            state_digest=self._states[round],
            description=f"{rule.metric} {figure}, the {rule.best}",
        )

    @property
    def stalled(self) -> str:
        """Why the job has fewer rounds than it says; empty while further ones may follow."""
        return self.measured.stalled(self._job.spec)

    @property
    def measured(self) -> Measurements:
        """By all phases that have ended with an applied sum."""
        for row in self._store.phases(self._job.digest, after=self._read):
            if not row.is_ended:
                break
            self._read = row.sequence
            kind, record = phase_kind(row.phase), row.record
            if row.state is not PhaseState.APPLIED or record is None:
                continue
            if kind not in (TRAIN, EVALUATE_ALL, EVALUATE):
                continue
            self._states.setdefault(self._measured.trained, row.state_digest)
            if kind == TRAIN:
                by_all = self._job.spec.evaluate_all_every is not None
                self._measured = self._measured.after_round(row.round, None if by_all else record.figures)
            elif kind == EVALUATE_ALL:
                self._measured = self._measured.after_evaluation(record.figures)
            else:
                self._measured = self._measured.after_closing(record.figures)
        return self._measured
