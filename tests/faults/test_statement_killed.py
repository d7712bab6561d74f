"""kill -9 between a revealed sum and the state that enough silos signed.

Of a silo while it checks, computes and signs; of the coordinator before and after it stores the statements.

Nothing is lost, and all end on the same state. Source: docs/protocol.md 5.10, 7.9.
"""

from __future__ import annotations

from typing import Literal

import pytest

from coordinator.phase_machine import PhaseState
from tests.faults.conftest import MakeFederation
from tests.support.federation import COORDINATOR, LocalFederation
from tests.support.halting import Halt
from tests.support.history import (
    check_finished,
    check_logs,
    check_one_answer,
    check_statements,
    read_history,
    sent,
    statements,
)
from tests.support.soak import cases

VICTIM = "silo-1"
ROUND_ONE = {"round": 1, "phase": "train"}
INPUT_READY = {"event": "input ready", **ROUND_ONE}
KNOWN, FILES = (
    "silo_agent.disclosure.ledger.known_states:KnownStates",
    "silo_agent.local_storage.state_files:StateFiles",
)
CHECK = "crypto.session.sum_check:SumCheck.check_sum"


def run_until_halted(federation: LocalFederation, halted: str, halt: Halt) -> str:
    """Start all, run a job until one of them halts, and kill that one; the job's id."""
    federation.start_coordinator(halt=halt if halted == COORDINATOR else None)
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == halted else None)
    job_id = federation.submit(values=federation.silos)
    federation.services[halted].wait_halted()
    federation.services[halted].kill()
    return job_id


AT_A_SILO: dict[str, Halt] = {
    "sum fetched, not checked": Halt(at=INPUT_READY, call=CHECK, when="before"),
    "sum checked, state not computed": Halt(at=INPUT_READY, call=CHECK, when="after"),
    "state written, not recorded": Halt(at=INPUT_READY, call=f"{FILES}.put", when="after"),
    "outcome not recorded": Halt(at=INPUT_READY, call=f"{KNOWN}.sign", when="before"),
    "outcome recorded, statement not sent": Halt(at=INPUT_READY, call=f"{KNOWN}.sign", when="after"),
    "statement sent": Halt(at=INPUT_READY, sent="next_state"),
}


@pytest.mark.parametrize(
    "halt",
    cases(
        AT_A_SILO,
        always=[
            "sum fetched, not checked",
            "state written, not recorded",
            "outcome recorded, statement not sent",
        ],
    ),
)
def test_silo_killed_before_its_statement_left_gives_the_same_one_afterwards(
    make_federation: MakeFederation, halt: Halt
) -> None:
    """Of three silos all must sign, so the round shows what the restarted one computes."""
    federation = make_federation(silos=3, records_sent=True)
    job_id = run_until_halted(federation, VICTIM, halt)
    if not halt.sent:  # else the coordinator may have it already
        assert read_history(federation).row(1).state is PhaseState.REVEALED
    federation.start_silo(VICTIM)

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1
    assert history.record(1).verified_by == 3
    assert history.cohorts() == [federation.names, federation.names]
    check_one_answer(federation)


def test_phase_ends_without_a_silo_that_died_while_it_checked_and_that_one_takes_the_proven_state(
    make_federation: MakeFederation,
) -> None:
    federation = make_federation(records_sent=True)
    job_id = run_until_halted(federation, VICTIM, AT_A_SILO["sum fetched, not checked"])
    federation.hub.wait_for(lambda record: record["event"] == "phase ended" and record["round"] == 1)
    federation.start_silo(VICTIM)

    history = check_finished(federation, job_id)

    assert history.record(1).verified_by == 3
    assert history.cohorts() == [federation.names, federation.names]
    assert (1, "train") not in statements(federation, VICTIM), "it had a part in the sum, and signed nothing"
    assert history.record(2).left_out == []


AT_THE_COORDINATOR: dict[str, tuple[str, Literal["before", "after"], PhaseState]] = {
    "next state written, no silo asked": (
        "coordinator.storage.checkpoints:Checkpoints.put", "after", PhaseState.REVEALED,
    ),
    "first statement came": (
        "coordinator.jobs.statements:Statements.on_message", "before", PhaseState.REVEALED,
    ),
    "enough statements stored, nobody told": (
        "coordinator.storage.store:Store.end_phase", "after", PhaseState.APPLIED,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "call, when, stored",
    cases(AT_THE_COORDINATOR, always=["first statement came", "enough statements stored, nobody told"]),
)
def test_coordinator_killed_while_it_collects_statements_ends_on_the_state_that_silos_signed(
    make_federation: MakeFederation, call: str, when: Literal["before", "after"], stored: PhaseState
) -> None:
    federation = make_federation(records_sent=True)
    halt = Halt(at={"event": "stage", **ROUND_ONE}, call=call, when=when)
    job_id = run_until_halted(federation, COORDINATOR, halt)
    assert read_history(federation).row(1).state is stored
    federation.start_coordinator()

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1
    assert history.cohorts() == [federation.names, federation.names]
    check_one_answer(federation)


def test_silos_that_were_killed_too_repeat_their_statements(make_federation: MakeFederation) -> None:
    """Every process is killed when all statements are at the coordinator and none is stored."""
    federation = make_federation(silos=3, records_sent=True)
    halt = Halt(
        at={"event": "stage", **ROUND_ONE}, call="coordinator.storage.store:Store.end_phase", when="before"
    )
    job_id = run_until_halted(federation, COORDINATOR, halt)
    for name in federation.names:
        federation.services[name].kill()
    before = {name: statements(federation, name)[1, "train"] for name in federation.names}
    federation.start()

    history = check_finished(federation, job_id)

    assert set(before.values()) == {history.record(1).state_digest}
    for name in federation.names:
        given = [each for each in sent(federation, name, "next_state") if each["round"] == 1]
        assert len(given) == 2, f"{name} was asked before it was killed and after"
    check_one_answer(federation)


def test_state_before_stands_when_too_few_silos_are_left_to_sign_the_next(
    make_federation: MakeFederation,
) -> None:
    """The two that signed do not go back, so three silos cannot go on: the job ends as failed, and the state
    that stands is the last one that all three signed."""
    federation = make_federation(
        silos=3, coordinator={"unmask_hard_cap_seconds": 2.0, "reconnect_grace_seconds": 0.5}
    )
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=AT_A_SILO["sum fetched, not checked"] if name == VICTIM else None)
    federation.submit(
        values=3, rounds=1, max_attempts=1, train_deadline_seconds=2.0, train_hard_cap_seconds=2.0
    )
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()
    federation.hub.wait_for(lambda record: record["event"] == "phase ended" and record["round"] == 1)
    federation.start_silo(VICTIM)

    ended = federation.finish()

    assert ended["status"] == "failed"
    history = read_history(federation)
    assert (history.record(1).result, history.record(1).reason) == ("used-up", "too-few-statements")
    assert history.job.state_digest == history.record(0, "enrollment.0").state_digest
    signed = {name for name in federation.names if (1, "train") in statements(federation, name)}
    assert signed == set(federation.names) - {VICTIM}
    check_statements(federation, history)
    check_logs(federation)
