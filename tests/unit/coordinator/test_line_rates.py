"""What a transfer says of a silo's line, at times that the test chooses."""

from __future__ import annotations

import pytest

from coordinator.members.line_rates import BUFFERED_BYTES, LineRates

MIB = 1 << 20


@pytest.fixture
def rates():
    return LineRates()


def move(rates, silo, *, total_bytes, rate, free_bytes=0):
    """free_bytes: what buffers on the way take at once."""
    meter = rates.meter(silo)
    for moved in range(MIB, total_bytes + MIB, MIB):
        meter.note(MIB, now=100.0 + max(0, moved - free_bytes) / rate)


def test_line_is_as_fast_as_its_newest_long_transfer(rates):
    move(rates, "a", total_bytes=100 * MIB, rate=5e6)
    assert rates.slowest(["a"]) == pytest.approx(5e6)
    move(rates, "a", total_bytes=100 * MIB, rate=2e6)
    assert rates.slowest(["a"]) == pytest.approx(2e6)


def test_slowest_line_of_a_stage_counts_and_one_that_was_not_measured_is_none(rates):
    move(rates, "a", total_bytes=100 * MIB, rate=5e6)
    move(rates, "b", total_bytes=100 * MIB, rate=1e6)
    assert rates.slowest(["a", "b"]) == pytest.approx(1e6)
    assert rates.slowest(["a", "c"]) == 0.0
    assert rates.slowest([]) == 0.0


def test_what_buffers_took_at_once_says_nothing_of_the_line(rates):
    # 8 MiB in no time: the line would have looked 25 times as fast as it is
    move(rates, "a", total_bytes=2 * BUFFERED_BYTES, rate=1e6, free_bytes=BUFFERED_BYTES)
    assert rates.slowest(["a"]) == pytest.approx(1e6)


def test_short_transfer_is_no_measurement(rates):
    move(rates, "a", total_bytes=2 * BUFFERED_BYTES - MIB, rate=1e6)
    assert rates.measured == {}


def test_transfers_in_both_directions_at_once_are_measured_each_by_itself(rates):
    up, down = rates.meter("a"), rates.meter("a")
    for second in range(100):
        up.note(MIB, now=float(second))
        down.note(MIB // 4, now=float(second))
    assert rates.slowest(["a"]) == pytest.approx(MIB / 4)
