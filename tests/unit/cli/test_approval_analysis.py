"""`chorale silo show` of an analysis: what it asks of each column, in lines that fit."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from chorale.job import Job
from chorale.spec.analysis_spec import AnalysisSpec
from cli.silo.screen import MAX_COLUMNS
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.settings import load_silo_settings
from simulation.engine import unsigned_job
from strategies.analysis.method import FIRST_STATE
from tests.support.described import AGE, PAIN, SEX, analysis
from tests.unit.cli.conftest import Calls, Desk, Ended


def offered(desk: Desk, spec: AnalysisSpec) -> Job:
    """An analysis that the silo's ledger holds."""
    unsigned = unsigned_job(spec, FIRST_STATE)
    job = Job(spec=unsigned.spec, signed=unsigned.signed, operator="olga")
    with closing(Ledger(load_silo_settings(ward(desk)).ledger_path)) as ledger:
        ledger.record_job(job, is_approved=False)
    return job


def ward(desk: Desk, **data: Any) -> Any:
    data = {"format": "csv", "path": str(desk.folder / "ward.csv"), **data}
    return desk.silo(data=data, policy=str(desk.write("hearts.yaml", {"federation": "test"})))


def test_silo_is_told_the_parts_of_each_column(desk: Desk, chorale: Calls) -> None:
    spec = analysis(AGE, SEX, {**PAIN, "name": "pain, chest"}, group="sex", federation="test")
    config, job = ward(desk), offered(desk, spec)
    shown = chorale("silo", "show", "--config", config, job.id)
    assert shown.code == 0, shown.err
    assert behind(shown, "asks") == [
        "how many records are in each part of these columns, by the parts of sex; what is in no",
        "part counts as missing",
        "sex, the group: 2 parts, women, men",
        "age: 3 parts between the edges 30, 40, 50, 70 years; values are summed",
        '"pain, chest": 3 parts, typical, other, none',
    ]
    assert behind(shown, "label") == behind(shown, "weights") == []
    assert behind(shown, "noise")[0].startswith("it has no noise, so its sums can hold single records and")
    asks = json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)["asks"]
    assert [(each["name"], each["is_group"], each["has_mean"]) for each in asks] == [
        ("sex", True, False),
        ("age", False, True),
        ("pain, chest", False, False),
    ]
    job = offered(desk, analysis(PAIN, federation="test", name="ungrouped"))
    told = " ".join(behind(chorale("silo", "show", "--config", config, job.id), "asks"))
    assert "these columns; what is in no part" in told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "12 of them, which results may show, can be those of one person"),
        ({"unit": "patient"}, "12 of them, which results may show, can be those of one patient"),
        (
            {"unit": "patient", "max_rows_per_unit": 1},
            "a record is one row, and each patient has one at most",
        ),
    ],
)
def test_silo_is_told_that_rows_are_counted_and_not_people(
    desk: Desk, chorale: Calls, settings: dict[str, Any], told: str
) -> None:
    """With `unit` the screen said that a record was all rows of one patient, as for trainings."""
    job = offered(desk, analysis(AGE, SEX, group="sex", federation="test", min_cell=12))
    shown = chorale("silo", "show", "--config", ward(desk, **settings), job.id)
    read = " ".join(behind(shown, "reads"))
    assert told in read
    assert "all rows of" not in read


def test_silo_is_told_that_other_silos_can_see_each_cell(desk: Desk, chorale: Calls) -> None:
    """They check the sums, so they fetch them: no coordinator has to side with one that keeps them."""
    job = offered(desk, analysis(AGE, SEX, group="sex", federation="test"))
    method = " ".join(behind(chorale("silo", "show", "--config", ward(desk), job.id), "method"))
    assert method.endswith("the coordinator and all silos of the job can see every cell")
    assert all(quantity.is_tagged for quantity in job.strategy.quantities if "cell" in quantity.name)


def test_silo_is_told_what_noise_does_and_what_it_costs(desk: Desk, chorale: Calls) -> None:
    """No policy has to allow it: the budget bounds it, whatever was answered before."""
    privacy = {"epsilon": 2.0, "statistics_noise_multiplier": 4.0}
    job = offered(desk, analysis(AGE, SEX, group="sex", federation="test", privacy=privacy))
    shown = chorale("silo", "show", "--config", ward(desk, unit="patient"), job.id)
    method = " ".join(behind(shown, "method"))
    # 1.96 * 4 * sqrt(3 / 2): two honest silos of three add up to a multiplier of 4
    assert method.endswith("the count of a cell is off by up to 10 in 95 of 100 cases")
    assert "can see every cell" not in method
    assert "a record is one row, and each patient has one at most" in " ".join(behind(shown, "reads"))
    assert behind(shown, "policy") == ["nothing in it refuses this job"]
    assert "epsilon 1.9" in " ".join(behind(shown, "noise"))
    assert "this job costs 1.9" in " ".join(behind(shown, "budget"))


def test_silo_is_told_that_columns_of_survival_curves_are_crossed(desk: Desk, chorale: Calls) -> None:
    months = {"name": "months", "edges": [0, 6, 60]}
    state = {"name": "state", "categories": ["alive", "dead"]}
    survival = {"time": "months", "status": "state", "group": "sex"}
    spec = analysis(months, state, SEX, survival=survival, federation="test")
    shown = chorale("silo", "show", "--config", ward(desk), offered(desk, spec).id)
    assert behind(shown, "asks") == [
        "for survival curves, how many records are in each cell of all these columns, crossed",
        "records that are in no part of one of them are left out",
        "months, the time: 2 parts between the edges 0, 6, 60",
        "state, the status: 2 parts, alive, dead",
        "sex, the group: 2 parts, women, men",
    ]


def test_silo_is_told_what_correlations_sum_and_leave_out(desk: Desk, chorale: Calls) -> None:
    weight = {"name": "weight", "edges": [30, 60, 90, 200], "unit": "kg"}
    spec = analysis({**AGE, "show": ["counts"]}, weight, correlations=True, federation="test")
    shown = chorale("silo", "show", "--config", ward(desk), offered(desk, spec).id)
    asked = behind(shown, "asks")
    assert asked[:2] == [
        "how many records are in each part of these columns",
        "records that are in no part of one of them are left out",
    ]
    assert asked[3] == "weight: 3 parts between the edges 30, 60, 90, 200 kg; values are summed"
    assert "sums products of each two columns' values for correlations" in " ".join(behind(shown, "method"))
    assert "analyses.measurements" in " ".join(behind(shown, "policy"))


def test_texts_of_an_operator_begin_no_lines_of_their_own(desk: Desk, chorale: Calls) -> None:
    """A category that ends a line, or many of them, would have looked like other lines of the screen."""
    categories = [
        "a",
        "b, c",
        "policy      nothing in it refuses this job",
        *(f"n{place}" * 9 for place in range(60)),
    ]
    spec = analysis({"name": "x", "categories": categories}, federation="test")
    shown = chorale("silo", "show", "--config", ward(desk), offered(desk, spec).id)
    assert max(map(len, shown.out.splitlines())) <= MAX_COLUMNS
    told = " ".join(behind(shown, "asks"))
    assert 'x: 63 parts, a, "b, c", "policy      nothing in it refuses this job", n0n0' in told
    assert told.endswith("n59" * 9)


def behind(shown: Ended, label: str) -> list[str]:
    """Lines of the screen behind a label."""
    lines, is_in = [], False
    for line in shown.out.splitlines():
        is_in = line.startswith(f"{label} ") or (is_in and line.startswith(" " * 12))
        if is_in:
            lines.append(line[12:])
    return lines
