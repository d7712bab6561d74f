"""No silo is dropped in silence: which, where and why, and how much of the data the round held.

Source: docs/protocol.md 7.
"""

from __future__ import annotations

import pytest

from tests.faults.conftest import MakeFederation
from tests.support.halting import Halt
from tests.support.history import check_finished

VICTIM = "silo-1"
LOST_SHARE = 0.75  # three of four silos with the same number of samples
UPLOADING = Halt(at={"event": "input ready", "round": 1, "phase": "train"}, sent="shares")


def test_lost_silo_is_named_in_record_metrics_report_and_logs(make_federation: MakeFederation) -> None:
    federation = make_federation(coordinator={"reconnect_grace_seconds": 1.0})
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=UPLOADING if name == VICTIM else None)
    federation.wait_connected()
    job_id = federation.submit(rounds=1)
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()

    record = check_finished(federation, job_id, rounds=1).record(1)

    assert [(left.silo, left.stage, left.reason) for left in record.left_out] == [
        (VICTIM, "masked", "disconnected")
    ]
    assert record.data_share == pytest.approx(LOST_SHARE, abs=1e-6)
    metrics = federation.scrape()
    assert metrics[f'chorale_coordinator_dropouts_total{{silo="{VICTIM}",stage="masked"}}'] == 1
    assert metrics['chorale_coordinator_dropouts_total{silo="silo-0",stage="masked"}'] == 0
    assert metrics['chorale_coordinator_cohort_size{phase="train"}'] == 3
    assert metrics[f'chorale_coordinator_data_share{{federation_job="{job_id}"}}'] == pytest.approx(
        LOST_SHARE
    )
    dropped = {"round": 1, "silo": VICTIM, "stage": "masked", "reason": "disconnected"}
    assert any(dropped.items() <= each.items() for each in federation.report(job_id)["dropped"])
    watched = federation.cli("job", "watch", job_id)
    assert watched.returncode == 0
    (line,) = [line for line in watched.stderr.splitlines() if line.startswith("round 1/1")]
    assert f"without {VICTIM} (connection lost during its upload)" in line
    assert "75% of the data" in line
    for name in set(federation.names) - {VICTIM}:
        entry = federation.services[name].wait_for(
            lambda line: line["event"] == "phase ended" and (line["round"], line["phase"]) == (1, "train")
        )
        assert entry["left_out"] == [f"{VICTIM} (masked: disconnected)"]
        assert entry["data_share"] == LOST_SHARE
