"""A federation whose processes, lines, disks, clocks and certificates a schedule can get at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chorale.runtime.files import write_atomic
from crypto.identity.certificates import Role, key_to_pem
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.halting import Halt
from tests.support.processes import Service, run_cli
from tests.support.schedules.agents import RECORDS
from tests.support.schedules.line import Line
from tests.support.schedules.machine import Clock, small_disk
from tests.support.schedules.schedule import OF_LINES, Kind, Schedule

DISK_BYTES = 8 << 20  # and what so many vectors take: a full disk is filled by the test, not by the job
DISK_VECTORS = 16


@dataclass(kw_only=True)
class ScheduledFederation(LocalFederation):
    """The processes, lines, disks and clocks that a schedule names; what it leaves alone is as it always is.

    lives: how often each process was started.
    """

    schedule: Schedule
    lines: dict[str, Line] = field(default_factory=dict)
    clocks: dict[str, Clock] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._stack = ExitStack()
        self._renewals = Counter[str]()  # certificates that each silo took in the place of its first
        self.records.mkdir()
        for name in self.schedule.targets(Kind.SKEWED_CLOCK):
            self.clocks[name] = Clock(self.folder / f"{name}.clock")
        # the authority's folder, as its commands know it
        write_atomic(self.ceremony.folder / "authority.key", key_to_pem(self.ceremony.key))
        self._request_renewals()

    def __enter__(self) -> Self:
        vector_bytes = 4 * self.schedule.values
        for name in self.schedule.targets(Kind.FULL_DISK):
            size_bytes = DISK_BYTES + DISK_VECTORS * vector_bytes
            self._stack.enter_context(small_disk(self.folder / name, size_bytes=size_bytes))
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._stack.close()

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def process_of(self, target: str) -> Service:
        """The process that a silo runs in, or the one of that name."""
        return self.services[self.process_name(target)]

    def process_name(self, target: str) -> str:
        return next((name for name, silos in self.schedule.processes.items() if target in silos), target)

    def start(self) -> None:
        """Coordinator, lines, then every process of silos."""
        self.start_coordinator()
        for name in sorted(self.schedule.targets(*OF_LINES)):
            self.lines[name] = self._stack.enter_context(Line(self.endpoint["grpc"]))
        for name in self.schedule.processes:
            self.launch(name)

    def launch(self, name: str) -> None:
        """Start a process that does not run, without waiting for it."""
        if name == COORDINATOR:
            path = self._write(f"{COORDINATOR}.yaml", self._coordinator_settings())  # it listens where it did
            self._spawn(COORDINATOR, ["coordinator", "run", "--config", str(path)])
            return
        files = []
        for silo in self.schedule.processes[name]:
            policy = self._write(f"{silo}-policy.yaml", self._policy())
            line = self.lines.get(silo)
            address = self.endpoint["grpc"] if line is None else line.address
            settings = self._silo_settings(silo, policy, address)
            files.append(str(self._write(f"{silo}.yaml", {**settings, "metrics_listen": None})))
        self._spawn(name, files)

    def publish_renewed(self, silo: str) -> None:
        """A roster with the silo's next certificate in the place of the present one."""
        self._command("authority", "roster", self._renewed(silo) / f"{silo}.crt", *self._authority)

    def take_renewed(self, silo: str) -> None:
        """Put key and certificate in the place of the silo's own; its process reads them while it runs."""
        folder = self._renewed(silo)
        for ending in ("crt", "key"):
            (folder / f"{silo}.{ending}").replace(self.ceremony.path_of(Role.SILO, silo, ending))
        self._renewals[silo] += 1

    def _renewed(self, silo: str) -> Path:
        """Where the silo's next key and certificate are."""
        return self.folder / f"{silo}-renewed-{self._renewals[silo]}"

    def _request_renewals(self) -> None:
        """As many keys and certificates as the schedule renews, by the commands of silo and authority."""
        faults = [fault for fault in self.schedule.faults if fault.kind is Kind.NEW_CERTIFICATE]
        for fault in faults:
            name, folder = fault.target, self._renewed(fault.target)
            federation = ("--federation", self.ceremony.federation)
            self._command("silo", "csr", "--name", name, *federation, "--out", folder)
            self._command("authority", "sign", folder / f"{name}.csr", "--valid-days", "5", *self._authority)
            self._renewals[name] += 1
        self._renewals.clear()

    @property
    def _authority(self) -> tuple[str | Path, ...]:
        return ("--directory", self.ceremony.folder)

    def _command(self, *arguments: str | Path) -> None:
        done = run_cli(*arguments)
        assert done.returncode == 0, done.stderr

    def _spawn(
        self,
        name: str,
        arguments: list[str],
        env: Mapping[str, str] | None = None,
        *,
        halt: Halt | None = None,
    ) -> Service:
        extra: dict[str, str] = {**self.env, RECORDS: str(self.records)}
        if name in self.clocks:
            extra.update(self.clocks[name].environment)
        self.lives[name] += 1
        self.services[name] = Service(
            name,
            arguments,
            log=self.folder / f"{name}.log",
            extra_env=extra,
            module="cli.main" if name == COORDINATOR else "tests.support.schedules.agents",
        )
        return self.services[name]

    def _policy(self) -> dict[str, Any]:
        """Faults change cohorts and use up rounds far more often than policies foresee."""
        return {**super()._policy(), "max_cohort_changes": 10_000, "max_repeats": 100}
