"""A process of the product under test: its log as records, its end by signal, nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support.fork_server import ROOT, start

REPOSITORY = ROOT
INSTALLED = Path(sys.executable).with_name("chorale")  # the script that pip wrote
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 90.0
DEMO_SECONDS = 850.0  # a run of 20 s took more than 250 beside a compiler

Record = dict[str, Any]
# gRPC's own, of a call that came while its server stopped and that the end of the loop cancelled
OF_GRPC = re.compile(
    r'Traceback \(most recent call last\):\n  File "[^"\n]*/aio/server\.pyx\.pxi", line \d+, in '
    r"grpc\._cython\.cygrpc\._schedule_rpc_coro\nasyncio\.exceptions\.CancelledError\n"
)


class Service:
    """`chorale <arguments>` in a process group of its own; stderr goes to a file of JSON lines.

    module: what is run instead of cli.main, such as tests.support.halting. is_executed: by an interpreter
    of its own and not in a fork of one that has imported everything (tests.support.fork_server). limits: a
    command that starts it so (tests.support.limits).
    """

    def __init__(
        self,
        name: str,
        arguments: list[str],
        *,
        log: Path,
        extra_env: Mapping[str, str],
        folder: Path = REPOSITORY,
        module: str = "cli.main",
        is_executed: bool = False,
        limits: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as stream:
            self.process = start(
                module,
                arguments,
                folder=folder,
                environment=environment(extra_env),
                stdout=stream,
                stderr=stream,
                is_executed=is_executed,
                limits=limits,
            )

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def records(self) -> list[Record]:
        """Every JSON line of the log so far; a torn last line is left for later."""
        lines = self.log.read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}\n")]

    def own_text(self) -> str:
        """The log without what gRPC writes past it."""
        return OF_GRPC.sub("", self.log.read_text())

    def wait_halted(self) -> None:
        """Until the process has stopped itself, as tests.support.halting makes it do."""

        def has_halted() -> bool:
            return not self.is_running or psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED

        wait_until(has_halted, f"{self.name} to halt", detail=self.tail)
        assert self.is_running, f"{self.name} ended with {self.process.returncode}\n{self.tail()}"

    def wait_for(self, wanted: Callable[[Record], bool], *, seconds: float = PATIENCE_SECONDS) -> Record:
        """The first record that fits, as soon as it is written."""
        found: list[Record] = []

        def is_written() -> bool:
            found.extend(record for record in self.records() if wanted(record))
            return bool(found) or not self.is_running

        wait_until(is_written, f"{self.name}: a log record", seconds=seconds, detail=self.tail)
        if not found:
            raise AssertionError(f"{self.name} ended with {self.process.returncode}\n{self.tail()}")
        return found[0]

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._signal(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._signal(signal.SIGTERM)
        return self.process.returncode

    def freeze(self) -> None:
        os.killpg(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            os.killpg(self.process.pid, number)
            if number != signal.SIGKILL:  # which ends a halted process without another step of it
                os.killpg(self.process.pid, signal.SIGCONT)
        try:
            self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"{self.name} does not end on signal {number}\n{self.tail()}") from None


def wait_until(
    is_done: Callable[[], bool],
    what: str,
    *,
    seconds: float = PATIENCE_SECONDS,
    detail: Callable[[], str] = str,
) -> None:
    """Polls what other processes write: there is nothing of theirs to wait on."""
    limit = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > limit:
            raise AssertionError(f"waited {seconds:g} s for {what}\n{detail()}")
        time.sleep(POLL_SECONDS)


def run_cli(
    *arguments: str | Path,
    folder: Path = REPOSITORY,
    extra_env: Mapping[str, str] | None = None,
    module: str = "cli.main",
    seconds: float = PATIENCE_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """One command to its end, output captured."""
    command = list(map(str, arguments))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = start(
            module,
            command,
            folder=folder,
            environment=environment(extra_env or {}),
            stdout=out,
            stderr=errors,
        )
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        outputs = [(file.seek(0), file.read().decode())[1] for file in (out, errors)]
    return subprocess.CompletedProcess(command, code, *outputs)


def run_demo(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`chorale demo` to its end, its parties forked as well. tests/integration/test_demo.py executes them."""
    return run_cli(
        *("demo", "--out", out, *options), module="tests.support.forking_demo", seconds=DEMO_SECONDS
    )


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The surroundings of a test process: none of the caller's settings, one thread each."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("CHORALE_")}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **extra}
