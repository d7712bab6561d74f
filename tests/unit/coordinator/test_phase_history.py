"""What a job runner knows of its phases is what the store holds, however often it is asked."""

from __future__ import annotations

import pytest

from chorale.job import SignedJob
from chorale.v1.records_pb2 import PhaseRecord
from coordinator.jobs.sequence import PhaseHistory, completed_rounds
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import PhaseRow, Store
from crypto.identity.certificates import SignedBody
from tests.unit.coordinator.job_phases import make_job

SIGNED = SignedJob(spec_bytes=b"spec", signature=b"signature", operator_certificate=b"der")
OTHER = SignedJob(spec_bytes=b"other", signature=b"signature", operator_certificate=b"der")


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "coordinator.sqlite")
    opened.add_roster(1, SignedBody(body=b"roster", signature=b"s"))
    for signed in (SIGNED, OTHER):
        opened.add_job(signed, state_digest=bytes(32), unix_seconds=1.0)
    yield opened
    opened.close()


@pytest.fixture
def history(store):
    return PhaseHistory(store, SIGNED.digest)


def begin(store: Store, round: int, signed: SignedJob = SIGNED, phase: str = "train") -> PhaseRow:
    return store.begin_phase(signed.digest, round, phase, roster_version=1, unix_seconds=2.0)


def end(store: Store, row: PhaseRow, *cohort: str, state: PhaseState = PhaseState.APPLIED) -> None:
    record = PhaseRecord(round=row.round, phase=row.phase, cohort=cohort, state_digest=bytes(32))
    store.end_phase(row.sequence, state=state, record=record)


def test_rows_are_those_of_the_store_at_every_step(store, history):
    def check() -> None:
        assert history.rows() == store.phases(SIGNED.digest)

    check()
    for round in (1, 2, 3):
        begin(store, round, OTHER)
        row = begin(store, round)
        check()
        store.begin_attempt(row.sequence, 1)
        store.set_phase_state(row.sequence, PhaseState.MASKED)
        check()
        end(store, row)
        check()
    assert [row.round for row in history.rows()] == [1, 2, 3]


def test_what_has_ended_is_read_once(store, history):
    for round in (1, 2):
        end(store, begin(store, round))
    history.rows()
    begin(store, 3)
    asked = []
    read = store.phases
    store.phases = lambda job, *, after=0: asked.append(after) or read(job, after=after)
    assert [row.round for row in history.rows()] == [1, 2, 3]
    assert asked == [2]


def test_a_silo_is_told_the_last_outcome_and_the_last_that_summed_it(store, history):
    assert history.outcomes_for("a") == []
    for round, cohort in enumerate((["a", "b"], ["a", "b"], ["b"], ["b"]), start=1):
        end(store, begin(store, round), *cohort)
    begin(store, 5)
    assert [record.round for record in history.outcomes_for("a")] == [2, 4]
    assert [record.round for record in history.outcomes_for("b")] == [4]
    assert [record.round for record in history.outcomes_for("c")] == [4]


def test_a_round_is_completed_once_its_last_phase_was_applied(store):
    job = make_job("fedcsd")
    store.add_job(job.signed, state_digest=bytes(32), unix_seconds=1.0)
    end(store, begin(store, 1))  # of another job
    applied, lost = PhaseState.APPLIED, PhaseState.USED_UP
    phases = [
        (1, "prototypes", applied),
        (1, "train", applied),
        (2, "prototypes", lost),  # which uses up the round
        (3, "prototypes", applied),
        (3, "train", lost),
        (4, "prototypes", applied),
    ]
    for round, phase, state in phases:
        end(store, begin(store, round, job.signed, phase), state=state)
    assert completed_rounds(store, job) == 1
