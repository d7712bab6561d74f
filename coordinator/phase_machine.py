"""The states of one phase at the coordinator, and the one table that moves between them.

waiting -> advertise -> share -> masked -> consistency -> unmask -> revealed -> applied

`revealed` lies between the last two: the sum is known and durable, its effect is not yet
written. A phase ends in `applied` or `used-up`. No I/O and no clock. Source: docs/protocol.md 7.
"""

from __future__ import annotations

from enum import StrEnum

from crypto.errors import LocalProtocolError


class RoundState(StrEnum):
    WAITING = "waiting"
    ADVERTISE = "advertise"
    SHARE = "share"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    REVEALED = "revealed"
    APPLIED = "applied"
    USED_UP = "used-up"


class RoundEvent(StrEnum):
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
    RoundState.WAITING,
    RoundState.ADVERTISE,
    RoundState.SHARE,
    RoundState.MASKED,
    RoundState.CONSISTENCY,
    RoundState.UNMASK,
)
ENDED = frozenset({RoundState.APPLIED, RoundState.USED_UP})

# From UNMASK on no attempt may follow: a share may have left a silo, so the sum is taken from
# this session or never (docs/protocol.md 6).
RETRYABLE = frozenset(STAGES) - {RoundState.UNMASK}

TRANSITIONS: dict[tuple[RoundState, RoundEvent], RoundState] = {
    (RoundState.WAITING, RoundEvent.ENOUGH_ADVERTS): RoundState.ADVERTISE,
    (RoundState.ADVERTISE, RoundEvent.COHORT_FIXED): RoundState.SHARE,
    (RoundState.SHARE, RoundEvent.SHARES_CLOSED): RoundState.MASKED,
    (RoundState.MASKED, RoundEvent.UPLOADS_CLOSED): RoundState.CONSISTENCY,
    (RoundState.CONSISTENCY, RoundEvent.SUM_STORED): RoundState.UNMASK,
    (RoundState.UNMASK, RoundEvent.SUM_REVEALED): RoundState.REVEALED,
    (RoundState.REVEALED, RoundEvent.SUM_APPLIED): RoundState.APPLIED,
    (RoundState.REVEALED, RoundEvent.GIVEN_UP): RoundState.USED_UP,
    (RoundState.UNMASK, RoundEvent.GIVEN_UP): RoundState.USED_UP,
    **{(state, RoundEvent.ATTEMPT_FAILED): RoundState.WAITING for state in RETRYABLE},
    **{(state, RoundEvent.GIVEN_UP): RoundState.USED_UP for state in RETRYABLE},
}


class RoundMachine:
    """Where one phase stands: its state and the number of its attempt, both only ever moving on."""

    def __init__(self, *, state: RoundState = RoundState.WAITING, attempt: int = 1) -> None:
        self.state = state
        self.attempt = attempt

    def advance(self, event: RoundEvent) -> RoundState:
        """Raises LocalProtocolError where the table has no such step."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise LocalProtocolError(
                f"round machine: {event.value} does not happen in state {self.state.value}"
            )
        if event is RoundEvent.ATTEMPT_FAILED:
            self.attempt += 1  # fresh keys under a fresh number: no mask is ever used twice
        self.state = following
        return following

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED

    @property
    def can_retry(self) -> bool:
        return self.state in RETRYABLE
