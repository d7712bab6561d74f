"""What a table or a folder of images holds, without a job: for the institution's own eyes alone.

Nothing here is read by a job. A proposal goes to people outside, so it has no text that few records hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from chorale.runtime.plain_yaml import dump
from crypto.errors import ConfigError, printable
from silo_agent.training.data.formats import csv, image_folder, parquet, scans, sql
from silo_agent.training.data.formats.images.names import files_of, listed
from silo_agent.training.data.formats.images.plain import FORMATS
from silo_agent.training.data.formats.tables import MISSING, Cells, Table, text_of
from silo_agent.training.data.settings import DataFormat, DataSettings
from silo_agent.training.data.table.dialect import TableDialect

FEW = 12  # values of a column that are listed with their counts
MOST_CATEGORIES = 30
HELD_BY = 5  # records, that a text may stand in a proposal: a rarer one could be a person's
SHOWN, LONGEST = 3, 40  # texts of many, and characters of one
SIZED = 100  # images of a folder whose size is read
ISO_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ T].*)?")
TABLES = {DataFormat.CSV: csv.table, DataFormat.PARQUET: parquet.table, DataFormat.SQL: sql.table}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """kind: numbers, whole numbers, days, texts or nothing. counts: of each value that is there. other: of
    those that are not of the kind."""

    name: str
    kind: str
    missing: int
    counts: Counter[str]
    other: Counter[str]
    extent: str

    def in_words(self) -> str:
        counted = f"{len(self.counts)} distinct, {self.missing} missing"
        parts = [", ".join(filter(None, [f"{self.kind}{self.extent}", counted]))]
        if len(self.counts) <= FEW:
            parts.append(_listed(self.counts, FEW))
        elif self.kind == "texts":
            parts.append(f"most often {_listed(self.counts, SHOWN)}")
        if self.other:
            parts.append(f"not of the kind: {_listed(self.other, SHOWN)} (data.missing or data.values)")
        return "; ".join(filter(None, parts))

    @property
    def categories(self) -> list[str]:
        return [text for text, times in sorted(self.counts.items()) if times >= HELD_BY]

    @property
    def is_like_a_label(self) -> bool:
        return self.kind in ("texts", "whole numbers") and 2 <= len(self.counts) <= FEW


def columns_of(table: Table, settings: DataSettings) -> Iterator[Column]:
    """One by one, as each is counted."""
    return (_column(name, cells, settings) for name, cells in table.cells.items())


def _column(name: str, cells: Cells, settings: DataSettings) -> Column:
    if isinstance(cells, np.ndarray):
        values, times = np.unique(cells[~np.isnan(cells)], return_counts=True)
        found = Counter(dict(zip(map(text_of, values.tolist()), times.tolist(), strict=True)))
        dialect = TableDialect()
    else:
        found, dialect = Counter(cells), settings.dialect
    stands_for, known = settings.values.get(name, {}), MISSING.union(settings.missing.get(name, ()))
    counts = Counter[str]()
    for cell, count in found.items():
        if cell not in known:
            counts[stands_for.get(cell, cell)] += count
    numbers = {text: value for text in counts if np.isfinite(value := dialect.number(text))}
    days = {text: day for text in counts if ISO_DAY.fullmatch(day := dialect.date(text))}
    kind, extent, fitting = "texts", "", set(counts)
    half = counts.total() / 2
    if not counts:
        kind = "nothing"
    elif sum(counts[text] for text in numbers) > half:
        kind = "whole numbers" if all(value.is_integer() for value in numbers.values()) else "numbers"
        extent, fitting = f" {text_of(min(numbers.values()))} to {text_of(max(numbers.values()))}", {*numbers}
    elif sum(counts[text] for text in days) > half:
        kind, extent, fitting = "days", f" {min(days.values())} to {max(days.values())}", {*days}
    return Column(
        name=name,
        kind=kind,
        missing=len(cells) - counts.total(),
        counts=Counter({text: times for text, times in counts.items() if text in fitting}),
        other=Counter({text: times for text, times in counts.items() if text not in fitting}),
        extent=extent,
    )


def _listed(counts: Counter[str], most: int) -> str:
    shown = [f"{printable(text[:LONGEST])!r} {times}" for text, times in counts.most_common(most)]
    return ", ".join(shown) + (f" and {len(counts) - most} more" if len(counts) > most else "")


def proposal(settings: DataSettings, columns: list[Column]) -> str:
    """`data:` of the silo's settings and `columns:` of a job, as YAML with remarks."""
    given = settings.model_dump(mode="json", exclude_defaults=True, by_alias=True)
    lines = [
        "# For the silo's settings:",
        "data:",
        *(f"  {name}: {dump(value, in_one_line=True)}" for name, value in given.items()),
        "# For a job: strike what it does not need. Its institutions agree on mean, scale, fill and unit.",
        "columns:",
        *(f"- {dump({'name': name}, in_one_line=True)}" for name in settings.derive),
    ]
    for column in columns:
        if column.kind in ("numbers", "whole numbers"):
            lines.append(f"- {dump({'name': column.name}, in_one_line=True)}")
        elif column.kind == "texts" and len(column.counts) <= MOST_CATEGORIES and column.categories:
            field = {"name": column.name, "categories": column.categories}
            lines.append(f"- {dump(field, in_one_line=True)}")
            if rare := len(column.counts) - len(column.categories):
                held = f"texts of fewer than {HELD_BY} records (data.values, data.missing)"
                lines.append(f"  # without {rare} {held}")
        else:
            what = f"{len(column.counts)} texts" if column.kind == "texts" else column.kind
            lines.append(f"# not {printable(column.name)}: {what}")
    if labels := [printable(column.name) for column in columns if column.is_like_a_label]:
        lines.append(f"# label_column, which is none of the columns, may be: {', '.join(labels)}")
    return "\n".join(lines) + "\n"


def folders_in_words(settings: DataSettings) -> Iterator[str]:
    """Of images: each folder's number of files, what is left out, and sizes of the first ones. Raises
    ConfigError."""
    form, root = DataFormat(settings.format), settings.path
    assert root is not None  # DataSettings refuses such a format without it
    if not root.is_dir():
        raise ConfigError(f"data.path: {root} is not a folder")
    endings = scans.ENDINGS.get(form, image_folder.ENDINGS)
    for folder in sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != "."):
        found = listed(folder, endings)
        left = [f"{len(names)} {why}" for why, names in found.left_out.items()]
        sizes = Counter(_size(path, form) for path in [*found.images.values()][:SIZED])
        first = f"the first {min(SIZED, len(found.images))}: {_listed(sizes, SHOWN)}" if sizes else ""
        parts = [f"{len(found.images)} images", first, f"left out: {', '.join(left)}" if left else ""]
        yield f"{printable(folder.name)}: {'; '.join(filter(None, parts))}"


def _size(path: Path, form: DataFormat) -> str:
    """By the header alone."""
    with suppress(Exception):  # what decoders raise is on no list
        if form is DataFormat.NIFTI or path.name.lower().endswith(scans.NIFTI_ENDINGS):
            import nibabel

            return "x".join(map(str, getattr(nibabel.load(path), "shape", ())))
        if form is DataFormat.DICOM:
            from pydicom import dcmread

            files = files_of(path)
            header = dcmread(files[0], stop_before_pixels=True)
            return f"{header.Modality} {header.Rows}x{header.Columns}, {len(files)} files"
        from PIL import Image

        with Image.open(path, formats=[*FORMATS.values()]) as image:
            return f"{image.mode} {image.height}x{image.width}"
    return "unreadable"
