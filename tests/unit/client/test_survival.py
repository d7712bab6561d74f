"""Survival curves as results show them, and what of a state that came from outside is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.results import AnalysisResults
from client.analysis.survival import SurvivalCurves
from client.analysis.tails import above
from crypto.errors import ConfigError
from strategies.analysis.counts import PART_COUNTS, PARTS
from strategies.analysis.model_state import MODEL_PARTS
from strategies.analysis.survival import IS_SHOWN, SURVIVAL_COUNTS
from strategies.base import Array
from tests.support.analyses import analysis_job, binned, read, states_of, unevenly

COLUMNS: list[dict[str, Any]] = [
    {"name": "months", "edges": [0, 6, 12, 24, 36, 60], "unit": "months"},
    {"name": "state", "categories": ["alive", "dead"]},
    {"name": "arm", "categories": ["placebo", "treated", "both"]},
]
SURVIVAL = {"time": "months", "status": "state", "group": "arm"}
BINS = MODEL_PARTS + "0"
Row = dict[str, Any]


def made_rows(count: int, *, seed: int, arms: Sequence[str] = ("placebo", "treated", "both")) -> list[Row]:
    """Some times are beyond the edges, some are missing, and so are some arms."""
    rng = np.random.default_rng(seed)
    rows = []
    for place in range(count):
        arm = arms[place % len(arms)]
        event, censored = rng.exponential(20 + 12 * arms.index(arm)), rng.uniform(0, 62)
        time = "" if rng.random() < 0.05 else round(float(min(event, censored)), 2)
        arm = "" if rng.random() < 0.05 else arm
        rows.append({"months": time, "state": ("alive", "dead")[int(event <= censored)], "arm": arm})
    return rows


def results(folder: Path, rows: Sequence[Row], **fields: Any) -> tuple[AnalysisSpec, dict[str, Array]]:
    job = analysis_job(**{"columns": COLUMNS, "survival": SURVIVAL, **fields})
    states = states_of(job, read(folder, job, unevenly(rows)))
    assert [kind for kind, _ in states] == ["enrollment", "analysis-counts"]
    assert isinstance(job.spec, AnalysisSpec)
    return job.spec, dict(states[-1][1])


@pytest.fixture(scope="module")
def three_arms(tmp_path_factory: pytest.TempPathFactory) -> tuple[AnalysisSpec, dict[str, Array], list[Row]]:
    rows = made_rows(2400, seed=3)
    return *results(tmp_path_factory.mktemp("silos"), rows), rows


def complete(rows: Sequence[Row]) -> list[tuple[float, bool, str]]:
    found = [(row["months"], row["state"] == "dead", row["arm"]) for row in rows]
    return [each for each in found if each[0] != "" and each[0] <= 60 and each[2] != ""]


def product_limit(
    records: Sequence[tuple[float, bool, str]], ends: Sequence[float]
) -> list[tuple[float, float]]:
    """Survival at each end and its error, record by record: times are the ends of their bins, and of equal
    ones events come first. With d events of n, each alone, 1/(n(n-1)) + ... telescopes to d/(n(n-d))."""
    at = sorted(
        (next(place for place, end in enumerate(ends) if time < end or end == ends[-1]), not dead)
        for time, dead, _ in records
    )
    left, survival, squared, found = len(at), 1.0, 0.0, []
    for place in range(len(ends)):
        for bin_, is_censored in at:
            if bin_ == place:
                if not is_censored:
                    survival *= (left - 1) / left
                    squared += 1 / (left * (left - 1))
                left -= 1
        found.append((survival, survival * math.sqrt(squared)))
    return found


def test_curves_are_those_of_the_pooled_records(
    three_arms: tuple[AnalysisSpec, dict[str, Array], list[Row]],
) -> None:
    spec, state, rows = three_arms
    found = SurvivalCurves.of(spec, state)
    assert [curve.label for curve in found.curves] == ["placebo", "treated", "both"]
    assert found.records == len(complete(rows))
    for curve in found.curves:
        mine = [each for each in complete(rows) if each[2] == curve.label]
        ends = [float(each.part.high or 0) for each in curve.bins]
        assert ends == [6, 12, 24, 36, 60]
        expected = product_limit(mine, ends)
        assert [(each.survival, each.error) for each in curve.bins] == [
            pytest.approx(each, rel=1e-12) for each in expected
        ]
        for each in curve.bins:
            assert each.at_risk == sum(time >= float(each.part.low or 0) for time, _, _ in mine)
            reached = 1.959963984540054 * each.error / each.survival / abs(math.log(each.survival))
            ends_of = [each.survival ** math.exp(side * reached) for side in (1, -1)]
            assert [each.low, each.high] == pytest.approx(ends_of, rel=1e-12)
        below = [end for end, (survival, _) in zip(ends, expected, strict=True) if survival <= 0.5]
        assert curve.median is not None
        assert curve.median.high == below[0]


def test_a_log_rank_test_is_that_of_permuted_events(
    three_arms: tuple[AnalysisSpec, dict[str, Array], list[Row]],
) -> None:
    """Expected events and their covariance are those of drawing the events of a bin among all at risk."""
    found = SurvivalCurves.of(*three_arms[:2])
    apart, covariance = np.zeros(3), np.zeros((3, 3))
    for alike in zip(*(curve.bins for curve in found.curves), strict=True):
        at_risk, events = (
            np.array([getattr(each, name) for each in alike]) for name in ("at_risk", "events")
        )
        n, d = at_risk.sum(), events.sum()
        apart += events - d * at_risk / n
        for j in range(3):
            for k in range(3):
                of_pair = at_risk[j] * (n - at_risk[j]) if j == k else -at_risk[j] * at_risk[k]
                covariance[j, k] += d * (n - d) * of_pair / (n * n * (n - 1))
    statistic = float(apart @ np.linalg.pinv(covariance, rcond=1e-9) @ apart)
    assert found.log_rank is not None
    assert (found.log_rank.freedom, found.log_rank.statistic) == (2, pytest.approx(statistic, rel=1e-9))
    assert found.log_rank.p == pytest.approx(float(chi2.sf(statistic, 2)), rel=1e-9)


def test_figures_of_two_small_tables_are_those_by_hand(tmp_path: Path) -> None:
    """Two arms of two bins, by hand: of 100 and 100 at risk 40 and 20 events, 10 censored in each; then of 50
    and 70 at risk 20 and 20 events."""
    counts = {
        ("placebo", 1): (10, 40),
        ("placebo", 7): (30, 20),
        ("treated", 1): (10, 20),
        ("treated", 7): (50, 20),
    }
    rows = [
        {"months": time, "state": state, "arm": arm}
        for (arm, time), each in counts.items()
        for state, number in zip(("alive", "dead"), each, strict=True)
        for _ in range(number)
    ]
    columns = [
        {"name": "months", "edges": [0, 6, 12]},
        COLUMNS[1],
        {"name": "arm", "categories": ["placebo", "treated"]},
    ]
    found = SurvivalCurves.of(*results(tmp_path, rows, columns=columns))
    assert [round(each.survival, 12) for curve in found.curves for each in curve.bins] == [
        0.6,
        0.36,
        0.8,
        round(0.8 * 5 / 7, 12),
    ]
    apart = 40 - 30 + 20 - 40 * 50 / 120
    variance = 60 * 140 * 100 * 100 / (200**2 * 199) + 40 * 80 * 50 * 70 / (120**2 * 119)
    assert found.log_rank is not None
    assert found.log_rank.statistic == pytest.approx(apart**2 / variance, rel=1e-12)
    assert found.curves[1].median is None
    assert "not reached" in found.to_text()
    assert found.curves[0].median is not None
    assert found.curves[0].median.label == "6 to 12"
    assert "One bin is left" not in found.to_text()
    columns[0] = {"name": "months", "edges": [0, 12]}
    assert "One bin is left" in SurvivalCurves.of(*results(tmp_path, rows, columns=columns)).to_text()


def test_events_keep_their_bins_where_nobody_is_censored_before_the_end(tmp_path: Path) -> None:
    rows = [{"months": 60, "state": "alive", "arm": "placebo"}] * 100
    rows += [{"months": place % 60, "state": "dead", "arm": "placebo"} for place in range(300)]
    found = SurvivalCurves.of(
        *results(tmp_path, rows, survival={"time": "months", "status": "state"}, columns=COLUMNS[:2])
    )
    (curve,) = found.curves
    assert [(each.part.label, each.at_risk, each.events, each.censored) for each in curve.bins] == [
        ("0 to 6", 400, 30, 0),
        ("6 to 12", 370, 30, 0),
        ("12 to 24", 340, 60, 0),
        ("24 to 36", 280, 60, 0),
        ("36 to 60", 220, 120, 100),
    ]
    assert [each.survival for each in curve.bins] == pytest.approx([0.925, 0.85, 0.7, 0.55, 0.25])
    text = " ".join(found.to_text().split())
    assert "those censored are at risk in each bin that begins before theirs ends: 0 to 60." in text
    assert "Bins were merged" not in text
    assert found.log_rank is None


@pytest.mark.parametrize("arms", [1, 2])
def test_curves_of_coarser_bins_of_censored_records_are_those_of_statsmodels(
    arms: int, tmp_path: Path
) -> None:
    """Seed 6: one of nine is censored before the end, so their bins are coarser."""
    rng = np.random.default_rng(6)
    rows = []
    for place in range(500):
        event, censored = rng.exponential(30), 60.0 if place % 9 else rng.uniform(0, 60)
        ending = ("alive", "dead")[int(event <= censored)]
        arm = ("placebo", "treated")[place % 2]
        rows.append({"months": round(min(event, censored), 2), "state": ending, "arm": arm})
    fields: dict[str, Any] = {
        "columns": [*COLUMNS[:2], {"name": "arm", "categories": ["placebo", "treated"]}]
    }
    if arms == 1:
        fields = {"columns": COLUMNS[:2], "survival": {"time": "months", "status": "state"}}
    spec, state = results(tmp_path, rows, **fields)
    found = SurvivalCurves.of(spec, state)
    bins = state[BINS].tolist()
    assert bins[:5] == ([0, 0, 0, 1, 1] if arms == 1 else [0, 0, 0, 0, 0])
    is_dead_N = np.array([row["state"] == "dead" for row in rows])
    months = [row["months"] for row in rows]
    time_N = binned(months, is_dead_N.tolist(), edges=COLUMNS[0]["edges"], bins=bins)
    for curve in found.curves:
        mine_N = np.array([arms == 1 or row["arm"] == curve.label for row in rows])
        expected = SurvfuncRight(time_N[mine_N], is_dead_N[mine_N])
        errors = [each.error for each in curve.bins]
        assert [each.survival for each in curve.bins] == pytest.approx(expected.surv_prob.tolist(), rel=1e-12)
        assert errors == pytest.approx(expected.surv_prob_se.tolist(), rel=1e-9)
        assert [each.at_risk for each in curve.bins] == expected.n_risk.tolist()
        assert sum(each.events + each.censored for each in curve.bins) == mine_N.sum()
    if found.log_rank is not None:
        statistic, p = survdiff(time_N, is_dead_N, [row["arm"] for row in rows])
        assert (found.log_rank.statistic, found.log_rank.p) == pytest.approx((statistic, p), rel=1e-9)


def test_a_group_with_few_events_joins_another(tmp_path: Path) -> None:
    rows = [
        {"months": place % 60, "state": ("alive", "dead")[place % 2], "arm": "treated"}
        for place in range(200)
    ]
    rows += [
        {"months": place % 60, "state": "alive" if place > 4 else "dead", "arm": "placebo"}
        for place in range(50)
    ]
    found = SurvivalCurves.of(*results(tmp_path, rows))
    (curve,) = found.curves
    assert (curve.label, curve.is_merged, curve.records) == ("placebo or treated or both", True, 250)
    assert "Merged: a part of the group holds fewer than 10 events or censored records." in found.to_text()
    assert "Not compared: arm has one published part." in found.to_text()


@pytest.mark.parametrize("few", ["alive", "dead"])
def test_curves_are_withheld_where_events_or_censored_records_are_few(few: str, tmp_path: Path) -> None:
    other = {"alive": "dead", "dead": "alive"}[few]
    rows = [
        {"months": place % 60, "state": few if place % 30 == 0 else other, "arm": "treated"}
        for place in range(200)
    ]
    spec, state = results(tmp_path, rows)
    assert not {BINS, SURVIVAL_COUNTS} & set(state)
    found = SurvivalCurves.of(spec, state)
    assert found.curves == ()
    assert "hold fewer than 10 events" in found.to_text()
    assert [each["value"] for each in found.figures()] == [None]
    assert not any("months" in each["column"] for each in AnalysisResults.of(spec, state).described.records())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({IS_SHOWN: np.array(2, np.uint8)}, "method/survival_shown: expected 0 or 1, got 2"),
        ({IS_SHOWN: np.array(1)}, "method/survival_shown: expected uint8"),
        ({BINS: np.array([0, 1, 2, 3])}, r"method/model_parts/0: expected int64 of shape \(10,\)"),
        ({BINS: np.array([0, 1, 1, 3, 4, 5, 6, 7, 8, 9])}, "expected parts that are numbered in their order"),
        ({BINS: np.array([0, 1, 0, 1, 2, 3, 4, 5, 6, 7])}, "expected bins of each ending"),
        ({BINS: np.zeros(10, np.int64)}, "expected bins of each ending"),
        ({PARTS + "0": np.array([0, 1, 2, 3, 4, 4, 5, 6, 7, 8])}, "method/parts/0: expected bins of each"),
        ({SURVIVAL_COUNTS: np.zeros((10, 3))}, "method/survival_counts: expected int64"),
        ({SURVIVAL_COUNTS: np.full((10, 3), 9)}, "method/survival_counts: expected counts from 10"),
        ({SURVIVAL_COUNTS: np.full((10, 3), 20)}, "expected cells that add up to the counts of each column"),
        ({PART_COUNTS + "2": np.array([500, 500, 500])}, "expected"),
    ],
)
def test_states_that_no_job_leads_to_are_refused(
    changed: dict[str, Any], message: str, three_arms: tuple[AnalysisSpec, dict[str, Array], list[Row]]
) -> None:
    spec, state, _ = three_arms
    with pytest.raises(ConfigError, match=message):
        SurvivalCurves.of(spec, {**state, **changed})


def test_bins_that_cut_a_published_part_of_time_are_refused(tmp_path: Path) -> None:
    rows = made_rows(600, seed=5) + [{"months": 1, "state": "dead", "arm": "both"}] * 20
    rows = [row for row in rows if row["months"] == "" or not 6 <= row["months"] < 12]
    spec, state = results(tmp_path, rows)
    assert state["method/parts/0"].tolist() == [0, 1, 1, 2, 3, 4, 5, 5, 6, 7]
    bins = np.array([0, 0, 1, 2, 3, 4, 4, 4, 4, 4])
    table_TR = np.full((5, 3), 20)
    with pytest.raises(ConfigError, match="expected parts that are made of those of the column by itself"):
        SurvivalCurves.of(spec, {**state, BINS: bins, SURVIVAL_COUNTS: table_TR})


TIME, STATUS, ARM = COLUMNS


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"survival": SURVIVAL | {"time": "days"}}, "survival: expected columns of the job, got 'days'"),
        ({"survival": SURVIVAL | {"group": None}}, "columns: arm is none of the survival curves'"),
        (
            {"survival": SURVIVAL | {"group": "state"}},
            "expected another column each for time, status and group",
        ),
        (
            {"survival": SURVIVAL | {"time": "state", "status": "months"}},
            "survival.time: expected a column with",
        ),
        ({"columns": [TIME | {"edges": [1, 6]}, STATUS, ARM]}, "edges from 0 on, months has none"),
        ({"columns": [TIME | {"show": ["mean"]}, STATUS, ARM]}, "months: expected no mean"),
        (
            {"columns": [TIME, STATUS | {"categories": ["a", "b", "c"]}, ARM]},
            "survival.status: expected a column",
        ),
        (
            {"columns": [TIME, STATUS, {"name": "arm", "edges": [0, 1]}]},
            "survival.group: expected a column with",
        ),
        ({"columns": [TIME, STATUS, ARM | {"categories": ["a"]}]}, "survival.group: expected a column with"),
        ({"group": "arm"}, "group: not allowed with survival"),
        (
            {"model": {"outcome": "state", "family": "logistic", "terms": [["arm"], ["months"]]}},
            "survival: not allowed with model",
        ),
        (
            {"columns": [TIME | {"edges": [*range(1001)]}, STATUS, ARM | {"categories": [*"abcdef"]}]},
            "10000 cells",
        ),
    ],
)
def test_survival_curves_that_do_not_fit_their_columns_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        analysis_job(**{"columns": COLUMNS, "survival": SURVIVAL, **fields})


def test_what_survival_curves_ask_is_said_in_words() -> None:
    spec = analysis_job(columns=COLUMNS, survival=SURVIVAL).spec
    assert isinstance(spec, AnalysisSpec)
    assert "computes survival curves of months to state, and compares them by arm" in spec.in_words
    assert spec.tables.cells == 5 * 2 * 3


def test_curves_are_rows_of_a_frame_and_steps_of_a_plot(
    three_arms: tuple[AnalysisSpec, dict[str, Array], list[Row]],
) -> None:
    pytest.importorskip("matplotlib").use("agg")
    pytest.importorskip("pandas")
    found, results = SurvivalCurves.of(*three_arms[:2]), AnalysisResults.of(*three_arms[:2])
    frame = results.frame()
    second = found.curves[1]
    assert frame.loc[("months", "survival", "6 to 12", "treated"), "value"] == second.bins[1].survival
    assert second.median is not None
    assert frame.loc[("months", "median survival, to", "", "treated"), "value"] == second.median.high
    ax = results.plot()
    assert [line.get_drawstyle() for line in ax.lines] == ["steps-post"] * 3
    assert list(ax.lines[1].get_xdata()) == [0, 6, 12, 24, 36, 60]
    assert list(ax.lines[1].get_ydata()) == [1.0, *(each.survival for each in second.bins)]
    assert ax.get_xlabel() == "months (months)"


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 50])
def test_tails_of_chi_squared(freedom: int) -> None:
    for statistic in (0.0, 0.01, 1.0, 3.84, 30.0, 700.0):
        assert above(statistic, freedom) == pytest.approx(
            float(chi2.sf(statistic, freedom)), rel=1e-10, abs=1e-300
        )
