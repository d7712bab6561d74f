"""One family of errors, and the closed lists of words in which a silo answers the coordinator.

A message names scope, what, expected and got, in lower case, and never carries tensors, keys,
shares or sample counts. Source: docs/protocol.md 9.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import Final

# joiners, fillers, variation selectors and the empty Braille cell: nobody sees them, though `str.isprintable`
UNSEEN: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


class Refusal(StrEnum):
    """Why a silo refused, as the coordinator learns it. Closed: no numbers. Free text comes with REJECTED
    alone, and only what a person typed for the operator."""

    JOB_INVALID = "job-invalid"
    JOB_NOT_APPROVED = "job-not-approved"
    REJECTED = "rejected"
    SETTINGS = "settings"
    POLICY = "policy"
    BUDGET = "budget"
    LEDGER = "ledger"
    DATA = "data"
    CONFIGURATION = "configuration"
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


class Rule(StrEnum):
    """The policy field that refused, with the code POLICY. Closed: fields that are compared with what the
    coordinator knows itself: the signed job, the phase, refusals and sums that it received before.

    Security: a field that is compared with the silo's data or its own steps is not here.
    """

    FEDERATION = "federation"
    OPERATORS = "operators"
    REQUIRE_PURPOSE = "require_purpose"
    DISTRIBUTIONS = "distributions"
    INPUTS = "inputs"
    LABELS = "labels"
    ALLOWED_QUANTITIES = "allowed_quantities"
    CLASS_STATISTICS = "class_statistics"
    SHARED_SUMS = "shared_sums"
    MIN_CLASS_HOLDERS = "min_class_holders"
    LOCAL_STATE = "local_state"
    INITIAL_STATE = "initial_state"
    MIN_SILOS = "min_silos"
    MAX_ROUNDS = "max_rounds"
    MAX_COHORT_CHANGES = "max_cohort_changes"
    MAX_DATA_REFUSALS = "max_data_refusals"
    DRAWN_ROUNDS = "drawn_rounds"
    LEARNING_RATE = "learning_rate"
    STATE_BYTES = "state_bytes"
    REQUIRED = "privacy.required"
    SHARED_NOISE = "privacy.shared_noise"
    ANALYSES = "analyses.exact"
    MOST_ANALYSES = "analyses.most"
    MIN_CELL = "analyses.min_cell"
    MEASUREMENTS = "analyses.measurements"


class SiloStage(StrEnum):
    """What a silo does before it computes an input, where that may take long. Closed.

    Security: a stage ends before the silo touches its data, so that how long it took tells nothing of them.
    """

    LOADING_TORCH = "loading-torch"


class ChoraleError(Exception):
    """Whatever Chorale raises on purpose."""


class ConfigError(ChoraleError):
    """A file, option or certificate that a person gave is unusable."""


class QuantizationError(ChoraleError):
    """A value cannot enter the ring."""


class BudgetExhausted(ChoraleError):
    """The privacy budget does not cover what was asked."""


class PolicyRefusal(ChoraleError):
    """The silo's policy or ledger refuses.

    rule: the policy field, with the code POLICY. text: with the code REJECTED, what a person typed for the
    operator. Both leave the silo; the message stays there.
    """

    def __init__(
        self, message: str, *, code: Refusal = Refusal.POLICY, rule: Rule | None = None, text: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.rule = rule
        self.text = text


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


def printable(text: str) -> str:
    """What a peer or an operator wrote, as a part of a line: control characters, those that turn the
    direction of text and those that nobody sees become escapes such as \\u202e, and so does what is not ASCII
    in a text that is not composed (NFC), which reads like the composed one. Security: nothing in it moves a
    terminal's cursor."""
    is_composed = unicodedata.is_normalized("NFC", text)
    if text.isprintable() and is_composed and not UNSEEN.search(text):
        return text

    def is_plain(each: str) -> bool:
        return each.isascii() or (is_composed and not UNSEEN.match(each))

    return "".join(
        each
        if each.isprintable() and is_plain(each)
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
