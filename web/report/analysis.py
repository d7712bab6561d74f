"""The results of an analysis as one HTML file: no script, nothing fetched, in light and dark, on a phone."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from client.analysis.correlations import Correlations
from client.analysis.described import DescribedResults
from client.analysis.regression import FittedModel
from client.analysis.survival import SurvivalCurves, steps
from web.report.page import SITE
from web.shared.bars import bars
from web.shared.steps import step_chart
from web.shared.templating import environment


def analysis_page(
    results: DescribedResults, further: FittedModel | SurvivalCurves | Correlations | None = None
) -> str:
    """A table 1, what is computed beside it, and a chart a column whose counts are shown. Every name in it is
    escaped."""
    template = environment(Path(__file__).parent / "templates").get_template("analysis.html")
    charts = []
    if isinstance(further, SurvivalCurves) and further.curves:
        lines = [(curve.label, [*steps(curve)]) for curve in further.curves]
        charts.append(("Survival", step_chart(lines, axis=further.time_in_words, label=further.title)))
    for column in results.columns:
        if column.has_counts:
            drawn = column.bars(results.heads)
            label = f"{column.title}: percent of records by part"
            chart = bars(drawn.parts, drawn.groups, drawn.percent_GP, label=label)
            charts.append((column.title, chart))
    rendered = template.render(
        name=results.spec.name,
        purpose=results.spec.purpose,
        tables=[results.table(), *([] if further is None else [further.table()])],
        charts=charts,
        silos=results.spec.silos,
        least=results.spec.min_cell if results.spec.privacy is None else None,
        style=Markup(SITE.read_text()),  # ours
    )
    return f"{rendered}\n"
