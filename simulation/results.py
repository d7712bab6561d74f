"""What a simulation reports of its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chorale.results import APPLIED, USED_UP, RoundResult, finite
from crypto.errors import ChoraleError
from strategies.base import Array
from strategies.phases.evaluation import ACCURACY, DEVIATION, SILOS

PREFIX = "test_"  # of figures on a fixed test set
PERSONAL = (ACCURACY, DEVIATION, SILOS)  # figures of the silos' own models


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
