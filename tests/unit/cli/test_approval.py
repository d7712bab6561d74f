"""What `chorale silo approve` says of the jobs that wait, and of one that it approves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.spec.job_spec import JobSpec
from silo_agent.ledger.ledger import Ledger
from simulation.engine import unsigned_job
from tests.unit.cli.conftest import Desk, Ended

WARNING = "it has no noise, so its sums can hold single training records"
STATE = {"model/weight": np.zeros(1, np.float32)}
RECORDS = {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1}


def offered(desk: Desk, **changes: Any) -> Job:
    """A job that the silo's ledger holds."""
    path = desk.job(not_after="2099-12-31T00:00:00Z", **changes)
    job = unsigned_job(JobSpec.from_yaml(path.read_bytes(), source=path.name), STATE)
    (desk.folder / "silo-0").mkdir()
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        ledger.record_job(job, is_approved=False)
    return job


@pytest.mark.parametrize(
    ("privacy", "is_warned"),
    [
        (None, True),
        ({"records": RECORDS, "statistics_noise_multiplier": 4.0}, False),
    ],
)
def test_silo_is_told_what_sums_without_noise_can_hold(
    desk: Desk, chorale: Callable[..., Ended], privacy: dict[str, Any] | None, is_warned: bool
) -> None:
    job, config = offered(desk, privacy=privacy), desk.silo()
    waiting = chorale("silo", "approve", "--config", config)
    approved = chorale("silo", "approve", "--config", config, job.id)
    assert job.id in waiting.out
    assert "is approved" in approved.out
    for ended in (waiting, approved):
        assert ended.code == 0, ended.err
        assert ended.out.count(WARNING) == is_warned


def test_silo_is_told_whose_code_a_job_runs(desk: Desk, chorale: Callable[..., Ended]) -> None:
    own = {"name": "net", "from": "hospital-models==1.2.0", "options": {"width": 32}}
    job, config = offered(desk, model=own), desk.silo()
    waiting = chorale("silo", "approve", "--config", config)
    assert job.id in waiting.out
    told = "it runs code that is not Chorale's on this silo's data: model net of hospital-models==1.2.0"
    assert f"{told} {{'width': 32}}" in waiting.out
