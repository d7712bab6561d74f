"""A slow hospital line is not a dropout, however long its transfers take; one that trickles is.

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
KILOBYTE_PER_SECOND = 1e3  # below any min_upload_bytes_per_second of these tests
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


def test_line_that_trickles_is_dropped_at_the_deadline(
    make_federation: MakeFederation, slow_line: ThrottlingProxy
) -> None:
    """The hard cap is ten minutes away."""
    patience = {"stage_deadline_seconds": DEADLINE_SECONDS, "min_upload_bytes_per_second": 300_000}
    federation = make_federation(coordinator=patience)
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


CAP_SECONDS = 3.0
LARGE = 1_500_000  # 6 MB: six seconds of this line, twice the cap
# where a line of a megabyte a second takes longer than what the settings or the job allow
TRANSFERS = {
    "state": ({"train_deadline_seconds": CAP_SECONDS, "train_hard_cap_seconds": CAP_SECONDS}, {}),
    "vector": ({}, {"stage_deadline_seconds": CAP_SECONDS, "stage_hard_cap_seconds": CAP_SECONDS}),
    "sum": ({}, {"unmask_hard_cap_seconds": CAP_SECONDS}),
}
ONE_IN_CI = ["sum", *(pytest.param(each, marks=pytest.mark.soak) for each in ("state", "vector"))]
ENDS_AS = {"state": "train-hard-cap", "vector": "too-few-silos", "sum": "too-few-statements"}


@pytest.mark.parametrize("transfer", ONE_IN_CI)
def test_transfer_longer_than_the_hard_cap_ends_where_the_line_keeps_the_minimum_rate(
    make_federation: MakeFederation, slow_line: ThrottlingProxy, transfer: str
) -> None:
    """A state, a masked vector, a sum: 4 GB did not pass a line of 20 Mbit/s, whatever the settings said."""
    federation, job_id = with_cap_on(transfer, make_federation, slow_line)

    history = check_finished(federation, job_id, rounds=1)

    assert history.cohorts() == [federation.names]
    assert history.record(1).verified_by == len(federation.names)
    assert max(slow_line.uploaded_bytes, slow_line.downloaded_bytes) > 4 * LARGE
    begun = [line for line in federation.hub.records() if line["event"] == "stage begun"]
    (masked,) = [line for line in begun if line["stage"] == PhaseState.MASKED and line["phase"] == "train"]
    assert masked["hard_cap_seconds"] > CAP_SECONDS + 4 * LARGE / 300_000
    assert not [line for line in federation.hub.records() if line["event"] == "attempt failed"]


@pytest.mark.parametrize("transfer", ONE_IN_CI)
def test_control_transfer_longer_than_a_fixed_hard_cap_does_not_end(
    make_federation: MakeFederation, slow_line: ThrottlingProxy, transfer: str
) -> None:
    federation, _ = with_cap_on(transfer, make_federation, slow_line, module="tests.support.fixed_caps")

    failed = federation.hub.wait_for(lambda line: line["event"] == "attempt failed", seconds=60.0)
    assert failed["reason"] == ENDS_AS[transfer]


def with_cap_on(
    transfer: str, make_federation: MakeFederation, line: ThrottlingProxy, *, module: str = "cli.main"
) -> tuple[LocalFederation, str]:
    """Three silos, none of which can be missed, and one job; that transfer alone has a short cap."""
    job, settings = TRANSFERS[transfer]
    rates = {"stage_deadline_seconds": 60.0, "min_upload_bytes_per_second": 300_000}
    federation = make_federation(silos=3, coordinator={**rates, **settings}, coordinator_module=module)
    line.upload_bytes_per_second = MEGABYTE_PER_SECOND if transfer == "vector" else None
    line.download_bytes_per_second = None if transfer == "vector" else MEGABYTE_PER_SECOND
    start_behind(line, federation)
    return federation, federation.submit(values=LARGE, rounds=1, **job)


def test_chunks_that_arrive_after_their_stage_closed_harm_nothing(
    make_federation: MakeFederation, slow_line: ThrottlingProxy
) -> None:
    """They were on the way already; their spool is gone, and a traceback at each of them was the bug."""
    caps = {"stage_deadline_seconds": DEADLINE_SECONDS, "stage_hard_cap_seconds": DEADLINE_SECONDS}
    faster_than_the_line = {"min_upload_bytes_per_second": 5_000_000}
    federation = make_federation(coordinator={**caps, **faster_than_the_line})
    start_behind(slow_line, federation)
    job_id = federation.submit(values=VALUES)
    federation.hub.wait_for(lambda line: line["event"] == "silo left out")
    late = slow_line.uploaded_bytes
    wait_until(lambda: slow_line.uploaded_bytes > late + 2 * CHUNK_BYTES, "chunks that come too late")
    slow_line.upload_bytes_per_second = None

    history = check_finished(federation, job_id)

    others = [name for name in federation.names if name != SLOW]
    assert history.cohorts() == [others, federation.names]
