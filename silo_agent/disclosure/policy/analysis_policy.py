"""What analyses without noise may show of a data set: by default nothing. The budget bounds noised ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from chorale.spec.analysis_spec import LEAST_CELL, MOST_SMALLEST, AnalysisSpec
from crypto.errors import PolicyRefusal, Rule
from silo_agent.disclosure.policy.privacy_policy import Permission, refusal_by
from silo_agent.disclosure.policy.readable import FEWER_READ, Readable, check_readable, readable_told
from silo_agent.disclosure.policy.tightening import HIGHER, LOWER, toward

EXACT_REFUSED = "without noise (analyses.exact: refuse)"


class AnalysisPolicy(BaseModel):
    """Part of the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    exact: Annotated[Permission, toward(Permission.REFUSE)] = Field(
        default=Permission.REFUSE,
        description="analyses without noise: refuse or allow; the coordinator and all silos of the job can "
        "see each of their cells, readers of the results those of min_cell records alone",
    )
    most: Annotated[int, LOWER] = Field(
        default=1,
        ge=1,
        le=1_000,
        description="analyses of a data set, for good; tables of a second one that are cut otherwise may be "
        "solved for cells that neither shows",
    )
    min_cell: Annotated[int, HIGHER] = Field(
        default=LEAST_CELL,
        ge=LEAST_CELL,
        le=MOST_SMALLEST,
        description="fewest records of a cell that results may show, and of a leaf of trees; jobs that show "
        "fewer are refused",
    )
    measurements: Annotated[Readable, FEWER_READ] = Field(
        default={},
        description="columns of which analyses may sum the values, for means, by data set, null for all of "
        "one; measured quantities alone: of a column of zeros and ones a mean gives the count away",
    )

    def refusals(self, min_cell: int, *, what: str) -> Iterator[PolicyRefusal]:
        """Every rule by which sums of cells as such are not allowed. what: they are."""
        if self.exact is Permission.REFUSE:
            yield refusal_by(what, f"no analyses {EXACT_REFUSED}", Rule.ANALYSES)
        yield from self.small_cells("min_cell", min_cell)

    def small_cells(self, field: str, records: int) -> Iterator[PolicyRefusal]:
        """field: of the job, so many records."""
        if records < self.min_cell:
            yield refusal_by(f"{field} {records}", f"at least {self.min_cell}", Rule.MIN_CELL)

    def check_measured(self, spec: AnalysisSpec, *, data_set: str) -> None:
        """Raises PolicyRefusal for the exact mean of a column that is not listed."""
        measured = [spec.columns[place].name for place in spec.tables.measured]
        if measured and spec.privacy is None:
            check_readable(self.measurements, measured, data_set=data_set, rule=Rule.MEASUREMENTS)

    def refused(self) -> list[str]:
        """What is refused, line by line, for the description of the whole policy."""
        if self.exact is Permission.REFUSE:
            return ["every analysis without noise"]
        return [
            f"analyses that show cells of fewer than {self.min_cell} records",
            f"more than {self.most} analyses of a data set",
            *readable_told("means of columns", self.measurements),
        ]
