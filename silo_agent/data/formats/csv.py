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
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import ColumnSpec, JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import MAX_LABEL, NO_LABEL, RawData, Samples, required_path, whole_labels
from silo_agent.data.settings import DataSettings

Row = tuple[int, tuple[str, ...]]  # the number of the line that it comes from, and its stripped texts
MISSING = frozenset({"", "?", "NA", "nan", "NaN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """is_private: no single row raises; every row has as many texts as there are names."""

    path: Path
    names: tuple[str, ...]
    rows: tuple[Row, ...]
    is_private: bool

    def position(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError(f"{self.path}: no column {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)


def load(settings: DataSettings, job: JobSpec) -> RawData:
    """Shapes: features (N, D) float64, each column (value - mean) / scale, a missing value its fill.

    Raises ConfigError that names file, line and column. In a private job a cell that is no number is
    missing, and so are those that a row lacks; a label that is none makes NO_LABEL.
    """
    if job.columns is None or job.label_column is None:
        raise ConfigError("columns: format csv needs columns and label_column, the job declares none")
    if job.input_shape != (len(job.columns),):
        raise ConfigError(
            f"input_shape: the job declares {len(job.columns)} columns, but input_shape {job.input_shape}"
        )
    table = _read(required_path(settings), settings.columns_in_file, is_private=job.privacy is not None)
    for name in settings.missing:
        table.position(name)
    columns = [_column(table, column, settings.missing.get(column.name, ())) for column in job.columns]
    place, classes = table.position(job.label_column), settings.labels
    labels = [_label(row[place], classes, table, line, job.label_column) for line, row in table.rows]
    if table.is_private:
        found_N = np.asarray(labels, dtype=np.float64)
        labels_N = whole_labels(found_N, source=str(table.path), is_private=True)
    else:
        labels_N = np.asarray([int(label) for label in labels], dtype=np.int64)
    features = np.stack([values for values, _ in columns], axis=1)
    return RawData(
        train=Samples(features=features, labels=labels_N),
        identities=tuple("\n".join(row).encode() for _, row in table.rows),
        unreadable=sum(unreadable for _, unreadable in columns),
    )


def _read(path: Path, names: Sequence[str] | None, *, is_private: bool) -> _Table:
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
    if is_private:
        padding = ("",) * len(names)
        rows = [(line, (row + padding)[: len(names)]) for line, row in rows]
    for line, row in rows:
        if len(row) != len(names):
            raise ConfigError(f"{path}, line {line}: expected {len(names)} values, got {len(row)}")
    return _Table(path=path, names=tuple(names), rows=tuple(rows), is_private=is_private)


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


def _column(table: _Table, column: ColumnSpec, missing: Collection[str]) -> tuple[NDArray[np.float64], int]:
    """The standardized values (N,), and how many cells were neither a number nor a text for 'missing'."""
    place = table.position(column.name)
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
    is_unreadable = np.isnan(values_N)
    values_N[is_unreadable | np.isin(values_N, numbers_as_missing)] = column.fill
    with np.errstate(over="ignore", invalid="ignore"):  # the caller handles what is not finite
        return (values_N - column.mean) / column.scale, int(np.count_nonzero(is_unreadable))


def _value(text: str, table: _Table, line: int, column: str) -> float:
    """A finite number; in a private job NaN for what is none. Else raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return value
    if table.is_private:
        return math.nan
    raise ConfigError(f"{table.path}, line {line}, column {column}: expected a number, got {text[:40]!r}")


def _label(text: str, classes: dict[str, int], table: _Table, line: int, column: str) -> float:
    """The class of a text in the label column. Raises ConfigError, but not in a private job."""
    where = f"{table.path}, line {line}, column {column}"
    if classes:
        if text not in classes and not table.is_private:
            raise ConfigError(f"{where}: expected one of {', '.join(classes)}, got {text[:40]!r}")
        return classes.get(text, NO_LABEL)
    value = _value(text, table, line, column)
    if not table.is_private and (value != math.floor(value) or abs(value) > MAX_LABEL):
        raise ConfigError(f"{where}: expected a whole number, got {text[:40]!r}")
    return value
