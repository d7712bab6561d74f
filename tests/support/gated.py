"""An objective that waits for its test: what it says, and what it waits for, goes through two named pipes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from crypto.errors import PolicyRefusal
from silo_agent.training.objective import Cancelled, Work
from strategies.base import Array

FOLDER = "TEST_GATE"  # the environment's name for where the pipes are
BEGUN, GATE = "begun", "gate"


def gate(folder: Path) -> None:
    """Make the pipes."""
    for name in (BEGUN, GATE):
        os.mkfifo(folder / name)


class Gated:
    def compute(self, work: Work) -> Mapping[str, Array]:
        """Says which process it is, then waits for a word: `go`, `refuse`, `break`, `end` of the process, or
        `until cancelled`."""
        folder = Path(os.environ[FOLDER])
        (folder / BEGUN).write_text(str(os.getpid()))
        word = (folder / GATE).read_text()
        if word == "refuse":
            raise PolicyRefusal("not this")
        if word == "break":
            raise ZeroDivisionError("of a record")
        if word == "end":
            os._exit(9)
        while word == "until cancelled":
            if work.is_cancelled():
                raise Cancelled("no longer wanted")
        return {"delta": np.full(work.context.trained_values, 0.25, np.float32), "weight": np.float64(0.25)}


def gated_too() -> Gated:
    """One that waits as it is loaded."""
    folder = Path(os.environ[FOLDER])
    (folder / BEGUN).write_text(str(os.getpid()))
    (folder / GATE).read_text()
    return Gated()


def exiting() -> Gated:
    """One that is a script."""
    raise SystemExit("not a module")


def ending(pipe: Connection, settings: object) -> None:
    """In place of the process's life: its pipe is closed long before it ends."""
    pipe.close()
    time.sleep(1.0)
    os._exit(9)
