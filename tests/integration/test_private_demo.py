"""`chorale demo --dp`, and jobs whose silos may spend no more: real processes, real ledgers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.privacy_filter import filter_epsilon
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL
from tests.support.federation import LocalFederation
from tests.support.processes import run_cli, run_demo

pytestmark = pytest.mark.timeout(900)
PRIVACY = {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0}
BY_CHANCE = 0.1  # of ten digits


def _report(out: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("noise", "count"),
    [
        pytest.param("silo", ["--noise", "silo", "--rounds", "4"], marks=pytest.mark.soak),
        ("sum", ["--steps", "12"]),
    ],
)
def test_demo_by_record_learns_and_tells_what_it_spent(noise: str, count: list[str], tmp_path: Path) -> None:
    done = run_demo(tmp_path / "out", "--dp", "records", "--epsilon", "8", "--silos", "3", *count)
    assert done.returncode == 0, done.stderr
    report = _report(tmp_path / "out")
    assert (report["status"], report["rounds_completed"]) == ("done", int(count[-1]))
    assert (report["epsilon_unit"], report["noise"]) == ("record", noise)
    assert (report["steps"] is None) == (noise == "silo")
    if noise == "sum":
        assert report["epsilon_if_all_others_collude"] > report["epsilon"]
        assert "step 12 of 12  3 silos" in done.stderr
    assert "chorale demo --dp records --silos 7 --drop 2 --out" in done.stdout  # it offered one without noise
    assert 0.97 * 8.0 <= report["epsilon"] <= 8.0
    assert report["final_accuracy"] > 5 * BY_CHANCE
    assert "clipped" not in report["quantities"]
    assert report["epsilon_updates_per_silo"] is None
    # every silo took part in all that was planned but a repeated enrollment, and its ledger alone knows
    spent = report["epsilon_spent_by_silo"]
    assert list(spent) == ["silo-1", "silo-2", "silo-3"]
    assert all(0.97 * report["epsilon"] <= value <= report["epsilon"] for value in spent.values())
    assert f"epsilon {report['epsilon']:.4g} at delta 1e-05 planned" in done.stdout
    assert f"silo-3 {spent['silo-3']:.4g}" in done.stdout
    # a silo's own noise hides less of the counts than that of all silos
    collude = report["epsilon_spent_by_silo_if_all_others_collude"]
    most = report["epsilon_if_all_others_collude"]
    assert all(0.8 * most <= value <= most for value in collude.values())
    assert most > report["epsilon"]
    assert f"the same if all other silos collude: silo-1 {collude['silo-1']:.4g}" in done.stdout
    assert "Differential privacy" in (tmp_path / "out" / "report.html").read_text()
    config = tmp_path / "out" / "federation" / "silo-1" / "silo.yaml"
    shown = run_cli("silo", "ledger", "--config", config)
    assert f"data set digits (account data): epsilon {spent['silo-1']:.4g} of 8 spent" in shown.stdout


@pytest.mark.soak
def test_demo_by_silo_survives_a_loss_and_says_that_few_silos_drown(tmp_path: Path) -> None:
    done = run_demo(tmp_path / "out", "--dp", "sums", "--epsilon", "4", "--drop", "1", "--rounds", "3")
    assert done.returncode == 0, done.stderr
    report = _report(tmp_path / "out")
    assert (report["status"], report["rounds_completed"], report["epsilon_unit"]) == ("done", 3, "silo")
    assert 0.97 * 4.0 <= report["epsilon"] <= 4.0
    updates, statistics = report["epsilon_updates_per_silo"], report["epsilon_statistics_per_record"]
    assert max(updates, statistics) < report["epsilon"] < updates + statistics
    words = (
        f"updates cost epsilon {updates:.4g} for each silo, "
        f"statistics epsilon {statistics:.4g} for each record"
    )
    assert words in done.stdout  # at the end
    assert words in done.stderr  # before the first round
    assert words in (tmp_path / "out" / "report.html").read_text()
    second = next(phase for phase in report["phases"] if (phase["round"], phase["phase"]) == (2, "train"))
    assert second["cohort"] == ["silo-1", "silo-2", "silo-3"]
    spent = report["epsilon_spent_by_silo"]
    assert 0 < spent["silo-4"] < spent["silo-1"] <= report["epsilon"]
    assert "expect an accuracy near chance" in done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--dp", "sums", "--epsilon", "nan"], "--epsilon: expected more than 0 and at most 10,"),
        pytest.param(
            ["--dp", "records", "--epsilon", "1e-6"],
            "privacy.epsilon: 1e-06 cannot be met,",
            marks=pytest.mark.soak,  # known when all processes run
        ),
    ],
)
def test_demo_that_cannot_be_private_ends_with_a_sentence(
    options: list[str], expected: str, tmp_path: Path
) -> None:
    done = run_demo(tmp_path / "out", *options)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"chorale: error: {expected}")
    assert "Traceback" not in done.stderr


@pytest.mark.soak  # test_budget_exhausted.py has the stop alone
def test_job_stops_where_others_have_spent_and_the_next_is_refused_after_a_restart(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        enough = _cost(federation, {"enrollment": 2, "train": 3, "evaluate": 1})
        federation.policy = {"privacy": {"epsilon": enough * 1.0005, "partial_jobs": "allow"}}
        federation.start()
        federation.wait_connected()
        first = federation.submit(values=3, rounds=2, privacy=PRIVACY)
        assert federation.cli("job", "watch", first).returncode == 0

        second = federation.submit(values=3, rounds=10, privacy=PRIVACY)
        watched = federation.cli("job", "watch", second)
        assert watched.returncode == 3, watched.stderr
        last = watched.stderr.splitlines()[-1]
        assert last.startswith(f"chorale: error: job {second}: stopped: budget: refused by silos: ")
        assert last.endswith("; the model after 1 of 10 rounds stays")
        assert np.any(federation.fetch(second)["model/votes"] != 0.0)
        assert federation.report(second)["status"] == "stopped"

        for name in federation.names:
            federation.services[name].kill()
            federation.start_silo(name)
        third = federation.submit(values=3, rounds=1, privacy=PRIVACY)
        refused = federation.cli("job", "watch", third)
        assert refused.returncode == 3, refused.stderr
        assert f"job {third}: failed: budget: refused by silos: " in refused.stderr.splitlines()[-1]


def test_job_that_plans_more_than_the_budget_ends_its_submission_with_the_sentence(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        two_rounds = _cost(federation, {"enrollment": 1, "train": 2, "evaluate": 1})
        federation.policy = {"privacy": {"epsilon": two_rounds * 1.0005}}
        federation.start()
        federation.wait_connected()
        federation.submit(values=3, rounds=3, privacy=PRIVACY)  # writes the files; its end is not awaited
        job, state = tmp_path / "job.yaml", tmp_path / "initial.safetensors"
        done = federation.cli("job", "submit", job, "--init", state, "--watch")
    assert done.returncode == 3, done.stderr
    assert "failed: budget: refused by silos: silo-" in done.stderr.splitlines()[-1]
    assert "privacy: epsilon " in done.stdout  # told before any silo refused


def _cost(federation: LocalFederation, inputs: dict[str, int]) -> float:
    """Epsilon of so many inputs to phases of those kinds."""
    spec = federation.job_spec(rounds=10, privacy=PRIVACY)
    state = {"model/votes": np.zeros(3, np.float32), TOTAL: np.array(300)}
    releases = [
        release
        for kind, times in inputs.items()
        for release in JobReleases(spec, state).cost(kind, 3)
        for _ in range(times)
    ]
    return filter_epsilon(releases, Policy(federation="test").privacy.delta, sides_are_fixed=False)
