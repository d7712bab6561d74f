"""What `chorale simulate` trains on: one data set cut into silos, or the silos' own settings files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import with_hint
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.spec.job_spec import JobSpec
    from silo_agent.data.base import SiloData
    from silo_agent.data.settings import DataSettings

YAML = (".yaml", ".yml")
FEWEST, MOST = 3, 200  # silos of a job
CUT = ("partition", "alpha", "shards_per_silo", "min_samples", "split_seed")
ONLY_BY = {"alpha": "dirichlet", "min_samples": "dirichlet", "shards_per_silo": "shards"}


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
        for option in self.named:
            reason = self._unused(option)
            if reason:
                raise ConfigError(f"--{option.replace('_', '-')}: {reason}")

    def _unused(self, option: str) -> str:
        """Why an option would change nothing; empty where it does."""
        if self.silo_files and option in ("data", "path", *CUT):
            return "the files of --silo say which data, and nothing is cut"
        if Path(self.data).suffix in YAML and (option == "path" or (option in CUT and self._file_cuts())):
            return f"{self.data} says it"
        kind = ONLY_BY.get(option, self.partition)
        return "" if kind == self.partition else f"belongs to --partition {kind}, got {self.partition}"

    def _file_cuts(self) -> bool:
        return bool(_data_in(Path(self.data)).get("partition"))

    def names(self, listed: Sequence[str], wanted: int | None) -> list[str]:
        """The silos' names: those of the files, those that the job lists if there are as many, else new
        ones. Raises ConfigError."""
        if self.silo_files:
            names = [_name_in(path) for path in self.silo_files]
            if len(names) < FEWEST or wanted not in (None, len(names)):
                expected = FEWEST if wanted is None else max(wanted, FEWEST)
                raise ConfigError(f"--silo: expected a file for each of {expected} silos, got {len(names)}")
            return names
        if wanted is None or wanted == len(listed):
            return list(listed)
        return [f"silo-{number}" for number in range(1, wanted + 1)]

    def load(self, spec: JobSpec) -> dict[str, SiloData]:
        """Every silo's samples, as its agent would load them. Raises ConfigError."""
        from silo_agent.data.loading import load_data, load_partition

        if self.silo_files:
            settings = [_settings_in(path) for path in self.silo_files]
            return {name: load_data(each, spec) for name, each in zip(spec.silos, settings, strict=True)}
        try:
            parts = load_partition(self._settings(len(spec.silos)), spec)
        except ConfigError as error:
            raise with_hint(error, "--data, --partition and --silos say what is cut, and how") from None
        return dict(zip(spec.silos, parts, strict=True))

    def describe(self) -> dict[str, Any]:
        """What tells one simulation's data from another's, for its folder."""
        if self.silo_files:
            return {"silo_files": [_values_of(path)["data"] for path in self.silo_files]}
        return self._settings(FEWEST).model_dump(mode="json")

    def _settings(self, silos: int) -> DataSettings:
        from chorale.spec.settings_file import check_values
        from silo_agent.data.settings import DataSettings

        if Path(self.data).suffix in YAML:
            return _cut_in(Path(self.data), silos=silos, otherwise=self._cut(silos))
        values: dict[str, Any] = {"format": self.data, "partition": self._cut(silos)}
        if self.path is not None:
            values["path"] = self.path
        return check_values(DataSettings, {**values, "name": self.data}, source="--data")

    def _cut(self, silos: int) -> dict[str, Any]:
        return {
            "kind": self.partition,
            "alpha": self.alpha,
            "shards_per_silo": self.shards_per_silo,
            "min_samples": self.min_samples,
            "seed": self.split_seed,
            "silos": silos,
            "index": 0,
        }


def _cut_in(path: Path, *, silos: int, otherwise: Mapping[str, Any]) -> DataSettings:
    """A file of data settings; into how many parts its set is cut is the simulation's."""
    from chorale.spec.settings_file import check_values
    from silo_agent.data.settings import DataSettings

    values = _data_in(path)
    given = values.get("partition") or otherwise
    cut = {**given, "silos": silos, "index": 0} if isinstance(given, Mapping) else given
    return check_values(DataSettings, {**values, "partition": cut}, source=str(path))


def _data_in(path: Path) -> dict[str, Any]:
    """Of a file of data settings, or of a silo's settings file."""
    values = _values_of(path)
    return values["data"] if isinstance(values.get("data"), dict) else values


def _settings_in(path: Path) -> DataSettings:
    from chorale.spec.settings_file import check_values
    from silo_agent.data.settings import DataSettings

    return check_values(DataSettings, _values_of(path)["data"], source=f"{path}: data")


def _name_in(path: Path) -> str:
    values = _values_of(path)
    if not isinstance(values.get("name"), str) or not isinstance(values.get("data"), dict):
        raise ConfigError(f"{path}: expected a silo's settings file, with name and data")
    return str(values["name"])


def _values_of(path: Path) -> dict[str, Any]:
    from chorale.runtime.files import read_limited
    from chorale.spec.settings_file import MAX_BYTES, parse_mapping

    return parse_mapping(read_limited(path, MAX_BYTES), source=str(path))
