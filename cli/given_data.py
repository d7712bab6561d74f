"""What `chorale simulate` and `chorale demo --job` train on: one data set cut into silos, or the silos' own
settings files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chorale.runtime.files import read_limited
from chorale.spec.line_settings import LineSettings
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from client.errors import with_hint
from crypto.errors import ConfigError
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.rounds.data_sets import name_for
from silo_agent.training.data.settings import DataSettings, rows_beyond_in_words
from simulation.stored import StoredSilos

if TYPE_CHECKING:
    from chorale.spec.analysis_spec import AnalysisSpec
    from chorale.spec.job_spec import JobSpec
    from chorale.spec.kinds import AnySpec
    from silo_agent.training.analysis.table import DescribedTable
    from silo_agent.training.data.base import SampleSet, SiloData
    from simulation.stored import Scratch

YAML = (".yaml", ".yml")
CUT = ("partition", "alpha", "shards_per_silo", "min_samples", "split_seed")
GIVEN = ("data", "path", *CUT, "silo_files")
OPTIONS = {  # what errors call the fields of data settings that they become
    "format": "--data",
    "path": "--path",
    "partition__alpha": "--alpha",
    "partition__shards_per_silo": "--shards-per-silo",
    "partition__min_samples": "--min-samples",
}
ONLY_BY = {"alpha": "dirichlet", "min_samples": "dirichlet", "shards_per_silo": "shards"}
# of a silo's settings file, what says where and who it is: none of it is taken
OF_ITS_OWN = frozenset(
    (
        "name",
        *LineSettings.model_fields,
        "keepalive_seconds",
        "directory",
        "policy",
        "lowest_roster_version",
        "metrics_listen",
        "log_level",
        "tracing_endpoint",
    )
)


def data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command `data_options`, a DataOptions of what was asked for. Raises ConfigError."""

    @click.option(
        "--data",
        default="digits",
        show_default=True,
        help="Format of the data that is cut into silos (digits, mnist, cifar10, npz, csv, ...), or a YAML "
        "file of data settings.",
    )
    @click.option("--path", type=click.Path(path_type=Path), help="File or folder of the data.")
    @click.option(
        "--partition",
        default="dirichlet",
        show_default=True,
        type=click.Choice(["iid", "shards", "dirichlet"]),
        help="How the data is cut.",
    )
    @click.option("--alpha", default=0.5, show_default=True, help="dirichlet: smaller is less even.")
    @click.option(
        "--shards-per-silo", default=2, show_default=True, help="shards: single-class pieces of a silo."
    )
    @click.option(
        "--min-samples",
        default=2,
        show_default=True,
        type=click.IntRange(1),
        help="dirichlet: draw again while a silo has fewer to train on.",
    )
    @click.option(
        "--split-seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the cut."
    )
    @click.option(
        "--silo",
        "silo_files",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A real silo's settings file, once for each silo: its name, data and objective are taken, and "
        "nothing is cut.",
    )
    @wraps(command)
    def with_data(**arguments: Any) -> None:
        context = click.get_current_context()
        given = {name: arguments.pop(name) for name in GIVEN}
        sources = {name: context.get_parameter_source(name) for name in GIVEN}
        named = tuple(name for name, source in sources.items() if source is ParameterSource.COMMANDLINE)
        command(data_options=DataOptions(**given, named=named), **arguments)

    return with_data


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """As they were given. silo_files: settings files of real silos; then nothing is cut.

    named: those that the caller wrote, the others are defaults.
    """

    data: str
    path: Path | None
    partition: str
    alpha: float
    shards_per_silo: int
    min_samples: int
    split_seed: int
    silo_files: tuple[Path, ...] = ()
    named: tuple[str, ...] = ()

    def check_used(self) -> None:
        """Raises ConfigError for an option that was given and would change nothing."""
        is_file = Path(self.data).suffix in YAML and not self.silo_files
        is_cut_by_file = is_file and bool(_data_in(Path(self.data)).get("partition"))
        for option in self.named:
            kind, reason = ONLY_BY.get(option, self.partition), ""
            if self.silo_files and option in ("data", "path", *CUT):
                reason = "not allowed with --silo, whose files name the data"
            elif (option == "path" and is_file) or (option in CUT and is_cut_by_file):
                reason = f"not allowed with --data {self.data}, which holds it"
            elif kind != self.partition:
                reason = f"not allowed with --partition {self.partition}, only with {kind}"
            if reason:
                raise ConfigError(f"--{option.replace('_', '-')}: {reason}")

    def names(self, listed: Sequence[str], wanted: int | None) -> list[str]:
        """The silos' names: those of the files, those that the job lists if there are as many, else new
        ones. Raises ConfigError."""
        if self.silo_files:
            names = []
            for path in self.silo_files:
                values = _values_of(path)
                if not isinstance(values.get("name"), str) or not isinstance(values.get("data"), dict | list):
                    raise ConfigError(f"{path}: expected a silo's settings file, with name and data")
                names.append(str(values["name"]))
            if len(names) < SMALLEST_FEDERATION or wanted not in (None, len(names)):
                expected = SMALLEST_FEDERATION if wanted is None else max(wanted, SMALLEST_FEDERATION)
                raise ConfigError(f"--silo: expected a file for each of {expected} silos, got {len(names)}")
            return names
        if wanted is None or wanted == len(listed):
            return list(listed)
        return [f"silo-{number}" for number in range(1, wanted + 1)]

    def settings_of(self, spec: JobSpec) -> dict[str, dict[str, Any]]:
        """By silo the fields of its settings file that say what it computes, and on what.

        Raises ConfigError.
        """
        if self.silo_files:
            fields = [
                {name: value for name, value in _values_of(path).items() if name not in OF_ITS_OWN}
                for path in self.silo_files
            ]
            data = [
                _data_set(values, spec, source=path)
                for values, path in zip(fields, self.silo_files, strict=True)
            ]
            return {
                name: {**values, "data": each.model_dump(mode="json", exclude={"policy"})}
                for name, values, each in zip(spec.silos, fields, data, strict=True)
            }
        whole = self._settings(len(spec.silos), name=spec.data)
        if whole.partition is None:
            raise ConfigError("data.partition: expected how a file is cut into silos")
        settings = {}
        for index, name in enumerate(spec.silos):
            cut = whole.partition.model_copy(update={"index": index})
            settings[name] = {"data": whole.model_copy(update={"partition": cut}).model_dump(mode="json")}
        return settings

    def objectives(self) -> dict[str, str]:
        """By silo the `package.module:function` that its settings file names for training, if it does."""
        values = [_values_of(path) for path in self.silo_files]
        return {each["name"]: str(each["objective"]) for each in values if each.get("objective") is not None}

    def load(self, spec: JobSpec, scratch: Scratch) -> StoredSilos:
        """Every silo's samples, as its agent would load them, in files there. Raises ConfigError."""
        return StoredSilos(scratch, zip(spec.silos, self._loaded(spec), strict=True))

    def _loaded(self, spec: JobSpec) -> Iterator[SiloData]:
        """One by one, in the order of the job's silos."""
        from silo_agent.training.data.loading import load_data, parts_of

        if not self.silo_files:
            try:
                yield from parts_of(self._settings(len(spec.silos)), spec)
            except ConfigError as error:
                hint = "--data, --partition and --silos say what is cut, and how"
                raise with_hint(error, hint) from None
            return
        for name, each in zip(spec.silos, self.data_sets(spec), strict=True):
            data = load_data(each, spec)
            if data.rows_beyond:
                click.echo(f"{name}: {rows_beyond_in_words(each, data.rows_beyond)}", err=True)
            yield data

    def tables(self, spec: AnalysisSpec) -> Iterator[DescribedTable]:
        """Every silo's table, as its agent would read it, in the order of the job's silos. Raises
        ConfigError."""
        from silo_agent.training.analysis.table import load_table, tables_of

        if not self.silo_files:
            try:
                yield from tables_of(self._settings(len(spec.silos), name=spec.data), spec)
            except ConfigError as error:
                raise with_hint(error, "--data, --path and --silos say what is cut, and how") from None
            return
        for name, settings in zip(spec.silos, self.data_sets(spec), strict=True):
            table = load_table(settings, spec)
            if table.rows_beyond:
                click.echo(f"{name}: {rows_beyond_in_words(settings, table.rows_beyond)}", err=True)
            yield table

    def data_sets(self, spec: AnySpec) -> list[DataSettings]:
        """Of the silos' files, in their order; or the one that is cut. Raises ConfigError."""
        if not self.silo_files:
            return [self._settings(len(spec.silos), name=spec.data)]
        return [_data_set(_values_of(path), spec, source=path) for path in self.silo_files]

    def check_cut(self, spec: JobSpec) -> None:
        """Load and cut the data as the silos will, each by itself. Raises ConfigError; nothing is checked of
        data that real silos' files name."""
        if not self.silo_files:
            for _ in self._loaded(spec):
                pass

    def load_test_set(self, spec: JobSpec) -> SampleSet:
        """What of the data no silo trains on, before it is cut: its own test split, or the share held out.

        Raises ConfigError where nothing is cut: then each silo has its own hold-out.
        """
        from silo_agent.training.data.loading import load_data

        if self.silo_files:
            raise ConfigError("--test: expected one data set that is cut into silos (--data), not --silo")
        whole = self._settings(len(spec.silos), name=spec.data)
        undivided = spec.model_copy(update={"test_share": 0.0})
        return load_data(whole.model_copy(update={"partition": None}), undivided).holdout

    def describe(self) -> dict[str, Any]:
        """What the data are, for the folder: one that was made from other data is refused."""
        if self.silo_files:
            values = [_values_of(path) for path in self.silo_files]
            return {
                "silo_files": [{name: each.get(name) for name in ("data", "objective")} for each in values]
            }
        return self._settings(SMALLEST_FEDERATION).model_dump(mode="json")

    def _settings(self, silos: int, *, name: str | None = None) -> DataSettings:
        """Into how many parts the set is cut is the simulation's, whatever a file of data settings says."""
        cut: Any = {
            "kind": self.partition,
            "alpha": self.alpha,
            "shards_per_silo": self.shards_per_silo,
            "min_samples": self.min_samples,
            "seed": self.split_seed,
        }
        if Path(self.data).suffix in YAML:
            source, values, options = self.data, _data_in(Path(self.data)), {}
            cut = values.get("partition") or cut
        else:
            source, values, options = "--data", {"format": self.data, "name": self.data}, OPTIONS
            if self.path is not None:
                values["path"] = self.path
        if isinstance(cut, Mapping):
            cut = {**cut, "silos": silos, "index": 0}
        named = {} if name is None else {"name": name}
        whole = {**values, **named, "partition": cut}
        return check_values(DataSettings, whole, source=source, options=options)


def _data_in(path: Path) -> dict[str, Any]:
    """Of a file of data settings, or of a silo's settings file."""
    values = _values_of(path)
    return values["data"] if isinstance(values.get("data"), dict) else values


def _data_set(values: Mapping[str, Any], spec: AnySpec, *, source: Path) -> DataSettings:
    """The data set of a silo's settings that the job is about. Raises ConfigError."""
    listed = values["data"] if isinstance(values["data"], list) else [values["data"]]
    found = [check_values(DataSettings, each, source=f"{source}: data") for each in listed]
    wanted = name_for(spec, [each.name for each in found])
    return next(each for each in found if each.name == wanted)


def _values_of(path: Path) -> dict[str, Any]:
    return parse_mapping(read_limited(path, MAX_BYTES), source=str(path))
