"""The agent's side of training in several processes: an objective that has each batch shared.

Training alone is shared. All other phases run in the agent, and so does every private job: what is exact
about its sums was argued for one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue

from crypto.errors import ConfigError
from silo_agent.objective import Cancelled, Work
from silo_agent.settings import SiloSettings
from silo_agent.training.processes.exchange import raise_error, read_answer, write_work
from silo_agent.training.torch_objective import TorchObjective
from strategies.base import Array
from strategies.phases.training import TRAIN

LAUNCHER = "silo_agent.training.processes.launcher"
LOOK_SECONDS = 0.1  # between two looks at whether the work is still wanted
# collectives stay on this machine
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


class SharedTraining:
    """Starts the processes for the first training, and again where they ended; they end with the agent."""

    def __init__(self, settings: SiloSettings, alone: TorchObjective) -> None:
        self._settings, self._alone = settings, alone
        self._folder = settings.processes_directory
        self._launcher: subprocess.Popen[bytes] | None = None
        self._lines: SimpleQueue[bytes] = SimpleQueue()

    def compute(self, work: Work) -> Mapping[str, Array]:
        """As TorchObjective.compute. Raises ConfigError with one line where a process ended."""
        if work.phase_kind != TRAIN or work.spec.privacy is not None:
            return self._alone.compute(work)
        if self._launcher is None:
            self._start()
        assert self._launcher is not None
        assert self._launcher.stdin is not None
        try:
            self._launcher.stdin.write(write_work(work, self._folder))
            self._launcher.stdin.flush()
        except BrokenPipeError:
            self._fail(b"")
        while True:
            try:
                line = self._lines.get(timeout=LOOK_SECONDS)
            except Empty:
                if work.is_cancelled():
                    self.close()
                    raise Cancelled("training: no longer wanted") from None
                continue
            if not line or b'"ended"' in line:
                self._fail(line)
            return read_answer(line, self._folder, work.local)

    def close(self) -> None:
        """End the processes: the first sees the end of its input, and the launcher ends the others."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            assert launcher.stdin is not None
            launcher.stdin.close()
            launcher.wait()

    def _start(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._folder.glob("error-*.json"):
            path.unlink()
        Path(self._folder / "store").unlink(missing_ok=True)
        (self._folder / "settings.json").write_text(self._settings.model_dump_json())
        self._lines = SimpleQueue()
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", LAUNCHER, str(self._folder), str(self._settings.devices)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT},
        )
        threading.Thread(target=_read, args=(self._launcher, self._lines), daemon=True).start()

    def _fail(self, line: bytes) -> None:
        self.close()
        ended = json.loads(line)["ended"] if line else None
        who = "its launcher" if ended is None else f"the process of device {ended['rank']}"
        code = "" if ended is None else f" with exit code {ended['exit_code']}"
        raise_error(self._folder, f"devices: {who} ended{code} during training")


def _read(launcher: subprocess.Popen[bytes], lines: SimpleQueue[bytes]) -> None:
    assert launcher.stdout is not None
    with launcher.stdout:
        for line in launcher.stdout:
            lines.put(line)
    lines.put(b"")


def check_devices(settings: SiloSettings, gpus: int) -> None:
    """Raises ConfigError where the machine has fewer GPUs than the settings share batches between."""
    if settings.device != "cpu" and 0 < gpus < settings.devices:
        raise ConfigError(f"devices: {settings.devices} are set, torch finds {gpus} GPUs on this machine")
