"""What a simulation reports of its rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from chorale.results import APPLIED, USED_UP, RoundResult, finite
from chorale.transport.wire import phase_kind
from crypto.errors import ChoraleError
from simulation.silos import Answer
from strategies.analysis.counts import FEW_RECORDS
from strategies.base import Array, PhaseResult
from strategies.phases.columns import FEW_VALUES, TOO_FEW
from strategies.phases.evaluation import ACCURACY, DEVIATION, SILOS

PREFIX = "test_"  # of figures on a fixed test set
PERSONAL = (ACCURACY, DEVIATION, SILOS)  # figures of the silos' own models
EXPLAINED = {FEW_VALUES: TOO_FEW, FEW_RECORDS: "all silos together hold fewer than min_cell"}


class SimulationFailed(ChoraleError):
    """The job cannot continue; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReport:
    """One phase that has ended. An empty reason: it was applied."""

    phase: str
    reason: str
    data_share: float
    silos: tuple[str, ...]
    left_out: Mapping[str, str]
    figures: Mapping[str, float]
    tables: Mapping[str, Array]

    @classmethod
    def of(cls, phase: str, answers: Sequence[Answer], result: PhaseResult) -> Self:
        """answers: of all silos that it names."""
        return cls(
            phase=phase,
            reason=result.reason if result.state is None else "",
            data_share=result.data_share,
            silos=tuple(answer.silo for answer in answers if not answer.refused),
            left_out={answer.silo: answer.message for answer in answers if answer.refused},
            figures={name: float(value) for name, value in result.figures.items()},
            tables=result.tables,
        )

    def check_applied(self) -> None:
        """Raises SimulationFailed, which names one silo that was left out."""
        if self.reason:
            explained = f": {EXPLAINED[self.reason]}" if self.reason in EXPLAINED else ""
            first = "".join(f" ({silo}: {why})" for silo, why in list(self.left_out.items())[:1])
            raise SimulationFailed(f"{phase_kind(self.phase)}: {self.reason}{explained}{first}")


def listed(table: Array) -> Any:
    """A table as JSON's lists, null for NaN."""
    numbers = table.astype(object)
    numbers[~np.isfinite(table)] = None
    return numbers.tolist()


def curve(evaluations: Mapping[int, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The model over all silos' hold-outs, a point each, in the order of the rounds; null for NaN."""
    return [
        {"round": round, **{name: finite(value) for name, value in figures.items()}}
        for round, figures in sorted(evaluations.items())
    ]


def round_result(round: int, phases: list[PhaseReport], *, wall_seconds: float) -> RoundResult:
    """A round from its phases: the last one ends it, and the figures of all of them are its own."""
    last = phases[-1]
    figures = {name: value for phase in phases for name, value in phase.figures.items()}
    return RoundResult(
        round=round,
        result=USED_UP if last.reason else APPLIED,
        reason=last.reason,
        data_share=last.data_share,
        silos=last.silos,
        left_out=last.left_out,
        figures=figures,
        wall_seconds=wall_seconds,
    )
