"""One training process: it computes what it is told with the others, each its share of every batch.

All read the same work and draw the same shuffles, so that only gradients are exchanged. The first alone reads
lines from the agent and answers. Its standard input ends when the agent does, whatever ended it: then it ends
too, and the elastic agent ends the others.
"""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import distributed

from chorale.observability import logs
from chorale.spec.job_spec import JobSpec
from crypto.errors import ChoraleError
from silo_agent.data.base import SiloData
from silo_agent.data.loading import load_data
from silo_agent.settings import SiloSettings
from silo_agent.training.base.shares import Shares
from silo_agent.training.models.forms import Forms
from silo_agent.training.processes.exchange import read_work, write_answer, write_error
from silo_agent.training.torch_objective import TorchObjective

log = logs.get_logger("silo_agent.training.processes.worker")

FOREVER = timedelta(days=365)  # between rounds; a peer that ends is noticed by the elastic agent


def main(folder: Path) -> None:
    """Until the agent ends, or an error. folder: the agent's, with its settings. Raises nothing: it exits."""
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a model prints is no answer
    settings = SiloSettings.model_validate_json((folder / "settings.json").read_bytes())
    logs.configure(silo=settings.name)
    lines: SimpleQueue[bytes] = SimpleQueue()
    if rank == 0:
        threading.Thread(target=_listen, args=(lines,), daemon=True).start()
    has_gpus = torch.cuda.is_available() and settings.device != "cpu"
    if has_gpus:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
        store=distributed.FileStore(str(folder / "store"), processes),  # type: ignore[attr-defined]
        rank=rank,
        world_size=processes,
        timeout=FOREVER,
    )
    objective = TorchObjective(
        device=settings.device.value,
        threads=settings.torch_threads,
        base_models=settings.base_models,
        # a trial of its own at each process could end otherwise
        forms=Forms.of_settings(settings).without_trials(),
        shares=Shares(micro_batch=settings.micro_batch, rank=rank, processes=processes),
    )
    data = _Data(settings)
    try:
        while True:
            line = _told(lines.get() if rank == 0 else b"")
            work = read_work(line, folder, data.of)
            values = objective.compute(work)
            if rank == 0:
                answers.write(write_answer(values, work.local, folder))
    except ChoraleError as error:
        write_error(error, rank, folder)
        os._exit(1)
    except Exception as error:
        log.error("training process failed", rank=rank, error=f"{type(error).__name__}: {error}"[:300])
        os._exit(1)


class _Data:
    """This silo's data, loaded once a job."""

    def __init__(self, settings: SiloSettings) -> None:
        self._settings = settings
        self._nonce = ""
        self._data: SiloData | None = None

    def of(self, spec: JobSpec, name: str) -> SiloData:
        if self._data is None or spec.nonce != self._nonce:
            self._data, self._nonce = load_data(self._settings.data_set(name), spec), str(spec.nonce)
        return self._data


def _listen(lines: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(1)  # the agent is gone


def _told(line: bytes) -> bytes:
    """What the first process was told, at each."""
    length = torch.tensor(len(line))
    distributed.broadcast(length, src=0)
    told = torch.zeros(int(length), dtype=torch.uint8)
    if line:
        told.copy_(torch.frombuffer(bytearray(line), dtype=torch.uint8))
    distributed.broadcast(told, src=0)
    return told.numpy().tobytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
