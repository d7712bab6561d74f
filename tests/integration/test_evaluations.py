"""All silos test the model every k rounds in a federation of processes, though a round names nearly all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.federation import LocalFederation
from tests.support.processes import run_cli

SILOS, NAMED, ROUNDS = 5, 4, 3
# as one-hot silos answer: silo i has i of 20 right
ALL = sum(range(SILOS)) / (20 * SILOS)


@pytest.mark.gate
def test_all_silos_test_the_model_between_rounds_that_draw_theirs(tmp_path: Path) -> None:
    """A round names four of five: its sum of the same figures would show the fifth one's."""
    with LocalFederation(folder=tmp_path, silos=SILOS, policy={"max_cohort_changes": 100}) as federation:
        federation.start()
        federation.wait_connected()
        job_id = federation.submit(values=SILOS, rounds=ROUNDS, fraction=NAMED / SILOS, evaluate_all_every=1)
        assert federation.finish()["status"] == "done"
        report = federation.report(job_id)
        archive = tmp_path / "evidence.zip"
        federation.cli("job", "evidence", job_id, "--out", archive)
        assert run_cli("evidence", "verify", archive).returncode == 0
    phases = [(each["round"], each["phase"], each["result"]) for each in report["phases"]]
    assert phases == [
        (0, "enrollment.0", "applied"),
        (1, "train", "applied"),
        (1, "evaluate-all.0", "applied"),
        (2, "train", "applied"),
        (2, "evaluate-all.0", "applied"),
        (3, "train", "applied"),
        (3, "evaluate.0", "applied"),
    ]
    trained = [each for each in report["phases"] if each["phase"] == "train"]
    assert [len(each["cohort"]) for each in trained] == [NAMED] * ROUNDS
    assert not any("tested" in each["figures"] for each in trained)
    curve = report["curves"]["all_silos"]
    assert [(each["round"], each["silos"], each["accuracy"]) for each in curve] == [
        (round, SILOS, pytest.approx(ALL)) for round in (1, 2, 3)
    ]
    assert report["curves"]["drawn_silos"] == []
