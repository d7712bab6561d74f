"""`chorale silo check --job` of an analysis: in which parts a file's records are, and every refusal."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chorale.job import SignedJob
from silo_agent.disclosure.ledger.analyses import note_recovered
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.settings import load_silo_settings
from tests.unit.cli.conftest import Calls, Desk, Ended

ALLOWING = {"federation": "test", "analyses": {"exact": "allow", "measurements": {"ward": None}}}
ROWS = [f"{'f' if row % 2 else 'm'},{40 + row % 30},{180 + row}" for row in range(60)]
SEX = {"name": "sex", "categories": ["f", "m"]}
AGE = {"name": "age", "edges": [18, 50, 60, 110], "unit": "years", "show": ["mean"]}
CHOL = {"name": "chol", "edges": [60, 200, 700], "unit": "mg/dL"}


def analysis(desk: Desk, **changes: Any) -> Path:
    fields = {
        "kind": "analysis",
        "name": "table-one",
        "federation": "test",
        "silos": ["silo-0", "silo-1", "silo-2"],
        "group": "sex",
        "columns": [SEX, AGE, CHOL],
    }
    return desk.write("analysis.yaml", fields | changes)


def silo(desk: Desk, rows: list[str], *, policy: dict[str, Any] = ALLOWING, **data: Any) -> Path:
    file = desk.folder / "ward.csv"
    file.write_text("\n".join(["sex,age,chol", *rows]) + "\n")
    own = {"format": "csv", "path": str(file), "name": "ward", **data}
    return desk.silo(data=own, policy=str(desk.write("analyses.yaml", policy)))


def found(ended: Ended, kind: str) -> list[str]:
    lines = ended.out.splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.split(" ")[0] == kind]


def test_records_that_are_complete_are_counted_for_survival_curves(desk: Desk, chorale: Calls) -> None:
    """Fewer than ten of a silo's records: it takes no part."""
    columns = [SEX, {"name": "age", "edges": [0, 50, 110]}]
    job = analysis(desk, columns=columns, group=None, survival={"time": "age", "status": "sex"})
    ended = chorale("silo", "check", "--config", silo(desk, [*ROWS, "f,,210", "x,50,210"]), "--job", job)
    assert f"data: {len(ROWS) + 2} records, {len(ROWS)} of them complete, which are counted" in found(
        ended, "ok"
    )
    few = chorale("silo", "check", "--config", silo(desk, ["f,50,210"] * 9 + ["f,,210"] * 9), "--job", job)
    assert few.code == 1
    assert "18 records, 9 of them complete, which are counted: fewer than 10 (count_granularity)" in few.out


def test_records_are_counted_by_part_and_missing_ones_by_why(desk: Desk, chorale: Calls) -> None:
    rows = [*ROWS, "w,55,210", "f,many,210", "f,130,210", "m,,1"]
    ended = chorale("silo", "check", "--config", silo(desk, rows), "--job", analysis(desk))
    assert ended.code == 0, ended.out
    told = found(ended, "ok")
    assert "acceptance: the policy accepts this job, once it is approved (chorale silo approve)" in told
    assert "data: 64 records" in told
    assert "column: sex: 32 in f, 31 in m; 1 missing (1 none of the categories)" in told
    assert (
        "column: age: 20 in 18 to 50, 21 in 50 to 60, 20 in 60 to 110; 3 missing (1 no number, 1 outside of "
        "the edges)" in told
    )
    assert "column: chol: 20 in 60 to 200, 43 in 200 to 700; 1 missing (1 outside of the edges)" in told
    assert f"missing: {desk.folder}/ward.csv, line 63, column age: expected a number, got 'many'" in told


def test_a_file_of_other_spellings_and_units_is_found(desk: Desk, chorale: Calls) -> None:
    rows = [f"{'w' if row % 2 else 'm'},{40 + row % 30},{4 + row / 100}" for row in range(60)]
    config = silo(desk, [row.replace("m,", "man,") for row in rows])
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk))
    assert ended.code == 1
    assert found(ended, "problem") == [
        "column: sex: 0 in f, 0 in m; 60 missing (60 none of the categories): 60 of 60 values are in none of "
        "its parts; are its categories spelled otherwise here? (data.values)",
        "column: chol: 0 in 60 to 200, 0 in 200 to 700; 60 missing (60 outside of the edges): 60 of 60 "
        "values are in none of its parts; has the file another unit than mg/dL? (data.units)",
    ]
    values = {"sex": {"w": "f", "man": "m"}}
    units = {"chol": {"unit": "mmol/L", "factors": {"mg/dL": 38.67}}}
    config = silo(desk, [row.replace("m,", "man,") for row in rows], values=values, units=units)
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk))
    assert ended.code == 0, ended.out
    assert "column: sex: 30 in f, 30 in m; 0 missing" in found(ended, "ok")


def test_a_file_of_decimal_commas_is_found_with_the_dialect_that_reads_it(desk: Desk, chorale: Calls) -> None:
    file = desk.folder / "ward.csv"
    config = silo(desk, [])
    file.write_text("sex;age;chol\n" + "f;45,5;190,1\nm;61,5;220,0\n" * 30)
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk))
    assert 'by its first lines: dialect: {delimiter: ";", decimal: ","}' in ended.out
    config = desk.silo(
        data={"format": "csv", "path": str(file), "name": "ward", "dialect": {"delimiter": ";"}},
        policy=str(desk.write("analyses.yaml", ALLOWING)),
    )
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk))
    assert [line.split(":")[1] for line in found(ended, "problem")] == [" age", " chol"]
    assert "are its numbers written otherwise here? (data.dialect, data.values)" in ended.out
    assert 'by its first lines: dialect: {delimiter: ";", decimal: ","}' in ended.out


def test_a_column_that_is_empty_or_absent_is_no_finding(desk: Desk, chorale: Calls) -> None:
    rows = [f"{row.rpartition(',')[0]}," for row in ROWS]
    ended = chorale("silo", "check", "--config", silo(desk, rows), "--job", analysis(desk))
    assert ended.code == 0, ended.out
    assert "column: chol: 0 in 60 to 200, 0 in 200 to 700; 60 missing" in found(ended, "ok")
    columns = [SEX, AGE, {**CHOL, "name": "sugar"}]
    config = silo(desk, ROWS, absent=["sugar"])
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk, columns=columns))
    assert "column: sugar: 0 in 60 to 200, 0 in 200 to 700; 60 missing, by data.absent" in found(ended, "ok")


def test_days_that_are_none_leave_a_derived_column_without_values(desk: Desk, chorale: Calls) -> None:
    derive = {"stay": {"days": ["age", "chol"]}}
    rows = [f"f,{day}.05.2020,{day + 9}.05.2020" for day in range(10, 20)]
    columns = [SEX, {"name": "stay", "edges": [0, 5, 30]}]
    config = silo(desk, rows, derive=derive)
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk, columns=columns))
    assert found(ended, "problem") == [
        "column: stay: 0 in 0 to 5, 0 in 5 to 30; 10 missing (10 no day): 10 of 10 values are in none of its "
        "parts; are its days written otherwise here? (data.dialect)"
    ]


def test_every_refusal_is_a_finding(desk: Desk, chorale: Calls) -> None:
    policy = {"federation": "test", "min_silos": 5, "inputs": {"ward": ["sex", "age"]}}
    config = silo(desk, ROWS[:5], policy=policy)
    ended = chorale("silo", "check", "--config", config, "--job", analysis(desk), "--json")
    told = [each["message"] for each in json.loads(ended.out)["findings"] if each["state"] != "ok"]
    assert told == [
        "policy: expected inputs of sex, age (data set ward), got 'chol'",
        "policy: expected at least 5, got 3 silos (min_silos)",
        "policy: expected no analyses without noise (analyses.exact: refuse), got an analysis",
        "5 records: fewer than 10 (count_granularity), so the silo takes no part",
    ]


def test_a_policy_without_measurements_refuses_means(desk: Desk, chorale: Calls) -> None:
    config = silo(desk, ROWS, policy={"federation": "test", "analyses": {"exact": "allow"}})
    (told,) = found(chorale("silo", "check", "--config", config, "--job", analysis(desk)), "problem")
    assert told == "acceptance: policy: expected data set ward in analyses.measurements, got none"


def test_a_formula_is_checked_as_it_would_be_submitted(desk: Desk, chorale: Calls) -> None:
    """The check called it an unknown field."""
    pytest.importorskip("formulaic")
    model = {"formula": "sex ~ age", "family": "logistic"}
    job = analysis(desk, columns=[SEX, AGE], group=None, model=model)
    ended = chorale("silo", "check", "--config", silo(desk, ROWS), "--job", job)
    assert (ended.code, found(ended, "problem")) == (0, []), ended.out


def test_an_analysis_that_the_data_set_has_no_room_for_is_refused(desk: Desk, chorale: Calls) -> None:
    config, job = silo(desk, ROWS), analysis(desk)
    settings = load_silo_settings(config)
    with closing(Ledger(settings.ledger_path)) as ledger, ledger._database.transaction() as book:
        note_recovered(book, bytes(32), [each.account for each in settings.data_sets])
    ended = chorale("silo", "check", "--config", config, "--job", job)
    (told,) = found(ended, "problem")
    assert told.endswith("expected at most 1, got an analysis after 1 others of the data set (analyses.most)")
    # the same analysis may be asked again
    digest = SignedJob(spec_bytes=job.read_bytes(), signature=b"", operator_certificate=b"").digest
    with closing(Ledger(settings.ledger_path)) as ledger, ledger._database.transaction() as book:
        book.execute("UPDATE signed_sets SET job_digest = ?", (digest,))
    assert chorale("silo", "check", "--config", config, "--job", job).code == 0


def test_an_initial_model_is_refused(desk: Desk, chorale: Calls) -> None:
    arguments = ("--config", silo(desk, ROWS), "--job", analysis(desk), "--init", desk.folder / "model")
    ended = chorale("silo", "check", *arguments)
    assert "job: --init: not allowed with an analysis, which has no model" in ended.out


def test_a_noised_analysis_needs_room_in_the_budget_alone(desk: Desk, chorale: Calls) -> None:
    """No policy has to allow exact sums or list measurements, and few records do not keep a silo out."""
    job = analysis(desk, privacy={"epsilon": 2.0})
    rows = ROWS[:4]
    ended = chorale(
        "silo", "check", "--config", silo(desk, rows, policy={"federation": "test"}), "--job", job
    )
    assert ended.code == 0, ended.out
    assert "privacy: epsilon 1.99" in ended.out
    assert "data: 4 records" in found(ended, "ok")
    little = {"federation": "test", "privacy": {"epsilon": 1.0}}
    ended = chorale("silo", "check", "--config", silo(desk, rows, policy=little), "--job", job)
    assert ended.code == 1
    (problem,) = found(ended, "problem")
    assert problem.startswith("acceptance: ")
    assert "its plan" in problem
