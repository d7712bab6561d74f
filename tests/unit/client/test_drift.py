"""How far the records of two analyses are apart: by the published parts of both, against the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.described import DescribedResults
from client.drift import drifts
from crypto.errors import ConfigError
from tests.support.analyses import analysis_job, read, states_of, unevenly

EDGES = [20.0, 40.0, 50.0, 60.0, 100.0]
AGE = {"name": "age", "edges": EDGES, "show": ["mean", "counts"]}
SEX = {"name": "sex", "categories": ["f", "m", "x"]}


def described(folder: Path, rows: list[dict[str, Any]], *columns: dict[str, Any]) -> DescribedResults:
    job = analysis_job(columns=list(columns))
    assert isinstance(job.spec, AnalysisSpec)
    return DescribedResults.of(job.spec, states_of(job, read(folder, job, unevenly(rows)))[-1][1])


def records(count: int, *, mean: float, few: int) -> list[dict[str, Any]]:
    """few: of category x."""
    rng = np.random.default_rng(count)
    ages = np.round(np.clip(rng.normal(mean, 8, count), 21, 99), 1).tolist()
    return [{"age": age, "sex": "x" if at < few else "fm"[at % 2]} for at, age in enumerate(ages)]


def test_index_and_difference_are_those_of_the_records(tmp_path: Path) -> None:
    trained, tested = records(600, mean=50, few=3), records(800, mean=54, few=40)
    found = drifts(described(tmp_path, trained, AGE, SEX), described(tmp_path, tested, AGE, SEX))
    ages = [np.array([row["age"] for row in rows]) for rows in (trained, tested)]
    p_N, q_N = (np.histogram(each, EDGES)[0] / len(each) for each in ages)
    assert found[0].index == pytest.approx(((q_N - p_N) * np.log(q_N / p_N)).sum())
    apart = abs(ages[0].mean() - ages[1].mean())
    deviation = np.sqrt((ages[0].var(ddof=1) + ages[1].var(ddof=1)) / 2)
    assert found[0].difference == pytest.approx(apart / deviation, abs=0.05)
    # x is merged with m in the first, so it is in the second, too
    p, q = (sum(row["sex"] == "f" for row in rows) / len(rows) for rows in (trained, tested))
    assert found[1].index == pytest.approx((q - p) * np.log(q / p * (1 - p) / (1 - q)))
    assert found[1].difference is None


def test_the_same_records_are_not_apart_and_one_part_says_nothing(tmp_path: Path) -> None:
    rows, rare = records(600, mean=50, few=0), [{"sex": "f"}] * 300
    once = described(tmp_path, rows, SEX)
    assert drifts(once, once)[0].index == 0.0
    assert drifts(once, described(tmp_path, rare, SEX))[0].index is None


def test_parts_that_were_declared_otherwise_are_not_compared(tmp_path: Path) -> None:
    rows = records(600, mean=50, few=0)
    first = described(tmp_path, rows, AGE)
    with pytest.raises(ConfigError, match="column age: expected the same edges, categories and unit"):
        drifts(first, described(tmp_path, rows, {**AGE, "edges": [20, 50, 100]}))
    with pytest.raises(ConfigError, match="describe no column in common"):
        drifts(first, described(tmp_path, rows, SEX))
