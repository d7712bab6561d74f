"""kill -9 of a silo and of the coordinator in a job whose silos share their noise, one sum a step.

No input is in two revealed sums, a step whose sum is lost is a new step with an input of its own, and what is
computed again is charged again. Source: docs/privacy-proofs.md "A step in the sum".
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from chorale.spec.state import GlobalState
from silo_agent.disclosure.ledger.ledger import Ledger
from strategies.server_optimizer import STEPS
from tests.faults.conftest import MakeFederation
from tests.faults.test_silo_killed import INPUT_READY, VICTIM
from tests.support.federation import LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_attempts, check_logs, check_statements, read_history

NOISE_MULTIPLIER, BATCH = 4.0, 2_000
JOB = {
    "steps": 3,
    "spare_steps": 2,
    "enrollment_every": 100,
    "training": {"learning_rate": 1.0, "momentum": 0.0, "batch_size": BATCH},
    "privacy": {
        "records": {
            "clip_norm": 1.0,
            "noise_multiplier": NOISE_MULTIPLIER,
            "sample_rate": 0.1,
            "noise": "sum",
        },
        "statistics_noise_multiplier": 20.0,
    },
}
# nine deviations of the noise of three silos in three steps, each silo with half of the variance
VOTE_ERROR = 9 * math.sqrt(3 * 3 / 2) * NOISE_MULTIPLIER / (3 * BATCH)


def rows_of(federation: LocalFederation, name: str, query: str) -> list[tuple[object, ...]]:
    ledger = Ledger(federation.folder / name / "ledger.sqlite")
    with closing(ledger), ledger._database.transaction() as connection:
        return [tuple(row) for row in connection.execute(query)]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("max_attempts", "attempts", "rounds", "spent"),
    [
        # the victim computes round 1 again, for its second attempt, and pays for both inputs
        pytest.param(2, 2, [1, 2, 3], {(1, "spent"): 2, (2, "spent"): 1, (3, "spent"): 1}, id="recomputed"),
        # round 1 is used up: a spare step takes its place, with an input of its own
        pytest.param(1, 1, [2, 3, 4], {(each, "spent"): 1 for each in (1, 2, 3, 4)}, id="new step"),
    ],
)
def test_a_lost_step_is_paid_for_and_no_input_is_revealed_twice(
    make_federation: MakeFederation,
    max_attempts: int,
    attempts: int,
    rounds: list[int],
    spent: dict[tuple[int, str], int],
) -> None:
    """Three silos, all of which a sum needs. The victim dies once its first input is paid for, the
    coordinator while it takes the masks off round 3."""
    federation = make_federation(silos=3, policy={"privacy": {"shared_noise": "allow"}})
    federation.start_coordinator(halt=Halt(at={"event": "stage", "state": "unmask", "round": 3}))
    halt = Halt(at=INPUT_READY, call="silo_agent.disclosure.ledger.budget:Charge.spend")
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == VICTIM else None)
    job_id = federation.submit(values=3, max_attempts=max_attempts, **JOB)
    victim = federation.services[VICTIM]
    victim.wait_halted()
    victim.kill()
    federation.start_silo(VICTIM)
    federation.hub.wait_halted()
    federation.hub.kill()
    federation.start_coordinator()

    assert federation.finish()["status"] == "done", federation.hub.tail()
    history = read_history(federation)
    assert history.record(1).attempts == attempts
    assert history.cohorts() == [federation.names] * 3
    revealed = "SELECT round FROM reveals WHERE phase = 'train' ORDER BY round"
    assert rows_of(federation, VICTIM, revealed) == [(each,) for each in rounds]
    charged = "SELECT round, status FROM releases WHERE phase = 'train'"
    assert Counter(rows_of(federation, VICTIM, charged)) == spent
    check_votes(federation.fetch(job_id))
    check_statements(federation, history)
    check_attempts(federation)
    check_logs(federation)


def check_votes(state: GlobalState) -> None:
    """Each silo's input is in as many sums as there were steps, and in no more."""
    assert state[STEPS] == 3
    np.testing.assert_allclose(state["model/votes"], np.ones(3), atol=VOTE_ERROR, rtol=0)


@pytest.mark.gate
def test_a_silo_that_is_lost_between_steps_uses_up_no_change_of_the_cohort(
    make_federation: MakeFederation,
) -> None:
    """Noise covers what the sums before and after differ by. The same loss in a job without noise is refused:
    tests/unit/silo_agent/test_ledger.py, test_sums_that_epsilon_covers_count_nowhere."""
    federation = make_federation(
        coordinator={"reconnect_grace_seconds": 1.0},
        policy={
            "privacy": {"shared_noise": "allow"},
            "max_cohort_changes": 0,
        },
    )
    federation.start_coordinator()
    halt = Halt(at={"event": "input ready", "round": 2, "phase": "train"})
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == VICTIM else None)
    federation.submit(**JOB)
    victim = federation.services[VICTIM]
    victim.wait_halted()
    victim.kill()

    assert federation.finish()["status"] == "done", federation.hub.tail()
    others = [name for name in federation.names if name != VICTIM]
    assert read_history(federation).cohorts() == [federation.names, others, others]
    check_logs(federation)
