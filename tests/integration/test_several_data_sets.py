"""Agents that serve two data sets each, under two policies: what one may give, the other need not."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

import yaml

from tests.support.federation import LocalFederation
from tests.support.processes import run_cli, wait_until

MODULE = "tests.support.one_hot:data"


def test_each_job_is_about_one_data_set_under_its_own_policy(tmp_path: Path) -> None:
    strict = tmp_path / "strict.yaml"
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        own = {"federation": federation.ceremony.federation, "approval": "automatic"}
        rules = {"initial_state": "given", "max_rounds": 1, "privacy": {"epsilon": 3.0}}
        strict.write_text(yaml.safe_dump(own | rules, explicit_end=True))
        federation.silo = {
            "data": [
                {"format": "module", "module": MODULE, "name": "wards"},
                {"format": "module", "module": MODULE, "name": "Trials.2", "policy": str(strict)},
            ]
        }
        federation.start()
        federation.wait_connected()
        for job in (federation.submit(rounds=2, data="wards"), federation.submit(rounds=1, data="Trials.2")):
            watched = federation.cli("job", "watch", job)
            assert watched.returncode == 0, watched.stderr
        refused = {
            "expected at most 1, got 2 rounds": federation.submit(rounds=2, data="Trials.2"),
            "names no data set, and this silo has several": federation.submit(rounds=1),
            "this silo has no data set wards-2": federation.submit(rounds=1, data="wards-2"),
        }
        for reason, job in refused.items():
            watched = federation.cli("job", "watch", job)
            # one word for all three: the operator learns of no data set whether a silo has it
            assert (watched.returncode, "(policy)" in watched.stderr) == (3, True), watched.stderr
            federation.services["silo-0"].wait_for(
                lambda record, reason=reason, job=job: reason in str(record) and job in str(record)
            )
        scraped = _scrape(federation.folder / "silo-0" / "endpoint.json")
        for service in reversed(federation.services.values()):
            assert service.stop() == 0
    config = federation.folder / "silo-0.yaml"
    ledger = run_cli("silo", "ledger", "--config", config).stdout.splitlines()
    assert [line.partition(" inputs left")[0].strip() for line in ledger if "data set" in line] == [
        "data sets wards, Trials.2 (account data): epsilon 0 of 3 spent, 3 left (delta 1e-05)",
        "7",  # enrollment, two rounds, evaluation; and the three of the other, which shares the account
    ]
    for data_set, budget in (("wards", 10), ("Trials.2", 3)):
        assert f'chorale_silo_unnoised_inputs{{data_set="{data_set}"}} 7.0' in scraped
        assert f'chorale_silo_epsilon_budget{{data_set="{data_set}"}} {budget}.0' in scraped
    shown = run_cli("silo", "policy", "--config", config).stdout
    in_order = ("data set wards: ", "max_rounds: 1000", f"data set Trials.2: {strict}", "max_rounds: 1 ")
    places = [shown.index(each) for each in in_order]
    assert places == sorted(places)


def _scrape(endpoint: Path) -> str:
    wait_until(endpoint.exists, "the silo's endpoint")
    with urlopen(f"http://{json.loads(endpoint.read_text())['metrics']}/metrics", timeout=10) as answer:
        return str(answer.read().decode())
