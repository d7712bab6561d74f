"""`python -m tests.support.schedules.agents <settings.yaml>...`: silos' agents in one process, each recorded.

Before a byte of an input leaves, all of its words are written down, and so is each session message that
leaves. Everything else is the product.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from chorale.observability import logs
from chorale.runtime.background_io import keep_chunks
from chorale.transport import tls
from chorale.transport.wire import PhaseKey
from crypto.errors import ChoraleError
from silo_agent.agent import run_agent
from silo_agent.rounds.inputs.input_cache import Prepared
from silo_agent.rounds.phase_sessions import PhaseSessions
from silo_agent.settings import load_silo_settings
from tests.support.halting import SESSION_KINDS, write_down

RECORDS = "TEST_RECORDS"  # folder for what is written down
INPUT_ID = "input_id"

silo_name: ContextVar[str] = ContextVar("silo_name", default="")


def input_path(folder: Path, silo: str, round: int, phase: str, attempt: int) -> Path:
    return folder / f"{silo}-{round}-{phase}-{attempt}.npz"


def sent_path(folder: Path, silo: str) -> Path:
    return folder / f"{silo}.sent"


class _Loop(asyncio.SelectorEventLoop):
    """Every agent hears a signal; asyncio by itself has one handler for each."""

    def __init__(self) -> None:
        super().__init__()
        self._signal_callbacks: defaultdict[int, list[Callable[[], object]]] = defaultdict(list)

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._signal_callbacks[sig].append(callback)
        super().add_signal_handler(sig, lambda: [each() for each in self._signal_callbacks[sig]])


def main(files: list[str]) -> int:
    """The exit code, which is that of `chorale silo run` where any of the agents ends by itself."""
    code = 0
    record(Path(os.environ[RECORDS]))
    logs.configure()
    for handler in logging.getLogger(logs.ROOT).handlers:
        handler.addFilter(_name_silo)
    keep_chunks()
    try:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(_serve(files))
    except* ChoraleError as group:
        for error in group.exceptions:
            sys.stderr.write(f"chorale: error: {error}\n")
        code = 2
    return code


async def _serve(files: list[str]) -> None:
    async with asyncio.TaskGroup() as agents:
        for file in files:
            agents.create_task(_run(Path(file)))


async def _run(file: Path) -> None:
    settings = load_silo_settings(file)
    silo_name.set(settings.name)
    await run_agent(settings)


def _name_silo(record: logging.LogRecord) -> bool:
    fields = getattr(record, "fields", {})
    record.fields = {"silo": silo_name.get()} | fields
    return True


def record(folder: Path) -> None:
    """From now on, inputs and session messages of this process are written down in the folder."""
    from silo_agent.connection.control_stream import Outbox

    upload: Callable[..., Any] = PhaseSessions._upload
    following: Callable[..., Any] = Outbox.next

    async def recorded_upload(self: Any, running: Any, *arguments: Any) -> None:
        if running.prepared is not None:
            await asyncio.to_thread(_write_input, folder, silo_name.get(), running.key, running.prepared)
        await upload(self, running, *arguments)

    async def recorded_next(self: Outbox) -> Any:
        message = await following(self)
        if (kind := message.WhichOneof("kind")) in SESSION_KINDS:
            write_down(sent_path(folder, silo_name.get()), message, kind)
        return message

    sessions: Any = PhaseSessions
    sessions._upload = recorded_upload
    outbox: Any = Outbox
    outbox.next = recorded_next


def _write_input(folder: Path, silo: str, key: PhaseKey, prepared: Prepared) -> None:
    vectors = prepared.encoder.encode().vectors
    named: dict[str, Any] = {str(ring_bits): vector_L for ring_bits, vector_L in vectors.items()}
    named[INPUT_ID] = np.frombuffer(prepared.charge._input_id, np.uint8)
    np.savez(input_path(folder, silo, key.round, key.phase, key.attempt), **named)


if __name__ == "__main__":
    tls.restrict_to_tls13()
    sys.exit(main(sys.argv[1:]))
