"""The table of a phase's states."""

from __future__ import annotations

import itertools

import pytest

from coordinator.phase_machine import ENDED, TRANSITIONS, RoundEvent, RoundMachine, RoundState
from crypto.errors import LocalProtocolError

HAPPY = [
    (RoundEvent.ENOUGH_ADVERTS, RoundState.ADVERTISE),
    (RoundEvent.COHORT_FIXED, RoundState.SHARE),
    (RoundEvent.SHARES_CLOSED, RoundState.MASKED),
    (RoundEvent.UPLOADS_CLOSED, RoundState.CONSISTENCY),
    (RoundEvent.SUM_STORED, RoundState.UNMASK),
    (RoundEvent.SUM_REVEALED, RoundState.REVEALED),
    (RoundEvent.SUM_APPLIED, RoundState.APPLIED),
]
BEFORE_UNMASK = ["waiting", "advertise", "share", "masked", "consistency"]


def test_phase_goes_through_every_state_in_order():
    machine = RoundMachine()
    for event, state in HAPPY:
        assert machine.advance(event) is state
    assert machine.is_ended
    assert machine.attempt == 1


@pytest.mark.parametrize("state", BEFORE_UNMASK)
def test_failed_attempt_starts_over_under_the_next_number(state):
    machine = RoundMachine(state=RoundState(state), attempt=3)
    machine.advance(RoundEvent.ATTEMPT_FAILED)
    assert (machine.state, machine.attempt) == (RoundState.WAITING, 4)


@pytest.mark.parametrize("state", [RoundState.UNMASK, RoundState.REVEALED])
def test_no_attempt_follows_once_shares_may_have_left(state):
    machine = RoundMachine(state=state)
    assert not machine.can_retry
    with pytest.raises(LocalProtocolError, match="attempt-failed does not happen in state"):
        machine.advance(RoundEvent.ATTEMPT_FAILED)


@pytest.mark.parametrize("state", [state for state in RoundState if state not in ENDED])
def test_phase_can_be_given_up_in_every_state_that_is_not_its_end(state):
    machine = RoundMachine(state=state)
    assert machine.advance(RoundEvent.GIVEN_UP) is RoundState.USED_UP


@pytest.mark.parametrize("state, event", list(itertools.product(RoundState, RoundEvent)))
def test_whatever_the_table_does_not_hold_is_refused(state, event):
    machine = RoundMachine(state=state)
    if (state, event) in TRANSITIONS:
        assert machine.advance(event) is TRANSITIONS[state, event]
        return
    with pytest.raises(LocalProtocolError, match=f"{event.value} does not happen in state {state.value}"):
        machine.advance(event)
    assert machine.state is state


def test_nothing_leads_out_of_an_end():
    assert not [state for state, _ in TRANSITIONS if state in ENDED]
