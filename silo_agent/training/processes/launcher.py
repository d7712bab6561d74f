"""The child of the agent that starts the training processes and watches them: torchrun's elastic agent.

Its own rendezvous finds machines over a TCP store that listens on every interface and holds pickles. Here
there is one machine, so the store is a table in this process and nothing listens. Where one training process
ends, the elastic agent ends the others; a file says which to the silo agent.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from contextlib import suppress
from pathlib import Path

from torch import distributed
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from chorale.runtime.files import write_atomic
from silo_agent.training.processes.exchange import ENDED


class OneMachine(RendezvousHandler):
    """A rendezvous of one machine, which is always complete."""

    def get_backend(self) -> str:
        return "one-machine"

    def next_rendezvous(self) -> RendezvousInfo:
        # the address is handed to the processes, which do not use it: they meet by a file
        nowhere = RendezvousStoreInfo(master_addr="localhost", master_port=1)
        return RendezvousInfo(distributed.HashStore(), 0, 1, nowhere)  # type: ignore[attr-defined]

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return "training"

    def shutdown(self) -> bool:
        return True


def main(folder: str, processes: int, worker: str) -> None:
    """Until they end: by themselves, or because one of them does. worker: the module that each runs."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # one line of ours tells it
    spec = WorkerSpec(
        role="training",
        local_world_size=processes,
        rdzv_handler=OneMachine(),
        entrypoint=sys.executable,
        args=("-m", worker, folder),
        max_restarts=0,
        monitor_interval=0.1,
    )
    result = LocalElasticAgent(spec, logs_specs=DefaultLogsSpecs(log_dir=folder)).run()
    codes = {rank: failure.exitcode for rank, failure in result.failures.items()}
    rank = min(codes, key=lambda each: (_blame(codes[each]), each), default=None)
    if rank is not None:
        with suppress(FileNotFoundError):  # the agent is gone, and its folder with it
            write_atomic(Path(folder, ENDED), json.dumps({"rank": rank, "exit_code": codes[rank]}).encode())


def _blame(exit_code: int) -> int:
    """Which of several is the cause: one that was killed, then one that failed. A process that lost another
    fails too, and the rest are ended by the elastic agent."""
    if exit_code == -signal.SIGTERM:
        return 2
    return 0 if exit_code < 0 else 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
