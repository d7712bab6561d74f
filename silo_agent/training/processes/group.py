"""The agent's side of training in several processes: an objective that has each batch shared.

Training alone is shared. All other phases run in the agent, and so does every private job: what is exact
about its sums was argued for one process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import IO, NoReturn

from chorale.runtime.files import write_atomic
from crypto.errors import ConfigError
from silo_agent.training.machine.settings import MachineSettings, first_gpu
from silo_agent.training.objective import Cancelled, Work
from silo_agent.training.processes.exchange import (
    ENDED,
    SETTINGS,
    Message,
    raise_error,
    read_answer,
    received,
    send_work,
)
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from strategies.phases.training import TRAIN

LAUNCHER = "silo_agent.training.processes.launcher"
LOOK_SECONDS = 0.1  # between two looks at whether the work is still wanted
# collectives stay on this machine
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class SharedTraining:
    """Starts the processes for the first training, and again where they ended; they end with the agent."""

    def __init__(
        self, settings: MachineSettings, alone: TorchObjective, *, folder: Path, worker: str
    ) -> None:
        """settings: the silo's, which the processes read. folder: made when it is needed. worker: the module
        that each process runs."""
        self._alone = alone
        self._start = partial(_Running, settings, folder, worker)
        self._running: _Running | None = None

    def compute(self, work: Work) -> Mapping[str, Array]:
        """As TorchObjective.compute. Raises ConfigError with one line where a process ended."""
        if work.phase_kind != TRAIN or work.spec.privacy is not None:
            return self._alone.compute(work)
        if self._running is None:
            self._running = self._start()
        try:
            send_work(work, self._running.pipe)
        except BrokenPipeError:
            self._fail()
        while True:
            try:
                answer = self._running.answers.get(timeout=LOOK_SECONDS)
            except Empty:
                if work.is_cancelled():
                    self.close()
                    raise Cancelled("training: no longer wanted") from None
                continue
            if answer is None:
                self._fail()
            else:
                return read_answer(answer, work.local)

    def close(self) -> None:
        """End the processes and delete their folder."""
        running, self._running = self._running, None
        if running is not None:
            running.end()
            running.folder.cleanup()

    def _fail(self) -> NoReturn:
        running, self._running = self._running, None
        assert running is not None
        running.end()
        with running.folder as folder:
            raise_error(Path(folder), f"devices: {_who_ended(Path(folder))} during training")


class _Running:
    """The launcher, the pipe to the first process, its answers, and a folder of their own: it holds the
    settings, where the processes meet and how they ended, and no data."""

    def __init__(self, settings: MachineSettings, folder: Path, worker: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = TemporaryDirectory(dir=folder, ignore_cleanup_errors=True)
        write_atomic(Path(self.folder.name, SETTINGS), settings.model_dump_json().encode())
        self.answers: SimpleQueue[Message | None] = SimpleQueue()  # None: the launcher ended
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", LAUNCHER, self.folder.name, str(settings.devices), worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
        )
        assert self._launcher.stdin is not None
        self.pipe: IO[bytes] = self._launcher.stdin
        threading.Thread(target=self._read, daemon=True).start()

    def end(self) -> None:
        """The first process sees the end of its input, and the launcher ends the others."""
        with suppress(BrokenPipeError):  # what was not sent is given up
            self.pipe.close()
        self._launcher.wait()

    def _read(self) -> None:
        assert self._launcher.stdout is not None
        with self._launcher.stdout as answers:
            for answer in received(answers):
                self.answers.put(answer)
        self.answers.put(None)


def _who_ended(folder: Path) -> str:
    try:
        ended = json.loads((folder / ENDED).read_bytes())
    except FileNotFoundError:
        return "its launcher ended"
    # how NCCL ends a process whose wait is over, and much else does
    aborted = " (SIGABRT: another may hang)" if ended["exit_code"] == -signal.SIGABRT else ""
    return f"the process of device {ended['rank']} ended with exit code {ended['exit_code']}{aborted}"


def check_devices(settings: MachineSettings, gpus: int) -> None:
    """Raises ConfigError where the machine has fewer GPUs than the settings share batches between."""
    first = first_gpu(settings.device)
    if settings.devices > 1 and settings.device != "cpu" and 0 < gpus < first + settings.devices:
        since = f" from {settings.device} on" if first else ""
        raise ConfigError(
            f"devices: {settings.devices} are set{since}, torch finds {gpus} GPUs on this machine"
        )
