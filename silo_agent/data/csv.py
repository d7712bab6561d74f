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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.spec.job_spec import ColumnSpec, JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import NO_LABEL, Samples, Source, required_path, whole_labels
from silo_agent.data.settings import DataSettings

MISSING = frozenset({"", "?", "NA", "nan", "NaN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Rows of stripped texts, with the number of the line that each comes from.

    is_private: no single row raises; every row has as many texts as there are names.
    """

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    is_private: bool

    def position(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError(f"{self.path}: no column {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)


def load(settings: DataSettings, job: JobSpec) -> Source:
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
    reader = _read_by_line if job.privacy is not None else _read
    table = reader(required_path(settings), settings.columns_in_file)
    for name in settings.missing:
        table.position(name)
    columns = [_column(table, column, settings.missing.get(column.name, ())) for column in job.columns]
    labels_N = _labels(table, job.label_column, settings.labels)
    features = np.stack([values for values, _ in columns], axis=1)
    return Source(
        train=Samples(features=features, labels=labels_N),
        identities=tuple("\n".join(row).encode() for _, row in table.rows),
        unreadable=sum(unreadable for _, unreadable in columns),
    )


def _read(path: Path, names: Sequence[str] | None) -> _Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, tuple(text.strip() for text in row)) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a readable csv file in UTF-8") from error
    if names is None:
        if not rows:
            raise ConfigError(f"{path}: expected a header line, the file is empty")
        names, rows = rows[0][1], rows[1:]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: a column is named twice: {', '.join(names)}")
    for line, row in rows:
        if len(row) != len(names):
            raise ConfigError(f"{path}, line {line}: expected {len(names)} values, got {len(row)}")
    return _Table(path=path, names=tuple(names), rows=tuple(rows), is_private=False)


def _read_by_line(path: Path, names: Sequence[str] | None) -> _Table:
    """One line is one row, so that no quote, byte or length in it reaches another row."""
    try:
        lines = path.read_bytes().decode("utf-8-sig", errors="replace").split("\n")
    except OSError as error:
        raise ConfigError(f"{path}: not a readable csv file in UTF-8") from error
    rows = [(number, _cells(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    if names is None:
        if not rows:
            raise ConfigError(f"{path}: expected a header line, the file is empty")
        names, rows = rows[0][1], rows[1:]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path}: a column is named twice: {', '.join(names)}")
    padding = ("",) * len(names)
    whole = tuple((number, (row + padding)[: len(names)]) for number, row in rows)
    return _Table(path=path, names=tuple(names), rows=whole, is_private=True)


def _cells(line: str) -> tuple[str, ...]:
    try:
        return tuple(text.strip() for text in next(csv.reader((line.strip(),))))
    except csv.Error:
        return ()


def _column(table: _Table, column: ColumnSpec, missing: Collection[str]) -> tuple[NDArray[np.float64], int]:
    """The standardized values (N,), and how many cells were neither a number nor a text for 'missing'."""
    place = table.position(column.name)
    texts_as_missing = MISSING.union(missing)
    values = [
        column.fill if row[place] in texts_as_missing else _value(row[place], table, line, column.name)
        for line, row in table.rows
    ]
    values_N = np.asarray(values, dtype=np.float64)
    is_unreadable = np.isnan(values_N)
    values_N[is_unreadable | np.isin(values_N, _numbers(missing))] = column.fill
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is seen to by the caller
        return (values_N - column.mean) / column.scale, int(np.count_nonzero(is_unreadable))


def _numbers(texts: Collection[str]) -> list[float]:
    """Those of the texts that are numbers: a `0` that means 'missing' does so where a file writes `0.0`."""
    found = []
    for text in texts:
        with suppress(ValueError):
            found.append(float(text))
    return found


def _value(text: str, table: _Table, line: int, column: str) -> float:
    """NaN for what is no number in a private job."""
    if not table.is_private:
        return _number(text, table.path, line, column)
    try:
        value = float(text)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def _number(text: str, path: Path, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{path}, line {line}, column {column}: expected a number, got {text[:40]!r}")
    return value


def _labels(table: _Table, column: str, classes: dict[str, int]) -> NDArray[Any]:
    place = table.position(column)
    if table.is_private:
        found = [_own_label(row[place], classes, table, line, column) for line, row in table.rows]
        return whole_labels(np.asarray(found, dtype=np.float64), source=str(table.path), is_private=True)
    labels = [_label(row[place], classes, table.path, line, column) for line, row in table.rows]
    return np.asarray(labels, dtype=np.int64)


def _own_label(text: str, classes: dict[str, int], table: _Table, line: int, column: str) -> float:
    return classes.get(text, NO_LABEL) if classes else _value(text, table, line, column)


def _label(text: str, classes: dict[str, int], path: Path, line: int, column: str) -> int:
    if classes:
        if text not in classes:
            known = ", ".join(classes)
            raise ConfigError(
                f"{path}, line {line}, column {column}: expected one of {known}, got {text[:40]!r}"
            )
        return classes[text]
    value = _number(text, path, line, column)
    if value != math.floor(value):
        raise ConfigError(f"{path}, line {line}, column {column}: expected a whole number, got {text[:40]!r}")
    return int(value)
