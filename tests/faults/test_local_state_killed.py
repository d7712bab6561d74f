"""kill -9 of a silo around everything that its local state's way to the next round is made of.

Source: docs/protocol.md 7.8.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from chorale.runtime.files import read_limited
from tests.faults.conftest import MakeFederation
from tests.support import one_hot
from tests.support.federation import LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_finished
from tests.support.processes import wait_until

VICTIM = "silo-1"
INPUT_READY = {"event": "input ready", "round": 1, "phase": "train"}
STORE, REVEALS = (
    "silo_agent.local_storage.local_state:LocalStates",
    "silo_agent.disclosure.ledger.reveals:Reveals",
)
# where it is killed, and how often it computes its first input
POINTS: dict[str, tuple[str, Literal["before", "after"], int]] = {
    "input computed, next state not written": (f"{STORE}.hold", "before", 2),
    "next state written, input not sent": (f"{STORE}.hold", "after", 2),
    "share sent, next state not computed": (f"{REVEALS}.mark_revealed", "after", 1),
    "next state computed, local state not taken over": (f"{STORE}.settle", "before", 1),
    "local state taken over, outcome not recorded": (f"{STORE}.settle", "after", 1),
}


# the two that differ in kind run every time
ALWAYS = ("next state written, input not sent", "share sent, next state not computed")
RUNS = [
    pytest.param(*point, id=name, marks=() if name in ALWAYS else pytest.mark.soak)
    for name, point in POINTS.items()
]


@pytest.mark.parametrize("call, when, trainings", RUNS)
def test_next_round_starts_from_the_state_that_the_applied_round_left(
    make_federation: MakeFederation,
    tmp_path: Path,
    call: str,
    when: Literal["before", "after"],
    trainings: int,
) -> None:
    """Of three silos all are needed, so no round continues without the one that was killed."""
    federation = counting(make_federation, tmp_path)
    job_id = run_killed(federation, Halt(at=INPUT_READY, call=call, when=when))

    check_finished(federation, job_id)

    for name in federation.names:
        first = trainings if name == VICTIM else 1
        assert started_from(federation, name) == [(1, 0)] * first + [(2, 1)]
        local = federation.folder / name / "local"
        wait_until(lambda local=local: not [*local.glob("*safetensors")], "the end of the job's local state")


def counting(make_federation: MakeFederation, folder: Path) -> LocalFederation:
    return make_federation(
        silos=3,
        silo={"objective": "tests.support.one_hot:counting_objective"},
        env={one_hot.RECORD: str(folder)},
    )


def run_killed(federation: LocalFederation, halt: Halt) -> str:
    """Until the victim halts; then it is killed and started again."""
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == VICTIM else None)
    job_id = federation.submit(values=federation.silos)
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()
    federation.start_silo(VICTIM)
    return job_id


def started_from(federation: LocalFederation, name: str) -> list[tuple[int, int]]:
    """Round and kept count of every training of a silo, over all its lives."""
    lines = read_limited(federation.folder / f"{name}.kept", 1 << 16).decode().splitlines()
    return [(int(round), int(kept)) for round, kept in map(str.split, lines)]
