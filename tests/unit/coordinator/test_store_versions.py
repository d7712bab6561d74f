"""A store that an earlier version wrote: all that it holds is there today."""

from __future__ import annotations

from contextlib import closing

import pytest

from chorale.job import SignedJob
from chorale.v1 import records_pb2
from coordinator.phase_machine import PhaseState
from coordinator.storage.store import Absence, JobStatus, Store
from crypto.errors import ConfigError, LocalProtocolError
from crypto.session.messages import SignedBody
from tests.support.old_files import restore, schema

UPGRADED = "the coordinator was upgraded: submit the job again"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "coordinator.sqlite"


@pytest.fixture
def answers(path):
    return restore("coordinator", path)


@pytest.fixture
def store(answers, path):
    with closing(Store(path)) as opened:
        yield opened


def test_a_file_of_before_gets_the_schema_of_a_new_one(store, path, tmp_path):
    Store(tmp_path / "new.sqlite").close()
    assert schema(path) == schema(tmp_path / "new.sqlite")
    assert schema(path)["version"] == (5,)


def test_jobs_are_as_they_were_but_that_none_goes_on(store, answers):
    rows = store.jobs()
    assert len(rows) == len(answers["jobs"]) == 5
    for row, expected in zip(rows, answers["jobs"], strict=True):
        digest, spec, signature, certificate, status, reason, submitted, state = expected
        assert (row.digest.hex(), row.submitted_unix_seconds, row.state_digest) == (
            digest,
            submitted,
            state.encode(),
        )
        assert row.signed == SignedJob(
            spec_bytes=spec.encode(),
            signature=signature.encode(),
            operator_certificate=certificate.encode(),
        )
        has_ended = status not in ("running", "paused")
        assert (row.status, row.reason) == ((status, reason) if has_ended else (JobStatus.FAILED, UPGRADED))
    assert sum(row.reason == UPGRADED for row in rows) == 2


def test_phases_and_who_was_left_out_are_as_they_were(store, answers):
    assert len(answers["phases"]) == 5
    for expected in answers["phases"]:
        row = store.phase(expected[0])
        *beginning, _, state_digest, record_json = expected  # what a session resumed from is a file today
        assert [
            row.sequence,
            row.job.hex(),
            row.round,
            row.phase,
            row.roster_version,
            row.state.value,
            row.attempt,
            row.started_unix_seconds,
            row.upload_bytes,
            row.cohort,
        ] == beginning
        assert (row.session_digest, row.state_digest.decode()) == (None, state_digest)
        assert row.record_json == record_json
        assert (row.record is None) is (record_json is None)
        absences = [[each.silo, each.stage, each.reason] for each in store.absences(row.sequence)]
        assert absences == answers["absences"][str(row.sequence)]
        filed = [
            [each.attempt, each.sender, each.accused]
            for each in store.complaints(row.job)
            if each.phase == row.sequence
        ]
        assert filed == answers["complaints"][str(row.sequence)]


def test_a_job_of_today_goes_on_beside_those_of_before(store, answers):
    signed = SignedJob(spec_bytes=b"today", signature=b"signature", operator_certificate=b"der")
    assert store.add_job(signed, state_digest=b"4" * 32, unix_seconds=30.0)
    assert store.pin_round_roster(signed.digest, 0, 2) == 2
    row = store.begin_phase(signed.digest, 0, "enrollment.0", roster_version=2, unix_seconds=31.0)
    assert row.sequence == 6
    store.begin_attempt(row.sequence, 1)
    store.add_absences(row.sequence, 1, [Absence(silo="a", stage="share", reason="no-answer")])
    store.enter_unmask(row.sequence, session_digest=b"digest", cohort=["a", "b"], upload_bytes=7)
    record = records_pb2.PhaseRecord(round=0, phase="enrollment.0", state_digest=b"5" * 32)
    store.end_phase(row.sequence, state=PhaseState.APPLIED, record=record)
    assert store.job(signed.digest).state_digest == b"5" * 32
    assert store.count_jobs()[JobStatus.RUNNING] == 1


def test_what_was_used_before_is_not_used_again(store):
    with pytest.raises(LocalProtocolError, match="attempt 1 follows attempt 1"):
        store.begin_attempt(3, 1)
    with pytest.raises(ConfigError, match="version 2 was in use before with other content"):
        store.add_roster(2, SignedBody(body=b"another", signature=b"s"))
    assert store.newest_roster_version() == 2
    assert store.roster(1) == SignedBody(body=b"roster 1", signature=b"s1")
