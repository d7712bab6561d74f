"""A table 1 over silos with real processes, TLS and masks, against the pooled records."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from statsmodels.duration.hazard_regression import PHReg

from tests.support.analyses import binned
from tests.support.federation import LocalFederation, Settings

MG_PER_MMOL = 38.67  # of cholesterol
AGE_EDGES = [18.0, 40.0, 50.0, 60.0, 70.0, 110.0]
CHOL_EDGES = [60.0, 160.0, 200.0, 240.0, 280.0, 700.0]
EDGES = [0, 6, 12, 24, 60]  # of months
UNEVEN = (150, 300, 80, 45)
WITHOUT_CHOL, IN_MMOL = 2, 1  # places of silos
POLICY = {"analyses": {"exact": "allow", "measurements": {"ward": None}}}


@dataclass(kw_only=True)
class Wards(LocalFederation):
    """Each silo has a table of its own. data: further settings of a silo's data, by name."""

    data: dict[str, Settings] = field(default_factory=dict)

    def _silo_settings(self, name: str, policy: Path, address: str) -> Settings:
        settings = super()._silo_settings(name, policy, address)
        own = {"format": "csv", "path": str(self.folder / f"{name}.csv"), "name": "ward"}
        return {**settings, "data": {**own, **self.data.get(name, {})}}

    def analysis(self, **fields: Any) -> Path:
        path = self.folder / "analysis.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "kind": "analysis",
                    "name": "table-one",
                    "federation": self.ceremony.federation,
                    "silos": self.names,
                    "group": "sex",
                    "columns": [
                        {"name": "sex", "categories": ["f", "m"]},
                        {"name": "age", "edges": AGE_EDGES, "show": ["mean", "median"]},
                        {"name": "chol", "unit": "mg/dL", "edges": CHOL_EDGES, "show": ["mean"]},
                        {"name": "angina", "categories": ["typical", "atypical", "none"]},
                    ],
                    **fields,
                }
            )
        )
        return path

    def results(self, job_id: str) -> dict[str, Any]:
        done = self.cli("analysis", "results", job_id, "--format", "json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))


Record = tuple[str, float | None, float | None, str]  # sex, age, cholesterol in mg/dL, angina


def made_records(count: int, *, seed: int) -> list[Record]:
    rng = np.random.default_rng(seed)
    return [
        (
            str(rng.choice(["f", "m"])),
            None if rng.random() < 0.1 else round(float(rng.normal(58, 9)), 1),
            None if rng.random() < 0.15 else float(round(rng.normal(225, 40))),
            str(rng.choice(["typical", "atypical", "none"], p=[0.2, 0.3, 0.5])),
        )
        for _ in range(count)
    ]


def wards(folder: Path, **fields: Any) -> tuple[Wards, list[Record]]:
    """Four silos, one without cholesterol and one that holds it in mmol/L; and all records, pooled."""
    federation = Wards(folder=folder, silos=len(UNEVEN), **fields)
    pooled = []
    for place, (name, count) in enumerate(zip(federation.names, UNEVEN, strict=True)):
        found = made_records(count, seed=place)
        if place == WITHOUT_CHOL:
            found = [(sex, age, None, angina) for sex, age, _, angina in found]
            federation.data[name] = {"absent": ["chol"]}
        factor = 1 / MG_PER_MMOL if place == IN_MMOL else 1.0
        if place == IN_MMOL:
            federation.data[name] = {"units": {"chol": {"unit": "mmol/L", "factors": {"mg/dL": MG_PER_MMOL}}}}
        _write(folder / f"{name}.csv", found, factor=factor, has_chol=place != WITHOUT_CHOL)
        pooled += found
    return federation, pooled


def _write(path: Path, records: list[Record], *, factor: float, has_chol: bool) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sex", "age", *(["chol"] if has_chol else []), "angina"])
        for sex, age, chol, angina in records:
            converted = "" if chol is None else repr(chol * factor)
            writer.writerow([sex, "" if age is None else age, *([converted] if has_chol else []), angina])


def figures(results: dict[str, Any], column: str, figure: str, group: str = "overall") -> dict[str, Any]:
    """By part, the values."""
    return {
        each["part"]: each["value"]
        for each in results["figures"]
        if (each["column"], each["figure"], each["group"]) == (column, figure, group)
    }


def test_a_table_of_real_silos_is_that_of_the_pooled_records(tmp_path: Path) -> None:
    federation, pooled = wards(tmp_path, policy=POLICY)
    with federation:
        federation.start()
        federation.wait_connected()
        done = federation.cli("analysis", "submit", federation.analysis())
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.split()[0]
        assert federation.finish()["status"] == "done"
        results = federation.results(job_id)
        phases = [phase["phase"] for phase in federation.report(job_id)["phases"]]
    assert phases == ["enrollment.0", "analysis-counts.0", "analysis-values.0"]
    assert results["records"] == len(pooled)
    for group, sex in (("overall", ""), ("f", "f"), ("m or missing", "m")):
        mine = [each for each in pooled if sex in ("", each[0])]
        angina = figures(results, "angina", "count", group)
        assert angina == {
            part: sum(each[3] == part.removesuffix(" or missing") for each in mine) for part in angina
        }
        for column, place in (("age", 1), ("chol", 2)):
            values = np.array([each[place] for each in mine if each[place] is not None], np.float64)
            (mean,) = figures(results, column, "mean", group).values()
            (deviation,) = figures(results, column, "standard deviation", group).values()
            error = values.std(ddof=1) / np.sqrt(len(values))
            assert mean == pytest.approx(values.mean(), abs=error / 4)
            assert deviation == pytest.approx(values.std(ddof=1), abs=error / 4)


def test_a_model_of_real_silos_is_fitted(tmp_path: Path) -> None:
    """Steps after the last leave the state as it is, and the job ends with the last of them. Correlations of
    the same columns follow."""
    federation, pooled = wards(tmp_path, policy={"analyses": {**POLICY["analyses"], "most": 2}})
    model = {"outcome": "chol", "family": "linear", "terms": [["age"], ["sex"]], "iterations": 4}
    columns = [
        {"name": "chol", "unit": "mg/dL", "edges": CHOL_EDGES},
        {"name": "age", "edges": AGE_EDGES},
        {"name": "sex", "categories": ["f", "m"]},
    ]
    with federation:
        federation.start()
        federation.wait_connected()
        # one silo holds no cholesterol, so it has no complete record
        analysis = federation.analysis(columns=columns, group=None, model=model, min_cohort=3)
        done = federation.cli("analysis", "submit", analysis)
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.split()[0]
        assert federation.finish()["status"] == "done"
        results = federation.results(job_id)
        phases = [phase["phase"] for phase in federation.report(job_id)["phases"]]
        analysis = federation.analysis(columns=columns[:2], group=None, correlations=True, min_cohort=3)
        done = federation.cli("analysis", "submit", analysis)
        assert done.returncode == 0, done.stderr
        next_id = done.stdout.split()[0]
        ended = federation.hub.wait_for(
            lambda line: line.get("event") == "job ended" and line["job"] == next_id
        )
        assert ended["status"] == "done"
        correlated = federation.results(next_id)
        next_phases = [phase["phase"] for phase in federation.report(next_id)["phases"]]
    opening = ["enrollment.0", "analysis-counts.0", "analysis-values.0"]
    assert phases == [*opening, *["analysis-model"] * 4, "analysis-model-fit.0"]
    assert next_phases == [*opening, "analysis-products.0"]
    complete = [each for each in pooled if each[1] is not None and each[2] is not None]
    design = np.array([[1.0, each[1], each[0] == "m"] for each in complete], np.float64)
    expected, *_ = np.linalg.lstsq(design, np.array([each[2] for each in complete], np.float64))
    found = figures(results, "chol", "coefficient", "model")
    assert results["records"] == correlated["records"] == len(complete)
    assert [*found.values()] == pytest.approx(expected.tolist(), rel=1e-6)
    age_N, chol_N = np.array([each[1:3] for each in complete], np.float64).T
    (correlation,) = figures(correlated, "chol", "correlation").values()
    assert correlation == pytest.approx(np.corrcoef(age_N, chol_N)[0, 1], abs=1 / np.sqrt(len(complete)) / 4)


def test_survival_curves_and_cox_models_of_real_silos_are_those_of_the_pooled_records(tmp_path: Path) -> None:
    """Of 575 records without missing values."""
    policy = {"analyses": {**POLICY["analyses"], "most": 2}}
    federation = Wards(folder=tmp_path, silos=len(UNEVEN), policy=policy)
    rng = np.random.default_rng(8)
    pooled: list[tuple[float, bool, float, str]] = []
    for name, count in zip(federation.names, UNEVEN, strict=True):
        ends = np.stack([rng.exponential(20, count), rng.uniform(0, 40, count)]).round(2)
        ages, arms = rng.uniform(30, 80, count).round(1), rng.choice(["placebo", "treated"], count)
        records = [
            (float(min(event, censored)), bool(event <= censored), float(age), str(arm))
            for (event, censored), age, arm in zip(ends.T, ages, arms, strict=True)
        ]
        lines = [
            f"{months},{'dead' if is_dead else 'alive'},{age},{arm}\n"
            for months, is_dead, age, arm in records
        ]
        (tmp_path / f"{name}.csv").write_text("".join(["months,state,age,arm\n", *lines]))
        pooled += records
    columns = [{"name": "months", "edges": EDGES}, {"name": "state", "categories": ["alive", "dead"]}]
    survival = {"time": "months", "status": "state"}
    covariates = [
        {"name": "age", "edges": [30.0, 45.0, 55.0, 65.0, 80.0]},
        {"name": "arm", "categories": ["placebo", "treated"]},
    ]
    cox = {
        "outcome": "state",
        "family": "cox",
        "time": "months",
        "terms": [["age"], ["arm"]],
        "iterations": 6,
    }
    results, phases = [], []
    with federation:
        federation.start()
        federation.wait_connected()
        for fields in (
            {"columns": columns, "survival": survival},
            {"columns": [*columns, *covariates], "model": cox, "name": "cox"},
        ):
            done = federation.cli("analysis", "submit", federation.analysis(group=None, **fields))
            assert done.returncode == 0, done.stderr
            job_id = done.stdout.split()[0]
            ended = federation.hub.wait_for(
                lambda line, job_id=job_id: line.get("event") == "job ended" and line["job"] == job_id
            )
            assert ended["status"] == "done"
            results.append(federation.results(job_id))
            phases.append([phase["phase"] for phase in federation.report(job_id)["phases"]])
    opening = ["enrollment.0", "analysis-counts.0"]
    assert phases[0] == opening
    assert phases[1] == [*opening, "analysis-values.0", *["analysis-model"] * 6, "analysis-model-fit.0"]
    assert [each["records"] for each in results] == [len(pooled)] * 2
    expected, left = 1.0, {}
    for low, high in pairwise(EDGES):
        ended = [is_dead for months, is_dead, *_ in pooled if low <= months < high]
        expected *= 1 - sum(ended) / sum(months >= low for months, *_ in pooled)
        left[f"{low} to {high}"] = expected
    assert figures(results[0], "months", "survival") == pytest.approx(left, rel=1e-12)
    # of the last bin, 8 events of one arm: they join the one before
    month_N, is_dead_N = (np.array([each[place] for each in pooled]) for place in (0, 1))
    last = len(EDGES) - 2
    bins = [*range(last + 1), *range(last + 1, 2 * last + 1), 2 * last]
    time_N = binned(month_N.tolist(), is_dead_N.tolist(), edges=EDGES, bins=bins)
    design_NP = np.array([[age, arm == "treated"] for *_, age, arm in pooled], np.float64)
    fit = PHReg(time_N, design_NP, status=is_dead_N, ties="efron").fit(method="newton")
    found = figures(results[1], "state", "coefficient", "model")
    assert [*found.values()] == pytest.approx(fit.params.tolist(), abs=1e-6)


def test_silos_refuse_analyses_by_default(tmp_path: Path) -> None:
    federation, _ = wards(tmp_path)
    with federation:
        federation.start()
        federation.wait_connected()
        assert federation.cli("analysis", "submit", federation.analysis()).returncode == 0
        ended = federation.finish()
    assert ended["status"] == "failed"
    assert "(policy: analyses.measurements)" in ended["reason"]


def test_a_second_analysis_of_a_data_set_is_refused(tmp_path: Path) -> None:
    federation, _ = wards(tmp_path, policy=POLICY)
    with federation:
        federation.start()
        federation.wait_connected()
        assert federation.cli("analysis", "submit", federation.analysis()).returncode == 0
        assert federation.finish()["status"] == "done"
        other = federation.analysis(columns=[{"name": "age", "edges": [18.0, 45.0, 110.0]}], group=None)
        assert federation.cli("analysis", "submit", other).returncode == 0
        ended = federation.hub.wait_for(
            lambda record: record.get("event") == "job ended" and record["status"] == "failed"
        )
    assert "(policy: analyses.most)" in ended["reason"]
