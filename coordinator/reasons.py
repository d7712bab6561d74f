"""The closed lists of why a session failed and why a silo was left out. Source: docs/protocol.md 9."""

from __future__ import annotations

from enum import StrEnum

from crypto.errors import Refusal


class FailureReason(StrEnum):
    """Why an attempt ended without a sum, or a phase was used up."""

    TOO_FEW_SILOS = "too-few-silos"
    PROVEN_LIAR = "proven-liar"
    TRAIN_HARD_CAP = "train-hard-cap"
    UNMASK_HARD_CAP = "unmask-hard-cap"
    TOO_FEW_STATEMENTS = "too-few-statements"
    MIN_WEIGHT = "min-weight"
    NO_DATA = "no-data"
    IMPLAUSIBLE = "implausible"
    ROSTER = "roster"
    RESTARTED = "restarted"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    BUDGET = "budget"
    INTERNAL = "internal"


class Absent(StrEnum):
    """Why a silo was left out; a refusal of its own adds the codes of crypto.errors.Refusal."""

    DISCONNECTED = "disconnected"
    NO_ANSWER = "no-answer"
    SITS_OUT = "sits-out"
    LIED = "lied"
    COMPLAINED = "complained"


# Refusals of silos that went further in the job than this coordinator, which has lost what it knew.
AHEAD = frozenset({Refusal.LATER_STATE, Refusal.ALREADY_REVEALED})
# Refusals that stand for the rest of the job: waiting or another attempt changes nothing.
FATAL_TO_JOB = frozenset(
    {
        Refusal.JOB_INVALID,
        Refusal.POLICY,
        Refusal.BUDGET,
        Refusal.LEDGER,
        Refusal.DATA,
        Refusal.CODE,
        Refusal.STATE_USED_UP,
        *AHEAD,
    }
)
# Refusals that stand for the rest of the phase.
FATAL_TO_PHASE = FATAL_TO_JOB | {
    Refusal.ROSTER,
    Refusal.NOT_NAMED,
    Refusal.NOT_ENROLLED,
    Refusal.TERMS,
    Refusal.OVERLAPPING_COHORT,
}
