"""A budget that is used up: the job ends, its model so far is kept, and the numbers stay at the silo."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.privacy_filter import filter_epsilon
from silo_agent.disclosure.policy.policy import Policy
from strategies.base import TOTAL
from tests.support.federation import LocalFederation
from tests.support.history import read_history
from tests.support.processes import run_cli

PRIVACY = {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0}


def test_a_job_ends_with_the_model_so_far_when_the_budget_is_used_up(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3) as federation:
        two_rounds = _cost_of_rounds(federation, 2)
        federation.policy = {"privacy": {"epsilon": two_rounds * 1.01, "partial_jobs": "allow"}}
        federation.start()
        federation.wait_connected()
        job_id = federation.submit(values=3, rounds=10, privacy=PRIVACY)

        watched = federation.cli("job", "watch", job_id)

        assert watched.returncode == 3, watched.stderr
        last = watched.stderr.splitlines()[-1]
        ended = re.search(
            r"stopped: budget: refused by silos: .*?([a-z0-9-]+) \(budget\)[^()]*; "
            r"the model after 2 of 10 rounds",
            last,
        )
        assert ended is not None, last
        history = read_history(federation)
        assert len(history.cohorts()) == 2
        kept = federation.fetch(job_id)["model/votes"]
        assert np.any(kept != 0.0)  # two rounds have moved it
        assert "at most epsilon" not in federation.hub.log.read_text()
        silo = ended[1]  # one refusal leaves two silos, too few for a sum: others may not have come to theirs
        refusal = federation.services[silo].wait_for(lambda record: record.get("code") == "budget")
        assert re.search(r"expected at most epsilon [0-9.]+ of account data", str(refusal["reason"]))
        _check_shown(federation, silo, two_rounds)
        computed = federation.services[silo].wait_for(
            lambda record: record.get("event") == "private jobs have a process"
        )
        assert computed["process"] != federation.services[silo].process.pid

        # the name alone is another: two names with a budget each let one data set out at both
        federation.services[silo].stop()
        federation.silo = {
            "data": {"format": "module", "module": "tests.support.one_hot:data", "name": "new"}
        }
        federation.start_silo(silo)
        # the others can pay: a refusal of theirs would end the job before this silo came to its own
        federation.silo = {}
        federation.policy = {"privacy": {"epsilon": two_rounds * 2, "partial_jobs": "allow"}}
        for other in set(federation.names) - {silo}:
            federation.services[other].stop()
            federation.start_silo(other)
        federation.wait_connected()
        again = federation.submit(values=3, rounds=1, privacy=PRIVACY)
        refusal = federation.services[silo].wait_for(
            lambda record: record.get("code") == "budget" and str(record.get("job")) in again, seconds=30
        )
        assert "of account data" in str(refusal["reason"])
        shown = run_cli("silo", "ledger", "--config", federation.folder / f"{silo}.yaml").stdout
        assert "data set new (account data): epsilon" in shown


def test_a_job_that_plans_too_much_is_refused_at_once(tmp_path: Path) -> None:
    with LocalFederation(folder=tmp_path, silos=3, policy={"privacy": {"epsilon": 1.0}}) as federation:
        federation.start()
        federation.wait_connected()
        job_id = federation.submit(values=3, rounds=10, privacy=PRIVACY)
        watched = federation.cli("job", "watch", job_id)
        assert watched.returncode == 3, watched.stderr
        assert "(budget)" in watched.stderr.splitlines()[-1]
        shown = run_cli("silo", "ledger", "--config", federation.folder / "silo-0.yaml")
        assert (
            "data set silo-0-data (account data): epsilon 0 of 1 spent, 1 left (delta 1e-05)" in shown.stdout
        )


def _cost_of_rounds(federation: LocalFederation, rounds: int) -> float:
    spec = federation.job_spec(rounds=10, privacy=PRIVACY)
    state = {"model/votes": np.zeros(3, np.float32), TOTAL: np.array(300)}
    releases = list(JobReleases(spec, state).cost("enrollment", 3))
    releases += list(JobReleases(spec, state).cost("train", 3)) * rounds
    return filter_epsilon(releases, Policy(federation="test").privacy.delta, sides_are_fixed=True)


def _check_shown(federation: LocalFederation, silo: str, spent: float) -> None:
    config = federation.folder / f"{silo}.yaml"
    shown = run_cli("silo", "ledger", "--config", config)
    assert shown.returncode == 0, shown.stderr
    line = next(line for line in shown.stdout.splitlines() if line.startswith("data set "))
    found = re.fullmatch(
        rf"data set {silo}-data \(account data\): "
        r"epsilon ([0-9.]+) of ([0-9.]+) spent, ([0-9.]+) left \(delta 1e-05\)",
        line,
    )
    assert found is not None, line
    assert float(found[1]) == pytest.approx(spent, rel=1e-3)
    assert re.search(r"^  [0-9a-f]{12} +[0-9.]+ +3 inputs  one-hot$", shown.stdout, re.MULTILINE)
    policy = run_cli("silo", "policy", "--config", config)
    assert "private jobs once the data set has spent epsilon" in policy.stdout
