"""What a simulation has in files: silos' samples, and what each silo keeps between rounds.

A file is written once and mapped where it is read: its pages are in memory once, however many processes of
the machine look at them, and go when memory is short.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, mkdtemp
from typing import Any

from chorale.spec.state import DTYPES, state_from_file, state_parts
from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.data.base import Samples, SampleSet, SiloData
from strategies.base import Array, Arrays

FIELDS = ("features", "labels", "strata", "units_N", "subgroups")  # arrays of `Samples`


class Scratch:
    """A folder that goes with the last object that uses it. inside: of this one; None: of the system's."""

    def __init__(self, inside: Path | None = None) -> None:
        self.path = Path(mkdtemp(prefix="chorale-simulation-", dir=inside))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class KeptFile:
    """What a silo keeps between rounds. scratch: where it is and stays only as long as this object is used;
    None: the file is another's."""

    def __init__(self, path: Path, *, scratch: Scratch | None = None) -> None:
        self.path = path
        if scratch is not None:
            self._scratch = scratch
            weakref.finalize(self, path.unlink, missing_ok=True)

    @classmethod
    def write(cls, arrays: Arrays, scratch: Scratch) -> KeptFile:
        """Raises ConfigError for arrays that no silo could keep."""
        try:
            parts = state_parts(arrays)
        except RemoteProtocolError as error:
            raise ConfigError(f"local {error}") from error
        with NamedTemporaryFile(dir=scratch.path, delete=False) as file:
            file.writelines(parts)
        return cls(Path(file.name), scratch=scratch)

    def arrays(self) -> dict[str, Array]:
        return state_from_file(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSilo:
    """A silo's samples in a file of this machine."""

    path: Path
    name: str
    samples: int
    rows_per_unit: Mapping[str, int]

    @classmethod
    def write(cls, data: SiloData, path: Path) -> StoredSilo | None:
        """None for samples that are not all in memory, for a transform, and for types of numbers that no file
        here holds."""
        if data.train_transform is not None:
            return None
        sides: dict[str, SampleSet] = {"train": data.train, "holdout": data.holdout}
        if data.test is not None:
            sides["test"] = data.test
        arrays: dict[str, Array] = {}
        for side, samples in sides.items():
            if not isinstance(samples, Samples):
                return None
            given = {f"{side}/{field}": getattr(samples, field) for field in FIELDS}
            arrays |= {name: array for name, array in given.items() if array is not None}
        if any(array.dtype not in DTYPES.values() for array in arrays.values()):
            return None
        with path.open("xb") as file:
            file.writelines(state_parts(arrays))
        rows = {side: samples.rows_per_unit for side, samples in sides.items()}
        return cls(path=path, name=data.name, samples=len(data.train), rows_per_unit=rows)

    def open(self) -> SiloData:
        arrays = state_from_file(self.path)

        def side(name: str) -> Samples:
            found = {field: arrays.get(f"{name}/{field}") for field in FIELDS}
            return Samples(**found, rows_per_unit=self.rows_per_unit[name])  # type: ignore[arg-type]

        test = side("test") if "test" in self.rows_per_unit else None
        return SiloData(train=side("train"), holdout=side("holdout"), test=test, name=self.name)


class StoredSilos(Mapping[str, SiloData]):
    """Silos' data, each opened when it is looked at. given: taken one by one, so that one is in memory."""

    def __init__(self, scratch: Scratch, given: Iterable[tuple[str, SiloData]]) -> None:
        self._scratch = scratch
        self._held: dict[str, StoredSilo | SiloData] = {}
        for name, data in given:
            self._held[name] = StoredSilo.write(data, scratch.path / f"data-{name}.safetensors") or data

    @property
    def samples(self) -> dict[str, int]:
        """How many each trains on."""
        return {
            name: held.samples if isinstance(held, StoredSilo) else len(held.train)
            for name, held in self._held.items()
        }

    def __getitem__(self, silo: str) -> SiloData:
        held = self._held[silo]
        return held.open() if isinstance(held, StoredSilo) else held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process has the files alone: the folder goes with this one's last use of it."""
        return _of_another_process, (self._held,)


def _of_another_process(held: dict[str, StoredSilo | SiloData]) -> StoredSilos:
    silos = StoredSilos.__new__(StoredSilos)
    silos._held = held
    return silos
