"""What an analysis asks of each column, for people who decide."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.kinds import AnySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedColumn:
    """edges, categories: of its parts, one of them empty. is_group: the other columns are counted by its
    parts. is_complete: records that lack it are left out. has_mean: its values are summed, too. of_curves:
    time, status or group of survival curves, of which one table of all columns is counted; empty of other
    analyses."""

    name: str
    unit: str | None
    edges: tuple[float, ...]
    categories: tuple[str, ...]
    is_group: bool
    is_complete: bool
    has_mean: bool
    of_curves: str


def asked_columns(spec: AnySpec) -> tuple[AskedColumn, ...]:
    """The group first, then as the job has them; none of a training."""
    if not isinstance(spec, AnalysisSpec):
        return ()
    measured, survival = spec.tables.measured, spec.survival
    roles: dict[str | None, str] = {}
    if survival is not None:
        roles = {survival.time: "time", survival.status: "status", survival.group: "group"}
    asked = [
        AskedColumn(
            name=column.name,
            unit=column.unit,
            edges=column.edges or (),
            categories=column.categories or (),
            is_group=column.name == spec.group,
            is_complete=spec.tables.is_complete,
            has_mean=place in measured,
            of_curves=roles.get(column.name, ""),
        )
        for place, column in enumerate(spec.columns)
    ]
    return tuple(sorted(asked, key=lambda column: not column.is_group))
