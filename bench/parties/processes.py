"""Processes under measurement: started, looked at through /proc, ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chorale.transport.tls import ENVIRONMENT

POLL_SECONDS = 0.005
PATIENCE_SECONDS = 120.0
REPOSITORY = Path(__file__).resolve().parents[2]

Record = dict[str, Any]


class Process:
    """One `python -m module arguments`; its output is a file of JSON lines, read as it grows.

    under: a program that starts it and leaves it in its place, such as a tracer.
    """

    def __init__(self, arguments: Sequence[str], *, log: Path, under: Sequence[str] = ()) -> None:
        self.log = log
        self._read_bytes = 0
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*under, sys.executable, "-m", *arguments],
                cwd=REPOSITORY,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def records(self) -> Iterator[Record]:
        """Whole lines that came since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes += len(line)
                if line.startswith(b"{"):
                    yield json.loads(line)

    def wait_for(
        self, wanted: Callable[[Record], bool], *, what: str, patience_seconds: float = PATIENCE_SECONDS
    ) -> Record:
        """The next record that fits. Raises RuntimeError if it does not come or the process ends."""
        limit = time.monotonic() + patience_seconds
        while time.monotonic() < limit:
            for record in self.records():
                if wanted(record):
                    return record
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.log.stem} ended before {what}:\n{self.log.read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"{self.log.stem}: {what} did not come:\n{self.log.read_text()[-2000:]}")

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far."""
        # the kernel's number of another process's clock, as clock_getcpuclockid(3) makes it
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def memory(self) -> int:
        """Bytes in memory now that are of no file, so the system cannot take them back."""
        lines = (self._proc / "status").read_text().splitlines()
        (anonymous,) = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
        return int(anonymous) << 10

    def written(self) -> dict[str, int]:
        """Bytes so far, as the kernel counts them: `write_bytes` towards storage, `wchar` handed to it."""
        lines = (self._proc / "io").read_text().splitlines()
        return {name: int(count) for name, _, count in (line.partition(": ") for line in lines)}

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def _proc(self) -> Path:
        return Path("/proc") / str(self._process.pid)


class Watch(ABC):
    """Looks at something again and again while the block runs, in a thread of its own."""

    def __init__(self, *, every_seconds: float = POLL_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @abstractmethod
    def look(self) -> None:
        """Once more."""

    def __enter__(self) -> Self:
        self.look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._every_seconds):
            self.look()


class Peaks(Watch):
    """The most memory of each process."""

    def __init__(self, processes: Sequence[Process]) -> None:
        super().__init__()
        self._processes = processes
        self.most = [process.memory() for process in processes]

    def look(self) -> None:
        now = [process.memory() for process in self._processes]
        self.most = [max(pair) for pair in zip(self.most, now, strict=True)]


class Processes:
    """Those of one measurement, ended with the block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Process] = []
        self._closing = ExitStack()

    def start(self, name: str, *arguments: str, under: Sequence[str] = ()) -> Process:
        process = Process(arguments, log=self.folder / f"{name}.log", under=under)
        self._closing.callback(process.stop)
        self.all.append(process)
        return process

    def cpu_seconds(self) -> float:
        return sum(process.cpu_seconds() for process in self.all)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()


def environment() -> dict[str, str]:
    """The same for every process: one thread of OpenMP, TLS 1.3 alone, none of the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CHORALE_")}
    return {**kept, **ENVIRONMENT, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
