"""A job's rounds, as its events report them, in the shape that a simulation gives them too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chorale.results import APPLIED, JobResults, RoundResult
from chorale.spec.job_spec import JobSpec
from chorale.v1.operations_pb2 import JobEvent
from chorale.v1.records_pb2 import PhaseRecord
from client.errors import printable
from client.history import JobHistory, kind_of, reason_in_words
from crypto.errors import ConfigError
from strategies.figure import parts_of
from strategies.parts.closing.fine_tuning import FINE_TUNE
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.training import TRAIN
from strategies.tasks.base import TESTED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Method:
    """What a job's method says of its records. round_phases: kinds, the last of which ends a round."""

    round_phases: Sequence[str]
    closing: Sequence[str]
    measured: Collection[str]


def rounds_of(events: Iterable[JobEvent], history: JobHistory) -> Iterator[RoundResult]:
    """Each round as it ends. history: takes in the events."""
    for event in events:
        record = history.add(event)
        if record is None:
            continue
        method = _method(history)
        if _ends_a_round(record, method):
            yield _round(history, record.round, method)


def results_of(history: JobHistory) -> JobResults:
    """Figures of the job's rounds and closing phases so far."""
    method = _method(history)
    ended = [record.round for record in history.records if _ends_a_round(record, method)]
    closing = [
        record for record in history.records if record.result == APPLIED and kind_of(record) in method.closing
    ]
    return JobResults(
        main=history.main,
        measured=method.measured,
        draws_rounds=history.draws_rounds,
        evaluations={
            record.round: {"silos": float(len(record.cohort)), **record.figures}
            for record in history.of_kind(EVALUATE_ALL)
            if record.result == APPLIED
        },
        rounds=[_round(history, round, method) for round in ended],
        closing={name: value for record in closing for name, value in record.figures.items()},
    )


def _method(history: JobHistory) -> _Method:
    """Of an analysis, and of a job of another release, whose text this one does not read: that of the plain
    methods."""
    if history.signed is not None:
        try:
            spec = JobSpec.from_yaml(history.signed.spec_bytes, source="job")
        except ConfigError:
            pass
        else:
            method = spec.method
            return _Method(
                round_phases=method.round_phases,
                closing=method.closing,
                measured=method.task.round_figures,
            )
    measured = frozenset(part for name in (history.main, "loss", TESTED.name) for part in parts_of(name))
    return _Method(round_phases=(TRAIN,), closing=(EVALUATE, FINE_TUNE), measured=measured)


def _ends_a_round(record: PhaseRecord, method: _Method) -> bool:
    """A phase that is used up uses up its round."""
    kind = kind_of(record)
    return kind == method.round_phases[-1] or (kind in method.round_phases and record.result != APPLIED)


def _round(history: JobHistory, number: int, method: _Method) -> RoundResult:
    """From its phases: the last one ends it, and the figures of all of them are its own."""
    phases = [
        record
        for record in history.records
        if record.round == number and kind_of(record) in method.round_phases
    ]
    last = phases[-1]
    figures = {name: value for record in phases for name, value in record.figures.items()}
    return RoundResult(
        round=number,
        result=printable(last.result),
        reason=printable(last.reason),
        data_share=last.data_share,
        silos=tuple(map(printable, last.cohort)),
        left_out={printable(left.silo): reason_in_words(left) for left in last.left_out},
        figures=figures,
        wall_seconds=sum(record.wall_seconds for record in phases),
        upload_bytes=sum(record.upload_bytes for record in phases),
    )
