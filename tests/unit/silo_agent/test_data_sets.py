"""Which data set a job is about, as its signed text says it, in this run of the agent and in later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chorale.credentials import Credentials
from chorale.transport import wire
from chorale.transport.wire import Refused
from crypto.errors import PolicyRefusal, Refusal, Rule
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.policy.policy import Approval, FirstState, Policy
from silo_agent.rounds.data_sets import DataSet, DataSets
from silo_agent.rounds.offered_jobs import OfferedJobs
from tests.support.agents import FEDERATION, Hub
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
    ledger = hub.add("silo-0").ledger
    policy = Policy(federation=FEDERATION, approval=Approval.AUTOMATIC, initial_state=FirstState.GIVEN)
    for unit in ("patient", "ill", "age"):
        book = offered_jobs(hub, DataSet.of(ledger, name="wards", policy=policy, unit=unit))
        if unit == "patient":
            assert book.offer(job.signed, hub.roster).digest == job.digest
            continue
        with pytest.raises(PolicyRefusal, match=f"got {unit}, .* of job") as raised:
            book.offer(job.signed, hub.roster)
        assert raised.value.code is Refusal.POLICY


async def test_a_job_that_nobody_approved_learns_no_name_of_the_column_of_units(make_hub: MakeHub) -> None:
    """`policy` for that column and `job-not-approved` for others told any operator its name, 1,000 guesses a
    job."""
    hub, answers = make_hub(), []
    ledger, policy = hub.add("silo-0").ledger, Policy(federation=FEDERATION, initial_state=FirstState.GIVEN)
    for unit in ("ill", "patient"):
        job = hub.sign(**TABLE | {"label_column": "ill"})
        book = offered_jobs(hub, DataSet.of(ledger, name="wards", policy=policy, unit=unit))
        with pytest.raises(PolicyRefusal) as raised:
            book.offer(job.signed, hub.roster)
        answers.append(wire.refused_of(raised.value))
    assert answers == [Refused(code=Refusal.JOB_NOT_APPROVED)] * 2


def offered_jobs(hub: Hub, data_set: DataSet) -> OfferedJobs:
    """Of a silo with that data set alone."""
    ledger = hub.agents["silo-0"].ledger
    return OfferedJobs(
        silo="silo-0",
        ledger=ledger,
        data_sets=DataSets([data_set], ledger=ledger),
        credentials=Credentials(hub.members.silos["silo-0"], hub.members.authority),
        clock=lambda: hub.now,
    )


TABLE = {"columns": [{"name": "age"}, {"name": "p0..p2"}], "input_shape": [4], "model": {"name": "mlp"}}
LISTED = {"inputs": {"wards": ["age", "p0..p9"]}, "labels": {"wards": ["ill"]}}


@pytest.mark.parametrize(
    ("lists", "job", "format", "refused"),
    [
        ({}, {"label_column": "hiv"}, "csv", ""),
        (LISTED, {}, "csv", ""),
        ({"inputs": {"wards": None}}, {"label_column": "hiv"}, "csv", ""),
        (LISTED, {"label_column": "hiv"}, "csv", "expected labels of ill .*, got 'hiv'"),
        ({"inputs": {"wards": ["age"]}}, {}, "csv", "expected inputs of age .*, got 'p0', 'p1', 'p2'"),
        ({"labels": {"wards": []}}, {}, "parquet", "expected labels of none"),
        # digits of another script are a name: as a range the screen showed other columns than are read
        (
            LISTED,
            {"columns": [{"name": "age"}, {"name": "p\u0661..p\u0663"}], "input_shape": [2]},
            "csv",
            "got 'p",
        ),
        # what has no name is on no list, whatever names the job says
        ({"inputs": {"wards": ["age", "p0..p2"]}}, {}, "npz", "got inputs without names"),
        ({"labels": {"wards": ["ill"]}}, {}, "digits", "got labels without names"),
        ({"labels": {"wards": ["ill"]}}, {}, "dicom", ""),
        ({"labels": {"wards": ["ill"]}}, {"label_column": None, "columns": None}, "dicom", "without names"),
        ({"inputs": {"wards": []}}, {}, "dicom", "expected inputs of none"),
        # a data set that was renamed is not open by that
        ({"inputs": {"trials": None}}, {}, "csv", "expected data set wards in inputs, got trials"),
    ],
)
async def test_job_reads_what_the_policy_lists_of_its_data_set(
    make_hub: MakeHub, lists: dict[str, Any], job: dict[str, Any], format: str, refused: str
) -> None:
    hub = make_hub()
    policy = Policy.model_validate({"federation": FEDERATION, **lists})
    ledger, spec = hub.add("silo-0").ledger, hub.sign(**TABLE | {"label_column": "ill"} | job).spec
    wards = DataSets([DataSet.of(ledger, name="wards", policy=policy, format=format)], ledger=ledger)
    if not refused:
        assert wards.named(spec).name == "wards"
        return
    with pytest.raises(PolicyRefusal, match=refused) as raised:
        wards.named(spec)
    assert raised.value.rule is (Rule.LABELS if "labels" in str(raised.value) else Rule.INPUTS)


async def test_refused_columns_are_answered_alike_whether_or_not_they_exist(
    make_hub: MakeHub, tmp_path: Path
) -> None:
    """Else any operator could ask, name by name, what an institution's table holds. One answer comes before
    all other rules, of a column of the table, of its units, and of none."""
    hub = make_hub()
    (tmp_path / "ward.csv").write_text("patient,age,ill,hiv\n1,50,0,1\n")
    policy = Policy.model_validate({"federation": FEDERATION, "operators": ["nobody"], **LISTED})
    ledger = hub.add("silo-0").ledger
    wards = DataSet.of(ledger, name="wards", policy=policy, unit="patient", format="csv")
    book = offered_jobs(hub, wards)
    for data, rule in ((None, Rule.LABELS), ("wards", None)):
        answers = []
        for label in ("hiv", "patient", "no-such-column"):
            signed = hub.sign(**TABLE | {"label_column": label, "data": data}).signed
            with pytest.raises(PolicyRefusal, match=label) as raised:  # the name stays in this silo's log
                book.offer(signed, hub.roster)
            answers.append(wire.refused_of(raised.value))
        assert answers == [Refused(code=Refusal.POLICY, rule=rule)] * 3
