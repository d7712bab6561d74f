"""States, events and the one transition table of the coordinator's side of a session.

Source: docs/protocol.md 5; the table stands there as it stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from crypto.errors import ProtocolError


class CoordinatorState(StrEnum):
    ADVERTISE = "advertise"
    SHARE = "share"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    RECOVER = "recover"
    DONE = "done"
    FAILED = "failed"


class Event(StrEnum):
    """A silo's message, or what the driver asks for when a stage is over."""

    ADVERT = "Advert"
    SHARES = "Shares"
    COMPLAINT = "Complaint"
    MASKED_VECTOR = "masked vector"
    CONSISTENCY = "Consistency"
    UNMASK_SHARES = "UnmaskShares"
    RECOVERED_SEEDS = "RecoveredSeeds"
    CLOSE = "close"
    ASK_RECOVERY = "ask recovery"


_S, _E = CoordinatorState, Event
TRANSITIONS: Mapping[tuple[CoordinatorState, Event], CoordinatorState] = {
    (_S.ADVERTISE, _E.ADVERT): _S.ADVERTISE,
    (_S.ADVERTISE, _E.CLOSE): _S.SHARE,
    (_S.SHARE, _E.SHARES): _S.SHARE,
    (_S.SHARE, _E.CLOSE): _S.MASKED,
    (_S.MASKED, _E.MASKED_VECTOR): _S.MASKED,
    (_S.MASKED, _E.COMPLAINT): _S.MASKED,
    (_S.MASKED, _E.CLOSE): _S.CONSISTENCY,
    (_S.CONSISTENCY, _E.CONSISTENCY): _S.CONSISTENCY,
    (_S.CONSISTENCY, _E.CLOSE): _S.UNMASK,
    (_S.UNMASK, _E.UNMASK_SHARES): _S.UNMASK,
    (_S.UNMASK, _E.CLOSE): _S.DONE,
    (_S.UNMASK, _E.ASK_RECOVERY): _S.RECOVER,
    (_S.RECOVER, _E.RECOVERED_SEEDS): _S.RECOVER,
    (_S.RECOVER, _E.CLOSE): _S.DONE,
}
AWAITED: Mapping[CoordinatorState, Event] = {
    _S.ADVERTISE: _E.ADVERT,
    _S.SHARE: _E.SHARES,
    _S.MASKED: _E.MASKED_VECTOR,
    _S.CONSISTENCY: _E.CONSISTENCY,
    _S.UNMASK: _E.UNMASK_SHARES,
    _S.RECOVER: _E.RECOVERED_SEEDS,
}


class AbortReason(StrEnum):
    """Why an attempt ended without a sum. Closed: docs/protocol.md 9."""

    TOO_FEW_SILOS = "too-few-silos"
    PROVEN_LIAR = "proven-liar"


class SessionAborted(ProtocolError):
    """The attempt is over; the next starts with fresh keys."""

    def __init__(self, message: str, *, reason: AbortReason) -> None:
        super().__init__(message)
        self.reason = reason
