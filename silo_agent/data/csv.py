"""Tables: comma-separated text, numbers and missing values.

The job declares the columns in their order, with mean, scale and fill value of each; the silo
applies and checks them and infers nothing, so that column 3 is the same measurement everywhere.
The silo's own settings say how its file is written: names of the columns where the file has no
header line, texts that mean "missing", and the class that each text in the label column stands for.

N = rows, D = the job's columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.job_spec import ColumnSpec, JobSpec
from crypto.errors import ConfigError
from silo_agent.data.base import Samples, Source, required_path
from silo_agent.data.settings import DataSettings

MISSING = frozenset({"", "?", "NA", "nan", "NaN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Rows of stripped texts, with the number of the line that each comes from."""

    path: Path
    names: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def position(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError(f"{self.path}: no column {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)


def load(settings: DataSettings, job: JobSpec) -> Source:
    """Shapes: features (N, D) float32, each column (value - mean) / scale, a missing value its fill.

    Raises ConfigError that names file, line and column.
    """
    if job.columns is None or job.label_column is None:
        raise ConfigError("columns: format csv needs columns and label_column, the job declares none")
    if job.input_shape != (len(job.columns),):
        raise ConfigError(
            f"input_shape: the job declares {len(job.columns)} columns, but input_shape {job.input_shape}"
        )
    table = _read(required_path(settings), settings.columns_in_file)
    for name in settings.missing:
        table.position(name)
    features = [_column(table, column, settings.missing.get(column.name, ())) for column in job.columns]
    labels_N = _labels(table, job.label_column, settings.labels)
    return Source(train=Samples(features=np.stack(features, axis=1), labels=labels_N))


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
    return _Table(path=path, names=tuple(names), rows=tuple(rows))


def _column(table: _Table, column: ColumnSpec, missing: Collection[str]) -> NDArray[Any]:
    place = table.position(column.name)
    texts_as_missing = MISSING.union(missing)
    values = [
        column.fill if row[place] in texts_as_missing else _number(row[place], table.path, line, column.name)
        for line, row in table.rows
    ]
    standardised_N = (np.asarray(values, dtype=np.float64) - column.mean) / column.scale
    return np.asarray(standardised_N, dtype=np.float32)


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
    labels = [_label(row[place], classes, table.path, line, column) for line, row in table.rows]
    return np.asarray(labels, dtype=np.int64)


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
