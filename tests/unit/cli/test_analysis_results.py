"""`chorale analysis results`: of a file that says which job's results it holds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

import cli.analysis.results
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.model_file import ANALYSIS, analysis_facts, described_analysis
from chorale.spec.state import state_to_bytes
from chorale.v1 import operations_pb2
from cli.analysis.rendering import FORMS, FORMS_AGAINST
from client.analysis.results import AnalysisResults
from client.analysis.submission import read_analysis
from client.operations import Operations
from crypto.errors import ConfigError
from strategies.base import Arrays
from tests.support.analyses import analysis_job, read, states_of, unevenly
from tests.support.described import by_sex
from tests.unit.cli.conftest import Calls, Desk

BEGINS = {
    "text": "table-one by sex",
    "csv": "column,figure,",
    "html": "<!doctype",
    "json": "{",
}


def render(spec: AnalysisSpec, state: Arrays, form: str) -> str:
    return FORMS[form](AnalysisResults.of(spec, state))


@pytest.mark.parametrize("form", FORMS)
def test_results_are_written_in_each_form(form: str) -> None:
    text = render(*by_sex(), form)
    assert text.startswith(BEGINS[form])
    assert text.endswith("\n")
    if form == "json":
        assert json.loads(text)["records"] == 172


@pytest.mark.parametrize("form", FORMS)
def test_a_model_is_written_in_each_form(form: str, tmp_path: Path) -> None:
    """Two silos' worth of a line: pressure is 90 and twice the age, and some noise."""
    rows = [{"age": 40 + place % 40, "pressure": 90 + 2 * (place % 40) + place % 3} for place in range(400)]
    columns = [
        {"name": "age", "edges": [30, 50, 60, 70, 90]},
        {"name": "pressure", "edges": [80, 110, 130, 150, 200]},
    ]
    job = analysis_job(columns=columns, model={"outcome": "pressure", "family": "linear", "terms": [["age"]]})
    assert isinstance(job.spec, AnalysisSpec)
    text = render(job.spec, states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1], form)
    assert text.startswith(
        BEGINS[form].replace("table-one by sex", "described").replace("table-one", "described")
    )
    if form == "json":
        figures = {(each["part"], each["figure"]): each["value"] for each in json.loads(text)["figures"]}
        assert figures["age", "coefficient"] == pytest.approx(2.0, abs=0.01)
    else:
        assert "coefficient" in text
        assert "intercept" in text


@pytest.mark.parametrize("form", FORMS)
def test_survival_curves_are_written_in_each_form(form: str, tmp_path: Path) -> None:
    """Half of 400 have the event before 6 months, and half of the others at risk in the next ones."""
    rows = [{"months": 3, "state": "dead"}] * 200 + [{"months": 9, "state": "dead"}] * 90
    rows += [{"months": 9, "state": "alive"}] * 90 + [{"months": 3, "state": "alive"}] * 20
    columns = [
        {"name": "months", "edges": [0, 6, 12]},
        {"name": "state", "categories": ["alive", "dead"]},
    ]
    job = analysis_job(columns=columns, survival={"time": "months", "status": "state"})
    assert isinstance(job.spec, AnalysisSpec)
    text = render(job.spec, states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1], form)
    if form == "json":
        figures = {(each["part"], each["figure"]): each["value"] for each in json.loads(text)["figures"]}
        assert figures["0 to 6", "survival"] == 0.5
        assert figures["6 to 12", "survival"] == 0.25
    else:
        assert "0.500" in text or ",survival,0 to 6,overall,0.5," in text
        assert "median survival" in text
    if form == "html":
        # 1 to 0.5 at 6 months, to 0.25 at 12
        assert '<polyline points="44.0,12.0 277.0,12.0 277.0,136.0 510.0,136.0 510.0,198.0"' in text
        assert "<h2>Survival</h2>" in text


@pytest.mark.parametrize("form", FORMS)
def test_correlations_are_written_in_each_form(form: str, tmp_path: Path) -> None:
    """age and pressure go together, of the third nothing is shown."""
    rng = np.random.default_rng(9)
    age_N = rng.normal(60, 10, 400).clip(31, 89).round()
    pressure_N = (60 + age_N + rng.normal(0, 10, 400)).clip(81, 199).round()
    rows = [
        {"age": age, "pressure": pressure, "smokes": place % 2}
        for place, (age, pressure) in enumerate(zip(age_N.tolist(), pressure_N.tolist(), strict=True))
    ]
    columns = [
        {"name": "age", "edges": [30, 50, 55, 60, 65, 70, 90]},
        {"name": "pressure", "edges": [80, 105, 115, 120, 125, 135, 200]},
        {"name": "smokes", "edges": [0, 0.3, 0.7, 1]},
    ]
    job = analysis_job(columns=columns, correlations=True)
    assert isinstance(job.spec, AnalysisSpec)
    text = render(job.spec, states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1], form)
    if form == "json":
        figures = [each for each in json.loads(text)["figures"] if each["figure"] == "correlation"]
        found, withheld = figures[:2]
        assert found["value"] == pytest.approx(np.corrcoef(age_N, pressure_N)[0, 1], abs=0.005)
        assert (withheld["value"], withheld["note"]) == (None, "not shown")
    elif form == "csv":
        assert "\nage,correlation,smokes,overall,,,not shown\n" in text
    else:
        assert "correlations: 400 complete records" in text
        assert re.search(r"0\.[67]\d \(0\.[67]\d to 0\.[67]\d\)", text)
        assert "a mean of the two columns is not" in text


def test_a_file_says_which_analysis_its_results_are_of() -> None:
    spec, _ = by_sex()
    facts = analysis_facts(spec.to_yaml())
    assert facts["job"] == hashlib.sha256(spec.to_yaml()).hexdigest()
    assert described_analysis(facts, source="file") == spec
    changed = facts | {ANALYSIS: facts[ANALYSIS].replace("women", "woman")}
    with pytest.raises(ConfigError, match="file: its metadata: analysis: expected the job of the digest"):
        described_analysis(changed, source="file")
    with pytest.raises(ConfigError, match="file: its metadata describe no analysis"):
        described_analysis({"job": facts["job"]}, source="file")
    with pytest.raises(ConfigError, match="expected UTF-8"):
        analysis_facts(spec.to_yaml().decode().encode("utf-16"))


@pytest.fixture
def job_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """Of an analysis that a coordinator hands out."""
    spec, state = by_sex()
    first, chunk = operations_pb2.FetchMessage(), operations_pb2.FetchMessage()
    first.summary.name, first.job.spec = spec.name, spec.to_yaml()
    chunk.chunk.data = state_to_bytes(state)
    digest = hashlib.sha256(first.job.spec).digest()
    jobs = operations_pb2.ListJobsReply()
    jobs.jobs.add(job_digest=digest)
    operations = Operations.__new__(Operations)
    operations._stub = SimpleNamespace(  # type: ignore[assignment]
        FetchModel=lambda _: iter([first, chunk]), ListJobs=lambda _: jobs
    )

    @contextmanager
    def connect(_settings: object) -> Iterator[tuple[Operations, None]]:
        yield operations, None

    monkeypatch.setattr(cli.analysis.results, "connect", connect)
    return digest.hex()[:12]


def test_table_stands_in_the_terminal_or_in_a_file(chorale: Calls, desk: Desk, job_id: str) -> None:
    config = ["--config", str(desk.operator())]
    shown = chorale("analysis", "results", job_id, *config)
    assert (shown.code, shown.err, shown.out) == (0, "", render(*by_sex(), "text"))
    out = desk.folder / "table.html"
    written = chorale("analysis", "results", job_id, "--format", "html", "--out", str(out), *config)
    assert (written.code, written.out) == (0, f"{out}: what job {job_id} published, as html\n")
    assert out.read_text() == render(*by_sex(), "html")
    folder = chorale("analysis", "results", job_id, "--out", str(Path(desk.folder)), *config)
    assert folder.code == 2
    assert "is a folder, expected a file" in folder.err


def test_a_formula_is_planned_as_its_terms(chorale: Calls, desk: Desk) -> None:
    fields = yaml.safe_load(Path("docs/examples/analysis-model.yaml").read_text())
    fields["model"] = {"formula": "state ~ age * sex", "family": "logistic"}
    file = desk.write("analysis.yaml", fields)
    planned = chorale("analysis", "plan", file)
    assert planned.code == 0, planned.err
    assert "fits a logistic model of state by age, sex, age x sex in 10 steps" in " ".join(
        planned.out.split()
    )
    assert b"formula" not in read_analysis(Path(file)).to_yaml()


@pytest.mark.parametrize("form", FORMS_AGAINST)
def test_results_stand_against_those_of_another_analysis(
    chorale: Calls, desk: Desk, job_id: str, form: str
) -> None:
    asked = ["analysis", "results", job_id, "--against", job_id, "--config", str(desk.operator())]
    shown = chorale(*asked, "--format", form)
    assert (shown.code, shown.err) == (0, "")
    assert "age (years)" in shown.out
    assert "0.0" in shown.out
    refused = chorale(*asked, "--format", "html")
    assert refused.code != 0
    assert "--against: expected --format text or csv or json, got html" in refused.err


HOSTILE = "x\u202eevil\nmeans of nothing"


def test_names_of_a_file_move_no_line_of_its_plan(chorale: Calls, desk: Desk) -> None:
    """A colleague's file: a line of its own would say that it asks something else."""
    fields = {
        "kind": "analysis",
        "name": "table-one",
        "federation": "hearts",
        "silos": ["north", "south", "west"],
        "columns": [{"name": HOSTILE, "edges": [0, 1, 2], "show": ["mean"]}],
    }
    planned = chorale("analysis", "plan", desk.write("analysis.yaml", fields))
    assert planned.code == 0, planned.err
    for lines in (planned.out.splitlines(), planned.err.splitlines()):
        assert not [line for line in lines if line.startswith("means of nothing")]
        assert [
            line for line in lines if "means of x\\u202eevil\\nmeans of nothing" in line or "x\\u202e" in line
        ]
    assert all(line.isprintable() for line in (planned.out + planned.err).splitlines())
