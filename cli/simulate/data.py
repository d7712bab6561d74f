"""What `chorale simulate` trains on: one data set cut into silos, or the silos' own settings files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chorale.runtime.files import read_limited
from chorale.spec.settings_file import MAX_BYTES, check_values, parse_mapping
from cli.errors import with_hint
from crypto.errors import ConfigError
from crypto.session.cohort import SMALLEST_FEDERATION
from silo_agent.data.settings import DataSettings

if TYPE_CHECKING:
    from chorale.spec.job_spec import JobSpec
    from silo_agent.data.base import SiloData

YAML = (".yaml", ".yml")
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
        is_file = Path(self.data).suffix in YAML and not self.silo_files
        is_cut_by_file = is_file and bool(_data_in(Path(self.data)).get("partition"))
        for option in self.named:
            kind, reason = ONLY_BY.get(option, self.partition), ""
            if self.silo_files and option in ("data", "path", *CUT):
                reason = "the files of --silo say which data, and nothing is cut"
            elif (option == "path" and is_file) or (option in CUT and is_cut_by_file):
                reason = f"{self.data} says it"
            elif kind != self.partition:
                reason = f"belongs to --partition {kind}, got {self.partition}"
            if reason:
                raise ConfigError(f"--{option.replace('_', '-')}: {reason}")

    def names(self, listed: Sequence[str], wanted: int | None) -> list[str]:
        """The silos' names: those of the files, those that the job lists if there are as many, else new
        ones. Raises ConfigError."""
        if self.silo_files:
            names = []
            for path in self.silo_files:
                values = _values_of(path)
                if not isinstance(values.get("name"), str) or not isinstance(values.get("data"), dict):
                    raise ConfigError(f"{path}: expected a silo's settings file, with name and data")
                names.append(str(values["name"]))
            if len(names) < SMALLEST_FEDERATION or wanted not in (None, len(names)):
                expected = SMALLEST_FEDERATION if wanted is None else max(wanted, SMALLEST_FEDERATION)
                raise ConfigError(f"--silo: expected a file for each of {expected} silos, got {len(names)}")
            return names
        if wanted is None or wanted == len(listed):
            return list(listed)
        return [f"silo-{number}" for number in range(1, wanted + 1)]

    def load(self, spec: JobSpec) -> dict[str, SiloData]:
        """Every silo's samples, as its agent would load them. Raises ConfigError."""
        from silo_agent.data.loading import load_data, load_partition

        if self.silo_files:
            settings = [
                check_values(DataSettings, _values_of(path)["data"], source=f"{path}: data")
                for path in self.silo_files
            ]
            return {name: load_data(each, spec) for name, each in zip(spec.silos, settings, strict=True)}
        try:
            parts = load_partition(self._settings(len(spec.silos)), spec)
        except ConfigError as error:
            raise with_hint(error, "--data, --partition and --silos say what is cut, and how") from None
        return dict(zip(spec.silos, parts, strict=True))

    def describe(self) -> dict[str, Any]:
        """What the data are, for the folder: one that was made from other data is refused."""
        if self.silo_files:
            return {"silo_files": [_values_of(path)["data"] for path in self.silo_files]}
        return self._settings(SMALLEST_FEDERATION).model_dump(mode="json")

    def _settings(self, silos: int) -> DataSettings:
        """Into how many parts the set is cut is the simulation's, whatever a file of data settings says."""
        cut: Any = {
            "kind": self.partition,
            "alpha": self.alpha,
            "shards_per_silo": self.shards_per_silo,
            "min_samples": self.min_samples,
            "seed": self.split_seed,
        }
        if Path(self.data).suffix in YAML:
            source, values = self.data, _data_in(Path(self.data))
            cut = values.get("partition") or cut
        else:
            source, values = "--data", {"format": self.data, "name": self.data}
            if self.path is not None:
                values["path"] = self.path
        if isinstance(cut, Mapping):
            cut = {**cut, "silos": silos, "index": 0}
        return check_values(DataSettings, {**values, "partition": cut}, source=source)


def _data_in(path: Path) -> dict[str, Any]:
    """Of a file of data settings, or of a silo's settings file."""
    values = _values_of(path)
    return values["data"] if isinstance(values.get("data"), dict) else values


def _values_of(path: Path) -> dict[str, Any]:
    return parse_mapping(read_limited(path, MAX_BYTES), source=str(path))
