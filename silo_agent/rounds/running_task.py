"""One attempt at a phase while it runs at this silo."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from chorale.transport.wire import PhaseKey
from chorale.v1 import federation_pb2 as pb
from silo_agent.rounds.input_cache import Prepared
from silo_agent.rounds.session_handler import SessionHandler


@dataclass(slots=True, kw_only=True)
class RunningTask:
    """One attempt from its task to its end. session is None until its input is ready. prepared is None where
    none is needed: from the share on, and in a session that was taken up from the ledger."""

    key: PhaseKey
    task: pb.PhaseTask
    preparation: asyncio.Task[None] | None = None
    prepared: Prepared | None = None
    own_steps: Mapping[str, float] = field(default_factory=dict)
    session: SessionHandler | None = None
    upload: asyncio.Task[None] | None = None

    @property
    def is_preparing(self) -> bool:
        return self.preparation is not None and not self.preparation.done()

    def end(self) -> None:
        for running in (self.preparation, self.upload):
            if running is not None:
                running.cancel()
        if self.session is not None:
            self.session.end()
        self.prepared = None
