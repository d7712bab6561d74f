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
from research.attacks.states import traps
from research.attacks.states.digit_silos import DigitSilos, Training
from silo_agent.disclosure.policy.step_ratio import ArraySteps
from silo_agent.rounds.inputs.own_steps import own_lengths, step_lengths
from silo_agent.training.phase_input import PhaseRequest
from simulation.sums import word_sums
from strategies.base import MODEL, Arrays

WIDTH = 2_048
TRAP_ROWS = (2_048, 256)
BLIND_MARGIN = 0.7  # of the longest step: honest silos' own steps differ from the liar's by less than that
KNOWING_MARGIN = 1.0 - 1e-6  # the state is rounded to float32
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
    not yet. stopped: the round after which an honest silo gives no more input; None: it goes on.
    largest_sum: a parameter's in any round. largest_ratio: of a step, or of all steps together, to an honest
    silo's own."""

    liar: str
    trap_rows: int
    by_round: tuple[int, ...]
    distinct: int
    own_steps_away: float
    arrived: int | None
    stopped: int | None
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
    model, max_ratio = _Model(held), held.policy.max_step_ratio
    shares_S = np.array(list(held.counts.values())) / held.total
    honest = slice(len(shares_S) - 1)  # the last silo lies
    known = slice(-1, None) if liar is Liar.BLIND else honest  # whose inputs the liar goes by
    margin = BLIND_MARGIN if liar is Liar.BLIND else KNOWING_MARGIN
    at_P, crafted_P = model.flat(held.first), model.flat(model.trapped(rows))
    histories_S = [dict.fromkeys(model.parts, ArraySteps()) for _ in shares_S]
    given_away, records_ND = [], _honest_records(held)
    away, arrived, stopped, largest_sum, largest_ratio = 0.0, None, None, 0.0, 0.0
    for round in range(1, rounds + 2):
        request, own_SP, own_S = model.own_steps(at_P, round)
        honest_P = shares_S[honest] @ own_SP[honest]
        given_away.append(traps.rebuilt(traps.candidates(honest_P, held.first), records_ND))
        toward_P = crafted_P - at_P
        if round == 1:
            away = max(
                float(np.linalg.norm(toward_P[part])) / min(own[name] for own in own_S[honest])
                for name, part in model.parts.items()
            )
        if arrived is None and not toward_P.any():
            arrived = round - 1
        if liar is Liar.NONE:
            step_P = shares_S @ own_SP
        else:
            step_P = np.zeros_like(toward_P)
            for name, part in model.parts.items():
                longest = margin * min(
                    history[name].longest(own=own[name], max_ratio=max_ratio)
                    for history, own in zip(histories_S[known], own_S[known], strict=True)
                )
                length = float(np.linalg.norm(toward_P[part]))
                step_P[part] = toward_P[part] * (min(1.0, longest / length) if length else 1.0)
        if liar is Liar.BLIND:  # what it takes the others' inputs for, it does not take off exactly
            step_P += honest_P - shares_S[honest].sum() * own_SP[-1]
        largest_sum = max(largest_sum, float(np.abs(step_P).max()))
        at_P = (at_P + step_P).astype(np.float32).astype(np.float64)
        lengths = step_lengths(request.job, request.key.phase, request.context.state, model.state(at_P))
        for history, own in zip(histories_S, own_S, strict=True):
            is_honest = history is not histories_S[-1]
            for name, before in history.items():
                moved = {"step": lengths[name], "own": own[name]}
                after = history[name] = before.after(**moved)
                if is_honest:
                    in_this = lengths[name] / (after.own_total - before.own_total)
                    largest_ratio = max(largest_ratio, in_this, after.total / after.own_total)
                    if before.is_too_long(**moved, max_ratio=max_ratio):
                        stopped = round
        if stopped is not None:
            break
    return Way(
        liar=liar.value,
        trap_rows=rows,
        by_round=tuple(int(is_rebuilt_N.sum()) for is_rebuilt_N in given_away),
        distinct=int(np.any(given_away, axis=0).sum()),
        own_steps_away=away,
        arrived=arrived,
        stopped=stopped,
        largest_sum=largest_sum,
        largest_ratio=largest_ratio,
    )


class _Model:
    """The job's state as one vector of what training moves. parts: one for each array."""

    def __init__(self, held: DigitSilos) -> None:
        self._held = held
        names = [MODEL + name for name in trained_names(dict(held.first))]
        ends = np.cumsum([held.first[name].size for name in names])
        self.parts = {
            name: slice(end - held.first[name].size, end) for name, end in zip(names, ends, strict=True)
        }

    def flat(self, state: Arrays) -> FloatArray:
        return np.concatenate([state[name].reshape(-1) for name in self.parts]).astype(np.float64)

    def state(self, at_P: FloatArray) -> Arrays:
        """As enrollment leaves it, but for these."""
        state = self._held.enrolled(self._held.first)
        for name, part in self.parts.items():
            state[name] = at_P[part].reshape(state[name].shape).astype(np.float32)
        return state

    def trapped(self, rows: int) -> Arrays:
        held = self._held
        return traps.trap_state(held.first, held.public_ND, records=held.total, rows=rows)

    def own_steps(
        self, at_P: FloatArray, round: int
    ) -> tuple[PhaseRequest, FloatArray, list[dict[str, float]]]:
        """Each silo's, from the words that it would mask, and its lengths by array as it computes them.

        Shapes: (P,) -> (S, P).
        """
        held = self._held
        request, inputs = held.inputs(self.state(at_P), round=round)
        values_S = [word_sums(request.layout, [words]) for words in inputs.values()]
        own_SP = np.array(
            [
                values[DELTA] * held.total / held.counts[name]
                for name, values in zip(inputs, values_S, strict=True)
            ]
        )
        return (
            request,
            own_SP,
            [own_lengths(request.job, request.key, request.context, values) for values in values_S],
        )


def _honest_records(held: DigitSilos) -> FloatArray:
    count = len(held.data[held.spec.silos[-1]].train)
    return held.records_ND[:-count]
