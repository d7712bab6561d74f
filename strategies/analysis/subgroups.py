"""The model's figures by the parts of one column: a closing test whose sums are cells, as an analysis's are.

Parts are merged until each that is published holds enough records, of each class where the task has classes;
else nothing is published. Published parts hold all of the tested records, so no figure of others follows from
the overall one. What the model answers within a class is no cell of this rule: 2 of 30 missed is published.
Leaks each cell to the coordinator. Source: docs/decisions/0041-analysis.md.

P = declared parts, missing values the last; Q = published by themselves, S = with figures; C = classes, 1
where the task has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from crypto.fixed_point.layout import Disclosure, Quantity
from strategies.analysis.counts import by_itself
from strategies.analysis.merging import added, chained
from strategies.analysis.partition import Partition
from strategies.base import Array, PhaseContext
from strategies.figure import flat_figures
from strategies.phases.evaluation import EvaluatePhase
from strategies.tasks.base import TESTED, DeclaredTask, Metric, Sum

SUBGROUPS = "subgroups"
OF_SUBGROUP = "subgroup_"  # before the name of a task's sum or figure
RECORDS = "subgroup_records"
FINEST, FINEST_RECORDS, PARTS = "subgroup_finest_parts", "subgroup_finest_records", "subgroup_parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubgroupsPhase(EvaluatePhase):
    """Tests the final model by subgroup, all of them in one sum. The state stays as it is."""

    task: DeclaredTask
    partition: Partition
    min_cell: int
    kind: str = SUBGROUPS

    @property
    def classes(self) -> int:
        return self.task.sizes.classes if self.task.has_classes else 1

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {word: metric for word, metric in self.task.asked.items() if metric.is_by_subgroup}

    @property
    def sums(self) -> tuple[Sum, ...]:
        """What is summed of each part beside its records."""
        further = (each for metric in self.metrics.values() for each in metric.sums)
        return (*(each for each in self.task.round_sums if each.name in self.task.subgroup_sums), *further)

    def quantities(self, context: PhaseContext) -> tuple[Quantity, ...]:
        """Shapes: records (P, C), any other one (P, *shape)."""
        records = Sum(name=RECORDS, shape=(self.classes,), is_count=True)
        return tuple(
            replace(
                each.quantity,
                name=named(each),
                shape=(self.partition.size, *each.shape),
                discloses=Disclosure.CELL,
                at_most="",
            )
            for each in (records, *self.sums)
        )

    def figures(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, float]:
        """subgroups: how many have figures, 0 where these are withheld."""
        parts = self._parts(np.asarray(sums[RECORDS], np.int64))
        return {SUBGROUPS: 0.0 if parts is None else float(max(parts[1]) + 1)}

    def tables(self, context: PhaseContext, sums: Mapping[str, Array]) -> dict[str, Array]:
        """The published part of each declared one, by itself and with figures, and their records; then each
        figure. Shapes: (P,), (Q,), (P,), (S, C), (S,) each."""
        records_PC = np.asarray(sums[RECORDS], np.int64)
        found = self._parts(records_PC)
        if found is None:
            return {}
        alone, parts = found
        records_SC = added(records_PC, parts)
        tables: dict[str, Array] = {
            FINEST: np.array(alone),
            FINEST_RECORDS: added(records_PC.sum(axis=1), alone),
            PARTS: np.array(parts),
            RECORDS: records_SC,
        }
        sums_S = {each.name: added(sums[named(each)], parts) for each in self.sums}
        rows = [
            self._figures({name: each[place] for name, each in sums_S.items()}, records=int(row_C.sum()))
            for place, row_C in enumerate(records_SC)
        ]
        names = dict.fromkeys(name for row in rows for name in row)
        return tables | {
            f"{OF_SUBGROUP}{name}": np.array([row.get(name, np.nan) for row in rows]) for name in names
        }

    def _figures(self, sums: Mapping[str, Array], *, records: int) -> dict[str, float]:
        of_part = {**sums, TESTED.name: np.array(records)}
        figures = self.task.subgroup_figures(of_part)
        for metric in self.metrics.values():
            figures |= metric.figures(of_part)
        return flat_figures(figures)

    def _parts(self, records_PC: Array) -> tuple[list[int], list[int]] | None:
        """By themselves, and with figures; None where classes or all records are too few for any step, or
        where no records give these sums."""
        table_CP = records_PC.T
        if (records_PC < 0).any() or (table_CP.sum(axis=1) < self.min_cell).any():
            return None
        alone = by_itself(table_CP.sum(axis=0), self.partition, self.min_cell)
        return alone, chained(table_CP, alone, self.partition, self.min_cell)


def named(each: Sum) -> str:
    """A task's sum as it is summed by subgroup."""
    return each.name if each.name == RECORDS else f"{OF_SUBGROUP}{each.name}"
