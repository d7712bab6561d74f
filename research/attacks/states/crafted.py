"""A crafted state: how many training records one sum of one round gives away.

The coordinator has two ways to a state of its own: the operator signs it as the job's first (`job submit
--init`), or the coordinator serves it in place of the one that follows from the last sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from research.attacks.product_rules import HonestSilos, Refused
from research.attacks.states import traps
from research.attacks.states.digit_silos import DigitSilos, Training
from strategies.base import Array, Arrays

WIDTH = 2_048
DELTA = "delta"  # the quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class CraftedState:
    """records: that all silos train on together. rebuilt: with an error below 2 %, where silos check states
    as the product does. taken_as: the ways in which a silo took the crafted state all the same."""

    silos: int
    training: str
    noise: bool
    records: int
    rebuilt: int
    rebuilt_without_verification: int
    taken_as: tuple[str, ...]


def measure(
    *,
    silos: int = 4,
    width: int = WIDTH,
    training: Training = Training.FULL,
    noise: bool = False,
) -> CraftedState:
    """One round over a state of traps; the sum is the ring's, which masks do not change."""
    held = DigitSilos(silos, width=width, training=training, noise=noise)
    crafted = traps.trap_state(held.first, held.public_ND, records=held.total)
    state = held.enrolled(crafted)
    found_MD = traps.candidates(held.sums(state)[DELTA], state)
    without = int(traps.rebuilt(found_MD, held.records_ND).sum())
    taken_as = tuple(way for way, takes in WAYS.items() if takes(held, crafted))
    return CraftedState(
        silos=silos,
        training=training.value,
        noise=noise,
        records=len(held.records_ND),
        rebuilt=without if taken_as else 0,
        rebuilt_without_verification=without,
        taken_as=taken_as,
    )


def is_taken_as_first(held: DigitSilos, first: Arrays) -> bool:
    """Whether silos take a state that the operator signed as the job's first."""
    return _is_taken(lambda: _enrolled(held, first))


def is_taken_instead(held: DigitSilos, served: Callable[[dict[str, Array]], Arrays]) -> bool:
    """Whether silos that took part in enrollment then train from another state than the one that follows.

    served: of the state that follows, the one that the coordinator serves.
    """
    with HonestSilos(held.spec, held.first, policy=held.policy) as honest:
        state = honest.enroll(held.first, held.counts)
        return _is_taken(lambda: honest.check_state(served(state), round=1, phase="train"))


def _enrolled(held: DigitSilos, first: Arrays) -> None:
    with HonestSilos(held.spec, first, policy=held.policy) as honest:
        honest.enroll(first, held.counts)


def _is_taken(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except Refused:
        return False
    return True


WAYS: dict[str, Callable[[DigitSilos, Arrays], bool]] = {
    "first": is_taken_as_first,
    "instead": lambda held, crafted: is_taken_instead(held, lambda state: {**state, **crafted}),
}
