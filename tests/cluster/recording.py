"""What the silos' pods run beside the product: named by `settings.objective`, imported as the agent starts.

Inputs and session messages are written down in the state's volume, where training and answers wait as long as
the test has put a file there. A one-hot job gets one-hot inputs, any other the built-in training.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from silo_agent.connection.control_stream import Outbox
from silo_agent.training.objective import Objective, Work
from strategies.base import Array
from tests.support import one_hot
from tests.support.schedules import agents

STATE = Path("/var/lib/chorale")
RECORDS, GATE, HOLD = "records", "gate", "hold"  # in it
POD = "-chorale-silo-0"  # what follows the silo's name in that of its pod
POLL_SECONDS = 0.05


def objective() -> Objective:
    return Chosen()


class Chosen:
    """By the job's model."""

    def compute(self, work: Work) -> Mapping[str, Array]:
        if work.spec.model.name == "custom":
            return one_hot.OneHot().compute(work)
        from silo_agent.training.torch_objective import TorchObjective

        return TorchObjective(device="cpu", threads=1).compute(work)


def _install() -> None:
    (STATE / RECORDS).mkdir(exist_ok=True)
    os.environ[one_hot.GATE] = str(STATE / GATE)
    agents.silo_name.set(os.environ["HOSTNAME"].removesuffix(POD))
    agents.record(STATE / RECORDS)
    send = Outbox.send
    waiting: dict[bytes, asyncio.Task[None]] = {}

    async def later(self: Outbox, message: Any) -> None:
        while (STATE / HOLD).exists():
            await asyncio.sleep(POLL_SECONDS)  # the file is the test's: there is nothing to wait on
        send(self, message)

    def held(self: Outbox, message: Any) -> None:
        """Heartbeats and all else go on; an answer that is asked for again takes the place of the first."""
        if message.WhichOneof("kind") != "unmask_shares" or not (STATE / HOLD).exists():
            send(self, message)
            return
        key = message.unmask_shares.key.SerializeToString(deterministic=True)
        if key in waiting:
            waiting[key].cancel()
        waiting[key] = asyncio.get_running_loop().create_task(later(self, message))

    outbox: Any = Outbox
    outbox.send = held


if "HOSTNAME" in os.environ and os.environ["HOSTNAME"].endswith(POD):
    _install()
