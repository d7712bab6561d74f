"""A silo's table as an analysis describes it: which part of each column a record is in, and its values.

A record is a row. All rows count that the silo's settings admit: none is held out, a table has no test split
of its own, and `data.drop` names labels, of which an analysis reads none.

N = records, C = columns, K = measured columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from chorale.observability.logs import get_logger
from chorale.spec.analysis_spec import AnalysisSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import Cancelled, Indices
from silo_agent.training.data.formats import csv, parquet, sql
from silo_agent.training.data.formats.memory import check_bytes, check_records
from silo_agent.training.data.formats.tables import (
    StoredTable,
    Table,
    numbers_of,
    parts_by_edges,
    parts_of,
    with_derived,
)
from silo_agent.training.data.own_data import check_named
from silo_agent.training.data.partition import cut_iid
from silo_agent.training.data.private import row_hash
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import (
    DataFormat,
    DataSettings,
    PartitionKind,
    PartitionSettings,
    check_unit,
)
from silo_agent.training.data.table.units import check_units
from silo_agent.training.data.units import Excluded, admitted_names, grouped
from silo_agent.training.machine.seeding import derive_seed
from silo_agent.training.unit_marks import Admitted
from strategies.analysis.partition import Tables

log = get_logger("silo_agent.training.analysis.table")

READERS: dict[str, Callable[[DataSettings, Sequence[str]], StoredTable]] = {
    DataFormat.CSV: csv.stored,
    DataFormat.PARQUET: parquet.stored,
    DataFormat.SQL: sql.stored,
}
VALUE_BYTES = 8
# the multipliers of SplitMix64 (Steele, Lea and Flood 2014): records of one mark are 2^-64 of all pairs
MIX = tuple(map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTable:
    """Shapes: parts (N, C) int64, the declared part of each column, its last one where a value is missing; z
    (N, K) float64, from -1 to 1 between the outermost edges, NaN where it is missing.

    unit (N,) int64: whose each record is; None where settings do not say. name: of the data set. misfits:
    cells and rows that are not as job and settings say; they are missing, or left out. rows_beyond, excluded:
    as of `SiloData`.
    """

    parts_NC: NDArray[np.int64]
    z_NK: NDArray[np.float64]
    name: str
    misfits: int = 0
    rows_beyond: int = 0
    excluded: Excluded | None = None
    unit_N: Indices | None = None

    @property
    def records(self) -> int:
        return len(self.parts_NC)

    def complete(self, tables: Tables) -> DescribedTable:
        """The records without any missing value; parts of a time are by ending."""
        missing_C = np.array([partition.parts for partition in tables.partitions])
        is_in_N = (self.parts_NC < missing_C).all(axis=1)
        unit_N = None if self.unit_N is None else self.unit_N[is_in_N]
        parts_NC = self.parts_NC[is_in_N]
        if tables.time is not None:
            parts_NC[:, tables.time] += missing_C[tables.time] * parts_NC[:, tables.status]
        return replace(self, parts_NC=parts_NC, z_NK=self.z_NK[is_in_N], unit_N=unit_N)

    @property
    def digest(self) -> bytes:
        """Of the records as the job describes them, in any order: a database keeps none."""
        mark_N = np.zeros(self.records, np.uint64)
        for column_N in (*self.parts_NC.T, *self.z_NK.T):
            mark_N = _mixed(mark_N * MIX[0] + np.ascontiguousarray(column_N).view(np.uint64))
        return hashlib.sha256(np.sort(mark_N).tobytes()).digest()

    @property
    def is_current(self) -> bool:
        """Whether the same people are left out as by now; else the table is read again."""
        return self.excluded is None or self.excluded.is_current


def load_table(
    settings: DataSettings,
    spec: AnalysisSpec,
    *,
    admitted: Admitted | None = None,
    most: int | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    take_problems: Callable[[Problems], None] | None = None,
) -> DescribedTable:
    """This silo's records. Of a unit with more than `max_rows_per_unit` rows a choice by their hashes, as in
    training; each row that is kept is a record. Under noise one row of each unit, which is so hidden as one.

    A cell that is no number, none of the categories or not plausible is missing: a refusal would answer a
    question about the records. The log of this silo alone says how many there are.
    admitted: as of `load_data`. most: records that private jobs count on, whatever there are; None: those
    that there are. take_problems: is given them instead. Raises ConfigError for
    data that are no table or lack a column; Cancelled.
    """
    index = 0 if settings.partition is None else settings.partition.index
    tables = _tables(
        settings,
        spec,
        [index],
        admitted=admitted,
        most=most,
        is_cancelled=is_cancelled,
        take_problems=take_problems,
    )
    return next(tables)


def tables_of(settings: DataSettings, spec: AnalysisSpec) -> Iterator[DescribedTable]:
    """Every silo's part of one table on this machine, as `load_table` gives it to each, read once. Raises
    ConfigError as `load_table`, and without `partition`."""
    if settings.partition is None:
        raise ConfigError("data.partition: expected how a file is cut into silos")
    yield from _tables(settings, spec, range(settings.partition.silos))


def _tables(
    settings: DataSettings,
    spec: AnalysisSpec,
    indices: Sequence[int],
    *,
    admitted: Admitted | None = None,
    most: int | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    take_problems: Callable[[Problems], None] | None = None,
) -> Iterator[DescribedTable]:
    _check(settings, spec)
    excluded = None if settings.exclude is None else Excluded.of(settings.exclude)
    wanted = [column.name for column in spec.columns]
    is_private = spec.privacy is not None
    reader = READERS[settings.format]
    if is_private and settings.format == DataFormat.CSV:
        reader = partial(csv.stored, is_private=True)
    stored = reader(settings, wanted)
    most_rows = stored.table.rows
    if is_private and most is not None:
        check_records(most_rows, most, settings=settings)
        most_rows = most * settings.rows_per_unit
    check_bytes(
        VALUE_BYTES * most_rows * (len(spec.columns) + len(spec.tables.measured)),
        source=f"columns: {most_rows} records",
    )
    admitted = admitted or Admitted.everything(settings.name)
    most_of_unit = 1 if is_private else settings.max_rows_per_unit
    rows_N, unit_N, beyond = _admitted_rows(stored, settings, admitted, excluded, max_rows=most_of_unit)
    for mine_N in _cut(rows_N, settings.partition, indices):
        problems = Problems()
        is_whole = len(mine_N) == stored.table.rows
        table = stored.table if is_whole else stored.table.take(mine_N.tolist())
        table = replace(table, problems=problems)
        parts_NC, z_NK = _described(with_derived(table, settings, wanted), settings, spec, is_cancelled)
        problems.take(stored.table.problems)
        if take_problems is None:
            _log(problems, name=settings.name, left_out=stored.table.rows - len(rows_N))
        else:
            take_problems(problems)
        yield DescribedTable(
            parts_NC=parts_NC,
            z_NK=z_NK,
            name=settings.name,
            misfits=problems.count,
            rows_beyond=beyond,
            excluded=excluded,
            unit_N=unit_N,
        )


def _log(problems: Problems, *, name: str, left_out: int) -> None:
    for what, times in problems.counted.items():
        log.info(what, data=name, times=times)
    if problems.count:
        counts = {"problems": problems.count, "rows_left_out": left_out}
        log.warning("cells and rows that do not fit the analysis", data=name, **counts)


def _check(settings: DataSettings, spec: AnalysisSpec) -> None:
    """By settings and job alone. Raises ConfigError."""
    own = settings.source is not None or settings.module is not None
    if own or settings.format not in READERS:
        what = "a function of the silo's own" if own else f"format {settings.format}"
        raise ConfigError(
            f"data {settings.name}: an analysis reads a csv, a parquet file or a database, not data of {what}"
        )
    check_unit(settings.unit, spec)
    if settings.unit is None and spec.model is not None and spec.model.errors == "patient":
        raise ConfigError("data.unit: expected a column that says whose a row is, for errors by patient")
    check_units(settings.units, spec)
    check_named(settings)
    if settings.partition is not None and settings.partition.kind is not PartitionKind.IID:
        raise ConfigError(
            f"data.partition.kind: expected iid, an analysis has no classes that {settings.partition.kind} "
            "cuts by"
        )


def _admitted_rows(
    stored: StoredTable,
    settings: DataSettings,
    admitted: Admitted,
    excluded: Excluded | None,
    *,
    max_rows: int,
) -> tuple[Indices, Indices | None, int]:
    """The rows that are read, in their order, whose each is, and how many more their units have."""
    table, count = stored.table, stored.table.rows

    def records() -> Iterator[bytes]:
        return map(stored.identities.__getitem__, range(count))

    is_in_N = np.ones(count, np.bool_)
    is_in_N[[*table.lost]] = False
    if not admitted.is_everything:
        is_in_N &= admitted.rows(records())
    if stored.units is None:
        return np.flatnonzero(is_in_N), None, 0
    names = admitted_names(
        stored.units,
        column=settings.unit or "units",
        place=table.place,
        excluded=excluded,
        admitted=admitted,
        problems=table.problems,
    )
    chosen = [name if is_in else None for name, is_in in zip(names, is_in_N.tolist(), strict=True)]
    kept = grouped(chosen, [*map(row_hash, records())], max_rows=max_rows)
    order_N = np.argsort(kept.places_N)
    beyond = sum(name is not None for name in chosen) - len(kept.places_N)
    return kept.places_N[order_N], kept.units_N[order_N], beyond


def _cut(rows_N: Indices, partition: PartitionSettings | None, indices: Sequence[int]) -> Iterator[Indices]:
    """The rows of those silos; all where there is no partition. A training is cut after its hold-out, so a
    silo has other rows there."""
    if partition is None:
        yield rows_N
        return
    rng = np.random.default_rng(derive_seed("partition", partition.seed))
    dealt = cut_iid(rows_N, rows_N[:0], silos=partition.silos, rng=rng).train
    for index in indices:
        yield rows_N[dealt[index]]


def _described(
    table: Table, settings: DataSettings, spec: AnalysisSpec, is_cancelled: Callable[[], bool]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Shapes: -> (N, C), (N, K)."""
    measured, columns = spec.tables.measured, spec.columns
    # a column lies together: each is counted by itself
    parts_NC = np.empty((table.rows, len(columns)), np.int64, order="F")
    z_NK = np.empty((table.rows, len(measured)), np.float64, order="F")
    for place, column in enumerate(columns):
        if is_cancelled():
            raise Cancelled("data: no longer wanted")
        if column.edges is None:
            parts_NC[:, place] = parts_of(table, column, settings)
            continue
        value_N = numbers_of(table, column.as_read, settings)
        parts_NC[:, place] = parts_by_edges(value_N, column.edges)
        if place in measured:
            z_NK[:, measured.index(place)] = _z(value_N, column.edges[0], column.edges[-1])
    return parts_NC, z_NK


def _z(value_N: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """The clip is of rounding alone."""
    half = (high - low) / 2
    return np.clip((value_N - (low + half)) / half, -1.0, 1.0)


def _mixed(mark_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Each bit of the result depends on all bits."""
    mark_N = (mark_N ^ (mark_N >> np.uint64(30))) * MIX[1]
    mark_N = (mark_N ^ (mark_N >> np.uint64(27))) * MIX[2]
    return mark_N ^ (mark_N >> np.uint64(31))
