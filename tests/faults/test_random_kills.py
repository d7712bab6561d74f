"""kill -9 of any process at any moment: what no list of states has foreseen."""

from __future__ import annotations

import random

import pytest

from tests.faults.conftest import MakeFederation
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.history import check_finished, check_one_answer
from tests.support.processes import wait_until

ROUNDS = 8
KILLS = 10
MAX_LINES_BETWEEN = 25  # of the coordinator's log; a round has about as many
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 21))]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_sum_counts_once_after_kills_of_any_process_at_any_moment(
    make_federation: MakeFederation, seed: int
) -> None:
    federation = make_federation(silos=5, records_sent=True)
    federation.start()
    job_id = federation.submit(values=5, rounds=ROUNDS)
    chance = random.Random(seed)
    for _ in range(KILLS):
        wait_for_lines(federation, chance.randint(1, MAX_LINES_BETWEEN))
        victim = chance.choice([COORDINATOR, *federation.names])
        federation.services[victim].kill()
        if victim == COORDINATOR:
            federation.start_coordinator()
        else:
            federation.start_silo(victim)

    check_finished(federation, job_id, rounds=ROUNDS)
    check_one_answer(federation)


def wait_for_lines(federation: LocalFederation, count: int) -> None:
    """Until the coordinator has logged so many more lines, or the job has ended."""
    last = len(federation.hub.records())

    def has_come() -> bool:
        lines = federation.hub.records()
        return len(lines) >= last + count or any(line["event"] == "job ended" for line in lines)

    wait_until(has_come, f"{count} lines of the coordinator", detail=federation.hub.tail)
