"""What is summed once before the first round: enrollment, and class presence where a method sums by class.

Enrollment: how many silos there are and how many samples they hold together.
Leaks the sum of the silos' rounded sample counts; sums over two cohorts show the count of a silo
that missed one, which is why counts are rounded at the silo (docs/threat-model.md). Under noise they
are not rounded, because rounding would let one record move a count by the whole granularity.

Class presence: how many silos hold each class. A row of a class statistic is sent only where enough hold the
class, so that no sum of such rows is one silo's own (docs/protocol.md 4): those of all statistics by class.
Leaks how many of the silos in the sum hold each class; two sums over nearly the same silos would show
the classes of one, so silos refuse the second (docs/protocol.md 6.2).
A private job has no such phase: its noise would hide the few silos that it counts, and the class rows
carry noise of their own.

The opening enrollment of a job that draws its rounds also writes the seed of the draw. It is made of the
silos' self-mask seeds, which nobody knows before the enrollment is revealed, and it is never replaced.
Source: docs/protocol.md 3.2.

C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import DRAW_SEED, PRESENCE, TOTAL, Array, Arrays, Phase, PhaseContext, PhaseResult
from strategies.tasks.base import count_figure

ENROLLMENT = "enrollment"
CLASS_PRESENCE = "class-presence"
DRAW_SEED_BYTES = 32
MAX_SAMPLES = float(1 << 32)  # at one silo; 2^15 such silos fit the 47 bits of a tagged sum


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrollmentPhase:
    """Sums 1 and the rounded sample count, and writes their total into the state."""

    kind: str = ENROLLMENT

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return (
            Quantity(name="silos", bound=1.0, is_count=True, discloses=Disclosure.CONSTANT),
            Quantity(
                name="samples",
                bound=MAX_SAMPLES,
                is_count=True,
                sensitivity_l2=1.0,
                is_tagged=True,
                discloses=Disclosure.STATISTIC,
            ),
        )

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write method/total, an int64 array of shape (), and method/draw_seed where it is not there yet."""
        samples = round(float(sums["samples"]))  # whole unless noised
        figures = count_figure(float(samples), context.noise_of_survivors.get("samples")).flat("samples")
        if samples <= 0:
            return PhaseResult(state=None, figures=figures, reason="no-data")
        state = {**context.state, TOTAL: np.array(samples, dtype=np.int64)}
        if context.draw_seed is not None and DRAW_SEED not in context.state:
            state[DRAW_SEED] = np.frombuffer(context.draw_seed, np.uint8)
        return PhaseResult(state=state, figures=figures)

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        return {"silos": float(sums["silos"])}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPresencePhase(Phase):
    """Sums a 1 for every class that a silo trains on, and writes the sums into the state."""

    kind: str = CLASS_PRESENCE

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: presence (C,)."""
        presence = Quantity(
            name="class_presence",
            shape=(context.classes,),
            bound=1.0,
            is_count=True,
            sensitivity_l2=1.0,
            is_tagged=True,
            discloses=Disclosure.CLASS_STATISTIC,
        )
        return (presence,)

    def next_state(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write method/presence, (C,) int64. Figure: classes that no silo holds."""
        # below 0 under noise alone
        holders_C = np.maximum(np.rint(sums["class_presence"]), 0).astype(np.int64)
        figures = {"classes_without_holder": float(np.count_nonzero(holders_C == 0))}
        return PhaseResult(state={**context.state, PRESENCE: holders_C}, figures=figures)


def draw_seed_in(state: Arrays) -> bytes:
    """What the opening enrollment wrote; empty where none did. Raises ConfigError for another array."""
    seed = state.get(DRAW_SEED)
    if seed is None:
        return b""
    if seed.shape != (DRAW_SEED_BYTES,) or seed.dtype != np.uint8:
        raise ConfigError(
            f"state: {DRAW_SEED}: expected {DRAW_SEED_BYTES} bytes, got {seed.dtype} of shape {seed.shape}"
        )
    return seed.tobytes()
