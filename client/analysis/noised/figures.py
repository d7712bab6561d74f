"""The figures of an analysis under noise, each with where it is for these records in 95 of 100 cases.

Of each number the deviation of its noise is public, and each has noise of its own, so figures are ratios
of normal numbers (strategies/intervals.py).

G = parts of the group, 1 without one; P = parts of a column, missing values the last; H = heads: all records,
and behind them the G where there is a group; V = parts that hold values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chorale.spec.analysis_spec import AnalysisSpec, DescribedColumn
from client.analysis.columns import ColumnFigures, Head
from client.analysis.figures import NoisedCount, Quartile, Quartiles, Spread, quartiles
from client.analysis.parts import OVERALL, Part, published_parts
from crypto.errors import ConfigError
from strategies.analysis.noised import NOISE, NOISED_CELLS, NOISED_VALUES
from strategies.base import Arrays, FloatArray, array_in
from strategies.figure import Figure
from strategies.intervals import TWO_SIDED, ratio_interval
from strategies.tasks.base import count_figure, shares

MOST = 1e15  # of any number of a sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Noised:
    """By head: estimates of the number of records, and the deviations of these, of a cell, and of the sums of
    z and of its squares. Of all records the noise of G numbers adds up."""

    records_H: FloatArray
    of_records_H: FloatArray
    cell_H: FloatArray
    values_2H: FloatArray


def noised_figures(
    spec: AnalysisSpec, state: Arrays
) -> tuple[tuple[Part, ...], tuple[Head, ...], tuple[ColumnFigures, ...]]:
    """Parts of the group, heads and columns. Raises ConfigError for a state that is not of the job."""
    tables = spec.tables
    has_group, measured = tables.group is not None, tables.measured
    noise = _numbers(state, NOISE, (3 if measured else 1,))
    if not (noise > 0.0).all():
        raise ConfigError(f"{NOISE}: expected deviations above 0")
    added_H = np.sqrt([tables.group_size, *([1] * tables.group_size if has_group else [])])
    cells_of = {
        place: _by_head(_numbers(state, f"{NOISED_CELLS}{place}", shape), has_group=has_group)
        for place in tables.described
        for shape in ((tables.group_size, tables.partitions[place].size),)
    }
    # each table adds up to the records; the fewer parts it has, the better
    weight = sum(1.0 / cells_HP.shape[1] for cells_HP in cells_of.values())
    weighed = [cells_HP.sum(axis=1) / cells_HP.shape[1] for cells_HP in cells_of.values()]
    found = Noised(
        records_H=np.sum(weighed, axis=0) / weight,
        of_records_H=noise[0] * added_H / math.sqrt(weight),
        cell_H=noise[0] * added_H,
        values_2H=np.outer(noise[1:], added_H),
    )
    parts_G: tuple[Part, ...] = ()
    if tables.group is not None:
        parts_G = published_parts(spec.columns[tables.group], range(tables.group_size))
    columns = []
    for place, cells_HP in cells_of.items():
        sums_2H = None
        if place in measured:
            sums = _numbers(state, f"{NOISED_VALUES}{place}", (2, tables.group_size))
            sums_2H = _by_head(sums.T, has_group=has_group).T
        columns.append(_column(spec.columns[place], cells_HP, sums_2H, found))
    return parts_G, _heads(parts_G, found), tuple(columns)


def _numbers(state: Arrays, name: str, shape: tuple[int, ...]) -> FloatArray:
    found = np.asarray(array_in(state, name, shape, np.float64))
    if not (np.abs(found) <= MOST).all():
        raise ConfigError(f"{name}: expected numbers of at most {MOST:g}")
    return found


def _by_head(found_GN: FloatArray, *, has_group: bool) -> FloatArray:
    """Shapes: (G, N) -> (H, N)."""
    return np.vstack([found_GN.sum(axis=0), *([found_GN] if has_group else [])])


def _heads(parts_G: Sequence[Part], found: Noised) -> tuple[Head, ...]:
    heads, of_all = [], (float(found.records_H[0]), float(found.of_records_H[0]))
    for part, count, off in zip((None, *parts_G), found.records_H, found.of_records_H, strict=True):
        (noised,) = _counted(np.array([count]), float(off), of_all, covariance=float(off) ** 2)
        label = OVERALL if part is None else part.label
        is_missing = part is not None and part.is_missing
        heads.append(Head(label=label, records=float(count), is_missing=is_missing, noised=noised))
    return tuple(heads)


def _column(
    column: DescribedColumn,
    cells_HP: FloatArray,
    sums_2H: FloatArray | None,
    found: Noised,
) -> ColumnFigures:
    parts_P = published_parts(column, range(cells_HP.shape[1]))
    noised, means, quarters = [], [], []
    for head, cells_P in enumerate(cells_HP):
        count, cell = float(found.records_H[head]), float(found.cell_H[head])
        of_count = float(found.of_records_H[head])
        # the column's own table is a part of the estimate of all records
        covariance = of_count**2 / len(cells_P)
        noised.append(_counted(cells_P, cell, (count, of_count), covariance=covariance))
        if sums_2H is not None:
            number = count - cells_P[-1]
            of_number = math.sqrt(of_count**2 + cell**2 - 2.0 * covariance)
            spread = _spread(sums_2H[:, head], found.values_2H[:, head], number, of_number)
            assert column.edges is not None
            means.append(_in_units(spread, column.edges))
        if "median" in column.show:
            quarters.append(_quartiles(parts_P, cells_P, cell))
    cells = tuple(map(tuple, cells_HP.tolist()))
    return ColumnFigures(
        column=column,
        parts_Q=parts_P,
        counts_Q=cells[0],
        parts_T=parts_P,
        into_T=tuple(range(len(parts_P))),
        cells_HT=cells,
        means_H=tuple(means) if sums_2H is not None else None,
        quartiles_H=tuple(quarters) if quarters else None,
        noised_HT=tuple(noised),
    )


def _counted(
    count_N: FloatArray, deviation: float, records: tuple[float, float], *, covariance: float
) -> tuple[NoisedCount, ...]:
    """deviation: of each count. records: all of them, of which percent are, and the deviation of these."""
    value_N = shares(count_N, np.full(count_N.shape, records[0]))
    ends = ratio_interval(count_N, records[0], deviations=(deviation, records[1]), covariance=covariance)
    return tuple(
        NoisedCount(
            count=count_figure(count, deviation),
            percent=Figure(value=100.0 * value, noise=(100.0 * low, 100.0 * high)),
        )
        for count, value, low, high in zip(
            *(each.tolist() for each in (count_N, value_N, *ends)), strict=True
        )
    )


def _spread(sums_2: FloatArray, off_2: FloatArray, number: float, of_number: float) -> Spread:
    """Of z. Around the mean are the squares around another place, less its square distance."""
    (total, square), (of_total, of_square) = sums_2.tolist(), off_2.tolist()
    low, high = map(float, ratio_interval(total, number, deviations=(of_total, of_number), low=-1.0))
    mean = min(max(total / number, -1.0), 1.0) if number > 0 else math.nan
    around = 0.0 if math.isnan(mean) else mean
    apart = square - 2.0 * around * total + around**2 * number
    of_apart = math.sqrt(of_square**2 + (2.0 * around * of_total) ** 2 + (around**2 * of_number) ** 2)
    ends = ratio_interval(
        apart, number, deviations=(of_apart, of_number), covariance=(around * of_number) ** 2
    )
    farthest = max(around - low, high - around)
    least, most = max(float(ends[0]) - farthest**2, 0.0), float(ends[1])
    value = min(max(apart / number, 0.0), 1.0) if number > 0 else math.nan
    fewer = number / (number - 1.0) if number > 2 else 1.0  # a deviation divides by one less
    deviations = [math.sqrt(each * fewer) for each in (value, least, most)]
    return Spread(
        mean=Figure(value=mean, noise=(low, high)),
        deviation=Figure(value=deviations[0], noise=(deviations[1], deviations[2])),
    )


def _in_units(spread: Spread, edges: Sequence[float]) -> Spread:
    low, half = edges[0], (edges[-1] - edges[0]) / 2.0
    assert spread.mean.noise is not None
    assert spread.deviation.noise is not None
    first, last = spread.mean.noise
    least, most = spread.deviation.noise
    return Spread(
        mean=Figure(
            value=low + half * (spread.mean.value + 1.0),
            noise=(low + half * (first + 1.0), low + half * (last + 1.0)),
        ),
        deviation=Figure(value=half * spread.deviation.value, noise=(half * least, half * most)),
    )


def _quartiles(parts_P: Sequence[Part], cells_P: FloatArray, cell: float) -> Quartiles | None:
    found = quartiles(parts_P, np.maximum(cells_P, 0.0).tolist())
    if found is None:
        return None
    low, median, high = (
        _between(quarter, parts_P[:-1], cells_P[:-1], cell, number / 4.0)
        for number, quarter in zip((1, 2, 3), found.all, strict=True)
    )
    return replace(found, low=low, median=median, high=high)


def _between(
    found: Quartile, parts_V: Sequence[Part], cells_V: FloatArray, cell: float, share: float
) -> Quartile:
    """With the edges between which it is. Below an edge lies the share or less where noise does not reject
    that, there and at all edges on its side: so only the nearest edge has to be right."""
    below_V = np.cumsum(cells_V)[:-1]  # at the edges between parts
    inside_V = np.arange(1.0, len(cells_V))
    variance_V = inside_V * (1.0 - 2.0 * share) + share**2 * len(cells_V)
    tested_V = (below_V - share * cells_V.sum()) / (cell * np.sqrt(variance_V))
    first = int(np.argmin(np.append(tested_V < -TWO_SIDED, False)))
    last = int(np.argmin(np.append(tested_V[::-1] > TWO_SIDED, False)))
    low, high = parts_V[first].low, parts_V[len(parts_V) - 1 - last].high
    assert low is not None
    assert high is not None
    return replace(found, noise=(low, high))
