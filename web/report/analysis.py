"""The results of an analysis as one HTML file: no script, nothing fetched, in light and dark, on a phone."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from client.analysis.described import DescribedResults
from client.analysis.regression import FittedModel
from web.report.page import SITE
from web.shared.bars import bars
from web.shared.templating import environment


def analysis_page(results: DescribedResults, model: FittedModel | None = None) -> str:
    """A table 1, coefficients of a model, and a chart a column whose counts are shown. Every name in it is
    escaped."""
    template = environment(Path(__file__).parent / "templates").get_template("analysis.html")
    charts = []
    for column in results.columns:
        if column.has_counts:
            drawn = column.bars(results.heads)
            label = f"{column.title}: percent of records by part"
            chart = bars(drawn.parts, drawn.groups, drawn.percent_GP, label=label)
            charts.append((column.title, chart))
    rendered = template.render(
        name=results.spec.name,
        purpose=results.spec.purpose,
        tables=[results.table(), *([] if model is None else [model.table()])],
        charts=charts,
        silos=results.spec.silos,
        least=results.spec.min_cell,
        style=Markup(SITE.read_text()),  # ours
    )
    return f"{rendered}\n"
