"""A benchmark of restarts, small: every silo comes back, and none takes a restart for distrust."""

from __future__ import annotations

import re

import pytest

from bench import reconnect
from bench.reconnect import Outage, Report

# after a kill there is a line that was cut, then nobody, perhaps a server that is not ready, then all is well
HONEST = re.compile(
    r"the line to the coordinator at ADDRESS was cut"
    r"(, or the coordinator is restarting| during the handshake)"
    r"|coordinator is unreachable at ADDRESS"
    r"|coordinator at ADDRESS refused this certificate or is restarting"
    r"|the coordinator at ADDRESS was not ready a moment ago, and is now"
)


@pytest.mark.soak  # a minute
def test_silos_of_a_coordinator_that_is_killed_again_and_again_are_back_and_tell_no_distrust() -> None:
    report = reconnect.measure(silos=20, outages_seconds=(0.0, 1.0, 0.0, 2.0))
    assert [len(outage.back_seconds) for outage in report.outages] == [20] * 4
    assert sum(report.reasons.values()) >= 20 * 4, report.reasons
    assert [reason for reason in report.reasons if not HONEST.fullmatch(reason)] == []


def test_the_worst_outage_counts() -> None:
    outages = (
        Outage(seconds=0.0, back_seconds=(1.0, 2.0, 3.0)),
        Outage(seconds=40.0, back_seconds=(9.0, 11.0, 29.0)),
    )
    report = Report(silos=3, outages=outages, reasons={})
    assert [(row.value, row.holds) for row in report.rows] == [(11.0, False), (29.0, True)]
