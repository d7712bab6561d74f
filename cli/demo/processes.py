"""The demo's parties as operating-system processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TypeAlias

import click

from cli.errors import CommandFailed, ExitCode
from cli.startup.parent import PARENT
from crypto.errors import ChoraleError, ConfigError, PolicyRefusal

STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
CHORALE, HOLDING = "cli.main", "cli.demo.holding"  # the second: coordinators of a demo with --drop
AT_ONCE = 8  # commands; each takes about 50 MB
FAILURES: dict[int, type[ChoraleError]] = {  # by which this command ends as one of those did
    ExitCode.USAGE: ConfigError,
    ExitCode.REFUSED_HERE: PolicyRefusal,
}
Output: TypeAlias = int | IO[bytes]


@dataclass(slots=True)
class Child:
    """One party. is_expected_to_end: the demo itself kills it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_expected_to_end: bool = False

    def kill(self) -> None:
        """SIGKILL, for good: what a power cut would do."""
        self.is_expected_to_end = True
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Processes(AbstractContextManager["Processes"]):
    """Everything that was started, stopped again when the block ends, whichever way."""

    log_directory: Path
    children: list[Child] = field(default_factory=list)

    def start(self, name: str, arguments: Sequence[str], *, module: str = CHORALE) -> Child:
        """Start `chorale <arguments>` in a session of its own, its output in a log file."""
        log = self.log_directory / f"{name}.log"
        with log.open("ab") as output:
            process = _started(arguments, stdout=output, stderr=output, module=module)
        child = Child(name=name, process=process, log=log)
        self.children.append(child)
        return child

    def wait_until(self, is_done: Callable[[], bool], *, what: str, seconds: float) -> None:
        """Poll until done. Raises CommandFailed, with the last line of its log, if a child ends by itself
        before, and if it takes too long."""
        deadline = time.monotonic() + seconds
        while not is_done():
            for child in self.children:
                code = child.process.poll()
                if code is not None and not child.is_expected_to_end:
                    last = _last_line(child.log.read_bytes()[-4096:])
                    raise CommandFailed(f"{child.name} ended with exit code {code}: {last}")
            if time.monotonic() > deadline:
                raise CommandFailed(f"{what}: not within {seconds:.0f} s; see {self.log_directory}")
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """SIGTERM to all, then SIGKILL to those that are left."""
        running = [child for child in self.children if child.process.poll() is None]
        for child in running:
            child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for child in running:
            try:
                child.process.wait(timeout=max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is KeyboardInterrupt and self.children:
            click.echo(f"stopping {len(self.children)} processes; interrupt again to kill them", err=True)
        try:
            self.stop()
        except KeyboardInterrupt:  # a second Ctrl-C: stop without waiting
            for child in self.children:
                child.process.kill()
            raise


def run_commands(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run `chorale` commands, a few at the same time; returns their outputs.

    Raises CommandFailed, or ConfigError or PolicyRefusal where that is how one ended.
    """
    outputs: list[str] = []
    for first in range(0, len(commands), AT_ONCE):
        together = commands[first : first + AT_ONCE]
        started = [_started(each, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for each in together]
        try:
            for process in started:
                output, errors = process.communicate()
                if process.returncode != 0:
                    raise FAILURES.get(process.returncode, CommandFailed)(_last_line(errors))
                outputs.append(output.decode())
        finally:
            for process in started:
                process.kill()
                process.wait()
    return outputs


def _started(
    arguments: Sequence[str], *, stdout: Output, stderr: Output, module: str = CHORALE
) -> subprocess.Popen[bytes]:
    """`chorale <arguments>`, with no settings of this one's and no code from the working directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CHORALE_")}
    folder = str(Path(__file__).resolve().parents[2])
    paths = [folder, *filter(None, [inherited.get("PYTHONPATH")])]
    own = {
        "OMP_NUM_THREADS": "1",  # silos that spin for the same cores are 30 times slower
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONSAFEPATH": "1",
        PARENT: str(os.getpid()),
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=inherited | own,
        start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops them in order
    )


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines() or ["no message"]
    return lines[-1].removeprefix("chorale: error: ")
