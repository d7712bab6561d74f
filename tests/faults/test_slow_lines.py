"""A slow hospital line is not a dropout; one that trickles is, at the hard cap.

Source: docs/protocol.md 7, deadlines that follow progress.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chorale.transport.wire import CHUNK_BYTES
from coordinator.phase_machine import PhaseState
from tests.faults.conftest import MakeFederation
from tests.support.federation import LocalFederation
from tests.support.history import check_finished
from tests.support.processes import wait_until
from tests.support.proxy import ThrottlingProxy

SLOW = "silo-1"
MEGABYTE_PER_SECOND = 1e6
KILOBYTE_PER_SECOND = 1e3  # below min_upload_bytes_per_second
VALUES = 1_000_000  # 4 MB a silo: four seconds of this line, twice the deadline
DEADLINE_SECONDS = 2.0


@pytest.fixture
def slow_line() -> Iterator[ThrottlingProxy]:
    """To the coordinator, which is not there yet."""
    with ThrottlingProxy("127.0.0.1", 0, upload_bytes_per_second=MEGABYTE_PER_SECOND) as proxy:
        yield proxy


def start_behind(line: ThrottlingProxy, federation: LocalFederation) -> None:
    federation.start_coordinator()
    line.target = ("127.0.0.1", int(federation.endpoint["grpc"].rpartition(":")[2]))
    for name in federation.names:
        federation.start_silo(name, address=f"127.0.0.1:{line.port}" if name == SLOW else None)


def test_line_of_a_megabyte_a_second_delays_the_round_and_drops_nobody(
    make_federation: MakeFederation, slow_line: ThrottlingProxy
) -> None:
    patience = {"stage_deadline_seconds": DEADLINE_SECONDS, "min_upload_bytes_per_second": 300_000}
    federation = make_federation(coordinator=patience)
    start_behind(slow_line, federation)
    job_id = federation.submit(values=VALUES, rounds=1)

    history = check_finished(federation, job_id, rounds=1)

    assert history.cohorts() == [federation.names]
    assert history.record(1).attempts == 1
    assert not history.record(1).left_out
    assert slow_line.uploaded_bytes > VALUES * 4, "the vector did not pass the slow line"
    # without progress a chunk of 1 MiB would be waited for 3.5 seconds
    assert history.record(1).wall_seconds > 2 * DEADLINE_SECONDS, "the upload was faster than any deadline"


def test_line_that_trickles_is_dropped_at_the_hard_cap(
    make_federation: MakeFederation, slow_line: ThrottlingProxy
) -> None:
    caps = {"stage_deadline_seconds": DEADLINE_SECONDS, "stage_hard_cap_seconds": 5.0}
    federation = make_federation(coordinator=caps)
    start_behind(slow_line, federation)
    job_id = federation.submit(values=VALUES)
    federation.hub.wait_for(
        lambda line: line.get("state") == PhaseState.MASKED and line["round"] == 1  # seconds from its end
    )
    slow_line.upload_bytes_per_second = KILOBYTE_PER_SECOND
    federation.hub.wait_for(lambda line: line["event"] == "silo left out")
    slow_line.upload_bytes_per_second = None

    history = check_finished(federation, job_id)

    others = [name for name in federation.names if name != SLOW]
    assert history.cohorts() == [others, federation.names], "round 2 is with a line that was restored"
    assert [(left.silo, left.stage, left.reason) for left in history.record(1).left_out] == [
        (SLOW, "masked", "no-answer")
    ]
    assert history.record(1).attempts == 1


def test_chunks_that_arrive_after_their_stage_closed_harm_nothing(
    make_federation: MakeFederation, slow_line: ThrottlingProxy
) -> None:
    """They were on the way already; their spool is gone, and a traceback at each of them was the bug."""
    caps = {"stage_deadline_seconds": DEADLINE_SECONDS, "stage_hard_cap_seconds": DEADLINE_SECONDS}
    federation = make_federation(coordinator=caps)
    start_behind(slow_line, federation)
    job_id = federation.submit(values=VALUES)
    federation.hub.wait_for(lambda line: line["event"] == "silo left out")
    late = slow_line.uploaded_bytes
    wait_until(lambda: slow_line.uploaded_bytes > late + 2 * CHUNK_BYTES, "chunks that come too late")
    slow_line.upload_bytes_per_second = None

    history = check_finished(federation, job_id)

    others = [name for name in federation.names if name != SLOW]
    assert history.cohorts() == [others, federation.names]
