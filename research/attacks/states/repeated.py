"""The same state again with one silo left out: what the differences of the sums say of every silo's update.

With the sum of all silos and those without each but the last, every update is the difference of two, and the
last is what is left. Nothing but a rule on how often a state may be used stands against it: every sum is
exact, over enough silos, and of a state that all silos agree on.
"""

# S = silos, K = sums, P = parameters

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.attacks import chance
from research.attacks.product_rules import HonestSilos, Refused
from research.attacks.states.digit_silos import DigitSilos, Training
from simulation.sums import word_sums
from strategies.base import Array

WIDTH = 32
DELTA = "delta"  # the quantity
FloatArray = NDArray[np.float64]
Sums = list[tuple[tuple[str, ...], Array]]  # who is in it, and the update


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedState:
    """recovered: silos whose own update is known better than by chance, from the sums that the rules let
    through. sums: how many these are. largest_error: of any parameter of an update, recovered without rules.
    """

    silos: int
    recovered: int
    recovered_without_verification: int
    sums: int
    sums_without_verification: int
    largest_error: float


def measure(*, silos: int = 5, width: int = WIDTH, policy: Mapping[str, Any] | None = None) -> RepeatedState:
    """As many sums over one state as there are silos, another silo missing in all but the first.

    policy: fields in which silos differ from the default.
    """
    held = DigitSilos(silos, width=width, training=Training.FULL, policy=policy)
    own_SP = _own_updates(held)
    under_rules, without = (_attacked(held, has_rules=has_rules) for has_rules in (True, False))
    guessed_SP = _guessed(without, held)
    return RepeatedState(
        silos=silos,
        recovered=_recovered(_guessed(under_rules, held), own_SP),
        recovered_without_verification=_recovered(guessed_SP, own_SP),
        sums=len(under_rules),
        sums_without_verification=len(without),
        largest_error=float(np.abs(guessed_SP - own_SP).max()),
    )


def _attacked(held: DigitSilos, *, has_rules: bool) -> Sums:
    """The sums that were revealed."""
    found: Sums = []
    with HonestSilos(held.spec, held.first, policy=held.policy, has_rules=has_rules) as honest:
        state = honest.enroll(held.first, held.counts)
        for round, missing in enumerate([None, *held.spec.silos[:-1]], start=1):
            _, inputs = held.inputs(state, round=round)
            there = {name: words for name, words in inputs.items() if name != missing}
            try:
                found.append((tuple(there), honest.sum(state, there, round=round)[DELTA]))
            except Refused:
                continue  # the coordinator tries the next
    return found


def _own_updates(held: DigitSilos) -> FloatArray:
    """Shapes: (S, P)."""
    request, inputs = held.inputs(held.enrolled(held.first))
    return np.array([word_sums(request.layout, [words])[DELTA] for words in inputs.values()], np.float64)


def _guessed(found: Sums, held: DigitSilos) -> FloatArray:
    """The updates of least length that give these sums: all that they say, and no more. Shapes: (S, P)."""
    names = held.spec.silos
    if not found:
        return np.zeros((len(names), 1))
    is_in_KS = np.array([[float(name in there) for name in names] for there, _ in found])
    sums_KP = np.array([update for _, update in found], np.float64)
    return np.asarray(np.linalg.pinv(is_in_KS) @ sums_KP)


def _recovered(guessed_SP: FloatArray, own_SP: FloatArray) -> int:
    """Silos of which the guess says what their update has beyond the mean of all, which one sum tells."""
    if guessed_SP.shape != own_SP.shape:
        return 0
    limit = chance.largest_chance_cosine(own_SP.shape[1])
    guessed_SP, own_SP = guessed_SP - guessed_SP.mean(axis=0), own_SP - own_SP.mean(axis=0)
    # an exact zero up to rounding: one sum says nothing of one silo
    guessed_SP[np.linalg.norm(guessed_SP, axis=1) < 1e-9 * np.linalg.norm(own_SP, axis=1)] = 0.0
    return sum(
        abs(chance.cosine(guess_P, own_P)) > limit for guess_P, own_P in zip(guessed_SP, own_SP, strict=True)
    )
