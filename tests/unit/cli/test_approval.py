"""What `chorale silo approve` says of the jobs that wait, and of one that it approves."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from chorale.job import Job
from chorale.privacy.plan import planned_epsilon_if_all_others_collude
from chorale.spec.job_spec import JobSpec
from crypto.errors import PolicyRefusal
from silo_agent.ledger.ledger import Ledger
from silo_agent.policy.policy import Policy
from silo_agent.rounds import first_state
from silo_agent.settings import load_silo_settings
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
        assert ("records in one silo: epsilon" in ended.out) != is_warned
        assert ("data set data: a record is one row; where one person has several" in ended.out) != is_warned


@pytest.mark.parametrize("policy", [{}, {"max_epsilon_if_all_others_collude": 0.01}])
def test_silo_is_told_both_promises_of_a_private_job(
    desk: Desk, chorale: Callable[..., Ended], policy: dict[str, Any]
) -> None:
    """It was asked to approve noise that rests on other silos, and no number said what that means."""
    pytest.importorskip("torch", reason="a silo draws the weights")
    records = {**RECORDS, "noise_multiplier": 10.0, "noise": "sum"}
    privacy = {"records": records, "statistics_noise_multiplier": 40.0}
    job = offered(
        desk, privacy=privacy, steps=3, spare_steps=2, rounds=5, model={"name": "mlp", "hidden": []}
    )
    config = desk.silo()
    accepts = {"accept_shared_noise": True, **policy}
    desk.write("policy.yaml", {"federation": "test", "privacy": accepts})
    ended = chorale("silo", "approve", "--config", config, job.id)
    assert ended.code == 0, ended.err
    alone = planned_epsilon_if_all_others_collude(
        job.spec, first_state.drawn_arrays(job.spec, b"", max_bytes=1 << 20)
    )
    assert f"{job.id}: privacy: epsilon " in ended.out
    assert f"if all other silos collude with it: epsilon {alone:.4g}" in ended.out
    assert ended.out.count("this silo's policy refuses it") == bool(policy)


def test_silo_is_told_whose_code_a_job_runs(desk: Desk, chorale: Callable[..., Ended]) -> None:
    own = {"name": "net", "from": "hospital-models==1.2.0", "options": {"width": 32}}
    job, config = offered(desk, model=own), desk.silo()
    waiting = chorale("silo", "approve", "--config", config)
    assert job.id in waiting.out
    told = "it runs code that is not Chorale's on this silo's data: model net of hospital-models==1.2.0"
    assert f"{told} {{'width': 32}}" in waiting.out


def test_code_of_a_job_does_not_run_before_it_is_approved(
    desk: Desk, chorale: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing the jobs imported their distributions and called a model with an operator's options."""
    own = {"name": "net", "from": "hospital-models==1.2.0", "options": {"weights": "https://attacker/x"}}
    job, config = offered(desk, model=own), desk.silo()
    drawn: list[JobSpec] = []
    monkeypatch.setattr(first_state, "drawn_arrays", lambda spec, *_, **__: drawn.append(spec))
    for arguments in ((), (job.id,)):
        ended = chorale("silo", "approve", "--config", config, *arguments)
        assert ended.code == 0, ended.err
        assert "whether its starting weights are given is found out at its first phase" in ended.out
    assert drawn == []


def test_a_job_whose_model_cannot_be_made_does_not_end_the_list(
    desk: Desk, chorale: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TypeError left, and no institution could list its jobs until the operator's job was gone."""

    def fails(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr(first_state, "drawn_arrays", fails)
    job, config = offered(desk), desk.silo()
    ended = chorale("silo", "approve", "--config", config)
    assert ended.code == 0, ended.err
    assert job.id in ended.out
    assert "its starting weights are given" in ended.out


def test_institution_grants_a_job_more_data_refusals(desk: Desk, chorale: Callable[..., Ended]) -> None:
    job, config = offered(desk), desk.silo()
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        policy = Policy(federation="test", max_data_refusals=0)
        (data_set,) = [each.name for each in load_silo_settings(config).data_sets]
        refusals = ledger.data_refusals(policy=policy, data_set=data_set)
        ledger.decisions().approve(job.digest, by="ann")
        refusals.record(job.digest, suspends=True)
        with pytest.raises(PolicyRefusal, match="max_data_refusals"):
            refusals.check(job.digest)
        ended = chorale("silo", "approve", "--config", config, job.id, "--more-data-refusals", "2")
        assert f"{job.id}: 2 more data refusals on data set {data_set}" in ended.out
        assert refusals.check(job.digest) == 0
    alone = chorale("silo", "approve", "--config", config, "--more-data-refusals", "2")
    assert "--more-data-refusals: expected JOB with it" in alone.err
