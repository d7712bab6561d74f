"""kill -9 of a silo in each stage of a session, and around what its ledger writes.

Source: docs/protocol.md 5, 6 and 7.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.faults.conftest import MakeFederation
from tests.support import one_hot
from tests.support.federation import LocalFederation
from tests.support.halting import Halt
from tests.support.history import check_finished, check_logs, check_one_answer, read_history
from tests.support.soak import cases

VICTIM = "silo-1"
ROUND_ONE = {"round": 1, "phase": "train"}
INPUT_READY = {"event": "input ready", **ROUND_ONE}
UPLOADED = {"event": "masked vector sent", **ROUND_ONE}


def kill_and_restart(federation: LocalFederation, halt: Halt, **job: object) -> str:
    """Run a job until the victim halts, kill it, start it again; the job's id."""
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == VICTIM else None)
    job_id = federation.submit(values=federation.silos, **job)
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()
    federation.start_silo(VICTIM)
    return job_id


def test_silo_trains_again_when_killed_while_training(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    federation = make_federation()
    gate = tmp_path / "gate"
    gate.touch()
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, env={one_hot.GATE: str(gate)} if name == VICTIM else {})
    job_id = federation.submit()
    # the others have adverted, so the victim is in training and nothing else is waited for
    federation.hub.wait_for(lambda record: record.get("state") == "advertise" and record["round"] == 1)
    federation.services[VICTIM].kill()
    federation.start_silo(VICTIM)

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1
    assert history.cohorts() == [federation.names, federation.names]


BEFORE_THE_VECTOR = {
    "after its advert": (Halt(at=INPUT_READY, sent="advert"), "share"),
    "after its shares": (Halt(at=INPUT_READY, sent="shares"), "masked"),
}


@pytest.mark.parametrize("halt, stage", cases(BEFORE_THE_VECTOR, always=["after its shares"]))
def test_round_completes_without_silo_killed_before_its_vector_left(
    make_federation: MakeFederation, halt: Halt, stage: str
) -> None:
    """A 1 for the victim would be a phantom."""
    federation = make_federation()
    job_id = kill_and_restart(federation, halt)

    history = check_finished(federation, job_id)

    others = [name for name in federation.names if name != VICTIM]
    assert history.cohorts() == [others, federation.names]
    assert [(left.silo, left.stage) for left in history.record(1).left_out] == [(VICTIM, stage)]


AFTER_THE_VECTOR = {
    "after its upload": Halt(at=UPLOADED),
    "after its signature": Halt(at=INPUT_READY, sent="consistency"),
    "after its share": Halt(at=INPUT_READY, sent="unmask_shares"),
}


@pytest.mark.parametrize("halt", cases(AFTER_THE_VECTOR, always=["after its upload", "after its share"]))
def test_sum_holds_silo_killed_after_its_vector_left(make_federation: MakeFederation, halt: Halt) -> None:
    federation = make_federation()
    job_id = kill_and_restart(federation, halt)

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 1
    assert history.cohorts() == [federation.names, federation.names]


LEDGER = {
    "answer not written": ("write_pending", "before", 2),
    "answer written, signature not sent": ("write_pending", "after", 2),
    "signature sent, answer not marked": ("mark_revealed", "before", 1),
    "answer marked, share not sent": ("mark_revealed", "after", 1),
}


@pytest.mark.parametrize(
    "method, when, attempts",
    cases(LEDGER, always=["answer written, signature not sent", "signature sent, answer not marked"]),
)
def test_silo_killed_around_a_ledger_write_never_gives_two_answers(
    make_federation: MakeFederation, method: str, when: Literal["before", "after"], attempts: int
) -> None:
    """Of three silos all must answer, so the round shows what the restarted one says."""
    federation = make_federation(silos=3, records_sent=True)
    halt = Halt(at=INPUT_READY, call=f"silo_agent.disclosure.ledger.reveals:Reveals.{method}", when=when)
    job_id = kill_and_restart(federation, halt)

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == attempts
    assert history.cohorts() == [federation.names, federation.names]
    check_one_answer(federation)


def test_round_goes_on_without_silo_that_never_returns(make_federation: MakeFederation) -> None:
    federation = make_federation(coordinator={"reconnect_grace_seconds": 1.0})
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=Halt(at=INPUT_READY, sent="shares") if name == VICTIM else None)
    federation.wait_connected()  # else one second of grace leaves a slow starter out of the enrollment
    job_id = federation.submit()
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()

    history = check_finished(federation, job_id)

    others = [name for name in federation.names if name != VICTIM]
    assert history.cohorts() == [others, others]
    lost = [[(left.silo, left.stage, left.reason) for left in history.record(r).left_out] for r in (1, 2)]
    assert lost == [[(VICTIM, "masked", "disconnected")], [(VICTIM, "waiting", "disconnected")]]


def test_job_waits_for_a_silo_without_which_it_cannot_go_on(make_federation: MakeFederation) -> None:
    """No attempt is used while fewer silos are there than the sum needs."""
    federation = make_federation(silos=3, coordinator={"reconnect_grace_seconds": 0.5})
    halt = Halt(at=INPUT_READY, sent="shares")
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=halt if name == VICTIM else None)
    federation.wait_connected()
    job_id = federation.submit(values=3)
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()
    federation.hub.wait_for(lambda record: record.get("state") == "waiting" and record["attempt"] == 2)
    federation.start_silo(VICTIM)

    history = check_finished(federation, job_id)

    assert history.record(1).attempts == 2
    assert history.cohorts() == [federation.names, federation.names]


def test_nothing_is_revealed_when_too_few_silos_are_left_for_good(make_federation: MakeFederation) -> None:
    federation = make_federation(silos=3, coordinator={"reconnect_grace_seconds": 0.5})
    federation.start_coordinator()
    for name in federation.names:
        federation.start_silo(name, halt=Halt(at=INPUT_READY, sent="advert") if name == VICTIM else None)
    federation.wait_connected()
    federation.submit(
        values=3, rounds=1, max_attempts=2, train_deadline_seconds=2.0, train_hard_cap_seconds=2.0
    )
    federation.services[VICTIM].wait_halted()
    federation.services[VICTIM].kill()

    ended = federation.finish()

    assert ended["status"] == "failed"
    assert "evaluate" in ended["reason"]
    history = read_history(federation)
    assert (history.record(1).result, history.record(1).reason) == ("used-up", "train-hard-cap")
    assert VICTIM in [left.silo for left in history.record(1).left_out]
    revealed = [row.phase for row in history.phases if row.record is not None and row.record.cohort]
    assert revealed == ["enrollment.0"]
    check_logs(federation)
