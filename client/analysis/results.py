"""All that an analysis published: its tables, and a model, survival curves or correlations.

pandas and matplotlib come with the extra `notebook` and are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from chorale.results import library
from chorale.spec.analysis_spec import AnalysisSpec
from chorale.spec.model_file import described_analysis, open_model
from client.analysis.correlations import Correlations
from client.analysis.described import DescribedResults
from client.analysis.records import FIELDS, INDEX, Record
from client.analysis.regression import FittedModel
from client.analysis.survival import SurvivalCurves
from client.analysis.text import comma_separated
from client.operations import Operations
from strategies.base import Arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AnalysisResults:
    """further: what the job asks for beside its tables; None: nothing."""

    described: DescribedResults
    further: FittedModel | SurvivalCurves | Correlations | None

    @classmethod
    def of(cls, spec: AnalysisSpec, state: Arrays) -> Self:
        """Raises ConfigError for a state without results, and for one that the job's rules cannot give."""
        further: FittedModel | SurvivalCurves | Correlations | None = None
        if spec.model is not None:
            further = FittedModel.of(spec, state)
        elif spec.survival is not None:
            further = SurvivalCurves.of(spec, state)
        elif spec.correlations:
            further = Correlations.of(spec, state)
        return cls(described=DescribedResults.of(spec, state), further=further)

    @classmethod
    def fetched(cls, operations: Operations, digest: bytes) -> Self:
        """Of a job of one's own. Raises ConfigError for another kind of job, and as `of`."""
        state, facts = open_model(b"".join(operations.fetch(digest)[1]))
        return cls.of(described_analysis(facts, source=f"job {digest.hex()[:12]}"), state)

    def __repr__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Aligned columns, for a terminal."""
        return self.described.to_text() + ("" if self.further is None else f"\n{self.further.to_text()}")

    def to_csv(self) -> str:
        """The rows of `frame`, which see; value is empty where a figure is withheld."""
        return comma_separated([*self.records()], FIELDS)

    def to_json(self) -> dict[str, Any]:
        """As `DescribedResults.to_json`, with all figures and notes."""
        found = self.described.to_json()
        if self.further is not None:
            found["figures"] += self.further.figures()
            found["notes"] += self.further.table().notes
        return found

    def frame(self) -> DataFrame:
        """A row a figure, indexed by column, figure, part and group; value is NaN where one is withheld.

        figure: count, percent (of the records of the group, or of all), mean, standard deviation, lower
        quartile, median, upper quartile, the standardized differences of two groups, correlation, and those
        of a model or of survival curves. part: of a count, a term, or the other column. group: `overall`, or
        a part of the group. note: how the figure is rounded, or that it is withheld. Raises ConfigError
        without the extra `notebook`.
        """
        pandas = library("pandas", "a table of results")
        frame: DataFrame = pandas.DataFrame([*self.records()], columns=list(FIELDS))
        return frame.astype({"value": "float64"}).set_index(list(INDEX))

    def plot(self, column: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Survival curves, or bars of a column: percent of records by part, the groups beside one another.

        column: None: the curves, of a job that has none its first column. ax: where to draw it. Raises
        ConfigError for a column that is not described, and without the extra `notebook`.
        """
        if column is None and isinstance(self.further, SurvivalCurves):
            return self.further.plot(ax=ax)
        return self.described.plot(column or self.described.columns[0].column.name, ax=ax)

    def records(self) -> Iterator[Record]:
        """A figure each, by FIELDS."""
        yield from self.described.records()
        if self.further is not None:
            yield from self.further.figures()
