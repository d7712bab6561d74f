"""One training process: it computes the agent's tasks with the others, each its share of every batch.

All read the same work and draw the same shuffles, so that only gradients are exchanged. The first alone reads
the agent's messages and answers. Its standard input ends when the agent does, whatever ended it: then it ends
too, and the elastic agent ends the others.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import distributed

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from crypto.errors import ChoraleError, ConfigError
from silo_agent.training.base.shares import BatchShares
from silo_agent.training.data.base import SiloData
from silo_agent.training.machine.settings import MachineSettings
from silo_agent.training.models.forms import Forms
from silo_agent.training.processes.exchange import (
    Message,
    read_work,
    received,
    send_answer,
    write_error,
)
from silo_agent.training.torch_objective import TorchObjective

log = get_logger("silo_agent.training.processes.worker")

FOREVER = timedelta(days=365)  # for the next work; a peer that ends is noticed by the elastic agent
# for a peer within a work, which is behind by what its disk and its device are slower; torch's own choice
PATIENCE = timedelta(minutes=30)
WAITED = "devices: one process waited {minutes:g} minutes for another, whose data or device hang"
PIECE_BYTES = 1 << 28  # of one broadcast: sizes stay below 2^31


def work(
    folder: Path,
    machine: MachineSettings,
    load: Callable[[JobSpec, str], SiloData],
    *,
    patience: timedelta = PATIENCE,
) -> None:
    """Until the agent ends, or an error. folder: of the agent. load: a data set of this silo, by its name.
    patience: how long one process waits for another within a work.

    Raises nothing: it exits.
    """
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a model prints is no answer
    messages: SimpleQueue[Message] = SimpleQueue()
    if rank == 0:
        threading.Thread(target=_listen, args=(messages,), daemon=True).start()
    data = _Data(load)
    try:
        objective = objective_of_rank(machine, rank=rank, processes=processes)
        on_gpus = objective.device.type == "cuda"
        if on_gpus:
            torch.cuda.set_device(objective.device)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
            store=distributed.FileStore(str(folder / "store"), processes),  # type: ignore[attr-defined]
            rank=rank,
            world_size=processes,
            timeout=patience,
        )
        between_works = distributed.new_group(backend="gloo", timeout=FOREVER)
        while True:
            line, arrays = messages.get() if rank == 0 else (b"", b"")
            distributed.barrier(between_works)
            asked = read_work((_broadcast(line), _broadcast(arrays)), data.of)
            values = objective.compute(asked)
            distributed.all_reduce(
                torch.zeros(1)
            )  # an error of any process is one of this work, not the next
            if rank == 0:
                send_answer(values, asked.local, answers)
    except ChoraleError as error:
        write_error(error, rank, folder)
        os._exit(1)
    except Exception as error:
        if "timed out" in str(error).lower():  # gloo and its store have no type of their own for it
            write_error(ConfigError(WAITED.format(minutes=patience.total_seconds() / 60)), rank, folder)
        log.error("training process failed", rank=rank, error=f"{type(error).__name__}: {error}"[:300])
        os._exit(1)


def objective_of_rank(machine: MachineSettings, *, rank: int, processes: int) -> TorchObjective:
    """Each on a GPU of its own, from the one that the settings name. Raises ConfigError without it."""
    return TorchObjective(
        device=machine.device,
        gpu=rank,
        threads=machine.torch_threads,
        base_models=machine.base_models,
        # a trial of its own at each process could end otherwise
        forms=Forms(precision=machine.precision, memory_format=machine.memory_format).without_trials(),
        shares=BatchShares(micro_batch=machine.micro_batch, rank=rank, processes=processes),
    )


class _Data:
    """This silo's data, loaded once a job: for one data set and all that the job says of it."""

    def __init__(self, load: Callable[[JobSpec, str], SiloData]) -> None:
        self._load = load
        self._loaded: tuple[str, JobSpec, SiloData] | None = None

    def of(self, spec: JobSpec, name: str) -> SiloData:
        if self._loaded is None or self._loaded[:2] != (name, spec):
            self._loaded = None  # the old one's memory first
            self._loaded = (name, spec, self._load(spec, name))
        return self._loaded[2]


def _listen(messages: SimpleQueue[Message]) -> None:
    for message in received(sys.stdin.buffer):
        messages.put(message)
    os._exit(1)  # the agent is gone


def _broadcast(part: bytes) -> bytes:
    """What the first process was told, at each."""
    length = torch.tensor(len(part))
    distributed.broadcast(length, src=0)
    buffer = torch.zeros(int(length), dtype=torch.uint8)
    if part:
        buffer.copy_(torch.frombuffer(bytearray(part), dtype=torch.uint8))
    for piece in torch.split(buffer, PIECE_BYTES):
        distributed.broadcast(piece, src=0)
    return buffer.numpy().tobytes()
