"""An analysis under noise: how far one record moves what is summed, and what the sums become."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from chorale.privacy.job_releases import JobReleases
from chorale.privacy.quantity_noise import sensitivity_of
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.transport.wire import phase_kind
from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from silo_agent.training.analysis.cells import cell_counts
from silo_agent.training.analysis.table import DescribedTable
from strategies.analysis.counts import CELLS
from strategies.analysis.method import FIRST_STATE, KINDS
from strategies.analysis.noised import NOISE as DEVIATIONS
from strategies.analysis.noised import NOISED, NOISED_CELLS, NOISED_VALUES
from strategies.analysis.values import SQUARES, SUMS
from strategies.base import TOTAL, Array
from tests.support.noised import (
    AGE,
    NOISE,
    SEX,
    deviation_of,
    noised_job,
    request_of,
    states,
    table,
    values_of,
)

BMI = {"name": "bmi", "edges": [10, 20, 30, 60], "show": ["mean"]}
JOBS = [
    noised_job(),
    noised_job(columns=[AGE, BMI, SEX]),
    noised_job(columns=[AGE, BMI, SEX], group=None),
    noised_job(columns=[SEX, {**SEX, "name": "angina"}], group=None),
]


def distances(one: DescribedTable, other: DescribedTable, job: Any) -> dict[str, tuple[Quantity, float]]:
    """By quantity, how far apart the two tables' sums are."""
    request = request_of(job)
    values, others = values_of(request, one), values_of(request, other)
    declared = {each.name: each for each in job.phase(NOISED).quantities(request.context)}
    assert set(values) == set(declared) == set(others)
    return {
        name: (quantity, float(np.linalg.norm(np.subtract(values[name], others[name], dtype=float))))
        for name, quantity in declared.items()
    }


@st.composite
def neighbors(draw: st.DrawFn, place: int) -> tuple[DescribedTable, DescribedTable]:
    """Any records, and the same with one more."""
    job = JOBS[place]
    tables = job.spec.method.tables
    part = st.tuples(*(st.integers(0, each.parts) for each in tables.partitions))
    z = st.tuples(*(st.sampled_from([-1.0, 1.0, 0.0, 0.3, math.nan]) for _ in tables.measured))
    found = draw(st.lists(st.tuples(part, z), min_size=1, max_size=8))
    fewer = found[:-1]
    return tuple(table(job, [p for p, _ in each], [v for _, v in each]) for each in (found, fewer))


@pytest.mark.parametrize("place", range(len(JOBS)))
def test_one_record_moves_all_sums_by_no_more_than_is_declared(place: int) -> None:
    farthest: dict[str, float] = {}

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(neighbors(place))
    def check(pair: tuple[DescribedTable, DescribedTable]) -> None:
        for name, (quantity, distance) in distances(*pair, JOBS[place]).items():
            assert quantity.sensitivity_l2 is not None
            assert distance <= quantity.sensitivity_l2 * (1 + 1e-9), name
            farthest[name] = max(farthest.get(name, 0.0), distance / quantity.sensitivity_l2)

    check()
    assert farthest[CELLS] == pytest.approx(1.0), "declared no farther than it is"


def test_a_record_that_is_counted_in_two_cells_moves_more_than_is_declared() -> None:
    """The control: without it the property could hold of anything."""
    job = noised_job()
    one, none = table(job, [[0, 0]], [[0.5]]), table(job, np.zeros((0, 2)), np.zeros((0, 1)))
    twice = replace(one, parts_NC=np.vstack([one.parts_NC, [[1, 0]]]), z_NK=np.vstack([one.z_NK, [[1.0]]]))
    quantity, distance = distances(twice, none, job)[CELLS]
    assert quantity.sensitivity_l2 is not None
    assert distance > quantity.sensitivity_l2


@pytest.mark.parametrize("total", [1, 1 << 40])
def test_the_noise_follows_from_the_job_and_from_no_count(total: int) -> None:
    """Were bounds and scales those of the enrolled total, what is charged, of any state, would be another."""
    job = noised_job()
    request = request_of(job, total=total)
    assert request.layout.digest == request_of(job).layout.digest
    honest = job.spec.rule(4).min_honest
    for quantity, release in JobReleases(job.spec, dict(FIRST_STATE)).of_input(NOISED, 4):
        made = next(each for each in request.layout.quantities if each.name == quantity.name)
        assert made.noise is not None
        moved = sensitivity_of(quantity, made.noise.scale, None)
        multiplier = math.sqrt(honest * made.noise.variance) / moved.l2
        assert release.noise_multiplier == pytest.approx(multiplier)
        assert multiplier >= NOISE["statistics_noise_multiplier"] * (1 - 1e-9)


def test_sums_are_published_as_they_are_with_the_deviation_of_the_silos_that_came() -> None:
    job = noised_job()
    tables = [table(job, [[1, 0], [5, 1]], [[0.5], [math.nan]]) for _ in range(3)]  # of four
    state = next(iter(states(job, tables, np.random.default_rng(3).bytes, draws=1)))
    request = request_of(job)
    expected = [deviation_of(request, name) * math.sqrt(3 / 4) for name in (CELLS, SUMS, SQUARES)]
    assert state[DEVIATIONS] == pytest.approx(expected)
    assert state[f"{NOISED_CELLS}0"].shape == (3, 6)
    assert state[f"{NOISED_CELLS}0"].min() < 0
    assert state[f"{NOISED_VALUES}0"].shape == (2, 3)
    assert state[TOTAL] == 1_000
    assert job.next_after(0, f"{NOISED}.0") is None


def test_the_noise_is_that_of_the_declared_deviation() -> None:
    """Of 15,000 numbers their spread is within 3 % but for one seed in 10^6."""
    job = noised_job()
    drawn = states(job, [table(job, [[0, 0]], [[0.0]])] * 4, np.random.default_rng(8).bytes, draws=800)
    cells = np.array([state[f"{NOISED_CELLS}0"] for state in drawn])
    deviation = deviation_of(request_of(job), CELLS)
    assert np.std(cells - cells.mean(axis=0)) == pytest.approx(deviation, rel=0.03)


def test_a_noised_analysis_is_of_a_kind_of_its_own() -> None:
    """What was answered without noise is not compared with it: its budget bounds it."""
    job = noised_job()
    assert [phase_kind(job.opening), job.strategy.closing] == ["enrollment", (NOISED,)]
    assert NOISED not in KINDS
    with pytest.raises(ConfigError, match="expected one of"):
        job.phase("analysis-counts.0")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"privacy": {"delta": 1e-6}}, "epsilon: a value is required"),
        ({"privacy": {**NOISE, "sums": {"clip_norm": 1.0}}}, "Extra inputs are not permitted"),
        (
            {"model": {"outcome": "sex", "family": "logistic", "terms": [["age"]]}, "group": None},
            "privacy: not allowed with model",
        ),
    ],
)
def test_an_analysis_that_no_noise_covers_is_refused(fields: dict[str, Any], message: str) -> None:
    values = {**noised_job().spec.model_dump(), **fields}
    with pytest.raises(ValidationError, match=message):
        AnalysisSpec.model_validate(values)


def test_a_silo_without_records_takes_part_and_counts_as_it_is() -> None:
    """A refusal would tell the last record, and a rounded count moves by ten at once."""
    job = noised_job()
    for parts in ([], [[1, 0]] * 9):
        found = values_of(request_of(job, phase=job.opening), table(job, parts, [[0.5]] * len(parts)))
        assert found["samples"] == len(parts)


def test_counts_are_the_same_numbers_as_without_noise() -> None:
    job = noised_job()
    one = table(job, [[1, 0], [5, 1]], [[0.5], [math.nan]])
    found: dict[str, Array] = dict(values_of(request_of(job), one))
    assert found[CELLS].tolist() == cell_counts(one, job.spec.method.tables)[CELLS].tolist()
    assert found[SUMS].tolist() == [[0.5, 0.0, 0.0]]
    assert found[SQUARES].tolist() == [[0.25, 0.0, 0.0]]
