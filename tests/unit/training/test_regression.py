"""A regression over four uneven silos, against one over the pooled records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import statsmodels.formula.api
from numpy.typing import NDArray

from client.analysis.regression import FittedModel
from client.formula import with_terms
from crypto.errors import ConfigError
from silo_agent.training.analysis.cells import cell_counts
from silo_agent.training.analysis.model import model_sums
from strategies.analysis.counts import CELLS, IMPLAUSIBLE, PART_COUNTS
from strategies.analysis.joint import joint_rows
from strategies.analysis.model_state import (
    BLOCKS,
    COEFFICIENTS,
    COVARIANCE,
    ITERATIONS,
    LIKELIHOOD,
    MODEL_PARTS,
    PREVIOUS,
    ROBUST,
    Status,
    status_in,
)
from strategies.analysis.model_sums import BEYOND
from strategies.analysis.regression import (
    GRADIENT,
    INFORMATION,
    LIKELIHOODS,
    OUTER,
    PATIENTS,
    ModelFitPhase,
    ModelPhase,
    _has_large_patient,
)
from strategies.analysis.values import SHARE
from strategies.base import Arrays, PhaseContext
from tests.support.analyses import Rows, analysis_job, read, states_of, unevenly

Floats = NDArray[np.float64]
SEED = 11
COLUMNS: dict[str, dict[str, Any]] = {
    "sex": {"categories": ["f", "m"]},
    "ward": {"categories": ["a", "b", "c"]},
    "age": {"edges": [18, 40, 50, 60, 70, 110], "unit": "years"},
    "bmi": {"edges": [10, 20, 22, 24, 26, 28, 30, 32, 60]},
    "pressure": {"edges": [60, 120, 130, 140, 150, 160, 170, 240]},
    "stays": {"edges": [0, 1, 2, 3, 5, 8, 60]},
    "died": {"categories": ["no", "yes"]},
}
# of the pooled fit: whether records have a 1, for each column of the design
TERMS: dict[str, Callable[[dict[str, Any]], float]] = {
    "intercept": lambda row: 1.0,
    "age (years)": lambda row: row["age"],
    "bmi": lambda row: row["bmi"],
    "sex m": lambda row: row["sex"] == "m",
    "ward b": lambda row: row["ward"] == "b",
    "ward c": lambda row: row["ward"] == "c",
    "ward b or c": lambda row: row["ward"] != "a",
    "age (years) x bmi": lambda row: row["age"] * row["bmi"],
    "age (years) x sex m": lambda row: row["age"] * (row["sex"] == "m"),
}
FITS = [
    ("logistic", "died", [["age"], ["sex"], ["ward"], ["age", "sex"]]),
    ("poisson", "stays", [["age"], ["ward"], ["bmi"]]),
    ("linear", "pressure", [["age"], ["bmi"], ["sex"], ["age", "bmi"], ["age", "sex"]]),
]
FAR = {"bmi": {"edges": [10, 20, 22, 24, 26, 28, 30, 32, 50, 100]}}


def made_rows(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Seeds are printed by pytest with the arguments of a failed test."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sex, ward = str(rng.choice(["f", "m"])), str(rng.choice(["a", "b", "c"], p=[0.5, 0.3, 0.2]))
        age = round(float(np.clip(rng.normal(58, 9), 19, 109)), 1)
        bmi = round(float(np.clip(rng.normal(26, 4), 12, 59)), 1)
        risk = -6 + 0.08 * age + 0.5 * (sex == "m") + 0.3 * (ward == "c")
        found.append(
            {
                "sex": sex,
                "ward": ward,
                "age": age,
                "bmi": bmi,
                "pressure": round(90 + 0.6 * age + 0.8 * bmi + 4 * (sex == "m") + float(rng.normal(0, 8)), 1),
                "stays": int(min(rng.poisson(np.exp(-1 + 0.03 * age + 0.2 * (ward == "b"))), 60)),
                "died": "yes" if rng.random() < 1 / (1 + np.exp(-risk)) else "no",
            }
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Pooled:
    """estimate, error and robust_error (HC1) by term."""

    estimate: Floats
    error: Floats
    robust_error: Floats


def pooled(rows: Rows, outcome: str, family: str, terms: Sequence[str]) -> Pooled:
    """Newton's steps in numpy, over all records at once, with columns centered on their means."""
    design = np.array([[float(TERMS[term](dict(row))) for term in terms] for row in rows])
    value = np.array([float(row[outcome] == "yes" if family == "logistic" else row[outcome]) for row in rows])
    middle, spread = design.mean(axis=0), design.std(axis=0)
    middle[0], spread[0] = 0.0, 1.0
    scaled = (design - middle) / spread
    beta = np.zeros(len(terms))
    if family == "poisson":
        beta[0] = np.log(value.mean())
    for _ in range(50):
        linear = scaled @ beta
        mean = {
            "linear": lambda at: at,
            "logistic": lambda at: 1 / (1 + np.exp(-at)),
            "poisson": np.exp,
        }[family](linear)
        weight = {"linear": np.ones_like(mean), "logistic": mean * (1 - mean), "poisson": mean}[family]
        inverse = np.linalg.inv(scaled.T @ (weight[:, None] * scaled))
        beta = beta + inverse @ (scaled.T @ (value - mean))
    freedom = len(rows) - len(terms)
    score = (value - mean)[:, None] * scaled
    variance = ((value - mean) ** 2).sum() / freedom if family == "linear" else 1.0
    units = np.diag(1 / spread)
    units[0] -= middle / spread
    return Pooled(
        estimate=units @ beta,
        error=np.sqrt(np.diag(units @ (variance * inverse) @ units.T)),
        robust_error=np.sqrt(
            np.diag(units @ inverse @ score.T @ score @ inverse @ units.T) * len(rows) / freedom
        ),
    )


def fitted(
    folder: Path, rows: Rows, family: str, outcome: str, terms: list[list[str]], **fields: Any
) -> tuple[FittedModel, list[tuple[str, Arrays]]]:
    job = job_of(family, outcome, terms, **fields)
    states = states_of(job, read(folder, job, unevenly(rows)))
    return FittedModel.of(job.spec, states[-1][1]), states


def job_of(family: str, outcome: str, terms: list[list[str]], *, columns: Any = None, **fields: Any) -> Any:
    exposure = [fields["offset"]] if "offset" in fields else []
    names = dict.fromkeys([*(name for term in terms for name in term), *exposure, outcome])
    declared = {**COLUMNS, **(columns or {})}
    return analysis_job(
        columns=[{"name": name, **declared[name]} for name in names],
        model={"outcome": outcome, "family": family, "terms": terms, **fields},
    )


def check_equal(found: FittedModel, rows: Rows) -> None:
    expected = pooled(
        rows, found.model.outcome, str(found.model.family), [each.term for each in found.coefficients]
    )
    for place, each in enumerate(found.coefficients):
        assert each.estimate == pytest.approx(expected.estimate[place], abs=1e-6 * expected.error[place])
        assert each.error == pytest.approx(expected.error[place], rel=1e-6)
        assert each.robust_error == pytest.approx(expected.robust_error[place], rel=1e-6)


@pytest.mark.parametrize(("family", "outcome", "terms"), FITS)
def test_coefficients_are_those_of_the_pooled_records(
    family: str, outcome: str, terms: list[list[str]], tmp_path: Path
) -> None:
    rows = made_rows(900)
    found, _ = fitted(tmp_path, rows, family, outcome, terms)
    assert found.status is Status.CONVERGED
    assert found.records == 900
    check_equal(found, rows)


def test_a_line_without_residuals_is_found(tmp_path: Path) -> None:
    """Its variance was 0, and that of HC1 below by rounding, which readers refused."""
    columns = {"x": {"edges": [*range(11)]}, "y": {"edges": [*range(0, 21, 2)]}}
    job = job_of("linear", "y", [["x"]], columns=columns)
    x_N = np.random.default_rng(4).uniform(0, 10, 300).tolist()
    rows = [{"x": x, "y": 2.0 * x} for x in x_N]
    model = FittedModel.of(job.spec, states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1])
    assert [each.estimate for each in model.coefficients] == pytest.approx([0.0, 2.0], abs=1e-9)
    assert all(0 <= each.error < 1e-3 for each in model.coefficients)
    assert "nan" not in model.to_text()


def test_records_without_a_value_leave_no_trace(tmp_path: Path) -> None:
    rows = made_rows(400)
    family, outcome, terms = FITS[0]
    job = job_of(family, outcome, terms)
    parts = unevenly(rows)
    with_gaps = [[*part, {**part[0], "age": ""}, {**part[1], "died": "unknown"}] for part in parts]
    plain, gaps = (states_of(job, read(tmp_path, job, each)) for each in (parts, with_gaps))
    for (kind, state), (_, other) in zip(plain, gaps, strict=True):
        assert state.keys() == other.keys()
        for name in state:
            if kind == "analysis-counts":
                assert state[name].tobytes() == other[name].tobytes(), name
            assert state[name] == pytest.approx(other[name], rel=1e-6, abs=1e-6)


def test_steps_after_the_last_change_nothing(tmp_path: Path) -> None:
    _, states = fitted(tmp_path, made_rows(400), *FITS[0], iterations=9)
    steps = [state for kind, state in states if kind == "analysis-model"]
    assert len(steps) == 9
    assert int(steps[-1][ITERATIONS]) < 8
    for name, array in steps[-1].items():
        assert array.tobytes() == steps[-2][name].tobytes()


@pytest.mark.parametrize("steps", [1, 9])
def test_a_job_that_ends_before_the_fit_says_so(tmp_path: Path, steps: int) -> None:
    """Where its steps had converged, results were a table without a line, and without a word."""
    found, states = fitted(tmp_path, made_rows(400), *FITS[0], iterations=9)
    early = FittedModel.of(
        found.spec, [state for kind, state in states if kind == "analysis-model"][steps - 1]
    )
    assert not early.coefficients
    assert "The model is not fitted yet." in early.to_text()
    assert "not fitted" not in found.to_text()


def test_a_category_with_few_records_is_merged(tmp_path: Path) -> None:
    """Three of c: it joins the category before it, and the fit is that of the merged one."""
    rows = [{**row, "ward": "b" if row["ward"] == "c" else row["ward"]} for row in made_rows(500)]
    for row in rows[::200]:
        row["ward"] = "c"
    found, states = fitted(tmp_path, rows, "logistic", "died", [["age"], ["ward"]])
    assert states[-1][1][f"{PART_COUNTS}1"].min() >= 10
    assert [each.term for each in found.coefficients] == ["intercept", "age (years)", "ward b or c"]
    assert found.coefficients[2].is_merged
    check_equal(found, rows)


def test_a_small_joint_cell_merges_parts_that_are_large_by_themselves(tmp_path: Path) -> None:
    """c has 60 records of which five are men."""
    rows = [{**row, "ward": "ab"[place % 2]} for place, row in enumerate(made_rows(600))]
    for place, row in enumerate(rows[:60]):
        row |= {"ward": "c", "sex": "m" if place < 5 else "f"}
    found, states = fitted(tmp_path, rows, "linear", "pressure", [["age"], ["ward"], ["sex"]])
    state = states[-1][1]
    tables = job_of("linear", "pressure", [["age"], ["ward"], ["sex"]]).spec.tables
    parts_of = {place: state[f"{MODEL_PARTS}{place}"].tolist() for place in tables.factors}
    cells = np.zeros(tables.joint_cells, np.int64)
    for row in rows:
        cells["abc".index(row["ward"]) * 2 + "fm".index(row["sex"])] += 1
    assert cells.min() == 5
    held = np.bincount(joint_rows(tables, parts_of), weights=cells)
    assert held.min() >= 10
    assert len(held) == 4
    assert [each.term.split(" ")[0] for each in found.coefficients] == ["intercept", "age", "ward", "sex"]


def test_an_outcome_with_few_events_is_withheld(tmp_path: Path) -> None:
    rows = [{**row, "died": "yes" if place % 100 == 0 else "no"} for place, row in enumerate(made_rows(800))]
    found, states = fitted(tmp_path, rows, "logistic", "died", [["age"]])
    assert found.status is Status.SMALL_CELLS
    assert not found.coefficients
    assert COVARIANCE not in states[-1][1]
    assert not states[-1][1][COEFFICIENTS].any()
    assert "Withheld: one of the two parts of the outcome holds fewer than 10 records." in found.to_text()


def test_a_poisson_outcome_that_few_records_of_a_cell_have_merges_it(tmp_path: Path) -> None:
    """One of 40 in c has a stay: its rate would tell of this one."""
    rows = [{**row, "ward": "ab"[place % 2]} for place, row in enumerate(made_rows(500))]
    for place, row in enumerate(rows[:40]):
        row |= {"ward": "c", "stays": int(place == 0)}
    found, _ = fitted(tmp_path, rows, "poisson", "stays", [["ward"]])
    assert found.status is Status.CONVERGED
    assert [each.term for each in found.coefficients][1:] in (["ward b or c"], ["ward b"])
    few = [{**row, "stays": max(row["stays"], 1) if place > 12 else 0} for place, row in enumerate(rows)]
    found, _ = fitted(tmp_path, few, "poisson", "stays", [["age"], ["sex"]])
    assert [each.term for each in found.coefficients][1:] == ["age (years)"]
    assert "sex has no coefficient: its parts are merged into one, since" in " ".join(found.to_text().split())
    rare = [{**row, "stays": int(place % 100 == 0)} for place, row in enumerate(rows)]
    found, _ = fitted(tmp_path, rare, "poisson", "stays", [["age"]])
    assert found.status is Status.SMALL_CELLS


def test_more_coefficients_than_records_bear_are_withheld(tmp_path: Path) -> None:
    rows = [{**row, "ward": "abc"[place % 3]} for place, row in enumerate(made_rows(36))]
    columns = {"ward": {"categories": [*"abc"]}, "bmi": {"edges": [10, 24, 27, 60]}}
    many = [
        ["ward"],
        ["bmi"],
        ["age"],
        ["bmi", "ward"],
        ["age", "ward"],
        ["age", "bmi"],
        ["age", "bmi", "ward"],
    ]
    ages = {"age": {"edges": [18, 55, 62, 110]}, "pressure": {"edges": [60, 140, 150, 240]}}
    found, _ = fitted(tmp_path, rows, "linear", "pressure", many, columns={**columns, **ages})
    # 12 coefficients of 36 records are allowed; of 35 they are not
    assert found.status is not Status.MANY_PARAMETERS
    found, _ = fitted(tmp_path, rows[:35], "linear", "pressure", many, columns={**columns, **ages})
    assert found.status is Status.MANY_PARAMETERS


def test_a_value_that_stands_out_of_a_cell_withholds_the_model(tmp_path: Path) -> None:
    """It does not stand out of the whole column, of which ten records are as far from the middle."""
    rows = [{**row, "ward": "a" if place % 40 else "b"} for place, row in enumerate(made_rows(800))]
    for row in [row for row in rows if row["ward"] == "a"][:12]:
        row["bmi"] = 55.0
    plain, _ = fitted(tmp_path, rows, "linear", "pressure", [["bmi"], ["ward"]], columns=FAR)
    assert plain.status is Status.CONVERGED
    next(row for row in rows if row["ward"] == "b")["bmi"] = 95.0
    found, _ = fitted(tmp_path, rows, "linear", "pressure", [["bmi"], ["ward"]], columns=FAR)
    assert found.status is Status.DOMINATED


def test_a_column_that_follows_from_others_withholds_the_model(tmp_path: Path) -> None:
    rows = [{**row, "bmi": round(row["age"] / 2, 2)} for row in made_rows(300)]
    found, _ = fitted(tmp_path, rows, "linear", "pressure", [["age"], ["bmi"]])
    assert found.status is Status.COLLINEAR


def test_a_joint_table_of_other_records_is_not_applied(tmp_path: Path) -> None:
    """A silo that lies could move records from a small joint cell to another."""
    job = job_of(*("logistic", "died", [["age"], ["sex"]]))
    tables = read(tmp_path, job, unevenly(made_rows(400)))
    (_, state), *_ = states_of(job, tables)
    phase, context = (
        job.phase("analysis-counts.0"),
        PhaseContext(round=0, members=4, classes=0, state=state, trained=()),
    )
    cells = np.sum([cell_counts(each, job.spec.tables)[CELLS] for each in tables], axis=0)
    assert phase.next_state(context, {CELLS: cells}).state is not None
    cells[-1] += 1
    result = phase.next_state(context, {CELLS: cells})
    assert (result.state, result.reason) == (None, IMPLAUSIBLE)


def test_a_step_to_a_worse_fit_is_halved(tmp_path: Path) -> None:
    _, states = fitted(tmp_path, made_rows(400), *FITS[0])
    state = [state for kind, state in states if kind == "analysis-model"][1]
    phase = ModelPhase(tables=job_of(*FITS[0]).spec.tables)
    context = PhaseContext(round=3, members=4, classes=0, state=state, trained=())
    size = len(state[COEFFICIENTS])
    sums = {
        INFORMATION: np.eye(size),
        GRADIENT: np.ones(size),
        LIKELIHOODS: state[LIKELIHOOD] - 1.0,
        BEYOND: np.array(0),
    }
    middle = (state[COEFFICIENTS] + state[PREVIOUS]) / 2
    for changed in ({}, {LIKELIHOODS: state[LIKELIHOOD] + 1.0, BEYOND: np.array(1)}):
        after = phase.next_state(context, {**sums, **changed}).state
        assert after is not None
        assert after[COEFFICIENTS] == pytest.approx(middle)
        assert after[PREVIOUS].tobytes() == state[PREVIOUS].tobytes()
    after = phase.next_state(context, {**sums, LIKELIHOODS: state[LIKELIHOOD] + 1.0}).state
    assert after is not None
    assert after[PREVIOUS].tobytes() == state[COEFFICIENTS].tobytes()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"outcome": "height"}, "model: expected columns of the job, got 'height'"),
        ({"terms": [["age"]]}, "columns: sex is none of the model's"),
        (
            {"outcome": "age", "terms": [["died"], ["sex"]]},
            "a column with two categories, age has not",
        ),
        ({"family": "linear"}, "expected a column with edges, died has none"),
        ({"terms": [["age"], ["sex"], ["sex", "age"], ["age", "sex"]]}, "age x sex is named twice"),
        ({"terms": [["age"], ["age", "sex"]]}, "age x sex needs sex as a term beside it"),
        ({"terms": [["age"], ["sex"], ["age", "age"]]}, "age x age has a column twice"),
        ({"terms": [["age"], ["sex"], ["died"]]}, "died is the outcome"),
        ({"iterations": 1}, "iterations"),
    ],
)
def test_models_that_do_not_fit_their_columns_are_refused(fields: dict[str, Any], message: str) -> None:
    model = {"outcome": "died", "family": "logistic", "terms": [["age"], ["sex"]], **fields}
    columns = [{"name": name, **COLUMNS[name]} for name in ("age", "sex", "died")]
    with pytest.raises(ConfigError, match=re.escape(message)):
        analysis_job(columns=columns, model=model)


def test_other_settings_of_the_job_that_a_model_does_not_allow() -> None:
    model = {"outcome": "stays", "family": "poisson", "terms": [["sex"]]}
    columns = [{"name": name, **COLUMNS[name]} for name in ("sex", "stays")]
    with pytest.raises(ConfigError, match="group: not allowed with model"):
        analysis_job(columns=columns, model=model, group="sex")
    with pytest.raises(ConfigError, match="expected edges from 0 on, got -1"):
        analysis_job(columns=[columns[0], {"name": "stays", "edges": [-1, 5]}], model=model)
    many = {"name": "sex", "categories": [str(place) for place in range(120)]}
    with pytest.raises(ConfigError, match="at most 100 coefficients, got 120"):
        analysis_job(columns=[many, columns[1]], model=model)
    with pytest.raises(ConfigError, match="sex has one category alone"):
        analysis_job(columns=[{"name": "sex", "categories": ["f"]}, columns[1]], model=model)


def test_separated_outcomes_are_said(tmp_path: Path) -> None:
    rows = [{**row, "died": "yes" if row["age"] > 58 else "no"} for row in made_rows(400)]
    found, _ = fitted(tmp_path, rows, "logistic", "died", [["age"]], iterations=12)
    assert found.status is Status.SEPARATED
    assert "perhaps because a term separates the outcomes" in " ".join(found.to_text().split())


def test_too_few_steps_are_said(tmp_path: Path) -> None:
    found, _ = fitted(tmp_path, made_rows(400), *FITS[0], iterations=2)
    assert found.status is Status.NOT_CONVERGED
    assert "It did not converge in 2 steps" in found.to_text()


@pytest.mark.parametrize("family", FITS)
@pytest.mark.parametrize(
    "lie",
    [
        {INFORMATION: lambda sum_PP: -sum_PP},
        {INFORMATION: lambda sum_PP: np.triu(sum_PP)},
        {OUTER: lambda sum_PP: -sum_PP},
        {OUTER: lambda sum_PP: sum_PP + 90.0 * (1.0 - np.eye(len(sum_PP)))},
        {LIKELIHOODS: lambda sum_: -sum_},
    ],
)
def test_sums_that_no_records_give_are_not_applied(
    family: tuple[str, str, list[list[str]]], lie: dict[str, Callable[[Floats], Floats]], tmp_path: Path
) -> None:
    """A silo could send outer products of which a variance below 0 follows: no result was shown."""
    job = job_of(*family)
    tables = read(tmp_path, job, unevenly(made_rows(400)))
    states = [state for kind, state in states_of(job, tables) if kind == "analysis-model"]
    (name, changed), *_ = lie.items()
    for phase, state, is_last in (
        (ModelPhase(tables=job.spec.tables), states[0], False),
        (ModelFitPhase(tables=job.spec.tables), states[-1], True),
    ):
        if name == OUTER and not is_last:
            continue
        parts = [model_sums(each, job.spec.tables, state, is_last=is_last) for each in tables]
        sums = {each: np.sum([part[each] for part in parts], axis=0) for each in parts[0]}
        context = PhaseContext(round=3, members=4, classes=0, state=state, trained=())
        assert phase.next_state(context, sums).state is not None
        result = phase.next_state(context, {**sums, name: changed(sums[name])})
        assert (result.state, result.reason) == (None, IMPLAUSIBLE)


FORMULAS = [
    "ill ~ age * sex + ward",
    "stays ~ age + ward + bmi",
    "pressure ~ ward * age + bmi + age:bmi",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_tests_are_those_of_statsmodels(formula: str, tmp_path: Path) -> None:
    rows = [{**row, "ill": row["died"]} for row in made_rows(900)]
    given = with_terms({"model": {"formula": formula}}, source="analysis")["model"]
    assert isinstance(given, dict)
    outcome, terms = given["outcome"], given["terms"]
    family = {"ill": "logistic", "stays": "poisson", "pressure": "linear"}[outcome]
    found, _ = fitted(tmp_path, rows, family, outcome, terms, columns={"ill": COLUMNS["died"]})
    frame = pandas.DataFrame(rows).assign(ill=lambda each: (each["ill"] == "yes").astype(float))
    expected = {
        "logistic": lambda: statsmodels.formula.api.logit(formula, frame).fit(
            disp=0, tol=1e-12, method="newton"
        ),
        "poisson": lambda: statsmodels.formula.api.poisson(formula, frame).fit(
            disp=0, tol=1e-12, method="newton"
        ),
        "linear": lambda: statsmodels.formula.api.ols(formula, frame).fit(),
    }[family]()
    tests = {each.term: each for each in found.tests}
    by_term = expected.wald_test_terms(scalar=True).table
    several = by_term[by_term["df_constraint"] > 1]
    assert set(tests) == {each.replace(":", " x ") for each in several.index} | {""}
    for term, line in several.iterrows():
        test = tests[term.replace(":", " x ")]
        assert test.freedom == line["df_constraint"]
        assert test.statistic == pytest.approx(line["statistic"], rel=1e-6)
        assert test.p == pytest.approx(line["pvalue"], rel=1e-5)
    whole = tests[""]
    if family == "linear":
        assert (whole.statistic, whole.p) == pytest.approx((expected.fvalue, expected.f_pvalue), rel=1e-6)
    else:
        assert (whole.statistic, whole.p) == pytest.approx((expected.llr, expected.llr_pvalue), rel=1e-6)
    figures = {each["figure"]: each["value"] for each in found.figures() if not each["part"]}
    if family == "poisson":
        assert "AIC" not in figures
        return
    assert figures["AIC"] == pytest.approx(expected.aic, rel=1e-9)
    assert figures["log-likelihood"] == pytest.approx(expected.llf, rel=1e-9)
    assert f"AIC {expected.aic:.4f}." in " ".join(found.to_text().split())


def of_patients(count: int, seed: int = SEED) -> list[dict[str, Any]]:
    """Two or three records of most patients, with a risk that is their own. None has two sexes."""
    rng, rows = np.random.default_rng(seed), made_rows(count, seed)
    own: dict[str, float] = {}
    for place, row in enumerate(rows):
        # none is at two silos, whose ends are eighths, and records of one lie apart
        row["patient"] = f"p{place * 8 // count}-{place % (count // 20)}"
        own.setdefault(row["patient"], float(rng.normal(0, 6)))
        row["sex"] = "fm"[place % (count // 20) % 2]
        row["pressure"] = round(row["pressure"] + own[row["patient"]], 1)
    return rows


def by_patient(
    folder: Path, rows: Rows, family: str, outcome: str, terms: list[list[str]], **fields: Any
) -> FittedModel:
    job = job_of(family, outcome, terms, errors="patient", **fields)
    return FittedModel.of(job.spec, states_of(job, read(folder, job, unevenly(rows), unit="patient"))[-1][1])


@pytest.mark.parametrize(
    ("formula", "fit"),
    [
        ("died ~ age * sex + ward", "logit"),
        ("stays ~ age + ward + bmi", "poisson"),
        ("pressure ~ ward * age + bmi + age:bmi", "ols"),
    ],
)
def test_errors_by_patient_are_those_of_statsmodels(formula: str, fit: str, tmp_path: Path) -> None:
    rows = of_patients(896)
    given = with_terms({"model": {"formula": formula}}, source="analysis")["model"]
    assert isinstance(given, dict)
    family = {"logit": "logistic", "poisson": "poisson", "ols": "linear"}[fit]
    found = by_patient(tmp_path, rows, family, given["outcome"], given["terms"])
    frame = pandas.DataFrame(rows).assign(died=lambda each: (each["died"] == "yes").astype(float))
    groups = pandas.factorize(frame["patient"])[0]
    options = {} if fit == "ols" else {"disp": 0, "tol": 1e-12, "method": "newton"}
    model = getattr(statsmodels.formula.api, fit)(formula, frame)
    expected = model.fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=False, **options)
    plain = model.fit(**options)
    assert sorted(each.error for each in found.coefficients) == pytest.approx(sorted(expected.bse), rel=1e-6)
    assert sorted(each.p for each in found.coefficients) == pytest.approx(
        sorted(expected.pvalues), rel=1e-4, abs=1e-30
    )
    assert sorted(each.robust_error for each in found.coefficients) == pytest.approx(
        sorted(plain.bse), rel=1e-6
    )
    whole = expected.wald_test(np.eye(len(expected.params))[1:], use_f=False, scalar=True)
    assert found.tests[-1].statistic == pytest.approx(float(whole.statistic), rel=1e-6)
    assert "allow for what records of one patient have in common" in " ".join(found.to_text().split())
    assert "SE (HC1)" not in found.to_text()


def test_a_patient_who_may_dominate_the_errors_withholds_the_model(tmp_path: Path) -> None:
    rows = of_patients(400)
    model = ("linear", "pressure", [["age"]])
    assert by_patient(tmp_path, rows, *model).status is Status.CONVERGED
    large = [
        {**row, "patient": "p0", "pressure": 200.0} if place < 30 else row for place, row in enumerate(rows)
    ]
    found = by_patient(tmp_path, large, *model)
    assert (found.status, found.coefficients) == (Status.DOMINATED, ())
    assert "where errors are by patient, a patient may" in " ".join(found.to_text().split())
    many = [{**row, "patient": "p0", "died": "yes"} if place < 30 else row for place, row in enumerate(rows)]
    assert by_patient(tmp_path, many, "logistic", "died", [["age"]]).status is Status.DOMINATED
    few = [{**row, "patient": f"p{place // 25}"} for place, row in enumerate(rows[:200])]
    assert by_patient(tmp_path, few, *model).status is Status.DOMINATED
    some = [{**row, "patient": f"p{place // 16}"} for place, row in enumerate(rows[:192])]
    assert by_patient(tmp_path, some, *model).status is Status.CONVERGED
    of_wards = ("linear", "pressure", [["age"], ["ward"]])
    assert by_patient(tmp_path, some, *of_wards).status is Status.MANY_PARAMETERS


def test_who_knows_a_patient_finds_no_other_that_makes_most_of_the_rest() -> None:
    """Of 2,000 draws with heavy tails, by what the sum of fourth powers allows; some of both are seen."""
    rng, shown = np.random.default_rng(SEED), 0
    for _ in range(2_000):
        square_U = np.sort(rng.pareto(1.5, rng.integers(4, 60)))
        if _has_large_patient(np.array([square_U.sum()]), np.array([(square_U * square_U).sum()])):
            continue
        shown += 1
        assert square_U[-2] <= SHARE * (square_U.sum() - square_U[-1])
        assert square_U[-1] <= SHARE * (square_U.sum() - square_U[-2])
    assert 200 < shown < 1_800
    assert _has_large_patient(np.zeros(1), np.zeros(1))


def test_a_patient_beyond_reach_is_said_and_not_summed(tmp_path: Path) -> None:
    job = job_of("logistic", "died", [["age"]], errors="patient")
    rows = [
        {**row, "patient": "p0", "died": "yes"} if n < 30 else row for n, row in enumerate(of_patients(400))
    ]
    tables = read(tmp_path, job, unevenly(rows), unit="patient")
    state = next(state for kind, state in states_of(job, tables) if kind == "analysis-model")
    state = {**state, COEFFICIENTS: np.zeros_like(state[COEFFICIENTS])}
    first, second, *_ = (model_sums(each, job.spec.tables, state, is_last=True) for each in tables)
    assert first[PATIENTS][1] == 1
    assert not first[OUTER].any()
    assert second[PATIENTS][1] == 0
    assert second[OUTER].any()


def test_errors_by_patient_need_a_number_and_silos_that_say_whose_a_record_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a column of numbers for errors by patient"):
        job_of("logistic", "died", [["sex"]], errors="patient")
    with pytest.raises(ConfigError, match="expected a column of numbers for errors by patient"):
        job_of("poisson", "stays", [["sex"]], errors="patient")
    job = job_of("logistic", "died", [["age"]], errors="patient")
    with pytest.raises(
        ConfigError, match="data.unit: expected a column that says whose a row is, for errors by"
    ):
        read(tmp_path, job, unevenly(of_patients(400)))


def test_patients_that_no_records_give_are_not_applied(tmp_path: Path) -> None:
    job = job_of("linear", "pressure", [["age"]], errors="patient")
    tables = read(tmp_path, job, unevenly(of_patients(400)), unit="patient")
    state = [state for kind, state in states_of(job, tables) if kind == "analysis-model"][-1]
    phase = ModelFitPhase(tables=job.spec.tables)
    parts = [model_sums(each, job.spec.tables, state, is_last=True) for each in tables]
    sums = {each: np.sum([part[each] for part in parts], axis=0) for each in parts[0]}
    context = PhaseContext(round=3, members=4, classes=0, state=state, trained=())
    assert phase.next_state(context, sums).state is not None
    for patients in ([401, 0], [-1, 0], [200, -1], [200, 201]):
        result = phase.next_state(context, {**sums, PATIENTS: np.array(patients)})
        assert (result.state, result.reason) == (None, IMPLAUSIBLE)


EXPOSED = {"days": {"edges": [1, 30, 90, 180, 270, 365]}}


@pytest.mark.parametrize("errors", ["record", "patient"])
def test_rates_by_exposure_are_those_of_statsmodels(errors: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    rows = of_patients(896)
    for row in rows:
        row["days"] = round(float(rng.uniform(1, 365)), 1)
        row["stays"] = int(min(rng.poisson(row["days"] / 365 * np.exp(-1 + 0.03 * row["age"])), 60))
    fields = {"columns": EXPOSED, "offset": "days", "errors": errors}
    job = job_of("poisson", "stays", [["age"], ["ward"]], **fields)
    tables = read(tmp_path, job, unevenly(rows), unit="patient")
    found = FittedModel.of(job.spec, states_of(job, tables)[-1][1])
    assert found.status is Status.CONVERGED
    frame = pandas.DataFrame(rows)
    model = statsmodels.formula.api.poisson("stays ~ age + ward", frame, exposure=frame["days"])
    groups = {"groups": pandas.factorize(frame["patient"])[0]}
    options = {} if errors == "record" else {"cov_type": "cluster", "cov_kwds": groups}
    expected = model.fit(disp=0, tol=1e-12, method="newton", **options)
    for term, name in (
        ("intercept", "Intercept"), ("age", "age"), ("ward b", "ward[T.b]"), ("ward c", "ward[T.c]")
    ):  # fmt: skip
        one = next(each for each in found.coefficients if each.term.startswith(term))
        assert one.estimate == pytest.approx(expected.params[name], abs=1e-6 * expected.bse[name])
        assert one.error == pytest.approx(expected.bse[name], rel=1e-6)
    whole = expected.wald_test(np.eye(4)[1:], use_f=False, scalar=True)
    assert found.tests[-1].statistic == pytest.approx(float(whole.statistic), rel=1e-6)
    assert "by age + ward, per days: 896 complete records" in " ".join(found.to_text().split())


@pytest.mark.parametrize(
    ("family", "outcome", "offset", "message"),
    [
        ("logistic", "died", "days", "offset: expected a poisson model, got logistic"),
        ("poisson", "stays", "age", "offset: age is a term or the outcome"),
        ("poisson", "stays", "ward", "offset: expected a column with edges above 0"),
        ("poisson", "stays", "nights", "offset: expected a column with edges above 0"),
        ("poisson", "stays", "years", "at most 1,000 times the lowest, years has not"),
        ("poisson", "stays", "weeks", "model: expected columns of the job, got 'weeks'"),
    ],
)
def test_offsets_that_are_no_exposures_are_refused(
    family: str, outcome: str, offset: str, message: str
) -> None:
    given = {**COLUMNS, **EXPOSED, "nights": {"edges": [0, 5, 9]}, "years": {"edges": [0.001, 1, 2]}}
    names = ["age", outcome, *([offset] if offset not in ("age", "weeks") else [])]
    model = {"outcome": outcome, "family": family, "terms": [["age"]], "offset": offset}
    with pytest.raises(ConfigError, match=re.escape(message)):
        analysis_job(columns=[{"name": name, **given[name]} for name in names], model=model)


def of_wards(count: int, *, crossing: int) -> list[dict[str, Any]]:
    """Of patients who stay in one ward, but for so many."""
    rows = of_patients(count)
    for place, row in enumerate(rows):
        row["ward"] = "ab"[place % (count // 20) // 2 % 2]
    patients = [*dict.fromkeys(row["patient"] for row in rows)]
    for patient in patients[:crossing]:
        first, second, *_ = (row for row in rows if row["patient"] == patient)
        first["ward"], second["ward"] = "a", "b"
    return rows


@pytest.mark.parametrize("crossing", [0, 1, 11, 12, 40])
def test_products_of_two_cells_that_few_patients_have_are_left_out(crossing: int, tmp_path: Path) -> None:
    """Of one patient, products by age gave both ages and outcomes to all digits."""
    rows = of_wards(800, crossing=crossing)
    wards = {"ward": {"categories": ["a", "b"]}}
    model = ("linear", "pressure", [["age"], ["ward"], ["age", "ward"]])
    job = job_of(*model, columns=wards, errors="patient")
    found = states_of(job, read(tmp_path, job, unevenly(rows), unit="patient"))[-1][1]
    assert status_in(found) is Status.CONVERGED
    bread = np.linalg.inv(found[COVARIANCE])
    products = bread @ found[ROBUST] @ bread
    of_both = products[:2, 2:] - products[2:, 2:]
    assert (np.abs(of_both).max() > 1e-3 * np.abs(products).max()) == (crossing >= 12)
    assert found[BLOCKS].tolist() == ([0, 0] if crossing >= 12 else [0, 1])


def test_a_patient_who_dominates_the_first_category_withholds_the_model(tmp_path: Path) -> None:
    """Its column follows from the others', and nobody looked at it."""
    rows = of_patients(800)
    for place, row in enumerate(rows):
        row["ward"] = "a" if place % 40 < 3 else "b"
    model, wards = ("linear", "pressure", [["age"], ["ward"]]), {"ward": {"categories": ["a", "b"]}}
    assert by_patient(tmp_path, rows, *model, columns=wards).status is Status.CONVERGED
    for row in rows:
        row["pressure"] += 50.0 * (row["patient"] == "p0-0")
    assert by_patient(tmp_path, rows, *model, columns=wards).status is Status.DOMINATED
    model = ("linear", "pressure", [["age"]])  # it stands out of the ward alone
    assert by_patient(tmp_path, rows, *model).status is Status.CONVERGED
