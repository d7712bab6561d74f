"""A Cox model over four uneven silos, against lifelines and statsmodels over the pooled records."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from statsmodels.datasets import heart
from statsmodels.duration.hazard_regression import PHReg
from statsmodels.duration.survfunc import SurvfuncRight

from client.analysis.regression import FittedModel
from client.analysis.results import AnalysisResults
from client.analysis.survival import SurvivalCurves
from crypto.errors import ConfigError
from silo_agent.training.analysis.model import model_sums
from strategies.analysis.counts import IMPLAUSIBLE
from strategies.analysis.cox import EVENT_SUMS, EVENTS, MOMENTS
from strategies.analysis.model_state import COEFFICIENTS, COVARIANCE, MODEL_PARTS, TREND, Status
from strategies.analysis.regression import ModelFitPhase, ModelPhase
from strategies.analysis.values import MEANS
from strategies.base import Arrays, PhaseContext
from strategies.exact import logarithm
from tests.support.analyses import analysis_job, binned, read, states_of, unevenly

COLUMNS: dict[str, dict[str, Any]] = {
    "state": {"categories": ["alive", "dead"]},
    "months": {"edges": [0, 6, 12, 18, 24, 36]},
    "age": {"edges": [30, 45, 55, 65, 80], "unit": "years"},
    "arm": {"categories": ["placebo", "treated"]},
    "site": {"categories": ["a", "b"]},
}


def made_rows(count: int = 1200) -> list[dict[str, Any]]:
    """By whole numbers alone: the same with every version of every library."""
    state, found = 7, []

    def drawn(below: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % below

    for _ in range(count):
        age, arm, site = 30 + drawn(500) / 10, drawn(2), drawn(2)
        # more than 36 months are cut off by the visit
        death, visit = drawn(1500 + 900 * arm + 300 * site - int(12 * age)) / 20, drawn(720) / 20
        found.append(
            {
                "state": "dead" if death <= visit else "alive",
                "months": min(death, visit),
                "age": age,
                "arm": ("placebo", "treated")[arm],
                "site": "ab"[site],
            }
        )
    return found


def job_of(terms: list[list[str]] | None = None, **fields: Any) -> Any:
    terms = [["age"], ["arm"]] if terms is None else terms
    names = dict.fromkeys(["state", "months", *(name for term in terms for name in term)])
    names |= dict.fromkeys(fields.get("strata", ()))
    model = {"outcome": "state", "family": "cox", "time": "months", "terms": terms, **fields}
    return analysis_job(columns=[{"name": name, **COLUMNS[name]} for name in names], model=model)


def fitted(
    folder: Path, rows: list[dict[str, Any]], job: Any
) -> tuple[FittedModel, list[tuple[str, Arrays]]]:
    states = states_of(job, read(folder, job, unevenly(rows)))
    return FittedModel.of(job.spec, states[-1][1]), states


# lifelines 0.30.3 and statsmodels 0.15.0 of these rows, times replaced by places of published bins:
# PHReg(place, x, status=, strata=, ties=).fit(method="newton"): params, bse, llf; of Efron's rule
# CoxPHFitter().fit(..., fit_options={"precision": 1e-12}).log_likelihood_ratio_test(), and
# proportional_hazard_test(time_transform=): identity, or scipy's rankdata of the events
CERTIFIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"trend": "identity"},
        {
            "coefficients": [0.015295985306643774, -0.8966438766831794],
            "errors": [0.003801105784481184, 0.11746446179506359],
            "likelihood": -2187.329601189475,
            "ratio": 79.66413532777824,
            "change": [1.5297528, 3.16739357],
        },
    ),
    (
        {"terms": [["age"], ["arm"], ["age", "arm"]]},
        {
            "coefficients": [0.01603064417863547, -0.7566524054656338, -0.0024532582204622967],
            "errors": [0.004543779928421762, 0.48690368374463333, 0.008294535837661382],
            "likelihood": -2187.285875718456,
            "ratio": 79.75158626981647,
            "change": [2.12605194, 0.08282507, 0.49384422],
        },
    ),
    (
        {"ties": "breslow"},
        {
            "coefficients": [0.014287350597861473, -0.847590243180652],
            "errors": [0.0038008403058962673, 0.11739583377846487],
            "likelihood": -2209.4220874334956,
        },
    ),
    (
        {"strata": ["site"]},
        {
            "coefficients": [0.016355574622995618, -0.9614505757664582],
            "errors": [0.0038074340083535294, 0.11833079563230454],
            "likelihood": -1986.1469410180491,
            "ratio": 89.51631294355457,
            "change": [2.62956934, 2.39950183],
        },
    ),
    (
        {"strata": ["site"], "ties": "breslow"},
        {
            "coefficients": [0.014073023868641593, -0.8640451688223811],
            "errors": [0.003791738393615758, 0.11784617776361445],
            "likelihood": -2023.0983287884599,
        },
    ),
]


@pytest.mark.parametrize(("fields", "certified"), CERTIFIED)
def test_figures_are_those_of_the_pooled_binned_records(
    fields: dict[str, Any], certified: dict[str, Any], tmp_path: Path
) -> None:
    found, _ = fitted(tmp_path, made_rows(), job_of(**fields))
    assert found.status is Status.CONVERGED
    errors = certified["errors"]
    for each, coefficient, error in zip(found.coefficients, certified["coefficients"], errors, strict=True):
        assert each.estimate == pytest.approx(coefficient, abs=1e-8 * error)
        assert each.error == pytest.approx(error, rel=1e-8)
    assert found.log_likelihood == pytest.approx(certified["likelihood"], abs=1e-7)
    tests = {test.figure: test.statistic for test in found.tests}
    if "ratio" in certified:
        assert tests["likelihood ratio chi-squared"] == pytest.approx(certified["ratio"], abs=1e-7)
        assert [each.trend for each in found.coefficients] == pytest.approx(certified["change"], rel=1e-6)


def test_results_say_what_is_estimated_and_summarize_as_lifelines_does(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="needs the extra notebook")
    job = job_of()
    found, states = fitted(tmp_path, made_rows(), job)
    results = AnalysisResults.of(job.spec, states[-1][1])
    text = " ".join(results.to_text().split())
    assert "cox model of state dead by age + arm: 1200 complete records" in text
    assert "records with times binned alike (Efron)" in text
    assert "Bins of events: 0 to 6; 6 to 12; 12 to 18; 18 to 24; 24 to 36." in text
    assert "Those censored are at risk in each that begins before theirs ends: 0 to 6; 6 to 12;" in text
    assert "months, state dead" in text
    assert "HC1" not in results.to_csv() + text
    assert "hazard ratio, lower end" in results.to_csv()
    summary = found.summary()
    assert [*summary.index] == ["age (years)", "arm treated"]
    assert [*summary.columns][:3] == ["coef", "exp(coef)", "se(coef)"]
    assert summary.loc["arm treated", "exp(coef)"] == pytest.approx(
        np.exp(found.coefficients[1].estimate), rel=1e-12
    )


def test_results_name_strata_and_say_which_have_no_baselines_and_why(tmp_path: Path) -> None:
    """A model with strata read as one without; where theirs were merged they had "no coefficient"."""
    rows = made_rows()
    found, _ = fitted(tmp_path, rows, job_of(strata=["site"]))
    assert found.title == "cox model of state dead by age + arm, stratified by site: 1200 complete records"
    assert "baselines" not in found.to_text()
    few = [{**row, "site": "ab"[place % 60 == 0]} for place, row in enumerate(rows)]
    found, _ = fitted(tmp_path, few, job_of(strata=["site"]))
    text = " ".join(found.to_text().split())
    assert (
        "site has no baselines of its own: its parts are merged into one, since a finer combination" in text
    )
    assert "has fewer than 10 records." in text


def test_bins_are_merged_until_each_cell_holds_enough(tmp_path: Path) -> None:
    """By site, too, events of the same records have three bins, not five."""
    for fields, bins in (
        ({}, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"strata": ["site"]}, [0, 1, 2, 3, 4, 5, 6, 7, 7, 7]),
    ):
        job = job_of(**fields)
        rows = made_rows()
        _, states = fitted(tmp_path, rows, job)
        assert states[-1][1][f"{MODEL_PARTS}1"].tolist() == bins
        edges = np.array(COLUMNS["months"]["edges"])
        names = ("arm", *fields.get("strata", ()))
        held: dict[tuple[Any, ...], int] = {}
        for row in rows:
            place = min(int(np.searchsorted(edges, row["months"], side="right")) - 1, 4)
            cell = (bins[place + 5 * (row["state"] == "dead")], *(row[name] for name in names))
            held[cell] = held.get(cell, 0) + 1
        assert min(held.values()) >= 10
        assert len(held) == (max(bins) + 1) * 2 ** len(names)


# of how many records one is censored before the end of the trial, all being seen until then else
CENSORED: list[tuple[int, dict[str, Any], list[int]]] = [
    (900, {}, [0, 0, 0, 0, 0]),
    (12, {}, [0, 0, 0, 1, 1]),
    (12, {"ties": "breslow"}, [0, 0, 0, 1, 1]),
    (3, {"strata": ["site"]}, [0, 0, 1, 1, 2]),
]


@pytest.mark.parametrize(("one_of", "fields", "bins"), CENSORED)
def test_censored_records_merge_by_themselves(
    one_of: int, fields: dict[str, Any], bins: list[int], tmp_path: Path
) -> None:
    """Against statsmodels over the pooled records, with times binned alike."""
    rows = [
        {**row, "months": 35.0} if row["state"] == "alive" and place % one_of else row
        for place, row in enumerate(made_rows(900))
    ]
    found, states = fitted(tmp_path, rows, job_of(**fields))
    chosen = states[-1][1][f"{MODEL_PARTS}1"].tolist()
    assert chosen[:5] == bins
    check_fit(found, chosen, rows, **fields)


def check_fit(
    found: FittedModel,
    bins: list[int],
    rows: list[dict[str, Any]],
    *,
    strata: list[str] | None = None,
    ties: str = "efron",
) -> None:
    is_dead_N = np.array([row["state"] == "dead" for row in rows])
    edges = COLUMNS["months"]["edges"]
    time_N = binned([row["months"] for row in rows], is_dead_N.tolist(), edges=edges, bins=bins)
    design_NP = np.array([[row["age"], row["arm"] == "treated"] for row in rows], np.float64)
    of_strata = None if strata is None else np.array([row[strata[0]] for row in rows])
    fit = PHReg(time_N, design_NP, status=is_dead_N, strata=of_strata, ties=ties).fit(method="newton")
    assert found.status is Status.CONVERGED
    for each, coefficient, error in zip(found.coefficients, fit.params, fit.bse, strict=True):
        assert each.estimate == pytest.approx(coefficient, abs=1e-7 * error)
        assert each.error == pytest.approx(error, rel=1e-7)
    assert found.log_likelihood == pytest.approx(fit.llf, abs=1e-6)


AGES = [8, 30, 40, 45, 50, 55, 60, 65, 70, 75, 90]
# of public records edges of time, columns of numbers and of two categories
PUBLIC: dict[str, tuple[list[float], dict[str, list[float]], list[str]]] = {
    "heart": ([0, 30, 60, 90, 180, 365, 730, 1500, 3700], {"age": AGES[:8]}, []),
    "rossi": (
        [0, *range(5, 52, 4), 53],
        {"age": [15, 20, 22, 25, 30, 50], "prio": [0, 1, 2, 4, 8, 20]},
        ["fin"],
    ),
    "lung": ([0, *range(30, 1030, 30), 1100], {"age": AGES[1:]}, ["sex"]),
}


def public_rows(name: str) -> list[dict[str, Any]]:
    """heart: of statsmodels. The others come with lifelines, whose files alone are read."""
    if name == "heart":
        found = heart.load_pandas().data
        columns = (found["survival"], found["censors"].astype(int), found["age"])
        return [dict(zip(("time", "status", "age"), row, strict=True)) for row in zip(*columns, strict=True)]
    spec = find_spec("lifelines")
    if spec is None or spec.origin is None:
        pytest.skip("needs the files of lifelines")
    time, status = {"rossi": ("week", "arrest"), "lung": ("time", "status")}[name]
    with (Path(spec.origin).parent / "datasets" / f"{name}.csv").open() as file:
        return [{**row, "time": row[time], "status": row[status]} for row in csv.DictReader(file)]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_records_have_their_curves_and_models(name: str, tmp_path: Path) -> None:
    """Against statsmodels over the pooled records, with times binned alike."""
    (edges, numbers, factors), rows = PUBLIC[name], public_rows(name)
    ended = [{"name": "time", "edges": edges}, {"name": "status", "categories": ["0", "1"]}]
    columns = [{"name": each, "edges": ends} for each, ends in numbers.items()]
    columns += [{"name": each, "categories": sorted({row[each] for row in rows})} for each in factors]
    time, is_event = [float(row["time"]) for row in rows], [int(row["status"]) == 1 for row in rows]

    job = analysis_job(columns=ended, survival={"time": "time", "status": "status"})
    state = states_of(job, read(tmp_path, job, unevenly(rows)))[-1][1]
    (curve,) = SurvivalCurves.of(job.spec, state).curves
    time_N = binned(time, is_event, edges=edges, bins=state[f"{MODEL_PARTS}0"].tolist())
    expected = SurvfuncRight(time_N, np.array(is_event))
    assert len(curve.bins) >= 4
    assert [each.survival for each in curve.bins] == pytest.approx(expected.surv_prob.tolist(), rel=1e-12)
    assert [each.error for each in curve.bins] == pytest.approx(expected.surv_prob_se.tolist(), rel=1e-9)

    terms = [[each] for each in (*numbers, *factors)]
    model = {"outcome": "status", "family": "cox", "time": "time", "terms": terms}
    found, states = fitted(tmp_path, rows, analysis_job(columns=[*ended, *columns], model=model))
    time_N = binned(time, is_event, edges=edges, bins=states[-1][1][f"{MODEL_PARTS}0"].tolist())
    second = {each: max(row[each] for row in rows) for each in factors}
    design_NP = np.array(
        [
            [*(float(row[each]) for each in numbers), *(row[each] == second[each] for each in factors)]
            for row in rows
        ],
        np.float64,
    )
    fit = PHReg(time_N, design_NP, status=np.array(is_event), ties="efron").fit(method="newton")
    assert found.status is Status.CONVERGED
    assert [each.estimate for each in found.coefficients] == pytest.approx(fit.params.tolist(), abs=1e-9)
    assert [each.error for each in found.coefficients] == pytest.approx(fit.bse.tolist(), rel=1e-7)


def test_a_model_whose_events_are_in_one_bin_is_withheld(tmp_path: Path) -> None:
    rows = [{**row, "months": 35 if row["state"] == "dead" else row["months"]} for row in made_rows(600)]
    found, states = fitted(tmp_path, rows, job_of())
    assert found.status is Status.SMALL_CELLS
    assert not found.coefficients
    assert not {COVARIANCE, TREND} & states[-1][1].keys()
    assert "Withheld: no two bins of time are left" in found.to_text()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"time": None}, "time: expected with a cox model, and with no other one"),
        ({"family": "logistic"}, "time: expected with a cox model, and with no other one"),
        ({"family": "logistic", "time": None, "strata": ["arm"]}, "strata: expected with a cox model alone"),
        (
            {"time": "age", "terms": [["months"], ["arm"]]},
            "model.time: expected a column with edges from 0 on",
        ),
        ({"terms": [["arm"]], "strata": ["age"]}, "expected columns with categories, age has none"),
        ({"strata": ["arm"]}, "terms: arm is time or stratum"),
        ({"terms": [["age"], ["arm"], ["months"]]}, "terms: months is time or stratum"),
        ({"strata": ["state"]}, "state is two of outcome, time and strata"),
        ({"outcome": "arm", "terms": [["age"], ["state"]], "ties": "exact"}, "ties"),
    ],
)
def test_models_that_do_not_fit_their_columns_are_refused(fields: dict[str, Any], message: str) -> None:
    model = {"outcome": "state", "family": "cox", "time": "months", "terms": [["age"], ["arm"]], **fields}
    columns = [{"name": name, **COLUMNS[name]} for name in ("state", "months", "age", "arm")]
    with pytest.raises(ConfigError, match=re.escape(message)):
        analysis_job(columns=columns, model=model)


def stepped(folder: Path) -> tuple[Any, list[tuple[Any, Arrays, dict[str, Any]]]]:
    """The job, and of a step and of the last phase the state and the silos' sums."""
    job, found = job_of(strata=["site"]), []
    tables = read(folder, job, unevenly(made_rows()))
    states = [state for kind, state in states_of(job, tables) if kind == "analysis-model"]
    for phase, state, is_last in (
        (ModelPhase(tables=job.spec.tables), states[0], False),
        (ModelFitPhase(tables=job.spec.tables), states[-1], True),
    ):
        parts = [
            model_sums(each.complete(job.spec.tables), job.spec.tables, state, is_last=is_last)
            for each in tables
        ]
        found.append(
            (phase, state, {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]})
        )
    return job, found


Change = Callable[[NDArray[Any]], NDArray[Any]]


@pytest.mark.parametrize(
    ("name", "lie"),
    [
        (MOMENTS, lambda sums: -sums),
        (MOMENTS, lambda sums: sums * 0.0),
        (MOMENTS, lambda sums: sums * 1e6),
        (MOMENTS, lambda sums: sums + 90.0 * (np.arange(sums.shape[1]) == 1)),
        (EVENTS, lambda sums: sums + 1),
        (EVENTS, lambda sums: sums[::-1] - 2**62),
        (EVENTS, lambda sums: sums[::-1]),
        (EVENTS, lambda sums: np.where(np.arange(len(sums)) == 0, sums.sum(), 0)),
        (EVENT_SUMS, lambda sums: sums + 1000.0),
    ],
)
def test_sums_that_no_records_give_are_not_applied(name: str, lie: Change, tmp_path: Path) -> None:
    _, found = stepped(tmp_path)
    for phase, state, sums in found:
        context = PhaseContext(round=3, members=4, classes=0, state=state, trained=())
        assert phase.next_state(context, sums).state is not None
        result = phase.next_state(context, {**sums, name: lie(sums[name])})
        assert (result.state, result.reason) == (None, IMPLAUSIBLE)


def test_lies_of_any_size_leave_numbers_or_nothing(tmp_path: Path) -> None:
    """Seed 3: each changes one number of one sum by a factor from a billionth to a billion, or its sign."""
    _, found = stepped(tmp_path)
    rng, applied = np.random.default_rng(3), 0
    for phase, state, sums in found:
        context = PhaseContext(round=3, members=4, classes=0, state=state, trained=())
        for _ in range(100):
            name = str(rng.choice([MOMENTS, EVENTS, EVENT_SUMS]))
            changed = np.array(sums[name])
            place = tuple(int(rng.integers(size)) for size in changed.shape)
            factor = float(rng.choice([-1.0, 1.0])) * 10.0 ** float(rng.uniform(-9, 9))
            changed[place] = changed[place] * factor
            result = phase.next_state(context, {**sums, name: changed})
            if result.state is None:
                assert result.reason == IMPLAUSIBLE
                continue
            applied += 1
            for array in result.state.values():
                assert np.isfinite(array).all()
    assert applied < 150


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (COEFFICIENTS, np.zeros(3), "expected float64 of shape (2,)"),
        (COEFFICIENTS, np.array([np.inf, 0.0]), "expected finite numbers"),
        (f"{MODEL_PARTS}1", np.array([0, 1, 2, 3, 5]), "expected int64 of shape (10,)"),
        (f"{MODEL_PARTS}1", np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 10]), "expected parts from 0 to 9"),
        (f"{MODEL_PARTS}1", np.array([0, 1, 2, 3, 4, 3, 4, 5, 6, 7]), "expected bins of each ending"),
        (f"{MODEL_PARTS}1", np.array([0, 1, 2, 3, 4, 4, 5, 6, 7, 8]), "expected bins of each ending"),
        (f"{MODEL_PARTS}1", np.array([0, 1, 0, 1, 2, 3, 4, 5, 6, 7]), "expected bins of each ending"),
        (f"{MODEL_PARTS}4", np.array([0, -1]), "expected parts from 0 to 1"),
        (f"{MEANS}2", np.zeros(1), "expected float64 of shape (2,)"),
        (f"{MEANS}2", np.array([np.nan, 0.0]), "expected finite numbers"),
    ],
)
def test_states_that_do_not_say_where_a_model_is_are_refused(
    name: str, array: NDArray[Any], message: str, tmp_path: Path
) -> None:
    job, found = stepped(tmp_path)
    (table, *_) = read(tmp_path, job, unevenly(made_rows()))
    with pytest.raises(ConfigError, match=re.escape(message)):
        model_sums(table, job.spec.tables, {**found[0][1], name: array}, is_last=False)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (COVARIANCE, -np.eye(2), "expected no variance below 0"),
        (COVARIANCE, np.ones((2, 2)), "expected one that has an inverse"),
        (f"{MODEL_PARTS}1", np.array([0, 1, 2, 3, 4, 4, 5, 6, 7, 8]), "expected bins of each ending"),
        (TREND, np.zeros(3), "method/model_trend: expected float64 of shape (2,)"),
    ],
)
def test_results_of_states_from_outside_are_refused(
    name: str, array: NDArray[Any], message: str, tmp_path: Path
) -> None:
    job = job_of()
    _, states = fitted(tmp_path, made_rows(), job)
    with pytest.raises(ConfigError, match=re.escape(message)):
        FittedModel.of(job.spec, {**states[-1][1], name: array})


def test_the_logarithm_is_that_of_the_library() -> None:
    value_N = np.exp(np.linspace(-700.0, 700.0, 4001))
    assert logarithm(value_N) == pytest.approx(np.log(value_N), rel=1e-15, abs=1e-15)
