"""An institution changes its files while its agents run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.federation import LocalFederation
from tests.support.processes import run_cli, wait_until

COLUMNS = {
    "columns": [{"name": name, "mean": 0.0, "scale": 1.0, "fill": 0.0} for name in ("age", "weight")],
    "label_column": "state",
}
WELL, WRONG = {"well": 0, "ill": 1}, {"well": 0, "ill": 2}


def test_wrong_labels_keep_a_job_waiting_until_they_are_put_right(tmp_path: Path) -> None:
    """The running agent refused the data, the job failed, and all silos had to approve again, though
    `silo check` said of the corrected file that all is well."""
    table = tmp_path / "table.csv"
    rows = (f"{number},{number % 7},{'ill' if number % 2 else 'well'}" for number in range(100))
    table.write_text("\n".join(["age,weight,state", *rows]) + "\n")
    federation = LocalFederation(folder=tmp_path, silos=3)
    federation.policy = {"approval": "manual"}

    def data(labels: Mapping[str, int]) -> dict[str, Any]:
        return {"data": {"format": "csv", "path": str(table), "labels": dict(labels)}}

    with federation:
        federation.start_coordinator()
        for name in federation.names:
            federation.silo = data(WRONG if name == "silo-0" else WELL)
            federation.start_silo(name)
        federation.wait_connected()
        job = federation.submit(rounds=1, **COLUMNS)
        for name in federation.names:
            service, config = federation.services[name], federation.folder / f"{name}.yaml"
            service.wait_for(lambda record: record["event"] == "job offered")
            approved = run_cli("silo", "approve", job, "--yes", "--config", config)
            assert approved.returncode == 0, approved.stderr
        faulty, config = federation.services["silo-0"], federation.folder / "silo-0.yaml"
        faulty.wait_for(lambda record: record.get("code") == "configuration")
        wait_until(
            lambda: "configuration at silo-0" in federation.cli("job", "list").stdout,
            "what the job waits for",
        )
        settings = yaml.safe_load(config.read_text())
        half = yaml.safe_dump({**settings, **data(WELL)}).encode()
        config.write_bytes(half)  # nothing says that it is whole
        faulty.wait_for(lambda record: record["event"] == "new phases wait")
        checked = run_cli("silo", "check", "--config", config)
        assert (checked.returncode, "not in force" in checked.stdout) == (1, True), checked.stdout
        config.write_bytes(half + b"...\n")
        faulty.wait_for(lambda record: record["event"] == "data sets opened again")
        watched = federation.cli("job", "watch", job)
        assert watched.returncode == 0, watched.stderr
        checked = run_cli("silo", "check", "--config", config, "--json")
        assert checked.returncode == 0, checked.stdout


def test_a_policy_that_allows_more_is_taken_once_somebody_confirmed_it(tmp_path: Path) -> None:
    """It was approved under the file, by fewer people than the running agent asks for."""
    federation = LocalFederation(folder=tmp_path, silos=3)
    federation.policy = {"approval": "manual", "required_approvals": 2}
    policy, config = tmp_path / "silo-0-policy.yaml", tmp_path / "silo-0.yaml"
    with federation:
        federation.start()
        federation.wait_connected()
        job, agent = federation.submit(rounds=1), federation.services["silo-0"]
        agent.wait_for(lambda record: record["event"] == "job offered")
        assert chorale("approve", job, "--yes", "--by", "Ann", config=config)[0] == 0
        same = chorale("reload", config=config)
        assert same[:2] == (0, "the agent holds these files\n")
        policy.write_text(policy.read_text().replace("required_approvals: 2", "required_approvals: 1"))
        agent.wait_for(lambda record: record["event"] == "new phases wait")
        code, shown, _ = chorale("reload", config=config)
        assert (code, shown) == (1, f"{policy}: required_approvals: 2 became 1\n")
        assert "required_approvals: 2 became 1" in chorale("show", job, config=config)[1]
        code, _, said = chorale("approve", job, "--yes", "--by", "Bo", config=config)
        assert (code, "not in force" in said) == (3, True), said
        assert "not in force" in run_cli("doctor", "--config", config).stdout
        assert chorale("reload", "--confirm", config=config)[0] == 0
        agent.wait_for(lambda record: record["event"] == "policy taken")
        # bound to the file that she saw, what Ann said counts no more; one person is enough now
        code, shown, said = chorale("approve", job, "--yes", "--by", "Bo", config=config)
        assert (code, "Ann" in shown) == (0, True), said
        for name in federation.names[1:]:
            for person in ("Ann", "Bo"):
                chorale("approve", job, "--yes", "--by", person, config=tmp_path / f"{name}.yaml")
        watched = federation.cli("job", "watch", job)
        assert watched.returncode == 0, watched.stderr


def chorale(*arguments: str, config: Path) -> tuple[int, str, str]:
    ended = run_cli("silo", *arguments, "--config", config)
    return ended.returncode, ended.stdout, ended.stderr
