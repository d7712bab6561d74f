"""Presence: how many silos hold each class, summed once before the first round.

A row of a class statistic is sent only where enough silos hold the class, so that no sum of such rows
is one silo's own (docs/protocol.md 4): those of FedDW and FedCSD.
Leaks how many of the silos in the sum hold each class; two sums over nearly the same silos would show
the classes of one, so silos refuse the second (docs/protocol.md 6.2).
A private job has no such phase: its noise would hide the few silos that it counts, and the class rows
carry noise of their own.

C = classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import PRESENCE, Array, PhaseContext, PhaseResult

CLASS_PRESENCE_KIND = "class-presence"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPresencePhase:
    """Sums a 1 for every class that a silo trains on, and writes the sums into the state."""

    @property
    def kind(self) -> str:
        return CLASS_PRESENCE_KIND

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: presence (C,)."""
        presence = Quantity(
            name="class_presence",
            shape=(context.classes,),
            bound=1.0,
            is_count=True,
            sensitivity_l2=1.0,
            discloses=Disclosure.CLASS_STATISTIC,
        )
        return (presence,)

    def apply(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write method/presence, (C,) int64. Figure: classes that no silo holds."""
        holders_C = np.maximum(np.rint(sums["class_presence"]), 0).astype(
            np.int64
        )  # below 0 under noise alone
        figures = {"classes_without_holder": float(np.sum(holders_C == 0))}
        return PhaseResult(state={**context.state, PRESENCE: holders_C}, figures=figures)
