"""A coordinator's process and n light silos in a few others: one federation, one job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.parties.files import COORDINATOR, FederationFiles
from bench.parties.processes import Process, Processes, Record, environment

JOB_SECONDS = 3600.0  # a job that takes longer hangs
START_SECONDS = 600.0  # until all silos are connected
APPLIED = "applied"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A record `stage` of the coordinator's log: the stage has begun, or the phase has ended `applied`."""

    unix_seconds: float
    stage: str
    round: int
    phase: str

    @property
    def is_training(self) -> bool:
        return self.phase == "train"

    @classmethod
    def of(cls, record: Record) -> Moment:
        return cls(
            unix_seconds=datetime.fromisoformat(record["time"]).timestamp(),
            stage=record["state"],
            round=record["round"],
            phase=record["phase"],
        )


class LightFederation:
    """Entering starts the coordinator and as many silo processes as there are groups of names.

    hub_under, silo_under: programs that start the coordinator, and the process of the first group.
    objective: of every silo, by name. hub_settings: of the coordinator, beside the defaults.
    """

    def __init__(
        self,
        folder: Path,
        *,
        groups: Sequence[int],
        hub_under: Sequence[str] = (),
        silo_under: Sequence[str] = (),
        objective: str = "objective",
        hub_settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.files = FederationFiles(folder, silos=sum(groups))
        names = iter(self.files.silos)
        self._groups = [[next(names) for _ in range(size)] for size in groups]
        self._under = (hub_under, silo_under)
        self._objective = objective
        self._hub_settings = hub_settings or {}
        self._processes = Processes(folder)
        self.silos: list[Process] = []

    def __enter__(self) -> Self:
        _, silo_under = self._under
        try:
            self.start_hub()
            self.address = json.loads(self.files.endpoint.read_text())["grpc"]
            for place, names in enumerate(self._groups):
                paths = [str(self._settings(name)) for name in names]
                under = () if place else silo_under
                module = "bench.parties.light_silos"
                self.silos.append(self._processes.start(f"silos-{place}", module, *paths, under=under))
            for process, names in zip(self.silos, self._groups, strict=True):
                _wait_connected(process, len(names))
        except BaseException:
            self._processes.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, error, trace)

    def start_hub(self) -> Record:
        """What the coordinator logs when it listens."""
        settings, (hub_under, _) = str(self.files.coordinator(**self._hub_settings)), self._under
        self.hub = self._processes.start(
            COORDINATOR, "cli.main", "coordinator", "run", "--config", settings, under=hub_under
        )
        return self.hub.wait_for(lambda record: record["event"] == "listening", what="its address")

    def run_job(self, *, length: int, rounds: int) -> list[Record]:
        """What the coordinator logs of a job from its submission to its end, however that is."""
        job, state = self.files.job(rounds=rounds, name="scale"), self.files.initial_state(length=length)
        operator = self.files.operator(coordinator=self.address)
        command = ["cli.main", "job", "submit", str(job), "--init", str(state), "--config", str(operator)]
        subprocess.run(
            [sys.executable, "-m", *command], check=True, env=environment(), stdout=subprocess.DEVNULL
        )
        records: list[Record] = []

        def is_end(record: Record) -> bool:
            records.append(record)
            return bool(record["event"] == "job ended")

        self.hub.wait_for(is_end, what="the job's end", patience_seconds=JOB_SECONDS)
        return records

    def _settings(self, name: str) -> Path:
        return self.files.silo(name, coordinator=self.address, has_metrics=False, objective=self._objective)


def moments(records: Sequence[Record]) -> list[Moment]:
    """Of all phases, in the order of the log."""
    return [Moment.of(record) for record in records if record["event"] == "stage"]


def groups_of(silos: int, *, processes: int) -> list[int]:
    """How many agents each process gets, as evenly as it goes."""
    processes = min(processes, silos)
    return [silos // processes + (place < silos % processes) for place in range(processes)]


def _wait_connected(process: Process, silos: int) -> None:
    connected = 0

    def is_last(record: Record) -> bool:
        nonlocal connected
        connected += int(record["event"] == "connected")
        return connected == silos

    process.wait_for(is_last, what="its connections", patience_seconds=START_SECONDS)
