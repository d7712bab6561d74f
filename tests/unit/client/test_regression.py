"""Coefficients as results show them, and what of a state that came from outside is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.regression import FittedModel
from client.analysis.tails import beyond, reach
from crypto.errors import ConfigError
from strategies.analysis.model_state import COEFFICIENTS, COVARIANCE, STATUS
from strategies.base import Array
from tests.support.analyses import analysis_job, read, states_of, unevenly


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[AnalysisSpec, dict[str, Array]]:
    """Of 200 women 50 have the event, of 200 men 100."""
    rows = [
        {"sex": "fm"[place % 2], "event": "yes" if place % 8 in (0, 1, 3) else "no"} for place in range(400)
    ]
    job = analysis_job(
        columns=[{"name": "sex", "categories": ["f", "m"]}, {"name": "event", "categories": ["no", "yes"]}],
        model={"outcome": "event", "family": "logistic", "terms": [["sex"]]},
    )
    folder: Path = tmp_path_factory.mktemp("silos")
    states = states_of(job, read(folder, job, unevenly(rows)))
    assert isinstance(job.spec, AnalysisSpec)
    return job.spec, dict(states[-1][1])


def test_an_odds_ratio_is_that_of_the_four_counts(fitted: tuple[AnalysisSpec, dict[str, Array]]) -> None:
    found = FittedModel.of(*fitted)
    intercept, sex = found.coefficients
    assert intercept.ratio == ()
    assert (sex.term, sex.against) == ("sex m", "f")
    # 100 * 150 / (100 * 50), and Woolf's error
    error = math.sqrt(1 / 50 + 1 / 150 + 1 / 100 + 1 / 100)
    ends = [math.exp(math.log(3) + side * 1.959963984540054 * error) for side in (0, -1, 1)]
    assert sex.ratio == pytest.approx(ends, rel=1e-6)
    assert sex.p == pytest.approx(math.erfc(math.log(3) / error / math.sqrt(2)), rel=1e-5)
    assert "sex m [1]" in found.to_text()
    assert "[1] Against f." in found.to_text()
    assert "3 (1.96 to 4.58)" in found.to_text()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({STATUS: np.array(99, np.uint8)}, "method/model_status: expected 0 to 7, got 99"),
        ({COEFFICIENTS: np.zeros(3)}, r"method/model_coefficients: expected float64 of shape \(2,\)"),
        ({COEFFICIENTS: np.array([0.0, np.nan])}, "method/model_coefficients: expected finite numbers"),
        ({COVARIANCE: -np.eye(2)}, "expected no variance below 0"),
        ({"method/model_parts/0": np.array([0, 2])}, "expected parts that are numbered in their order"),
        ({"method/model_iterations": np.zeros(())}, "method/model_iterations: expected int64"),
        ({"method/group_counts": np.array([2])}, "expected more records than coefficients, got 2"),
    ],
)
def test_states_that_no_job_leads_to_are_refused(
    changed: dict[str, Any], message: str, fitted: tuple[AnalysisSpec, dict[str, Array]]
) -> None:
    spec, state = fitted
    with pytest.raises(ConfigError, match=message):
        FittedModel.of(spec, {**state, **changed})


@pytest.mark.parametrize("freedom", [10, 31, 500, 1_000_000])
def test_tails_of_student_s_distribution(freedom: int) -> None:
    for statistic in (0.0, 0.3, -2.0, 7.0, 40.0):
        expected = 2 * float(student.sf(abs(statistic), freedom))
        assert beyond(statistic, freedom) == pytest.approx(expected, rel=1e-7, abs=1e-300)
    assert reach(freedom) == pytest.approx(float(student.ppf(0.975, freedom)), rel=1e-7)
