"""Enrollment: how many silos there are and how many samples they hold together.

Leaks the sum of the silos' rounded sample counts; sums over two cohorts show the count of a silo
that missed one, which is why counts are rounded at the silo (docs/threat-model.md). Under noise they
are not rounded, because rounding would let one record move a count by the whole granularity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.base import TOTAL, Array, PhaseContext, PhaseResult
from strategies.parts.evaluation import MAX_COUNT

ENROLLMENT = "enrollment"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrollmentPhase:
    """Sums 1 and the rounded sample count, and writes their total into the state."""

    @property
    def kind(self) -> str:
        return ENROLLMENT

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        return (
            Quantity(name="silos", bound=1.0, is_count=True, discloses=Disclosure.CONSTANT),
            Quantity(
                name="samples",
                bound=MAX_COUNT,
                is_count=True,
                sensitivity_l2=1.0,
                discloses=Disclosure.STATISTIC,
            ),
        )

    def apply(self, context: PhaseContext, sums: Mapping[str, Array]) -> PhaseResult:
        """Write method/total, an int64 array of shape ()."""
        silos, samples = int(sums["silos"]), round(float(sums["samples"]))  # whole unless noised
        figures = {"silos": float(silos), "samples": float(samples)}
        if samples <= 0:
            return PhaseResult(state=None, figures=figures, reason="no-data")
        state = {**context.state, TOTAL: np.array(samples, dtype=np.int64)}
        return PhaseResult(state=state, figures=figures)
