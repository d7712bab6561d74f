"""One colluding silo drives the computed state toward a crafted one, as fast as no honest silo objects to.

Every state is computed from sums that every silo checked; the colluder alone lies, within the bounds of a sum
and within `max_step_ratio` of the honest silos' own steps.
"""

# S = silos, P = parameters, N = records, M = candidates, D = pixels

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from chorale.spec.state import trained_names
from research.attacks import product_rules
from research.attacks.states import traps
from research.attacks.states.digit_silos import DigitSilos, Training
from simulation.sums import word_sums
from strategies.base import MODEL, Arrays

WIDTH = 2_048
TRAP_ROWS = (2_048, 256)
BLIND_MARGIN = 0.7  # of the longest step: honest silos' own steps differ from the liar's by less than that
DELTA = "delta"  # the quantity
FloatArray = NDArray[np.float64]


class Liar(StrEnum):
    NONE = "none"  # honest training, the control
    BLIND = "blind"  # knows its own step alone and takes the others' for the same
    KNOWING = "knowing"  # knows what the others send before it sends: more than any silo can


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """by_round: records that the honest silos' next sum gives away, of the first state and after each round.
    distinct: all of them. own_steps_away: of the array that is farthest from the crafted state at the start,
    in own steps of the silo that moves it least. arrived: rounds until the state is the crafted one; None:
    not yet. largest_sum: a parameter's in any round. largest_ratio: of a step, or of all steps together, to
    an honest silo's own."""

    liar: str
    trap_rows: int
    by_round: tuple[int, ...]
    distinct: int
    own_steps_away: float
    arrived: int | None
    largest_sum: float
    largest_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """records: of the honest silos. bound: of a parameter's sum, which is what a silo checks it by."""

    silos: int
    training: str
    rounds: int
    records: int
    bound: float
    ways: tuple[Way, ...]


def measure(
    *,
    silos: int = 4,
    rounds: int = 20,
    training: Training = Training.EXAMPLE,
    width: int = WIDTH,
    trap_rows: Sequence[int] = TRAP_ROWS,
) -> Drift:
    """Honest training, the control, then the same silos with the last one lying."""
    held = DigitSilos(silos, width=width, training=training)
    return Drift(
        silos=silos,
        training=training.value,
        rounds=rounds,
        records=len(_honest_records(held)),
        bound=silos * held.spec.update_bound,
        ways=(
            _way(held, max(trap_rows), Liar.NONE, rounds),
            *(_way(held, rows, liar, rounds) for rows in trap_rows for liar in (Liar.BLIND, Liar.KNOWING)),
        ),
    )


def _way(held: DigitSilos, rows: int, liar: Liar, rounds: int) -> Way:
    """rows: of the trap."""
    model = _Model(held)
    shares_S = np.array(list(held.counts.values())) / held.total
    honest = slice(len(shares_S) - 1)  # the last silo lies
    first_P = at_P = model.flat(held.first)
    crafted_P = model.flat(model.trapped(rows))
    own_moved_SP = np.zeros((len(shares_S), first_P.size))
    given_away, records_ND = [], _honest_records(held)
    away, arrived, largest_sum, largest_ratio = 0.0, None, 0.0, 0.0
    for round in range(1, rounds + 2):
        own_SP = model.own_steps(at_P, round)
        own_moved_SP += own_SP
        honest_P = shares_S[honest] @ own_SP[honest]
        given_away.append(traps.rebuilt(traps.candidates(honest_P, held.first), records_ND))
        toward_P = crafted_P - at_P
        if round == 1:
            away = model.own_steps_away(toward_P, own_SP[honest])
        if arrived is None and not toward_P.any():
            arrived = round - 1
        known = slice(-1, None) if liar is Liar.BLIND else honest  # whose inputs the liar goes by
        margin = BLIND_MARGIN if liar is Liar.BLIND else 1.0
        step_P = np.concatenate(
            [
                margin
                * product_rules.longest_step(
                    toward_P[part],
                    moved=(at_P - first_P)[part],
                    own=own_SP[known, part],
                    own_moved=own_moved_SP[known, part],
                )
                for part in model.parts
            ]
        )
        if liar is Liar.NONE:
            step_P = shares_S @ own_SP
        if liar is Liar.BLIND:  # what it takes the others' inputs for, it does not take off exactly
            step_P += honest_P - shares_S[honest].sum() * own_SP[-1]
        largest_sum = max(largest_sum, float(np.abs(step_P).max()))
        for part in model.parts:
            moved_P = (at_P - first_P + step_P)[part]
            ratios = (
                _length(step_P[part]) / _length(own_SP[honest, part]).min(),
                _length(moved_P) / _length(own_moved_SP[honest, part]).min(),
            )
            largest_ratio = max(largest_ratio, *map(float, ratios))
        at_P = (at_P + step_P).astype(np.float32).astype(np.float64)
    return Way(
        liar=liar.value,
        trap_rows=rows,
        by_round=tuple(int(is_rebuilt_N.sum()) for is_rebuilt_N in given_away),
        distinct=int(np.any(given_away, axis=0).sum()),
        own_steps_away=away,
        arrived=arrived,
        largest_sum=largest_sum,
        largest_ratio=largest_ratio,
    )


def _length(steps: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.norm(steps, axis=-1))


class _Model:
    """The job's state as one vector of what training moves. parts: one for each array."""

    def __init__(self, held: DigitSilos) -> None:
        self._held = held
        self._names = [MODEL + name for name in trained_names(dict(held.first))]
        ends = np.cumsum([held.first[name].size for name in self._names])
        self.parts = [
            slice(end - held.first[name].size, end) for name, end in zip(self._names, ends, strict=True)
        ]

    def flat(self, state: Arrays) -> FloatArray:
        return np.concatenate([state[name].reshape(-1) for name in self._names]).astype(np.float64)

    def trapped(self, rows: int) -> Arrays:
        held = self._held
        return traps.trap_state(held.first, held.public_ND, records=held.total, rows=rows)

    def own_steps(self, at_P: FloatArray, round: int) -> FloatArray:
        """Each silo's, from the words that it would mask. Shapes: (P,) -> (S, P)."""
        held, state = self._held, self._held.enrolled(self._held.first)
        for name, part in zip(self._names, self.parts, strict=True):
            state[name] = at_P[part].reshape(state[name].shape).astype(np.float32)
        request, inputs = held.inputs(state, round=round)
        return np.array(
            [
                word_sums(request.layout, [words])[DELTA] * held.total / held.counts[name]
                for name, words in inputs.items()
            ]
        )

    def own_steps_away(self, toward_P: FloatArray, own_SP: FloatArray) -> float:
        """Of the array that is farthest, by the silo that moves it least."""
        return max(
            float(np.linalg.norm(toward_P[part]) / np.linalg.norm(own_SP[:, part], axis=1).min())
            for part in self.parts
        )


def _honest_records(held: DigitSilos) -> FloatArray:
    count = len(held.data[held.spec.silos[-1]].train)
    return held.records_ND[:-count]
