"""Where a silo's data lies: fields of its own settings file, never of a job."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.spec.fields import DataSetName, EntryPoint, in_words
from chorale.spec.kinds import AnySpec
from chorale.spec.plug_in_specs import Distribution, OptionValues, PlugInName
from chorale.spec.samples.column_specs import ClassName
from crypto.errors import ConfigError
from silo_agent.training.data.table.derived import DerivedColumn, stored_names
from silo_agent.training.data.table.dialect import TableDialect
from silo_agent.training.data.table.units import ColumnUnit
from strategies.expected import did_you_mean


class SettingsFault(ConfigError):
    """What the settings of a data set say does not hold, whatever the records are: one person puts it right.

    Security: nothing counts it, so no single record decides it (docs/protocol.md 6.7).
    """


class DataFormat(StrEnum):
    DIGITS = "digits"
    MNIST = "mnist"
    NPZ = "npz"
    IMAGE_FOLDER = "image-folder"
    CSV = "csv"
    PARQUET = "parquet"
    SQL = "sql"
    DICOM = "dicom"
    NIFTI = "nifti"
    CIFAR10 = "cifar10"
    CIFAR100 = "cifar100"
    MODULE = "module"


# where a setting says whose a row is; a function of the institution's own gives units itself
UNIT_FORMATS = (DataFormat.CSV, DataFormat.PARQUET, DataFormat.SQL, DataFormat.NPZ, DataFormat.DICOM)

TABLE_FORMATS = (DataFormat.CSV, DataFormat.PARQUET, DataFormat.SQL)  # whose inputs have names
TEXT_FORMATS = (DataFormat.CSV, DataFormat.DICOM, DataFormat.NIFTI)  # labels.csv of the latter two
# arrays, whose shape no job chooses
ARRAY_FORMATS = (
    DataFormat.DIGITS,
    DataFormat.MNIST,
    DataFormat.NPZ,
    DataFormat.CIFAR10,
    DataFormat.CIFAR100,
)
# whose labels have names, in a table, where a job names one
LABELED_FORMATS = (*TABLE_FORMATS, DataFormat.IMAGE_FOLDER, DataFormat.DICOM, DataFormat.NIFTI)

ROWS_PER_UNIT = 32  # a batch of a private job


class PartitionKind(StrEnum):
    IID = "iid"
    SHARDS = "shards"
    DIRICHLET = "dirichlet"


class PartitionSettings(BaseModel):
    """Cuts one data set into silos, for runs on one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: PartitionKind = Field(description="iid, shards or dirichlet")
    silos: int = Field(ge=1, le=10_000, description="into how many parts the data set is cut")
    index: int = Field(ge=0, description="which part is this silo's, from 0")
    seed: int = Field(default=0, ge=0, lt=2**63, description="the same for all silos of one run")
    shards_per_silo: int = Field(
        default=2, ge=1, le=1_000, description="shards: s, label-sorted pieces a silo gets"
    )
    alpha: float = Field(
        default=0.5, gt=0, le=1e6, description="dirichlet: concentration; smaller is less even"
    )
    balance: bool = Field(default=False, description="dirichlet: silos that hold their even part get no more")
    min_samples: int = Field(default=10, ge=1, description="redraw while a silo has fewer samples")
    whole_test: bool = Field(
        default=False,
        description="whether every silo tests on the whole hold-out, which then is not cut: models of the "
        "silos' own are then judged on classes that they never trained on, too",
    )

    @model_validator(mode="after")
    def _index_is_a_silo(self) -> Self:
        if self.index >= self.silos:
            raise ValueError(f"index: expected 0 to {self.silos - 1}, got {self.index}")
        return self


class DatabaseSettings(BaseModel):
    """Where a table lies in a database; the URL, which may hold a password, stands in no settings file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url_env: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable that holds the URL, such as postgresql+psycopg://user:pw@host/db",
    )
    url_file: Path | None = Field(default=None, description="file that holds the URL")
    table: str | None = Field(
        default=None, min_length=1, description="table or view, with its schema as schema.table; all of it"
    )
    query: str | None = Field(
        default=None,
        min_length=1,
        description="select statement in place of table; it must not fail because of what one record holds",
    )

    @property
    def what(self) -> str:
        return "the query" if self.table is None else f"table {self.table}"

    @property
    def where(self) -> str:
        """The setting that says where the URL is."""
        if self.url_env is not None:
            return f"data.database.url_env: {self.url_env}"
        return f"data.database.url_file: {self.url_file}"

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.url_env is None) == (self.url_file is None):
            raise ValueError("url_env: expected either url_env or url_file")
        if (self.table is None) == (self.query is None):
            raise ValueError("table: expected either table or query")
        return self


class DataSettings(BaseModel):
    """The silo's data set, its hold-out and, on one machine, its part of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, serialize_by_alias=True)

    format: Annotated[
        DataFormat | PlugInName,
        Field(union_mode="left_to_right"),
        in_words(f"one of {', '.join(DataFormat)}, or with `from` the name of an entry point"),
    ] = Field(
        description="how the data is stored: digits, mnist, npz, image-folder, csv, parquet, sql, dicom, "
        "nifti, cifar10, cifar100 or module; or with `from` an entry point of its group chorale.data",
    )
    source: Distribution | None = Field(
        default=None,
        alias="from",
        description="installed distribution and version whose function gives the data, such as "
        "hospital-data==1.0.0; null: Chorale's own format",
    )
    options: dict[str, OptionValues] = Field(
        default_factory=dict, max_length=64, description="keyword arguments of that function"
    )
    path: Path | None = Field(default=None, description="file or folder; not for digits, module and sql")
    module: EntryPoint | None = Field(
        default=None, description="module: package.module:function of this machine"
    )
    database: DatabaseSettings | None = Field(default=None, description="sql: URL, and table or query")
    columns_in_file: tuple[str, ...] | None = Field(
        default=None, description="csv: names of the columns in order, for a file without a header line"
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="tables: what jobs, and the settings beside this one, call a column of the file, such as "
        "{Raucher: smoker}; others are called by their headings",
    )
    dialect: TableDialect = Field(
        default=TableDialect(), description="csv: how the file is written; `chorale silo check` proposes it"
    )
    absent: tuple[str, ...] = Field(
        default=(),
        description="tables: inputs of jobs that the file has no column of, such as [glucose]: each value is "
        "missing; a job that reads another one that is not there is refused",
    )
    values: dict[str, dict[str, Annotated[str, Field(coerce_numbers_to_str=True)]]] = Field(
        default_factory=dict,
        description="tables: by column, the job's text or number for a text, such as {smoker: {ja: 'yes', "
        "nein: 'no'}}; others stay as they are",
    )
    missing: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="tables: further texts that mean 'missing' in a column, besides empty, ?, NA and nan; "
        "a number means it however the table writes it",
    )
    units: dict[str, ColumnUnit] = Field(
        default_factory=dict,
        description="tables: by column, the unit of its numbers and factors to units of jobs, such as "
        "{glucose: {unit: mg/dL, factors: {mmol/L: 0.0555}}}",
    )
    derive: dict[str, DerivedColumn] = Field(
        default_factory=dict,
        description="tables: further columns, the completed years or the days from one day to another, such "
        "as {age: {years: [born, admitted]}}",
    )
    labels: dict[str, int | ClassName] = Field(
        default_factory=dict,
        description="the job's class of each text in the label columns, folder, or number in masks, such as "
        "{gesund: healthy}, or {well: 0, ill: 1} for jobs that name no classes; empty: they hold the label",
    )
    drop: tuple[ClassName, ...] = Field(
        default=(),
        description="tables and class folders: texts in the label columns, or folders, whose records no job "
        "uses, such as unknown; `silo check` counts them",
    )
    partition: PartitionSettings | None = Field(default=None, description="this silo's part, on one machine")
    unit: str | None = Field(
        default=None,
        min_length=1,
        description="what private jobs protect as one: the column (csv, parquet, sql), array (npz) or tag "
        "(dicom) that says whose a row is, such as patient_id; null: every row by itself, or what the data's "
        "function says",
    )
    exclude: Path | None = Field(
        default=None,
        description="file of people who withdrew, a value of `unit` a line: their records are left out from "
        "the next phase on, in jobs that run, too; null: nobody",
    )
    max_rows_per_unit: int = Field(
        default=ROWS_PER_UNIT,
        ge=1,
        le=1_000_000,
        description="most rows of one unit that are used; of more a choice by their hashes, always the same",
    )
    holdout: float = Field(
        default=0.2, ge=0.0, lt=1.0, description="share of the samples kept for evaluation"
    )
    cache_megabytes: int = Field(
        default=2_048,
        ge=1,
        le=1 << 20,
        description="of samples that are read one by one (images, a function's own), in MiB: all stay in "
        "memory where they fit here, else as many as fit, and the others are read at every pass",
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=64,
        description="processes that read and decode such samples ahead of training; 0: the agent's own",
    )
    name: DataSetName = Field(default="data", description="what jobs call the data set")
    account: DataSetName = Field(
        default="data",
        description="account of the ledger that private jobs on it are charged to; data sets share one, "
        "unless they name different ones: a record that is in two accounts is used by the first alone",
    )
    policy: Path | None = Field(
        default=None, description="policy file of this data set alone; null: the silo's own"
    )

    @model_validator(mode="after")
    def _source_is_given(self) -> Self:
        is_own = isinstance(self.format, DataFormat)
        if self.source is None and not is_own:
            known = [*DataFormat]
            alike = did_you_mean(self.format, known)
            raise ValueError(f"format: expected one of {', '.join(known)}, got {self.format}{alike}")
        if self.source is None and self.options:
            raise ValueError("options: needs `from`")
        if self.source is not None and is_own:
            raise ValueError(
                f"format: expected an entry point of {self.source}, got {self.format}, a format of Chorale"
            )
        needs_module = self.format is DataFormat.MODULE
        without_path = (DataFormat.MODULE, DataFormat.DIGITS, DataFormat.SQL)
        needs_path = self.source is None and self.format not in without_path
        if needs_module != (self.module is not None):
            raise ValueError(f"module: {_wanted(needs_module)} with format {self.format}")
        if (self.labels or self.drop) and self.format not in LABELED_FORMATS:
            field = "labels" if self.labels else "drop"
            raise ValueError(
                f"{field}: not allowed with format {self.format}, only with {', '.join(LABELED_FORMATS)}"
            )
        needs_database = self.format is DataFormat.SQL
        if needs_database != (self.database is not None):
            raise ValueError(f"database: {_wanted(needs_database)} with format {self.format}")
        if needs_path != (self.path is not None):
            raise ValueError(f"path: {_wanted(needs_path)} with format {self.format}")
        return self

    @property
    def rows_per_unit(self) -> int:
        """Most rows of what private jobs count, a unit or a record."""
        return 1 if self.unit is None else self.max_rows_per_unit

    @model_validator(mode="after")
    def _is_a_table(self) -> Self:
        if self.dialect != TableDialect() and self.format not in TEXT_FORMATS:
            raise ValueError(
                f"dialect: not allowed with format {self.format}, only with {', '.join(TEXT_FORMATS)}"
            )
        with_names = (*TEXT_FORMATS, *TABLE_FORMATS)
        if self.values and self.format not in with_names:
            raise ValueError(f"values: not allowed with format {self.format}, which has no columns")
        for field in ("units", "derive", "rename", "absent"):
            if getattr(self, field) and self.format not in TABLE_FORMATS:
                raise ValueError(f"{field}: not allowed with format {self.format}, which is no table")
        if self.unit is not None and self.unit in stored_names([*self.derive], self.derive):
            raise ValueError(f"derive: expected other columns than {self.unit}, which says whose a row is")
        return self

    @model_validator(mode="after")
    def _unit_is_known(self) -> Self:
        if self.unit is not None and self.format not in UNIT_FORMATS:
            raise ValueError(
                f"unit: not allowed with format {self.format}, only with {', '.join(UNIT_FORMATS)}"
            )
        if self.exclude is not None and self.unit is None:
            raise ValueError("exclude: needs unit, of which the file names values")
        gives_units = self.unit is not None or self.source is not None or self.module is not None
        if self.max_rows_per_unit != ROWS_PER_UNIT and not gives_units:
            raise ValueError("max_rows_per_unit: needs unit, or a function that gives units")
        if self.unit is not None and self.partition is not None:
            raise ValueError("partition: not allowed with unit, whose rows would go to several silos")
        return self


def _wanted(is_needed: bool) -> str:
    return "a value is required" if is_needed else "not allowed"


def check_unit(unit: str | None, job: AnySpec) -> None:
    """Raises ConfigError where the job reads the column that says whose a row is: all people with the same
    label, or the same measurement, would be one."""
    if unit is None:
        return
    read = dict.fromkeys(job.label_columns, "label_column")
    read |= {column.name: "one of columns" for column in job.columns_read}
    if unit in read:
        raise ConfigError(
            f"data.unit: expected a column that says whose a row is, which no job reads; got {unit}, "
            f"{read[unit]} of job {job.name}"
        )


def rows_beyond_in_words(settings: DataSettings, rows: int) -> str:
    """That so many rows are not used, because their units have more."""
    counted = "1 row is" if rows == 1 else f"{rows} rows are"
    return (
        f"data set {settings.name}: {counted} left out, beyond {settings.max_rows_per_unit} of one "
        f"{settings.unit or 'unit'} (data.max_rows_per_unit)"
    )


def reading_in_words(settings: DataSettings) -> tuple[str, ...]:
    """By what the silo's own settings change or leave out what a table holds, a line each."""
    dialect = ", ".join(f"{name} {value!r}" for name, value in settings.dialect if value is not None)
    lines = [f"written with {dialect}"] if settings.dialect != TableDialect() else []
    lines += [f"{name}: not in the file, all its values are missing" for name in settings.absent]
    lines += [f"{name}: called {heading} in the file" for heading, name in settings.rename.items()]
    for column, texts in settings.missing.items():
        lines.append(f"{column}: {', '.join(map(repr, texts))} is missing")
    if settings.exclude is not None:
        lines.append(f"records of each {settings.unit} in {settings.exclude} are left out (data.exclude)")
    for column, made in settings.derive.items():
        lines.append(f"{column}: {made.in_words()}")
    named: dict[str, Mapping[str, object]] = {**settings.values}
    if settings.labels:
        named["label"] = settings.labels
    for column, stands_for in named.items():
        lines.append(f"{column}: " + ", ".join(f"{text!r} is {value}" for text, value in stands_for.items()))
    return tuple(lines)


def unit_told(settings: DataSettings, *, has_units: bool) -> str:
    """What a record is, of which private jobs speak, in this data set."""
    if not has_units:
        return (
            f"data set {settings.name}: a record is one row; where one person has several, name the column "
            "that says whose a row is (data.unit)"
        )
    return (
        f"data set {settings.name}: a record is all rows of one {settings.unit or 'unit'}, of which "
        f"{settings.max_rows_per_unit} are used at most (data.max_rows_per_unit)"
    )


def described_told(settings: DataSettings, *, least: int | None) -> str:
    """What a record of an analysis is, which counts rows. least: records of a cell that is published; None:
    any, with noise, under which a unit has one row."""
    if settings.unit is not None and (least is None or settings.max_rows_per_unit == 1):
        return f"data set {settings.name}: a record is one row, and each {settings.unit} has one at most"
    if least is None:
        return (
            f"data set {settings.name}: a record is one row; noise hides one (of each data.unit one counts)"
        )
    return (
        f"data set {settings.name}: a record is one row; {least} of them, which results may show, can be "
        f"those of one {settings.unit or 'person'} (data.unit with max_rows_per_unit: 1 counts one of each)"
    )
