"""Whom a stage waits for and how long, at times that the test chooses."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.transport.wire import CHUNK_BYTES
from coordinator.jobs.deadlines import StageDeadlines, StageLimits, following_work, limits_of
from coordinator.settings import CoordinatorSettings

LIMITS = StageLimits(deadline=30, hard_cap=600, grace=15, min_rate=10_000, transfer_bytes=100 << 20)
FOUR_GB = 4_000_000_000  # a billion words of 32 bits
TWENTY_MBIT = 2_500_000.0  # bytes per second

SIZES = st.integers(0, 64 << 30)
SILOS = st.integers(0, 1000)
RATES = st.floats(0, 1e9)


@st.composite
def floors(draw: st.DrawFn) -> StageLimits:
    deadline = draw(st.floats(0.1, 3600))
    return StageLimits(
        deadline=deadline,
        hard_cap=deadline + draw(st.floats(0, 86_400)),
        grace=draw(st.floats(0, 3600)),
        min_rate=draw(st.integers(1, 10**9)),
    )


@pytest.fixture
def defaults():
    identity = {"certificate": "hub.crt", "key": "hub.key"}
    paths = {"authority": "authority.crt", "roster": "roster.json", "directory": "state"}
    fields = {"federation": "test", "listen": "127.0.0.1:0", "identity": identity, **paths}
    return limits_of(CoordinatorSettings.model_validate(fields))


@pytest.fixture
def away_since():
    return {}


@pytest.fixture
def stage(away_since):
    return StageDeadlines(LIMITS, started=1000.0, away_since=away_since)


def begun(limits, **changes):
    """A stage that begins at 0, with all silos connected."""
    return StageDeadlines(replace(limits, **changes), started=0.0, away_since={})


def transferred_at(stage, *, rate, total_bytes, begins=0.0):
    """When a silo that moves chunks at this rate has moved all, or None where it is given up before."""
    stage.on_transfer("a", moved_bytes=0, now=begins)
    moved, now = 0, begins
    while moved < total_bytes:
        chunk = min(CHUNK_BYTES, total_bytes - moved)
        now += chunk / rate
        if not stage.awaited(["a"], now=now):
            return None
        moved += chunk
        stage.on_transfer("a", moved_bytes=chunk, now=now)
    return now


# whom a stage waits for


def test_silent_silo_is_awaited_until_the_deadline(stage):
    assert stage.awaited(["a"], now=1029.9).keys() == {"a"}
    assert stage.awaited(["a"], now=1030.0) == {}


def test_heartbeats_of_a_silo_at_work_move_its_deadline_alone(stage):
    stage.on_alive("a", now=1020.0)
    assert stage.awaited(["a", "b"], now=1040.0).keys() == {"a"}


def test_no_heartbeat_moves_a_deadline_past_the_hard_cap(stage):
    for second in range(1000, 1700, 5):
        stage.on_alive("a", now=float(second))
    assert stage.expires_at("a") == 1600.0


def test_transfer_at_the_minimum_rate_moves_the_hard_cap_until_all_may_be_there(stage):
    takes = round(LIMITS.transfer_seconds)
    assert takes > 10_000
    stage.on_transfer("a", moved_bytes=0, now=1000.0)
    for second in range(1005, 1000 + takes, 5):
        assert stage.awaited(["a"], now=float(second)).keys() == {"a"}
        stage.on_transfer("a", moved_bytes=50_000, now=float(second))
    for second in range(1000 + takes, 1000 + 2 * takes, 5):  # it sends more than there is
        stage.on_transfer("a", moved_bytes=50_000, now=float(second))
    assert stage.expires_at("a") == pytest.approx(1600 + LIMITS.transfer_seconds)


def test_hard_cap_of_a_silo_that_transfers_nothing_stays(stage):
    transferred_at(stage, rate=20_000, total_bytes=50 << 20, begins=1000.0)
    stage.on_alive("b", now=1590.0)
    assert stage.expires_at("a") > 3000.0
    assert stage.expires_at("b") == 1600.0


def test_whole_chunks_on_a_slow_line_are_no_silence(stage):
    # one chunk of 1 MiB takes 87 s at 12 kB/s: far beyond the deadline of 30 s
    stage.on_transfer("a", moved_bytes=0, now=1000.0)
    assert stage.awaited(["a"], now=1087.0).keys() == {"a"}
    stage.on_transfer("a", moved_bytes=1 << 20, now=1087.0)
    assert stage.awaited(["a"], now=1170.0).keys() == {"a"}


def test_what_buffers_hold_of_a_download_is_waited_for(defaults):
    # 6 MB were sent in no time, and a line of 1 MB/s took six seconds more, beyond the cap
    limits = following_work(defaults, silos=3, slowest_rate=0, downloaded_bytes=6_000_000)
    stage = begun(limits, hard_cap=3.0, min_rate=300_000)
    for _ in range(7):
        stage.on_transfer("a", moved_bytes=1_000_000, now=0.5)
    assert stage.awaited(["a"], now=22.9).keys() == {"a"}
    assert stage.awaited(["a"], now=23.0) == {}


def test_upload_that_begins_late_has_the_time_of_a_chunk_from_then_on(stage):
    # it had that from the stage's beginning on, too short for a first chunk at the minimum rate
    stage.on_transfer("a", moved_bytes=0, now=1029.0)
    assert stage.awaited(["a"], now=1029.0 + 104.8).keys() == {"a"}
    stage.on_transfer("a", moved_bytes=0, now=1060.0)  # a header again is no progress
    assert stage.awaited(["a"], now=1029.0 + 104.9) == {}


def test_trickle_below_the_minimum_rate_is_given_up(stage):
    for second in range(1000, 1110, 10):
        stage.on_transfer("a", moved_bytes=1000, now=float(second))
    assert stage.awaited(["a"], now=1104.0).keys() == {"a"}  # 1 MiB at the minimum rate takes 104.9 s
    assert stage.awaited(["a"], now=1105.0) == {}


def test_burst_does_not_pay_for_a_long_silence(stage):
    stage.on_transfer("a", moved_bytes=0, now=1000.0)
    stage.on_transfer("a", moved_bytes=10 << 20, now=1001.0)
    expires = 1001.0 + (1 << 20) / 10_000
    assert stage.expires_at("a") == pytest.approx(expires)
    stage.on_transfer("a", moved_bytes=1000, now=1090.0)
    assert stage.expires_at("a") == pytest.approx(expires)


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


def test_silo_that_transfers_is_there_while_its_control_stream_is_not(stage, away_since):
    away_since["a"] = 1002.0
    transferred_at(stage, rate=100_000, total_bytes=20 << 20, begins=1001.0)
    last = 1001.0 + (20 << 20) / 100_000
    assert stage.awaited(["a"], now=last + 14.9).keys() == {"a"}
    assert stage.awaited(["a"], now=last + 15.1) == {}


# how long, for the figures that the rule was made for


def test_four_gigabytes_pass_a_line_of_twenty_megabits_and_did_not_pass_the_fixed_cap(defaults):
    limits = following_work(defaults, silos=3, slowest_rate=0, uploaded_bytes=FOUR_GB)
    took = transferred_at(begun(limits), rate=TWENTY_MBIT, total_bytes=FOUR_GB, begins=20.0)
    assert took == pytest.approx(20 + 1600)
    assert transferred_at(begun(defaults), rate=TWENTY_MBIT, total_bytes=FOUR_GB, begins=20.0) is None


def test_four_gigabytes_pass_a_line_of_the_minimum_rate(defaults):
    for up, down in ((FOUR_GB, 0), (0, FOUR_GB)):
        limits = following_work(defaults, silos=3, slowest_rate=0, uploaded_bytes=up, downloaded_bytes=down)
        assert transferred_at(begun(limits), rate=10_010, total_bytes=FOUR_GB, begins=29.0) is not None
        assert transferred_at(begun(limits), rate=9_000, total_bytes=FOUR_GB, begins=29.0) is None


def test_silent_silo_does_not_hold_four_gigabytes_up(defaults):
    limits = following_work(defaults, silos=3, slowest_rate=TWENTY_MBIT, uploaded_bytes=FOUR_GB)
    assert begun(limits).expires_at("a") < 45


def test_two_hundred_silos_have_the_time_that_they_take_on_two_loaded_cores(defaults):
    # SHARE ended after 30 seconds, four attempts in a row, with 100 agents in each of 2 processes
    assert following_work(defaults, silos=200, slowest_rate=TWENTY_MBIT).deadline > 100
    assert following_work(defaults, silos=200, slowest_rate=0).deadline < 300
    assert following_work(defaults, silos=4, slowest_rate=0).deadline < 35


def test_deadline_is_what_the_specification_says(defaults):
    limits = following_work(defaults, silos=100, slowest_rate=40_000, uploaded_bytes=10**9)
    work = 0.002 * 100**2 + 1e-9 * 100 * 10**9
    assert limits.deadline == pytest.approx(30 + work + 100 * 6144 / 20_000)
    assert limits.hard_cap == pytest.approx(600 + work + 100 * 6144 / 10_000)
    assert limits.transfer_seconds == 10**9 / 10_000


def test_silo_whose_line_looks_slow_stretches_nothing_beyond_the_minimum_rate(defaults):
    honest = following_work(defaults, silos=200, slowest_rate=TWENTY_MBIT)
    slow = following_work(defaults, silos=200, slowest_rate=1e-9)
    assert slow == following_work(defaults, silos=200, slowest_rate=0)
    assert slow.hard_cap == honest.hard_cap
    assert slow.deadline - honest.deadline < 200 * (6 << 10) / 10_000


# for all sizes, lines and times


@given(floors(), SILOS, SILOS, RATES, RATES, SIZES, SIZES, SIZES)
def test_limits_grow_with_silos_and_bytes_and_shrink_with_the_rate(
    floor, silos, more_silos, rate, more_rate, up, more_up, down
):
    less = following_work(floor, silos=silos, slowest_rate=rate + more_rate, uploaded_bytes=up)
    more = following_work(
        floor,
        silos=silos + more_silos,
        slowest_rate=rate,
        uploaded_bytes=up + more_up,
        downloaded_bytes=down,
    )
    assert floor.deadline <= less.deadline <= more.deadline
    assert floor.hard_cap <= less.hard_cap <= more.hard_cap
    assert less.transfer_seconds <= more.transfer_seconds
    assert less.deadline <= less.hard_cap
    assert (less.grace, less.min_rate) == (floor.grace, floor.min_rate)


@given(floors(), SILOS, RATES, st.floats(0, 0.99), st.lists(st.integers(0, CHUNK_BYTES), max_size=50))
def test_every_transfer_that_keeps_the_minimum_rate_is_awaited_to_its_end(floor, silos, rate, begins, chunks):
    """Chunks of any sizes, each as late as the minimum rate allows."""
    limits = following_work(floor, silos=silos, slowest_rate=rate, uploaded_bytes=sum(chunks))
    stage, now = begun(limits), begins * limits.deadline
    stage.on_transfer("a", moved_bytes=0, now=now)
    for chunk in chunks:
        now += 0.999 * chunk / limits.min_rate
        assert stage.awaited(["a"], now=now), f"given up at {now} of {limits}"
        stage.on_transfer("a", moved_bytes=chunk, now=now)


@given(floors(), SILOS, RATES, SIZES, st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 1 << 30))))
def test_no_silo_holds_a_stage_longer_than_its_cap_and_a_transfer_at_the_minimum_rate(
    floor, silos, rate, size, moves
):
    """Whatever it sends, and whenever it says that it is at work."""
    limits = following_work(floor, silos=silos, slowest_rate=rate, downloaded_bytes=size)
    stage, now = begun(limits), 0.0
    for seconds, moved in moves:
        now += seconds
        stage.on_alive("a", now=now)
        stage.on_transfer("a", moved_bytes=moved, now=now)
        assert stage.expires_at("a") <= limits.hard_cap + limits.transfer_seconds


@given(floors(), SILOS, RATES, SIZES, st.integers(0, 100))
def test_silo_without_progress_is_given_up_at_the_deadline_whatever_others_do(
    floor, silos, rate, size, others
):
    limits = following_work(floor, silos=silos, slowest_rate=rate, uploaded_bytes=size)
    stage = begun(limits)
    for _, second in zip(range(others), count(), strict=False):
        stage.on_transfer("b", moved_bytes=CHUNK_BYTES, now=float(second))
    assert stage.expires_at("a") == limits.deadline
