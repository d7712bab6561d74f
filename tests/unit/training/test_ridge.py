"""Models with a ridge penalty over four uneven silos, against scikit-learn over the pooled records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from statsmodels.duration.hazard_regression import PHReg

from client.analysis.regression import FittedModel
from crypto.errors import ConfigError
from silo_agent.training.analysis.model import model_sums
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.counts import IMPLAUSIBLE, ROW_COUNTS
from strategies.analysis.model_state import (
    COEFFICIENTS,
    COVARIANCE,
    DECREMENT,
    ITERATIONS,
    LIKELIHOOD,
    MODEL_PARTS,
    NULL_LIKELIHOOD,
    PREVIOUS,
    ROBUST,
    SQUARES,
    STATUS,
    TREND,
    Status,
    status_in,
)
from strategies.analysis.regression import INFORMATION, OUTER, ModelFitPhase, ModelPhase
from strategies.base import TOTAL, Arrays, PhaseContext
from tests.support.analyses import Rows, analysis_job, read, states_of, unevenly
from tests.unit.training import test_cox as cox
from tests.unit.training.test_regression import COLUMNS, EXPOSED, FITS, TERMS, fitted, job_of, made_rows

Floats = NDArray[np.float64]
UNPUBLISHED = {COVARIANCE, ROBUST, LIKELIHOOD, NULL_LIKELIHOOD, SQUARES, TREND, OUTER}


def expected(found: FittedModel, rows: Rows, *, per: str | None = None) -> list[float]:
    """By scikit-learn, in the units of the columns. per: the exposure."""
    ridge, family, outcome = found.model.ridge, found.model.family, found.model.outcome
    assert ridge is not None
    design_NP = np.array([[TERMS[each.term](dict(row)) for each in found.coefficients[1:]] for row in rows])
    value_N = np.array(
        [float(row[outcome] == "yes" if family == "logistic" else row[outcome]) for row in rows]
    )
    weight_N = np.array([1.0 if per is None else row[per] for row in rows])
    newton = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 1000}
    model = {
        "linear": Ridge(alpha=ridge),
        "logistic": LogisticRegression(C=1 / ridge, **newton),
        "poisson": PoissonRegressor(alpha=ridge / weight_N.sum(), **newton),
    }[family]
    model.fit(design_NP, value_N / weight_N, sample_weight=weight_N)
    return [*np.ravel(model.intercept_).tolist(), *np.ravel(model.coef_).tolist()]


def check_equal(found: FittedModel, rows: Rows, *, per: str | None = None) -> None:
    assert found.status is Status.CONVERGED
    assert [each.estimate for each in found.coefficients] == pytest.approx(
        expected(found, rows, per=per), rel=1e-6, abs=1e-9
    )


@pytest.mark.parametrize("ridge", [1e-3, 20.0, 1e9])
@pytest.mark.parametrize("fit", FITS)
def test_coefficients_are_those_of_scikit_learn(
    fit: tuple[str, str, list[list[str]]], ridge: float, tmp_path: Path
) -> None:
    rows = made_rows(900)
    found, states = fitted(tmp_path, rows, *fit, ridge=ridge)
    check_equal(found, rows)
    assert not states[-1][1].keys() & UNPUBLISHED


def test_a_step_is_judged_by_the_penalized_squares(tmp_path: Path) -> None:
    rows, ridge = made_rows(400), 5e4
    found, states = fitted(tmp_path, rows, "linear", "pressure", [["age"]], ridge=ridge)
    last = [state for kind, state in states if kind == "analysis-model"][-1]
    intercept, slope = (each.estimate for each in found.coefficients)
    squares = sum((row["pressure"] - intercept - slope * row["age"]) ** 2 for row in rows)
    half = (COLUMNS["pressure"]["edges"][-1] - COLUMNS["pressure"]["edges"][0]) / 2
    assert -2 * half * half * float(last[LIKELIHOOD]) == pytest.approx(
        squares + ridge * slope * slope, rel=1e-8
    )
    assert ridge * slope * slope > 0.01 * squares


def test_parts_that_are_merged_have_no_penalty(tmp_path: Path) -> None:
    rows = [{**row, "ward": "b" if row["ward"] == "c" else row["ward"]} for row in made_rows(500)]
    for row in rows[::200]:
        row["ward"] = "c"
    found, _ = fitted(tmp_path, rows, "logistic", "died", [["age"], ["ward"]], ridge=3.0)
    assert [each.term for each in found.coefficients] == ["intercept", "age (years)", "ward b or c"]
    check_equal(found, rows)


def test_rates_by_exposure(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = [{**row, "days": round(float(rng.uniform(1, 365)), 1)} for row in made_rows(600)]
    found, _ = fitted(
        tmp_path, rows, "poisson", "stays", [["age"], ["ward"]], columns=EXPOSED, offset="days", ridge=20.0
    )
    check_equal(found, rows, per="days")


def test_outcomes_that_a_term_separates_have_a_fit(tmp_path: Path) -> None:
    rows = [{**row, "died": "yes" if row["age"] > 58 else "no"} for row in made_rows(400)]
    found, _ = fitted(tmp_path, rows, "logistic", "died", [["age"]], ridge=1.0)
    check_equal(found, rows)


def test_a_column_that_follows_from_others_has_a_coefficient(tmp_path: Path) -> None:
    rows = [{**row, "bmi": round(row["age"] / 2, 2)} for row in made_rows(300)]
    found, _ = fitted(tmp_path, rows, "linear", "pressure", [["age"], ["bmi"]], ridge=1.0)
    check_equal(found, rows)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_score_of_a_cox_model_is_the_slope_of_the_penalty(ties: str, tmp_path: Path) -> None:
    """By statsmodels, whose times are the places of published bins."""
    ridge, rows = 50.0, cox.made_rows()
    found, states = cox.fitted(tmp_path, rows, cox.job_of(ties=ties, ridge=ridge))
    assert found.status is Status.CONVERGED
    edges = cox.COLUMNS["months"]["edges"]
    bins = states[-1][1][f"{MODEL_PARTS}1"]
    place_N = [
        bins[min(np.searchsorted(edges, row["months"], side="right"), len(edges) - 1) - 1] for row in rows
    ]
    design_N2 = [[row["age"], row["arm"] == "treated"] for row in rows]
    died_N = [row["state"] == "dead" for row in rows]
    model = PHReg(place_N, np.array(design_N2, float), status=np.array(died_N, float), ties=ties)
    estimate_2 = np.array([each.estimate for each in found.coefficients])
    assert model.score(estimate_2) == pytest.approx(ridge * estimate_2, rel=1e-6)
    assert not states[-1][1].keys() & UNPUBLISHED
    assert found.tests == ()
    assert found.table().heads == ("coefficient", "hazard ratio")


def test_results_have_coefficients_and_no_errors(tmp_path: Path) -> None:
    found, states = fitted(tmp_path, made_rows(400), "logistic", "died", [["age"], ["sex"]], ridge=2.0)
    assert (found.tests, found.log_likelihood, found.residual, found.freedom) == ((), None, None, None)
    assert {each["figure"] for each in found.figures()} == {"coefficient", "odds ratio"}
    assert found.table().heads == ("coefficient", "odds ratio")
    text = " ".join(found.to_text().split())
    assert "A ridge penalty of 2 on all but the intercept pulls coefficients towards 0: there are no" in text
    assert "nan" not in text
    assert "with a ridge penalty of 2" in found.model.in_words
    early = FittedModel.of(found.spec, [state for kind, state in states if kind == "analysis-model"][-1])
    assert (early.status, early.coefficients) == (Status.RUNNING, ())


def test_information_that_no_records_give_does_not_hide_behind_the_penalty(tmp_path: Path) -> None:
    job = job_of("logistic", "died", [["age"]], ridge=1e9)
    tables = read(tmp_path, job, unevenly(made_rows(400)))
    states = [state for kind, state in states_of(job, tables) if kind == "analysis-model"]
    for phase, state, is_last in (
        (ModelPhase(tables=job.spec.tables), states[0], False),
        (ModelFitPhase(tables=job.spec.tables), states[-1], True),
    ):
        parts = [model_sums(each, job.spec.tables, state, is_last=is_last) for each in tables]
        sums = {each: np.sum([part[each] for part in parts], axis=0) for each in parts[0]}
        context = PhaseContext(round=3, members=4, classes=0, state=state, trained=())
        assert phase.next_state(context, sums).state is not None
        result = phase.next_state(context, {**sums, INFORMATION: sums[INFORMATION] * [[1, 1], [1, -1]]})
        assert (result.state, result.reason) == (None, IMPLAUSIBLE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(({"ridge": ridge}, "model.ridge: ") for ridge in (0.0, -1.0, 2e12, np.inf, np.nan, True)),
        ({"ridge": 1.0, "errors": "patient"}, "errors: not allowed with ridge, whose coefficients have none"),
    ],
)
def test_penalties_that_are_none_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        job_of("logistic", "died", [["age"]], **fields)


@pytest.mark.parametrize("ridge", [5e-324, 1e12])
@pytest.mark.parametrize("width", [1e-30, 1e30])
@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_penalties_and_edges_at_their_ends_leave_finite_steps(
    family: str, width: float, ridge: float
) -> None:
    """Of products of three columns the penalty is the sixth power of a width."""
    terms = [["a"], ["b"], ["c"], ["a", "b"], ["a", "c"], ["b", "c"], ["a", "b", "c"]]
    job = analysis_job(
        columns=[{"name": name, "edges": [0.0, width]} for name in ("a", "b", "c", "y")],
        model={"outcome": "y", "family": family, "terms": terms, "ridge": ridge},
    )
    tables, size = job.spec.tables, len(terms) + 1
    z_NK = np.random.default_rng(2).uniform(-1.0, 1.0, (200, 4))
    table = DescribedTable(parts_NC=np.zeros((200, 4), np.int64), z_NK=z_NK, name="ward")
    state: Arrays = {
        STATUS: np.array(Status.RUNNING, np.uint8),
        TOTAL: np.array(200),
        ROW_COUNTS: np.array([200]),
        ITERATIONS: np.zeros((), np.int64),
        **{name: np.zeros(size) for name in (COEFFICIENTS, PREVIOUS)},
        **{name: np.zeros(()) for name in (LIKELIHOOD, DECREMENT)},
    }
    for phase, is_last in (*[(ModelPhase(tables=tables), False)] * 8, (ModelFitPhase(tables=tables), True)):
        context = PhaseContext(round=1, members=4, classes=0, state=state, trained=())
        after = phase.next_state(context, model_sums(table, tables, state, is_last=is_last)).state
        assert after is not None
        assert all(np.isfinite(array).all() for array in after.values())
        state = after
    if ridge > 1.0 and width < 1.0:
        assert status_in(state) is Status.CONVERGED
