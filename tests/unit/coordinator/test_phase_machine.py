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


@pytest.mark.parametrize("state", [PhaseState.UNMASK, PhaseState.REVEALED])
def test_no_attempt_follows_once_shares_may_have_left(state):
    machine = PhaseMachine(state=state)
    assert state not in RETRYABLE
    with pytest.raises(LocalProtocolError, match="attempt-failed does not happen in state"):
        machine.advance(PhaseEvent.ATTEMPT_FAILED)


@pytest.mark.parametrize("state", [state for state in PhaseState if state not in ENDED])
def test_phase_can_be_given_up_in_every_state_that_is_not_its_end(state):
    machine = PhaseMachine(state=state)
    assert machine.advance(PhaseEvent.GIVEN_UP) is PhaseState.USED_UP


@pytest.mark.parametrize("state, event", list(itertools.product(PhaseState, PhaseEvent)))
def test_whatever_the_table_does_not_hold_is_refused(state, event):
    machine = PhaseMachine(state=state)
    if (state, event) in TRANSITIONS:
        assert machine.advance(event) is TRANSITIONS[state, event]
        return
    with pytest.raises(LocalProtocolError, match=f"{event.value} does not happen in state {state.value}"):
        machine.advance(event)
    assert machine.state is state


def test_nothing_leads_out_of_an_end():
    assert not [state for state, _ in TRANSITIONS if state in ENDED]
