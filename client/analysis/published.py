"""The published figures in an analysis's last state, checked: a coordinator may send any.

P = parts of a column, missing values the last; Q = published parts of a column by itself, T = of a column in
its table; R = published parts of the group, 1 without one; H = R + 1: all records, then by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from chorale.spec.analysis_spec import AnalysisSpec
from client.analysis.figures import Spread
from crypto.errors import ConfigError
from strategies.analysis.counts import CELL_COUNTS, CELL_PARTS, PART_COUNTS, PARTS, ROW_COUNTS, ROWS
from strategies.analysis.merging import are_bins
from strategies.analysis.noised import NOISE
from strategies.analysis.partition import Partition
from strategies.analysis.values import DEVIATIONS, MEANS, SHOWN
from strategies.base import Array, Arrays, array_in
from strategies.figure import Figure

MOST_RECORDS = 100_000_000_000  # more than there are people; all cells of a job add up exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """parts_G: the published part of each part of the group."""

    parts_G: tuple[int, ...]
    counts_R: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A column by itself and in its table. parts_P and cell_parts_P: the published part of each declared
    one."""

    parts_P: tuple[int, ...]
    counts_Q: tuple[int, ...]
    cell_parts_P: tuple[int, ...]
    cells_RT: tuple[tuple[int, ...], ...]


def has_counts(state: Arrays) -> bool:
    return ROWS in state or NOISE in state


def rows_in(state: Arrays, spec: AnalysisSpec) -> Rows:
    """Raises ConfigError."""
    tables = spec.tables
    group = Partition(parts=0) if tables.group is None else tables.partitions[tables.group]
    parts_G = _merged(state, ROWS, group)
    return Rows(parts_G=parts_G, counts_R=_counts(state, ROW_COUNTS, parts_G, spec.min_cell))


def counted_in(state: Arrays, spec: AnalysisSpec, place: int, rows: Rows) -> Counted:
    """place: the column's. Raises ConfigError, also where tables do not fit together."""
    partition = spec.tables.partitions[place]
    parts_P = _merged(state, f"{PARTS}{place}", partition)
    counts_Q = _counts(state, f"{PART_COUNTS}{place}", parts_P, spec.min_cell)
    name = f"{CELL_COUNTS}{place}"
    cell_parts_P = _merged(state, f"{CELL_PARTS}{place}", partition)
    cells = array_in(state, name, (len(rows.counts_R), max(cell_parts_P) + 1), np.int64)
    _check_counts(name, cells, spec.min_cell)
    if len(set(zip(parts_P, cell_parts_P, strict=True))) != len(counts_Q):
        raise ConfigError(f"{name}: expected parts that are made of those of the column by itself")
    into_Q = dict(zip(parts_P, cell_parts_P, strict=True))
    summed = [0] * (max(cell_parts_P) + 1)
    for part, count in enumerate(counts_Q):
        summed[into_Q[part]] += count
    if cells.sum(axis=1).tolist() != list(rows.counts_R) or cells.sum(axis=0).tolist() != summed:
        raise ConfigError(f"{name}: expected cells that add up to the counts of their rows and parts")
    return Counted(
        parts_P=parts_P,
        counts_Q=counts_Q,
        cell_parts_P=cell_parts_P,
        cells_RT=tuple(tuple(row) for row in cells.tolist()),
    )


def spreads_in(state: Arrays, spec: AnalysisSpec, place: int, rows: Rows) -> tuple[Spread | None, ...] | None:
    """(H,) of a measured column, None in place of each that is withheld; None before values were summed.

    Raises ConfigError.
    """
    names = [f"{each}{place}" for each in (SHOWN, MEANS, DEVIATIONS)]
    if not any(name in state for name in names):
        return None
    shape = (len(rows.counts_R) + 1,)
    shown_H = array_in(state, names[0], shape, np.uint8)
    means_H, deviations_H = (array_in(state, name, shape, np.float64) for name in names[1:])
    if shown_H.max() > 1:
        raise ConfigError(f"{names[0]}: expected 0 and 1, got {shown_H.max()}")
    edges = spec.columns[place].edges
    assert edges is not None
    width = edges[-1] - edges[0]  # which a deviation within the edges, rounded, stays below
    if not np.all((means_H >= edges[0] - width) & (means_H <= edges[-1] + width) | (shown_H == 0)):
        raise ConfigError(f"{names[1]}: expected means between the column's edges")
    if not np.all((deviations_H >= 0) & (deviations_H <= width) | (shown_H == 0)):
        raise ConfigError(f"{names[2]}: expected deviations from 0 to {width:g}")
    figures = zip(shown_H, means_H + 0.0, deviations_H, strict=True)
    return tuple(
        Spread(mean=Figure(value=float(mean)), deviation=Figure(value=float(deviation))) if shown else None
        for shown, mean, deviation in figures
    )


def _merged(state: Arrays, name: str, partition: Partition) -> tuple[int, ...]:
    """Numbered in the order of the lowest declared part; of numbers each part is one interval; of a time by
    ending all are one, or bins."""
    parts = tuple(array_in(state, name, (partition.size,), np.int64).tolist())
    highest = -1
    for each in parts:
        if not 0 <= each <= highest + 1:
            raise ConfigError(f"{name}: expected parts that are numbered in their order")
        highest = max(highest, each)
    if partition.by_ending:
        if highest > 0 and not are_bins(parts):
            raise ConfigError(f"{name}: expected bins of each ending")
    elif partition.is_ordered and any(low > high for low, high in pairwise(parts[:-1])):
        raise ConfigError(f"{name}: expected parts of neighbors")
    return parts


def _counts(state: Arrays, name: str, parts: Sequence[int], least: int) -> tuple[int, ...]:
    counts = array_in(state, name, (max(parts) + 1,), np.int64)
    _check_counts(name, counts, least)
    return tuple(counts.tolist())


def _check_counts(name: str, counts: Array, least: int) -> None:
    if counts.min() < least or counts.max() > MOST_RECORDS:
        raise ConfigError(f"{name}: expected counts from {least} to {MOST_RECORDS}")
