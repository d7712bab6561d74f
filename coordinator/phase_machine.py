"""The states of one phase at the coordinator, and the one table that moves between them.

waiting -> advertise -> share -> masked -> consistency -> unmask -> revealed -> applied

`revealed` lies between the last two: the sum is known and durable, its effect is not yet
written. A phase ends in `applied` or `used-up`. No I/O and no clock. Source: docs/protocol.md 7.
"""

from __future__ import annotations

from enum import StrEnum

from crypto.errors import LocalProtocolError


class PhaseState(StrEnum):
    WAITING = "waiting"
    ADVERTISE = "advertise"
    SHARE = "share"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    REVEALED = "revealed"
    APPLIED = "applied"
    USED_UP = "used-up"


class PhaseEvent(StrEnum):
    ENOUGH_ADVERTS = "enough-adverts"
    COHORT_FIXED = "cohort-fixed"
    SHARES_CLOSED = "shares-closed"
    UPLOADS_CLOSED = "uploads-closed"
    SUM_STORED = "sum-stored"
    SUM_REVEALED = "sum-revealed"
    SUM_APPLIED = "sum-applied"
    ATTEMPT_FAILED = "attempt-failed"
    GIVEN_UP = "given-up"


STAGES = (
    PhaseState.WAITING,
    PhaseState.ADVERTISE,
    PhaseState.SHARE,
    PhaseState.MASKED,
    PhaseState.CONSISTENCY,
    PhaseState.UNMASK,
)
GIVEN_UP_IN = (PhaseState.UNMASK, PhaseState.REVEALED)  # for silos whose inputs are there, and who are silent
ENDED = frozenset({PhaseState.APPLIED, PhaseState.USED_UP})

# From UNMASK on no attempt may follow: a share may have left a silo, so the sum is taken from
# this session or never (docs/protocol.md 6).
RETRYABLE = frozenset(STAGES) - {PhaseState.UNMASK}

TRANSITIONS: dict[tuple[PhaseState, PhaseEvent], PhaseState] = {
    (PhaseState.WAITING, PhaseEvent.ENOUGH_ADVERTS): PhaseState.ADVERTISE,
    (PhaseState.ADVERTISE, PhaseEvent.COHORT_FIXED): PhaseState.SHARE,
    (PhaseState.SHARE, PhaseEvent.SHARES_CLOSED): PhaseState.MASKED,
    (PhaseState.MASKED, PhaseEvent.UPLOADS_CLOSED): PhaseState.CONSISTENCY,
    (PhaseState.CONSISTENCY, PhaseEvent.SUM_STORED): PhaseState.UNMASK,
    (PhaseState.UNMASK, PhaseEvent.SUM_REVEALED): PhaseState.REVEALED,
    (PhaseState.REVEALED, PhaseEvent.SUM_APPLIED): PhaseState.APPLIED,
    (PhaseState.REVEALED, PhaseEvent.GIVEN_UP): PhaseState.USED_UP,
    (PhaseState.UNMASK, PhaseEvent.GIVEN_UP): PhaseState.USED_UP,
    **{(state, PhaseEvent.ATTEMPT_FAILED): PhaseState.WAITING for state in RETRYABLE},
    **{(state, PhaseEvent.GIVEN_UP): PhaseState.USED_UP for state in RETRYABLE},
}


class PhaseMachine:
    """Where one phase stands: its state and the number of its attempt, both only ever moving on."""

    def __init__(self, *, state: PhaseState = PhaseState.WAITING, attempt: int = 1) -> None:
        self.state = state
        self.attempt = attempt

    def advance(self, event: PhaseEvent) -> PhaseState:
        """Raises LocalProtocolError where the table has no such step."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise LocalProtocolError(
                f"phase machine: {event.value} does not happen in state {self.state.value}"
            )
        if event is PhaseEvent.ATTEMPT_FAILED:
            self.attempt += 1  # fresh keys under a fresh number: no mask is ever used twice
        self.state = following
        return following
