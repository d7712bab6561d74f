"""One colluding silo drives the computed state toward a crafted one, as fast as no honest silo objects to.

Every state is computed from sums that every silo checked; the colluder alone lies, within the bounds of a sum
and within `max_step_ratio` of the honest silos' own steps. It is taken to know their inputs before it sends
its own, so it moves the state exactly as it likes: more than a real one can.
"""

# S = silos, P = parameters, N = records, M = candidates, D = pixels

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.spec.state import trained_names
from research.attacks import product_rules
from research.attacks.states import traps
from research.attacks.states.digit_silos import DigitSilos, Training
from simulation.sums import word_sums
from strategies.base import MODEL, Arrays

WIDTH = 2_048
TRAP_ROWS = (2_048, 256, 32)
DELTA = "delta"  # the quantity
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """trap_rows: 0 for honest training. by_round: records that the honest silos' next sum gives away, of the
    first state and after each round. distinct: all of them. own_steps_away: of the array that is farthest
    from the crafted state at the start, in own steps of the silo that moves it least. arrived: rounds until
    the state is the crafted one; None: not yet. largest_sum: a parameter's in any round, beside the bound."""

    trap_rows: int
    by_round: tuple[int, ...]
    distinct: int
    own_steps_away: float
    arrived: int | None
    largest_sum: float


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
        ways=tuple(_way(held, rows, rounds) for rows in (0, *trap_rows)),
    )


def _way(held: DigitSilos, rows: int, rounds: int) -> Way:
    """rows: of the trap; 0: nobody lies."""
    model = _Model(held)
    shares_S = np.array(list(held.counts.values())) / held.total
    honest = slice(len(shares_S) - 1)  # the last silo lies
    first_P = at_P = model.flat(held.first)
    crafted_P = model.flat(model.trapped(rows)) if rows else None
    own_moved_SP = np.zeros((len(shares_S), first_P.size))
    given_away, records_ND = [], _honest_records(held)
    away, arrived, largest = 0.0, None, 0.0
    for round in range(1, rounds + 2):
        own_SP = model.own_steps(at_P, round)
        own_moved_SP += own_SP
        found_MD = traps.candidates(shares_S[honest] @ own_SP[honest], held.first)
        given_away.append(traps.rebuilt(found_MD, records_ND))
        step_P = shares_S @ own_SP
        if crafted_P is not None:
            toward_P = crafted_P - at_P
            if round == 1:
                away = model.own_steps_away(toward_P, own_SP[honest])
            if arrived is None and not toward_P.any():
                arrived = round - 1
            for part in model.parts:
                step_P[part] = product_rules.longest_step(
                    toward_P[part],
                    moved=(at_P - first_P)[part],
                    own=own_SP[honest, part],
                    own_moved=own_moved_SP[honest, part],
                )
        largest = max(largest, float(np.abs(step_P).max()))
        at_P = (at_P + step_P).astype(np.float32).astype(np.float64)
    return Way(
        trap_rows=rows,
        by_round=tuple(int(is_rebuilt_N.sum()) for is_rebuilt_N in given_away),
        distinct=int(np.any(given_away, axis=0).sum()),
        own_steps_away=away,
        arrived=arrived,
        largest_sum=largest,
    )


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
