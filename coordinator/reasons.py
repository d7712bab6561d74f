"""The closed lists of why a session failed, why a silo was left out, and what is awaited of one.

Source: docs/protocol.md 9.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from crypto.errors import Refusal, SiloStage

MAX_NAMED = 6  # silos that one line names
OVERDUE_SECONDS = 30.0  # many times what an answer takes, and named within the first minute
ROUNDS_IN_THE_WAY = 3  # of one silo in a row, from which on the way out is named

WAY_OUT = "skip rounds (chorale job skip-round), or cancel and submit the job without this silo"


class FailureReason(StrEnum):
    """Why an attempt ended without a sum, or a phase was used up."""

    TOO_FEW_SILOS = "too-few-silos"
    PROVEN_LIAR = "proven-liar"
    TRAIN_HARD_CAP = "train-hard-cap"
    UNMASK_HARD_CAP = "unmask-hard-cap"
    TOO_FEW_STATEMENTS = "too-few-statements"
    SKIPPED = "skipped"
    MIN_WEIGHT = "min-weight"
    NO_DATA = "no-data"
    FEW_VALUES = "few-values"
    FEW_RECORDS = "few-records"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a silo is left out. code: of Absent or Refusal. rule, text: as the silo's refusal has them."""

    code: str
    rule: str = ""
    text: str = ""

    @property
    def for_operator(self) -> str:
        """For the operator alone: the text is a person's, quoted so that it says nothing of other silos."""
        quoted = json.dumps(self.text, ensure_ascii=False) if self.text else ""
        return ": ".join(filter(None, [self.code, self.rule, quoted]))

    @property
    def public(self) -> str:
        """Without what a person typed, for silos and the audit log."""
        return ": ".join(filter(None, [self.code, self.rule]))


class Awaited(StrEnum):
    """What a job waits for at a silo; a silo that loads something adds the words of SiloStage."""

    APPROVAL = "approval"
    SETTINGS = "settings"
    CONFIGURATION = "configuration"
    CONNECTION = "connection"
    INPUT = "input"
    ANSWER = "answer"
    STATEMENT = "statement"
    OVERDUE = "overdue"  # no round goes on without it, and it is silent for OVERDUE_SECONDS


# Refusals that people at the silo bring to an end, and what a job that has too few silos waits for then.
WAITED_FOR = {
    Refusal.JOB_NOT_APPROVED: Awaited.APPROVAL,
    Refusal.SETTINGS: Awaited.SETTINGS,
    Refusal.CONFIGURATION: Awaited.CONFIGURATION,
}


def standstill_in_words(awaited: Mapping[str, str], *, silos: int, in_the_way: Mapping[str, int]) -> str:
    """What a running job waits for and at whom, in one line; `running` where silos do their work.

    awaited: by silo, words of Awaited and SiloStage. silos: how many the job lists. in_the_way: of how many
    rounds in a row, up to now, each silo stood in the way.
    """
    at: dict[str, list[str]] = {}
    for silo, why in sorted(awaited.items()):
        at.setdefault(why, []).append(silo)
    parts = [f"{what.value} at {_named(at[what])}" for what in WAITED_FOR.values() if what in at]
    if away := at.get(Awaited.CONNECTION):
        parts.append(f"silos: {silos - len(away)} of {silos} connected")
    if overdue := at.get(Awaited.OVERDUE):
        parts.append(f"an answer of {_named(overdue)}, without which the round stands still")
    if loading := at.get(SiloStage.LOADING_TORCH):
        parts.append(f"{_named(loading)}: loading torch")
    line = f"waiting for {'; for '.join(parts)}" if parts else "running"
    for silo, rounds in in_the_way.items():
        if rounds >= ROUNDS_IN_THE_WAY:
            line += f"; {silo} stood in the way of {rounds} rounds in a row: {WAY_OUT}"
    return line


def _named(silos: Sequence[str]) -> str:
    more = len(silos) - MAX_NAMED
    return ", ".join(silos[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


# Refusals of silos that went further in the job than this coordinator, which has lost what it knew.
AHEAD = frozenset({Refusal.LATER_STATE, Refusal.ALREADY_REVEALED})
# Refusals that stand for the rest of the job: waiting or another attempt changes nothing.
FATAL_TO_JOB = frozenset(
    {
        Refusal.JOB_INVALID,
        Refusal.REJECTED,
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
