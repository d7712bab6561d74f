"""The table of a phase's states."""

from __future__ import annotations

import itertools

import pytest

from coordinator.phase_machine import ENDED, RETRYABLE, TRANSITIONS, PhaseEvent, PhaseMachine, PhaseState
from crypto.errors import LocalProtocolError

HAPPY = [
    (PhaseEvent.ENOUGH_ADVERTS, PhaseState.ADVERTISE),
    (PhaseEvent.COHORT_FIXED, PhaseState.SHARE),
    (PhaseEvent.SHARES_CLOSED, PhaseState.MASKED),
    (PhaseEvent.UPLOADS_CLOSED, PhaseState.CONSISTENCY),
    (PhaseEvent.SUM_STORED, PhaseState.UNMASK),
    (PhaseEvent.SUM_REVEALED, PhaseState.REVEALED),
    (PhaseEvent.SUM_APPLIED, PhaseState.APPLIED),
]
BEFORE_UNMASK = ["waiting", "advertise", "share", "masked", "consistency"]


def test_phase_goes_through_every_state_in_order():
    machine = PhaseMachine()
    for event, state in HAPPY:
        assert machine.advance(event) is state
    assert machine.state in ENDED
    assert machine.attempt == 1


@pytest.mark.parametrize("state", BEFORE_UNMASK)
def test_failed_attempt_starts_over_under_the_next_number(state):
    machine = PhaseMachine(state=PhaseState(state), attempt=3)
    machine.advance(PhaseEvent.ATTEMPT_FAILED)
    assert (machine.state, machine.attempt) == (PhaseState.WAITING, 4)


def test_whatever_the_table_does_not_hold_is_refused():
    for state, event in itertools.product(PhaseState, PhaseEvent):
        machine = PhaseMachine(state=state)
        if (state, event) in TRANSITIONS:
            assert machine.advance(event) is TRANSITIONS[state, event], (state, event)
            continue
        with pytest.raises(LocalProtocolError, match=f"{event} does not happen in state {state}"):
            machine.advance(event)
        assert machine.state is state


def test_phase_is_given_up_in_every_state_but_its_end_and_retried_before_shares_may_have_left():
    given_up = {state for state, event in TRANSITIONS if event is PhaseEvent.GIVEN_UP}
    assert given_up == {*PhaseState} - {*ENDED}
    assert {TRANSITIONS[state, PhaseEvent.GIVEN_UP] for state in given_up} == {PhaseState.USED_UP}
    retried = {state for state, event in TRANSITIONS if event is PhaseEvent.ATTEMPT_FAILED}
    assert retried == {*RETRYABLE} == {PhaseState(state) for state in BEFORE_UNMASK}


def test_nothing_leads_out_of_an_end():
    assert not [state for state, _ in TRANSITIONS if state in ENDED]
