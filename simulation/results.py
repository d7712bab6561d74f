"""What a simulation reports of its rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crypto.errors import ChoraleError
from strategies.base import Array

APPLIED, USED_UP = "applied", "used-up"  # as in the record of a real round


class SimulationFailed(ChoraleError):
    """The job cannot continue; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One round that has ended.

    accuracy, loss: over all hold-outs, of the model that the round *started* from (after round - 1), as in
    a federation, where silos test what they receive; None where no sum measured it.
    silos: whose inputs were summed. left_out: silo -> why. figures: all that the round's sums said.
    """

    round: int
    result: str
    reason: str = ""
    accuracy: float | None = None
    loss: float | None = None
    data_share: float = 0.0
    silos: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    wall_seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """One line of rounds.jsonl."""
        return {
            "round": self.round,
            "result": self.result,
            "reason": self.reason,
            "accuracy": finite(self.accuracy),
            "loss": finite(self.loss),
            "model_after_round": self.round - 1,
            "data_share": self.data_share,
            "silos": list(self.silos),
            "left_out": dict(self.left_out),
            "figures": {name: finite(value) for name, value in self.figures.items()},
            "wall_seconds": round(self.wall_seconds, 6),
        }


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


def finite(value: float | None) -> float | None:
    """JSON has no NaN and no infinity: they are null."""
    return value if value is not None and math.isfinite(value) else None


def listed(table: Array) -> Any:
    """A table as JSON's lists, null for NaN."""
    numbers = table.astype(object)
    numbers[~np.isfinite(table)] = None
    return numbers.tolist()


def round_result(round: int, phases: list[PhaseReport], *, wall_seconds: float) -> RoundResult:
    """A round from its phases: the last one ends it, and the figures of all of them are its own."""
    last = phases[-1]
    figures = {name: value for phase in phases for name, value in phase.figures.items()}
    return RoundResult(
        round=round,
        result=USED_UP if last.reason else APPLIED,
        reason=last.reason,
        accuracy=figures.get("accuracy"),
        loss=figures.get("loss"),
        data_share=last.data_share,
        silos=last.silos,
        left_out=last.left_out,
        figures=figures,
        wall_seconds=wall_seconds,
    )
