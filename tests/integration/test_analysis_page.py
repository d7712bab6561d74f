"""docs/analysis.md from its policy to its figures, by silos of made-up tables that approve by hand."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from statsmodels.duration.hazard_regression import PHReg

from client.federation import Federation
from tests.support import readme
from tests.support.federation import LocalFederation, Settings
from tests.support.processes import REPOSITORY
from tests.support.readme import instead, run

pytestmark = pytest.mark.timeout(300)
PAGE = REPOSITORY / "docs" / "analysis.md"
CLINICS = ["clinic-a", "clinic-b", "clinic-c", "clinic-d"]
SIZES = (150, 300, 80, 45)
ANGINA = ["typical", "atypical", "none"]
EXAMPLE = REPOSITORY / "docs" / "examples" / "analysis-survival.yaml"
SEXES = (("female", "male"), ("female",), ("male",))  # overall, and by group
RIDGE = 5.0
Floats = NDArray[np.float64]
Found = list[dict[str, Any]]  # figures


class Clinics(LocalFederation):
    """The page's silos, its policy without a line that approves by itself, and a table each."""

    @property
    def names(self) -> list[str]:
        return CLINICS

    def _policy(self) -> Settings:
        return {
            "federation": self.ceremony.federation,
            **_shown("What the institutions allow"),
            **self.policy,
        }

    def _silo_settings(self, name: str, policy: Path, address: str) -> Settings:
        data = {"format": "csv", "path": str(self.folder / f"{name}.csv"), "name": "ward"}
        return {**super()._silo_settings(name, policy, address), "data": data, "objective": None}


def _shown(heading: str) -> dict[str, Any]:
    """The YAML block of a section."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", section, re.M | re.S)
    return dict(yaml.safe_load(block))


def _words(name: str) -> dict[str, Any]:
    """The field of this name within a sentence."""
    (found,) = re.findall(rf"`({name}: [^`]+)`", PAGE.read_text())
    return dict(yaml.safe_load(found))


def _tables(folder: Path) -> list[dict[str, str]]:
    """Written for each clinic; all records."""
    rng, pooled = np.random.default_rng(7), []
    for name, size in zip(CLINICS, SIZES, strict=True):
        records = [{"patient": f"{name}-{place // 2}", **_record(rng)} for place in range(size)]
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(records[0]))
            writer.writeheader()
            writer.writerows(records)
        pooled += records
    return pooled


def _record(rng: np.random.Generator) -> dict[str, str]:
    """Age and sex make ill; who is treated lives longer."""
    sex, arm = str(rng.choice(["female", "male"])), str(rng.choice(["placebo", "treated"]))
    age, death = rng.normal(58, 9), rng.exponential(15 if arm == "placebo" else 30)
    visit = rng.uniform(0, 40)
    is_ill = rng.random() < 1 / (1 + math.exp((60 - age) / 12 - (sex == "male")))
    return {
        "sex": sex,
        "age": "" if rng.random() < 0.1 else f"{age:.1f}",
        "chol": "" if rng.random() < 0.15 else f"{rng.normal(225, 40):.0f}",
        "angina": str(rng.choice(ANGINA, p=[0.2, 0.3, 0.5])),
        "ill": "yes" if is_ill else "no",
        "months": "" if rng.random() < 0.05 else f"{min(death, visit):.2f}",
        "state": "dead" if death <= visit else "alive",
        "arm": arm,
    }


def _with_analysis(folder: Path) -> Clinics:
    """With the page's analysis beside the operator's file."""
    federation = Clinics(folder=folder, silos=len(CLINICS))
    fields = {**_shown("The file"), "federation": federation.ceremony.federation}
    (folder / "analysis.yaml").write_text(yaml.safe_dump(fields))
    return federation


def test_the_pages_policy_file_and_commands_give_table_one(tmp_path: Path) -> None:
    federation, pooled = _with_analysis(tmp_path), _tables(tmp_path)
    commands = readme.commands("analysis.md", "From file to figures")
    with federation:
        federation.start()
        federation.wait_connected()
        federation.operator_file()
        check = next(commands)
        for name in CLINICS:
            assert "ok       column: age: " in run(instead(check, "silo.yaml", f"{name}.yaml"), tmp_path)
        planned = run(next(commands), tmp_path)
        assert "counts 3 columns by sex; sums values of age, chol for means" in planned
        job_id = run(next(commands), tmp_path).split()[0]
        approve = instead(next(commands), "ID", job_id)
        for name in CLINICS:
            run([*instead(approve, "silo.yaml", f"{name}.yaml"), "--yes"], tmp_path)
        for command in commands:
            printed = run(instead(command, "ID", job_id), tmp_path)
            if command[1] == "results" and "--out" not in command:
                _check(printed, pooled)
    assert "<svg" in (tmp_path / "table-one.html").read_text()


def test_the_pages_notebook_gives_the_same_table(tmp_path: Path) -> None:
    for needed in ("pandas", "matplotlib"):
        pytest.importorskip(needed, reason="needs the extra notebook")
    federation, pooled = _with_analysis(tmp_path), _tables(tmp_path)
    federation.policy = {"approval": "automatic"}
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / "page.py").write_text(f"{code}print(results)\n")
    with federation:
        federation.start()
        federation.wait_connected()
        federation.operator_file()
        done = subprocess.run(
            [sys.executable, "-W", "error", "page.py"],
            cwd=tmp_path,
            env={**os.environ, "MPLBACKEND": "agg", "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr
    _check(done.stdout, pooled)


def test_the_pages_regression_and_survival_curves_follow_its_table(tmp_path: Path) -> None:
    """Three analyses of one data set, as its policy allows: of table 1, and of these."""
    for needed in ("pandas", "matplotlib"):
        pytest.importorskip(needed, reason="needs the extra notebook")
    federation, pooled = _with_analysis(tmp_path), _tables(tmp_path)
    analyses = _shown("What the institutions allow")["analyses"]
    federation.policy = {"approval": "automatic", "analyses": {**analyses, "most": 3}}
    example = yaml.safe_load(EXAMPLE.read_text())
    assert {**example, **_shown("Survival curves")} == example
    fields = {**yaml.safe_load((tmp_path / "analysis.yaml").read_text()), "group": None, "name": "risk"}
    (tmp_path / "risk.yaml").write_text(yaml.safe_dump({**fields, **_shown("A regression")}))
    example |= {"federation": federation.ceremony.federation, "silos": CLINICS}
    (tmp_path / "survival.yaml").write_text(yaml.safe_dump(example))
    with federation:
        federation.start()
        federation.wait_connected()
        operator = Federation(federation.operator_file())
        _check(operator.analyze(tmp_path / "analysis.yaml").to_text(), pooled)
        risk = operator.analyze(tmp_path / "risk.yaml")
        survival = operator.analyze(tmp_path / "survival.yaml")
        ids = {job["name"]: job["job"] for job in operator.jobs()}
        printed = {
            (name, kind): run(
                ["analysis", "results", ids[name], "--config", "operator.yaml", "--format", kind], tmp_path
            )
            for name in ("risk", "time-to-death")
            for kind in ("text", "json")
        }
    _check_risk(json.loads(printed["risk", "json"])["figures"], printed["risk", "text"], pooled)
    found = json.loads(printed["time-to-death", "json"])["figures"]
    _check_survival(found, printed["time-to-death", "text"], pooled)
    for results, name, column in ((risk, "risk", "age"), (survival, "time-to-death", None)):
        rows = results.frame().reset_index()
        assert [*rows["figure"]] == [each["figure"] for each in json.loads(printed[name, "json"])["figures"]]
        shown = [each["value"] for each in json.loads(printed[name, "json"])["figures"]]
        assert np.array_equal(rows["value"], np.array(shown, np.float64), equal_nan=True)
        assert str(results) == printed[name, "text"]
        axes = results.plot(column)
        ends = [np.size(line.get_xdata()) for line in axes.lines]
        assert axes.patches if column else ends == [len(_bins(found))] * 2
        axes.figure.clear()


def _values(found: Found, figure: str, group: str) -> list[float]:
    return [each["value"] for each in found if (each["figure"], each["group"]) == (figure, group)]


def _simulated(
    folder: Path, fields: dict[str, Any], *, policy: dict[str, Any], **data: Any
) -> tuple[Found, str]:
    """Figures, and the table, of all silos' files under this policy. data: more of the silos' settings."""
    arguments: list[str] = []
    for name in CLINICS:
        settings = {"format": "csv", "path": f"{name}.csv", "name": "ward", **data}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, "data": settings}))
        arguments += ["--silo", f"{name}.yaml"]
    (folder / "job.yaml").write_text(yaml.safe_dump(fields))
    rules = yaml.safe_dump({"federation": fields["federation"], **policy}, explicit_end=True)
    (folder / "policy.yaml").write_text(rules)
    run(["simulate", "job.yaml", *arguments, "--policy", "policy.yaml", "--out", "results"], folder)
    found: Found = json.loads((folder / "results" / "results.json").read_text())["figures"]
    return found, " ".join((folder / "results" / "results.txt").read_text().split())


def test_the_pages_noise_hides_as_much_as_it_says(tmp_path: Path) -> None:
    """Intervals of 95 %, whose noise follows from the job: four of fifteen may miss."""
    pooled, noise = _tables(tmp_path), _shown("With noise")
    fields = {**_shown("The file"), **noise}
    found, _ = _simulated(tmp_path, fields, policy={})
    held = []
    for group, sexes in zip(("overall", "female", "male"), SEXES, strict=True):
        mine = [each for each in pooled if each["sex"] in sexes]
        for kind in ANGINA:
            low, high = (_of(found, "angina", f"count, {end} end", kind, group) for end in ("lower", "upper"))
            held.append(low <= sum(each["angina"] == kind for each in mine) <= high)
        for column in ("age", "chol"):
            low, high = (_of(found, column, f"mean, {end} end", "", group) for end in ("lower", "upper"))
            held.append(low <= np.mean([float(each[column]) for each in mine if each[column]]) <= high)
    assert len(held) == 15
    assert sum(held) >= 11
    (said,) = re.findall(r"up to (\d+) at epsilon (\S+), (\d+) at (\d\.\d)", PAGE.read_text())
    assert float(said[1]) == noise["privacy"]["epsilon"]
    for most, epsilon in (said[:2], said[2:]):
        (tmp_path / "job.yaml").write_text(yaml.safe_dump({**fields, "privacy": {"epsilon": float(epsilon)}}))
        planned = " ".join(run(["analysis", "plan", "job.yaml"], tmp_path).split())
        assert f"the count of a cell is off by up to {most} " in planned


def test_the_pages_other_models_are_those_of_the_pooled_records(tmp_path: Path) -> None:
    pooled, policy = _tables(tmp_path), _shown("What the institutions allow")
    fields = {**_shown("The file"), "group": None, **_shown("A regression")}
    model = fields["model"]

    formula = {"family": model["family"], **_words("formula")}
    found, text = _simulated(tmp_path, {**fields, "model": formula}, policy=policy)
    design, ill_N, _ = _design(pooled)
    design = np.column_stack([design, design[:, 1] * design[:, 2]])
    beta, covariance = _newton(design, ill_N)
    error = np.sqrt(np.diag(covariance))
    assert "logistic model of ill yes by age + sex + age x sex" in text
    assert _values(found, "coefficient", "model") == pytest.approx([*beta], rel=1e-5)
    assert _values(found, "standard error", "model") == pytest.approx([*error], rel=1e-5)

    by_patient = {**fields, "model": {**model, **_words("errors")}}
    found, _ = _simulated(tmp_path, by_patient, policy=policy, unit="patient", max_rows_per_unit=2)
    design, ill_N, patients = _design(pooled)
    beta, covariance = _newton(design, ill_N)
    score_NP = design * (ill_N - 1 / (1 + np.exp(-design @ beta)))[:, None]
    score_UP = np.array([score_NP[patients == each].sum(axis=0) for each in np.unique(patients)])
    count = len(score_UP) / (len(score_UP) - 1) * (len(ill_N) - 1) / (len(ill_N) - 3)
    error = np.sqrt(np.diag(covariance @ score_UP.T @ score_UP @ covariance * count))
    assert _values(found, "standard error", "model") == pytest.approx([*error], rel=1e-5)

    assert "`ridge` penalizes coefficients" in PAGE.read_text()
    found, _ = _simulated(tmp_path, {**fields, "model": {**model, "ridge": RIDGE}}, policy=policy)
    beta, _ = _newton(design, ill_N, ridge=RIDGE)
    assert _values(found, "coefficient", "model") == pytest.approx([*beta], rel=1e-5)
    assert _values(found, "standard error", "model") == []


def test_the_pages_cox_model_is_that_of_the_pooled_binned_records(tmp_path: Path) -> None:
    pooled, shown = _tables(tmp_path), _shown("Survival curves")
    survival = shown.pop("survival")
    model = {"outcome": survival["status"], "time": survival["time"], "terms": [[survival["group"]]]}
    fields = {**_shown("The file"), "group": None, **shown, "model": {**model, **_words("family")}}
    found, text = _simulated(tmp_path, fields, policy=_shown("What the institutions allow"))
    complete = [each for each in pooled if each["months"]]
    assert f"cox model of state dead by arm: {len(complete)} complete records" in text
    said = re.search(r"Bins of events: ([^.]*)\. Those censored [^:]*: ([^.]*)\.", text)
    assert said is not None
    events, censored = ([int(end) for end in re.findall(r" to (\d+)", ends)] for ends in said.groups())
    assert len(events) > 3
    is_event_N = np.array([each["state"] == "dead" for each in complete])
    time_N = [
        max(low for low in (0, *events) if low <= _ends(each))
        if is_event
        else min(end for end in censored if _ends(each) < end) - 0.5
        for each, is_event in zip(complete, is_event_N, strict=True)
    ]
    arm_N1 = np.array([[each["arm"] == "treated"] for each in complete], np.float64)
    fit = PHReg(np.array(time_N), arm_N1, status=is_event_N, ties="efron").fit(method="newton")
    assert _values(found, "coefficient", "model") == pytest.approx([*fit.params], rel=1e-6)
    assert _values(found, "standard error", "model") == pytest.approx([*fit.bse], rel=1e-6)
    assert _values(found, "hazard ratio", "model") == pytest.approx([*np.exp(fit.params)], rel=1e-6)


def test_the_pages_correlations_are_those_of_the_pooled_records(tmp_path: Path) -> None:
    """Of the columns that its policy has measurements of."""
    pooled, policy = _tables(tmp_path), _shown("What the institutions allow")
    names, shown = policy["analyses"]["measurements"]["ward"], _shown("The file")
    columns = [{**each, "show": ["mean"]} for each in shown["columns"] if each["name"] in names]
    fields = {**shown, "group": None, "columns": columns, **_words("correlations")}
    found, _ = _simulated(tmp_path, fields, policy=policy)
    complete = np.array(
        [[float(each[name]) for name in names] for each in pooled if all(map(each.get, names))]
    )
    expected = float(np.corrcoef(complete.T)[0, 1])
    assert _of(found, names[0], "correlation", names[1], "overall") == pytest.approx(expected, abs=0.01)


def _of(found: Found, *place: str) -> float:
    """place: column, figure, part and group."""
    (value,) = (
        each["value"]
        for each in found
        if (each["column"], each["figure"], each["part"], each["group"]) == place
    )
    return float(value)


def _values(found: Found, figure: str, group: str) -> list[float]:
    return [each["value"] for each in found if (each["figure"], each["group"]) == (figure, group)]


def _design(pooled: list[dict[str, str]]) -> tuple[Floats, Floats, NDArray[np.str_]]:
    """Of the complete records of ill by age and sex, and whose they are."""
    complete = [each for each in pooled if each["age"]]
    design = np.array([[1.0, float(each["age"]), each["sex"] == "male"] for each in complete], np.float64)
    ill_N = np.array([each["ill"] == "yes" for each in complete], np.float64)
    return design, ill_N, np.array([each["patient"] for each in complete])


def _newton(design: Floats, ill_N: Floats, *, ridge: float = 0.0) -> tuple[Floats, Floats]:
    """Coefficients and their covariance. N = records."""
    beta = np.zeros(design.shape[1])
    penalty = np.diag([0.0, *[ridge] * (len(beta) - 1)])
    for _ in range(20):
        fitted_N = 1 / (1 + np.exp(-design @ beta))
        covariance = np.linalg.inv(design.T * (fitted_N * (1 - fitted_N)) @ design + penalty)
        beta += covariance @ (design.T @ (ill_N - fitted_N) - penalty @ beta)
    return beta, covariance


def _check_risk(found: Found, text: str, pooled: list[dict[str, str]]) -> None:
    design, ill_N, _ = _design(pooled)
    assert f"logistic model of ill yes by age + sex: {len(ill_N)} complete records" in text
    beta, covariance = _newton(design, ill_N)
    scores = design * (ill_N - 1 / (1 + np.exp(-design @ beta)))[:, None]
    robust = covariance @ scores.T @ scores @ covariance * len(ill_N) / (len(ill_N) - 3)
    error = np.sqrt(np.diag(covariance))
    expected = {
        "coefficient": beta,
        "standard error": error,
        "standard error (HC1)": np.sqrt(np.diag(robust)),
        "p": [math.erfc(abs(z) / 2**0.5) for z in (beta / error).tolist()],
    }
    for figure, values in expected.items():
        assert _values(found, figure, "model") == pytest.approx([*values], rel=1e-5), figure
    assert _values(found, "odds ratio", "model")[-2:] == pytest.approx([*np.exp(beta[1:])], rel=1e-5)
    assert re.search(rf"^ +sex male.* {beta[2]:.4g} ", text, re.M)


def _check_survival(found: Found, text: str, pooled: list[dict[str, str]]) -> None:
    """Kaplan-Meier and log-rank, bin by bin of the pooled records."""
    complete = [each for each in pooled if each["months"]]
    assert f"survival, months to state dead by arm: {len(complete)} complete records" in text
    left, apart, variance = {"placebo": 1.0, "treated": 1.0}, 0.0, 0.0
    curves: dict[str, list[float]] = {arm: [] for arm in left}
    ends, censored = _bins(found), re.search(r"begins before theirs ends: ([^.]*)\.", " ".join(text.split()))
    assert censored is not None
    until = [int(end) for end in re.findall(r" to (\d+)", censored[1])]
    for low, high in pairwise(ends):
        at_risk = {
            arm: [each for each in complete if each["arm"] == arm and _is_at_risk(each, low, until)]
            for arm in left
        }
        dead = {
            arm: sum(each["state"] == "dead" and _ends(each) < high for each in at_risk[arm]) for arm in left
        }
        for arm in left:
            left[arm] *= 1 - dead[arm] / len(at_risk[arm])
            curves[arm].append(left[arm])
        both, events = sum(map(len, at_risk.values())), sum(dead.values())
        share = len(at_risk["placebo"]) / both
        apart += dead["placebo"] - events * share
        variance += events * share * (1 - share) * (both - events) / (both - 1)
    for arm, curve in curves.items():
        assert _values(found, "survival", arm) == pytest.approx(curve, rel=1e-12)
        assert re.search(rf"^ +{ends[-2]} to {ends[-1]} .* {curve[-1]:.3f} ", text, re.M)
    statistic = apart * apart / variance
    assert _values(found, "log-rank chi-squared", "") == pytest.approx([statistic], rel=1e-9)
    assert _values(found, "log-rank p", "") == pytest.approx([math.erfc((statistic / 2) ** 0.5)], rel=1e-6)
    assert f"chi-squared {statistic:.3f}" in " ".join(text.split())


def _bins(found: Found) -> list[int]:
    """Ends of the published bins: those with few deaths are merged."""
    parts = dict.fromkeys(each["part"] for each in found if each["figure"] == "survival")
    ends = [0, *(int(part.rpartition(" ")[2]) for part in parts)]
    assert ends == sorted(set(ends) & {0, 3, 6, 12, 18, 24, 36, 120})
    assert len(ends) > 4
    return ends


def _is_at_risk(record: dict[str, str], low: int, until: list[int]) -> bool:
    """until: where bins of those censored end."""
    if record["state"] == "dead":
        return _ends(record) >= low
    return next(end for end in until if _ends(record) < end) > low


def _ends(record: dict[str, str]) -> float:
    return float(record["months"])


def _check(table: str, pooled: list[dict[str, str]]) -> None:
    assert table.startswith(f"table-one by sex: {len(pooled)} records of 4 silos")
    for kind in ANGINA[:2]:
        (line,) = re.findall(rf"^ +{kind} .*$", table, re.M)
        of = [sum(each["angina"] == kind for each in pooled if each["sex"] in sexes) for sexes in SEXES]
        assert [int(count) for count in re.findall(r"(\d+) \(", line)] == of
    shown = re.findall(r"^ +mean \(SD\).*?([\d.]+) \(([\d.]+)\)", table, re.M)
    for column, (mean, deviation) in zip(("age", "chol"), shown, strict=True):
        values = np.array([float(each[column]) for each in pooled if each[column]])
        error = values.std(ddof=1) / len(values) ** 0.5
        assert float(mean) == pytest.approx(values.mean(), abs=error / 4)
        assert float(deviation) == pytest.approx(values.std(ddof=1), abs=error / 4)
