"""The forms in which `chorale analysis results` writes what was published."""

from __future__ import annotations

import json
from collections.abc import Callable

from client.analysis.described import DescribedResults
from client.analysis.results import AnalysisResults
from client.analysis.text import comma_separated, plain_text
from client.drift import drift_records, drift_table


def _html(results: AnalysisResults) -> str:
    from web.report.analysis import analysis_page

    return analysis_page(results.described, results.further)


FORMS: dict[str, Callable[[AnalysisResults], str]] = {
    "text": AnalysisResults.to_text,
    "csv": AnalysisResults.to_csv,
    "html": _html,
    "json": lambda results: json.dumps(results.to_json(), indent=1, allow_nan=False) + "\n",
}


FORMS_AGAINST: dict[str, Callable[[DescribedResults, DescribedResults], str]] = {
    "text": lambda *both: plain_text(drift_table(*both)),
    "csv": lambda *both: comma_separated([*drift_records(*both)], ("column", "figure", "value")),
    "json": lambda *both: json.dumps([*drift_records(*both)], indent=1, allow_nan=False) + "\n",
}
