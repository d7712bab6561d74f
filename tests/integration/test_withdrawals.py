"""Somebody withdraws while a job runs: from the next phase on the agent leaves their records out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import LocalFederation

COLUMNS = {
    "columns": [{"name": name, "mean": 50.0, "scale": 50.0, "fill": 50.0} for name in ("age", "weight")],
    "label_column": "ill",
}
NOISE = {
    "records": {"clip_norm": 1.0, "sample_rate": 0.5, "noise_multiplier": 200.0},
    "statistics_noise_multiplier": 200.0,
}
LEFT_OUT = "records of units that withdrew are left out (data.exclude)"


@pytest.mark.parametrize("privacy", [None, NOISE])
def test_who_withdraws_is_left_out_from_the_next_phase_on(tmp_path: Path, privacy: Any) -> None:
    """Data are kept for a whole job, in the agent or in the process of private jobs."""
    table, gone = tmp_path / "table.csv", tmp_path / "gone.txt"
    rows = (f"p{number // 2},{number},{number % 7},{number % 2}" for number in range(100))
    table.write_text("\n".join(["who,age,weight,ill", *rows]) + "\n")
    gone.write_text("")
    federation = LocalFederation(folder=tmp_path, silos=3)
    federation.silo = {"data": {"format": "csv", "path": str(table), "unit": "who", "exclude": str(gone)}}
    with federation:
        federation.start()
        federation.wait_connected()
        federation.submit(rounds=200, **COLUMNS, **({"privacy": privacy} if privacy else {}))
        agent = federation.services["silo-0"]
        first = agent.wait_for(lambda record: record["event"] == "input ready")
        gone.write_text("p3\np4\n")
        agent.wait_for(lambda record: record["event"] == LEFT_OUT and record["times"] == 4)
        later = agent.wait_for(
            lambda record: record["event"] == "input ready" and record["round"] > first["round"]
        )
        assert later["job"] == first["job"]
