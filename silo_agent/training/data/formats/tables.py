"""Tables, whatever file they come from: the job's columns as inputs and labels.

The job declares the columns in their order, with mean, scale and fill value or the categories of each; the
silo applies and checks them and infers nothing, so that column 3 is the same measurement everywhere. The
silo's own settings say what "missing" is in its table and which class each text in a label column stands
for, where it is not the job's own name of one.

N = rows, D = inputs that the columns make.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.spec.analysis_spec import DescribedColumn
from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.column_specs import ColumnSpec
from chorale.spec.samples.computed_columns import as_read
from chorale_models.data import Identities
from crypto.errors import ConfigError
from silo_agent.training.data.base import MAX_LABEL, NO_LABEL, Features, Labels, RawData, Samples
from silo_agent.training.data.formats.memory import check_bytes
from silo_agent.training.data.problems import Problems
from silo_agent.training.data.settings import DataSettings, SettingsFault
from silo_agent.training.data.table.derived import day_of, stored_names
from silo_agent.training.data.table.dialect import TableDialect
from silo_agent.training.data.table.units import factor_of
from strategies.phases.trees import MISSING_INPUT

MISSING = frozenset({"", "?", "NA", "nan", "NaN"})
COMMON = TableDialect()  # numbers of settings, and of tables that have types
SHOWN = 10  # of the texts that a cell may hold, in an error

Cells: TypeAlias = NDArray[np.float64] | Sequence[str]  # numbers, NaN where one is missing; or stripped texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """place: where row i stands. cells: by heading, N each. lost: rows that cannot be read, which
    have no further problems. values: what texts of a column stand for. dialect: how its texts are written."""

    cells: Mapping[str, Cells]
    rows: int
    place: Callable[[int], str]
    problems: Problems = field(default_factory=Problems)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    dialect: TableDialect = COMMON
    lost: Collection[int] = frozenset()

    def texts(self, name: str) -> Sequence[str]:
        """As the job writes them."""
        cells = self.cells[name]
        if isinstance(cells, np.ndarray):
            cells = ["" if math.isnan(value) else text_of(value) for value in cells.tolist()]
        if (values := self.values.get(name)) is None and self.dialect.dates is None:
            return cells
        return [(values or {}).get(text, self.dialect.date(text)) for text in cells]

    def take(self, rows: Sequence[int]) -> Table:
        cells = {
            name: cells[list(rows)] if isinstance(cells, np.ndarray) else [cells[row] for row in rows]
            for name, cells in self.cells.items()
        }
        return replace(
            self,
            cells=cells,
            rows=len(rows),
            place=lambda row: self.place(rows[row]),
            lost=frozenset(at for at, row in enumerate(rows) if row in self.lost),
        )

    def say(self, row: int, column: str, message: str) -> None:
        if row not in self.lost:
            self.problems.add(f"{self.place(row)}, column {column}: {message}", alike=f"{column}: {message}")
            self.problems.misread[column] += 1

    def count(self, row: int, column: str, what: str) -> None:
        """Nothing is wrong with it, and it is not read as it stands."""
        self.problems.counted[f"values of {column}: {what}"] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTable:
    """The columns of a job, and what the file says of each row whatever the job reads.

    identities: the whole rows. units: whose each is, None where it does not say; None: nobody's.
    """

    table: Table
    identities: Identities
    units: list[str | None] | None

    def take(self, rows: Sequence[int]) -> StoredTable:
        return StoredTable(
            table=self.table.take(rows),
            identities=[self.identities[row] for row in rows],
            units=self.units and [self.units[row] for row in rows],
        )


def wanted_columns(settings: DataSettings, job: JobSpec) -> list[str]:
    """The columns that the job reads. Raises ConfigError where it declares none."""
    if job.columns is None or job.label_column is None:
        raise ConfigError(
            f"columns: format {settings.format} needs columns and label_column, the job declares none"
        )
    return [*dict.fromkeys(column.name for column in job.columns_read), *job.label_columns]


def unit_column(settings: DataSettings) -> tuple[str, ...]:
    """The column that says whose a row is, where there is one."""
    return () if settings.unit is None else (settings.unit,)


def units_of(values: Iterable[object], settings: DataSettings) -> list[str | None]:
    """Whose each row is by the cells of that column; None where one is missing."""
    missing = MISSING.union(settings.missing.get(settings.unit or "", ()))
    return [None if text in missing else text for text in map(text_of, values)]


def renamed(names: Sequence[str], settings: DataSettings, *, source: str) -> list[str]:
    """The headings of a file as jobs call them. Raises SettingsFault for a name of `rename` that it lacks."""
    check_own_headings(source, names, [*settings.rename])
    return [settings.rename.get(name, name) for name in names]


def own_columns(settings: DataSettings, wanted: Sequence[str] | None = None) -> list[str]:
    """The columns that the settings name. wanted: of which alone `unit` counts; None: of all."""
    unit = [each for each in unit_column(settings) if wanted is None or each in wanted]
    named = [*settings.missing, *settings.values, *settings.units]
    return [*stored_names([*settings.derive, *named], settings.derive), *unit]


def stored_columns(
    source: str, names: Sequence[str], settings: DataSettings, wanted: Sequence[str]
) -> list[str]:
    """The columns of the table that those are read or derived from. Raises SettingsFault for derived columns
    that it has, ConfigError for those that it lacks."""
    for setting, own in (("derive", settings.derive), ("absent", settings.absent)):
        if twice := [repr(name) for name in own if name in names]:
            raise SettingsFault(f"data.{setting}: {source} has {some(twice)} already")
    stored = stored_names((name for name in wanted if name not in settings.absent), settings.derive)
    check_headings(source, names, stored)
    return stored


def check_own_headings(source: str, names: Sequence[str], own: Sequence[str]) -> None:
    """own: columns that the settings name. Raises SettingsFault for those that the table lacks."""
    try:
        check_headings(source, names, own)
    except ConfigError as error:
        raise SettingsFault(str(error)) from None


def check_headings(source: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises ConfigError that names all that the table lacks."""
    if len(set(names)) != len(names):
        twice = ", ".join(repr(name) for name, times in Counter(names).items() if times > 1)
        raise ConfigError(f"{source}: a column is named twice: {twice}")
    known = set(names)
    missing = [repr(name) for name in dict.fromkeys(wanted) if name not in known]
    if missing:
        what = "column" if len(missing) == 1 else "columns"
        raise ConfigError(f"{source}: no {what} {some(missing)}; it has {', '.join(names)}")


def raw_data(stored: StoredTable, settings: DataSettings, job: JobSpec) -> RawData:
    """Shapes: features (N, D), float64 or the job's int64, a missing value its fill; labels (N, *target).

    A cell that is no number or none of its column's categories is missing; a label that is none is NO_LABEL,
    or NaN where labels are numbers. Each is a problem.
    """
    stored = replace(stored, table=with_derived(stored.table, settings, wanted_columns(settings, job)))
    if len(kept := kept_rows(stored.table, settings, job)) < stored.table.rows:
        stored = stored.take(kept)
    table = stored.table
    return RawData(
        train=Samples(
            features=inputs_of(table, settings, job),
            labels=labels_of(table, class_numbers(settings, job), job, settings.missing),
            subgroups=None if job.subgroups is None else parts_of(table, job.subgroups, settings),
        ),
        identities=stored.identities,
        units=stored.units,
        lost=table.lost,
        place=table.place,
        problems=table.problems,
    )


def inputs_of(table: Table, settings: DataSettings, job: JobSpec) -> Features:
    """As of `raw_data`. Shapes: -> (N, D)."""
    table = with_derived(table, settings, [column.name for column in job.inputs])
    shape = (table.rows, sum(column.width for column in job.inputs))
    if job.privacy is None:  # else who chooses the columns would count the records by what is refused
        check_bytes(math.prod(shape) * np.dtype(np.float64).itemsize, source=f"columns: {table.rows} records")
    inputs_ND = np.empty(shape)
    start = 0
    for column in map(as_read, job.inputs):
        if column.categories is None:
            values_N = numbers_of(table, column, settings)
            is_missing_N = np.isnan(values_N)
            made = _standardized(np.where(is_missing_N, column.fill, values_N), column)
        else:
            found_N = places_of(table, column, settings)
            is_missing_N, made = found_N < 0, _encoded(found_N, column)
        # what is computed is standardized later
        if job.method.recipe.growth is not None and column.standardize is None and not column.is_one_hot:
            made[is_missing_N] = MISSING_INPUT
        inputs_ND[:, start : start + column.width] = made
        start += column.width
    return inputs_ND if job.input_type == "float32" else _whole_inputs(table, inputs_ND)


def text_of(value: object) -> str:
    """A value of a typed table as a category or a record names it: 1.0 as 1, nothing as an empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, Decimal) and value.is_finite():
        text = f"{value:f}"  # a column's scale is that of its longest number: another record brings zeros
        return text.rstrip("0").rstrip(".") if "." in text else text
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) <= MAX_LABEL else repr(value)
    return str(value).strip()


def identity(values: Sequence[object]) -> bytes:
    """A record as its table holds it, all columns included."""
    return "\n".join(text_of(value) for value in values).encode("utf-8", "surrogatepass")


def with_derived(table: Table, settings: DataSettings, wanted: Sequence[str]) -> Table:
    """With the columns that the settings derive, missing where one of the days is, or is none; and those that
    they say are absent, all missing."""
    absent = [name for name in settings.absent if name in wanted]
    made: dict[str, Cells] = {name: np.full(table.rows, np.nan) for name in absent}
    for name in (name for name in settings.derive if name in wanted and name not in table.cells):
        derived = settings.derive[name]
        pairs = zip(*(_days(table, each, settings) for each in derived.days_of), strict=True)
        made[name] = np.array([derived.between(*pair) for pair in pairs], np.float64)
    return replace(table, cells={**table.cells, **made})


def _days(table: Table, name: str, settings: DataSettings) -> list[date | None]:
    """A text that is no day is a problem."""
    missing, found = MISSING.union(settings.missing.get(name, ())), list[date | None]()
    stored = replace(table, values={}, dialect=COMMON).texts(name)
    for row, (text, as_stored) in enumerate(zip(table.texts(name), stored, strict=True)):
        found.append(None if as_stored in missing or text in missing else day_of(text))
        if found[-1] is None and as_stored not in missing and text not in missing:
            form = table.dialect.dates or "YYYY-MM-DD"
            table.say(row, name, f"expected a day as {form}, got {as_stored[:40]!r}")
    return found


def numbers_of(table: Table, column: ColumnSpec, settings: DataSettings) -> NDArray[np.float64]:
    """In the job's unit, NaN where one is missing or not plausible. Shapes: -> (N,)."""
    missing = MISSING.union(settings.missing.get(column.name, ()))
    values_N = _values(table, column.name, missing, factor_of(column, settings.units))
    if column.plausible is not None:
        low, high = column.plausible
        is_outside_N = (values_N < low) | (values_N > high)
        values_N[is_outside_N] = np.nan
        table.problems.implausible[column.name] += int(is_outside_N.sum())
        for row in np.flatnonzero(is_outside_N).tolist():
            table.count(row, column.name, f"outside of {low:g} to {high:g} (plausible), missing")
    return values_N


def _standardized(values_N: NDArray[np.float64], column: ColumnSpec) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):  # the caller handles what is not finite
        return ((values_N - column.mean) / column.scale)[:, np.newaxis]


def _values(table: Table, name: str, missing: Collection[str], factor: float = 1.0) -> NDArray[np.float64]:
    """(N,) finite numbers, times the factor but for what `values` of the settings says; NaN where one is
    missing, and where there is none, which is a problem."""
    cells, known = table.cells[name], table.values.get(name, {})
    # a `0` that means 'missing' does so where a table holds `0.0`
    numbers_as_missing = {table.dialect.number(text) for text in missing}
    if isinstance(cells, np.ndarray) and not known:
        with np.errstate(over="ignore"):
            values_N = np.where(np.isin(cells, [*numbers_as_missing]), np.nan, cells) * factor
        for row in np.flatnonzero(np.isinf(values_N)).tolist():
            table.say(row, name, f"expected a number, got '{cells[row]}'")
        values_N[np.isinf(values_N)] = np.nan
        return values_N
    dialect = COMMON if isinstance(cells, np.ndarray) else table.dialect
    texts = replace(table, values={}).texts(name) if isinstance(cells, np.ndarray) else cells
    rows: Sequence[int] = range(table.rows)
    if not {*missing, *known}.isdisjoint(texts):
        rows = [row for row, text in enumerate(texts) if text not in missing and text not in known]
    stored_N = np.full(table.rows, np.nan)
    read = texts if len(rows) == len(texts) else [texts[row] for row in rows]
    stored_N[np.asarray(rows, np.int64)] = dialect.numbers(read)
    with np.errstate(over="ignore"):
        values_N = stored_N * factor
    wrong = [row for row in np.flatnonzero(~np.isfinite(values_N)).tolist() if texts[row] not in missing]
    if known:
        for row in (row for row, text in enumerate(texts) if text in known and text not in missing):
            stored_N[row] = values_N[row] = COMMON.number(known[texts[row]])
        wrong = [
            row for row in wrong if not math.isfinite(values_N[row]) and known.get(texts[row]) not in missing
        ]
    for row in wrong:
        table.say(row, name, f"expected a number, got {texts[row][:40]!r}")
    values_N[~np.isfinite(values_N) | np.isin(stored_N, [*numbers_as_missing])] = np.nan
    return values_N


def places_of(table: Table, column: ColumnSpec, settings: DataSettings) -> NDArray[np.int64]:
    """Of each text among the column's categories; -1 where it is missing. Shapes: -> (N,)."""
    categories, missing = column.categories or (), settings.missing.get(column.name, ())
    # one that is rare is read as missing, and is no problem
    places = {
        text: -1 if text in column.rare_texts else place
        for place, text in enumerate(categories)
        if text not in missing
    }
    is_missing, read = MISSING.union(missing), table.texts(column.name)
    stored = read if table.values.get(column.name) is None else replace(table, values={}).texts(column.name)
    is_missing = is_missing - {*categories}.difference(missing)  # NA may be one, of which the job says so
    found_N = np.full(table.rows, -1)
    for row, (text, as_stored) in enumerate(zip(read, stored, strict=True)):
        if as_stored in is_missing or text in is_missing:
            continue
        found_N[row] = places.get(text, -1)
        if text not in places:
            table.say(row, column.name, f"expected one of {some(categories)}, got {text[:40]!r}")
    return found_N


def parts_of(table: Table, column: DescribedColumn, settings: DataSettings) -> NDArray[np.int64]:
    """The declared part that each row is in, one behind them where it is missing. A value that is an edge is
    in the part above it, the last edge in the last part. Shapes: -> (N,)."""
    parts = column.partition.parts
    if column.edges is None:
        place_N = places_of(table, column.as_read, settings)
        return np.where(place_N < 0, parts, place_N)
    return parts_by_edges(numbers_of(table, column.as_read, settings), column.edges)


def parts_by_edges(value_N: NDArray[np.float64], edges: Sequence[float]) -> NDArray[np.int64]:
    """The same of values within the edges, or NaN."""
    parts = len(edges) - 1
    part_N = np.minimum(np.searchsorted(np.array(edges), value_N, side="right") - 1, parts - 1)
    return np.where(np.isnan(value_N), parts, part_N)


def _encoded(found_N: NDArray[np.int64], column: ColumnSpec) -> NDArray[np.float64]:
    """One-hot, all 0 where the text is missing; or the place of the text. Shapes: -> (N, categories or 1)."""
    if not column.is_one_hot:
        return _standardized(np.where(found_N < 0, column.fill, found_N), column)
    return np.asarray(found_N[:, np.newaxis] == np.arange(column.width), np.float64)


def _whole_inputs(table: Table, inputs_ND: NDArray[np.float64]) -> Features:
    is_whole = (np.abs(inputs_ND) <= MAX_LABEL) & (inputs_ND == np.floor(inputs_ND))
    for row in np.flatnonzero(~is_whole.all(axis=1)).tolist():
        table.problems.add(f"{table.place(row)}: expected whole numbers (input_type int64)")
    return np.where(is_whole, inputs_ND, 0.0).astype(np.int64)


def kept_rows(table: Table, settings: DataSettings, job: JobSpec) -> list[int]:
    """Those that the settings do not drop for their label."""
    dropped = {
        row: text
        for name in (job.label_columns if settings.drop else ())
        for row, text in enumerate(table.texts(name))
        if text in settings.drop
    }
    table.problems.dropped.update(dropped.values())
    return [row for row in range(table.rows) if row not in dropped]


def class_numbers(settings: DataSettings, job: JobSpec) -> dict[str, int]:
    """The class of each text of a label column or folder, by the names of the job and the silo's own; empty
    where labels are numbers. Raises SettingsFault for `labels` that are none of the job."""
    names = job.class_names if job.method.task.has_classes or not job.label_columns else ()
    numbers = {name: place for place, name in enumerate(names)}
    expected = f"one of the job's classes {some(names)}" if names else "a number: no names are in the job"
    found = dict(numbers)
    for text, meant in settings.labels.items():
        number = numbers.get(meant) if isinstance(meant, str) else None if names else meant
        if number is None:
            raise SettingsFault(f"data.labels: {text}: expected {expected}, got {meant!r}")
        found[text] = number
    return found


def labels_of(
    table: Table, classes: Mapping[str, int], job: JobSpec, missing: Mapping[str, Collection[str]]
) -> Labels:
    """What the label columns hold. classes: what each text stands for. missing: texts that mean it, by
    column. Shapes: -> (N, *target)."""
    target = job.method.task.target
    if classes and target.is_whole and target.shape == ():
        # by the settings alone: a class that no text stands for, and a text that stands for none
        fits_L = target.fitting(np.array([*classes.values()]))
        reached = {place for place, fits in zip(classes.values(), fits_L, strict=True) if fits}
        if not fits_L.all() and len(reached) < job.classes:
            raise SettingsFault(
                f"data.labels: expected the job's classes 0 to {job.classes - 1}, got {classes}"
            )
    columns = []
    for name in job.label_columns:
        if classes:
            values_N = np.full(table.rows, np.nan)
            unknown = {*missing.get(name, ())}
            for row, text in enumerate(table.texts(name)):
                values_N[row] = math.nan if text in unknown else classes.get(text, math.nan)
                if text not in classes or text in unknown:
                    table.say(row, name, f"expected one of {some([*classes])}, got {text[:40]!r}")
        else:
            values_N = _label_values(table, name, missing.get(name, ()))
        if target.is_whole:
            is_fraction_N = (values_N != np.floor(values_N)) | (np.abs(values_N) > MAX_LABEL)
            for row in np.flatnonzero(is_fraction_N & ~np.isnan(values_N)).tolist():
                table.say(row, name, f"expected a whole number, got '{values_N[row]}'")
            values_N = np.where(is_fraction_N, NO_LABEL, values_N)
        columns.append(values_N)
    labels = np.stack(columns, axis=1).reshape(table.rows, *target.shape)
    return labels.astype(np.int64) if target.is_whole else labels


def _label_values(table: Table, name: str, missing: Collection[str]) -> NDArray[np.float64]:
    """As `_values`; a missing label is a problem, too."""
    cells = table.cells[name]
    if isinstance(cells, np.ndarray):
        for row in np.flatnonzero(np.isnan(cells)).tolist():
            table.say(row, name, "expected a number, got none")
    values_N = _values(table, name, missing)
    if missing:
        stored_N = _values(replace(table, problems=Problems()), name, ())
        for row in np.flatnonzero(np.isnan(values_N) & ~np.isnan(stored_N)).tolist():
            table.say(row, name, "expected a number, got one that means missing (data.missing)")
    return values_N


def some(texts: Sequence[str]) -> str:
    more = f" or {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return ", ".join(texts[:SHOWN]) + more
