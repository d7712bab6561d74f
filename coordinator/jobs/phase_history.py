"""The phases of one job so far. What has ended changes no more, so it is read from the store once."""

from __future__ import annotations

from itertools import takewhile

from chorale.job import Job
from chorale.v1.records_pb2 import PhaseRecord
from coordinator.storage.store import PhaseRow, Store


def completed_rounds(store: Store, job: Job) -> int:
    """Rounds whose last phase was applied."""
    return store.count_applied(job.digest, job.strategy.round_phases[-1])


class PhaseHistory:
    """Of one job, for the one who drives it."""

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
