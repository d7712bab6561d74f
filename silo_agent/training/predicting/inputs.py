"""Rows and images of a file as training reads them, without labels: the model's own metadata say how.

N = inputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.base import Features
from silo_agent.training.data.fitting import as_input, expected_inputs, known_inputs
from silo_agent.training.data.formats import csv, image_folder, parquet, scans, sql
from silo_agent.training.data.formats.images import plain
from silo_agent.training.data.formats.images.grids import Grid
from silo_agent.training.data.formats.images.names import Endings, listed
from silo_agent.training.data.formats.tables import Table, inputs_of, unit_column
from silo_agent.training.data.own_data import own_data
from silo_agent.training.data.settings import DataFormat, DataSettings
from silo_agent.training.data.table.derived import stored_names
from silo_agent.training.data.table.units import check_units

TABLES: Mapping[DataFormat, Callable[[DataSettings, Sequence[str]], Table]] = {
    DataFormat.CSV: csv.table,
    DataFormat.PARQUET: parquet.table,
    DataFormat.SQL: sql.table,
}
IMAGES: Mapping[DataFormat, Endings] = {DataFormat.IMAGE_FOLDER: image_folder.ENDINGS, **scans.ENDINGS}
SUFFIXES = {
    ".csv": DataFormat.CSV,
    ".tsv": DataFormat.CSV,
    ".txt": DataFormat.CSV,
    ".parquet": DataFormat.PARQUET,
    ".npz": DataFormat.NPZ,
}
OWN = ("missing", "values", "units", "derive")  # of the settings, by column
NOT_LOOKED_AT = 0.005  # of a volume; more of it is a remark
FAR = 8.0  # scales from the job's mean: at most 1 in 64 values of any column (Chebyshev)
ROW = "row"  # heading of the number of a row, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """key: what the inputs are called by. names: of each. read: one in the job's form, (*input_shape), and
    the grid of an image's file. remarks: by place, what was read otherwise than it stands, or why it cannot
    be read; unread: places of the latter. notes: of all of them. mask_suffix: of files in which masks of such
    images are."""

    key: str
    names: Sequence[str]
    read: Callable[[int], tuple[Features, Grid | None]]
    remarks: dict[int, list[str]] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    notes: Sequence[str] = ()
    mask_suffix: str = ".nii.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Noted(Table):
    """A table whose wrong cells are remarks on their rows."""

    remarks: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def say(self, row: int, column: str, message: str) -> None:
        self.remarks[row].append(f"{column}: {message}, read as missing")

    def count(self, row: int, column: str, what: str) -> None:
        self.remarks[row].append(f"{column}: {what}")


def guessed_format(path: Path) -> DataFormat:
    """That of most files, by their names: a LICENSE may be called as a scan is. Raises ConfigError."""
    named = [path] if path.is_file() else [each for each in sorted(path.rglob("*")) if each.is_file()]
    if path.is_dir():  # a folder's .DS_Store says nothing of its images
        named = [each for each in named if not any(part[0] == "." for part in each.relative_to(path).parts)]
    forms = Counter(form for each in named if (form := _form_of(each, is_alone=path.is_file())))
    if forms:
        return forms.most_common(1)[0][0]
    what = f"a file of {', '.join(SUFFIXES)}" if path.exists() else "a file or folder that is there"
    raise ConfigError(f"{path}: expected {what}, or images; --config names the settings of other data")


def _form_of(file: Path, *, is_alone: bool) -> DataFormat | None:
    """is_alone: no file of a folder, of which tables other than parquet are no part."""
    found = SUFFIXES.get(file.suffix.lower())
    if found is not None and (is_alone or found is DataFormat.PARQUET):
        return found
    return next((form for form, endings in IMAGES.items() if endings.fits(file.name)), None)


def inputs_in(settings: DataSettings, job: JobSpec) -> Inputs:
    """Raises ConfigError for data without the model's columns, or of another shape."""
    if settings.source is None and settings.module is None:
        form = DataFormat(settings.format)
        if form in TABLES:
            return _rows(TABLES[form], settings, job)
        if form in IMAGES:
            return _images(form, settings, job)
        if form is DataFormat.NPZ:
            return _arrays(settings, job)
        raise ConfigError(f"data.format: {form} is data of its own; predictions are of files of yours")
    samples = own_data(settings, job).train

    def read(place: int) -> tuple[Features, None]:
        return _in_form(np.asarray(samples[place][0])[np.newaxis], job), None

    return Inputs(key=ROW, names=_numbered(len(samples)), read=read)


def _rows(
    table: Callable[[DataSettings, Sequence[str]], Table], settings: DataSettings, job: JobSpec
) -> Inputs:
    if job.columns is None:
        raise ConfigError(f"the model takes inputs of shape {list(job.input_shape)}, and names no columns")
    wanted = dict.fromkeys([*(column.name for column in job.inputs), *unit_column(settings)])
    # what the settings say of the label is of no use here, and its column may be missing
    read_of = {*wanted, *stored_names(wanted, settings.derive)}
    own = {
        name: {key: each for key, each in getattr(settings, name).items() if key in read_of} for name in OWN
    }
    own["rename"] = {heading: name for heading, name in settings.rename.items() if name in read_of}
    check_units(settings.units, job)
    settings = settings.model_copy(update=own)
    found = table(settings, list(wanted))
    noted = _Noted(**{each.name: getattr(found, each.name) for each in fields(found)})
    inputs_ND = inputs_of(noted, settings, job)
    _note_far_values(noted, inputs_ND, job)
    for row in found.lost:
        noted.remarks[row] = ["cannot be read"]

    def read(row: int) -> tuple[Features, None]:
        if row in found.lost:
            raise ConfigError("cannot be read")
        return _in_form(inputs_ND[row : row + 1], job), None

    unit, notes = settings.unit, found.problems.lines
    names = _numbered(found.rows) if unit is None else noted.texts(unit)
    return Inputs(key=unit or ROW, names=names, read=read, remarks=noted.remarks, notes=notes)


def _note_far_values(table: _Noted, inputs_ND: Features, job: JobSpec) -> None:
    """A remark on numbers unlike those that training saw, in columns whose mean or scale the job states."""
    start = 0
    for column in job.inputs:
        if column.categories is None and (column.mean, column.scale) != (0.0, 1.0):
            for row in np.flatnonzero(np.abs(inputs_ND[:, start]) > FAR).tolist():
                table.count(row, column.name, f"more than {FAR:g} scales from the mean of training")
        start += column.width


def _images(form: DataFormat, settings: DataSettings, job: JobSpec) -> Inputs:
    assert settings.path is not None  # DataSettings refuses a format that needs one without it
    path, channels, notes = settings.path, job.input_shape[0], list[str]()
    if len(job.input_shape) not in (3, 4):
        raise ConfigError(f"the model takes inputs of shape {list(job.input_shape)}, which are no images")
    read: Any = partial(plain.read, channels=channels)
    if form is not DataFormat.IMAGE_FOLDER:
        read = scans.reader_of(form, job)
    files = {path.name: path}
    if path.is_dir():
        found = listed(path, IMAGES[form])
        notes = [f"{len(names)} left out, {why}" for why, names in found.left_out.items()]
        is_one_series = form is DataFormat.DICOM and len(job.input_shape) == 4
        if not (is_one_series and all(each.is_file() for each in found.images.values())):
            files = found.images
    images = scans.Scans(
        images=[*files.values()], targets=np.zeros(len(files)), read=read, shape=job.input_shape
    )

    remarks: dict[int, list[str]] = defaultdict(list)

    def read_one(place: int) -> tuple[Features, Grid]:
        picture = images.picture(images.images[place])
        if (lost := picture.grid.outside(job.input_shape[1:])) > NOT_LOOKED_AT:
            remark = f"{lost:.0%} of its volume lies beyond the model's grid, and was not looked at"
            remarks[place].append(remark)
        return _in_form(picture.values[np.newaxis], job), picture.grid

    suffix = ".png" if form is DataFormat.IMAGE_FOLDER else ".nii.gz"
    return Inputs(
        key="image", names=[*files], read=read_one, remarks=remarks, notes=notes, mask_suffix=suffix
    )


def _arrays(settings: DataSettings, job: JobSpec) -> Inputs:
    """The array `x` of an .npz file."""
    assert settings.path is not None
    try:
        with np.load(settings.path, allow_pickle=False) as arrays:
            found = arrays["x"]
    except (KeyError, ValueError, OSError) as error:
        raise ConfigError(f"{settings.path}: expected an array x of numbers ({error})") from None
    return Inputs(
        key=ROW,
        names=_numbered(len(found)),
        read=lambda place: (_in_form(found[place : place + 1], job), None),
    )


def _in_form(features: Features, job: JobSpec) -> Features:
    """Raises ConfigError for numbers that the model has no answer to."""
    made = as_input(features, job, source="input")
    if made.dtype.kind == "f" and not np.isfinite(made).all():
        raise ConfigError("expected finite numbers")
    if not known_inputs(made, job).all():
        raise ConfigError(expected_inputs(job))
    one: Features = made[0]
    return one


def _numbered(count: int) -> list[str]:
    return [str(number) for number in range(1, count + 1)]
