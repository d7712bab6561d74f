"""What the coordinator must not forget over a restart."""

from __future__ import annotations

import pytest

from chorale.job import SignedJob
from chorale.v1 import records_pb2
from coordinator.complaints import FiledComplaint
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import Absence, JobStatus, Store
from crypto.errors import ConfigError, LocalProtocolError
from crypto.identity.certificates import SignedBody

SIGNED = SignedJob(spec_bytes=b"spec", signature=b"signature", operator_certificate=b"der")
FIRST, SECOND = b"1" * 32, b"2" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "coordinator.sqlite"


@pytest.fixture
def store(path):
    opened = Store(path)
    opened.add_roster(1, SignedBody(body=b"roster 1", signature=b"s"))
    opened.add_roster(2, SignedBody(body=b"roster 2", signature=b"s"))
    opened.add_job(SIGNED, state_digest=FIRST, unix_seconds=10.0)
    yield opened
    opened.close()


def begin(store, round=1, phase="train"):
    return store.begin_phase(SIGNED.digest, round, phase, roster_version=1, unix_seconds=20.0)


@pytest.fixture
def reopened(store, path):
    """The store as the next process finds it."""
    opened = []

    def reopen():
        store.close()
        opened.append(Store(path))
        return opened[-1]

    yield reopen
    for each in opened:
        each.close()


def record(state_digest):
    return records_pb2.PhaseRecord(
        round=1, phase="train", state_digest=state_digest, figures={"loss": float("nan"), "accuracy": 0.5}
    )


def test_job_survives_and_is_taken_once(store, reopened):
    assert not store.add_job(SIGNED, state_digest=SECOND, unix_seconds=11.0)
    again = reopened()
    (row,) = again.jobs()
    assert (row.signed, row.status, row.state_digest) == (SIGNED, JobStatus.RUNNING, FIRST)


def test_jobs_are_counted_by_status(store):
    other = SignedJob(spec_bytes=b"other", signature=b"s", operator_certificate=b"der")
    store.add_job(other, state_digest=FIRST, unix_seconds=11.0)
    assert store.count_jobs() == {JobStatus.RUNNING: 2}
    store.set_job_status(SIGNED.digest, JobStatus.DONE)
    assert store.count_jobs() == {JobStatus.RUNNING: 1, JobStatus.DONE: 1}


def test_status_and_reason_survive(store, reopened):
    store.set_job_status(SIGNED.digest, JobStatus.FAILED, reason="too few")
    row = reopened().job(SIGNED.digest)
    assert (row.status, row.reason) == (JobStatus.FAILED, "too few")


def test_attempt_number_never_comes_twice(store, reopened):
    row = begin(store)
    store.begin_attempt(row.sequence, 1)
    again = reopened()
    with pytest.raises(LocalProtocolError, match="attempt 1 follows attempt 1"):
        again.begin_attempt(row.sequence, 1)
    again.begin_attempt(row.sequence, 2)
    assert again.phase(row.sequence).attempt == 2


def test_unmask_is_found_again_with_its_session_and_cohort(store, reopened):
    row = begin(store)
    store.begin_attempt(row.sequence, 1)
    store.enter_unmask(row.sequence, session_digest=b"digest", cohort=["a", "b"], upload_bytes=77)
    (found,) = reopened().phases(SIGNED.digest)
    assert (found.state, found.session_digest, found.cohort) == (PhaseState.UNMASK, b"digest", ["a", "b"])
    assert found.upload_bytes == 77


def test_self_mask_seeds_are_stored_in_the_step_that_reveals_the_sum(store, reopened):
    rows = begin(store, phase="enrollment.0", round=0), begin(store)
    seeds = {"a": bytes(range(32)), "b": b"\xff" * 32}
    store.enter_revealed(rows[0].sequence, upload_bytes=9, self_mask_seeds=seeds)
    store.enter_revealed(rows[1].sequence, upload_bytes=9)
    first, second = reopened().phases(SIGNED.digest)
    assert (first.state, first.self_mask_seeds) == (PhaseState.REVEALED, seeds)
    assert (second.state, second.self_mask_seeds) == (PhaseState.REVEALED, None)


def test_beginning_a_phase_again_gives_the_row_as_it_stands(store, reopened):
    row = begin(store)
    store.begin_attempt(row.sequence, 1)
    store.set_phase_state(row.sequence, PhaseState.MASKED)
    again = begin(reopened())
    assert (again.sequence, again.state, again.attempt) == (row.sequence, PhaseState.MASKED, 1)
    assert again.state_digest == FIRST


def test_phase_ends_once_and_moves_the_job_to_its_state(store, reopened):
    row = begin(store)
    store.end_phase(row.sequence, state=PhaseState.APPLIED, record=record(SECOND))
    # a second application, as after a crash between the file and the answer, changes nothing
    store.end_phase(row.sequence, state=PhaseState.USED_UP, record=record(FIRST))
    again = reopened()
    assert again.job(SIGNED.digest).state_digest == SECOND
    (found,) = again.phases(SIGNED.digest)
    assert found.state is PhaseState.APPLIED
    assert found.session_digest is None
    assert found.record.figures["accuracy"] == 0.5


def test_phase_does_not_end_in_a_state_that_is_no_end(store):
    row = begin(store)
    with pytest.raises(LocalProtocolError, match="does not end in state masked"):
        store.end_phase(row.sequence, state=PhaseState.MASKED, record=record(SECOND))


def test_newest_phases_tell_the_states_that_may_still_be_fetched(store):
    for round, digest in ((1, SECOND), (2, b"3" * 32), (3, FIRST)):
        row = begin(store, round=round)
        store.end_phase(row.sequence, state=PhaseState.APPLIED, record=record(digest))
    assert store.newest_starts(SIGNED.digest, 2) == [b"3" * 32, SECOND]
    assert store.newest_starts(b"another job", 2) == []


def test_an_absence_counts_from_the_phase_that_follows_and_for_its_own_job(store):
    first, second = begin(store, round=1), begin(store, round=2)
    missing = Absence(silo="a", stage="waiting", reason="not-enrolled")
    store.add_absences(first.sequence, 1, [missing])
    assert not store.was_absent_since(SIGNED.digest, first.sequence, "not-enrolled")
    store.add_absences(second.sequence, 1, [missing])
    assert store.was_absent_since(SIGNED.digest, first.sequence, "not-enrolled")
    assert not store.was_absent_since(SIGNED.digest, first.sequence, "policy")
    assert not store.was_absent_since(b"another job", first.sequence, "not-enrolled")


def test_round_keeps_the_roster_of_its_first_attempt(store, reopened):
    assert store.pin_round_roster(SIGNED.digest, 1, 1) == 1
    again = reopened()
    assert again.pin_round_roster(SIGNED.digest, 1, 2) == 1
    assert again.pin_round_roster(SIGNED.digest, 2, 2) == 2


def test_newest_roster_version_survives_and_its_content_is_fixed(store, reopened):
    again = reopened()
    assert again.newest_roster_version() == 2
    assert again.roster(1).body == b"roster 1"
    with pytest.raises(ConfigError, match="version 2 was in use before with other content"):
        again.add_roster(2, SignedBody(body=b"another", signature=b"s"))


def test_absences_and_complaints_are_kept_in_order_and_once(store, reopened):
    row = begin(store)
    lost = Absence(silo="a", stage="masked", reason="disconnected")
    store.add_absences(row.sequence, 1, [lost, Absence(silo="b", stage="share", reason="no-answer")])
    store.add_absences(row.sequence, 1, [Absence(silo="a", stage="share", reason="other")])
    filed = FiledComplaint(phase=row.sequence, attempt=1, sender="c", accused="a")
    store.add_complaint(filed)
    store.add_complaint(filed)
    again = reopened()
    assert [absence.silo for absence in again.absences(row.sequence)] == ["a", "b"]
    assert again.absences(row.sequence)[0] == lost
    assert again.complaints(row.job) == [filed]
