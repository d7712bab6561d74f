"""As many silos as a job may name, on whatever machine this is: nobody is lost for being one of many."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.parties import job_costs
from chorale.transport.wire import MAX_SILOS

LENGTH = 100_000


@pytest.mark.soak  # minutes
def test_two_hundred_silos_apply_three_rounds_and_no_attempt_fails(tmp_path: Path) -> None:
    costs = job_costs.measure(tmp_path, silos=MAX_SILOS, length=LENGTH, rounds=2, processes=2)

    # the coordinator gave up stage SHARE after a fixed 30 s: two cores need longer for 200 silos
    assert (costs.status, costs.rounds_applied, costs.failed_attempts) == ("done", 3, 0)
