"""Which means an analysis shows, how they are rounded, and what a silo's lie does to them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategies.analysis.counts import PART_COUNTS, ROWS
from strategies.analysis.partition import Partition, Tables
from strategies.analysis.values import (
    DEVIATIONS,
    IMPLAUSIBLE,
    MEANS,
    NUMBERS,
    SHOWN,
    SQUARES,
    SUMS,
    PublishedParts,
    ValuesPhase,
)
from strategies.base import Array, Arrays
from strategies.rounding import rounded, rounding_step
from tests.support.analysis_records import context, counted, described, numbers, part_of, sums_of

AGE = numbers(20, 40, 50, 60, 70, 100)
PRICE = numbers(0, 90, 100, 110, 100_000)


def ages(records: int, *, missing: int = 4, seed: int = 41) -> Array:
    value_N = np.random.default_rng(seed).normal(54.4, 9.0, records).clip(20, 100)
    value_N[:missing] = np.nan
    return value_N


def shown(state: Arrays, place: int = 0) -> list[int]:
    return [int(each) for each in state[SHOWN + str(place)]]


def unit_of(value_N: Array) -> float:
    deviation = value_N.std(ddof=1)
    half_error = deviation / math.sqrt(len(value_N)) / 2
    exponents = range(-9, 9)
    by_error = max(10.0**exponent for exponent in exponents if 10.0**exponent <= half_error)
    return max(by_error, max(10.0**exponent for exponent in exponents if 10.0**exponent <= deviation) / 100)


@pytest.mark.parametrize("records", [300, 1_000, 30_000])
def test_mean_and_deviation_are_those_of_the_records_to_half_a_unit(records: int) -> None:
    value_N = ages(records)
    group_N = np.random.default_rng(1).integers(0, 2, records)
    state = described(AGE, value_N, group_N, groups=2)
    samples = [value_N, *(value_N[state[ROWS][group_N] == row] for row in (0, 1))]
    assert shown(state) == [1, 1, 1]
    for sample, mean, deviation in zip(samples, state[MEANS + "0"], state[DEVIATIONS + "0"], strict=True):
        known = sample[~np.isnan(sample)]
        unit = unit_of(known)
        assert abs(mean - known.mean()) <= unit / 2 * (1 + 1e-9)
        assert abs(deviation - known.std(ddof=1)) <= unit / 2 * (1 + 1e-9)
        assert mean == float(f"{mean:.6g}")
        assert mean / unit == pytest.approx(round(mean / unit), abs=1e-6)


@pytest.mark.parametrize(
    ("deviation", "error", "exponent"),
    [
        (9.0, 0.9, -1),
        (9.0, 0.2, -1),  # exactly half of it
        (9.0, 0.199, -2),
        (9.0, 0.0009, -2),  # no finer than three digits
        (900.0, 21.0, 1),
        (1.0, 0.5, -1),
        (3e-300, 1e-301, -290),
        (0.0, 0.0, -290),
        (1e300, 1e299, 290),
    ],
)
def test_figures_are_rounded_by_their_standard_error(deviation: float, error: float, exponent: int) -> None:
    assert rounding_step(deviation, error) == exponent


@pytest.mark.parametrize(
    ("figure", "exponent", "expected"),
    [(54.349, -1, 54.3), (-0.07, -1, -0.1), (1234.0, 2, 1200.0), (0.04, 0, 0.0), (1e300, -2, 1e300)],
)
def test_rounded_figures_are_the_nearest_decimal_numbers(
    figure: float, exponent: int, expected: float
) -> None:
    assert rounded(figure, exponent) == expected


def nine_and_one(far: float, others: int = 60) -> Array:
    near_N = np.random.default_rng(2).normal(100, 8, others).clip(70, 130)
    return np.append(near_N, [112.0] * 9 + [far])


def test_one_value_that_makes_the_deviation_is_not_shown() -> None:
    """Without the rule mean + (n - 1) SD / sqrt(n) is that value."""
    state = described(PRICE, nine_and_one(87_000.0))
    assert state[PART_COUNTS + "0"].min() >= 10
    assert (shown(state), state[MEANS + "0"].tolist(), state[DEVIATIONS + "0"].tolist()) == (
        [0, 0],
        [0.0, 0.0],
        [0.0, 0.0],
    )
    plain = described(numbers(70, 90, 100, 110, 135), nine_and_one(130.0))
    assert shown(plain) == [1, 1]


def test_no_shown_deviation_gives_a_value_to_one_who_knows_another() -> None:
    """Drawn with long tails, where one or two values often make nearly all squares around the mean."""
    rng = np.random.default_rng(3)
    shares = []
    for _ in range(400):
        records = int(rng.integers(30, 300))
        value_N = np.exp(rng.normal(0, rng.uniform(0.3, 3), records)).clip(0, 300)
        edges = np.unique([0.0, 300.0, *np.quantile(value_N, np.linspace(0.1, 0.9, 9))])
        state = described(numbers(*edges.tolist()), value_N)
        square_N = np.sort((value_N - value_N.mean()) ** 2)
        shares.append((shown(state)[0], square_N[-1] / (square_N.sum() - square_N[-2])))
    of_shown = [share for is_shown, share in shares if is_shown]
    assert len(of_shown) > 100
    assert max(of_shown) <= 0.75
    assert sum(share > 0.75 for _, share in shares) > 20


def test_a_column_of_zeros_and_ones_shows_no_mean_and_so_not_its_missing_values() -> None:
    value_N = np.array([0.0] * 40 + [1.0] * 60 + [np.nan] * 3)
    assert shown(described(numbers(-0.5, 0.25, 0.5, 0.75, 1.5), value_N)) == [0, 0]
    value_N[:20] = 0.6
    assert shown(described(numbers(-0.5, 0.25, 0.5, 0.75, 1.5), value_N)) == [1, 1]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("errors", "expected"), [(15.0, 0), (45.0, 1)])
def test_a_spread_that_rounding_may_have_made_is_not_shown(rows: int, errors: float, expected: int) -> None:
    """errors: of one sum, how many its squares are. Two are added up for all records, 100 or 200."""
    partitions = (AGE, Partition(parts=1))
    tables = Tables(partitions=partitions[:rows], group=1 if rows == 2 else None, min_cell=10)
    state = counted(tables, np.array([[20, 20, 20, 20, 20, 0]] * rows)).state
    assert state is not None
    now = context(state)
    phase = ValuesPhase(tables=tables)
    error = math.sqrt(now.members) / phase.quantities(now)[1].scale(now.members)
    squares = np.full((1, rows), errors * error)
    sums = {NUMBERS: np.full((1, rows), 100), SUMS: np.zeros((1, rows)), SQUARES: squares}
    result = phase.next_state(now, sums)
    assert result.state is not None
    assert shown(result.state) == [expected] * (rows + 1)


def test_figures_of_all_records_are_not_shown_beside_those_of_all_rows_but_one() -> None:
    """Their difference would be the row that is withheld."""
    column = numbers(*range(0, 110, 10), 1_000)
    rng = np.random.default_rng(4)
    value_N, group_N = rng.normal(50, 15, 2_200).clip(1, 99), np.repeat([0, 1], [2_000, 200])
    value_N[-1] = 500.0
    without_group = described(column, value_N)
    one_of_two = described(column, value_N, group_N, groups=2)
    assert (shown(without_group), shown(one_of_two)) == ([1, 1], [0, 1, 0])
    assert one_of_two[MEANS + "0"][0] == one_of_two[MEANS + "0"][2] == 0.0
    value_N[-1] = 50.0
    assert shown(described(column, value_N, group_N, groups=2)) == [1, 1, 1]


def test_where_no_row_shows_a_mean_all_records_may() -> None:
    group_N = np.arange(200) % 14  # rows of 14 and 15
    state = described(AGE, ages(200), group_N, groups=14)
    assert shown(state) == [1] + [0] * 14


def test_least_squares_of_others_are_below_those_of_any_values_in_the_parts() -> None:
    rng = np.random.default_rng(5)
    for _ in range(100):
        edges = np.sort(rng.choice(np.linspace(0, 50, 101), 6, replace=False)).tolist()
        counts = rng.integers(1, 30, 5)
        parts = PublishedParts.of([0, 1, 2, 3, 4, 5], [*counts.tolist(), 7], edges=edges, most_missing=7)
        least = parts.least_squares_of_others()
        grid = np.linspace(-1, 1, 4001)
        gap = np.maximum(np.maximum(parts.low_V[:, None] - grid, grid - parts.high_V[:, None]), 0)
        on_grid = (np.maximum(counts - 2, 0)[:, None] * gap**2).sum(axis=0).min()
        assert least <= on_grid + 1e-12
        assert least == pytest.approx(on_grid, abs=1e-3)


def test_a_part_with_missing_values_counts_the_values_that_it_holds_for_sure() -> None:
    with_missing = PublishedParts.of([0, 0, 1, 0], [25, 40], edges=[0, 1, 2, 3], most_missing=9)
    assert with_missing.number_V.tolist() == [16, 40]
    assert (with_missing.fewest, with_missing.most) == (56, 65)
    apart = PublishedParts.of([0, 0, 1, 2], [25, 40, 70], edges=[0, 1, 2, 3], most_missing=70)
    assert (apart.fewest, apart.most) == (65, 65)


@pytest.mark.parametrize("missing", [0, 9, 10, 200, 295])
def test_honest_values_fit_their_counts_however_many_are_missing(missing: int) -> None:
    group_N = np.random.default_rng(6).integers(0, 3, 300)
    described(AGE, ages(300, missing=missing), group_N, groups=3)


def after_lie(**changed: Array) -> tuple[Arrays | None, str]:
    value_N = ages(300)
    tables = Tables(partitions=(AGE,), group=None, min_cell=10)
    cells = np.bincount(part_of(AGE, value_N), minlength=AGE.size)
    state = counted(tables, cells).state
    assert state is not None
    sums = {**sums_of(AGE, value_N, np.zeros(300, np.int64), 1), **changed}
    result = ValuesPhase(tables=tables).next_state(context(state), sums)
    return result.state, result.reason


@pytest.mark.parametrize("number", [-5, 0, 290, 301])
def test_values_of_other_records_than_were_counted_are_not_applied(number: int) -> None:
    assert after_lie(**{NUMBERS: np.array([[number]])}) == (None, IMPLAUSIBLE)
    assert after_lie()[1] == ""


@pytest.mark.parametrize("total", [-1e9, -300.0, 0.0, 450.0, 1e9])
@pytest.mark.parametrize("squares", [-1e9, 0.0, 1e9])
def test_sums_that_no_values_have_leave_finite_figures(total: float, squares: float) -> None:
    state, _ = after_lie(**{SUMS: np.array([[total]]), SQUARES: np.array([[squares]])})
    assert state is not None
    figures = np.concatenate([state[MEANS + "0"], state[DEVIATIONS + "0"]])
    assert np.isfinite(figures).all()
    assert (np.abs(state[MEANS + "0"]) <= 100).all()


@pytest.mark.parametrize(
    "edges",
    [
        (0.0, 5e-324, 1e-323, 1.5e-323),
        (-8e307, 0.0, 1.0, 8e307),
        (1e16, 1e16 + 2, 1e16 + 4, 1e16 + 8),
        (1e25, 2e25, 3e25, 4e25),
    ],
)
def test_edges_at_the_ends_of_float64_leave_finite_figures(edges: tuple[float, ...]) -> None:
    tables = Tables(partitions=(Partition(parts=3, edges=edges, has_mean=True),), group=None, min_cell=10)
    state = counted(tables, np.array([20, 20, 20, 0])).state
    assert state is not None
    sums = {NUMBERS: np.array([[60]]), SUMS: np.array([[3.0]]), SQUARES: np.array([[30.0]])}
    result = ValuesPhase(tables=tables).next_state(context(state), sums)
    assert result.state is not None
    assert shown(result.state) == [1, 1]
    assert np.isfinite(np.concatenate([result.state[MEANS + "0"], result.state[DEVIATIONS + "0"]])).all()
    # of values that are all alike, 1e25 to 290 digits behind the point stopped silos and coordinator
    result = ValuesPhase(tables=tables).next_state(context(state), {**sums, **zeros(SUMS, SQUARES)})
    assert result.state is not None
    assert shown(result.state) == [0, 0]


def zeros(*names: str) -> dict[str, Array]:
    return {name: np.zeros((1, 1)) for name in names}


def test_the_same_sums_lead_to_the_same_bytes() -> None:
    first, second = (described(AGE, ages(500), np.arange(500) % 2, groups=2) for _ in range(2))
    assert {name: array.tobytes() for name, array in first.items()} == {
        name: array.tobytes() for name, array in second.items()
    }
