"""What a table of a paper is made of: cells, each with the job that expresses it, and what has no job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chorale.spec.job_spec import JobSpec
from chorale.transport.wire import MAX_SILOS
from research.accuracy.trials import Split, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """In percent, as the paper has it. deviation: None where there is none."""

    mean: float
    deviation: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:g}" if self.deviation is None else f"{self.mean:g} +- {self.deviation:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """form: of the silos' settings. place: in the folder that is given for real runs.

    of_silos: where each silo has a file of its own, their names; else the data set is cut. holdout: share
    that is tested on where the data set has no test split of its own.
    """

    name: str
    form: str
    place: str
    classes: int
    shape: tuple[int, ...]
    of_silos: tuple[str, ...] = ()
    holdout: float | None = None

    @property
    def key(self) -> str:
        """Its name as a silo's settings have it."""
        return self.place.removesuffix(".npz")

    @property
    def settings(self) -> dict[str, str]:
        """What a trial says of its data."""
        found = {"format": self.form, "name": self.key}
        if self.holdout is not None:
            found["holdout"] = str(self.holdout)
        if self.of_silos:
            found["files"] = ",".join(f"{name}.npz" for name in self.of_silos)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Federation:
    """The silos of one column: their data, how it is cut, and what the job says of rounds and training.

    drawn: in words. job: fields of the job file. partition: of the cut; empty where each silo has a file.
    """

    data: DataSet
    silos: int
    drawn: str
    partition: Mapping[str, Any]
    job: Mapping[str, Any]

    def training(self, **changes: Any) -> Federation:
        """The same with other values under `training`."""
        return self.job_with(training={**self.job["training"], **changes})

    def job_with(self, **changes: Any) -> Federation:
        """The same with other fields of the job."""
        return replace(self, job={**self.job, **changes})


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """strategy: as a job file says it. unusual: it passes over rules that call it of little use."""

    strategy: Mapping[str, Any]
    rate: float
    unusual: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One number of a table, by its row and column, and what the paper prints there, if anything."""

    row: str
    column: str
    federation: Federation
    method: Method
    printed: Printed | None = None

    @property
    def is_simulated_alone(self) -> bool:
        """Whether it has more silos than a federation may have."""
        return self.federation.silos > MAX_SILOS

    def trial(self, seed: int) -> Trial:
        """The run of that seed."""
        job = dict(self.federation.job)
        if self.method.unusual:
            job["allow_unusual"] = True
        return Trial(
            suite="paper",
            setting=f"{self.federation.data.name}, {self.federation.drawn}",
            arm=str(self.method.strategy.get("preset", "parts")),
            tested=Split.TEST,
            seed=seed,
            learning_rate=self.method.rate,
            silos=self.federation.silos,
            strategy=self.method.strategy,
            job=job,
            partition=self.federation.partition,
            data=self.federation.data.settings,
        )

    def spec(self) -> JobSpec:
        """The job as an operator would write it. Raises ConfigError."""
        return self.trial(0).spec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A part of a table that no job expresses, and why not."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table or figure. number: as the paper counts. has_results: False of notation and settings.

    readings: where the paper says nothing and the jobs have to say something.
    """

    paper: str
    number: str
    shows: str
    cells: Sequence[Cell] = ()
    missing: Sequence[Missing] = ()
    readings: Sequence[str] = ()
    has_results: bool = field(default=True)

    @property
    def name(self) -> str:
        return f"{self.paper}, {self.number}"

    @property
    def is_expressible(self) -> bool:
        """Whether every number of it has a job."""
        return self.has_results and bool(self.cells) and not self.missing

    @property
    def networks(self) -> list[str]:
        return _each(cell.federation.job["model"]["name"] for cell in self.cells)

    @property
    def data(self) -> list[str]:
        return _each(cell.federation.data.name for cell in self.cells)

    @property
    def federations(self) -> list[str]:
        return _each(f"{cell.federation.silos} silos, {cell.federation.drawn}" for cell in self.cells)

    @property
    def methods(self) -> list[str]:
        return _each(cell.row for cell in self.cells)


def _each(words: Any) -> list[str]:
    """Each once, in the order in which they come."""
    return list(dict.fromkeys(words))
