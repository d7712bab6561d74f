"""Which data set a job is about, as its signed text says it, in this run of the agent and in later ones."""

from __future__ import annotations

import pytest

from crypto.errors import PolicyRefusal, Refusal
from silo_agent.ledger.ledger import Ledger
from silo_agent.policy.policy import Policy
from silo_agent.rounds.data_sets import DataSet, DataSets
from tests.support.agents import FEDERATION
from tests.unit.silo_agent.conftest import MakeHub


def data_sets(ledger: Ledger, *names: str) -> DataSets:
    policy = Policy(federation=FEDERATION)
    return DataSets([DataSet.of(ledger, name=name, policy=policy) for name in names], ledger=ledger)


async def test_a_recorded_job_stays_with_its_data_set(make_hub: MakeHub) -> None:
    hub = make_hub()
    ledger = hub.add("silo-0").ledger
    job = hub.sign(data="trials")
    both = data_sets(ledger, "wards", "trials")
    with pytest.raises(PolicyRefusal, match="was never offered") as raised:
        both.of(job.digest)
    assert raised.value.code is Refusal.JOB_INVALID
    ledger.record_job(job, is_approved=True)
    assert both.of(job.digest).name == "trials"
    for others in (("wards",), ("wards", "trials-2")):  # settings that were changed since
        with pytest.raises(PolicyRefusal, match="this silo has no data set trials") as raised:
            data_sets(ledger, *others).of(job.digest)
        assert raised.value.code is Refusal.POLICY


async def test_a_job_that_names_none_is_about_the_only_one(make_hub: MakeHub) -> None:
    hub = make_hub()
    ledger = hub.add("silo-0").ledger
    ledger.record_job(hub.job, is_approved=True)
    assert data_sets(ledger, "wards").of(hub.job.digest).name == "wards"
    with pytest.raises(PolicyRefusal, match="names no data set, and this silo has several"):
        data_sets(ledger, "wards", "trials").of(hub.job.digest)


async def test_one_roster_is_as_new_as_the_strictest_policy_wants(make_hub: MakeHub) -> None:
    ledger = make_hub().add("silo-0").ledger
    ages = {"wards": 7.0, "trials": 2.0}
    policies = {name: Policy(federation=FEDERATION, max_roster_age_days=age) for name, age in ages.items()}
    made = [DataSet.of(ledger, name=name, policy=policy) for name, policy in policies.items()]
    assert DataSets(made, ledger=ledger).max_roster_age_days == 2.0


async def test_a_job_that_reads_the_column_of_units_is_refused_when_it_is_offered(make_hub: MakeHub) -> None:
    """It came to the data, and then a silo's units were its labels."""
    hub = make_hub()
    columns = {"columns": [{"name": "age"}], "input_shape": [1], "model": {"name": "mlp"}}
    job = hub.sign(label_column="ill", **columns)
    ledger, policy = hub.add("silo-0").ledger, Policy(federation=FEDERATION)
    for unit in ("patient", "ill", "age"):
        wards = DataSets([DataSet.of(ledger, name="wards", policy=policy, unit=unit)], ledger=ledger)
        if unit == "patient":
            assert wards.named(job.spec).unit == unit
            continue
        with pytest.raises(PolicyRefusal, match=f"got {unit}, .* of job") as raised:
            wards.named(job.spec)
        assert raised.value.code is Refusal.POLICY
