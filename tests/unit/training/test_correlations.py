"""Correlations over four uneven silos, against those of the pooled records, and what they tell a reader.

Source: docs/decisions/0041-analysis.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.stats import pearsonr

from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.correlations import Correlation, Correlations
from client.analysis.results import AnalysisResults
from crypto.errors import ConfigError
from silo_agent.training.analysis.cells import score_products
from strategies.analysis.counts import IMPLAUSIBLE
from strategies.analysis.values import (
    CORRELATIONS,
    CORRELATIONS_SHOWN,
    DEVIATIONS,
    MEANS,
    SCORES,
    SHOWN,
    ProductsPhase,
    standard_of,
)
from strategies.base import Array, Arrays, PhaseContext
from tests.support.analyses import Rows, analysis_job, read, states_of, unevenly
from tests.support.shared_data import shared_folder

AGE = {"name": "age", "edges": [18, 40, 45, 50, 55, 60, 65, 70, 110]}
CHOL = {"name": "chol", "edges": [60, 160, 200, 220, 240, 260, 280, 320, 700]}
FAR = 1e6  # z of a value between the edges of RATE is off by some of its deviations where it is float32
RATE = {"name": "rate", "edges": [0.0, *(FAR + each for each in range(110, 160, 5)), 3 * FAR]}


def made_rows(count: int, *, seed: int = 3) -> list[dict[str, Any]]:
    """One of 15 lacks a value."""
    rng = np.random.default_rng(seed)
    age_N = rng.normal(55, 9, count).clip(20, 100).round()
    chol_N = (2.5 * age_N + 105 + rng.normal(0, 30, count)).clip(65, 690).round()
    rate_N = FAR + 200 - 1.2 * age_N + rng.normal(0, 12, count).round(1)
    rows = [
        {"age": age, "chol": chol, "rate": rate}
        for age, chol, rate in zip(age_N.tolist(), chol_N.tolist(), rate_N.tolist(), strict=True)
    ]
    for place in range(0, count, 15):
        rows[place][("age", "chol", "rate")[place % 3]] = ""
    return rows


def pooled(rows: Rows) -> pandas.DataFrame:
    return pandas.DataFrame(rows).replace("", np.nan).astype(float).dropna()


def ended(folder: Path, rows: Rows, *columns: dict[str, Any]) -> tuple[AnalysisSpec, Arrays]:
    job = analysis_job(columns=[*columns], correlations=True)
    states = states_of(job, read(folder, job, unevenly(rows)))
    expected = ["enrollment", "analysis-counts", "analysis-values", "analysis-products"]
    assert [kind for kind, _ in states] == expected
    assert isinstance(job.spec, AnalysisSpec)
    return job.spec, states[-1][1]


def found_in(spec: AnalysisSpec, state: Arrays) -> pandas.DataFrame:
    frame = AnalysisResults.of(spec, state).frame().reset_index()
    frame = frame[frame["figure"].str.startswith("correlation")]
    return frame.pivot(index=["column", "part"], columns="figure", values="value")


@pytest.mark.parametrize("count", [300, 1_000, 6_000])
def test_correlations_are_those_of_the_pooled_complete_records(count: int, tmp_path: Path) -> None:
    """Also of values that all edges but the outermost hold within a hundred-thousandth of their range."""
    rows = made_rows(count)
    spec, state = ended(tmp_path, rows, AGE, CHOL, RATE)
    records = pooled(rows)
    found, exact = found_in(spec, state), records.corr()
    assert len(found) == 3
    for (one, other), row in found.iterrows():
        expected = exact.loc[one, other]
        error = (1 - expected**2) / math.sqrt(len(records))
        assert row["correlation"] == pytest.approx(expected, abs=max(error / 4, 0.0005) + 1e-9)
        thousandths = row["correlation"] * 1000
        assert thousandths == pytest.approx(round(thousandths), abs=1e-9)
        interval = pearsonr(records[one], records[other]).confidence_interval()
        ends = row["correlation, lower end"], row["correlation, upper end"]
        assert ends == pytest.approx([*interval], abs=max(error / 2, 0.0015))
    assert f"correlations: {len(records)} complete records" in AnalysisResults.of(spec, state).to_text()


def test_correlations_of_four_hospitals_are_those_of_all_their_records(tmp_path: Path) -> None:
    heads = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"]
    parts = []
    for name in ("cleveland", "hungarian", "switzerland", "va"):
        file = shared_folder("heart_disease") / f"processed.{name}.data"
        frame = pandas.read_csv(
            file, header=None, names=[*heads, "slope", "ca", "thal", "num"], na_values="?"
        )
        parts.append(frame[["age", "trestbps", "thalach"]])
    records = pandas.concat(parts).dropna()
    columns = [
        {"name": "age", "edges": [18, 40, 45, 50, 55, 60, 65, 110]},
        {"name": "trestbps", "edges": [70, 110, 120, 130, 140, 150, 160, 250]},
        {"name": "thalach", "edges": [50, 100, 120, 130, 140, 150, 160, 170, 220]},
    ]
    job = analysis_job(columns=columns, correlations=True)
    given: list[Rows] = [part.astype(object).where(part.notna(), "").to_dict("records") for part in parts]
    spec, state = job.spec, states_of(job, read(tmp_path, job, given))[-1][1]
    assert isinstance(spec, AnalysisSpec)
    within = records[records["trestbps"] >= 70]
    found, exact = found_in(spec, state), within.corr()
    assert len(found) == 3
    for (one, other), row in found.iterrows():
        error = 1 / math.sqrt(len(within))
        assert row["correlation"] == pytest.approx(exact.loc[one, other], abs=error / 4)


def pair_rows(value_N2: Array) -> list[dict[str, Any]]:
    return [{"x": x, "y": y} for x, y in value_N2.tolist()]


def column(name: str, *edges: float) -> dict[str, Any]:
    return {"name": name, "edges": [*edges]}


def shown(folder: Path, value_N2: Array, *, edges: Sequence[float] = (-4, -1, -0.4, 0.4, 1, 4)) -> list[bool]:
    _, state = ended(folder, pair_rows(value_N2), column("x", *edges), column("y", *edges))
    return [bool(each) for each in state[CORRELATIONS_SHOWN]]


def alike(count: int, correlation: float, *, seed: int = 4) -> Array:
    """Shapes: (count, 2)."""
    one_N, other_N = np.random.default_rng(seed).normal(size=(2, count)).clip(-4, 4)
    return np.stack([one_N, correlation * one_N + math.sqrt(1 - correlation**2) * other_N], axis=1).clip(
        -8, 8
    )


@pytest.mark.parametrize("way", [1.0, -1.0])
def test_a_correlation_that_empties_a_cell_is_not_shown(way: float, tmp_path: Path) -> None:
    """0.97 of 100 leaves no more than two records low in one column and high in the other."""
    assert shown(tmp_path, alike(100, 0.4) * [1, way]) == [True]
    assert shown(tmp_path, alike(100, 0.97) * [1, way]) == [False]
    # of wider parts it tells less, and of more records, too
    assert shown(tmp_path, alike(400, 0.97) * [1, way]) == [False]
    assert shown(tmp_path, alike(6_000, 0.97) * [1, way]) == [True]


def test_which_cells_a_correlation_empties_follows_from_its_sign(tmp_path: Path) -> None:
    """The highest parts begin far from the means and the lowest ones near them, so 0.88 leaves room in the
    cells of one of each, and -0.88 none in that of both highest."""
    edges = (-4, -0.3, 0.2, 0.8, 1.5, 4)
    value_N2 = alike(300, 0.88)
    assert shown(tmp_path, value_N2, edges=edges) == [True]
    value_N2[:, 1] *= -1
    assert shown(tmp_path, value_N2, edges=edges) == [False]


def most_across(x_N: Array, y_N: Array, low: float, high: float) -> int:
    """The most records below `low` in x and from `high` on in y, over all ways to pair these values that have
    their sum of products or a larger one. Of m, those nearest to the middle are paired in their order, and so
    are all others: no other way has a larger sum."""
    x_N, y_N, products = np.sort(x_N), np.sort(y_N), float(x_N @ y_N)
    below, above, found = int((x_N < low).sum()), int((y_N >= high).sum()), 0
    for count in range(min(below, above) + 1):
        its_x = np.arange(below - count, below)
        its_y = np.arange(len(y_N) - above, len(y_N) - above + count)
        largest = x_N[its_x] @ y_N[its_y] + np.delete(x_N, its_x) @ np.delete(y_N, its_y)
        found = count if largest >= products else found
    return found


def test_no_shown_correlation_gives_a_cell_to_one_who_knows_all_values_but_not_whose(tmp_path: Path) -> None:
    """Of whole numbers and of long tails, too. A reader knows less: counts by part, means and deviations, by
    which ten fit."""
    rng = np.random.default_rng(5)
    least_shown, withheld = [], []
    for trial in range(60):
        value_N2 = alike(int(rng.choice([60, 100, 200, 400])), float(rng.uniform(0.3, 0.99)), seed=trial)
        if trial % 3 == 1:
            value_N2 = np.exp(0.6 * value_N2)
        if trial % 3 == 2:
            value_N2 = (value_N2 * 5).round()
        value_N2 = (value_N2 - value_N2.mean(axis=0)) / value_N2.std(axis=0, ddof=1)
        edges = [np.unique(np.quantile(each_N, [0.2, 0.35, 0.5, 0.65, 0.8])) for each_N in value_N2.T]
        columns = [column(name, -12, *each.tolist(), 12) for name, each in zip("xy", edges, strict=True)]
        _, state = ended(tmp_path, pair_rows(value_N2), *columns)
        x_N, y_N = value_N2.T
        across = min(
            most_across(x_N, y_N, edges[0][0], edges[1][-1]), most_across(y_N, x_N, edges[1][0], edges[0][-1])
        )
        if not state[CORRELATIONS_SHOWN][0]:
            withheld.append(across)
        else:
            least_shown.append(across)
    assert len(least_shown) > 30
    assert min(least_shown) >= 4
    assert sum(each < 4 for each in withheld) >= 5


def all_tables(margin: Sequence[int]) -> Array:
    """Of three by three cells, whose rows and whose columns add up to these counts. Shapes: -> (T, 3, 3)."""
    free = np.meshgrid(*[np.arange(min(margin[i], margin[j]) + 1) for i in (0, 1) for j in (0, 1)])
    table_T33 = np.zeros((free[0].size, 3, 3), np.int64)
    table_T33[:, :2, :2] = np.stack([each.ravel() for each in free], axis=1).reshape(-1, 2, 2)
    table_T33[:, :2, 2] = np.array(margin[:2]) - table_T33[:, :2].sum(axis=2)
    table_T33[:, 2] = np.array(margin) - table_T33[:, :2].sum(axis=1)
    return table_T33[(table_T33 >= 0).all(axis=(1, 2))]


def test_no_cell_of_two_scores_is_known_where_their_correlation_is_shown(tmp_path: Path) -> None:
    """All tables of whole numbers from 0 to 2, whose counts a reader knows. Such scores should be no
    measurements: one of five cells has fewer than ten values."""
    margin = (15, 30, 15)
    score_N = np.repeat([0.0, 1.0, 2.0], margin)
    edges = (-0.5, 0.5, 1.5, 2.5)
    columns = [column("x", *edges), column("y", *edges)]
    spec, state = ended(tmp_path, pair_rows(np.stack([score_N, np.roll(score_N, 7)], axis=1)), *columns)
    mean, deviation = standard_of(state, 0, edges)
    z_3 = ((np.arange(3) - 1.0) / 1.5 - mean) / deviation
    phase = ProductsPhase(tables=spec.tables)
    context = PhaseContext(round=0, members=4, classes=1, state=state, trained=())
    seen: dict[tuple[int, float], list[Array]] = {}
    for table_33 in all_tables(margin):
        square = float(margin @ (z_3 * z_3))
        sums = np.array([square, float(z_3 @ table_33 @ z_3), square])
        found = phase.next_state(context, {SCORES: sums}).state
        assert found is not None
        key = int(found[CORRELATIONS_SHOWN][0]), float(found[CORRELATIONS][0])
        seen.setdefault(key, []).append(table_33)
    assert len(seen) > 40
    assert sum(map(len, seen.values())) == 12_376
    for key, tables in seen.items():
        assert (np.min(tables, axis=0) < np.max(tables, axis=0)).all(), key


def test_a_column_of_few_parts_or_of_one_value_has_no_correlation(tmp_path: Path) -> None:
    """Zeros and ones as numbers, a rare value, and a column whose mean is not shown for it."""
    value_N2 = alike(300, 0.3)
    ones = np.stack([value_N2[:, 0], (value_N2[:, 1] > 0.4).astype(float)], axis=1)
    assert shown(tmp_path, ones, edges=(-4, -1, -0.4, 0.4, 0.9, 1.1, 4)) == [False]
    far = value_N2.copy()
    far[7] = [0.5, 8.9]
    far[:, 1] = np.where(np.arange(300) == 7, 8.9, far[:, 1] / 90)
    spec, state = ended(
        tmp_path, pair_rows(far), column("x", -4, -1, 0, 1, 4), column("y", -9, -0.01, 0, 0.01, 9)
    )
    assert [int(state[f"{SHOWN}{place}"][0]) for place in (0, 1)] == [1, 0]
    assert (state[CORRELATIONS].tolist(), state[CORRELATIONS_SHOWN].tolist()) == ([0.0], [0])
    # also where a silo lies about it
    context = PhaseContext(round=0, members=4, classes=1, state=state, trained=())
    result = ProductsPhase(tables=spec.tables).next_state(context, {SCORES: np.array([300.0, 60.0, 300.0])})
    assert result.state is not None
    assert result.state[CORRELATIONS_SHOWN].tolist() == [0]
    assert "Not shown: a mean of the two columns is not" in AnalysisResults.of(spec, state).to_text()


def test_of_few_records_a_column_no_correlation_is_shown(tmp_path: Path) -> None:
    """So many would be nearly as many numbers as the records are."""
    rng = np.random.default_rng(6)
    columns = [column(f"c{place}", -4, -0.5, 0, 0.5, 4) for place in range(24)]
    names = [each["name"] for each in columns]
    value_NK = rng.normal(size=(75, 24)).clip(-4, 4)
    rows = [dict(zip(names, each, strict=True)) for each in value_NK.tolist()]
    _, state = ended(tmp_path, rows, *columns)
    assert state[CORRELATIONS_SHOWN].sum() > 200
    _, state = ended(tmp_path, rows[:74], *columns)
    assert state[CORRELATIONS_SHOWN].sum() == 0


def before_products(folder: Path) -> tuple[ProductsPhase, PhaseContext, Array]:
    job = analysis_job(columns=[AGE, CHOL, RATE], correlations=True)
    tables = read(folder, job, unevenly(made_rows(400)))
    assert isinstance(job.spec, AnalysisSpec)
    asked = job.spec.tables
    state = states_of(job, tables)[-2][1]
    sums = sum(score_products(each.complete(asked), asked, state)[SCORES] for each in tables)
    context = PhaseContext(round=0, members=4, classes=1, state=state, trained=())
    return ProductsPhase(tables=asked), context, np.asarray(sums)


def test_sums_that_no_records_give_are_not_applied(tmp_path: Path) -> None:
    """0 is a square, 1 a product that both squares bound."""
    phase, context, sums = before_products(tmp_path)
    result = phase.next_state(context, {SCORES: sums})
    assert result.state is not None
    assert result.state[CORRELATIONS_SHOWN].tolist() == [1, 1, 1]
    for place, value in ((0, -1.0), (1, 400.0), (1, -1e9), (0, sums[0] * 0.3)):
        lie = sums.copy()
        lie[place] = value
        result = phase.next_state(context, {SCORES: lie})
        assert (result.state, result.reason) == (None, IMPLAUSIBLE), (place, value)
    for factor in (0.0, 0.4, 3.0):  # squares that are not those of scores
        result = phase.next_state(context, {SCORES: factor * sums})
        assert result.state is not None
        assert result.state[CORRELATIONS_SHOWN].tolist() == [0, 0, 0]


def test_a_state_without_means_is_refused_before_records_are_read(tmp_path: Path) -> None:
    job = analysis_job(columns=[AGE, CHOL, RATE], correlations=True)
    tables = read(tmp_path, job, unevenly(made_rows(100)))
    assert isinstance(job.spec, AnalysisSpec)
    state = states_of(job, tables)[-2][1]
    for name, array in (
        (f"{MEANS}0", np.array([np.nan, 1.0])),
        (f"{DEVIATIONS}1", np.ones(3)),
        (f"{SHOWN}2", np.ones(2)),
    ):
        with pytest.raises(ConfigError, match=f"{name}: expected"):
            score_products(tables[0], job.spec.tables, {**state, name: array})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": [AGE]}, "correlations: expected two columns at least"),
        (
            {"columns": [AGE, {"name": "sex", "categories": ["f", "m"]}]},
            "correlations: expected columns with edges, sex has none",
        ),
        ({"group": "age"}, "group: not allowed with correlations"),
        ({"privacy": {"epsilon": 1.0}}, "privacy: not allowed with correlations"),
        (
            {"model": {"outcome": "age", "family": "linear", "terms": [["chol"]]}},
            "correlations: not allowed with model",
        ),
        (
            {"columns": [{"name": f"c{place}", "edges": [0, 1]} for place in range(150)]},
            "correlations: expected at most 10000 sums of products, got 11325",
        ),
    ],
)
def test_correlations_that_do_not_fit_their_columns_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        analysis_job(**{"columns": [AGE, CHOL], "correlations": True, **fields})


def test_what_correlations_ask_is_said_in_words() -> None:
    spec = analysis_job(columns=[AGE, CHOL], correlations=True).spec
    assert isinstance(spec, AnalysisSpec)
    assert "sums values of age, chol for means; sums products of each two columns' values" in spec.in_words


@pytest.mark.parametrize(
    ("name", "array"),
    [
        (CORRELATIONS, np.array([0.1, 1.5, 0.2])),
        (CORRELATIONS, np.array([0.1, math.nan, 0.2])),
        (CORRELATIONS, np.array([0.1])),
        (CORRELATIONS, np.array([0.1, -1.001, 0.2])),
        (CORRELATIONS_SHOWN, np.array([1, 1, 1])),
    ],
)
def test_results_that_came_from_outside_are_checked(name: str, array: Array, tmp_path: Path) -> None:
    spec, state = ended(tmp_path, made_rows(400), AGE, CHOL, RATE)
    with pytest.raises(ConfigError, match=name):
        Correlations.of(spec, {**state, name: array})


def test_before_products_are_summed_results_say_so(tmp_path: Path) -> None:
    spec, state = ended(tmp_path, made_rows(400), AGE, CHOL, RATE)
    results = AnalysisResults.of(spec, {each: state[each] for each in state if "correlations" not in each})
    assert "not summed yet" in results.to_text()
    assert found_in(spec, state)["correlation"].notna().all()


def test_an_interval_holds_a_correlation_that_rounding_moved_to_1() -> None:
    for value in (1.0, -1.0):
        found = Correlation.of(value, 400)
        low, high = sorted(value * end for end in (found.low, found.high))
        assert (low < 0.9995, high) == (True, 1.0)
