"""Tables: comma-separated text, numbers and missing values.

The job declares the columns in their order, with mean, scale and fill value of each; the silo
applies and checks them and infers nothing, so that column 3 is the same measurement everywhere.
The silo's own settings say how its file is written: names of the columns where the file has no
header line, what means "missing", and the class that each text in the label column stands for.

N = rows, D = the job's columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import ColumnSpec, JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import MAX_LABEL, NO_LABEL, RawData, Samples, required_path
from silo_agent.data.problems import Problems
from silo_agent.data.settings import DataSettings

Row = tuple[int, tuple[str, ...]]  # the number of the line that it comes from, and its stripped texts
MISSING = frozenset({"", "?", "NA", "nan", "NaN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Every row has as many texts as there are names."""

    path: Path
    names: tuple[str, ...]
    rows: tuple[Row, ...]
    problems: Problems

    def check_columns(self, wanted: Iterable[str]) -> None:
        """Raises ConfigError that names all that are missing."""
        missing = [repr(name) for name in dict.fromkeys(wanted) if name not in self.names]
        if missing:
            what = "column" if len(missing) == 1 else "columns"
            raise ConfigError(f"{self.path}: no {what} {', '.join(missing)}; it has {', '.join(self.names)}")

    def place(self, line: int) -> str:
        return f"{self.path}, line {line}"


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Shapes: features (N, D) float64, each column (value - mean) / scale, a missing value its fill.

    A cell that is no number is missing, and so are those that a row lacks; a label that is none is NO_LABEL;
    each is a problem that names file, line and column. Raises ConfigError for a file without the columns.
    """
    if job.columns is None or job.label_column is None:
        raise ConfigError("columns: format csv needs columns and label_column, the job declares none")
    if job.input_shape != (len(job.columns),):
        raise ConfigError(
            f"input_shape: the job declares {len(job.columns)} columns, but input_shape {job.input_shape}"
        )
    table = _read(required_path(settings), settings.columns_in_file, is_private=job.privacy is not None)
    table.check_columns((*settings.missing, *(column.name for column in job.columns), job.label_column))
    columns = [_column(table, column, settings.missing.get(column.name, ())) for column in job.columns]
    place, classes = table.names.index(job.label_column), settings.labels
    labels = [_label(row[place], classes, table, line, job.label_column) for line, row in table.rows]
    return RawData(
        train=Samples(features=np.stack(columns, axis=1), labels=np.asarray(labels, dtype=np.int64)),
        identities=tuple("\n".join(row).encode() for _, row in table.rows),
        places=[table.place(line) for line, _ in table.rows],
        problems=table.problems,
    )


def _read(path: Path, names: Sequence[str] | None, *, is_private: bool) -> _Table:
    """Raises ConfigError for a file that is no table."""
    try:
        rows = _rows_by_line(path) if is_private else _rows(path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a readable csv file in UTF-8") from error
    if names is None:
        if not rows:
            raise ConfigError(f"{path}: expected a header line, the file is empty")
        names, rows = rows[0][1], rows[1:]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: a column is named twice: {', '.join(names)}")
    problems, padding = Problems(), ("",) * len(names)
    for line, row in rows:
        if len(row) != len(names):
            problems.add(f"{path}, line {line}: expected {len(names)} values, got {len(row)}")
    whole = tuple((line, (row + padding)[: len(names)]) for line, row in rows)
    return _Table(path=path, names=tuple(names), rows=whole, problems=problems)


def _rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        return [(reader.line_num, tuple(text.strip() for text in row)) for row in reader if row]


def _rows_by_line(path: Path) -> list[Row]:
    """One line is one row, so that no quote, byte or length in it reaches another row."""
    rows: list[Row] = []
    lines = path.read_bytes().decode("utf-8-sig", errors="replace").split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, tuple(text.strip() for text in next(csv.reader((line.strip(),))))))
            except csv.Error:
                rows.append((number, ()))
    return rows


def _column(table: _Table, column: ColumnSpec, missing: Collection[str]) -> NDArray[np.float64]:
    """The standardized values (N,)."""
    place = table.names.index(column.name)
    texts_as_missing = MISSING.union(missing)
    # a `0` that means 'missing' does so where a file writes `0.0`
    numbers_as_missing = []
    for text in missing:
        with suppress(ValueError):
            numbers_as_missing.append(float(text))
    values = [
        column.fill if row[place] in texts_as_missing else _value(row[place], table, line, column.name)
        for line, row in table.rows
    ]
    values_N = np.asarray(values, dtype=np.float64)
    values_N[np.isnan(values_N) | np.isin(values_N, numbers_as_missing)] = column.fill
    with np.errstate(over="ignore", invalid="ignore"):  # the caller handles what is not finite
        return (values_N - column.mean) / column.scale


def _value(text: str, table: _Table, line: int, column: str) -> float:
    """A finite number; NaN, and a problem, for what is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    table.problems.add(f"{table.place(line)}, column {column}: expected a number, got {text[:40]!r}")
    return math.nan


def _label(text: str, classes: dict[str, int], table: _Table, line: int, column: str) -> int:
    """The class of a text in the label column; NO_LABEL, and a problem, for what is none."""
    where = f"{table.place(line)}, column {column}"
    if classes:
        if text not in classes:
            table.problems.add(f"{where}: expected one of {', '.join(classes)}, got {text[:40]!r}")
        return classes.get(text, NO_LABEL)
    value = _value(text, table, line, column)
    if math.isnan(value):
        return NO_LABEL
    if value != math.floor(value) or abs(value) > MAX_LABEL:
        table.problems.add(f"{where}: expected a whole number, got {text[:40]!r}")
        return NO_LABEL
    return int(value)
