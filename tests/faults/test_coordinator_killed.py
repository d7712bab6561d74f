"""kill -9 of the coordinator in each state of the phase machine, and between two writes of it.

Guarantee G4: no sum that was completed is lost, none counts twice, no mask is used twice.
Source: docs/protocol.md 7 and 10.
"""

from __future__ import annotations

import pytest

from coordinator.phase_machine import PhaseState
from tests.faults.conftest import MakeFederation
from tests.support.federation import LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_finished, check_one_answer, read_history, sent
from tests.support.soak import cases

ROUND_ONE = {"round": 1, "phase": "train"}
EARLY = {
    state.value: state
    for state in (
        PhaseState.WAITING,
        PhaseState.ADVERTISE,
        PhaseState.SHARE,
        PhaseState.MASKED,
        PhaseState.CONSISTENCY,
    )
}
DURABLE = {state.value: state for state in (PhaseState.UNMASK, PhaseState.REVEALED, PhaseState.APPLIED)}


def in_state(state: PhaseState, **where: object) -> Halt:
    return Halt(at={"event": "stage", "state": state.value, **ROUND_ONE, **where})


def kill_coordinator(federation: LocalFederation, halt: Halt) -> str:
    """Run a job until the coordinator halts, kill it, start it again; the job's id."""
    federation.start_coordinator(halt=halt)
    for name in federation.names:
        federation.start_silo(name)
    job_id = federation.submit(values=federation.silos)
    federation.hub.wait_halted()
    federation.hub.kill()
    return job_id


@pytest.mark.parametrize("state", cases(EARLY, always=["masked", "consistency"]))
def test_round_goes_on_with_fresh_keys_when_coordinator_dies_before_the_sum_is_stored(
    make_federation: MakeFederation, state: PhaseState
) -> None:
    federation = make_federation()
    job_id = kill_coordinator(federation, in_state(state))
    assert read_history(federation).row(1).state is state
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 2
    assert history.cohorts() == [federation.names, federation.names]


@pytest.mark.parametrize("state", cases(DURABLE, always=["unmask", "revealed", "applied"]))
def test_stored_sum_counts_once_when_coordinator_dies_after_it(
    make_federation: MakeFederation, state: PhaseState
) -> None:
    federation = make_federation()
    job_id = kill_coordinator(federation, in_state(state))
    assert read_history(federation).row(1).state is state
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1, "the session that was stored is the one that is ended"
    assert history.cohorts() == [federation.names, federation.names]


BETWEEN = {
    "masked sum on disk, session not": ("Store.enter_unmask", PhaseState.CONSISTENCY, 2),
    "sum unmasked, not marked as revealed": ("Store.enter_revealed", PhaseState.UNMASK, 1),
    "enough statements here, none stored": ("Store.end_phase", PhaseState.REVEALED, 1),
}


@pytest.mark.parametrize(
    "method, stored, attempts",
    cases(BETWEEN, always=["masked sum on disk, session not", "enough statements here, none stored"]),
)
def test_sum_counts_once_when_coordinator_dies_between_two_writes(
    make_federation: MakeFederation, method: str, stored: PhaseState, attempts: int
) -> None:
    federation = make_federation()
    halt = Halt(at={"event": "stage", **ROUND_ONE}, call=f"coordinator.storage.store:{method}", when="before")
    job_id = kill_coordinator(federation, halt)
    assert read_history(federation).row(1).state is stored
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == attempts
    assert history.cohorts() == [federation.names, federation.names]


OUTSIDE_ROUNDS = {
    "enrollment": {"state": "masked", "round": 0, "phase": "enrollment.0"},
    "closing": {"state": "unmask", "round": 2, "phase": "evaluate.0"},
    "job not ended": {"state": "applied", "round": 2, "phase": "evaluate.0"},
}


@pytest.mark.parametrize("where", cases(OUTSIDE_ROUNDS, always=["closing"]))
def test_job_ends_when_coordinator_dies_outside_rounds(
    make_federation: MakeFederation, where: dict[str, object]
) -> None:
    federation = make_federation()
    job_id = kill_coordinator(federation, Halt(at={"event": "stage", **where}))
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.cohorts() == [federation.names, federation.names]


def test_no_attempt_comes_twice_when_coordinator_dies_again_and_again(
    make_federation: MakeFederation,
) -> None:
    federation = make_federation()
    job_id = kill_coordinator(federation, in_state(PhaseState.SHARE))
    for attempt, state in ((2, PhaseState.MASKED), (3, PhaseState.UNMASK)):
        federation.start_coordinator(halt=in_state(state, attempt=attempt))
        federation.hub.wait_halted()
        federation.hub.kill()
    federation.start_coordinator(halt=in_state(PhaseState.UNMASK))
    federation.hub.wait_halted()
    federation.hub.kill()
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 3


def test_round_is_used_up_when_coordinator_dies_in_its_last_attempt(make_federation: MakeFederation) -> None:
    federation = make_federation()
    federation.start_coordinator(halt=in_state(PhaseState.MASKED))
    for name in federation.names:
        federation.start_silo(name)
    job_id = federation.submit(max_attempts=1)
    federation.hub.wait_halted()
    federation.hub.kill()
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert (history.record(1).result, history.record(1).reason) == ("used-up", "restarted")
    assert history.cohorts() == [federation.names], "round 2 continued without round 1"


def test_silos_that_were_killed_too_answer_from_their_ledgers(make_federation: MakeFederation) -> None:
    """Every process is killed when all shares are at the coordinator and none of them is stored."""
    federation = make_federation(silos=3, records_sent=True)  # t = 3: the sum needs the shares of all
    unmasking = {"event": "stage", "state": "unmask", **ROUND_ONE}
    halt = Halt(at=unmasking, call="coordinator.jobs.phase_runner:unmask_stored", when="before")
    job_id = kill_coordinator(federation, halt)
    for name in federation.names:
        federation.services[name].kill()
    assert read_history(federation).row(1).state is PhaseState.UNMASK
    federation.start()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1
    assert history.cohorts() == [federation.names, federation.names]
    for name in federation.names:
        asked = [answer for answer in sent(federation, name, "unmask_shares") if answer["round"] == 1]
        assert len(asked) == 2, f"{name} was asked before it was killed and after"
    check_one_answer(federation)


def test_round_is_used_up_when_too_few_silos_are_left_to_unmask_it(make_federation: MakeFederation) -> None:
    federation = make_federation(silos=3, coordinator={"unmask_hard_cap_seconds": 2.0})
    job_id = kill_coordinator(federation, in_state(PhaseState.UNMASK))
    federation.services["silo-2"].kill()
    federation.start_coordinator()
    federation.hub.wait_for(lambda record: record["event"] == "phase ended" and record["round"] == 1)
    federation.start_silo("silo-2")

    history = check_finished(federation, job_id)

    assert (history.record(1).result, history.record(1).reason) == ("used-up", "unmask-hard-cap")
    assert history.cohorts() == [federation.names]
