"""One family of errors, and the closed list of codes in which a silo tells the coordinator no.

A message names scope, what, expected and got, in lower case, and never carries tensors, keys,
shares or sample counts. Source: docs/protocol.md 9.
"""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """All that a coordinator may learn of why a silo refused. Closed: no numbers, no free text."""

    JOB_INVALID = "job-invalid"
    JOB_NOT_APPROVED = "job-not-approved"
    POLICY = "policy"
    BUDGET = "budget"
    LEDGER = "ledger"
    DATA = "data"
    CODE = "code"
    ROSTER = "roster"
    NOT_NAMED = "not-named"
    NOT_ENROLLED = "not-enrolled"
    TERMS = "terms"
    STATE = "state"
    LATER_STATE = "later-state"
    COHORT_TOO_SMALL = "cohort-too-small"
    LEFT_OUT = "left-out"
    ADVERT = "advert"
    ENVELOPE = "envelope"
    SIGNATURES = "signatures"
    ALREADY_REVEALED = "already-revealed"
    OVERLAPPING_COHORT = "overlapping-cohort"
    SUM = "sum"
    STATE_USED_UP = "state-used-up"
    STAGE = "stage"
    MALFORMED = "malformed"
    INTERNAL = "internal"


class ChoraleError(Exception):
    """Whatever Chorale raises on purpose."""


class ConfigError(ChoraleError):
    """A file, option or certificate that a person gave is unusable."""


class QuantizationError(ChoraleError):
    """A value cannot enter the ring."""


class BudgetExhausted(ChoraleError):
    """The privacy budget does not cover what was asked."""


class PolicyRefusal(ChoraleError):
    """The silo's policy or ledger refuses."""

    def __init__(self, message: str, *, code: Refusal = Refusal.POLICY) -> None:
        super().__init__(message)
        self.code = code


class ProtocolError(ChoraleError):
    """The exchange cannot continue."""


class EvidenceMismatch(ChoraleError):
    """Something in an archive of evidence does not fit."""


class LocalProtocolError(ProtocolError):
    """We misused the protocol: a bug on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol."""

    code = Refusal.MALFORMED

    def __init__(self, message: str, *, code: Refusal | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code
