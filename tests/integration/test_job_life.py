"""A job from its plan to its report, by an operator's commands, with a coordinator that dies in between."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import LocalFederation
from tests.support.processes import Service, run_cli, wait_until


@pytest.mark.gate
def test_job_is_planned_watched_through_a_kill_of_the_coordinator_and_reported(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.start_coordinator()
        first = federation.submit(rounds=1)
        state, job = tmp_path / "initial.safetensors", tmp_path / "job.yaml"

        planned = json.loads(federation.cli("job", "plan", job, "--init", state, "--json").stdout)
        assert planned["timing"] is None
        (listed,) = federation.cli("job", "list").stdout.splitlines()
        assert listed == f"{first}  waiting for silos: 0 of 3 connected  0/1 rounds  one-hot"

        watch = Service(
            "watch",
            ["job", "watch", first, "--config", str(federation.operator_file())],
            log=tmp_path / "watch.log",
            extra_env={},
        )
        wait_until(lambda: "0 of 3 connected" in watch.log.read_text(), "the first state")
        federation.hub.kill()
        wait_until(lambda: "the coordinator, which is away" in watch.log.read_text(), "the loss")
        federation.start_coordinator()
        for name in federation.names:
            federation.start_silo(name)
        assert watch.process.wait(60) == 0
        output = watch.log.read_text()
        assert f"{first}  done  1 rounds" in output
        assert output.count("enrollment  3 silos") == 1  # what was told before the kill is not told again

        out = tmp_path / "report"
        assert federation.cli("job", "report", first, "--out", out).returncode == 0
        _check_report(out, first, planned)
        (job_row,) = json.loads(federation.cli("job", "list", "--json").stdout)["jobs"]
        assert (job_row["state"], job_row["operator"], job_row["awaited"]) == ("done", "ops", {})
        events = [
            json.loads(line) for line in federation.cli("job", "watch", first, "--json").stdout.splitlines()
        ]
        assert [event["phase"]["phase"] for event in events if "phase" in event] == [
            "enrollment.0", "train", "evaluate.0",
        ]  # fmt: skip
        again = json.loads(federation.cli("job", "plan", job, "--init", state, "--json").stdout)
        assert (again["timing"]["rounds"], again["timing"]["jobs"]) == (1, [first])


def _check_report(out: Path, job_id: str, planned: dict[str, Any]) -> None:
    """The plan's bytes are what was sent, messages included: it said 5 kB where a silo sent 64."""
    report = json.loads((out / "report.json").read_text())
    assert hashlib.sha256(report["job_file"].encode()).hexdigest() == report["job"]
    assert report["job"].startswith(job_id)
    assert {silo: part["rounds"] for silo, part in report["took_part"].items()} == dict.fromkeys(
        ["silo-0", "silo-1", "silo-2"], 1
    )
    assert [phase["phase"].partition(".")[0] for phase in report["phases"]] == [
        phase["kind"] for phase in planned["phases"]
    ]
    for phase, plan in zip(report["phases"], planned["phases"], strict=True):
        assert abs(phase["upload_bytes"] / plan["sent_bytes"] - 1) < 0.06, (phase, plan)
    with (out / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["phase"] for row in rows] == ["enrollment.0", "train", "evaluate.0"]
    assert rows[1]["cohort"] == "silo-0 silo-1 silo-2"
    page = (out / "report.html").read_text()
    assert "Who took part" in page
    assert job_id in page


def test_host_name_without_an_address_is_told_as_such(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        federation.endpoint = {"grpc": "hub.invalid:8443"}
        done = run_cli("job", "list", "--config", federation.operator_file())
    assert done.returncode == 1
    *_, hint, error = done.stderr.splitlines()
    assert error == "chorale: error: no address is known for hub.invalid, the coordinator's host name"
    assert hint.startswith("chorale: hint: check how coordinator is spelled")
