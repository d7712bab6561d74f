"""Whom a stage waits for, at times that the test chooses."""

from __future__ import annotations

import pytest

from coordinator.jobs.deadlines import StageDeadlines, StageLimits

LIMITS = StageLimits(deadline=30, hard_cap=600, grace=15, min_rate=10_000, chunk_bytes=1 << 20)


@pytest.fixture
def away_since():
    return {}


@pytest.fixture
def stage(away_since):
    return StageDeadlines(LIMITS, started=1000.0, away_since=away_since)


def test_silent_silo_is_awaited_until_the_deadline(stage):
    assert stage.awaited(["a"], now=1029.9).keys() == {"a"}
    assert stage.awaited(["a"], now=1030.0) == {}


def test_heartbeats_of_a_silo_at_work_move_its_deadline_alone(stage):
    stage.on_alive("a", now=1020.0)
    assert stage.awaited(["a", "b"], now=1040.0).keys() == {"a"}


def test_no_progress_moves_a_deadline_past_the_hard_cap(stage):
    for second in range(1000, 1700, 5):
        stage.on_alive("a", now=float(second))
    assert stage.expires_at("a") == 1600.0


def test_upload_at_the_minimum_rate_is_awaited_to_the_hard_cap(stage):
    received = 0
    for second in range(1005, 1600, 5):
        received += 50_000
        stage.on_upload("a", received_bytes=received, now=float(second))
        assert stage.awaited(["a"], now=float(second)).keys() == {"a"}
    assert stage.expires_at("a") == 1600.0


def test_upload_of_whole_chunks_on_a_slow_line_is_no_silence(stage):
    # one chunk of 1 MiB takes 87 s at 12 kB/s: far beyond the deadline of 30 s
    stage.on_upload("a", received_bytes=0, now=1000.0)
    assert stage.awaited(["a"], now=1087.0).keys() == {"a"}
    stage.on_upload("a", received_bytes=1 << 20, now=1087.0)
    assert stage.awaited(["a"], now=1170.0).keys() == {"a"}


def test_trickle_below_the_minimum_rate_is_given_up(stage):
    for second in range(1010, 1110, 10):
        stage.on_upload("a", received_bytes=(second - 1000) * 100, now=float(second))
    assert stage.awaited(["a"], now=1104.0).keys() == {"a"}  # 1 MiB at the minimum rate takes 104.9 s
    assert stage.awaited(["a"], now=1105.0) == {}


def test_burst_does_not_pay_for_a_long_silence(stage):
    stage.on_upload("a", received_bytes=10 << 20, now=1001.0)
    assert stage.expires_at("a") == pytest.approx(1001.0 + (1 << 20) / 10_000)


def test_lost_silo_is_awaited_for_the_grace_and_again_when_it_is_back(stage, away_since):
    away_since["a"] = 1002.0
    assert stage.is_present("a", now=1016.9)
    assert stage.awaited(["a"], now=1016.9).keys() == {"a"}
    assert not stage.is_present("a", now=1017.0)
    assert stage.awaited(["a"], now=1017.0) == {}
    del away_since["a"]
    assert stage.awaited(["a"], now=1017.0).keys() == {"a"}


def test_silo_lost_long_before_the_stage_is_not_awaited(stage, away_since):
    away_since["a"] = 900.0
    assert stage.awaited(["a", "b"], now=1000.0).keys() == {"b"}
