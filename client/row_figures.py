"""Of how many classes a job's sums held rows, by the figures of its phases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from chorale.results import finite

# classes whose rows are in a round's sum, and in the closing one of a method that calibrates by them
ROW_FIGURES = ("soft_label_rows", "classes_with_prototype", "prototype_rows")
CALIBRATED = "calibrated_classes"


class _Phase(Protocol):
    """A record of the coordinator's, or what an archive of evidence holds of one."""

    @property
    def round(self) -> int: ...

    @property
    def phase(self) -> str: ...

    @property
    def figures(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRows:
    """Of how many classes sums held rows: silos hold back those of classes that few of them hold.

    classes: of the job. by_default: whose rows silos send by the default policy. by_round: whose rows were in
    the revealed sum of a round.
    """

    classes: int
    by_default: int
    by_round: Mapping[int, int]

    @property
    def share(self) -> float | None:
        """Of all classes, the mean of the rounds; None before the first."""
        counts = self.by_round.values()
        return sum(counts) / (len(counts) * self.classes) if counts else None

    def __str__(self) -> str:
        summed = "no round has ended" if self.share is None else f"{self.share:.0%} of them in a round's sum"
        return f"class rows: {summed}; by the default policy {self.by_default} of {self.classes} are sent"


def class_rows(phases: Iterable[_Phase]) -> ClassRows | None:
    """None for a method that sums no rows by class, and a private job, whose rows are all under noise."""
    classes, by_default, by_round = 0, 0, dict[int, int]()
    for each in phases:
        if "class_rows_by_default" in each.figures:
            classes, by_default = (
                round(finite(each.figures.get(name)) or 0) for name in ("classes", "class_rows_by_default")
            )
        for name in ROW_FIGURES:
            if (rows := finite(each.figures.get(name))) is not None:
                by_round[each.round] = round(rows)
    return ClassRows(classes=classes, by_default=by_default, by_round=by_round) if classes > 0 else None
